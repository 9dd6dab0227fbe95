"""Control groups (cgroups): limits of the kernel on the processes and the memory of a sandbox.

In a systemd session of a user, cgroups version 2 are delegated to us. They limit both processes and memory. Root may
create groups in the ``pids`` hierarchy of version 1, which limits only processes. Root needs this: its fork bomb is
faster than any watchdog, and the kernel applies no rlimit to the processes of root. If neither exists, the watchdog
in `limits` is used. A group exists as long as one command.
If we move another process into a group, the kernel waits until no processor is in the middle of a fork. That takes 8
to 20 ms on a quiet machine and blocks our event loop. A thread that moves itself does not wait, and version 1 allows
this for a single thread. So our thread enters the group, starts the sandbox, which is then in the group, and leaves
it again. That takes 0.1 ms.

A limit on the processor time needs the ``cpu`` controller: in version 2 in the same group, in version 1 in a hierarchy of
its own, so that the command then has a second group.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cantrip_acp.sandbox.policy.policy import Limits

_NEEDED = frozenset({"memory", "pids"})
_FILES = ("cgroup.procs", "cgroup.subtree_control")


def find_parent(mounts: str = "/proc/self/mountinfo", own: str = "/proc/self/cgroup") -> str | None:
    """The folder in which we may create groups, or None. Version 2, which also limits memory, is preferred."""
    return _delegated(mounts, own) or _version_one(mounts, own)


def limits_memory(parent: str | None) -> bool:
    """Whether groups in this folder also limit memory."""
    return parent is not None and not _is_version_one(parent)


def cpu_parent(mounts: str = "/proc/self/mountinfo", own: str = "/proc/self/cgroup") -> str | None:
    """The folder of version 1 in which we may create groups that limit processor time, or None."""
    return _version_one(mounts, own, "cpu")


def _version_one(mounts: str, own: str, controller: str = "pids") -> str | None:
    places = (line.split(":", 2) for line in _read(own).splitlines())
    place = next((f[2] for f in places if len(f) == 3 and controller in f[1].split(",")), None)
    for line in _read(mounts).splitlines():
        before, _, after = line.partition(" - ")
        fields, options = before.split(), after.split(" ", 2)
        if place is None or options[0] != "cgroup" or len(fields) < 5 or controller not in options[-1].split(","):
            continue
        if fields[3] != "/" or ".." in place.split("/"):
            continue
        folder = os.path.normpath(f"{fields[4]}/{place}")
        if _is_version_one(folder) and os.access(folder, os.W_OK):
            return folder
    return None


def _is_version_one(folder: str) -> bool:
    return os.path.exists(os.path.join(folder, "tasks"))


def _delegated(mounts: str, own: str) -> str | None:
    """The nearest folder above our own group that is delegated to us with both controllers (memory and pids)."""
    mount = _mount_point(mounts)
    place = _own_place(own)
    if mount is None or place is None or ".." in place.split("/"):
        return None
    # Our own group contains processes, for example us. The kernel lets such a group set no limits for groups below it.
    parts = [p for p in place.split("/") if p][:-1]
    while True:
        folder = "/".join([mount, *parts])
        if _usable(folder):
            return folder
        if not parts:
            return None
        parts.pop()


def _usable(folder: str) -> bool:
    if not os.access(folder, os.W_OK) or not all(os.access(os.path.join(folder, f), os.W_OK) for f in _FILES):
        return False
    return set(_read(os.path.join(folder, "cgroup.subtree_control")).split()) >= _NEEDED


def _mount_point(mounts: str) -> str | None:
    for line in _read(mounts).splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split()
        if after.startswith("cgroup2 ") and len(fields) > 4 and fields[3] == "/":
            return fields[4]
    return None


def _own_place(own: str) -> str | None:
    for line in _read(own).splitlines():
        if line.startswith("0::"):
            return line.removeprefix("0::")
    return None


def make(parent: str, name: str, limits: Limits) -> ControlGroup | None:
    """Create a group for a sandbox that is about to start. None if the kernel refuses."""
    try:
        return ControlGroup(
            parent, name, memory=limits.memory, processes=limits.processes, cpu_percent=limits.cpu_percent
        )
    except OSError:
        return None


class ControlGroup:
    """The group of one command. A sandbox starts inside it if possible (`enter`), else it is moved there (`add_process`)."""

    def __init__(self, parent: str, name: str, *, memory: int, processes: int, cpu_percent: int | None = None) -> None:
        """Create the group. ``memory`` is in bytes; ``processes`` is the limit for the command without bubblewrap.

        ``cpu_percent`` is per cent of one processor. It is enforced if that controller is delegated too.

        Raises OSError if the kernel refuses one of the limits. Then no group is left.
        """
        self.folder = os.path.join(parent, name)
        self._folders = [self.folder]
        self._by_thread = _is_version_one(parent)
        self._joined = False
        os.mkdir(self.folder)
        try:
            # If a sandbox starts inside its group, the outer and the inner process of bubblewrap are in the group too.
            _write(f"{self.folder}/pids.max", b"%d" % (processes + (2 if self._by_thread else 1)))
            if self._by_thread:
                if cpu_percent is not None and (hierarchy := cpu_parent()) is not None:
                    self._limit_cpu(os.path.join(hierarchy, name), cpu_percent)
                return
            _write(f"{self.folder}/memory.max", b"%d" % memory)
            _write(f"{self.folder}/memory.oom.group", b"1")
            if os.path.exists(f"{self.folder}/memory.swap.max"):
                _write(f"{self.folder}/memory.swap.max", b"0")
            if cpu_percent is not None and os.path.exists(f"{self.folder}/cpu.max"):
                _write(f"{self.folder}/cpu.max", b"%d 100000" % (cpu_percent * 1000))
        except OSError:
            self.remove()
            raise

    def _limit_cpu(self, folder: str, percent: int) -> None:
        """Version 1: also make a group that limits processor time, unless the kernel refuses. It may be the same folder."""
        if folder != self.folder:
            try:
                os.mkdir(folder)
            except OSError:
                return
            self._folders.append(folder)
        with suppress(OSError):
            _write(f"{folder}/cpu.cfs_period_us", b"100000")
            _write(f"{folder}/cpu.cfs_quota_us", b"%d" % (percent * 1000))

    @contextmanager
    def enter(self) -> Iterator[None]:
        """Move this thread into the group, so that processes that it starts are in the group, and back at the end.

        Does nothing if the kernel cannot move single threads (version 2). Raises OSError if the thread cannot leave.
        """
        if not self._by_thread:
            yield
            return
        with ExitStack() as leaving:
            joined = True
            for folder in self._folders:
                # Open the parent's file first. A thread that cannot open it later would stay in the group.
                back = os.open(f"{os.path.dirname(folder)}/tasks", os.O_WRONLY | os.O_CLOEXEC)
                leaving.callback(os.close, back)
                try:
                    _write(f"{folder}/tasks", b"0")
                except OSError:
                    # The kernel refuses although the folder is writable.
                    joined = False
                    continue
                leaving.callback(os.write, back, b"0")
            yield
            self._joined = joined

    def add_process(self, pid: int) -> ControlGroup | None:
        """Move a sandbox's first process into the group if it is not there yet, and return the group.

        All processes that it starts later are in the group too. If the kernel refuses, removes the group and returns
        None.
        """
        if not self._joined:
            try:
                for folder in self._folders:
                    _write(f"{folder}/cgroup.procs", b"%d" % pid)
            except OSError:
                self.remove()
                return None
            self._joined = True
        return self

    def exceeded(self) -> bool:
        """Whether the kernel killed a process of the command because of the memory limit."""
        if self._by_thread:
            return False
        events = dict(line.split() for line in _read(os.path.join(self.folder, "memory.events")).splitlines())
        return int(events.get("oom_kill", "0")) > 0

    def remove(self) -> None:
        """Remove the group. Safe to call twice.

        All processes have ended, but the kernel may need some milliseconds until the group is empty.
        """
        for folder in self._folders:
            for _ in range(20):
                try:
                    os.rmdir(folder)
                    break
                except FileNotFoundError:
                    break
                except OSError:
                    time.sleep(0.001)


def _write(path: str, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError:
        return ""
