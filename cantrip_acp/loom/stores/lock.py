"""Holding a loom's file against everybody else, as whoever removes it must: a file of lines or an SQLite database."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

from cantrip_acp.core.errors import LoomLocked


def written(name: str, dir_fd: int | None = None) -> bool:
    """Whether somebody has a file of lines open for writing. Follows no link; what is gone is written by nobody."""
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=dir_fd)
    except OSError:
        return False
    try:
        return locked(fd)
    finally:
        os.close(fd)


def locked(fd: int) -> bool:
    """Whether another one has a file of lines open for writing."""
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(fd, fcntl.LOCK_UN)
    return False


def lock(fd: int) -> None:
    """Lock a file of lines for its one writer; somebody who looks whether it is written holds it for a moment only."""
    for wait in (0.005, 0.02, 0.05):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            time.sleep(wait)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


@contextlib.contextmanager
def lines(name: str, dir_fd: int) -> Iterator[None]:
    """No writer can open the file; it may be gone. Raises `LoomLocked` where one has it open."""
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
    """Nobody else reads or writes the SQLite database; a damaged one is anybody's. Raises `LoomLocked` where somebody does."""
    base: sqlite3.Connection | None = None
    try:
        try:
            base = sqlite3.connect(
                f"file:{urllib.parse.quote(str(path))}?mode=rw", uri=True, timeout=0, isolation_level=None
            )
            # A database gives up its log only where nobody else has it open.
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
