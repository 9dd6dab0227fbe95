"""SQLite database of the substrate: one file for the processes of one user on one machine."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import sqlite3
import threading
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from cantrip_acp.files import guarded
from cantrip_acp.files.folder import Folder
from cantrip_acp.files.sqlite_file import ROLLBACK, WAL_FILES, statements, use_write_ahead_log
from cantrip_acp.substrate.chunks import Chunk, Commit, Kind, NewChunk, Placement, Refusal, SubstrateError
from cantrip_acp.substrate.stores.base import (
    MOST_RANKED,
    NOW,
    Match,
    Record,
    decode_chunk,
    decode_spec,
    encode_spec,
    searched_text,
)

APPLICATION = 0x43535542
"""The database's ``application_id``: the letters CSUB."""
_PATIENCE_S = 30.0
"""How long to wait while another process writes."""


def _record(row: str) -> str:
    """`Chunk.is_record`, of a row."""
    return f"({row}.id GLOB 'process-*' OR {row}.source GLOB 'session:*' OR {row}.source GLOB 'program:*')"


def _known(row: str) -> str:
    """Whether a row is in the table ``known``: what a search looks for first. It is small, whatever was recorded."""
    return f"NOT {_record(row)} AND {row}.id <> 'types' AND {row}.id NOT GLOB 'type:*'"


def _text(row: str) -> str:
    """`searched_text`, of a row."""
    body = f"CAST({row}.body AS TEXT)"
    texts = f"(SELECT group_concat(atom, char(10)) FROM json_tree({body}) WHERE type = 'text')"
    return f"coalesce(CASE json_type({body}, '$.text') WHEN 'text' THEN {body} ->> '$.text' END, {texts}, '')"


