"""`cantrip repl --session`: what an editor began goes on in the terminal, and the other way round."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.support import processes
from tests.support.acp_client import RawClient
from tests.support.command_line import Terminal
from tests.support.fixtures.acp import folder, recipe  # noqa: F401 - fixtures

CANTRIP = str(Path(sys.executable).parent / "cantrip")
TALK = [{"content": "One."}, {"content": "Two."}, {"content": "Three."}]


def repl(*arguments: str, said: str) -> subprocess.CompletedProcess[str]:
    return processes.run(
        [CANTRIP, "repl", *arguments], input=said, capture_output=True, text=True, timeout=60, check=False
    )


def test_from_the_editor_to_the_terminal_and_back(recipe: Callable[..., str], folder: Path, tmp_path: Path) -> None:  # noqa: F811
    state = str(tmp_path / "state")
    arguments = ("--recipe", recipe(TALK), "--state-dir", state)
    editor = RawClient(*arguments)
    try:
        editor.initialize()
        session = editor.session(folder)
        editor.prompt(session, "First?")
        busy = repl("--session", session, "--state-dir", state, said="Second?\n")
        assert busy.returncode == 2
        assert "close it there first" in busy.stderr
        editor.call("session/close", {"sessionId": session})
        ended = repl("--session", session, "--state-dir", state, said="Second?\n")
        assert ended.returncode == 0, ended.stderr
        assert "Two." in ended.stdout
        editor.seen.clear()
        loaded = editor.call("session/load", {"sessionId": session, "cwd": str(folder), "mcpServers": []})
        assert loaded["_meta"]["cantrip"]["turns"] == 2
        assert editor.said() == "One.Two."
        editor.prompt(session, "Third?")
        assert editor.said() == "One.Two.Three."
        assert json.loads((tmp_path / "state" / "looms" / f"{session}.session.json").read_bytes())["title"] == "First"
    finally:
        editor.close()


def test_the_mode_of_the_session_holds_in_the_terminal(
    recipe: Callable[..., str],  # noqa: F811
    folder: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    writes = [{"tool_calls": [{"gate": "write_file", "args": {"path": name, "content": "x"}}]} for name in "ab"]
    state = str(tmp_path / "state")
    editor = RawClient(
        "--recipe", recipe([TALK[0], *writes, TALK[1]], gates=["done", "write_file"]), "--state-dir", state
    )
    try:
        editor.initialize()
        session = editor.session(folder, mode="ask")
        editor.prompt(session, "First?")
        editor.call("session/close", {"sessionId": session})
        with Terminal("repl", "--session", session, "--state-dir", state, cwd=tmp_path, TERM="dumb") as terminal:
            terminal.wait_for("asks before each write and each command")
            terminal.wait_for("❯ ")
            terminal.type("go\r")
            terminal.wait_for("which? ")
            terminal.type("r")
            terminal.wait_for("reason: ")
            terminal.type("not there\r")
            terminal.wait_for("which? ")
            terminal.type("y")
            terminal.wait_for("Two.")
            terminal.wait_for("❯ ")
            terminal.type("/ask\r")
            terminal.wait_for("mode trusted")
            terminal.wait_for("❯ ")
            terminal.type("\x04")
            assert terminal.end() == 0
        assert [(folder / name).exists() for name in "ab"] == [False, True]
    finally:
        editor.close()


def test_an_edited_recipe_goes_on_as_a_fork(recipe: Callable[..., str], folder: Path, tmp_path: Path) -> None:  # noqa: F811
    state, path = str(tmp_path / "state"), Path(recipe(TALK, call={"system_prompt": "Old."}))
    editor = RawClient("--recipe", str(path), "--state-dir", state)
    try:
        editor.initialize()
        session = editor.session(folder, _meta={"systemPrompt": {"append": "The client's."}})
        editor.prompt(session, "First?")
        editor.call("session/close", {"sessionId": session})
        same = repl("--session", session, "--state-dir", state, said="Second?\n")
        assert (same.returncode, "goes on as a fork" in same.stderr) == (0, False), same.stderr
        path.write_text(path.read_text().replace("Old.", "New."))
        edited = repl("--session", session, "--state-dir", state, said="Third?\n")
        assert "has changed since its last answer (system prompt): it goes on as a fork" in edited.stderr
        assert "Three." in edited.stdout
        again = repl("--session", session, "--state-dir", state, said="")
        assert "goes on as a fork" not in again.stderr
        editor.seen.clear()
        loaded = editor.call("session/load", {"sessionId": session, "cwd": str(folder), "mcpServers": []})
        assert loaded["_meta"]["cantrip"]["turns"] == 3
        assert editor.said() == "One.Two.Three."
    finally:
        editor.close()


def test_a_session_in_a_database_is_open_once(
    recipe: Callable[..., str],  # noqa: F811
    folder: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    state = str(tmp_path / "state")
    path = recipe(TALK, loom={"store": f"sqlite:{tmp_path / 'looms.db'}"})
    editor = RawClient("--recipe", path, "--state-dir", state)
    try:
        editor.initialize()
        session = editor.session(folder)
        editor.prompt(session, "First?")
        busy = repl(path, "--session", session, "--state-dir", state, said="Second?\n")
        assert busy.returncode == 2
        assert "close it there first" in busy.stderr
        editor.call("session/close", {"sessionId": session})
        ended = repl(path, "--session", session, "--state-dir", state, said="Second?\n")
        assert "Two." in ended.stdout
        editor.seen.clear()
        editor.call("session/load", {"sessionId": session, "cwd": str(folder), "mcpServers": []})
        assert editor.said() == "One.Two."
    finally:
        editor.close()


def test_no_such_session(tmp_path: Path) -> None:
    for session in ("sess_0", "../../etc", ""):
        ended = repl("--session", session, "--state-dir", str(tmp_path), said="")
        assert ended.returncode == 2
        assert "no session" in ended.stderr
    ended = repl("--session", "sess_0", "--loom", "x", "--state-dir", str(tmp_path), said="")
    assert ended.returncode == 2
