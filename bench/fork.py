"""A fork from turn 1,000 of a code entity with 1 MB of state: by its snapshot, and by running its 1,000 cells again.

The baseline is the replay. A fork starts a sandboxed worker of its own, so the row with the goal is what the snapshot itself
takes: from the loom into a worker that runs already.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import anyio

from bench.measure import Table, row
from bench.options import Options
from bench.shell import Turn
from cantrip_acp.core.cantrip import Cantrip
from cantrip_acp.core.definition.circle import Circle
from cantrip_acp.crystals.scripted import ScriptedCrystal
from cantrip_acp.loom.loom import Loom
from cantrip_acp.loom.snapshots import SnapshotChunks
from cantrip_acp.mediums.code.session import CodeSession
from cantrip_acp.mediums.code.snapshot import Snapshot
from cantrip_acp.types.messages import ToolCall

TURNS = 1_000
STATE = """
import random
rows = [{'id': n, 'name': f'row {n}', 'values': [random.random() for _ in range(4)]} for n in range(3000)]
numbers = [random.randrange(10**6) for _ in range(50_000)]
text = ''.join(chr(97 + random.randrange(26)) for n in range(300_000))
data = random.randbytes(200_000)
n = 0
"""


def _spell(loom: Loom, count: int) -> Cantrip:
    said = [{"code": STATE}, *({"code": "n += 1"} for _ in range(count - 2)), {"code": "done(n)"}]
    circle = Circle("code", ["done"], {"max_turns": count + 1})
    return Cantrip(ScriptedCrystal(said), circle=circle, loom=loom, loom_settings={"snapshots": True})


async def measure(path: Path, turns: int, rounds: int, samples: dict[str, list[float]]) -> None:
    def took(name: str, began: float) -> None:
        samples.setdefault(name, []).append((time.perf_counter() - began) * 1000)

    with Loom.open(path) as loom:
        cantrip = _spell(loom, turns)
        await cantrip.cast("Count.")
        leaf = loom.leaves()[-1]
        for _ in range(max(2, rounds // 8)):
            began = time.perf_counter()
            entity = await cantrip.fork(leaf, state="replay")
            took("replay", began)
            await entity.close()
        for _ in range(rounds):
            began = time.perf_counter()
            entity = await cantrip.fork(leaf, state="snapshot")
            took("fork", began)
            await entity.close()
            fork = cantrip.invoke()
            session = await fork.session()
            assert isinstance(session, CodeSession)
            await session.warm()
            began = time.perf_counter()
            pieces = SnapshotChunks(loom)
            described = pieces.of(leaf)
            assert described is not None
            await session.restore(Snapshot.of(described), pieces)
            took("restore", began)
            output = await session.run(ToolCall("t", "python", '{"code": "n"}'), Turn(cantrip.circle.wards))
            if output.value != str(turns - 2):
                raise RuntimeError(f"the state is not that of the turn: {output}")
            await fork.close()


def run(options: Options) -> Table:
    """The table."""
    samples: dict[str, list[float]] = {}
    turns = TURNS // 10 if options.quick else TURNS
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        path = Path(folder) / "x.loom.jsonl"
        anyio.run(measure, path, turns, options.rounds(20), samples)
        size = path.stat().st_size / 1e6
    baseline = row(f"replay of {turns:,} cells, recorded gates", samples["replay"], "ms")
    return Table(
        "fork",
        f"a fork from turn {turns:,} of a code entity with 1 MB of state",
        (
            baseline,
            row(
                "by snapshot, with a sandbox of its own",
                samples["fork"],
                "ms",
                baseline=baseline,
                note=f"the loom, with {turns:,} snapshots: {size:,.1f} MB",
            ),
            row(
                "the snapshot itself: read, sent, restored",
                samples["restore"],
                "ms",
                baseline=baseline,
                goal="<= 20",
            ),
        ),
    )