MIGRATIONS = (
    """
    CREATE TABLE commits (
        number INTEGER PRIMARY KEY, at REAL NOT NULL, author TEXT NOT NULL, source TEXT NOT NULL, message TEXT NOT NULL,
        changed INTEGER
    );
    CREATE TABLE chunk_versions (
        position INTEGER PRIMARY KEY, id TEXT NOT NULL, number INTEGER NOT NULL REFERENCES commits, name TEXT NOT NULL,
        spec TEXT NOT NULL, body BLOB NOT NULL, source TEXT NOT NULL
    );
    CREATE UNIQUE INDEX chunk_of_commit ON chunk_versions (id, number);
    CREATE INDEX chunk_names ON chunk_versions (name);
    CREATE INDEX chunks_of_commit ON chunk_versions (number);
    CREATE TABLE placement_versions (
        scope TEXT NOT NULL, chunk TEXT NOT NULL, kind TEXT NOT NULL, number INTEGER NOT NULL REFERENCES commits,
        sequence INTEGER, removed INTEGER NOT NULL, PRIMARY KEY (scope, kind, chunk, number)
    ) WITHOUT ROWID;
    CREATE INDEX placements_of_chunk ON placement_versions (chunk, kind, scope, number, removed);
    CREATE INDEX placement_sequences ON placement_versions (scope, sequence);
    CREATE INDEX placement_times ON placement_versions (scope, kind, number);
    CREATE INDEX placements_of_commit ON placement_versions (number);
    CREATE TABLE refusals (
        position INTEGER PRIMARY KEY, at REAL NOT NULL, author TEXT NOT NULL, operation TEXT NOT NULL, chunk TEXT NOT NULL,
        text TEXT NOT NULL
    );
    CREATE VIRTUAL TABLE searched USING fts5(name, text, content='', prefix='2 3 4');
    CREATE TRIGGER commits_changed BEFORE UPDATE ON commits WHEN old.changed IS NOT NULL
        BEGIN SELECT RAISE(ABORT, 'commits are append-only'); END;
    CREATE TRIGGER commits_deleted BEFORE DELETE ON commits BEGIN SELECT RAISE(ABORT, 'commits are append-only'); END;
    CREATE TRIGGER chunks_changed BEFORE UPDATE ON chunk_versions BEGIN SELECT RAISE(ABORT, 'chunks are append-only'); END;
    CREATE TRIGGER chunks_deleted BEFORE DELETE ON chunk_versions BEGIN SELECT RAISE(ABORT, 'chunks are append-only'); END;
    CREATE TRIGGER placements_changed BEFORE UPDATE ON placement_versions
        BEGIN SELECT RAISE(ABORT, 'placements are append-only'); END;
    CREATE TRIGGER placements_deleted BEFORE DELETE ON placement_versions
        BEGIN SELECT RAISE(ABORT, 'placements are append-only'); END;
    """,
    f"""
    CREATE VIRTUAL TABLE known USING fts5(name, text, content='', prefix='2 3 4');
    CREATE TRIGGER chunk_known AFTER INSERT ON chunk_versions WHEN {_known("new")}
        BEGIN INSERT INTO known (rowid, name, text) VALUES (new.position, new.name, {_text("new")}); END;
    INSERT INTO known (rowid, name, text) SELECT position, name, {_text("v")} FROM chunk_versions v WHERE {_known("v")};
    """,
    # INSERT OR REPLACE deletes what it replaces without a trigger of DELETE.
    """
    CREATE TRIGGER commits_replaced BEFORE INSERT ON commits
        WHEN EXISTS (SELECT 1 FROM commits WHERE number = new.number)
        BEGIN SELECT RAISE(ABORT, 'commits are append-only'); END;
    CREATE TRIGGER chunks_replaced BEFORE INSERT ON chunk_versions
        WHEN EXISTS (SELECT 1 FROM chunk_versions WHERE position = new.position OR (id = new.id AND number = new.number))
        BEGIN SELECT RAISE(ABORT, 'chunks are append-only'); END;
    CREATE TRIGGER placements_replaced BEFORE INSERT ON placement_versions
        WHEN EXISTS (SELECT 1 FROM placement_versions WHERE scope = new.scope AND kind = new.kind AND chunk = new.chunk
            AND number = new.number)
        BEGIN SELECT RAISE(ABORT, 'placements are append-only'); END;
    """,
)
"""The statements that lead from each version of the tables to the next. They only add, so an older version goes on working."""
READS_TO = 99
"""The highest version of tables that this version works with. A version from 100 on may have changed what exists."""

_CHUNK = "v.id, v.name, v.spec, v.body, v.source, v.number"
_VERSION = f"SELECT {_CHUNK} FROM chunk_versions v WHERE v.id = ? AND v.number <= ? ORDER BY v.number DESC LIMIT 1"
# SQLite takes the other columns from the row of the MAX.
_LATEST = "SELECT scope, chunk, kind, sequence, removed, MAX(number) AS number FROM placement_versions"
_PLACED = f"""
    SELECT p.scope, p.kind, p.sequence, p.number, {_CHUNK} FROM
        ({_LATEST} WHERE scope IN (SELECT value FROM json_each(:scopes)) AND kind IN ('instance', 'relates')
         AND chunk BETWEEN :ids AND :ids || char(127) AND number <= :at GROUP BY scope, kind, chunk) p
    JOIN chunk_versions v ON v.id = p.chunk
        AND v.number = (SELECT MAX(number) FROM chunk_versions WHERE id = p.chunk AND number <= :at)
    WHERE NOT p.removed
"""
_NEWEST = f"""
    SELECT {_CHUNK} FROM (SELECT * FROM placement_versions WHERE scope = :scope AND kind = 'instance' AND number <= :at
        ORDER BY number DESC LIMIT :limit) p
    JOIN chunk_versions v ON v.id = p.chunk
        AND v.number = (SELECT MAX(number) FROM chunk_versions WHERE id = p.chunk AND number <= :at)
    WHERE NOT p.removed AND p.number = (SELECT MAX(number) FROM placement_versions
        WHERE scope = p.scope AND kind = p.kind AND chunk = p.chunk AND number <= :at)
    ORDER BY p.number DESC
"""
_TOUCHED = """
    SELECT number FROM chunk_versions WHERE id = :scope
    UNION SELECT number FROM placement_versions WHERE scope = :scope OR (chunk = :scope AND kind = 'instance')
    UNION SELECT number FROM chunk_versions WHERE id IN (SELECT chunk FROM placement_versions WHERE scope = :scope)
"""


