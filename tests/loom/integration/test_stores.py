"""One suite for every store: order, ids, rewards, forks, snapshots, threads, reopening, writers side by side, crashes."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from cantrip_acp import Loom, LoomError, Turn
from cantrip_acp.loom.snapshots import SnapshotChunks
from cantrip_acp.loom.stores.address import open_store
from cantrip_acp.types.errors import LoomAppendOnly, TurnNotFound
from cantrip_acp.types.records import (
    CantripRecord,
    CastRecord,
    ConfigRecord,
    ContextRecord,
    FoldRecord,
    ForkRecord,
    LoomHeader,
    RewardRecord,
    SnapshotRecord,
    Utterance,
)
from tests.support import processes
from tests.support.fixtures.core import done, echo, make
from tests.support.loom_stores import Place

pytestmark = pytest.mark.anyio


def turn(name: str, parent: str | None, *, said: str = "hello – ünï \0 \U0001f409", **more: object) -> Turn:
    return Turn(name, parent, "c", "e", "k", utterance=Utterance(said), **more)  # type: ignore[arg-type]


def grown(loom: Loom, count: int, said: str = "hello") -> None:
    for n in range(count):
        loom.append(turn(f"t{n}", f"t{n - 1}" if n else None, said=said, sequence=n))


def test_records_come_back_as_they_were_and_in_order(place: Place) -> None:
    told = [
        LoomHeader("loom_1", created="then"),
        CantripRecord("c", {"system_prompt": "be"}, {"gates": ["done"]}),
        CastRecord("k", "start", "e", "c", intent="go"),
        ContextRecord("x", "e", "k", "user", "a file", "its text"),
        turn("t0", None, role="call"),
        turn("t1", "t0", sequence=1, reward=0.5),
        RewardRecord("t1", 1.0, "me", "good"),
        SnapshotRecord("s", "t1", "e", {"pieces": {"p": "AAAA"}, "more": [1]}),
        FoldRecord("f", "e", "k", ("t1",), "in short"),
        ForkRecord("g", "t1", "e2", missing=("a",)),
        ConfigRecord("h", "e", {"model": "x"}),
        CastRecord("k", "end", "e", "c", result={"a": [1, None]}, terminated=True, turns=1),
    ]
    loom = place.open()
    for record in told:
        loom.append(record)
    for _ in range(2):
        assert list(loom.records()) == told
        assert loom.header == told[0]
        assert loom.turn("t1").reward == 1.0
        assert loom.cantrip("c") == told[1]
        assert loom.cast_of("k") == (told[2], (told[3],))
        assert list(loom.snapshots) == ["t1"]
        assert list(loom.pieces) == ["p"]
        assert loom.snapshot_at(loom.snapshots["t1"]) == told[7]
        assert loom.begin("c", {}, {}, "e9") == "t0"
        assert not loom.problems
        loom = place.again(loom)
    loom.close()


def test_half_a_character_becomes_a_mark(place: Place) -> None:
    loom = place.open()
    loom.append(turn("t0", None, said="a\ud800b"))
    assert place.again(loom).turn("t0").utterance.content in ("a?b", "a\ud800b")


def test_threads_forks_and_rewards(place: Place) -> None:
    loom = place.open()
    grown(loom, 4)
    loom.append(turn("b2", "t1"))
    loom.append(turn("b3", "b2", terminated=True))
    loom.annotate_reward("b3", 1, by="one")
    loom.annotate_reward("b3", -2, by="two")
    for _ in range(2):
        assert loom.leaves() == ["t3", "b3"]
        assert [t.id for t in loom.thread("b3")] == ["t0", "t1", "b2", "b3"]
        assert loom.children("t1") == ["t2", "b2"]
        assert loom.turn("b3").reward == -2
        assert [r.by for r in loom.records() if isinstance(r, RewardRecord)] == ["one", "two"]
        with pytest.raises(TurnNotFound):
            loom.turn("nobody")
        loom = place.again(loom)
    loom.close()


def test_it_is_append_only(place: Place) -> None:
    loom = place.open()
    grown(loom, 2)
    with pytest.raises(LoomAppendOnly):
        loom.append(turn("t1", "t0", said="another"))
    with pytest.raises(LoomError, match="names a parent that is not in this loom: 'nobody'"):
        loom.append(turn("t2", "nobody"))
    with pytest.raises(LoomAppendOnly):
        loom.delete_turn("t1")
    loom.append(turn("t2", "t1"))
    assert len(place.again(loom)) == 3


async def test_casts_are_written_alike(place: Place) -> None:
    loom = place.open()
    cantrip = make(echo("a"), done("x"), done("y"), loom=loom)
    first = await cantrip.cast("go")
    assert first.result == "x"
    second = await cantrip.cast("again")
    assert second.result == "y"
    loom = place.again(loom)
    assert [start.intent for start, _ in loom.casts()] == ["go", "again"]
    assert {t.state for t in loom.threads()} == {"terminated"}
    assert sum(t.role == "call" for t in loom.turns()) == 1


def test_snapshots_keep_what_changed(place: Place) -> None:
    loom = place.open()
    grown(loom, 2)
    pieces = SnapshotChunks(loom)
    assert pieces.put("one", b"1" * 100_000)
    pieces.keep("t0", "e", {"names": ["a"]})
    loom = place.again(loom)
    pieces = SnapshotChunks(loom)
    assert not pieces.put("one", b"1" * 100_000)
    assert pieces.put("two", b"\0\xff")
    pieces.keep("t1", "e", {"names": ["a", "b"]})
    loom = place.again(loom)
    pieces = SnapshotChunks(loom)
    assert (pieces.get("one"), pieces.get("two")) == (b"1" * 100_000, b"\0\xff")
    assert pieces.of("t1") == {"names": ["a", "b"]}


def test_moving_to_another_store_keeps_everything(place: Place, tmp_path: Path) -> None:
    loom = place.open()
    grown(loom, 5)
    loom.append(turn("b2", "t1"))
    loom.annotate_reward("b2", 3)
    target = tmp_path / "copy.loom.jsonl"
    with loom.copy_to(open_store(target)) as copy:
        assert list(copy.records()) == list(loom.records())
        assert copy.leaves() == loom.leaves()
        assert copy.header == loom.header
    with Loom.open(target) as source, Place.like(place, "moved").open() as moved:
        moved_back = source.copy_to(moved._store)
        assert [msgspec.to_builtins(r) for r in moved_back.records()] == [
            msgspec.to_builtins(r) for r in loom.records()
        ]
        assert moved_back.turn("b2").reward == 3
    other = tmp_path / "other.loom.jsonl"
    with Loom.open(other) as another:
        grown(another, 1)
    with pytest.raises(LoomError, match="holds other records already; copy to an empty one"):
        loom.copy_to(open_store(other))


def test_a_thread_of_500_is_read_quickly(place: Place) -> None:
    loom = place.open()
    grown(loom, 500, "x" * 3000)
    loom = place.again(loom)
    took = []
    for _ in range(5):
        begun = time.perf_counter()
        assert len(loom.thread("t499")) == 500
        took.append(time.perf_counter() - begun)
    # Ten milliseconds on a machine that does nothing else; here the order of magnitude.
    assert min(took) < 0.1


def test_reading_alone_writes_nothing(place: Place) -> None:
    if place.kind == "memory":
        pytest.skip("memory has no second opening")
    loom = place.open()
    grown(loom, 3)
    loom.close()
    with place.open(readonly=True) as held:
        assert [t.id for t in held.thread("t2")] == ["t0", "t1", "t2"]
        with pytest.raises(LoomError, match="open for reading only"):
            held.append(turn("t3", "t2"))
    closed = place.open()
    closed.close()
    closed.close()
    with pytest.raises(LoomError, match="closed"):
        closed.append(turn("t3", "t2"))


def test_two_writers_see_each_other(shared: Place) -> None:
    one, two = shared.open(), shared.open()
    one.append(turn("a0", None))
    assert two.turn("a0").id == "a0"
    two.append(turn("a1", "a0"))
    one.append(turn("b1", "a0"))
    two.append(turn("b2", "b1"))
    assert "a1" in one
    with pytest.raises(LoomAppendOnly):
        one.append(turn("b2", "b1", said="another"))
    one.annotate_reward("b2", 1)
    two.refresh()
    for loom in (one, two, shared.open(readonly=True)):
        assert [t.id for t in loom.turns()] == ["a0", "a1", "b1", "b2"]
        assert loom.turn("b2").reward == 1
        assert sum(isinstance(r, LoomHeader) for r in loom.records()) == 1
        assert one.header == loom.header
        assert not loom.problems
        loom.close()


WRITER = """
import sys
import threading
from cantrip_acp import Loom, Turn
from cantrip_acp.types.records import Utterance
where, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
loom = Loom.open(where)
mine = [t for t in loom.turns() if t.id.startswith(name)]
parent, n = (mine[-1].id if mine else None), len(mine)
end = n + count
while n < end:
    loom.append(Turn(f"{name}{n}", parent, "c", "e", "k", sequence=n, utterance=Utterance("x" * (n * 37 % 20000))))
    parent = f"{name}{n}"
    sys.stdout.write(f"{n}\\n"); sys.stdout.flush()
    n += 1
