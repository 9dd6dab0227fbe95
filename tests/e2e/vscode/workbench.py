"""A real VS Code workbench, and hands for it: code-server in headless Chromium, with the extension as users install it.

`Workbench` is the server, `Window` one open folder of it in one browser page. What a test does it does as a person would: by
keys, palette, lenses, trees and notifications.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from tests.support.networks import free_port

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Frame, Locator, Page

ROOT = Path(__file__).parents[3]
EXTENSION = ROOT / "vscode-extension"
SHOTS = ROOT / ".reports" / "screenshots" / "vscode"
BIN = Path(sys.executable).parent
PATIENCE_MS = 60_000
_WRITTEN = """async tab => {
  for (const {name} of await indexedDB.databases()) {
    if (!name.startsWith("vscode-web-state-db") || name.endsWith("-global")) continue
    const asked = ask => new Promise((resolve, reject) => {
      ask.onsuccess = () => resolve(ask.result)
      ask.onerror = () => reject(ask.error)
    })
    const db = await asked(indexedDB.open(name))
    try {
      const rows = db.transaction("ItemTable").objectStore("ItemTable")
      const chat = await asked(rows.get("memento/webviewView.cantrip.chat"))
      const editors = await asked(rows.get("memento/workbench.parts.editor"))
      if (chat?.includes("session") && (editors ?? "").includes(tab)) return true
    } finally { db.close() }
  }
  return false
}"""
"""Whether the workbench has stored the session that the chat shows, and a tab."""

SETTINGS: dict[str, Any] = {
    "workbench.startupEditor": "none",
    "security.workspace.trust.enabled": False,
    "telemetry.telemetryLevel": "off",
    "update.mode": "none",
    "extensions.autoCheckUpdates": False,
    "extensions.ignoreRecommendations": True,
    "chat.commandCenter.enabled": False,
    "workbench.secondarySideBar.defaultVisibility": "hidden",
    "workbench.tips.enabled": False,
    "editor.minimap.enabled": False,
    "editor.cursorBlinking": "solid",
    "git.enabled": False,
    "terminal.integrated.gpuAcceleration": "off",
    "files.simpleDialog.enable": True,
    "window.autoDetectColorScheme": False,
    "workbench.colorTheme": "Default Dark Modern",
}


class NoWorkbench(Exception):
    """Why there is none here."""


def installed() -> tuple[Path, str]:
    """The workbench's folder and its node. Raises `NoWorkbench`."""
    where = subprocess.run(
        ["bash", ROOT / "tests/e2e/vscode/install.sh", "--where"], capture_output=True, text=True, check=True
    )
    folder = Path(where.stdout.strip())
    stamp = folder / ".installed"
    if not stamp.is_file():
        why = folder.with_name(f"{folder.name}.why")
        told = why.read_text().strip() if why.is_file() else "it is not installed"
        raise NoWorkbench(f"no VS Code workbench here: {told} (bash tests/e2e/vscode/install.sh)")
    return folder, stamp.read_text().strip()


def package(to: Path) -> Path:
    """The extension as `npm run package` makes it. Raises `NoWorkbench` where its modules are not installed."""
    if shutil.which("npm") is None:
        raise NoWorkbench("npm is missing")
    if not (EXTENSION / "node_modules" / "esbuild").is_dir():
        raise NoWorkbench("the extension's modules are not installed (npm ci in vscode-extension/)")
    done = subprocess.run(
        ["npm", "run", "--silent", "package", "--", "--out", str(to)],
        cwd=EXTENSION, capture_output=True, text=True, timeout=300, env={**os.environ, "WHEELS": "own"},
    )  # fmt: skip
    assert done.returncode == 0, f"npm run package failed:\n{done.stdout}\n{done.stderr}"
    return to


