"""The loom's tree in memory: the position of each turn, and indexes to find the other records.

A large loom's tree is also saved to a file and loaded again (`stores.index_file`), so opening need not read the whole
loom.
"""

from __future__ import annotations

import sys
from typing import Any, ClassVar
from typing import cast as typed

import msgspec

from cantrip_acp.loom.records import record_heads
from cantrip_acp.text import codecs
from cantrip_acp.text.json_data import freeze_record
from cantrip_acp.types.records import CantripRecord, LaterRecord, LoomHeader, Record, Turn, UtteranceRecord


class Problem(msgspec.Struct, frozen=True):
    """Something that could not be read, and its place. ``line`` counts from 1, ``offset`` and ``length`` are in bytes.

    ``set_aside`` names the file that now holds the bytes, if they were moved there.
    """

    diagnostics: ClassVar = ("message",)

    message: str
    line: int | None = None
    offset: int | None = None
    length: int | None = None
    set_aside: str | None = None
    rule: str = "changed-line"
    """The name of the rule in `lsp/recipes/rules.md`."""

    def __str__(self) -> str:
        place = f"line {self.line}: " if self.line is not None else ""
        aside = f" (set aside in {self.set_aside})" if self.set_aside else ""
        return f"{place}{self.message}{aside}"


class Place(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A turn's place in the tree and in the store."""

    parent_id: str | None
    position: int
    role: str
    entity_id: str
    cantrip_id: str
    cast_id: str | None
    continues: str | None = None

    @property
    def is_utterance(self) -> bool:
        """Whether it is a turn as ``max_turns`` and people count them: neither a call, nor a fold, nor the rest of a turn that
        children divided."""
        return self.role == "crystal" and self.continues is None


UNREADABLE = "unreadable"
"""The ``reason`` of a turn whose record is damaged."""


def unreadable(turn_id: str, place: Place) -> Turn:
    """A placeholder for a turn whose record is damaged; only its place in the tree is known."""
    return Turn(
        turn_id,
        place.parent_id,
        place.cantrip_id,
        place.entity_id,
        place.cast_id,
        typed(Any, place.role),
        continues=place.continues,
        truncated=True,
        reason=UNREADABLE,
    )


class Tree(msgspec.Struct, array_like=True):
    """What a loom knows without reading a body. A position is the place of a record in the store.

    - ``turns``: each turn's place by id, in the order of writing.
    - ``calls``: the root ``call`` turn of each cantrip.
    - ``casts``: the positions of each cast's start and of its pinned context. ``ends``: the position of each cast's
      end.
    - ``forks``: the position of an entity's fork record.
    - ``rewards``: the reward of a turn that counts. ``assigned``: the positions of all rewards of a turn.
    - ``snapshots``: the position of the snapshot after a turn.
    - ``pieces``: the position of the snapshot record that holds a piece.
    - ``files``: the position of the pinned files after a turn.
    - ``unfinished``: by entity id, the position of its last utterance, if no turn of the entity followed.
    - ``partials``: the positions of partial utterances, by the turn that they follow.
    - ``later``: the number of records of each kind that only a later version knows.
    """

    header: LoomHeader | None = None
    turns: dict[str, Place] = {}
    calls: dict[str, str] = {}
    cantrips: dict[str, CantripRecord] = {}
    casts: dict[str, list[int]] = {}
    rewards: dict[str, float] = {}
    snapshots: dict[str, int] = {}
    pieces: dict[str, int] = {}
    ends: dict[str, int] = {}
    forks: dict[str, int] = {}
    assigned: dict[str, list[int]] = {}
    files: dict[str, int] = {}
    unfinished: dict[str, int] = {}
    partials: dict[str, list[int]] = {}
    later: dict[str, int] = {}

    def add(
        self, position: int, record: Record | record_heads.Head | LaterRecord | record_heads.LaterHead
    ) -> Problem | None:
        """Add a record to the tree. Returns the problem if the record does not fit."""
        kind = type(record)
        if kind is Turn or kind is record_heads.TurnHead:
            # Most records are turns, and an append waits for this.
            return self._add_turn(position, typed("record_heads.TurnHead", record))
        if kind is UtteranceRecord or kind is record_heads.UtteranceHead:
            said = typed("record_heads.UtteranceHead", record)
            if said.partial:
                self.partials.setdefault(said.parent_id, []).append(position)
            elif said.id not in self.turns:
                self.unfinished[said.entity_id] = position
            return None
        match record_heads.kind(record):
            case "reward":
                reward = typed("record_heads.RewardHead", record)
                self.assigned.setdefault(reward.turn_id, []).append(position)
                if reward.reward is not None and reward.kind != "relative":
                    self.rewards[reward.turn_id] = reward.reward
            case "cast":
                cast = typed("record_heads.CastHead", record)
                if cast.event == "start":
                    self.casts.setdefault(cast.id, []).append(position)
                else:
                    self.ends[cast.id] = position
            case "fork":
                self.forks[typed("record_heads.ForkHead", record).entity_id] = position
            case "context":
                context = typed("record_heads.ContextHead", record)
                if context.cast_id is not None:
                    self.casts.setdefault(context.cast_id, []).append(position)
            case "snapshot":
                snapshot = typed("record_heads.SnapshotHead", record)
                self.snapshots[snapshot.turn_id] = position
                for key in record_heads.pieces_of(record):
                    self.pieces.setdefault(key, position)
            case "files":
                files = typed("record_heads.FilesHead", record)
                place = self.turns.get(files.turn_id)
                own = place is None or place.entity_id == files.entity_id
                # Earlier versions recorded the first files of a fork at the turn of the other entity. They do not count.
                if files.restored is msgspec.UNSET and (own or files.turn_id not in self.files):
                    self.files[files.turn_id] = position
            case "cantrip":
                cantrip = typed("CantripRecord", record)
                self.cantrips[cantrip.id] = freeze_record(cantrip)
            case "loom":
                if self.header is not None:
                    return Problem("a second loom header", rule="second-header")
                self.header = typed("LoomHeader", record)
            case "later":
                name = typed("record_heads.LaterHead", record).name
                self.later[name] = self.later.get(name, 0) + 1
        return None

    def _add_turn(self, position: int, turn: record_heads.TurnHead) -> Problem | None:
        if turn.id in self.turns:
            return Problem(f"a second turn {turn.id!r}; the first one counts", rule="second-turn")
        parent = turn.parent_id
        # All turns of a cast share one string.
        cast_id = sys.intern(turn.cast_id) if type(turn.cast_id) is str else None
        self.turns[turn.id] = Place(
            parent, position, turn.role, turn.entity_id, turn.cantrip_id, cast_id, turn.continues
        )
        if self.unfinished:
            # An entity has one open utterance: a new turn completes it, or the entity continued without it.
            self.unfinished.pop(turn.entity_id, None)
        if turn.reward is not None:
            self.rewards[turn.id] = turn.reward
        if turn.role == "call" and parent is None:
            # A child's call is not the root of the cantrip: its parent is the turn that spawned the child.
            self.calls.setdefault(turn.cantrip_id, turn.id)
        if parent is not None and parent not in self.turns:
            return Problem(f"turn {turn.id!r} names a parent that is not above it: {parent!r}", rule="lost-parent")
        return None

    def dump(self) -> bytes:
        """Encode the tree as bytes."""
        return _encoder.encode(self)

    @classmethod
    def load(cls, data: bytes | memoryview) -> Tree:
        """Decode a tree from the bytes of `dump`. Raises `msgspec.DecodeError` for invalid bytes."""
        tree: Tree = codecs.msgpack_decoder(Tree).decode(data)
        return tree


_encoder = msgspec.msgpack.Encoder()
