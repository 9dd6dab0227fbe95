"""Permissions: what asks in which mode, what is shown, what is remembered, and how a question ends."""

import re
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from cantrip_acp.loom.loom import Loom
from cantrip_acp.text import shell_parse
from tests.support.acp_client import PATIENCE, SOON, RawClient
from tests.support.fixtures.acp import Start

ASK = "session/request_permission"


ALWAYS = "you rejected this for the whole session"


def write(path: str, content: str = "new\n") -> dict[str, Any]:
    return {"tool_calls": [{"gate": "write_file", "args": {"path": path, "content": content}}]}


END = {"content": "Done."}
FILES: dict[str, Any] = {"gates": ["done", "echo", "read_file", "write_file", "edit_file"]}
SHELL: dict[str, Any] = {
    "medium": "bash", "gates": ["done", "echo", "write_file"], "wards": [{"max_turns": 9}, {"bash_writable_paths": ["."]}],
}  # fmt: skip


def asked(agent: RawClient) -> list[dict[str, Any]]:
    return [message["params"] for message in agent.seen if message.get("method") == ASK]


def question(agent: RawClient) -> dict[str, Any]:
    return agent.until(lambda message: message.get("method") == ASK)


def manual(start: Start, *args: Any, **options: Any) -> RawClient:
    agent = start(*args, **options)
    agent.permit = None
    return agent


def test_a_write_asks_with_its_diff(start: Start, folder: Path) -> None:
    (folder / "a.txt").write_text("one\ntwo\n")
    edit = {"gate": "edit_file", "args": {"path": "a.txt", "old_text": "two", "new_text": "2"}}
    agent = manual(start, [{"content": "Editing.", "tool_calls": [edit]}, END], **FILES)
    prompt = agent.start_prompt(agent.session(folder, mode="ask"))
    message = question(agent)
    call = message["params"]["toolCall"]
    (begun,) = agent.updates("tool_call")
    assert (call["toolCallId"], call["title"], call["kind"]) == (begun["toolCallId"], "Edit a.txt (+1 −1)", "edit")
    assert call["content"] == [
        {"type": "diff", "path": f"{folder}/a.txt", "oldText": "one\ntwo\n", "newText": "one\n2\n"}
    ]
    assert call["locations"] == [{"path": f"{folder}/a.txt"}]
    assert [option["kind"] for option in message["params"]["options"]] == [
        "allow_once", "allow_always", "reject_once", "reject_always",
    ]  # fmt: skip
    # Nothing has happened, and nothing runs.
    assert (folder / "a.txt").read_text() == "one\ntwo\n"
    assert not agent.updates("tool_call_update")
    agent.decide(message, "allow_once")
    assert agent.answer(prompt)["result"]["stopReason"] == "end_turn"
    assert (folder / "a.txt").read_text() == "one\n2\n"
    statuses = [update["status"] for update in agent.updates("tool_call_update")]
    assert statuses == ["in_progress", "completed"]


def test_reading_never_asks(start: Start, folder: Path) -> None:
    (folder / "a.txt").write_text("one")
    read = {"tool_calls": [{"gate": "read_file", "args": {"path": "a.txt"}}, {"gate": "echo", "args": {"text": "x"}}]}
    agent = start([read, END], **FILES)
    agent.prompt(agent.session(folder, mode="ask"))
    assert not asked(agent)


def test_a_refusal_is_an_observation(start: Start, folder: Path) -> None:
    agent = manual(start, [write("a.txt"), write("a.txt"), write("a.txt"), END], **FILES)
    session = agent.session(folder, mode="ask")
    prompt = agent.start_prompt(session)
    agent.decide(question(agent), "reject_once")
    agent.decide(question(agent), "reject_always")
    # The third is refused without a question.
    assert agent.answer(prompt)["result"]["stopReason"] == "end_turn"
    assert len(asked(agent)) == 2
    assert not (folder / "a.txt").exists()
    ends = [update for update in agent.updates("tool_call_update") if update["status"] == "failed"]
    assert len(ends) == 3
    assert "refused" in ends[0]["rawOutput"]["output"]
    assert "in this session" in ends[2]["rawOutput"]["output"]
    permissions = ["rejected", "rejected_always", "rejected_always"]
    assert [end["_meta"]["cantrip"]["permission"] for end in ends] == permissions
    assert [end["content"][0]["content"]["text"] for end in ends] == ["you rejected this", *[ALWAYS] * 2]
    # A session that is loaded shows the same.
    agent.call("session/load", {"sessionId": session, "cwd": str(folder), "mcpServers": []})
    past = [update for update in agent.updates("tool_call") if update["status"] == "failed"]
    assert [(each["content"], each["_meta"]) for each in past] == [(each["content"], each["_meta"]) for each in ends]


