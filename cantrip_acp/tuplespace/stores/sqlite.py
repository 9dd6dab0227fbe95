"""SQLite store of tuples: one file for the processes of one machine. Work that ends is on the disk before it is acknowledged."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from cantrip_acp.db import dialect
from cantrip_acp.db import sqlite as db
from cantrip_acp.files import guarded
from cantrip_acp.tuplespace.errors import SpaceError, SpaceNotOpened
from cantrip_acp.tuplespace.stores.base import (
    FIRSTS,
    End,
    Expired,
    StoredTuple,
    can_run_body,
    decode_work,
    encode_work,
    reuse_columns,
    stored_of,
)
from cantrip_acp.tuplespace.stores.sql import BODY, KIND, STORED, Do, Ended, TupleStore
from cantrip_acp.tuplespace.stores.sqlite_tables import MIGRATIONS
from cantrip_acp.tuplespace.tuples import Pattern, WorkTuple, contains

_T = TypeVar("_T")
_PATIENCE_S = 30.0
"""How long to wait while another process writes."""
_LOG_PAGES = 4000
"""How large the write-ahead log may be before it is copied into the file, which waits for the disk twice. 4,000 are 16 MB."""
_POLL_S = (0.002, 0.25)
"""The shortest and the longest pause between two looks for changes of other processes."""


class SqliteTupleStore(TupleStore):
    """Tuples in a file. The file is created, with its folders, for the user only. Raises `SpaceError`."""

    _dialect = dialect.Sqlite()
    _matches = f"matches({BODY}, :part)"
    _can_run = f"can_run({BODY}, :runs)"
    _costs = ("r.usd", "r.tokens_in", "r.tokens_out")
    _running_costs = (
        "json_extract(progress, '$.cost.usd')",
        "json_extract(progress, '$.cost.tokens_in')",
        "json_extract(progress, '$.cost.tokens_out')",
    )
    _lately = "r.ended_at > :since"

    def __init__(self, path: Path | str) -> None:
        self.path = Path(os.path.abspath(path))
        self.location = f"sqlite:{self.path}"
        self._lock = threading.RLock()
        self._changed = threading.Condition()
        self._version = -1
        self._added = False
        """Whether new tuples were put without waking waiting callers."""
        self._closed = False
        self._held: guarded.Held | None = None
        try:
            self._held = db.held(self.path)
            db.make(self.path)
            self._base = db.connect(f"{self.path.as_uri()}?mode=rw", _PATIENCE_S, 256)
            self._base.create_function("matches", 2, _matches, deterministic=True)
            self._base.create_function("can_run", 2, can_run_body, deterministic=True)
            db.migrate(self._base, KIND, MIGRATIONS, self.path, _PATIENCE_S, self._note_firsts)
            self._base.execute("PRAGMA synchronous = NORMAL")
            self._base.execute(f"PRAGMA wal_autocheckpoint = {_LOG_PAGES}")
        except OSError as error:
            self._release()
            raise SpaceNotOpened(f"cannot open tuple-space {self.path}: {error.strerror}") from None
        except sqlite3.Error as error:
            self._release()
            raise self._failure("open", error) from None
        except BaseException:
            self._release()
            raise

    def _note_firsts(self, version: int) -> None:
        if 0 < version < FIRSTS:
            again = "SELECT position, body FROM tuples WHERE instr(body, CAST('\"again\":' AS BLOB))"
            for position, body in self._base.execute(again).fetchall():
                self._note_first(self._do, position, decode_work(body))

    def _failure(self, what: str, error: sqlite3.Error) -> Exception:
        lacks = "full" in str(error) or "readonly" in str(error)
        return KIND.failure(what, self.path, error, "; is the disk full, or the folder read-only?" if lacks else "")

    def _do(self, statement: str, /, **values: Any) -> sqlite3.Cursor:
        return self._base.execute(self._dialect.statement(statement), self._dialect.values(values))

    def _run(self, what: str, work: Callable[[Do], _T], *, durable: bool = False, tell: bool = False) -> _T:
        with self._lock:
            if self._closed:
                raise SpaceError(f"the tuple-space {self.path} is closed")
            base = self._base
            try:
                if what == "read":
                    return work(self._do)
                if durable:
                    base.execute("PRAGMA synchronous = FULL")
                try:
                    with db.transaction(base):
                        done = work(self._do)
                finally:
                    if durable:
                        base.execute("PRAGMA synchronous = NORMAL")
            except sqlite3.Error as error:
                raise self._failure("read" if what == "read" else "write", error) from None
            tell, self._added = tell or self._added, False
        if tell:
            self._notify()
        return done

    def _text(self, body: bytes) -> bytes:
        return body

    def _notify(self) -> None:
        with self._changed:
            self._version = -1
            self._changed.notify_all()

    def _add(self, do: Do, works: Sequence[WorkTuple], about: str | None) -> dict[str, int]:
        now = time.time()
        (last,) = do("SELECT coalesce(max(position), 0) FROM tuples").fetchone()
        self._base.executemany(
            "INSERT INTO tuples (id, lane, body, v2, put_at) VALUES (?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING",
            [(each.id, each.lane, *encode_work(each), now) for each in works],
        )
        do(
            "INSERT INTO queue (position, lane, state, ready_at, meta) "
            "SELECT position, lane, 'waiting', put_at, :about FROM tuples WHERE position > :last",
            about=about,
            last=last,
        )
        # Nobody else writes, and positions only grow.
        added = dict(do("SELECT id, position FROM tuples WHERE position > :last", last=last).fetchall())
        self._added |= bool(added)
        return added

    def _end(self, do: Do, ends: Sequence[End], encoded: Sequence[tuple[str, bytes]]) -> Ended:
        given = [
            (each.claim.position, each.claim.token, "done" if each.failed is None else "failed", each.failed)
            for each in ends
        ]
        rows = do(
            "UPDATE queue SET state = given.state, error = given.error, lease_until = NULL FROM (SELECT value ->> 0 AS position, "
            "value ->> 1 AS token, value ->> 2 AS state, value ->> 3 AS error FROM json_each(:given)) AS given "
            "WHERE queue.position = given.position AND queue.token = given.token AND queue.state = 'claimed' "
            "RETURNING position, token, budget",
            given=given,
        ).fetchall()
        ended = {(position, token): budget for position, token, budget in rows}
        self._base.executemany(
            "INSERT INTO receipts (id, body, position, input_hash, seal, reused) VALUES (?, ?, ?, ?, ?, ?)",
            [
                (*receipt, end.claim.position, *reuse_columns(end.receipt, end.seal))
                for end, receipt in zip(ends, encoded, strict=True)
                if (end.claim.position, end.claim.token) in ended
            ],
        )
        return ended

    def after(self, cursor: str, pattern: Pattern, limit: int = 1000) -> tuple[list[StoredTuple], str]:
        rows = self._rows(
            f"SELECT {STORED} FROM tuples t JOIN queue q USING (position) WHERE t.position > :after "
            "ORDER BY t.position LIMIT :limit",
            after=int(cursor or 0),
            limit=limit,
        )
        found = [stored_of(row) for row in rows]
        last = str(found[-1].position) if found else cursor
        return [each for each in found if pattern.matches(each.work.document)], last

    def expire_artifacts(self, *, hot_s: float, warm_s: float, most_bytes: int, dry_run: bool) -> Expired:
        purged = super().expire_artifacts(hot_s=hot_s, warm_s=warm_s, most_bytes=most_bytes, dry_run=dry_run)
        if purged.bodies and not dry_run:
            # Give their space back to the disk, unless other processes are at work in the file.
            with self._lock, contextlib.suppress(sqlite3.OperationalError):
                self._base.execute("VACUUM")
                self._base.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return purged

    def wait(self, timeout_s: float, stop: threading.Event) -> bool:
        end = time.monotonic() + timeout_s
        pause, longest = _POLL_S
        while not stop.is_set():
            with self._lock:
                if self._closed:
                    return False
                try:
                    (version,) = self._base.execute("PRAGMA data_version").fetchone()
                except sqlite3.Error:
                    # The next operation says why.
                    version = self._version
            with self._changed:
                if version != self._version:
                    self._version = version
                    return True
                left = end - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(min(pause, left))
            pause = min(pause * 1.5, longest)
        return False

    def close(self) -> None:
        with self._lock:
            if not self._closed:
                self._closed = True
                self._base.close()
                self._release()
        self._notify()

    def _release(self) -> None:
        if self._held is not None:
            self._held.release()


@lru_cache(maxsize=64)
def _part(pattern: str) -> Any:
    return json.loads(pattern)


def _matches(body: bytes, pattern: str) -> bool:
    return contains(json.loads(body), _part(pattern))
