"""How a cast ends: what is in the loom stays (LOOP-3), and only wards, providers and users cut a cast (LOOP-4, LOOP-6)."""

from __future__ import annotations

from typing import Any

import anyio
import msgspec
import pytest

from cantrip_acp import Call, Cantrip, Circle, Scorer, ScriptedCrystal
from cantrip_acp.core.turn_renderer import CUT
from cantrip_acp.crystals.contract import Emit, Query, Response
from cantrip_acp.types import events
from tests.support.fixtures.core import done, echo, make

pytestmark = pytest.mark.anyio

USAGE = {"prompt_tokens": 100, "completion_tokens": 50}


def is_done(cantrip: Any, result: Any) -> None:
    """The result, the loom's turn and the cast's end agree."""
    (end,) = [each for each in cantrip.loom.records() if getattr(each, "event", "") == "end"]
    turn = cantrip.loom.threads()[0].leaf
    assert (result.result, result.reason, result.terminated, result.truncated) == ("ok", "done", True, False)
    assert (end.reason, end.result, end.terminated) == ("done", "ok", True)
    assert (turn.reason, turn.terminated) == ("done", True)


@pytest.mark.parametrize("at", ["turn", "cast"])
@pytest.mark.parametrize("slow", ["sync", "async"])
async def test_a_slow_scorer_turns_no_end_into_a_truncation(at: Any, slow: str) -> None:
    async def wait(subject: Any) -> float:
        await anyio.sleep(2.5)
        return 1.0

    def block(subject: Any) -> float:
        import time

        time.sleep(2.5)
        return 1.0

    scorer = Scorer(wait if slow == "async" else block, at=at)
    circle = Circle(gates=["done"], wards=[{"max_turns": 3}, {"max_seconds": 2}], score=scorer)
    cantrip = Cantrip(ScriptedCrystal([done("ok")]), circle=circle)
    is_done(cantrip, await cantrip.cast("go"))
    assert [each.reward for each in cantrip.loom.records() if type(each).__name__ == "RewardRecord"] == [1.0]


@pytest.mark.parametrize("when", ["scoring", "reading"])
async def test_a_cancel_after_done_changes_nothing(when: str) -> None:
    scored = anyio.Event()

    async def wait(turn: Any) -> float:
        scored.set()
        await anyio.sleep(5)
        return 1.0

    circle = Circle(gates=["done"], wards=[{"max_turns": 3}], score=Scorer(wait) if when == "scoring" else None)
    cantrip = Cantrip(ScriptedCrystal([done("ok")]), circle=circle)
    entity = cantrip.invoke()
    result: list[Any] = []

    async with anyio.create_task_group() as group:

        async def cast() -> None:
            result.append(await entity.cast("go"))

        if when == "reading":
            # It reads nothing from the end of the call on, so the cast waits for it.
            subscription = entity.subscribe(buffer=0)

            async def read() -> None:
                async for event in subscription:
                    if isinstance(event, events.GateFinished):
                        while not cantrip.loom.threads() or not cantrip.loom.threads()[0].leaf.terminated:
                            await anyio.sleep(0.01)
                        entity.cancel()

            group.start_soon(read)
        group.start_soon(cast)
        if when == "scoring":
            await scored.wait()
            entity.cancel()
        with anyio.fail_after(60):
            while not result:
                await anyio.sleep(0.01)
        group.cancel_scope.cancel()
    is_done(cantrip, result[0])


async def test_a_slow_reader_takes_no_time_of_the_cast() -> None:
    cantrip = make(echo(), echo(), done("ok"), wards=[{"max_turns": 9}, {"max_seconds": 2}])
    entity = cantrip.invoke()
    seen = 0
    async with anyio.create_task_group() as group:
        subscription = entity.subscribe(buffer=0)

        async def read() -> None:
            nonlocal seen
            async for _ in subscription:
                seen += 1
                await anyio.sleep(0.3)

        group.start_soon(read)
        result = await entity.cast("go")
        group.cancel_scope.cancel()
    assert seen > 8
    is_done(cantrip, result)


