"""What is sent to Claude: the history, cache points, thinking, tools, parameters."""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cantrip_acp.crystals.anthropic.crystal import AnthropicCrystal
from cantrip_acp.crystals.anthropic.messages import rendered, with_cache_points
from cantrip_acp.crystals.anthropic.request import UNKNOWN_MAX_TOKENS, request, thinking
from cantrip_acp.crystals.catalog.types import UNKNOWN, ModelInfo
from cantrip_acp.crystals.contract import Query, Response
from cantrip_acp.crystals.endpoint import Endpoint
from cantrip_acp.crystals.keys import Secret
from cantrip_acp.types.call import Call
from cantrip_acp.types.errors import CrystalError, DefinitionError
from cantrip_acp.types.messages import Attachment, Message, Role, ToolCall, ToolDefinition
from tests.support.anthropic_replies import (
    MODEL,
    checked,
    problem,
    refusal,
    says,
    start,
    stop,
    stream,
    text,
    thought,
    use,
)
from tests.support.provider_server import Request, Wire

KEY = "sk-ant-PLANTED-anthropic-key-0123456789"
HELLO = (Message("user", "Hello", kind="intent"),)
ECHO = ToolDefinition("echo", "Says it again.", {"type": "object", "properties": {"text": {"type": "string"}}})
ADAPTIVE = ModelInfo(thinking="adaptive", reasoning=True, sampling=False, known=True, max_output=128_000)
BUDGET = ModelInfo(thinking="budget", reasoning=True, known=True, max_output=64_000)
POINT = {"type": "ephemeral"}


async def sent(messages: Sequence[Message] = HELLO, **more: Any) -> tuple[Response, Request]:
    """The response, and the request that arrived, which a strict reader took."""
    options = {k: more.pop(k) for k in ("effort", "thinking_budget") if k in more}
    named = {k: more.pop(k) for k in ("info", "headers", "api_key") if k in more}
    with Wire(checked(more.pop("replies", [says()]))) as wire:
        url = wire.url if more.pop("elsewhere", True) else None
        c = AnthropicCrystal(Endpoint("anthropic", MODEL, url, options=options, **{"api_key": Secret(KEY), **named}))
        try:
            return await c.query(Query(messages, **more), _deaf), wire.requests[-1]
        finally:
            await c.aclose()


async def _deaf(delta: Any) -> None: ...


def body(
    messages: Sequence[Message], *, info: ModelInfo = UNKNOWN, tools: Any = (ECHO,), **options: Any
) -> dict[str, Any]:
    """A request as it is sent, checked by the strict reader."""
    out = {**with_cache_points(request(Query(messages, tools), MODEL, info, options)), "stream": True}
    wrong = problem(Request("POST", "/v1/messages", {}, json.dumps(out).encode(), 0))
    assert wrong is None, wrong
    return out


def said(*calls: ToolCall, content: str | None = None, **more: Any) -> Message:
    return Message("assistant", content, calls, **more)


def answer(call_id: str, content: str = "ok", **more: Any) -> Message:
    return Message("tool", content, tool_call_id=call_id, name="echo", **more)


# --- the whole ---------------------------------------------------------------------------------------------------------


async def test_the_whole_request() -> None:
    messages = (
        Message("system", "Be brief.\n", kind="call"),
        Message("system", "You can.", kind="capabilities"),
        Message("system", " \n", kind="context"),
        *HELLO,
    )
    params = Call(temperature=0.5, max_tokens=77, stop=("END", "\n"))
    _, request = await sent(messages, tools=(ECHO,), tool_choice="required", params=params)
    assert request.json() == {
        "model": MODEL,
        "max_tokens": 77,
        "stream": True,
        "system": [
            {"type": "text", "text": "Be brief.\n"},
            {"type": "text", "text": "You can.", "cache_control": POINT},
        ],
        "tools": [
            {"name": "echo", "description": ECHO.description, "input_schema": ECHO.parameters, "cache_control": POINT}
        ],
        "tool_choice": {"type": "any"},
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hello", "cache_control": POINT}]}],
        "stop_sequences": ["END"],
        "temperature": 0.5,
    }


