"""Several processes that write, and processes that are killed while they write: nothing that was committed is lost."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cantrip_acp.substrate.chunks import NewChunk, Spec
from cantrip_acp.substrate.projects import Project, earlier_sessions
from cantrip_acp.substrate.substrate import Substrate, open_substrate

WRITER = """\
import sys
from pathlib import Path
from cantrip_acp.substrate.chunks import Change, NewChunk, NewPlacement
from cantrip_acp.substrate.substrate import open_substrate
address, name, most = sys.argv[1], sys.argv[2], int(sys.argv[3])
with open_substrate(address) as substrate:
    for number in range(most):
        ids = [f"{name}-{number}-{part}" for part in range(3)]
        change = Change([NewChunk(each, each) for each in ids], [NewPlacement(each, "list") for each in ids])
        print(substrate.commit(change, author=name).number, flush=True)
"""


def start(address: str, name: str, most: int) -> subprocess.Popen[str]:
    line = [sys.executable, "-c", WRITER, address, name, str(most)]
    return subprocess.Popen(line, stdout=subprocess.PIPE, text=True)


@pytest.fixture
def scope(substrate: Substrate) -> Substrate:
    substrate.put(NewChunk("list", "list", Spec(ordered=True)))
    return substrate


def test_two_processes_write_at_the_same_time(scope: Substrate, address: str) -> None:
    writers = [start(address, name, 30) for name in ("a", "b")]
    numbers = [int(line) for writer in writers for line in writer.communicate(timeout=120)[0].split()]
    assert [writer.returncode for writer in writers] == [0, 0]
    assert len(set(numbers)) == 60
    placed = scope.scope("list").placed
    assert [each.sequence for each in placed] == list(range(180))
    # The three chunks of a commit are beside each other.
    names = [each.chunk.id.rpartition("-")[0] for each in placed]
    assert names[0::3] == names[1::3] == names[2::3]


def test_a_killed_writer_loses_nothing_and_leaves_no_half(scope: Substrate, address: str) -> None:
    for attempt in range(5):
        writer = start(address, f"w{attempt}", 100_000)
        assert writer.stdout is not None
        stored = [int(writer.stdout.readline()) for _ in range(1 + 7 * attempt)]
        writer.kill()
        stored += [int(line) for line in writer.stdout.read().split()]
        writer.wait(60)
        writer.stdout.close()
        with open_substrate(address) as again:
            for number in stored:
                changes = again.changes(number)
                assert (len(changes.chunks), len(changes.placed)) == (3, 3)
            found = [each.chunk.id for each in again.scope("list").placed if each.chunk.id.startswith(f"w{attempt}-")]
            # At most one commit was stored and not reported any more.
            assert len(found) in (3 * len(stored), 3 * len(stored) + 3)


FULL = """\
import resource, sys
from cantrip_acp.substrate.chunks import NewChunk, Spec, SubstrateError
from cantrip_acp.substrate.substrate import open_substrate
with open_substrate(sys.argv[1]) as substrate:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, hard))
    stored = []
    try:
        for number in range(1000):
            substrate.put(NewChunk(f"c{number}", "c", Spec(), {"text": "x" * 20_000}))
            stored.append(number)
    except SubstrateError as problem:
        assert sys.argv[1] in str(problem), problem
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert len(stored) < 1000
    assert all(substrate.exists(f"c{number}") for number in stored)
    assert not substrate.exists(f"c{len(stored)}")
    substrate.put(NewChunk("after", "after"))
    assert substrate.exists("after")
"""


def test_a_file_that_cannot_grow_loses_nothing_and_goes_on_later(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FULL, str(tmp_path / "s.db")], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


CAST = """\
import sys
from pathlib import Path
import anyio
from cantrip_acp import Loom
from cantrip_acp.recipes import load
from cantrip_acp.recipes.build.build import build
async def main():
    made = build(load(Path(sys.argv[1])), workspace=Path(sys.argv[2]), loom=Loom.memory())
    async with made.invoke() as entity:
        await entity.cast("Which port is free?")
anyio.run(main)
"""


@pytest.mark.parametrize("culture", ["true", "false"])
def test_a_process_that_ends_leaves_all_records_and_no_log_for_the_next_one_to_read(
    tmp_path: Path, culture: str
) -> None:
    recipe, file = tmp_path / "r.cantrip.yaml", tmp_path / "s.db"
    recipe.write_text(
        "crystal: {provider: scripted, responses: [{content: Port 4711.}]}\n"
        f"circle: {{medium: conversation, gates: [done], wards: [{{max_turns: 3}}]}}\nmemory: {{culture: {culture}}}\n"
    )
    for number in (1, 2):
        done = subprocess.run(
            [sys.executable, "-c", CAST, str(recipe), str(tmp_path)],
            env={**os.environ, "CANTRIP_SUBSTRATE": f"sqlite:{file}"}, capture_output=True, text=True,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
        assert [each.name for each in tmp_path.glob("s.db*")] == ["s.db"]
        with open_substrate(file) as substrate:
            lines = earlier_sessions(substrate, Project.of(tmp_path), 8)
            assert [line.partition(" asked: ")[2] for line in lines] == [
                '"Which port is free?" → text: "Port 4711."'
            ] * number
