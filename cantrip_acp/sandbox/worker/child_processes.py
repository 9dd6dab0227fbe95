"""Child processes of a worker: finds and kills the processes that a worker started and left running.

On Linux every process of a sandbox descends from its first process. If the first process has only the worker as child, and the
worker has no child, there is no other process. Three short reads show this. Otherwise the whole process namespace is
searched. The worker itself is not killed.
"""

from __future__ import annotations

import os
import signal

from cantrip_acp.sandbox.launch.macos_processes import GroupTree, kill_all
from cantrip_acp.sandbox.launch.process_tree import signal_others
from cantrip_acp.types.errors import SandboxError

_STOPPED = b"TtZX"


class WorkerProcesses:
    """The processes of a worker's sandbox. ``first`` and ``worker`` are process IDs as the host counts.

    Create it before the worker runs any code of the entity, because it opens files of these processes.
    """

    KILL_WITHIN = 0.25
    """Seconds after which the worker is killed if its child processes cannot be killed."""

    def __init__(self, first: int, worker: int) -> None:
        self._first = first
        self._worker = worker
        self._files: list[int] = []
        try:
            for path in (
                f"/proc/{worker}/stat",
                f"/proc/{worker}/task/{worker}/children",
                f"/proc/{first}/task/{first}/children",
            ):
                self._files.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        except OSError:
            self.close()
            raise

    @property
    def is_quiet(self) -> bool:
        """Whether the worker is stopped, has one thread and no child, and there is no other process. False: maybe."""
        stat, own, all_ = self._files
        try:
            fields = os.pread(stat, 1024, 0).rpartition(b")")[2].split()
            if fields[0] not in (b"T", b"t") or fields[17] != b"1":
                return False
            return not os.pread(own, 64, 0) and os.pread(all_, 64, 0).split() == [b"%d" % self._worker]
        except (OSError, IndexError):
            return False

    def all_stopped(self) -> bool:
        """Whether the worker is stopped and there is no other living process."""
        return self.stopped() and self.has_no_children()

    def stopped(self) -> bool:
        """Whether every thread of the worker is stopped or has ended."""
        try:
            return all(
                _state(self._worker, int(thread)) in _STOPPED for thread in os.listdir(f"/proc/{self._worker}/task")
            )
        except OSError:
            return True

    def has_no_children(self) -> bool:
        """Whether the worker is the only living process of the sandbox. Only true for sure while the worker is stopped."""
        try:
            below = _children(self._first, self._first)
            for thread in os.listdir(f"/proc/{self._worker}/task"):
                below += _children(self._worker, int(thread))
        except OSError:
            return False
        return all(pid == self._worker or _state(pid, pid) in b"ZX" for pid in below)

    def kill_others(self) -> None:
        """Kill every other process of the sandbox. Call it again for processes that were started in the meantime."""
        signal_others(signal.SIGKILL, self._first, self._worker)

    def close(self) -> None:
        for fd in self._files:
            os.close(fd)
        self._files = []


class GroupProcesses:
    """Like `WorkerProcesses`, on macOS: `ps` shows the processes of the worker's `GroupTree`. ``worker``: its process ID.

    Create it before the worker runs any code of the entity. The processes of that moment stay: the worker itself, and the
    shell that waits for our end. `all_stopped` runs `ps`, and the other methods use its last output.
    """

    KILL_WITHIN = 5.0
    """`ps` takes a fiftieth of a second, and much longer on a busy machine."""

    def __init__(self, tree: GroupTree, worker: int) -> None:
        self._tree = tree
        self._worker = worker
        self._seen = tree.members()
        self._ours = self._seen.keys()

    @property
    def is_quiet(self) -> bool:
        """Return False: there is no quick way to know."""
        return False

    def all_stopped(self) -> bool:
        """Whether the worker is stopped and there is no other living process."""
        try:
            self._seen = self._tree.members()
        except SandboxError:
            self._seen = {}
        return self.stopped() and self._seen.keys() <= self._ours

    def stopped(self) -> bool:
        """Whether the worker is stopped or has ended."""
        row = self._seen.get(self._worker)
        return row.stopped if row is not None else not self._tree.alive

    def kill_others(self) -> None:
        """Kill every other process of the sandbox. Call it again for processes that were started in the meantime."""
        kill_all(self._seen.keys() - self._ours)

    def close(self) -> None:
        """Do nothing: nothing is open."""


def _children(pid: int, thread: int) -> list[int]:
    with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
        return [int(each) for each in file.read().split()]


def _state(pid: int, thread: int) -> bytes:
    """The kernel's state letter of a thread; X if there is no such thread."""
    try:
        with open(f"/proc/{pid}/task/{thread}/stat", "rb", buffering=0) as file:
            return file.read(1024).rpartition(b")")[2].split()[0]
    except (OSError, IndexError):
        return b"X"
