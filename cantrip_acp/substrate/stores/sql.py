"""What the substrate asks a database, once for SQLite and PostgreSQL: `db.dialect` says what they write differently.

`sqlite` and `postgres` have the rest: opening, transactions, search, and whose a row is.
"""

from __future__ import annotations

import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator
from typing import Any, Generic, TypeVar

from cantrip_acp.db import Kind as Store
from cantrip_acp.db import dialect
from cantrip_acp.substrate.chunks import Chunk, Commit, Kind, Placement, Refusal, SubstrateError
from cantrip_acp.substrate.stores.base import NOW, Record, decode_chunk, decode_spec

STORE = Store(
    "substrate",
    # The letters CSUB.
    0x43535542,
    SubstrateError,
    SubstrateError,
    "cantrip reads up to {}; update cantrip",
)
CHUNK = "v.id, v.name, v.spec, v.body, v.source, v.number"
"""The columns of `decode_chunk`."""
_PLACEMENT = "scope, chunk, kind, sequence, removed"


class SqlView(ABC):
    """One connection, in a transaction."""

    _dialect: dialect.Sqlite | dialect.Postgres
    _latest: str
    """Of the rows of a chunk, the version that counts."""
    _told = "commits"
    """The commits with their texts."""
    _wanted: str
    """The values ``:ids`` as a table ``wanted``."""
    _begins: str
    """Whether the id of a ``chunk`` begins with ``:ids``."""
    _times: str
    """The latest ``:limit`` records of instances on ``:scope``, quickly."""
    _rare = ""
    """Before a column: that few commits are new, so by their numbers is the quick way."""

    @abstractmethod
    def _all(self, statement: str, /, **values: Any) -> list[Any]:
        """The rows of a query."""

    @abstractmethod
    def _version(self, chunk: str) -> str:
        """The SQL join for the version of a chunk at ``:at``, as ``v``."""

    @abstractmethod
    def _last(self, columns: str, by: str, where: str) -> str:
        """The SQL for the last placement record of each group ``by`` these columns, with its ``number``."""

    def _chunks(self, rest: str, **values: Any) -> list[Chunk]:
        return [decode_chunk(row) for row in self._all(f"SELECT {CHUNK} FROM {rest}", **values)]

    def _placements(self, rows: str, **values: Any) -> list[Placement]:
        found = self._all(f"SELECT {_PLACEMENT}, number FROM {rows}", **values)
        return [
            Placement(chunk, scope, kind, sequence, number)
            for scope, chunk, kind, sequence, removed, number in found
            if not removed
        ]

    def latest(self) -> int:
        [(number,)] = self._all("SELECT max(number) FROM commits")
        return number or 0

    def chunk(self, chunk_id: str, at: int = NOW) -> Chunk | None:
        found = self._chunks(f"chunk_versions v WHERE id = :id AND number <= :at {self._latest}", id=chunk_id, at=at)
        return found[0] if found else None

    def chunks(self, ids: Collection[str], at: int = NOW) -> list[Chunk]:
        return self._chunks(f"{self._wanted} {self._version('wanted.id')}", ids=[*dict.fromkeys(ids)], at=at)

    def named(self, name: str, at: int = NOW) -> list[Chunk]:
        current = f"SELECT position FROM chunk_versions c WHERE id = v.id AND number <= :at {self._latest}"
        return self._chunks(
            f"chunk_versions v WHERE v.name = :name AND v.position = ({current}) ORDER BY v.position DESC",
            name=name,
            at=at,
        )

    def names(self) -> list[str]:
        return [name for (name,) in self._all("SELECT DISTINCT name FROM chunk_versions c LIMIT 20000")]

    def placed(self, scopes: Collection[str], at: int = NOW, *, ids: str = "") -> list[tuple[Chunk, Placement]]:
        last = self._last(
            "scope, kind, chunk, sequence, removed",
            "scope, kind, chunk",
            f"scope IN :scopes AND kind IN ('instance', 'relates') AND {self._begins} AND number <= :at",
        )
        rows = self._all(
            f"SELECT p.scope, p.kind, p.sequence, p.number, {CHUNK} FROM {last} p {self._version('p.chunk')} "
            "WHERE NOT p.removed",
            scopes=[*scopes],
            ids=ids,
            at=at,
        )
        return [(chunk := decode_chunk(row[4:]), Placement(chunk.id, *row[:4])) for row in rows]

    def newest(self, scope: str, limit: int, at: int = NOW) -> list[Chunk]:
        last = (
            "SELECT max(number) FROM placement_versions o WHERE scope = p.scope AND kind = p.kind AND chunk = p.chunk"
        )
        return self._chunks(
            f"(SELECT * FROM placement_versions o WHERE {self._times} LIMIT :limit) p {self._version('p.chunk')} "
            f"WHERE NOT p.removed AND p.number = ({last} AND number <= :at) ORDER BY p.number DESC",
            scope=scope,
            limit=limit,
            at=at,
        )

    def parents(self, chunk_id: str, at: int = NOW) -> list[Placement]:
        last = self._last(_PLACEMENT, "kind, scope", "chunk = :chunk AND number <= :at")
        return self._placements(f"{last} p", chunk=chunk_id, at=at)

    def above(self, chunks: Collection[str], kinds: Collection[Kind], at: int = NOW) -> list[tuple[str, str, bool]]:
        last = self._last(
            "chunk, kind, scope, removed",
            "chunk, kind, scope",
            "chunk IN :chunks AND kind IN :kinds AND number <= :at",
        )
        spec = f"SELECT spec FROM chunk_versions c WHERE id = p.scope AND number <= :at {self._latest}"
        rows = self._all(
            f"SELECT p.chunk, p.scope, CASE WHEN p.kind = 'instance' THEN ({spec}) END FROM {last} p WHERE NOT p.removed",
            chunks=[*chunks],
            kinds=[*kinds],
            at=at,
        )
        return [(chunk, scope, bool(spec) and decode_spec(spec).archetype) for chunk, scope, spec in rows]

    def placement(self, scope: str, chunk_id: str, kind: Kind, at: int = NOW) -> Placement | None:
        found = self._placements(
            f"(SELECT {_PLACEMENT}, number FROM placement_versions o WHERE scope = :scope AND kind = :kind AND chunk = :chunk "
            "AND number <= :at ORDER BY number DESC LIMIT 1) p",
            scope=scope,
            kind=kind,
            chunk=chunk_id,
            at=at,
        )
        return found[0] if found else None

    def references(self, scope: str) -> list[Placement]:
        last = self._last(_PLACEMENT, "chunk", "scope = :scope AND kind = 'relates'")
        return self._placements(f"{last} p", scope=scope)

    def at_sequence(self, scope: str, sequence: int) -> list[Placement]:
        rows = self._all(
            "SELECT DISTINCT chunk, kind FROM placement_versions o WHERE scope = :scope AND sequence = :sequence",
            scope=scope,
            sequence=sequence,
        )
        found = [self.placement(scope, chunk, kind) for chunk, kind in rows]
        return [each for each in found if each is not None and each.sequence == sequence]

    def highest_sequence(self, scope: str) -> int:
        [(highest,)] = self._all("SELECT max(sequence) FROM placement_versions o WHERE scope = :scope", scope=scope)
        return -1 if highest is None else highest

    def commits(self, scope: str | None, limit: int, before: int) -> list[Commit]:
        on_it = "SELECT chunk FROM placement_versions o WHERE scope = :scope"
        touched = (
            "AND number IN (SELECT number FROM chunk_versions c WHERE id = :scope UNION SELECT number FROM placement_versions o "
            "WHERE scope = :scope OR (chunk = :scope AND kind = 'instance') "
            f"UNION SELECT number FROM chunk_versions c WHERE id IN ({on_it}))"
        )
        rows = self._all(
            f"SELECT number, at, author, source, message, changed FROM {self._told} m WHERE number < :before "
            f"{touched if scope is not None else ''} ORDER BY number DESC LIMIT :limit",
            scope=scope,
            before=before,
            limit=limit,
        )
        return [Commit(*row) for row in rows]

    def changed(self, chunks: Collection[str], after: int) -> bool:
        [(found,)] = self._all(
            f"SELECT EXISTS (SELECT 1 FROM chunk_versions c WHERE number > :after AND {self._rare}id IN :chunks) "
            f"OR EXISTS (SELECT 1 FROM placement_versions o WHERE number > :after AND {self._rare}scope IN :chunks)",
            after=after,
            chunks=[*chunks],
        )
        return bool(found)

    def versions(self, after: int, until: int) -> list[Chunk]:
        rest = "chunk_versions v WHERE number > :after AND number <= :until ORDER BY position"
        return self._chunks(rest, after=after, until=until)

    def records(self, after: int, until: int) -> list[Record]:
        rows = self._all(
            "SELECT chunk, scope, kind, sequence, number, removed FROM placement_versions o "
            "WHERE number > :after AND number <= :until ORDER BY number, scope, sequence, chunk, kind",
            after=after,
            until=until,
        )
        return [
            Record(chunk, scope, kind, sequence, number, bool(removed))
            for chunk, scope, kind, sequence, number, removed in rows
        ]

    def refusals(self, limit: int) -> list[Refusal]:
        rows = self._all(
            "SELECT at, author, operation, chunk, text FROM refusals r ORDER BY position DESC LIMIT :limit", limit=limit
        )
        return [Refusal(*row) for row in rows]


_View = TypeVar("_View")


class SqlTables(ABC, Generic[_View]):
    """A database with a connection for reading and one for writing. Raises `SubstrateError`."""

    location: str
    _driver: type[Exception]
    """The exceptions of the driver."""

    def __init__(self) -> None:
        self._locks = {"read": threading.RLock(), "write": threading.RLock()}
        self._views: dict[str, _View] = {}
        self._closed = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.location!r})"

    @abstractmethod
    def _failure(self, operation: str, error: object) -> Exception:
        """The error for an operation that failed."""

    @contextlib.contextmanager
    def _failures(self, operation: str) -> Iterator[None]:
        if self._closed:
            raise self._failure(operation, "it was closed")
        try:
            yield
        except self._driver as error:
            raise self._failure(operation, error) from None

    def close(self) -> None:
        """Close the connections. Committed data is on the disk."""
        with self._locks["read"], self._locks["write"]:
            self._closed = True
            while self._views:
                self._end(self._views.popitem()[1])

    @abstractmethod
    def _end(self, view: _View) -> None:
        """Close a connection."""
