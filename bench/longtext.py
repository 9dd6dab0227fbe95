"""A question over a text that grows from 100 KB to 50 MB: what stands in prompts, how long it takes, and the host's memory.

The recipe `longtext` with a scripted crystal: the root cuts the text in eight, and a code child reads each part. Prompt tokens
are those of all queries of the tree, four characters each. The baseline of each figure is that of the smallest text.
"""

from __future__ import annotations

import re
import tempfile
import time
from pathlib import Path
from typing import Any

import anyio

from bench.measure import Row, Table, row
from bench.options import Options
from cantrip_acp import Loom, ScriptedCrystal
from cantrip_acp.recipes import load
from cantrip_acp.recipes.build.build import build

SIZES = {"100 KB": 100_000, "1 MB": 1_000_000, "10 MB": 10_000_000, "50 MB": 50_000_000}
LINE = "2024-03-05 12:00:00 order 00000 shipped to the usual place by the usual carrier\n"
NEEDLE = "2024-03-05 12:00:00 order 00000 CANCELLED since the goods were damp on arrival\n"
ROOT = """
size = -(-len(context) // 8 // 80) * 80
parts = [context[i : i + size] for i in range(0, len(context), size)]
done(sum(each.result for each in cast_batch([(Cantrip(), "Count in your part.", part) for part in parts])))
"""
CHILD = "done(context.count('CANCELLED'))"


class Counting(ScriptedCrystal):
    """Counts what it is shown."""

    def __init__(self) -> None:
        super().__init__([{"code": CHILD, "when": "in your part", "repeat": True}, {"code": ROOT}])
        self.shown = 0

    async def query(self, query: Any, emit: Any) -> Any:
        self.shown += sum(len(message.content or "") for message in query.messages)
        return await super().query(query, emit)


def text(size: int) -> str:
    lines = [LINE] * (size // len(LINE))
    for place in range(10):
        lines[place * len(lines) // 10] = NEEDLE
    return "".join(lines)


def peak() -> float:
    """MiB that this process has used at most since `forget`."""
    found = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())
    return int(found[1]) / 1024 if found else 0.0


def forget() -> None:
    Path("/proc/self/clear_refs").write_text("5")


async def asked(data: str, folder: Path) -> tuple[float, int]:
    """Seconds and prompt tokens of one question."""
    crystal = Counting()
    spell = build(load("longtext", folder), workspace=folder, crystal=crystal)
    spell = spell.replace(circle=spell.circle.replace(data=data))
    with Loom.open(folder / "x.loom.jsonl") as loom:
        began = time.perf_counter()
        async with spell.invoke(loom=loom) as entity:
            result = await entity.cast("How many orders were cancelled?")
        took = time.perf_counter() - began
    assert result.result == 10, result
    return took, crystal.shown // 4


def run(options: Options) -> Table:
    tokens: dict[str, list[float]] = {}
    seconds: dict[str, list[float]] = {}
    memory: dict[str, list[float]] = {}
    for name, size in SIZES.items():
        data = text(size)
        for _ in range(options.rounds(3)):
            with tempfile.TemporaryDirectory(prefix="cantrip-bench-") as folder:
                forget()
                before = peak()
                took, shown = anyio.run(asked, data, Path(folder))
            seconds.setdefault(name, []).append(took)
            tokens.setdefault(name, []).append(shown)
            memory.setdefault(name, []).append(max(0.0, peak() - before))
        del data
    rows: list[Row] = []
    for what, samples, unit in (
        ("prompt tokens", tokens, "tokens"),
        ("time", seconds, "s"),
        ("host memory over the text's", memory, "MiB"),
    ):
        base = row(f"{what}, {next(iter(SIZES))}", samples[next(iter(SIZES))], unit)
        rows.append(base)
        for name in list(SIZES)[1:]:
            flat = unit == "tokens"
            rows.append(
                row(
                    f"{what}, {name}",
                    samples[name],
                    unit,
                    baseline=base,
                    goal="flat" if flat else "",
                    reached=(lambda made: (made.ratio or 0) <= 1.01) if flat else None,
                )
            )
    return Table("longtext", "a question over a text that grows, answered by eight code children", tuple(rows))
