"""What each SQLite file of the product needs: opening, its write-ahead log, versions of its tables, transactions."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from cantrip_acp.db import Kind
from cantrip_acp.files import guarded
from cantrip_acp.files.folder import Folder

_WAL_FILES = ("-wal", "-shm")
"""Suffixes of the files beside a database that its connections use."""
_ROLLBACK = "-journal"
"""The suffix of a file from which SQLite restores a database when it is opened. No database of the product has one."""
_PAUSE_S = 0.005


def held(path: Path, *suffixes: str) -> guarded.Held:
    """Keep a database, with the files beside it, from this process's own sandboxes. ``suffixes``: those of its store's own
    files. Raises `OSError`."""
    return guarded.Held(path, _WAL_FILES, (_ROLLBACK, *suffixes), (_ROLLBACK,))


def make(path: Path, mode: int = 0o777) -> None:
    """Create the file for the user alone, if it is missing, and its folders with ``mode``. Raises `OSError`."""
    Folder.make_database(path, mode)


def connect(address: str, patience_s: float, cached: int = 128) -> sqlite3.Connection:
    """Open a ``file:`` address, usable from any thread. A statement waits up to ``patience_s`` seconds for other processes;
    ``cached`` is the number of prepared statements to keep. Raises `sqlite3.Error`."""
    return sqlite3.connect(
        address, uri=True, timeout=patience_s, isolation_level=None, check_same_thread=False, cached_statements=cached
    )


def is_busy(error: sqlite3.Error) -> bool:
    """Whether another process or thread had the database locked."""
    return code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def code(error: sqlite3.Error) -> int:
    """The primary result code; the driver's own errors have none."""
    return (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF


@contextlib.contextmanager
def transaction(base: sqlite3.Connection, begin: str = "BEGIN IMMEDIATE") -> Iterator[sqlite3.Connection]:
    """One transaction. An exception undoes it."""
    base.execute(begin)
    try:
        yield base
        base.execute("COMMIT")
    except BaseException:
        if base.in_transaction:
            base.execute("ROLLBACK")
        raise


def migrate(
    base: sqlite3.Connection,
    kind: Kind,
    migrations: Sequence[str],
    place: object,
    patience_s: float,
    fill: Callable[[int], None] = lambda version: None,
    *,
    readonly: bool = False,
) -> int:
    """Bring the tables up to date, and return their version; ``fill`` gets the one from before, in the same transaction.

    With ``readonly``, only look. Raises `sqlite3.Error`, and the error of ``kind`` for a database of another program or of a
    newer version.
    """
    # In this order: another process creates both at once.
    (tables,) = base.execute("SELECT count(*) FROM sqlite_master").fetchone()
    (application,) = base.execute("PRAGMA application_id").fetchone()
    if tables and application != kind.application:
        raise kind.unopened(
            f"cannot open {kind.name} {place}: the file is a database of another program; name another file"
        )
    (version,) = base.execute("PRAGMA user_version").fetchone()
    kind.check(place, version)
    if readonly:
        return int(version)
    use_write_ahead_log(base, patience_s)
    if version >= len(migrations):
        return int(version)
    with transaction(base):
        # Another process may have done it meanwhile.
        (version,) = base.execute("PRAGMA user_version").fetchone()
        for script in migrations[version:]:
            for statement in statements(script):
                base.execute(statement)
        fill(version)
        base.execute(f"PRAGMA application_id = {kind.application}")
        base.execute(f"PRAGMA user_version = {max(version, len(migrations))}")
    return int(max(version, len(migrations)))


def use_write_ahead_log(base: sqlite3.Connection, patience_s: float) -> None:
    """Switch the file to a write-ahead log, for at most ``patience_s`` seconds. Raises `sqlite3.Error`.

    If two processes open a new file at the same time, SQLite fails at once here, whatever the timeout of the connection.
    """
    until = time.monotonic() + patience_s
    while True:
        try:
            base.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if code(error) != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
        time.sleep(_PAUSE_S)


def statements(script: str) -> Iterator[str]:
    """The single statements of a script: `executescript` would end the transaction, and triggers have semicolons of their
    own."""
    statement = ""
    for line in script.strip().splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
