"""Steps that do not wait for each other run beside each other, and share the limits of their tuple."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from cantrip_acp.tuplespace.receipts import is_genuine
from cantrip_acp.tuplespace.stores.sql import TupleStore
from cantrip_acp.tuplespace.tuples import Pattern, WorkTuple, new_tuple
from cantrip_acp.tuplespace.workers import outages
from cantrip_acp.tuplespace.workers import worker as workers
from cantrip_acp.tuplespace.workers.worker import StepCall, StepFailed, StepResult, Worker, Yool
from tests.support.waiting import wait_for

pytestmark = pytest.mark.anyio
Open = Callable[[], TupleStore]


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outages, "_BACKOFF_S", (0.01, 0.05))
    monkeypatch.setattr(workers, "_LOOK_S", 0.05)


def graph(after: Mapping[str, list[str]], **fields: Any) -> WorkTuple:
    """A tuple with a step of the yool ``a.NAME`` for each name, after the steps that it waits for."""
    payload = [{"yool": f"a.{name}", "id": name, "after": wanted} for name, wanted in after.items()]
    return new_tuple("build", payload, **fields)


async def run_all(store: TupleStore, yools: Mapping[str, Yool], **options: Any) -> None:
    def ended() -> bool:
        return all(each.state not in ("waiting", "claimed") for each in store.counts())

    with anyio.fail_after(60):
        await Worker(store, Pattern({"lane": "build"}), yools, name="w", **options).run(until=ended)


class Meeting:
    """A yool whose steps wait until ``count`` of them run at the same time."""

    def __init__(self, count: int, cost: float = 0.0) -> None:
        self.count = count
        self.cost = cost
        self.calls: dict[str, StepCall] = {}
        self.all_there = anyio.Event()

    async def __call__(self, call: StepCall) -> StepResult:
        self.calls[call.yool] = call
        if len(self.calls) == self.count:
            self.all_there.set()
        await self.all_there.wait()
        return StepResult(cost={"usd": self.cost, "tokens_in": 0, "tokens_out": 0})


async def test_steps_that_do_not_wait_for_each_other_run_at_the_same_time(store: TupleStore) -> None:
    meeting, order = Meeting(2), list[str]()

    async def note(call: StepCall) -> StepResult:
        order.append(call.yool)
        # The order follows from the graph, not from the payload.
        assert ("a.first" in order, call.yool == "a.last") == (True, meeting.all_there.is_set())
        return StepResult()

    work = graph({"last": ["left", "right"], "left": ["first"], "right": ["first"], "first": []})
    store.put([work])
    await run_all(store, {"a.first": note, "a.left": meeting, "a.right": meeting, "a.last": note})
    assert order == ["a.first", "a.last"]
    found = store.receipts(work.id)
    assert {each.step for each in found} == {0, 1, 2, 3, None}
    assert all(is_genuine(each.document) for each in found)
    by_step = {each.step: each.document for each in found}
    assert by_step[None]["steps"] == [by_step[index]["id"] for index in range(4)]


async def test_a_step_that_fails_stops_those_that_wait_for_it_and_no_others(store: TupleStore) -> None:
    ran, others = list[str](), anyio.Event()

    async def fails(call: StepCall) -> StepResult:
        return StepResult(exit=3, error="2 tests failed")

    async def runs(call: StepCall) -> StepResult:
        ran.append(call.yool)
        if call.yool == "a.docs":
            # It ends long after the other one has failed.
            await others.wait()
        else:
            others.set()
        return StepResult(cost={"usd": 0.5})

    async def release(call: StepCall) -> StepResult:
        others.set()
        return await fails(call)

    work = graph({"test": [], "deploy": ["test"], "docs": [], "site": ["docs"]})
    store.put([work])
    await run_all(store, {"a.test": release, "a.deploy": runs, "a.docs": runs, "a.site": runs})
    assert ran == ["a.docs", "a.site"]
    stored = store.get(work.id)
    assert stored is not None
    assert (stored.state, stored.error) == ("failed", "step 1 (a.test) failed: 2 tests failed")
    found = {each.step: each.document for each in store.receipts(work.id)}
    # The step that failed has its receipt, too, and the end names all of them.
    assert (found.keys(), found[0]["exit"]) == ({0, 2, 3, None}, 3)
    assert (found[None]["steps"], found[None]["cost"]["usd"]) == ([found[n]["id"] for n in (0, 2, 3)], 1.0)


async def test_a_step_that_is_tried_again_does_not_repeat_the_others(store: TupleStore) -> None:
    ran, failed = list[str](), anyio.Event()

    async def flaky(call: StepCall) -> StepResult:
        ran.append(call.yool)
        if ran.count(call.yool) == 1:
            failed.set()
            raise StepFailed("no network")
        return StepResult()

    async def slow(call: StepCall) -> StepResult:
        ran.append(call.yool)
        await failed.wait()
        return StepResult()

    work = graph({"flaky": [], "slow": []})
    store.put([work])
    await run_all(store, {"a.flaky": flaky, "a.slow": slow})
    assert sorted(ran) == ["a.flaky", "a.flaky", "a.slow"]
    assert len(store.receipts(work.id)) == 3


async def test_the_limits_of_a_tuple_are_shared_by_the_steps_that_run_at_once(store: TupleStore) -> None:
    terms = {"budget_usd": 1.0, "budget_tokens": 1001, "cpu_quota_pct": 60, "disk_quota_mb": 10}
    meeting, last = Meeting(2, cost=0.1), list[StepCall]()

    async def end(call: StepCall) -> StepResult:
        last.append(call)
        return StepResult()

    work = graph({"left": [], "right": [], "last": ["left", "right"]}, agent_terms=terms)
    store.put([work])
    await run_all(store, {"a.left": meeting, "a.right": meeting, "a.last": end})
    for call in meeting.calls.values():
        assert (call.left_usd, call.left_tokens, call.cpu_percent, call.disk_mb) == (0.5, 500, 30, 5.0)
    # What they did not use is there for the next one.
    assert [(each.left_usd, each.left_tokens, each.cpu_percent) for each in last] == [(0.8, 1001, 60)]


async def test_a_step_waits_for_its_part_while_others_have_all(store: TupleStore) -> None:
    """One token cannot be divided: the steps run one after the other."""
    running, most = set[str](), list[int]()

    async def step(call: StepCall) -> StepResult:
        running.add(call.yool)
        most.append(len(running))
        await anyio.lowlevel.checkpoint()
        running.discard(call.yool)
        return StepResult()

    work = graph({"left": [], "right": [], "other": []}, agent_terms={"budget_tokens": 1})
    store.put([work])
    await run_all(store, {"a.left": step, "a.right": step, "a.other": step})
    assert most == [1, 1, 1]
    stored = store.get(work.id)
    assert stored is not None
    assert stored.state == "done"


async def test_a_worker_runs_no_more_steps_than_it_may(store: TupleStore) -> None:
    running, most = set[tuple[str, str]](), list[int]()

    async def step(call: StepCall) -> StepResult:
        running.add((call.tuple_id, call.yool))
        most.append(len(running))
        await anyio.lowlevel.checkpoint()
        running.discard((call.tuple_id, call.yool))
        return StepResult()

    names = [f"s{number}" for number in range(8)]
    store.put([graph({name: [] for name in names}, map_pos={"n": n}) for n in range(3)])
    await run_all(store, {f"a.{name}": step for name in names}, concurrency=3)
    assert len(most) == 24
    assert 1 < max(most) <= 3


async def test_what_each_step_saved_is_there_for_its_next_attempt(store: TupleStore) -> None:
    saved, seen = Meeting(2), dict[str, Any]()

    async def step(call: StepCall) -> StepResult:
        if call.progress is not None:
            seen[call.yool] = call.progress
            return StepResult(cost={"usd": 1.0})
        await call.save({"entity_id": call.yool, "cost": {"usd": 0.5, "tokens_in": 1, "tokens_out": 1}})
        await saved(call)
        if call.yool == "a.third":
            return StepResult()
        raise StepFailed("cut off")

    work = graph({"left": [], "right": []})
    store.set_budget("team", usd=10)
    store.put([work], budget="team")
    spent: list[float] = []

    def ended(_: object) -> None:
        spent.append(store.budgets("team")[0].spent_usd)

    await run_all(store, {"a.left": step, "a.right": step}, ended=ended)
    assert {name: each["entity_id"] for name, each in seen.items()} == {"a.left": "a.left", "a.right": "a.right"}
    # The cost of both counted while they ran, and at the end what they cost in all.
    assert spent == [1.0, 2.0]


WORKER = """
import os, sys, anyio
from cantrip_acp.tuplespace.stores import open_store
from cantrip_acp.tuplespace.tuples import Pattern
from cantrip_acp.tuplespace.workers.worker import StepResult, Worker
address, log, hang = sys.argv[1:]
def write(text):
    with open(log, "ab", buffering=0) as file:
        file.write(f"{text}\\n".encode())
