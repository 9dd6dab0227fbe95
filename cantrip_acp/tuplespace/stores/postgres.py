"""PostgreSQL store of tuples: one database for workers on many hosts. Its clock decides when a lease ends."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from cantrip_acp.db import dialect
from cantrip_acp.tuplespace.errors import SpaceError
from cantrip_acp.tuplespace.stores.base import (
    FIRSTS,
    End,
    StoredTuple,
    decode_work,
    encode_work,
    reuse_columns,
    stored_of,
)
from cantrip_acp.tuplespace.stores.postgres_tables import CAN_RUN, MIGRATIONS, ROW_SECURITY, TABLES
from cantrip_acp.tuplespace.stores.sql import BODY, KIND, STORED, Do, Ended, TupleStore
from cantrip_acp.tuplespace.tuples import Pattern, WorkTuple

try:
    import psycopg

    from cantrip_acp.db.postgres import Connection, Server
except ImportError as error:
    raise KIND.without_driver(error) from None

_T = TypeVar("_T")
_LOCK_S = 2.0
"""How long a migration holds up workers at most while somebody else has a table locked."""
_CHANNEL = "cantrip_tuples"
_SLICE_S = 0.5
"""How often a wait looks whether it is to stop."""
_RECONNECTS = 30
"""How often an operation tries a lost connection again, once a second."""


def _cost(column: str) -> str:
    """The cost column of a receipt ``r``. Older receipts have the cost only in their body."""
    return f"CASE WHEN r.stored_at IS NULL THEN cantrip_tuples_number(r.body, '{column}') ELSE r.{column} END"


class PostgresTupleStore(TupleStore):
    """Tuples in a database. A lost connection is opened again for up to 30 s. Raises `SpaceError`."""

    path = None
    _dialect = dialect.Postgres(TABLES, tenant=True)
    _matches = f"CAST({BODY} AS jsonb) @> CAST(:part AS jsonb)"
    _can_run = CAN_RUN
    _costs = (f"CAST({_cost('usd')} AS float8)", _cost("tokens_in"), _cost("tokens_out"))
    _running_costs = (
        "CAST(cantrip_tuples_number(progress, 'usd') AS float8)",
        "cantrip_tuples_number(progress, 'tokens_in')",
        "cantrip_tuples_number(progress, 'tokens_out')",
    )
    _lately = "r.stored_at > :now - :lately_s"

    def __init__(self, url: str) -> None:
        self._server = Server(KIND, url, "cantrip-tuples")
        self.location = self._server.location
        self._lock = threading.RLock()
        self._listening = threading.Lock()
        self._base: Connection | None = None
        self._listener: Connection | None = None
        self._closed = False
        self._base = self._connect()
        self._run("open", self._migrate)

    def _connect(self, *settings: str) -> Connection:
        if self._closed:
            raise SpaceError(f"the tuple-space {self.location} is closed")
        return self._server.connect(*settings)

    def _migrate(self, do: Do) -> None:
        base = self._connected

        def fill(version: int) -> None:
            if 0 < version < FIRSTS:
                again = "SELECT position, body FROM tuples WHERE body LIKE '%\"again\":%'"
                for position, body in do(again).fetchall():
                    self._note_first(do, position, decode_work(body))
            secured = base.execute(
                "SELECT relrowsecurity FROM pg_class WHERE oid = 'cantrip_tuples'::regclass"
            ).fetchone()
            if secured == (True,):
                # Tables that are new have no row security yet.
                base.execute(ROW_SECURITY.encode())

        # Workers wait behind a statement that waits for a lock. So it waits for a short time, and tries again (`_run`).
        self._server.migrate(base, MIGRATIONS, "cantrip_tuple_tables", lock_s=_LOCK_S, fill=fill)

    def enable_row_security(self) -> None:
        """Separate the users of the database: nobody reads or claims tuples of another user."""
        self._run("change", lambda do: self._connected.execute(ROW_SECURITY.encode()))

    @property
    def _connected(self) -> Connection:
        assert self._base is not None
        return self._base

    def _do(self, statement: str, /, **values: Any) -> Any:
        return self._connected.execute(self._dialect.statement(statement), self._dialect.values(values))

    def _run(self, what: str, work: Callable[[Do], _T], *, durable: bool = False, tell: bool = False) -> _T:
        # Again if the connection was lost.
        with self._lock:
            for attempt in range(_RECONNECTS + 1):
                try:
                    if self._base is None or self._base.closed:
                        self._base = self._connect()
                    with self._base.transaction():
                        if durable:
                            self._base.execute("SET LOCAL synchronous_commit = on")
                        done = work(self._do)
                        if tell:
                            self._base.execute(f"NOTIFY {_CHANNEL}")
                        return done
                except psycopg.Error as error:
                    lost = self._base is None or self._base.closed or isinstance(error, psycopg.OperationalError)
                    serialization = isinstance(
                        error, psycopg.errors.SerializationFailure | psycopg.errors.DeadlockDetected
                    )
                    if not (lost or serialization) or attempt == _RECONNECTS or self._closed:
                        raise self._server.failure(what, error) from None
                except SpaceError:
                    # Connecting failed. The first time it tells the user at once; a worker waits for its server.
                    if (self._base is not None and not self._base.closed) or attempt == _RECONNECTS or self._closed:
                        raise
                if self._base is not None and self._base.closed:
                    time.sleep(min(1.0, 0.05 * 2**attempt))
        raise AssertionError("unreachable")

    def _text(self, body: bytes) -> str:
        return body.decode()

    def _add(self, do: Do, works: Sequence[WorkTuple], about: str | None) -> dict[str, int]:
        texts = [encode_work(each) for each in works]
        rows = do(
            "WITH new AS (INSERT INTO tuples (id, lane, body, v2) SELECT id, lane, body, v2 "
            "FROM unnest(:ids::text[], :lanes::text[], :bodies::text[], :v2::text[]) WITH ORDINALITY "
            "AS given (id, lane, body, v2, n) ORDER BY n ON CONFLICT (id) DO NOTHING RETURNING position, id, lane), "
            "queued AS (INSERT INTO queue (position, lane, state, meta) SELECT position, lane, 'waiting', :about FROM new) "
            "SELECT id, position FROM new",
            ids=[each.id for each in works],
            lanes=[each.lane for each in works],
            bodies=[body.decode() for body, _ in texts],
            v2=[None if v2 is None else v2.decode() for _, v2 in texts],
            about=about,
        ).fetchall()
        do(f"NOTIFY {_CHANNEL}")
        return dict(rows)

    def _end(self, do: Do, ends: Sequence[End], encoded: Sequence[tuple[str, bytes]]) -> Ended:
        reuse = zip(*(reuse_columns(end.receipt, end.seal) for end in ends), strict=True)
        rows = do(
            "WITH given AS (SELECT * FROM unnest(:positions::bigint[], :tokens::integer[], :states::text[], :errors::text[], "
            ":ids::text[], :bodies::text[], :hashes::text[], :seals::text[], :reused::text[]) "
            "AS given (position, token, state, error, id, body, input_hash, seal, reused)), "
            "changed AS (UPDATE queue SET state = given.state, error = given.error, lease_until = NULL "
            "FROM given WHERE queue.position = given.position AND queue.token = given.token AND queue.state = 'claimed' "
            "RETURNING queue.position, queue.token, given.id, given.body, given.input_hash, given.seal, given.reused, "
            "queue.budget), "
            "added AS (INSERT INTO receipts (id, position, body, input_hash, seal, reused) "
            "SELECT id, position, body, input_hash, seal, reused FROM changed) "
            "SELECT position, token, budget FROM changed",
            positions=[end.claim.position for end in ends],
            tokens=[end.claim.token for end in ends],
            states=["done" if end.failed is None else "failed" for end in ends],
            errors=[end.failed for end in ends],
            ids=[identity for identity, _ in encoded],
            bodies=[body.decode() for _, body in encoded],
            **dict(zip(("hashes", "seals", "reused"), map(list, reuse), strict=True)),
        ).fetchall()
        return {(position, token): budget for position, token, budget in rows}

    def after(self, cursor: str, pattern: Pattern, limit: int = 1000) -> tuple[list[StoredTuple], str]:
        # Positions become visible in any order, transactions' ids only once all earlier transactions have ended.
        xid, _, position = cursor.partition(":")
        rows = self._rows(
            f"SELECT {STORED}, t.xid::text FROM tuples t JOIN queue q USING (position) "
            "WHERE (t.xid, t.position) > (:xid::text::xid8, :position::bigint) "
            "AND t.xid < pg_snapshot_xmin(pg_current_snapshot()) ORDER BY t.xid, t.position LIMIT :limit",
            xid=xid or "0",
            position=position or "0",
            limit=limit,
        )
        last = f"{rows[-1][7]}:{rows[-1][0]}" if rows else cursor
        found = [stored_of(row[:7]) for row in rows]
        return [each for each in found if pattern.matches(each.work.document)], last

    def wait(self, timeout_s: float, stop: threading.Event) -> bool:
        end = time.monotonic() + timeout_s
        with self._listening:
            while not stop.is_set() and not self._closed:
                left = end - time.monotonic()
                try:
                    if self._listener is None or self._listener.closed:
                        self._listener = self._connect(f"LISTEN {_CHANNEL}")
                        # Earlier notifications may have been missed.
                        return True
                    for _ in self._listener.notifies(timeout=max(0.0, min(left, _SLICE_S)), stop_after=1):
                        return True
                except (psycopg.Error, SpaceError):
                    stop.wait(min(1.0, max(0.0, left)))
                if left <= 0:
                    return False
        return False

    def close(self) -> None:
        self._closed = True
        with self._lock:
            if self._base is not None:
                self._base.close()
        with self._listening, contextlib.suppress(psycopg.Error):
            if self._listener is not None:
                self._listener.close()
