"""What every subject counts, and how it says so."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

ARGUMENT = "the quick brown fox jumps over the lazy dog"
"""What each turn echoes."""


class Clock:
    """``tick`` is called by the instant model at each query; the times between ticks are the turns'."""

    def __init__(self) -> None:
        self.ticks: list[float] = []

    def tick(self) -> None:
        self.ticks.append(time.perf_counter())


def arguments() -> tuple[int, Path]:
    """TURNS and FOLDER from the command line."""
    return int(sys.argv[1]), Path(sys.argv[2])


def finish(clock: Clock, turns: int, folder: Path) -> None:
    """Print the report: the seconds of each turn, resident memory now and at most (kB), bytes in the folder."""
    spans = [later - earlier for earlier, later in zip(clock.ticks, clock.ticks[1:], strict=False)][:turns]
    if len(spans) != turns:
        raise SystemExit(f"meant to run {turns} turns, but the model was asked {len(clock.ticks)} times")
    # VmHWM and not ru_maxrss, which begins with the size of the process that started this one.
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    disk = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    resident, peak = (int(status[key].split()[0]) for key in ("VmRSS", "VmHWM"))
    print(json.dumps({"turns": spans, "resident_kb": resident, "peak_kb": peak, "disk": disk}))
