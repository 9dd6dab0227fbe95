"""Loom addresses: a path (JSON lines), ``sqlite:FILE`` or ``postgresql://…``; opens the store for one.

A path to an SQLite database opens as SQLite, so a command needs no ``sqlite:`` before it.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from cantrip_acp.types.errors import LoomError

if TYPE_CHECKING:
    from cantrip_acp.loom.stores.contract import Store

SQLITE = "sqlite:"
POSTGRES = ("postgresql:", "postgres:")
_MAGIC = b"SQLite format 3\0"


def is_address(where: Path | str) -> bool:
    """Whether this names a database rather than a file of JSON lines."""
    return isinstance(where, str) and where.startswith((SQLITE, *POSTGRES))


def resolve_address(where: str, folder: Path) -> str:
    """Resolve an address that a file in ``folder`` contains: ``sqlite:x.db`` is then a file in that folder."""
    if not where.startswith(SQLITE):
        return where
    return SQLITE + os.path.normpath(folder / Path(where.removeprefix(SQLITE)).expanduser())


def display_address(where: str) -> str:
    """An address for people, without a password."""
    if not where.startswith(POSTGRES):
        return where
    from cantrip_acp.db.postgres_url import PgUrl

    try:
        return PgUrl.of(where, LoomError).shown
    except LoomError:
        return "postgresql://…"


def open_store(where: Path | str, *, fsync: bool = False, readonly: bool = False) -> Store:
    """Open the store at a path or an address. Creates it if it is missing, unless ``readonly``. Raises
    `LoomError`."""
    if isinstance(where, str) and where.startswith(POSTGRES):
        from cantrip_acp.loom.stores.postgres import PostgresStore

        return PostgresStore(where, fsync=fsync, readonly=readonly)
    if isinstance(where, str) and where.startswith(SQLITE):
        from cantrip_acp.loom.stores.sqlite import SqliteStore

        name = where.removeprefix(SQLITE)
        if not name:
            raise LoomError("sqlite: lacks the file; write sqlite:FILE, as in sqlite:looms.db")
        return SqliteStore(Path(name).expanduser(), fsync=fsync, readonly=readonly)
    if is_sqlite(where):
        from cantrip_acp.loom.stores.sqlite import SqliteStore

        return SqliteStore(where, fsync=fsync, readonly=readonly)
    from cantrip_acp.loom.stores.jsonl import JsonlStore

    return JsonlStore(where, fsync=fsync, readonly=readonly)


def is_sqlite(path: Path | str) -> bool:
    """Whether a file begins like an SQLite database."""
    # Opening a FIFO would block, so only regular files are read.
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            return False
        start = _by_open_descriptor(status)
        if start is None:
            with open(path, "rb") as file:
                start = file.read(len(_MAGIC))
        return start == _MAGIC
    except (OSError, ValueError):
        return False


def _by_open_descriptor(status: os.stat_result) -> bytes | None:
    """The first bytes of a file that this process already has open; None if it has not.

    Closing any descriptor of a file drops every POSIX lock of this process on it, and SQLite uses such locks.
    """
    for folder in ("/proc/self/fd", "/dev/fd"):
        try:
            names = os.listdir(folder)
        except OSError:
            continue
        for name in names:
            with contextlib.suppress(OSError, ValueError):
                # Another thread may close it meanwhile, or it is open for writing only. Then try the next one.
                if os.path.samestat(os.fstat(int(name)), status):
                    return os.pread(int(name), len(_MAGIC), 0)
        return None
    return None
