"""PostgreSQL store: looms in a database that many hosts write, each record in its own transaction.

Two tables in the connection's schema, ``cantrip_looms`` and ``cantrip_records``, hold any number of looms by name (and
``cantrip_chains`` the ends of checksum chains). Triggers enforce the rules of a loom (LOOM-3). One gives each record
its position, one writer of a loom at a time, so no later position is visible before an earlier one. The others refuse
to change, delete or truncate rows.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from cantrip_acp.loom.records import record_heads as heads
from cantrip_acp.loom.records.record_heads import Head, LaterHead
from cantrip_acp.loom.records.tree import Problem
from cantrip_acp.loom.stores import cast_locks, checksum, rows
from cantrip_acp.loom.stores.sql import KIND, TABLES, SqlStore, chain_ends
from cantrip_acp.types.errors import LoomError, LoomWriteError
from cantrip_acp.types.records import CastRecord, LaterRecord, Record

if TYPE_CHECKING:
    from cantrip_acp.loom.records.tree import Tree

# The letters cant: the first key of looms' advisory locks.
_KIND = KIND._replace(application=0x63616E74, error=LoomError)
try:
    import psycopg

    from cantrip_acp.db.postgres import Connection, Server, is_lost
    from cantrip_acp.loom.stores.postgres_cast_locks import RUNNING, PgCastLocks, abandon
except ImportError as error:
    raise _KIND.without_driver(error, "keep it in sqlite:FILE") from None

_SERVER = "Check the server (does it run, and has it disk space?) and try again"
_PAGE = {"head": 20_000, "body": 500}


class PostgresStore(SqlStore):
    """The records of one loom. The server's settings decide when a record is on the disk; with ``fsync`` each append
    waits for it.

    If the connection is lost, the current operation fails and the next one connects again. Raises `LoomError` if
    there is no server, no database or no permission.
    """

    _integrity = psycopg.IntegrityError
    _locks: PgCastLocks

    def __init__(self, url: str, *, fsync: bool = False, readonly: bool = False) -> None:
        super().__init__(readonly=readonly)
        self._server = Server(_KIND, url, "cantrip-acp")
        self.place = self.location = self._server.location
        self._address = url
        self._fsync = fsync
        self._chained = True
        self._closed = False
        self._reconnecting = threading.Lock()
        self._locks = PgCastLocks(self._connect, is_lost, self._ended)
        self._base: Connection | None = self._connect()
        try:
            self._loom = self._prepare(self._base)
            self._locks.loom = self._loom
            cast_locks.not_for_children(self)
        except psycopg.Error as error:
            self.close()
            raise self._server.failure("open", error) from None
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        return f"PostgresStore({self.place!r})"

    def _connect(self) -> Connection:
        settings = ["SET lock_timeout = '10s'"]
        if self._fsync:
            settings.append("SET synchronous_commit = on")
        if self.readonly:
            settings.append("SET default_transaction_read_only = on")
        return self._server.connect(*settings)

    def _prepare(self, base: Connection) -> int:
        if not self.readonly:
            self._create_tables(base)
        elif not self._exists(base):
            raise LoomError(f"cannot open loom {self.place}: this database has no looms")
        row = base.execute("SELECT id, tables FROM cantrip_looms WHERE name = %s", (self._server.url.loom,)).fetchone()
        if row is None:
            raise LoomError(f"cannot open loom {self.place}: no loom of that name is in this database")
        self._chained = row[1] > 1
        _KIND.check(self.place, row[1])
        if not (self._chained or self.readonly):
            self._upgrade(base, int(row[0]))
        self._check_triggers(base)
        return int(row[0])

    def _upgrade(self, base: Connection, loom: int) -> None:
        """Upgrade tables of version 1: start the chains after the existing records."""
        try:
            with base.transaction():
                base.execute("SELECT pg_advisory_xact_lock(%s, 0), pg_advisory_xact_lock(%s, %s)", (LOCK, LOCK, loom))
                base.execute(CHAINS + GUARDS)
                if base.execute("SELECT tables FROM cantrip_looms WHERE id = %s", (loom,)).fetchone() == (1,):
                    with base.cursor("bodies", binary=True) as bodies:
                        bodies.execute("SELECT body FROM cantrip_records WHERE loom = %s ORDER BY n", (loom,))
                        ends = chain_ends(body for (body,) in bodies)
                    for end in ends:
                        add = "INSERT INTO cantrip_chains (loom, entity, records, sum) VALUES (%s, %s, %s, %s)"
                        base.execute(add, (loom, *end))
                    base.execute(UPGRADE.format(tables=TABLES, loom=loom))
        except psycopg.errors.InsufficientPrivilege:
            raise LoomError(
                f"cannot write loom {self.place}: its tables are of an earlier version; "
                "open it once as the owner of its tables, which upgrades them"
            ) from None
        self._chained = True

    def _check_triggers(self, base: Connection) -> None:
        """Check the triggers, which the owner of the tables can remove. A missing one is reported, and a writer
        restores it."""
        missing = missing_triggers(base.execute(LOOK).fetchall(), chained=self._chained)
        if not missing:
            return
        what = f"the database's guards were removed, changed or disabled ({', '.join(missing)})"
        if not self.readonly:
            try:
                with base.transaction():
                    base.execute("SELECT pg_advisory_xact_lock(%s, 0)", (LOCK,))
                    base.execute(GUARDS)
            except psycopg.errors.InsufficientPrivilege:
                raise LoomError(
                    f"cannot write loom {self.place}: {what}; open it once as the owner of its tables, "
                    "which restores them"
                ) from None
        again = "" if self.readonly else "; they are there again"
        self.problems.append(Problem(f"{what}: records may have been changed or deleted meanwhile{again}"))

    @staticmethod
    def _exists(base: Connection) -> bool:
        # `to_regclass` would repeat its first answer in a transaction that waited for another process.
        look = "SELECT 1 FROM pg_class WHERE relname = 'cantrip_records' AND pg_table_is_visible(oid)"
        return base.execute(look).fetchone() is not None

    def _create_tables(self, base: Connection) -> None:
        if not self._exists(base):
            with base.transaction():
                base.execute("SELECT pg_advisory_xact_lock(%s, 0)", (LOCK,))
                # Another process may have created the tables first.
                if not self._exists(base):
                    base.execute(SCHEMA + CHAINS + GUARDS)
        name = self._server.url.loom
        known = base.execute("SELECT 1 FROM cantrip_looms WHERE name = %s", (name,)).fetchone()
        if known is None:
            add = "INSERT INTO cantrip_looms (name, tables) VALUES (%s, %s) ON CONFLICT DO NOTHING"
            base.execute(add, (name, TABLES))

    @property
    def _open(self) -> Connection:
        if self._closed:
            raise LoomError(f"loom {self.place} is closed")
        # Several threads read; one of them connects again.
        with self._reconnecting:
            if self._base is None or is_lost(self._base):
                if self._base is not None:
                    self._base.close()
                self._base = self._connect()
                self._sums.clear()
                self._locks.renew()
            return self._base

    def running(self, cast_ids: Iterable[str]) -> set[str]:
        keys = {self._locks.key(cast_id): cast_id for cast_id in cast_ids}
        return {keys[key] for (key,) in self._ask(RUNNING, ()) if key in keys} if keys else set()

    def _ended(self, base: Connection, cast_ids: set[str]) -> set[str]:
        """Which of these casts have an end record in the database."""
        query = "SELECT head FROM cantrip_records WHERE loom = %s AND kind = 'cast'"
        found = (heads.decode(head) for (head,) in base.execute(query, (self._loom,), binary=True))
        return {each.id for each in found if isinstance(each, heads.CastHead) and each.event == "end"} & cast_ids

    def append(self, record: Record | LaterRecord, body: bytes | bytearray) -> int:
        if self.readonly and not self._closed:
            raise LoomError(f"loom {self.place} is open for reading only")
        row = rows.row_of(record, bytes(body))
        try:
            base = self._open
        except LoomError as error:
            if self._closed:
                raise
            raise LoomWriteError(
                f"cannot write loom {self.place}: {error}; earlier records are safe. {_SERVER}"
            ) from None
        if self._locks.taken & {
            getattr(record, "cast_id", None),
            record.id if isinstance(record, CastRecord) else None,
        }:
            raise LoomError(
                f"loom {self.place}: while the connection was lost, another process took over this cast and "
                "completed its last turn; load the session again"
            )
        try:
            return self._insert(base, row)
        except psycopg.IntegrityError as error:
            raise self._refused(self._server.url.clean(error), row) from None
        except psycopg.Error as error:
            lost = "; the connection was lost, and whether this record is kept is seen when the loom is read again"
            raise LoomWriteError(
                f"{self._server.failure('write', error)}{lost if base.closed else ''}; earlier records are safe. "
                f"{_SERVER}"
            ) from None

    def _add(self, base: Any, n: int, row: rows.Row, head: bytes, body: bytearray, own: str) -> None:
        add = (
            "INSERT INTO cantrip_records (loom, n, kind, turn_id, parent_id, head, body, entity, sum) "
            "VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s)"
        )
        about = (row.kind, row.turn_id, row.parent_id)
        base.execute(add, (self._loom, n, *about, head, bytes(body), row.entity, own), prepare=True)

    def _chain_end(self, base: Any, entity: str) -> str:
        query = "SELECT sum FROM cantrip_chains WHERE loom = %s AND entity = %s"
        found = base.execute(query, (self._loom, entity), prepare=True).fetchone()
        return checksum.START if found is None else str(found[0])

    @contextlib.contextmanager
    def _alone(self, base: Any) -> Iterator[int]:
        with base.transaction():
            base.execute("SELECT pg_advisory_xact_lock(%s, %s)", (LOCK, self._loom))
            query = "SELECT coalesce(max(n), 0) FROM cantrip_records WHERE loom = %s"
            (last,) = base.execute(query, (self._loom,)).fetchone()
            yield int(last)

    def _ask(self, query: Any, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        """Query rows. Repeats the query once if the connection was lost."""
        for last in (False, True):
            base = self._open
            try:
                return base.execute(query, values, prepare=True, binary=True).fetchall()
            except psycopg.Error as error:
                if last or not base.closed:
                    raise self._server.failure("read", error) from None
        raise AssertionError

    def _bodies(self, positions: list[int]) -> dict[int, bytes]:
        query = "SELECT n, body FROM cantrip_records WHERE loom = %s AND n = ANY(%s)"
        return dict(self._ask(query, (self._loom, positions)))

    def _head_from_body(self, position: int) -> Head | LaterHead | None:
        found = self._ask("SELECT body FROM cantrip_records WHERE loom = %s AND n = %s", (self._loom, position))
        return rows.head_from(found[0][0]) if found else None

    def _rows(self, column: str, after: int, noted: list[Problem]) -> Iterator[tuple[int, bytes]]:
        query = f"SELECT n, {column} FROM cantrip_records WHERE loom = %s AND n > %s ORDER BY n LIMIT %s"
        while True:
            # Pages instead of a cursor: a cursor would keep a transaction open while others use the connection.
            found = self._ask(query, (self._loom, after, _PAGE[column]))
            yield from found
            if len(found) < _PAGE[column]:
                return
            after = found[-1][0]

    def _reader(self) -> PostgresStore:
        return PostgresStore(self._address, readonly=True)

    def _damage(self) -> list[Problem]:
        try:
            with self._open.transaction():
                self._open.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
                ends = None
                if self._chained:
                    query = "SELECT entity, records, sum FROM cantrip_chains WHERE loom = %s"
                    ends = {entity: (count, own) for entity, count, own in self._ask(query, (self._loom,))}
                noted = list(rows.damage(self._stored(), ends))
                query = "SELECT count(*) FROM cantrip_records WHERE loom = %s AND n < 1"
                ((misplaced,),) = self._ask(query, (self._loom,))
        except psycopg.Error as error:
            raise self._server.failure("read", error) from None
        return [*noted, rows.misplaced(misplaced)] if misplaced else noted

    def _stored(self) -> Iterator[rows.Stored]:
        more = "entity, sum" if self._chained else "NULL::text, NULL::text"
        query = (
            f"SELECT n, kind, turn_id, parent_id, {more}, head, body FROM cantrip_records "
            "WHERE loom = %s AND n > %s ORDER BY n LIMIT %s"
        )
        after = 0
        while True:
            found = [rows.Stored(*row) for row in self._ask(query, (self._loom, after, _PAGE["body"]))]
            yield from found
            if len(found) < _PAGE["body"]:
                return
            after = found[-1].n

    def after_fork(self) -> None:
        """In a forked child: read only, with a connection of its own."""
        self.readonly = True
        # Another thread may have held it during the fork.
        self._reconnecting = threading.Lock()
        abandon(self._base)
        self._base = None

    def close(self, tree: Tree | None = None) -> None:
        self._closed = True
        self._locks.close()
        base, self._base = self._base, None
        if base is not None:
            base.close()


LOCK = _KIND.application
"""The first key of looms' advisory locks. The second key is 0 while tables are created, or a loom's number during a
write."""

SCHEMA = """
CREATE TABLE cantrip_looms (
    id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL UNIQUE,
    tables integer NOT NULL
);
CREATE TABLE cantrip_records (
    loom integer NOT NULL REFERENCES cantrip_looms (id),
    n bigint NOT NULL,
    kind text NOT NULL,
    turn_id text,
    parent_id text,
    head bytea NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (loom, n)
) WITH (toast_tuple_target = 128);
CREATE UNIQUE INDEX cantrip_records_turn ON cantrip_records (loom, turn_id) WHERE turn_id IS NOT NULL;
CREATE UNIQUE INDEX cantrip_records_header ON cantrip_records (loom) WHERE kind = 'loom';
DO $$ BEGIN
    -- Bodies are unpacked several times faster; a server that was built without it packs them as it always did.
    EXECUTE 'ALTER TABLE cantrip_records ALTER COLUMN body SET COMPRESSION lz4';
