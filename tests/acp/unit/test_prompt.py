"""A prompt from its request to its reply: what is told on the way, how it ends, and what cannot be taken."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.fixtures.acp import DONE, Start


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def test_a_whole_turn(start: Start, folder: Path) -> None:
    agent = start(
        [
            {
                "thinking": "let me see",
                "chunks": ["I will ", "try."],
                "tool_calls": [{"gate": "echo", "args": {"text": "hello"}}, {"gate": "echo", "args": {"txt": 1}}],
                "usage": {"prompt_tokens": 100, "completion_tokens": 20, "cost": 0.25},
            },
            DONE,
        ],
        crystal={"context_window": 8000},
    )
    session = agent.session(folder)
    result = agent.prompt(session)
    agent.quiet(0.2)
    assert result["stopReason"] == "end_turn"
    assert result["_meta"]["cantrip"]["reason"] == "done"
    assert [message["params"]["sessionId"] for message in agent.seen if "method" in message] == [session] * len(
        agent.updates()
    )
    (thought,) = agent.updates("agent_thought_chunk")
    assert thought["content"]["text"] == "let me see"
    words = agent.updates("agent_message_chunk")
    assert [word["content"]["text"] for word in words] == ["I will ", "try.", "\n\nall done"]
    assert words[0]["messageId"] == words[1]["messageId"] != words[2]["messageId"]
    assert thought["messageId"] not in {word["messageId"] for word in words}

    good, bad, done = agent.updates("tool_call")
    assert good["status"] == bad["status"] == done["status"] == "pending"
    assert (good["name"], good["kind"], good["rawInput"]) == ("echo", "other", {"text": "hello"})
    states: dict[str, list[dict[str, Any]]] = {call["toolCallId"]: [] for call in (good, bad, done)}
    for update in agent.updates("tool_call_update"):
        states[update["toolCallId"]].append(update)
    assert [update["status"] for update in states[good["toolCallId"]]] == ["in_progress", "completed"]
    assert states[good["toolCallId"]][-1]["rawOutput"] == {"output": "hello"}
    assert states[bad["toolCallId"]][-1]["status"] == "failed"
    # What the model is told goes with the output; the user reads a sentence of their own.
    assert "missing required argument" in states[bad["toolCallId"]][-1]["rawOutput"]["output"]
    assert "arguments that do not fit" in json.dumps(states[bad["toolCallId"]][-1]["content"])
    assert states[done["toolCallId"]][-1]["status"] == "completed"

    usage = agent.updates("usage_update")[0]
    assert (usage["used"], usage["size"]) == (120, 8000)
    assert usage["cost"] == {"amount": 0.25, "currency": "USD"}


def test_an_entity_remembers_and_ids_of_tool_calls_never_come_again(start: Start, folder: Path) -> None:
    call = {"tool_calls": [{"id": "call_1", "gate": "done", "args": {"answer": "x"}}]}
    agent = start([call, call, {"content": "in words"}])
    session = agent.session(folder)
    for _ in range(3):
        assert agent.prompt(session)["stopReason"] == "end_turn"
    ids = [update["toolCallId"] for update in agent.updates("tool_call")]
    assert len(ids) == len(set(ids)) == 2
    assert agent.said() == "xxin words"


@pytest.mark.parametrize(
    ("responses", "wards", "reason", "why"),
    [
        ([DONE], [{"max_turns": 3}], "end_turn", "done"),
        ([{"content": "words"}], [{"max_turns": 3}], "end_turn", "text"),
        ([{"tool_calls": [{"gate": "echo", "args": {"text": "x"}}], "repeat": True}], [{"max_turns": 2}],
         "max_turn_requests", "max_turns"),
        ([{"content": "late", "delay_ms": 5000}], [{"max_turns": 2}, {"max_seconds": 0.2}],
         "max_turn_requests", "max_seconds"),
        ([{"tool_calls": [{"gate": "echo", "args": {"text": "x"}}], "repeat": True,
           "usage": {"prompt_tokens": 60, "completion_tokens": 0}}],
         [{"max_turns": 9}, {"max_total_tokens": 100}], "max_tokens", "max_tokens"),
        ([{"tool_calls": [{"gate": "echo", "args": {"text": "x"}}], "repeat": True, "usage": {"cost": 0.6}}],
         [{"max_turns": 9}, {"max_cost_usd": 1.0}], "max_tokens", "max_cost"),
    ],
)  # fmt: skip
def test_stop_reasons(start: Start, folder: Path, responses: Any, wards: Any, reason: str, why: str) -> None:
    agent = start(responses, wards=wards)
    result = agent.prompt(agent.session(folder))
    assert (result["stopReason"], result["_meta"]["cantrip"]["reason"]) == (reason, why)


def test_a_model_that_fails_is_an_error_that_says_what_happened(start: Start, folder: Path) -> None:
    secret = "sk-abcdefghijklmnopqrstuvwxyz"
    agent = start([{"error": {"status": 401, "message": f"invalid key {secret}"}}, DONE])
    session = agent.session(folder)
    reply = agent.answer(agent.start_prompt(session))
    assert reply["error"]["code"] == -32603
    assert "invalid key" in reply["error"]["message"]
    assert secret not in json.dumps(agent.seen)
    assert agent.prompt(session)["stopReason"] == "end_turn"


def test_a_script_that_has_run_out_says_so(start: Start, folder: Path) -> None:
    agent = start([])
    assert "run out" in agent.answer(agent.start_prompt(agent.session(folder)))["error"]["message"]


def test_a_retry_is_told_and_leads_to_one_turn(start: Start, folder: Path) -> None:
    responses = [{"error": {"status": 500, "message": "overloaded"}}, DONE]
    for capabilities, kind in (({}, "agent_thought_chunk"), ({"session": {"notices": {}}}, "notice")):
        agent = start(responses, capabilities=capabilities, retry={"max_retries": 2, "base_s": 0.01})
        assert agent.prompt(agent.session(folder))["_meta"]["cantrip"]["turns"] == 1
        assert "overloaded" in json.dumps(agent.updates(kind))


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({}, "sessionId"),
        ({"sessionId": 1, "prompt": []}, "sessionId"),
        ({"sessionId": "x"}, "prompt"),
        ({"sessionId": "x", "prompt": "text"}, "prompt"),
        ({"sessionId": "x", "prompt": ["text"]}, "prompt[0]"),
        ({"sessionId": "x", "prompt": [{"type": "video"}]}, "prompt[0].type"),
        ({"sessionId": "x", "prompt": [{"text": "x"}]}, "prompt[0].type"),
        ({"sessionId": "x", "prompt": [{"type": "text"}]}, "prompt[0].text"),
        ({"sessionId": "x", "prompt": [{"type": "resource_link", "uri": "file:///x"}]}, "prompt[0].name"),
        ({"sessionId": "x", "prompt": [{"type": "resource", "resource": {"text": "x"}}]}, "prompt[0].resource.uri"),
    ],
)
def test_wrong_parameters_of_a_prompt(start: Start, params: Any, field: str) -> None:
    error = start().error("session/prompt", params)
    assert error["code"] == -32602
    assert error["data"]["field"] == field


IMAGE = {"type": "image", "data": "AAAA", "mimeType": "image/png"}


AUDIO = {"type": "audio", "data": "AAAA", "mimeType": "audio/wav"}


BLOB = {
    "type": "resource",
    "resource": {"uri": "file:///x.bin", "blob": base64.b64encode(b"\xff\x00").decode(), "mimeType": "image/png"},
}


def test_pictures_and_sound_go_with_the_intent(start: Start, folder: Path) -> None:
    agent = start([DONE])
    asked = {"sessionId": agent.session(folder), "prompt": [text("look"), IMAGE, AUDIO, BLOB]}
    result = agent.call("session/prompt", asked)
    records = [json.loads(line) for line in Path(result["_meta"]["cantrip"]["loom"]).read_text().splitlines()]
    kept = [(r["mime"], r["data"]) for r in records if r["type"] == "context"]
    assert kept == [("image/png", "AAAA"), ("audio/wav", "AAAA"), ("image/png", "/wA=")]


@pytest.mark.parametrize(
    ("prompt", "problem"),
    [
        ([], "intent is required"),
        ([text("")], "intent is required"),
        ([text(" \n\t")], "intent is required"),
        ([text(" "), text("\n")], "intent is required"),
        ([text("look"), IMAGE | {"data": "?"}], "not base64"),
        ([text("read"), {"type": "resource", "resource": {"uri": "file:///x"}}], "a text or a blob"),
    ],
)
def test_a_prompt_that_cannot_be_taken(start: Start, folder: Path, prompt: Any, problem: str) -> None:
    agent = start()
    session = agent.session(folder)
    error = agent.error("session/prompt", {"sessionId": session, "prompt": prompt})
    assert error["code"] == -32602
    assert problem in error["message"]
    assert agent.prompt(session)["stopReason"] == "end_turn"


def test_links_and_embedded_resources_reach_the_entity(start: Start, folder: Path) -> None:
    agent = start(
        [{"content": "found", "when": "Compare [@a.py](file:///w/a.py) with [@b.py](file:///w/b.py), please"}]
    )
    session = agent.session(folder)
    embedded = {"uri": "file:///w/b.py", "text": "print('b')", "mimeType": "text/x-python"}
    coded = {"uri": "file:///w/c.txt", "blob": base64.b64encode(b"coded text").decode()}
    prompt = [
        text("Compare "),
        {"type": "resource_link", "name": "a.py", "uri": "file:///w/a.py", "size": "?", "description": "the old one"},
        text(" with "),
        {"type": "resource", "resource": embedded, "annotations": {"audience": ["assistant"]}},
        text(", please. "),
        {"type": "resource", "resource": coded},
    ]
    result = agent.call("session/prompt", {"sessionId": session, "prompt": prompt})
    assert agent.said() == "found"
    loom = Path(result["_meta"]["cantrip"]["loom"]).read_text()
    context = [record for record in map(json.loads, loom.splitlines()) if record["type"] == "context"]
    assert [block["uri"] for block in context] == ["file:///w/a.py", "file:///w/b.py", "file:///w/c.txt"]
    assert "print('b')" in context[1]["text"]
    assert context[2]["text"] == "coded text"


PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize(
    ("of_session", "of_prompt", "expected"),
    [
        (None, {"cantrip_trace_id": "a" * 32, "trace_id": "b" * 32, "traceparent": PARENT}, "a" * 32),
        (None, {"trace_id": "b" * 32, "traceparent": PARENT}, "b" * 32),
        (None, {"traceparent": PARENT}, "0af7651916cd43dd8448eb211c80319c"),
        ({"trace_id": "c" * 32}, None, "c" * 32),
        ({"trace_id": "c" * 32}, {"trace_id": "d" * 32}, "d" * 32),
        (None, {"trace_id": "A" * 32}, "a" * 32),
        (None, {"trace_id": "my request"}, None),
        (None, {"trace_id": 5, "traceparent": "nonsense"}, None),
    ],
)
def test_traces_are_carried_into_the_loom(
    start: Start, folder: Path, of_session: Any, of_prompt: Any, expected: str | None
) -> None:
    agent = start()
    session = agent.session(folder, **({"_meta": of_session} if of_session else {}))
    meta = agent.prompt(session, **({"_meta": of_prompt} if of_prompt else {}))["_meta"]
    trace = meta["cantrip_trace_id"]
    assert len(trace) == 32
    assert expected in (None, trace)
    records = [json.loads(line) for line in Path(meta["cantrip"]["loom"]).read_text().splitlines()]
    turns = [record for record in records if record["type"] == "turn" and record.get("role", "crystal") == "crystal"]
    assert turns
    assert {turn["metadata"]["trace_id"] for turn in turns} == {trace}
    if of_prompt == {"trace_id": "my request"}:
        assert "my request" in json.dumps([record for record in records if record["type"] == "cast"])


def test_meta_changes_nothing_else(start: Start, folder: Path, tmp_path: Path) -> None:
    agent = start()
    session = agent.session(folder, _meta={"sessionId": "mine", "cwd": str(tmp_path), "session_id": "mine"})
    other = agent.session(folder)
    agent.prompt(session, _meta={"sessionId": other, "session_id": other, "prompt": [text("evil")]})
    assert len(agent.updates(session_id=session)) > 1
    assert [update["sessionUpdate"] for update in agent.updates(session_id=other)] == ["available_commands_update"]


@pytest.mark.parametrize("where", ["text", "resource"])
def test_a_prompt_that_is_too_long_is_the_end_of_itself_alone(start: Start, folder: Path, where: str) -> None:
    said = [{"content": "Fine.", "repeat": True}]
    agent = start(said, crystal={"context_window": 3000})
    session = agent.session(folder)
    agent.prompt(session, "First.")
    long = "word " * 10_000
    blocks: list[dict[str, Any]] = [{"type": "text", "text": long if where == "text" else "Look."}]
    if where == "resource":
        blocks.append({"type": "resource", "resource": {"uri": "file:///long.txt", "text": long}})
    agent.call("session/set_mode", {"sessionId": session, "modeId": "read-only"})
    for _ in range(2):
        error = agent.error("session/prompt", {"sessionId": session, "prompt": blocks})
        assert "do not fit the window of 3000" in error["message"]
    last = agent.prompt(session, "And now?")
    assert last["stopReason"] == "end_turn"
    records = [json.loads(line) for line in Path(last["_meta"]["cantrip"]["loom"]).read_text().splitlines()]
    cast = last["_meta"]["cantrip"]["cast_id"]
    # What was to be told with it is told with the next one.
    assert [r for r in records if r["type"] == "context" and r["cast_id"] == cast and "read" in r["text"].lower()]


def test_each_message_can_be_sent_again_from_before_it(start: Start, folder: Path) -> None:
    echo = {"when": "Two", "tool_calls": [{"gate": "echo", "args": {"text": "x"}}]}
    fails = {"when": "Two", "error": {"status": 401, "message": "no"}}
    agent = start([echo, fails, {**DONE, "repeat": True}])
    session = agent.session(folder)
    folders = {"cwd": str(folder), "mcpServers": []}
    first = agent.prompt(session, "One")["_meta"]["cantrip"]["turn"]
    failed = agent.answer(agent.start_prompt(session, "Two"))["error"]["data"]["cantrip"]["turn"]
    agent.prompt(session, "Three")
    agent.call("session/close", {"sessionId": session})
    agent.seen.clear()
    agent.call("session/load", {"sessionId": session, **folders})
    messages = agent.updates("user_message_chunk")
    assert [each["content"]["text"] for each in messages] == ["One", "Two", "Three"]
    # The turn before the failure counts.
    assert [each["_meta"]["cantrip"]["after"] for each in messages] == [0, first, failed]
    assert failed not in (first, "")
    for before, message in enumerate(messages):
        meta = {"cantrip": {"turn": message["_meta"]["cantrip"]["after"]}}
        fork = agent.call("session/fork", {"sessionId": session, **folders, "_meta": meta})["sessionId"]
        agent.prompt(fork, "Instead")
        agent.call("session/close", {"sessionId": fork})
        agent.call("session/load", {"sessionId": fork, **folders})
        sent = [each["content"]["text"] for each in agent.updates("user_message_chunk", fork)]
        assert sent == [*("One", "Two", "Three")[:before], "Instead"]
