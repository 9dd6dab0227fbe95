"""Loom append: turns of 4 KB, flushed and with fsync.

The baselines write the same bytes, already encoded, to a file opened with O_APPEND: one write a turn, and one write
and fdatasync a turn. Beside them: what most programs do (`json.dumps`, write, flush), and encoding with msgspec and
writing with nothing around it, which is the most that a loom made with msgspec can reach.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from bench.measure import Table, row
from bench.options import Options
from cantrip_acp.loom.loom import Loom
from cantrip_acp.types.records import GateRecord, Observation, Turn, TurnMetadata, Utterance

TURNS = 5_000
SYNCED = 500
SIZE = 4_096


def turns(count: int) -> list[Turn]:
    """A chain of turns, each of about ``SIZE`` bytes as JSON."""
    made: list[Turn] = []
    filler = "The quick brown fox jumps over the lazy dog.\n" * 100
    for number in range(count):
        turn = Turn(
            id=f"t_{number:020}",
            parent_id=made[-1].id if made else None,
            cantrip_id="k_bench",
            entity_id="e_bench",
            cast_id="c_bench",
            sequence=number + 1,
            utterance=Utterance(content="I read the file."),
            observation=Observation(results=(GateRecord("read_file", {"path": "a.txt"}, ""),)),
            gate_calls=("read_file",),
            metadata=TurnMetadata(10, 10, 0, None, 0.1, "2026-01-01T00:00:00.000000Z", "bench", "0" * 32),
        )
        missing = SIZE - len(msgspec.json.encode(turn)) - filler.count("\n", 0, 3_500)
        result = GateRecord("read_file", {"path": "a.txt"}, filler[: max(0, missing)])
        made.append(msgspec.structs.replace(turn, observation=Observation(results=(result,))))
    return made


def run(options: Options) -> Table:
    samples: dict[str, list[float]] = {}
    flushed, synced = turns(TURNS), turns(SYNCED)
    lines = [msgspec.json.encode(turn) + b"\n" for turn in flushed]

    def timed(name: str, count: int, write: Callable[[Path], None]) -> None:
        # Beside the repository and not in /tmp, which may be memory: fsync has to mean something.
        with tempfile.TemporaryDirectory(prefix="bench-", dir=Path(__file__).parent / "results") as folder:
            began = time.perf_counter()
            write(Path(folder) / "file.jsonl")
            samples.setdefault(name, []).append(count / (time.perf_counter() - began))

    def raw(lines: list[bytes], fsync: bool) -> Callable[[Path], None]:
        def write(path: Path) -> None:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            for line in lines:
                os.write(descriptor, line)
                if fsync:
                    os.fdatasync(descriptor)
            os.close(descriptor)

        return write

    def loom(made: list[Turn], fsync: bool) -> Callable[[Path], None]:
        def write(path: Path) -> None:
            opened = Loom.open(path, fsync=fsync)
            for turn in made:
                opened.append(turn)
            opened.close()

        return write

    plain = [msgspec.to_builtins(turn) for turn in flushed]

    def standard(path: Path) -> None:
        with path.open("w") as file:
            for record in plain:
                file.write(json.dumps(record) + "\n")
                file.flush()

    def floor(path: Path) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        encode = msgspec.json.Encoder().encode
        for turn in flushed:
            os.write(descriptor, encode(turn) + b"\n")
        os.close(descriptor)

    (Path(__file__).parent / "results").mkdir(exist_ok=True)
    for _ in range(options.rounds(15)):
        timed("raw", TURNS, raw(lines, False))
        timed("json", TURNS, standard)
        timed("msgspec", TURNS, floor)
        timed("loom", TURNS, loom(flushed, False))
        timed("raw fsync", SYNCED, raw(lines[:SYNCED], True))
        timed("loom fsync", SYNCED, loom(synced, True))
    base = row("O_APPEND, bytes ready", samples["raw"], "turns/s", more=True)
    fsync = row("O_APPEND + fdatasync", samples["raw fsync"], "turns/s", more=True)
    return Table(
        "append",
        f"loom append, turns of {len(lines[0]):,} bytes",
        (
            base,
            row("json.dumps, write, flush", samples["json"], "turns/s", baseline=base, more=True),
            row("msgspec, O_APPEND", samples["msgspec"], "turns/s", baseline=base, more=True),
            row(
                "cantrip-acp loom",
                samples["loom"],
                "turns/s",
                baseline=base,
                goal=">= 100,000",
                more=True,
            ),
            fsync,
            row(
                "cantrip-acp loom, fsync",
                samples["loom fsync"],
                "turns/s",
                baseline=fsync,
                goal=">= 4,500",
                more=True,
            ),
        ),
    )
