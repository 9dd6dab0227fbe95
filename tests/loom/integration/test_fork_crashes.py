"""Killed while forks are made: by snapshot and by replay, in groups and worktrees. The rest is whole and the user's is untouched.

And two processes that fork the same turn of one loom at once.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cantrip_acp import Cantrip, Circle, Loom, ScriptedCrystal
from cantrip_acp.core.lifecycle.checkpoints import delete_checkpoints
from cantrip_acp.git import worktrees
from cantrip_acp.git.repository import Repository
from cantrip_acp.types.records import ForkRecord
from tests.support import processes
from tests.support.git_repositories import git, repository, users_state
from tests.support.loom_stores import Place

ROOT = Path(__file__).parents[3]

GROUPS = """
import sys
from pathlib import Path
from anyio import run
from cantrip_acp import Cantrip, Circle, Loom, ScriptedCrystal
from cantrip_acp.core.forking.group import fork_group
sys.path.insert(0, sys.argv[2])
from tests.loom.integration.test_fork_crashes import spell

where, _, project, sides, state = sys.argv[1:]

def told(sample):
    assert sample.error is None, sample.error
    print(sample.entity_id, flush=True)

async def main():
    loom = Loom.open(where)
    origin = [t.id for t in loom.turns() if t.role == "crystal"][1]
    number = 0
    print("ready", flush=True)
    while True:
        number += 1
        cantrips = [spell(project, [{"code": "done(n)"}], state, loom) for _ in range(3)]
        await fork_group(
            cantrips, origin, ["once more"] * 3, loom=loom, concurrency=2, state=state,
            worktree=Path(sides) / str(number), ended=told,
        )

run(main)
"""


def spell(project: str | Path, said: list[object], state: str, loom: Loom) -> Cantrip:
    """A code circle in a repository, with its files pinned, and snapshots where they are wanted."""
    circle = Circle("code", ["done", "write_file"], {"max_turns": 9}, workspace=project)
    settings = {"files": True, "snapshots": state == "snapshot"}
    return Cantrip(ScriptedCrystal(said), circle=circle, loom=loom, loom_settings=settings)


SAID: list[object] = [
    {"code": "n = 41\nwrite_file('new.txt', 'one')"},
    {"code": "n += 1\nwrite_file('new.txt', 'two')"},
    {"code": "write_file('new.txt', 'three')\ndone(n)"},
]


@pytest.mark.sandbox
@pytest.mark.parametrize("state", ["snapshot", "replay"])
async def test_a_group_that_is_killed_leaves_no_half_fork(kept: Place, tmp_path: Path, state: str) -> None:
    project = repository(tmp_path / "project")
    with kept.open() as loom:
        await spell(project, list(SAID), state, loom).cast("begin")
        first = loom.thread(loom.leaves()[0])
        (project / "new.txt").unlink()
    before = users_state(project)
    for number in range(2):
        sides = tmp_path / f"sides{number}"
        command = [sys.executable, "-c", GROUPS, kept.where, str(ROOT), str(project), str(sides), state]
        with processes.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            told = [process.stdout.readline() for _ in range(1 + number)]
            time.sleep(random.random() * 0.8)
            process.kill()
            told += process.stdout.readlines()
        whole = {line.decode().strip() for line in told[1:] if line.endswith(b"\n")}
        assert users_state(project) == before
        with kept.open() as loom:
            assert not [p for p in loom.problems if "torn" not in p.message]
            assert loom.thread(first.leaf.id) == first
            forks = {r.entity_id: r for r in loom.records() if isinstance(r, ForkRecord) and isinstance(r.group, str)}
            assert whole <= set(forks)
            for record in forks.values():
                # A fork that has a record is whole: its state was restored, its files are there.
                assert record.strategy == state
                assert record.from_turn in loom
                assert isinstance(record.worktree, str)
                assert (Path(record.worktree) / "new.txt").read_text() == "two"
            results = [t.result for t in loom.threads() if t.leaf.entity_id in whole]
            assert results == [42] * len(whole)
            # What was not finished says so, and whose it is.
            for why in worktrees.unfinished(repository_of(project)).values():
                assert why.startswith(f"cantrip {loom.header.id} ")  # type: ignore[union-attr]
            again = await spell(project, [{"code": "done(n)"}], state, loom).fork(first.turns[2].id, state=state)  # type: ignore[arg-type]
            async with again:
                assert (await again.cast("after the crash")).result == 42
    with kept.open() as loom:
        delete_checkpoints(loom)
    assert worktrees.linked(repository_of(project)) == []
    assert git(project, "for-each-ref", "refs/cantrip") == ""
    assert users_state(project) == before


def repository_of(project: Path) -> Repository:
    found = Repository.of(project)
    assert found is not None
    return found


WRITER = """
import sys
from anyio import run
from cantrip_acp import Loom
sys.path.insert(0, sys.argv[2])
from tests.support.fixtures.core import done, echo, make

async def main():
    loom = Loom.open(sys.argv[1])
    origin = next(t.id for t in loom.turns() if t.role == "crystal")
    for number in range(10):
        cantrip = make(echo("again"), done(sys.argv[3]), loom=loom)
        group = await cantrip.fork_group(origin, "once more", samples=1)
        print(group.id, group.samples[0].entity_id, flush=True)

run(main)
"""


async def test_two_processes_fork_the_same_turn_at_once(shared: Place) -> None:
    from tests.support.fixtures.core import done, echo, make

    with shared.open() as loom:
        await make(echo("a"), done("x"), loom=loom).cast("go")
        first = loom.thread(loom.leaves()[0])
    writers = [
        processes.Popen(
            [sys.executable, "-c", WRITER, shared.where, str(ROOT), name], stdout=subprocess.PIPE, text=True
        )
        for name in ("left", "right")
    ]
    told = [process.communicate(timeout=100)[0].split() for process in writers]
    assert [process.returncode for process in writers] == [0, 0]
    with shared.open() as loom:
        assert not loom.problems
        assert loom.thread(first.leaf.id) == first
        forks = {r.entity_id: r for r in loom.records() if isinstance(r, ForkRecord)}
        assert len(forks) == 20
        assert {(r.group, r.entity_id) for r in forks.values()} == {
            pair for words in told for pair in zip(words[::2], words[1::2], strict=True)
        }
        assert sorted(t.result for t in loom.threads()) == ["left"] * 10 + ["right"] * 10 + ["x"]
