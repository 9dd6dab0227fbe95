"""session/cancel and $/cancel_request: whatever runs ends at once, and the session takes the next prompt."""

import json
import statistics
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.acp_client import SOON
from tests.support.fixtures.acp import DONE, Start
from tests.support.waiting import p95

BUSY = "trap '' TERM INT HUP; echo started; (while :; do :; done) & setsid sleep 1000 & while :; do :; done"


def running(message: dict[str, Any]) -> bool:
    """Whether a message says that the command has begun."""
    return "started" in json.dumps(message.get("params", {}).get("update", {}).get("content", ""))


def records(result: dict[str, Any]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(result["_meta"]["cantrip"]["loom"]).read_text().splitlines()]


def test_a_slow_model(start: Start, folder: Path) -> None:
    # A cancel may come before the query was made: so the second prompt must not meet this response.
    agent = start([{"content": "late", "delay_ms": 60_000, "when": "the slow one"}, DONE])
    session = agent.session(folder)
    prompt = agent.start_prompt(session, "the slow one")
    agent.until(lambda m: m.get("params", {}).get("update", {}).get("sessionUpdate") == "session_info_update")
    began = time.monotonic()
    agent.tell("session/cancel", {"sessionId": session})
    result = agent.answer(prompt)["result"]
    assert time.monotonic() - began < SOON
    assert result["stopReason"] == "cancelled"
    assert records(result)[-1]["reason"] == "cancelled"
    assert agent.prompt(session)["stopReason"] == "end_turn"


def test_a_model_in_the_middle_of_its_words(start: Start, folder: Path) -> None:
    agent = start([{"chunks": ["word "] * 1000, "delay_ms": 5}, DONE])
    session = agent.session(folder)
    prompt = agent.start_prompt(session)
    agent.until(lambda message: message.get("method") == "session/update")
    agent.tell("session/cancel", {"sessionId": session})
    assert agent.answer(prompt)["result"]["stopReason"] == "cancelled"
    agent.quiet()
    assert agent.prompt(session)["stopReason"] == "end_turn"


@pytest.mark.parametrize("pause", [0.0, 0.001, 0.003, 0.01, 0.03])
def test_a_cancel_right_behind_its_prompt(start: Start, folder: Path, pause: float) -> None:
    agent = start([{"content": "late", "delay_ms": 60_000}] * 5 + [DONE])
    session = agent.session(folder)
    for _ in range(5):
        prompt = agent.start_prompt(session)
        time.sleep(pause)
        agent.tell("session/cancel", {"sessionId": session})
        assert agent.answer(prompt, SOON)["result"]["stopReason"] == "cancelled"


def test_a_cancel_of_nothing_is_nothing(start: Start, folder: Path) -> None:
    agent = start([DONE, DONE])
    session = agent.session(folder)
    agent.tell("session/cancel", {"sessionId": session})
    assert agent.prompt(session)["stopReason"] == "end_turn"
    for _ in range(3):
        agent.tell("session/cancel", {"sessionId": session})
    agent.quiet()
    assert agent.prompt(session)["stopReason"] == "end_turn"


def test_cancel_wants_a_session(start: Start, folder: Path) -> None:
    agent = start([{"content": "late", "delay_ms": 500}])
    session = agent.session(folder)
    prompt = agent.start_prompt(session)
    for params in ({}, {"sessionId": None}, {"sessionId": [session]}, [session], {"sessionId": session + "x"}):
        agent.tell("session/cancel", params)
    assert agent.answer(prompt)["result"]["stopReason"] == "end_turn"


def test_other_sessions_go_on(start: Start, folder: Path) -> None:
    agent = start([{"content": "late", "delay_ms": 60_000, "when": "one"}, {"content": "late", "delay_ms": 600}])
    one, two = agent.session(folder), agent.session(folder)
    first, second = agent.start_prompt(one, "one"), agent.start_prompt(two, "two")
    time.sleep(0.1)
    agent.tell("session/cancel", {"sessionId": one})
    found = {(reply := agent.until(lambda m: "method" not in m))["id"]: reply["result"] for _ in range(2)}
    assert (found[first]["stopReason"], found[second]["stopReason"]) == ("cancelled", "end_turn")


