"""Killed in the middle: of a copy, of forks, of a server's work. What was told as written is there, and nothing is half."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import psycopg
import pytest

from cantrip_acp import Loom, Turn
from cantrip_acp.loom.stores.address import open_store
from cantrip_acp.types.records import ForkRecord, Utterance
from tests.support import processes
from tests.support.fixtures.core import done, echo, make
from tests.support.loom_stores import Place
from tests.support.postgres_server import Server

pytestmark = pytest.mark.anyio

COPIER = """
import sys
from cantrip_acp import Loom
from cantrip_acp.loom.stores.address import open_store
with Loom.open(sys.argv[1], readonly=True) as source:
    print("ready", flush=True)
    source.copy_to(open_store(sys.argv[2])).close()
print("done", flush=True)
"""


def test_a_copy_that_is_killed_is_gone_on_with(kept: Place, tmp_path: Path) -> None:
    path = tmp_path / "source" / "a.loom.jsonl"
    with Loom.open(path) as source:
        for n in range(300):
            source.append(
                Turn(f"t{n}", f"t{n // 2}" if n else None, "c", "e", "k", utterance=Utterance("x" * (n * 37 % 5000)))
            )
            source.annotate_reward(f"t{n}", n)
        everything = list(source.records())
    for _ in range(6):
        with processes.Popen([sys.executable, "-c", COPIER, path, kept.where], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(random.random() * 0.1)
            process.kill()
        with kept.open() as copy:
            there = list(copy.records())
            assert there == everything[: len(there)]
            assert not [p for p in copy.problems if "torn" not in p.message]
    with Loom.open(path, readonly=True) as source, source.copy_to(open_store(kept.where)) as copy:
        assert list(copy.records()) == everything
        assert copy.turn("t299").reward == 299
        assert copy.leaves() == source.leaves()


FORKER = """
import sys
from anyio import run
from cantrip_acp import Loom
sys.path.insert(0, sys.argv[2])
from tests.support.fixtures.core import done, echo, make

async def main():
    loom = Loom.open(sys.argv[1])
    origin = [t.id for t in loom.turns() if t.role == "crystal"][0]
    while True:
        cantrip = make(echo("again"), done("forked"), loom=loom)
        entity = await cantrip.fork(origin, loom=loom, state="none")
        await entity.cast("once more")
        await entity.close()
        print(entity.id, flush=True)

run(main)
"""


async def test_forks_that_are_killed_leave_the_rest_whole(kept: Place) -> None:
    root = Path(__file__).parents[3]
    with kept.open() as loom:
        await make(echo("a"), done("x"), loom=loom).cast("go")
        first = loom.thread(loom.leaves()[0])
    for _ in range(4):
        with processes.Popen([sys.executable, "-c", FORKER, kept.where, str(root)], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            told = [process.stdout.readline()]
            time.sleep(random.random() * 0.05)
            process.kill()
            told += process.stdout.readlines()
        whole = [line.decode().strip() for line in told if line.endswith(b"\n")]
        assert whole
        with kept.open() as loom:
            assert not [p for p in loom.problems if "torn" not in p.message]
            assert loom.thread(first.leaf.id) == first
            forks = [r for r in loom.records() if isinstance(r, ForkRecord)]
            assert all(r.from_turn in loom for r in forks)
            assert set(whole) <= {r.entity_id for r in forks}
            ended = [t for t in loom.threads() if t.leaf.entity_id in whole]
            assert {t.state for t in ended} == {"terminated"}
            assert all(t.turns[: len(first) - 1] == first.turns[:-1] for t in ended)
            cantrip = make(echo("after"), done("well"), loom=loom)
            again = await (await cantrip.fork(first.leaf.id, loom=loom, state="none")).cast("after the crash")
            assert again.result == "well"


PERSISTENT = """
import sys
from cantrip_acp import Loom, Turn
from cantrip_acp.types.errors import LoomError, LoomWriteError, LoomAppendOnly
loom = Loom.open(sys.argv[1])
lost = 0
for n in range(int(sys.argv[2])):
    turn = Turn(f"t{n}", f"t{n - 1}" if n else None, "c", "e", "k", sequence=n)
    while True:
        try:
            loom.append(turn)
            break
        except LoomAppendOnly:
            break  # It was kept although we were not told.
        except LoomWriteError as error:
            assert "whether this record is kept is seen when the loom is read again" in str(error), error
            lost += 1
    print(n, flush=True)
print("lost", lost, flush=True)
"""


def test_connections_that_are_cut_lose_and_double_nothing(postgres: Server) -> None:
    place = Place.at("postgres", postgres, "cut")
    with (
        psycopg.connect(postgres.url("x").partition("?")[0], autocommit=True) as owner,
        processes.Popen(
            [sys.executable, "-c", PERSISTENT, place.where, "400"], stdout=subprocess.PIPE, text=True
        ) as process,
    ):
        assert process.stdout is not None
        told = [process.stdout.readline()]
        while process.poll() is None and len(told) < 400:
            owner.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'cantrip-acp' "
                "AND query LIKE 'INSERT INTO cantrip_records%' AND pid <> pg_backend_pid()"
            )
            told += [process.stdout.readline() for _ in range(25)]
        last = [*told, *process.stdout][-1]
        assert process.wait(60) == 0
    assert int(last.split()[1]) >= 3, "it was cut"
    with place.open() as loom:
        turns = list(loom.turns())
        assert not loom.problems
    assert [t.sequence for t in turns] == list(range(400))
    assert all(a.id == b.parent_id for a, b in pairwise(turns))


STUBBORN = """
import sys
from cantrip_acp import Loom, Turn
from cantrip_acp.types.errors import LoomWriteError
loom = Loom.open(sys.argv[1])
n = len(loom)
try:
    while True:
        loom.append(Turn(f"t{n}", f"t{n - 1}" if n else None, "c", "e", "k", sequence=n))
        print(n, flush=True)
        n += 1
except LoomWriteError as error:
    print(error, file=sys.stderr)
    sys.exit(3)
"""


@pytest.mark.parametrize("by", [signal.SIGQUIT, signal.SIGINT])
def test_a_server_that_goes_in_the_middle_of_writing(postgres: Server, by: int) -> None:
    place = Place.at("postgres", postgres, "gone")
    with processes.Popen(
        [sys.executable, "-c", STUBBORN, place.where], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        told = [process.stdout.readline() for _ in range(20)]
        postgres.stop(by)
        try:
            told += process.stdout.readlines()
            said = process.stderr.read()
            assert process.wait(60) == 3
        finally:
            postgres.start()
    assert "cannot write loom postgresql://keeper@127.0.0.1" in said
    assert "earlier records are safe. Check the server" in said
    assert "s3cret" not in said
    with place.open() as loom:
        turns = list(loom.turns())
        assert not loom.problems
        loom.append(Turn("after", turns[-1].id, "c", "e", "k"))
    assert [t.sequence for t in turns] == list(range(len(turns)))
    assert len(turns) > int(told[-1])
