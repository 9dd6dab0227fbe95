"""Process tree of one sandbox: starts it, reads its output, and makes sure that it is gone at the end.

bubblewrap's outer process starts the first process of a new process namespace, reports its number and waits for us.
So we hold a pidfd of it and have set its limits before the command runs. Killing that first process kills every other
process in the namespace at once: orphans, other sessions, stopped processes. The tree is gone when its pidfd says so.
Everything happens on the event loop's thread. bubblewrap must be started there too, because its ``--die-with-parent``
is about threads. There is no thread, no polling and no child watcher.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import importlib
import json
import os
import resource
import select
import signal
import subprocess
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from anyio.abc import TaskGroup

from cantrip_acp.core.errors import SandboxError

_CHUNK = 65_536
_WIDE_PIPE = 1024 * 1024
_REPORT = 65_536
OUT_OF_RESOURCES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Errors where this process can open nothing more. Then protected files cannot be found, so nothing may run."""
GONE_WITHIN = 1.0
"""Seconds after a kill in which a tree must be gone. It takes about one millisecond unless the kernel is stuck."""


@dataclass(slots=True, kw_only=True)
class Launch:
    """What to start: a program with its arguments, and the descriptors that its options name.

    ``inherited`` and ``stdin`` (-1: none) are closed here once the program has them. The program is started inside
    the context manager ``within``.
    """

    program: str
    argv: Sequence[str]
    inherited: Sequence[int] = ()
    folder: str = "/"
    within: Callable[[], AbstractContextManager[None]] = nullcontext
    stdin: int = -1


@dataclass(slots=True)
class Status:
    """How a tree ended.

    ``exit_code`` is the command's. It is None where the command never ran (bubblewrap's stderr says why), or where it
    was killed for the reason in ``ended_because``. ``gone``: no process of it is left.
    """

    exit_code: int | None = None
    ended_because: str | None = None
    started: bool = False
    gone: bool = True


@dataclass(slots=True)
class _Stream:
    fd: int
    feed: Callable[[bytes], None]
    open: bool = True
    reading: bool = False


@dataclass(slots=True)
class Hooks:
    """Callbacks of a tree.

    ``prepared`` gets the tree's first process before the command runs. With ``hold`` the command then waits for
    `Tree.release`.
    """

    output: Callable[[int, bytes], None]
    prepared: Callable[[int], None] = field(default=lambda pid: None)
    hold: bool = False


