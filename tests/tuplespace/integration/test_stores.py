"""What every store of tuples does: the same for SQLite and PostgreSQL."""

from __future__ import annotations

import sqlite3
import stat
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from cantrip_acp.tuplespace.canonical_json import content_id
from cantrip_acp.tuplespace.errors import LeaseLost, SpaceError, SpaceFull, TupleError
from cantrip_acp.tuplespace.stores import open_store
from cantrip_acp.tuplespace.stores.base import Claim, StoredReceipt
from cantrip_acp.tuplespace.stores.sql import TupleStore
from cantrip_acp.tuplespace.tuples import Pattern, Runnable, WorkTuple, new_tuple, parse_tuple
from tests.support.postgres_server import PASSWORD, QUOTED
from tests.support.tuples import acknowledge

Open = Callable[[], TupleStore]
ANY = Pattern()


def work(number: int = 0, lane: str = "build", **fields: Any) -> WorkTuple:
    steps = [{"yool": "agent.test.pytest"}, {"yool": "agent.pr.create"}]
    made = new_tuple(lane, steps, map_pos={"n": number}, **fields)
    return parse_tuple({**made.document, "created_at": "2026-05-19T17:30:00Z"})


def receipt(claimed: WorkTuple, number: int = 0) -> dict[str, Any]:
    content = {"yool": "agent.test.pytest", "tuple_id": claimed.id, "exit": 0, "number": number}
    return {"id": content_id(content), **content}


def state(store: TupleStore, each: WorkTuple) -> str:
    stored = store.get(each.id)
    assert stored is not None
    return stored.state


def claim_one(store: TupleStore, pattern: Pattern = ANY, lease_s: float = 30) -> Claim:
    [claim] = store.claim(pattern, "w", lease_s=lease_s)
    return claim


def test_what_is_put_is_claimed_in_order_and_ends_with_a_receipt(store: TupleStore, open_space: Open) -> None:
    works = [work(n) for n in range(3)]
    assert store.put(works) == [True] * 3
    other = open_space()
    claims = other.claim(Pattern({"lane": "build"}), "worker-1", lease_s=30, count=2)
    assert [each.work for each in claims] == works[:2]
    assert [each.attempt for each in claims] == [1, 1]
    assert [state(store, each) for each in works] == ["claimed", "claimed", "waiting"]
    other.save_step(claims[0], 0, receipt(works[0], 1))
    acknowledge(other, claims[0], receipt(works[0], 2))
    stored = store.get(works[0].id)
    assert stored is not None
    assert (stored.state, stored.attempts, stored.worker) == ("done", 1, "worker-1")
    assert [(each.step, each.document["number"]) for each in store.receipts(works[0].id)] == [(0, 1), (None, 2)]
    assert {(c.lane, c.state): c.count for c in store.counts()} == {
        ("build", "claimed"): 1, ("build", "done"): 1, ("build", "waiting"): 1,
    }  # fmt: skip


def test_the_same_work_is_stored_once(store: TupleStore, open_space: Open) -> None:
    assert store.put([work(1), work(1), work(2)]) == [True, False, True]
    assert open_space().put([work(1)]) == [False]
    acknowledge(store, claim_one(store), receipt(work(1)))
    # Nor is it done again.
    assert store.put([work(1)]) == [False]
    assert [each.work.id for each in store.claim(ANY, "w", lease_s=30, count=9)] == [work(2).id]


def test_patterns_select_by_lane_and_by_any_field(store: TupleStore) -> None:
    third = work(3, "test", authority={"user": "Ünal", "ci": True})
    store.put([work(1, "build"), work(2, "test"), third])
    assert claim_one(store, Pattern({"lane": "test", "authority": {"ci": True}})).work == third
    assert store.claim(Pattern({"lane": "nothing"}), "w", lease_s=9) == []
    assert store.read(Pattern({"map_pos": {"n": 2}})) == work(2, "test")
    assert store.take(Pattern({"payload": [{"yool": "agent.pr.create"}], "lane": "test"})) == work(2, "test")
    assert store.read(Pattern({"map_pos": {"n": 2}})) is None
    assert claim_one(store).work == work(1, "build")


