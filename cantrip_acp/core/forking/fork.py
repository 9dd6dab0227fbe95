"""Forks: makes a new entity that continues from any turn of a loom (LOOM-4, §6.6).

The messages come from the loom. The variables of a code medium come from a **snapshot** (of the live entity, or in
the loom for that turn) or from **replay**: the entity's code runs again in a new worker, and each gate call gets its
recorded answer, so that no gate acts twice. Cells that can write files run again on a copy of the files, never on the
files themselves. The fork's record names the method, and what is missing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

import anyio
import anyio.to_thread
from msgspec import UNSET, UnsetType

from cantrip_acp.core.entity import Entity, check_new
from cantrip_acp.core.forking import worktree as forkplace
from cantrip_acp.core.forking.child_turn import cantrip_for_turn
from cantrip_acp.core.forking.ended_services import tell_of_ended_services
from cantrip_acp.core.forking.reload_modules import LOADING_GATE as MODULES
from cantrip_acp.core.forking.reload_modules import ReloadedModules, reload_modules, unloaded_notes
from cantrip_acp.core.history.continuation import find_point
from cantrip_acp.gates.ports import MediumBase
from cantrip_acp.gates.registry import DELEGATION
from cantrip_acp.loom.query.history import CastPart, casts_of, crystal_turns
from cantrip_acp.loom.snapshots import SnapshotChunks
from cantrip_acp.mediums.code.snapshot import Snapshot
from cantrip_acp.mediums.contract import SessionBase
from cantrip_acp.telemetry import tracing
from cantrip_acp.text.defaults import complete
from cantrip_acp.types.errors import (
    CantripError,
    DefinitionError,
    EntityBusy,
    GitError,
    LoomError,
    SandboxError,
    SandboxMissing,
)
from cantrip_acp.types.messages import ToolCall
from cantrip_acp.types.records import ForkRecord, GateRecord, Output, Turn, new_id, now

if TYPE_CHECKING:
    from cantrip_acp.core.definition.cantrip_definition import CantripDefinition
    from cantrip_acp.gates.contract import Gate
    from cantrip_acp.loom.loom import Loom
    from cantrip_acp.types.context_block import ContextBlock
    from cantrip_acp.types.events import Event

State = Literal["auto", "snapshot", "replay", "none"]
"""How to restore a fork's code state. A missing snapshot is an error, unless the caller asks for replay or auto."""

REPLAYED = "files: the cells ran again in a copy, which is gone; what they had written is as it is now"
"""The note for a fork whose cells could write and were run again."""

_ADVICE = (
    "Ask for state 'auto' (--state auto) to run the recorded cells again, in a copy of what they can write, or for 'none' "
    "(--state none) to continue without variables"
)

_CUT_OFF = frozenset({"cancelled", "parent_terminated", "max_seconds", "error"})
"""Reasons of turns whose last program may have been stopped while it ran."""


