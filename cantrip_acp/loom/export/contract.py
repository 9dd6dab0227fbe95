"""What an export format is: a name, a line of help, and a function from chosen threads to rows.

Other packages add formats as entry points ``cantrip_acp.exports``: each loads to a `Format`, or to a class of one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from cantrip_acp.loom.export.source import Source


class Format(Protocol):
    """A format. Each row is one JSON object, and becomes one line of the output."""

    name: str
    summary: str
    """What it is for, in one line."""
    marks_truncated: bool
    """Whether a row says of itself that its thread was cut off; where not, such threads are left out unless asked for."""

    def rows(self, source: Source) -> Iterator[dict[str, Any]]:
        """The rows, made one by one: no more than one thread or group is held in memory."""
        ...


class Report:
    """What became of an export, filled in while it runs: ``threads`` and ``rows`` written, ``left_out`` by reason, ``notes``
    on what a format could not hold, by how often."""

    def __init__(self) -> None:
        self.threads = 0
        self.rows = 0
        self.left_out: Counter[str] = Counter()
        self.notes: Counter[str] = Counter()

    def record(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "threads": self.threads,
            "rows": self.rows,
            "left_out": dict(self.left_out),
            "notes": dict(self.notes),
        }
