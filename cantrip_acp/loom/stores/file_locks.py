"""File locks of a loom: a file of JSON lines or an SQLite database. Whoever deletes a loom must lock it first."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

from cantrip_acp.types.errors import LoomLocked


def written(name: str, dir_fd: int | None = None) -> bool:
    """Whether somebody has a file of JSON lines open for writing. Follows no link; False for a missing file."""
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=dir_fd)
    except OSError:
        return False
    try:
        return locked(fd)
    finally:
        os.close(fd)


def locked(fd: int) -> bool:
    """Whether another process has a file of JSON lines open for writing."""
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(fd, fcntl.LOCK_UN)
    return False


def lock(fd: int) -> None:
    """Lock a file of JSON lines for its single writer. Tries a few times: `locked` in another process takes the lock
    briefly."""
    for wait in (0.005, 0.02, 0.05):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            time.sleep(wait)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


@contextlib.contextmanager
def lines(name: str, dir_fd: int) -> Iterator[None]:
    """Block every writer of the file, which may be missing. Raises `LoomLocked` if a writer has it open."""
    try:
        fd = os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=dir_fd)
    except FileNotFoundError:
        yield
        return
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LoomLocked(f"loom {name} is being written by another process") from None
        yield
    finally:
        os.close(fd)


@contextlib.contextmanager
def database(path: Path) -> Iterator[None]:
    """Block every reader and writer of the SQLite database. A damaged database is not locked. Raises `LoomLocked` if
    another process has it open."""
    import sqlite3

    base: sqlite3.Connection | None = None
    try:
        try:
            base = sqlite3.connect(
                f"file:{urllib.parse.quote(str(path))}?mode=rw", uri=True, timeout=0, isolation_level=None
            )
            # SQLite leaves WAL mode only if no other connection has the database open.
            (mode,) = base.execute("PRAGMA journal_mode = DELETE").fetchone()
            if mode != "delete":
                raise sqlite3.OperationalError
            base.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError:
            raise LoomLocked(f"loom {path} is open in another process") from None
        except sqlite3.DatabaseError:
            pass
        yield
    finally:
        if base is not None:
            base.close()
