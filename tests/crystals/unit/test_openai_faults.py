"""What goes wrong on the wire, for each way in which the openai SDK is used: always a `CrystalError` that says what it was."""

from __future__ import annotations

import gc
import json
import threading
import time

import anyio
import pytest

from cantrip_acp import Cantrip, Circle
from cantrip_acp.crystals.contract import Delta, Query
from cantrip_acp.types.errors import ContextLimitError, CrystalError
from tests.support.openai_replies import (
    DONE,
    USER,
    asked,
    call_delta,
    call_item,
    chat_stream,
    chunk,
    events,
    message_item,
    refusal,
    responds,
)
from tests.support.provider_faults import SERVICES, crystal, fails
from tests.support.provider_server import Cut, Drop, Hold, Pause, Reply, Until, Wire, json_reply, sse, sse_reply


@pytest.fixture(params=[each for each in SERVICES if each not in ("anthropic", "google")])
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def pieces(kind: str, text: str = "Hello there.") -> list[bytes]:
    """A whole answer's events."""
    if kind == "responses":
        return events([message_item(text)])
    half = len(text) // 2
    return [chunk({"content": text[:half]}), chunk({"content": text[half:]}), chunk({}, "stop"), DONE]


def shown_at(kind: str) -> int:
    """How many of the pieces it takes for the first word to show."""
    return 4 if kind == "responses" else 1


def called(kind: str, call_id: str, name: str, args: str) -> Reply:
    if kind == "responses":
        return responds(call_item(call_id, name, args))
    return chat_stream(call_delta(0, call_id, name, args), finish="tool_calls")


async def test_retry_after_and_a_spent_quota(kind: str) -> None:
    with Wire(
        [
            refusal(429, "Slow down.", "rate_limit_exceeded", **{"retry-after": "7"}),
            refusal(429, "Slow down.", **{"retry-after-ms": "1500"}),
            refusal(429, "You exceeded your quota.", "insufficient_quota"),
        ]
    ) as wire:
        made = crystal(kind, wire.url)
        waits = [(error.retry_after, error.may_retry()) for error in [await fails(made) for _ in range(3)]]
    assert waits == [(7.0, True), (1.5, True), (None, False)]


@pytest.mark.parametrize(
    "message",
    [
        "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens.",
        "the request exceeds the available context size (4096 tokens), try increasing it",
        "Please reduce the length of the messages or completion.",
    ],
)
async def test_over_the_window(kind: str, message: str) -> None:
    with Wire([refusal(400, message)]) as wire:
        assert isinstance(await fails(crystal(kind, wire.url)), ContextLimitError)


async def test_a_cut_anywhere_is_no_answer(kind: str) -> None:
    whole = pieces(kind)
    last = len(whole) - (1 if kind == "responses" else 2)
    for end in (Cut(), Drop()):
        for at in range(last + 1):
            with Wire([sse_reply([*whole[:at], end])]) as wire:
                error = await fails(crystal(kind, wire.url))
            assert error.may_retry(), at


async def test_a_stream_that_just_ends(kind: str) -> None:
    whole = pieces(kind)
    for at in (0, 1, shown_at(kind) + 1):
        with Wire([sse_reply(whole[:at])]) as wire:
            error = await fails(crystal(kind, wire.url))
        assert error.may_retry()
        assert "cut before the response's end" in str(error)


@pytest.mark.parametrize(
    "garbage",
    [
        b"data: {not json\n\n",
        b"data: [1, 2]\n\n",
        b'data: "text"\n\n',
        b"data: 7\n\n",
        b"\xff\xfe\xfd\n\n",
        b"data: \xff\n\n",
        b'data: {"a":' + b"[" * 100_000 + b"\n\n",
        b"data: " + b"9" * 6000 + b"\n\n",
        b'data: {"choices": 7, "usage": "x", "model": 3}\n\n',
        b'data: {"choices": [7, null, {"delta": 3, "index": 0}]}\n\n',
        b'data: {"choices": [{"index": 0, "delta": {"tool_calls": [3, {"function": 7, "index": "x"}]}}]}\n\n',
        b'data: {"type": "response.completed", "response": 7}\n\n',
        b'data: {"type": "response.output_item.done", "item": 7}\n\n',
        b'data: {"type": "response.completed", "response": {"output": [7, {"type": "message", "content": 3}]}}\n\n',
        b"\x00" * 1000,
    ],
)
async def test_garbage(kind: str, garbage: bytes) -> None:
    with Wire([sse_reply([pieces(kind)[0], garbage])]) as wire:
        assert (await fails(crystal(kind, wire.url))).may_retry()


