"""Tables: each column is as wide as its content. A terminal cuts the last column at its edge; a pipe gets it whole."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from cantrip_acp.cli.render.terminal import Screen, cell_len, cut
from cantrip_acp.text.sanitize import clean_line

Cell = str | tuple[str, str]
"""A text, or a text and its style."""

_WIDEST = 40
_GAP = 2


def print_table(
    screen: Screen, head: Sequence[str], rows: Sequence[Sequence[Cell]], *, right: Collection[str] = (), indent: int = 0
) -> None:
    """Write a table. ``right`` names the right-aligned columns. Columns that are empty in all rows are left out."""
    texts = [[clean_line(c if isinstance(c, str) else c[0], 2000) for c in row] for row in rows]
    shown = [n for n in range(len(head)) if any(row[n] for row in texts)]
    if not shown:
        return
    widths = {n: max(cell_len(head[n]), *(min(cell_len(row[n]), _WIDEST) for row in texts)) for n in shown}
    last = shown[-1]

    def padded(text: str, n: int) -> str:
        if n == last and head[n] not in right:
            if screen.width is None:
                return text
            room = max(screen.width - indent - sum(widths[m] + _GAP for m in shown[:-1]), 12)
            return text if cell_len(text) <= room else cut(text, room - 1).rstrip() + "…"
        if cell_len(text) > widths[n]:
            text = cut(text, widths[n] - 1).rstrip() + "…"
        space = " " * (widths[n] - cell_len(text))
        return space + text if head[n] in right else text + space

    gap = " " * _GAP
    screen.line((gap.join(padded(head[n], n) for n in shown).rstrip(), "bold"), indent=indent, whole=True)
    for row, words in zip(rows, texts, strict=True):
        parts: list[str | tuple[str, str]] = []
        end = max((n for n in shown if words[n]), default=-1)
        for n in shown:
            if n > end:
                break
            cell = row[n]
            if parts:
                parts.append(gap)
            parts.append((padded(words[n], n), "" if isinstance(cell, str) else cell[1]))
        screen.line(*parts, indent=indent, whole=True)


def mark_incomplete(known: str, unknown: int) -> str:
    """Mark a sum as incomplete if some queries are missing in it. ``known`` is empty if nothing is known."""
    return (f"{known}+?" if known else "?") if unknown else known


def tokens(count: int | None, unknown: int = 0) -> str:
    return mark_incomplete("" if count is None else f"{count:,}", unknown if count is not None else 1)


def money(dollars: float | None) -> str:
    """US dollars; empty if no price is known."""
    return "" if dollars is None else f"${dollars:.4f}"


def number(value: float | None) -> str:
    """A reward; empty if there is none."""
    return "" if value is None else f"{value:.4g}"


def count_of(count: int, what: str) -> str:
    """``1 turn``, ``2 turns``."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"
