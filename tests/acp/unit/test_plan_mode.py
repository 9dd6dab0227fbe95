"""The mode `plan`: nothing is changed, and the user approves, edits or returns the plan, on the raw wire."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.acp_client import RawClient
from tests.support.fixtures.acp import Start

PLANNED = {"content": "I looked.\n\n# Plan\n\n1. Write a.txt."}
WRITE = {"tool_calls": [{"gate": "write_file", "args": {"path": "a.txt", "content": "new\n"}}]}
END = {"content": "Done."}
FORMS = {"elicitation": {"form": {}}}


@pytest.fixture
def begin(start: Start, folder: Path) -> Callable[..., tuple[RawClient, str]]:
    def begin(*responses: dict[str, Any], **options: Any) -> tuple[RawClient, str]:
        agent = start(responses, gates=["done", "read_file", "write_file"], process={"permit": None}, **options)
        session = agent.session(folder)
        agent.call("session/set_mode", {"sessionId": session, "modeId": "plan"})
        return agent, session

    return begin


def question(agent: RawClient) -> dict[str, Any]:
    return agent.until(lambda message: message.get("method") == "session/request_permission")


def answer(agent: RawClient, asked: dict[str, Any], option: str, **notes: str) -> None:
    outcome = {"outcome": "selected", "optionId": option, **({"_meta": {"cantrip": notes}} if notes else {})}
    agent.send({"jsonrpc": "2.0", "id": asked["id"], "result": {"outcome": outcome}})


def intents(result: dict[str, Any]) -> list[str]:
    lines = Path(result["_meta"]["cantrip"]["loom"]).read_text().splitlines()
    return [r["intent"] for line in lines if (r := json.loads(line))["type"] == "cast" and r["event"] == "start"]


def context(result: dict[str, Any]) -> list[str]:
    lines = Path(result["_meta"]["cantrip"]["loom"]).read_text().splitlines()
    return [r["text"] for line in lines if (r := json.loads(line))["type"] == "context"]


def test_nothing_is_changed_and_an_approved_plan_is_carried_out(begin: Any, folder: Path) -> None:
    agent, session = begin(WRITE, PLANNED, WRITE, END)
    prompt = agent.start_prompt(session, "write it")
    asked = question(agent)
    # The call in plan mode was refused without a question.
    assert not (folder / "a.txt").exists()
    assert "gate not available" in str(agent.updates("tool_call_update"))
    call = asked["params"]["toolCall"]
    assert (call["kind"], call["rawInput"]) == ("switch_mode", {"plan": "# Plan\n\n1. Write a.txt."})
    assert [option["optionId"] for option in asked["params"]["options"]] == ["sandboxed", "ask", "trusted", "plan"]
    assert agent.updates("tool_call")[-1]["toolCallId"] == call["toolCallId"]
    answer(agent, asked, "ask")
    # In the mode that was chosen, the write asks.
    write = question(agent)
    assert write["params"]["toolCall"]["name"] == "write_file"
    answer(agent, write, "allow_once")
    result = agent.answer(prompt)["result"]
    assert result["stopReason"] == "end_turn"
    assert (folder / "a.txt").read_text() == "new\n"
    assert agent.updates("current_mode_update")[-1] == {"sessionUpdate": "current_mode_update", "currentModeId": "ask"}
    options = agent.updates("config_option_update")[-1]["configOptions"]
    assert next(each for each in options if each["id"] == "mode")["currentValue"] == "ask"
    first, second = intents(result)
    assert first == "write it"
    assert second == "I approve this plan. The mode is now 'Ask'. Carry it out.\n\n# Plan\n\n1. Write a.txt."
    (told,) = [text for text in context(result) if "plan mode" in text and "# Plan" in text]
    assert "nothing can be changed" in told


def test_a_loaded_session_shows_a_plan_once(begin: Any, folder: Path) -> None:
    agent, session = begin(PLANNED, END, PLANNED, END)
    for notes in ({}, {"plan": "# Plan\n\n1. Write b.txt."}):
        prompt = agent.start_prompt(session)
        answer(agent, question(agent), "sandboxed", **notes)
        agent.answer(prompt)
        agent.call("session/set_mode", {"sessionId": session, "modeId": "plan"})
        agent.call("session/close", {"sessionId": session})
        agent.seen.clear()
        agent.call("session/load", {"sessionId": session, "cwd": str(folder), "mcpServers": []})
    said = [u["content"]["text"] for u in agent.updates("user_message_chunk")]
    # One that was edited is not in the answer.
    assert said == [
        "go",
        "I approve this plan. The mode is now 'Sandboxed'. Carry it out.",
        "go",
        "I approve this plan after an edit; this text is what holds. The mode is now 'Sandboxed'. Carry it out.\n\n"
        "# Plan\n\n1. Write b.txt.",
    ]


def test_an_edited_plan_is_what_the_entity_gets(begin: Any) -> None:
    agent, session = begin(PLANNED, END)
    prompt = agent.start_prompt(session)
    answer(agent, question(agent), "trusted", plan="# Plan\n\n1. Write b.txt.")
    result = agent.answer(prompt)["result"]
    assert intents(result)[1].startswith("I approve this plan after an edit")
    assert intents(result)[1].endswith("1. Write b.txt.")
    done = [u for u in agent.updates("tool_call_update") if u["title"].startswith("Plan")][-1]
    assert (done["status"], done["title"]) == ("completed", "Plan approved: Don't ask")
    assert "b.txt" in json.dumps(done["content"])


def test_forms_edit_the_plan_and_take_comments(begin: Any) -> None:
    agent, session = begin(PLANNED, PLANNED, END, capabilities=FORMS)
    forms: list[dict[str, Any]] = []

    def fill(params: dict[str, Any]) -> Any:
        forms.append(params)
        text = "Not a.txt." if len(forms) == 1 else "# Plan\n\nBetter."
        return {"action": "accept", "content": {"answer": text}}

    agent.services = {"elicitation/create": fill}
    prompt = agent.start_prompt(session)
    asked = question(agent)
    ids = [option["optionId"] for option in asked["params"]["options"]]
    assert ids == ["sandboxed", "ask", "trusted", "edit_plan", "return_with_comments", "plan"]
    answer(agent, asked, "return_with_comments")
    answer(agent, question(agent), "edit_plan")
    again = question(agent)
    assert again["params"]["toolCall"]["rawInput"] == {"plan": "# Plan\n\nBetter."}
    answer(agent, again, "sandboxed")
    result = agent.answer(prompt)["result"]
    assert [intent.partition("\n\n")[2] for intent in intents(result)[1:]] == ["Not a.txt.", "# Plan\n\nBetter."]
    assert forms[1]["requestedSchema"]["properties"]["answer"]["default"] == "# Plan\n\n1. Write a.txt."


def test_keeping_on_planning_and_plain_answers_ask_for_nothing_more(begin: Any) -> None:
    agent, session = begin(PLANNED, PLANNED, {"content": "It does this."})
    prompt = agent.start_prompt(session)
    answer(agent, question(agent), "plan")
    assert agent.answer(prompt)["result"]["stopReason"] == "end_turn"
    prompt = agent.start_prompt(session)
    answer(agent, question(agent), "plan", reason="Shorter.")
    result = agent.answer(prompt)["result"]
    assert intents(result)[-1].endswith("Shorter.")
    assert not agent.updates("current_mode_update")


def test_a_cancel_while_the_plan_waits(begin: Any) -> None:
    agent, session = begin(PLANNED, END)
    prompt = agent.start_prompt(session)
    asked = question(agent)
    agent.tell("session/cancel", {"sessionId": session})
    assert agent.answer(prompt)["result"]["stopReason"] == "cancelled"
    agent.send({"jsonrpc": "2.0", "id": asked["id"], "result": {"outcome": {"outcome": "cancelled"}}})
    assert agent.prompt(session)["stopReason"] == "end_turn"
