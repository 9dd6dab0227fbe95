"""Reopens an entity from its loom, under its own id (§6.3), for example when a session is loaded again.

All messages come from the loom. A code medium's variables are restored at the first program, not earlier:

- If the recipe keeps snapshots (``loom.snapshots``), the last **snapshot** is opened. If that fails, nothing is
  replayed instead.
- If it keeps none and cells cannot write files, the entity's cells run again (**replay**), and each gate call gets
  its recorded answer.
- In all other cases the variables are **lost**, and the entity and the user are told so, with the reason.

Modules that the entity had loaded are loaded again before its next cast, in every medium (`forking.reload_modules`).
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from cantrip_acp.core.entity import Entity
from cantrip_acp.core.forking.child_turn import cantrip_for_turn
from cantrip_acp.core.forking.ended_services import tell_of_ended_services
from cantrip_acp.core.forking.reload_modules import loaded_modules, reload_modules
from cantrip_acp.crystals.contract import CrystalBase
from cantrip_acp.gates.ports import MediumBase
from cantrip_acp.loom.query.history import casts_of, crystal_turns
from cantrip_acp.loom.recovery import complete_interrupted
from cantrip_acp.loom.snapshots import SnapshotChunks
from cantrip_acp.text.defaults import complete
from cantrip_acp.types.errors import LoomError, SandboxError, SandboxMissing
from cantrip_acp.types.usage import NO_USAGE, Usage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cantrip_acp.core.definition.cantrip_definition import CantripDefinition
    from cantrip_acp.loom.loom import Loom
    from cantrip_acp.loom.query.history import CastPart

KeptState = Literal["none", "snapshot", "replay", "lost"]
"""How a code medium's variables are restored; none if there were none."""

STATE_NOTES: dict[KeptState, str] = {
    "snapshot": "its variables are as they were after the last cell",
    "replay": "its variables were made again by running the earlier cells; gates answered as they had",
    "lost": "the variables, functions and imports of earlier cells are gone; files are as they are now",
}
"""The notes for the entity about the way its variables were restored."""


@dataclass(frozen=True, slots=True)
class ResumedEntity:
    """A reopened entity, the number of its earlier turns, and how its variables are restored.

    ``parts`` is its history, for a front end that shows it.
    """

    entity: Entity
    turns: int
    kept: KeptState
    parts: list[CastPart] = field(default_factory=list)


def resume_entity(cantrip: CantripDefinition, loom: Loom, entity_id: str, at: str | None = None) -> ResumedEntity:
    """The entity with this id, ready for its next intent. If the loom has no turn of it, a new entity with that id.

    ``at`` is the turn to continue from, if that is not its own last one (a fork).

    It reads the loom, so run it in a thread. Raises `LoomError` if the path to its last turn is damaged, and `DefinitionError`
    if that is a child's turn and ``cantrip`` lacks what the child had.
    """
    begun = at or loom.last_turn(entity_id)
    if begun is not None:
        # A session may be the fork of a child's turn.
        cantrip = cantrip_for_turn(cantrip, loom, begun)
    entity = Entity(cantrip, loom, entity_id=entity_id)
    complete_interrupted(loom)
    last = at or loom.last_turn(entity_id)
    if last is None:
        # Its casts so far were stopped before their first turn.
        last = next((each.parent_id for each in loom.partials() if each.entity_id == entity_id), None)
    if last is None:
        entity.usage = _usage_without_turns(loom, entity_id, {})
        return ResumedEntity(entity, 0, "none")
    parts = casts_of(loom, last, entity_id)
    tell_of_ended_services(entity, parts)
    used = load_usage(entity, last, parts)
    if parts and parts[-1].partial is not None and parts[-1].id is not None:
        entity.last_cast = parts[-1].id
    if at is None:
        entity.usage = entity.usage + _usage_without_turns(loom, entity_id, used)
    own = [turn for _, turn in crystal_turns(parts) if turn.entity_id == entity_id]
    entity.sequence = max((turn.sequence for turn in own), default=0)
    kept = _kept_state(entity, parts, last)
    modules = bool(loaded_modules(parts))
    if kept != "none" or modules:
        entity.medium_session.pending_restore = _make_restore(entity, parts, last, kept)
        entity.medium_session.restore_first = modules
    return ResumedEntity(entity, sum(1 for _ in crystal_turns(parts)), kept, parts)