EXCEPTION WHEN OTHERS THEN
    NULL;
END $$;
"""

CHAINS = """
ALTER TABLE cantrip_records ADD COLUMN IF NOT EXISTS entity text;
ALTER TABLE cantrip_records ADD COLUMN IF NOT EXISTS sum text;
CREATE TABLE IF NOT EXISTS cantrip_chains (
    loom integer NOT NULL REFERENCES cantrip_looms (id),
    entity text NOT NULL,
    records bigint NOT NULL,
    sum text NOT NULL,
    PRIMARY KEY (loom, entity)
);
GRANT SELECT ON cantrip_chains TO PUBLIC;
"""
"""The additions of version 2: the end of each entity's chain of checksums. Everybody may read it."""

_NEW_1 = f"""
BEGIN
    PERFORM pg_advisory_xact_lock({LOCK}, NEW.loom);
    IF NEW.turn_id IS NOT NULL AND EXISTS
        (SELECT 1 FROM cantrip_records WHERE loom = NEW.loom AND turn_id = NEW.turn_id) THEN
        RAISE restrict_violation USING MESSAGE = '{rows.TAKEN}';
    END IF;
    IF NEW.parent_id IS NOT NULL AND NOT EXISTS
        (SELECT 1 FROM cantrip_records WHERE loom = NEW.loom AND turn_id = NEW.parent_id) THEN
        RAISE restrict_violation USING MESSAGE = '{rows.ORPHAN}';
    END IF;
    IF NEW.kind = 'loom' AND EXISTS (SELECT 1 FROM cantrip_records WHERE loom = NEW.loom AND kind = 'loom') THEN
        RAISE restrict_violation USING MESSAGE = '{rows.HEADED}';
    END IF;
    SELECT coalesce(max(n), 0) + 1 INTO NEW.n FROM cantrip_records WHERE loom = NEW.loom;
    RETURN NEW;
END """
_NEW = _NEW_1.replace("BEGIN", "DECLARE place bigint;\nBEGIN", 1).replace(
    "INTO NEW.n FROM cantrip_records WHERE loom = NEW.loom;",
    f"""INTO place FROM cantrip_records WHERE loom = NEW.loom;
    IF NEW.n > 0 AND NEW.n <> place THEN
        RAISE restrict_violation USING MESSAGE = '{rows.KEPT}';
    END IF;
    NEW.n := place;""",
)
_CHAINED = """
BEGIN
    IF NEW.sum IS NOT NULL THEN
        INSERT INTO cantrip_chains AS c (loom, entity, records, sum) VALUES (NEW.loom, NEW.entity, 1, NEW.sum)
            ON CONFLICT (loom, entity) DO UPDATE SET records = c.records + 1, sum = excluded.sum;
    END IF;
    RETURN NULL;
END """
_KEPT = f"""
BEGIN
    RAISE restrict_violation USING MESSAGE = '{rows.KEPT}';
END """
_FUNCTIONS = {"cantrip_new_record": _NEW, "cantrip_kept": _KEPT, "cantrip_chained": _CHAINED}
_TRIGGERS = {
    ("cantrip_records", "cantrip_new"): ("BEFORE INSERT", "ROW", "cantrip_new_record"),
    ("cantrip_records", "cantrip_chained"): ("AFTER INSERT", "ROW", "cantrip_chained"),
    ("cantrip_records", "cantrip_kept"): ("BEFORE UPDATE OR DELETE OR TRUNCATE", "STATEMENT", "cantrip_kept"),
    ("cantrip_looms", "cantrip_kept"): ("BEFORE UPDATE OR DELETE OR TRUNCATE", "STATEMENT", "cantrip_kept"),
}
_TYPES = {"BEFORE INSERT": 1 + 2 + 4, "AFTER INSERT": 1 + 4, "BEFORE UPDATE OR DELETE OR TRUNCATE": 2 + 8 + 16 + 32}
"""The same as numbers of pg_trigger: each row, before, insert; before, delete, update, truncate."""

