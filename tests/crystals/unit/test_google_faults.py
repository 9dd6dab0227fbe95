"""Gemini when it fails: every class of error, silence, cancels, and several queries at once."""

from __future__ import annotations

import threading
import time
import warnings

import anyio
import pytest

from cantrip_acp.core.cantrip import Cantrip
from cantrip_acp.core.definition.circle import Circle
from cantrip_acp.crystals import http_clients
from cantrip_acp.crystals.contract import Delta, Query
from cantrip_acp.crystals.keys import Secret
from cantrip_acp.types.call import Call
from cantrip_acp.types.errors import ContextLimitError, CrystalError, MalformedResponse
from tests.support.google_replies import (
    HELLO,
    KEY,
    ask,
    asked,
    call,
    checked,
    chunk,
    crystal,
    failed,
    refusal,
    says,
    stream,
)
from tests.support.provider_server import Cut, Drop, Hold, Pause, Raw, Reply, Until, Wire, sse, sse_reply


async def test_a_word_for_an_end_that_nobody_knows_yet() -> None:
    event = {"candidates": [{"content": {"parts": [{"text": "well"}]}, "finishReason": "BORED", "brandNew": {"a": 1}}]}
    with warnings.catch_warnings(record=True) as warned:
        response, _ = await asked([sse_reply([sse(event)])])
    assert not warned
    assert (response.content, response.stop_reason) == ("well", "BORED")


@pytest.mark.parametrize(
    ("reply", "words", "again"),
    [
        (stream(chunk(finish="RECITATION")), "RECITATION", True),
        (stream(chunk(finish="MALFORMED_FUNCTION_CALL", finishMessage="print(x")), "print(x", True),
        (stream(chunk(finish="UNEXPECTED_TOOL_CALL")), "not offered", True),
        (stream(chunk(finish="OTHER")), "without a reason", True),
        (stream(chunk({"text": ""}, finish="STOP")), "is empty", True),
        (stream(chunk({"text": "hm", "thought": True}, finish="MAX_TOKENS")), "raise max_tokens", False),
        (stream(chunk(finish="TOO_MANY_TOOL_CALLS")), "TOO_MANY_TOOL_CALLS", False),
        (stream(chunk(finish="MISSING_THOUGHT_SIGNATURE")), "MISSING_THOUGHT_SIGNATURE", False),
        (stream(chunk({"text": "half"})), "cut before", True),
        (stream(chunk({"text": "half"}), Cut()), "cut before", True),
        (stream(chunk({"text": "half"}, finish="STOP"), Drop()), "cut before", True),
        (stream(Cut()), "no connection", True),
        (sse_reply([]), "cut before", True),
        (sse_reply([b"data: {nonsense\n\n"]), "cannot be read", True),
        (sse_reply([sse(["a", "list"])]), "cut before", True),
        (sse_reply([sse({"candidates": "text"})]), "cut before", True),
        (sse_reply([sse({"candidates": [{"content": {"parts": [call("echo", [1])]}}]})]), "cannot be read", True),  # type: ignore[arg-type]
        (Reply(200, {"content-type": "text/html"}, b"<html>\n<p>hello</p>\n</html>\n"), "cannot be read", True),
        (Reply(raw=[Raw(b"\x00\x01 this is no HTTP\r\n\r\n")]), "lost", True),
        (
            sse_reply(
                [chunk({"text": "a"}), sse({"error": {"code": 503, "message": "busy", "status": "UNAVAILABLE"}})]
            ),
            "busy",
            True,
        ),
        (sse_reply([sse({"error": {"message": "no code"}})]), "no", True),
    ],
)
async def test_what_is_no_response_is_an_error(reply: Reply, words: str, again: bool) -> None:
    error = await failed(reply)
    assert words in str(error), str(error)
    assert error.may_retry() is again


