"""Progress of commands that run for long: a line on stderr, and a loop that shows it and listens to signals."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    import anyio

_LINE_S = 15.0
"""How often a line is printed if stderr is not a terminal."""


class ProgressLine:
    """A line on stderr that changes; if stderr is not a terminal, a new line now and then."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._last_line = time.monotonic()
        self._width = 0

    def show(self, line: Callable[[], str]) -> None:
        if self._live:
            text = line()
            sys.stderr.write("\r" + text.ljust(self._width))
            sys.stderr.flush()
            self._width = len(text)
        elif time.monotonic() - self._last_line >= _LINE_S:
            self._last_line = time.monotonic()
            click.echo(line(), err=True)

    def clear(self) -> None:
        """Remove the live line, so that something else can be printed in its place."""
        if self._live and self._width:
            sys.stderr.write("\r" + " " * self._width + "\r")
            sys.stderr.flush()
            self._width = 0


def duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def run_with_progress(
    work: Callable[[], Awaitable[object]], show: Callable[[], None], stop: Callable[[anyio.CancelScope], object]
) -> bool:
    """Run ``work`` in an event loop, and call ``show`` five times a second. SIGINT and SIGTERM call ``stop`` with the scope
    of the work. Returns whether a signal came."""
    import anyio

    from cantrip_acp.cli.session.tuple_space import run_async

    async def run() -> bool:
        interrupted = False
        async with anyio.create_task_group() as tasks:
            with anyio.CancelScope() as working:

                async def watch_signals() -> None:
                    nonlocal interrupted
                    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
                        async for _ in signals:
                            interrupted = True
                            stop(working)

                async def show_often() -> None:
                    while True:
                        show()
                        await anyio.sleep(0.2)

                tasks.start_soon(watch_signals)
                tasks.start_soon(show_often)
                await work()
            tasks.cancel_scope.cancel()
        return interrupted

    return run_async(run)