async def fork(
    cantrip: CantripDefinition,
    turn_id: str,
    *,
    loom: Loom,
    state: State = "snapshot",
    live: Entity | None = None,
    entity_id: str | None = None,
    worktree: bool | str | os.PathLike[str] = False,
    group: str | None = None,
    resume: bool | str = False,
) -> Entity:
    """Make an entity of ``cantrip`` with the history of the path to ``turn_id``. The original thread does not change.

    If that turn is of a child, the fork has the child's own call, gates and wards, as far as ``cantrip`` allows them
    (`forking.child_turn`).

    ``live`` is the entity whose last turn that is, if it still exists; its current state is then used. ``worktree``
    gives the fork its own folder with the files of that turn (`forking.worktree`). ``group`` is the group of the
    fork. With ``resume`` the fork will continue without a new intent (`core.history.continuation`): True, or the cast to
    continue if there are several.

    Raises `TurnNotFound`; `LoomError` if the path is damaged; `DefinitionError` if ``cantrip`` lacks what a child had;
    `SandboxError` where ``state`` asks for a snapshot
    that does not exist or cannot be opened; `EntityBusy` if ``live`` is in the middle of a cast; `GitError` if
    no worktree can be made.
    """
    if state not in ("auto", "snapshot", "replay", "none"):
        raise DefinitionError(f"state is {state!r}; it is one of auto, snapshot, replay, none")
    check_new(loom, entity_id)
    resumes: str | UnsetType = UNSET
    if resume is not False:
        where = find_point(loom, turn_id, resume if isinstance(resume, str) else None)
        turn_id, resumes = where.turn_id, where.cast.id
    parts = casts_of(loom, turn_id)
    cantrip = cantrip_for_turn(cantrip, loom, turn_id)
    name = entity_id or new_id("e")
    place = None
    if worktree is not False:
        place = await anyio.to_thread.run_sync(forkplace.make_worktree, cantrip, loom, turn_id, worktree, name)
        cantrip = place.cantrip
    entity = Entity(cantrip, loom, entity_id=name)
    try:
        # The recorded code may have called gates from these sources.
        await entity.connect_sources()
        entity.load_history(turn_id, parts)
        await anyio.to_thread.run_sync(tell_of_ended_services, entity, parts)
        strategy, missing = await restore(entity, turn_id, parts, state, live)
        if place is not None and strategy == "replay":
            # Code that ran again has also written its files again, older contents over newer ones.
            await anyio.to_thread.run_sync(place.worktree.settle)
        loom.append(
            ForkRecord(
                new_id("k"),
                turn_id,
                entity.id,
                strategy,
                (*missing, *(place.missing if place is not None else _notes_on_files(entity, parts))),
                now(),
                group if group is not None else UNSET,
                place.worktree.folder if place is not None else UNSET,
                place.worktree.commit if place is not None else UNSET,
                resumes,
            )
        )
        if place is not None:
            await anyio.to_thread.run_sync(place.worktree.finish)
    except BaseException:
        with anyio.CancelScope(shield=True):
            await entity.close()
            if place is not None:
                await anyio.to_thread.run_sync(_remove_worktree, place)
        raise
    return entity


def _remove_worktree(place: forkplace.ForkWorktree) -> None:
    with suppress(GitError):
        # Report the error that made the fork fail, not this one.
        place.worktree.remove()


def _notes_on_files(entity: Entity, parts: Sequence[CastPart]) -> list[str]:
    """Notes for a fork without a worktree that files may differ from those of its turn; none if the history changed no files."""
    circle = entity.circle
    programs = circle.wards.bash_writable_paths if circle.medium.name == "bash" else circle.wards.code_writable_paths
    writers = {
        name
        for name, gate in circle.gates.items()
        if gate.writes and name != MODULES and (circle.workspace is not None or "root" in gate.dependencies)
    }
    for _, turn in crystal_turns(list(parts)):
        if writers.intersection(turn.gate_calls) or (programs and turn.observation.output is not None):
            return ["files: as they are now, not as they were at that turn"]
    return []


async def copy_live_state(live: Entity, fork: Entity, turn_id: str) -> bool:
    """Copy the variables of a running entity into a fork of it that waits to restore them, if it is exactly at the fork's turn.
    Returns whether they were copied; else the fork restores them with its next cast."""
    waiting = fork.medium_session.pending_restore
    if waiting is None or live.medium_session.pending_restore is not None or not live.medium_session.is_open:
        return False
    if live.busy or live.last_turn != turn_id:
        return False
    fork.medium_session.pending_restore = None
    parts = await anyio.to_thread.run_sync(casts_of, fork.loom, turn_id)
    try:
        await restore(fork, turn_id, parts, "snapshot", live)
    except CantripError:
        await fork.medium_session.discard()
        fork.medium_session.pending_restore = waiting
        return False
    return True


