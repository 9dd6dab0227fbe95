"""What each provider reports of streams that are cut off, on the wire: it is counted, and what was not reported is unknown."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import anyio
import pytest

from cantrip_acp import Call, Cantrip, CastResult, Circle, Crystal, RetryPolicy
from cantrip_acp.crystals.catalog.types import ModelInfo, Price
from cantrip_acp.crystals.endpoint import Endpoint
from cantrip_acp.crystals.keys import Secret
from cantrip_acp.crystals.openai.chat_completions import ChatCrystal
from cantrip_acp.crystals.openai.responses_api import OpenAICrystal
from tests.support import anthropic_replies as anthropic
from tests.support import google_replies as google
from tests.support import openai_replies as openai
from tests.support.provider_server import Cut, Hold, Piece, Reply, Until, Wire, json_reply, sse_reply

pytestmark = pytest.mark.anyio

INFO = ModelInfo(known=True, price=Price(input=1.0, output=10.0))


def crystal(kind: str, url: str) -> Crystal:
    if kind == "anthropic":
        return anthropic.crystal(url, info=INFO)
    if kind == "google":
        return google.crystal(url, info=INFO)
    endpoint = Endpoint("openai", "m", f"{url}/v1", Secret("k"), options={"api": kind}, info=INFO)
    return OpenAICrystal(endpoint)


def begun(kind: str) -> list[Piece]:
    """A stream up to its first words."""
    if kind == "anthropic":
        return [anthropic.start(input_tokens=100, output_tokens=1), *anthropic.text(0, "Half")[:2]]
    if kind == "google":
        return [google.chunk({"text": "Half"}, usageMetadata=google.usage(100, 1))]
    if kind == "responses":
        return list(openai.events([openai.message_item("Half an answer.")])[:5])
    return [openai.chunk({"content": "Half"})]


def whole(kind: str) -> Reply:
    if kind == "anthropic":
        return anthropic.says("Fine.", input_tokens=100, output_tokens=5)
    if kind == "google":
        return google.stream(google.chunk({"text": "Fine."}, finish="STOP", usageMetadata=google.usage(100, 5)))
    if kind == "responses":
        return openai.responds(openai.message_item("Fine."))
    return openai.chat_stream({"content": "Fine."}, usage=openai.counts(100, 5))


KINDS = ["anthropic", "google", "chat", "responses"]
REPORTED = {"anthropic": (100, 1), "google": (100, 1), "chat": (None, None), "responses": (None, None)}
"""What is known of a stream that broke off after its first words."""


def cantrip(kind: str, url: str, wards: Any = ()) -> Cantrip:
    return Cantrip(
        crystal(kind, url),
        Call(),
        Circle(gates=["done"], wards=[{"max_turns": 3}, *wards]),
        retry=RetryPolicy(base_s=0.01),
    )


async def cancelled(kind: str, pieces: Sequence[Piece]) -> CastResult:
    seen = anyio.Event()
    results: list[CastResult] = []
    with Wire([sse_reply([*pieces, Hold()])]) as wire:
        async with cantrip(kind, wire.url).invoke() as entity, anyio.create_task_group() as group:

            async def run() -> None:
                async with entity.stream("Hi") as stream:
                    async for event in stream:
                        if type(event).__name__ == "Text":
                            seen.set()
                    results.append(stream.result)

            group.start_soon(run)
            with anyio.fail_after(60):
                await seen.wait()
            entity.cancel()
    return results[0]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_cancelled_stream_counts_as_far_as_it_was_reported(kind: str) -> None:
    result = await cancelled(kind, begun(kind))
    assert result.reason == "cancelled"
    assert (result.usage.prompt_tokens, result.usage.completion_tokens) == REPORTED[kind]
    assert (result.usage.queries_without_usage, result.usage.queries_without_cost) == (1, 1)
    if REPORTED[kind][0] is not None:
        assert result.usage.cost == pytest.approx((100 + 10) / 1e6)
    else:
        assert result.usage.cost is None


@pytest.mark.parametrize("kind", KINDS)
async def test_a_broken_stream_and_its_repetition_both_count(kind: str) -> None:
    with Wire([sse_reply([*begun(kind), Cut()]), whole(kind)]) as wire:
        result = await cantrip(kind, wire.url).cast("Hi")
    assert result.reason == "text"
    prompt, said = REPORTED[kind]
    first = result.usage
    alone = (first.prompt_tokens or 0) - (prompt or 0), (first.completion_tokens or 0) - (said or 0)
    assert alone == ((100, 5) if kind != "responses" else alone)
    assert alone[0] > 0
    assert first.queries_without_usage == 1


@pytest.mark.parametrize("kind", KINDS)
async def test_a_refused_request_costs_nothing(kind: str) -> None:
    with Wire([json_reply({"error": {"message": "overloaded", "code": 503, "type": "x"}}, 503), whole(kind)]) as wire:
        result = await cantrip(kind, wire.url).cast("Hi")
    assert result.reason == "text"
    assert (result.usage.queries_without_usage, result.usage.queries_without_cost) == (0, 0)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_request_whose_answer_never_began_is_unknown(kind: str) -> None:
    never = threading.Event()
    with Wire([Reply(stream=[Until(never)])]) as wire:
        async with cantrip(kind, wire.url).invoke() as entity, anyio.create_task_group() as group:
            results: list[CastResult] = []

            async def run() -> None:
                results.append(await entity.cast("Hi"))

            group.start_soon(run)
            assert await anyio.to_thread.run_sync(wire.wait_requests)
            entity.cancel()
        never.set()
    assert results[0].usage.prompt_tokens is None
    assert results[0].usage.queries_without_usage == 1


async def test_a_server_that_reports_no_usage_is_unknown() -> None:
    reply = sse_reply([openai.chunk({"content": "Fine."}), openai.chunk({}, "stop"), openai.DONE])
    with Wire([reply]) as wire:
        result = await cantrip("chat", wire.url, [{"max_total_tokens": 10_000}, {"max_cost_usd": 1.0}]).cast("Hi")
    assert result.usage.record()["total_tokens"] is None
    assert result.usage.cost is None
    assert [w.partition(" ")[0] for w in result.warnings] == ["max_cost_usd", "max_total_tokens"]


async def test_a_server_that_counts_with_each_chunk_is_counted_when_cancelled() -> None:
    pieces = [openai.chunk({"content": "Half"}, usage=openai.counts(100, 1), check=False)]
    result = await cancelled("chat", pieces)
    assert (result.usage.prompt_tokens, result.usage.completion_tokens) == (100, 1)
    assert result.usage.queries_without_usage == 1


def test_the_four_providers_know_whether_they_have_a_price() -> None:
    for kind in KINDS:
        assert crystal(kind, "http://127.0.0.1:9").priced  # type: ignore[attr-defined]
    assert not ChatCrystal(Endpoint("local", "m", "http://127.0.0.1:9/v1"), "http://127.0.0.1:9/v1").priced
