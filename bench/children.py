"""What children cost: spawning one in each medium, a batch of 100, and a tree of 1,000, all in a durable JSON-lines loom.

The baseline of a spawn is a cast of the same entity by itself; what a child adds is its parent's divided turn, its judgement
and its place in the tree. Of batch and tree the baseline is the same number of such casts, one after the other.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from pathlib import Path
from typing import Any

import anyio

from bench.measure import Row, Table, row
from bench.options import Options
from cantrip_acp import Cantrip, Circle, Loom, ScriptedCrystal

GATES = ["done", "call_agent", "call_agent_batch"]
WARDS = [{"max_turns": 10_000}, {"max_depth": 4}, {"max_concurrent_children": 8}]
END: dict[str, dict[str, Any]] = {
    "conversation": {"content": "done", "repeat": True},
    "code": {"code": "done('done')", "repeat": True},
    "bash": {"bash": "cantrip_done done", "repeat": True},
}


def cantrip(responses: list[dict[str, Any]], medium: str, loom: Loom, **more: Any) -> Cantrip:
    return Cantrip(ScriptedCrystal(responses, **more), circle=Circle(medium, GATES, WARDS), loom=loom)


def asked(gate: str, **args: Any) -> dict[str, Any]:
    return {"tool_calls": [{"gate": gate, "args": args}]}


async def alone(medium: str, count: int, loom: Loom) -> float:
    """Milliseconds of one cast, of so many one after the other."""
    spell = cantrip([END[medium]], medium, loom)
    began = time.perf_counter()
    for _ in range(count):
        await spell.cast("work")
    return (time.perf_counter() - began) * 1000 / count


async def spawned(medium: str, count: int, loom: Loom) -> float:
    """Milliseconds of one child of a conversation's, of so many one after the other."""
    asking = [asked("call_agent", intent="work", medium=medium) for _ in range(count)]
    spell = cantrip([*asking, {"content": "over"}], "conversation", loom, children=[[END[medium]]] * count)
    began = time.perf_counter()
    await spell.cast("go")
    return (time.perf_counter() - began) * 1000 / count


async def batch(size: int, loom: Loom) -> float:
    """Milliseconds of a batch."""
    spell = cantrip(
        [asked("call_agent_batch", requests=["work"] * size), {"content": "over"}],
        "conversation",
        loom,
        children=[[END["conversation"]]] * size,
    )
    began = time.perf_counter()
    await spell.cast("go")
    return (time.perf_counter() - began) * 1000


async def tree(loom: Loom) -> tuple[float, int]:
    """Milliseconds of a tree of three levels, and how many entities it had."""

    def node(widths: tuple[int, ...]) -> dict[str, Any]:
        if not widths:
            return {"responses": [END["conversation"]]}
        requests = asked("call_agent_batch", requests=["work"] * widths[0])
        return {"responses": [requests, {"content": "over"}], "children": [node(widths[1:])] * widths[0]}

    whole = node((10, 10, 9))
    spell = cantrip(whole["responses"], "conversation", loom, children=whole["children"])
    began = time.perf_counter()
    await spell.cast("go")
    return (time.perf_counter() - began) * 1000, len(loom.casts())


async def measure(rounds: int, quick: bool) -> dict[str, list[float]]:
    samples: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="cantrip-bench-") as folder:
        numbers = itertools.count()

        def fresh() -> Loom:
            return Loom.open(Path(folder) / f"{next(numbers)}.loom.jsonl")

        for number in range(rounds):
            for medium, count in (("conversation", 100), ("code", 5), ("bash", 5)):
                if medium != "conversation" and number >= (2 if quick else 6):
                    continue
                for name, work in (("alone", alone), ("spawned", spawned)):
                    with fresh() as loom:
                        samples.setdefault(f"{name} {medium}", []).append(await work(medium, count, loom))
            with fresh() as loom:
                samples.setdefault("batch", []).append(await batch(100, loom))
            with fresh() as loom:
                took, size = await tree(loom)
                assert size == 1_011, size
                samples.setdefault("tree", []).append(took)
    return samples


def run(options: Options) -> Table:
    samples = anyio.run(measure, options.rounds(11), options.quick)
    rows: list[Row] = []
    bases: dict[str, Row] = {}
    for medium in END:
        base = bases[medium] = row(f"a cast by itself, {medium}", samples[f"alone {medium}"], "ms")
        rows += [base, row(f"a child, {medium}", samples[f"spawned {medium}"], "ms", baseline=base)]
    one = bases["conversation"].median
    hundred = row("100 casts by themselves", [each * 100 for each in samples["alone conversation"]], "ms")
    rows.append(row("a batch of 100 instant children", samples["batch"], "ms", baseline=hundred))
    thousand = row("1,010 casts by themselves", [one * 1_010], "ms")
    rows.append(row("a tree of 1,011 entities, three levels", samples["tree"], "ms", baseline=thousand))
    return Table("children", "entities that summon entities, a JSON-lines loom", tuple(rows))
