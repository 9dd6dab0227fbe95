"""One running call is stopped alone (``_cantrip/tool_call/cancel``): the prompt goes on, and the entity reads why."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.acp.unit.test_cancel import BUSY, records, running
from tests.acp.unit.test_children import ASK, FAMILY, say
from tests.support.acp_client import SOON, RawClient
from tests.support.fixtures.acp import Start

WHY = "the user stopped this"
END = {"content": "I go on."}


def begun(message: dict[str, Any]) -> bool:
    """Whether a message says that a call has begun."""
    return message.get("params", {}).get("update", {}).get("status") == "in_progress"


def stop(agent: RawClient, session: str, call_id: str) -> Any:
    return agent.call("_cantrip/tool_call/cancel", {"sessionId": session, "toolCallId": call_id})


def turns(result: Any) -> list[Any]:
    return [record for record in records(result) if record["type"] == "turn" and record["role"] == "crystal"]


def last(agent: RawClient, call_id: str) -> dict[str, Any]:
    return [update for update in agent.updates("tool_call_update") if update["toolCallId"] == call_id][-1]


@pytest.mark.sandbox
def test_a_command_ends_with_all_its_processes_and_the_prompt_goes_on(start_process: Start, folder: Path) -> None:
    agent = start_process([{"bash": BUSY}, {"bash": "echo next"}, END], medium="bash", gates=["done"])
    session = agent.session(folder)
    prompt = agent.start_prompt(session)
    call_id = agent.until(running)["params"]["update"]["toolCallId"]
    assert agent.children()
    assert stop(agent, session, call_id) == {}
    agent.until(lambda message: message.get("params", {}).get("update", {}).get("status") == "failed")
    result = agent.answer(prompt, SOON)["result"]
    assert result["stopReason"] == "end_turn"
    assert not agent.children()
    first, second, third = turns(result)
    output = first["observation"]["output"]
    assert "started" in output["stdout"]
    assert WHY in output["error"]
    assert output["annotations"] == {"stopped": True}
    assert second["observation"]["output"]["stdout"] == "next\n"
    assert third["utterance"]["content"] == "I go on."
    ended = last(agent, call_id)
    assert (ended["status"], ended["_meta"]["cantrip"]["stopped"]) == ("failed", True)
    # It has ended, so it cannot be stopped again; and the client sees which of both came first.
    error = agent.error("_cantrip/tool_call/cancel", {"sessionId": session, "toolCallId": call_id})
    assert (error["code"], "no call" in error["message"]) == (-32602, True)


@pytest.mark.sandbox
def test_a_cell_keeps_the_state_of_those_before_it(start_process: Start, folder: Path) -> None:
    script = [
        {"code": "kept = 41"},
        {"code": "import time\nkept += 1\nprint('be' + 'gun', flush=True)\ntime.sleep(600)"},
        {"code": "print(kept)"},
        END,
    ]
    agent = start_process(script, medium="code", gates=["done"])
    session = agent.session(folder)
    prompt = agent.start_prompt(session)
    agent.until(lambda message: message.get("params", {}).get("update", {}).get("status") == "completed")
    call_id = agent.until(begun)["params"]["update"]["toolCallId"]
    agent.until(lambda message: "begun" in json.dumps(message))
    stop(agent, session, call_id)
    result = agent.answer(prompt)["result"]
    assert result["stopReason"] == "end_turn"
    outputs = [turn["observation"]["output"] for turn in turns(result)[:3]]
    assert WHY in outputs[1]["error"]
    assert outputs[2]["stdout"] == "42\n"


def test_a_call_that_waits_for_permission(start: Start, folder: Path) -> None:
    write = {"tool_calls": [{"gate": "write_file", "args": {"path": "a.txt", "content": "x"}}]}
    agent = start([write, END], gates=["done", "write_file"])
    agent.permit = None
    session = agent.session(folder, mode="ask")
    prompt = agent.start_prompt(session)
    call_id = agent.until(lambda message: message.get("method") == ASK)["params"]["toolCall"]["toolCallId"]
    stop(agent, session, call_id)
    result = agent.answer(prompt, SOON)["result"]
    assert result["stopReason"] == "end_turn"
    assert not (folder / "a.txt").exists()
    (record,) = turns(result)[0]["observation"]["results"]
    assert record["is_error"]
    assert WHY in record["result"]


@pytest.mark.sandbox
def test_the_call_of_a_child_and_the_child_itself(start: Start, folder: Path) -> None:
    agent = start(
        [say("call_agent", intent="Wait", medium="bash"), END],
        crystal={"children": [[{"bash": "echo seen; sleep 60"}, {"bash": "cantrip_done 'the child went on'"}]]},
        capabilities={"clientCapabilities": {"_meta": {"terminal_output": True}}},
        **FAMILY,
    )
    agent.permit = None
    session = agent.session(folder, mode="ask")
    prompt = agent.start_prompt(session)
    asked = agent.until(lambda message: message.get("method") == ASK)
    agent.decide(asked, "allow_once")
    of_child = asked["params"]["toolCall"]["toolCallId"]
    agent.until(lambda message: "seen" in str(message.get("params", {}).get("update", {})))
    stop(agent, session, of_child)
    result = agent.answer(prompt)["result"]
    (record,) = [
        each for turn in turns(result) for each in turn["observation"]["results"] if each["gate"] == "call_agent"
    ]
    assert (record["is_error"], record["result"]) == (False, "the child went on")


@pytest.mark.sandbox
def test_a_whole_child(start: Start, folder: Path) -> None:
    agent = start(
        [say("call_agent", intent="Wait", medium="bash"), say("call_agent", intent="Be quick", medium="bash"), END],
        crystal={"children": [[{"bash": "sleep 60"}], [{"bash": "cantrip_done quick"}]]},
        **FAMILY,
    )
    session = agent.session(folder, mode="trusted")
    prompt = agent.start_prompt(session)
    call_id = agent.until(begun)["params"]["update"]["toolCallId"]
    time.sleep(0.5)
    stop(agent, session, call_id)
    result = agent.answer(prompt)["result"]
    assert result["stopReason"] == "end_turn"
    calls = [each for turn in turns(result) for each in turn["observation"]["results"] if each["gate"] == "call_agent"]
    assert [each["is_error"] for each in calls] == [True, False]
    assert WHY in calls[0]["result"]
    assert calls[1]["result"] == "quick"


@pytest.mark.sandbox
def test_a_call_that_ends_at_the_same_time(start: Start, folder: Path) -> None:
    """Whichever comes first: the prompt ends as usual, and each call has one end."""
    agent = start([*({"bash": "sleep 0.05"} for _ in range(8)), END], medium="bash", gates=["done"])
    session = agent.session(folder)
    prompt = agent.start_prompt(session)
    for number in range(8):
        call_id = agent.until(begun)["params"]["update"]["toolCallId"]
        time.sleep(0.02 * (number % 4))
        agent.ask("_cantrip/tool_call/cancel", {"sessionId": session, "toolCallId": call_id})
    assert agent.answer(prompt)["result"]["stopReason"] == "end_turn"
    ends = [
        update["toolCallId"]
        for update in agent.updates("tool_call_update")
        if update.get("status") in ("completed", "failed")
    ]
    assert len(ends) == len(set(ends)) == 8


def test_what_is_not_known_is_refused(start: Start, folder: Path) -> None:
    agent = start([END])
    session = agent.session(folder)
    for params in ({"toolCallId": "none"}, {}):
        assert agent.error("_cantrip/tool_call/cancel", {"sessionId": session, **params})["code"] == -32602
    assert agent.prompt(session)["stopReason"] == "end_turn"
