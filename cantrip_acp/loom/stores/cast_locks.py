"""Cast locks: which casts run in a living process. One lock for each cast; the kernel drops it when the process ends.

A lock is on one byte of a file: the loom itself, or a file beside a database. The byte's offset is a hash of the cast's
id; nothing is written there. No process id is stored, so none can be mistaken for another; a suspended process keeps
its locks. Locks belong to an open file (`F_OFD_SETLK`), so closing another descriptor of that file does not drop them.
A forked child would share the open file and keep the locks of a dead parent, so `after_fork` gives it its own
descriptor.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol
from weakref import WeakSet

SUFFIX = "-casts"
"""The suffix of the file beside a database."""

_LAYOUT = "hhqqi0q"


class Forking(Protocol):
    """An object that holds locks or connections which a forked child must not share."""

    def after_fork(self) -> None:
        """Called in the child, which runs no cast and writes to no loom of its parent."""
        ...


_forking: WeakSet[Forking] = WeakSet()


def not_for_children(holder: Forking) -> None:
    """Call `Forking.after_fork` of this object in every forked child."""
    _forking.add(holder)


def _after_fork() -> None:
    for holder in list(_forking):
        holder.after_fork()


os.register_at_fork(after_in_child=_after_fork)


def replace(fd: int, path: Path | str, flags: int = os.O_RDONLY) -> None:
    """Point a descriptor to another open file, so that the locks drop when the last copy of the old one is closed."""
    new = os.open(path, flags | os.O_CLOEXEC)
    os.dup2(new, fd, inheritable=False)
    os.close(new)


def key_of(cast_id: str, loom: str = "") -> int:
    """A number of 62 bits for a cast of a loom."""
    return int.from_bytes(hashlib.blake2b(f"{loom}\0{cast_id}".encode(), digest_size=8).digest(), "big") >> 2


class CastLocks:
    """The cast locks of one open loom in a file. ``fd``: the file is already open, and its owner closes it."""

    def __init__(self, path: Path | str, fd: int = -1) -> None:
        self._path = path
        self._fd = fd
        self._owned = fd < 0
        self._locked: set[str] = set()
        not_for_children(self)

    def lock_cast(self, cast_id: str) -> bool:
        """Lock a cast while this process runs it. Returns False if another process has locked it. Where the file
        system has no locks, every call succeeds and no cast counts as running elsewhere."""
        if cast_id in self._locked:
            return False
        if self._fd < 0:
            try:
                self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            except OSError:
                return True
        try:
            fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, _lock(fcntl.F_WRLCK, cast_id))
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return False
        self._locked.add(cast_id)
        return True

    def release(self, cast_id: str) -> None:
        """Unlock a cast; does nothing if it is not locked here."""
        if cast_id in self._locked:
            self._locked.discard(cast_id)
            with contextlib.suppress(OSError):
                fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, _lock(fcntl.F_UNLCK, cast_id))

    def running(self, cast_ids: Iterable[str]) -> set[str]:
        """Which of these casts a living process has locked."""
        wanted = set(cast_ids)
        found = wanted & self._locked
        if found == wanted:
            return found
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return found
        try:
            for cast_id in wanted - found:
                answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _lock(fcntl.F_WRLCK, cast_id))
                if struct.unpack(_LAYOUT, answer)[0] != fcntl.F_UNLCK:
                    found.add(cast_id)
        except OSError:
            pass
        finally:
            os.close(fd)
        return found

    def after_fork(self) -> None:
        self._locked.clear()
        if self._owned and self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def close(self) -> None:
        """Unlock everything; safe to call twice."""
        for cast_id in list(self._locked):
            self.release(cast_id)
        if self._owned and self._fd >= 0:
            os.close(self._fd)
        self._fd = -1


def _lock(kind: int, cast_id: str) -> bytes:
    return struct.pack(_LAYOUT, kind, os.SEEK_SET, key_of(cast_id), 1, 0)