def test_a_lease_that_ends_gives_the_tuple_to_another_and_refuses_the_first(
    store: TupleStore, open_space: Open
) -> None:
    store.put([work()])
    first = claim_one(store, lease_s=0.05)
    other = open_space()
    end = time.monotonic() + 60
    while not (again := other.claim(ANY, "w2", lease_s=30)):
        assert time.monotonic() < end
        time.sleep(0.02)
    [second] = again
    assert (second.attempt, second.token > first.token) == (2, True)
    actions: list[Callable[[], None]] = [
        lambda: store.save_step(first, 0, receipt(work())),
        lambda: acknowledge(store, first, receipt(work())),
        lambda: store.release(first, "late"),
    ]
    for action in actions:
        with pytest.raises(LeaseLost, match="another worker may have the tuple"):
            action()
    assert store.extend([first, second], 30) == [False, True]
    assert store.receipts(work().id) == []
    acknowledge(other, second, receipt(work()))
    assert len(store.receipts(work().id)) == 1


def test_a_heartbeat_keeps_a_lease(store: TupleStore) -> None:
    store.put([work()])
    held = claim_one(store, lease_s=3)
    for _ in range(4):
        time.sleep(0.8)
        assert store.extend([held], 3) == [True]
        assert store.claim(ANY, "thief", lease_s=9) == []
    acknowledge(store, held, receipt(work()))


def test_a_release_waits_and_says_why(store: TupleStore) -> None:
    store.put([work()])
    store.release(claim_one(store), "no network", delay_s=1.5)
    stored = store.get(work().id)
    assert stored is not None
    assert (stored.state, stored.error, stored.attempts) == ("waiting", "no network", 1)
    assert store.claim(ANY, "w", lease_s=9) == []
    time.sleep(1.55)
    again = claim_one(store)
    assert again.attempt == 2
    store.release(again, "shutting down", counts=False)
    assert claim_one(store).attempt == 2


def test_a_dead_letter_has_a_receipt_and_its_reason(store: TupleStore) -> None:
    store.put([work()])
    acknowledge(store, claim_one(store), receipt(work()), failed="3 attempts failed: exit 1")
    stored = store.get(work().id)
    assert stored is not None
    assert (stored.state, stored.error) == ("failed", "3 attempts failed: exit 1")
    assert store.claim(ANY, "w", lease_s=9) == []


def test_an_acknowledgement_is_one_transaction(store: TupleStore) -> None:
    store.put([work()])
    claim = claim_one(store)
    child = work(7, parent_id=work().id)
    with pytest.raises(TupleError, match="belongs to tuple"):
        acknowledge(store, claim, receipt(child), children=[child])
    assert state(store, work()) == "claimed"
    assert store.get(child.id) is None
    acknowledge(store, claim, receipt(work()), children=[child])
    assert claim_one(store).work == child
    # The same again is no error: the answer to the first may have been lost.
    acknowledge(store, claim, receipt(work()), children=[child])
    assert len(store.receipts(work().id)) == 1


def test_a_full_lane_refuses_all_or_nothing(store: TupleStore) -> None:
    store.put([work(n) for n in range(5)], max_waiting=5)
    store.put([work(n) for n in range(5)], max_waiting=5)
    with pytest.raises(SpaceFull, match=r"lane 'build' .* at most 5 are allowed .*YOOL_TUPLE_QUEUE_MAXSIZE"):
        store.put([work(8, "other"), work(9)], max_waiting=5)
    assert store.get(work(8, "other").id) is None
    claim_one(store)
    assert store.put([work(9)], max_waiting=5) == [True]


def test_many_threads_claim_each_tuple_once(store: TupleStore, open_space: Open) -> None:
    works = [work(n) for n in range(120)]
    store.put(works)
    seen: list[str] = []
    lock = threading.Lock()

    def run(own: TupleStore) -> None:
        while claims := own.claim(ANY, "w", lease_s=30, count=3):
            for claim in claims:
                acknowledge(own, claim, receipt(claim.work))
            with lock:
                seen.extend(claim.work.id for claim in claims)

    with ThreadPoolExecutor(4) as pool:
        for each in [pool.submit(run, open_space()) for _ in range(4)]:
            each.result(60)
    assert sorted(seen) == sorted(each.id for each in works)


