"""Prompts that wait for the running one, and messages for the running one, on the raw wire."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.acp_client import RawClient
from tests.support.fixtures.acp import DONE, Start

QUEUES: dict[str, Any] = {"_meta": {"cantrip": {"promptQueueing": True}}, "elicitation": {"form": {}}}
HOLD: dict[str, Any] = {"tool_calls": [{"gate": "ask_user", "args": {"question": "Go on?"}}]}
"""The prompt waits until the test answers the form."""
CHANGED = "_cantrip/queue_changed"


@pytest.fixture
def begin(start: Start, folder: Path) -> Callable[..., tuple[RawClient, str]]:
    def begin(*responses: dict[str, Any], **options: Any) -> tuple[RawClient, str]:
        agent = start(responses, gates=["done", "ask_user"], **{"capabilities": QUEUES, **options})
        return agent, agent.session(folder)

    return begin


def held(agent: RawClient) -> Any:
    """Wait until the prompt waits for the user; the id of the form."""
    return agent.until(lambda message: message.get("method") == "elicitation/create")["id"]


def answer(agent: RawClient, form: Any) -> None:
    agent.send({"jsonrpc": "2.0", "id": form, "result": {"action": "accept", "content": {"answer": "yes"}}})


def queue(agent: RawClient, session: str, action: str = "list", **params: Any) -> list[dict[str, Any]]:
    prompts: list[dict[str, Any]] = agent.call(f"_cantrip/queue/{action}", {"sessionId": session, **params})["prompts"]
    return prompts


def reply(agent: RawClient, request: Any) -> dict[str, Any]:
    """The reply to a request, also if it came before other replies that were read."""
    seen = [message for message in agent.seen if "method" not in message and message.get("id") == request]
    return seen[0] if seen else agent.answer(request)


def texts(prompts: list[dict[str, Any]]) -> list[str]:
    return [each["text"] for each in prompts]


def records(result: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    lines = Path(result["_meta"]["cantrip"]["loom"]).read_text().splitlines()
    return [record for line in lines if (record := json.loads(line))["type"] == kind]


def intents(result: dict[str, Any]) -> list[str]:
    return [each["intent"] for each in records(result, "cast") if each["event"] == "start"]


def named(prompt_id: str) -> dict[str, Any]:
    return {"_meta": {"cantrip": {"promptId": prompt_id}}}


def test_without_asking_a_second_prompt_is_refused(begin: Any) -> None:
    agent, session = begin(HOLD, DONE, DONE, capabilities={"elicitation": {"form": {}}})
    first = agent.start_prompt(session)
    form = held(agent)
    refused = reply(agent, agent.start_prompt(session))["error"]
    assert refused["data"]["reason"] == "prompt_in_progress"
    # One prompt can ask for itself.
    second = agent.start_prompt(session, "then", _meta={"claudeCode": {"promptQueueing": True}})
    assert texts(queue(agent, session)) == ["then"]
    answer(agent, form)
    assert reply(agent, first)["result"]["stopReason"] == reply(agent, second)["result"]["stopReason"] == "end_turn"
    assert not [m for m in agent.seen if m.get("method") == CHANGED]


def test_the_capability_is_advertised(start: Start) -> None:
    agent = start(initialized=False)
    result = agent.initialize(_meta={"claudeCode": {"promptQueueing": True}})
    assert result["agentCapabilities"]["_meta"] == {
        "cantrip": {"promptQueueing": True, "toolCallCancel": True}, "claudeCode": {"promptQueueing": True},
    }  # fmt: skip
    assert result["_meta"]["steering"] == {"supported": True}
    assert start(initialized=False).initialize()["agentCapabilities"]["_meta"] == {
        "cantrip": {"promptQueueing": True, "toolCallCancel": True}
    }


def test_prompts_run_in_order_and_can_be_edited_and_removed(begin: Any) -> None:
    agent, session = begin(HOLD, DONE, DONE, DONE)
    first = agent.start_prompt(session, "one")
    form = held(agent)
    second, third = agent.start_prompt(session, "two", **named("b")), agent.start_prompt(session, "three", **named("c"))
    fourth = agent.start_prompt(session, "four", **named("d"))
    assert queue(agent, session) == [
        {"id": "b", "text": "two"},
        {"id": "c", "text": "three"},
        {"id": "d", "text": "four"},
    ]
    assert texts(queue(agent, session, "edit", id="d", prompt=[{"type": "text", "text": "4"}])) == ["two", "three", "4"]
    assert texts(queue(agent, session, "remove", id="c")) == ["two", "4"]
    removed = reply(agent, third)["result"]
    assert removed == {"stopReason": "cancelled", "_meta": {"cantrip": {"queued": {"id": "c", "started": False}}}}
    refused = agent.error(
        "_cantrip/queue/edit", {"sessionId": session, "id": "c", "prompt": [{"type": "text", "text": "x"}]}
    )
    assert refused["data"]["reason"] == "not_queued"
    assert "no text" in agent.error("_cantrip/queue/edit", {"sessionId": session, "id": "d", "prompt": []})["message"]
    # A waiting prompt can be cancelled like any request.
    fifth = agent.start_prompt(session, "five")
    agent.tell("$/cancel_request", {"requestId": fifth})
    assert reply(agent, fifth)["error"]["code"] == -32800
    answer(agent, form)
    ends = [reply(agent, each)["result"] for each in (first, second, fourth)]
    assert [end["stopReason"] for end in ends] == ["end_turn"] * 3
    assert intents(ends[-1]) == ["one", "two", "4"]
    order = [m["id"] for m in agent.seen if m.get("result", {}).get("stopReason") == "end_turn"]
    assert order == [first, second, fourth]
    agent.quiet(0.1)
    changes = [texts(m["params"]["prompts"]) for m in agent.seen if m.get("method") == CHANGED]
    assert changes[:3] == [["two"], ["two", "three"], ["two", "three", "four"]]
    assert changes[-1] == []


def test_send_now_reaches_the_entity_before_its_next_query(begin: Any, folder: Path) -> None:
    agent, session = begin(HOLD, HOLD, DONE, DONE)
    first = agent.start_prompt(session, "one")
    form = held(agent)
    second, third = (
        agent.start_prompt(session, "two", **named("b")),
        agent.start_prompt(session, "use tabs", **named("c")),
    )
    sent = queue(agent, session, "send_now", id="c")
    assert sent == [{"id": "c", "text": "use tabs", "sending": True}, {"id": "b", "text": "two"}]
    answer(agent, form)
    again = held(agent)
    # Delivered: it can no longer be removed, and it is shown where the entity read it.
    assert texts(queue(agent, session)) == ["two"]
    assert agent.error("_cantrip/queue/remove", {"sessionId": session, "id": "c"})["data"]["reason"] == "not_queued"
    (shown,) = agent.updates("user_message_chunk")
    assert (shown["content"]["text"], shown["_meta"]["cantrip"]) == ("use tabs", {"steering": True})
    answer(agent, again)
    ends = [reply(agent, each)["result"] for each in (first, third, second)]
    assert [end["stopReason"] for end in ends] == ["end_turn"] * 3
    assert ends[1]["_meta"]["cantrip"]["queued"] == {"id": "c", "started": True, "sent_into_running_prompt": True}
    assert intents(ends[0]) == ["one", "two"]
    (record,) = records(ends[0], "context")
    (turn, *_) = [each for each in records(ends[0], "turn") if each["role"] == "crystal"]
    assert (record["source"], record["text"], record["after"]) == ("steering", "use tabs", turn["id"])
    agent.call("session/close", {"sessionId": session})
    seen = len(agent.seen)
    agent.call("session/load", {"sessionId": session, "cwd": str(folder), "mcpServers": []})
    loaded = [m["params"]["update"] for m in agent.seen[seen:] if m.get("method") == "session/update"]
    words = [
        u["content"]["text"] if "user" in u["sessionUpdate"] else u["title"]
        for u in loaded
        if u["sessionUpdate"] in ("user_message_chunk", "tool_call")
    ]
    assert [each[:7] for each in words if each in ("one", "two", "use tabs") or each.startswith("Ask")] == [
        "one", "Ask “Go", "use tab", "Ask “Go", "two",
    ]  # fmt: skip


def test_what_comes_too_late_for_the_last_query_is_the_next_prompt(begin: Any) -> None:
    agent, session = begin({"tool_calls": [*HOLD["tool_calls"], *DONE["tool_calls"]]}, DONE)
    first = agent.start_prompt(session, "one")
    form = held(agent)
    second = agent.start_prompt(session, "two", **named("b"))
    assert queue(agent, session, "send_now", id="b")[0]["sending"]
    answer(agent, form)
    assert reply(agent, first)["result"]["stopReason"] == "end_turn"
    end = reply(agent, second)["result"]
    assert intents(end) == ["one", "two"]
    assert not records(end, "context")


def test_steering_as_other_agents_do_it(begin: Any) -> None:
    agent, session = begin(HOLD, DONE, DONE, capabilities={"elicitation": {"form": {}}})
    steer: Callable[..., Any] = lambda text, **more: agent.call(  # noqa: E731
        "_session/steering", {"sessionId": session, "prompt": [{"type": "text", "text": text}], **more}
    )
    required = {"_meta": {"steering": {"idleBehavior": "promptRequired"}}}
    assert steer("early", **required) == {"outcome": "promptRequired", "reason": "noRunningTurn"}
    first = agent.start_prompt(session, "one")
    form = held(agent)
    assert steer("use tabs") == {"outcome": "injected"}
    answer(agent, form)
    end = reply(agent, first)["result"]
    assert [record["text"] for record in records(end, "context")] == ["use tabs"]
    assert not agent.updates("user_message_chunk")
    assert steer("and now?") == {"outcome": "startedNewTurn"}
    agent.until(lambda m: "all done" in json.dumps(m.get("params", {}).get("update", {}).get("content", "")))
    assert intents(end) == ["one", "and now?"]
    odd = {
        "sessionId": session,
        "prompt": [{"type": "text", "text": "x"}],
        "_meta": {"steering": {"idleBehavior": "no"}},
    }
    assert "idleBehavior" in agent.error("_session/steering", odd)["message"]


def test_a_late_steering_message_becomes_a_cast_of_the_same_prompt(begin: Any) -> None:
    agent, session = begin({"tool_calls": [*HOLD["tool_calls"], *DONE["tool_calls"]]}, DONE)
    first = agent.start_prompt(session, "one")
    form = held(agent)
    steer = {"sessionId": session, "prompt": [{"type": "text", "text": "two"}]}
    assert agent.call("_session/steering", steer) == {"outcome": "injected"}
    answer(agent, form)
    assert intents(reply(agent, first)["result"]) == ["one", "two"]
    # The client is shown it where the entity reads it.
    (shown,) = agent.updates("user_message_chunk")
    assert (shown["content"]["text"], shown["_meta"]["cantrip"]) == ("two", {"steering": True})


def test_a_cancel_answers_everything_that_waits(begin: Any) -> None:
    agent, session = begin(HOLD, DONE)
    first = agent.start_prompt(session, "one")
    held(agent)
    second, third = agent.start_prompt(session, "two"), agent.start_prompt(session, "three", **named("c"))
    queue(agent, session, "send_now", id="c")
    steer = {"sessionId": session, "prompt": [{"type": "text", "text": "hurry"}]}
    assert agent.call("_session/steering", steer) == {"outcome": "injected"}
    agent.tell("session/cancel", {"sessionId": session})
    ends = [reply(agent, each)["result"] for each in (second, third, first)]
    assert [end["stopReason"] for end in ends] == ["cancelled"] * 3
    assert [end["_meta"]["cantrip"]["queued"]["started"] for end in ends[:2]] == [False, False]
    assert "did not reach the agent before the prompt ended: hurry" in agent.said()
    assert agent.prompt(session, "next")["stopReason"] == "end_turn"


def test_a_close_answers_everything_that_waits(begin: Any, folder: Path) -> None:
    agent, session = begin(HOLD, DONE)
    first = agent.start_prompt(session, "one")
    held(agent)
    second = agent.start_prompt(session, "two")
    close = agent.ask("session/close", {"sessionId": session})
    assert [reply(agent, each)["result"]["stopReason"] for each in (second, first)] == ["cancelled"] * 2
    reply(agent, close)
    agent.call("session/load", {"sessionId": session, "cwd": str(folder), "mcpServers": []})
    agent.quiet(0.1)
    assert "never started" not in agent.said()


def test_the_queue_as_a_command_for_clients_without_one(begin: Any) -> None:
    agent, session = begin(HOLD, DONE, DONE)
    first = agent.start_prompt(session, "one")
    form = held(agent)
    second, third = agent.start_prompt(session, "two"), agent.start_prompt(session, "three")
    for words, shown in (
        ("/queue", "1. two\n2. three"),
        ("/queue edit 2 four", "1. two\n2. four"),
        ("/queue remove 1", "1. four"),
        ("/queue now 1", "1. four (sent with the next query)"),
        ("/queue now 7", "from 1 to 1"),
        ("/queue shout 1", "/queue edit NUMBER TEXT"),
    ):
        assert agent.prompt(session, words)["stopReason"] == "end_turn"
        assert shown in agent.updates("agent_message_chunk")[-1]["content"]["text"]
    assert reply(agent, second)["result"]["stopReason"] == "cancelled"
    answer(agent, form)
    end = reply(agent, first)["result"]
    assert reply(agent, third)["result"]["stopReason"] == "end_turn"
    assert [record["text"] for record in records(end, "context")] == ["four"]
    assert "No prompt waits." in [agent.prompt(session, "/queue"), agent.said()][1]
