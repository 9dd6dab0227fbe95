"""Index for the page's tree: what it needs of every record, in the order of writing. Entries are only added.

Turns, casts and rewards are numbered as they come. So a page that has the first n of them requests only the rest.
Bodies stay in the store; the index keeps the position of each record.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import cast as typed

from msgspec import UNSET

from cantrip_acp.loom.records import record_heads
from cantrip_acp.loom.records.tree import Place, Problem
from cantrip_acp.types.records import CantripRecord, LoomHeader, Record

ROLES = ("call", "crystal", "fold")
"""A turn's role by its number in the column ``roles``."""


@dataclass(slots=True)
class CastPlaces:
    """The positions of one cast's records; None if there is none (yet)."""

    id: str
    entity: int
    start: int | None = None
    end: int | None = None
    context: list[int] = field(default_factory=list)


class Index:
    """The columns. ``parents`` has numbers of turns: -1 for a root, -2 if the parent is lost."""

    def __init__(self) -> None:
        self.header: LoomHeader | None = None
        self.cantrips: dict[str, CantripRecord] = {}
        self.ids: list[str] = []
        self.numbers: dict[str, int] = {}
        self.positions = array("q")
        self.parents = array("i")
        self.roles = bytearray()
        self.cast_of = array("i")
        self.entity_of = array("i")
        self.entities: list[str] = []
        self.casts: list[CastPlaces] = []
        self.cast_events: list[tuple[int, str, int]] = []
        """(cast, start or end, position), as they came."""
        self.rewards: list[tuple[int, int]] = []
        """(turn, position), as they came."""
        self.forks: dict[int, list[int]] = {}
        self.forked: set[int] = set()
        """Entities that began as forks."""
        self.children: set[int] = set()
        """Entities that a turn of another entity spawned."""
        self.snapshots: dict[int, int] = {}
        self.files: dict[int, int] = {}
        self.problems: list[Problem] = []
        self.later: dict[str, int] = {}
        """The number of records of each kind that only a later version knows."""
        self._entity_numbers: dict[str, int] = {}
        self._cast_numbers: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self.ids)

    def add(self, position: int, record: Record | record_heads.Head) -> None:
        """Add one record's head."""
        if type(record) is record_heads.TurnHead:
            # Most records are turns.
            self._turn(position, record)
            return
        match record_heads.kind(record):
            case "turn":
                self._turn(position, typed("record_heads.TurnHead", record))
            case "cast":
                event = typed("record_heads.CastHead", record)
                cast = self._cast(event.id, event.entity_id)
                places = self.casts[cast]
                if event.event == "start" and places.start is None:
                    places.start = position
                elif event.event != "start":
                    places.end = position
                self.cast_events.append((cast, event.event, position))
            case "context":
                pinned = typed("record_heads.ContextHead", record)
                if pinned.cast_id is not None:
                    self.casts[self._cast(pinned.cast_id, pinned.entity_id)].context.append(position)
            case "reward":
                turn = self.numbers.get(typed("record_heads.RewardHead", record).turn_id)
                if turn is not None:
                    self.rewards.append((turn, position))
            case "fork":
                fork = typed("record_heads.ForkHead", record)
                self.forked.add(self._entity(fork.entity_id))
                came = self.numbers.get(fork.from_turn or "")
                if came is not None:
                    self.forks.setdefault(came, []).append(position)
            case "snapshot":
                of = self.numbers.get(typed("record_heads.SnapshotHead", record).turn_id)
                if of is not None:
                    self.snapshots[of] = position
            case "files":
                files = typed("record_heads.FilesHead", record)
                of = self.numbers.get(files.turn_id)
                if of is None or files.restored is not UNSET:
                    pass
                elif of not in self.files or self.entities[self.entity_of[of]] == files.entity_id:
                    self.files[of] = position
            case "cantrip":
                cantrip = typed("CantripRecord", record)
                self.cantrips[cantrip.id] = cantrip
            case "loom":
                if self.header is None:
                    self.header = typed("LoomHeader", record)
                else:
                    self.problems.append(Problem("a second loom header", rule="second-header"))
            case "later":
                name = typed("record_heads.LaterHead", record).name
                self.later[name] = self.later.get(name, 0) + 1

    def _turn(self, position: int, turn: record_heads.TurnHead) -> None:
        if turn.id in self.numbers:
            self.problems.append(Problem(f"a second turn {turn.id!r}; the first one counts", rule="second-turn"))
            return
        parent = -1
        if turn.parent_id is not None:
            parent = self.numbers.get(turn.parent_id, -2)
            if parent == -2:
                lost = f"turn {turn.id!r} names a parent that is not above it: {turn.parent_id!r}"
                self.problems.append(Problem(lost, rule="lost-parent"))
        self.numbers[turn.id] = len(self.ids)
        self.ids.append(turn.id)
        self.positions.append(position)
        self.parents.append(parent)
        self.roles.append(ROLES.index(turn.role) if turn.role in ROLES else 1)
        self.cast_of.append(-1 if turn.cast_id is None else self._cast(turn.cast_id, turn.entity_id))
        self.entity_of.append(self._entity(turn.entity_id))
        if turn.role == "call" and parent >= 0:
            self.children.add(self.entity_of[-1])

    def place(self, number: int) -> Place:
        """A turn's place in the tree, without its cantrip and the turn that it continues, which the index does not
        keep."""
        parent, cast = self.parents[number], self.cast_of[number]
        return Place(
            self.ids[parent] if parent >= 0 else None,
            self.positions[number],
            ROLES[self.roles[number]],
            self.entities[self.entity_of[number]],
            "",
            self.casts[cast].id if cast >= 0 else None,
        )

    def _cast(self, cast_id: str, entity_id: str) -> int:
        number = self._cast_numbers.get(cast_id)
        if number is None:
            number = self._cast_numbers[cast_id] = len(self.casts)
            self.casts.append(CastPlaces(cast_id, self._entity(entity_id)))
        return number

    def _entity(self, entity_id: str) -> int:
        number = self._entity_numbers.get(entity_id)
        if number is None:
            number = self._entity_numbers[entity_id] = len(self.entities)
            self.entities.append(entity_id)
        return number
