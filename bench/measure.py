"""Samples, what is said of them, and the tables they are printed in."""

from __future__ import annotations

import dataclasses
import math
import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

_GOAL = re.compile(r"(p95 )?(?:linear, )?([<>])= ([\d.,]+)( x)?")
"""A goal for the median, for the worse end, or (``<= 1.5 x bare``) for the ratio to the baseline."""


def percentile(samples: Sequence[float], share: float) -> float:
    """The nearest-rank percentile: the smallest sample that at least ``share`` (0 to 1) of them do not exceed."""
    ordered = sorted(samples)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


@dataclass(frozen=True)
class Row:
    """One subject of one question.

    ``median`` and ``p95`` are in ``unit``; p95 is the worse end: slow times, low rates (``more``).
    ``ratio`` is this median divided by the baseline's, None of the baseline itself. ``goal`` is in words,
    ``met`` whether it was reached, None where the row has no goal.
    """

    subject: str
    median: float
    p95: float | None
    unit: str
    ratio: float | None = None
    goal: str = ""
    met: bool | None = None
    note: str = ""


def row(
    subject: str,
    samples: Sequence[float],
    unit: str,
    *,
    baseline: Row | None = None,
    goal: str = "",
    reached: Callable[[Row], bool] | None = None,
    more: bool = False,
    note: str = "",
) -> Row:
    """Sum samples up. ``more``: more is better (a rate). ``reached`` judges the finished row where its ``goal`` says it in
    other words than `_GOAL`."""
    median = statistics.median(samples)
    worst = percentile(samples, 0.05 if more else 0.95) if len(samples) > 1 else None
    ratio = median / baseline.median if baseline is not None and baseline.median else None
    made = Row(subject, median, worst, unit, ratio, goal, None, note)
    return dataclasses.replace(made, met=_reached(made) if reached is None else reached(made))


def _reached(made: Row) -> bool | None:
    found = _GOAL.match(made.goal)
    if found is None:
        return None
    worst, more, number, ratio = found.groups()
    value = made.p95 if worst else made.ratio if ratio else made.median
    limit = float(number.replace(",", ""))
    return value is not None and (value >= limit if more == ">" else value <= limit)


@dataclass(frozen=True)
class Table:
    """The answer to one question: what was asked, under which name, and the rows."""

    name: str
    question: str
    rows: tuple[Row, ...]

    def lines(self) -> Iterable[str]:
        """As text for a terminal, a row a line."""
        yield f"{self.name}: {self.question}"
        width = max((len(each.subject) for each in self.rows), default=0)
        for each in self.rows:
            line = f"  {each.subject:<{width}}  {figure(each.median):>10} {each.unit:<9}"
            line += f" p95 {figure(each.p95):>10}" if each.p95 is not None else " " * 15
            line += f"  {each.ratio:>8.3g} x" if each.ratio is not None else " " * 12
            if each.goal:
                line += f"  goal {each.goal}: {'met' if each.met else 'MISSED'}"
            if each.note:
                line += f"  ({each.note})"
            yield line.rstrip()

    def markdown(self) -> Iterable[str]:
        """As a table for bench/README.md."""
        yield f"### {self.name}: {self.question}"
        yield ""
        yield "| | median | p95 | ratio to baseline | goal |"
        yield "|---|---|---|---|---|"
        for each in self.rows:
            worst = f"{figure(each.p95)} {each.unit}" if each.p95 is not None else ""
            ratio = f"{each.ratio:.3g}" if each.ratio is not None else "baseline" if each is self.rows[0] else ""
            goal = f"{each.goal}: {'met' if each.met else '**missed**'}" if each.goal else ""
            subject = f"{each.subject} ({each.note})" if each.note else each.subject
            yield f"| {subject} | {figure(each.median)} {each.unit} | {worst} | {ratio} | {goal} |"
        yield ""


def figure(value: float) -> str:
    """A number to three significant digits, thousands set apart."""
    if value == 0 or not math.isfinite(value):
        return str(value)
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return (
        f"{round(value, digits):,.{digits}f}"
        if digits
        else f"{round(value, 2 - math.floor(math.log10(abs(value)))):,.0f}"
    )