async def test_the_time_of_the_cast_itself_counts_in_spite_of_a_slow_reader() -> None:
    slow = {"content": "late", "delay_ms": 20_000}
    cantrip = make(echo(), slow, wards=[{"max_turns": 9}, {"max_seconds": 2}])
    entity = cantrip.invoke()
    async with anyio.create_task_group() as group:
        subscription = entity.subscribe(buffer=0)

        async def read() -> None:
            async for _ in subscription:
                await anyio.sleep(0.05)

        group.start_soon(read)
        with anyio.fail_after(60):
            result = await entity.cast("go")
        group.cancel_scope.cancel()
    assert result.reason == "max_seconds"


# --- cut answers


class Cutting(ScriptedCrystal):
    """Its provider cuts every answer in prose."""

    async def query(self, query: Query, emit: Emit) -> Response:
        response = await super().query(query, emit)
        return response if response.tool_calls else msgspec.structs.replace(response, stop_reason="length")


def cutting(*responses: dict[str, Any], turns: int = 5, require: bool = True) -> Cantrip:
    crystal = Cutting(responses, record_inputs=True)
    return Cantrip(crystal, Call(require_done_tool=require), Circle(gates=["done"], wards=[{"max_turns": turns}]))


async def test_a_cut_answer_ends_no_cast_that_needs_done() -> None:
    cantrip = cutting({"content": "The answer is"}, done("ok"))
    is_done(cantrip, await cantrip.cast("go"))
    assert cantrip.crystal.invocations[1].messages[-1].content == CUT
    # It counts as a turn.
    short = cutting({"content": "a"}, {"content": "b"}, done(), turns=2)
    assert (await short.cast("go")).reason == "max_turns"


async def test_the_reason_of_a_cut_answer_is_the_providers_limit() -> None:
    result = await cutting({"content": "The answer is"}, done(), require=False).cast("go")
    assert (result.reason, result.truncated) == ("output_limit", True)
    assert "The provider cut the answer at its limit after 1 turn." in (result.summary or "")


# --- limits over a resume


@pytest.mark.parametrize("ward", [{"max_total_tokens": 450}, {"max_cost_usd": 0.4}])
async def test_a_budget_goes_on_after_a_resume(ward: dict[str, Any]) -> None:
    usage = {**USAGE, "cost": 0.15}
    held: list[Any] = []

    def stops(step: dict[str, Any]) -> dict[str, Any]:
        return {**step, "usage": usage}

    slow = {"content": "x", "delay_ms": 20_000}
    steps = [stops(echo()), stops(echo()), slow, {**stops(echo()), "repeat": True}]
    cantrip = make(*steps, wards=[{"max_turns": 20}, ward])
    entity = cantrip.invoke()
    async with anyio.create_task_group() as group:

        async def cast() -> None:
            held.append(await entity.cast("go"))

        group.start_soon(cast)
        while len(cantrip.crystal.invocations) < 3:
            await anyio.sleep(0.01)
        entity.cancel()
    assert (held[0].reason, held[0].usage.total_tokens) == ("cancelled", 300)
    again = await entity.resume()
    # 300 of 450 were spent: one more query reaches the limit.
    assert (again.reason, again.turns) == (
        next(iter(ward)).replace("max_total_tokens", "max_tokens").replace("_usd", ""),
        1,
    )
    # Who continues a cast that the limit itself ended gets a new one.
    assert (await entity.resume()).turns == 3


# --- what a turn is


async def test_turns_are_utterances_also_with_delegations() -> None:
    both = {"tool_calls": [{"gate": "call_agent", "args": {"intent": each}} for each in ("a", "b")]}
    apart = {"tool_calls": [both["tool_calls"][0], {"gate": "echo", "args": {"text": "x"}}, both["tool_calls"][1]]}
    children = [{"responses": [{"content": "child"}]} for _ in range(4)]
    circle = Circle(gates=["done", "echo", "call_agent"], wards=[{"max_turns": 2}, {"max_depth": 1}])
    cantrip = Cantrip(ScriptedCrystal([both, apart], children=children), circle=circle)
    result = await cantrip.cast("go")
    assert (result.reason, result.turns) == ("max_turns", 2)
    assert "after 2 turns" in (result.summary or "")
    (end,) = [e for e in cantrip.loom.records() if getattr(e, "event", "") == "end" and e.id == result.cast_id]
    assert end.turns == 2
