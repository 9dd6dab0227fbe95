"""Process tree of one sandbox: starts it, reads its output, and kills all of its processes at the end.

The outer process of bubblewrap starts the first process of a new process namespace, reports its ID and waits for us.
So we open a pidfd of the first process and set its limits before the command runs. If the first process is killed, the
kernel kills every other process in the namespace at once: orphans, other sessions, stopped processes. Its pidfd tells
us when they have ended.
Everything happens in the thread of the event loop, without polling and without a child watcher. bubblewrap is started there
or in the supervisor's thread, which lives as long as this process: the option ``--die-with-parent`` refers to that thread.
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
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from anyio.abc import TaskGroup

from cantrip_acp.files.descriptors import is_ready
from cantrip_acp.sandbox.launch import causes
from cantrip_acp.sandbox.launch.shared_network import SharedNetwork
from cantrip_acp.sandbox.launch.unix_sockets import SandboxSockets, Supervisor
from cantrip_acp.types.errors import SandboxError

_CHUNK = 65_536
_WIDE_PIPE = 1024 * 1024
_REPORT = 65_536
OUT_OF_RESOURCES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Errors that mean that this process can open no more files. Then it cannot find protected files, and nothing may run."""
GONE_WITHIN = 1.0
"""Seconds in which all processes must end after a kill. It usually takes about one millisecond."""


@dataclass(slots=True, kw_only=True)
class Launch:
    """The program to start, with its arguments and the descriptors that its options name.

    ``inherited`` and ``stdin`` (-1: none) are closed here when the program has them. ``folder``: the working folder.
    ``within``: a context manager in which the program is started. ``environment``: its environment (not for bubblewrap,
    which has its own in its options). ``supervisor``: answers calls of the programs inside. ``network``: the program is started
    in this network.
    """

    program: str
    argv: Sequence[str]
    inherited: Sequence[int] = ()
    folder: str = "/"
    within: Callable[[], AbstractContextManager[None]] = nullcontext
    stdin: int = -1
    environment: Mapping[str, str] = field(default_factory=dict)
    supervisor: Supervisor | None = None
    network: SharedNetwork | None = None


@dataclass(slots=True)
class Status:
    """How a tree ended.

    ``exit_code``: that of the command. It is None if the command never ran (then bubblewrap's stderr says why), or if
    it was killed for the reason ``ended_because``. ``started``: whether the command ran. ``gone``: no process is left.
    """

    exit_code: int | None = None
    ended_because: str | None = None
    started: bool = False
    gone: bool = True

    def describe(self, otherwise: str | None) -> str:
        """Describe for an entity how the tree ended. ``otherwise``: the text if that is not known."""
        if not self.gone:
            return "not all of its processes could be ended"
        if self.ended_because is not None:
            return self.ended_because
        if self.exit_code is None:
            return otherwise or "it was ended"
        if self.exit_code > 128:
            try:
                return f"it was ended by {signal.Signals(self.exit_code - 128).name}"
            except ValueError:
                return f"exit status {self.exit_code}"
        return f"it left with exit status {self.exit_code}"


@dataclass(slots=True)
class _Stream:
    fd: int
    feed: Callable[[bytes], None]
    open: bool = True
    reading: bool = False


@dataclass(slots=True)
class Hooks:
    """Callbacks of a tree.

    ``output``: called with 1 (stdout) or 2 (stderr), and bytes. ``prepared``: called with the ID of the first process
    before the command runs. ``hold``: the command then waits until `Tree.release` is called.
    """

    output: Callable[[int, bytes], None]
    prepared: Callable[[int], None] = field(default=lambda pid: None)
    hold: bool = False


