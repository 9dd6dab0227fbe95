"""How a format of this package is written: one generator function, which yields its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from cantrip_acp.core.exports import FormatBase
from cantrip_acp.training.export.selection import Source

Rows = Callable[[Source], Iterator[dict[str, Any]]]


@dataclass(slots=True)
class ExportFormat(FormatBase):
    """A `Format` of this package: a generator function below `export_format`, which has the same fields."""

    name: str
    summary: str
    rows: Rows
    marks_truncated: bool
    archive: bool
    ending: str


def export_format(
    name: str, summary: str, *, marks_truncated: bool, archive: bool = False, ending: str = "jsonl"
) -> Callable[[Rows], ExportFormat]:
    """Make the generator function below it an export format."""
    return lambda rows: ExportFormat(name, summary, rows, marks_truncated, archive, ending)
