"""Groups of options: several options of a command that belong together are one argument of its function.

`option_group` makes the argument. The groups that several commands have are here, with their texts.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import click

from cantrip_acp.cli.session.permissions import allow_host_option
from cantrip_acp.cli.session.setup import cache_option, cwd_option, loom_option, state_option

Command = Callable[..., Any]
Decorator = Callable[[Command], Command]


def option_group(argument: str, made: Callable[..., object], *options: Decorator) -> Decorator:
    """Add ``options`` to a command, which gets them as one argument: what ``made`` returns.

    ``made`` is a dataclass or a function, whose parameters are named like the options; a parameter with a default may lack
    its option. An option of the group may also stand elsewhere above the group: then the help shows it there.
    """
    names = inspect.signature(made).parameters

    def decorate(command: Command) -> Command:
        @wraps(command)
        def grouped(**given: Any) -> Any:
            group = made(**{name: given.pop(name) for name in names if name in given})
            return command(**given, **{argument: group})

        for option in reversed(options):
            grouped = option(grouped)  # type: ignore[assignment]
        return grouped

    return decorate


@dataclass(frozen=True, slots=True)
class Place:
    """Where a command casts: the folder of the project, the loom, the state folder, and the hosts of ``--allow-host``."""

    cwd: Path
    state_dir: Path | None
    allow_hosts: tuple[str, ...]
    loom_file: str | None = None


place_options = option_group("place", Place, cwd_option, state_option, allow_host_option)
casting_place_options = option_group(
    "place", Place, cwd_option, loom_option, state_option, cache_option, allow_host_option
)


@dataclass(frozen=True, slots=True)
class Budget:
    """The budget that casts share. None: no limit."""

    budget_usd: float | None
    budget_tokens: int | None = None

    def __bool__(self) -> bool:
        return self.budget_usd is not None or self.budget_tokens is not None


def budget_options(usd: str, tokens: str | None = None) -> Decorator:
    """``--budget-usd`` and ``--budget-tokens``, with these help texts, as the argument ``budget``; None leaves one out."""
    options = [dollars_option("--budget-usd", usd)]
    if tokens is not None:
        options.append(click.option("--budget-tokens", type=click.IntRange(1), metavar="N", help=tokens))
    return option_group("budget", Budget, *options)


def dollars_option(name: str, text: str) -> Decorator:
    return click.option(name, type=click.FloatRange(0, min_open=True), metavar="USD", help=text)


def retries_option(text: str) -> Decorator:
    return click.option("--max-retries", type=click.IntRange(0, 100), default=2, show_default=True, help=text)


def concurrency_option(what: str, default: int) -> Decorator:
    """The option ``--concurrency`` for tuples. ``what`` is the beginning of its help text."""
    return click.option(
        "--concurrency",
        type=click.IntRange(1),
        help=f"{what}, at most $YOOL_TUPLE_MAX_LANE_CONCURRENCY (64).  [default: $YOOL_TUPLE_LANE_CONCURRENCY, else {default}]",
    )


@dataclass(frozen=True, slots=True)
class Pool:
    """Where tuples are and who casts them: the tuple-space, the lane in it, the number of parallel casts, and the command for
    alarms."""

    space: str | None
    concurrency: int | None
    lane: str | None
    on_alarm: str | None