def test_always_is_remembered_by_gate_and_folder(start: Start, folder: Path, tmp_path: Path) -> None:
    (folder / "src").mkdir()
    paths = ["src/a.txt", "src/b.txt", "src/deep/c.txt", "top.txt", "src/../other.txt", "src/d.txt"]
    edit = {"tool_calls": [{"gate": "edit_file", "args": {"path": "src/a.txt", "old_text": "new", "new_text": "2"}}]}
    state = str(tmp_path / "state")
    agent = manual(start, [*map(write, paths), edit, END, write("src/e.txt"), END], "--state-dir", state, **FILES)
    session = agent.session(folder, mode="ask")
    prompt = agent.start_prompt(session)
    first = question(agent)
    always = next(o for o in first["params"]["options"] if o["kind"] == "allow_always")
    assert always["name"] == "Always allow writes in src/"
    agent.decide(first, "allow_always")
    for title in ("Write top.txt (new, +1)", "Write other.txt (new, +1)", "Edit src/a.txt (+1 −1)"):
        message = question(agent)
        assert message["params"]["toolCall"]["title"] == title
        agent.decide(message, "allow_once")
    agent.answer(prompt)
    assert len(asked(agent)) == 4
    assert agent.hang_up() < SOON
    # It holds for the session, in another process too; the loom says so.
    with Loom.open(tmp_path / "state" / "looms" / f"{session}.loom.jsonl", readonly=True) as loom:
        said = [record.changes for record in loom.records() if type(record).__name__ == "ConfigRecord"]
    assert said == [
        {"mode": "ask", "known_mode": "sandboxed"},
        {"permission": {"tool": "write_file", "pattern": f"{folder}/src/**", "allowed": True}},
    ]


def test_another_session_is_asked_anew(start: Start, folder: Path) -> None:
    agent = start([write("a.txt"), END], **FILES)
    agent.permit = "allow_always"
    agent.prompt(agent.session(folder, mode="ask"))
    agent.prompt(agent.session(folder, mode="ask"))
    assert len(asked(agent)) == 2


@pytest.mark.sandbox
def test_a_command_asks_with_its_exact_text(start: Start, folder: Path) -> None:
    agent = manual(start, [{"bash": "echo one >> log; echo 'it ran'"}, END], **SHELL)
    prompt = agent.start_prompt(agent.session(folder, mode="ask"))
    message = question(agent)
    call = message["params"]["toolCall"]
    assert call["rawInput"] == {"command": "echo one >> log; echo 'it ran'"}
    assert call["content"][0]["content"]["text"] == "```sh\necho one >> log; echo 'it ran'\n```"
    (begun,) = agent.updates("tool_call")
    assert (begun["toolCallId"], begun["status"]) == (call["toolCallId"], "pending")
    assert not (folder / "log").exists()
    agent.decide(message, "allow_once")
    agent.answer(prompt)
    assert (folder / "log").read_text() == "one\n"
    updates = agent.updates("tool_call_update")
    assert [update["status"] for update in updates if "status" in update] == ["in_progress", "completed"]
    assert len(agent.updates("tool_call")) == 1


@pytest.mark.sandbox
def test_always_covers_each_part_of_a_compound_command(start: Start, folder: Path) -> None:
    commands = [
        "echo one && touch a; ls | wc -l", "ls && echo two", "touch b; cp a c", "cp a c 2>&1 | tail -1",
        "ls; rm a", "ls > d", "ls && echo $(rm a)", "ls; cp a e",
    ]  # fmt: skip
    agent = start([{"bash": each} for each in commands] + [END], **SHELL)
    agent.permit = "allow_always"
    agent.prompt(agent.session(folder, mode="ask"))
    options = [m["params"]["options"][1]["name"] for m in agent.seen if m.get("method") == "session/request_permission"]
    assert options == [
        "Always allow `echo` commands, `touch` commands, `ls` commands and `wc` commands",
        "Always allow `cp a c`",
        "Always allow `tail` commands",
        "Always allow `rm a`",
        "Always allow this command",
        "Always allow this command",
        "Always allow `cp a e`",
    ]


@pytest.mark.sandbox
def test_a_rejected_part_rejects_a_compound_command(start: Start, folder: Path) -> None:
    agent = manual(start, [{"bash": "cp a b"}, {"bash": "ls; cp a b"}, {"bash": "ls"}, END], **SHELL)
    prompt = agent.start_prompt(agent.session(folder, mode="ask"))
    agent.decide(question(agent), "reject_always")
    last = question(agent)
    assert last["params"]["toolCall"]["rawInput"] == {"command": "ls"}
    agent.decide(last, "allow_once")
    agent.answer(prompt)


