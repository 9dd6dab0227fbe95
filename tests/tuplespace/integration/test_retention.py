"""What a tuple-space keeps: bodies of large results for some days, excerpts for a year, receipts and hashes for ever."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any

import pytest

from cantrip_acp.tuplespace.canonical_json import content_id
from cantrip_acp.tuplespace.receipts import is_genuine
from cantrip_acp.tuplespace.retention import Tiers, answer_calls, collect, read_result
from cantrip_acp.tuplespace.stores.base import StoredArtifact
from cantrip_acp.tuplespace.stores.sql import TupleStore
from cantrip_acp.tuplespace.tuples import Pattern, new_tuple
from cantrip_acp.tuplespace.workers.worker import StepCall, StepResult, Worker

Open = Callable[[], TupleStore]
KEEP = Tiers(hot_days=30, warm_days=365, max_mb=5000)


def execute(address: str, sqlite: str, postgres: str) -> None:
    """A statement of somebody else."""
    if address.startswith("sqlite:"):
        with sqlite3.connect(address.removeprefix("sqlite:")) as base:
            base.execute(sqlite)
    else:
        import psycopg

        with psycopg.connect(address, autocommit=True) as base:
            base.execute(postgres.encode())


def age(address: str, days: int, artifact_id: str = "") -> None:
    where = f"WHERE id = '{artifact_id}'" if artifact_id else ""
    execute(
        address,
        f"UPDATE artifacts SET put_at = put_at - {days * 86_400} {where}",
        f"UPDATE cantrip_tuple_artifacts SET put_at = put_at - interval '{days} days' {where}",
    )


def found(store: TupleStore, artifact_id: str) -> StoredArtifact:
    artifact = store.artifact(artifact_id)
    assert artifact is not None
    return artifact


async def run_one(store: TupleStore, result: Any) -> dict[str, Any]:
    """The receipt of a tuple whose step has this result."""

    async def step(call: StepCall) -> StepResult:
        return StepResult(result=result)

    work = new_tuple("build", [{"yool": "a.step"}], map_pos={"result": content_id(result)})
    store.put([work])
    ended: list[Any] = []
    worker = Worker(store, Pattern({"lane": "build"}), {"a.step": step}, name="w", ended=ended.append)
    await worker.run(until=lambda: bool(ended))
    return store.ended([work.id])[work.id]


async def test_a_large_result_is_an_artifact_and_a_small_one_is_in_its_receipt(store: TupleStore) -> None:
    small, large = await run_one(store, {"text": "short"}), await run_one(store, {"text": "long" * 50_000})
    assert (small["result"], small["artifacts"]) == ({"text": "short"}, [])
    assert "result" not in large, "no field of it is small"
    [pointer] = large["artifacts"]
    assert (pointer["kind"], pointer["bytes"]) == ("result", 200_011)
    assert [read_result(store, each) for each in (small, large)] == [{"text": "short"}, {"text": "long" * 50_000}]


async def test_the_small_fields_of_a_large_result_stay_in_its_receipt(store: TupleStore) -> None:
    result = {"result": "long" * 50_000, "entity_id": "e_1", "turns": 3}
    receipt = await run_one(store, result)
    assert receipt["result"] == {"entity_id": "e_1", "turns": 3}
    assert read_result(store, receipt) == result
    collect(store, Tiers(max_mb=0), dry_run=False)
    assert read_result(store, receipt) == {"entity_id": "e_1", "turns": 3}


async def test_the_tiers(store: TupleStore, address: str) -> None:
    receipt = await run_one(store, {"text": "long" * 50_000})
    [pointer] = receipt["artifacts"]
    age(address, 29)
    assert collect(store, KEEP, dry_run=False).bodies == 0
    age(address, 2)
    would = collect(store, KEEP, dry_run=True)
    assert (would.bodies, would.bytes, would.excerpts, would.bodies_left) == (1, 200_011, 0, 0)
    assert found(store, pointer["id"]).body is not None
    assert collect(store, KEEP, dry_run=False) == would
    warm = found(store, pointer["id"])
    assert (warm.body, warm.size) == (None, 200_011)
    assert warm.purged_at is not None
    assert (warm.excerpt or "").startswith('{"text":"longlong')
    age(address, 365)
    assert collect(store, KEEP, dry_run=False).excerpts == 1
    cold = found(store, pointer["id"])
    assert (cold.id, cold.size, cold.body, cold.excerpt) == (pointer["id"], 200_011, None, None)
    [kept] = store.receipts(receipt["tuple_id"])
    assert is_genuine(kept.document)
    assert kept.document == receipt
    assert read_result(store, receipt) is None
    # The same result again is new.
    assert store.put_artifact(b"other", "other") != pointer["id"]
    await run_one(store, {"text": "long" * 50_000, "again": True})
    assert collect(store, KEEP, dry_run=True).bodies_left == 2


def test_above_the_size_the_oldest_bodies_go(store: TupleStore, address: str) -> None:
    ids = [store.put_artifact(bytes([number]) * 400_000, "x") for number in range(5)]
    for number, each in enumerate(ids):
        age(address, 5 - number, each)
    done = collect(store, Tiers(max_mb=1), dry_run=False)
    assert (done.bodies, done.bodies_left, done.bytes_left) == (3, 2, 800_000)
    assert [found(store, each).body is not None for each in ids] == [False, False, False, True, True]
    assert store.put_artifact(bytes([0]) * 400_000, "x") == ids[0]
    assert found(store, ids[0]).body is not None


def test_a_body_that_was_changed_is_not_read(store: TupleStore, address: str) -> None:
    identity = store.put_artifact(b'{"paid": true}', "")
    receipt = {"artifacts": [{"kind": "result", "id": identity, "bytes": 14}]}
    assert read_result(store, receipt) == {"paid": True}
    statement = "UPDATE {} SET body = {}"
    execute(
        address,
        statement.format("artifacts", "CAST('{\"paid\": null}' AS BLOB)"),
        statement.format("cantrip_tuple_artifacts", "'{\"paid\": null}'"),
    )
    assert read_result(store, receipt) is None


def test_nobody_can_delete_a_record(store: TupleStore, address: str) -> None:
    store.put_artifact(b"body", "")
    with pytest.raises(Exception, match=r"records of artifacts are kept|append-only"):
        execute(address, "DELETE FROM artifacts", "DELETE FROM cantrip_tuple_artifacts")


def test_a_call_for_space_is_answered_once(store: TupleStore) -> None:
    works = [
        new_tuple("gc.urgent", [{"yool": "fs.gc.run", "args": {"folder": folder, "free_mb": 3}}], map_pos={"n": number})
        for number, folder in enumerate(["/here", "/there", "/here"])
    ]
    store.put(works)
    assert answer_calls(store, "me", "/here", {"freed_bytes": 7}) == 2
    assert answer_calls(store, "me", "/here", {"freed_bytes": 7}) == 0
    ended = store.ended([each.id for each in works])
    assert [ended[works[number].id]["result"] for number in (0, 2)] == [{"freed_bytes": 7}] * 2
    stored = store.get(works[1].id)
    assert stored is not None
    assert stored.state == "waiting"
