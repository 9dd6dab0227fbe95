"""The `Store` protocol: append one record, read one, go through all of them in order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Protocol

from cantrip_acp.loom.records.record_heads import Head, LaterHead
from cantrip_acp.loom.records.tree import Problem
from cantrip_acp.types.errors import LoomDamaged
from cantrip_acp.types.records import LaterRecord, Record

if TYPE_CHECKING:
    from cantrip_acp.loom.records.tree import Tree


def readable(store: Store, positions: Iterable[int]) -> list[Record | LaterRecord | None]:
    """Read the records at these positions, with None for each damaged one. Damage is added to the store's ``problems``."""
    wanted = list(positions)
    try:
        return list(store.read_all(wanted))
    except LoomDamaged:
        pass
    found: list[Record | LaterRecord | None] = []
    for position in wanted:
        try:
            found.append(store.read(position))
        except LoomDamaged as error:
            found.append(None)
            if all(problem.offset != position for problem in store.problems):
                store.problems.append(Problem(str(error), offset=position, rule="damaged-line"))
    return found


class Store(Protocol):
    """Keeps records permanently and in order."""

    @property
    def location(self) -> str | None:
        """A path or address for people; None in memory."""
        ...

    problems: list[Problem]

    readonly: bool
    """Whether the store refuses `append`."""

    behind: bool
    """Whether other processes wrote before the last `append`. The caller must then call `news`, which yields that
    record too."""

    def append(self, record: Record | LaterRecord, body: bytes | bytearray) -> int:
        """Write a record and return its position. When this returns, the record is in the store (LOOM-1).

        ``body`` is the record's JSON, which may hold fields that this version does not know (`stored`). The store may change a
        bytearray, and must not keep it.

        Raises `LoomWriteError`. A store with many writers also raises `LoomAppendOnly` or `LoomError` if another
        writer made the record wrong (a turn that is already written, a second header). After an error the store is as
        it was before.
        """
        ...

    def read(self, position: int) -> Record | LaterRecord:
        """The record at a position that `append` or `scan` gave."""
        ...

    def read_all(self, positions: Iterable[int]) -> list[Record | LaterRecord]:
        """The records at these positions, in their order."""
        ...

    def tree(self) -> Tree | None:
        """The tree that was saved at the last close; None if it must be built from the heads."""
        ...

    def heads(self) -> Iterator[tuple[int, Head | LaterHead | Record]]:
        """Yield the position and head of every record, first to last. Problems are added to ``problems``."""
        ...

    def note(self, position: int, message: str, rule: str = "changed-line") -> None:
        """Record a problem with the record that `heads` or `news` gave last; that record can be read."""
        ...

    def news(self) -> Iterator[tuple[int, Head | LaterHead | Record]]:
        """Like `heads`, for records written since the last one that `heads`, `news` or `append` gave.

        A store with a single writer yields nothing to that writer; its readers see what the writer adds.
        """
        ...

    def scan(self) -> Iterator[tuple[int, Record | LaterRecord]]:
        """Yield every record with its position, first to last."""
        ...

    def stored(self) -> Iterator[tuple[Record | LaterRecord, bytes | None]]:
        """Yield every record with its JSON as it was written, first to last; None if it was never JSON."""
        ...

    def damaged(self) -> list[Problem]:
        """Read the whole store and return every record that cannot be read, was changed, or does not follow the record
        before it."""
        ...

    def lock_cast(self, cast_id: str) -> bool:
        """Mark a cast as running in this process, until `release`, `close` or the end of the process. Returns False
        if this process or another one already runs that cast. A forked child runs no cast."""
        ...

    def release(self, cast_id: str) -> None:
        """Mark a cast as no longer running in this process."""
        ...

    def running(self, cast_ids: Iterable[str]) -> set[str]:
        """Which of these casts run in a living process. None of them may have an end."""
        ...

    def close(self, tree: Tree | None = None) -> None:
        """Close the store; safe to call twice. The store may save ``tree`` for the next opening."""
        ...
