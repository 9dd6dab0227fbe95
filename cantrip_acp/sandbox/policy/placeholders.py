"""Placeholders: empty host folders at protected names that do not exist, so that these names can be protected.

A mount needs an existing path. So while a command runs, each such name is an empty folder, which git ignores. A
placeholder has a special mode (sticky, owner only). So after a crash everybody can recognize and remove it. A folder
with content is not a placeholder any more.
On some file systems creating folders is slow (0.8 ms each on ext4), but moving them is fast. So a `Pool` on the same
file system keeps unused placeholders between commands.
While commands run in a folder, its placeholders are under a shared lock (flock). Removing a placeholder would
unprotect the name for a command of another process. So only the last process, which gets the exclusive lock, removes
the placeholders.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import threading
import time
from collections.abc import Iterable

from cantrip_acp.sandbox.launch.process_tree import OUT_OF_RESOURCES, sandbox_error
from cantrip_acp.types.errors import SandboxError

_MODE = 0o1700
_CLOCK_TICK_NS = 50_000_000
"""Nanoseconds. Within one tick of the clock, a folder may change twice with the same modification time."""
_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL})
"""Errors of file systems without locks. There, placeholders are made and removed without a lock."""


def is_placeholder(path: str) -> bool:
    """Whether the path is an empty folder with the mode of a placeholder."""
    try:
        return _has_placeholder_mode(os.lstat(path)) and not os.listdir(path)
    except OSError as error:
        if error.errno in OUT_OF_RESOURCES:
            raise
        return False


def _has_placeholder_mode(status: os.stat_result) -> bool:
    return stat.S_ISDIR(status.st_mode) and stat.S_IMODE(status.st_mode) == _MODE


class Pool:
    """A folder with unused placeholders. Threads may share it."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # `cantrip gc` does not delete the folder while we hold this lock.
            fcntl.flock(self._fd, fcntl.LOCK_SH)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
        self._free: list[str] = []
        self._empty: dict[int, int] = {}
        self._count = 0
        self._lock = threading.Lock()

    def move_to(self, name: str, target: int) -> None:
        """Move a placeholder to ``name`` in the folder ``target``, a file descriptor. The name must not exist there."""
        with self._lock:
            own = self._free.pop() if self._free else self._make()
        try:
            os.rename(own, name, src_dir_fd=self._fd, dst_dir_fd=target)
        except OSError:
            self._free.append(own)
            raise

    def _make(self) -> str:
        self._count += 1
        own = str(self._count)
        os.mkdir(own, _MODE, dir_fd=self._fd)
        os.chmod(own, _MODE, dir_fd=self._fd)
        return own

    def move_back(self, name: str, source: int) -> None:
        """Move the placeholder ``name`` from the folder ``source``, a file descriptor, back into the pool.

        A folder that has content by now stays in its place.
        """
        with self._lock:
            self._count += 1
            own = str(self._count)
        os.rename(name, own, src_dir_fd=source, dst_dir_fd=self._fd)
        status = os.stat(own, dir_fd=self._fd, follow_symlinks=False)
        changed = status.st_mtime_ns
        known = self._empty.get(status.st_ino)
        if known != changed:
            # The folder was not checked since its last change. Remember that it is empty only if the clock has ticked since
            # then.
            if os.listdir(os.path.join(self.folder, own)):
                os.rename(own, name, src_dir_fd=self._fd, dst_dir_fd=source)
                return
            if time.time_ns() - changed > _CLOCK_TICK_NS:
                self._empty[status.st_ino] = changed
        self._free.append(own)

    def close(self) -> None:
        for own in self._free:
            os.rmdir(own, dir_fd=self._fd)
        self._free = []
        os.close(self._fd)


class Placeholders:
    """The placeholders of one command in one folder, from `make` to `remove`.

    ``names``: all names that can ever need a placeholder there.
    """

    __slots__ = ("_lock", "_pool", "folder", "names")

    def __init__(self, folder: str, names: Iterable[str], pool: Pool | None = None) -> None:
        self.folder = folder
        self.names = tuple(names)
        self._lock = -1
        self._pool = pool

    def make(self, absent: Iterable[str]) -> list[str]:
        """Make placeholders for the absent names. Returns the names that exist now. Raises `SandboxError`."""
        try:
            self._lock = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            _lock_shared(self._lock, self.folder)
            made = []
            for name in absent:
                self._make_one(name)
                made.append(name)
            return made
        except OSError as error:
            self.remove()
            raise sandbox_error(f"cannot protect {self.folder}", error) from error

    def _make_one(self, name: str) -> None:
        # Check again: another process may have made a placeholder, or the user a file.
        if _exists(name, self._lock):
            return
        if self._pool is not None:
            try:
                self._pool.move_to(name, self._lock)
                return
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                # Two mounts of one device: the kernel moves nothing between them. So create the folder here.
                self._pool = None
        # Set the mode already at creation. Else, after a kill between the two calls, nobody would recognize the folder.
        os.mkdir(name, _MODE, dir_fd=self._lock)
        os.chmod(name, _MODE, dir_fd=self._lock)

    def remove(self) -> None:
        """Remove the placeholders, unless another process's command still needs them. Safe to call twice."""
        if self._lock < 0:
            return
        lock, self._lock = self._lock, -1
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    return
            for name in self.names:
                try:
                    if not _has_placeholder_mode(os.stat(name, dir_fd=lock, follow_symlinks=False)):
                        continue
                    if self._pool is not None:
                        self._pool.move_back(name, lock)
                    else:
                        os.rmdir(name, dir_fd=lock)
                except OSError:
                    # It was already removed, or it is not empty and so not a placeholder any more.
                    continue
        finally:
            os.close(lock)


def _exists(name: str, folder: int) -> bool:
    if os.access in os.supports_follow_symlinks:
        return os.access(name, os.F_OK, dir_fd=folder, follow_symlinks=False)
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _lock_shared(lock: int, folder: str) -> None:
    for _ in range(100):
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return
            if not isinstance(error, BlockingIOError):
                raise
            # Another process removes its placeholders, which takes less than a millisecond.
            time.sleep(0.002)
    raise SandboxError(
        f"{folder} is locked by another program; commands cannot run there until that program releases the lock"
    )
