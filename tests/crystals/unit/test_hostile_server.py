"""A provider that means harm, or that is broken in ways of its own: the same for each wire format.

Every failure is a `CrystalError` that says what is wrong, soon enough, and no key is in it or goes anywhere else.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import anyio
import pytest

from cantrip_acp.crystals import http_clients, retry
from cantrip_acp.crystals.contract import Delta, Query
from cantrip_acp.types.errors import CrystalError
from cantrip_acp.types.messages import Message
from tests.support import anthropic_replies as anthropic
from tests.support import google_replies as google
from tests.support import openai_replies as openai
from tests.support.provider_faults import KEY, WIRES, asks, crystal, fails
from tests.support.provider_server import Cut, Pause, Piece, Reply, Wire, json_reply, sse, sse_reply


@pytest.fixture(params=WIRES)
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def calls(kind: str, args: str = "{}", ids: tuple[str, ...] = ("call_1",)) -> list[bytes]:
    """The events of an answer that calls ``echo``, once for each id; an empty id is one that the server left out."""
    if kind == "anthropic":
        blocks = [event for n, each in enumerate(ids) for event in anthropic.use(n, "echo", args, id=each)]
        return [anthropic.start(), *blocks, *anthropic.stop("tool_use")]
    if kind == "responses":
        items = [openai.call_item(each, "echo", args, item_id=f"fc_{n}") for n, each in enumerate(ids)]
        return openai.events(items)
    if kind == "chat":
        deltas = [openai.chunk(openai.call_delta(n, each, "echo", args)) for n, each in enumerate(ids)]
        return [*deltas, openai.chunk({}, "tool_calls"), openai.DONE]
    parts = [google.call("echo", json.loads(args), id=each or None, sign=google.SIGN) for each in ids]
    return [google.chunk(*parts, finish="STOP")]


def says(kind: str, text: str) -> list[bytes]:
    if kind == "anthropic":
        return [anthropic.start(), *anthropic.text(0, text), *anthropic.stop()]
    if kind == "responses":
        return openai.events([openai.message_item(text)])
    if kind == "chat":
        return [openai.chunk({"content": text}), openai.chunk({}, "stop"), openai.DONE]
    return [google.chunk({"text": text}, finish="STOP")]


# --- bytes


@pytest.mark.parametrize("size", [1, 2, 3, 7])
async def test_pieces_end_in_the_middle_of_a_character(kind: str, size: int) -> None:
    """Escaped by the server or not; a piece of the transport ends where it likes."""
    words = "größe 日本語 🦊 \u2028 end"
    raw = b"".join(calls(kind, json.dumps({"text": words}, ensure_ascii=False)))
    for whole in (raw, raw.decode().encode()):
        pieces = [whole[at : at + size] for at in range(0, len(whole), size)]
        with Wire([sse_reply(pieces)]) as wire:
            [call] = (await asks(crystal(kind, wire.url))).tool_calls
        assert json.loads(call.args) == {"text": words}


async def test_a_compressed_stream(kind: str) -> None:
    body = gzip.compress(b"".join(says(kind, "Hello there.")))
    reply = Reply(200, {"content-type": "text/event-stream", "content-encoding": "gzip"}, body)
    with Wire([reply]) as wire:
        assert (await asks(crystal(kind, wire.url))).content == "Hello there."


async def test_a_bomb_of_compressed_bytes_is_stopped(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    small_limits(monkeypatch)
    body = gzip.compress(b"data: " + b"x" * 60_000_000)
    reply = Reply(200, {"content-type": "text/event-stream", "content-encoding": "gzip"}, body)
    with Wire([reply]) as wire:
        assert "was stopped" in str(await fails(crystal(kind, wire.url)))


def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_clients, "LONGEST_EVENT", 1_000_000)


async def test_one_event_without_an_end_is_stopped(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    small_limits(monkeypatch)

    def endless() -> Iterator[Piece]:
        yield b"data: "
        while True:
            yield b"x" * 50_000

    with Wire([sse_reply(endless())]) as wire:
        assert "was stopped" in str(await fails(crystal(kind, wire.url)))
        assert await anyio.to_thread.run_sync(wire.wait_gone)


async def test_an_error_without_an_end_is_stopped(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    small_limits(monkeypatch)

    def endless() -> Iterator[Piece]:
        while True:
            yield b"x" * 50_000

    with Wire([sse_reply(endless(), status=500)]) as wire:
        await fails(crystal(kind, wire.url))
        assert await anyio.to_thread.run_sync(wire.wait_gone)


async def test_one_large_event_is_read(kind: str) -> None:
    text = "word " * 800_000
    shown: list[Delta] = []
    with Wire([sse_reply(says(kind, text))]) as wire:
        response = await asks(crystal(kind, wire.url), shown)
    assert response.content == text


@pytest.mark.parametrize("piece", [b": keep-alive\n\n", b"\n", b"data: "])
async def test_bytes_without_a_word_do_not_hold_it_for_ever(
    kind: str, piece: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection is never silent, so that no time-out of a read helps. Google's SDK reads no comments: an error too."""
    monkeypatch.setattr(retry, "LONGEST_WAIT_S", 1)

    def drip() -> Iterator[Piece]:
        while True:
            yield piece
            yield Pause(0.05)

    async def nothing(*_: object) -> None: ...

    with Wire([sse_reply(drip())]) as wire:
        made = crystal(kind, wire.url)
        query = Query([Message("user", "Hello")])
        await anyio.to_thread.run_sync(made.prepare)
        with (
            anyio.fail_after(60),
            pytest.raises(CrystalError, match=r"no answer .* connection is open|: keep-alive"),
        ):
            await retry.query_with_retries(made, query, nothing, retry.RetryPolicy(max_retries=0), nothing)
        await made.aclose()
        assert await anyio.to_thread.run_sync(wire.wait_gone)


