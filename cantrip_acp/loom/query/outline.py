"""Outline of a loom: its threads, where they part, and which belong to children; uses heads and the starts of casts
only.

`Loom.children` and `Loom.leaves` see only parents. Here, the turns of a delegated child are a thread of their own and
no branch of the parent's thread, although they hang on the turn that spawned the child (LOOM-8).
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from msgspec import UNSET

from cantrip_acp.types.records import CastRecord

if TYPE_CHECKING:
    from cantrip_acp.loom.loom import Loom
    from cantrip_acp.loom.records.tree import Place


class Outline:
    """A loom's threads at the time of creation. Reads each cast's start, but no bodies of turns.

    ``next``: the turns that continue from a turn (if there are several, threads part). ``spawned``: the first turns
    of the children that a turn spawned. ``leaves``: the last turns of all threads, in the order of writing.
    """

    def __init__(self, loom: Loom) -> None:
        self.loom = loom
        self.places: dict[str, Place] = loom.places.copy()
        self.starts: dict[str, CastRecord] = loom.cast_starts()
        self.next: dict[str, list[str]] = {}
        self.spawned: dict[str, list[str]] = {}
        self.roots: list[str] = []
        self._branch()
        self.leaves = [i for i, place in self.places.items() if i not in self.next and place.role != "call"]

    def _branch(self) -> None:
        seen: set[str] = set()
        for turn_id, place in self.places.items():
            parent = place.parent_id
            spawner = self.spawner(turn_id)
            if spawner is not None:
                self.spawned.setdefault(spawner, []).append(turn_id)
            # A parent comes before its turn. If it does not, the loom is damaged, and the turn becomes a root to avoid
            # a cycle.
            if parent is None or parent not in seen:
                self.roots.append(turn_id)
            elif spawner != parent:
                self.next.setdefault(parent, []).append(turn_id)
            seen.add(turn_id)

    def spawner(self, turn_id: str) -> str | None:
        """The turn that spawned the child whose first turn this is; None for all other turns."""
        place = self.places[turn_id]
        above = self.places.get(place.parent_id) if place.parent_id is not None else None
        if place.role == "call":
            # The parent of a child's call is the turn that spawned the child.
            return place.parent_id
        if place.cast_id is None or (above is not None and above.cast_id == place.cast_id):
            return None
        if above is not None and above.role == "call" and above.parent_id is not None:
            return None  # the child's own call already gave it
        start = self.starts.get(place.cast_id)
        return None if start is None else start.parent_turn_id

    def path(self, leaf_id: str) -> list[str]:
        """Ids from the root of the whole tree to a turn."""
        path = [leaf_id]
        while (above := self.places[path[-1]].parent_id) is not None and above in self.places:
            path.append(above)
            if len(path) > len(self.places):
                # A cycle: `Loom.path` raises the error for this damage.
                return self.loom.path(leaf_id)
        path.reverse()
        return path

    def own_path(self, leaf_id: str) -> list[str]:
        """The ids of a thread: for a child, from its first turn; for all others, from the root."""
        path = self.path(leaf_id)
        for index in range(len(path) - 1, -1, -1):
            if path[index] in self._heads:
                return path[index:]
        return path

    @cached_property
    def _heads(self) -> set[str]:
        return {head for heads in self.spawned.values() for head in heads}

    @cached_property
    def silent_children(self) -> list[str]:
        """The ``call`` turns of children that ended before their first turn, in the order of writing."""
        calls = (i for i, place in self.places.items() if place.role == "call" and place.parent_id is not None)
        return [turn_id for turn_id in calls if turn_id not in self.next]

    @cached_property
    def silent_roots(self) -> list[tuple[str | None, CastRecord]]:
        """The ``call`` turn and the start of each last cast of an entity that has no turn, in the order of writing. Children are
        not among them, nor forks. The call may be that of other entities too."""
        spoke = {place.entity_id for place in self.places.values() if place.role != "call"}
        spoke |= {fork.entity_id for fork in self.loom.forks()}
        calls = {p.cantrip_id: i for i, p in self.places.items() if p.role == "call" and p.parent_id is None}
        last = {s.entity_id: s for s in self.starts.values() if s.entity_id not in spoke and s.parent_turn_id is None}
        return [(calls.get(start.cantrip_id), start) for start in last.values()]

    def cast_of_silent(self, turn_id: str) -> CastRecord | None:
        """The start of the cast of such a child; None if it waits for its first intent."""
        return self._silent_starts.get(self.places[turn_id].entity_id)

    @cached_property
    def _silent_starts(self) -> dict[str, CastRecord]:
        entities = {self.places[turn_id].entity_id for turn_id in self.silent_children}
        return {start.entity_id: start for start in self.starts.values() if start.entity_id in entities}

    @cached_property
    def follows(self) -> set[str]:
        """The turns that continue a thread: neither roots nor first turns of children."""
        return {turn_id for after in self.next.values() for turn_id in after}

    def intent(self, turn_id: str) -> str | None:
        """The intent of a turn's cast."""
        cast_id = self.places[turn_id].cast_id
        start = self.starts.get(cast_id) if cast_id is not None else None
        return start.intent if start is not None else None

    @cached_property
    def ends(self) -> list[str]:
        """The turns that end a thread, in the order of writing: the leaves, and each turn that ended a cast and from
        which only forks with an intent of their own continue."""
        leaves = set(self.leaves)
        begun = {fork.entity_id: fork.from_turn for fork in self.loom.forks() if fork.resumes is UNSET}
        own_ends = {
            turn_id
            for turn_id in {origin for origin in begun.values() if origin is not None}
            if (place := self.places.get(turn_id)) is not None
            and place.cast_id is not None
            and all(begun.get(self.places[after].entity_id) == turn_id for after in self.next.get(turn_id, ()))
            and self.loom.cast_end(place.cast_id) is not None
        }
        return [turn_id for turn_id in self.places if turn_id in own_ends or turn_id in leaves]

    @cached_property
    def tips(self) -> dict[str, str]:
        """For each turn, the end of the thread through it: where threads part, the one of the first branch."""
        tips: dict[str, str] = {}
        ends = set(self.ends)
        for turn_id in reversed(self.places):
            after = self.next.get(turn_id)
            tips[turn_id] = tips.get(after[0], after[0]) if after and turn_id not in ends else turn_id
        return tips

    def parts(self) -> list[str]:
        """The turns where threads part, in the order of writing."""
        return [i for i in self.places if len(self.next.get(i, ())) > 1]
