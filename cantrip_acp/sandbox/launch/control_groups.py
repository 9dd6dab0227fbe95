"""Control groups: kernel limits on processes, and on memory where possible, where we may create groups.

In a user's systemd session version 2 is delegated to us; it limits both. Root may create groups in version 1's
``pids`` hierarchy, which limits processes: a fork bomb of root is faster than any watchdog, and no rlimit binds root.
Where neither exists, the watchdog of `limits` is used. A group exists as long as one command.
Moving another process into a group makes the kernel wait until no processor is in the middle of a fork. That takes 8
to 20 ms on a quiet machine and blocks our event loop. A thread that moves itself does not wait, and version 1 allows
this for a single thread. So our thread enters the group, starts the sandbox (which is then in the group) and leaves
again, in 0.1 ms.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

_NEEDED = frozenset({"memory", "pids"})
_FILES = ("cgroup.procs", "cgroup.subtree_control")


def find_parent(mounts: str = "/proc/self/mountinfo", own: str = "/proc/self/cgroup") -> str | None:
    """The folder in which we may make groups with a process limit: version 2 (also a memory limit) before version 1."""
    return _delegated(mounts, own) or _version_one(mounts, own)


def limits_memory(parent: str | None) -> bool:
    """Whether groups made there have a memory limit too."""
    return parent is not None and not _is_version_one(parent)


def _version_one(mounts: str, own: str) -> str | None:
    place = next((f[2] for f in (line.split(":", 2) for line in _read(own).splitlines()) if f[1:2] == ["pids"]), None)
    for line in _read(mounts).splitlines():
        before, _, after = line.partition(" - ")
        fields, options = before.split(), after.split(" ", 2)
        if place is None or options[0] != "cgroup" or len(fields) < 5 or "pids" not in options[-1].split(","):
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
    """The nearest folder above our own group that was delegated to us with both controllers."""
    mount = _mount_point(mounts)
    place = _own_place(own)
    if mount is None or place is None or ".." in place.split("/"):
        return None
    # Our own group contains processes (us), and such a group cannot limit groups below it.
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


def make(parent: str, name: str, *, memory: int, processes: int) -> ControlGroup | None:
    """A group for a sandbox that is about to start; None where groups are not delegated to us after all."""
    try:
        return ControlGroup(parent, name, memory=memory, processes=processes)
    except OSError:
        return None


class ControlGroup:
    """One command's group. A sandbox starts inside it (`enter`) where possible, else it is moved there (`add_process`)."""

    def __init__(self, parent: str, name: str, *, memory: int, processes: int) -> None:
        """Make the group, with ``memory`` in bytes and ``processes`` for the command (bubblewrap's own are added).

        Raises OSError where the kernel refuses one of the limits; then there is no group.
        """
        self.folder = os.path.join(parent, name)
        self._parent = parent
        self._by_thread = _is_version_one(parent)
        self._joined = False
        os.mkdir(self.folder)
        try:
            # A sandbox that starts inside its group has bubblewrap's outer and inner process there.
            _write(f"{self.folder}/pids.max", b"%d" % (processes + (2 if self._by_thread else 1)))
            if self._by_thread:
                return
            _write(f"{self.folder}/memory.max", b"%d" % memory)
            _write(f"{self.folder}/memory.oom.group", b"1")
            if os.path.exists(f"{self.folder}/memory.swap.max"):
                _write(f"{self.folder}/memory.swap.max", b"0")
        except OSError:
            self.remove()
            raise

    @contextmanager
    def enter(self) -> Iterator[None]:
        """Processes that this thread starts in the meantime start in the group, where the kernel can move single
        threads.

        Raises OSError where the thread cannot leave the group.
        """
        if not self._by_thread:
            yield
            return
        # Open the way back first: a thread that cannot open it later would stay in the group.
        back = os.open(f"{self._parent}/tasks", os.O_WRONLY | os.O_CLOEXEC)
        try:
            try:
                _write(f"{self.folder}/tasks", b"0")
            except OSError:
                # Not delegated to us after all.
                yield
                return
            try:
                yield
            finally:
                os.write(back, b"0")
            self._joined = True
        finally:
            os.close(back)

    def add_process(self, pid: int) -> ControlGroup | None:
        """This group, containing a sandbox's first process and all that it starts from now on.

        Moves the process there if needed. Returns None, and removes the group, where the kernel refuses.
        """
        if not self._joined:
            try:
                _write(f"{self.folder}/cgroup.procs", b"%d" % pid)
            except OSError:
                self.remove()
                return None
            self._joined = True
        return self

    def exceeded(self) -> bool:
        """Whether the kernel killed a process of the command for its memory."""
        if self._by_thread:
            return False
        events = dict(line.split() for line in _read(os.path.join(self.folder, "memory.events")).splitlines())
        return int(events.get("oom_kill", "0")) > 0

    def remove(self) -> None:
        """Remove the group; safe to call twice. The processes are gone, but the kernel may need a moment to notice."""
        for _ in range(20):
            try:
                os.rmdir(self.folder)
                return
            except FileNotFoundError:
                return
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