async def quick(call):
    write(call.yool)
    return StepResult()
async def slow(call):
    write(call.yool)
    if hang == "yes":
        await anyio.sleep_forever()
    return StepResult()
async def main():
    store = open_store(address)
    yools = {"a.lint": quick, "a.types": quick, "a.test": slow, "a.pr": quick}
    over = lambda: all(each.state == "done" for each in store.counts())
    await Worker(store, Pattern({"lane": "build"}), yools, name=f"w{os.getpid()}", lease_s=4).run(until=over)
anyio.run(main)
"""


async def test_after_kill_9_only_what_has_no_receipt_is_repeated(
    store: TupleStore, address: str, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    work = graph({"lint": [], "types": [], "test": [], "pr": ["lint", "types", "test"]})
    store.put([work])
    first = subprocess.Popen([sys.executable, "-c", WORKER, address, str(log), "yes"])
    try:
        wait_for(lambda: len(store.receipts(work.id)) == 2 and "a.test" in log.read_text())
    finally:
        first.kill()
        first.wait()
    subprocess.run([sys.executable, "-c", WORKER, address, str(log), "no"], check=True, timeout=60)
    assert sorted(log.read_text().split()) == ["a.lint", "a.pr", "a.test", "a.test", "a.types"]
    assert [each.step for each in store.receipts(work.id)][-2:] == [3, None]
