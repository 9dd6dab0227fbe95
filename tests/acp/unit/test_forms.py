"""The gate `ask_user`: a form where the client shows forms, the chat where it does not."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.acp_client import Problem, RawClient
from tests.support.fixtures.acp import Start

FORMS: dict[str, Any] = {"capabilities": {"elicitation": {"form": {}}}, "gates": ["done", "ask_user"]}


def asking(question: str, *choices: str) -> dict[str, Any]:
    args = {"question": question, **({"choices": list(choices)} if choices else {})}
    return {"content": "One thing.", "tool_calls": [{"gate": "ask_user", "args": args}]}


def results(agent: RawClient) -> list[Any]:
    return [u["rawOutput"]["output"] for u in agent.updates("tool_call_update") if "rawOutput" in u]


def test_a_form_asks_for_a_text_or_a_choice(start: Start, folder: Path) -> None:
    agent = start([asking("Which way?", "left", "right"), asking("Why?"), {"content": "Thanks."}], **FORMS)
    forms: list[dict[str, Any]] = []

    def fill(params: dict[str, Any]) -> Any:
        forms.append(params)
        # What leads to the question is there.
        assert agent.updates("tool_call")[-1]["toolCallId"] == params["toolCallId"]
        assert agent.updates("tool_call_update")[-1]["status"] == "in_progress"
        return {"action": "accept", "content": {"answer": "left" if len(forms) == 1 else "because"}}

    agent.services = {"elicitation/create": fill}
    session = agent.session(folder)
    agent.prompt(session)
    assert results(agent) == ["left", "because"]
    assert [(form["sessionId"], form["mode"], form["message"]) for form in forms] == [
        (session, "form", "Which way?"), (session, "form", "Why?"),
    ]  # fmt: skip
    field = forms[0]["requestedSchema"]["properties"]["answer"]
    assert field["oneOf"] == [{"const": "left", "title": "left"}, {"const": "right", "title": "right"}]


@pytest.mark.parametrize(
    "answer",
    [{"action": "decline"}, {"action": "cancel"}, {"action": "_odd"}, {}, None, 7, {"action": "accept"},
     {"action": "accept", "content": {"answer": "up"}}, {"action": "accept", "content": {"answer": 3}}, Problem("no forms today")],
)  # fmt: skip
def test_no_answer_is_said(start: Start, folder: Path, answer: Any) -> None:
    agent = start([asking("Which way?", "left", "right"), {"content": "Then not."}], **FORMS)

    def fill(params: dict[str, Any]) -> Any:
        if isinstance(answer, Problem):
            raise answer
        return answer

    agent.services = {"elicitation/create": fill}
    assert agent.prompt(agent.session(folder))["stopReason"] == "end_turn"
    skipped = answer == {"action": "decline"}
    why = "the user skipped the question" if skipped else "the user gave no answer"
    assert results(agent) == [f"{why}. Decide by what you know, or end and say what you need"]
    said = [u["_meta"]["cantrip"]["question"] for u in agent.updates("tool_call_update") if "_meta" in u]
    assert said == ["skipped" if skipped else "unanswered"]


def test_without_forms_it_stands_in_the_chat(start: Start, folder: Path) -> None:
    agent = start([asking("Which way?", "left", "right"), {"content": "I wait."}], gates=["done", "ask_user"])
    agent.prompt(agent.session(folder))
    assert "the question is in the chat now" in results(agent)[0]
    assert "Which way?\n- left\n- right" in agent.said()


def test_a_cancel_takes_the_form_back(start: Start, folder: Path) -> None:
    agent = start([asking("Which way?"), {"content": "On."}], **FORMS)
    session = agent.session(folder)
    prompt = agent.start_prompt(session)
    form = agent.until(lambda m: m.get("method") == "elicitation/create")
    agent.tell("session/cancel", {"sessionId": session})
    assert agent.answer(prompt)["result"]["stopReason"] == "cancelled"
    told = [m["params"] for m in agent.seen if m.get("method") == "$/cancel_request"]
    assert told == [{"requestId": form["id"]}]
    assert agent.prompt(session)["stopReason"] == "end_turn"