async def restore(
    entity: Entity,
    turn_id: str,
    parts: Sequence[CastPart],
    state: State,
    live: Entity | None,
    *,
    modules: bool = True,
) -> tuple[str, list[str]]:
    """Restore the medium's state, and with ``modules`` the loaded modules. Returns the method, and what could not be
    restored.
    """
    medium = entity.circle.medium
    cells = [(part, turn) for part, turn in crystal_turns(list(parts)) if _programs(turn, medium.tool)]
    keeps = complete(medium, MediumBase).keeps_state
    if state == "none" or not keeps or not cells:
        again = await reload_modules(entity, parts) if modules and state != "none" else ReloadedModules()
        left = ["variables of the code medium"] if state == "none" and keeps and cells else []
        return "none", [*left, *(unloaded_notes(parts) if state == "none" else again.notes)]
    loaded = (await reload_modules(entity, parts)).notes if modules else []
    if state in ("auto", "snapshot"):
        try:
            found = await _from_snapshot(entity, turn_id, cells[-1][1].id, live)
        except SandboxMissing:
            raise
        except (SandboxError, LoomError) as error:
            if state == "snapshot":
                raise SandboxError(f"{error}. {_ADVICE}") from error
            # The snapshot cannot be opened (another Python, a lost piece). The code itself is still in the loom, so run
            # it.
            await entity.medium_session.discard()
            found = None
        if found is not None:
            return "snapshot", [*loaded, *found]
        if state == "snapshot":
            raise SandboxError(
                f"there is no snapshot of turn {turn_id!r}. The loom keeps a snapshot of each turn only with "
                "loom: {snapshots: true}; an open entity has only the one of its last turn. " + _ADVICE
            )
    return "replay", [*loaded, *await _replay(entity, parts, medium.tool or "")]


async def _from_snapshot(entity: Entity, turn_id: str, last: str, live: Entity | None) -> list[str] | None:
    """Restore a snapshot from the live entity or the loom. Returns what the snapshot lacks, or None if there is no snapshot.

    ``last`` is the last turn up to ``turn_id`` that ran code: the state of both turns is the same.
    """
    if live is not None and live.last_turn == turn_id and not live.closed:
        if live.busy:
            raise EntityBusy(f"entity {live.id} is in the middle of a cast; fork from an earlier turn, or wait for it")
        if live.circle.medium.name == entity.circle.medium.name:
            source: Any = await live.session()
            taken = await source.snapshot()
            session: Any = await entity.session()
            await session.restore(taken, source.chunks)
            return [f"{name}: {why}" for name, why in taken.missing]
    pieces = SnapshotChunks(entity.loom)
    described = pieces.of(last)
    if described is None:
        return None
    session = await entity.session()
    await session.restore(Snapshot.of(described), pieces)
    return [f"{name}: {why}" for name, why in described.get("missing", ())]


async def _replay(entity: Entity, parts: Sequence[CastPart], tool: str) -> list[str]:
    """Run the entity's code again, turn by turn. Returns where it behaved differently."""
    session: Any = await entity.session()
    if not entity.circle.wards.code_writable_paths:
        return await _run_again(entity, session, parts, tool)
    # Code that can write runs again in a second session with copies of the writable folders. Its state is moved from
    # there.
    apart: Any = await entity.circle.medium.open(entity.circle, entity.id)
    try:
        if not await apart.write_to_copies():
            return await _run_again(entity, session, parts, tool)
        complete(apart, SessionBase).gates_added(complete(session, SessionBase).gained)
        missing = await _run_again(entity, apart, parts, tool)
        taken = await apart.snapshot()
        await session.restore(taken, apart.chunks)
    finally:
        with anyio.CancelScope(shield=True):
            await apart.close()
    return [*missing, *(f"{name}: {why}" for name, why in taken.missing), REPLAYED]


async def _run_again(entity: Entity, session: Any, parts: Sequence[CastPart], tool: str) -> list[str]:
    missing: list[str] = []
    for number, (part, turn) in enumerate(crystal_turns(list(parts)), 1):
        again = RecordedTurn(entity, part, turn)
        outputs = turn.observation.outputs
        recorded = list(outputs) if isinstance(outputs, tuple) else [turn.observation.output]
        for index, call in enumerate(_programs(turn, tool)):
            if turn.reason in _CUT_OFF and index >= len(recorded) - 1:
                # It may never end by itself: it was stopped, or the process ended during it.
                missing.append(f"turn {number}: what was stopped while it ran is not run again")
                break
            output = await session.run(ToolCall(f"{turn.id}.replay{index}", call.gate, call.args), again)
            was = recorded[index] if index < len(recorded) else None
            if was is not None and (difference := divergence(was, output)) is not None:
                missing.append(f"turn {number}: {difference}")
            if again.finished:
                break
        missing += [f"turn {number}: {each}" for each in again.problems]
    return missing