async def test_waiting_as_told() -> None:
    info = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "17.5s"}
    assert (await failed(refusal(429, "slow", "RESOURCE_EXHAUSTED", [info]))).retry_after == 17.5
    quota = {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [{"quotaId": "RequestsPerDay"}]}
    assert not (await failed(refusal(429, "spent", "RESOURCE_EXHAUSTED", [info, quota]))).may_retry()


async def test_too_long_for_the_window() -> None:
    message = "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576)."
    assert isinstance(await failed(refusal(400, message)), ContextLimitError)


async def test_nobody_there() -> None:
    with Wire([]) as wire:
        pass
    with pytest.raises(CrystalError, match="no server answers at") as caught:
        await ask(crystal(wire.url))
    assert not caught.value.may_retry(), "waiting starts no server on this machine"


async def test_silence() -> None:
    error = await failed(stream(chunk({"text": "a"}), Hold()), silence_s=0.3)
    assert "time-out" in str(error)
    assert error.may_retry()


async def test_a_line_without_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_clients, "LONGEST_EVENT", 1_000_000)
    piece = b"data: " + b"x" * 100_000
    error = await failed(sse_reply([piece] * 50))
    assert isinstance(error, MalformedResponse)


async def test_a_reader_that_has_enough_ends_the_stream() -> None:
    async def emit(delta: Delta) -> None:
        raise MalformedResponse("enough")

    with Wire(checked([stream(chunk({"text": "a"}), Hold())])) as wire:
        c = crystal(wire.url)
        with pytest.raises(MalformedResponse, match="enough"):
            await c.query(Query(HELLO), emit)
        assert await anyio.to_thread.run_sync(wire.wait_gone)
        await c.aclose()


@pytest.mark.parametrize("model", ["../other", "a?key=1", "a&b"])
async def test_a_name_that_no_model_has(model: str) -> None:
    with Wire([]) as wire:
        with pytest.raises(CrystalError) as caught:
            await ask(crystal(wire.url, model))
        assert not wire.requests
        assert not caught.value.may_retry()


def test_the_key_is_in_no_repr() -> None:
    c = crystal("http://127.0.0.1:9", headers={"x-gate": Secret("planted-header-secret")})
    assert KEY not in repr(c) + repr(vars(c)) + repr(c.endpoint)
    assert "planted-header" not in repr(vars(c))


# --- cancelling, streaming, loops


@pytest.mark.parametrize("begun", [False, True])
async def test_cancel_closes_the_connection(begun: bool) -> None:
    first = [chunk({"text": "a"})] if begun else []
    seen = anyio.Event()

    async def emit(delta: Delta) -> None:
        seen.set()

    with Wire(checked([stream(*first, Hold())])) as wire:
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

    with Wire(checked([stream(chunk({"text": "a"}), Hold())])) as wire:
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

    async def emit(delta: Delta) -> None:
        go.set()

    with Wire(checked([stream(chunk({"text": "a"}), Until(go), chunk({"text": "b"}, finish="STOP"))])) as wire:
        c = crystal(wire.url)
        with anyio.fail_after(60):
            assert (await c.query(Query(HELLO), emit)).content == "ab"
        await c.aclose()


async def test_two_at_once() -> None:
    replies = [stream(chunk({"text": "a"}), Pause(0.05), chunk({"text": "b"}, finish="STOP"))] * 4
    with Wire(checked(replies)) as wire:
        c = crystal(wire.url)
        found: list[str | None] = []

        async def one() -> None:
            async def emit(delta: Delta) -> None: ...

            found.append((await c.query(Query(HELLO), emit)).content)

        async with anyio.create_task_group() as group:
            for _ in range(4):
                group.start_soon(one)
        await c.aclose()
    assert found == ["ab"] * 4


def test_one_loop_after_another() -> None:
    with Wire(checked([says("one"), says("two")])) as wire:
        cantrip = Cantrip(crystal(wire.url), Call(), Circle(wards={"max_turns": 2}))
        assert [cantrip.cast_sync("Go").result for _ in range(2)] == ["one", "two"]
