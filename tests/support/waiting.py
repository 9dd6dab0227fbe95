"""Waiting for a condition, in place of a sleep that hopes for it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import anyio
import psutil

Found = TypeVar("Found")

STEP_S = 0.02


def wait_for(condition: Callable[[], Found], seconds: float = 60.0) -> Found:
    """Call ``condition`` until it returns something true, and return that. Raises AssertionError after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"this did not become true within {seconds:g} s: {condition}"
        time.sleep(STEP_S)
    return found


async def wait_until(condition: Callable[[], Found], seconds: float = 60.0) -> Found:
    """`wait_for` in a task."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"this did not become true within {seconds:g} s: {condition}"
        await anyio.sleep(STEP_S)
    return found


def settled(pid: int, seconds: float = 30.0) -> None:
    """Wait until a process sleeps and nothing wakes it for a quarter of a second: it waits for somebody.

    One that waits for a processor does not sleep, however busy the machine is. One that has a clock to draw never comes to
    rest: after ``seconds`` this returns all the same.
    """
    process = psutil.Process(pid)
    deadline = time.monotonic() + seconds
    seen, since = None, time.monotonic()
    while time.monotonic() < since + 0.25:
        time.sleep(STEP_S)
        now = (process.status(), process.num_ctx_switches())
        if (now != seen or now[0] != psutil.STATUS_SLEEPING) and time.monotonic() < deadline:
            seen, since = now, time.monotonic()


def p95(measure: Callable[[], float], limit: float) -> list[float]:
    """Twenty measurements, of which the 95th percentile is within the limit in one of three rounds.

    What else the machine does makes one longer, and never shorter.
    """
    for _ in range(3):
        times = sorted(measure() for _ in range(20))
        if statistics.quantiles(times, n=20)[-1] <= limit:
            return times
    raise AssertionError(times)


def in_a_loom(state: Path, text: str) -> bool:
    """Whether a session's loom below the state folder holds ``text``."""
    return any(text in path.read_text() for path in (state / "looms").glob("*.loom.jsonl"))
