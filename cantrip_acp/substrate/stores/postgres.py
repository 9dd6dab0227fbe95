"""PostgreSQL database of the substrate: one for a team. Writers wait for each other; readers see one moment."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from cantrip_acp.files.installation import install_command
from cantrip_acp.loom.stores.postgres_url import PgUrl
from cantrip_acp.substrate import owners
from cantrip_acp.substrate.chunks import Chunk, Commit, Kind, NewChunk, Placement, Refusal, SubstrateError
from cantrip_acp.substrate.stores.base import (
    MOST_RANKED,
    NOW,
    Match,
    Record,
    Separation,
    decode_chunk,
    decode_spec,
    encode_spec,
    searched_text,
    words_of,
)
from cantrip_acp.substrate.stores.postgres_tables import (
    GIVE,
    GRANTS,
    KNOWN,
    MIGRATIONS,
    READS_TO,
    RECORD,
    ROW_SECURITY,
    SECURED,
)
from cantrip_acp.types.errors import LoomError

try:
    import psycopg
    from psycopg import sql
    from psycopg.conninfo import conninfo_to_dict
except ImportError as error:
    raise SubstrateError(
        f"a substrate in PostgreSQL needs psycopg ({error}): {install_command('postgres')}; or name a SQLite file"
    ) from None

_DEFAULTS = {"connect_timeout": "10", "application_name": "cantrip-substrate", "tcp_user_timeout": "30000"}
_LOCK = 0x43535542
"""The advisory lock of writers: commit numbers have no gaps, and each commit sees all before it."""
_LONGEST_TEXT = 200_000
"""How many characters of a chunk are searched. PostgreSQL indexes at most 1 MB of words."""

_OWN_FIRST = "ORDER BY owner DESC, number DESC LIMIT 1"
"""The latest version: what is the user's own hides what others call the same."""
_CHUNK = "v.id, v.name, v.spec, v.body, v.source, v.number"
_PLACEMENT = "scope, chunk, kind, sequence, number"


@dataclass(frozen=True, slots=True)
class _User:
    """Who reads and writes: a role of the database; ``name``, if several people share it; and a state folder."""

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
        """The condition for rows that this user may see."""
        role, *parts = (
            sql.Literal(each).as_string(None).replace("%", "%%")
            for each in (self.role, self.name, f"{self.name}/{self.folder}")
        )
        return f"(owner = '' OR (owner = {role} AND part IN ({', '.join(parts)})))"


class PostgresTables:
    """Chunks in a database. A lost connection is opened again by the next operation. Raises `SubstrateError`."""

    several_users = True

    def __init__(self, url: str) -> None:
        try:
            self._url = PgUrl.of(url)
        except LoomError as error:
            raise SubstrateError(str(error)) from None
        self._locks = {"read": threading.RLock(), "write": threading.RLock()}
        self._views: dict[str, PostgresView] = {}
        self._closed = False
        self._user: _User | None = None
        with self._failures("open"):
            view = self._view("write")
            with view.base.transaction():
                self._migrate(view.base)

    @property
    def location(self) -> str:
        return self._url.shown.removesuffix("?loom=default")

    def __repr__(self) -> str:
        return f"PostgresTables({self.location!r})"

    def _view(self, name: str) -> PostgresView:
        view = self._views.get(name)
        if view is None or view.base.closed:
            options: dict[str, Any] = {**_DEFAULTS, **conninfo_to_dict(self._url.server)}
            base = psycopg.connect(**options, autocommit=True)
            if name == "read":
                # All statements of a transaction see the same moment. Part of BEGIN, so that it costs no question more.
                base.isolation_level, base.read_only = psycopg.IsolationLevel.REPEATABLE_READ, True
                # For rows that are in memory or on an SSD, and few: to start a second process takes longer than a search.
                base.execute("SET random_page_cost = 1.1; SET max_parallel_workers_per_gather = 0")
            view = self._views[name] = PostgresView(base, self._who(base))
        return view

    def _who(self, base: psycopg.Connection[Any]) -> _User:
        if self._user is None:
            row = base.execute("SELECT current_user::text").fetchone()
            assert row is not None
            name = owners.named_user()
            self._user = _User(row[0], f"@{name}" if name else "", owners.folder_id())
        return self._user

    @property
    def user(self) -> str:
        """Who uses it: the name in ``CANTRIP_USER``, else the role of the database."""
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

    def _migrate(self, base: psycopg.Connection[Any]) -> None:
        version = _version(base)
        if version > READS_TO:
            raise SubstrateError(
                f"cannot open substrate {self.location}: its tables have version {version}, and this version of cantrip reads "
                f"up to {READS_TO}; update cantrip"
            )
        if version >= len(MIGRATIONS):
            return
        base.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
        if version == 0:
            base.execute("CREATE TABLE IF NOT EXISTS cantrip_substrate_tables (version integer PRIMARY KEY)")
        # Another process may have been first.
        for number, script in enumerate(MIGRATIONS[_version(base) :], _version(base) + 1):
            try:
                base.execute(script.encode())
            except psycopg.errors.InsufficientPrivilege:
                if number == 1:
                    raise
                raise SubstrateError(
                    f"cannot open substrate {self.location}: its tables are from an earlier version of cantrip, and only the "
                    "role that made them can bring them up to date. Let an administrator run `cantrip substrate log` there"
                ) from None
            base.execute("INSERT INTO cantrip_substrate_tables VALUES (%s)", (number,))

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
                view.base.execute(f"{soon} SELECT pg_advisory_xact_lock({_LOCK:d})".encode())
                yield view

    @contextlib.contextmanager
    def _failures(self, operation: str) -> Iterator[None]:
        if self._closed:
            raise SubstrateError(f"cannot {operation} substrate {self.location}: it was closed")
        try:
            yield
        except psycopg.Error as error:
            mend = ". Is the server running and reachable, and are user, password and database right?"
            raise SubstrateError(
                f"cannot {operation} substrate {self.location}: {self._url.clean(error)}{mend if operation == 'open' else ''}"
            ) from None

    def close(self) -> None:
        """Close the connections."""
        with self._locks["read"], self._locks["write"]:
            self._closed = True
            while self._views:
                self._views.popitem()[1].base.close()


