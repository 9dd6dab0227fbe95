"""Forks of a code circle: the variables of that moment, by snapshot or by replay (LOOM-4, §6.6)."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import anyio
import pytest

from cantrip_acp import Cantrip, Circle, Loom, ScriptedCrystal
from cantrip_acp.core.forking.resume import resume_entity
from cantrip_acp.gates.contract import Gate
from cantrip_acp.sandbox import runtime
from cantrip_acp.types.errors import EntityBusy, SandboxError
from cantrip_acp.types.events import Noticed
from cantrip_acp.types.records import ForkRecord, SnapshotRecord
from tests.sandbox.integration.conftest import both_back_ends

COUNTED: list[str] = []


def ask(name: str) -> str:
    """A gate that acts on the world, once for each real call."""
    COUNTED.append(name)
    return f"answer to {name} number {len(COUNTED)}"


def code(*cells: str) -> list[dict[str, Any]]:
    return [{"code": cell} for cell in cells]


def spell(
    *cells: str, loom: Loom | None = None, snapshots: bool = False, medium: str = "code", **wards: Any
) -> Cantrip:
    gates: list[Any] = ["done", Gate.of(ask)]
    circle = Circle(medium, gates, [{"max_turns": 2_000, **wards}])
    settings = {"snapshots": True} if snapshots else None
    return Cantrip(ScriptedCrystal(code(*cells)), circle=circle, loom=loom, loom_settings=settings)


def turns(loom: Loom) -> list[Any]:
    return [t for t in loom.turns() if t.role == "crystal"]


def last_fork(loom: Loom) -> ForkRecord:
    return [r for r in loom.records() if isinstance(r, ForkRecord)][-1]


async def forked(cantrip: Cantrip, turn_id: str, *cells: str, state: Any = "auto") -> Any:
    other = cantrip.with_crystal(ScriptedCrystal(code(*cells)))
    async with await other.fork(turn_id, state=state) as entity:
        return (await entity.cast("on")).result


CELLS = (
    "import math\nrows = [1, 2]\nsame = rows\ndef double(n): return n * 2",
    "rows.append(double(3)); said = ask('the way')",
    "rows.clear(); said = None",
    "done(len(rows))",
)


@pytest.mark.parametrize("snapshots", [False, True])
@pytest.mark.parametrize("reopened", [False, True])
async def test_the_variables_of_that_moment(tmp_path: Path, snapshots: bool, reopened: bool) -> None:
    COUNTED.clear()
    path = tmp_path / "x.loom.jsonl"
    loom = Loom.open(path)
    cantrip = spell(*CELLS, loom=loom, snapshots=snapshots)
    assert (await cantrip.cast("go")).result == 0
    if reopened:
        loom.close()
        loom = Loom.open(path)
        cantrip = spell(loom=loom)
    with loom:
        result = await forked(
            cantrip, turns(loom)[1].id, "rows.append(9)", "done([rows, same is rows, said, double(4), math.pi > 3])"
        )
        assert result == [[1, 2, 6, 9], True, "answer to the way number 1", 8, True]
        assert last_fork(loom).strategy == ("snapshot" if snapshots else "replay")
        assert last_fork(loom).missing == ()
    # The gate acted once, whatever was forked.
    assert COUNTED == ["the way"]


@both_back_ends
async def test_a_living_entity_is_forked_by_its_state_as_it_stands(back_end: str) -> None:
    cantrip = spell("x = [1]\nimport random; seen = random.random()", "done(1)", "x.append('original')", "done(x)")
    async with cantrip.invoke() as entity:
        await entity.cast("first")
        other = cantrip.with_crystal(ScriptedCrystal(code("x.append('fork')", "done([x, seen])")))
        async with await entity.fork(cantrip=other) as twin:
            mine, seen = (await twin.cast("second")).result
        assert last_fork(cantrip.loom).strategy == "snapshot"
        assert mine == [1, "fork"]
        assert 0 <= seen < 1
        assert (await entity.cast("second")).result == [1, "original"]


async def test_an_entity_in_the_middle_of_a_cast_is_not_forked_as_it_stands() -> None:
    cantrip = spell("x = 1", "import time; time.sleep(30)", "done(2)")
    async with cantrip.invoke() as entity, anyio.create_task_group() as group:
        group.start_soon(entity.cast, "go")
        while not turns(cantrip.loom):
            await anyio.sleep(0.02)
        with pytest.raises(EntityBusy):
            await entity.fork()
        # By replay the same turn can be had at any time.
        assert await forked(cantrip, turns(cantrip.loom)[0].id, "done(x)", state="replay") == 1
        entity.cancel()


@both_back_ends
async def test_the_record_names_what_is_missing(back_end: str) -> None:
    cells = ("x = 5\nsteps = (n for n in range(3))", "done(1)")
    cantrip = spell(*cells, snapshots=True)
    await cantrip.cast("go")
    assert await forked(cantrip, turns(cantrip.loom)[0].id, "done(x)") == 5
    record = last_fork(cantrip.loom)
    assert record.strategy == "snapshot"
    assert any(each.startswith("steps:") for each in record.missing)


async def test_a_replay_tells_where_it_went_another_way() -> None:
    cantrip = spell("import os, time\nprint(time.time_ns())", "x = os.urandom(4).hex()\nprint(x)", "done(x)")
    await cantrip.cast("go")
    assert len(await forked(cantrip, turns(cantrip.loom)[1].id, "done(x)", state="replay")) == 8
    missing = last_fork(cantrip.loom).missing
    assert [each.partition(":")[0] for each in missing] == ["turn 1", "turn 2"]
    assert "printed" in missing[0]


async def test_a_gate_that_was_never_called_is_not_called_in_a_replay() -> None:
    COUNTED.clear()
    cells = ("import time\nif time.time_ns() % 2**62 > at: said = ask('later')", "done(1)")
    # ``at`` is not there the first time, so the gate is not called; the replay defines nothing either.
    cantrip = spell("n = globals().get('n', 0)", *cells)
    await cantrip.cast("go")
    assert COUNTED == []
    await forked(cantrip, turns(cantrip.loom)[1].id, "done(1)", state="replay")
    assert COUNTED == []


async def test_failures_and_submissions_are_lived_again_too() -> None:
    cantrip = spell("x = 1", "y = 2; 1 / 0", "z = 3; done(z)", "later = 4", "done(later)")
    async with cantrip.invoke() as entity:
        await entity.cast("first")
        await entity.cast("second")
    origin = turns(cantrip.loom)[3].id
    assert await forked(cantrip, origin, "done([x, y, z, later])", state="replay") == [1, 2, 3, 4]
    assert last_fork(cantrip.loom).missing == ()


async def test_a_loom_grows_with_what_changed(tmp_path: Path) -> None:
    path = tmp_path / "x.loom.jsonl"
    big = "import random\ndata = random.Random(1).randbytes(1_000_000)"
    with Loom.open(path) as loom:
        cantrip = spell(big, *(f"n = {n}" for n in range(30)), "done(n)", loom=loom, snapshots=True)
        await cantrip.cast("go")
        records = [r for r in loom.records() if isinstance(r, SnapshotRecord)]
        assert len(records) == 32
        assert path.stat().st_size < 3_500_000
        assert await forked(cantrip, turns(loom)[20].id, "done([n, len(data)])") == [19, 1_000_000]
        assert last_fork(loom).strategy == "snapshot"


async def test_a_snapshot_that_is_damaged_gives_way_to_replay(tmp_path: Path) -> None:
    path = tmp_path / "x.loom.jsonl"
    with Loom.open(path) as loom:
        await spell("x = 41", "done(x)", loom=loom, snapshots=True).cast("go")
    text = path.read_text("utf-8")
    at = text.index('"pieces":{"') + len('"pieces":{"') + 45
    path.write_text(text[:at] + ("AAAA" if text[at : at + 4] != "AAAA" else "BBBB") + text[at + 4 :], "utf-8")
    with Loom.open(path) as loom:
        cantrip = spell(loom=loom)
        origin = turns(loom)[0].id
        with pytest.raises(SandboxError):
            await cantrip.fork(origin, state="snapshot")
        assert await forked(cantrip, origin, "done(x + 1)") == 42
        assert last_fork(loom).strategy == "replay"


async def test_a_missing_snapshot_fails_unless_a_replay_was_asked_for() -> None:
    cantrip = spell("x = 1", "done(x)")
    await cantrip.cast("go")
    origin = turns(cantrip.loom)[0].id
    with pytest.raises(SandboxError, match=r"--state auto.*--state none"):
        await cantrip.fork(origin)
    with pytest.raises(SandboxError, match="--state auto"):
        await cantrip.resume(origin)
    assert not any(isinstance(record, ForkRecord) for record in cantrip.loom.records())
    assert await forked(cantrip, origin, "done(x)", state="auto") == 1


async def test_no_snapshot_is_said_so() -> None:
    cantrip = spell("x = 1", "done(x)")
    await cantrip.cast("go")
    with pytest.raises(SandboxError, match=r"loom: \{snapshots: true\}"):
        await cantrip.fork(turns(cantrip.loom)[0].id, state="snapshot")
    assert await forked(cantrip, turns(cantrip.loom)[0].id, "done('x' in globals())", state="none") is False
    assert last_fork(cantrip.loom).missing == ("variables of the code medium",)


async def test_eight_forks_at_once() -> None:
    cantrip = spell("x = [0]", "done(1)", snapshots=True)
    await cantrip.cast("go")
    origin = turns(cantrip.loom)[0].id
    results: dict[int, Any] = {}

    async def branch(n: int) -> None:
        results[n] = await forked(cantrip, origin, f"x.append({n})", "done(x)")

    async with anyio.create_task_group() as group:
        for n in range(8):
            group.start_soon(branch, n)
    assert results == {n: [0, n] for n in range(8)}


WRITING = (
    "import os\nn = int(open('count.txt').read()) + 1\nopen('count.txt', 'w').write(str(n))",
    "os.makedirs('made', exist_ok=True)\nopen('made/x', 'a').write('more')\nwhere = os.path.abspath('made/x')",
    "done([n, where])",
)


def writer(place: Path, *cells: str, loom: Loom | None = None, snapshots: bool = False) -> Cantrip:
    circle = Circle("code", ["done"], [{"max_turns": 20, "code_writable_paths": [str(place)]}], workspace=place)
    settings = {"snapshots": True} if snapshots else None
    return Cantrip(ScriptedCrystal(code(*cells)), circle=circle, loom=loom, loom_settings=settings)


@pytest.mark.parametrize("state", ["auto", "replay"])
async def test_cells_that_can_write_run_again_in_a_copy(tmp_path: Path, state: str) -> None:
    place = tmp_path / "work"
    place.mkdir()
    (place / "count.txt").write_text("0")
    (place / ".git").mkdir()
    os.mkfifo(place / "pipe")
    loom = Loom.memory()
    cantrip = writer(place, *WRITING, loom=loom)
    assert (await cantrip.cast("go")).result == [1, str(place / "made" / "x")]
    (place / "count.txt").write_text("40")
    (place / "made" / "x").write_text("mine")
    seen = "done([n, where, open('count.txt').read(), open('made/x').read()])"
    found = await forked(cantrip, turns(loom)[1].id, seen, state=state)
    # The variables are there, by code that saw a copy; nothing of yours was touched, and the fork works in your folder.
    assert found == [41, str(place / "made" / "x"), "40", "mine"]
    assert last_fork(loom).strategy == "replay"
    assert any("ran again in a copy" in lack for lack in last_fork(loom).missing)
    assert sorted(p.name for p in place.iterdir()) == [".git", "count.txt", "made", "pipe"]
    assert not list(Path(runtime().folder).glob("copies*"))
    with pytest.raises(SandboxError, match="there is no snapshot of turn"):
        await cantrip.fork(turns(loom)[1].id, state="snapshot")
    assert (place / "count.txt").read_text() == "40"


@pytest.mark.parametrize("back_end", ["seatbelt"], indirect=True)
async def test_cells_that_can_write_do_not_run_again_where_there_are_no_copies(back_end: str, tmp_path: Path) -> None:
    (tmp_path / "count.txt").write_text("0")
    loom = Loom.memory()
    cell = "n = int(open('count.txt').read()) + 1\nopen('count.txt', 'w').write(str(n))"
    assert (await writer(tmp_path, cell, "done(n)", loom=loom).cast("go")).result == 1
    with pytest.raises(SandboxError, match="cannot write to copies of folders on macOS"):
        await forked(writer(tmp_path, loom=loom), turns(loom)[0].id, "done(n)", state="replay")
    assert (tmp_path / "count.txt").read_text() == "1"


async def test_a_session_whose_snapshot_cannot_be_opened_writes_nothing(tmp_path: Path) -> None:
    place = tmp_path / "work"
    place.mkdir()
    (place / "count.txt").write_text("0")
    path = tmp_path / "x.loom.jsonl"
    with Loom.open(path) as loom:
        await writer(place, *WRITING, loom=loom, snapshots=True).cast("go")
        entity_id = turns(loom)[0].entity_id
    # As if another Python had made it; what is written anew needs no checksum.
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        line.pop("sum", None)
        if line["type"] == "snapshot":
            line["data"]["python"] = "3.7"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with Loom.open(path) as loom:
        cantrip = writer(place, "n", "done([n, open('count.txt').read()])", loom=loom, snapshots=True)
        found = resume_entity(cantrip, loom, entity_id)
        assert found.kept == "snapshot"
        entity = found.entity
        entity.use_crystal(ScriptedCrystal(code("n", "done(open('count.txt').read())")))
        before = len(turns(loom))
        async with entity, entity.stream("again") as stream:
            said = [event.text async for event in stream if isinstance(event, Noticed)]
            assert stream.result.result == "1"
        # A clear failure: no cell was run again, not even in a copy; the entity and the user are told.
        first = turns(loom)[before].observation.output
        assert "NameError" in first.error
        for text in (first.stderr, said[0]):
            assert "are gone" in text
            assert "made by Python 3.7" in text
        assert (place / "count.txt").read_text() == "1"
        with pytest.raises(SandboxError, match=r"made by Python 3\.7"):
            await cantrip.fork(turns(loom)[0].id, state="snapshot")


async def test_a_copy_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "work"
    place.mkdir()
    (place / "count.txt").write_text("0")
    loom = Loom.memory()
    cantrip = writer(place, *WRITING, loom=loom)
    await cantrip.cast("go")
    monkeypatch.setattr("cantrip_acp.files.scratch_copy.LARGEST_COPY", 1)
    with pytest.raises(SandboxError, match="the limit is 0 MiB: move large files out"):
        await cantrip.fork(turns(loom)[0].id, state="auto")
    assert (place / "count.txt").read_text() == "1"