async def test_no_key_is_taken_from_anywhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-of-the-environment-and-not-for-here")
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", "token-of-the-environment")
    _, request = await sent(api_key=None)
    assert not {"authorization", "x-api-key"} & set(request.headers)


async def test_half_of_a_surrogate_pair_is_sent_as_what_it_is_not() -> None:
    _, request = await sent([*HELLO, said(ToolCall("a", "echo")), answer("a", "broken \ud83d here"), *HELLO])
    assert "broken ? here" in request.body.decode()


async def test_headers_of_the_users_own() -> None:
    headers = {"authorization": Secret("Basic b25lOnR3bw=="), "X-Team": Secret("blue")}
    _, request = await sent(api_key=None, headers=headers)
    assert request.headers["authorization"] == "Basic b25lOnR3bw=="
    assert request.headers["x-team"] == "blue"
    _, request = await sent(
        headers={"anthropic-beta": Secret("one-2026-01-01")}, info=BUDGET, thinking_budget=2000, tools=(ECHO,)
    )
    assert request.headers["anthropic-beta"] == "one-2026-01-01,interleaved-thinking-2025-05-14"


# --- the history -------------------------------------------------------------------------------------------------------


def test_a_turn_with_many_calls() -> None:
    calls = (ToolCall("a", "echo", '{"text": "é"}'), ToolCall("b", "echo", ""))
    out = body([*HELLO, said(*calls, content="Both."), answer("a", "one"), answer("b", "", is_error=True)])
    assert out["messages"][1:] == [
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "Both."},
                {"type": "tool_use", "id": "a", "name": "echo", "input": {"text": "é"}},
                {"type": "tool_use", "id": "b", "name": "echo", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "one"}]},
                {"type": "tool_result", "tool_use_id": "b", "is_error": True, "cache_control": POINT},
            ],
        },
    ]


def test_answers_in_another_order_missing_and_unasked() -> None:
    calls = tuple(ToolCall(each, "echo") for each in "abc")
    out = body(
        [*HELLO, said(*calls), answer("c"), answer("zzz", "lost"), answer("a"), Message("system", "Note."), *HELLO]
    )
    results = out["messages"][2]["content"]
    assert [r["tool_use_id"] for r in results] == ["c", "a", "b"]
    assert results[2]["is_error"] is True
    assert [b["text"] for m in out["messages"][3:] for b in m["content"]] == ["echo: lost", "Note.", "Hello"]


@pytest.mark.parametrize("args", ['{"text": ', "[1]", "7", '"x"', "null", "\ud800", "[" * 100_000])
def test_arguments_that_are_no_mapping_do_not_spoil_the_next_request(args: str) -> None:
    out = body([*HELLO, said(ToolCall("a", "echo", args)), answer("a", "bad arguments", is_error=True)])
    assert isinstance(out["messages"][1]["content"][0]["input"], dict)


def test_ids_and_names_that_the_api_does_not_take() -> None:
    ids = ("call|1", "", "x" * 100, "same", "same")
    messages: list[Message] = list(HELLO)
    for each in ids:
        messages += [said(ToolCall(each, "my.gate/ü")), answer(each)]
    out = body(messages)
    used = [b for m in out["messages"] for b in m["content"] if b["type"] == "tool_use"]
    assert len({b["id"] for b in used}) == len(ids)
    assert used[3]["id"] == "same"
    assert len({b["name"] for b in used}) == 1


async def test_a_name_comes_back_as_its_own() -> None:
    tool = ToolDefinition("my.gate", "Does.", {"type": "object"})
    wire_name = body(HELLO, tools=(tool,))["tools"][0]["name"]
    assert "." not in wire_name
    response, _ = await sent(tools=(tool,), replies=[stream(start(), use(0, wire_name), stop("tool_use"))])
    assert response.tool_calls[0].gate == "my.gate"