async def test_a_slow_answer_that_goes_on_is_waited_for(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "LONGEST_WAIT_S", 2.5)
    if kind == "google":
        pieces = [google.chunk({"text": "a"}) for _ in range(6)] + [google.chunk({"text": "a"}, finish="STOP")]
    elif kind == "chat":
        pieces = [openai.chunk({"content": "a"}) for _ in range(7)] + [openai.chunk({}, "stop")]
    elif kind == "anthropic":
        pieces = [anthropic.start(), *anthropic.text(0, *"aaaaaaa"), *anthropic.stop()]
    else:
        whole = openai.events([openai.message_item("aa")])
        pieces = [*whole[:3], whole[3], whole[4], *whole[5:]]
    slow = [each for piece in pieces for each in (piece, Pause(0.4))]

    async def nothing(*_: object) -> None: ...

    with Wire([sse_reply(slow)]) as wire:
        made = crystal(kind, wire.url)
        await anyio.to_thread.run_sync(made.prepare)
        query = Query([Message("user", "Hello")])
        response = await retry.query_with_retries(made, query, nothing, retry.RetryPolicy(max_retries=0), nothing)
        await made.aclose()
    assert set(response.content or "") == {"a"}


async def test_the_time_of_a_slow_reader_does_not_count(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "LONGEST_WAIT_S", 1)
    shown: list[str] = []

    async def show(delta: Delta) -> None:
        await anyio.sleep(2.5)
        shown.append(delta.text)

    async def nothing(*_: object) -> None: ...

    with Wire([sse_reply(says(kind, "Slowly."))]) as wire:
        made = crystal(kind, wire.url)
        await anyio.to_thread.run_sync(made.prepare)
        query = Query([Message("user", "Hello")])
        response = await retry.query_with_retries(made, query, show, retry.RetryPolicy(max_retries=0), nothing)
        await made.aclose()
    assert response.content == "".join(shown) == "Slowly."


# --- calls


async def test_ids_that_come_twice_or_not_at_all(kind: str) -> None:
    for ids in (("call_1", "call_1"), ("", "")):
        with Wire([sse_reply(calls(kind, ids=ids))]) as wire:
            found = (await asks(crystal(kind, wire.url))).tool_calls
        assert [call.gate for call in found] == ["echo", "echo"]
        assert len({call.id for call in found}) == 2
        assert all(call.id for call in found)


async def test_a_connection_that_is_reset_after_a_call_has_no_call(kind: str) -> None:
    """What was called is known, but not whether that was all: nothing of it is run."""
    whole = calls(kind, json.dumps({"text": "x" * 50}))
    if kind == "google":
        whole = [google.chunk(google.call("echo", {"text": "x"}, sign=google.SIGN))]
    else:
        whole = whole[: -1 if kind == "responses" else -2]
    with Wire([sse_reply([*whole, Cut()])]) as wire:
        error = await fails(crystal(kind, wire.url))
    assert error.may_retry()
    assert "cut before the response's end" in str(error)


EMPTY: dict[str, list[list[bytes]]] = {
    "anthropic": [[anthropic.start(), *anthropic.stop()]],
    "responses": [openai.events([]), openai.events([openai.message_item("")])],
    "chat": [
        [openai.chunk(None), openai.DONE],
        [openai.chunk({"content": None}), openai.chunk({}, "stop"), openai.DONE],
        [sse({"choices": None}), sse({"choices": []}), openai.DONE],
        [sse({"choices": [{"index": 0, "delta": None, "finish_reason": "stop"}]}), openai.DONE],
    ],
    "google": [
        [sse({"candidates": []})],
        [sse({"candidates": [{"content": None, "finishReason": "STOP"}]})],
        [sse({"candidates": [{"content": {"parts": [{"text": None}]}, "finishReason": "STOP"}]})],
    ],
}


