"""What the stores of looms in SQLite and in PostgreSQL have in common: the end of each chain, reading in order, and errors.

`sqlite` and `postgres` have the rest: the tables with their guards, transactions, and what a damaged or lost database needs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, Self

import msgspec

from cantrip_acp.db import Kind
from cantrip_acp.loom.records.record_heads import Head, LaterHead
from cantrip_acp.loom.records.tree import Problem
from cantrip_acp.loom.stores import checksum, rows
from cantrip_acp.types.errors import LoomAppendOnly, LoomDamaged, LoomError, LoomWriteError
from cantrip_acp.types.records import LaterRecord, Record

if TYPE_CHECKING:
    from cantrip_acp.loom.records.tree import Tree

TABLES = 2
"""The version of the tables; a reader refuses a higher one."""
KIND = Kind(
    "loom",
    # The letters CANT.
    0x43414E54,
    LoomError,
    LoomWriteError,
    "cantrip-acp reads up to {}. Upgrade cantrip-acp",
    TABLES,
)
DAMAGED = (msgspec.DecodeError, UnicodeError, RecursionError, TypeError)
"""The exceptions of decoding a damaged record."""
_PAGE = 1000
"""How many bodies one query reads."""


class CastLocks(Protocol):
    """Which casts run in a living process (`cast_locks`, `postgres_cast_locks`)."""

    def lock_cast(self, cast_id: str) -> bool: ...
    def release(self, cast_id: str) -> None: ...


class SqlStore(ABC):
    """The records of a loom in a database: a row for each, and for each entity the end of its chain of checksums."""

    place: object
    """The file, or the address without a password: for errors."""
    _locks: CastLocks
    _integrity: type[Exception]
    """The driver's error for a row that a guard of the database refused."""

    def __init__(self, *, readonly: bool) -> None:
        self.problems: list[Problem] = []
        self.readonly = readonly
        self.behind = False
        self._seen = 0
        self._sums: dict[str, str] = {}
        """The last checksum of each chain, after record ``_seen``."""

    @abstractmethod
    def _add(self, base: Any, n: int, row: rows.Row, head: bytes, body: bytearray, own: str) -> None:
        """Write a row with its checksum at a position."""

    @abstractmethod
    def _chain_end(self, base: Any, entity: str) -> str:
        """The last checksum of a chain, or `checksum.START`."""

    @abstractmethod
    def _alone(self, base: Any) -> AbstractContextManager[int]:
        """A transaction in which nobody else writes to the loom, and the position of its last record."""

    @abstractmethod
    def _bodies(self, positions: list[int]) -> Mapping[int, bytes]: ...

    @abstractmethod
    def _rows(self, column: str, after: int, noted: list[Problem]) -> Iterator[tuple[int, bytes]]:
        """Yield the heads or bodies of rows in order."""

    @abstractmethod
    def _head_from_body(self, position: int) -> Head | LaterHead | None:
        """Make a head from the body of a record; None if that is damaged too."""

    @abstractmethod
    def _reader(self) -> Self:
        """A separate connection for reading."""

    @abstractmethod
    def _damage(self) -> list[Problem]: ...

    @abstractmethod
    def close(self, tree: Tree | None = None) -> None: ...

    def _insert(self, base: Any, row: rows.Row) -> int:
        """Add a row at the end of the loom and of its chain, and return its position. If another process wrote first, lock,
        find the new end and add it there."""
        prev = self._sums.get(row.entity)
        try:
            own = self._seal(base, row, self._seen + 1, self._chain_end(base, row.entity) if prev is None else prev)
        except self._integrity as error:
            if rows.KEPT not in str(error):
                raise
        else:
            self._sums[row.entity] = own
            self._seen += 1
            self.behind = False
            return self._seen
        self._sums.clear()
        with self._alone(base) as last:
            self._seal(base, row, last + 1, self._chain_end(base, row.entity))
        self.behind = last != self._seen
        if not self.behind:
            self._seen = last + 1
        return last + 1

    def _seal(self, base: Any, row: rows.Row, n: int, prev: str) -> str:
        body = bytearray(row.body)
        own = checksum.close(body, prev, n)
        body.pop()
        self._add(base, n, row, rows.sealed(row.head), body, own)
        return own

    def _refused(self, why: str, row: rows.Row) -> LoomError:
        """The error for a record that a trigger of the database refused."""
        if rows.ORPHAN in why:
            return LoomError(f"turn {row.turn_id!r} names a parent that is not in this loom: {row.parent_id!r}")
        if rows.TAKEN in why:
            return LoomAppendOnly(f"loom is append-only: turn {row.turn_id!r} is already written")
        if rows.HEADED in why:
            return LoomAppendOnly(f"loom {self.place} has its header already")
        return LoomWriteError(f"cannot write loom {self.place}: {why}")

    def read(self, position: int) -> Record | LaterRecord:
        return self.read_all((position,))[0]

    def read_all(self, positions: Iterable[int]) -> list[Record | LaterRecord]:
        wanted: list[int] = list(positions)
        found: list[Record | LaterRecord] = []
        for at in range(0, len(wanted), _PAGE):
            part = wanted[at : at + _PAGE]
            bodies = self._bodies(part)
            for position in part:
                if position not in bodies:
                    raise LoomDamaged(f"loom {self.place}: there is no record {position}")
                try:
                    found.append(rows.record_of(bodies[position]))
                except DAMAGED as error:
                    raise LoomDamaged(f"loom {self.place}: record {position} is damaged: {error}") from error
                if checksum.is_valid(bodies[position]) is False and all(p.offset != position for p in self.problems):
                    self.note(position, checksum.CHANGED)
        return found

    def tree(self) -> Tree | None:
        return None

    def heads(self) -> Iterator[tuple[int, Head | LaterHead]]:
        noted: list[Problem] = []
        for position, head in self._decoded("head", rows.head_of, noted, self._seen):
            newer = rows.too_new(head)
            if newer is not None:
                raise LoomError(f"loom {self.place} has {newer}. Upgrade cantrip-acp")
            self._seen = max(self._seen, position)
            self._sums.clear()
            yield position, head
        # The next call of `news` finds damage at the end again.
        self.problems += [problem for problem in noted if problem not in self.problems]

    def note(self, position: int, message: str, rule: str = "changed-line") -> None:
        self.problems.append(Problem(f"record {position}: {message}", offset=position, rule=rule))

    def news(self) -> Iterator[tuple[int, Head | LaterHead]]:
        """Yield the heads of records, of any process, that are newer than the last one in the tree."""
        self.behind = False
        return self.heads()

    def scan(self) -> Iterator[tuple[int, Record | LaterRecord]]:
        yield from self._decoded("body", rows.record_of, [], 0)

    def stored(self) -> Iterator[tuple[Record | LaterRecord, bytes | None]]:
        for _, each in self._decoded("body", lambda body: (rows.record_of(body), checksum.strip(body)), [], 0):
            yield each

    def _decoded(
        self, column: str, decode: Callable[[bytes], Any], noted: list[Problem], after: int
    ) -> Iterator[tuple[int, Any]]:
        for position, data in self._rows(column, after, noted):
            if position > after + 1 and column == "head" and not (noted and noted[-1].offset == after):
                noted.append(rows.missing(after + 1, position - 1))
            after = position
            try:
                record = decode(data)
            except DAMAGED as error:
                noted.append(Problem(f"record {position} is damaged: {error}", offset=position))
                record = self._head_from_body(position) if column == "head" else None
                if record is None:
                    continue
            yield position, record

    def damaged(self) -> list[Problem]:
        # A connection of its own sees one state of the database, even while others write.
        reader = self._reader()
        try:
            return reader._damage()
        finally:
            reader.close()

    def lock_cast(self, cast_id: str) -> bool:
        return self._locks.lock_cast(cast_id)

    def release(self, cast_id: str) -> None:
        self._locks.release(cast_id)


def chain_ends(bodies: Iterable[bytes]) -> list[tuple[str, int, str]]:
    """Of records from before there were chains: for each entity the number of records, and the checksum of the last."""
    ends: dict[str, tuple[int, str]] = {}
    for body in bodies:
        try:
            entity = rows.row_of(rows.record_of(body)).entity
        except DAMAGED:
            continue
        ends[entity] = ends.get(entity, (0, ""))[0] + 1, checksum.sums(body)[1]
    return [(entity, *end) for entity, end in ends.items()]
