"""Which casts a living process works on: a lock for each in a file of lines or beside a database, which ends with its process.

A lock on one byte stands for one cast; the byte is at a hash of the cast id, and nothing is written there. Locks belong to an
open file (`F_OFD_SETLK`), so closing any other descriptor of the file leaves them.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import struct
from collections.abc import Iterable, Set
from pathlib import Path

SUFFIX = "-casts"
"""Ends the name of the file beside the database."""

_LAYOUT = "hhqqi0q"


def key_of(cast_id: str, loom: str = "") -> int:
    """A number of 62 bits for a cast of a loom."""
    return int.from_bytes(hashlib.blake2b(f"{loom}\0{cast_id}".encode(), digest_size=8).digest(), "big") >> 2


def hold(fd: int, cast_id: str) -> None:
    """Lock a cast in a file that is open for writing; where locks cannot be had, no cast counts as running."""
    with contextlib.suppress(OSError):
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _lock(fcntl.F_WRLCK, cast_id))


def release(fd: int, cast_id: str) -> None:
    """Unlock a cast."""
    with contextlib.suppress(OSError):
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _lock(fcntl.F_UNLCK, cast_id))


def locked(path: Path | str, cast_ids: Iterable[str], held: Set[str] = frozenset()) -> set[str]:
    """Those of these casts that a living process has locked in a file; ``held`` are our own."""
    wanted = set(cast_ids)
    found = wanted & held
    if found == wanted:
        return found
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
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


class CastLocks:
    """The locks of one open database, in a file beside it: SQLite has locks of its own in the database."""

    def __init__(self, database: Path) -> None:
        self._path = database.with_name(database.name + SUFFIX)
        self._held: set[str] = set()
        self._fd = -1

    def hold(self, cast_id: str) -> None:
        """Lock a cast for as long as this process works on it."""
        if self._fd < 0:
            try:
                self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            except OSError:
                return
        hold(self._fd, cast_id)
        self._held.add(cast_id)

    def release(self, cast_id: str) -> None:
        """Unlock a cast; nothing where it is not locked here."""
        if cast_id in self._held:
            self._held.discard(cast_id)
            release(self._fd, cast_id)

    def running(self, cast_ids: Iterable[str]) -> set[str]:
        """Those of these casts that a living process has locked."""
        return locked(self._path, cast_ids, self._held)

    def close(self) -> None:
        """Unlock everything; safe to call twice."""
        fd, self._fd = self._fd, -1
        self._held.clear()
        if fd >= 0:
            os.close(fd)


def _lock(kind: int, cast_id: str) -> bytes:
    return struct.pack(_LAYOUT, kind, os.SEEK_SET, key_of(cast_id), 1, 0)
