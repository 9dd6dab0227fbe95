"""What of a loom belongs to the path to one turn: the records that a fork in a file of its own copies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from msgspec import UNSET

from cantrip_acp.types.records import (
    CantripRecord,
    CastRecord,
    ConfigRecord,
    ContextRecord,
    FilesRecord,
    FoldRecord,
    LoomHeader,
    RewardRecord,
    SnapshotRecord,
    Turn,
    UtteranceRecord,
)

if TYPE_CHECKING:
    from cantrip_acp.loom.loom import Loom
    from cantrip_acp.types.records import Record


def records_on_path(loom: Loom, turn_id: str, cast_id: str | None = None) -> Iterator[Record]:
    """The records on the path to a turn, in the order in which they were written, and the start of ``cast_id``.

    The end of a cast is among them if the path has the turn with which the cast ended. They include the records of the
    children that turns on the path spawned, and of the children of those.
    """
    on_path = set(loom.path(turn_id))
    casts: set[str] = set() if cast_id is None else {cast_id}
    below, turns = _descendants(loom, on_path)
    casts |= below
    on_path |= turns
    cantrips: set[str] = set()
    ended = below.copy()
    last_turns = {place.cast_id: each for each, place in loom.places.copy().items() if place.role != "call"}
    for each in on_path:
        turn = loom.turn(each)
        cantrips.add(turn.cantrip_id)
        if turn.cast_id is not None:
            casts.add(turn.cast_id)
            # A cast of which the path goes on in another cast has ended too, if this was its last turn.
            if last_turns.get(turn.cast_id) == each and (turn.reason is not None or each != turn_id):
                ended.add(turn.cast_id)
    silent = _silent_casts(loom, casts)
    casts |= silent
    ended |= silent
    for record in loom.records():
        match record:
            case LoomHeader():
                continue
            case CantripRecord():
                wanted = record.id in cantrips
            case Turn():
                wanted = record.id in on_path
            case CastRecord():
                # The path may leave a cast before its end; then the end of the cast is not part of it.
                wanted = record.id in casts and (record.event == "start" or record.id in ended)
            case ContextRecord() | FoldRecord():
                wanted = record.cast_id in casts
            case RewardRecord() | SnapshotRecord():
                wanted = record.turn_id in on_path
            case FilesRecord():
                # The fork's checkpoints continue from those.
                wanted = record.turn_id in on_path and record.checkpoint is not UNSET and record.restored is UNSET
            case UtteranceRecord(partial=True):
                # What a cast said before it was stopped; of a turn on the path, the turn has it.
                wanted = record.cast_id in silent or (record.cast_id in ended and record.parent_id in on_path)
            case ConfigRecord():
                # A cut of the context belongs to the turns after it. Other changes are those of a session, not of a thread.
                cut = record.changes.get("compacted")
                wanted = isinstance(cut, Mapping) and cut.get("after") in on_path
            case _:
                wanted = False
        if wanted:
            yield record


def _silent_casts(loom: Loom, casts: set[str]) -> set[str]:
    """The casts without a turn that came before the last of these casts of the same entity: it read their intents."""
    last: dict[str, int] = {}
    starts = list(loom.cast_starts().values())
    for at, start in enumerate(starts):
        if start.id in casts:
            last[start.entity_id] = at
    before = {start.id for at, start in enumerate(starts) if at < last.get(start.entity_id, 0)}
    return before - casts


def _descendants(loom: Loom, above: set[str]) -> tuple[set[str], set[str]]:
    """The casts and turns of the children that these turns spawned, and of their children."""
    cast_turns: dict[str, list[str]] = {}
    entity_turns: dict[str, list[str]] = {}
    for each, place in loom.places.copy().items():
        if place.cast_id is not None:
            cast_turns.setdefault(place.cast_id, []).append(each)
        if place.role == "call" and place.parent_id is not None:
            entity_turns.setdefault(place.parent_id, []).append(each)
    spawned: dict[str, list[str]] = {}
    for start in loom.cast_starts().values():
        if start.parent_turn_id is not None:
            spawned.setdefault(start.parent_turn_id, []).append(start.id)
    casts, turns, waiting = set[str](), set[str](), list(above)
    while waiting:
        at = waiting.pop()
        new = set(spawned.get(at, ())) - casts
        casts |= new
        found = (
            {*entity_turns.get(at, ()), *(each for cast in new for each in cast_turns.get(cast, ()))} - above - turns
        )
        turns |= found
        waiting += found
    return casts, turns
