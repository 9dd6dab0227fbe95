"""Workers: steps and their receipts, retries, dead letters, budgets, leases, and the ways to stop."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import anyio
import pytest

from cantrip_acp.tuplespace.errors import SpaceError
from cantrip_acp.tuplespace.fan_out import SPAWN, batch_spawn, spawn
from cantrip_acp.tuplespace.monitoring.status import find_stuck
from cantrip_acp.tuplespace.receipts import is_genuine
from cantrip_acp.tuplespace.stores.base import StoredTuple
from cantrip_acp.tuplespace.stores.sql import TupleStore
from cantrip_acp.tuplespace.tuples import Pattern, WorkTuple, new_tuple
from cantrip_acp.tuplespace.workers import outages
from cantrip_acp.tuplespace.workers import worker as workers
from cantrip_acp.tuplespace.workers.worker import Ended, StepCall, StepFailed, StepResult, Worker, Yool
from cantrip_acp.types.errors import DefinitionError

pytestmark = pytest.mark.anyio
Open = Callable[[], TupleStore]


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outages, "_BACKOFF_S", (0.01, 0.05))
    monkeypatch.setattr(workers, "_LOOK_S", 0.05)


def work(*steps: str | Mapping[str, Any], number: int = 0, **fields: Any) -> WorkTuple:
    payload = [{"yool": step} if isinstance(step, str) else step for step in steps]
    return new_tuple("build", payload, map_pos={"n": number}, **fields)


def stored(store: TupleStore, each: WorkTuple) -> StoredTuple:
    found = store.get(each.id)
    assert found is not None
    return found


def a_worker(store: TupleStore, yools: Mapping[str, Yool], **options: Any) -> Worker:
    return Worker(store, Pattern({"lane": "build"}), yools, name="w", **{"lease_s": 30.0, **options})


async def run_all(store: TupleStore, yools: Mapping[str, Yool], **options: Any) -> None:
    """Run a worker until everything has ended."""

    def ended() -> bool:
        return all(each.state not in ("waiting", "claimed") for each in store.counts())

    with anyio.fail_after(60):
        await a_worker(store, yools, **options).run(until=ended)


def costing(usd: float, tokens: int = 0) -> Yool:
    async def run(call: StepCall) -> StepResult:
        return StepResult(result=dict(call.args), cost={"usd": usd, "tokens_in": tokens, "tokens_out": 0})

    return run


async def test_steps_run_in_order_and_leave_a_receipt_each_and_a_sum(store: TupleStore) -> None:
    order: list[str] = []

    async def step(call: StepCall) -> StepResult:
        order.append(call.args["name"])
        return StepResult(cost={"usd": 0.5, "tokens_in": 3, "tokens_out": 1})

    each = work(
        {"yool": "a.b", "args": {"name": "two"}, "id": "two", "after": ["one"]},
        {"yool": "a.b", "args": {"name": "one"}, "id": "one"},
    )
    store.put([each])
    await run_all(store, {"a.b": step})
    assert order == ["one", "two"]
    assert stored(store, each).state == "done"
    first, second, end = (found.document for found in store.receipts(each.id))
    assert all(is_genuine(document) for document in (first, second, end))
    assert end["steps"] == [second["id"], first["id"]]
    assert end["cost"] == {"usd": 1.0, "tokens_in": 6, "tokens_out": 2, "wall_ms": end["cost"]["wall_ms"]}
    assert (end["yool"], end["exit"], end["tuple_id"]) == ("tuple.end", 0, each.id)


async def test_a_step_that_fails_ends_its_tuple_with_the_reason(store: TupleStore) -> None:
    async def fails(call: StepCall) -> StepResult:
        return StepResult(exit=4, error="2 tests failed")

    each = work("a.fails", "a.never")
    store.put([each])
    await run_all(store, {"a.fails": fails, "a.never": fails})
    assert (stored(store, each).state, stored(store, each).error) == (
        "failed",
        "step 1 (a.fails) failed: 2 tests failed",
    )
    assert stored(store, each).attempts == 1


async def test_what_a_step_cost_counts_once_if_it_fails(store: TupleStore) -> None:
    async def fails(call: StepCall) -> StepResult:
        cost = {"usd": 0.5, "tokens_in": 1, "tokens_out": 1}
        await call.save({"cost": cost})
        return StepResult(exit=1, error="no", cost=cost)

    each = work("a.fails", "a.never")
    store.put([each])
    await run_all(store, {"a.fails": fails, "a.never": fails})
    assert store.receipts(each.id)[-1].document["cost"]["usd"] == 0.5


async def test_what_may_go_better_is_tried_again_with_pauses_and_then_is_a_dead_letter(store: TupleStore) -> None:
    tries: list[str] = []

    async def flaky(call: StepCall) -> StepResult:
        tries.append(call.tuple_id)
        if tries.count(call.tuple_id) < 3:
            raise StepFailed("no network")
        return StepResult()

    lucky, unlucky = work("a.flaky", number=1), work("a.flaky", number=2, agent_terms={"max_retries": 1})
    store.put([lucky, unlucky])
    ended: list[Ended] = []
    await run_all(store, {"a.flaky": flaky}, ended=ended.append)
    assert (stored(store, lucky).state, tries.count(lucky.id)) == ("done", 3)
    assert (stored(store, unlucky).state, stored(store, unlucky).error) == (
        "failed",
        "2 attempts failed; the last: no network",
    )
    assert [each.again for each in ended if each.claim.work == lucky] == ["no network", "no network", None]
    assert len(store.receipts(unlucky.id)) == 1


async def test_a_step_that_ended_is_not_repeated(store: TupleStore) -> None:
    calls: list[str] = []

    async def first(call: StepCall) -> StepResult:
        calls.append("first")
        return StepResult(cost={"usd": 1.0})

    async def second(call: StepCall) -> StepResult:
        calls.append("second")
        if calls.count("second") == 1:
            raise StepFailed("no network")
        return StepResult(cost={"usd": 1.0})

    each = work("a.first", "a.second")
    store.put([each])
    await run_all(store, {"a.first": first, "a.second": second})
    assert calls == ["first", "second", "second"]
    assert store.receipts(each.id)[-1].document["cost"]["usd"] == 2.0


async def test_what_a_worker_cannot_run_stays_and_whoever_looks_reads_why(store: TupleStore) -> None:
    needs = {"recipe": "sha256:new"}

    class Casts:
        needs = {"recipe": "sha256:new"}
        without = ("reference",)

        async def __call__(self, call: StepCall) -> StepResult:
            return StepResult()

    def cast(number: int, **args: Any) -> WorkTuple:
        return work({"yool": "agent.cast.review", "args": {"intent": "x", **args}}, number=number)

    fits, open_text = cast(1, recipe="sha256:new"), cast(2)
    other_text, answered = cast(3, recipe="sha256:old"), cast(4, **needs, reference="x")
    misspelt = work("agent.cast.reveiw")
    half = work("agent.cast.review", "agent.cast.unknown", number=5)
    works = [other_text, answered, misspelt, half, fits, open_text]
    store.put(works)
    assert {each.reason for each in find_stuck(store)} == {"no worker works on this lane"}
    reasons: dict[str, str] = {}
    async with anyio.create_task_group() as tasks:
        worker = a_worker(store, {"agent.cast.review": Casts()})
        tasks.start_soon(worker.run)
        with anyio.fail_after(60):
            while not (store.workers() and all(stored(store, each).state == "done" for each in (fits, open_text))):
                await anyio.sleep(0.01)
            reasons |= {each.tuple_id: each.reason for each in find_stuck(store)}
            assert not await worker.has_work()
        worker.drain()
    assert [(stored(store, each).state, stored(store, each).attempts) for each in works[:4]] == [("waiting", 0)] * 4
    assert "another text of the recipe" in reasons.pop(other_text.id)
    assert "could read the loom" in reasons.pop(answered.id)
    assert reasons.pop(misspelt.id) == "no worker has the yool agent.cast.reveiw; similar: agent.cast.review"
    assert reasons.pop(half.id).startswith("no worker has the yool agent.cast.unknown")
    assert reasons == {}
    assert store.workers() == [], "a worker that ends says so"


async def test_an_outage_of_what_a_yool_needs_costs_no_attempts(store: TupleStore) -> None:
    """One tuple is tried now and then; the others wait for it, and those of other yools do not."""
    down, tries, notices, troubles = True, 0, list[str](), set[str | None]()

    async def model(call: StepCall) -> StepResult:
        nonlocal tries
        tries += 1
        if down:
            raise StepFailed("503", outage=True)
        return StepResult()

    works = [work("a.model", number=n, agent_terms={"max_retries": 0}) for n in range(20)]
    others = [work("a.other", number=n) for n in range(20)]
    store.put([*works, *others])
    async with anyio.create_task_group() as tasks:
        worker = a_worker(store, {"a.model": model, "a.other": costing(0)}, concurrency=4, notice=notices.append)
        tasks.start_soon(worker.run)
        with anyio.fail_after(60):
            while tries < 12 or any(stored(store, each).state != "done" for each in others):
                await anyio.sleep(0.01)
                troubles |= {each.trouble for each in store.workers()}
            assert all(stored(store, each).state in ("waiting", "claimed") for each in works)
            down = False
            while any(stored(store, each).state != "done" for each in works):
                await anyio.sleep(0.01)
        worker.drain()
    assert "a.model does not work: 503. It is tried again in" in notices[0]
    assert notices[-1].startswith("a.model works again after")
    assert "a.model: 503" in troubles
    assert {stored(store, each).attempts for each in works} == {1}


async def test_an_outage_may_end_while_the_worker_notes_it(store: TupleStore, monkeypatch: pytest.MonkeyPatch) -> None:
    notices, tries = list[str](), 0

    async def until(text: str) -> None:
        with anyio.fail_after(30):
            while not any(text in notice for notice in notices):
                await anyio.sleep(0.01)

    async def model(call: StepCall) -> StepResult:
        nonlocal tries
        tries += 1
        if call.position["n"] == 0 and tries <= 2:
            raise StepFailed("503", outage=True)
        await until("does not work")
        return StepResult()

    works = [work("a.model", number=n) for n in range(2)]
    store.put(works)
    async with anyio.create_task_group() as tasks:
        worker = a_worker(store, {"a.model": model}, concurrency=2, notice=notices.append)
        monkeypatch.setattr(worker, "_announce", lambda: until("works again"))
        tasks.start_soon(worker.run)
        with anyio.fail_after(60):
            while any(stored(store, each).state != "done" for each in works):
                await anyio.sleep(0.01)
        worker.drain()
    assert ["works again" in notice for notice in notices] == [False, True]


async def test_a_tuple_that_looks_like_an_outage_while_others_succeed_fails(store: TupleStore) -> None:
    async def model(call: StepCall) -> StepResult:
        if call.position["n"] == 0:
            await anyio.sleep(0.05)
            raise StepFailed("500", outage=True)
        return StepResult()

    poison = work("a.model", number=0, agent_terms={"max_retries": 1})
    store.put([poison])
    number = 0
    async with anyio.create_task_group() as tasks:
        worker = a_worker(store, {"a.model": model}, concurrency=2)
        tasks.start_soon(worker.run)
        with anyio.fail_after(60):
            while stored(store, poison).state != "failed":
                number += 1
                await anyio.to_thread.run_sync(lambda n=number: store.put([work("a.model", number=n)]))  # type: ignore[misc]
                await anyio.sleep(0.01)
        worker.drain()
    assert stored(store, poison).error == "2 attempts failed; the last: 500"


async def test_what_may_be_an_outage_is_one_when_another_tuple_fails_too(store: TupleStore) -> None:
    down, ran = True, list[int]()

    async def model(call: StepCall) -> StepResult:
        ran.append(call.position["n"])
        await anyio.sleep(0.05)
        if down:
            raise StepFailed("m answered 500", perhaps=True)
        return StepResult()

    works = [work("a.model", number=n, agent_terms={"max_retries": 0}) for n in range(4)]
    store.put(works)
    async with anyio.create_task_group() as tasks:
        worker = a_worker(store, {"a.model": model}, concurrency=4)
        tasks.start_soon(worker.run)
        with anyio.fail_after(60):
            while len(ran) < 8:
                await anyio.sleep(0.01)
            down = False
            while any(stored(store, each).state == "waiting" for each in works) or worker.running:
                await anyio.sleep(0.01)
        worker.drain()
    assert [stored(store, each).state for each in works] == ["done"] * 4
    alone = work("a.model", number=9, agent_terms={"max_retries": 1})
    down = True
    store.put([alone])
    await run_all(store, {"a.model": model})
    assert stored(store, alone).error == "2 attempts failed; the last: m answered 500"


async def test_an_outage_that_lasts_too_long_counts(store: TupleStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outages, "_LONG_S", 0.1)

    async def model(call: StepCall) -> StepResult:
        raise StepFailed("503", outage=True)

    each = work("a.model", agent_terms={"max_retries": 1})
    store.put([each])
    await run_all(store, {"a.model": model})
    assert stored(store, each).error == "2 attempts failed; the last: 503"


async def test_a_mistake_that_every_tuple_would_meet_ends_the_worker_and_no_tuple(store: TupleStore) -> None:
    calls = 0

    async def model(call: StepCall) -> StepResult:
        nonlocal calls
        calls += 1
        raise StepFailed("401 wrong key", mistake=True)

    works = [work("a.model", number=n) for n in range(5)]
    store.put(works)
    with (
        pytest.raises(DefinitionError, match=r"a\.model would fail for every tuple: 401 wrong key"),
        anyio.fail_after(60),
    ):
        await a_worker(store, {"a.model": model}, concurrency=1).run()
    assert calls == 1
    assert {(stored(store, each).state, stored(store, each).attempts) for each in works} == {("waiting", 0)}


async def test_a_bug_in_a_yool_fails_its_tuple_alone(store: TupleStore) -> None:
    async def step(call: StepCall) -> StepResult:
        if call.position["n"] == 0:
            raise KeyError("x")
        return StepResult()

    bad, good = work("a.b", number=0, agent_terms={"max_retries": 0}), work("a.b", number=1)
    store.put([bad, good])
    await run_all(store, {"a.b": step})
    assert (stored(store, bad).error, stored(store, good).state) == (
        "1 attempt failed; the last: a bug: KeyError: 'x'",
        "done",
    )


class _Down:
    """A store whose server does not answer for a while."""

    def __init__(self, store: TupleStore) -> None:
        self._store, self.refused, self.is_down = store, 0, False

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if not callable(found) or name in ("wait", "close"):
            return found

        def ask(*args: Any, **options: Any) -> Any:
            if self.is_down:
                self.refused += 1
                raise SpaceError("cannot write tuple-space: no server")
            return found(*args, **options)

        return ask


async def test_an_outage_of_the_store_ends_no_worker_and_loses_no_result(store: TupleStore) -> None:
    down, ran, notices = _Down(store), list[int](), list[str]()

    async def step(call: StepCall) -> StepResult:
        down.is_down = True
        ran.append(call.position["n"])
        await call.save({"cost": {"usd": 1.0}})
        return StepResult(cost={"usd": 1.0})

    works = [work("a.b", number=n) for n in range(4)]
    store.put(works)
    async with anyio.create_task_group() as tasks:
        worker = a_worker(store, {"a.b": step}, concurrency=2, lease_s=3, notice=notices.append)
        worker.store = down  # type: ignore[assignment]
        tasks.start_soon(worker.run)
        with anyio.fail_after(60):
            while any(stored(store, each).state != "done" for each in works):
                await anyio.sleep(0.1)
                if down.refused > 5:
                    assert worker.is_held_up
                    down.is_down, down.refused = False, 0
        worker.drain()
    assert sorted(ran) == [0, 1, 2, 3]
    assert "no server. This worker waits and tries again" in notices[0]
    assert any("works again" in each for each in notices)


async def test_a_worker_can_be_stopped_during_an_outage_of_the_store(store: TupleStore) -> None:
    down = _Down(store)
    store.put([work("a.b")])
    async with anyio.create_task_group() as tasks:
        worker = a_worker(store, {"a.b": costing(0)})
        worker.store, down.is_down = down, True  # type: ignore[assignment]
        with anyio.fail_after(60):
            tasks.start_soon(worker.run)
            while not down.refused:
                await anyio.sleep(0.01)
            worker.drain()


async def test_a_budget_is_left_for_later_steps_and_then_is_gone(store: TupleStore) -> None:
    left: list[tuple[float | None, int | None]] = []

    async def spend(call: StepCall) -> StepResult:
        left.append((call.left_usd, call.left_tokens))
        return StepResult(cost={"usd": 0.25, "tokens_in": 30, "tokens_out": 10})

    each = work("a.b", "a.b", "a.b", agent_terms={"budget_usd": 0.5, "budget_tokens": 100})
    store.put([each])
    await run_all(store, {"a.b": spend})
    assert left == [(0.5, 100), (0.25, 60)]
    assert stored(store, each).error == "step 3 (a.b) failed: nothing is left of the tuple's budget_usd"


async def test_a_deadline_stops_what_runs_and_lets_nothing_begin(store: TupleStore) -> None:
    import datetime

    def at(seconds: float) -> dict[str, str]:
        return {"deadline_iso": (datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=seconds)).isoformat()}

    async def forever(call: StepCall) -> StepResult:
        await anyio.sleep_forever()
        raise AssertionError

    late, slow = work("a.b", number=1, agent_terms=at(-1)), work("a.b", number=2, agent_terms=at(3))
    store.put([late, slow])
    await run_all(store, {"a.b": forever})
    assert "nothing is left of the tuple's deadline_iso" in (stored(store, late).error or "")
    assert "deadline_iso came while the step ran" in (stored(store, slow).error or "")


async def test_at_most_so_many_at_once_and_more_than_one(store: TupleStore) -> None:
    running, most = 0, 0
    together = anyio.Event()

    async def step(call: StepCall) -> StepResult:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if most == 3:
            together.set()
        with anyio.move_on_after(30):
            await together.wait()
        await anyio.sleep(0.02)
        running -= 1
        return StepResult()

    store.put([work("a.b", number=n) for n in range(12)])
    await run_all(store, {"a.b": step}, concurrency=3)
    assert most == 3


async def test_a_drain_lets_what_runs_end_and_a_second_gives_it_back(store: TupleStore) -> None:
    started, go = anyio.Event(), anyio.Event()

    async def step(call: StepCall) -> StepResult:
        started.set()
        await go.wait()
        return StepResult()

    first, second = work("a.b", number=1), work("a.b", number=2)
    store.put([first, second])
    async with anyio.create_task_group() as tasks:
        worker = a_worker(store, {"a.b": step}, concurrency=1)
        tasks.start_soon(worker.run)
        await started.wait()
        worker.drain()
        await anyio.sleep(0.05)
        assert worker.running == 1
        go.set()
    assert (stored(store, first).state, stored(store, second).state) == ("done", "waiting")

    started, go = anyio.Event(), anyio.Event()
    async with anyio.create_task_group() as tasks:
        worker = a_worker(store, {"a.b": step}, concurrency=1)
        tasks.start_soon(worker.run)
        await started.wait()
        worker.drain()
        worker.drain()
    # Nothing was tried to the end, so this was no attempt.
    assert (stored(store, second).state, stored(store, second).attempts) == ("waiting", 0)


async def test_whoever_loses_a_lease_stops_and_stores_nothing(store: TupleStore, open_space: Open) -> None:
    each = work("a.b")
    store.put([each])
    stopped: list[str] = []

    async def step(call: StepCall) -> StepResult:
        try:
            await anyio.sleep_forever()
        finally:
            stopped.append(call.tuple_id)
        raise AssertionError

    other = open_space()
    ended: list[Ended] = []
    async with anyio.create_task_group() as tasks:
        worker = a_worker(store, {"a.b": step}, lease_s=0.6, ended=ended.append)
        # Heartbeats of this worker do not reach the store any more.
        worker.store = _Cut(store, other)
        tasks.start_soon(worker.run)
        while not stopped:
            await anyio.sleep(0.02)
        worker.drain()
        worker.drain()
    assert stopped == [each.id]
    assert store.receipts(each.id) == []
    assert stored(store, each).worker == "thief"


class _Cut:
    """A store whose first heartbeat comes after another worker has taken the tuple."""

    def __init__(self, store: TupleStore, other: TupleStore) -> None:
        self._store, self._other = store, other
        self._taken = threading.Event()
        self._claimed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def claim(self, pattern: Pattern, worker: str, **options: Any) -> Any:
        # Once its lease has ended, it would take the tuple again itself.
        claims = [] if self._claimed else self._store.claim(pattern, worker, **options)
        self._claimed = self._claimed or bool(claims)
        return claims

    def extend(self, claims: Any, lease_s: float) -> list[bool]:
        while not self._taken.is_set():
            if self._other.claim(Pattern(), "thief", lease_s=60):
                self._taken.set()
        return self._store.extend(claims, lease_s)


async def test_the_next_attempt_sees_how_far_the_step_was_and_its_cost_counts(store: TupleStore) -> None:
    seen: list[Mapping[str, Any] | None] = []

    async def step(call: StepCall) -> StepResult:
        seen.append(call.progress)
        await call.save({"entity_id": "e1", "cost": {"usd": 0.5, "tokens_in": 3, "tokens_out": 1}})
        raise StepFailed("no network")

    each = work("a.b", agent_terms={"max_retries": 1})
    store.put([each])
    await run_all(store, {"a.b": step})
    assert [None if progress is None else progress["entity_id"] for progress in seen] == [None, "e1"]
    [end] = store.receipts(each.id)
    assert end.document["cost"]["usd"] == 0.5, "what was paid is in the receipt, although the step never ended"


async def test_what_was_not_tried_does_not_count_as_an_attempt(store: TupleStore) -> None:
    calls = 0

    async def step(call: StepCall) -> StepResult:
        nonlocal calls
        calls += 1
        if calls < 5:
            raise StepFailed("the cast still runs elsewhere", tried=False)
        return StepResult()

    each = work("a.b", agent_terms={"max_retries": 0})
    store.put([each])
    await run_all(store, {"a.b": step})
    assert (stored(store, each).state, calls) == ("done", 5)


async def test_a_worker_may_get_the_same_tuple_again_while_its_first_attempt_stops(store: TupleStore) -> None:
    begun: list[anyio.Event] = []

    async def step(call: StepCall) -> StepResult:
        begun.append(anyio.Event())
        begun[-1].set()
        if len(begun) == 1:
            try:
                await anyio.sleep_forever()
            finally:
                with anyio.CancelScope(shield=True):
                    await anyio.sleep(0.5)
        return StepResult()

    each = work("a.b")
    store.put([each])
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            worker = a_worker(store, {"a.b": step}, lease_s=3)
            tasks.start_soon(worker.run)
            while not begun:
                await anyio.sleep(0.01)
            store.revoke("w", "somebody took it back")
            while stored(store, each).state != "done":
                await anyio.sleep(0.01)
            worker.drain()
    assert len(begun) == 2


async def test_what_was_claimed_while_the_worker_was_told_to_stop_is_given_back(store: TupleStore) -> None:
    each = work("a.b")
    store.put([each])
    worker = a_worker(store, {"a.b": costing(1)})
    claim = store.claim

    def told_meanwhile(*args: Any, **options: Any) -> Any:
        claims = claim(*args, **options)
        worker.drain()
        return claims

    worker.store = _Told(store, told_meanwhile)  # type: ignore[assignment]
    with anyio.fail_after(60):
        await worker.run()
    assert (stored(store, each).state, stored(store, each).attempts) == ("waiting", 0)


class _Told:
    """A store that is the other one, but for `claim`."""

    def __init__(self, store: TupleStore, claim: Callable[..., Any]) -> None:
        self._store = store
        self.claim = claim

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


async def test_a_fan_out_puts_its_leaves_when_the_earlier_ones_are_taken(store: TupleStore) -> None:
    fan_out = batch_spawn("build", [{"yool": "a.b"}], 2, 10, agent_terms={"max_retries": 0})
    store.set_budget("all", usd=1000.0)
    store.put([fan_out.first()], budget="all")
    paths: list[Any] = []
    most = 0

    async def leaf(call: StepCall) -> StepResult:
        nonlocal most
        paths.append(tuple(call.position["path"]))
        most = max(most, sum(each.count for each in store.counts() if each.state in ("waiting", "claimed")))
        return StepResult(cost={"usd": 1.0})

    await run_all(store, {"a.b": leaf, SPAWN: spawn}, concurrency=4)
    assert sorted(paths) == [(a, b) for a in range(10) for b in range(10)]
    assert most <= 10 + 10 + 1, "a level, and the next one that a worker has put while the last of it run"
    [budget] = store.budgets("all")
    assert budget.spent_usd == 100.0, "the leaves share the budget of the tuple that stands for them"


async def test_a_fan_out_stays_in_its_lane_and_names_what_is_wrong(store: TupleStore) -> None:
    fan_out = batch_spawn("other", [{"yool": "a.b"}], 2, 10)
    elsewhere = new_tuple("build", [{"yool": SPAWN, "args": dict(fan_out.first().payload[0].args or {})}])  # type: ignore[call-overload]
    wrong = new_tuple("build", [{"yool": SPAWN, "args": {"lane": "build", "start": 0, "fan_out": {"depth": "x"}}}])
    two = work(SPAWN, SPAWN)
    store.put([elsewhere, wrong, two])
    await run_all(store, {SPAWN: spawn})
    assert "puts its tuples into its own lane" in (stored(store, elsewhere).error or "")
    assert "the fan-out is not valid" in (stored(store, wrong).error or "")
    assert stored(store, two).state == "failed"
    assert [each.lane for each in store.counts()] == ["build"]


@pytest.mark.parametrize(
    ("result", "kept"),
    [
        ("a\0b", "done"),
        ({"a\0": ["\0"]}, "done"),
        ("\ud800", "done"),
        (float("nan"), "failed"),
        ({1, 2}, "failed"),
        ("x\0" * 20_000, "done"),
    ],
    ids=["NUL", "NUL inside", "half a character", "NaN", "a set", "large"],
)
async def test_a_result_that_a_store_cannot_hold_ends_no_worker(store: TupleStore, result: Any, kept: str) -> None:
    async def odd(call: StepCall) -> StepResult:
        return StepResult(result=result, cost={"usd": 0.5})

    single, double = work("a.odd"), work("a.odd", "a.good", number=1)
    store.put([single, double])
    await run_all(store, {"a.odd": odd, "a.good": costing(0.5)})
    for each in (single, double):
        assert stored(store, each).state == kept
        assert store.receipts(each.id)[0].document["cost"]["usd"] == 0.5


async def test_a_reason_or_a_cost_that_a_store_cannot_hold_ends_no_worker(store: TupleStore) -> None:
    async def fails(call: StepCall) -> StepResult:
        raise StepFailed("a\0b \ud800")

    async def costs(call: StepCall) -> StepResult:
        return StepResult(cost={"usd": float("nan"), "tokens_in": 3})

    works = [work("a.fails", agent_terms={"max_retries": 0}), work("a.costs", number=1)]
    store.put(works)
    await run_all(store, {"a.fails": fails, "a.costs": costs})
    assert [stored(store, each).state for each in works] == ["failed", "failed"]
    assert stored(store, works[0]).error == "1 attempt failed; the last: a\ufffdb \ufffd"
    assert store.receipts(works[1].id)[0].document["cost"]["tokens_in"] == 3


async def test_the_leaves_of_a_fan_out_have_its_authority_its_sources_and_its_flags(store: TupleStore) -> None:
    more: dict[str, Any] = {"authority": {"user": "ann"}, "src_ptr": ["commit://abc"], "flags": {"no_cache": True}}
    store.put([batch_spawn("build", [{"yool": "a.leaf"}], 2, 2, **more).first()])
    await run_all(store, {SPAWN: spawn, "a.leaf": costing(0)})
    leaves = [each.work for each in store.after("", Pattern({"payload": [{"yool": "a.leaf"}]}))[0]]
    assert len(leaves) == 4
    for each in leaves:
        assert {name: each.document[name] for name in more} == more
