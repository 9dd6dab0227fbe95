"""Guardrails of a worker's machine: how much processor time a step may use, and how much disk.

Each has a default that an environment variable changes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from cantrip_acp.tuplespace.errors import TupleError
from cantrip_acp.tuplespace.tuples import WorkTuple, new_tuple, now_iso

DEFAULT_CPU_PERCENT = 95
DEFAULT_FREE_MB = 1000
DEFAULT_CONCURRENCY = 32
DEFAULT_MAX_CONCURRENCY = 64
GC_LANE = "gc.urgent"
_MB = 1_000_000


def number_from_environment(name: str, default: int, most: int, environment: Mapping[str, str] | None = None) -> int:
    """A whole number from 1 to ``most``. Raises `TupleError` for anything else."""
    text = (os.environ if environment is None else environment).get(name, "").strip()
    if not text:
        return default
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= most:
        raise TupleError(f"{name} must be a whole number from 1 to {most}, not {text!r}")
    return int(text)


def cpu_percent_from_environment() -> int:
    """``YOOL_TUPLE_CPU_QUOTA_PCT``: what each step may use at most, in per cent of one processor. A tuple can only lower it."""
    return number_from_environment("YOOL_TUPLE_CPU_QUOTA_PCT", DEFAULT_CPU_PERCENT, 100)


def lane_concurrency(wanted: int | None, default: int = DEFAULT_CONCURRENCY) -> int:
    """How many tuples of a lane a process runs at once: ``wanted``, else ``YOOL_TUPLE_LANE_CONCURRENCY``, else ``default``.

    At most ``YOOL_TUPLE_MAX_LANE_CONCURRENCY`` (or ``YOOL_MAX_LANE_CONCURRENCY``). Raises `TupleError` for more.
    """
    name = "YOOL_TUPLE_MAX_LANE_CONCURRENCY"
    if name not in os.environ and "YOOL_MAX_LANE_CONCURRENCY" in os.environ:
        name = "YOOL_MAX_LANE_CONCURRENCY"
    most = number_from_environment(name, DEFAULT_MAX_CONCURRENCY, 10_000)
    if wanted is None:
        return min(most, number_from_environment("YOOL_TUPLE_LANE_CONCURRENCY", default, 10_000))
    if wanted > most:
        raise TupleError(f"--concurrency is {wanted}, and at most {most} are allowed: set {name} to allow more")
    return wanted


def free_mb_from_environment() -> int:
    """``YOOL_TUPLE_FREE_MB``: with less free space in MB, a worker takes nothing."""
    return number_from_environment("YOOL_TUPLE_FREE_MB", DEFAULT_FREE_MB, 10**9)


def free_mb(folder: Path) -> float:
    """The free space in MB of the disk with this folder, or with its nearest parent that exists."""
    while True:
        try:
            disk = os.statvfs(folder)
        except FileNotFoundError:
            folder = folder.parent
            continue
        return disk.f_bavail * disk.f_frsize / _MB


class DiskFloor:
    """Checks that a disk has some free space. ``notice`` gets a text when it has too little, and when it has enough again."""

    def __init__(self, folder: Path, least_mb: float, notice: Callable[[str], object] = lambda _: None) -> None:
        self.folder = folder
        self.least_mb = least_mb
        self.is_low = False
        self._notice = notice

    def look(self) -> bool:
        """Look at the disk. Whether it has just become too full."""
        free, before = free_mb(self.folder), self.is_low
        self.is_low = free < self.least_mb
        if self.is_low and not before:
            self._notice(
                f"the disk with {self.folder} has {free:.0f} MB of free space, and {self.least_mb:g} MB must stay free "
                "(YOOL_TUPLE_FREE_MB): nothing new starts. Free some, for example with cantrip gc"
            )
        elif before and not self.is_low:
            self._notice(f"the disk with {self.folder} has {free:.0f} MB of free space again: the work goes on")
        return self.is_low and not before

    def call_for_help(self, worker: str) -> WorkTuple:
        """The tuple that tells whoever watches the lane `GC_LANE` that this machine needs space."""
        return new_tuple(
            GC_LANE,
            [{"yool": "fs.gc.run", "args": {"folder": str(self.folder), "free_mb": round(free_mb(self.folder))}}],
            map_pos={"worker": worker, "at": now_iso()},
        )