def test_whoever_follows_sees_each_tuple_once(store: TupleStore, open_space: Open) -> None:
    store.put([work(n, "a" if n % 2 else "b") for n in range(5)])
    found, cursor = store.after("", Pattern({"lane": "a"}))
    assert [each.work for each in found] == [work(1, "a"), work(3, "a")]
    assert store.after(cursor, ANY) == ([], cursor)
    open_space().put([work(9, "a")])
    found, cursor = store.after(cursor, ANY)
    assert [each.work for each in found] == [work(9, "a")]


def test_a_change_by_another_process_ends_a_wait(store: TupleStore, open_space: Open) -> None:
    stop = threading.Event()
    while store.wait(0.05, stop):
        pass
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(store.wait, 120, stop)
        time.sleep(0.3)
        assert not waiting.done()
        open_space().put([work()])
        assert waiting.result(60) is True
        idle = pool.submit(store.wait, 60, stop)
        time.sleep(0.1)
        stop.set()
        assert idle.result(30) in (True, False)


def test_nothing_in_the_log_can_be_changed(store: TupleStore, address: str) -> None:
    store.put([work()])
    acknowledge(store, claim_one(store), receipt(work()))
    if address.startswith("sqlite:"):
        with sqlite3.connect(address.removeprefix("sqlite:")) as base:
            for statement in ("UPDATE tuples SET lane = 'x'", "DELETE FROM receipts", "DELETE FROM tuples"):
                with pytest.raises(sqlite3.IntegrityError, match="append-only"):
                    base.execute(statement)
    else:
        import psycopg

        with psycopg.connect(address, autocommit=True) as base:
            for statement in ("UPDATE cantrip_tuples SET lane = 'x'", "DELETE FROM cantrip_tuple_receipts"):
                with pytest.raises(psycopg.errors.RestrictViolation, match="append-only"):
                    base.execute(statement)


def test_a_receipt_is_found_by_its_id(store: TupleStore) -> None:
    store.put([work()])
    made = receipt(work())
    acknowledge(store, claim_one(store), made)
    found = store.receipt(made["id"])
    assert found is not None
    assert (found.document, found.step) == (made, None)
    assert store.receipt(work().id) is None


def test_a_version_that_adds_to_the_tables_leaves_this_one_working(
    store: TupleStore, address: str, open_space: Open
) -> None:
    """A later version migrates while workers of this one run."""
    if address.startswith("sqlite:"):
        with sqlite3.connect(address.removeprefix("sqlite:")) as base:
            base.execute("ALTER TABLE queue ADD COLUMN later TEXT")
            base.execute("PRAGMA user_version = 90")
        too_new = ["PRAGMA user_version = 100"]
    else:
        import psycopg

        with psycopg.connect(address, autocommit=True) as base:
            base.execute("ALTER TABLE cantrip_tuple_queue ADD COLUMN later text")
            base.execute("INSERT INTO cantrip_tuple_tables VALUES (90)")
        too_new = ["INSERT INTO cantrip_tuple_tables VALUES (100)"]
    for each in (store, open_space()):
        each.put([work()])
    acknowledge(store, claim_one(store), receipt(work()))
    if address.startswith("sqlite:"):
        with sqlite3.connect(address.removeprefix("sqlite:")) as base:
            base.execute(too_new[0])
    else:
        with psycopg.connect(address, autocommit=True) as base:
            base.execute(too_new[0].encode())
    with pytest.raises(SpaceError, match=r"version 100, .* Upgrade cantrip-acp"):
        open_space()


def test_a_file_is_the_users_alone_and_no_other_database(tmp_path: Path) -> None:
    open_store(tmp_path / "new" / "space.db").close()
    assert stat.S_IMODE((tmp_path / "new" / "space.db").stat().st_mode) == 0o600
    with sqlite3.connect(tmp_path / "other.db") as base:
        base.execute("CREATE TABLE x (y)")
    with pytest.raises(SpaceError, match="a database of another program"):
        open_store(tmp_path / "other.db")
    (tmp_path / "text.db").write_text("not a database at all\n" * 100)
    with pytest.raises(SpaceError, match=r"cannot open tuple-space .*text\.db"):
        open_store(tmp_path / "text.db")
    with pytest.raises(SpaceError, match="mysql://"):
        open_store("mysql://localhost/x")