class Tree:
    """A running tree. Create it, `start` it, wait for `changed`, and always `finish` it."""

    def __init__(self, launch: Launch, hooks: Hooks) -> None:
        self._launch = launch
        self._hooks = hooks
        self._loop = asyncio.get_running_loop()
        self._process: subprocess.Popen[bytes] | None = None
        self._streams: dict[int, _Stream] = {}
        self._status_text = b""
        self._outer = -1
        self._inner = -1
        self._go = -1
        self._waiter: asyncio.Future[None] | None = None
        self._changed = False
        self.pid = 0
        self.status = Status()

    @property
    def group(self) -> int:
        return self._process.pid if self._process is not None else 0

    @property
    def running(self) -> bool:
        """False once the command has ended and all of its output was read."""
        return self._outer >= 0 or any(s.open for s in self._streams.values())

    @property
    def exited(self) -> bool:
        return self._process is not None and self._outer < 0

    @property
    def alive(self) -> bool:
        """Whether its first process runs now. If so, all earlier readings under its number were about this process."""
        return self._inner >= 0 and not _wait(self._inner, 0)

    def start(self) -> None:
        """Start it; returns when the program runs.

        Raises `SandboxError` where it cannot be started. Then nothing of it runs and every descriptor is closed, also
        those of the launch.
        """
        stdin = self._launch.stdin
        theirs = [*self._launch.inherited, *([stdin] if stdin >= 0 else [])]
        ours: list[int] = []
        try:
            try:
                for _ in range(3):
                    reading, writing = os.pipe()
                    ours.append(reading)
                    theirs.append(writing)
                barrier, go = os.pipe()
                ours.append(go)
                theirs.append(barrier)
                self._process = self._spawn(theirs[-4:], go)
            finally:
                for fd in theirs:
                    os.close(fd)
            try:
                self._outer = os.pidfd_open(self._process.pid)
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    raise
                raise SandboxError(
                    f"cannot watch a process here (pidfd_open: {error.strerror}); Linux 5.3 is needed"
                ) from error
            self._loop.add_reader(self._outer, self._on_exit)
        except BaseException as error:
            if self._process is not None:
                self._process.kill()
                self._process.wait()
                self._process = None
            if self._outer >= 0:
                os.close(self._outer)
                self._outer = -1
            for fd in ours:
                os.close(fd)
            if isinstance(error, OSError):
                raise sandbox_error(f"cannot start {self._launch.program}", error) from error
            raise
        out, err, status, self._go = ours
        self._add(out, lambda data: self._hooks.output(1, data))
        self._add(err, lambda data: self._hooks.output(2, data))
        self._add(status, self._on_status)

    def _spawn(self, theirs: Sequence[int], go: int) -> subprocess.Popen[bytes]:
        """Start the program with its ends of the four pipes: output, errors, status report, barrier."""
        out, err, status, barrier = theirs
        argv = [*self._launch.argv]
        at = argv.index("--args")
        # The program also gets the writing end of the barrier (sync-fd; the command never sees it). If we died now,
        # the barrier must not open by itself.
        argv[at:at] = ["--json-status-fd", str(status), "--block-fd", str(barrier), "--sync-fd", str(go)]
        with self._launch.within():
            self._process = subprocess.Popen(
                argv,
                executable=self._launch.program,
                stdin=self._launch.stdin if self._launch.stdin >= 0 else subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env={},
                cwd=self._launch.folder,
                pass_fds=(status, barrier, go, *self._launch.inherited),
                start_new_session=True,
            )
        return self._process

    def _add(self, fd: int, feed: Callable[[bytes], None]) -> None:
        os.set_blocking(fd, False)
        self._streams[fd] = _Stream(fd, feed, reading=True)
        self._loop.add_reader(fd, self._on_readable, fd)

    # Called by the event loop.

    def _on_readable(self, fd: int) -> None:
        stream = self._streams[fd]
        try:
            data = os.read(fd, _CHUNK)
        except BlockingIOError:
            return
        except OSError as error:
            data = b""
            if error.errno != errno.EIO:
                self._end("its output cannot be read")
        if not data:
            self._close_stream(stream)
            if not self.running:
                self._wake()
            return
        if len(data) == _CHUNK:
            _enlarge_pipe(fd)
        stream.feed(data)
        if stream.feed != self._on_status:
            self._wake()

    def _on_status(self, data: bytes) -> None:
        self._status_text += data
        if len(self._status_text) > _REPORT:
            self._end("bubblewrap's status report is too long")
            return
        *lines, self._status_text = self._status_text.split(b"\n")
        for line in lines:
            report = json.loads(line)
            if "child-pid" in report:
                self._prepare(int(report["child-pid"]))
            if "exit-code" in report and self.status.ended_because is None:
                self.status.exit_code = int(report["exit-code"])

    def _prepare(self, pid: int) -> None:
        """The tree's first process waits for us: open its pidfd, set its limits, release it."""
        try:
            self._inner = os.pidfd_open(pid)
            if _parent(pid) != self.group:
                # The process is gone and its number is reused. bubblewrap's own end will say why.
                os.close(self._inner)
                self._inner = -1
                return
        except ProcessLookupError:
            return
        except OSError as error:
            self._end(f"its process cannot be watched ({no_room_text(error) or error.strerror})")
            return
        self.pid = pid
        if self.status.ended_because is not None:
            self._kill()
            return
        try:
            self._hooks.prepared(pid)
        except OSError as error:
            self._end(f"its limits cannot be set ({no_room_text(error) or error.strerror})")
            return
        if not self._hooks.hold:
            self.release()

    def release(self) -> None:
        """Let the command run."""
        if self._go < 0 or self.status.ended_because is not None:
            return
        self.status.started = True
        # If bubblewrap has ended meanwhile, its exit is reported instead.
        with contextlib.suppress(BrokenPipeError):
            os.write(self._go, b"1")
        os.close(self._go)
        self._go = -1

    def _on_exit(self) -> None:
        assert self._process is not None
        self._loop.remove_reader(self._outer)
        # The group number stays ours until its leader was waited for.
        self._kill()
        self._process.wait()
        os.close(self._outer)
        self._outer = -1
        # Usually no writer is left, and the pipes hold all the remaining output: no need to wait longer.
        for stream in list(self._streams.values()):
            if stream.open and stream.reading:
                self._on_readable(stream.fd)
        self._wake()

    # Called by the runner of a command.

    def pause(self, paused: bool) -> None:
        """Stop reading output, so that the command waits; or continue."""
        for stream in self._streams.values():
            if stream.open and stream.reading == paused:
                stream.reading = not paused
                if paused:
                    self._loop.remove_reader(stream.fd)
                else:
                    self._loop.add_reader(stream.fd, self._on_readable, stream.fd)

    def end(self, because: str) -> None:
        """Kill the whole tree now. The first reason is kept."""
        self._end(because)

    def _end(self, because: str) -> None:
        if self.status.ended_because is None and not self.exited:
            self.status.ended_because = because
            self.status.exit_code = None
        self._kill()
        self._wake()

    def _kill(self) -> None:
        if self._inner >= 0:
            _raise_priority(self.pid, self._inner)
            _signal(self._inner)
        if self._outer >= 0:
            # Also kill the process group: it covers the moment before we know the first process.
            try:
                os.killpg(self.group, signal.SIGKILL)
            except ProcessLookupError:
                return

    async def changed(self) -> None:
        """Wait until something happened: output, an end, a kill."""
        if not self._changed:
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        self._changed = False

    def read_now(self) -> None:
        """Read what the pipes hold now, though more may come. Limited, because a writer may never stop."""
        for stream in list(self._streams.values()):
            for _ in range(2 * _WIDE_PIPE // _CHUNK):
                try:
                    data = os.read(stream.fd, _CHUNK) if stream.open else b""
                except OSError:
                    break
                if not data:
                    break
                stream.feed(data)

    def wake(self) -> None:
        """Make `changed` return."""
        self._wake()

    def _wake(self) -> None:
        self._changed = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def finish(self) -> Status:
        """Kill what still runs, read the remaining output, close everything. Blocks for the moment that the kernel
        needs."""
        if self._process is None:
            return self.status
        if self._outer >= 0:
            self._end("it was stopped")
            if _wait(self._outer, GONE_WITHIN):
                self._on_exit()
            else:
                self._loop.remove_reader(self._outer)
                os.close(self._outer)
                self._outer = -1
                self.status.gone = False
        if self._inner >= 0:
            _signal(self._inner)
            self.status.gone = _wait(self._inner, GONE_WITHIN) and self.status.gone
            os.close(self._inner)
            self._inner = -1
        for stream in self._streams.values():
            if stream.open:
                self._drain(stream)
        if self._go >= 0:
            os.close(self._go)
            self._go = -1
        return self.status

    def _drain(self, stream: _Stream) -> None:
        """Read the rest of a pipe without a writer. Limited, in case something still writes."""
        for _ in range(2 * _WIDE_PIPE // _CHUNK + 2):
            try:
                data = os.read(stream.fd, _CHUNK)
            except OSError:
                break
            if not data:
                break
            stream.feed(data)
        self._close_stream(stream)

    def _close_stream(self, stream: _Stream) -> None:
        if stream.open:
            stream.open = False
            self._loop.remove_reader(stream.fd)
            os.close(stream.fd)


def sandbox_error(doing: str, error: OSError) -> SandboxError:
    """An error from an OSError: what failed, why, and what helps where that is known."""
    return SandboxError(f"{doing}: {no_room_text(error) or error.strerror or error}")


def no_room_text(error: OSError) -> str | None:
    """Why this process can open nothing more, and what to do; None for any other error."""
    if error.errno == errno.EMFILE:
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return f"this process has all of its {most} files open; end other sessions, or raise the limit (ulimit -n)"
    if error.errno == errno.ENFILE:
        return "this machine has no room for more open files; end other programs, or raise fs.file-max"
    return None


def memory_file(data: bytes) -> int:
    """A memory file's descriptor to read the data from its beginning. Raises OSError and leaves none open."""
    fd = os.memfd_create("cantrip", os.MFD_CLOEXEC)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.lseek(fd, 0, os.SEEK_SET)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _signal(pidfd: int) -> None:
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    except ProcessLookupError:
        return


def _raise_priority(pid: int, pidfd: int) -> None:
    """Raise a killed first process's priority so that it ends before the others run on.

    A killed process must still be scheduled in order to end. Among the thousands of a fork bomb it would wait while
    they multiply. Only root may do this, and only root needs it.
    """
    if pid <= 0 or _wait(pidfd, 0):
        return
    try:
        os.sched_setscheduler(pid, os.SCHED_RR, os.sched_param(1))
    except OSError:
        return


def _wait(pidfd: int, seconds: float) -> bool:
    """Whether the process of a pidfd ends within that time."""
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(seconds * 1000))


def _parent(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            return int(file.read(1024).rpartition(b")")[2].split()[1])
    except (OSError, IndexError, ValueError):
        return 0


def _enlarge_pipe(fd: int) -> None:
    """Enlarge the pipe of a stream that fills it. A user's quota may refuse; then it stays as it is."""
    try:
        if fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ) < _WIDE_PIPE:
            fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, _WIDE_PIPE)
    except OSError:
        return


_library: ContextVar[str | None] | None = None
try:
    # Not our dependency: other packages install it.
    _library = importlib.import_module("sniffio").current_async_library_cvar
except (ImportError, AttributeError):
    pass


def start_soon(group: TaskGroup, work: Callable[..., Coroutine[Any, Any, object]], *args: object) -> None:
    """Start a task in a group from a callback.

    Where sniffio is installed, anyio asks it which async library runs. In a callback sniffio knows this only if it
    was set: `anyio.run` sets it, `asyncio.run` does not.
    """
    if _library is None:
        group.start_soon(work, *args)
        return
    before = _library.set("asyncio")
    try:
        group.start_soon(work, *args)
    finally:
        _library.reset(before)