@pytest.mark.parametrize(
    "reply",
    [
        Reply(200, {"content-type": "text/html"}, b"<html><title>Log in</title>Log in first</html>"),
        Reply(200, {"content-type": "application/json"}, b"{}"),
        Reply(200, {"content-type": "application/json"}, b"null"),
        Reply(200, {"content-type": "application/json"}, b"{"),
        Reply(200, {}, b""),
        Reply(204, {}),
        Reply(raw=[b"garbage\r\n\r\n"]),
        Reply(raw=[b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nx"]),
        Reply(raw=[b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n"]),
        Reply(raw=[b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 5\r\n\r\nxxxxx"]),
        Reply(raw=[]),
        Reply(raw=[Cut()]),
    ],
)
async def test_no_stream_at_all(kind: str, reply: Reply) -> None:
    with Wire([reply]) as wire:
        assert (await fails(crystal(kind, wire.url))).may_retry()


async def test_an_error_with_status_200(kind: str) -> None:
    error = {"error": {"message": "The provider is down.", "code": 503}}
    with Wire([json_reply(error), sse_reply([pieces(kind)[0], sse(error)])]) as wire:
        made = crystal(kind, wire.url)
        for _ in range(2):
            failed = await fails(made)
            assert (failed.status, failed.may_retry()) == (503, True)
            assert "The provider is down" in str(failed)


async def test_what_happens_after_the_end_changes_nothing(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream held open, cut or continued in garbage after it said that it is complete; [DONE] may be missing."""
    from cantrip_acp.crystals.openai import client

    monkeypatch.setattr(client, "_AFTERWARDS_S", 0.3)
    whole = pieces(kind)
    whole = whole if kind == "responses" else whole[:-1]
    for after in ([], [Hold()], [Cut()], [Drop()], [b"data: {\n\n"]):
        with Wire([sse_reply([*whole, *after])]) as wire:
            response, _ = await asked(crystal(kind, wire.url))
        assert response.content == "Hello there."


async def test_nobody_listens(kind: str) -> None:
    with Wire([]) as wire:
        url = wire.url
    error = await fails(crystal(kind, url))
    assert not error.may_retry(), "waiting starts no server on this machine"
    assert url in str(error)
    assert "start the" in str(error)


async def test_silence(kind: str) -> None:
    for stream in ([Hold()], [*pieces(kind)[: shown_at(kind)], Hold()]):
        with Wire([sse_reply(stream)]) as wire:
            start = time.monotonic()
            error = await fails(crystal(kind, wire.url, silence_s=0.3))
            assert time.monotonic() - start < 30
        assert error.may_retry()
        assert "time-out" in str(error)


async def test_the_first_word_shows_before_the_last_is_sent(kind: str) -> None:
    go_on = threading.Event()
    whole = pieces(kind)
    at = shown_at(kind) + 1
    seen: list[str] = []

    async def emit(delta: Delta) -> None:
        if not seen:
            assert not go_on.is_set()
        seen.append(delta.text)
        go_on.set()

    with Wire([sse_reply([*whole[:at], Until(go_on), *whole[at:]])]) as wire:
        with anyio.fail_after(60):
            response = await crystal(kind, wire.url).query(Query([USER]), emit)
    assert response.content == "".join(seen) == "Hello there."


async def test_cancel_closes_the_stream(kind: str) -> None:
    whole = pieces(kind)
    for stream in ([Hold()], [*whole[: shown_at(kind) + 1], Hold()]):
        with Wire([sse_reply(stream)]) as wire:
            made = crystal(kind, wire.url)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(asked, made)
                assert await anyio.to_thread.run_sync(wire.wait_requests)
                await anyio.sleep(0.1)
                start = time.monotonic()
                tasks.cancel_scope.cancel()
            assert time.monotonic() - start < 30
            assert await anyio.to_thread.run_sync(wire.wait_gone), "the server must see it"


async def test_a_reader_that_fails_closes_the_stream(kind: str) -> None:
    async def emit(delta: Delta) -> None:
        raise KeyError("the reader's own")

    with Wire([sse_reply([*pieces(kind)[: shown_at(kind) + 1], Hold()])]) as wire:
        with pytest.raises(KeyError, match="the reader's own"):
            await crystal(kind, wire.url).query(Query([USER]), emit)
        assert await anyio.to_thread.run_sync(wire.wait_gone)


async def test_a_stream_without_an_end_is_stopped(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from cantrip_acp.crystals import retry

    monkeypatch.setattr(retry, "MAX_RESPONSE_CHARS", 100_000)
    one = pieces(kind, "x" * 10_000)[: shown_at(kind) + 1]

    def forever():
        yield from one
        while True:
            yield one[-1]

    async def notice(*_: object) -> None: ...

    async def emit(delta: Delta) -> None: ...

    with Wire([sse_reply(forever())]) as wire:
        with anyio.fail_after(60), pytest.raises(CrystalError, match="was stopped, because"):
            await retry.query_with_retries(
                crystal(kind, wire.url), Query([USER]), emit, retry.RetryPolicy(max_retries=0), notice
            )
        assert await anyio.to_thread.run_sync(wire.wait_gone)


async def test_arguments_without_an_end_are_stopped(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from cantrip_acp.crystals.openai import client

    monkeypatch.setattr(client, "MAX_BYTES", 500_000)
    if kind == "responses":
        one = events([call_item("c", "done", "x" * 20_000)])[3]
    else:
        one = chunk(call_delta(0, "c", "done", "x" * 10_000))

    def forever():
        while True:
            yield one

    with Wire([sse_reply(forever())]) as wire:
        with anyio.fail_after(60):
            assert "was stopped, because" in str(await fails(crystal(kind, wire.url)))
        assert await anyio.to_thread.run_sync(wire.wait_gone)


async def test_two_at_once_and_one_connection_for_two_in_a_row(kind: str) -> None:
    def answer(request: object) -> Reply:
        body = json.loads(request.body)  # type: ignore[attr-defined]
        word = body["input"][0]["content"] if kind == "responses" else body["messages"][0]["content"]
        return sse_reply([Pause(0.05), *pieces(kind, f"You said {word}.")])

    from cantrip_acp.types.messages import Message

    answers: dict[int, str | None] = {}
    with Wire(answer) as wire:
        made = crystal(kind, wire.url)

        async def one(number: int) -> None:
            response, _ = await asked(made, Message("user", str(number)))
            answers[number] = response.content

        async with anyio.create_task_group() as tasks:
            for number in range(4):
                tasks.start_soon(one, number)
        opened = wire.connections
        await one(4)
        assert wire.connections == opened
        await made.aclose()
        await one(5)
        await made.aclose()
    assert answers == {n: f"You said {n}." for n in range(6)}


def test_a_cast_with_gates_twice_in_loops_of_their_own(kind: str) -> None:
    replies = [called(kind, f"call_{n}", "done", json.dumps({"answer": n})) for n in range(2)]
    with Wire(replies) as wire:
        cantrip = Cantrip(
            crystal(kind, wire.url), {"system_prompt": "Be brief."}, Circle(gates=["done"], wards=[{"max_turns": 3}])
        )
        results = [cantrip.cast_sync("Count.").result for _ in range(2)]
        gc.collect()
    assert results == [0, 1]


async def test_half_a_surrogate_pair_does_not_break_the_request(kind: str) -> None:
    from cantrip_acp.types.messages import Message

    with Wire([sse_reply(pieces(kind))]) as wire:
        response, _ = await asked(crystal(kind, wire.url), Message("user", "odd \ud800 text"))
        assert "odd ? text" in wire.requests[0].body.decode()
    assert response.content == "Hello there."


async def test_prepare_in_threads(kind: str) -> None:
    with Wire([sse_reply(pieces(kind))]) as wire:
        made = crystal(kind, wire.url)
        threads = [threading.Thread(target=made.prepare) for _ in range(4)]  # type: ignore[attr-defined]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        await asked(made)