@pytest.mark.parametrize("address", ["postgres"], indirect=True)
def test_no_error_has_the_password(address: str, store: TupleStore) -> None:
    assert PASSWORD not in store.location
    assert QUOTED not in repr(store)
    wrong = address.replace(QUOTED, "0th%40er")
    with pytest.raises(SpaceError, match="are user, password") as error:
        open_store(wrong)
    assert "0th" not in str(error.value)


@pytest.mark.parametrize("address", ["postgres"], indirect=True)
def test_a_lost_connection_is_opened_again(address: str, store: TupleStore) -> None:
    import psycopg

    store.put([work()])
    claim = claim_one(store)
    with psycopg.connect(address, autocommit=True) as base:
        base.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
    acknowledge(store, claim, receipt(work()))
    assert state(store, work()) == "done"


@pytest.mark.parametrize("address", ["postgres"], indirect=True)
def test_with_row_security_two_users_cannot_read_each_others_tuples(address: str, store: TupleStore) -> None:
    import psycopg

    assert hasattr(store, "enable_row_security")
    store.enable_row_security()
    schema = address.rpartition("%3D")[2]
    with psycopg.connect(address, autocommit=True) as base:
        for user in ("ann", "bob"):
            base.execute(f"DROP ROLE IF EXISTS {user}".encode())
            base.execute(f"CREATE ROLE {user} LOGIN PASSWORD 'pw'".encode())
            append_only = "cantrip_tuples, cantrip_tuple_receipts, cantrip_tuple_tables"
            for grant in (
                f"USAGE ON SCHEMA {schema}",
                f"SELECT, INSERT ON {append_only}",
                "SELECT, INSERT, UPDATE ON cantrip_tuple_queue, cantrip_tuple_budgets, cantrip_tuple_artifacts",
            ):
                base.execute(f"GRANT {grant} TO {user}".encode())
    place = address.partition("@")[2]
    ann, bob = open_store(f"postgresql://ann:pw@{place}"), open_store(f"postgresql://bob:pw@{place}")
    try:
        assert ann.put([work(), work(1)]) == [True, True]
        assert bob.get(work().id) is None
        assert bob.claim(ANY, "bob", lease_s=9) == []
        assert bob.read(ANY) is None
        assert bob.counts() == []
        # The same work is his own, too.
        assert bob.put([work()]) == [True]
        claim = claim_one(ann)
        acknowledge(ann, claim, receipt(work()))
        acknowledge(ann, claim, receipt(work()))
        assert (len(ann.sums()), bob.sums(), bob.failures(), bob.waiting("build")[0]) == (1, [], [], 1)
        assert bob.receipts(work().id) == []
        assert [each.state for each in bob.counts()] == ["waiting"]
        with pytest.raises(LeaseLost):
            acknowledge(bob, claim, receipt(work()))
        assert bob.artifact(ann.put_artifact(b"large", "l")) is None
        assert bob.expire_artifacts(hot_s=0, warm_s=0, most_bytes=0, dry_run=False).bodies == 0
        assert ann.artifact(bob.put_artifact(b"large", "l")) is not None
    finally:
        ann.close()
        bob.close()


def test_progress_is_kept_for_the_next_attempt_until_its_step_ends(store: TupleStore, open_space: Open) -> None:
    store.put([work()])
    claim, other = claim_one(store), open_space()
    assert claim.progress is None
    store.save_progress(claim, {"step": 0, "cost": {"usd": 0.5}})
    found = other.get(work().id)
    assert found is not None
    assert found.progress == {"step": 0, "cost": {"usd": 0.5}}
    store.release(claim, "no network")
    claim = claim_one(other)
    assert claim.progress == {"step": 0, "cost": {"usd": 0.5}}
    other.save_step(claim, 0, receipt(work()))
    other.release(claim, "no network")
    stale, claim = claim, claim_one(store)
    assert claim.progress is None
    with pytest.raises(LeaseLost):
        store.save_progress(stale, {"step": 1})


