"""Waiting for a condition, in place of a sleep that hopes for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import anyio

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


def in_a_loom(state: Path, text: str) -> bool:
    """Whether a session's loom below the state folder holds ``text``."""
    return any(text in path.read_text() for path in (state / "looms").glob("*.loom.jsonl"))
