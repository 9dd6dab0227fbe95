"""What a store must offer: append one record, give one back, go through all of them in order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Protocol

import msgspec

from cantrip_acp.core.errors import LoomDamaged
from cantrip_acp.loom.records.record_heads import Head, LaterHead
from cantrip_acp.loom.records.turn import LaterRecord, Record

if TYPE_CHECKING:
    from cantrip_acp.loom.records.tree import Tree


class Problem(msgspec.Struct, frozen=True):
    """Something that could not be read, and where. ``line`` counts from 1, ``offset`` and ``length`` are in bytes.

    ``set_aside`` names the file that now holds the bytes, where they were moved out of the way.
    """

    message: str
    line: int | None = None
    offset: int | None = None
    length: int | None = None
    set_aside: str | None = None
    rule: str = "changed-line"
    """Its name in `lsp/recipes/rules.md`."""

    def __str__(self) -> str:
        place = f"line {self.line}: " if self.line is not None else ""
        aside = f" (set aside in {self.set_aside})" if self.set_aside else ""
        return f"{place}{self.message}{aside}"


def readable(store: Store, positions: Iterable[int]) -> list[Record | LaterRecord | None]:
    """The records at these positions, None for each that is damaged; the store's ``problems`` then name it."""
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
    """Where records are kept, in order, for good."""

    @property
    def location(self) -> str | None:
        """A path or address for people; None in memory."""
        ...

    problems: list[Problem]

    readonly: bool
    """Whether nothing can be appended."""

    behind: bool
    """Whether others wrote before the last `append`, so that `news` has to be taken, with what was appended too."""

    def append(self, record: Record | LaterRecord, body: bytes | None = None) -> int:
        """Keep a record and return its position. When this returns, the record is in the store (LOOM-1).

        ``body`` is the record's JSON where that may hold fields that this version does not know (`stored`).

        Raises `LoomWriteError`, and where many write `LoomAppendOnly` or `LoomError` for what another one made wrong (a turn
        that is written already, a second header); the store is then as it was before.
        """
        ...

    def read(self, position: int) -> Record | LaterRecord:
        """The record at a position that `append` or `scan` gave."""
        ...

    def read_all(self, positions: Iterable[int]) -> list[Record | LaterRecord]:
        """The records at these positions, in their order."""
        ...

    def tree(self) -> Tree | None:
        """The tree as it was kept from the last time; None where it must be made of the heads."""
        ...

    def heads(self) -> Iterator[tuple[int, Head | LaterHead | Record]]:
        """What the tree needs of every record, with its position, first to last; the store notes its ``problems``."""
        ...

    def note(self, position: int, message: str, rule: str = "changed-line") -> None:
        """Keep what is wrong with the record that `heads` or `news` gave last, which is readable by itself, as a problem."""
        ...

    def news(self) -> Iterator[tuple[int, Head | LaterHead | Record]]:
        """As `heads`, of what was written since the last one that `heads`, `news` or `append` gave.

        Nothing for the one writer of a store that has one; its readers see what it adds.
        """
        ...

    def scan(self) -> Iterator[tuple[int, Record | LaterRecord]]:
        """Every record with its position, first to last."""
        ...

    def stored(self) -> Iterator[tuple[Record | LaterRecord, bytes | None]]:
        """Every record with its JSON as it was written, first to last; None where it was never JSON."""
        ...

    def damaged(self) -> list[Problem]:
        """Everything that cannot be read, is not what it was written as, or does not follow the record before it, found
        by reading all of it."""
        ...

    def hold(self, cast_id: str) -> bool:
        """This process works on a cast from now on, until `release`, `close` or its death; False where it, or another one,
        works on that cast already. A forked child works on none."""
        ...

    def release(self, cast_id: str) -> None:
        """This process no longer works on a cast."""
        ...

    def running(self, cast_ids: Iterable[str]) -> set[str]:
        """Those of these casts, none of which has an end, that a living process works on."""
        ...

    def close(self, tree: Tree | None = None) -> None:
        """Let go of the store; safe to call twice. ``tree`` may be kept for the next opening."""
        ...
