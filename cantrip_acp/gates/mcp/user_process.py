"""User process: runs a stdio MCP server as the user, without a sandbox, in its own process group.

At the end its input is closed. If it does not exit, its group gets SIGTERM and then SIGKILL. If our process is killed, a
waiting shell (the watchdog) kills the group.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.abc
from mcp.client.stdio import get_default_environment

from cantrip_acp.files import guarded
from cantrip_acp.gates.mcp.declaration import McpServer, program_files
from cantrip_acp.sandbox import clean

_ASKED_TO_LEAVE = 0.5
"""Seconds to wait for its exit after its input was closed. After SIGTERM it is half of this."""
_LAST_WORDS = 32_768
_WATCHDOG_SCRIPT = 'read -r _; kill -s KILL -- "-$1"'
"""The program of the watchdog. It waits until its input is closed (our process has ended), and then kills a group."""


class UserProcess:
    """A server process. Use `send` and `receive` inside ``async with process.running()``. At its end, the group is killed.

    Its environment has the user's HOME, PATH and similar variables, and ``server.env``. `running` raises `OSError` if the
    process cannot be started.
    """

    def __init__(self, server: McpServer, folder: str | None) -> None:
        self._server = server
        self._folder = folder
        if folder is not None:
            # It may start again, for example in the next session, and then runs what is there by then.
            files = program_files(server.command, server.args, Path(folder))
            by = f"the MCP server {server.name}"
            guarded.name_files(f"{folder}\0{server.name}\0{server.command}", {str(each): by for each in files})
        self._process: anyio.abc.Process | None = None
        self._errors = bytearray()
        self._over = False
        self._end = anyio.Event()

    @property
    def stderr_tail(self) -> str:
        """The end of its standard error, without control characters."""
        return clean(bytes(self._errors).decode("utf-8", "replace")).strip()

    @property
    def end_reason(self) -> str | None:
        """How the process ended, as text; None while it runs."""
        process = self._process
        if process is None or not self._over:
            return None
        status = process.returncode
        if status is None:
            return "it closed its output"
        if status < 0:
            with contextlib.suppress(ValueError):
                return f"it was killed by {signal.Signals(-status).name}"
        return f"it left with exit status {status}"

    async def gone(self) -> None:
        """Wait until the process has ended."""
        await self._end.wait()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[UserProcess]:
        """Run the program. Can be used once."""
        self._process = process = await anyio.open_process(
            [self._server.command, *self._server.args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=self._folder,
            env={**get_default_environment(), **self._server.env},
            start_new_session=True,
        )
        # There must be no await from here to the task group. A cancel there would lose the process.
        try:
            held, watchdog = _start_watchdog(process.pid)
        except BaseException:
            # The group was killed. Close its pipes.
            with anyio.CancelScope(shield=True):
                await self._stop(process)
            raise
        failure: Exception | None = None
        async with anyio.create_task_group() as group:
            group.start_soon(self._read_stderr, process)
            try:
                yield self
            except Exception as error:  # noqa: BLE001
                # Raise it below, because from inside the task group it would become an ExceptionGroup.
                failure = error
            finally:
                with anyio.CancelScope(shield=True):
                    await self._stop(process)
                    watchdog.kill()
                    os.close(held)
                    watchdog.wait()
                group.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def receive(self) -> bytes:
        """Read the next bytes of its standard output; empty at the end."""
        assert self._process is not None
        assert self._process.stdout is not None
        try:
            return await self._process.stdout.receive()
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            # A program that closes its output is about to exit. Wait a moment for its status.
            with anyio.move_on_after(_ASKED_TO_LEAVE):
                await self._exited(self._process)
            self._over = True
            self._end.set()
            return b""

    async def send(self, data: bytes) -> None:
        """Write to its standard input, and wait until the program reads. Raises `OSError` if the program has ended."""
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            await self._process.stdin.send(data)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError) as gone:
            raise OSError(self.end_reason or "it closed its input") from gone

    async def _read_stderr(self, process: anyio.abc.Process) -> None:
        assert process.stderr is not None
        with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            async for data in process.stderr:
                self._errors += data
                del self._errors[:-_LAST_WORDS]

    async def _stop(self, process: anyio.abc.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
            await process.stdin.aclose()
        async with anyio.create_task_group() as group:
            # Read its output, because it may have to write before it can exit.
            group.start_soon(self._drain_output)
            for seconds, then in ((_ASKED_TO_LEAVE, signal.SIGTERM), (_ASKED_TO_LEAVE / 2, signal.SIGKILL)):
                with anyio.move_on_after(seconds):
                    await self._exited(process)
                if process.returncode is not None:
                    break
                _signal(process.pid, then)
            # Also after a normal exit, kill the processes that it started in its group.
            _signal(process.pid, signal.SIGKILL)
            await self._exited(process)
            group.cancel_scope.cancel()
        self._over = True
        self._end.set()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
                    await stream.aclose()
        # A process that left the group may still use the pipes. Close our ends anyway.
        transport = getattr(getattr(process, "_process", None), "_transport", None)
        if transport is not None:
            with contextlib.suppress(PermissionError):
                transport.close()

    async def _drain_output(self) -> None:
        while await self.receive():
            pass

    @staticmethod
    async def _exited(process: anyio.abc.Process) -> None:
        # Do not use `wait`, which also waits for the pipes. A child process may keep them open.
        while process.returncode is None:  # noqa: ASYNC110 - nothing tells of it
            await anyio.sleep(0.01)


def _signal(group: int, which: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, which)


def _start_watchdog(group: int) -> tuple[int, subprocess.Popen[bytes]]:
    """Start the watchdog of a group. Returns a descriptor and the shell. Closing the descriptor kills the group."""
    try:
        theirs, ours = os.pipe2(os.O_CLOEXEC)
    except OSError:
        _signal(group, signal.SIGKILL)
        raise
    try:
        watchdog = subprocess.Popen(
            ["/bin/sh", "-c", _WATCHDOG_SCRIPT, "sh", str(group)],
            stdin=theirs,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={},
            start_new_session=True,
        )
    except BaseException:
        os.close(ours)
        _signal(group, signal.SIGKILL)
        raise
    finally:
        os.close(theirs)
    return ours, watchdog
