"""SQLite store: a loom in a database that many processes write, each record in its own transaction.

One table holds all records in order. The column ``head`` has what the tree needs, with its own index, so opening reads
no bodies. Triggers in the database enforce the rules of a loom (LOOM-3): they refuse to change, delete or replace a
row, to write a turn twice, or to write a turn without its parent.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sqlite3
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cantrip_acp.db import sqlite as db
from cantrip_acp.files import guarded
from cantrip_acp.loom.records.record_heads import Head, LaterHead
from cantrip_acp.loom.records.tree import Problem
from cantrip_acp.loom.stores import cast_locks, checksum, rows
from cantrip_acp.loom.stores.sql import KIND, TABLES, SqlStore, chain_ends
from cantrip_acp.types.errors import LoomDamaged, LoomError, LoomLocked, LoomWriteError
from cantrip_acp.types.records import LaterRecord, Record

if TYPE_CHECKING:
    from cantrip_acp.loom.records.tree import Tree

_PAGE = 1000
"""How many rows one query reads."""

PATIENCE_S = 10.0
"""How many seconds to wait while another process writes."""

MIGRATIONS = (
    f"""
CREATE TABLE record (
    n INTEGER PRIMARY KEY CHECK (n > 0),
    kind TEXT NOT NULL,
    turn_id TEXT,
    parent_id TEXT,
    head TEXT NOT NULL,
    body TEXT NOT NULL
);
CREATE INDEX record_head ON record (n, head);
CREATE UNIQUE INDEX record_turn ON record (turn_id) WHERE turn_id IS NOT NULL;
CREATE UNIQUE INDEX record_header ON record (kind) WHERE kind = 'loom';
CREATE TRIGGER record_new BEFORE INSERT ON record BEGIN
    SELECT RAISE(ABORT, '{rows.TAKEN}') WHERE EXISTS (SELECT 1 FROM record WHERE turn_id = NEW.turn_id);
    SELECT RAISE(ABORT, '{rows.ORPHAN}')
        WHERE NEW.parent_id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM record WHERE turn_id = NEW.parent_id);
    SELECT RAISE(ABORT, '{rows.HEADED}')
        WHERE NEW.kind = 'loom' AND EXISTS (SELECT 1 FROM record WHERE kind = 'loom');
    SELECT RAISE(ABORT, '{rows.KEPT}') WHERE NEW.n > 0 AND NEW.n <> (SELECT coalesce(max(n), 0) + 1 FROM record);
END;
CREATE TRIGGER record_changed BEFORE UPDATE ON record BEGIN SELECT RAISE(ABORT, '{rows.KEPT}'); END;
CREATE TRIGGER record_deleted BEFORE DELETE ON record BEGIN SELECT RAISE(ABORT, '{rows.KEPT}'); END;
""",
    # The end of each entity's chain of checksums.
    """
ALTER TABLE record ADD COLUMN entity TEXT;
ALTER TABLE record ADD COLUMN sum TEXT;
CREATE TABLE chain (
    entity TEXT PRIMARY KEY,
    records INTEGER NOT NULL,
    sum TEXT NOT NULL
) WITHOUT ROWID;
CREATE TRIGGER record_chained AFTER INSERT ON record WHEN NEW.sum IS NOT NULL BEGIN
    INSERT INTO chain (entity, records, sum) VALUES (NEW.entity, 1, NEW.sum)
        ON CONFLICT (entity) DO UPDATE SET records = records + 1, sum = excluded.sum;
END;
""",
)
_left: list[sqlite3.Connection | None] = []
"""Connections of a parent process. Closing them in a forked child would drop the parent's locks."""
_MADE = re.compile(r"CREATE (?:UNIQUE )?(INDEX|TRIGGER) (\w+)")