def test_the_protocols_own_cancel(start: Start, folder: Path) -> None:
    agent = start([{"content": "late", "delay_ms": 60_000}, DONE])
    session = agent.session(folder)
    prompt = agent.start_prompt(session)
    agent.until(lambda m: m.get("params", {}).get("update", {}).get("sessionUpdate") == "session_info_update")
    agent.tell("$/cancel_request", {"requestId": str(prompt)})
    agent.quiet()
    agent.tell("$/cancel_request", {"requestId": prompt})
    assert agent.answer(prompt, SOON)["error"]["code"] == -32800
    agent.tell("$/cancel_request", {"requestId": prompt})
    agent.quiet()
    assert agent.prompt(session)["stopReason"] == "end_turn"


def test_a_client_that_reads_nothing_while_it_cancels(start: Start, folder: Path) -> None:
    agent = start([{"chunks": ["x" * 1000] * 1500}, DONE])
    session = agent.session(folder)
    first = agent.start_prompt(session)
    time.sleep(0.5)  # by now the pipe is full, and the entity waits
    agent.tell("session/cancel", {"sessionId": session})
    time.sleep(0.3)
    second = agent.start_prompt(session)
    assert agent.answer(first)["result"]["stopReason"] == "cancelled"
    assert agent.answer(second)["result"]["stopReason"] == "end_turn"
    assert len(agent.updates("agent_message_chunk")) < 1000


WRITE = {"tool_calls": [{"gate": "write_file", "args": {"path": "a", "content": "b"}}]}
READ = {"tool_calls": [{"gate": "read_file", "args": {"path": "a"}}]}
ASK = {"tool_calls": [{"gate": "ask_user", "args": {"question": "Which?"}}]}
RUN = {"tool_calls": [{"gate": "client_terminal", "args": {"command": "sleep 9"}}]}


@pytest.mark.timing
@pytest.mark.parametrize(
    ("step", "gate", "capabilities", "begun"),
    [
        ({"chunks": ["word "] * 5000, "delay_ms": 2}, "echo", {}, "session/update"),
        (WRITE, "write_file", {}, "session/request_permission"),
        (READ, "read_file", {"fs": {"readTextFile": True}}, "fs/read_text_file"),
        (ASK, "ask_user", {"elicitation": {"form": {}}}, "elicitation/create"),
        (RUN, "client_terminal", {"terminal": True}, "terminal/create"),
    ],
    ids=["a streaming model", "a pending permission", "a client's file", "a form", "a client's terminal"],
)
def test_how_long_a_client_waits(
    start: Start, folder: Path, step: dict[str, Any], gate: str, capabilities: dict[str, Any], begun: str
) -> None:
    """The same goal where nothing has to be killed: 200 ms at the 95th percentile, whoever the turn waits for."""
    (folder / "a").write_text("")
    agent = start([{**step, "repeat": True}], gates=["done", gate], capabilities=capabilities)
    agent.permit = "allow_once" if gate == "client_terminal" else None
    session = agent.session(folder)
    words = begun == "session/update"

    def one() -> float:
        prompt = agent.start_prompt(session)
        agent.until(lambda m: m.get("method") == begun and (not words or "word" in json.dumps(m)))
        began = time.monotonic()
        agent.tell("session/cancel", {"sessionId": session})
        assert agent.answer(prompt, SOON)["result"]["stopReason"] == "cancelled"
        return time.monotonic() - began

    times = p95(one, 0.2)
    print(f"p50 {statistics.median(times) * 1000:.1f} ms, p95 {statistics.quantiles(times, n=20)[-1] * 1000:.1f} ms")
