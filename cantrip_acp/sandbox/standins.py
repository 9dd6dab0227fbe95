"""Stand-ins: what must stand on the host while a protected name that does not exist is protected.

A mount needs something to be mounted on, so for the length of a command each such name is an empty folder, which git does
not see and which nobody can mistake for a file. Stand-ins are told apart by a sticky bit and a missing write permission,
so that whoever finds one after a crash may remove it, and nothing that a user made is ever removed.

The folder that they stand in is locked (shared) while commands run there: removing one would unmask the name for another
process's command, so only the last one out, who gets the lock for itself, removes them.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterable

from cantrip_acp.errors import SandboxError

_MODE = 0o1555


def is_standin(path: str) -> bool:
    """Whether this is one: an empty folder, sticky, that its owner may not write."""
    try:
        status = os.lstat(path)
        return _marked(status) and not os.listdir(path)
    except OSError:
        return False


def _marked(status: os.stat_result) -> bool:
    return stat.S_ISDIR(status.st_mode) and bool(status.st_mode & stat.S_ISVTX) and not status.st_mode & stat.S_IWUSR


class Standins:
    """The stand-ins of one command in one folder, from `make` to `remove`. ``names`` are all that may ever stand there."""

    __slots__ = ("_lock", "folder", "names")

    def __init__(self, folder: str, names: Iterable[str]) -> None:
        self.folder = folder
        self.names = tuple(names)
        self._lock = -1

    def make(self, absent: Iterable[str]) -> list[str]:
        """Make those that are absent, and give the names that can be mounted on. Raises `SandboxError`.

        A folder that we cannot write gets none: nothing can be made there from inside either.
        """
        try:
            self._lock = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            _take(self._lock, self.folder)
            made = []
            for name in absent:
                try:
                    os.mkdir(name, _MODE, dir_fd=self._lock)
                except FileExistsError:
                    # Made by another process's command, or by the user this instant: either way it can be mounted on, or
                    # the command does not start.
                    pass
                made.append(name)
            return made
        except OSError as error:
            self.remove()
            if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
                return []
            raise SandboxError(f"cannot protect {self.folder}: {error.strerror}") from error

    def remove(self) -> None:
        """Take away what stands there, unless another process's command still needs it. Safe to call twice."""
        if self._lock < 0:
            return
        lock, self._lock = self._lock, -1
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for name in self.names:
                try:
                    if _marked(os.stat(name, dir_fd=lock, follow_symlinks=False)):
                        os.rmdir(name, dir_fd=lock)
                except OSError:
                    # Gone already, or no longer empty: then it is not ours.
                    continue
        except BlockingIOError:
            return
        finally:
            os.close(lock)


def _take(lock: int, folder: str) -> None:
    for _ in range(100):
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            # Somebody removes theirs at this moment: well below a millisecond.
            time.sleep(0.002)
    raise SandboxError(f"{folder} is locked by another program; commands cannot be run there until it lets go")