@pytest.mark.sandbox
def test_a_refused_command_does_not_run(start: Start, folder: Path) -> None:
    agent = manual(start, [{"bash": "touch made"}, END], **SHELL)
    agent.permit = "reject_once"
    assert agent.prompt(agent.session(folder, mode="ask"))["stopReason"] == "end_turn"
    assert not (folder / "made").exists()
    (end,) = agent.updates("tool_call_update")
    assert end["status"] == "failed"
    assert end["_meta"]["cantrip"] == {"permission": "rejected"}
    assert end["content"][0]["content"]["text"] == "you rejected this"
    assert "the user refused this" in end["rawOutput"]["output"]


@pytest.mark.sandbox
def test_always_is_remembered_by_the_words_of_a_command(start: Start, folder: Path) -> None:
    commands = ["ls -a", "ls", "ls; touch x", "ls -l sub", "lsof", "ls > out", "cat 'a b'"]
    agent = start([{"bash": each} for each in commands] + [END], **SHELL)
    agent.permit = "allow_always"
    agent.prompt(agent.session(folder, mode="ask"))
    titles = [each["toolCall"]["rawInput"]["command"] for each in asked(agent)]
    assert titles == ["ls -a", "ls; touch x", "lsof", "ls > out", "cat 'a b'"]


@pytest.mark.sandbox
def test_a_gate_alone_in_a_command_asks_for_itself(start: Start, folder: Path) -> None:
    document = "write_file b.txt <<'END'\nhello; $(no) substitution\nEND"
    agent = start([{"bash": "write_file a.txt one"}, {"bash": document}, {"bash": "cantrip_done ok"}], **SHELL)
    agent.prompt(agent.session(folder, mode="ask"))
    assert [each["toolCall"]["kind"] for each in asked(agent)] == ["edit", "edit"]
    assert asked(agent)[0]["toolCall"]["content"][0]["newText"] == "one"


@pytest.mark.sandbox
def test_a_cell_asks_where_it_could_write(start: Start, folder: Path) -> None:
    for wards, questions in (([], 0), ([{"code_writable_paths": ["workspace"]}], 1)):
        agent = start(
            [{"code": "open('/tmp/x', 'w').write('y')"}, END],
            medium="code",
            gates=["done"],
            wards=[{"max_turns": 3}, *wards],
        )
        agent.prompt(agent.session(folder, mode="ask"))
        assert len(asked(agent)) == questions
    assert asked(agent)[0]["toolCall"]["rawInput"] == {"code": "open('/tmp/x', 'w').write('y')"}


def test_a_cancelled_question_is_settled(start: Start, folder: Path) -> None:
    agent = manual(start, [write("a.txt"), END], **FILES)
    session = agent.session(folder, mode="ask")
    prompt = agent.start_prompt(session)
    message = question(agent)
    agent.tell("session/cancel", {"sessionId": session})
    assert agent.answer(prompt, SOON)["result"]["stopReason"] == "cancelled"
    told = [m["params"] for m in agent.seen if m.get("method") == "$/cancel_request"]
    assert told == [{"requestId": message["id"]}]
    assert agent.updates("tool_call_update")[-1]["status"] == "failed"
    # An answer that comes too late harms nothing.
    agent.decide(message, "allow_once")
    assert agent.prompt(session)["stopReason"] == "end_turn"
    assert not (folder / "a.txt").exists()


def test_an_answer_that_says_cancelled_ends_the_turn(start: Start, folder: Path) -> None:
    agent = start([write("a.txt"), END], **FILES)
    agent.permit = "cancelled"
    session = agent.session(folder, mode="ask")
    assert agent.prompt(session)["stopReason"] == "cancelled"
    assert agent.prompt(session)["stopReason"] == "end_turn"


def test_a_client_that_never_answers_blocks_that_turn_alone(start: Start, folder: Path) -> None:
    agent = manual(start, [{**write("a.txt"), "when": "write"}, {**END, "repeat": True}], **FILES)
    stuck, free = agent.session(folder, mode="ask"), agent.session(folder, mode="ask")
    waiting = agent.start_prompt(stuck, "write")
    question(agent)
    began = time.monotonic()
    for _ in range(3):
        assert agent.prompt(free, "talk")["stopReason"] == "end_turn"
    assert time.monotonic() - began < SOON
    agent.tell("session/cancel", {"sessionId": stuck})
    assert agent.answer(waiting)["result"]["stopReason"] == "cancelled"


