"""A client that reads slowly or not at all slows the entity that talks to it, and nothing else."""

import json
import os
import time
from pathlib import Path
from typing import Any

import psutil

from tests.support.acp_client import SOON, RawClient, at_rest
from tests.support.fixtures.acp import Start

FLOOD: dict[str, Any] = {
    "chunks": ["x" * 5000] * 100, "when": "flood", "repeat": True, "tool_calls": [{"gate": "echo", "args": {"text": "x"}}],
}  # fmt: skip
QUICK: dict[str, Any] = {"content": "quick", "repeat": True}
ENDLESS: dict[str, Any] = {"wards": [{"max_turns": 10_000}]}


def replies(agent: RawClient, *ids: Any) -> dict[Any, dict[str, Any]]:
    """The replies to all of these, which come in any order."""
    found: dict[Any, dict[str, Any]] = {}
    deadline = time.monotonic() + 60
    while set(ids) - set(found):
        message = agent.next()
        if "method" not in message:
            found[message["id"]] = message
        assert time.monotonic() < deadline, f"no reply to {set(ids) - set(found)}"
    return found


def test_other_sessions_go_on_beside_a_flood(start: Start, folder: Path) -> None:
    agent = start([FLOOD, QUICK], **ENDLESS)
    slow, quick = agent.session(folder), agent.session(folder)
    flood = agent.start_prompt(slow, "flood")
    time.sleep(0.3)  # by now the pipe is full
    others = [
        agent.start_prompt(quick, "hello"),
        agent.ask("session/list", {}),
        agent.ask("initialize", {"protocolVersion": 1}),
        agent.ask("session/new", {"cwd": str(folder), "mcpServers": []}),
    ]
    found = replies(agent, *others)
    assert flood not in found
    assert found[others[0]]["result"]["stopReason"] == "end_turn"
    agent.tell("session/cancel", {"sessionId": slow})
    assert agent.answer(flood)["result"]["stopReason"] == "cancelled"


def test_a_client_that_does_not_read_costs_no_memory(start_process: Start, folder: Path) -> None:
    agent = start_process([FLOOD, QUICK], **ENDLESS)
    sessions = [agent.session(folder) for _ in range(8)]
    prompts = [agent.start_prompt(session, "flood") for session in sessions]
    process = psutil.Process(agent.process.pid)
    at_rest(process)
    memory, busy = process.memory_info().rss, process.cpu_times().user
    time.sleep(1.0)
    assert process.memory_info().rss - memory < 3_000_000
    assert process.cpu_times().user - busy < 0.5, "it waits, and does not turn"
    for session in sessions:
        agent.tell("session/cancel", {"sessionId": session})
    found = replies(agent, *prompts)
    assert {reply["result"]["stopReason"] for reply in found.values()} == {"cancelled"}


def test_questions_without_end_and_nobody_who_reads_the_answers(start_process: Start, folder: Path) -> None:
    """It stops reading rather than keep what nobody takes; and it still sees that its input has ended."""
    agent = start_process()
    agent.prompt(agent.session(folder))
    process = psutil.Process(agent.process.pid)
    assert agent.process.stdin is not None
    os.set_blocking(agent.process.stdin.fileno(), False)
    line = json.dumps({"jsonrpc": "2.0", "id": "x" * 1000, "method": "nothing"}).encode() + b"\n"
    before = process.memory_info().rss
    deadline = time.monotonic() + 1.5
    sent = 0
    while time.monotonic() < deadline:
        try:
            sent += os.write(agent.process.stdin.fileno(), line * 20)
        except BlockingIOError:
            time.sleep(0.05)
    assert process.memory_info().rss - before < 12_000_000, sent
    began = time.monotonic()
    agent.process.stdin.close()
    assert agent.gone(began) < SOON


def test_a_load_that_nobody_reads(start: Start, folder: Path, tmp_path: Path) -> None:
    """A replay waits for its client too, and ends where it is cancelled or its session is closed."""
    state = str(tmp_path / "state")
    echo = {"repeat": True, "tool_calls": [{"gate": "echo", "args": {"text": "y" * 3000}}]}
    agent = start([echo], "--state-dir", state, wards=[{"max_turns": 400}])
    session = agent.session(folder)
    agent.prompt(session)
    named = {"sessionId": session, "cwd": str(folder), "mcpServers": []}
    one = agent.ask("session/load", named)
    two = agent.ask("session/load", named)
    time.sleep(0.3)
    prompt = agent.start_prompt(session)
    agent.tell("$/cancel_request", {"requestId": one})
    found = replies(agent, one, two, prompt)
    assert found[one]["error"]["code"] == -32800
    assert found[two]["error"]["data"]["reason"] == "prompt_in_progress"
    assert found[prompt]["error"]["data"]["reason"] == "session_loading"
    three = agent.ask("session/load", named)
    close = agent.ask("session/close", {"sessionId": session})
    found = replies(agent, three, close)
    assert found[close].get("result") == {}
    agent.quiet()
    assert agent.call("session/load", named)["_meta"]["cantrip"]["turns"] == 400