loom.close()
"""


def test_many_processes_write_at_once(shared: Place) -> None:
    names = ["a", "b", "c"]
    running = [
        processes.Popen([sys.executable, "-c", WRITER, shared.where, name, "60"], stdout=subprocess.DEVNULL)
        for name in names
    ]
    assert [process.wait(100) for process in running] == [0, 0, 0]
    with shared.open() as loom:
        assert not loom.problems
        assert len(loom) == 180
        for name in names:
            mine = [t for t in loom.turns() if t.id.startswith(name)]
            assert [t.sequence for t in mine] == list(range(60))
            assert all(a.id == b.parent_id for a, b in pairwise(mine))
        assert sum(isinstance(r, LoomHeader) for r in loom.records()) == 1


def test_kill_9_loses_at_most_the_record_in_flight(kept: Place) -> None:
    told = -1
    for _ in range(6):
        process = processes.Popen([sys.executable, "-c", WRITER, kept.where, "t", "100000"], stdout=subprocess.PIPE)
        assert process.stdout is not None
        first = process.stdout.readline()
        assert first
        time.sleep(random.random() * 0.05)
        process.send_signal(signal.SIGKILL)
        rest = [first, *process.stdout.read().splitlines(keepends=True)]
        process.wait()
        told = max(int(line) for line in rest if line.endswith(b"\n"))
        with kept.open() as loom:
            turns = list(loom.turns())
            assert not [p for p in loom.problems if "torn" not in p.message]
        assert [t.sequence for t in turns] == list(range(len(turns)))
        assert len(turns) > told, "what was told as written is there"
        assert all(a.id == b.parent_id for a, b in pairwise(turns))


def test_a_turn_is_known_when_it_is_written_also_while_a_thread_reads(place: Place) -> None:
    loom = place.open()
    stopped = threading.Event()
    read: list[int] = []

    def look() -> None:
        while not stopped.is_set():
            assert "unknown" not in loom
            loom.leaves()
            read.append(len(loom.threads()))

    reader = threading.Thread(target=look)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    reader.start()
    try:
        for n in range(300):
            loom.append(turn(f"t{n}", f"t{n - 1}" if n else None, sequence=n))
            assert loom.places[f"t{n}"].parent_id == (f"t{n - 1}" if n else None)
    finally:
        stopped.set()
        reader.join()
        sys.setswitchinterval(interval)
    assert read == sorted(read) != []
    assert [each.id for each in place.again(loom).thread("t299")] == [f"t{n}" for n in range(300)]