def _usage_without_turns(loom: Loom, entity_id: str, turns: Mapping[str | None, Usage]) -> Usage:
    """The usage of an entity's queries that wrote no turn, because they failed or were cancelled.

    ``turns`` is the usage of the turns of each cast.
    """
    total = NO_USAGE
    for start in loom.cast_starts().values():
        end = loom.cast_end(start.id) if start.entity_id == entity_id else None
        if end is not None and end.usage:
            rest = end.own_usage - turns.get(start.id, NO_USAGE)
            if rest.total_tokens or rest.queries_without_usage:
                total = total + rest
    return total


def load_usage(entity: Entity, turn_id: str, parts: Sequence[CastPart]) -> dict[str | None, Usage]:
    """Load a history with its usage, and move a scripted crystal behind the queries of that path.

    Returns the usage of the turns of each cast.
    """
    if not entity.last_turn:
        entity.load_history(turn_id, parts)
    queries = sum(1 for _ in crystal_turns(list(parts)))
    used: dict[str | None, Usage] = {}
    for part in parts:
        if part.partial is not None and part.partial.model is not None:
            queries += 1
        for turn in part.turns:
            entity.executor.known_texts.restore(turn.observation.results, turn.metadata.timestamp)
        used[part.id] = sum((turn.metadata.usage for turn in part.turns), used.get(part.id, NO_USAGE))
        end = entity.loom.cast_end(part.id) if part.id is not None else None
        below = end.usage.get("children") if end is not None else None
        if below is not None:
            # Children's turns are not on a path of this entity, so their usage is added here.
            entity.usage = entity.usage + Usage.of_record(below).counted()
    entity.usage = sum(used.values(), entity.usage)
    complete(entity.crystal, CrystalBase).skip(queries)
    return used


def _kept_state(entity: Entity, parts: Sequence[CastPart], last: str) -> KeptState:
    medium = entity.circle.medium
    if not complete(medium, MediumBase).keeps_state:
        return "none"
    if not any(
        call.gate == medium.tool for _, turn in crystal_turns(list(parts)) for call in turn.utterance.tool_calls
    ):
        return "none"
    if _last_snapshot(entity, parts) is not None:
        return "snapshot"
    never = entity.circle.wards.code_writable_paths or entity.cantrip.loom_settings.get("snapshots")
    return "lost" if never else "replay"


def _last_snapshot(entity: Entity, parts: Sequence[CastPart]) -> str | None:
    """The last turn with a program, if the loom has a snapshot of it."""
    tool, pieces = entity.circle.medium.tool, SnapshotChunks(entity.loom)
    for _, turn in reversed(list(crystal_turns(list(parts)))):
        if any(call.gate == tool for call in turn.utterance.tool_calls):
            with suppress(LoomError):
                return turn.id if pieces.of(turn.id) is not None else None
            break
    return None


def _make_restore(entity: Entity, parts: Sequence[CastPart], last: str, kept: KeptState) -> Any:
    """The function that the entity calls when its medium is first opened."""

    async def restore_session() -> None:
        from cantrip_acp.core.forking.fork import restore

        again = await reload_modules(entity, parts)
        entity.medium_session.loaded_again, entity.medium_session.not_loaded = again.loaded, again.failed
        if kept == "none":
            return
        note, missing, problem = STATE_NOTES[kept], list[str](), ""
        if kept != "lost":
            at = _last_snapshot(entity, parts) or last
            try:
                _, missing = await restore(entity, at, parts, kept, None, modules=False)
            except SandboxMissing:
                raise
            except (SandboxError, LoomError) as failure:
                # Run nothing instead: the variables are lost, and the entity and the user are told.
                await entity.medium_session.discard()
                problem = str(failure.__cause__ or failure)
                note = f"{STATE_NOTES['lost']} ({problem})"
        more = f" (but: {'; '.join(missing[:5])})" if missing else ""
        await entity.session()
        await entity.medium_session.remark(f"this session was opened again: {note}{more}", aloud=bool(problem))

    return restore_session
