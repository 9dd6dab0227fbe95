"""A program that lives in a sandbox and is talked to over its standard input and output: a server on stdio.

It has a command's policy, memory, processes and files; what bounds a command's time does not bound a server's. What it says
is hostile input: bytes, of which no more are read than are taken.
"""

from __future__ import annotations

import asyncio
import os
import shlex
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio

from cantrip_acp.core.errors import SandboxError
from cantrip_acp.sandbox.launch import task_spawn
from cantrip_acp.sandbox.launch.command import Outcome, Running
from cantrip_acp.sandbox.launch.output import clean
from cantrip_acp.sandbox.launch.sandbox import Sandbox

_WAITING = 1024 * 1024
"""Bytes that wait to be taken before the program is made to wait."""
_LAST_WORDS = 4096
_FOREVER = 10**12
_ASKED_TO_LEAVE = 0.5
"""Seconds that it has to leave in, once its input has ended."""


class _Serving(Running):
    """A command with a standard input, and without an end of its time."""

    def __init__(self, service: Service, argv: Sequence[str], environment: Mapping[str, str], stdin: int) -> None:
        super().__init__(service.sandbox.prepared(), f"exec {shlex.join(argv)}", None, service.heard, environment, None)
        self._timeout_ms = self._processor_ms = _FOREVER
        self._stdin = stdin

    async def _report(self, *, last: bool = False) -> int:
        # Nobody listens to a server's output as to a command's, and when it is read again is for the service to say.
        return 0

    def hold_back(self, held: bool) -> None:
        self._tree.pause(held)

    def unused_stdin(self) -> int:
        """Its end of the pipe, where no process took it."""
        return self._stdin


class Service:
    """Within ``async with service.running()`` it can `send` and `receive`; afterwards no process of it is left.

    ``argv`` is the program, found on the sandbox's PATH, with its arguments; ``environment`` is all that it gets beside the
    sandbox's own. Raises `SandboxMissing` and `SandboxError` where it cannot be started.
    """

    def __init__(self, sandbox: Sandbox, argv: Sequence[str], environment: Mapping[str, str]) -> None:
        self.sandbox = sandbox
        self._argv = list(argv)
        self._environment = dict(environment)
        self._pieces: deque[bytes] = deque()
        self._waiting = 0
        self._came = asyncio.Event()
        self._over = False
        self._end = asyncio.Event()
        self._errors = bytearray()
        self._running: _Serving | None = None
        self._outcome: Outcome | None = None
        self._failed: Exception | None = None
        self._input = -1
        self._writing = anyio.Lock()

    @property
    def last_words(self) -> str:
        """The end of what it wrote to standard error, as text that can be shown."""
        return clean(bytes(self._errors).decode("utf-8", "replace")).strip()

    @property
    def ending(self) -> str | None:
        """How it ended, in words; None while it runs."""
        if not self._over:
            return None
        if self._failed is not None:
            return str(self._failed)
        outcome = self._outcome
        if outcome is None:
            return "it was stopped"
        if outcome.ended_because is not None:
            return outcome.ended_because
        return f"it left with exit status {outcome.exit_code}"

    async def gone(self) -> None:
        """Wait for its end."""
        await self._end.wait()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Service]:
        """Run it; once."""
        theirs, ours = os.pipe2(os.O_CLOEXEC)
        try:
            os.set_blocking(ours, False)
            self._running = _Serving(self, self._argv, self._environment, theirs)
        except BaseException:
            os.close(theirs)
            os.close(ours)
            raise
        self._input = ours
        failure: Exception | None = None
        async with anyio.create_task_group() as group:
            group.start_soon(self._run)
            try:
                yield self
            except Exception as error:  # noqa: BLE001
                # Raised on below: from inside the task group it would reach the caller as an ExceptionGroup.
                failure = error
            finally:
                with anyio.CancelScope(shield=True):
                    self._close_input()
                    # A server that is asked to leave may have something to put in order.
                    with anyio.move_on_after(_ASKED_TO_LEAVE):
                        await self._dropping()
                group.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def _dropping(self) -> None:
        """Read to its end what nobody will take, so that it can end."""
        while await self.receive():
            pass

    async def _run(self) -> None:
        running = self._running
        assert running is not None
        try:
            async with anyio.create_task_group() as group:

                def begin(work: Callable[..., Coroutine[Any, Any, object]], *args: object) -> None:
                    task_spawn.start_soon(group, work, *args)

                running.through(begin)
                self._outcome = await running.run()
                group.cancel_scope.cancel()
        except* (SandboxError, OSError) as failures:
            first: BaseException = failures
            while isinstance(first, BaseExceptionGroup):
                first = first.exceptions[0]
            assert isinstance(first, Exception)
            self._failed = first
        finally:
            if (left := running.unused_stdin()) >= 0:
                os.close(left)
            self._over = True
            self._end.set()
            self._came.set()

    def heard(self, stream: int, data: bytes) -> None:
        """What it wrote; called by whoever reads its pipes."""
        if stream == 2:
            self._errors += data
            del self._errors[:-_LAST_WORDS]
            return
        self._pieces.append(data)
        self._waiting += len(data)
        if self._waiting > _WAITING:
            self._hold_back(True)
        self._came.set()

    def _hold_back(self, held: bool) -> None:
        if self._running is not None and self._running.tree is not None:
            self._running.hold_back(held)

    async def receive(self) -> bytes:
        """The next bytes that it wrote to standard output; empty at its end."""
        while not self._pieces:
            if self._over:
                return b""
            self._came.clear()
            self._hold_back(False)
            await self._came.wait()
        data = b"".join(self._pieces)
        self._pieces.clear()
        self._waiting = 0
        return data

    async def send(self, data: bytes) -> None:
        """Write to its standard input; waits while it does not read. Raises `SandboxError` once it is gone."""
        async with self._writing:
            left = memoryview(data)
            while left:
                if self._over or self._input < 0:
                    raise SandboxError(self.ending or "its input is closed")
                try:
                    left = left[os.write(self._input, left[:65_536]) :]
                except BlockingIOError:
                    try:
                        await anyio.wait_writable(self._input)
                    except anyio.ClosedResourceError:
                        continue
                except OSError as error:
                    raise SandboxError(self.ending or f"it takes no input ({error.strerror})") from error

    def _close_input(self) -> None:
        descriptor, self._input = self._input, -1
        if descriptor >= 0:
            anyio.notify_closing(descriptor)
            os.close(descriptor)
