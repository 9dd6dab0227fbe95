"""Read-only view of two looms as one, such as a session and its fork: what both have is in it once. It follows the writers
of both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from typing import cast as typed

from cantrip_acp.loom.query.completed_turns import completed
from cantrip_acp.loom.records import record_heads
from cantrip_acp.loom.records.tree import Problem
from cantrip_acp.loom.stores.address import open_store
from cantrip_acp.loom.stores.contract import readable
from cantrip_acp.loom.stores.rows import encoded
from cantrip_acp.types.errors import LoomError
from cantrip_acp.types.records import LaterRecord, Record


class JoinedStore:
    """Behaves like a store that is open for reading. A position has the number of its loom in the lowest bit."""

    location: str
    readonly = True
    behind = False

    def __init__(self, left: Path | str, right: Path | str) -> None:
        first = completed(open_store(left, readonly=True), left)
        try:
            second = completed(open_store(right, readonly=True), right)
        except BaseException:
            first.close()
            raise
        self.stores = first, second
        self.location = " and ".join(store.location or "in memory" for store in self.stores)
        self.problems: list[Problem] = []
        self.ends: list[str | None] = [None, None]
        """The turn that was written to each loom last, except by children."""
        self._reported = [0, 0]
        self._turns: set[str] = set()
        self._others: set[object] = set()
        self._children: set[str] = set()
        self._has_header = False

    def heads(self) -> Iterator[tuple[int, Any]]:
        for side, store in enumerate(self.stores):
            count = 0
            for count, (position, head) in enumerate(store.heads(), 1):  # noqa: B007
                if self._is_new(side, position, head):
                    yield 2 * position + side, head
            if count == 0 and store.problems:
                raise LoomError(f"{store.location}: this is not a loom: {store.problems[0]}")
        self._collect_problems()

    def news(self) -> Iterator[tuple[int, Any]]:
        for side, store in enumerate(self.stores):
            for position, head in store.news():
                if self._is_new(side, position, head):
                    yield 2 * position + side, head
        self._collect_problems()

    def read(self, position: int) -> Record | LaterRecord:
        return self.stores[position & 1].read(position >> 1)

    def read_all(self, positions: Iterable[int]) -> list[Record | LaterRecord]:
        wanted = list(positions)
        found = [
            iter(store.read_all([at >> 1 for at in wanted if at & 1 == side])) for side, store in enumerate(self.stores)
        ]
        return [next(found[at & 1]) for at in wanted]

    def location_of(self, position: int) -> str:
        """The loom that has the record."""
        return self.stores[position & 1].location or "in memory"

    def running(self, cast_ids: Iterable[str]) -> set[str]:
        wanted = list(cast_ids)
        return {each for store in self.stores for each in store.running(wanted)}

    def close(self) -> None:
        for store in self.stores:
            store.close()

    def _is_new(self, side: int, position: int, head: Any) -> bool:
        """Whether a record is not in the other loom too."""
        match record_heads.kind(head):
            case "turn":
                turn = typed("record_heads.TurnHead", head)
                if turn.role == "call":
                    if turn.parent_id is not None:
                        self._children.add(turn.entity_id)
                elif turn.entity_id not in self._children:
                    self.ends[side] = turn.id
                known = turn.id in self._turns
                self._turns.add(turn.id)
                return not known
            case "loom":
                known, self._has_header = self._has_header, True
                return not known
            case "utterance":
                # The page shows the turn that comes of it.
                return False
        key: object
        if isinstance(head, record_heads.RewardHead | record_heads.LaterHead):
            # These records have no id.
            (record,) = readable(self.stores[side], (position,))
            if record is None:
                return True
            key = encoded(record)
        else:
            key = record_heads.kind(head), head.id, getattr(head, "event", "")
        known = key in self._others
        self._others.add(key)
        return not known

    def _collect_problems(self) -> None:
        for side, store in enumerate(self.stores):
            self.problems += store.problems[self._reported[side] :]
            self._reported[side] = len(store.problems)