# Each row of the table `known` has one here.
_NOT_KNOWN = "AND NOT EXISTS (SELECT 1 FROM known_docsize WHERE id = searched.rowid)"


class SqliteTables:
    """Chunks in a file. The file is created, with its folders, for the user only. Raises `SubstrateError`."""

    several_users = False
    user = ""

    def __init__(self, path: Path | str) -> None:
        # In memory, its connections share a name that no other database has.
        self._memory = f"file:/{secrets.token_hex(8)}?vfs=memdb" if path == ":memory:" else ""
        self.path = Path(os.path.abspath(path))
        self._locks = {"read": threading.RLock(), "write": threading.RLock()}
        self._views: dict[str, SqliteView] = {}
        self._closed = False
        self._held: guarded.Held | None = None
        try:
            if not self._memory:
                self._held = guarded.Held(self.path, WAL_FILES, (ROLLBACK,), (ROLLBACK,))
                Folder.make_database(self.path, 0o700)
            with self._failures("open"):
                self._views["write"] = SqliteView(self._connect())
                self._prepare(self._views["write"].base)
        except OSError as error:
            self.close()
            raise SubstrateError(f"cannot open substrate {self.path}: {error.strerror}") from None
        except SubstrateError:
            self.close()
            raise

    @property
    def location(self) -> str:
        return f"sqlite:{self.path}" if not self._memory else "memory"

    def __repr__(self) -> str:
        return f"SqliteTables({str(self.path)!r})"

    def separation(self) -> None:
        """It is one user's alone."""

    def secure(self, earlier: str = "") -> int:
        raise SubstrateError(
            f"{self.path} is a SQLite file, which only its owner can read: there is nobody to keep out"
        )

    def _connect(self) -> sqlite3.Connection:
        address = self._memory or f"{self.path.as_uri()}?mode=rw"
        return sqlite3.connect(
            address, uri=True, timeout=_PATIENCE_S, isolation_level=None, check_same_thread=False, cached_statements=256
        )

    def _prepare(self, base: sqlite3.Connection) -> None:
        # In this order: another process creates both at once.
        (tables,) = base.execute("SELECT count(*) FROM sqlite_master").fetchone()
        (application,) = base.execute("PRAGMA application_id").fetchone()
        if tables and application != APPLICATION:
            raise SubstrateError(f"cannot open substrate {self.path}: the file is a database of another program")
        (version,) = base.execute("PRAGMA user_version").fetchone()
        if version > READS_TO:
            raise SubstrateError(
                f"cannot open substrate {self.path}: its tables have version {version}, and this version of cantrip reads "
                f"up to {READS_TO}; update cantrip"
            )
        use_write_ahead_log(base, _PATIENCE_S)
        if version >= len(MIGRATIONS):
            return
        base.execute("BEGIN IMMEDIATE")
        try:
            # Another process may have done it meanwhile.
            (version,) = base.execute("PRAGMA user_version").fetchone()
            for number, script in enumerate(MIGRATIONS[version:], version + 1):
                for statement in statements(script):
                    base.execute(statement)
                base.execute(f"PRAGMA user_version = {number}")
            base.execute(f"PRAGMA application_id = {APPLICATION}")
            base.execute("COMMIT")
        except BaseException:
            if base.in_transaction:
                base.execute("ROLLBACK")
            raise

    @contextlib.contextmanager
    def reading(self) -> Iterator[SqliteView]:
        with self._locks["read"], self._failures("read"):
            view = self._views.get("read")
            if view is None:
                # The writer's connection is for changes, so that a reader does not wait for one.
                view = self._views["read"] = SqliteView(self._connect())
            if view.base.in_transaction:
                yield view
                return
            view.base.execute("BEGIN")
            try:
                yield view
            finally:
                view.undo()

    @contextlib.contextmanager
    def writing(self, durable: bool = True) -> Iterator[SqliteView]:
        with self._locks["write"], self._failures("change"):
            view = self._views["write"]
            view.base.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            view.base.execute("BEGIN IMMEDIATE")
            try:
                yield view
                if view.base.in_transaction:
                    view.base.execute("COMMIT")
            finally:
                view.undo()

    @contextlib.contextmanager
    def _failures(self, operation: str) -> Iterator[None]:
        if self._closed:
            raise SubstrateError(f"cannot {operation} substrate {self.path}: it was closed")
        try:
            yield
        except sqlite3.Error as error:
            hint = ""
            if isinstance(error, sqlite3.OperationalError) and "locked" in str(error):
                hint = f": another process held it for {_PATIENCE_S:.0f} s"
            raise SubstrateError(f"cannot {operation} substrate {self.path}: {error}{hint}") from None

    def close(self) -> None:
        """Close the file. What was committed is on the disk."""
        with self._locks["read"], self._locks["write"]:
            self._closed = True
            while self._views:
                _, view = self._views.popitem()
                view.base.close()
            if self._held is not None:
                self._held.release()


