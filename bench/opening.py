"""Opening a loom of 100,000 turns, and reading one thread of 500.

The baselines read the same file: `json.loads` of every line, and msgspec decoding every turn whole. Ours opens it by heads
alone, and by the index that the last writer left beside it.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path

import msgspec

from bench.append import turns
from bench.measure import Table, row
from bench.options import Options
from cantrip_acp.loom.loom import Loom
from cantrip_acp.loom.stores import index_file
from cantrip_acp.types.records import Record

TURNS = 100_000
THREAD = 500


def _filled(path: Path) -> None:
    """Threads of ``THREAD`` turns of 4 KB, ``TURNS`` in all."""
    made = turns(THREAD)
    with Loom.open(path) as loom:
        root = loom.begin("k_bench", {}, {}, "e_bench")
        for number in range(TURNS // THREAD):
            parent = root
            for turn in made:
                grown = msgspec.structs.replace(turn, id=f"{turn.id}_{number}", parent_id=parent)
                loom.append(grown)
                parent = grown.id


def run(options: Options) -> Table:
    """The table."""
    samples: dict[str, list[float]] = {}
    decode = msgspec.json.Decoder(Record).decode

    def timed(name: str, began: float) -> None:
        samples.setdefault(name, []).append((time.perf_counter() - began) * 1000)

    with tempfile.TemporaryDirectory(prefix="bench-", dir=Path(__file__).parent / "results") as folder:
        path = Path(folder) / "x.loom.jsonl"
        _filled(path)
        index = index_file.path_of(path)
        kept = index.read_bytes()
        for _ in range(options.rounds(3)):
            began = time.perf_counter()
            with path.open("rb") as file:
                for line in file:
                    json.loads(line)
            timed("json", began)
            began = time.perf_counter()
            with path.open("rb") as file:
                for line in file:
                    decode(line)
            timed("msgspec", began)
            index.unlink()
            began = time.perf_counter()
            Loom.open(path, readonly=True).close()
            timed("heads", began)
            index.write_bytes(kept)
            began = time.perf_counter()
            loom = Loom.open(path, readonly=True)
            timed("index", began)
            with loom:
                for leaf in loom.leaves()[:5]:
                    began = time.perf_counter()
                    loom.thread(leaf)
                    timed("thread", began)
    baseline = row("json.loads of every line", samples["json"], "ms")
    return Table(
        "opening",
        "a loom of 100,000 turns (about 400 MB)",
        (
            baseline,
            row("msgspec, every turn whole", samples["msgspec"], "ms", baseline=baseline),
            row(
                "cantrip-acp, without an index",
                samples["heads"],
                "ms",
                baseline=baseline,
                goal="<= 500",
            ),
            row(
                "cantrip-acp, by its index",
                samples["index"],
                "ms",
                baseline=baseline,
                goal="<= 100",
            ),
            row("one thread of 500", samples["thread"], "ms", goal="<= 10"),
        ),
    )
