"""Where Cantrip is missing, and where the workspace is not trusted: what the workbench says and does then."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.e2e.vscode import workbench as workbenches
from tests.e2e.vscode.conftest import RECIPE
from tests.e2e.vscode.workbench import BIN, Window, Workbench

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400), pytest.mark.xdist_group("vscode")]


@pytest.fixture(scope="module")
def wary(vsix: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workbench]:
    """A workbench with workspace trust, in which no folder is trusted, and whose Cantrip is somewhere else."""
    settings = {
        "security.workspace.trust.enabled": True,
        "security.workspace.trust.startupPrompt": "never",
        "security.workspace.trust.banner": "never",
        "cantrip.path": str(BIN / "cantrip"),
    }
    try:
        made = Workbench(tmp_path_factory.mktemp("wary"), vsix, settings)
    except workbenches.NoWorkbench as why:
        pytest.skip(str(why))
    with made:
        yield made


def test_a_workspace_that_is_not_trusted(wary: Workbench, tmp_path: Path, windows: Callable[..., Window]) -> None:
    folder = tmp_path / "strange"
    (folder / ".vscode").mkdir(parents=True)
    trap = folder / "trap"
    trap.write_text(f'#!/bin/sh\ntouch {folder}/sprung\nexec {BIN}/cantrip "$@"\n')
    trap.chmod(0o755)
    venv = folder / ".venv" / "bin"
    venv.mkdir(parents=True)
    (venv / "cantrip").symlink_to(trap)
    (folder / ".vscode" / "settings.json").write_text(json.dumps({"cantrip.path": str(trap)}))
    (folder / "greeter.cantrip.yaml").write_text(RECIPE.replace("echo]", "nope]"))
    window = windows(wary, folder)
    window.open_file("greeter.cantrip.yaml")
    # Checked, by the user's own Cantrip ...
    window.squiggle().wait_for()
    # ... and nothing is cast, nothing that lies here is run.
    expect(window.lens("▶ Cast")).to_have_count(0)
    window.view("Cantrip")
    expect(window.page.get_by_text("Recipes run after you trust this workspace")).to_be_visible()
    window.shot("untrusted")
    assert not (folder / "sprung").exists()


@contextmanager
def model_server(*models: str) -> Iterator[str]:
    """A server of the user's own that lists these models. Yields its address."""

    class Lists(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = self.path == "/v1/models"
            body = json.dumps({"data": [{"id": model} for model in models]} if found else {}).encode()
            self.send_response(200 if found else 404)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Lists) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1"
        finally:
            server.shutdown()
            thread.join()


def test_the_setup_where_cantrip_is_missing_and_then_a_key(
    workbench: Workbench, folder: Path, tmp_path: Path, windows: Callable[..., Window]
) -> None:
    settings = {"cantrip.stateDir": str(tmp_path / "state"), "cantrip.chat.recipe": ""}
    missing = {**settings, "cantrip.path": str(folder / "nowhere")}
    (folder / ".vscode" / "settings.json").write_text(json.dumps(missing))
    window = windows(workbench, folder)
    window.open_file("greeter.cantrip.yaml")
    window.view("Cantrip")
    window.page.get_by_role("button", name="Set Up Cantrip").click()
    told = window.notification("Cantrip cannot be started")
    expect(told).to_contain_text("(the setting cantrip.path) does not exist.")
    window.shot("setup-missing")
    window.press(told, "Show the Guide")
    expect(window.page.get_by_text("Get Started with Cantrip").first).to_be_visible()
    window.shot("guide")

    # The chat says the same, and leads to the same.
    window.view("Cantrip Chat")
    frame = window.frame(".error")
    frame.get_by_role("button", name="Set Up Cantrip…").wait_for()
    window.shot("chat-missing")
    window.view("Cantrip")

    # The setting is mended, and all that was waiting starts by itself.
    (folder / ".vscode" / "settings.json").write_text(json.dumps({**settings, "cantrip.path": str(BIN / "cantrip")}))
    window.open_file("greeter.cantrip.yaml")
    window.lens("▶ Cast").wait_for()
    expect(window.page.get_by_text("Nothing has run yet")).to_be_visible()

    # So does the chat: no model has a key yet.
    window.view("Cantrip Chat")
    expect(frame.locator(".error")).to_contain_text("key is needed")
    window.shot("chat-no-key")
    # In a terminal, where it is typed without being shown; no part of the editor sees it.
    frame.get_by_role("button", name="Give a Key…").click()
    rows = window.page.locator(".quick-input-widget:visible .monaco-list-row")
    rows.filter(has_text="terminal").first.wait_for()
    window.shot("chat-give-key")
    window.take("terminal")
    window.page.locator(".terminal-wrapper.active").wait_for()
    typed = window.page.locator(".terminal-wrapper.active .xterm-rows")
    expect(typed).to_contain_text(re.compile(r"Number.or.name:"))
    window.shot("chat-key-terminal")
    window.page.keyboard.type("anthropic\n")
    expect(typed).to_contain_text(re.compile("Key.for.anthropic"))
    window.page.keyboard.type("sk-ant-of-nobody\n")
    # The terminal closes, and the chat begins.
    frame.locator(".choice").first.wait_for()
    assert "sk-ant-of-nobody" not in frame.locator("body").inner_text()
    kept = workbench.home / "home/.config/cantrip/.env"
    assert "sk-ant-of-nobody" in kept.read_text()
    kept.unlink()

    # Models of this machine are offered beside that, and need no key.
    machine = workbench.home / "user/Machine/settings.json"
    machine.parent.mkdir(exist_ok=True)
    with model_server("small", "large") as address:
        machine.write_text(json.dumps({"cantrip.env": {"LMSTUDIO_BASE_URL": address}}))
        for _ in range(10):
            window.command("Cantrip Chat: Give a Key")
            rows.filter(has_text="terminal").first.wait_for()
            if rows.filter(has_text="large").count():
                break
            # The agent that runs does not have the setting yet.
            window.page.keyboard.press("Escape")
        assert "LM Studio" in rows.filter(has_text="large").first.inner_text()
        window.shot("chat-local-models")
        window.take("large")
        expect(frame.locator('.choice[data-category="model"] .value')).to_have_text("large")
        assert "CANTRIP_CRYSTAL=lmstudio:large" in kept.read_text()
    machine.write_text("{}")
    kept.unlink()