class SqliteStore(SqlStore):
    """Records in a database file. With ``fsync`` each record is on the disk when `append` returns; without it, a crash
    of the machine (not of the process) may lose the last ones.

    Raises `LoomError` if the file is not a loom, cannot be opened or is of a newer format; `LoomLocked` if another
    program locks it.
    """

    _integrity = sqlite3.IntegrityError
    _locks: cast_locks.CastLocks

    def __init__(self, path: Path | str, *, fsync: bool = False, readonly: bool = False) -> None:
        super().__init__(readonly=readonly)
        self.place = self.path = Path(os.path.abspath(path))
        self._tables = TABLES
        self._using = threading.RLock()
        """Held during each query. A read that is open in one thread would give the connection an old snapshot of the
        database, and once another process has written, the next write of another thread would fail at once."""
        self._locks = cast_locks.CastLocks(self.path.with_name(self.path.name + cast_locks.SUFFIX))
        cast_locks.not_for_children(self)
        self._base: sqlite3.Connection | None = None
        self._held: guarded.Held | None = None
        try:
            if not readonly:
                self._held = db.held(self.path, cast_locks.SUFFIX)
            self._base = self._connect()
            self._prepare(self._base, fsync)
        except sqlite3.Error as error:
            self.close()
            raise self._opening(error) from error
        except OSError as error:
            self.close()
            raise LoomError(f"cannot open loom {self.path}: {error.strerror}") from None
        except UnicodeError as error:
            # The driver raises this for its own message, which repeats a damaged schema.
            self.close()
            raise LoomError(
                f"cannot open loom {self.path}: the database is damaged; go back to a copy of it"
            ) from error
        except BaseException:
            self.close()
            raise

    @property
    def location(self) -> str | None:
        return f"sqlite:{self.path}"

    def _connect(self) -> sqlite3.Connection:
        if self.path.exists() and not self.path.is_file():
            raise LoomError(f"cannot open loom {self.path}: it is not a regular file")
        if not self.readonly:
            try:
                db.make(self.path)
            except OSError as error:
                raise LoomError(f"cannot open loom {self.path}: {error.strerror}") from error
        elif not self.path.exists():
            raise LoomError(f"cannot open loom {self.path}: no such file")
        try:
            return self._open_uri("mode=ro" if self.readonly else "mode=rw")
        except sqlite3.OperationalError:
            # A reader shares memory with writers through a file beside the database. In a read-only folder it cannot
            # create that file; without a writer, it may read the database as it is.
            wal = self.path.with_name(f"{self.path.name}-wal")
            if not self.readonly or os.access(self.path.parent, os.W_OK) or (wal.exists() and wal.stat().st_size):
                raise
            return self._open_uri("mode=ro&immutable=1")

    def _open_uri(self, how: str) -> sqlite3.Connection:
        base = db.connect(f"{self.path.as_uri()}?{how}", PATIENCE_S)
        base.text_factory = bytes
        try:
            base.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except BaseException:
            base.close()
            raise
        return base

    def _prepare(self, base: sqlite3.Connection, fsync: bool) -> None:
        if self.readonly and base.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,):
            raise LoomError(f"cannot open loom {self.path}: the file is empty")

        def fill(version: int) -> None:
            if version == 1:
                bodies = (body for (body,) in base.execute("SELECT body FROM record ORDER BY n"))
                base.executemany("INSERT INTO chain (entity, records, sum) VALUES (?, ?, ?)", chain_ends(bodies))

        self._tables = db.migrate(base, KIND, MIGRATIONS, self.path, PATIENCE_S, fill, readonly=self.readonly)
        if not self.readonly:
            base.execute(f"PRAGMA synchronous = {'FULL' if fsync else 'NORMAL'}")
        self._check_triggers(base)

    def _check_triggers(self, base: sqlite3.Connection) -> None:
        """Check the triggers, which anybody who can write the file can remove. A missing one is reported, and a writer
        restores it."""
        found = {_text(name): sql for name, sql in base.execute("SELECT name, sql FROM sqlite_master")}
        for statement in db.statements("".join(MIGRATIONS[: self._tables])):
            made = _MADE.match(statement)
            if made is None or found.get(made[2]) == statement.rstrip(";\n").encode():
                continue
            what = f"{made[1].lower()} {made[2]}, which guards the database, was {'changed' if made[2] in found else 'removed'}"
            what += ": records may have been changed or deleted meanwhile"
            if not self.readonly:
                try:
                    with db.transaction(base):
                        base.execute(f"DROP {made[1]} IF EXISTS {made[2]}")
                        base.execute(statement)
                    what += "; it is there again"
                except sqlite3.IntegrityError as error:
                    what += f"; it cannot be put back: {error}"
            self.problems.append(Problem(what))

    def _opening(self, error: sqlite3.Error) -> LoomError:
        match db.code(error):
            case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
                return LoomLocked(
                    f"loom {self.path} was locked by another program for {PATIENCE_S:g} s; close that program, or use another loom"
                )
            case sqlite3.SQLITE_NOTADB:
                return LoomError(
                    f"cannot open loom {self.path}: the file is not a SQLite database "
                    "(a loom of JSON lines is named by its path alone, without sqlite:)"
                )
            case sqlite3.SQLITE_CORRUPT:
                return LoomError(
                    f"cannot open loom {self.path}: the database is damaged ({error}); go back to a copy of it"
                )
            case sqlite3.SQLITE_FULL:
                return LoomWriteError(
                    f"cannot write loom {self.path}: {error}. Free some disk space (or choose another place) and try again"
                )
        return LoomError(f"cannot open loom {self.path}: {error}")

    @property
    def _open(self) -> sqlite3.Connection:
        if self._base is None:
            raise LoomError(f"loom {self.path} is closed")
        return self._base

    def append(self, record: Record | LaterRecord, body: bytes | bytearray) -> int:
        base = self._open
        if self.readonly:
            raise LoomError(f"loom {self.path} is open for reading only")
        row = rows.row_of(record, bytes(body))
        try:
            with self._using:
                return self._insert(base, row)
        except sqlite3.IntegrityError as error:
            raise self._refused(str(error), row) from error
        except sqlite3.Error as error:
            busy = db.is_busy(error)
            mend = (
                "Another program uses it; close that program"
                if busy
                else "Free some disk space (or choose another place)"
            )
            raise LoomWriteError(
                f"cannot write loom {self.path}: {error}; earlier records are safe. {mend} and try again"
            ) from error

    def _add(self, base: Any, n: int, row: rows.Row, head: bytes, body: bytearray, own: str) -> None:
        add = (
            "INSERT INTO record (n, kind, turn_id, parent_id, head, body, entity, sum) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
        )
        about = (row.kind, row.turn_id, row.parent_id)
        base.execute(add, (n, *about, head.decode(), body.decode(), row.entity, own))

    def _chain_end(self, base: Any, entity: str) -> str:
        found = base.execute("SELECT sum FROM chain WHERE entity = ?", (entity,)).fetchone()
        return checksum.START if found is None else _text(found[0])

    @contextlib.contextmanager
    def _alone(self, base: Any) -> Iterator[int]:
        with db.transaction(base):
            (last,) = base.execute("SELECT coalesce(max(n), 0) FROM record").fetchone()
            yield int(last)

    def _bodies(self, positions: list[int]) -> dict[int, bytes]:
        base = self._open
        if len(positions) > 1:
            many = "SELECT n, body FROM record WHERE n IN (SELECT value FROM json_each(?))"
            with contextlib.suppress(sqlite3.Error), self._using:
                return {n: _bytes(body) for n, body in base.execute(many, (json.dumps(positions),))}
        # Read one by one, to find the record that cannot be read.
        bodies: dict[int, bytes] = {}
        for position in positions:
            try:
                with self._using:
                    found = base.execute("SELECT n, body FROM record WHERE n = ?", (position,)).fetchall()
                bodies.update((n, _bytes(body)) for n, body in found)
            except sqlite3.Error as error:
                raise LoomDamaged(f"loom {self.path}: record {position} cannot be read: {error}") from error
        return bodies

    def _head_from_body(self, position: int) -> Head | LaterHead | None:
        try:
            with self._using:
                found = self._open.execute("SELECT body FROM record NOT INDEXED WHERE n = ?", (position,)).fetchone()
        except sqlite3.Error:
            return None
        return None if found is None else rows.head_from(_bytes(found[0]))

    def _rows(self, column: str, after: int, noted: list[Problem]) -> Iterator[tuple[int, bytes]]:
        """Yield rows in order. If a page of the index is damaged, read the table instead. If the table is damaged too,
        read it from both ends; only the rows between are lost."""
        by = "INDEXED BY record_head" if column == "head" else "NOT INDEXED"
        at = after
        try:
            for at, data in self._pages(column, by, after):
                yield at, data
            return
        except sqlite3.DatabaseError as error:
            if db.code(error) not in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_IOERR):
                raise LoomError(f"loom {self.path} cannot be read: {error}") from error
            what = str(error)
        first = at
        try:
            for at, data in self._pages(column, "NOT INDEXED", first):
                yield at, data
            noted.append(Problem(f"an index is damaged behind record {first} ({what}); the table was read instead"))
            return
        except sqlite3.DatabaseError:
            pass
        rest: list[tuple[int, bytes]] = []
        try:
            query = f"SELECT n, {column} FROM record NOT INDEXED WHERE n > ? ORDER BY n DESC"
            with self._using:
                rest.extend(self._open.execute(query, (at,)))
        except sqlite3.DatabaseError:
            pass
        until = f"before record {rest[-1][0]}" if rest else "to the end"
        noted.append(Problem(f"records behind {at} {until} cannot be read: {what}", offset=at))
        for at, data in reversed(rest):
            yield at, _bytes(data)

    def _pages(self, column: str, by: str, after: int) -> Iterator[tuple[int, bytes]]:
        """Yield rows in order. No read stays open while the caller has a row. Raises after the rows before a damaged
        one."""
        query = f"SELECT n, {column} FROM record {by} WHERE n > ? ORDER BY n LIMIT {_PAGE}"
        while True:
            page: list[tuple[int, bytes]] = []
            failure = None
            with self._using:
                try:
                    page.extend(self._open.execute(query, (after,)))
                except sqlite3.DatabaseError as error:
                    failure = error
            for after, data in page:
                yield after, _bytes(data)
            if failure is not None:
                raise failure
            if len(page) < _PAGE:
                return

    def _reader(self) -> SqliteStore:
        return SqliteStore(self.path, readonly=True)

    def _damage(self) -> list[Problem]:
        noted: list[Problem] = []
        base = self._open
        base.execute("BEGIN")
        try:
            noted += rows.damage(self._stored(noted), self._chain_ends(noted))
            for (what,) in base.execute("PRAGMA quick_check(20)"):
                if what != b"ok":
                    noted.append(
                        Problem(f"the database is damaged: {' '.join(what.decode('utf-8', 'replace').split())}")
                    )
            (misplaced,) = base.execute("SELECT count(*) FROM record NOT INDEXED WHERE n < 1").fetchone()
            if misplaced:
                noted.append(rows.misplaced(misplaced))
        except sqlite3.Error as error:
            noted.append(Problem(f"the database is damaged: {error}"))
        return noted

    def _stored(self, noted: list[Problem]) -> Iterator[rows.Stored]:
        heads = dict(self._rows("head", 0, []))
        more = "entity, sum" if self._tables > 1 else "NULL, NULL"
        about: dict[int, list[str | None]] = {}
        try:
            for n, *texts in self._open.execute(f"SELECT n, kind, turn_id, parent_id, {more} FROM record NOT INDEXED"):
                about[n] = [None if text is None else _text(text) for text in texts]
        except sqlite3.Error:
            # A damaged page; `_rows` reports it.
            pass
        for n, body in self._rows("body", 0, noted):
            if n in about:
                kind, turn_id, parent_id, entity, own = about[n]
                yield rows.Stored(n, kind or "", turn_id, parent_id, entity, own, heads.get(n), body)

    def _chain_ends(self, noted: list[Problem]) -> dict[str, tuple[int, str]] | None:
        if self._tables < TABLES:
            return None
        try:
            found = self._open.execute("SELECT entity, records, sum FROM chain")
            return {
                _text(entity): (count if isinstance(count, int) else -1, _text(own)) for entity, count, own in found
            }
        except sqlite3.Error as error:
            noted.append(Problem(f"the ends of the chains cannot be read: {error}"))
            return None

    def running(self, cast_ids: Iterable[str]) -> set[str]:
        return self._locks.running(cast_ids)

    def after_fork(self) -> None:
        """In a forked child: open the loom again. Two processes must not use or close the same SQLite connection."""
        _left.append(self._base)
        self._base = None

    def close(self, tree: Tree | None = None) -> None:
        self._locks.close()
        base, self._base = self._base, None
        if base is not None:
            base.close()
        if self._held is not None:
            self._held.release()


def _bytes(value: Any) -> bytes:
    """The bytes of a text column; empty if damage made it NULL or a number."""
    return value if isinstance(value, bytes) else b""


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
