"""Where a loom's records stand in its file, and how its casts and turns belong together."""

from __future__ import annotations

from array import array
from bisect import bisect_right

from cantrip_acp.loom.view.index import Index


class RecordLines:
    """The line of each record. A position is a record's place in the store; lines count from 0."""

    def __init__(self) -> None:
        self.begun: dict[int, int] = {}
        """The line of a turn's utterance record, if it is not the turn's own line."""
        self._positions = array("Q")
        self._lines = array("L")
        self._lengths = array("L")
        self._added: dict[int, int] = {}
        """The position of the utterance for a record that has no line (`CompletedStore` makes such records)."""
        self._unfinished: dict[str, int] = {}
        """The line of an utterance, by the id of the turn that it begins."""

    def __len__(self) -> int:
        return len(self._positions) + len(self._added)

    def add(self, position: int, line: int, length: int) -> None:
        self._positions.append(position)
        self._lines.append(line)
        self._lengths.append(length)

    def add_without_line(self, position: int, utterance: int) -> None:
        """Add a turn that has only the line of its utterance."""
        self._added[position] = utterance

    def add_utterance(self, turn_id: str, line: int) -> None:
        self._unfinished[turn_id] = line

    def add_turn(self, turn: int, turn_id: str) -> None:
        """Note that the turn of an utterance follows."""
        begun = self._unfinished.pop(turn_id, None)
        if begun is not None:
            self.begun[turn] = begun

    def written(self, position: int) -> int:
        """The position of the line that stands for a record: its own, or that of its utterance."""
        return self._added.get(position, position)

    def at(self, position: int) -> int:
        """The line of the record at a position."""
        return self._lines[bisect_right(self._positions, self.written(position)) - 1]

    def length(self, position: int) -> int:
        """The bytes of the line of the record at a position."""
        return self._lengths[bisect_right(self._positions, self.written(position)) - 1]

    def position(self, line: int) -> int | None:
        """The position of the record on a line; None if the line holds none."""
        place = bisect_right(self._lines, line) - 1
        return self._positions[place] if place >= 0 and self._lines[place] == line else None


class CastTree:
    """Which turns belong to which cast, and which turn spawned which casts. Numbers are those of the index."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self.turns: list[array[int]] = []
        """The turns of each cast."""
        self._above: dict[int, int] = {}
        """The turn that spawned an entity."""
        self._below: dict[int, list[int]] = {}
        """The entities that a turn spawned."""
        self._casts: dict[int, list[int]] = {}
        """The casts of an entity."""

    def add_casts(self) -> None:
        """Add the casts that the index has and this does not have yet."""
        for number in range(len(self.turns), len(self._index.casts)):
            self._casts.setdefault(self._index.casts[number].entity, []).append(number)
            self.turns.append(array("L"))

    def add_turn(self, turn: int) -> None:
        """Add a turn whose cast was added."""
        index = self._index
        if index.cast_of[turn] >= 0:
            self.turns[index.cast_of[turn]].append(turn)
        entity, parent = index.entity_of[turn], index.parents[turn]
        if parent < 0 or entity in self._above or entity in index.forked:
            return
        if index.roles[turn] == 0:
            spawned = True
        else:
            # Older looms: a child without its own root is attached to the turn that spawned it.
            spawned = index.roles[parent] != 0 and index.entity_of[parent] != entity
        if spawned:
            self._above[entity] = parent
            self._below.setdefault(parent, []).append(entity)

    def spawner(self, cast: int) -> int | None:
        """The turn that spawned the child with this cast; None if it is not a child's cast."""
        return self._above.get(self._index.casts[cast].entity)

    def spawned(self, turn: int) -> list[int]:
        """The casts of the children that a turn spawned."""
        return [cast for entity in self._below.get(turn, ()) for cast in self._casts.get(entity, ())]

    def top(self) -> list[int]:
        """The casts of entities that are not children, in the order in which they began."""
        return [n for n, places in enumerate(self._index.casts) if places.entity not in self._above]

    def is_first(self, cast: int) -> bool:
        """Whether it is its entity's first cast."""
        return self._casts[self._index.casts[cast].entity][0] == cast
