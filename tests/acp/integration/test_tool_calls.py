"""What an entity does, as its user sees it: gates and commands on a real folder, as tool calls."""

import json
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.support.acp_client import RawClient
from tests.support.fixtures.acp import DONE, Start

STATES = ["pending", "in_progress", "completed", "failed"]


def life(agent: RawClient, call: dict[str, Any]) -> list[dict[str, Any]]:
    """A tool call's updates; each has at most one step forward."""
    updates = [u for u in agent.updates("tool_call_update") if u["toolCallId"] == call["toolCallId"]]
    steps = [STATES.index(u["status"]) for u in [call, *updates] if "status" in u]
    assert steps == sorted(steps)
    assert steps[:2] == [0, 1]
    assert len(steps) == 3, "not finished, or finished twice"
    return updates


def test_reading_and_editing(start: Start, folder: Path) -> None:
    (folder / "a.py").write_text("one = 1\ntwo = 2\n")
    agent = start(
        [
            {"tool_calls": [{"gate": "read_file", "args": {"path": "a.py"}}]},
            {"tool_calls": [{"gate": "edit_file", "args": {"path": "a.py", "old_text": "two = 2", "new_text": "two = 3"}},
                            {"gate": "write_file", "args": {"path": "b.py", "content": "new = True\n"}},
                            {"gate": "read_file", "args": {"path": "../outside"}}]},
            DONE,
        ],
        gates=["done", "read_file", "edit_file", "write_file"],
    )  # fmt: skip
    assert agent.prompt(agent.session(folder))["stopReason"] == "end_turn"
    read, edit, write, outside, _ = agent.updates("tool_call")
    assert [call["kind"] for call in (read, edit, write)] == ["read", "edit", "edit"]
    for call, name in ((read, "a.py"), (edit, "a.py"), (write, "b.py")):
        last = life(agent, call)[-1]
        assert last["status"] == "completed"
        places = (call.get("locations") or []) + (last.get("locations") or [])
        assert {place["path"] for place in places} == {str(folder / name)}
    assert "two = 2" in json.dumps(life(agent, read)[-1]["content"])
    (diff,) = (c for c in life(agent, edit)[-1]["content"] if c["type"] == "diff")
    assert diff["path"] == str(folder / "a.py")
    assert "two = 2" in diff["oldText"]
    assert "two = 3" in diff["newText"]
    (diff,) = (c for c in life(agent, write)[-1]["content"] if c["type"] == "diff")
    assert (diff["oldText"], diff["newText"]) == (None, "new = True\n")
    assert life(agent, outside)[-1]["status"] == "failed"
    assert (folder / "a.py").read_text() == "one = 1\ntwo = 3\n"


SLOW = "for i in 1 2 3 4 5 6; do echo line $i; sleep 0.15; done; echo trouble >&2; exit 3"


@pytest.mark.sandbox
def test_output_is_seen_while_the_command_runs(start: Start, folder: Path) -> None:
    agent = start([{"bash": SLOW}, DONE], medium="bash", gates=["done"])
    prompt = agent.start_prompt(agent.session(folder))
    first = agent.until(lambda m: "line 1" in json.dumps(m.get("params", {}).get("update", {}).get("content", "")))
    assert "line 6" not in json.dumps(first)
    agent.answer(prompt)
    call = agent.updates("tool_call")[0]
    assert (call["kind"], call["rawInput"]) == ("execute", {"command": SLOW})
    updates = life(agent, call)
    views = [u["content"][0]["content"]["text"] for u in updates if "status" not in u]
    assert 2 <= len(views) <= 10
    assert all(len(a) < len(b) for a, b in pairwise(views))
    assert updates[-1]["status"] == "failed"
    assert updates[-1]["rawOutput"]["exit_code"] == 3
    assert "trouble" in updates[-1]["rawOutput"]["output"]


@pytest.mark.sandbox
def test_output_goes_into_a_display_terminal_where_there_is_one(start: Start, folder: Path) -> None:
    agent = start(
        [{"bash": "echo one; sleep 0.1; echo two"}, DONE],
        capabilities={"_meta": {"terminal_output": True}},
        medium="bash",
        gates=["done"],
    )
    agent.prompt(agent.session(folder))
    call = agent.updates("tool_call")[0]
    terminal = call["_meta"]["terminal_info"]["terminal_id"]
    assert call["content"] == [{"type": "terminal", "terminalId": terminal}]
    metas = [u.get("_meta", {}) for u in life(agent, call)]
    assert "".join(m["terminal_output"]["data"] for m in metas if "terminal_output" in m) == "one\ntwo\n"
    assert metas[-1]["terminal_exit"] == {"terminal_id": terminal, "exit_code": 0, "signal": None}
    for meta in metas:
        assert all(value["terminal_id"] == terminal for value in meta.values())


@pytest.mark.sandbox
def test_gates_called_from_a_command(start: Start, folder: Path) -> None:
    (folder / "a.txt").write_text("hello\n")
    command = "read_file a.txt; write_file b.txt made; cantrip_done finished; sleep 600; echo never"
    agent = start([{"bash": command}], medium="bash", gates=["done", "read_file", "write_file"])
    began = time.monotonic()
    result = agent.prompt(agent.session(folder))
    assert time.monotonic() - began < 60
    assert result["_meta"]["cantrip"]["reason"] == "done"
    bash, read, write, done = agent.updates("tool_call")
    assert [call["name"] for call in (bash, read, write, done)] == ["bash", "read_file", "write_file", "done"]
    for call in (bash, read, write, done):
        assert life(agent, call)[-1]["status"] == "completed", call
    assert any(content["type"] == "diff" for content in life(agent, write)[-1]["content"])
    assert "never" not in json.dumps(life(agent, bash)[-1]["rawOutput"])
    assert agent.said() == "finished"
    assert (folder / "b.txt").read_text().strip() == "made"


@pytest.mark.sandbox
def test_a_command_that_prints_what_no_client_can_take(start: Start, folder: Path) -> None:
    command = r"printf 'caf\xff\xe9 \033[31mred\033[0m \x00\x07 \xed\xa0\x80 ok\n'; yes | head -c 3000000"
    for capabilities in ({}, {"_meta": {"terminal_output": True}}):
        agent = start([{"bash": command}, DONE], capabilities=capabilities, medium="bash", gates=["done"])
        assert agent.prompt(agent.session(folder))["stopReason"] == "end_turn"
        last = life(agent, agent.updates("tool_call")[0])[-1]
        assert last["status"] == "completed"
        assert len(last["rawOutput"]["output"]) <= 100_000
        everything = json.dumps(agent.seen)
        # In a terminal the colours stay, and no other code.
        colours = everything.count("\\u001b[31mred\\u001b[0m")
        assert colours == (1 if capabilities else 0)
        assert everything.count("\\u001b") == 2 * colours
        assert "\\u001b" not in json.dumps(last)
        assert "\\u0000" not in everything


@pytest.mark.sandbox
def test_two_sessions_with_commands_at_once(start: Start, folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    agent = start([{"bash": "pwd; sleep 0.5; pwd"}, DONE], medium="bash", gates=["done"])
    sessions = {agent.session(path): path for path in (folder, other)}
    prompts = {agent.start_prompt(session) for session in sessions}
    while prompts:
        prompts.discard(agent.next().get("id"))
    for session, path in sessions.items():
        finished = next(u for u in agent.updates("tool_call_update", session) if "rawOutput" in u)
        assert finished["rawOutput"]["output"] == f"{path}\n{path}\n"
