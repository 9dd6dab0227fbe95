"""Processes of one command on macOS, where there are no process namespaces: a group, and a search for those that left it.

A small shell script (`LAUNCHER`) is the leader of a new session. It sets the limits and becomes sandbox-exec, and then the
command. A second process of the script waits on a pipe whose other end only we hold: when we are killed, it kills the group.
At the end the whole group is killed. A process can leave its group, but not its sandbox and hardly its environment. So `ps`
then lists what still belongs to the command, until there is nothing. The self-test tries this before any command runs.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable

from cantrip_acp.sandbox.launch.limits import Use, Watchdog, niceness, usual_open_files
from cantrip_acp.sandbox.launch.process_tree import GONE_WITHIN, Hooks, Launch, Tree
from cantrip_acp.sandbox.policy.policy import MIB, Limits
from cantrip_acp.types.errors import SandboxError

TOKEN = "CANTRIP_SANDBOX"
"""The environment variable by which `ps` shows that a process belongs to a command."""

SHELL = "/bin/bash"
"""The shell of the scripts below. It is part of macOS, and knows descriptors of more than one digit."""

LAUNCHER = r"""
life=$1 others=$2
ulimit -c 0
ulimit -t "$3" 2>/dev/null
ulimit -f "$4" 2>/dev/null
ulimit -n "$5" 2>/dev/null
shift 5
{ for other in $others; do eval "exec $other>&-"; done; read -r line; kill -9 0; } <&"$life" >/dev/null 2>&1 &
eval "exec $life<&-"
exec "$@"
"""
"""Arguments: the descriptor of a pipe (our life), the other descriptors that the command gets (its report that it starts
is the first), the processor time in seconds, the file size in KiB, the number of open files, and the program.
"""

REPORT = 'echo started >&"$1"; eval "exec $1>&-"; shift; exec "$@"'
"""The script that runs first in the sandbox, so that we know that sandbox-exec has made it. Its first argument is the
descriptor of the report.
"""

REPORT_DESCRIPTOR = "REPORT"
"""The word in the arguments of a `Launch` in whose place that descriptor comes."""


def launcher_limits(limits: Limits, cores: int) -> list[str]:
    """The limits of a command as arguments of `LAUNCHER`."""
    seconds = max(1, -(-limits.timeout_ms * cores // 1000)) + 1
    return [str(seconds), str(limits.file // 1024), str(usual_open_files(limits))]


class GroupTree(Tree):
    """The processes of one command. ``token``: the value of `TOKEN` in its environment, which nobody else knows."""

    def __init__(self, launch: Launch, hooks: Hooks, token: str) -> None:
        super().__init__(launch, hooks)
        self._token = token

    @property
    def alive(self) -> bool:
        return self._outer >= 0

    def _watch(self, pid: int) -> int:
        """A descriptor that is readable when the process has ended."""
        if sys.platform == "darwin":
            queue = select.kqueue()
            try:
                queue.control([select.kevent(pid, select.KQ_FILTER_PROC, select.KQ_EV_ADD, select.KQ_NOTE_EXIT)], 0)
                return os.dup(queue.fileno())
            finally:
                queue.close()
        return super()._watch(pid)

    def _spawn(self, theirs: list[int], go: int) -> subprocess.Popen[bytes]:
        out, err, status, life = theirs
        words = [str(status) if word == REPORT_DESCRIPTOR else word for word in self._launch.argv]
        others = " ".join(map(str, (status, *self._launch.inherited)))
        argv = [SHELL, "-c", LAUNCHER, SHELL, str(life), others, *words]
        self._process = subprocess.Popen(
            argv,
            stdin=self._launch.stdin if self._launch.stdin >= 0 else subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env={**self._launch.environment, TOKEN: self._token},
            cwd=self._launch.folder,
            pass_fds=(status, life, *self._launch.inherited),
            start_new_session=True,
        )
        self.pid = self._process.pid
        self._hooks.prepared(self.pid)
        return self._process

    def _on_status(self, data: bytes) -> None:
        self.status.started = True

    def release(self) -> None:
        """Do nothing: the command does not wait."""

    def _on_exit(self) -> None:
        super()._on_exit()
        assert self._process is not None
        code = self._process.returncode
        if self.status.started and self.status.ended_because is None:
            self.status.exit_code = code if code >= 0 else 128 - code
        self.status.gone = self._sweep()
        # A process that was not found must not keep the turn open by its output.
        for stream in self._streams.values():
            if stream.open:
                self._drain(stream)
        self._wake()

    def _kill(self) -> None:
        # Afterwards the number of the group may be that of another one.
        if self._process is not None and self._outer >= 0:
            try:
                os.killpg(self._process.pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                # macOS answers EPERM if only processes that have ended are left in the group.
                return

    def _end_processes(self) -> None:
        if self._outer >= 0:
            assert self._process is not None
            self._end("it was stopped")
            try:
                self._process.wait(GONE_WITHIN)
            except subprocess.TimeoutExpired:
                self._loop.remove_reader(self._outer)
                os.close(self._outer)
                self._outer = -1
                self.status.gone = False
                return
            self._on_exit()

    def command_process(self) -> int:
        """The ID of the process of the command itself: the leader of the group has become it."""
        return self.pid

    def terminate(self) -> None:
        """Ask all processes of the tree to end (SIGTERM). They may refuse."""
        with contextlib.suppress(SandboxError):
            for pid in self.members():
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGTERM)

    def members(self) -> dict[int, Row]:
        """The processes of the command by their IDs, also those that left its group. Raises `SandboxError`."""
        rows = processes()
        ours = {pid for pid, row in rows.items() if row.group == self.pid or f"{TOKEN}={self._token}" in row.words}
        ours |= {pid for pid in rows if _has_mark(pid, self._token)}
        grown = True
        while grown:
            more = {pid for pid, row in rows.items() if row.parent in ours} - ours
            ours |= more
            grown = bool(more)
        ours.discard(os.getpid())
        return {pid: rows[pid] for pid in ours}

    def _sweep(self) -> bool:
        """Kill processes that left the group, until none remain. Returns False if some remain after `GONE_WITHIN` seconds."""
        end = time.monotonic() + GONE_WITHIN
        while True:
            try:
                left = self.members()
                if not left:
                    return True
            except SandboxError:
                left = {}
            if time.monotonic() > end:
                return False
            kill_all(left)


class GroupWatchdog(Watchdog):
    """The watchdog of a `GroupTree`: `ps` gives the memory, and the private folders are measured on the disk."""

    def __init__(self, limits: Limits, private: Iterable[str], disks: Iterable[str]) -> None:
        super().__init__(limits, (), count=True, disks=disks)
        self._private = tuple(private)
        self.tree: GroupTree | None = None

    def verdict(self, pid: int, times: int = 1) -> str | None:
        if (full := self.disks.full_message()) is not None:
            return f"too much of a disk: {full}"
        # The system does not count the bytes that a process writes, so the files give an estimate.
        if (over := self.disk_use.end()) is not None:
            return over
        limits = self._limits
        used = sum(_folder_size(folder, limits.temporary) for folder in self._private)
        if used > limits.temporary:
            return f"more than {limits.temporary // MIB} MiB in its private folders"
        try:
            use = self.measure()
        except SandboxError as error:
            return f"what cannot be measured: {error}"
        if use.processes > limits.processes + 2:
            return f"more than {limits.processes} processes at once (sandbox_max_processes)"
        if use.memory > limits.memory * times:
            return f"more than {limits.memory * times // MIB} MiB of memory"
        return None

    def measure(self) -> Use:
        members = self.tree.members() if self.tree is not None else {}
        return Use(len(members), sum(row.memory for row in members.values()))

    def disk_message(self, pid: int) -> str | None:
        over = self.disk_use.end() if pid else None
        return f"The code used {over}" if over is not None else None


def set_priority(pid: int, cpu_percent: int | None) -> None:
    """Lower the priority of a process group for a share of a processor."""
    if cpu_percent is not None and cpu_percent < 100:
        os.setpriority(os.PRIO_PGRP, pid, niceness(cpu_percent))


class Row:
    """A line of `ps`: the parent, the group, the memory in bytes, whether it is stopped (SIGSTOP), and the words:
    arguments, then environment.
    """

    __slots__ = ("group", "memory", "parent", "stopped", "words")

    def __init__(self, parent: str, group: str, memory: str, state: str, words: str) -> None:
        self.parent, self.group, self.memory, self.words = int(parent), int(group), int(memory) * 1024, words
        self.stopped = state.startswith(("T", "t"))


def kill_all(pids: Iterable[int]) -> None:
    """Kill these processes, if they still run. A process that cannot be killed appears in the next `ps`."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