class SqliteView:
    """One connection, in a transaction."""

    def __init__(self, base: sqlite3.Connection) -> None:
        self.base = base
        base.execute("PRAGMA temp_store = MEMORY")
        # In KiB. The system keeps the file in memory anyway, once for all processes.
        base.execute("PRAGMA cache_size = -512")

    def _all(self, statement: str, *values: Any) -> list[Any]:
        return self.base.execute(statement, values).fetchall()

    def latest(self) -> int:
        (number,) = self.base.execute("SELECT MAX(number) FROM commits").fetchone()
        return number or 0

    def chunk(self, chunk_id: str, at: int = NOW) -> Chunk | None:
        row = self.base.execute(_VERSION, (chunk_id, at)).fetchone()
        return decode_chunk(row) if row else None

    def chunks(self, ids: Collection[str], at: int = NOW) -> list[Chunk]:
        rows = self._all(
            f"""SELECT {_CHUNK} FROM chunk_versions v WHERE v.id IN (SELECT value FROM json_each(?))
                AND v.number = (SELECT MAX(number) FROM chunk_versions WHERE id = v.id AND number <= ?)""",
            json.dumps([*ids]),
            at,
        )
        return [decode_chunk(row) for row in rows]

    def named(self, name: str, at: int = NOW) -> list[Chunk]:
        rows = self._all(
            f"""SELECT {_CHUNK} FROM chunk_versions v WHERE v.name = ? AND v.number =
                (SELECT MAX(number) FROM chunk_versions WHERE id = v.id AND number <= ?) ORDER BY v.position DESC""",
            name,
            at,
        )
        return [decode_chunk(row) for row in rows]

    def names(self) -> list[str]:
        return [name for (name,) in self._all("SELECT DISTINCT name FROM chunk_versions LIMIT 20000")]

    def placed(self, scopes: Collection[str], at: int = NOW, *, ids: str = "") -> list[tuple[Chunk, Placement]]:
        values = {"scopes": json.dumps([*scopes]), "ids": ids, "at": at}
        return [
            (chunk := decode_chunk(row[4:]), Placement(chunk.id, *row[:4]))
            for row in self.base.execute(_PLACED, values)
        ]

    def newest(self, scope: str, limit: int, at: int = NOW) -> list[Chunk]:
        rows = self.base.execute(_NEWEST, {"scope": scope, "at": at, "limit": limit})
        return [decode_chunk(row) for row in rows]

    def parents(self, chunk_id: str, at: int = NOW) -> list[Placement]:
        rows = self._all(f"{_LATEST} WHERE chunk = ? AND number <= ? GROUP BY scope, kind", chunk_id, at)
        return [_placement(row) for row in rows if not row[4]]

    def above(self, chunks: Collection[str], kinds: Collection[Kind], at: int = NOW) -> list[tuple[str, str, bool]]:
        rows = self._all(
            """SELECT p.chunk, p.scope, (SELECT spec FROM chunk_versions v WHERE p.kind = 'instance' AND v.id = p.scope
                   AND v.number <= ? ORDER BY v.number DESC LIMIT 1)
               FROM (SELECT chunk, scope, kind, removed, MAX(number) FROM placement_versions
                   WHERE chunk IN (SELECT value FROM json_each(?)) AND kind IN (SELECT value FROM json_each(?))
                   AND number <= ? GROUP BY chunk, kind, scope) p
               WHERE NOT p.removed""",
            at,
            json.dumps([*chunks]),
            json.dumps([*kinds]),
            at,
        )
        return [(chunk, scope, bool(spec) and decode_spec(spec).archetype) for chunk, scope, spec in rows]

    def placement(self, scope: str, chunk_id: str, kind: Kind, at: int = NOW) -> Placement | None:
        row = self.base.execute(
            """SELECT scope, chunk, kind, sequence, removed, number FROM placement_versions
               WHERE scope = ? AND chunk = ? AND kind = ? AND number <= ? ORDER BY number DESC LIMIT 1""",
            (scope, chunk_id, kind, at),
        ).fetchone()
        return _placement(row) if row and not row[4] else None

    def references(self, scope: str) -> list[Placement]:
        rows = self._all(f"{_LATEST} WHERE scope = ? AND kind = 'relates' GROUP BY chunk", scope)
        return [_placement(row) for row in rows if not row[4]]

    def at_sequence(self, scope: str, sequence: int) -> list[Placement]:
        rows = self._all(
            "SELECT DISTINCT chunk, kind FROM placement_versions WHERE scope = ? AND sequence = ?", scope, sequence
        )
        found = [self.placement(scope, chunk, kind) for chunk, kind in rows]
        return [each for each in found if each is not None and each.sequence == sequence]

    def highest_sequence(self, scope: str) -> int:
        (highest,) = self.base.execute(
            "SELECT MAX(sequence) FROM placement_versions WHERE scope = ?", (scope,)
        ).fetchone()
        return -1 if highest is None else highest

    def commits(self, scope: str | None, limit: int, before: int) -> list[Commit]:
        where = f"AND number IN ({_TOUCHED})" if scope is not None else ""
        rows = self.base.execute(
            f"""SELECT number, at, author, source, message, changed FROM commits WHERE number < :before {where}
                ORDER BY number DESC LIMIT :limit""",
            {"scope": scope, "before": before, "limit": limit},
        ).fetchall()
        return [Commit(*row) for row in rows]

    def changed(self, chunks: Collection[str], after: int) -> bool:
        # With + the index of numbers is used: the commits after the last look are few.
        (found,) = self.base.execute(
            """SELECT EXISTS (SELECT 1 FROM chunk_versions
                   WHERE number > :after AND +id IN (SELECT value FROM json_each(:chunks)))
               OR EXISTS (SELECT 1 FROM placement_versions
                   WHERE number > :after AND +scope IN (SELECT value FROM json_each(:chunks)))""",
            {"after": after, "chunks": json.dumps([*chunks])},
        ).fetchone()
        return bool(found)

    def versions(self, after: int, until: int) -> list[Chunk]:
        rows = self._all(
            f"SELECT {_CHUNK} FROM chunk_versions v WHERE v.number > ? AND v.number <= ? ORDER BY v.position",
            after,
            until,
        )
        return [decode_chunk(row) for row in rows]

    def records(self, after: int, until: int) -> list[Record]:
        rows = self._all(
            """SELECT chunk, scope, kind, sequence, number, removed FROM placement_versions
               WHERE number > ? AND number <= ? ORDER BY number, scope, sequence, chunk, kind""",
            after,
            until,
        )
        return [
            Record(chunk, scope, kind, sequence, number, bool(removed))
            for chunk, scope, kind, sequence, number, removed in rows
        ]

    def search(
        self, words: Sequence[str], match: Match, at: int, limit: int, *, known: bool, skip: int = 0
    ) -> list[tuple[str, str]]:
        # In quotes, a word is never an operator. A word has no quotes.
        query = (" OR " if match == "any" else " ").join(f'"{word}"' for word in words)
        if match == "beginning":
            query += "*"
        table, which, other = ("known", "", "") if known else ("searched", f"{_record('v')} AND", _NOT_KNOWN)
        return self._all(
            f"""SELECT v.id, v.source FROM
                (SELECT rowid AS position, bm25({table}, 4.0, 1.0) AS score FROM {table} WHERE {table} MATCH ? {other}
                 ORDER BY rowid DESC LIMIT {MOST_RANKED} OFFSET ?) s
                JOIN chunk_versions v ON v.position = s.position
                WHERE {which} v.number = (SELECT MAX(number) FROM chunk_versions WHERE id = v.id AND number <= ?)
                ORDER BY s.score, v.position DESC LIMIT ?""",
            query,
            skip,
            at,
            limit,
        )

    def refusals(self, limit: int) -> list[Refusal]:
        rows = self._all(
            "SELECT at, author, operation, chunk, text FROM refusals ORDER BY position DESC LIMIT ?", limit
        )
        return [Refusal(*row) for row in rows]

    def add_commit(self, at: float, author: str, source: str, message: str) -> int:
        number = self.base.execute(
            "INSERT INTO commits (at, author, source, message) VALUES (?, ?, ?, ?)", (at, author, source, message)
        ).lastrowid
        assert number is not None
        return number

    def set_changed(self, number: int, changed: int) -> None:
        self.base.execute("UPDATE commits SET changed = ? WHERE number = ?", (changed, number))

    def own(self, chunks: Collection[str]) -> set[str]:
        return set()

    def add_chunk(self, chunk: NewChunk, body: bytes, source: str, number: int, *, private: bool = False) -> None:
        position = self.base.execute(
            "INSERT INTO chunk_versions (id, number, name, spec, body, source) VALUES (?, ?, ?, ?, ?, ?)",
            (chunk.id, number, chunk.name, encode_spec(chunk.spec), body, source),
        ).lastrowid
        self.base.execute(
            "INSERT INTO searched (rowid, name, text) VALUES (?, ?, ?)",
            (position, chunk.name, searched_text(chunk.body)),
        )

    def add_record(self, record: Record) -> None:
        self.base.execute(
            "INSERT INTO placement_versions (scope, chunk, kind, number, sequence, removed) VALUES (?, ?, ?, ?, ?, ?)",
            (record.scope, record.chunk, record.kind, record.commit, record.sequence, record.removed),
        )

    def add_refusal(self, refusal: Refusal) -> None:
        self.base.execute(
            "INSERT INTO refusals (at, author, operation, chunk, text) VALUES (?, ?, ?, ?, ?)",
            (refusal.at, refusal.author, refusal.operation, refusal.chunk, refusal.text),
        )

    def undo(self) -> None:
        if self.base.in_transaction:
            self.base.execute("ROLLBACK")


def _placement(row: Sequence[Any]) -> Placement:
    scope, chunk, kind, sequence, _, number = row
    return Placement(chunk, scope, kind, sequence, number)