class Tree:
    """The process tree of one sandbox. Create it, `start` it, wait for `changed`, and always `finish` it."""

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
        self._sockets: SandboxSockets | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._changed = False
        self.pid = 0
        self.status = Status()

    @property
    def group(self) -> int:
        return self._process.pid if self._process is not None else 0

    @property
    def running(self) -> bool:
        """False if the command has ended and all of its output was read."""
        return self._outer >= 0 or any(s.open for s in self._streams.values())

    @property
    def exited(self) -> bool:
        return self._process is not None and self._outer < 0

    @property
    def alive(self) -> bool:
        """Whether the first process runs now. If so, its process ID was not reused, and earlier measurements are valid."""
        return self._inner >= 0 and not is_ready(self._inner, 0)

    def start(self) -> None:
        """Start the program. Returns when the program runs.

        Raises `SandboxError` if it cannot be started. Then no process runs, and all descriptors are closed, also those
        of the `Launch`.
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
                self._outer = self._watch(self._process.pid)
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    raise
                raise causes.explain(f"pidfd_open: {error.strerror}").error() from error
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
            if isinstance(error, subprocess.SubprocessError):
                raise SandboxError("the network that the services shared is gone; run it again") from error
            raise
        out, err, status, self._go = ours
        self._add(out, lambda data: self._hooks.output(1, data))
        self._add(err, lambda data: self._hooks.output(2, data))
        self._add(status, self._on_status)

    def _watch(self, pid: int) -> int:
        """A descriptor that is readable when the process has ended."""
        return os.pidfd_open(pid)

    def _spawn(self, theirs: list[int], go: int) -> subprocess.Popen[bytes]:
        """Start the program with its ends of the four pipes: stdout, stderr, status report, barrier."""
        out, err, status, barrier = theirs
        argv = [*self._launch.argv]
        at = argv.index("--args")
        # bubblewrap also gets the writing end of the barrier (--sync-fd; the command does not). If we are killed now,
        # the pipe then stays open, and the command does not start.
        argv[at:at] = ["--json-status-fd", str(status), "--block-fd", str(barrier), "--sync-fd", str(go)]

        shared = self._launch.network

        def start() -> subprocess.Popen[bytes]:
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
                    preexec_fn=shared.enter if shared is not None else None,
                )
            return self._process

        return start() if self._launch.supervisor is None else self._launch.supervisor.start(start)

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
                self._end("the output of the command cannot be read")
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
        """Open a pidfd of the first process, set its limits, and release it. It waits for us."""
        try:
            self._inner = os.pidfd_open(pid)
            if _parent(pid) != self.group:
                # The process has ended and its ID is reused. The exit of bubblewrap will tell why.
                os.close(self._inner)
                self._inner = -1
                return
        except ProcessLookupError:
            return
        except OSError as error:
            self._end(f"the first process of the sandbox cannot be watched ({no_room_text(error) or error.strerror})")
            return
        self.pid = pid
        if self.status.ended_because is not None:
            self._kill()
            return
        try:
            if self._launch.network is not None:
                self._launch.network.check(pid)
            if self._launch.supervisor is not None:
                self._sockets = self._launch.supervisor.add(pid)
            self._hooks.prepared(pid)
        except FileNotFoundError:
            # It has ended. The exit of bubblewrap will tell why.
            return
        except OSError as error:
            self._end(f"the limits of the sandbox cannot be set ({no_room_text(error) or error.strerror})")
            return
        if not self._hooks.hold:
            self.release()

    def release(self) -> None:
        """Let the command run."""
        if self._go < 0 or self.status.ended_because is not None:
            return
        self.status.started = True
        # If bubblewrap has ended, its exit is reported instead.
        with contextlib.suppress(BrokenPipeError):
            os.write(self._go, b"1")
        os.close(self._go)
        self._go = -1

    def _on_exit(self) -> None:
        assert self._process is not None
        self._loop.remove_reader(self._outer)
        # The ID of the process group cannot be reused until we have waited for its leader.
        self._kill()
        self._process.wait()
        os.close(self._outer)
        self._outer = -1
        # Usually no writer is left, and the pipes contain all the remaining output. So read it now.
        for stream in list(self._streams.values()):
            if stream.open and stream.reading:
                self._on_readable(stream.fd)
        self._wake()

    # Called by the runner of a command.

    def pause(self, paused: bool) -> None:
        """Stop reading output, so that the command waits, or continue to read."""
        for stream in self._streams.values():
            if stream.open and stream.reading == paused:
                stream.reading = not paused
                if paused:
                    self._loop.remove_reader(stream.fd)
                else:
                    self._loop.add_reader(stream.fd, self._on_readable, stream.fd)

    def end(self, because: str) -> None:
        """Kill the whole tree now. Only the first reason is stored in the status."""
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
            # Also kill the process group of bubblewrap, for the time before we know the first process.
            try:
                os.killpg(self.group, signal.SIGKILL)
            except ProcessLookupError:
                return

    def terminate(self) -> None:
        """Ask all processes of the tree to end (SIGTERM). They may refuse."""
        if self._inner >= 0:
            signal_others(signal.SIGTERM, self.pid)

    async def changed(self) -> None:
        """Wait until there is new output, or the tree has ended or was killed."""
        if not self._changed:
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        self._changed = False

    def read_now(self) -> None:
        """Read the output that waits in the pipes now. The amount is limited, because a writer may never stop."""
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
        """Make a waiting `changed` return."""
        self._wake()

    def _wake(self) -> None:
        self._changed = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def finish(self) -> Status:
        """Kill processes that still run, read the remaining output, close all descriptors.

        Blocks until the processes have ended, at most `GONE_WITHIN` seconds for each pidfd.
        """
        if self._process is None:
            return self.status
        self._end_processes()
        for stream in self._streams.values():
            if stream.open:
                self._drain(stream)
        if self._go >= 0:
            os.close(self._go)
            self._go = -1
        if self._sockets is not None:
            self._sockets.close()
            self._sockets = None
        return self.status

    def _end_processes(self) -> None:
        if self._outer >= 0:
            self._end("it was stopped")
            if is_ready(self._outer, GONE_WITHIN):
                self._on_exit()
                if self._inner < 0:
                    self.status.gone = self._wait_for_end_of_output()
            else:
                self._loop.remove_reader(self._outer)
                os.close(self._outer)
                self._outer = -1
                self.status.gone = False
        if self._inner >= 0:
            _signal(self._inner)
            self.status.gone = is_ready(self._inner, GONE_WITHIN) and self.status.gone
            os.close(self._inner)
            self._inner = -1

    def _wait_for_end_of_output(self) -> bool:
        """Whether no process has the output pipe open within `GONE_WITHIN` seconds. All of a tree's processes have it.

        This is for a first process that we never knew. It was killed with its group, but may end later than bubblewrap.
        """
        fds = [stream.fd for stream in self._streams.values() if stream.open]
        return not fds or is_ready(fds[0], GONE_WITHIN, select.POLLHUP)

    def _drain(self, stream: _Stream) -> None:
        """Read the rest of a pipe. The amount is limited, in case a process still writes."""
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
    """Make a `SandboxError` from an OSError. ``doing`` says what failed."""
    return SandboxError(f"{doing}: {no_room_text(error) or error.strerror or error}")


def no_room_text(error: OSError) -> str | None:
    """Why this process can open no more files, and what to do; None for any other error."""
    if error.errno == errno.EMFILE:
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return f"this process has all of its {most} files open; end other sessions, or raise the limit (ulimit -n)"
    if error.errno == errno.ENFILE:
        return "this machine has no room for more open files; end other programs, or raise fs.file-max"
    return None


def memory_file(data: bytes) -> int:
    """Write the data to a file in memory (memfd) and return its descriptor, at the beginning. Raises OSError."""
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


def signal_others(number: signal.Signals, first: int, *spared: int) -> None:
    """Send a signal to every process of a sandbox except its ``first`` and those that are ``spared``."""
    try:
        namespace = os.readlink(f"/proc/{first}/ns/pid")
        if namespace == os.readlink("/proc/self/ns/pid"):
            # Then these would be all processes of the machine.
            return
    except OSError:
        return
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) in (first, *spared):
            continue
        try:
            held = os.pidfd_open(int(name))
        except OSError:
            continue
        try:
            # Check this after the pidfd was opened. So the process ID cannot have been reused.
            if os.readlink(f"/proc/{name}/ns/pid") == namespace:
                signal.pidfd_send_signal(held, number)
        except OSError:
            continue
        finally:
            os.close(held)


def _signal(pidfd: int) -> None:
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    except ProcessLookupError:
        return


def _raise_priority(pid: int, pidfd: int) -> None:
    """Raise the priority of a first process that will be killed, so that it ends before other processes run.

    The kernel must still schedule a killed process so that it can end. Among the thousands of processes of a fork
    bomb it would wait while they multiply. Only root may do this, and only root needs it.
    """
    if pid <= 0 or is_ready(pidfd, 0):
        return
    try:
        os.sched_setscheduler(pid, os.SCHED_RR, os.sched_param(1))
    except OSError:
        return


def _parent(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            return int(file.read(1024).rpartition(b")")[2].split()[1])
    except (OSError, IndexError, ValueError):
        return 0


def _enlarge_pipe(fd: int) -> None:
    """Enlarge a pipe that is full. If the user's quota of pipe memory is used up, nothing changes."""
    if not hasattr(fcntl, "F_SETPIPE_SZ"):
        return
    try:
        if fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ) < _WIDE_PIPE:
            fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, _WIDE_PIPE)
    except OSError:
        return


_library: ContextVar[str | None] | None = None
try:
    # We do not depend on sniffio, but other packages may install it.
    _library = importlib.import_module("sniffio").current_async_library_cvar
except (ImportError, AttributeError):
    pass


def start_soon(group: TaskGroup, work: Callable[..., Coroutine[Any, Any, object]], *args: object) -> None:
    """Start a task in a group from a callback.

    If sniffio is installed, anyio asks it which async library runs. In a callback, sniffio knows this only if it was
    set before. `anyio.run` sets it, but `asyncio.run` does not.
    """
    if _library is None:
        group.start_soon(work, *args)
        return
    before = _library.set("asyncio")
    try:
        group.start_soon(work, *args)
    finally:
        _library.reset(before)
