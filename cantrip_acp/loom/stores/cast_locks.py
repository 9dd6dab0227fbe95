"""Which casts a living process works on: one lock a cast, which the kernel drops when its process ends.

A lock is on one byte of a file: the loom itself, or a file beside a database. The byte is at a hash of the cast's id, and
nothing is written there. No process id is kept, so none can be mistaken for another; a process that is suspended keeps its
locks. Locks belong to an open file (`F_OFD_SETLK`), so closing another descriptor of that file leaves them. A forked child
would share the open file and keep the locks of a parent that died: `after_fork` gives it a descriptor of its own.
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
"""Ends the name of the file beside a database."""

_LAYOUT = "hhqqi0q"


class Forking(Protocol):
    """Whatever must not be shared with a forked child."""

    def after_fork(self) -> None:
        """Called in the child, which works on no cast and writes to no loom of its parent."""
        ...


_forking: WeakSet[Forking] = WeakSet()


def not_for_children(holder: Forking) -> None:
    """Have `Forking.after_fork` called in every forked child."""
    _forking.add(holder)


def _after_fork() -> None:
    for holder in list(_forking):
        holder.after_fork()


os.register_at_fork(after_in_child=_after_fork)


def replace(fd: int, path: Path | str, flags: int = os.O_RDONLY) -> None:
    """Make a descriptor one of another open file, so that closing the old one's last copy drops its locks."""
    new = os.open(path, flags | os.O_CLOEXEC)
    os.dup2(new, fd, inheritable=False)
    os.close(new)


def key_of(cast_id: str, loom: str = "") -> int:
    """A number of 62 bits for a cast of a loom."""
    return int.from_bytes(hashlib.blake2b(f"{loom}\0{cast_id}".encode(), digest_size=8).digest(), "big") >> 2


class CastLocks:
    """The locks of one open loom in a file. ``fd``: the file is open already, and its owner closes it."""

    def __init__(self, path: Path | str, fd: int = -1) -> None:
        self._path = path
        self._fd = fd
        self._owned = fd < 0
        self._held: set[str] = set()
        not_for_children(self)

    def hold(self, cast_id: str) -> bool:
        """Lock a cast for as long as this process works on it; False where somebody works on it already. Where locks
        cannot be had at all, nobody counts as working on a cast."""
        if cast_id in self._held:
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
        self._held.add(cast_id)
        return True

    def release(self, cast_id: str) -> None:
        """Unlock a cast; nothing where it is not locked here."""
        if cast_id in self._held:
            self._held.discard(cast_id)
            with contextlib.suppress(OSError):
                fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, _lock(fcntl.F_UNLCK, cast_id))

    def running(self, cast_ids: Iterable[str]) -> set[str]:
        """Those of these casts that a living process has locked."""
        wanted = set(cast_ids)
        found = wanted & self._held
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
        self._held.clear()
        if self._owned and self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def close(self) -> None:
        """Unlock everything; safe to call twice."""
        for cast_id in list(self._held):
            self.release(cast_id)
        if self._owned and self._fd >= 0:
            os.close(self._fd)
        self._fd = -1


def _lock(kind: int, cast_id: str) -> bytes:
    return struct.pack(_LAYOUT, kind, os.SEEK_SET, key_of(cast_id), 1, 0)
