"""One thing of the state folder that may go, or that stays although its time is over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


class Stays(Exception):
    """Raised by an item's ``drop`` where it turns out to be in use; the text says by what."""


@dataclass(slots=True)
class Item:
    """``kind`` is a word for people (loom, index, torn line); ``name`` is relative to the state folder.

    ``why`` says why it may go; ``stays`` why it does not all the same, None where it goes. ``drop`` removes it, and raises
    `Stays` or `OSError`; run again after a crash it finishes what was begun.
    """

    kind: str
    name: str
    size: int
    changed: float
    why: str
    drop: Callable[[], None] = field(repr=False)
    stays: str | None = None
    beside: int = 0
    """Bytes that go with it and lie elsewhere (a fork's worktree)."""
