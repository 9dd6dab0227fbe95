"""Turns a second: one entity, 2,000 turns, an instant crystal, one gate call a turn, a durable JSON-lines loom.

The baseline is the floor loop of `bench.subjects.floor` (append to a list, one JSON line a turn, flushed). The second
pair of rows is what the last hundred turns cost, divided by what the first hundred cost: 1 where nothing grows.
"""

from __future__ import annotations

from bench import loops
from bench.measure import Row, Table, row
from bench.options import Options

TURNS = 2_000


def run(options: Options) -> Table:
    ours: list[loops.Report] = []
    floor: list[loops.Report] = []
    for _ in range(options.rounds(11)):
        floor.append(loops.run("floor", TURNS))
        ours.append(loops.run("ours", TURNS))
    base = row("floor loop + JSONL flush", [each.per_second for each in floor], "turns/s", more=True)
    rows: list[Row] = [
        base,
        row(
            "cantrip-acp",
            [each.per_second for each in ours],
            "turns/s",
            baseline=base,
            goal=">= 8,000",
            more=True,
        ),
    ]
    growth = row("floor: last/first hundred", [each.growth for each in floor], "x")
    rows += [
        growth,
        row(
            "cantrip-acp: last/first hundred",
            [each.growth for each in ours],
            "x",
            baseline=growth,
            goal="<= 1.1",
        ),
    ]
    if options.peers:
        for subject, name in loops.PEERS.items():
            report = loops.peer(subject, TURNS)
            rows.append(row(name, [report.per_second], "turns/s", baseline=base, note="one run"))
            rows.append(row(f"{name}: last/first hundred", [report.growth], "x", baseline=growth))
    return Table("turns", "turns a second, 2,000 turns in one entity", tuple(rows))
