"""Service: a long-running program in a sandbox that talks over standard input and output (a stdio server).

The program has the same policy and the same limits of memory, processes and files as a command, but no time limit. Its
output is hostile input: it is passed on as bytes, and only as many bytes are read as the caller takes.
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

from cantrip_acp.sandbox.launch import process_tree
from cantrip_acp.sandbox.launch.command import Outcome, Running
from cantrip_acp.sandbox.launch.output import clean
from cantrip_acp.sandbox.launch.sandbox import Sandbox
from cantrip_acp.types.errors import SandboxError

_WAITING = 1024 * 1024
"""Bytes of output that may wait for the caller. If more wait, the program must wait too."""
_MAX_STDERR = 32_768
_FOREVER = 10**12
_EXIT_GRACE = 0.5
"""Seconds in which the program may exit after its input was closed. Then it is killed."""


class _Serving(Running):
    """A command with a standard input and without a time limit."""

    def __init__(self, service: Service, argv: Sequence[str], environment: Mapping[str, str], stdin: int) -> None:
        super().__init__(
            service.sandbox.prepared(), f"exec {shlex.join(argv)}", None, service.on_output, environment, None
        )
        self._timeout_ms = self._processor_ms = _FOREVER
        self._seconds_left = _FOREVER / 1000
        self._stdin = stdin

    async def _report(self, *, last: bool = False) -> int:
        # The output goes to the service and not to a listener. The service decides when to read again.
        return 0

    def pause_reading(self, held: bool) -> None:
        self._tree.pause(held)

    def unused_stdin(self) -> int:
        """The program's end of the input pipe if no process was started; -1 otherwise."""
        return self._stdin


class Service:
    """A running program. Use `send` and `receive` inside ``async with service.running()``.

    Afterwards none of its processes is left. ``argv``: the program, found on PATH inside, and its arguments.
    ``environment``: variables to add to those of the sandbox. Raises `SandboxMissing` and `SandboxError` if it cannot
    be started.
    """

    def __init__(self, sandbox: Sandbox, argv: Sequence[str], environment: Mapping[str, str]) -> None:
        self.sandbox = sandbox
        self._argv = list(argv)
        self._environment = dict(environment)
        self._pieces: deque[bytes] = deque()
        self._waiting = 0
        self._new_output = asyncio.Event()
        self._over = False
        self._end = asyncio.Event()
        self._errors = bytearray()
        self._running: _Serving | None = None
        self._outcome: Outcome | None = None
        self._failed: Exception | None = None
        self._input = -1
        self._writing = anyio.Lock()

    @property
    def stderr_tail(self) -> str:
        """The end of the program's standard error, cleaned so that it can be displayed."""
        return clean(bytes(self._errors).decode("utf-8", "replace")).strip()

    @property
    def end_reason(self) -> str | None:
        """Why the program ended, as text; None while it runs."""
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
        """Wait until the program has ended."""
        await self._end.wait()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Service]:
        """Run the program. Can be used once."""
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
                # Raise the error again below. From inside the task group the caller would get an ExceptionGroup.
                failure = error
            finally:
                with anyio.CancelScope(shield=True):
                    self._close_input()
                    # Give the program time to clean up.
                    with anyio.move_on_after(_EXIT_GRACE):
                        await self._discard_output()
                group.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def _discard_output(self) -> None:
        """Read and discard the rest of the output, so that the program can exit."""
        while await self.receive():
            pass

    async def _run(self) -> None:
        running = self._running
        assert running is not None
        try:
            async with anyio.create_task_group() as group:

                def start_task(work: Callable[..., Coroutine[Any, Any, object]], *args: object) -> None:
                    process_tree.start_soon(group, work, *args)

                running.set_task_starter(start_task)
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
            self._new_output.set()

    def on_output(self, stream: int, data: bytes) -> None:
        """Store new output. Called when a pipe was read, with 1 (stdout) or 2 (stderr), and bytes."""
        if stream == 2:
            self._errors += data
            del self._errors[:-_MAX_STDERR]
            return
        self._pieces.append(data)
        self._waiting += len(data)
        if self._waiting > _WAITING:
            self._pause_reading(True)
        self._new_output.set()

    def _pause_reading(self, held: bool) -> None:
        if self._running is not None and self._running.tree is not None:
            self._running.pause_reading(held)

    async def receive(self) -> bytes:
        """Return the next bytes of the standard output; empty at its end."""
        while not self._pieces:
            if self._over:
                return b""
            self._new_output.clear()
            self._pause_reading(False)
            await self._new_output.wait()
        data = b"".join(self._pieces)
        self._pieces.clear()
        self._waiting = 0
        return data

    async def send(self, data: bytes) -> None:
        """Write to the standard input. Waits while the program does not read.

        Raises `SandboxError` if the program has ended.
        """
        async with self._writing:
            left = memoryview(data)
            while left:
                if self._over or self._input < 0:
                    raise SandboxError(self.end_reason or "its input is closed")
                try:
                    left = left[os.write(self._input, left[:65_536]) :]
                except BlockingIOError:
                    try:
                        await anyio.wait_writable(self._input)
                    except anyio.ClosedResourceError:
                        continue
                except OSError as error:
                    raise SandboxError(self.end_reason or f"it takes no input ({error.strerror})") from error

    def _close_input(self) -> None:
        descriptor, self._input = self._input, -1
        if descriptor >= 0:
            anyio.notify_closing(descriptor)
            os.close(descriptor)