class Workbench:
    """The server with one profile. A context manager; ``close`` ends it and all that it started."""

    def __init__(self, home: Path, vsix: Path | None, settings: dict[str, Any] | None = None) -> None:
        folder, node = installed()
        self.home = home
        self.port = free_port()
        # The window and the extension host are two machines for the editor: it takes settings of a machine, such as
        # `cantrip.path`, from the server's own file. In the user's file they count only until the extension is known.
        for name, given in (("User", SETTINGS | (settings or {})), ("Machine", settings or {})):
            (home / "user" / name).mkdir(parents=True)
            (home / "user" / name / "settings.json").write_text(json.dumps(given))
        (home / "config.yaml").write_text(f"bind-addr: 127.0.0.1:{self.port}\nauth: none\ncert: false\n")
        entry = folder / "node_modules/code-server/out/node/entry.js"
        command = [
            node, str(entry), "--config", str(home / "config.yaml"),
            "--user-data-dir", str(home / "user"), "--extensions-dir", str(home / "ext"),
        ]  # fmt: skip
        # Neither another workbench's variables nor the keys and settings of whoever runs the tests.
        alien = re.compile("VSCODE_|CANTRIP_|XDG_CONFIG_|.*_API_KEY$")
        environment = {name: value for name, value in os.environ.items() if not alien.match(name)}
        environment |= {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "HOME": str(home / "home")}
        (home / "home").mkdir()
        if vsix is not None:
            done = subprocess.run(
                [*command, "--install-extension", str(vsix), "--force"],
                capture_output=True, text=True, env=environment, timeout=180,
            )  # fmt: skip
            assert done.returncode == 0, done.stdout + done.stderr
        more = ["--disable-telemetry", "--disable-update-check", "--disable-getting-started-override"]
        if not (SETTINGS | (settings or {}))["security.workspace.trust.enabled"]:
            more.append("--disable-workspace-trust")
        self.log = (home / "server.log").open("wb")
        self.process = subprocess.Popen(
            [*command, *more], stdout=self.log, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
        self._answering()

    def _answering(self) -> None:
        end = time.monotonic() + 90
        while True:
            with suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/healthz", timeout=5).close()
                return
            assert self.process.poll() is None, (self.home / "server.log").read_text()
            assert time.monotonic() < end, "code-server did not answer in 90 s"
            time.sleep(0.2)

    def __enter__(self) -> Workbench:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End it with everything that runs below it."""
        import psutil

        with suppress(psutil.NoSuchProcess):
            # The extension host is given the chance to end the agent and the language server by itself.
            below = psutil.Process(self.process.pid).children(recursive=True)
            self.process.terminate()
            _, alive = psutil.wait_procs([*below, psutil.Process(self.process.pid)], timeout=15)
            for each in alive:
                with suppress(psutil.NoSuchProcess):
                    each.kill()
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(30)
        self.log.close()

    def kill_agent(self) -> None:
        """Kill the agents of its windows, as a machine that runs out of memory does."""
        import psutil

        below = psutil.Process(self.process.pid).children(recursive=True)
        agents = [each for each in below if str(BIN / "cantrip") in each.cmdline() and "acp" in each.cmdline()]
        assert agents, "no agent runs"
        for each in agents:
            each.kill()

    def open(
        self, browser: Browser, folder: Path, *, width: int = 1400, height: int = 860, developing: Path | None = None
    ) -> Window:
        """A window on a folder; with `developing` an extension is loaded from there, as its developers do, and may use
        what the editor only proposes."""
        from playwright.sync_api import expect

        context = browser.new_context(viewport={"width": width, "height": height})
        context.set_default_timeout(PATIENCE_MS)
        expect.set_options(timeout=PATIENCE_MS)
        context.grant_permissions(["clipboard-read", "clipboard-write"])
        page = context.new_page()
        window = Window(page, folder)
        address = f"http://127.0.0.1:{self.port}/?folder={quote(str(folder))}"
        if developing is not None:
            where = f"vscode-remote://127.0.0.1:{self.port}{developing}"
            payload = [["enableProposedApi", "true"], ["extensionDevelopmentPath", where]]
            address += f"&payload={quote(json.dumps(payload))}"
        page.goto(address, wait_until="domcontentloaded")
        page.wait_for_selector(".monaco-workbench")
        page.wait_for_selector(".part.activitybar .action-item")
        # Keys go nowhere before the window has drawn its list of files.
        page.wait_for_selector(".explorer-folders-view .monaco-list-row, .explorer-empty-view")
        return window


@dataclass
class Window:
    """A workbench's window on a folder."""

    page: Page
    folder: Path

    def close(self) -> None:
        self.page.context.close()

    def shot(self, name: str, *, always: bool = False) -> None:
        """Take a picture for people to look at, if the variable SCREENSHOTS is set: each costs 0.3 s of processor time."""
        if always or "SCREENSHOTS" in os.environ:
            SHOTS.mkdir(parents=True, exist_ok=True)
            self.page.screenshot(path=SHOTS / f"{name}.png")

    # Palette and files

    def quick(self, key: str, words: str) -> Locator:
        """Open the quick input by a key, type, and wait for its list."""
        box = self.page.locator(".quick-input-widget:visible input[type=text]").first
        end = time.monotonic() + PATIENCE_MS / 1000
        while True:
            self.page.keyboard.press(key)
            # A key that comes while the focus moves between the window and a webview goes nowhere.
            with suppress(Exception):
                box.wait_for(timeout=3_000)
                box.fill(words, timeout=3_000)
                break
            assert time.monotonic() < end, f"{key} opened no quick input"
        return self.page.locator(".quick-input-list .monaco-list-row")

    def reload(self) -> None:
        """Load the window again, once it has written what it shows. It does so each 5 s when it is idle, and not when it
        is closed (BrowserStorageService in VS Code)."""
        self.page.wait_for_timeout(5_500)
        tab = self.page.locator(".part.editor .tab.active[data-resource-name]:not([data-resource-name^=webview])")
        name = tab.first.get_attribute("data-resource-name") if tab.count() else ""
        end = time.monotonic() + PATIENCE_MS / 1000
        while not self.page.evaluate(_WRITTEN, name):
            assert time.monotonic() < end, f"the window did not write what it shows: {name}"
            self.page.wait_for_timeout(500)
        self.page.reload()

    def command(self, title: str) -> None:
        """Run a command by its title in the palette."""
        end = time.monotonic() + PATIENCE_MS / 1000
        while True:
            rows = self.quick("F1", f">{title}").filter(has_text=title)
            # The list does not grow by itself when an extension comes that has the command.
            with suppress(Exception):
                rows.first.wait_for(timeout=3_000)
            if rows.count() or time.monotonic() > end:
                break
            self.page.keyboard.press("Escape")
        self.take(title)

    def open_file(self, name: str) -> None:
        """Open a file of the folder in the editor that stands for its kind."""
        end = time.monotonic() + PATIENCE_MS / 1000
        while True:
            rows = self.quick("Control+P", name).filter(has_text=name.rpartition("/")[2])
            # A file that has just been made may be missing, and the list does not grow by itself.
            with suppress(Exception):
                rows.first.wait_for(timeout=5_000)
            if rows.count() or time.monotonic() > end:
                break
            self.page.keyboard.press("Escape")
        self.take(name.rpartition("/")[2])
        self.page.locator(f'.tab.active[data-resource-name="{name.rpartition("/")[2]}"]').wait_for()

    def answer(self, words: str, *, submit: bool = True) -> None:
        """Type into the input box that is asked with."""
        box = self.page.locator(".quick-input-widget:visible input[type=text]").first
        box.wait_for()
        box.fill(words)
        if submit:
            self.page.keyboard.press("Enter")
            # The next question may come in the same box.
            self.page.wait_for_function(
                """words => {
                    const box = document.querySelector(".quick-input-widget:not([style*='display: none']) input[type=text]");
                    return !box || !box.checkVisibility() || box.value !== words;
                }""",
                arg=words,
            )

    def pick(self, words: str) -> None:
        """Choose a row of the list that is asked with."""
        self.take(words)

    def take(self, words: str) -> None:
        """Go to the row of the quick input that has these words, by keys, and take it.

        A click may land on the row that came into its place meanwhile, or on what lies over it.
        """
        rows = self.page.locator(".quick-input-widget:visible .monaco-list-row")
        rows.filter(has_text=words).first.wait_for()
        here = self.page.locator(".quick-input-widget:visible .monaco-list-row.focused").filter(has_text=words)
        # To the box itself: the focus may still be on its way to it.
        box = self.page.locator(".quick-input-widget:visible input[type=text]").first
        for _ in range(40):
            if here.count():
                break
            box.press("ArrowDown")
            # The list draws its focus in its own time.
            self.page.wait_for_timeout(50)
        here.wait_for()
        box.press("Enter")

    # The editor

    def lines(self) -> Locator:
        """The lines that the active editor shows."""
        return self.page.locator(".editor-group-container.active .view-lines")

    def lens(self, title: str) -> Locator:
        """A code lens by its words."""
        return self.page.locator(".codelens-decoration a").filter(has_text=title).first

    def squiggle(self, kind: str = "error") -> Locator:
        """A place that is marked."""
        return self.page.locator(f".squiggly-{kind}").first

    def problems(self) -> Locator:
        """The rows of the problems' view."""
        if not self.page.locator(".markers-panel-container:visible").count():
            self.command("Problems: Focus on Problems View")
        return self.page.locator(".markers-panel-container .monaco-list-row")

    # Trees, notifications, webviews

    def view(self, title: str) -> None:
        """Show a view container of the activity bar."""
        self.page.locator(f'.part.activitybar .action-item a[aria-label^="{title}"]').first.click()

    def rows(self, words: str | re.Pattern[str] = "") -> Locator:
        """The rows of the tree in the side bar that hold these words."""
        return self.page.locator(".part.sidebar .monaco-list-row").filter(has_text=words)

    def expand(self, row: Locator) -> None:
        """Open a tree's row, if it is not."""
        if row.get_attribute("aria-expanded") == "false":
            opened = row.and_(self.page.locator('[aria-expanded="true"]'))
            self.until(lambda: row.locator(".monaco-tl-twistie").click(timeout=3_000), opened)

    def row_button(self, row: Locator, title: str, then: Locator) -> None:
        """Take a button of a tree's row, which is there while the mouse is over the row."""

        def take() -> None:
            row.hover(timeout=3_000)
            row.get_by_role("button", name=title).click(timeout=3_000)

        self.until(take, then)

    def until(self, act: Callable[[], None], then: Locator) -> None:
        """Act until something is visible. A tree that is drawn anew at that moment loses a click."""
        end = time.monotonic() + PATIENCE_MS / 1000
        while not then.is_visible():
            assert time.monotonic() < end, f"not seen: {then}"
            with suppress(Exception):
                act()
            with suppress(Exception):
                then.wait_for(timeout=3_000)

    def notification(self, words: str | re.Pattern[str]) -> Locator:
        """A notification that holds these words."""
        return self.page.locator(".notification-toast").filter(has_text=words).first

    def press(self, notification: Locator, title: str) -> None:
        """A button of a notification."""
        notification.hover()
        notification.get_by_role("button", name=title, exact=True).click()

    def dialog(self, title: str) -> None:
        """A button of the modal dialog."""
        self.page.locator(".monaco-dialog-box").get_by_role("button", name=title, exact=True).click()

    def frame(self, selector: str, *, patience_s: float = 60) -> Frame:
        """The frame, however deep, in which an element is there."""
        end = time.monotonic() + patience_s
        while True:
            for frame in self.page.frames:
                with suppress(Exception):
                    if frame.query_selector(selector) is not None:
                        return frame
            assert time.monotonic() < end, f"no frame has {selector}: {self._frames()}"
            self.page.wait_for_timeout(150)

    def _frames(self) -> list[tuple[str, str]]:
        """The address and the text of each frame, for an error."""
        found: list[tuple[str, str]] = []
        for frame in self.page.frames:
            with suppress(Exception):
                found.append((frame.url[:80], frame.inner_text("body", timeout=1_000)[-300:]))
        return found
