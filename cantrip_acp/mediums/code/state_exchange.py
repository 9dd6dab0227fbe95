"""One exchange of a worker's state between two cells: the worker gives a snapshot, or opens one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import anyio

from cantrip_acp.sandbox import Worker, messages

WITHIN = 60.0
"""The most seconds of an exchange."""


class StateExchange:
    """Sends one command to a worker that rests, and waits for its answer. Afterwards it rests again, or is lost.

    For a snapshot, a process that the worker forks does most of the work while the worker is stopped. Whatever happens to
    that process, the worker and its state are safe.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._forked = False
        """Whether the worker has forked the process that keeps its state."""
        self.state: messages.State | None = None
        self.rested = False
        """Whether the worker rests; otherwise it is lost."""
        self.given_up = f"that took longer than {WITHIN:g} seconds"
        """Why there is no state, if the worker rests without one."""

    def said(self, message: messages.State | messages.SnapshotBegan) -> None:
        if isinstance(message, messages.State):
            self.state = message
        else:
            self._forked = True

    async def run(self, command: dict[str, object], began: Callable[[], None] | None = None) -> None:
        """``began`` is called once the present state is held."""
        worker = self._worker
        worker.send(command)
        worker.thaw()
        try:
            with anyio.move_on_after(WITHIN):
                while not self._answered() and not self._forked:
                    await worker.tree.changed()
                if self._forked:
                    worker.stop()
                    if began is not None:
                        began()
                    await self._watch()
        finally:
            with anyio.CancelScope(shield=True):
                if self.state is None and not self._forked:
                    worker.end("it did not answer")
                else:
                    self.rested = await worker.freeze()
                if self.rested:
                    if self._forked:
                        # Nothing else writes until the worker's next command.
                        worker.drop_incomplete()
                    worker.tree.read_now()
                else:
                    with anyio.move_on_after(2):
                        await worker.gone()

    def _answered(self) -> bool:
        return self.state is not None or self._worker.broken is not None or self._worker.tree.exited

    async def _watch(self) -> None:
        """Wait for the state from the forked process, or until it must be given up."""
        # Two more processes have the state now, but most of its pages are shared with the worker.
        worker = self._worker
        loop, judge = asyncio.get_running_loop(), partial(worker.judge, times=2)
        verdict: str | None = None
        timer: asyncio.TimerHandle
        over = False

        def judged(found: str | None) -> None:
            nonlocal verdict, timer
            if over:
                return
            verdict = found and f"keeping it used {found}"
            if verdict is None and not worker.is_busy:
                # First read the messages that it sent before its end.
                worker.drop_incomplete()
                verdict = None if self._answered() else "the process that was to keep it has ended"
            if verdict is not None:
                worker.tree.wake()
            else:
                timer = loop.call_later(worker.check_interval, judge, judged)

        timer = loop.call_later(worker.check_interval, judge, judged)
        try:
            while not self._answered() and verdict is None:
                await worker.tree.changed()
        finally:
            over = True
            timer.cancel()
        self.given_up = verdict or self.given_up
