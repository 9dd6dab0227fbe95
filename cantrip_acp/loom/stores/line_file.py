"""The file of a loom as lines: opens and locks it, reads its lines, and sees how it grows while another process writes."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from cantrip_acp.files.folder import Folder
from cantrip_acp.loom.stores import file_locks
from cantrip_acp.types.errors import LoomChanged, LoomError, LoomLocked

LINE = 1 << 13
"""A read size in bytes that holds most lines."""
CHUNK = 1 << 20
_MARK = 1024
"""The number of last bytes that a reader remembers, to recognize the file again."""


def open_reading(path: Path) -> int:
    """Open a regular file for reading. Raises `LoomError`."""
    try:
        # O_NONBLOCK: opening a FIFO would otherwise wait for its other end. Regular files ignore the flag.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise LoomError(f"cannot open loom {path}: {error.strerror}") from error
    return _checked(path, fd)


def open_writing(path: Path) -> int:
    """Open a regular file for appending, make it if it is missing, and lock it. Raises `LoomError`, and `LoomLocked` if
    another process has the lock."""
    while True:
        try:
            with Folder.holding(path, make=True) as folder:
                fd = folder.open_file(path.name, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        except OSError as error:
            raise LoomError(f"cannot open loom {path}: {error.strerror}") from error
        _lock(path, _checked(path, fd))
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(fd), os.stat(path)):
                return fd
        # The last writer removed the file because it was empty, or another file replaced it, while we waited for the lock.
        os.close(fd)


def _checked(path: Path, fd: int) -> int:
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise LoomError(f"cannot open loom {path}: it is not a regular file")
    return fd


def _lock(path: Path, fd: int) -> None:
    try:
        file_locks.lock(fd)
    except OSError as error:
        os.close(fd)
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            raise LoomLocked(
                f"loom {path} is being written by another process; "
                "close that session, or use another loom (one writer at a time)"
            ) from error
        raise LoomError(f"cannot lock loom {path}: {error.strerror}") from error


def line_at(fd: int, position: int) -> bytes:
    """The line that begins at a position, without its newline."""
    size, parts = LINE, []
    while chunk := os.pread(fd, size, position):
        end = chunk.find(b"\n")
        if end >= 0:
            parts.append(chunk[:end])
            break
        parts.append(chunk)
        position += len(chunk)
        size = CHUNK
    return b"".join(parts)


def lines(fd: int, position: int = 0, until: int | None = None) -> Iterator[tuple[memoryview, bool]]:
    """Yield each line and whether a newline ended it. A line is valid until the next one is requested: nothing is copied.

    The file is read, not memory-mapped: if it is cut meanwhile, a mapped read would kill the process.
    """
    # A small buffer stays in the processor's cache.
    buffer = bytearray(CHUNK // 2 if until is None else min(CHUNK // 2, until - position + 1))
    filled = 0
    while True:
        if filled == len(buffer):
            buffer = buffer + bytearray(len(buffer))
        with memoryview(buffer) as view:
            count = os.preadv(fd, [view[filled:]], position)
            position += count
            searched, filled, at = filled, filled + count, 0
            find = buffer.find
            while (end := find(b"\n", searched if searched > at else at, filled)) >= 0:
                yield view[at:end], True
                at = end + 1
            if not count or (until is not None and position >= until):
                if at < filled:
                    yield view[at:filled], False
                return
            view[: filled - at] = view[at:filled]
            filled -= at


class Growth:
    """Sees whether a file that was read has grown since. It recognizes the file by the last bytes that were read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._full_path = os.path.abspath(path)
        self.lacks_newline = False
        """Whether the end that was read counts a newline that the last record still lacks."""
        self._mark = b""
        self._looked: tuple[int, int] | None = None

    def remember(self, fd: int, end: int) -> None:
        """Note that the file was read up to ``end``."""
        end -= self.lacks_newline
        begin = max(0, end - _MARK)
        self._mark = os.pread(fd, end - begin, begin)

    def size(self, fd: int, end: int) -> int | None:
        """The size of the file if it may have changed; None if it has not. ``end`` is how far it was read.

        Raises `LoomChanged` if it is another file now, or if what was read was changed.
        """
        status = os.fstat(fd)
        with contextlib.suppress(OSError):
            there = os.stat(self._full_path)
            if (there.st_ino, there.st_dev) != (status.st_ino, status.st_dev):
                raise LoomChanged(f"loom {self._path} was replaced by another file; open it again")
        if not status.st_nlink:
            raise LoomChanged(f"loom {self._path} was deleted")
        looked = (status.st_size, status.st_mtime_ns)
        if looked == self._looked:
            return None
        end -= self.lacks_newline
        last = os.pread(fd, len(self._mark) + self.lacks_newline, end - len(self._mark))
        if last[: len(self._mark)] != self._mark or last[len(self._mark) :] not in (b"", b"\n"):
            what = "was cut" if status.st_size < end else "was written over"
            raise LoomChanged(f"loom {self._path} {what} since it was opened; open it again")
        self._looked = looked
        self.lacks_newline = self.lacks_newline and status.st_size <= end
        return status.st_size
