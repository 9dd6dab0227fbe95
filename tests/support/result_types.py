"""The types that type checkers see in the Python API. mypy checks this file (`make types`); nothing runs it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypedDict, assert_type

from cantrip_acp import BatchItem, Cantrip, CastResult, gate
from cantrip_acp.types.events import Event


@dataclass
class Review:
    stars: int


class Town(TypedDict):
    name: str


@gate
def plain(text: str) -> int:
    return len(text)


@gate(name="server.tool", pure=True, writes=True)
async def other(text: str) -> int:
    return len(text)


async def results(cantrip: Cantrip, typed: Cantrip[Review]) -> None:
    assert_type(Cantrip("ollama:qwen3", max_turns=3), Cantrip[Any])
    assert_type(Cantrip("ollama:qwen3", max_turns=3, result_type=Review), Cantrip[Review])
    assert_type(Cantrip("ollama:qwen3", max_turns=3, result_type=list[Review]), Cantrip[list[Review]])
    assert_type(Cantrip.load("review"), Cantrip[Any])
    assert_type(Cantrip.load("review", result_type=Review), Cantrip[Review])
    assert_type(cantrip.cast_sync("x").result, Any)
    assert_type(cantrip.cast_sync("x", result_type=Town).result, Town)
    assert_type(cantrip.with_result_type(Review), Cantrip[Review])
    assert_type((await cantrip.cast("x", result_type=Review)).result, Review)
    assert_type((await typed.cast("x")).result, Review)
    assert_type(typed.cast_sync("x"), CastResult[Review])
    assert_type(await typed.cast_batch(["x"]), list[CastResult[Review] | Exception])
    async for item in typed.cast_batch(["x"]):
        assert_type(item, BatchItem[Review])
    for item in typed.cast_batch(["x"]):
        assert_type(item.answer, Review)
    stream = typed.cast_stream("x")
    async for event in stream:
        assert_type(event, Event)
    assert_type(stream.result.result, Review)
    async with typed.cast_stream("x") as opened:
        assert_type(opened.result.result, Review)
    async with typed.invoke() as entity:
        assert_type((await entity.cast("x")).result, Review)
        assert_type((await entity.fork_group("x")).samples[0].answer, Review)
    assert_type(plain("x"), int)
    assert_type(await other("x"), int)