GUARDS = "".join(
    # Run as the owner: a user who writes records need not be allowed to change the ends of chains.
    f"CREATE OR REPLACE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql "
    f"{'SECURITY DEFINER SET search_path FROM CURRENT ' if name == 'cantrip_chained' else ''}AS $${body}$$;\n"
    for name, body in _FUNCTIONS.items()
) + "".join(
    # ALWAYS: otherwise a session that declares itself a replica skips the triggers.
    f"DROP TRIGGER IF EXISTS {name} ON {table};\n"
    f"CREATE TRIGGER {name} {when} ON {table} FOR EACH {each} EXECUTE FUNCTION {function}();\n"
    f"ALTER TABLE {table} ENABLE ALWAYS TRIGGER {name};\n"
    for (table, name), (when, each, function) in _TRIGGERS.items()
)
LOOK = """
SELECT c.relname, t.tgname, t.tgenabled, t.tgtype, p.proname, p.prosrc
FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_proc p ON p.oid = t.tgfoid
WHERE NOT t.tgisinternal AND t.tgrelid IN (to_regclass('cantrip_records'), to_regclass('cantrip_looms'))
"""
"""The query for the existing triggers, for `gone`."""


UPGRADE = """
ALTER TABLE cantrip_looms DISABLE TRIGGER cantrip_kept;
UPDATE cantrip_looms SET tables = {tables} WHERE id = {loom};
ALTER TABLE cantrip_looms ENABLE ALWAYS TRIGGER cantrip_kept;
"""


def missing_triggers(found: Iterable[tuple[Any, ...]], *, chained: bool) -> list[str]:
    """The triggers that are missing, disabled or changed, from the rows of `LOOK`. Without ``chained``, the tables
    are of version 1."""
    whole = set()
    for table, name, enabled, kind, function, source in found:
        made = _TRIGGERS.get((table, name))
        if made is not None and enabled in ("O", "A") and (kind, function) == (_TYPES[made[0]], made[2]):
            if source == _FUNCTIONS[made[2]] or (not chained and source == _NEW_1):
                whole.add((table, name))
    wanted = [key for key in _TRIGGERS if chained or key[1] != "cantrip_chained"]
    return [f"{name} of {table}" for table, name in wanted if (table, name) not in whole]