class PostgresView:
    """One connection, in a transaction. It sees what is shared, and what is the user's own."""

    def __init__(self, base: psycopg.Connection[Any], user: _User) -> None:
        self.base = base
        self._user = user
        self._commit: tuple[Any, ...] = ()
        seen = user.seen()
        self._chunks, self._placements, self._texts, self._refusals = (
            f"(SELECT * FROM {table} WHERE {seen})"
            for table in ("cantrip_chunks", "cantrip_placements", "cantrip_commit_texts", "cantrip_refusals")
        )

    def _all(self, statement: str, *values: Any) -> list[Any]:
        return self.base.execute(statement.encode(), values).fetchall()

    def _one(self, statement: str, *values: Any) -> Any:
        return self.base.execute(statement.encode(), values).fetchone()

    def latest(self) -> int:
        return int(self._one("SELECT coalesce(max(number), 0) FROM cantrip_commits")[0])

    def chunk(self, chunk_id: str, at: int = NOW) -> Chunk | None:
        row = self._one(
            f"SELECT {_CHUNK} FROM {self._chunks} v WHERE id = %s AND number <= %s {_OWN_FIRST}",
            chunk_id,
            at,
        )
        return decode_chunk(row) if row else None

    def chunks(self, ids: Collection[str], at: int = NOW) -> list[Chunk]:
        rows = self._all(
            f"""SELECT {_CHUNK} FROM unnest(%s::text[]) AS wanted CROSS JOIN LATERAL
                (SELECT * FROM {self._chunks} c WHERE id = wanted AND number <= %s {_OWN_FIRST}) v""",
            [*ids],
            at,
        )
        return [decode_chunk(row) for row in rows]

    def named(self, name: str, at: int = NOW) -> list[Chunk]:
        rows = self._all(
            f"""SELECT {_CHUNK} FROM {self._chunks} v WHERE v.name = %s AND v.position =
                (SELECT position FROM {self._chunks} c WHERE id = v.id AND number <= %s {_OWN_FIRST}) ORDER BY v.position DESC""",
            name,
            at,
        )
        return [decode_chunk(row) for row in rows]

    def names(self) -> list[str]:
        return [name for (name,) in self._all(f"SELECT DISTINCT name FROM {self._chunks} c LIMIT 20000")]

    def placed(self, scopes: Collection[str], at: int = NOW, *, ids: str = "") -> list[tuple[Chunk, Placement]]:
        rows = self._all(
            f"""SELECT p.scope, p.kind, p.sequence, p.number, {_CHUNK} FROM
                (SELECT DISTINCT ON (scope, kind, chunk) * FROM {self._placements} o
                 WHERE scope = ANY(%s) AND starts_with(chunk, %s) AND number <= %s
                 ORDER BY scope, kind, chunk, number DESC) p
                CROSS JOIN LATERAL (SELECT * FROM {self._chunks} c WHERE id = p.chunk AND number <= %s
                 {_OWN_FIRST}) v
                WHERE NOT p.removed""",
            [*scopes],
            ids,
            at,
            at,
        )
        return [(chunk := decode_chunk(row[4:]), Placement(chunk.id, *row[:4])) for row in rows]

    def newest(self, scope: str, limit: int, at: int = NOW) -> list[Chunk]:
        # As rows, so that the index of times is read and not that of commits, which is long where others commit more.
        rows = self._all(
            f"""SELECT {_CHUNK} FROM
                (SELECT * FROM {self._placements} o WHERE (scope, kind, number) >= (%s, 'instance', 0)
                 AND (scope, kind, number) <= (%s, 'instance', %s)
                 ORDER BY scope DESC, kind DESC, number DESC LIMIT %s) p
                CROSS JOIN LATERAL (SELECT * FROM {self._chunks} c WHERE id = p.chunk AND number <= %s
                 {_OWN_FIRST}) v
                WHERE NOT p.removed AND p.number = (SELECT max(number) FROM {self._placements} o
                 WHERE scope = p.scope AND kind = p.kind AND chunk = p.chunk AND number <= %s)
                ORDER BY p.number DESC""",
            scope,
            scope,
            at,
            limit,
            at,
            at,
        )
        return [decode_chunk(row) for row in rows]

    def parents(self, chunk_id: str, at: int = NOW) -> list[Placement]:
        rows = self._all(
            f"""SELECT DISTINCT ON (kind, scope) {_PLACEMENT}, removed FROM {self._placements} o
                WHERE chunk = %s AND number <= %s ORDER BY kind, scope, number DESC""",
            chunk_id,
            at,
        )
        return [_placement(row) for row in rows if not row[5]]

    def above(self, chunks: Collection[str], kinds: Collection[Kind], at: int = NOW) -> list[tuple[str, str, bool]]:
        rows = self._all(
            f"""SELECT p.chunk, p.scope, v.spec FROM
                (SELECT DISTINCT ON (chunk, kind, scope) chunk, kind, scope, removed FROM {self._placements} o
                 WHERE chunk = ANY(%s) AND kind = ANY(%s) AND number <= %s ORDER BY chunk, kind, scope, number DESC) p
                LEFT JOIN LATERAL (SELECT spec FROM {self._chunks} c WHERE id = p.scope AND number <= %s
                 {_OWN_FIRST}) v ON p.kind = 'instance'
                WHERE NOT p.removed""",
            [*chunks],
            [*kinds],
            at,
            at,
        )
        return [(chunk, scope, bool(spec) and decode_spec(spec).archetype) for chunk, scope, spec in rows]

    def placement(self, scope: str, chunk_id: str, kind: Kind, at: int = NOW) -> Placement | None:
        row = self._one(
            f"""SELECT {_PLACEMENT}, removed FROM {self._placements} o
                WHERE scope = %s AND kind = %s AND chunk = %s AND number <= %s ORDER BY number DESC LIMIT 1""",
            scope,
            kind,
            chunk_id,
            at,
        )
        return _placement(row) if row and not row[5] else None

    def references(self, scope: str) -> list[Placement]:
        rows = self._all(
            f"""SELECT DISTINCT ON (chunk) {_PLACEMENT}, removed FROM {self._placements} o
                WHERE scope = %s AND kind = 'relates' ORDER BY chunk, number DESC""",
            scope,
        )
        return [_placement(row) for row in rows if not row[5]]

    def at_sequence(self, scope: str, sequence: int) -> list[Placement]:
        rows = self._all(
            f"SELECT DISTINCT chunk, kind FROM {self._placements} o WHERE scope = %s AND sequence = %s", scope, sequence
        )
        found = [self.placement(scope, chunk, kind) for chunk, kind in rows]
        return [each for each in found if each is not None and each.sequence == sequence]

    def highest_sequence(self, scope: str) -> int:
        return int(
            self._one(f"SELECT coalesce(max(sequence), -1) FROM {self._placements} o WHERE scope = %s", scope)[0]
        )

    def commits(self, scope: str | None, limit: int, before: int) -> list[Commit]:
        touched = f"""AND number IN (SELECT number FROM {self._chunks} c WHERE id = %(scope)s
            UNION SELECT number FROM {self._placements} o WHERE scope = %(scope)s OR (chunk = %(scope)s AND kind = 'instance')
            UNION SELECT number FROM {self._chunks} c
                WHERE id IN (SELECT chunk FROM {self._placements} o WHERE scope = %(scope)s))"""
        # Of a private commit, only its owner has the texts.
        statement = f"""SELECT number, at, coalesce(t.author, m.author), coalesce(t.source, m.source),
            coalesce(t.message, m.message), changed FROM cantrip_commits m LEFT JOIN {self._texts} t USING (number)
            WHERE number < %(before)s AND (NOT m.private OR t.author IS NOT NULL) {touched if scope is not None else ""}
            ORDER BY number DESC LIMIT %(limit)s"""
        rows = self.base.execute(statement.encode(), {"scope": scope, "before": before, "limit": limit}).fetchall()
        return [Commit(*row) for row in rows]

    def changed(self, chunks: Collection[str], after: int) -> bool:
        (found,) = self._one(
            f"""SELECT EXISTS (SELECT FROM {self._chunks} c WHERE number > %s AND id = ANY(%s))
               OR EXISTS (SELECT FROM {self._placements} o WHERE number > %s AND scope = ANY(%s))""",
            *(after, [*chunks]) * 2,
        )
        return bool(found)

    def versions(self, after: int, until: int) -> list[Chunk]:
        rows = self._all(
            f"SELECT {_CHUNK} FROM {self._chunks} v WHERE number > %s AND number <= %s ORDER BY position", after, until
        )
        return [decode_chunk(row) for row in rows]

    def records(self, after: int, until: int) -> list[Record]:
        rows = self._all(
            f"""SELECT chunk, scope, kind, sequence, number, removed FROM {self._placements} o
               WHERE number > %s AND number <= %s ORDER BY number, scope, sequence, chunk, kind""",
            after,
            until,
        )
        return [Record(*row) for row in rows]

    def search(
        self, words: Sequence[str], match: Match, at: int, limit: int, *, known: bool, skip: int = 0
    ) -> list[tuple[str, str]]:
        # In quotes, a word is never an operator. A word has no quotes.
        query = (" | " if match == "any" else " & ").join(f"'{word}'" for word in words)
        if match == "beginning":
            query += ":*"
        # In the order of their scores, so that the rest is read and checked only until there are enough. Never prepared: how
        # many chunks have the words decides how they are found.
        rows = self.base.execute(
            f"""SELECT id, source FROM
                (SELECT * FROM (SELECT position, id, source, number, ts_rank(words, query) AS score
                   FROM {self._chunks} c, to_tsquery('simple', %s) AS query
                   WHERE words @@ query AND {KNOWN if known else RECORD}
                   ORDER BY position DESC LIMIT {MOST_RANKED} OFFSET %s) found
                 ORDER BY score DESC, position DESC) s
                WHERE s.position = (SELECT position FROM {self._chunks} c WHERE id = s.id AND number <= %s {_OWN_FIRST})
                ORDER BY s.score DESC, s.position DESC LIMIT %s""".encode(),
            (query, skip, at, limit),
            prepare=False,
        )
        return [*rows]

    def refusals(self, limit: int) -> list[Refusal]:
        rows = self._all(
            f"SELECT at, author, operation, chunk, text FROM {self._refusals} r ORDER BY position DESC LIMIT %s", limit
        )
        return [Refusal(*row) for row in rows]

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
        rows = self._all(f"SELECT DISTINCT id FROM {self._chunks} c WHERE id = ANY(%s) AND owner <> ''", [*chunks])
        return {chunk_id for (chunk_id,) in rows}

    def _owner(self, *ids: str) -> tuple[str, str]:
        """The owner by the ids; of what has an id that says nothing, the owner of what is there."""
        owner = self._user.owner(*ids)
        if owner[0]:
            return owner
        row = self._one(
            f"SELECT owner, part FROM {self._chunks} c WHERE id = ANY(%s) AND owner <> '' ORDER BY part DESC LIMIT 1",
            [*ids],
        )
        return (row[0], row[1]) if row else owner

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


def _placement(row: Sequence[Any]) -> Placement:
    scope, chunk, kind, sequence, number = row[:5]
    return Placement(chunk, scope, kind, sequence, number)


def _version(base: psycopg.Connection[Any]) -> int:
    if base.execute("SELECT to_regclass('cantrip_substrate_tables')").fetchone() == (None,):
        return 0
    row = base.execute("SELECT coalesce(max(version), 0) FROM cantrip_substrate_tables").fetchone()
    return row[0] if row else 0
