"""What a permission reaches: never what wards refuse, never more than was shown, and no longer than the mode asks for it."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.acp.rawclient import Problem, RawClient

Start = Callable[..., RawClient]
ASK = "session/request_permission"
END = {"content": "Done."}
FILES: dict[str, Any] = {"gates": ["done", "echo", "read_file", "write_file", "edit_file"]}


def write(path: str, content: str = "new\n") -> dict[str, Any]:
    return {"tool_calls": [{"gate": "write_file", "args": {"path": path, "content": content}}]}


def edit(path: str, old: str) -> dict[str, Any]:
    return {"tool_calls": [{"gate": "edit_file", "args": {"path": path, "old_text": old, "new_text": "2"}}]}


def asked(agent: RawClient) -> list[str]:
    return [m["params"]["toolCall"]["title"] for m in agent.seen if m.get("method") == ASK]


def question(agent: RawClient) -> dict[str, Any]:
    return agent.until(lambda message: message.get("method") == ASK)


def failures(agent: RawClient) -> list[str]:
    return [str(u.get("rawOutput")) for u in agent.updates("tool_call_update") if u.get("status") == "failed"]


def read(params: dict[str, Any]) -> dict[str, str]:
    if not Path(params["path"]).is_file():
        raise Problem("no such file", -32002)
    return {"content": Path(params["path"]).read_text()}


NEVER = ["../out.txt", "/etc/cron.d/x", ".git/hooks/pre-commit", "src/.git/config", ".cantrip/x.cantrip.yaml", ".GIT/config",
         ".vscode/tasks.json", "src/../.git/x", "way/out.txt", ".env", "src", "locked.txt"]  # fmt: skip


@pytest.mark.parametrize("client", [{}, {"fs": {"readTextFile": True, "writeTextFile": True}}])
def test_what_can_never_be_written_is_not_asked(start: Start, folder: Path, tmp_path: Path, client: Any) -> None:
    (folder / "src").mkdir()
    (folder / "way").symlink_to(tmp_path)
    (folder / "a.txt").write_text("1")
    os.mkfifo(folder / "locked.txt")
    script = [*map(write, NEVER), edit("a.txt", "not there"), edit("none.txt", "x"), edit(".git/config", "x")]
    agent = start([*script, END], capabilities=client, **FILES)
    agent.services = {"fs/read_text_file": read}
    agent.permit = "allow_always"
    agent.prompt(agent.session(folder))
    assert asked(agent) == []
    assert len(failures(agent)) == len(script)
    assert {p.name for p in folder.iterdir()} == {"src", "way", "a.txt", "locked.txt"}
    assert (folder / "a.txt").read_text() == "1"


def test_a_word_for_good_opens_nothing_else(start: Start, folder: Path) -> None:
    (folder / "src").mkdir()
    paths = ["src/a.txt", "src/.git/hooks/x", ".git/hooks/x", "../out.txt", "src/b.txt", "other/c.txt"]
    agent = start([*map(write, paths), END], **FILES)
    agent.permit = "allow_always"
    agent.prompt(agent.session(folder))
    assert asked(agent) == ["Write src/a.txt", "Write other/c.txt"]
    assert sorted(p.name for p in folder.iterdir()) == ["other", "src"]
    assert sorted(p.name for p in (folder / "src").iterdir()) == ["a.txt", "b.txt"]


def test_a_link_that_is_moved_while_the_user_is_asked(start: Start, folder: Path) -> None:
    (folder / "mild").mkdir()
    (folder / "wild").mkdir()
    (folder / "way").symlink_to("mild")
    agent = start([write("way/a.txt"), END], **FILES)
    agent.permit = None
    prompt = agent.start_prompt(agent.session(folder))
    message = question(agent)
    (folder / "way").unlink()
    (folder / "way").symlink_to("wild")
    agent.decide(message, "allow_once")
    agent.answer(prompt)
    assert not list(folder.rglob("a.txt"))
    assert "leads somewhere else" in failures(agent)[0]


@pytest.mark.parametrize(("mode", "made"), [("trusted", True), ("sandboxed", True), ("read-only", False)])
def test_an_open_question_is_settled_by_the_mode(start: Start, folder: Path, mode: str, made: bool) -> None:
    agent = start([write("a.txt"), END], wards=[{"max_turns": 9}, {"bash_writable_paths": ["."]}], **FILES)
    agent.permit = None
    session = agent.session(folder)
    prompt = agent.start_prompt(session)
    message = question(agent)
    agent.call("session/set_mode", {"sessionId": session, "modeId": mode})
    if not any(m.get("id") == prompt and "method" not in m for m in agent.seen):
        assert agent.answer(prompt)["result"]["stopReason"] == "end_turn"
    assert (folder / "a.txt").exists() == made
    told = [m["params"] for m in agent.seen if m.get("method") == "$/cancel_request"]
    assert told == [{"requestId": message["id"]}]
    assert bool(failures(agent)) != made
    # What is answered after that harms nothing.
    agent.decide(message, "reject_always")
    agent.quiet()
    assert len(asked(agent)) == 1


def test_a_mode_that_asks_too_leaves_the_question_open(start: Start, folder: Path) -> None:
    agent = start([write("a.txt"), END], **FILES)
    agent.permit = None
    session = agent.session(folder)
    prompt = agent.start_prompt(session)
    message = question(agent)
    # Nothing is writable in the sandbox, so this write is outside of it.
    agent.call("session/set_mode", {"sessionId": session, "modeId": "sandboxed"})
    agent.until(lambda m: m.get("params", {}).get("update", {}).get("sessionUpdate") == "config_option_update")
    agent.quiet()
    agent.decide(message, "allow_once")
    agent.answer(prompt)
    assert (folder / "a.txt").exists()


@pytest.mark.sandbox
def test_a_command_that_waits_is_settled_by_the_mode(start: Start, folder: Path) -> None:
    for mode, made in (("read-only", False), ("sandboxed", True)):
        agent = start(
            [{"bash": "touch made"}, END],
            medium="bash", gates=["done"], wards=[{"max_turns": 5}, {"bash_writable_paths": ["."]}],
        )  # fmt: skip
        agent.permit = None
        session = agent.session(folder)
        prompt = agent.start_prompt(session)
        question(agent)
        agent.call("session/set_mode", {"sessionId": session, "modeId": mode})
        if not any(m.get("id") == prompt and "method" not in m for m in agent.seen):
            agent.answer(prompt)
        assert (folder / "made").exists() == made


def test_a_refusal_for_good_holds_in_every_mode(start: Start, folder: Path) -> None:
    agent = start([write("a.txt"), END, write("a.txt"), write("sub/b.txt"), END], **FILES)
    agent.permit = "reject_always"
    session = agent.session(folder)
    agent.prompt(session)
    agent.call("session/set_mode", {"sessionId": session, "modeId": "trusted"})
    agent.prompt(session)
    assert len(asked(agent)) == 1
    assert not (folder / "a.txt").exists()
    assert (folder / "sub" / "b.txt").exists()


def test_a_terminal_is_allowed_for_its_folder(start: Start, folder: Path) -> None:
    (folder / "sub").mkdir()
    calls = [
        {"command": "make"},
        {"command": "make", "cwd": "./"},
        {"command": "make", "cwd": "sub"},
        {"command": "make", "cwd": "no"},
    ]
    script = [{"tool_calls": [{"gate": "client_terminal", "args": args}]} for args in calls]
    agent = start([*script, END], gates=["done", "client_terminal"], capabilities={"terminal": True})
    agent.services = {
        "terminal/create": lambda p: {"terminalId": "t1"},
        "terminal/wait_for_exit": lambda p: {"exitCode": 0, "signal": None},
        "terminal/output": lambda p: {"output": "", "truncated": False},
        "terminal/release": lambda p: {},
    }
    agent.permit = "allow_always"
    agent.prompt(agent.session(folder))
    assert asked(agent) == ["make", "make (in sub)"]
    bare = start([script[0], END], gates=["done", "client_terminal"])
    bare.prompt(bare.session(folder))
    assert asked(bare) == []
    assert "no terminal" in failures(bare)[0]


def test_what_cannot_be_committed_is_not_asked(start: Start, folder: Path) -> None:
    commits = [
        {"tool_calls": [{"gate": "git_commit", "args": {"paths": [path], "message": message}}]}
        for path, message in ((".", "x"), ("../x", "x"), (".git", "x"), (".", " "))
    ]
    agent = start([*commits, END], gates=["done", "git_commit"])
    agent.prompt(agent.session(folder))
    assert asked(agent) == []
    assert len(failures(agent)) == 4
    assert "git repository" in json.dumps(failures(agent)[0])
