"""Looms in databases: appends a second, and reading one thread of 500.

The baselines are the same statements on the same tables' like by the driver alone, bytes ready: an insert a transaction, and
one select of the bodies, decoded. PostgreSQL is a server of the bench's own on this machine; without one its rows are left out.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from bench.append import turns
from bench.measure import Row, Table, row
from bench.options import Options
from cantrip_acp.loom.loom import Loom
from cantrip_acp.types.records import Turn
from tests.support import postgres_server as pgserver

THREAD = 500
Samples = dict[str, list[float]]


def run(options: Options) -> Table:
    made = turns(THREAD)
    samples: Samples = {}
    rounds = options.rounds(7)
    results = Path(__file__).parent / "results"
    results.mkdir(exist_ok=True)
    with contextlib.ExitStack() as held:
        folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="bench-", dir=results)))
        try:
            server = held.enter_context(pgserver.running())
        except pgserver.NoServer as why:
            print(f"  PostgreSQL is left out: {why}")
            server = None
        for number in range(rounds):
            _sqlite_raw(folder / f"raw{number}.db", made, samples)
            _ours("sqlite", f"sqlite:{folder}/ours{number}.db", made, samples)
            if server is not None:
                _postgres_raw(server, number, made, samples)
                _ours("postgres", server.url(f"ours{number}"), made, samples)
    rows: list[Row] = []
    for kind, name in (("sqlite", "SQLite"), ("postgres", "PostgreSQL")):
        if f"{kind} append" not in samples:
            continue
        base = row(f"{name}: insert, a transaction each", samples[f"{kind} raw append"], "turns/s", more=True)
        ours = row(f"{name}: loom append", samples[f"{kind} append"], "turns/s", baseline=base, more=True)
        select = row(f"{name}: select of 500 bodies, decoded", samples[f"{kind} raw thread"], "ms")
        thread = row(
            f"{name}: one thread of 500",
            samples[f"{kind} thread"],
            "ms",
            baseline=select,
            goal="<= 10",
        )
        rows += [base, ours, select, thread]
    return Table("stores", f"looms in databases, turns of {len(msgspec.json.encode(made[9])):,} bytes", tuple(rows))


def _timed(samples: Samples, name: str, count: int | None, work: Callable[[], Any]) -> None:
    began = time.perf_counter()
    work()
    took = time.perf_counter() - began
    samples.setdefault(name, []).append(took * 1000 if count is None else count / took)


def _ours(kind: str, where: str, made: list[Turn], samples: Samples) -> None:
    def fill() -> None:
        for turn in made:
            loom.append(turn)

    with Loom.open(where) as loom:
        _timed(samples, f"{kind} append", len(made), fill)
    with Loom.open(where, readonly=True) as loom:
        leaf = made[-1].id
        for _ in range(3):
            _timed(samples, f"{kind} thread", None, lambda: loom.thread(leaf))


def _sqlite_raw(path: Path, made: list[Turn], samples: Samples) -> None:
    base = sqlite3.connect(path, isolation_level=None)
    base.text_factory = bytes
    base.execute("PRAGMA journal_mode = WAL")
    base.execute("PRAGMA synchronous = NORMAL")
    base.execute("CREATE TABLE record (n INTEGER PRIMARY KEY, turn_id TEXT UNIQUE, body TEXT)")
    bodies = [(turn.id, msgspec.json.encode(turn).decode()) for turn in made]
    decode = msgspec.json.Decoder(Turn).decode

    def fill() -> None:
        for each in bodies:
            base.execute("INSERT INTO record (turn_id, body) VALUES (?, ?)", each)

    def read() -> None:
        numbers = json.dumps(list(range(1, len(made) + 1)))
        query = "SELECT body FROM record WHERE n IN (SELECT value FROM json_each(?))"
        for (body,) in base.execute(query, (numbers,)):
            decode(body)

    _timed(samples, "sqlite raw append", len(made), fill)
    for _ in range(3):
        _timed(samples, "sqlite raw thread", None, read)
    base.close()


def _postgres_raw(server: pgserver.Server, number: int, made: list[Turn], samples: Samples) -> None:
    import psycopg

    bodies = [(turn.id, msgspec.json.encode(turn)) for turn in made]
    decode = msgspec.json.Decoder(Turn).decode
    with psycopg.connect(server.url("x").partition("?")[0], autocommit=True) as base:
        base.execute(f"CREATE TABLE raw{number} (n bigserial PRIMARY KEY, turn_id text UNIQUE, body bytea)")

        def fill() -> None:
            for each in bodies:
                base.execute(f"INSERT INTO raw{number} (turn_id, body) VALUES (%s, %s)", each, prepare=True)

        def read() -> None:
            query = f"SELECT body FROM raw{number} WHERE n = ANY(%s)"
            numbers = (list(range(1, len(made) + 1)),)
            for (body,) in base.execute(query, numbers, prepare=True, binary=True).fetchall():
                decode(body)

        _timed(samples, "postgres raw append", len(made), fill)
        for _ in range(3):
            _timed(samples, "postgres raw thread", None, read)
