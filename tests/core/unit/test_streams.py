"""Batches that are iterated, and streams of events: order, failures, leaving early, progress on a terminal."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import pytest

from cantrip_acp import Cantrip, CrystalError, DefinitionError, Loom, ScriptedCrystal, events
from cantrip_acp.types.records import GateRecord
from tests.support.fixtures.core import INSTANT, done


def slow(when: str, answer: str, delay_ms: int = 0) -> dict[str, Any]:
    return {**done(answer), "when": when, "delay_ms": delay_ms}


async def ends(cantrip: Cantrip[Any]) -> list[str]:
    """How the casts of a loom ended, once all of them have."""
    while any(end is None for _, end in cantrip.loom.casts()):
        await asyncio.sleep(0.01)
    return sorted(str(end.reason) for _, end in cantrip.loom.casts() if end is not None)


def batch(*responses: dict[str, Any]) -> Cantrip[Any]:
    return Cantrip(ScriptedCrystal(responses), max_turns=3, retry=INSTANT)


async def test_casts_come_as_they_finish(anyio_backend: str) -> None:
    cantrip = batch(slow("one", "1", 300), slow("two", "2"), slow("three", "3"))
    items = [item async for item in cantrip.cast_batch(["one", "two", "three"], progress=True)]
    assert items[-1].number == 0
    assert {(item.number, item.intent, item.answer) for item in items} == {
        (0, "one", "1"),
        (1, "two", "2"),
        (2, "three", "3"),
    }


async def test_awaited_they_are_in_order(anyio_backend: str) -> None:
    cantrip = batch(slow("one", "1", 100), slow("two", "2"))
    casts = cantrip.cast_batch(["one", "two"])
    assert len(casts) == 2
    assert [result.result for result in await casts if not isinstance(result, Exception)] == ["1", "2"]


async def test_a_cast_that_fails_stops_no_other(anyio_backend: str) -> None:
    cantrip = batch({"error": {"status": 400, "message": "no"}, "when": "bad"}, slow("good", "fine"))
    items = {item.intent: item async for item in cantrip.cast_batch(["bad", "good"])}
    assert items["good"].answer == "fine"
    assert isinstance(items["bad"].error, CrystalError)
    with pytest.raises(CrystalError, match="no"):
        _ = items["bad"].answer
    again = batch({"error": {"status": 400, "message": "no"}, "when": "bad"}, slow("good", "fine"))
    first, second = await again.cast_batch(["bad", "good"])
    assert isinstance(first, CrystalError)
    assert not isinstance(second, Exception)


async def test_no_more_run_at_once_than_wanted(anyio_backend: str) -> None:
    running, most = 0, 0

    async def work() -> str:
        """Work."""
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        return "done"

    script = [
        r for n in range(6) for r in ({"tool_calls": [{"gate": "work"}], "when": f"{n}"}, {**done(n), "when": f"{n}"})
    ]
    cantrip = Cantrip(ScriptedCrystal(script), gates=[work], max_turns=3)
    items = [item async for item in cantrip.cast_batch([str(n) for n in range(6)], concurrency=2)]
    assert len(items) == 6
    assert most == 2


async def test_leaving_a_batch_early_cancels_the_casts_that_run(anyio_backend: str) -> None:
    cantrip = batch(slow("one", "1"), *(slow("more", "late", 60_000) for _ in range(3)))
    async for item in cantrip.cast_batch(["one", "more", "more", "more"], concurrency=2):
        assert item.answer == "1"
        break
    reasons = await ends(cantrip)
    assert reasons in (["cancelled", "done"], ["cancelled", "cancelled", "done"]), "the last one does not begin"


async def test_a_time_limit_of_the_reader_ends_the_casts(anyio_backend: str) -> None:
    cantrip = batch(*(slow("more", "late", 60_000) for _ in range(2)), slow("one", "late", 60_000))
    with anyio.move_on_after(1):
        async for _ in cantrip.cast_batch(["more", "more"]):
            pytest.fail("no cast ends")
    assert [end and end.reason for _, end in cantrip.loom.casts()] == ["cancelled", "cancelled"]
    with anyio.move_on_after(1):
        async for _ in cantrip.cast_stream("one"):
            pass
    assert [end and end.reason for _, end in cantrip.loom.casts()] == ["cancelled"] * 3


def test_a_script_iterates_without_an_event_loop() -> None:
    cantrip = batch(slow("one", "1", 300), slow("two", "2"))
    assert [item.answer for item in cantrip.cast_batch(["one", "two"])] == ["2", "1"]
    for item in batch(slow("one", "1"), slow("two", "2", 60_000)).cast_batch(["one", "two"]):
        assert item.answer == "1"
        break


async def test_a_loop_that_blocks_is_refused_in_a_coroutine(anyio_backend: str) -> None:
    with pytest.raises(RuntimeError, match="write `async for item in"):
        next(iter(batch().cast_batch(["one"])))


async def test_events_are_matched_by_their_type(anyio_backend: str) -> None:
    cantrip = batch(
        {"content": "Let me look.", "tool_calls": [{"gate": "look", "args": {"where": "here"}}]}, done("found")
    )

    def look(where: str) -> str:
        """Look."""
        return f"nothing {where}"

    seen: list[Any] = []
    stream = Cantrip(cantrip.crystal, gates=[look], max_turns=3).cast_stream("Find it.")
    async for event in stream:
        match event:
            case events.Text(delta=delta):
                seen.append(delta)
            case events.GateCalled(gate="look", args=args):
                seen.append(args)
            case events.GateFinished(record=GateRecord(gate="look", result=result, is_error=False)):
                seen.append(result)
            case events.CastEnded(record=end):
                seen.append((end.reason, end.result))
    assert seen == ["Let me look.", {"where": "here"}, "nothing here", ("done", "found")]
    assert stream.result.result == "found"


async def test_leaving_the_events_early_cancels_the_cast(anyio_backend: str) -> None:
    cantrip = batch(slow("one", "late", 60_000))
    async for event in cantrip.cast_stream("one"):
        if isinstance(event, events.QueryStarted):
            break
    assert await ends(cantrip) == ["cancelled"]


async def test_the_error_of_a_cast_is_raised_after_its_events(anyio_backend: str) -> None:
    stream = batch({"error": {"status": 400, "message": "no"}}).cast_stream("one")
    seen: list[Any] = []

    async def read() -> None:
        async for event in stream:
            seen.append(event)

    with pytest.raises(CrystalError, match="no"):
        await read()
    assert isinstance(seen[-1], events.CastEnded)
    with pytest.raises(RuntimeError, match="has not ended"):
        _ = stream.result


def counted(loom: Loom, *responses: dict[str, Any], **more: Any) -> Cantrip[Any]:
    return Cantrip(ScriptedCrystal(responses, **more), max_turns=1, retry=INSTANT, loom=loom)


async def test_a_batch_takes_what_an_earlier_run_had(anyio_backend: str) -> None:
    loom = Loom.memory()
    await counted(loom, slow("one", "1"), slow("two", "2")).cast_batch(["one", "two"])
    again = counted(loom, slow("three", "3"))
    items = [item async for item in again.cast_batch(["three", "two", "one"], resume=True)]
    assert {(item.intent, item.answer, item.earlier) for item in items} == {
        ("one", "1", True),
        ("two", "2", True),
        ("three", "3", False),
    }
    assert len(loom.casts()) == 3
    results = await again.cast_batch(["one", "two", "three"], resume=True)
    assert [result.result for result in results if not isinstance(result, Exception)] == ["1", "2", "3"]
    assert len(loom.casts()) == 3


async def test_only_the_same_cast_is_taken(anyio_backend: str) -> None:
    loom = Loom.memory()
    await counted(loom, done("old")).cast_batch(["one"], references=[1])

    async def answers(cantrip: Cantrip[Any], *intents: str, **more: Any) -> list[Any]:
        results = await cantrip.cast_batch(intents, resume=True, **more)
        return [result.result for result in results if not isinstance(result, Exception)]

    assert await answers(counted(loom, done("new")), "one", references=[1]) == ["old"]
    assert await answers(counted(loom, done("new")), "one", references=[2]) == ["new"], "another reference"
    assert await answers(counted(loom, done("new"), model="other"), "one", references=[1]) == ["new"], "another model"
    more = Cantrip(ScriptedCrystal([done("new")]), max_turns=2, loom=loom)
    assert await answers(more, "one", references=[1]) == ["new"], "another circle"
    # The second sample of an intent is a cast of its own.
    twice = counted(loom, done("second"))
    assert await answers(twice, "one", "one", references=[1, 1]) == ["old", "second"]


async def test_what_was_cut_off_goes_on_and_what_failed_can_be_cast_again(anyio_backend: str) -> None:
    loom = Loom.memory()
    failing = {"error": {"status": 400, "message": "no"}, "when": "fails"}
    first = counted(
        loom, failing, {"tool_calls": [], "content": "", "when": "limit", "repeat": True}, slow("good", "1")
    )
    await first.cast_batch(["fails", "good"], concurrency=1)
    # An error of the provider is no result: the cast goes on.
    items = await counted(loom, done("now")).cast_batch(["fails", "good"], resume=True)
    assert [item.result for item in items if not isinstance(item, Exception)] == ["now", "1"]
    assert len({start.entity_id for start, _ in loom.casts()}) == 2

    cut = Cantrip(
        ScriptedCrystal([{"tool_calls": [{"gate": "echo", "args": {"text": "x"}}]}, done("late")]),
        gates=["echo"],
        max_turns=1,
        loom=Loom.memory(),
    )
    (limited,) = await cut.cast_batch(["a"])
    assert not isinstance(limited, Exception)
    assert limited.reason == "max_turns"
    (same,) = await cut.cast_batch(["a"], resume=True)
    assert not isinstance(same, Exception)
    assert (same.cast_id, same.reason, same.usage) == (limited.cast_id, "max_turns", limited.usage)
    (other,) = await cut.cast_batch(["a"], resume="failed")
    assert not isinstance(other, Exception)
    assert other.result == "late"


async def test_an_earlier_answer_has_its_type_again(anyio_backend: str) -> None:
    loom = Loom.memory()
    typed = counted(loom, done([1, 2])).with_result_type(tuple[int, int])
    await typed.cast_batch(["a"])
    (result,) = await typed.cast_batch(["a"], resume=True)
    assert not isinstance(result, Exception)
    assert result.result == (1, 2)


def test_a_loom_in_memory_has_nothing_to_resume() -> None:
    with pytest.raises(DefinitionError, match=r"such as loom=Loom\.open"):
        batch(done("1")).cast_batch(["a"], resume=True)


def test_a_result_is_short_in_a_repr_and_whole_in_a_notebook() -> None:
    long = "<img src=http://elsewhere.example>" * 20
    result = batch(done(long)).cast_sync("a")
    assert len(repr(result)) < 300
    assert repr(result).startswith("<CastResult done, 1 turn, ")
    page = result._repr_html_()
    assert "<img" not in page
    assert page.count("elsewhere.example") == 20
    data = batch(done({"verdict": "good"})).cast_sync("a")
    assert "&quot;verdict&quot;: &quot;good&quot;" in data._repr_html_()
