"""The state of a tuple-space as text: tables that fit into 80 columns, and a display that is painted again in place."""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from cantrip_acp.cli.render.table import Cell, money, print_table
from cantrip_acp.cli.render.terminal import Screen

if TYPE_CHECKING:
    from cantrip_acp.tuplespace.monitoring.status import SpaceStatus

_MOST_WORKERS = 10
_MOST_BUDGETS = 5
_MOST_REASONS = 8


def print_status(status: SpaceStatus, screen: Screen) -> None:
    """Write the tables."""
    lanes = status.lanes
    ended = f"{status.ended_per_s:g}/s ended in the last minute"
    screen.line(("space    ", "bold"), status.space, whole=True)
    if not lanes:
        screen.line("no tuples. `cantrip tuple out FILE` or `cantrip cast-batch` puts some", whole=True)
        return
    cost = f"{money(status.usd)} so far" if status.usd is not None else "no cost is known"
    reused = sum(lane.reused for lane in lanes.values())
    screen.line(("total    ", "bold"), f"{ended} · {cost}" + (f" · {reused:,} steps reused" if reused else ""))
    columns = ["lane", "waiting", "oldest", "running", "done", "failed", "per s", "USD", "tokens"]
    rows: list[list[Cell]] = [
        [
            _short(name, 13),
            _count(lane.waiting),
            "" if lane.oldest_waiting_s is None else age(lane.oldest_waiting_s),
            _count(lane.claimed),
            _count(lane.done),
            (_count(lane.failed), "red" if lane.failed else ""),
            f"{lane.ended_per_s:g}" if lane.ended_per_s else "",
            "" if lane.usd is None else f"{lane.usd:.4f}" if lane.usd < 100 else f"{lane.usd:,.0f}",
            _tokens(lane.tokens_in + lane.tokens_out),
        ]
        for name, lane in lanes.items()
    ]
    screen.blank()
    print_table(screen, columns, rows, right=columns[1:])
    if status.workers:
        screen.blank()
        shown = [[each.worker, _short(each.lane, 13), f"{each.count:,}"] for each in status.workers[:_MOST_WORKERS]]
        print_table(screen, ["worker", "lane", "running"], shown, right=["running"])
        _more(screen, len(status.workers) - _MOST_WORKERS, "workers")
    if status.stuck:
        screen.blank()
        waits: list[list[Cell]] = [
            [f"{each.count:,}", _short(each.lane, 13), each.tuple_id[7:19], (each.reason, "yellow")]
            for each in status.stuck[:_MOST_REASONS]
        ]
        print_table(screen, ["waiting", "lane", "such as", "nobody takes them"], waits, right=["waiting"])
        _more(screen, len(status.stuck) - _MOST_REASONS, "kinds of tuples that wait")
    if status.budgets:
        screen.blank()
        columns = ["budget", "spent", "USD", "of USD", "tokens", "of tokens"]
        budgets: list[list[Cell]] = [
            [
                each["name"],
                (f"{each['spent_percent']:g} %", "red" if each["spent_percent"] >= 100 else ""),
                f"{each['spent_usd']:.4f}",
                "" if each["usd"] is None else f"{each['usd']:g}",
                _tokens(each["spent_tokens"]),
                "" if each["tokens"] is None else _tokens(each["tokens"]),
            ]
            # Those that are nearest to their limit come first.
            for each in sorted(status.budgets, key=lambda each: -each["spent_percent"])[:_MOST_BUDGETS]
        ]
        print_table(screen, columns, budgets, right=columns[1:])
        _more(screen, len(status.budgets) - _MOST_BUDGETS, "budgets")
    if status.failures:
        screen.blank()
        failed = [
            [f"{each.count:,}", _short(each.lane, 13), each.tuple_id[7:19], " ".join(each.reason.split())]
            for each in status.failures[:_MOST_REASONS]
        ]
        print_table(screen, ["failed", "lane", "such as", "reason"], failed, right=["failed"])
        _more(screen, len(status.failures) - _MOST_REASONS, "reasons")


def _more(screen: Screen, count: int, what: str) -> None:
    if count > 0:
        screen.line((f"and {count:,} more {what} (--json shows them)", "dim"))


def _short(name: str, most: int) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"


def _count(number: int) -> str:
    """Format a count in at most 7 columns."""
    return f"{number:,}" if number < 1_000_000 else f"{number / 1e6:,.1f}M"


def _tokens(number: int) -> str:
    """Format a number of tokens in at most 6 columns."""
    return (
        ""
        if not number
        else f"{number:,}"
        if number < 10_000
        else _count(number)
        if number >= 1e6
        else f"{number // 1000}k"
    )


def age(seconds: float) -> str:
    """``12 s``, ``3 min``, ``5 h``, ``2 d``."""
    for size, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {name}"
    return f"{seconds:.0f} s"


class Painter:
    """Shows a text that changes, at the same place of a terminal. Nothing flickers, and nothing of an earlier text stays."""

    def paint(self, status: SpaceStatus) -> None:
        size = shutil.get_terminal_size()
        text = io.StringIO()
        print_status(status, Screen(text, colour=True, width=size.columns))
        lines = text.getvalue().splitlines()
        if len(lines) > size.lines:
            lines = [*lines[: size.lines - 1], "… (a larger window shows more)"]
        # Each line removes what was to the right of it, and the last one what was below. One write, so that it is whole.
        sys.stdout.write("\x1b[H" + "\r\n".join(line + "\x1b[K" for line in lines) + "\x1b[J")
        sys.stdout.flush()


@contextmanager
def painter() -> Iterator[Painter | None]:
    """A separate screen of the terminal, left at the end. None if stdout is not a terminal."""
    if not sys.stdout.isatty():
        yield None
        return
    click.echo("\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J", nl=False)
    try:
        yield Painter()
    finally:
        click.echo("\x1b[?7h\x1b[?25h\x1b[?1049l", nl=False)