async def test_thinking_goes_back_as_it_came() -> None:
    parts = (
        thought(0, "Hm.", sign="c2ln"),
        text(1, "I call."),
        thought(2, sign="bm8="),
        use(3, "echo", '{"text": "a"}'),
    )
    response, _ = await sent(tools=(ECHO,), replies=[stream(start(), *parts, stop("tool_use"))], info=ADAPTIVE)
    kept = json.loads(json.dumps(response.provider))
    message = said(*response.tool_calls, content=response.content, thinking=response.thinking, provider=kept)
    out = body([*HELLO, message, answer("toolu_1")], info=ADAPTIVE)
    assert out["messages"][1]["content"] == [
        {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"},
        {"type": "text", "text": "I call."},
        {"type": "thinking", "thinking": "", "signature": "bm8="},
        {"type": "tool_use", "id": "toolu_1", "name": "echo", "input": {"text": "a"}},
    ]


@pytest.mark.parametrize(
    "kept",
    [
        {"family": "google", "model": MODEL, "parts": [{"text": "x"}]},
        {
            "family": "anthropic",
            "model": "claude-opus-5",
            "blocks": [{"type": "thinking", "thinking": "", "signature": "s"}],
        },
        {"family": "anthropic", "model": MODEL, "blocks": [{"type": "text", "text": "other"}, {"type": "tool_use"}]},
        {"family": "anthropic", "model": MODEL, "blocks": [{"type": "thinking", "thinking": "", "signature": "s"}]},
        {"family": "anthropic", "model": MODEL, "blocks": "spoilt"},
        {"family": "anthropic", "model": MODEL, "blocks": [7]},
        {"family": "anthropic", "model": MODEL},
        "spoilt",
        [1],
    ],
)
def test_what_another_said_or_what_does_not_fit_is_passed_over(kept: Any) -> None:
    message = said(ToolCall("a", "echo"), content="Mine.", provider=kept)
    out = body([*HELLO, message, answer("a")])
    assert [b["type"] for b in out["messages"][1]["content"]] == ["text", "tool_use"]


def test_nothing_is_ever_empty() -> None:
    for messages in (
        [],
        [Message("system", "Only this.")],
        [Message("user", "")],
        [Message("user", " \n")],
        [*HELLO, said(), Message("user", "Go on.")],
        [*HELLO, said(content="\n "), Message("user", "Go on.")],
        [said(content="I begin."), *HELLO],
    ):
        body(messages)


def test_tools_of_old_are_defined_where_the_history_calls_them() -> None:
    out = body([*HELLO, said(ToolCall("a", "echo")), answer("a")], tools=())
    assert [t["name"] for t in out["tools"]] == ["echo"]
    assert out["tool_choice"] == {"type": "none"}


def test_attachments_where_they_are_taken() -> None:
    data = base64.b64encode("déjà".encode()).decode()
    given = (
        Attachment("image", "image/png", data),
        Attachment("image", "image/tiff", data, title="scan.tiff"),
        Attachment("document", "application/pdf", data, title="a.pdf"),
        Attachment("document", "text/markdown", data),
        Attachment("document", "application/zip", data, uri="file:///a.zip"),
        Attachment("document", "text/plain", base64.b64encode(b"\xff\xfe").decode()),
        Attachment("audio", "audio/wav", data),
    )
    info = ModelInfo(images=True, documents=True)
    blocks = body([Message("user", "What is it?", attachments=given)], info=info)["messages"][0]["content"]
    assert blocks[0] == {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}
    assert blocks[2]["source"] == {"type": "base64", "media_type": "application/pdf", "data": data}
    assert blocks[2]["title"] == "a.pdf"
    assert blocks[3]["source"] == {"type": "text", "media_type": "text/plain", "data": "déjà"}
    for index, words in ((1, "scan.tiff"), (4, "file:///a.zip"), (5, "text/plain"), (6, "takes no audio")):
        assert blocks[index]["type"] == "text"
        assert words in blocks[index]["text"]
    assert blocks[7] == {"type": "text", "text": "What is it?", "cache_control": POINT}
    only = body([Message("user", None, attachments=given[:1])], info=UNKNOWN)["messages"][0]["content"]
    assert "takes no images" in only[0]["text"]


# --- cache points --------------------------------------------------------------------------------------------------------


def test_the_last_query_s_end_is_a_cache_point_of_the_next() -> None:
    messages: list[Message] = [Message("system", "Be."), *HELLO]
    before = body(messages)
    for turn in range(30):
        calls = tuple(ToolCall(f"{turn}-{i}", "echo") for i in range(turn % 25 + 1))
        messages += [said(*calls), *(answer(c.id) for c in calls)]
        after = body(messages)
        marked = [i for i, m in enumerate(after["messages"]) if "cache_control" in m["content"][-1]]
        assert marked == [len(before["messages"]) - 1, len(after["messages"]) - 1]
        assert json.dumps(after).count('"cache_control"') == 4
        before = after


def test_cache_points_change_nothing_else() -> None:
    whole = request(
        Query([Message("system", "Be."), *HELLO, said(content="Yes."), *HELLO], (ECHO,)), MODEL, UNKNOWN, {}
    )
    copied = copy.deepcopy(whole)
    with_cache_points(whole)
    assert whole == copied


_names = st.sampled_from(["a", "b", "c", "a.b"])
_texts = st.sampled_from(["", " ", "x", "two\nlines"])


@st.composite
def _messages(draw: st.DrawFn) -> Message:
    role: Role = draw(st.sampled_from(["system", "user", "assistant", "tool"]))
    content = draw(_texts)
    if role == "assistant":
        names = draw(st.lists(_names, max_size=3, unique=True))
        return Message(role, content or None, tuple(ToolCall(n, "echo", draw(_texts)) for n in names))
    if role == "tool":
        return Message(role, content, tool_call_id=draw(_names), name="echo")
    return Message(role, content)


@settings(max_examples=200, deadline=None)
@given(st.lists(_messages(), max_size=12))
def test_any_history_makes_a_valid_request(messages: list[Message]) -> None:
    body([*messages, *HELLO])


@settings(max_examples=200, deadline=None)
@given(st.lists(_messages(), max_size=10), st.lists(_messages(), max_size=4))
def test_what_is_rendered_once_stays(first: list[Message], more: list[Message]) -> None:
    """Where a query may stand, which is behind a user's message, the next one's rendering begins with it."""
    first = [*first, *HELLO]
    one, two = rendered(first, MODEL, UNKNOWN), rendered([*first, *more], MODEL, UNKNOWN)
    assert two.system == one.system
    assert two.messages[: len(one.messages)] == one.messages


# --- thinking and parameters -----------------------------------------------------------------------------------------------

SUMMARIZED = {"type": "adaptive", "display": "summarized"}


@pytest.mark.parametrize(
    ("way", "options", "expected"),
    [
        ("adaptive", {}, (SUMMARIZED, None)),
        ("adaptive", {"effort": "xhigh"}, (SUMMARIZED, "xhigh")),
        ("adaptive", {"effort": "minimal"}, (SUMMARIZED, "low")),
        ("adaptive", {"effort": "none"}, ({"type": "disabled"}, None)),
        ("adaptive", {"thinking_budget": 0}, ({"type": "disabled"}, None)),
        ("adaptive", {"thinking_budget": -1}, (SUMMARIZED, None)),
        ("adaptive", {"thinking_budget": 2048}, (SUMMARIZED, "low")),
        ("adaptive", {"thinking_budget": 30000}, (SUMMARIZED, "high")),
        ("always", {}, (SUMMARIZED, None)),
        ("always", {"effort": "none"}, (SUMMARIZED, "low")),
        ("budget", {}, (None, None)),
        ("budget", {"effort": "none"}, (None, None)),
        ("budget", {"effort": "medium"}, ({"type": "enabled", "budget_tokens": 8192}, None)),
        ("budget", {"thinking_budget": -1}, ({"type": "enabled", "budget_tokens": 8192}, None)),
        ("budget", {"thinking_budget": 5000, "effort": "low"}, ({"type": "enabled", "budget_tokens": 5000}, None)),
        ("", {}, (None, None)),
        ("", {"effort": "high"}, (SUMMARIZED, "high")),
        ("", {"thinking_budget": 5000}, ({"type": "enabled", "budget_tokens": 5000}, None)),
    ],
)
def test_ways_of_thinking(way: Any, options: dict[str, Any], expected: Any) -> None:
    info = ModelInfo(thinking=way, reasoning=bool(way), known=bool(way), max_output=64_000)
    assert thinking(info, options) == expected
    body([*HELLO, said(ToolCall("a", "echo")), answer("a")], info=info, **options)


@pytest.mark.parametrize(
    "wrong", [{"effort": "huge"}, {"thinking_budget": 500}, {"thinking_budget": "much"}, {"thinking_budget": True}]
)
def test_what_there_is_not_is_told_at_once(wrong: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError):
        AnthropicCrystal(Endpoint("anthropic", MODEL, options=wrong))


@pytest.mark.parametrize(
    ("most", "asked", "budget", "expected"),
    [
        (64_000, None, 10_000, (64_000, 10_000)),
        (64_000, 4_000, 10_000, (14_000, 10_000)),
        (8_192, None, 50_000, (8_192, 7_168)),
        (None, 2_000, 2_000, (4_000, 2_000)),
    ],
)
def test_a_budget_leaves_room_for_an_answer(most: Any, asked: Any, budget: int, expected: tuple[int, int]) -> None:
    info = ModelInfo(thinking="budget", reasoning=True, known=True, max_output=most)
    out = request(Query(HELLO, params=Call(max_tokens=asked)), MODEL, info, {"thinking_budget": budget})
    assert (out["max_tokens"], out["thinking"]["budget_tokens"]) == expected


def test_thinking_does_not_begin_amid_calls_of_another_model() -> None:
    history = [*HELLO, said(ToolCall("a", "echo")), answer("a")]
    assert "thinking" not in body(history, info=BUDGET, thinking_budget=2000)
    assert "thinking" in body([*history, said(content="So."), *HELLO], info=BUDGET, thinking_budget=2000)


def test_how_long_a_response_may_be() -> None:
    assert request(Query(HELLO), MODEL, UNKNOWN, {})["max_tokens"] == UNKNOWN_MAX_TOKENS
    assert request(Query(HELLO), MODEL, ADAPTIVE, {})["max_tokens"] == 64_000
    assert request(Query(HELLO), MODEL, ModelInfo(max_output=8192, known=True), {})["max_tokens"] == 8192


@pytest.mark.parametrize(
    ("choice", "info", "expected"),
    [
        ("auto", UNKNOWN, None),
        ("none", UNKNOWN, {"type": "none"}),
        ("required", UNKNOWN, {"type": "any"}),
        # Thinking forbids it; whoever asks insists (`retry.ask`).
        ("required", ADAPTIVE, None),
        ("required", ModelInfo(forced_tools=False), None),
    ],
)
async def test_tool_choice(choice: Any, info: ModelInfo, expected: Any) -> None:
    _, request = await sent(tools=(ECHO,), tool_choice=choice, info=info)
    assert request.json().get("tool_choice") == expected


async def test_parameters_that_a_model_does_not_take_are_left_out() -> None:
    _, request = await sent(info=ADAPTIVE, params=Call(temperature=0.1, top_p=0.5))
    assert not {"temperature", "top_p"} & set(request.json())
    _, request = await sent(params=Call(temperature=1.7, top_p=0.5))
    assert (request.json()["temperature"], "top_p" in request.json()) == (1.0, False)
    _, request = await sent(params=Call(top_p=0.5))
    assert request.json()["top_p"] == 0.5


async def test_a_parameter_that_a_model_turns_out_not_to_take_is_left_out_from_then_on() -> None:
    replies = [refusal(400, "invalid_request_error", "temperature: Extra inputs are not permitted"), says(), says()]
    with Wire(checked(replies)) as wire:
        c = AnthropicCrystal(Endpoint("anthropic", MODEL, wire.url, Secret(KEY)))
        for _ in range(2):
            await c.query(Query(HELLO, params=Call(temperature=0.1)), _deaf)
        await c.aclose()
        assert ["temperature" in r.json() for r in wire.requests] == [True, False, False]
    with Wire([refusal(400, "invalid_request_error", "messages: Extra inputs are not permitted")]) as wire:
        c = AnthropicCrystal(Endpoint("anthropic", MODEL, wire.url, Secret(KEY)))
        with pytest.raises(CrystalError, match="messages"):
            await c.query(Query(HELLO, params=Call(temperature=0.1)), _deaf)
        await c.aclose()
        assert len(wire.requests) == 1


@pytest.mark.parametrize(
    "words",
    [
        "messages.1.content.0: Invalid `signature` in `thinking` block",
        "`thinking` or `redacted_thinking` blocks in the latest assistant message cannot be modified.",
    ],
)
async def test_thinking_that_the_server_did_not_think_stays_behind(words: str) -> None:
    kept = {
        "family": "anthropic",
        "model": MODEL,
        "blocks": [{"type": "thinking", "thinking": "Hm.", "signature": "b3RoZXI="}, {"type": "tool_use"}],
    }
    history = [*HELLO, said(ToolCall("a", "echo"), provider=kept), answer("a")]
    with Wire(checked([refusal(400, "invalid_request_error", words), says(), says()])) as wire:
        c = AnthropicCrystal(Endpoint("anthropic", MODEL, wire.url, Secret(KEY), info=ADAPTIVE))
        for _ in range(2):
            assert (await c.query(Query(history, (ECHO,)), _deaf)).content == "Hello."
        await c.aclose()
        thought = ["thinking" in [b["type"] for b in r.json()["messages"][1]["content"]] for r in wire.requests]
    assert thought == [True, False, False]


async def test_thinking_from_after_an_edit_is_sent_again() -> None:
    """A rejection concerns what stood before the edit. What is thought later goes back, after a second edit too."""

    def turn(number: int) -> list[Message]:
        blocks = [{"type": "thinking", "thinking": "Hm.", "signature": f"c2ln{number}"}, {"type": "tool_use"}]
        kept = {"family": "anthropic", "model": MODEL, "blocks": blocks}
        return [said(ToolCall(f"call{number}", "echo"), provider=kept), answer(f"call{number}")]

    def signatures(request: Request) -> list[str]:
        contents = [m["content"] for m in request.json()["messages"] if m["role"] == "assistant"]
        return [block["signature"] for content in contents for block in content if block["type"] == "thinking"]

    words = "messages.1.content.0: Invalid `signature` in `thinking` block"
    no = refusal(400, "invalid_request_error", words)
    history = [*HELLO, *turn(1), *turn(2)]
    with Wire(checked([no, says(), says(), no, says(), says()])) as wire:
        c = AnthropicCrystal(Endpoint("anthropic", MODEL, wire.url, Secret(KEY), info=ADAPTIVE))
        for number in (3, 4, 5):
            assert (await c.query(Query(history, (ECHO,)), _deaf)).content == "Hello."
            history += turn(number)
        assert (await c.query(Query(history, (ECHO,)), _deaf)).content == "Hello."
        await c.aclose()
        got = [signatures(request) for request in wire.requests]
    assert got == [["c2ln1", "c2ln2"], [], ["c2ln3"], ["c2ln3", "c2ln4"], [], ["c2ln5"]]


@pytest.mark.parametrize("asked", [False, True])
async def test_thinking_that_nobody_asked_for_is_left_out_where_it_is_not_taken(asked: bool) -> None:
    words = "thinking.display: Extra inputs are not permitted"
    options = {"effort": "high"} if asked else {}
    with Wire(checked([refusal(400, "invalid_request_error", words), says(), says()])) as wire:
        c = AnthropicCrystal(Endpoint("anthropic", MODEL, wire.url, Secret(KEY), info=ADAPTIVE, options=options))
        if asked:
            with pytest.raises(CrystalError, match="display"):
                await c.query(Query(HELLO), _deaf)
        else:
            for _ in range(2):
                await c.query(Query(HELLO), _deaf)
        await c.aclose()
        assert ["thinking" in r.json() for r in wire.requests] == ([True] if asked else [True, False, False])
