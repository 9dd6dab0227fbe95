"""Claude: the real SDK against a server that speaks its wire format. What requests look like: `test_anthropic_requests`."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import anyio
import pytest

from cantrip_acp.core.cantrip import Cantrip
from cantrip_acp.core.definition.circle import Circle
from cantrip_acp.crystals.catalog.types import ModelInfo, Price
from cantrip_acp.crystals.contract import Delta, Query
from cantrip_acp.crystals.retry import RetryPolicy
from cantrip_acp.types.call import Call
from tests.support.anthropic_replies import (
    HELLO,
    KEY,
    MODEL,
    PING,
    answered,
    ask,
    block,
    calls,
    checked,
    crystal,
    event,
    redacted,
    refusal,
    says,
    start,
    stop,
    stream,
    text,
    thought,
    use,
)
from tests.support.provider_server import Hold, Pause, Raw, Reply, Until, Wire, sse

# --- what comes ------------------------------------------------------------------------------------------------------


async def test_text_comes_in_pieces_and_whole() -> None:
    reply = stream(start("claude-sonnet-5-20260601"), PING, text(0, "Hel", "lo\u2028 ∀"), PING, stop())
    with Wire(checked([reply])) as wire:
        response, pieces = await ask(crystal(wire.url), request_id="req-9")
        request = wire.requests[0]
    assert response.content == "Hello\u2028 ∀"
    assert pieces == [Delta("text", "Hel"), Delta("text", "lo\u2028 ∀")]
    assert (response.stop_reason, response.tool_calls, response.provider) == ("stop", (), None)
    assert (response.model, response.id) == ("claude-sonnet-5-20260601", "msg_1")
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert request.headers["x-api-key"] == KEY
    assert request.headers["x-acp-model-request-id"] == "req-9"
    assert request.json()["stream"] is True


async def test_thinking_is_apart_and_its_signature_is_kept() -> None:
    reply = stream(
        start(),
        thought(0, "I weigh ", "it.", sign="c2ln"),
        redacted(1, "c2VjcmV0"),
        text(2, "\n\n"),
        thought(3, "Again.", sign="bmV4dA=="),
        text(4, "Yes."),
        use(5, "echo", '{"text":', '"a"}'),
        stop("tool_use", 30, output_tokens_details={"thinking_tokens": 21}),
    )
    response, pieces = await answered(reply)
    assert response.thinking == "I weigh it.\n\nAgain."
    assert "".join(p.text for p in pieces if p.kind == "thought") == response.thinking
    assert response.content == "Yes."
    assert (response.usage.completion_tokens, response.usage.reasoning_tokens) == (30, 21)
    assert response.provider == {
        "family": "anthropic",
        "model": MODEL,
        "blocks": [
            {"type": "thinking", "thinking": "I weigh it.", "signature": "c2ln"},
            {"type": "redacted_thinking", "data": "c2VjcmV0"},
            {"type": "thinking", "thinking": "Again.", "signature": "bmV4dA=="},
            {"type": "text", "text": "Yes."},
            {"type": "tool_use"},
        ],
    }


async def test_thinking_that_is_not_shown_still_goes_back() -> None:
    response, pieces = await answered(stream(start(), thought(0, sign="b3BhcXVl"), text(1, "Yes."), stop()))
    assert (response.thinking, [p.kind for p in pieces]) == (None, ["text"])
    assert response.provider["blocks"][0] == {"type": "thinking", "thinking": "", "signature": "b3BhcXVl"}


@pytest.mark.parametrize(
    ("pieces", "args"),
    [
        (('{"te', 'xt": "a\\u00e9"', ', "n": 1.0}'), '{"text": "a\\u00e9", "n": 1.0}'),
        ((), "{}"),
        (("{}",), "{}"),
        (('{"text": "cut of',), '{"text": "cut of'),
        (("[1]",), "[1]"),
    ],
)
async def test_arguments_are_what_the_model_gave(pieces: tuple[str, ...], args: str) -> None:
    response, _ = await answered(stream(start(), use(0, "echo", *pieces, id="toolu_9"), stop("tool_use")))
    call = response.tool_calls[0]
    assert (call.id, call.gate, call.args, response.stop_reason) == ("toolu_9", "echo", args, "tool_calls")


async def test_calls_have_ids_that_are_unique_whatever_comes() -> None:
    ids = ("a", "a", "", "b")
    reply = stream(start(), *(use(i, "echo", id=each) for i, each in enumerate(ids)), stop("tool_use"))
    response, _ = await answered(reply)
    found = [c.id for c in response.tool_calls]
    assert len(set(found)) == 4
    assert all(found)
    assert (found[0], found[3]) == ("a", "b")


async def test_other_servers_give_a_whole_input_at_once() -> None:
    whole = {"type": "tool_use", "id": "t", "name": "echo", "input": {"text": "é"}}
    response, _ = await answered(stream(start(), block(0, whole), stop("tool_use")))
    assert json.loads(response.tool_calls[0].args) == {"text": "é"}


async def test_usage_and_cost() -> None:
    info = ModelInfo(price=Price(input=2, output=10, cached=0.2, cache_write=2.5), known=True)
    read = {"input_tokens": 100, "cache_read_input_tokens": 800, "cache_creation_input_tokens": 50}
    response, _ = await answered(stream(start(**read), text(0, "x"), stop(output=20)), info=info)
    used = response.usage
    assert (used.prompt_tokens, used.cached_tokens, used.cache_write_tokens) == (950, 800, 50)
    assert (used.completion_tokens, used.total_tokens) == (20, 970)
    assert used.cost == pytest.approx((100 * 2 + 800 * 0.2 + 50 * 2.5 + 20 * 10) / 1e6)
    # What the end says stands over what the beginning said: counts are cumulative.
    response, _ = await answered(stream(start(**read), text(0, "x"), stop(output=3, input_tokens=120)), info=info)
    assert response.usage.prompt_tokens == 970


@pytest.mark.parametrize(
    ("word", "ours"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
    ],
)
async def test_why_it_stopped(word: str, ours: str) -> None:
    response, _ = await answered(stream(start(), text(0, "half"), stop(word)))
    assert (response.content, response.stop_reason) == ("half", ours)


async def test_a_word_for_an_end_that_nobody_knows_yet() -> None:
    last = sse(
        {"type": "message_delta", "delta": {"stop_reason": "bored"}, "usage": {"output_tokens": 1}}, "message_delta"
    )
    response, _ = await answered(stream(start(), text(0, "well"), last, event("message_stop")))
    assert response.stop_reason == "bored"


@pytest.mark.parametrize("begun", [True, False])
async def test_a_refusal_says_why_and_calls_nothing(begun: bool) -> None:
    details = {"type": "refusal", "category": "cyber", "explanation": "Not that."}
    parts = [*text(0, "I was"), *use(1, "echo")] if begun else []
    response, _ = await answered(stream(start(), parts, stop("refusal", details=details)))
    assert response.refused
    assert response.stop_reason == "refusal"
    assert response.tool_calls == ()
    assert response.content == ("I was Not that." if begun else "Not that.")
    assert response.provider is None


async def test_a_pause_goes_on_from_its_own_words() -> None:
    search = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
    asked = block(1, search, [{"type": "input_json_delta", "partial_json": '{"query": "x"}'}])
    found = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
    first = stream(start(), text(0, "Looking. "), asked, block(2, found), stop("pause_turn", 7))
    second = stream(start(), text(0, "Found."), stop(output=2))
    bodies = []

    def answer(request: Any) -> Reply:
        bodies.append(request.json())
        return second if len(bodies) > 1 else first

    with Wire(answer) as wire:
        response, pieces = await ask(crystal(wire.url))
    assert response.content == "Looking. Found."
    assert "".join(p.text for p in pieces) == response.content
    assert (response.usage.prompt_tokens, response.usage.completion_tokens) == (24, 9)
    said = bodies[1]["messages"][-1]
    assert said["role"] == "assistant"
    assert [b["type"] for b in said["content"]] == ["text", "server_tool_use", "web_search_tool_result"]
    assert said["content"][1]["input"] == {"query": "x"}
    assert [b["type"] for b in response.provider["blocks"]] == [
        "text",
        "server_tool_use",
        "web_search_tool_result",
        "text",
    ]


async def test_what_is_not_known_is_passed_over() -> None:
    strange = sse({"type": "content_block_annotated", "index": 7, "note": {"a": 1}}, "content_block_annotated")
    odd = sse(
        {"type": "content_block_delta", "index": 0, "delta": {"type": "hum_delta", "hum": "mm"}}, "content_block_delta"
    )
    opening, piece, closing = text(0, "ok")
    comment = Raw(b"3\r\n:\n\n\r\n")
    response, _ = await answered(stream(start(), strange, opening, odd, comment, PING, piece, closing, stop()))
    assert response.content == "ok"


# --- cancelling, streaming, loops --------------------------------------------------------------------------------------


@pytest.mark.parametrize("begun", [False, True])
async def test_cancel_closes_the_connection(begun: bool) -> None:
    first = [start(), *text(0, "a")] if begun else []
    seen = anyio.Event()

    async def emit(delta: Delta) -> None:
        seen.set()

    with Wire(checked([stream(first, Hold())])) as wire:
        c = crystal(wire.url)
        async with anyio.create_task_group() as group:
            group.start_soon(c.query, Query(HELLO), emit)
            with anyio.fail_after(60):
                await (seen.wait() if begun else anyio.to_thread.run_sync(wire.wait_requests))
            started = time.monotonic()
            group.cancel_scope.cancel()
        assert await anyio.to_thread.run_sync(wire.wait_gone)
        assert time.monotonic() - started < 30
        await c.aclose()


async def test_cancel_while_the_reader_is_slow() -> None:
    held = anyio.Event()

    async def emit(delta: Delta) -> None:
        held.set()
        await anyio.sleep_forever()

    with Wire(checked([stream(start(), text(0, "a"), Hold())])) as wire:
        c = crystal(wire.url)
        async with anyio.create_task_group() as group:
            group.start_soon(c.query, Query(HELLO), emit)
            with anyio.fail_after(60):
                await held.wait()
            group.cancel_scope.cancel()
        assert await anyio.to_thread.run_sync(wire.wait_gone)
        await c.aclose()


async def test_the_first_piece_arrives_before_the_last_is_sent() -> None:
    go = threading.Event()
    opening, one, two, closing = text(0, "a", "b")

    async def emit(delta: Delta) -> None:
        go.set()

    with Wire(checked([stream(start(), opening, one, Until(go), two, closing, stop())])) as wire:
        c = crystal(wire.url)
        with anyio.fail_after(60):
            assert (await c.query(Query(HELLO), emit)).content == "ab"
        await c.aclose()


async def test_an_end_without_the_body_s_end_is_an_end() -> None:
    with Wire(checked([stream(start(), text(0, "a"), stop(), Hold())])) as wire:
        with anyio.fail_after(60):
            response, _ = await ask(crystal(wire.url))
        assert await anyio.to_thread.run_sync(wire.wait_gone)
    assert response.content == "a"


async def test_one_connection_serves_query_after_query() -> None:
    with Wire(checked([says()] * 3)) as wire:
        c = crystal(wire.url)
        c.prepare()
        for _ in range(3):
            await c.query(Query(HELLO), _deaf)
        assert wire.connections == 1
        await c.aclose()
        await c.aclose()


async def test_a_server_of_this_machine_is_asked_past_any_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    response, _ = await answered(says("Hi"))
    assert response.content == "Hi"


async def test_two_at_once() -> None:
    replies = [stream(start(), text(0, "a"), Pause(0.05), text(1, "b"), stop())] * 4
    with Wire(checked(replies)) as wire:
        c = crystal(wire.url)
        found: list[str | None] = []

        async def one() -> None:
            found.append((await c.query(Query(HELLO), _deaf)).content)

        async with anyio.create_task_group() as group:
            for _ in range(4):
                group.start_soon(one)
        await c.aclose()
    assert found == ["ab"] * 4


def test_one_loop_after_another() -> None:
    with Wire(checked([says("one"), says("two"), says("three")])) as wire:
        c = crystal(wire.url)
        c.prepare()
        cantrip = Cantrip(c, Call(), Circle(wards={"max_turns": 2}))
        assert [cantrip.cast_sync("Go").result for _ in range(3)] == ["one", "two", "three"]


async def _deaf(delta: Delta) -> None: ...


# --- casts -------------------------------------------------------------------------------------------------------------


def test_a_cast_with_gates_thinking_and_a_bad_moment() -> None:
    replies = [
        stream(
            start(),
            thought(0, "First the gate.", sign="b25l"),
            use(1, "echo", '{"text": "hi"}', id="toolu_1"),
            stop("tool_use"),
        ),
        refusal(529, "overloaded_error", "Overloaded"),
        stream(start(), text(0, "half a")),
        stream(
            start(), thought(0, "Bad JSON.", sign="dHdv"), use(1, "echo", '{"text": ', id="toolu_2"), stop("tool_use")
        ),
        stream(start(), use(0, "done", '{"answer": "hi"}', id="toolu_3"), stop("tool_use")),
    ]
    info = ModelInfo(thinking="adaptive", reasoning=True, known=True, price=Price(input=1, output=1))
    with Wire(checked(replies)) as wire:
        cantrip = Cantrip(
            crystal(wire.url, info=info),
            Call("You echo."),
            Circle(gates=["echo", "done"], wards={"max_turns": 5}),
            retry=RetryPolicy(base_s=0.01),
        )
        result = cantrip.cast_sync("Say hi")
        bodies = [request.json() for request in wire.requests]
    assert result.result == "hi", result
    assert len(bodies) == 5
    last = bodies[-1]["messages"]
    assert [b["type"] for b in last[1]["content"]] == ["thinking", "tool_use"]
    assert last[1]["content"][0]["signature"] == "b25l"
    assert last[2]["content"][0]["content"][0]["text"] == "hi"
    assert last[4]["content"][0]["is_error"] is True
    # The stream that broke after its message_start is billed for what it had reported: 12 tokens in, 1 out.
    assert result.usage.cost == pytest.approx(((12 + 5) * 3 + 12 + 1) / 1e6)
    assert (result.usage.queries_without_usage, result.usage.queries_without_cost) == (1, 1)


async def test_a_tool_that_must_be_called_is_insisted_on_where_it_cannot_be_forced() -> None:
    info = ModelInfo(thinking="always", reasoning=True, forced_tools=False, known=True)
    replies = [says("I would rather talk."), calls("done", {"answer": "fine"})]
    with Wire(checked(replies)) as wire:
        cantrip = Cantrip(
            crystal(wire.url, info=info), Call(tool_choice="required"), Circle(gates=["done"], wards={"max_turns": 2})
        )
        result = await cantrip.cast("Go")
        bodies = [request.json() for request in wire.requests]
    assert result.result == "fine"
    assert "tool_choice" not in bodies[0]
    assert bodies[1]["messages"][-2]["content"][0]["text"] == "I would rather talk."
