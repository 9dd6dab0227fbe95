"""What a permission reaches: never what wards refuse, never more than was shown, and no longer than the mode asks for it."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.acp_client import SOON, Problem, RawClient
from tests.support.fixtures.acp import Start

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
    assert asked(agent) == ["Write src/a.txt (new, +1)", "Write other/c.txt (new, +1)"]
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
    assert "now leads to another place" in failures(agent)[0]


@pytest.mark.parametrize(("mode", "made"), [("trusted", True), ("sandboxed", True), ("read-only", False)])
def test_an_open_question_is_settled_by_the_mode(start: Start, folder: Path, mode: str, made: bool) -> None:
    agent = start([write("a.txt"), END], wards=[{"max_turns": 9}, {"bash_writable_paths": ["."]}], **FILES)
    agent.permit = None
    session = agent.session(folder, mode="ask")
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


def wait_for_all(agent: RawClient, prompt: Any) -> None:
    if not any(m.get("id") == prompt and "method" not in m for m in agent.seen):
        agent.answer(prompt)


def test_an_answer_for_good_settles_what_children_ask(start: Start, folder: Path) -> None:
    (folder / "src").mkdir()
    children = [[write(f"src/{name}.txt"), {"content": "I wrote."}] for name in "abc"]
    batch = {"gate": "call_agent_batch", "args": {"requests": [{"intent": f"Write {name}."} for name in "abc"]}}
    agent = start(
        [{"tool_calls": [batch]}, END], gates=["done", "write_file", "call_agent_batch"],
        wards=[{"max_turns": 9}, {"max_depth": 1}], crystal={"children": children},
    )  # fmt: skip
    agent.permit = None
    prompt = agent.start_prompt(agent.session(folder))
    messages = [question(agent) for _ in range(3)]
    agent.decide(messages[1], "allow_always")
    agent.answer(prompt)
    assert sorted(path.name for path in (folder / "src").iterdir()) == ["a.txt", "b.txt", "c.txt"]
    told = {m["params"]["requestId"] for m in agent.seen if m.get("method") == "$/cancel_request"}
    assert told == {messages[0]["id"], messages[2]["id"]}


@pytest.mark.parametrize("first", ["allow_once", "reject_once"])
def test_who_answers_twice_or_to_nothing(start: Start, folder: Path, first: str) -> None:
    other = "reject_once" if first == "allow_once" else "allow_once"
    agent = start([write("a.txt"), END, END], **FILES)
    agent.permit = None
    session = agent.session(folder)
    prompt = agent.start_prompt(session)
    message = question(agent)
    agent.decide({**message, "id": 987_654}, other)
    agent.decide({**message, "id": "x"}, other)
    agent.decide(message, first)
    agent.decide(message, other)
    agent.answer(prompt)
    assert (folder / "a.txt").exists() == (first == "allow_once")
    assert agent.prompt(session)["stopReason"] == "end_turn"


@pytest.mark.sandbox
def test_a_command_says_what_it_is(start: Start, folder: Path) -> None:
    command = "echo \u202efdp.exe\u200b \x1b[2K\x07 # ok"
    agent = start(
        [{"bash": command}, END],
        medium="bash", gates=["done"], wards=[{"max_turns": 5}, {"bash_writable_paths": ["."]}],
    )  # fmt: skip
    agent.permit = None
    prompt = agent.start_prompt(agent.session(folder, mode="ask"))
    message = question(agent)
    call = message["params"]["toolCall"]
    spelled = "echo \\u202efdp.exe\\u200b \\x1b[2K\\x07 # ok"
    assert call["title"] == spelled
    assert spelled in call["content"][0]["content"]["text"]
    assert call["rawInput"] == {"command": command}
    agent.decide(message, "reject_once")
    agent.answer(prompt)


def test_what_was_said_for_good_is_shown_and_taken_back(start: Start, folder: Path, tmp_path: Path) -> None:
    state = str(tmp_path / "state")
    agent = start([write("a.txt"), END, write("b.txt"), END], "--state-dir", state, **FILES)
    agent.permit = "allow_always"
    session = agent.session(folder)
    agent.prompt(session)
    agent.prompt(session, "/wards")
    assert f"allowed: `write_file` `{folder}/*`" in agent.said()
    agent.prompt(session, "/wards forget")
    assert 'Deleted 1 "always" answer' in agent.said()
    agent.prompt(session)
    assert asked(agent) == ["Write a.txt (new, +1)", "Write b.txt (new, +1)"]
    assert agent.hang_up() < SOON
    # The loom tells of it, where the note is lost.
    (tmp_path / "state" / "looms" / f"{session}.session.json").unlink()
    again = start([*[END] * 4, write("c.txt"), END], "--state-dir", state, **FILES)
    again.call("session/resume", {"sessionId": session, "cwd": str(folder), "mcpServers": []})
    again.prompt(session, "/wards")
    assert again.said().count("write_file` `") == 1


@pytest.mark.parametrize("way", ["meta", "form", "form declined", "none"])
def test_a_rejection_has_a_reason_that_the_entity_reads(start: Start, folder: Path, way: str) -> None:
    forms = {"elicitation": {"form": {}}} if way.startswith("form") else {}
    agent = start([write("a.txt"), END], capabilities=forms, process={"permit": None}, **FILES)
    filled = {"action": "accept", "content": {"answer": "use b.txt"}} if way == "form" else {"action": "decline"}
    agent.services = {"elicitation/create": lambda params: filled}
    session = agent.session(folder)
    agent.call("session/set_mode", {"sessionId": session, "modeId": "ask"})
    prompt = agent.start_prompt(session)
    asked = question(agent)
    ids = [option["optionId"] for option in asked["params"]["options"]]
    assert ("reject_with_reason" in ids) is bool(forms)
    outcome: dict[str, Any] = {"outcome": "selected", "optionId": "reject_with_reason" if forms else "reject_once"}
    if way == "meta":
        outcome["_meta"] = {"cantrip": {"reason": "use b.txt"}}
    agent.send({"jsonrpc": "2.0", "id": asked["id"], "result": {"outcome": outcome}})
    agent.answer(prompt)
    (failure,) = failures(agent)
    given = way in ("meta", "form")
    assert ("The user's reason: use b.txt" in failure) is given
    (update,) = [u for u in agent.updates("tool_call_update") if u.get("status") == "failed"]
    assert ("you rejected this: use b.txt" in json.dumps(update["content"])) is given
    assert update["_meta"]["cantrip"]["permission"] == "rejected"
    assert not (folder / "a.txt").exists()
    # The loom keeps the reason, and a loaded session shows it.
    agent.call("session/close", {"sessionId": session})
    agent.call("session/load", {"sessionId": session, "cwd": str(folder), "mcpServers": []})
    shown = agent.updates("tool_call")[-1]
    assert ("you rejected this: use b.txt" in json.dumps(shown["content"])) is given
