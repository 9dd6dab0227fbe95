"""Workers and the database are killed at random moments: each tuple ends once, and no step that ended is repeated."""

from __future__ import annotations

import random
import signal
import sqlite3
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from cantrip_acp.tuplespace.receipts import is_genuine
from cantrip_acp.tuplespace.stores import open_store
from cantrip_acp.tuplespace.tuples import new_tuple
from tests.support import processes
from tests.support.postgres_server import Server

TUPLES = 150
KILLS = 25

WORKER = """
import os, random, sys, anyio
from cantrip_acp.tuplespace.stores import open_store
from cantrip_acp.tuplespace.tuples import Pattern
from cantrip_acp.tuplespace.worker import StepResult, Worker
address, log = sys.argv[1:]
async def step(call):
    await anyio.sleep(random.random() * 0.02)
    with open(log, "ab", buffering=0) as file:
        file.write(f"{call.tuple_id} {call.yool}\\n".encode())
    return StepResult(cost={"usd": 1})
async def main():
    yools = {"a.first": step, "a.second": step}
    worker = Worker(open_store(address), Pattern({"lane": "x"}), yools, name=str(os.getpid()), concurrency=4, lease_s=1.0)
    print("ready", flush=True)
    await worker.run()
anyio.run(main)
"""


def start(address: str, log: Path) -> Any:
    worker = processes.Popen([sys.executable, "-c", WORKER, address, str(log)], stdout=-1)
    assert worker.stdout is not None
    return worker


@pytest.mark.timeout(240)
def test_each_tuple_ends_once_whatever_is_killed(address: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    store, log, random_ = open_store(address), tmp_path / "log", random.Random(7)
    steps, terms = [{"yool": "a.first"}, {"yool": "a.second"}], {"max_retries": 99}
    works = [new_tuple("x", steps, map_pos={"n": number}, agent_terms=terms) for number in range(TUPLES)]
    store.put(works)
    workers = [start(address, log) for _ in range(3)]
    server: Server | None = request.getfixturevalue("postgres") if address.startswith("postgresql") else None
    kills = 0
    end = time.monotonic() + 180

    def ended() -> int:
        return sum(each.count for each in store.counts() if each.state in ("done", "failed"))

    try:
        while ended() < TUPLES:
            assert time.monotonic() < end, store.counts()
            time.sleep(random_.random() * 0.2)
            if kills < KILLS:
                kills += 1
                if server is not None and kills % 12 == 0:
                    # The database crashes; workers wait for it.
                    server.stop(signal.SIGQUIT)
                    time.sleep(0.3)
                    server.start()
                    continue
                index = random_.randrange(len(workers))
                workers[index].kill()
                workers[index].wait()
                workers[index].stdout.close()
                workers[index] = start(address, log)
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
            worker.stdout.close()
    assert kills == KILLS, "the work was done before all faults"
    effects = log.read_text().splitlines()
    for work in works:
        found = store.receipts(work.id)
        assert [each.step for each in found] == [0, 1, None], "each step has one receipt, and one ends the tuple"
        assert all(is_genuine(each.document) for each in found)
        stored = store.get(work.id)
        assert stored is not None
        assert stored.state == "done"
        # A step may run again only if it was cut off before its receipt was stored.
        assert effects.count(f"{work.id} a.first") >= 1
    repeated = len(effects) - 2 * TUPLES
    assert repeated <= KILLS * 4, "only steps of killed workers, at most 4 each, ran again"
    store.close()


def test_an_emitter_that_is_killed_puts_all_of_a_call_or_nothing(tmp_path: Path) -> None:
    path = tmp_path / "space.db"
    program = (
        "import sys\nfrom cantrip_acp.tuplespace.stores import open_store\n"
        "from cantrip_acp.tuplespace.tuples import new_tuple\nstore = open_store(sys.argv[1])\nprint('ready', flush=True)\n"
        "n = 0\nwhile True:\n"
        "    store.put([new_tuple('x', [{'yool': 'a.b'}], map_pos={'n': n, 'of': k}) for k in range(10)])\n    n += 1\n"
    )
    for _ in range(4):
        emitter = processes.Popen([sys.executable, "-c", program, str(path)], stdout=-1)
        assert emitter.stdout is not None
        emitter.stdout.readline()
        time.sleep(random.random() * 0.2)
        emitter.kill()
        emitter.wait()
        emitter.stdout.close()
        with sqlite3.connect(path) as base:
            (tuples,) = base.execute("SELECT count(*) FROM tuples").fetchone()
            (queued,) = base.execute("SELECT count(*) FROM queue").fetchone()
        assert tuples == queued
        assert tuples % 10 == 0
