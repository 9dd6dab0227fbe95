"""The tuple-space: tuples put and ended a second in SQLite and PostgreSQL, beside the raw statements and beside other queues.

The baseline of a store is the same statements on tables like ours by the driver alone, bytes ready, 50 tuples in a transaction.
procrastinate and pgqueuer do the same amount of work their own way, in the same PostgreSQL: a server of the bench's own on this
machine. A pool is one worker with 8 places and steps that return at once.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio

from bench.measure import Row, Table, row
from bench.options import Options
from cantrip_acp import Cantrip, Circle, Loom, ScriptedCrystal
from cantrip_acp.tuplespace.canonical_json import canonical_json
from cantrip_acp.tuplespace.receipts import make_receipt
from cantrip_acp.tuplespace.stores import open_store
from cantrip_acp.tuplespace.stores.base import End
from cantrip_acp.tuplespace.tuples import Pattern, WorkTuple, new_tuple
from cantrip_acp.tuplespace.workers.worker import StepCall, StepResult, Worker
from cantrip_acp.tuplespace.yools.cast_yool import CastYool
from tests.support import postgres_server as pgserver

TUPLES, BATCH, QUEUED, PLACES, CASTS = 2_000, 50, 100_000, 8, 300
IDLE_S = 10.0
Samples = dict[str, list[float]]
ENVIRONMENT = Path(__file__).parent / ".venvs" / "queues"
_REQUIREMENTS = ("procrastinate", "pgqueuer", "psycopg[binary]")
ANY = Pattern({"lane": "bench"})


def run(options: Options) -> Table:
    works, samples, rounds = [_work(n) for n in range(TUPLES)], Samples(), options.rounds(5)
    receipts = {work.id: _receipt(work) for work in works}
    results = Path(__file__).parent / "results"
    results.mkdir(exist_ok=True)
    peers: list[str] = []
    with contextlib.ExitStack() as held:
        folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="bench-", dir=results)))
        try:
            server = held.enter_context(pgserver.running())
        except pgserver.NoServer as why:
            print(f"  PostgreSQL is left out: {why}")
            server = None
        for number in range(rounds):
            _sqlite_raw(folder / f"raw{number}.db", works, receipts, samples)
            _ours("sqlite", f"{folder}/ours{number}.db", works, receipts, samples)
            if server is not None:
                _postgres_raw(server, number, works, receipts, samples)
                _ours("postgres", _schema(server, f"ours{number}"), works, receipts, samples)
        if server is not None and options.peers:
            peers = [name for name in ("procrastinate", "pgqueuer") if _peer(server, name, samples)]
        pools = {"sqlite": f"{folder}/pool.db"} | ({} if server is None else {"postgres": _schema(server, "pool")})
        for kind, address in pools.items():
            for number in range(rounds):
                for places in (PLACES, BATCH):
                    _pool(kind, address, number, places, samples)
                _casts(kind, address, number, samples)
            _queued(kind, address, samples)
            _idle(kind, address, samples)
    rows: list[Row] = []
    for kind, name in (("sqlite", "SQLite"), ("postgres", "PostgreSQL")):
        if kind not in pools:
            continue
        for what, said in (("put", "put"), ("end", "claimed and ended")):
            base = row(f"{name}: raw statements, {said}", samples[f"{kind} raw {what}"], "tuples/s", more=True)
            ours = row(
                f"{name}: {said}", samples[f"{kind} {what}"], "tuples/s", baseline=base, more=True,
                goal="within 1.5 x of the statements", reached=lambda r: (r.ratio or 0) >= 1 / 1.5,
            )  # fmt: skip
            rows += [base, ours]
            if kind == "postgres" and what == "put":
                rows += [
                    row(f"{each}: {said}", samples[f"{each} {what}"], "jobs/s", baseline=base, more=True)
                    for each in peers
                ]
        rows.append(
            row(f"{name}: a pool of {PLACES}, instant steps", samples[f"{kind} pool {PLACES}"], "tuples/s", more=True)
        )
        rows.append(row(f"{name}: a pool of {PLACES}, instant casts", samples[f"{kind} casts"], "casts/s", more=True))
        pool = row(f"{name}: a pool of {BATCH}, instant steps", samples[f"{kind} pool {BATCH}"], "tuples/s", more=True)
        rows.append(pool)
        if kind == "postgres":
            rows += [
                row(f"{each}: a pool of {BATCH}", samples[f"{each} end"], "jobs/s", baseline=pool, more=True)
                for each in peers
            ]
        rows.append(row(f"{name}: {QUEUED:,} queued: a claim of one", samples[f"{kind} claim"], "ms"))
        rows.append(
            row(f"{name}: {QUEUED:,} queued: memory of the worker above an empty one", samples[f"{kind} memory"], "MB")
        )
        rows.append(
            row(
                f"{name}: an idle worker's processor time",
                samples[f"{kind} idle"],
                "ms/s",
                goal="<= 5 ms/s",
            )
        )
    size = len(canonical_json(works[9].document))
    return Table("tuples", f"the tuple-space, tuples of {size:,} bytes, {TUPLES:,} at a time", tuple(rows))


def _work(number: int) -> WorkTuple:
    step = {
        "yool": "bench.nothing",
        "args": {"intent": f"Review change {number}. " * 8, "recipe": "sha256:" + "0" * 64},
    }
    return new_tuple("bench", [step], map_pos={"sample": number}, agent_terms={"max_retries": 2})


def _receipt(work: WorkTuple) -> dict[str, Any]:
    return make_receipt(
        yool="bench.nothing", tuple_id=work.id, started_at="2026-05-19T17:30:00.000Z", ended_at="2026-05-19T17:31:00.000Z",
        exit=0, cost={"usd": 0.01, "tokens_in": 1000, "tokens_out": 100, "wall_ms": 60_000}, result={"result": "Fine."},
    )  # fmt: skip


def _schema(server: pgserver.Server, name: str) -> str:
    import psycopg

    base = server.url("x").partition("?")[0]
    with psycopg.connect(base, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {name}".encode())
    return f"{base}?options=-csearch_path%3D{name}"


def _timed(samples: Samples, name: str, work: Callable[[], Any]) -> None:
    began = time.perf_counter()
    work()
    samples.setdefault(name, []).append(TUPLES / (time.perf_counter() - began))


def _ours(
    kind: str, address: str, works: list[WorkTuple], receipts: dict[str, dict[str, Any]], samples: Samples
) -> None:
    store = open_store(address)

    def put() -> None:
        for first in range(0, TUPLES, BATCH):
            store.put(works[first : first + BATCH])

    def end() -> None:
        while claims := store.claim(ANY, "bench", lease_s=30, count=BATCH):
            store.acknowledge(*(End(claim=each, receipt=receipts[each.work.id]) for each in claims))

    _timed(samples, f"{kind} put", put)
    _timed(samples, f"{kind} end", end)
    assert [(each.state, each.count) for each in store.counts()] == [("done", TUPLES)]
    store.close()


def _sqlite_raw(path: Path, works: list[WorkTuple], receipts: dict[str, dict[str, Any]], samples: Samples) -> None:
    base = sqlite3.connect(path, isolation_level=None)
    base.execute("PRAGMA journal_mode = WAL")
    base.execute(
        "CREATE TABLE tuples (position INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, lane TEXT, body BLOB, at REAL)"
    )
    base.execute("CREATE TABLE queue (position INTEGER PRIMARY KEY, lane TEXT, state TEXT, lease REAL, token INTEGER)")
    base.execute("CREATE INDEX waiting ON queue (lane, position) WHERE state = 'waiting'")
    base.execute("CREATE TABLE receipts (number INTEGER PRIMARY KEY, id TEXT, position INTEGER UNIQUE, body BLOB)")
    bodies = [(each.id, each.lane, canonical_json(each.document), 0.0) for each in works]
    ends = [(receipts[each.id]["id"], canonical_json(receipts[each.id])) for each in works]

    def put() -> None:
        base.execute("PRAGMA synchronous = NORMAL")
        for first in range(0, TUPLES, BATCH):
            base.execute("BEGIN IMMEDIATE")
            for position, each in enumerate(bodies[first : first + BATCH], first):
                base.execute(
                    "INSERT INTO tuples (position, id, lane, body, at) VALUES (?, ?, ?, ?, ?)", (position, *each)
                )
                base.execute("INSERT INTO queue VALUES (?, 'bench', 'waiting', NULL, 0)", (position,))
            base.execute("COMMIT")

    def end() -> None:
        for _ in range(0, TUPLES, BATCH):
            base.execute("PRAGMA synchronous = NORMAL")
            base.execute("BEGIN IMMEDIATE")
            found = base.execute(
                "SELECT q.position, t.body FROM queue q JOIN tuples t USING (position) WHERE q.lane = 'bench' "
                "AND state = 'waiting' ORDER BY q.position LIMIT ?", (BATCH,),
            ).fetchall()  # fmt: skip
            for position, _ in found:
                base.execute(
                    "UPDATE queue SET state = 'claimed', lease = 1, token = token + 1 WHERE position = ?", (position,)
                )
            base.execute("COMMIT")
            base.execute("PRAGMA synchronous = FULL")
            base.execute("BEGIN IMMEDIATE")
            for position, _ in found:
                base.execute("UPDATE queue SET state = 'done' WHERE position = ? AND token = 1", (position,))
                base.execute("INSERT INTO receipts (id, body, position) VALUES (?, ?, ?)", (*ends[position], position))
            base.execute("COMMIT")

    _timed(samples, "sqlite raw put", put)
    _timed(samples, "sqlite raw end", end)
    base.close()


def _postgres_raw(
    server: pgserver.Server, number: int, works: list[WorkTuple], receipts: dict[str, dict[str, Any]], samples: Samples
) -> None:
    import psycopg

    bodies = [(each.id, each.lane, canonical_json(each.document).decode()) for each in works]
    ends = [(receipts[each.id]["id"], canonical_json(receipts[each.id]).decode()) for each in works]
    with psycopg.connect(server.url("x").partition("?")[0], autocommit=True) as base:
        base.execute(f"CREATE SCHEMA raw{number}; SET search_path = raw{number}")
        base.execute("CREATE TABLE tuples (position bigserial PRIMARY KEY, id text UNIQUE, lane text, body text)")
        base.execute(
            "CREATE TABLE queue (position bigint PRIMARY KEY, lane text, state text, lease timestamptz, token integer)"
        )
        base.execute("CREATE INDEX waiting ON queue (lane, position) WHERE state = 'waiting'")
        base.execute("CREATE TABLE receipts (number bigserial PRIMARY KEY, id text, position bigint UNIQUE, body text)")

        def put() -> None:
            for first in range(0, TUPLES, BATCH):
                ids, lanes, texts = (list(each) for each in zip(*bodies[first : first + BATCH], strict=True))
                base.execute(
                    "WITH new AS (INSERT INTO tuples (id, lane, body) SELECT * FROM unnest(%s::text[], %s::text[], %s::text[]) "
                    "RETURNING position) INSERT INTO queue SELECT position, 'bench', 'waiting', NULL, 0 FROM new",
                    (ids, lanes, texts),
                )

        def end() -> None:
            for _ in range(0, TUPLES, BATCH):
                found = base.execute(
                    "WITH picked AS (SELECT q.position, t.body FROM queue q JOIN tuples t USING (position) "
                    "WHERE q.lane = 'bench' AND state = 'waiting' ORDER BY q.position LIMIT %s FOR UPDATE OF q SKIP LOCKED) "
                    "UPDATE queue q SET state = 'claimed', lease = now(), token = token + 1 FROM picked "
                    "WHERE q.position = picked.position RETURNING q.position, picked.body", (BATCH,),
                ).fetchall()  # fmt: skip
                positions = [position for position, _ in found]
                base.execute(
                    "WITH given AS (SELECT * FROM unnest(%s::bigint[], %s::text[], %s::text[]) AS g (position, id, body)), "
                    "changed AS (UPDATE queue q SET state = 'done' FROM given WHERE q.position = given.position AND token = 1 "
                    "RETURNING q.position, given.id, given.body) "
                    "INSERT INTO receipts (id, position, body) SELECT id, position, body FROM changed",
                    (positions, [ends[p - 1][0] for p in positions], [ends[p - 1][1] for p in positions]),
                )

        _timed(samples, "postgres raw put", put)
        _timed(samples, "postgres raw end", end)


def _peer(server: pgserver.Server, name: str, samples: Samples) -> bool:
    """Measure another queue in its own environment. Whether it is there."""
    schema = _schema(server, name)
    program = Path(__file__).parent / "subjects" / f"queue_{name}.py"
    python = ENVIRONMENT / "bin" / "python"
    if not python.exists():
        print(f"making {ENVIRONMENT} with {', '.join(_REQUIREMENTS)} from PyPI", flush=True)
        subprocess.run([sys.executable, "-m", "virtualenv", "--quiet", str(ENVIRONMENT)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *_REQUIREMENTS], check=True)
    done = subprocess.run(
        [python, program, schema, str(TUPLES), str(BATCH)], capture_output=True, text=True, timeout=300
    )
    if done.returncode:
        print(f"  {name} is left out: {done.stderr.strip().splitlines()[-1:]}")
        return False
    for what, rate in json.loads(done.stdout).items():
        samples[f"{name} {what}"] = [rate]
    return True


def _pool(kind: str, address: str, number: int, places: int, samples: Samples) -> None:
    store = open_store(address)
    store.put(
        [
            new_tuple("bench", [{"yool": "bench.nothing"}], map_pos={"n": n, "of": [number, places]})
            for n in range(TUPLES)
        ]
    )

    async def nothing(call: StepCall) -> StepResult:
        return StepResult()

    left = TUPLES

    def ended(_: Any) -> None:
        nonlocal left
        left -= 1

    worker = Worker(store, ANY, {"bench.nothing": nothing}, name="bench", concurrency=places, ended=ended)
    _timed(samples, f"{kind} pool {places}", lambda: anyio.run(lambda: worker.run(until=lambda: not left)))
    store.close()


def _casts(kind: str, address: str, number: int, samples: Samples) -> None:
    """Casts of a scripted crystal that ends at once, each with an entity of its own, into one loom in memory."""
    store, left = open_store(address), CASTS
    step = {"yool": "agent.cast.bench", "args": {"intent": "Say hello.", "recipe": "sha256:x"}}
    store.put([new_tuple("bench", [step], map_pos={"n": n, "casts": number}) for n in range(CASTS)])
    done = {"tool_calls": [{"gate": "done", "args": {"answer": "Hello."}}], "repeat": True}
    cantrip = Cantrip(ScriptedCrystal([done]), circle=Circle(gates=["done"], wards=[{"max_turns": 3}]))
    cast = CastYool(cantrip, Loom.memory(), "sha256:x")

    def ended(_: Any) -> None:
        nonlocal left
        left -= 1

    worker = Worker(store, ANY, {"agent.cast.bench": cast}, name="bench", concurrency=PLACES, ended=ended)
    began = time.perf_counter()
    anyio.run(lambda: worker.run(until=lambda: not left))
    samples.setdefault(f"{kind} casts", []).append(CASTS / (time.perf_counter() - began))
    store.close()


def _queued(kind: str, address: str, samples: Samples) -> None:
    store = open_store(address)
    for first in range(0, QUEUED, 1000):
        store.put([new_tuple("deep", [{"yool": "bench.nothing"}], map_pos={"n": first + n}) for n in range(1000)])
    deep = Pattern({"lane": "deep"})
    for _ in range(200):
        began = time.perf_counter()
        assert store.claim(deep, "bench", lease_s=30)
        samples.setdefault(f"{kind} claim", []).append((time.perf_counter() - began) * 1000)
    store.close()
    program = (
        "import resource, sys\nfrom cantrip_acp.tuplespace.stores import open_store\n"
        "from cantrip_acp.tuplespace.tuples import Pattern\nstore = open_store(sys.argv[1])\n"
        "for _ in range(100):\n    store.claim(Pattern({'lane': sys.argv[2]}), 'w', lease_s=30, count=8)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    peak = [
        int(
            subprocess.run(
                [sys.executable, "-c", program, address, lane], capture_output=True, text=True, check=True
            ).stdout
        )
        for lane in ("empty", "deep")
    ]
    samples[f"{kind} memory"] = [(peak[1] - peak[0]) / 1000]


def _idle(kind: str, address: str, samples: Samples) -> None:
    program = (
        "import resource, sys, anyio\nfrom cantrip_acp.tuplespace.stores import open_store\n"
        "from cantrip_acp.tuplespace.tuples import Pattern\nfrom cantrip_acp.tuplespace.workers.worker import Worker\n"
        "def used():\n    at = resource.getrusage(resource.RUSAGE_SELF)\n    return at.ru_utime + at.ru_stime\n"
        "async def main():\n    async with anyio.create_task_group() as tasks:\n"
        "        worker = Worker(open_store(sys.argv[1]), Pattern({'lane': 'nothing'}), {}, name='idle')\n"
        "        tasks.start_soon(worker.run)\n        await anyio.sleep(1)\n        before = used()\n"
        f"        await anyio.sleep({IDLE_S})\n        print((used() - before) * 1000 / {IDLE_S})\n        worker.drain()\n"
        "anyio.run(main)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, address], capture_output=True, text=True, check=True)
    samples[f"{kind} idle"] = [float(done.stdout)]
