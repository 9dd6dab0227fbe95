"""Background command: one that runs beside others until it ends, is stopped, or its owner ends.

It has the policy and the limits of a command, but no time limit of its own. Its output is kept until it is read: whole lines, and
of much output the beginning and the end. A program that prints without an end is slowed down, so that it does not keep our event
loop busy.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import anyio
import anyio.to_thread

from cantrip_acp.sandbox.launch import process_tree
from cantrip_acp.sandbox.launch.command import Ask, Outcome, Prepared, Running
from cantrip_acp.sandbox.launch.output import Collector, clean
from cantrip_acp.sandbox.launch.sandbox import Sandbox
from cantrip_acp.types.errors import SandboxError

_FOREVER = 10**12
_LONGEST_LINE = 16_384
"""Bytes of an unfinished line that wait for its end."""
_ENDS_WITHIN = 3.0
"""Seconds in which a killed tree has ended and its output is read."""
_LAST = 16_384
"""Bytes of the last output that a person can look at."""
_MOST_A_SECOND = 4 * 1024 * 1024
"""Bytes of output that are read in one second."""


class _Lasting(Running):
    """A command whose output its owner takes, and that has no time limit."""

    def __init__(
        self,
        prepared: Prepared,
        command: str,
        take: Callable[[bytes], None],
        environment: Mapping[str, str],
        ask: Ask | None,
    ) -> None:
        super().__init__(prepared, command, None, lambda _, data: take(data), environment, None, ask)
        self._timeout_ms = self._processor_ms = _FOREVER
        self._seconds_left = _FOREVER / 1000

    async def _report(self, *, last: bool = False) -> int:
        # The owner decides when to read again.
        return 0

    def pause_reading(self, held: bool) -> None:
        if self.tree is not None:
            self.tree.pause(held)

    def terminate(self) -> None:
        """Ask its processes to end."""
        if self.tree is not None:
            self.tree.terminate()


class Background:
    """A background command. `start` it once, and always `stop` it."""

    def __init__(
        self, sandbox: Sandbox, command: str, most: int, environment: Mapping[str, str], ask: Ask | None = None
    ) -> None:
        """``most``: the bytes of output that are kept between two reads."""
        self._sandbox = sandbox
        self._command = command
        self._environment = environment
        self._ask = ask
        self._most = most
        self._kept = Collector(most)
        self._line = bytearray()
        self._last = bytearray()
        self._second = (0, 0)
        """The present second, and the bytes that were read in it."""
        self._running: _Lasting | None = None
        self._task: asyncio.Task[None] | None = None
        self.changed = asyncio.Event()
        """Set when there is new output, and at the end."""
        self.outcome: Outcome | None = None
        """How it ended; None while it runs, or if it could not be started."""
        self.failure: SandboxError | None = None
        """Why it could not be started."""

    @property
    def pid(self) -> int:
        """The process ID of the sandbox's first process, as the host counts; 0 before that process exists."""
        return self._running.pid if self._running is not None else 0

    @property
    def ended(self) -> bool:
        return self.outcome is not None or self.failure is not None

    async def start(self) -> None:
        """Start it. Raises `SandboxError`, `SandboxMissing` if it cannot be prepared; `failure` says later errors."""
        prepared = await anyio.to_thread.run_sync(self._sandbox.prepared)
        self._running = _Lasting(prepared, self._command, self._on_output, self._environment, self._ask)
        self._task = asyncio.create_task(self._run(self._running))

    async def _run(self, running: _Lasting) -> None:
        try:
            async with anyio.create_task_group() as group:

                def start_task(work: Callable[..., Coroutine[Any, Any, object]], *args: object) -> None:
                    process_tree.start_soon(group, work, *args)

                running.set_task_starter(start_task)
                outcome = await running.run()
                self._feed(bytes(self._line))
                self._line.clear()
                self.outcome = outcome
                group.cancel_scope.cancel()
        except* (SandboxError, OSError) as failures:
            first: BaseException = failures
            while isinstance(first, BaseExceptionGroup):
                first = first.exceptions[0]
            self.failure = first if isinstance(first, SandboxError) else SandboxError(str(first))
        finally:
            if not self.ended:
                self.failure = SandboxError("it was cancelled")
            # They hold the network in which it ran, and each other.
            self._running = running.tree = None
            self.changed.set()

    def _on_output(self, data: bytes) -> None:
        now = int(time.monotonic())
        self._second = (now, len(data) + (self._second[1] if self._second[0] == now else 0))
        if self._second[1] > _MOST_A_SECOND and self._running is not None:
            self._running.pause_reading(True)
            asyncio.get_running_loop().call_later(1, self._running.pause_reading, False)
        # A line is kept whole: a secret in it is masked where the text is read, which must see all of it.
        self._line += data
        end = len(self._line) if len(self._line) > _LONGEST_LINE else self._line.rfind(b"\n") + 1
        self._feed(bytes(self._line[:end]))
        del self._line[:end]

    def _feed(self, data: bytes) -> None:
        if data:
            self._kept.feed(data)
            self._last += data
            if len(self._last) > 2 * _LAST:
                del self._last[: self._last.find(b"\n", len(self._last) - _LAST) + 1 or len(self._last) - _LAST]
            self.changed.set()

    def end(self, because: str) -> None:
        """Kill its whole tree at once."""
        if self._running is not None:
            self._running.end(because)

    async def wait(self) -> None:
        """Wait until it has ended."""
        if self._task is not None:
            await asyncio.wait([self._task])

    def read(self) -> tuple[str, bool]:
        """The whole lines since the last read, and whether some were left out. The text then says how many."""
        total = self._kept.total
        text = self._kept.text(self._most).text
        self._kept.restart(self._most)
        return text, total > self._most

    def last_output(self) -> str:
        """The last whole lines, also those that were read."""
        return clean(bytes(self._last).decode("utf-8", "replace")).rstrip("\n")

    def has(self, text: str) -> bool:
        """Whether the output since the last read has this text."""
        return text in self._kept.text(self._most).text

    async def stop(self, because: str, grace: float) -> None:
        """Ask its processes to end, and kill them after ``grace`` seconds. Returns when none is left. Safe to call twice."""
        task = self._task
        if task is None:
            return
        if self._running is not None:
            self._running.terminate()
            await asyncio.wait([task], timeout=grace)
        self.end(because)
        await asyncio.wait([task], timeout=_ENDS_WITHIN)
        # Where there is no process namespace, a process that left may still hold the output.
        task.cancel()
        await asyncio.wait([task])


__all__ = ["Background"]
