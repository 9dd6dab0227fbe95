"""Agent process: starts an agent as a child process, reads its stderr, and stops it at the end.

The agent gets its own process group, which is stopped with the connection. First its stdin is closed (the normal end in
the protocol), then it gets SIGTERM, then SIGKILL. `StdoutFilter` removes lines on stdout that are not messages.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import anyio
import anyio.abc

from cantrip_acp.acp.client.in_process import MemoryPipe
from cantrip_acp.types.errors import CantripError

_TERMINATE_SECONDS: Final = 2.0
_TAIL_LINES: Final = 30
_LONGEST_LINE: Final = 4000


class AgentMissing(CantripError):
    """The agent's command cannot be started. The program or the folder is missing, or the program is not executable."""


class AgentProcess:
    """A running agent. `stdin` and `stdout` carry the protocol. stderr is always read, so that the agent never blocks."""

    def __init__(
        self, argv: Sequence[str], process: anyio.abc.Process, relay: Callable[[str], Awaitable[None]] | None
    ) -> None:
        self.argv = tuple(argv)
        self._process = process
        self._relay = relay
        self.exit_seconds = 3.0
        """Seconds from the end of stdin to SIGTERM."""
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._stderr_read = anyio.Event()
        assert process.stdin is not None
        assert process.stdout is not None
        self.pid = process.pid
        self.stdin: anyio.abc.ByteSendStream = process.stdin
        self.stdout: anyio.abc.ByteReceiveStream = process.stdout

    def stderr_tail(self) -> list[str]:
        """The last lines of the agent's stderr (untrusted text)."""
        return list(self._tail)

    def describe_end(self) -> str:
        """Say how the agent ended: `exited with status 3`, `was killed by SIGKILL`, or `is still running`."""
        code = self._process.returncode
        if code is None:
            return "is still running"
        if code >= 0:
            return f"exited with status {code}"
        try:
            return f"was killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"was killed by signal {-code}"

    async def ended(self, seconds: float) -> bool:
        """Wait at most `seconds` for the agent's end and the rest of its stderr. Returns whether the agent has ended."""
        with anyio.move_on_after(seconds):
            await self._process.wait()
            # A grandchild may hold stderr open forever, so do not wait long for the rest.
            with anyio.move_on_after(0.3):
                await self._stderr_read.wait()
        return self._process.returncode is not None

    async def _read_stderr(self) -> None:
        assert self._process.stderr is not None
        partial = b""
        try:
            async for chunk in self._process.stderr:
                *lines, partial = (partial + chunk).split(b"\n")
                for line in lines:
                    await self._on_stderr_line(line)
                if len(partial) > _LONGEST_LINE:
                    await self._on_stderr_line(partial)
                    partial = b""
            if partial:
                await self._on_stderr_line(partial)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass  # closed by this side at the end
        finally:
            self._stderr_read.set()

    async def _on_stderr_line(self, line: bytes) -> None:
        text = line[:_LONGEST_LINE].decode("utf-8", "replace").rstrip("\r")
        self._tail.append(text)
        if self._relay is not None:
            await self._relay(text)

    async def _close(self) -> None:
        """Stop the whole process group, and wait for the agent's exit status."""
        with anyio.CancelScope(shield=True):
            with contextlib.suppress(OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
                await self.stdin.aclose()
            for seconds, then in ((self.exit_seconds, signal.SIGTERM), (_TERMINATE_SECONDS, signal.SIGKILL)):
                if await self.ended(seconds):
                    break
                self._signal(then)
            # Kill all processes that are left in the agent's group, even after an orderly end.
            self._signal(signal.SIGKILL)
            # Do not use `wait` here, which may also wait for the pipes. A process that left the group may keep them open.
            while self._process.returncode is None:  # noqa: ASYNC110 - nothing tells of it
                await anyio.sleep(0.01)
            for stream in (self.stdout, self._process.stderr):
                if stream is not None:
                    with contextlib.suppress(OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
                        await stream.aclose()
            # anyio leaves a pipe open that was not read to its end. asyncio would report that when the program exits.
            transport = getattr(getattr(self._process, "_process", None), "_transport", None)
            if transport is not None:
                transport.close()

    def _signal(self, which: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, which)


@contextlib.asynccontextmanager
async def start_agent(
    argv: Sequence[str],
    *,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    relay: Callable[[str], Awaitable[None]] | None = None,
) -> AsyncIterator[AgentProcess]:
    """Start an agent. When the block ends, the agent and its process group are stopped.

    `relay` is called with each line of stderr. Raises AgentMissing if the command cannot be started.
    """
    if not argv:
        raise AgentMissing("no agent command given; write it after --, as in: cantrip client -- cantrip-acp")
    try:
        process = await anyio.open_process(
            list(argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=folder,
            env=dict(environment) if environment is not None else None,
            start_new_session=True,
        )
    except FileNotFoundError as missing:
        if folder is not None and not os.path.isdir(folder):  # noqa: ASYNC240 - nothing is running yet
            raise AgentMissing(f"the folder {folder} does not exist or is not a folder") from missing
        raise AgentMissing(f"no program named {argv[0]!r}; install the agent or give its full path") from missing
    except NotADirectoryError as wrong:
        raise AgentMissing(f"cannot start {argv[0]!r} in {folder}: a part of that path is not a folder") from wrong
    except PermissionError as refused:
        raise AgentMissing(f"{argv[0]!r} may not be executed ({refused.strerror}); check the file's mode") from refused
    except (OSError, ValueError) as failed:
        raise AgentMissing(f"{argv[0]!r} cannot be started: {failed}") from failed
    agent = AgentProcess(argv, process, relay)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(agent._read_stderr)
        try:
            yield agent
        finally:
            await agent._close()
            tasks.cancel_scope.cancel()


_LONGEST_JUNK: Final = 2000


class StdoutFilter:
    """Reads an agent's stdout, and removes lines that are not messages.

    `junk` gets each removed line. `ready` is awaited before each read, so that a slow observer slows the agent.
    """

    def __init__(
        self,
        stdout: anyio.abc.ByteReceiveStream | MemoryPipe,
        *,
        junk: Callable[[str], None],
        ready: Callable[[], Awaitable[None]],
    ) -> None:
        self._stdout = stdout
        self._junk = junk
        self._ready = ready
        self._at_start = True
        self._junk_line = b""
        self._inside_junk = False
        self.bytes = 0

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """Read bytes of lines that may be messages. Raises anyio.EndOfStream when the agent has closed its stdout."""
        while True:
            await self._ready()
            try:
                chunk = await self._stdout.receive(max_bytes)
            except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
                self._report()
                raise anyio.EndOfStream from None
            self.bytes += len(chunk)
            if messages := self._filter(chunk):
                return messages

    async def aclose(self) -> None:
        await self._stdout.aclose()

    def _filter(self, chunk: bytes) -> bytes:
        out = bytearray()
        for line in chunk.splitlines(keepends=True) if b"\r" not in chunk else _lines(chunk):
            if self._at_start:
                start = line.lstrip(b" \t\r")
                self._inside_junk = not start.startswith((b"{", b"[", b"\n")) and bool(start)
                self._at_start = not start
                if self._at_start:
                    continue
            ended = line.endswith(b"\n")
            if self._inside_junk:
                self._junk_line = (self._junk_line + line)[:_LONGEST_JUNK]
                if ended:
                    self._report()
            elif line != b"\n" or not self._at_start:
                out += line
            self._at_start = ended
        return bytes(out)

    def _report(self) -> None:
        junk, self._junk_line = self._junk_line, b""
        if junk := junk.strip():
            self._junk(junk.decode("utf-8", "replace"))


def _lines(chunk: bytes) -> list[bytes]:
    """Split after newlines only. A carriage return does not end a line here."""
    *whole, last = chunk.split(b"\n")
    return [line + b"\n" for line in whole] + ([last] if last else [])
