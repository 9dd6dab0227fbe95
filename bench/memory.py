"""Resident memory and disk after 2,000 turns in one entity.

The same programs as `turns`; memory is what is resident once the turns are done, in the process that ran them.
"""

from __future__ import annotations

from bench import loops
from bench.measure import Row, Table, row
from bench.options import Options

TURNS = 2_000
KB = 1024


def run(options: Options) -> Table:
    rounds = options.rounds(5)
    floor = [loops.run("floor", TURNS) for _ in range(rounds)]
    ours = [loops.run("ours", TURNS) for _ in range(rounds)]
    half = [loops.run("ours", TURNS // 2) for _ in range(rounds)]
    base = row("floor: memory", [each.resident_mb for each in floor], "MB")
    disk = row("floor: disk a turn", [each.disk / TURNS for each in floor], "bytes")
    rows: list[Row] = [
        base,
        row(
            "cantrip-acp: memory",
            [each.resident_mb for each in ours],
            "MB",
            baseline=base,
            goal="<= 60 MB",
        ),
        disk,
        row("cantrip-acp: disk a turn", [each.disk / TURNS for each in ours], "bytes", baseline=disk),
        row(
            "cantrip-acp: disk of turns 1,001 to 2,000 / of 1 to 1,000",
            [(whole.disk - part.disk) / part.disk for whole, part in zip(ours, half, strict=True)],
            "x",
            goal="linear, <= 1.05",
        ),
    ]
    if options.peers:
        for subject, name in loops.PEERS.items():
            report = loops.peer(subject, TURNS)
            note = f"peak {report.peak_mb:,.0f} MB"
            rows.append(row(f"{name}: memory", [report.resident_mb], "MB", baseline=base, note=note))
            if report.disk:
                rows.append(row(f"{name}: disk a turn", [report.disk / TURNS], "bytes", baseline=disk))
    return Table("memory", "resident memory and disk after 2,000 turns in one entity", tuple(rows))
