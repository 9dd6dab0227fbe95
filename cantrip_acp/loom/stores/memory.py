"""A loom in memory, for tests and for casts whose trace nobody wants to keep."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from cantrip_acp.loom.stores.contract import Problem
from cantrip_acp.loom.turn import Record


class MemoryStore:
    """Records in a list; gone with the process."""

    location: str | None = None
    sole = True
    behind = False

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self._records: list[Record] = []

    def append(self, record: Record) -> int:
        self._records.append(record)
        return len(self._records) - 1

    def read(self, position: int) -> Record:
        return self._records[position]

    def read_all(self, positions: Iterable[int]) -> list[Record]:
        return [self._records[position] for position in positions]

    def tree(self) -> None:
        return None

    def heads(self) -> Iterator[tuple[int, Record]]:
        return self.scan()

    def note(self, position: int, message: str) -> None:
        self.problems.append(Problem(f"record {position}: {message}", offset=position))

    def news(self) -> Iterator[tuple[int, Record]]:
        return iter(())

    def scan(self) -> Iterator[tuple[int, Record]]:
        yield from enumerate(tuple(self._records))

    def damaged(self) -> list[Problem]:
        return []

    def close(self, tree: object = None) -> None:
        return None
