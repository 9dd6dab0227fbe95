"""What each SQLite file of the product needs when it is opened: its write-ahead log, and the statements of its tables."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator

WAL_FILES = ("-wal", "-shm")
"""Suffixes of the files beside a database that its connections use."""
ROLLBACK = "-journal"
"""The suffix of a file from which SQLite restores a database when it is opened. No database of the product has one."""
_PAUSE_S = 0.005


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
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > until:
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
