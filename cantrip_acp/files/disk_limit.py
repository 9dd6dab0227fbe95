"""Disk limit: how much everything that starts in a block may write to disks together, and what must stay free on them.

A worker puts such a limit around a step of a tuple. It applies to the task that entered the block and to the tasks that it
starts: to commands and code in sandboxes, also those of children, and to gates that write files.

The kernel counts what a process tree writes to disks (/proc/<pid>/io), but the count of a tree ends with its first process.
So what it wrote since the last look is estimated: the space that its writable folders' disks lost meanwhile, but not more
than the size of the files there that changed.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

MIN_FREE = "CANTRIP_MIN_FREE_MB"
"""The environment variable for the MiB that a turn must leave free on a disk. 0 disables the check."""


def least_free(free: int, total: int) -> int:
    """Compute the bytes that a turn must leave free on a disk, from the disk's free and total bytes.

    The default is 1 GB or 5 % of the disk, whichever is less. If less is free already, half of it may be used, so that
    small work can continue. Raises `ValueError` if the setting is not a number.
    """
    said = os.environ.get(MIN_FREE, "").strip()
    if said and not said.isdecimal():
        raise ValueError(f"{MIN_FREE} must be a number of MiB, 0 or more, not {said[:40]!r}")
    least = int(said) * 1024 * 1024 if said else min(1_000_000_000, total // 20)
    return least if free >= least else free // 2


_MB = 1_000_000
_SMALL = _MB
"""Bytes. So much may be written between two looks without a search for the files."""
_FILE_CLOCK = 5 if sys.platform == "linux" else time.CLOCK_REALTIME
"""The clock from which files get their times: CLOCK_REALTIME_COARSE of Linux, some milliseconds behind the other one."""


class DiskLimit:
    """``most`` bytes may be written to disks, all together. Any thread may use the methods."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._written = 0
        self._refused = False
        self._lock = threading.Lock()

    @property
    def written(self) -> int:
        """Bytes that were written until now."""
        return self._written

    def add_written(self, count: int) -> None:
        """Count bytes that were written."""
        with self._lock:
            self._written += count

    def check_write(self, count: int) -> str | None:
        """Why ``count`` bytes must not be written, or None."""
        if self._written + count <= self.most:
            return None
        self._refused = True
        return self._message()

    def exceeded(self) -> str | None:
        """A message if more than the limit was or would have been written; None if not."""
        return self._message() if self._refused or self._written > self.most else None

    def _message(self) -> str:
        return f"more than the {self.most / _MB:g} MB that the step may write to disks (disk_quota_mb)"


class DiskMeter:
    """Counts what one process tree writes, for the limit of the current task. Without a limit it counts nothing."""

    def __init__(self, folders: Iterable[str]) -> None:
        self.limit = current()
        self._folders = tuple(folders) if self.limit is not None else ()
        self._seen = 0
        self._free = self._free_bytes()
        self._looked_at = time.clock_gettime(_FILE_CLOCK)

    def look(self, processes: Callable[[], Iterable[str]]) -> str | None:
        """Count the bytes that these processes (by id) have written since the last look. Returns a message if the limit is
        exceeded."""
        if self.limit is None:
            return None
        now, free = time.clock_gettime(_FILE_CLOCK), self._free_bytes()
        written = sum(map(_written_by, processes()))
        if written > self._seen:
            self.limit.add_written(written - self._seen)
            self._seen = written
        self._looked_at, self._free = now, free
        return self.limit.exceeded()

    def end(self) -> str | None:
        """Count the bytes written since the last look by the sizes of files. Blocks. Returns a message if the limit is
        exceeded.

        This counts for processes that have ended, and on systems that do not count per process (macOS).
        """
        if self.limit is None:
            return None
        now, lost = time.clock_gettime(_FILE_CLOCK), self._free - self._free_bytes()
        if lost > _SMALL:
            self.limit.add_written(min(lost, _changed_bytes(self._folders, self._looked_at, lost)))
        self._looked_at, self._free = now, self._free_bytes()
        return self.limit.exceeded()

    def _free_bytes(self) -> int:
        """Free bytes on the disks of the folders."""
        found: dict[int, int] = {}
        for folder in self._folders:
            try:
                disk = os.statvfs(folder)
                found[os.stat(folder).st_dev] = disk.f_bfree * disk.f_frsize
            except OSError:
                continue
        return sum(found.values())


def _written_by(process: str) -> int:
    """Bytes that a process and its children that have ended wrote to disks."""
    try:
        with open(f"/proc/{process}/io", "rb") as file:
            rows = dict(line.split(b": ") for line in file.read().splitlines())
        return int(rows[b"write_bytes"])
    except (OSError, KeyError, ValueError):
        return 0


def _changed_bytes(folders: Iterable[str], since: float, enough: int) -> int:
    """Bytes on disk of the files below the folders that changed since a time; stops when it is ``enough``."""
    total, pending = 0, list(folders)
    while pending and total < enough:
        try:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    status = entry.stat(follow_symlinks=False)
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
                    elif status.st_ctime >= since:
                        total += status.st_blocks * 512
        except OSError:
            continue
    return total


_IN_FORCE: ContextVar[DiskLimit | None] = ContextVar("disk_limit", default=None)


def current() -> DiskLimit | None:
    """The limit of this task, or None."""
    return _IN_FORCE.get()


@contextmanager
def in_force(limit: DiskLimit | None) -> Iterator[None]:
    """Apply the limit to everything that starts in this block."""
    token = _IN_FORCE.set(limit)
    try:
        yield
    finally:
        _IN_FORCE.reset(token)
