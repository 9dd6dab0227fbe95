"""Toad, a client in the terminal (PyPI: batrachian-toad), in a session with the real agent: what a person sees and presses."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.e2e.editors import debian_packages as debian
from tests.e2e.editors.editor_processes import Home
from tests.e2e.editors.terminal import Terminal

# The first one may have to load a newer Python, and Toad.
pytestmark = [pytest.mark.timeout(500), pytest.mark.slow]

VERSION = "0.6.20"
READY = "How can I help"


def calls(gate: str, content: str, **args: Any) -> dict[str, Any]:
    return {"content": content, "tool_calls": [{"gate": gate, "args": args}]}


RESPONSES = [
    calls("list_dir", "I look at the files.", path="."),
    calls("edit_file", "Now the edit.", path="greet.py", old_text="old", new_text="new"),
    {"content": "All edited."},
    {"content": "Never said.", "delay_ms": 600_000},
    {"content": "Here again."},
]


@pytest.fixture
def toad(home: Home, tmp_path: Path) -> Iterator[Callable[..., Terminal]]:
    """Starts it in a folder with one file."""
    try:
        root = debian.toad(VERSION)
    except debian.Unavailable as why:
        pytest.skip(str(why))
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "greet.py").write_text("a\nold\n")
    began: list[Terminal] = []

    def start(*arguments: str) -> Terminal:
        command = [*root.python(), "-m", "toad", *arguments]
        began.append(Terminal(command, home.environment(), folder, columns=150, lines=45))
        return began[-1]

    yield start
    for each in began:
        each.close()


def _agents(home: Home) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["cmdline"]):
        try:
            if "cantrip-acp" in " ".join(process.info["cmdline"] or ()) and process.environ().get("HOME") == str(
                home.path
            ):
                found.append(process)
        except psutil.Error:
            continue
    return found


def everything(screen: Terminal, *words: str) -> None:
    """Wait until all of them are on the screen, which is drawn in pieces."""
    for each in words:
        screen.wait(each)


def test_a_session(toad: Callable[..., Terminal], home: Home, tmp_path: Path) -> None:
    recipe = tmp_path / "toad.cantrip.yaml"
    circle = {"medium": "conversation", "gates": ["done", "list_dir", "edit_file"], "wards": [{"max_turns": 20}]}
    crystal = {"provider": "scripted", "responses": RESPONSES}
    # Without kept files, a session begins in the mode ask.
    data = {"name": "toad", "crystal": crystal, "circle": circle, "loom": {"files": False}}
    recipe.write_text(json.dumps(data))
    file = tmp_path / "project" / "greet.py"

    screen = toad("acp", f"cantrip-acp --recipe {recipe}", str(file.parent))
    screen.wait(READY, patience=120)
    everything(screen, "cantrip-acp", "Ask")
    # The permission, with the change and our short options.
    screen.type("Mend greet.py.")
    screen.type("\r")
    screen.wait("Approval request")
    everything(
        screen, "(+1, -1)", "Always allow edits in this folder", "Always reject edits in this folder", "old", "new"
    )
    assert file.read_text() == "a\nold\n"
    screen.type("a")
    # Messages stand apart, and calls have their titles and are finished.
    everything(screen, "I look at the files.", "Now the edit.", "List . ✔", "Edit greet.py (+1 −1) ✔", "All edited.")
    assert file.read_text() == "a\nnew\n"

    # A prompt that goes on and on is cancelled, and the tab's hourglass goes.
    screen.type("Go on and on.")
    screen.type("\r")
    screen.wait("⌛")
    screen.type("\x1b")
    screen.wait("again to cancel")
    screen.type("\x1b")
    screen.wait("Turn cancelled")
    began = time.monotonic()
    while "⌛" in screen.text():
        assert time.monotonic() - began < 60, screen.text()
        screen.look(0.2)
    log = sorted((home.path / "state/toad/logs").glob("cantrip-acp_*"))[0]
    assert '"stopReason":"cancelled"' in log.read_text()
    screen.close()
    gone = time.monotonic() + 60
    while _agents(home):
        assert time.monotonic() < gone, _agents(home)
        time.sleep(0.1)

    # Another Toad takes the session up again, and it goes on.
    screen = toad()
    screen.wait("Resume", patience=120)
    screen.type("\x12")
    screen.wait("Session Resume")
    screen.wait("cantrip-acp")
    screen.type("\r")
    screen.wait("Go on and on.", patience=120)
    everything(screen, "Mend greet.py.", "I look at the files.", "List . ✔", "Edit greet.py (+1 −1) ✔", "All edited.")
    screen.wait("Ask")
    screen.type("Once more.")
    screen.type("\r")
    assert "Never said." not in screen.wait("Here again.")
