"""PostgreSQL database of the substrate: one for a team. Writers wait for each other; readers see one moment."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from cantrip_acp.db import dialect
from cantrip_acp.substrate import owners
from cantrip_acp.substrate.chunks import NewChunk, Refusal, SubstrateError
from cantrip_acp.substrate.stores.base import (
    MOST_RANKED,
    Match,
    Record,
    Separation,
    encode_spec,
    searched_text,
    words_of,
)
from cantrip_acp.substrate.stores.postgres_tables import (
    GIVE,
    GRANTS,
    KNOWN,
    MIGRATIONS,
    RECORD,
    ROW_SECURITY,
    SECURED,
    TABLES,
)
from cantrip_acp.substrate.stores.sql import STORE, SqlTables, SqlView

try:
    import psycopg
    from psycopg import sql

    from cantrip_acp.db.postgres import Connection, Server
except ImportError as error:
    raise STORE.without_driver(error) from None

_LONGEST_TEXT = 200_000
"""How many characters of a chunk are searched. PostgreSQL indexes at most 1 MB of words."""


@dataclass(frozen=True, slots=True)
class _User:
    """The reader and writer of a database: a database role; ``name``, if several people share it; and a state folder."""

    role: str
    name: str
    folder: str

    @property
    def shown(self) -> str:
        return self.name.removeprefix("@") or self.role

    def owner(self, *ids: str) -> tuple[str, str]:
        """The columns ``owner`` and ``part`` of a chunk with this id, or of a placement."""
        level = owners.privacy(*ids)
        if level == "shared":
            return "", ""
        return self.role, self.name if level == "user" else f"{self.name}/{self.folder}"

    def seen(self) -> str:
        """The SQL condition for rows that this user may see."""
        role, *parts = (
            sql.Literal(each).as_string(None).replace("%", "%%")
            for each in (self.role, self.name, f"{self.name}/{self.folder}")
        )
        return f"(owner = '' OR (owner = {role} AND part IN ({', '.join(parts)})))"


class PostgresTables(SqlTables["PostgresView"]):
    """Chunks in a database. A lost connection is opened again by the next operation. Raises `SubstrateError`."""

    several_users = True
    _driver = psycopg.Error

    def __init__(self, url: str) -> None:
        super().__init__()
        self._server = Server(STORE, url, "cantrip-substrate")
        self.location = self._server.location
        self._user: _User | None = None
        with self._failures("open"):
            base = self._view("write").base
            with base.transaction():
                administrator = "Let an administrator run `cantrip substrate log` there"
                self._server.migrate(base, MIGRATIONS, "cantrip_substrate_tables", upgrade=administrator)

    def _view(self, name: str) -> PostgresView:
        view = self._views.get(name)
        if view is None or view.base.closed:
            base = self._server.connect()
            if name == "read":
                # All statements of a transaction see the same moment. Part of BEGIN, so that it costs no question more.
                base.isolation_level, base.read_only = psycopg.IsolationLevel.REPEATABLE_READ, True
                # For rows that are in memory or on an SSD, and few: to start a second process takes longer than a search.
                base.execute("SET random_page_cost = 1.1; SET max_parallel_workers_per_gather = 0")
            view = self._views[name] = PostgresView(base, self._who(base))
        return view

    def _who(self, base: Connection) -> _User:
        if self._user is None:
            row = base.execute("SELECT current_user::text").fetchone()
            assert row is not None
            name = owners.named_user()
            self._user = _User(row[0], f"@{name}" if name else "", owners.folder_id())
        return self._user

    @property
    def user(self) -> str:
        """The name of the database's user: ``CANTRIP_USER``, else the role of the connection."""
        with self._locks["read"], self._failures("read"):
            who = self._user or self._who(self._view("read").base)
        return who.shown

    def secure(self, earlier: str = "") -> int:
        with self._locks["write"], self._failures("secure"):
            base = self._view("write").base
            with base.transaction():
                given = 0
                if earlier:
                    if base.execute("SELECT FROM pg_roles WHERE rolname = %s", (earlier,)).fetchone() is None:
                        raise SubstrateError(f"the database has no role {earlier!r}")
                    for statement in GIVE:
                        base.execute(statement.format(role=sql.Literal(earlier).as_string(None)).encode())
                    row = base.execute(
                        "SELECT count(DISTINCT id) FROM cantrip_chunks WHERE owner = %s AND part = ''", (earlier,)
                    ).fetchone()
                    given = row[0] if row else 0
                base.execute(ROW_SECURITY.encode())
                return given

    def separation(self) -> Separation:
        with self._locks["read"], self._failures("read"):
            base = self._view("read").base
            who = self._who(base)
            with base.transaction():
                (secured,) = base.execute(SECURED.encode()).fetchone() or (False,)
                (passes,) = base.execute(
                    "SELECT rolsuper OR rolbypassrls FROM pg_roles WHERE rolname = current_user"
                ).fetchone() or (False,)
                (nobodys,) = base.execute(
                    "SELECT count(DISTINCT id) FROM cantrip_chunks WHERE owner = '?' AND part = ''"
                ).fetchone() or (0,)
                (schema,) = base.execute("SELECT quote_ident(current_schema())").fetchone() or ("public",)
            grants = tuple(each.format(schema=schema, role="ROLE") for each in GRANTS)
            return Separation(who.role, who.name.removeprefix("@"), bool(secured), bool(passes), nobodys, grants)

    @contextlib.contextmanager
    def reading(self) -> Iterator[PostgresView]:
        with self._locks["read"], self._failures("read"):
            view = self._view("read")
            # It ends with COMMIT: after a ROLLBACK psycopg would forget the statements that it prepared.
            with view.base.transaction():
                yield view

    @contextlib.contextmanager
    def writing(self, durable: bool = True) -> Iterator[PostgresView]:
        with self._locks["write"], self._failures("change"):
            view = self._view("write")
            with view.base.transaction():
                soon = "" if durable else "SET LOCAL synchronous_commit = off;"
                # Commit numbers have no gaps, and each commit sees all before it.
                view.base.execute(f"{soon} SELECT pg_advisory_xact_lock({STORE.application:d})".encode())
                yield view

    def _failure(self, operation: str, error: object) -> Exception:
        return self._server.failure(operation, error)

    def _end(self, view: PostgresView) -> None:
        view.base.close()


