"""The entity: runs the casts of a cantrip and keeps its state between them (§1.4, ENTITY-1..6).

Its data are those of `EntityState`, on which the loop below works. The medium's session, the gate sources, the children and
the files are parts of their own (`core.lifecycle`).
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self
from typing import cast as typed

import anyio
import msgspec

from cantrip_acp.core.casting.cast_stream import CastStream, stream_cast
from cantrip_acp.core.casting.gate_executor import GateExecutor
from cantrip_acp.core.casting.result import CastResult, Value
from cantrip_acp.core.definition.circle import check_reference
from cantrip_acp.core.definition.result_type import typed_result
from cantrip_acp.core.event_hub import BUFFER, Subscription
from cantrip_acp.core.history.continuation import find_own_point, reference_of
from cantrip_acp.core.lifecycle import children
from cantrip_acp.core.lifecycle.medium_session import SessionKeeper
from cantrip_acp.core.state import EntityState, SteeringMessage
from cantrip_acp.crystals.contract import CrystalBase
from cantrip_acp.gates.services import Services
from cantrip_acp.gates.wards import Wards, compose
from cantrip_acp.mediums.contract import SessionBase
from cantrip_acp.mediums.text_program import writes_calls
from cantrip_acp.telemetry import tracing
from cantrip_acp.text.defaults import complete
from cantrip_acp.text.logs import logger
from cantrip_acp.types.checked_values import short_repr
from cantrip_acp.types.context_block import ContextBlock
from cantrip_acp.types.errors import (
    CantripError,
    DefinitionError,
    EntityBusy,
    EntityClosed,
    EntityExists,
    EntityIdle,
    IntentRequired,
)
from cantrip_acp.types.records import NOTE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from os import PathLike

    from cantrip_acp.core.casting.loop import CastRun
    from cantrip_acp.core.casting.result import ForkGroup
    from cantrip_acp.core.definition.cantrip_definition import CantripDefinition
    from cantrip_acp.core.history.continuation import Point
    from cantrip_acp.core.lifecycle.checkpoints import Checkpoints
    from cantrip_acp.core.state import ParentLink, WardsOf
    from cantrip_acp.crystals.contract import Crystal
    from cantrip_acp.loom.loom import Loom
    from cantrip_acp.loom.query.history import CastPart
    from cantrip_acp.mediums.contract import MediumSession

_LONGEST_ID = 200

log = logger(__name__)


class ForkMaker(Protocol):
    """The part of the public `core.cantrip.Cantrip` that makes forks of an entity's turns."""

    async def fork(self, turn_id: str, **options: Any) -> Entity[Any]: ...

    async def fork_group(self, turn_id: str, intent: str | Sequence[str], **options: Any) -> ForkGroup[Any]: ...

    async def resample(self, turn_id: str, samples: int | None = None, **options: Any) -> ForkGroup[Any]: ...


