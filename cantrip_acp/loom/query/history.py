"""Entity history: reads from the loom the casts, pinned context, turns and folds on the path to a turn (LOOM-4).

A fork, or a session that is opened again, starts with this history.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from cantrip_acp.loom.loom import Loom
from cantrip_acp.loom.records.turn_parts import join_parts
from cantrip_acp.types.errors import LoomError
from cantrip_acp.types.records import CastRecord, ContextRecord, Turn, UtteranceRecord


@dataclass(frozen=True, slots=True)
class CastPart:
    """One cast, up to the end of the path: its intent, the context pinned before it, and its turns (folds included).

    ``id`` and ``start`` are None for turns of a cast that the loom does not know. ``partial`` is the text that was
    streamed before the cast was stopped. ``withdrawn``: no provider accepted the intent, so that it is not in the context any
    more; the cast can only have folded.
    """

    id: str | None
    start: CastRecord | None
    context: tuple[ContextRecord, ...] = ()
    turns: list[Turn] = field(default_factory=list)
    partial: UtteranceRecord | None = None
    withdrawn: bool = False

    def goes_on(self, before: str | None) -> bool:
        """Whether this cast continues the cast ``before``, whose turns are directly above it. Its intent is then already in
        the context."""
        return before is not None and self.start is not None and self.start.resumes == before

    @property
    def intent(self) -> str:
        return (self.start.intent if self.start is not None else None) or ""


def casts_of(loom: Loom, turn_id: str, entity_id: str | None = None) -> list[CastPart]:
    """The casts of an entity on the path to a turn, in order, without the call; each utterance is one turn.

    A child's history begins below its own call: it does not include its parent's (COMP-4). A cast that was stopped
    before its first turn is included where the same entity continued after it. After the last turn, such casts are
    included for ``entity_id``, the entity that continues.

    Raises `TurnNotFound`, and `LoomError` if a turn above is lost: the history would silently lack it.
    """
    parts: list[CastPart] = []
    path, places = loom.own_path(turn_id), loom.places
    gone: set[str] | None = None
    for place, (at, turn) in enumerate(zip(path, loom.bodies(path), strict=True)):
        if place == 0 and turn.parent_id is not None and turn.role != "call":
            raise LoomError(
                f"turn {turn_id!r} cannot be continued: {turn.parent_id!r}, the turn before it, is not in this loom (damaged?)"
            )
        if turn.role != "call":
            if not parts or parts[-1].id != turn.cast_id:
                parts.append(_part(loom, turn.cast_id))
            parts[-1].turns.append(turn)
        partials = loom.partials(at)
        if not partials:
            continue
        goes_on = places[path[place + 1]].entity_id if place + 1 < len(path) else entity_id
        gone = withdrawn_casts(loom) if gone is None else gone
        for partial in partials:
            if partial.entity_id != goes_on or partial.cast_id in gone:
                continue
            if parts and parts[-1].id == partial.cast_id:
                parts[-1] = replace(parts[-1], partial=partial)
            else:
                parts.append(replace(_part(loom, partial.cast_id), partial=partial))
    for part in parts:
        part.turns[:] = join_parts(part.turns)
    return parts


def entity_casts(
    loom: Loom, entity_id: str, last_turn: str | None, parts: Sequence[CastPart] | None = None
) -> list[CastPart]:
    """All casts of an entity in the order of their start, including those that ended before a turn was written.

    ``parts`` are those on the path to ``last_turn`` (`casts_of`), if the caller has read them.
    """
    if parts is None:
        parts = casts_of(loom, last_turn, entity_id) if last_turn and last_turn in loom else ()
    known = {part.id: part for part in parts}
    with_turns = {place.cast_id for place in loom.places.copy().values()}
    ordered = [part for part in parts if part.id is None]
    for cast_id in loom.cast_ids:
        part = known.get(cast_id)
        if part is None and cast_id not in with_turns:
            start, context = loom.cast_of(cast_id)
            if start is not None and start.entity_id == entity_id:
                part = CastPart(cast_id, start, context)
        if part is not None:
            ordered.append(part)
    return ordered


def withdrawn_casts(loom: Loom) -> set[str]:
    """The casts whose intent no provider accepted, with those that they resumed: it was the same intent."""
    gone: set[str] = set()
    starts = loom.cast_starts()
    for start in reversed(tuple(starts.values())):
        end = loom.cast_end(start.id)
        if start.id in gone or (end is not None and end.withdrawn is True):
            gone.add(start.id)
            before = starts.get(start.resumes) if isinstance(start.resumes, str) else None
            if before is not None and before.entity_id == start.entity_id:
                gone.add(before.id)
    return gone


def crystal_turns(parts: list[CastPart]) -> Iterator[tuple[CastPart, Turn]]:
    """Yield each turn in which the crystal spoke, with its cast part."""
    for part in parts:
        for turn in part.turns:
            if turn.role == "crystal":
                yield part, turn


def _part(loom: Loom, cast_id: str | None) -> CastPart:
    if cast_id is None:
        return CastPart(None, None)
    start, context = loom.cast_of(cast_id)
    end = loom.cast_end(cast_id)
    return CastPart(cast_id, start, context, withdrawn=end is not None and end.withdrawn is True)


def named_turn(loom: Loom, last_turn: str, named: object) -> str | None:
    """The id of a turn before ``last_turn`` that is named by its id or number. None if there is none.

    Numbers count the crystal's turns from 1; 0 is the ``call`` turn before them. An id may name any turn, also a fold or
    a turn that ended with a delegation.
    """
    if not last_turn or last_turn not in loom:
        return None
    own = [turn.id for _, turn in crystal_turns(casts_of(loom, last_turn))]
    if isinstance(named, int) and not isinstance(named, bool):
        if named == 0:
            return next((each for each in loom.own_path(last_turn) if loom.places[each].role == "call"), None)
        return own[named - 1] if 1 <= named <= len(own) else None
    if not isinstance(named, str) or named not in loom.own_path(last_turn):
        return None
    return named


def first_cast(loom: Loom, entity_id: str, last_turn: str, turn_id: str) -> str | None:
    """The id of the cast in an entity's history that starts at a ``call`` turn, even if the cast has no other turn. None
    for other turns."""
    if loom.places[turn_id].role != "call":
        return None
    starts = loom.cast_starts()
    fork = loom.fork_of(entity_id)
    casts = [loom.places[i].cast_id for i in loom.own_path(last_turn) if loom.places[i].role == "crystal"]
    casts += [start.id for start in starts.values() if start.entity_id == entity_id]
    casts += [fork.resumes] if fork is not None and isinstance(fork.resumes, str) else []
    found = casts[0] if casts else None
    while found in starts and isinstance(before := starts[found].resumes, str):
        # A cast that continues an earlier cast starts where the earlier cast starts.
        found = before
    return found