def test_leaving_while_a_question_is_open(start: Start, folder: Path, tmp_path: Path) -> None:
    agent = manual(start, [write("a.txt"), END], "--state-dir", str(tmp_path / "state"), **FILES)
    session = agent.session(folder, mode="ask")
    agent.start_prompt(session)
    question(agent)
    assert agent.hang_up() < SOON
    with Loom.open(tmp_path / "state" / "looms" / f"{session}.loom.jsonl", readonly=True) as loom:
        ((_, end),) = loom.casts()
    assert end is not None
    assert end.reason == "cancelled"
    assert not (folder / "a.txt").exists()


def test_a_client_that_cannot_ask(start: Start, folder: Path) -> None:
    agent = manual(start, [write("a.txt"), END], **FILES)
    prompt = agent.start_prompt(agent.session(folder, mode="ask"))
    message = question(agent)
    agent.send({"jsonrpc": "2.0", "id": message["id"], "error": {"code": -32601, "message": "Method not found"}})
    assert agent.answer(prompt)["result"]["stopReason"] == "end_turn"
    end = agent.updates("tool_call_update")[-1]
    assert "cannot ask" in end["rawOutput"]["output"]
    assert end["_meta"]["cantrip"] == {"permission": "unasked"}
    assert not (folder / "a.txt").exists()


@pytest.mark.parametrize(
    "result", [{}, {"outcome": {}}, {"outcome": {"outcome": "selected", "optionId": "root"}}, [], None]
)
def test_a_strange_answer_allows_nothing(start: Start, folder: Path, result: Any) -> None:
    agent = manual(start, [write("a.txt"), END], **FILES)
    prompt = agent.start_prompt(agent.session(folder, mode="ask"))
    agent.send({"jsonrpc": "2.0", "id": question(agent)["id"], "result": result})
    assert agent.answer(prompt)["result"]["stopReason"] == "end_turn"
    assert not (folder / "a.txt").exists()


def test_a_document_that_goes_on_behind_its_end_is_no_plain_command() -> None:
    assert shell_parse.plain_words("write_file a <<'E'\nx\nE") == ["write_file", "a"]
    for command in (
        "write_file a <<E\n$(rm)\nE",
        "write_file a <<'E'\nx\nE\nrm b",
        "write_file a <<'E'\nx",
        "w <<'E'; rm\nE",
    ):
        assert shell_parse.plain_words(command) is None


def test_always_to_fetch_is_for_a_host(start_process: Start, folder: Path) -> None:
    # Nothing listens there, and nothing is asked for what is never fetched.
    urls = ("http://127.0.0.1/a", "http://127.0.0.1:80/b?c", "http://127.0.0.1:8080/", "http://127.1.0.1/", "file:///x")
    fetches = [{"tool_calls": [{"gate": "fetch", "args": {"url": url}}]} for url in urls]
    agent = start_process(
        [*fetches, END],
        gates=["done", "fetch"],
        process={"env": {"CANTRIP_FETCH_PRIVATE_HOSTS": "127.0.0.1, 127.0.0.1:8080"}},
    )
    agent.permit = "allow_always"
    agent.prompt(agent.session(folder, mode="ask"))
    words = [next(o["name"] for o in each["options"] if o["kind"] == "allow_always") for each in asked(agent)]
    assert words == ["Always allow fetch from http://127.0.0.1", "Always allow fetch from http://127.0.0.1:8080"]
    refused = [u["rawOutput"]["output"] for u in agent.updates("tool_call_update") if u["status"] == "failed"][-2:]
    assert "only public addresses" in refused[0]
    assert "only http and https" in refused[1]


@pytest.mark.sandbox
def test_always_to_run_tests_and_to_commit(start: Start, folder: Path) -> None:
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    (folder / "test_a.py").write_text("def test_a():\n    pass\n")
    runs = [{"tool_calls": [{"gate": "run_tests", "args": args}]} for args in ({}, {"targets": ["test_a.py"]})]
    commit = {"tool_calls": [{"gate": "git_commit", "args": {"paths": ["."], "message": "All"}}]}
    agent = start([*runs, commit, END], gates=["done", "run_tests", "git_commit"])
    agent.permit = "allow_always"
    agent.answer(agent.start_prompt(agent.session(folder, mode="ask")), 3 * PATIENCE)
    words = [next(o["name"] for o in each["options"] if o["kind"] == "allow_always") for each in asked(agent)]
    shown = [c["content"]["text"] for c in asked(agent)[0]["toolCall"]["content"]]
    assert len(shown) == 1
    assert re.fullmatch(r"```sh\n.*pytest.*\n```", shown[0]), "the command that is allowed is shown"
    assert words == ["Always allow run_tests in this workspace", "Always allow git_commit"]


