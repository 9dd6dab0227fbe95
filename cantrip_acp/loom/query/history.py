"""What an entity lived through on the way to a turn, read back from its loom: casts, what was pinned, turns, folds (LOOM-4).

It is what a fork or a session that is opened again begins with.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from cantrip_acp.core.errors import LoomError
from cantrip_acp.loom.loom import Loom
from cantrip_acp.loom.records.turn import CastRecord, ContextRecord, Turn, UtteranceRecord
from cantrip_acp.loom.records.turn_parts import whole


@dataclass(frozen=True, slots=True)
class CastPart:
    """One cast as far as the path goes: its intent, what was pinned before it, and its turns (folds among them).

    ``id`` and ``start`` are None for turns that belong to no cast that the loom knows. ``partial`` is what was streamed before
    the cast was stopped.
    """

    id: str | None
    start: CastRecord | None
    context: tuple[ContextRecord, ...] = ()
    turns: list[Turn] = field(default_factory=list)
    partial: UtteranceRecord | None = None

    def goes_on(self, before: str | None) -> bool:
        """Whether it continues the cast ``before``, whose turns are right above it: then its intent stands there already."""
        return before is not None and self.start is not None and self.start.resumes == before

    @property
    def intent(self) -> str:
        return (self.start.intent if self.start is not None else None) or ""


def lived(loom: Loom, turn_id: str, entity_id: str | None = None) -> list[CastPart]:
    """The casts of an entity on the way to a turn, in order, without the call; each utterance as one turn.

    A child's begin below its own call: what its parent lived through is not its own (COMP-4). Casts that were stopped before
    they came to a turn belong to the way where the same entity went on after them. Those after the last turn do with
    ``entity_id``, the entity that goes on.

    Raises `TurnNotFound`, and `LoomError` where a turn above it is lost: what would be missing is told, never passed over.
    """
    parts: list[CastPart] = []
    path, places = loom.own(turn_id), loom.places
    for place, (at, turn) in enumerate(zip(path, loom.bodies(path), strict=True)):
        if place == 0 and turn.parent_id is not None and turn.role != "call":
            raise LoomError(
                f"turn {turn_id!r} cannot be gone on from: {turn.parent_id!r}, above it, is not in this loom (damaged?)"
            )
        if turn.role != "call":
            if not parts or parts[-1].id != turn.cast_id:
                parts.append(_part(loom, turn.cast_id))
            parts[-1].turns.append(turn)
        partials = loom.partials(at)
        if not partials:
            continue
        goes_on = places[path[place + 1]].entity_id if place + 1 < len(path) else entity_id
        for partial in partials:
            if partial.entity_id != goes_on:
                continue
            if parts and parts[-1].id == partial.cast_id:
                parts[-1] = replace(parts[-1], partial=partial)
            else:
                parts.append(replace(_part(loom, partial.cast_id), partial=partial))
    for part in parts:
        part.turns[:] = whole(part.turns)
    return parts


def spoken(parts: list[CastPart]) -> Iterator[tuple[CastPart, Turn]]:
    """Each turn in which the crystal spoke, with its cast."""
    for part in parts:
        for turn in part.turns:
            if turn.role == "crystal":
                yield part, turn


def _part(loom: Loom, cast_id: str | None) -> CastPart:
    if cast_id is None:
        return CastPart(None, None)
    start, context = loom.cast_of(cast_id)
    return CastPart(cast_id, start, context)