def divergence(was: Output, now_: Output) -> str | None:
    """How a second run of a program differs from the first, in words; None if it does not differ."""
    if (was.error is None) != (now_.error is None):
        return (
            f"it failed this time: {_short_text(now_.error)}"
            if now_.error
            else f"it did not fail, as it had: {_short_text(was.error)}"
        )
    if was.error != now_.error:
        return f"it failed otherwise: {_short_text(now_.error)} in place of {_short_text(was.error)}"
    if was.exit_code != now_.exit_code:
        return f"it ended with {now_.exit_code} in place of {was.exit_code}"
    if was.value != now_.value:
        return f"its value is {_short_text(now_.value)} in place of {_short_text(was.value)}"
    if was.stdout != now_.stdout:
        return f"it printed {_short_text(now_.stdout)} in place of {_short_text(was.stdout)}"
    if was.stderr != now_.stderr:
        return "it wrote other things to its error output"
    return None


def _short_text(value: Any) -> str:
    text = " ".join(str(value).split())
    return repr(text if len(text) <= 120 else text[-120:])


def _programs(turn: Turn, tool: str | None) -> list[ToolCall]:
    return [call for call in turn.utterance.tool_calls if tool is not None and call.gate == tool]


class RecordedTurn:
    """A turn that is run again: its gates return their recorded answers (`gates.ports.TurnContext`).

    ``problems`` lists calls that were not made before, or not in that order.
    """

    ends_when_cut = False
    listening = False
    folded = 0

    def __init__(self, entity: Entity, part: CastPart, turn: Turn) -> None:
        self._entity = entity
        self._part = part
        self._turn = turn
        self.wards, self.entity_id, self.depth = entity.circle.wards, entity.id, entity.depth
        self.cast_id = part.id or turn.id
        # Only calls of the code: what the crystal called directly is not part of it.
        self._results = [r for r in turn.observation.results if r.tool_call_id is None]
        output = turn.observation.output
        self._ends_there = output is not None and output.unfinished is True
        self.finished = False
        self.problems: list[str] = []
        self._trace = tracing.trace_from({"trace_id": turn.metadata.trace_id})
        self.trace_id = self._trace.trace_id

    def shared_network(self) -> None:
        """A replayed turn has no services."""

    @property
    def traceparent(self) -> str:
        return self._trace.traceparent()

    @property
    def context(self) -> Sequence[ContextBlock]:
        from cantrip_acp.types.context_block import block_of

        return [block_of(record) for record in self._part.context]

    def history(self, start: int, count: int) -> tuple[int, list[Any]]:
        import msgspec

        loom = self._entity.loom
        path = loom.utterance_ids(self._turn.parent_id) if self._turn.parent_id else []
        return len(path), [msgspec.to_builtins(loom.utterance_turn(ids)) for ids in path[start : start + count]]

    async def emit(self, event: Event) -> None:
        """Ignore the event: a rerun reports none."""

    def interrupted(self, output: Output, report: object) -> None:
        """Ignore the output: a rerun leaves no record."""

    async def gate(
        self, name: str, args: Mapping[str, Any] | str, *, via: str | None = None, own: Gate | None = None
    ) -> GateRecord:
        for place, record in enumerate(self._results):
            if record.gate == name:
                if place:
                    self.problems.append(f"{name} was called before {self._results[0].gate}, unlike before")
                del self._results[place]
                break
        else:
            if name in DELEGATION and self._ends_there:
                # The turn was closed at this call. Its state is the one before a child had answered.
                self.finished = True
                return GateRecord(name, args, "the turn ended here", True)
            self.problems.append(f"{name} was called, and had not been")
            record = GateRecord(name, args, f"gate {name!r} has no recorded answer in this replay", True)
        if name == "done" and not record.is_error:
            self.finished = True
        return record
