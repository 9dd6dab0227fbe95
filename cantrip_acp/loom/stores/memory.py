"""Memory store: a loom in memory, for tests and for casts that need no stored trace."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from cantrip_acp.loom.records import record_heads as heads
from cantrip_acp.loom.records.record_heads import Head, LaterHead
from cantrip_acp.loom.records.tree import Problem
from cantrip_acp.loom.stores.cast_locks import not_for_children
from cantrip_acp.text.json_data import FrozenDict, FrozenList, freeze_record
from cantrip_acp.types.records import LaterRecord, Record, Turn


class MemoryStore:
    """Records in a list; lost when the process ends."""

    location: str | None = None
    behind = False

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.readonly = False
        self._records: list[Record | LaterRecord] = []
        self._locked: set[str] = set()
        not_for_children(self)

    def append(self, record: Record | LaterRecord, body: bytes | bytearray) -> int:
        # Readers get the record itself, so neither they nor the writer may change it.
        bare = type(record) is LaterRecord or (type(record) is Turn and _immutable(record))
        self._records.append(record if bare else freeze_record(record))
        return len(self._records) - 1

    def read(self, position: int) -> Record | LaterRecord:
        return self._records[position]

    def read_all(self, positions: Iterable[int]) -> list[Record | LaterRecord]:
        return [self._records[position] for position in positions]

    def tree(self) -> None:
        return None

    def heads(self) -> Iterator[tuple[int, Head | LaterHead | Record]]:
        for position, record in self.scan():
            yield position, heads.decode(record.data, sealed=True) if isinstance(record, LaterRecord) else record

    def note(self, position: int, message: str, rule: str = "changed-line") -> None:
        self.problems.append(Problem(f"record {position}: {message}", offset=position, rule=rule))

    def news(self) -> Iterator[tuple[int, Record]]:
        return iter(())

    def scan(self) -> Iterator[tuple[int, Record | LaterRecord]]:
        yield from enumerate(tuple(self._records))

    def stored(self) -> Iterator[tuple[Record | LaterRecord, bytes | None]]:
        return ((record, None) for _, record in self.scan())

    def damaged(self) -> list[Problem]:
        return []

    def lock_cast(self, cast_id: str) -> bool:
        if cast_id in self._locked:
            return False
        self._locked.add(cast_id)
        return True

    def release(self, cast_id: str) -> None:
        self._locked.discard(cast_id)

    def running(self, cast_ids: Iterable[str]) -> set[str]:
        return self._locked & set(cast_ids)

    def after_fork(self) -> None:
        self._locked.clear()

    def close(self, tree: object = None) -> None:
        return None


_IMMUTABLE = frozenset({str, int, float, bool, type(None), msgspec.UnsetType, FrozenDict, FrozenList})


def _immutable(turn: Turn) -> bool:
    """Whether nothing in a turn can be changed. A quick check of the fields that could be mutable: nearly every turn of
    the loop passes."""
    seen = turn.observation
    return (
        type(turn.utterance.provider) in _IMMUTABLE
        and all(isinstance(each, tuple) for each in (turn.utterance.tool_calls, turn.gate_calls, seen.results))
        and (
            seen.output is None
            or (type(seen.output.value) in _IMMUTABLE and type(seen.output.annotations) in _IMMUTABLE)
        )
        and seen.outputs is msgspec.UNSET
        and turn.metadata.sampled is msgspec.UNSET
        and all(
            type(r.args) in _IMMUTABLE and type(r.result) in _IMMUTABLE and type(r.annotations) in _IMMUTABLE
            for r in seen.results
        )
    )
