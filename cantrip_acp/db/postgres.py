"""What each store in PostgreSQL needs: connections, versions of its tables, and what its errors say. Needs psycopg."""

from __future__ import annotations

import select
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import psycopg
from psycopg.conninfo import conninfo_to_dict

from cantrip_acp.db import Kind
from cantrip_acp.db.postgres_url import PgUrl

Connection: TypeAlias = "psycopg.Connection[Any]"
_DEFAULTS = {"connect_timeout": "10", "tcp_user_timeout": "30000"}


class Server:
    """A database on a server, for one kind of store. ``program`` names its connections in the server's lists.

    No error or repr has a password. Raises the error of ``kind`` if the address cannot be read.
    """

    def __init__(self, kind: Kind, url: str, program: str) -> None:
        self.kind = kind
        self.url = PgUrl.of(url, kind.unopened)
        self._program = program
        self.location = self.url.shown.removesuffix("?loom=default") if kind.name != "loom" else self.url.shown
        """The address, without a password."""

    def failure(self, what: str, error: object, mend: str = "") -> Exception:
        """Make the error for a failed operation, for example from a driver's error."""
        return self.kind.failure(what, self.location, self.url.clean(error), mend)

    def connect(self, *settings: str) -> Connection:
        """Open a connection in autocommit mode and execute ``settings`` on it. Raises the errors of `self.kind`."""
        try:
            given: dict[str, Any] = {
                **_DEFAULTS,
                "application_name": self._program,
                **conninfo_to_dict(self.url.server),
            }
        except psycopg.Error:
            # The driver's message repeats parts of the address.
            raise self.failure("open", "the address has a part that PostgreSQL does not know") from None
        try:
            base = psycopg.connect(**given, autocommit=True)
            for each in settings:
                base.execute(each.encode())
        except psycopg.Error as error:
            mend = ". Is the server running and reachable, and are user, password (or ~/.pgpass) and database right?"
            raise self.failure("open", error, mend) from None
        return base

    def migrate(
        self,
        base: Connection,
        migrations: Sequence[str],
        versions: str,
        *,
        lock_s: float = 0.0,
        upgrade: str = "",
        fill: Callable[[int], None] = lambda version: None,
    ) -> None:
        """Bring the tables up to date in the current transaction; ``versions`` is the table of what was done.

        ``lock_s``: how long a statement waits for others who have a table locked; 0 for as long as it takes. ``upgrade``: what
        an administrator does where this role may not change tables. ``fill`` gets the version from before.
        """
        (found,) = base.execute("SELECT to_regclass(%s)", (versions,)).fetchone() or (None,)
        latest = f"SELECT coalesce(max(version), 0) FROM {versions}".encode()
        (version,) = (found and base.execute(latest).fetchone()) or (0,)
        self.kind.check(self.location, version)
        if version >= len(migrations):
            return
        base.execute("SELECT pg_advisory_xact_lock(%s)", (self.kind.application,))
        if not found:
            base.execute(f"CREATE TABLE IF NOT EXISTS {versions} (version integer PRIMARY KEY)".encode())
        # Another process may have been first.
        (version,) = base.execute(latest).fetchone() or (0,)
        if lock_s:
            base.execute(f"SET LOCAL lock_timeout = '{lock_s:g}s'".encode())
        for number, script in enumerate(migrations[version:], version + 1):
            try:
                base.execute(script.encode())
            except psycopg.errors.InsufficientPrivilege:
                if number == 1 or not upgrade:
                    raise
                raise self.kind.unopened(
                    f"cannot open {self.kind.name} {self.location}: its tables are from an earlier version of cantrip, and only "
                    f"the role that made them can bring them up to date. {upgrade}"
                ) from None
            base.execute(f"INSERT INTO {versions} VALUES (%s)".encode(), (number,))
        fill(version)


def is_lost(base: Connection) -> bool:
    """Whether an idle connection was closed by the server, an administrator or a restart.

    A connection that another thread uses is not idle: reading from it here would take away that thread's answer.
    """
    if base.closed:
        return True
    if not base.lock.acquire(blocking=False):
        return False
    ready = select.poll()
    try:
        ready.register(base.fileno(), select.POLLIN)
        # The server sends messages unasked: a goodbye, or changed settings. After the last message the connection is
        # closed.
        for _ in range(3):
            if not ready.poll(0):
                return False
            base.pgconn.consume_input()
    except (OSError, psycopg.Error):
        return True
    finally:
        base.lock.release()
    return bool(base.closed)
