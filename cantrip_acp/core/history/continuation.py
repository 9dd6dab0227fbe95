"""Finds the point where a cast continues from a turn without a new message, for the same entity or for forks.

The first query then has the messages that the original entity sent after that turn, byte for byte. So forks that
resume one turn are true samples of one state. What follows a turn is, in this order:

- A turn that is part of an utterance (a delegation closed it) means the whole utterance. A turn that was folded next
  means the fold.
- After a turn that ended its cast, and after a ``call`` turn, the next cast follows; its intent and context are added
  again.
- After any other turn the next query of its cast follows. The same holds after a cut turn that nothing followed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import UNSET, Struct

from cantrip_acp.core.context import Context
from cantrip_acp.loom.base import as_kept
from cantrip_acp.loom.query.history import first_cast
from cantrip_acp.loom.query.outline import Outline
from cantrip_acp.types.context_block import block_of
from cantrip_acp.types.errors import IntentRequired, LoomError, TurnNotFound
from cantrip_acp.types.usage import NO_USAGE, Usage

if TYPE_CHECKING:
    from cantrip_acp.core.state import EntityState
    from cantrip_acp.loom.loom import Loom
    from cantrip_acp.types.context_block import ContextBlock
    from cantrip_acp.types.records import CastRecord


class Point(Struct, frozen=True):
    """Where a cast continues. ``turn_id`` is the parent of the next turn, ``cast`` the start record of the cast.

    ``begins``: its intent is not in the context and is added, with ``blocks``. ``spent``: the number of its queries
    on this path, and ``used`` what they and the children cost. ``taken``: the entity has not cast yet and takes its
    context from the loom.
    """

    turn_id: str
    cast: CastRecord
    begins: bool
    blocks: tuple[ContextBlock, ...] = ()
    spent: int = 0
    used: Usage = NO_USAGE
    taken: bool = False


def point_of_entity(entity: EntityState, turn_id: str) -> Point:
    """Like `find_point`. Of a ``call`` turn it is the cast in the history of this entity that starts there."""
    loom = entity.loom
    cast = first_cast(loom, entity.id, entity.last_turn, turn_id) if turn_id in loom else None
    return find_point(loom, turn_id, cast)


def find_point(loom: Loom, turn_id: str, cast_id: str | None = None) -> Point:
    """Where a fork of a turn continues without a new message. ``cast_id`` selects the cast if there are several.

    Reads the outline of the loom. Raises `TurnNotFound`, and `IntentRequired` if there is nothing to continue.
    """
    if turn_id not in loom:
        raise TurnNotFound(f"no turn {turn_id!r} in this loom")
    outline = Outline(loom)
    at = _last_of_utterance(outline, turn_id)
    place = outline.places[at]
    own = place.cast_id
    after = _casts_after(outline, at)
    ended = place.role == "call" or _has_ended(loom, outline, at)
    if cast_id is not None:
        known = cast_id in outline.starts and all(p.cast_id != cast_id for p in outline.places.values())
        if cast_id not in after and cast_id != own and not known:
            raise LoomError(f"cast {cast_id!r} does not contain turn {at!r}, and does not begin after it")
        chosen = cast_id
    elif ended and after:
        chosen = _choose_cast(loom, outline, at, after)
    elif own is None or loom.turn(at).terminated:
        raise IntentRequired(
            f"turn {at!r} ended its cast, and no cast follows it: there is nothing to continue. Give an intent"
            if own is not None
            else f"no cast begins at turn {at!r}: there is nothing to continue. Give an intent"
        )
    else:
        chosen = own
    start, context = loom.cast_of(chosen)
    if start is None or not start.intent:
        raise IntentRequired(f"the intent of cast {chosen!r} is not in this loom; give one")
    begins = chosen != own
    # Changes and messages after later turns of that cast are not known yet at its beginning.
    blocks = tuple(block for block in map(block_of, context) if block.after is None) if begins else ()
    spent, used = (0, NO_USAGE) if begins else _spent(loom, outline, at, chosen)
    return Point(at, start, begins, blocks, spent, used, taken=True)


def reference_of(loom: Loom, entity_id: str, intent: str) -> Any:
    """The expected answer that a fork takes over: that of the cast of its turn, or of a cast that begins at its turn, if that
    cast has the same intent. None if there is none."""
    fork = loom.fork_of(entity_id)
    if fork is None or fork.from_turn is None or fork.from_turn not in loom:
        return None
    outline, intent = Outline(loom), as_kept(intent)
    own = outline.places[fork.from_turn].cast_id
    for cast_id in (own, *_casts_after(outline, fork.from_turn)):
        start = outline.starts.get(cast_id) if cast_id is not None else None
        if start is not None and start.intent == intent and start.reference is not UNSET:
            return start.reference
    return None


def find_own_point(entity: EntityState) -> Point:
    """Where an entity's own interrupted last cast continues, or, for a fork that has not cast yet, where its turn
    continues.

    Raises `IntentRequired` if there is nothing to continue.
    """
    loom = entity.loom
    mine = [start for start in loom.cast_starts().values() if start.entity_id == entity.id]
    if not mine:
        fork = loom.fork_of(entity.id)
        if not entity.last_turn or fork is None:
            raise IntentRequired("intent is required: this entity has no cast yet that could continue (INTENT-1)")
        found = find_point(loom, entity.last_turn, fork.resumes if isinstance(fork.resumes, str) else None)
        if loom.places[found.turn_id].role != "fold" and found.turn_id != entity.last_turn:
            raise IntentRequired(
                f"turn {entity.last_turn!r} is only a part of an utterance; to continue, fork turn {found.turn_id!r}, its end"
            )
        return found
    last = mine[-1]
    end = loom.cast_end(last.id)
    turns = [i for i, place in loom.places.items() if place.cast_id == last.id and place.role == "crystal"]
    if (end is not None and end.terminated) or (turns and loom.turn(turns[-1]).terminated):
        why = end.reason if end is not None else loom.turn(turns[-1]).reason
        raise IntentRequired(f"the last cast ended by itself ({why}): there is nothing to continue. Give an intent")
    if not last.intent:
        raise IntentRequired(f"the intent of cast {last.id!r} is not in the loom; give one")
    begins = not turns and (entity.last_cast != last.id or (end is not None and end.withdrawn is True))
    context = () if turns else tuple(map(block_of, loom.cast_of(last.id)[1]))
    spent, used = _spent(loom, Outline(loom), entity.last_turn, last.id) if turns else (0, NO_USAGE)
    return Point(entity.last_turn, last, begins, context, spent, used)


def unfinished_reason(entity: EntityState) -> str | None:
    """Why the last cast of an entity can continue, or, for a fork, the cast that the fork continues: the reason of its end
    (`cancelled`, `max_turns`, …), or ``interrupted`` if the process ended first. None if it ended by itself, or if there is
    no cast."""
    loom = entity.loom
    cast_id = unfinished_cast(loom, entity.id)
    end = loom.cast_end(cast_id) if cast_id is not None else None
    if cast_id is None or (end is not None and end.terminated):
        return None
    return "interrupted" if end is None else end.reason


def unfinished_cast(loom: Loom, entity_id: str) -> str | None:
    """The id of the last cast of an entity if it can continue; None otherwise."""
    mine = [start.id for start in loom.cast_starts().values() if start.entity_id == entity_id]
    fork = None if mine else loom.fork_of(entity_id)
    if fork is not None and isinstance(fork.resumes, str):
        return fork.resumes
    if not mine:
        return None
    end = loom.cast_end(mine[-1])
    turns = [i for i, place in loom.places.items() if place.cast_id == mine[-1] and place.role == "crystal"]
    ended = (end is not None and end.terminated) or (turns and loom.turn(turns[-1]).terminated)
    return None if ended else mine[-1]


def rebuild_context(entity: EntityState, where: Point) -> Context:
    """The context for continuing from a point: the original entity's for the same cantrip, a fork's for another
    cantrip.
    """
    from cantrip_acp.core.history.recorded_circle import RecordedCircles
    from cantrip_acp.core.history.replayed_context import ReplayedContext
    from cantrip_acp.loom.query.history import casts_of
    from cantrip_acp.mediums.text_program import writes_calls

    loom, last = entity.loom, where.turn_id

    def empty() -> Context:
        by_text = writes_calls(entity.crystal)
        return Context(entity.cantrip.call, entity.circle, text_calls=by_text, recorded=RecordedCircles(loom))

    if loom.places[last].cantrip_id == entity.cantrip.id:
        seen = ReplayedContext(loom, Outline(loom))
        context = seen.context_after(last, entity.cantrip.id, empty)
        # Casts that reached no turn: their intents and unfinished answers were in the context too.
        before = seen.partials.get(loom.places[last].cast_id or "") if where.begins else None
        if before is not None and before.entity_id == where.cast.entity_id:
            context.interrupt(before)
        for part in seen.begun(where.cast.entity_id, where.cast.id, None)[:-1] if where.begins else ():
            context.begin(part.intent, [block_of(record) for record in part.context])
            if part.partial is not None:
                context.interrupt(part.partial)
        return context
    context = empty()
    context.load(casts_of(loom, last))
    return context


def _last_of_utterance(outline: Outline, turn_id: str) -> str:
    """The last turn that belongs to a turn: the last part of its utterance, or a fold in the same cast."""
    at = turn_id
    while True:
        here = outline.places[at]
        first = here.continues or at
        for after in outline.next.get(at, ()):
            place = outline.places[after]
            if place.entity_id != here.entity_id or place.cast_id != here.cast_id or here.role == "call":
                continue
            if place.role == "fold" or place.continues == first:
                at = after
                break
        else:
            return at


def _casts_after(outline: Outline, turn_id: str) -> dict[str, CastRecord]:
    """The casts whose first turn follows a turn, without those that continue another cast."""
    own = outline.places[turn_id].cast_id
    found: dict[str, CastRecord] = {}
    for after in outline.next.get(turn_id, ()):
        cast_id = outline.places[after].cast_id
        start = outline.starts.get(cast_id) if cast_id is not None else None
        if start is not None and start.id != own and not isinstance(start.resumes, str):
            found[start.id] = start
    return found


def _has_ended(loom: Loom, outline: Outline, turn_id: str) -> bool:
    turn = loom.turn(turn_id)
    if turn.terminated or turn.truncated:
        return True
    goes_on = any(outline.places[i].cast_id == turn.cast_id for i in outline.next.get(turn_id, ()))
    return not goes_on and turn.cast_id is not None and loom.cast_end(turn.cast_id) is not None


def _choose_cast(loom: Loom, outline: Outline, turn_id: str, after: dict[str, CastRecord]) -> str:
    """The cast that comes next: the same entity's, or any of them if all that begin there are alike."""
    place = outline.places[turn_id]
    if place.role != "call":
        for start in after.values():
            if start.entity_id == place.entity_id:
                return start.id
    alike = {(start.intent, tuple((c.text, c.uri, c.data) for c in loom.cast_of(i)[1])) for i, start in after.items()}
    if len(alike) > 1:
        raise IntentRequired(
            f"casts on different intents begin at turn {turn_id!r}: name the one to continue ({', '.join(after)})"
        )
    return next(iter(after))


def _spent(loom: Loom, outline: Outline, turn_id: str, cast_id: str) -> tuple[int, Usage]:
    """How many queries a cast made on the path to a turn, and its usage, including those of the casts that it continues."""
    path = loom.utterance_ids(turn_id)
    casts = {cast_id}
    start = outline.starts.get(cast_id)
    while start is not None and isinstance(start.resumes, str) and start.resumes not in casts:
        casts.add(start.resumes)
        start = outline.starts.get(start.resumes)
    queries = sum(outline.places[ids[0]].cast_id in casts for ids in path)
    own = [each for ids in path for each in ids if outline.places[each].cast_id in casts]
    used = NO_USAGE
    for cast in casts:
        turns = [each for each in own if outline.places[each].cast_id == cast]
        last = max((i for i, place in outline.places.items() if place.cast_id == cast), default=None)
        end = loom.cast_end(cast)
        if end is not None and end.usage and last in turns:
            # All of it, with its children and with queries that wrote no turn.
            used = used + Usage.of_record(end.usage).counted()
        else:
            used = sum((loom.turn(each).metadata.usage for each in turns), used)
    return queries, used