@pytest.mark.sandbox
def test_tests_of_an_unchanged_folder_are_not_run_again_and_the_call_says_so(start: Start, folder: Path) -> None:
    (folder / "test_a.py").write_text("import unittest\n\nclass T(unittest.TestCase):\n    def test(self): pass\n")
    run = {"tool_calls": [{"gate": "run_tests", "args": {}}]}
    agent = start([run, run, END], gates=["done", "run_tests"])
    agent.permit = "allow_always"
    agent.answer(agent.start_prompt(agent.session(folder, mode="ask")), 3 * PATIENCE)
    titles = [
        u["title"] for u in agent.updates("tool_call_update") if u.get("status") == "completed" and u.get("title")
    ]
    assert [("1 passed" in title, "reused, nothing changed since" in title) for title in titles] == [
        (True, False),
        (True, True),
    ]


@pytest.mark.sandbox
@pytest.mark.parametrize("how", ["tool call", "text"])
def test_a_program_in_text_asks_as_a_tool_call_does(start: Start, folder: Path, how: str) -> None:
    """In text-call mode a code block is a command like any other: the same question, the same answers, the same end."""
    commands = ["ls -a", "ls", "touch made", "touch kept"]
    said = [{"bash": each} if how == "tool call" else {"content": f"Now:\n```bash\n{each}\n```"} for each in commands]
    agent = manual(start, [*said, END], **SHELL, crystal={"tools": "native" if how == "tool call" else "text"})
    session = agent.session(folder, mode="ask")
    prompt = agent.start_prompt(session)
    answers = ["allow_always", "reject_once", "allow_once"]
    for answer in answers:
        agent.decide(question(agent), answer)
    agent.answer(prompt)
    assert [each["toolCall"]["rawInput"]["command"] for each in asked(agent)] == ["ls -a", "touch made", "touch kept"]
    always = next(o for o in asked(agent)[0]["options"] if o["kind"] == "allow_always")
    assert "`ls` commands" in always["name"]
    assert (folder / "kept").exists()
    assert not (folder / "made").exists()
    ends = [u["status"] for u in agent.updates("tool_call_update") if u.get("status") in ("completed", "failed")]
    assert ends == ["completed", "completed", "failed", "completed"]


@pytest.mark.sandbox
@pytest.mark.parametrize("how", ["tool call", "text"])
def test_a_program_in_text_writes_nothing_in_read_only_mode(start: Start, folder: Path, how: str) -> None:
    said = {"bash": "touch made"} if how == "tool call" else {"content": "```bash\ntouch made\n```"}
    agent = start([said, END], **SHELL, crystal={"tools": "native" if how == "tool call" else "text"})
    session = agent.session(folder, mode="ask")
    agent.call("session/set_mode", {"sessionId": session, "modeId": "read-only"})
    agent.prompt(session)
    assert not (folder / "made").exists()
    assert not asked(agent)


@pytest.mark.sandbox
def test_code_in_an_answer_of_a_crystal_with_tools_asks_nothing_and_runs_nothing(start: Start, folder: Path) -> None:
    agent = start([{"content": "Do it so:\n```bash\ntouch made\n```"}], **SHELL)
    assert agent.prompt(agent.session(folder, mode="ask"))["stopReason"] == "end_turn"
    assert not asked(agent)
    assert not agent.updates("tool_call")
    assert not (folder / "made").exists()


def test_a_loaded_session_shows_calls_in_text_as_the_live_one_did(start: Start, folder: Path) -> None:
    call = '```tool_call\n{"name": "echo", "arguments": {"text": "hi"}}\n```'
    agent = start([{"content": f"I ask.\n\n{call}"}, {"content": "Done."}], **FILES, crystal={"tools": "text"})
    session = agent.session(folder, mode="ask")
    agent.prompt(session)
    assert "".join(update["content"]["text"] for update in agent.updates("agent_message_chunk")) == "I ask.\n\nDone."
    agent.call("session/close", {"sessionId": session})
    agent.seen.clear()
    agent.call("session/load", {"sessionId": session, "cwd": str(folder), "mcpServers": []})
    said = [update["content"]["text"] for update in agent.updates("agent_message_chunk")]
    assert said == ["I ask.", "\n\nDone."]
    assert [update["title"] for update in agent.updates("tool_call")] == ["echo"]
