"""An entity that lived before is taken up again from its loom, under its own id (§6.3; a session that is opened again).

What was said comes from the loom, whole. What a code medium held in its variables comes back where it can, at the first
program and not before. Where the recipe keeps snapshots (``loom.snapshots``), the last **snapshot** is opened, and nothing is ever
replayed in its place. Where it keeps none, the entity's cells are run again (**replay**), each gate call answered with what was
recorded, but only if cells cannot write files. In all other cases the variables are **lost**, and the entity and the user
are told so, and why.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from cantrip_acp.core.entity import Entity
from cantrip_acp.core.errors import LoomError, SandboxError, SandboxMissing
from cantrip_acp.crystals.contract import NO_USAGE, Usage
from cantrip_acp.loom.query.history import lived, spoken
from cantrip_acp.loom.records.snapshots import LoomPieces
from cantrip_acp.loom.recovery import settle

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cantrip_acp.core.cantrip import Cantrip
    from cantrip_acp.loom.loom import Loom
    from cantrip_acp.loom.query.history import CastPart

Kept = Literal["none", "snapshot", "replay", "lost"]
"""How a code medium's variables come back; none where there were none to come back."""

TOLD: dict[Kept, str] = {
    "snapshot": "its variables are as they were after the last cell",
    "replay": "its variables were made again by running the earlier cells; gates answered as they had",
    "lost": "the variables, functions and imports of earlier cells are gone; files are as they are now",
}
"""What the entity is told of it."""


@dataclass(frozen=True, slots=True)
class Reopened:
    """An entity that goes on, with how many turns it has behind it and how its variables come back.

    ``parts`` is what it lived through, for whoever shows it next.
    """

    entity: Entity
    turns: int
    kept: Kept
    parts: list[CastPart] = field(default_factory=list)


def reopen(cantrip: Cantrip, loom: Loom, entity_id: str, at: str | None = None) -> Reopened:
    """The entity with this id, ready for its next intent; a new one under that id where the loom has no turn of it.

    ``at`` is the turn from which it goes on, where that is not its own last one (a fork).

    Reads the loom, so it belongs in a thread. Raises `LoomError` where the way to its last turn is damaged.
    """
    entity = Entity(cantrip, loom, entity_id=entity_id)
    settle(loom)
    last = at or loom.last_turn(entity_id)
    if last is None:
        # Its casts so far were stopped before they came to a turn.
        last = next((each.parent_id for each in loom.partials() if each.entity_id == entity_id), None)
    if last is None:
        entity.usage = _without_turns(loom, entity_id, {})
        return Reopened(entity, 0, "none")
    parts = lived(loom, last, entity_id)
    used = go_on(entity, last, parts)
    if parts and parts[-1].partial is not None and parts[-1].id is not None:
        entity.begun = parts[-1].id
    if at is None:
        entity.usage = entity.usage + _without_turns(loom, entity_id, used)
    own = [turn for _, turn in spoken(parts) if turn.entity_id == entity_id]
    entity.sequence = max((turn.sequence for turn in own), default=0)
    kept = _kept(entity, parts, last)
    if kept != "none":
        entity.revive = _reviver(entity, parts, last, kept)
    return Reopened(entity, sum(1 for _ in spoken(parts)), kept, parts)


def _without_turns(loom: Loom, entity_id: str, turns: Mapping[str | None, Usage]) -> Usage:
    """What queries of an entity used that wrote no turn: they failed for good, or were cancelled. ``turns`` is what the turns
    of each cast used."""
    total = NO_USAGE
    for start in loom.cast_starts().values():
        end = loom.cast_end(start.id) if start.entity_id == entity_id else None
        if end is not None and end.usage:
            rest = end.own_usage - turns.get(start.id, NO_USAGE)
            if rest.total_tokens or rest.queries_without_usage:
                total = total + rest
    return total


def go_on(entity: Entity, turn_id: str, parts: Sequence[CastPart]) -> dict[str | None, Usage]:
    """Take up a history, what it used, and a script's place in it (a script goes on behind the queries of that path).

    Returns what the turns of each cast used.
    """
    if not entity.last_turn:
        entity.take_up(turn_id, parts)
    queries = sum(1 for _ in spoken(list(parts)))
    used: dict[str | None, Usage] = {}
    for part in parts:
        if part.partial is not None and part.partial.model is not None:
            queries += 1
        used[part.id] = sum((turn.metadata.usage for turn in part.turns), used.get(part.id, NO_USAGE))
        end = entity.loom.cast_end(part.id) if part.id is not None else None
        below = end.usage.get("children") if end is not None else None
        if below is not None:
            # The turns of children are on no path of this entity's.
            entity.usage = entity.usage + Usage.of_record(below).counted()
    entity.usage = sum(used.values(), entity.usage)
    skip = getattr(entity.crystal, "skip", None)
    if skip is not None:
        skip(queries)
    return used


def _kept(entity: Entity, parts: Sequence[CastPart], last: str) -> Kept:
    medium = entity.circle.medium
    if not getattr(medium, "keeps_state", False):
        return "none"
    if not any(call.gate == medium.tool for _, turn in spoken(list(parts)) for call in turn.utterance.tool_calls):
        return "none"
    if _snapshotted(entity, parts) is not None:
        return "snapshot"
    never = entity.circle.wards.code_writable_paths or entity.cantrip.loom_settings.get("snapshots")
    return "lost" if never else "replay"


def _snapshotted(entity: Entity, parts: Sequence[CastPart]) -> str | None:
    """The last turn with a program, where the loom has a snapshot of it."""
    tool, pieces = entity.circle.medium.tool, LoomPieces(entity.loom)
    for _, turn in reversed(list(spoken(list(parts)))):
        if any(call.gate == tool for call in turn.utterance.tool_calls):
            with suppress(LoomError):
                return turn.id if pieces.of(turn.id) is not None else None
            break
    return None


def _reviver(entity: Entity, parts: Sequence[CastPart], last: str, kept: Kept) -> Any:
    """What the entity does when its medium is opened for the first time."""

    async def revive() -> None:
        from cantrip_acp.core.forking.fork import restore

        told, missing, problem = TOLD[kept], list[str](), ""
        if kept != "lost":
            at = _snapshotted(entity, parts) or last
            try:
                _, missing = await restore(entity, at, parts, kept, None)
            except SandboxMissing:
                raise
            except (SandboxError, LoomError) as failure:
                # Nothing is run in its place: what could not be had is gone, and everybody is told.
                await entity.discard_session()
                problem = entity.redactor.diagnostic(str(failure.__cause__ or failure))
                told = f"{TOLD['lost']} ({problem})"
        more = f" (but: {'; '.join(missing[:5])})" if missing else ""
        await entity.session()
        await entity.remark(f"this session was opened again: {told}{more}", aloud=bool(problem))

    return revive
