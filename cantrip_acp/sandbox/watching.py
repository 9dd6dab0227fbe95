"""Asking a watchdog without making others wait.

The kernel lets whoever looks at a process wait while that process changes itself, so a look at hundreds of processes that are
being born can take a second. A tree that was slow to look at once is looked at in a thread from then on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

_SLOW = 0.01
"""Seconds that one look may hold up everybody else."""


class Watching:
    """One tree's: `ask` calls ``told`` with the verdict, at once or when it is there."""

    def __init__(self) -> None:
        self._slow = False

    def ask(self, verdict: Callable[[], str | None], told: Callable[[str | None], None]) -> None:
        """``told`` has to check whether the tree that was looked at is still there."""
        if not self._slow:
            told(self._timed(verdict))
            return
        looking = asyncio.get_running_loop().run_in_executor(None, self._timed, verdict)
        looking.add_done_callback(lambda done: None if done.cancelled() else told(done.result()))

    def _timed(self, verdict: Callable[[], str | None]) -> str | None:
        began = time.perf_counter()
        found = verdict()
        self._slow = time.perf_counter() - began > _SLOW
        return found