async def test_an_answer_with_nothing_in_it(kind: str) -> None:
    for events in EMPTY[kind]:
        with Wire([sse_reply(events)]) as wire:
            assert (await fails(crystal(kind, wire.url))).may_retry()


MIXED_UP: dict[str, Callable[[], list[bytes]]] = {
    "anthropic": lambda: [anthropic.start(), anthropic.text(0, "a")[2], *anthropic.text(0, "b")[1:], *anthropic.stop()],
    "responses": lambda: list(reversed(openai.events([openai.message_item("Hello.")])[:-1])),
    "chat": lambda: [openai.DONE, openai.chunk({"content": "late"})],
    "google": lambda: [google.chunk(finish="STOP"), google.chunk()],
}


async def test_events_in_another_order_are_no_answer(kind: str) -> None:
    with Wire([sse_reply(MIXED_UP[kind]())]) as wire:
        assert (await fails(crystal(kind, wire.url))).may_retry()


# --- errors


def date(hours: str) -> str:
    """``+1 h`` as a date of HTTP; anything else as it is."""
    number, _, unit = hours.partition(" ")
    if unit != "h":
        return hours
    return format_datetime(datetime.now(UTC) + timedelta(hours=int(number)), usegmt=True)


@pytest.mark.parametrize(
    ("value", "low", "high"),
    [
        ("3600", 3600, 3600),
        ("+1 h", 3000, 3600),
        ("-1 h", None, None),
        ("-5", None, None),
        ("soon", None, None),
        ("nan", None, None),
        ("inf", None, None),
        ("1e400", None, None),
        ("", None, None),
        ("Wed, 99 Foo 2026 99:99:99 GMT", None, None),
        ("12345678901234567890", 1e18, 1e20),
    ],
)
async def test_how_long_to_wait(kind: str, value: str, low: float | None, high: float | None) -> None:
    """A time that is not a time is as none: the own, growing waits are kept."""
    body = json.dumps({"error": {"message": "slow down", "type": "rate_limit_error", "code": 429}}).encode()
    with Wire([Reply(429, {"content-type": "application/json", "retry-after": date(value)}, body)]) as wire:
        error = await fails(crystal(kind, wire.url))
    assert error.status == 429
    if low is None or high is None:
        assert error.retry_after is None
    else:
        assert error.retry_after is not None
        assert low <= error.retry_after <= high


@pytest.mark.parametrize("value", ["3600", "+1 h", "12345678901234567890"])
async def test_a_wait_that_is_too_long_is_an_error_that_says_when(kind: str, value: str) -> None:
    waits: list[float] = []

    async def slept(seconds: float) -> None:
        waits.append(seconds)

    async def nothing(*_: object) -> None: ...

    with Wire([Reply(429, {"retry-after": date(value)}, b"slow down")]) as wire:
        made = crystal(kind, wire.url)
        policy = retry.RetryPolicy(sleep=slept)
        with pytest.raises(CrystalError) as caught:
            await retry.query_with_retries(made, Query([Message("user", "Hello")]), nothing, policy, nothing)
        await made.aclose()
        assert len(wire.requests) == 1
    assert waits == []
    if value != "12345678901234567890":
        assert "the provider asks to wait" in str(caught.value)
        assert "try again after 20" in str(caught.value)


@pytest.mark.parametrize(
    "body",
    [
        json.dumps({"error": {"message": f"bad key {KEY}", "type": "authentication_error", "code": 401}}),
        f"<html><body>Your key {KEY} is wrong</body></html>",
        KEY,
    ],
)
@pytest.mark.parametrize("status", [200, 401, 500])
async def test_a_key_that_the_server_repeats_is_not_told(kind: str, body: str, status: int) -> None:
    kinds = {"{": "application/json", "<": "text/html"}
    reply = Reply(status, {"content-type": kinds.get(body[0], "text/plain"), "x-echo": KEY}, body.encode())
    with Wire([reply]) as wire:
        await fails(crystal(kind, wire.url))


async def test_an_error_with_status_200_says_what_it_was(kind: str) -> None:
    error = {
        "error": {
            "message": "The model is on holiday.",
            "type": "overloaded_error",
            "code": 503,
            "status": "UNAVAILABLE",
        }
    }
    for reply in (
        json_reply({"type": "error", **error}),
        sse_reply([sse({"type": "error", **error}, None if kind == "google" else "error")]),
    ):
        with Wire([reply]) as wire:
            failed = await fails(crystal(kind, wire.url))
        assert "on holiday" in str(failed), str(failed)
        assert failed.may_retry()


async def test_a_page_in_place_of_an_answer_is_named(kind: str) -> None:
    page = b"<!doctype html><html><head><title>Sign in</title></head><body>Sign in to the Wi-Fi</body></html>"
    with Wire([Reply(200, {"content-type": "text/html; charset=utf-8"}, page)]) as wire:
        error = await fails(crystal(kind, wire.url))
    assert "text/html" in str(error)
    assert "<html" not in str(error)
