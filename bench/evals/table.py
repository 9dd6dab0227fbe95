"""Attempts as a table for people, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence

from bench.evals.attempt import Attempt

_HEAD = ("task", "kind", "", "turns", "tokens in", "out", "cached", "cost", "time")


def shown(attempts: Sequence[Attempt]) -> str:
    """A Markdown table with a line of sums, and below it what was wrong."""
    rows = [
        (
            a.task,
            a.kind,
            "pass" if a.passed else "FAIL",
            f"{a.turns}",
            _count(a.tokens_prompt),
            _count(a.tokens_completion),
            _count(a.tokens_cached),
            _money(a.cost),
            f"{a.seconds:.1f} s",
        )
        for a in attempts
    ]
    costs = [a.cost for a in attempts if a.cost is not None]
    passed = sum(a.passed for a in attempts)
    rows.append(
        (
            f"{len(attempts)} attempts",
            "",
            f"{passed}/{len(attempts)}",
            f"{sum(a.turns for a in attempts)}",
            _sum([a.tokens_prompt for a in attempts]),
            _sum([a.tokens_completion for a in attempts]),
            _sum([a.tokens_cached for a in attempts]),
            _money(sum(costs) if costs else None),
            f"{sum(a.seconds for a in attempts):.1f} s",
        )
    )
    widths = [max(len(row[i]) for row in (_HEAD, *rows)) for i in range(len(_HEAD))]
    lines = [_row(_HEAD, widths), "|" + "|".join("-" * (w + 2) for w in widths) + "|", *(_row(r, widths) for r in rows)]
    for a in attempts:
        if not a.passed:
            lines += ["", f"{a.task} ({a.reason}):", *(f"- {text}" for text in a.wrong)]
    return "\n".join(lines)


def as_json(attempts: Sequence[Attempt]) -> str:
    """One object: the attempts, and how many passed."""
    data = {"passed": sum(a.passed for a in attempts), "of": len(attempts), "attempts": [a.record() for a in attempts]}
    return json.dumps(data, indent=1, ensure_ascii=False)


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"


def _money(dollars: float | None) -> str:
    return "-" if dollars is None else f"${dollars:.4f}"


def _count(tokens: int | None) -> str:
    return "?" if tokens is None else f"{tokens:,}"


def _sum(counts: Sequence[int | None]) -> str:
    """The sum of what is known, marked where something is not."""
    return f"{sum(n or 0 for n in counts):,}{'+?' if None in counts else ''}"
