"""Events: their order, back-pressure, lossy readers, early leaving."""

from __future__ import annotations

import anyio
import pytest

from cantrip_acp import CrystalError, RetryPolicy
from cantrip_acp.types.events import as_json
from tests.support.fixtures.core import done, echo, make, no_wait

pytestmark = pytest.mark.anyio


async def test_the_order_of_events() -> None:
    cantrip = make(echo(thinking="hm", chunks=["a", "b"]), done("x"))
    async with cantrip.cast_stream("go") as stream:
        events = [as_json(e) async for e in stream]
    names = [e["event"] for e in events]
    turn = ["gate_call", "gate_start", "gate_result", "usage", "turn"]
    assert names == ["cast", "query", "thought", "text", "text", *turn, "query", *turn, "result"]
    assert stream.result.result == "x"
    assert events[-1]["reason"] == "done"
    assert events[9]["utterance"]["content"] == "ab"
    assert {e["cast_id"] for e in events} == {stream.result.cast_id}
    assert len({e["message_id"] for e in events if "message_id" in e}) == 2
    assert len({e["call_id"] for e in events if e["event"] == "gate_call"}) == 2


async def test_a_retry_voids_its_pieces() -> None:
    cantrip = make({"error": {"status": 529, "message": "overloaded"}}, done(), retry=RetryPolicy(sleep=no_wait))
    async with cantrip.cast_stream("go") as stream:
        events = [as_json(e) async for e in stream]
    retry = next(e for e in events if e["event"] == "retry")
    assert (retry["status"], retry["attempt"]) == (529, 1)
    queries = [e for e in events if e["event"] == "query"]
    assert [q["attempt"] for q in queries] == [1, 2]
    assert queries[0]["message_id"] == retry["message_id"] != queries[1]["message_id"]


async def test_a_reader_that_stops_stops_the_entity() -> None:
    cantrip = make(*[echo()] * 499, done(), wards=[{"max_turns": 500}])
    entity = cantrip.invoke()
    async with entity.stream("go", buffer=4) as stream:
        await anyio.sleep(0.2)
        assert entity.sequence <= 2, "nobody reads, so nothing goes on"
        async for _ in stream:
            break
        await anyio.sleep(0.05)
        held = entity.sequence
        assert held <= 3
        async for _ in stream:
            pass
    assert stream.result.turns == 500


async def test_a_lossy_reader_never_slows_it() -> None:
    cantrip = make(*[echo()] * 99, done(), wards=[{"max_turns": 100}])
    entity = cantrip.invoke()
    with entity.subscribe(lossy=True, buffer=3) as reader:
        assert (await entity.cast("go")).turns == 100
        assert reader.dropped > 300


async def test_leaving_early_cancels_the_cast() -> None:
    cantrip = make({"content": "x", "chunks": ["a", "b"]}, *[{"content": "never", "delay_ms": 60_000}])
    with anyio.fail_after(60):
        async with cantrip.cast_stream("go") as stream:
            async for event in stream:
                if event.cast_id:
                    break
        entity = make({"content": "x", "delay_ms": 60_000}, {"content": "x", "delay_ms": 60_000}).invoke()
        async with entity.stream("go"):
            await anyio.sleep(0.02)
        async with entity.stream("left before it began"):
            pass
        with pytest.raises(ZeroDivisionError):  # noqa: PT012
            async with entity.stream("a reader that fails"):
                await anyio.sleep(0.02)
                1 / 0  # noqa: B018
    assert [(start.intent, end and end.reason) for start, end in entity.loom.casts()] == [
        ("go", "cancelled"),
        ("a reader that fails", "cancelled"),
    ]


async def test_a_failure_is_raised_once() -> None:
    async with make({"error": {"status": 400, "message": "bad"}}).cast_stream("go") as stream:
        names = [as_json(e)["event"] async for e in stream]
        with pytest.raises(CrystalError, match="bad"):
            _ = stream.result
    assert names[-1] == "result"
    with pytest.raises(CrystalError, match="bad"):  # noqa: PT012
        async with make({"error": {"status": 400, "message": "bad"}}).cast_stream("go") as stream:
            async for _ in stream:
                pass


async def test_closing_a_reader_lets_the_entity_go_on() -> None:
    cantrip = make(*[echo()] * 50, done(), wards=[{"max_turns": 60}])
    entity = cantrip.invoke()
    reader = entity.subscribe(buffer=1)
    async with anyio.create_task_group() as group:

        async def leave() -> None:
            await anyio.sleep(0.05)
            assert entity.busy
            reader.close()

        group.start_soon(leave)
        with anyio.fail_after(60):
            assert (await entity.cast("go")).turns == 51