def test_tuples_of_a_dead_worker_wait_again_at_once(store: TupleStore) -> None:
    store.put([work(n) for n in range(3)])
    claims = store.claim(ANY, "dead", lease_s=30, count=2)
    living = store.claim(ANY, "living", lease_s=30)
    assert [(each.worker, each.lane, each.count) for each in store.holders()] == [
        ("dead", "build", 2),
        ("living", "build", 1),
    ]
    assert store.revoke("dead", "it was killed") == 2
    assert [each.worker for each in store.holders()] == ["living"]
    found = store.get(work(0).id)
    assert found is not None
    assert (found.state, found.error, found.attempts) == ("waiting", "it was killed", 1)
    assert store.extend([*claims, *living], 30) == [False, False, True]
    assert store.revoke("dead", "again") == 0


def test_receipts_of_many_ended_tuples_are_read_at_once(store: TupleStore) -> None:
    works = [work(n) for n in range(4)]
    store.put(works)
    for number in range(2):
        acknowledge(store, claim_one(store), receipt(works[number]), failed="no" if number else None)
    assert store.ended([each.id for each in works]) == {works[0].id: receipt(works[0]), works[1].id: receipt(works[1])}
    assert store.ended([]) == {}


def cost(usd: float, tokens: int) -> dict[str, Any]:
    return {"usd": usd, "tokens_in": tokens, "tokens_out": 0}


def paid_receipt(claimed: WorkTuple, usd: float, tokens: int) -> dict[str, Any]:
    content = {"yool": "a.b", "tuple_id": claimed.id, "exit": 0, "cost": cost(usd, tokens)}
    return {"id": content_id(content), **content}


def test_a_budget_is_shared_and_nothing_is_claimed_when_it_is_spent(store: TupleStore, open_space: Open) -> None:
    other = open_space()
    store.set_budget("batch", usd=1.0, tokens=1000)
    assert store.put([work(n) for n in range(4)], budget="batch") == [True] * 4
    store.put([work(9, lane="free")])
    first, second = claim_one(store), claim_one(other)
    # Progress replaces earlier progress of its step; it is not added to it.
    for usd in (0.1, 0.25):
        budget = store.save_progress(first, {"step": 0, "cost": cost(usd, 10)})
    assert budget is not None
    assert (budget.spent_usd, budget.spent_tokens, budget.is_spent) == (0.25, 10, False)
    store.save_step(first, 0, paid_receipt(work(0), 0.3, 20))
    budget = store.save_progress(first, {"step": 1, "cost": cost(0.2, 5)})
    assert budget is not None
    assert (budget.spent_usd, budget.spent_tokens) == (0.5, 25)
    acknowledge(store, first, paid_receipt(work(0), 0.6, 30))
    other.save_progress(second, {"step": 0, "cost": cost(0.5, 1)})
    [budget] = other.budgets("batch")
    assert (round(budget.spent_usd, 9), budget.spent_tokens, budget.is_spent) == (1.1, 31, True)
    # What a worker had spent before it died stays spent.
    other.release(second, "the worker died")
    build = Pattern({"lane": "build"})
    assert store.claim(build, "w", lease_s=30, count=9) == []
    assert len(store.claim(Pattern({"lane": "free"}), "w", lease_s=30)) == 1
    store.set_budget("batch", usd=2.0)
    assert len(store.claim(build, "w", lease_s=30, count=9)) == 3


def test_an_alarm_is_put_once_at_each_threshold(store: TupleStore) -> None:
    store.set_budget("batch", tokens=100)
    store.put([work()], budget="batch")
    claim = claim_one(store)
    for tokens in (49, 50, 60, 85, 99, 100, 120):
        store.save_progress(claim, {"step": 0, "cost": cost(0, tokens)})
    alarms, _ = store.after("", Pattern({"lane": "alarms"}))
    if not alarms:  # PostgreSQL shows what is older than all running transactions.
        store.counts()
        alarms, _ = store.after("", Pattern({"lane": "alarms"}))
    said = [dict(each.work.payload[0].args or {}) for each in alarms]  # type: ignore[call-overload]
    assert [each["percent"] for each in said] == [50, 80, 100]
    assert (said[1]["name"], said[1]["tokens"], said[1]["spent_tokens"]) == ("batch", 100, 85)


