"""A reused result: the time of a call of a gate whose inputs have not changed, with projects of 1 to 5,000 files.

The baseline is the same call of a gate that declares no inputs and returns at once, through the same executor.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any

import anyio

from bench.measure import Row, Table, row
from bench.options import Options
from cantrip_acp import Cantrip, Circle, ScriptedCrystal
from cantrip_acp.gates.contract import Gate, GateContext, GateInputs
from cantrip_acp.telemetry import tracing
from cantrip_acp.tuplespace.reuse.gate_results import GateCache

SIZES = (1, 100, 5_000)


def run(options: Options) -> Table:
    return anyio.run(_run, options)


async def _run(options: Options) -> Table:
    rounds, rows = options.rounds(30), list[Row]()
    with tempfile.TemporaryDirectory(prefix="bench-") as place:
        base = row("a gate that runs", await _times(Path(place), 1, rounds, declares=False), "ms")
        rows.append(base)
        for size in SIZES:
            samples = await _times(Path(place), size, rounds, declares=True)
            goal: dict[str, Any] = {"goal": "<= 2 ms", "reached": lambda r: r.median <= 2} if size == 1 else {}
            rows.append(row(f"a hit, {size:,} files", samples, "ms", baseline=base, **goal))
    return Table("receipts", "a reused result of a gate", tuple(rows))


async def _times(place: Path, size: int, rounds: int, *, declares: bool) -> list[float]:
    folder = place / f"{size}-{declares}"
    for number in range(size):
        path = folder / f"d{number // 50}" / f"f{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"x = {number}\n" * 20)
        os.utime(path, (time.time() - 100, time.time() - 100))
    time.sleep(2.1)  # A file that has just changed is read each time.
    ran = 0

    def work() -> dict[str, Any]:
        "Work."
        nonlocal ran
        ran += 1
        return {"ok": True}

    def inputs(args: Any, context: GateContext) -> GateInputs:
        return GateInputs((str(folder),))

    gate = Gate.of(work, inputs=inputs) if declares else Gate.of(work)
    circle = Circle(gates=[gate, "done"], wards=[{"max_turns": 3}], workspace=folder)
    cantrip = Cantrip(ScriptedCrystal(), circle=circle, interceptors=[GateCache(place / "state")])
    samples = []
    async with cantrip.invoke() as entity:
        for number in range(rounds + 3):
            began = time.perf_counter()
            record = await entity.executor.execute(
                "work", {}, call_id=f"c{number}", entity_id="e", cast_id="k", trace=tracing.trace_from(None)
            )
            samples.append((time.perf_counter() - began) * 1000)
            assert record.result == {"ok": True}
    assert ran == (1 if declares else rounds + 3)
    return samples[3:]
