"""What a look at 100,000 tuples with 60,000 receipts costs: tuple status and a worker's metrics, beside a bare count.

The baseline is the query that counts the tuples of each lane by state, in the same database, through the bare driver.
"""

from __future__ import annotations

import contextlib
import sqlite3
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg

from bench.measure import Row, Table, row
from bench.options import Options
from cantrip_acp.tuplespace.canonical_json import canonical_json
from cantrip_acp.tuplespace.monitoring.status import read_status
from cantrip_acp.tuplespace.receipts import make_receipt
from cantrip_acp.tuplespace.stores import open_store
from cantrip_acp.tuplespace.tuples import WorkTuple, new_tuple, now_iso
from tests.support import postgres_server as pgserver

TUPLES, ENDED, LANES = 100_000, 60_000, 5


def run(options: Options) -> Table:
    steps = [{"yool": "agent.cast.review", "args": {"intent": "Review this. " * 20}}]
    works = [new_tuple(f"lane{n % LANES}", steps, map_pos={"n": n}) for n in range(TUPLES)]
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, contextlib.ExitStack() as held:
        file = Path(folder) / "space.db"
        base = sqlite3.connect(file)
        rows += _measure(
            "SQLite", f"sqlite:{file}", works, options, lambda: _fill_sqlite(base, works), _ask(base, "queue")
        )
        base.close()
        try:
            address = held.enter_context(pgserver.running()).url("x").partition("?")[0]
        except pgserver.NoServer as why:
            print(f"  PostgreSQL is left out: {why}")
            return _table(rows)
        with psycopg.connect(address, autocommit=True) as bare:
            ask = _ask(bare, "cantrip_tuple_queue")
            rows += _measure("PostgreSQL", address, works, options, lambda: _fill_postgres(bare, works), ask)
    return _table(rows)


def _table(rows: list[Row]) -> Table:
    return Table("tuple_status", f"a look at {TUPLES:,} tuples", tuple(rows))


def _ask(base: Any, table: str) -> Callable[[], Any]:
    return lambda: base.execute(f"SELECT lane, state, count(*) FROM {table} GROUP BY lane, state").fetchall()


def _measure(
    name: str, address: str, works: list[WorkTuple], options: Options, fill: Callable[[], None], ask: Callable[[], Any]
) -> list[Row]:
    store = open_store(address)
    for start in range(0, TUPLES, 5000):
        store.put(works[start : start + 5000])
    fill()
    assert read_status(store).lanes["lane1"].done > 0
    looks: dict[str, Callable[[], Any]] = {
        "bare count": ask,
        "status": lambda: read_status(store),
        "depth": lambda: store.waiting("lane1"),
    }
    samples: dict[str, list[float]] = {each: [] for each in looks}
    for _ in range(options.rounds(15)):
        for each, look in looks.items():
            began = time.perf_counter()
            look()
            samples[each].append((time.perf_counter() - began) * 1000)
    store.close()
    baseline = row(f"{name}: bare count by lane and state", samples["bare count"], "ms")
    return [
        baseline,
        row(
            f"{name}: tuple status, all of it",
            samples["status"],
            "ms",
            baseline=baseline,
            goal="<= 500 ms",
        ),
        row(f"{name}: depth of a lane, for metrics", samples["depth"], "ms", baseline=baseline),
    ]


def _receipt(number: int, work: WorkTuple) -> dict[str, Any]:
    cost = {"usd": 0.001, "tokens_in": 300, "tokens_out": 50, "wall_ms": 900}
    return make_receipt(
        yool="agent.cast.review", tuple_id=work.id, started_at=now_iso(), ended_at=now_iso(), exit=int(number % 7 == 0),
        cost=cost, result={"result": "No bug found. " * 100, "reason": "done"},
    )  # fmt: skip


def _state(number: int) -> tuple[str, str | None]:
    return ("failed", f"step 1 failed: reason {number % 20}") if number % 7 == 0 else ("done", None)


def _fill_sqlite(base: sqlite3.Connection, works: list[WorkTuple]) -> None:
    places = dict(base.execute("SELECT id, position FROM tuples"))
    ended = [(number, work, _receipt(number, work)) for number, work in enumerate(works[:ENDED])]
    base.executemany(
        "INSERT INTO receipts (id, position, body) VALUES (?, ?, ?)",
        ((made["id"], places[work.id], canonical_json(made)) for _, work, made in ended),
    )
    base.executemany(
        "UPDATE queue SET state = ?, error = ? WHERE position = ?",
        ((*_state(number), places[work.id]) for number, work, _ in ended),
    )
    base.commit()


def _fill_postgres(base: psycopg.Connection[Any], works: list[WorkTuple]) -> None:
    places = dict(base.execute("SELECT id, position FROM cantrip_tuples").fetchall())
    with base.cursor() as cursor:
        with cursor.copy("COPY cantrip_tuple_receipts (id, position, body) FROM STDIN") as copy:
            for number, work in enumerate(works[:ENDED]):
                made = _receipt(number, work)
                copy.write_row((made["id"], places[work.id], canonical_json(made).decode()))
        states = [_state(number) for number in range(ENDED)]
        cursor.execute(
            "UPDATE cantrip_tuple_queue q SET state = e.state, error = e.error FROM unnest(%s::bigint[], %s::text[], %s::text[]) "
            "AS e (position, state, error) WHERE q.position = e.position",
            ([places[work.id] for work in works[:ENDED]], [s for s, _ in states], [e for _, e in states]),
        )
        cursor.execute("VACUUM ANALYZE cantrip_tuple_queue")
        cursor.execute("ANALYZE cantrip_tuple_receipts")
