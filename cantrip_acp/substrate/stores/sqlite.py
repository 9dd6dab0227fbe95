"""SQLite database of the substrate: one file for the processes of one user on one machine."""

from __future__ import annotations

import contextlib
import os
import secrets
import sqlite3
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from cantrip_acp.db import dialect
from cantrip_acp.db import sqlite as db
from cantrip_acp.files import guarded
from cantrip_acp.substrate.chunks import NewChunk, Refusal, SubstrateError
from cantrip_acp.substrate.stores.base import MOST_RANKED, Match, Record, encode_spec, searched_text
from cantrip_acp.substrate.stores.sql import STORE, SqlTables, SqlView

_PATIENCE_S = 30.0
"""How long to wait while another process writes."""


def _record(row: str) -> str:
    """`Chunk.is_record` for a row."""
    return f"({row}.id GLOB 'process-*' OR {row}.source GLOB 'session:*' OR {row}.source GLOB 'program:*')"


def _known(row: str) -> str:
    """Whether a row belongs in the table ``known``, which is searched first and stays small however much is recorded."""
    return f"NOT {_record(row)} AND {row}.id <> 'types' AND {row}.id NOT GLOB 'type:*'"


def _text(row: str) -> str:
    """`searched_text` for a row."""
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
    # INSERT OR REPLACE deletes the old row without a trigger of DELETE.
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

# Each row of the table `known` has one here.
_NOT_KNOWN = "AND NOT EXISTS (SELECT 1 FROM known_docsize WHERE id = searched.rowid)"


class SqliteTables(SqlTables["SqliteView"]):
    """Chunks in a file. The file is created, with its folders, for the user only. Raises `SubstrateError`."""

    several_users = False
    user = ""
    _driver = sqlite3.Error

    def __init__(self, path: Path | str) -> None:
        super().__init__()
        # In memory, its connections share a name that no other database has.
        self._memory = f"file:/{secrets.token_hex(8)}?vfs=memdb" if path == ":memory:" else ""
        self.path = Path(os.path.abspath(path))
        self.location = f"sqlite:{self.path}" if not self._memory else "memory"
        self._held: guarded.Held | None = None
        try:
            if not self._memory:
                self._held = db.held(self.path)
                db.make(self.path, 0o700)
            with self._failures("open"):
                self._views["write"] = SqliteView(self._connect())
                db.migrate(self._views["write"].base, STORE, MIGRATIONS, self.path, _PATIENCE_S)
        except OSError as error:
            self.close()
            raise self._failure("open", error.strerror) from None
        except SubstrateError:
            self.close()
            raise

    def separation(self) -> None:
        """Return None: the file belongs to one user."""

    def secure(self, earlier: str = "") -> int:
        raise SubstrateError(
            f"{self.path} is a SQLite file, which only its owner can read: there is nobody to keep out"
        )

    def _connect(self) -> sqlite3.Connection:
        return db.connect(self._memory or f"{self.path.as_uri()}?mode=rw", _PATIENCE_S, 256)

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
            with db.transaction(view.base, "BEGIN"):
                yield view

    @contextlib.contextmanager
    def writing(self, durable: bool = True) -> Iterator[SqliteView]:
        with self._locks["write"], self._failures("change"):
            view = self._views["write"]
            view.base.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            with db.transaction(view.base):
                yield view

    def _failure(self, operation: str, error: object) -> Exception:
        locked = isinstance(error, sqlite3.OperationalError) and "locked" in str(error)
        hint = f": another process held it for {_PATIENCE_S:.0f} s" if locked else ""
        return STORE.failure(operation, self.path, error, hint)

    def close(self) -> None:
        super().close()
        if self._held is not None:
            self._held.release()

    def _end(self, view: SqliteView) -> None:
        view.base.close()


class SqliteView(SqlView):
    _dialect = dialect.Sqlite()
    _latest = "ORDER BY number DESC LIMIT 1"
    _wanted = "(SELECT value AS id FROM json_each(:ids)) wanted"
    _begins = "chunk BETWEEN :ids AND :ids || char(127)"
    _times = "scope = :scope AND kind = 'instance' AND number <= :at ORDER BY number DESC"
    _rare = "+"

    def __init__(self, base: sqlite3.Connection) -> None:
        self.base = base
        base.execute("PRAGMA temp_store = MEMORY")
        # In KiB. The system keeps the file in memory anyway, once for all processes.
        base.execute("PRAGMA cache_size = -512")

    def _all(self, statement: str, /, **values: Any) -> list[Any]:
        return self.base.execute(self._dialect.statement(statement), self._dialect.values(values)).fetchall()

    def _version(self, chunk: str) -> str:
        return (
            f"JOIN chunk_versions v ON v.id = {chunk} "
            f"AND v.number = (SELECT max(number) FROM chunk_versions WHERE id = {chunk} AND number <= :at)"
        )

    def _last(self, columns: str, by: str, where: str) -> str:
        # SQLite takes the other columns from the row of the maximum.
        return f"(SELECT {columns}, max(number) AS number FROM placement_versions WHERE {where} GROUP BY {by})"

    def search(
        self, words: Sequence[str], match: Match, at: int, limit: int, *, known: bool, skip: int = 0
    ) -> list[tuple[str, str]]:
        # In quotes, a word is never an operator. A word has no quotes.
        query = (" OR " if match == "any" else " ").join(f'"{word}"' for word in words)
        if match == "beginning":
            query += "*"
        table, which, other = ("known", "", "") if known else ("searched", f"{_record('v')} AND", _NOT_KNOWN)
        rows = self.base.execute(
            f"""SELECT v.id, v.source FROM
                (SELECT rowid AS position, bm25({table}, 4.0, 1.0) AS score FROM {table} WHERE {table} MATCH ? {other}
                 ORDER BY rowid DESC LIMIT {MOST_RANKED} OFFSET ?) s
                JOIN chunk_versions v ON v.position = s.position
                WHERE {which} v.number = (SELECT MAX(number) FROM chunk_versions WHERE id = v.id AND number <= ?)
                ORDER BY s.score, v.position DESC LIMIT ?""",
            (query, skip, at, limit),
        )
        return rows.fetchall()

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