PS = "/bin/ps"


def processes() -> dict[int, Row]:
    """All processes that run on this machine, without those that have ended and wait for their parent.

    Raises `SandboxError` if `ps` does not list them: then nobody knows what a command has left running.
    """
    option = "-axEww" if sys.platform == "darwin" else "axeww"
    try:
        done = subprocess.run(
            [PS, option, "-o", "pid=", "-o", "ppid=", "-o", "pgid=", "-o", "rss=", "-o", "stat=", "-o", "command="],
            capture_output=True, timeout=10, check=False, env={"PATH": "/usr/bin:/bin", "LC_ALL": "C"},
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        raise SandboxError(f"ps cannot list the processes of this machine: {error}") from error
    found = {}
    for line in done.stdout.decode("utf-8", "replace").splitlines():
        fields = line.split(None, 5)
        if len(fields) >= 5 and not fields[4].startswith("Z"):
            found[int(fields[0])] = Row(
                fields[1], fields[2], fields[3], fields[4], fields[5] if len(fields) > 5 else ""
            )
    if os.getpid() not in found:
        raise SandboxError(f"ps did not list the processes of this machine (exit status {done.returncode})")
    return found


MARK = "org.cantrip-acp."
"""The beginning of a service name that a profile allows, so that the system tells which sandbox a process is in."""


def _has_mark(pid: int, token: str) -> bool:
    """Whether a process is in the sandbox with this token. macOS hides the environment of its own programs from `ps`."""
    if sys.platform == "darwin":
        check = ctypes.CDLL(None).sandbox_check
        # The other arguments are variable, and the processors of Macs pass those in another place.
        check.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int]
        global_name, no_report = 2, 0x40000000
        name = ctypes.c_char_p(f"{MARK}{token}".encode())
        return check(pid, None, 0) == 1 and check(pid, b"mach-lookup", global_name | no_report, name) == 0
    return False


def _folder_size(folder: str, enough: int) -> int:
    """Bytes on disk below a folder, with 1 KiB for each entry; stops when it is more than ``enough``."""
    total, pending = 0, [folder]
    while pending and total <= enough:
        try:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    total += entry.stat(follow_symlinks=False).st_blocks * 512 + 1024
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
        except OSError:
            continue
    return total
