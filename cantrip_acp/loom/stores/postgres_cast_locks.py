"""Cast locks in PostgreSQL: advisory locks of one connection, which the server drops when the connection ends.

The connection is used for nothing else. A thread takes the locks again when the connection was lost, so a process in a
long gate call keeps its casts while the server restarts. TCP keepalives let the server notice a host that vanished.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable
from typing import Any

import psycopg

from cantrip_acp.loom.stores.cast_locks import key_of, not_for_children, replace
from cantrip_acp.types.errors import LoomError

RUNNING = (
    "SELECT (classid::bigint << 32) | objid::bigint FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 "
    "AND granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)
"""The query for the keys of all running casts, of all looms of this database."""

_KEEPALIVE = "SET tcp_keepalives_idle = 20; SET tcp_keepalives_interval = 10; SET tcp_keepalives_count = 4"
_LOOK_S = 0.5
_left: list[Any] = []
"""Connections of a parent process. Closing them in a forked child would end them for the parent."""


class PgCastLocks:
    """The cast locks of one open loom. ``connect`` opens a connection, ``is_lost`` checks one, ``ended`` returns which
    of the given casts have an end."""

    def __init__(
        self,
        connect: Callable[[], psycopg.Connection[Any]],
        is_lost: Callable[[psycopg.Connection[Any]], bool],
        ended: Callable[[psycopg.Connection[Any], set[str]], set[str]],
    ) -> None:
        self.loom = 0
        self._connect, self._is_lost, self._ended = connect, is_lost, ended
        self._guard = threading.Lock()
        self._base: psycopg.Connection[Any] | None = None
        self._locked: set[str] = set()
        self._watching: threading.Event | None = None
        self.taken: set[str] = set()
        """Casts that another process considered dead, and ended, while our connection was lost."""
        not_for_children(self)

    def key(self, cast_id: str) -> int:
        """The number of a cast's lock."""
        return key_of(cast_id, str(self.loom))

    def lock_cast(self, cast_id: str) -> bool:
        """Lock a cast while this process runs it. Returns False if it is already locked."""
        with self._guard:
            if cast_id in self._locked or not self._lock(self._connected(), cast_id):
                return False
            self._locked.add(cast_id)
            if self._watching is None:
                self._watching = threading.Event()
                args = (weakref.ref(self), self._watching)
                threading.Thread(target=_watch, args=args, name="cast-locks", daemon=True).start()
            return True

    def release(self, cast_id: str) -> None:
        """Unlock a cast; does nothing if it is not locked here."""
        with self._guard:
            self.taken.discard(cast_id)
            if cast_id in self._locked:
                self._locked.discard(cast_id)
                if self._base is not None:
                    with contextlib.suppress(psycopg.Error):
                        self._base.execute("SELECT pg_advisory_unlock(%s)", (self.key(cast_id),))
                self._stop_watching()

    def renew(self) -> bool:
        """Take the locks again if the connection was lost. Returns False if no cast is locked any more."""
        with self._guard:
            if self._locked:
                with contextlib.suppress(LoomError, psycopg.Error):
                    self._connected()
            return bool(self._locked)

    def after_fork(self) -> None:
        # The thread belongs to the parent, and another thread may have held the guard during the fork.
        self._guard, self._watching = threading.Lock(), None
        self._locked.clear()
        abandon(self._base)
        self._base = None

    def close(self) -> None:
        """Unlock everything; safe to call twice."""
        with self._guard:
            self._locked.clear()
            self._stop_watching()
            base, self._base = self._base, None
            if base is not None:
                with contextlib.suppress(psycopg.Error):
                    # The server notices the end of a connection a moment late, so unlock first.
                    base.execute("SELECT pg_advisory_unlock_all()")
                base.close()

    def _stop_watching(self) -> None:
        if not self._locked and self._watching is not None:
            self._watching.set()
            self._watching = None

    def _connected(self) -> psycopg.Connection[Any]:
        base = self._base
        if base is not None and not self._is_lost(base):
            return base
        if base is not None:
            base.close()
        self._base = None
        base = self._connect()
        base.execute(_KEEPALIVE)
        # A process that considered one of our casts dead has ended it, or holds its lock and is about to.
        self.taken |= {each for each in self._locked if not self._lock(base, each)}
        if self._locked:
            self.taken |= self._ended(base, self._locked)
        self._base = base
        return base

    def _lock(self, base: psycopg.Connection[Any], cast_id: str) -> bool:
        try:
            return base.execute("SELECT pg_try_advisory_lock(%s)", (self.key(cast_id),)).fetchone() == (True,)
        except psycopg.Error as error:
            raise LoomError(f"a cast cannot be locked: {error.diag.message_primary or type(error).__name__}") from None


def abandon(base: psycopg.Connection[Any] | None) -> None:
    """Abandon a parent's connection without sending anything to the server."""
    if base is not None:
        _left.append(base)
        with contextlib.suppress(psycopg.Error, OSError):
            replace(base.fileno(), "/dev/null")


def _watch(of: weakref.ref[PgCastLocks], ended: threading.Event) -> None:
    while not ended.wait(_LOOK_S):
        locks = of()
        if locks is None or not locks.renew():
            return
        del locks
