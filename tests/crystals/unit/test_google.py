"""Gemini: the real SDK against a server that speaks its wire format."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from cantrip_acp.core.cantrip import Cantrip
from cantrip_acp.core.definition.circle import Circle
from cantrip_acp.crystals.catalog.types import UNKNOWN, ModelInfo, Price
from cantrip_acp.crystals.google.messages import UNSIGNED, contents_of
from cantrip_acp.crystals.google.request import convert_schema, thinking
from cantrip_acp.crystals.keys import Secret
from cantrip_acp.crystals.openai.tool_names import wire_name
from cantrip_acp.crystals.retry import RetryPolicy
from cantrip_acp.types.call import Call
from cantrip_acp.types.errors import ContextLimitError, DefinitionError
from cantrip_acp.types.messages import Attachment, Message, ToolCall, ToolDefinition
from tests.support.google_replies import (
    ECHO,
    HELLO,
    KEY,
    MODEL,
    SIGN,
    ask,
    asked,
    call,
    checked,
    chunk,
    crystal,
    refusal,
    says,
    stream,
    usage,
)
from tests.support.provider_server import Cut, Wire, sse, sse_reply

# --- what comes


async def test_text_comes_in_pieces_and_whole() -> None:
    pieces = [chunk({"text": "Hel"}), chunk({"text": "lo\u2028 ∀"}, finish="STOP", usageMetadata=usage(7, 3))]
    with Wire(checked([stream(*pieces)])) as wire:
        response, deltas = await ask(crystal(wire.url), request_id="req-9")
        request = wire.requests[0]
    assert response.content == "Hello\u2028 ∀"
    assert [d.text for d in deltas] == ["Hel", "lo\u2028 ∀"]
    assert (response.stop_reason, response.model, response.tool_calls) == ("stop", f"{MODEL}-001", ())
    assert response.id == "r-1"
    assert request.path == f"/v1beta/models/{MODEL}:streamGenerateContent?alt=sse"
    assert request.headers["x-goog-api-key"] == KEY
    assert request.headers["x-acp-model-request-id"] == "req-9"
    assert KEY not in request.path


async def test_a_server_of_this_machine_is_asked_past_any_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    with Wire(checked([stream(chunk({"text": "Hi"}, finish="STOP", usageMetadata=usage(7, 3)))])) as wire:
        response, _ = await ask(crystal(wire.url))
    assert response.content == "Hi"


async def test_thoughts_are_apart_and_signatures_are_kept() -> None:
    pieces = [
        chunk({"text": "I weigh ", "thought": True}),
        chunk({"text": "it.", "thought": True}),
        chunk({"text": "Yes"}),
        chunk({"text": "."}),
        chunk({"text": "", "thoughtSignature": SIGN}, finish="STOP", usageMetadata=usage(5, 2, thoughts=11)),
    ]
    with Wire(checked([stream(*pieces)])) as wire:
        response, deltas = await ask(crystal(wire.url))
    assert (response.thinking, response.content) == ("I weigh it.", "Yes.")
    assert [d.kind for d in deltas] == ["thought", "thought", "text", "text"]
    assert response.provider["parts"] == [
        {"text": "I weigh it.", "thought": True},
        {"text": "Yes."},
        {"text": "", "thoughtSignature": SIGN},
    ]
    assert (response.usage.completion_tokens, response.usage.reasoning_tokens) == (13, 11)


async def test_calls_have_ids_that_are_unique_whatever_the_api_gives() -> None:
    parts = (call("echo", {"text": "a", "größe": 1.5}, sign=SIGN), call("echo", id="x"), call("echo", {}, id="x"))
    earlier = (*HELLO, Message("assistant", None, (ToolCall("x", "echo"),)), Message("tool", "ok", tool_call_id="x"))
    response, _ = await asked([stream(chunk(*parts, finish="STOP"))], earlier, tools=(ECHO,))
    ids = [c.id for c in response.tool_calls]
    assert len({*ids, "x"}) == 4
    assert [json.loads(c.args) for c in response.tool_calls] == [{"text": "a", "größe": 1.5}, {}, {}]
    assert response.stop_reason == "tool_calls"
    assert [p["functionCall"].get("id") for p in response.provider["parts"]] == [None, "x", "x"]


async def test_usage_and_cost() -> None:
    info = ModelInfo(price=Price(input=1, output=10, cached=0.1), known=True)
    last = chunk({"text": "x"}, finish="STOP", usageMetadata=usage(1000, 5, thoughts=15, cached=800, tool=40))
    response, _ = await asked([stream(last)], info=info)
    used = response.usage
    assert (used.prompt_tokens, used.cached_tokens, used.completion_tokens, used.reasoning_tokens) == (
        1040,
        800,
        20,
        15,
    )
    assert used.cost == pytest.approx((240 * 1 + 800 * 0.1 + 20 * 10) / 1e6)


@pytest.mark.parametrize("finish", ["SAFETY", "PROHIBITED_CONTENT", "BLOCKLIST", "SPII", "LANGUAGE"])
async def test_a_refusal_says_why_and_calls_nothing(finish: str) -> None:
    response, _ = await asked([stream(chunk(call("echo"), finish=finish, finishMessage="not that"))])
    assert response.refused
    assert response.stop_reason == "refusal"
    assert not response.tool_calls
    assert finish in (response.content or "")
    assert "not that" in (response.content or "")
    assert response.provider is None


async def test_a_blocked_prompt_is_a_refusal() -> None:
    event = {"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}, "usageMetadata": usage(9, 0)}
    response, _ = await asked([sse_reply([sse(event)])])
    assert response.refused
    assert "PROHIBITED_CONTENT" in (response.content or "")
    assert response.usage.prompt_tokens == 9


async def test_cut_at_the_limit() -> None:
    response, _ = await asked([stream(chunk({"text": "half an ans"}, finish="MAX_TOKENS"))])
    assert (response.content, response.stop_reason) == ("half an ans", "length")


# --- what goes


async def test_the_whole_request() -> None:
    messages = (
        Message("system", "Be brief.", kind="call"),
        Message("system", "You can.", kind="capabilities"),
        *HELLO,
    )
    params = Call(temperature=0.5, top_p=0.9, max_tokens=77, stop=("END",))
    _, body = await asked([says("ok")], messages, tools=(ECHO,), tool_choice="required", params=params)
    assert body["systemInstruction"]["parts"] == [{"text": "Be brief."}, {"text": "You can."}]
    assert body["contents"] == [{"role": "user", "parts": [{"text": "Hello"}]}]
    assert body["tools"][0]["functionDeclarations"][0]["parametersJsonSchema"] == ECHO.parameters
    assert body["toolConfig"] == {"functionCallingConfig": {"mode": "ANY"}}
    assert body["generationConfig"] == {
        "temperature": 0.5,
        "topP": 0.9,
        "maxOutputTokens": 77,
        "stopSequences": ["END"],
        "thinkingConfig": {"includeThoughts": True},
    }


@pytest.mark.parametrize(("choice", "mode"), [("auto", "AUTO"), ("none", "NONE"), ("required", "ANY")])
async def test_tool_choice(choice: Any, mode: str) -> None:
    _, body = await asked([says("ok")], tools=(ECHO,), tool_choice=choice)
    assert body["toolConfig"]["functionCallingConfig"]["mode"] == mode


async def test_parameters_that_a_model_does_not_take_are_left_out() -> None:
    info = ModelInfo(sampling=False, known=True)
    _, body = await asked([says("ok")], info=info, params=Call(temperature=1, top_p=1, max_tokens=3))
    assert body["generationConfig"] == {"maxOutputTokens": 3}


async def test_attachments_where_they_are_taken() -> None:
    picture = Attachment("image", "image/png", base64.b64encode(b"png").decode())
    paper = Attachment("document", "application/pdf", base64.b64encode(b"pdf").decode(), title="a.pdf")
    message = Message("user", "What is it?", attachments=(picture, paper))
    _, body = await asked([says("ok")], (message,), info=ModelInfo(images=True))
    first, second, third = body["contents"][0]["parts"]
    assert first == {"inlineData": {"mimeType": "image/png", "data": picture.data}}
    assert "a.pdf" in second["text"]
    assert MODEL in second["text"]
    assert third == {"text": "What is it?"}


async def test_what_was_said_goes_back_as_it_came() -> None:
    parts = (
        {"text": "I look.", "thought": True},
        call("echo", {"z": 1, "a": [1, {"snake_case": None, "camelCase": "x"}]}, sign=SIGN),
        call("echo", {"text": "ü"}, id="same"),
        call("echo", id="same"),
    )
    with Wire(checked([stream(chunk(*parts, finish="STOP")), says("done")])) as wire:
        c = crystal(wire.url)
        response, _ = await ask(c, tools=(ECHO,))
        said = Message("assistant", None, response.tool_calls, thinking=response.thinking, provider=response.provider)
        answers = [
            Message("tool", f"r{i}", tool_call_id=t.id, name=t.gate, is_error=i == 1)
            for i, t in enumerate(response.tool_calls)
        ]
        await ask(c, (*HELLO, said, *answers), tools=(ECHO,))
        body = wire.requests[1].json()
    assert body["contents"][1]["parts"] == [
        {"text": "I look.", "thought": True},
        parts[1],
        parts[2],
        {"functionCall": {"name": "echo", "args": {}, "id": "same"}},
    ]
    assert body["contents"][2]["parts"] == [
        {"functionResponse": {"name": "echo", "response": {"output": "r0"}}},
        {"functionResponse": {"name": "echo", "response": {"error": "r1"}, "id": "same"}},
        {"functionResponse": {"name": "echo", "response": {"output": "r2"}, "id": "same"}},
    ]


@pytest.mark.parametrize(
    "provider",
    [
        None,
        {"family": "anthropic", "blocks": []},
        {"family": "google", "model": "gemini-2.5-pro", "parts": [call("echo", {}, sign=SIGN)]},
        {"family": "google", "model": MODEL, "parts": [call("other", {}, sign=SIGN)]},
        {"family": "google", "model": MODEL, "parts": "garbage"},
        "garbage",
    ],
)
async def test_what_another_said_goes_plainly(provider: Any) -> None:
    calls = (ToolCall("t1", "echo", '{"text": "a"}'), ToolCall("t2", "echo", "{broken"), ToolCall("t3", "echo", "[1]"))
    messages = (
        *HELLO,
        Message("assistant", "Well.", calls, thinking="Hm.", provider=provider),
        *(Message("tool", "r", tool_call_id=c.id, name="echo") for c in calls),
    )
    _, body = await asked([says("ok")], messages, tools=(ECHO,))
    assert body["contents"][1]["parts"] == [
        {"text": "Well."},
        {"functionCall": {"name": "echo", "args": {"text": "a"}}, "thoughtSignature": UNSIGNED},
        {"functionCall": {"name": "echo", "args": {"arguments": "{broken"}}},
        {"functionCall": {"name": "echo", "args": {"arguments": [1]}}},
    ]


def test_older_models_get_no_signature_that_is_none() -> None:
    said = Message("assistant", None, (ToolCall("t", "echo"),))
    for model in ("gemini-2.5-flash", "gemini-1.5-pro", "gemma-3"):
        assert "thoughtSignature" not in json.dumps(contents_of((*HELLO, said), model, UNKNOWN))
    assert UNSIGNED in json.dumps(contents_of((*HELLO, said), "gemini-flash-latest", UNKNOWN))


def test_messages_only_grow() -> None:
    kept = {"family": "google", "model": MODEL, "parts": [call("echo", {}, sign=SIGN)]}
    turn = [
        Message("assistant", None, (ToolCall("t", "echo"),), provider=kept),
        Message("tool", "r", tool_call_id="t", name="echo"),
    ]
    block = Message("system", "<context>a</context>", kind="context")
    steps = [
        [Message("system", "S"), *HELLO],
        turn,
        [Message("assistant", "Done.")],
        [block, Message("user", "More")],
        turn,
    ]
    before, messages = "", []
    for step in steps:
        messages += step
        system, contents = contents_of(messages, MODEL, UNKNOWN)
        now = json.dumps(contents)
        assert now.startswith(before[:-1])
        assert system == [{"text": "S"}]
        before = now
    assert {"text": block.content} in json.loads(before)[4]["parts"] or block.content in before


@pytest.mark.parametrize(
    ("model", "options", "expected"),
    [
        ("gemini-2.5-flash", {"effort": "low"}, {"includeThoughts": True, "thinkingBudget": 2048}),
        ("gemini-2.5-flash", {"effort": "none"}, {"includeThoughts": False, "thinkingBudget": 0}),
        ("gemini-2.5-pro", {"effort": "none"}, {"includeThoughts": True, "thinkingBudget": 128}),
        ("gemini-2.5-pro", {"effort": "max"}, {"includeThoughts": True, "thinkingBudget": 32768}),
        ("gemini-3-flash", {"effort": "minimal"}, {"includeThoughts": True, "thinkingLevel": "MINIMAL"}),
        ("gemini-3.1-pro", {"effort": "none"}, {"includeThoughts": True, "thinkingLevel": "LOW"}),
        ("gemini-3-flash", {"effort": "xhigh"}, {"includeThoughts": True, "thinkingLevel": "HIGH"}),
        ("gemini-4-hydrogen", {"effort": "max"}, {"includeThoughts": True, "thinkingLevel": "XHIGH"}),
        ("gemini-4-argon", {"effort": "max"}, {"includeThoughts": True, "thinkingLevel": "HIGH"}),
        ("gemini-3-flash", {}, {"includeThoughts": True}),
        ("gemini-3-flash", {"thinking_budget": 99, "effort": "low"}, {"includeThoughts": True, "thinkingBudget": 99}),
        ("gemini-2.0-flash", {}, None),
        ("gemma-3-27b", {"effort": "none"}, None),
    ],
)
def test_thinking(model: str, options: dict[str, Any], expected: Any) -> None:
    assert thinking(model, UNKNOWN, options) == expected


@pytest.mark.parametrize("options", [{"effort": "huge"}, {"thinking_budget": -2}, {"thinking_budget": "much"}])
def test_thinking_that_there_is_not(options: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError, match=next(iter(options))):
        crystal("http://127.0.0.1:9", **options)


def test_schemas() -> None:
    assert convert_schema(
        {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "type": "object",
            "properties": {
                "kind": {"const": "a"},
                "on": {"const": True},
                "n": {"type": "integer", "exclusiveMinimum": 0, "default": 3, "multipleOf": 2},
                "t": {"type": ["string", "null"], "pattern": "^a", "minLength": 1, "enum": ["a", None]},
                "node": {"$ref": "#/definitions/node", "description": "x"},
                "pattern": {"type": "array", "items": {"not": {}}, "uniqueItems": True, "minItems": 1},
                "any": {"anyOf": [{"type": "string"}, True], "oneOf": [{"type": "string"}]},
            },
            "allOf": [{"required": ["kind"], "properties": {"more": {"type": "string"}}}],
            "required": ["n"],
            "additionalProperties": False,
            "definitions": {"node": {"type": "object", "examples": [1]}},
        }
    ) == {
        "type": "object",
        "properties": {
            "kind": {"enum": ["a"]},
            "on": {"type": "boolean"},
            "n": {"type": "integer", "minimum": 0},
            "t": {"anyOf": [{"type": "string", "enum": ["a"]}, {"type": "null"}]},
            "node": {"$ref": "#/$defs/node"},
            "pattern": {"type": "array", "items": {}, "minItems": 1},
            "any": {"anyOf": [{"type": "string"}], "oneOf": [{"type": "string"}]},
            "more": {"type": "string"},
        },
        "required": ["n", "kind"],
        "additionalProperties": False,
        "$defs": {"node": {"type": "object"}},
    }


async def test_a_name_that_the_api_does_not_take_goes_and_comes_mapped() -> None:
    tool = ToolDefinition("server tool/α", "Odd.", {"type": "object"})
    with Wire(checked([stream(chunk(call(wire_name(tool.name), {}, sign=SIGN), finish="STOP")), says("ok")])) as wire:
        c = crystal(wire.url)
        response, _ = await ask(c, tools=(tool,))
        (made,) = response.tool_calls
        said = Message("assistant", None, (made,), provider=response.provider)
        await ask(c, (*HELLO, said, Message("tool", "r", tool_call_id=made.id, name=made.gate)), tools=(tool,))
    assert made.gate == tool.name


async def test_far_too_much_is_not_sent() -> None:
    message = Message("user", " ".join(map(str, range(5000))))
    with Wire([]) as wire:
        with pytest.raises(ContextLimitError, match="nothing was sent"):
            await ask(crystal(wire.url, info=ModelInfo(context_window=100)), (message,))
        assert not wire.requests


async def test_what_a_model_turns_out_not_to_take_is_left_out_from_then_on() -> None:
    replies = [
        refusal(400, "Thinking level MINIMAL is not supported for this model."),
        refusal(400, "Thinking level is not supported for this model."),
        refusal(400, "Unable to submit request because thinking is not enabled."),
        refusal(400, "temperature is not supported."),
        says("one"),
        says("two"),
    ]
    with Wire(checked(replies)) as wire:
        c = crystal(wire.url, "gemini-5-nano", effort="minimal")
        for expected in ("one", "two"):
            response, _ = await ask(c, params=Call(temperature=1, max_tokens=9))
            assert response.content == expected
        sent = [r.json()["generationConfig"] for r in wire.requests]
    assert [g.get("thinkingConfig") for g in sent] == [
        {"includeThoughts": True, "thinkingLevel": "MINIMAL"},
        {"includeThoughts": True, "thinkingLevel": "LOW"},
        {"includeThoughts": True},
        None,
        None,
        None,
    ]
    assert sent[4] == sent[5] == {"maxOutputTokens": 9}


async def test_signatures_that_are_refused_make_way_for_plain_words() -> None:
    kept = {"family": "google", "model": MODEL, "parts": [{"text": "I look."}, call("echo", {}, sign=SIGN)]}
    messages = (
        *HELLO,
        Message("assistant", "I look.", (ToolCall("t", "echo"),), provider=kept),
        Message("tool", "r", tool_call_id="t", name="echo"),
    )
    replies = [refusal(400, "Thought signature is not valid."), says("one"), says("two")]
    with Wire(checked(replies)) as wire:
        c = crystal(wire.url)
        for expected in ("one", "two"):
            response, _ = await ask(c, messages)
            assert response.content == expected
        bodies = [r.json() for r in wire.requests]
    assert [b["contents"][1]["parts"][1]["thoughtSignature"] for b in bodies] == [SIGN, UNSIGNED, UNSIGNED]
    assert all("thinkingConfig" in b["generationConfig"] for b in bodies)


# --- the address


async def test_the_environment_of_the_sdk_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_GENAI_USE_VERTEXAI", "true")
    monkeypatch.setenv("GOOGLE_API_KEY", "another-key-of-the-environment")
    monkeypatch.setenv("GOOGLE_GENAI_API_VERSION", "v9")
    with Wire(checked([says("ok"), says("ok")])) as wire:
        await ask(crystal(wire.url + "/gate/v1alpha", headers={"X-Team": Secret("blue")}))
        await ask(crystal(wire.url, api_key=None))
        first, second = wire.requests
    assert first.path == f"/gate/v1alpha/models/{MODEL}:streamGenerateContent?alt=sse"
    assert (first.headers["x-goog-api-key"], first.headers["x-team"]) == (KEY, "blue")
    assert second.headers["x-goog-api-key"] == "none"


# --- a whole cast


async def test_a_whole_cast_with_a_failure_in_the_middle() -> None:
    replies = [
        stream(chunk(call("echo", {"text": "hi"}, sign=SIGN), call("echo", {"wrong": 1}), finish="STOP")),
        refusal(503, "overloaded", "UNAVAILABLE"),
        stream(chunk({"text": "ha"}), Cut()),
        stream(chunk(call("done", {"answer": "said hi"}, sign=SIGN), finish="STOP", usageMetadata=usage(20, 4))),
    ]

    async def no_sleep(seconds: float) -> None: ...

    with Wire(checked(replies)) as wire:
        c = crystal(wire.url)
        circle = Circle(gates=["done", "echo"], wards={"max_turns": 5})
        cantrip = Cantrip(c, Call("Be brief."), circle, retry=RetryPolicy(sleep=no_sleep))
        result = await cantrip.cast("Say hi.")
        await c.aclose()
        last = wire.requests[3].json()
        assert wire.requests[1].body == wire.requests[2].body == wire.requests[3].body
    assert (result.result, result.turns, result.reason) == ("said hi", 2, "done")
    first, second = last["contents"][2]["parts"]
    assert first["functionResponse"]["response"]["output"]
    assert "'text'" in second["functionResponse"]["response"]["error"]
