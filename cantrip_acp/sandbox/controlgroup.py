"""Control groups, where we may make them: the kernel itself then bounds processes, and memory where it can.

Version 2 is delegated to us in a user's systemd session, and bounds both. Root may make groups in version 1's hierarchy of
``pids``, which bounds processes: a fork bomb of root's outruns any watchdog, and no rlimit binds root. Where there is
neither, the watchdog of `limits` serves. One group lives as long as one command.
"""

from __future__ import annotations

import os
import time

_NEEDED = frozenset({"memory", "pids"})
_FILES = ("cgroup.procs", "cgroup.subtree_control")


def find_parent(mounts: str = "/proc/self/mountinfo", own: str = "/proc/self/cgroup") -> str | None:
    """The folder in which we may make groups with a process limit: version 2's, with a memory limit too, before version 1's."""
    return _delegated(mounts, own) or _version_one(mounts, own)


def bounds_memory(parent: str | None) -> bool:
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
    # Our own group has processes (us), and such a group can give no limits to groups below it.
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


def confine(parent: str | None, name: str, pid: int, *, memory: int, processes: int) -> ControlGroup | None:
    """Put a sandbox's first process into a group of its own; None where groups are not delegated to us after all."""
    if parent is None:
        return None
    group: ControlGroup | None = None
    try:
        group = ControlGroup(parent, name, memory=memory, processes=processes)
        group.place(pid)
    except OSError:
        if group is not None:
            group.remove()
        return None
    return group


class ControlGroup:
    """One command's group."""

    def __init__(self, parent: str, name: str, *, memory: int, processes: int) -> None:
        """Raises OSError where the kernel refuses one of the limits; then there is no group."""
        self.folder = os.path.join(parent, name)
        os.mkdir(self.folder)
        try:
            self._write("pids.max", str(processes))
            if not bounds_memory(parent):
                return
            self._write("memory.max", str(memory))
            self._write("memory.oom.group", "1")
            if os.path.exists(os.path.join(self.folder, "memory.swap.max")):
                self._write("memory.swap.max", "0")
        except OSError:
            self.remove()
            raise

    def _write(self, name: str, text: str) -> None:
        with open(os.path.join(self.folder, name), "w", encoding="ascii") as file:
            file.write(text)

    def place(self, pid: int) -> None:
        """Put a process there; what it starts from now on is there too."""
        self._write("cgroup.procs", str(pid))

    def exceeded(self) -> bool:
        """Whether the kernel ended the command for its memory."""
        events = dict(line.split() for line in _read(os.path.join(self.folder, "memory.events")).splitlines())
        return int(events.get("oom_kill", "0")) > 0

    def remove(self) -> None:
        """Safe to call twice. The processes are gone; the kernel may need an instant to notice."""
        for _ in range(20):
            try:
                os.rmdir(self.folder)
                return
            except FileNotFoundError:
                return
            except OSError:
                time.sleep(0.001)


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError:
        return ""
