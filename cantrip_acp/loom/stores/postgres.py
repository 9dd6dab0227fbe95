"""Looms in a PostgreSQL database: many hosts write them, each record in a transaction of its own.

Two tables in the connection's schema, ``cantrip_looms`` and ``cantrip_records``, hold any number of looms by name. The
database refuses what a loom may not do (LOOM-3): a trigger gives each record its place, one writer of a loom at a time, so
that a later place is never seen before an earlier one; no row is changed, deleted or truncated.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from cantrip_acp.errors import LoomAppendOnly, LoomError, LoomWriteError
from cantrip_acp.loom import heads
from cantrip_acp.loom.heads import Head
from cantrip_acp.loom.stores import pgtables, rows
from cantrip_acp.loom.stores.contract import Problem
from cantrip_acp.loom.stores.pgtables import LOCK, TABLES
from cantrip_acp.loom.stores.pgurl import PgUrl
from cantrip_acp.loom.turn import Record

if TYPE_CHECKING:
    from cantrip_acp.loom.tree import Tree

try:
    import psycopg
    from psycopg.conninfo import conninfo_to_dict
except ImportError as error:
    raise LoomError(
        f"a loom in PostgreSQL needs psycopg ({error}); pip install 'cantrip-acp[postgres]', or keep it in sqlite:FILE"
    ) from None

_DEFAULTS = {"connect_timeout": "10", "application_name": "cantrip-acp", "tcp_user_timeout": "30000"}
_PAGE = {"head": 20_000, "body": 500}


class PostgresStore:
    """The records of one loom. A record is as durable as the server is set to make it; ``fsync`` insists on its disk.

    A lost connection fails what was under way and is made again for what comes next. Raises `LoomError` where there is no
    server, database or right to use it.
    """

    sole = False

    def __init__(self, url: str, *, fsync: bool = False, readonly: bool = False) -> None:
        self._url = PgUrl.of(url)
        self.problems: list[Problem] = []
        self.readonly = readonly
        self.behind = False
        self._fsync = fsync
        self._seen = 0
        self._closed = False
        self._base: psycopg.Connection[Any] | None = self._connect()
        try:
            self._loom = self._prepare(self._base)
        except psycopg.Error as error:
            self.close()
            raise LoomError(self._says("cannot open", error)) from None
        except BaseException:
            self.close()
            raise

    @property
    def location(self) -> str | None:
        """The address, without a password."""
        return self._url.shown

    def __repr__(self) -> str:
        return f"PostgresStore({self._url.shown!r})"

    def _says(self, what: str, error: object) -> str:
        return f"{what} loom {self._url.shown}: {self._url.clean(error)}"

    def _connect(self) -> psycopg.Connection[Any]:
        try:
            settings: dict[str, Any] = {**_DEFAULTS, **conninfo_to_dict(self._url.server)}
        except psycopg.Error:
            # What the driver says of it repeats parts of it.
            raise LoomError(
                f"cannot open loom {self._url.shown}: the address has a part that PostgreSQL does not know"
            ) from None
        try:
            base = psycopg.connect(**settings, autocommit=True)
            base.execute("SET lock_timeout = '10s'")
            if self._fsync:
                base.execute("SET synchronous_commit = on")
            if self.readonly:
                base.execute("SET default_transaction_read_only = on")
        except psycopg.Error as error:
            mend = "Is the server running and reachable, and are user, password (or ~/.pgpass) and database right?"
            raise LoomError(f"{self._says('cannot open', error)}. {mend}") from None
        return base

    def _prepare(self, base: psycopg.Connection[Any]) -> int:
        if not self.readonly:
            self._make(base)
        elif not self._exists(base):
            raise LoomError(f"cannot open loom {self._url.shown}: this database has no looms")
        row = base.execute("SELECT id, tables FROM cantrip_looms WHERE name = %s", (self._url.loom,)).fetchone()
        if row is None:
            raise LoomError(f"cannot open loom {self._url.shown}: no loom of that name is in this database")
        if row[1] > TABLES:
            raise LoomError(
                f"loom {self._url.shown} has tables of version {row[1]}; this version reads up to {TABLES}. "
                "Upgrade cantrip-acp"
            )
        self._look_after_guards(base)
        return int(row[0])

    def _look_after_guards(self, base: psycopg.Connection[Any]) -> None:
        """Whoever owns the tables may take their triggers away; that is told, and a writer puts them back."""
        gone = pgtables.gone(base.execute(pgtables.LOOK).fetchall())
        if not gone:
            return
        what = f"the database's guards were removed, changed or disabled ({', '.join(gone)})"
        if not self.readonly:
            try:
                with base.transaction():
                    base.execute("SELECT pg_advisory_xact_lock(%s, 0)", (LOCK,))
                    base.execute(pgtables.GUARDS)
            except psycopg.errors.InsufficientPrivilege:
                raise LoomError(
                    f"cannot write loom {self._url.shown}: {what}; open it once as the owner of its tables, which puts them back"
                ) from None
        again = "" if self.readonly else "; they are there again"
        self.problems.append(Problem(f"{what}: records may have been changed or deleted meanwhile{again}"))

    @staticmethod
    def _exists(base: psycopg.Connection[Any]) -> bool:
        row = base.execute("SELECT to_regclass('cantrip_records') IS NOT NULL").fetchone()
        return bool(row and row[0])

    def _make(self, base: psycopg.Connection[Any]) -> None:
        if not self._exists(base):
            with base.transaction():
                base.execute("SELECT pg_advisory_xact_lock(%s, 0)", (LOCK,))
                # Another process may have been faster.
                if not self._exists(base):
                    base.execute(pgtables.SCHEMA + pgtables.GUARDS)
        name = self._url.loom
        known = base.execute("SELECT 1 FROM cantrip_looms WHERE name = %s", (name,)).fetchone()
        if known is None:
            add = "INSERT INTO cantrip_looms (name, tables) VALUES (%s, %s) ON CONFLICT DO NOTHING"
            base.execute(add, (name, TABLES))

    @property
    def _open(self) -> psycopg.Connection[Any]:
        if self._closed:
            raise LoomError(f"loom {self._url.shown} is closed")
        if self._base is None or self._base.closed:
            self._base = self._connect()
        return self._base

    def append(self, record: Record) -> int:
        if self.readonly and not self._closed:
            raise LoomError(f"loom {self._url.shown} is open for reading only")
        row = rows.row_of(record)
        values = (self._loom, row.kind, row.turn_id, row.parent_id, row.head, row.body)
        add = (
            "INSERT INTO cantrip_records (loom, n, kind, turn_id, parent_id, head, body) "
            "VALUES (%s, 0, %s, %s, %s, %s, %s) RETURNING n"
        )
        base = self._open
        try:
            kept = base.execute(add, values, prepare=True).fetchone()
        except psycopg.IntegrityError as error:
            raise self._refused(error, row) from None
        except psycopg.Error as error:
            lost = "; the connection was lost, and whether this record is kept is seen when the loom is read again"
            raise LoomWriteError(
                f"{self._says('cannot write', error)}{lost if base.closed else ''}; what was written before is whole. "
                "Look after the server (is it up, has it room?) and go on"
            ) from None
        assert kept is not None
        position = int(kept[0])
        self.behind = position != self._seen + 1
        if not self.behind:
            self._seen = position
        return position

    def _refused(self, error: psycopg.Error, row: rows.Row) -> LoomError:
        why = str(error)
        if rows.ORPHAN in why:
            return LoomError(f"turn {row.turn_id!r} names a parent that is not in this loom: {row.parent_id!r}")
        if rows.TAKEN in why:
            return LoomAppendOnly(f"loom is append-only: turn {row.turn_id!r} is already written")
        if rows.HEADED in why:
            return LoomAppendOnly(f"loom {self._url.shown} has its header already")
        return LoomWriteError(self._says("cannot write", error))

    def _ask(self, query: Any, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        """Rows; asked once more where the connection turns out to have been lost."""
        for last in (False, True):
            base = self._open
            try:
                return base.execute(query, values, prepare=True, binary=True).fetchall()
            except psycopg.Error as error:
                if last or not base.closed:
                    raise LoomError(self._says("cannot read", error)) from None
        raise AssertionError

    def read(self, position: int) -> Record:
        return self.read_all((position,))[0]

    def read_all(self, positions: Iterable[int]) -> list[Record]:
        wanted, found = list(positions), []
        for at in range(0, len(wanted), 1000):
            part = wanted[at : at + 1000]
            query = "SELECT n, body FROM cantrip_records WHERE loom = %s AND n = ANY(%s)"
            bodies = dict(self._ask(query, (self._loom, part)))
            for position in part:
                if position not in bodies:
                    raise LoomError(f"loom {self._url.shown}: there is no record {position}")
                try:
                    found.append(rows.record_of(bodies[position]))
                except (msgspec.DecodeError, UnicodeError) as error:
                    raise LoomError(f"loom {self._url.shown}: record {position} is damaged: {error}") from error
        return found

    def tree(self) -> Tree | None:
        return None

    def heads(self) -> Iterator[tuple[int, Head]]:
        noted: list[Problem] = []
        for position, head in self._decoded("head", heads.decode, noted, self._seen):
            newer = rows.too_new(head)
            if newer is not None:
                raise LoomError(f"loom {self._url.shown} has {newer}. Upgrade cantrip-acp")
            self._seen = max(self._seen, position)
            yield position, head
        # What is damaged at the end is met again by the next look for news.
        self.problems += [problem for problem in noted if problem not in self.problems]

    def note(self, position: int, message: str) -> None:
        self.problems.append(Problem(f"record {position}: {message}", offset=position))

    def news(self) -> Iterator[tuple[int, Head]]:
        """The heads of what was written, here or elsewhere, since the last one that the tree was given."""
        self.behind = False
        return self.heads()

    def scan(self) -> Iterator[tuple[int, Record]]:
        yield from self._decoded("body", rows.record_of, [], 0)

    def _decoded(self, column: str, decode: Any, noted: list[Problem], after: int) -> Iterator[tuple[int, Any]]:
        query = f"SELECT n, {column} FROM cantrip_records WHERE loom = %s AND n > %s ORDER BY n LIMIT %s"
        page = _PAGE[column]
        while True:
            # By pages and not by a cursor, which would hold a transaction open while others use the connection.
            found = self._ask(query, (self._loom, after, page))
            for position, data in found:
                if position > after + 1 and column == "head":
                    noted.append(rows.missing(after + 1, position - 1))
                after = position
                try:
                    record = decode(data)
                except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
                    noted.append(Problem(f"record {position} is damaged: {error}", offset=position))
                    continue
                yield position, record
            if len(found) < page:
                return

    def damaged(self) -> list[Problem]:
        noted: list[Problem] = []
        heads = dict(self._decoded("head", bytes, [], 0))
        for position, record in self._decoded("body", rows.record_of, noted, 0):
            if position in heads and not rows.agree(heads[position], record):
                noted.append(Problem(f"record {position} is not as it was written", offset=position))
        return noted

    def close(self, tree: Tree | None = None) -> None:
        self._closed = True
        base, self._base = self._base, None
        if base is not None:
            base.close()