def test_a_budget_may_be_given_to_tuples_that_are_there(store: TupleStore) -> None:
    store.put([work(0), work(1)])
    acknowledge(store, claim_one(store), paid_receipt(work(0), 5.0, 1))
    store.set_budget("late", usd=1.0)
    assert store.put([work(0), work(1)], budget="late") == [False, False]
    claim = claim_one(store)
    budget = store.save_progress(claim, {"step": 0, "cost": cost(0.5, 1)})
    assert budget is not None
    assert budget.spent_usd == 0.5, "what ended earlier does not count"
    assert [each.name for each in store.budgets()] == ["late"]
    assert store.budgets("other") == []


def test_tuples_that_nobody_has_are_resumed(store: TupleStore) -> None:
    store.put([work(n) for n in range(6)])
    claims = store.claim(ANY, "w", lease_s=30, count=2)
    acknowledge(store, claims[0], receipt(work(0)))
    [late] = store.claim(ANY, "gone", lease_s=1)
    [pausing] = store.claim(ANY, "w", lease_s=30)
    store.release(pausing, "no network", delay_s=600)
    assert store.take(ANY) == work(4)
    time.sleep(1.05)
    assert store.resume(Pattern({"map_pos": {"n": 9}})) == []
    assert store.resume(ANY) == [work(2).id, work(3).id, work(4).id]
    assert [state(store, work(n)) for n in range(6)] == ["done", "claimed", "waiting", "waiting", "waiting", "waiting"]
    assert len(store.claim(ANY, "w", lease_s=30, count=9)) == 4, "the pause is over, too"
    with pytest.raises(LeaseLost):
        acknowledge(store, late, receipt(work(2)))


def test_a_tuple_that_ended_elsewhere_is_stored_with_its_receipts(store: TupleStore) -> None:
    receipts = [
        StoredReceipt(document=receipt(work(), 1), step=0),
        StoredReceipt(document=receipt(work(), 2), step=None),
    ]
    assert store.put_ended(work(), receipts)
    assert store.receipts(work().id) == receipts
    assert state(store, work()) == "done"
    assert not store.put_ended(work(), receipts), "it is known"
    assert store.claim(ANY, "w", lease_s=30) == []
    # What a worker has is its own.
    store.put([work(1), work(2)])
    claim = claim_one(store)
    ended = [StoredReceipt(document=receipt(work(1)), step=None)]
    assert not store.put_ended(work(1), ended)
    acknowledge(store, claim, receipt(work(1), 5))
    assert store.put_ended(work(2), [StoredReceipt(document=receipt(work(2)), step=None)])
    assert store.receipts(work(2).id)[0].document == receipt(work(2))


def test_tuples_of_both_schemas_are_in_one_space(store: TupleStore, open_space: Open) -> None:
    first, second = work(1), work(2, flags={"no_cache": True})
    assert store.put([first, second]) == [True, True]
    other = open_space()
    assert other.put([second]) == [False]
    assert other.read(Pattern({"flags": {"no_cache": True}})) == second
    assert other.read(Pattern({"payload": [{"yool": "agent.pr.create"}], "map_pos": {"n": 2}})) == second
    assert [each.work for each in other.after("", ANY)[0]] == [first, second]
    assert [each.steps for each in other.needs()] == [other.needs()[0].steps]
    runs = [Runnable(yool=step.yool) for step in second.payload]
    assert other.runnable(ANY, runs)
    claims = other.claim(ANY, "w", lease_s=30, count=9, runs=runs)
    assert [each.work for each in claims] == [first, second]
    acknowledge(other, claims[1], receipt(second))
    found = store.get(second.id)
    assert found is not None
    assert (found.work, found.state) == (second, "done")
