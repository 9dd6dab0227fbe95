"""Read-only view of a loom that adds the missing turns of processes that died; the next writer will write the same
turns.

Added records get positions beyond all positions of a store, and exist only in memory. When a writer has written such a
record, the position in the store replaces the added one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from typing import cast as typed

from cantrip_acp.loom.records import record_heads as heads
from cantrip_acp.loom.stores.address import open_store
from cantrip_acp.types.records import CastRecord, LaterRecord, Record, Turn, UtteranceRecord

if TYPE_CHECKING:
    from cantrip_acp.loom.records.tree import Tree
    from cantrip_acp.loom.stores.contract import Store

PLACE = 1 << 61
"""The first position of added records."""


def completed(store: Store, where: Path | str) -> Store:
    """Wrap a store that is open for reading at ``where``, and add what is missing in it."""
    return typed("Store", CompletedStore(store, where))


class CompletedStore:
    """Behaves like the store that it reads, except for the methods below."""

    def __init__(self, store: Store, where: Path | str) -> None:
        self._store = store
        self._where = where
        self._last_utterances: dict[str, int] = {}
        """The position of each entity's last utterance, if no turn has followed."""
        self._added: dict[int, Turn | CastRecord] = {}
        self._ids: dict[tuple[type, str], int] = {}
        self.utterance_positions: dict[int, int] = {}
        """By position of an added record: the position of its utterance."""
        self.written: dict[int, int] = {}
        """By position of an added record: the position that a writer has written it to since."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def tree(self) -> Tree | None:
        tree = self._store.tree()
        if tree is not None:
            self._last_utterances = dict(tree.unfinished)
            for position, record in self._missing():
                tree.add(position, record)
        return tree

    def heads(self) -> Iterator[tuple[int, Any]]:
        yield from self._followed(self._store.heads())
        yield from self._missing()

    def news(self) -> Iterator[tuple[int, Any]]:
        yield from self._followed(self._store.news())
        yield from self._missing()

    def scan(self) -> Iterator[tuple[int, Record | LaterRecord]]:
        yield from self._store.scan()
        yield from ((place, record) for place, record in self._added.items() if place not in self.written)

    def read(self, position: int) -> Record | LaterRecord:
        return self.read_all((position,))[0]

    def read_all(self, positions: Iterable[int]) -> list[Record | LaterRecord]:
        places = [self.written.get(at, at) for at in positions]
        kept = iter(self._store.read_all(at for at in places if at not in self._added))
        return [self._added.get(at) or next(kept) for at in places]

    def _followed(self, records: Iterable[tuple[int, Any]]) -> Iterator[tuple[int, Any]]:
        """Yield records as they come. A record that was already added is not yielded again; only its position
        changes."""
        for position, head in records:
            match heads.kind(head):
                case "utterance":
                    if not head.partial:
                        self._last_utterances[head.entity_id] = position
                case "turn":
                    self._last_utterances.pop(head.entity_id, None)
                    if self._is_added(position, Turn, head.id):
                        continue
                case "cast":
                    if head.event == "end" and self._is_added(position, CastRecord, head.id):
                        continue
            yield position, head

    def _is_added(self, position: int, kind: type, name: str) -> bool:
        place = self._ids.get((kind, name))
        if place is not None:
            self.written[place] = position
        return place is not None

    def _missing(self) -> Iterator[tuple[int, Turn | CastRecord]]:
        """Yield what is missing now: the turns of utterances whose process has ended, and the ends of their casts."""
        said = self._unfinished()
        running = self._store.running(said)
        if said.keys() <= running:
            return
        # A process that no longer runs writes nothing more. Read again, because it may have written something before it
        # ended.
        yield from self._followed(self._store.news())
        lost = {cast_id: position for cast_id, position in self._unfinished().items() if cast_id not in running}
        if not lost:
            return
        from cantrip_acp.loom.base import BaseLoom
        from cantrip_acp.loom.recovery import missing

        self._last_utterances = {entity: at for entity, at in self._last_utterances.items() if at not in lost.values()}
        with BaseLoom(open_store(self._where, readonly=True)) as loom:
            for record in missing(loom):
                cast_id = (record.cast_id if isinstance(record, Turn) else record.id) or ""
                name = (type(record), record.id)
                if cast_id in lost and name not in self._ids:
                    place = self._ids[name] = PLACE + len(self._added)
                    self._added[place] = record
                    self.utterance_positions[place] = lost[cast_id]
                    yield place, record

    def _unfinished(self) -> dict[str, int]:
        """The casts with an utterance that no turn has followed, and its position."""
        positions = list(self._last_utterances.values())
        records = self._store.read_all(positions) if positions else []
        return {r.cast_id: at for r, at in zip(records, positions, strict=True) if isinstance(r, UtteranceRecord)}