class Entity(EntityState, Generic[Value]):
    """A running agent, made by ``async with cantrip.invoke() as entity``. `cast` gives it a task, and each task builds on those
    before it. It runs one at a time.

    Leaving the block (or `close`) ends the processes and the variables of its medium. Its record stays in the loom.

    Its fields are to be read, not set. What it is: ``id``; ``cantrip``, with the gates that its sources added; ``circle``,
    with the wards that are in force now; ``crystal``, which answers the next query; ``loom``; ``hub``, where its events go;
    ``depth``, 0 for the root of the tree of entities. What it did: ``context``, the messages of the next query; ``usage`` of
    all casts (PROD-3); ``sequence``, the number of the last turn, and ``last_turn``, its id; ``busy`` and ``closed``.
    """

    checkpoints: Checkpoints | None

    def __init__(
        self,
        cantrip: CantripDefinition,
        loom: Loom,
        *,
        entity_id: str | None = None,
        parent: ParentLink | None = None,
    ) -> None:
        super().__init__(cantrip, loom, entity_id=entity_id, parent=parent)
        self.executor = GateExecutor(
            cantrip.circle,
            hub=self.hub,
            interceptors=cantrip.interceptors,
            depth=self.depth,
            running=self.running_calls,
            services=Services(self.id, loom.append, lambda: self.medium_session.sandbox_pid),
        )
        self.medium_session = SessionKeeper(self, self.executor.dynamic_gates)
        self._own_checkpoints = _checkpoints(self) if parent is None else None
        if parent is None:
            self.checkpoints = self._own_checkpoints
        self.executor.checkpoints = self.checkpoints
        self._remarked: Crystal | None = None
        """The crystal whose remarks were already reported."""
        self._history: Sequence[CastPart] = ()
        self._extra_wards: Wards | WardsOf | None = None
        self._run: CastRun | None = None
        self._connecting: anyio.CancelScope | None = None
        """Stops what a cast waits for before it begins."""
        self._warming: anyio.CancelScope | None = None
        self._warmed = anyio.Event()
        loom.claim(self.id, self)

    def __repr__(self) -> str:
        return f"Entity({self.id}, {self.sequence} turns)"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    # --- Casts

    def subscribe(self, *, lossy: bool = False, buffer: int = BUFFER) -> Subscription:
        """Subscribe to all events of this entity, cast after cast. See `events` for the two kinds of subscription."""
        return self.hub.subscribe(lossy=lossy, buffer=buffer)

    async def cast(
        self,
        intent: str,
        *,
        trace_id: str | None = None,
        trace: tracing.Trace | None = None,
        context: Sequence[ContextBlock] = (),
        reference: Any = None,
    ) -> CastResult[Value]:
        """Run one cast on an intent. The entity remembers all earlier casts (ENTITY-5).

        ``trace_id`` (32 hex digits) or ``trace`` join the cast to an outside trace. ``context`` is placed before the
        intent. ``reference`` is the expected answer (JSON data), for scorers and exports: the crystal never sees it. The
        first cast of a fork has by default that of the forked cast, if its intent is the same.
        After `cancel`, the result has the reason ``cancelled``. An outer cancellation is recorded and raised again.

        Raises `IntentRequired`, `EntityBusy`, `EntityClosed`, `CrystalError` if a query failed and is not retried,
        `NoResult` if the cantrip has a ``result_type`` and the cast ended without one,
        `LoomWriteError` if the trace could not be written, and `DefinitionError` if the entity could read the loom, and
        so the ``reference`` in it.
        """
        if not isinstance(intent, str) or not intent.strip():
            raise IntentRequired("intent is required: say what the entity is to do (INTENT-1)")
        self._check_free()
        if reference is None and not self.last_cast:
            reference = reference_of(self.loom, self.id, intent)
        return await self._cast(intent, _trace(trace_id, trace), context, reference=reference)

    async def resume(self, *, trace_id: str | None = None, trace: tracing.Trace | None = None) -> CastResult[Value]:
        """Continue the last cast without a new message, after a cancel, a ward, an error or the end of the process
        (`history.continuation`).

        A fork that has not cast yet continues the cast of its turn, or the cast that came next.
        The continuation is a cast of its own in the loom, with the same intent; ``resumes`` in its record names the
        continued one. The count of turns towards ``max_turns`` continues too, unless that limit was reached. Raises
        the errors of `cast`, and `IntentRequired` if there is nothing to continue.
        """
        self._check_free()
        point = find_own_point(self)
        cast = point.cast
        reference = None if cast.reference is msgspec.UNSET else cast.reference
        return await self._cast(cast.intent or "", _trace(trace_id, trace), point.blocks, point, reference)

    def _check_free(self) -> None:
        """Raise `EntityClosed` or `EntityBusy` if no cast can start now."""
        if self.closed:
            raise EntityClosed(f"entity {self.id} has ended; invoke the cantrip again")
        if self._run is not None:
            raise EntityBusy(f"entity {self.id} is busy with another cast; wait for it, or cancel it first")

    async def _cast(
        self,
        intent: str,
        trace: tracing.Trace,
        blocks: Sequence[ContextBlock],
        resumed: Point | None = None,
        reference: Any = None,
    ) -> CastResult[Value]:
        # An editor shows a session before its first cast.
        from cantrip_acp.core.casting.loop import CastRun

        check_reference(reference, self.circle, self.loom.location)
        session = self.medium_session
        run = CastRun(self, self.executor, session, self.take_notices, intent, trace, blocks, resumed, reference)
        self._run, self.running = run, run.cast
        whole = False
        try:
            with anyio.CancelScope() as self._connecting:
                await self.connect_sources()
                await session.restore_before_query()
                self._tell_of_modules(run, resumed)
                if resumed is None and (note := self.due_note) is not None:
                    run.cast.blocks = (*run.cast.blocks, note)
            self._connecting = None
            result = await run.run()
            whole = result.terminated
            return typed_result(result, self.cantrip.result_type)
        finally:
            self.loom.unlock_cast(run.cast.id)
            self._run = self.running = None
            if not whole:
                # A cast that is cut off ends all entities below it, also those that wait for their next intent
                # (COMP-9).
                await children.close_all(self)

    def _tell_of_modules(self, run: CastRun, resumed: Point | None) -> None:
        """Add a note about modules to the context. A resumed cast needs the same messages as before, so it is told only of
        modules that could not be loaded again."""
        text = self.medium_session.take_notes(also_loaded=resumed is None)
        if not text:
            return
        if resumed is None or resumed.begins:
            run.cast.blocks = (*run.cast.blocks, ContextBlock(text, "Loaded modules", "cantrip"))
        else:
            run.cast.steering.append(SteeringMessage((ContextBlock(text, "Loaded modules", NOTE),)))

    def stream(
        self, intent: str | None, *, buffer: int = BUFFER, **options: Any
    ) -> AbstractAsyncContextManager[CastStream[Value]]:
        """Run a cast as a stream of events, with back-pressure. Leaving the block early cancels the cast.

        With None as the intent it resumes. ``options`` are those of `cast` or `resume`. After the last event,
        ``stream.result`` is the `CastResult`.
        """
        cast: Callable[[], Awaitable[CastResult[Value]]]
        cast = partial(self.resume, **options) if intent is None else partial(self.cast, intent, **options)
        return stream_cast(self.hub, cast, self.cancel, buffer)

    def cancel(self, reason: str = "cancelled") -> bool:
        """Stop the running cast. Returns False if none runs. The current turn is recorded with that reason."""
        if self._run is None:
            return False
        self._run.cast.cancel(reason)
        if self._connecting is not None:
            self._connecting.cancel()
        return True

    def stop_call(self, call_id: str) -> bool:
        """Stop one running call of this entity or of a child, by the id that its events have. The cast goes on, and the
        entity reads that the user stopped the call. Returns False if no such call runs.
        """
        return self.running_calls.stop(call_id)

    def steer(self, text: str, *, context: Sequence[ContextBlock] = ()) -> SteeringMessage:
        """Send a message to the running cast. The crystal reads it with the next query, as a message of the user.

        The loom keeps it as a ``context`` record with the source ``steering``. A cast that makes no further query does not
        deliver it: ``delivered`` of the returned message then stays False. Raises `IntentRequired` for an empty message
        and `EntityIdle` if no cast runs.
        """
        if not isinstance(text, str) or not (text.strip() or context):
            raise IntentRequired("a message for a running cast needs a text")
        blocks = (*context, ContextBlock(text)) if text.strip() else tuple(context)
        if self.running is None or self.running.stop_reason is not None:
            raise EntityIdle(f"entity {self.id} runs no cast that a message could reach; cast it with that intent")
        message = SteeringMessage(blocks)
        self.running.steering.append(message)
        return message

    def withdraw(self, message: SteeringMessage) -> bool:
        """Take back a message of `steer`. Returns False if it was delivered, or if its cast has ended."""
        if self.running is None or message not in self.running.steering:
            return False
        self.running.steering.remove(message)
        return True

    # --- Forks

    async def fork(
        self,
        turn_id: str | None = None,
        *,
        cantrip: CantripDefinition | None = None,
        state: str = "snapshot",
        worktree: bool | str | PathLike[str] = False,
    ) -> Entity[Value]:
        """Make a new entity that continues from one of this entity's turns, by default its last. See `Cantrip.fork`.

        ``cantrip`` may have another crystal, call or circle. Without it the fork has the same cantrip.
        """
        self.write_root()
        maker = typed("ForkMaker", cantrip if cantrip is not None else self.cantrip)
        last = turn_id or self.last_turn
        return await maker.fork(last, loom=self.loom, state=state, live=self, worktree=worktree)

    async def fork_group(
        self, intent: str | Sequence[str], *, turn_id: str | None = None, **options: Any
    ) -> ForkGroup[Value]:
        """Fork one of this entity's turns several times and cast each fork on the intent.

        The default is its last turn. See `Cantrip.fork_group`.
        """
        self.write_root()
        maker = typed("ForkMaker", self.cantrip)
        return await maker.fork_group(turn_id or self.last_turn, intent, loom=self.loom, **options)

    async def resample(
        self, turn_id: str | None = None, samples: int | None = None, **options: Any
    ) -> ForkGroup[Value]:
        """Fork one of this entity's turns several times and resume each fork.

        The default is its last turn. See `Cantrip.resample`.
        """
        self.write_root()
        maker = typed("ForkMaker", self.cantrip)
        return await maker.resample(turn_id or self.last_turn, samples, loom=self.loom, **options)

    # --- Sources, session and preparation

    async def connect_sources(self) -> None:
        """Connect to the cantrip's gate sources and add their gates to the circle. Done once, before the first turn.

        Raises `CantripError` if a source fails that the entity cannot do without.
        """
        circle = await self.sources.connect(self.cantrip.circle)
        self.executor.source_problems = self.sources.problems
        if circle is None:
            return
        self._change(cantrip=self.cantrip.replace(circle=circle), circle=circle)
        self.context = self._new_context()
        if self._history:
            self.load_history(self.last_turn, self._history)
        self.set_wards(self._extra_wards)

    def take_notices(self) -> list[str]:
        """Problems with gate sources, and remarks of the crystal, that were not reported yet. They are for the user."""
        crystal, notices = self.crystal, self.sources.take_problems()
        if crystal is not self._remarked:
            self._remarked = crystal
            notices = [*complete(crystal, CrystalBase).remarks, *notices]
        if self._own_checkpoints is not None:
            notices += self._own_checkpoints.take_notes()
        notes, self.medium_session.notices = self.medium_session.notices, []
        notices += notes
        if self.executor.services is not None:
            notices += self.executor.services.remind()
        return notices

    async def session(self) -> MediumSession:
        """The session of this entity's medium. It is opened on first use."""
        return await self.medium_session.open()

    async def warm(self) -> None:
        """Prepare what the first turn would otherwise wait for: open the medium and start its worker processes.

        Run it once, concurrently with other work; `close` ends it. Problems are only logged here; the first turn
        reports them.
        """
        if self.closed:
            return
        import cantrip_acp.core.casting.loop  # noqa: F401 - the first cast imports it

        if self.medium_session.pending_restore is None:
            with anyio.CancelScope() as self._warming:
                try:
                    await self.connect_sources()
                    await complete(await self.medium_session.open(), SessionBase).warm()
                except CantripError as problem:
                    log.debug("nothing could be prepared for %s: %s", self.id, problem)
                finally:
                    self._warmed.set()
        if self._own_checkpoints is not None:
            await self._own_checkpoints.prepare()

    # --- Changes between turns

    def set_wards(
        self,
        wards: Wards | WardsOf | None,
        note: ContextBlock | None = None,
        *,
        for_children: ContextBlock | None = None,
        known: bool = False,
    ) -> None:
        """Set further wards, in force from the next call and the next program on. None removes them again.

        Wards that depend on the gates come as a function of the circle, because the circle may still get more gates.
        The description of the circle that the crystal saw stays as it is (LOOM-6), so ``note`` tells the entity what
        changed: with its next query, also in a running cast. Its ``uri`` is `WARDS` and a name. It is not told if the
        note with that name is the last one that it read, and never if it is ``known`` from the beginning. Children that
        run read ``for_children``, or the same note. Without a note the last one holds.
        """
        if note is not None:
            self.note = note
            if known:
                self.known_note = note.uri
        self._extra_wards = wards
        own = self.cantrip.circle
        more = wards(own) if callable(wards) else wards
        circle = own if more is None else own.replace(wards=compose(own.wards, more))
        before = self.circle
        self._change(circle=circle)
        self.executor.set_circle(circle)
        self.medium_session.wards_changed(before.wards, circle.wards)
        if self._run is not None:
            self._run.limit.set_wards(circle.wards)
        children.set_wards(self, circle.wards, for_children or note)

    def use_crystal(self, crystal: Crystal) -> None:
        """Use another crystal from the next query on.

        If it writes its calls in another way, the capability block changes.
        """
        before = self.crystal
        self._change(crystal=crystal)
        by_text = writes_calls(crystal)
        if by_text != writes_calls(before):
            self.context.present(text_calls=by_text)
            self._change(cantrip=self.cantrip.replace(crystal=crystal))
            if self.last_turn:
                self._register_cantrip()

    def load_history(self, turn_id: str, parts: Sequence[CastPart]) -> None:
        """Start with another entity's history, up to a turn of this loom (LOOM-4). Call it before the first cast."""
        self._register_cantrip()
        self.context.load(parts)
        self._history = parts if self.cantrip.sources else ()
        self.last_turn = turn_id
        if self.loom.has_children:
            self.children.count, self.children.descendants = self.loom.children_until(turn_id)

    def _register_cantrip(self) -> None:
        self.loom.record_cantrip(self.cantrip.id, *self.cantrip.records, self.cantrip.shown)

    async def close(self) -> None:
        """End the entity, its running cast, and everything that its medium started. Safe to call twice."""
        self.closed = True
        self.cancel()
        if self._warming is not None:
            self._warming.cancel()
            with anyio.CancelScope(shield=True):
                await self._warmed.wait()
        with anyio.CancelScope(shield=True):
            await children.close_all(self)
            await self.medium_session.close()
            await self.executor.close()
            if self._own_checkpoints is not None:
                await self._own_checkpoints.close()
            await self.sources.close()


def _trace(trace_id: str | None, trace: tracing.Trace | None) -> tracing.Trace:
    return trace if trace is not None else tracing.trace_from({"trace_id": trace_id} if trace_id else None)


def _checkpoints(entity: EntityState) -> Checkpoints | None:
    """Keeps the files of each turn, if the circle has a workspace and the recipe does not forbid it (``loom.files``)."""
    if entity.cantrip.loom_settings.get("files") is False or entity.circle.workspace is None:
        return None
    from cantrip_acp.core.lifecycle.checkpoints import Checkpoints

    return Checkpoints(entity)


def check_new(loom: Loom, entity_id: str | None) -> None:
    """Raise `EntityExists` if the loom has an entity with this id, and `DefinitionError` if it is not a valid id."""
    if entity_id is None:
        return
    given: Any = entity_id
    if not isinstance(given, str) or not given.strip() or len(given) > _LONGEST_ID or not given.isprintable():
        raise DefinitionError(
            f"an entity's id must be a printable text of at most {_LONGEST_ID} characters, not {short_repr(given)}"
        )
    if loom.has_entity(given):
        raise EntityExists(
            f"the loom has an entity {given!r} already; leave the id out for a new one, or fork from one of its turns"
        )
