"""Claude: what is no response, and every error, from the real SDK against a server that speaks its wire format."""

from __future__ import annotations

import anyio
import pytest

from cantrip_acp.crystals import http_clients
from cantrip_acp.crystals.anthropic import response
from cantrip_acp.crystals.catalog.types import ModelInfo
from cantrip_acp.crystals.contract import Delta, Query
from cantrip_acp.crystals.keys import Secret
from cantrip_acp.types.errors import ContextLimitError, CrystalError, MalformedResponse
from cantrip_acp.types.messages import Message
from tests.support.anthropic_replies import (
    HELLO,
    KEY,
    ask,
    broken_off,
    checked,
    crystal,
    failed,
    refusal,
    start,
    stop,
    stream,
    text,
    thought,
    use,
)
from tests.support.provider_server import Cut, Drop, Hold, Raw, Reply, Wire, json_reply, sse


@pytest.mark.parametrize(
    ("reply", "words", "again"),
    [
        (stream(start(), text(0, "half")), "cut before", True),
        (stream(start(), text(0, "half"), Cut()), "cut before", True),
        (stream(start(), text(0, "half"), stop()[0], Drop()), "cut before", True),
        (stream(start(), broken_off("overloaded_error", "Overloaded")), "Overloaded", True),
        (stream(start(), text(0, "a"), broken_off("api_error", "sorry")), "sorry", True),
        (stream(start(), broken_off("invalid_request_error", "no such thing")), "no such thing", False),
        (stream(start(), sse("not even JSON", "error")), "not even JSON", True),
        (stream(start(), stop()), "is empty", True),
        (stream(start(), thought(0, "hm"), stop("max_tokens")), "raise max_tokens", False),
        (stream(Cut()), "cut before", True),
        (stream(), "no event", True),
        (stream(start(), sse("{nonsense", "content_block_delta")), "cannot be read", True),
        (stream(start(), sse('"text"', "content_block_delta")), "without a type", True),
        (stream(start(), sse([], "content_block_delta")), "without a type", True),
        (stream(start(), sse({"type": "content_block_start"}, "content_block_start")), "cannot be read", True),
        (stream(start(), text(0, "a")[1]), "not started", True),
        (stream(start(), b"event: message_delta\ndata: \xff\xfe\n\n"), "cannot be read", True),
        (Reply(200, {"content-type": "text/html"}, b"<html>hello</html>"), "text/html", True),
        (json_reply({"type": "message", "content": []}), "application/json", True),
        (Reply(200, {"content-type": "text/event-stream", "content-encoding": "gzip"}, b"no gzip"), "", True),
        (Reply(raw=[Raw(b"\x00\x01 this is no HTTP\r\n\r\n")]), "no connection", True),
        (Reply(raw=[Raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nnot a size\r\n")]), "cut before", True),
    ],
)
async def test_what_is_no_response_is_an_error(reply: Reply, words: str, again: bool) -> None:
    error = await failed(reply)
    assert words in str(error), str(error)
    assert error.may_retry() is again, str(error)


async def test_a_window_that_was_full_before_an_answer() -> None:
    assert isinstance(await failed(stream(start(), stop("model_context_window_exceeded"))), ContextLimitError)


async def test_arguments_without_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response, "MAX_RESPONSE_CHARS", 1000)
    error = await failed(stream(start(), use(0, "echo", *(["x" * 100] * 20))[:-1], Hold()))
    assert isinstance(error, MalformedResponse)


@pytest.mark.parametrize("piece", [b"data: " + b"x" * 100_000, b"data: x\n" * 20_000])
async def test_an_event_without_an_end(piece: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_clients, "LONGEST_EVENT", 1_000_000)
    error = await failed(stream(*[piece] * 50, Hold()))
    assert isinstance(error, MalformedResponse)


# --- errors ----------------------------------------------------------------------------------------------------------


async def test_waiting_as_told() -> None:
    assert (await failed(refusal(529, "overloaded_error", "busy", **{"retry-after-ms": "250"}))).retry_after == 0.25


async def test_a_limit_that_waiting_does_not_lift() -> None:
    details = {"error_code": "contract_spend_limit_reached"}
    body = {"type": "error", "error": {"type": "rate_limit_error", "message": "no more", "details": details}}
    assert not (await failed(json_reply(body, 429))).may_retry()


@pytest.mark.parametrize(
    "message",
    ["prompt is too long: 1048577 tokens > 1000000 maximum", "input length and `max_tokens` exceed context limit"],
)
async def test_too_long_for_the_window(message: str) -> None:
    error = await failed(refusal(400, "invalid_request_error", message))
    assert isinstance(error, ContextLimitError)


async def test_far_too_long_is_told_before_it_is_sent() -> None:
    with Wire([]) as wire:
        with pytest.raises(ContextLimitError, match="nothing was sent"):
            await ask(crystal(wire.url, info=ModelInfo(context_window=10)), (Message("user", "all of it " * 100),))
        assert not wire.requests


async def test_the_key_is_not_repeated_by_an_error() -> None:
    error = await failed(refusal(401, "authentication_error", f"invalid key {KEY}"))
    assert "[redacted]" in str(error)


async def test_nobody_there() -> None:
    with Wire([]) as wire:
        pass
    with pytest.raises(CrystalError, match="no server answers at") as caught:
        await ask(crystal(wire.url))
    assert not caught.value.may_retry(), "waiting starts no server on this machine"


@pytest.mark.parametrize("begun", [True, False])
async def test_silence(begun: bool) -> None:
    error = await failed(stream(start(), Hold()) if begun else Reply(raw=[Hold()]), silence_s=0.3)
    assert "no answer for 0.3 seconds" in str(error)
    assert error.may_retry()


async def test_a_reader_that_has_enough_ends_the_stream() -> None:
    async def emit(delta: Delta) -> None:
        raise MalformedResponse("enough")

    with Wire(checked([stream(start(), text(0, "a"), Hold())])) as wire:
        c = crystal(wire.url)
        with pytest.raises(MalformedResponse, match="enough"):
            await c.query(Query(HELLO), emit)
        assert await anyio.to_thread.run_sync(wire.wait_gone)
        await c.aclose()


@pytest.mark.parametrize("url", ["http://127.0.0.1:99999", "ftp://127.0.0.1", "http://"])
async def test_an_address_that_is_none(url: str) -> None:
    with pytest.raises(CrystalError):
        await ask(crystal(url))


def test_the_key_is_in_no_repr() -> None:
    c = crystal("http://127.0.0.1:9", headers={"x-gate": Secret("planted-header-secret")})
    assert KEY not in repr(c) + repr(vars(c)) + repr(c.endpoint)
    assert "planted-header" not in repr(vars(c))