class PostgresView(SqlView):
    """A view that shows shared chunks and the user's own."""

    # The user's own chunks hide those of others with the same name.
    _latest = "ORDER BY owner DESC, number DESC LIMIT 1"
    _told = "told"
    _wanted = "unnest(:ids::text[]) AS wanted (id)"
    _begins = "starts_with(chunk, :ids)"
    # As rows, so that the index of times is read and not that of commits, which is long where others commit more.
    _times = (
        "(scope, kind, number) >= (:scope, 'instance', 0) AND (scope, kind, number) <= (:scope, 'instance', :at) "
        "ORDER BY scope DESC, kind DESC, number DESC"
    )

    def __init__(self, base: Connection, user: _User) -> None:
        self.base = base
        self._user = user
        self._commit: tuple[Any, ...] = ()
        read = {
            name: f"(SELECT * FROM {table} WHERE {user.seen()})" for name, table in TABLES.items() if name != "commits"
        }
        # Of a private commit, only its owner has the texts.
        read["told"] = (
            "(SELECT number, at, coalesce(t.author, m.author) AS author, coalesce(t.source, m.source) AS source, "
            "coalesce(t.message, m.message) AS message, changed FROM cantrip_commits m "
            f"LEFT JOIN {read['texts']} t USING (number) WHERE NOT m.private OR t.author IS NOT NULL)"
        )
        self._dialect = dialect.Postgres(TABLES | {"told": ""}, read=read)

    def _all(self, statement: str, /, prepare: bool | None = None, **values: Any) -> list[Any]:
        made, given = self._dialect.statement(statement), self._dialect.values(values)
        return self.base.execute(made, given, prepare=prepare).fetchall()

    def _version(self, chunk: str) -> str:
        found = f"SELECT * FROM chunk_versions c WHERE id = {chunk} AND number <= :at {self._latest}"
        return f"CROSS JOIN LATERAL ({found}) v"

    def _last(self, columns: str, by: str, where: str) -> str:
        found = f"SELECT DISTINCT ON ({by}) {columns}, number FROM placement_versions o"
        return f"({found} WHERE {where} ORDER BY {by}, number DESC)"

    def search(
        self, words: Sequence[str], match: Match, at: int, limit: int, *, known: bool, skip: int = 0
    ) -> list[tuple[str, str]]:
        # In quotes, a word is never an operator. A word has no quotes.
        query = (" | " if match == "any" else " & ").join(f"'{word}'" for word in words)
        if match == "beginning":
            query += ":*"
        # In the order of their scores, so that the rest is read and checked only until there are enough. Never prepared: how
        # many chunks have the words decides how they are found.
        return self._all(
            f"""SELECT id, source FROM
                (SELECT * FROM (SELECT position, id, source, number, ts_rank(words, query) AS score
                   FROM chunk_versions c, to_tsquery('simple', :query) AS query
                   WHERE words @@ query AND {KNOWN if known else RECORD}
                   ORDER BY position DESC LIMIT {MOST_RANKED} OFFSET :skip) found
                 ORDER BY score DESC, position DESC) s
                WHERE s.position = (SELECT position FROM chunk_versions c WHERE id = s.id AND number <= :at {self._latest})
                ORDER BY s.score DESC, s.position DESC LIMIT :limit""",
            prepare=False,
            query=query,
            skip=skip,
            at=at,
            limit=limit,
        )

    def add_commit(self, at: float, author: str, source: str, message: str) -> int:
        number = self.latest() + 1
        self._commit = (at, author, source, message)
        return number

    def set_changed(self, number: int, changed: int) -> None:
        # Rows are never updated, so the commit is written when all of it is known.
        self.base.execute(
            "INSERT INTO cantrip_commits VALUES (%s, %s, %s, %s, %s, %s)", (number, *self._commit, changed)
        )

    def own(self, chunks: Collection[str]) -> set[str]:
        own = "SELECT DISTINCT id FROM chunk_versions c WHERE id IN :ids AND owner <> ''"
        rows = self._all(own, ids=[*chunks])
        return {chunk_id for (chunk_id,) in rows}

    def _owner(self, *ids: str) -> tuple[str, str]:
        """The owner that the ids show; for an id without that information, the owner of the stored chunk."""
        owner = self._user.owner(*ids)
        if owner[0]:
            return owner
        rows = self._all(
            "SELECT owner, part FROM chunk_versions c WHERE id IN :ids AND owner <> '' ORDER BY part DESC LIMIT 1",
            ids=[*ids],
        )
        return rows[0] if rows else owner

    def add_chunk(self, chunk: NewChunk, body: bytes, source: str, number: int, *, private: bool = False) -> None:
        owner = (self._user.role, self._user.name) if private else self._owner(chunk.id)
        if source == "user" and not owner[0]:
            source = f"user:{self._user.shown}"
        # The words of a query are found so: PostgreSQL itself takes an address or a path for one word.
        name, text = (" ".join(words_of(each))[:_LONGEST_TEXT] for each in (chunk.name, searched_text(chunk.body)))
        self.base.execute(
            """INSERT INTO cantrip_chunks (id, number, name, spec, body, source, owner, part, words) VALUES
               (%s, %s, %s, %s, %s, %s, %s, %s, setweight(to_tsvector('simple', %s), 'A') || to_tsvector('simple', %s))""",
            (
                *(chunk.id, number, chunk.name, encode_spec(chunk.spec), body.decode(), source),
                *(*owner, name, text),
            ),
        )

    def add_record(self, record: Record) -> None:
        self.base.execute(
            """INSERT INTO cantrip_placements (scope, kind, chunk, number, sequence, removed, owner, part)
               VALUES (%s, %s, %s, %s, %s, %s, %s, %s)""",
            (
                *(record.scope, record.kind, record.chunk, record.commit, record.sequence, record.removed),
                *self._owner(record.scope, record.chunk),
            ),
        )

    def add_refusal(self, refusal: Refusal) -> None:
        self.base.execute(
            """INSERT INTO cantrip_refusals (at, author, operation, chunk, text, owner, part)
               VALUES (%s, %s, %s, %s, %s, %s, %s)""",
            (
                *(refusal.at, refusal.author, refusal.operation, refusal.chunk, refusal.text.replace("\0", "")),
                *(self._user.role, self._user.name),
            ),
        )
