"""The operations of a tuple-space: waiting, fairness, time-outs, cancellation, back-pressure, subscriptions."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import psutil
import pytest

from cantrip_acp.tuplespace.errors import SpaceFull, TupleError, WaitTimeout
from cantrip_acp.tuplespace.space import TupleSpace, max_waiting_from_environment
from cantrip_acp.tuplespace.stores.sql import TupleStore
from cantrip_acp.tuplespace.tuples import WorkTuple, new_tuple

pytestmark = pytest.mark.anyio
Open = Callable[[], TupleStore]


def work(number: int = 0, lane: str = "build") -> WorkTuple:
    return new_tuple(lane, [{"yool": "agent.test.pytest"}], map_pos={"n": number})


@pytest.fixture
async def space(store: TupleStore) -> AsyncIterator[TupleSpace]:
    async with TupleSpace(store) as opened:
        yield opened


async def test_out_in_and_rd(space: TupleSpace) -> None:
    assert await space.out(work(1), work(2)) == [True, True]
    assert (await space.rd({"lane": "build"})).id == work(1).id
    assert (await space.in_({"map_pos": {"n": 2}})).id == work(2).id
    assert (await space.in_({})).id == work(1).id
    with pytest.raises(WaitTimeout, match=r"no tuple matched Pattern\({'lane': 'build'}\) in 0.05 s"):
        await space.in_({"lane": "build"}, timeout_s=0.05)


async def test_callers_wait_and_are_served_in_the_order_in_which_they_came(space: TupleSpace, open_space: Open) -> None:
    other = open_space()
    served: list[tuple[int, str]] = []

    async def caller(number: int) -> None:
        served.append((number, (await space.in_({"lane": "build"}, timeout_s=60)).id))

    async with anyio.create_task_group() as callers:
        for number in range(5):
            callers.start_soon(caller, number)
            await anyio.wait_all_tasks_blocked()
        # Another process puts them, one by one and all at once.
        other.put([work(0)])
        while len(served) < 1:
            await anyio.sleep(0.01)
        other.put([work(number) for number in range(1, 5)])
    assert served == [(number, work(number).id) for number in range(5)]


async def test_a_caller_who_is_cancelled_takes_no_tuple(space: TupleSpace) -> None:
    for number in range(5):
        with anyio.move_on_after(0.01 * number):
            await space.in_({"lane": "build"})
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(space.in_, {"lane": "build"})
            await anyio.sleep(0.002 * number)
            tasks.start_soon(space.out, work(number, "other"))
            tasks.cancel_scope.cancel()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(space.in_, {"lane": "build"})
        await anyio.sleep(0.05)
        await space.out(work(1))
        tasks.cancel_scope.cancel()
    # Whether it came in time or not, the tuple was not lost: a cancelled caller gives it back.
    assert (await space.in_({"lane": "build"}, timeout_s=60)).id == work(1).id


async def test_different_patterns_do_not_hold_each_other_up(space: TupleSpace) -> None:
    got: list[str] = []

    async def caller(lane: str) -> None:
        got.append((await space.in_({"lane": lane}, timeout_s=60)).lane)

    async with anyio.create_task_group() as callers:
        callers.start_soon(caller, "never-first")
        await anyio.wait_all_tasks_blocked()
        callers.start_soon(caller, "first")
        await anyio.wait_all_tasks_blocked()
        await space.out(work(1, "first"))
        while not got:
            await anyio.sleep(0.01)
        await space.out(work(1, "never-first"))
    assert got == ["first", "never-first"]


async def test_a_full_lane_holds_its_producer_up(store: TupleStore) -> None:
    async with TupleSpace(store, max_waiting=2) as space:
        await space.out(work(1), work(2))
        with pytest.raises(SpaceFull):
            await space.out(work(3), wait=False)
        with pytest.raises(SpaceFull):
            await space.out(work(3), timeout_s=0.05)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(space.out, work(3))
            await anyio.sleep(0.05)
            assert store.get(work(3).id) is None
            await space.in_({})
        assert store.get(work(3).id) is not None


async def test_eval_puts_a_tuple_when_it_is_computed(space: TupleSpace) -> None:
    gate = anyio.Event()

    async def compute(template: WorkTuple) -> WorkTuple:
        await gate.wait()
        return new_tuple("done", [{"yool": step.yool} for step in template.payload], parent_id=template.id)

    await space.eval(work(1), compute)
    with pytest.raises(WaitTimeout):
        await space.rd({"lane": "done"}, timeout_s=0.02)
    gate.set()
    assert (await space.rd({"lane": "done"}, timeout_s=60)).parent_id == work(1).id


async def test_a_subscriber_gets_the_past_and_what_comes_and_goes_on_from_its_cursor(space: TupleSpace) -> None:
    await space.out(work(1), work(2, "other"))
    seen: list[int] = []
    last = ""
    async for stored, cursor in space.subscribe({"lane": "build"}):
        last = cursor
        assert isinstance(stored.work.map_pos, dict)
        seen.append(stored.work.map_pos["n"])
        if len(seen) == 1:
            await space.out(work(3))
        else:
            break
    assert seen == [1, 3]
    await space.out(work(4))
    async for stored, _ in space.subscribe({"lane": "build"}, cursor=last):
        assert stored.work.id == work(4).id
        break


@pytest.mark.parametrize("text", ["0", "-1", "many", "1.5", "²"])
def test_a_bound_that_is_no_number_is_an_error(text: str) -> None:
    with pytest.raises(TupleError, match="YOOL_TUPLE_QUEUE_MAXSIZE must be a whole number above 0"):
        max_waiting_from_environment({"YOOL_TUPLE_QUEUE_MAXSIZE": text})
    assert max_waiting_from_environment({}) == 8192


IDLE = """
import sys, anyio
from cantrip_acp.tuplespace.space import TupleSpace
from cantrip_acp.tuplespace.stores import open_store
async def main():
    async with TupleSpace(open_store(sys.argv[1])) as space:
        print("waiting", flush=True)
        print((await space.in_({"lane": "build"})).id, flush=True)
anyio.run(main)
"""


async def test_who_waits_uses_no_processor_time_and_hears_of_another_process(store: TupleStore, address: str) -> None:
    waiter = subprocess.Popen([sys.executable, "-c", IDLE, address], stdout=subprocess.PIPE, text=True)
    try:
        assert waiter.stdout is not None
        assert waiter.stdout.readline() == "waiting\n"
        await anyio.sleep(0.5)
        process = psutil.Process(waiter.pid)
        before: Any = process.cpu_times()
        await anyio.sleep(2)
        after: Any = process.cpu_times()
        assert after.user + after.system - before.user - before.system <= 0.06
        store.put([work(1)])
        assert waiter.stdout.readline() == f"{work(1).id}\n"
        assert waiter.wait(60) == 0
    finally:
        waiter.kill()
        waiter.wait()
