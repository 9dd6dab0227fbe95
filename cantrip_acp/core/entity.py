"""The entity: runs the casts of a cantrip and keeps its state between them (§1.4, ENTITY-1..6)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import anyio
import msgspec

from cantrip_acp.core.context import Context
from cantrip_acp.core.context_block import ContextBlock
from cantrip_acp.core.definition import shown
from cantrip_acp.core.errors import (
    CantripError,
    DefinitionError,
    EntityBusy,
    EntityClosed,
    EntityExists,
    IntentRequired,
    SandboxError,
    describe,
    interrupts,
)
from cantrip_acp.core.events import BUFFER, ChildHub, EventHub, Noticed, Subscription
from cantrip_acp.core.history.continuation import own_point
from cantrip_acp.core.lifecycle.sources import SourceConnections
from cantrip_acp.core.loop import CastResult, CastRun
from cantrip_acp.core.request_graph import Lineage
from cantrip_acp.core.result import CastStream
from cantrip_acp.core.token_log import TokenTrail
from cantrip_acp.core.wards import Wards, compose
from cantrip_acp.crystals import http_clients
from cantrip_acp.crystals.contract import Usage
from cantrip_acp.gates.contract import GateReply, ProgramCall
from cantrip_acp.gates.executor import GateExecutor
from cantrip_acp.loom.records.snapshots import LoomPieces
from cantrip_acp.loom.records.turn import Output, new_id
from cantrip_acp.mediums.text_program import writes_calls
from cantrip_acp.telemetry import tracing
from cantrip_acp.text.redaction import shared

if TYPE_CHECKING:
    from os import PathLike

    from cantrip_acp.core.call import Call
    from cantrip_acp.core.cantrip import Cantrip
    from cantrip_acp.core.circle import Circle
    from cantrip_acp.core.events import Birth
    from cantrip_acp.core.folding.policy import Folding
    from cantrip_acp.core.forking.fork import State
    from cantrip_acp.core.forking.group import ForkGroup
    from cantrip_acp.core.lifecycle.checkpoints import Checkpoints
    from cantrip_acp.crystals.contract import Crystal, ToolCall, ToolDefinition
    from cantrip_acp.crystals.retry import RetryPolicy
    from cantrip_acp.delegation.child_tracker import Children
    from cantrip_acp.loom.loom import Loom
    from cantrip_acp.loom.query.history import CastPart
    from cantrip_acp.loom.records.turn import Turn
    from cantrip_acp.mediums.contract import MediumSession

log = logging.getLogger(__name__)

_OF_THE_SANDBOX = (
    "bash_writable_paths", "bash_network", "bash_home", "code_readable_paths", "code_writable_paths", "allow_protected",
)  # fmt: skip
"""Wards that a medium's session is built with. A change of one of them needs a new session."""


class Entity:
    """A live instance of a cantrip. It runs one cast at a time and remembers all its casts.

    It is made by `Cantrip.invoke` (or, for one cast, by `Cantrip.cast`) and in no other way (ENTITY-1). Close it when
    it is no longer needed, or use ``async with``: closing ends what its medium started. Its record stays in the loom.
    """

    def __init__(
        self, cantrip: Cantrip, loom: Loom, *, entity_id: str | None = None, birth: Birth | None = None
    ) -> None:
        """``birth`` links a child to its parent. An entity without one is the root of its tree."""
        self.id = entity_id or new_id("e")
        self.closed = False
        loom.claim(self.id, self)
        self._cantrip = cantrip
        self._circle = cantrip.circle
        self.crystal = cantrip.crystal
        self.loom = loom
        self.birth = birth
        self.depth: int = 0 if birth is None else birth.run.entity.depth + 1
        self.hub = EventHub() if birth is None else ChildHub(birth, self.id)
        self.redactor = shared()
        self.contributors = cantrip.contributors
        self.context = Context(self.call, self.circle, text_calls=writes_calls(self.crystal))
        self.executor = GateExecutor(
            self.circle, hub=self.hub, redactor=self.redactor, interceptors=cantrip.interceptors, depth=self.depth
        )
        self.usage = Usage()
        """The usage of all casts so far (PROD-3)."""
        self.sequence = 0
        self.trail = TokenTrail()
        self.last_turn = ""
        self.begun = ""
        """The cast whose intent is the last one in the context, if it began in this process."""
        self.names_requests: bool = birth is not None and birth.run.entity.names_requests
        """Whether each query has its own id, which providers send as a header (`Query.request_id`)."""
        self.lineage: Lineage = Lineage(None if birth is None else birth.run.entity.lineage)
        self.revive: Callable[[], Awaitable[None]] | None = None
        """Restores the state of a medium that was just opened, if this entity ran earlier in another process."""
        self.once = False
        """Whether it is cast only once and then closed, like a child that was called."""
        keeps = bool(cantrip.loom_settings.get("snapshots")) and getattr(self.circle.medium, "keeps_state", False)
        self._unkept: dict[str, str] = {}
        self._pieces: LoomPieces | None = LoomPieces(loom) if keeps else None
        self._children: Children | None = None
        self._sources = SourceConnections(cantrip.sources if birth is None else ())
        self._remarked: Crystal | None = None
        """The crystal whose remarks were already reported."""
        self._reaching: anyio.CancelScope | None = None
        self._parts: Sequence[CastPart] = ()
        self._held: Wards | Callable[[Circle], Wards | None] | None = None
        pins = bool(cantrip.loom_settings.get("files")) and self.circle.workspace is not None
        self._files: Checkpoints | None = _pinning(self) if pins else None
        self._session: MediumSession | None = None
        self._outdated = False
        self._keeping: asyncio.Task[dict[str, str]] | None = None
        """The task that makes the current snapshot."""
        self._opening = anyio.Lock()
        self._warming: anyio.CancelScope | None = None
        self._warmed = anyio.Event()
        self._run: CastRun | None = None
        self._scope: anyio.CancelScope | None = None

    def __repr__(self) -> str:
        return f"Entity({self.id}, {self.sequence} turns)"

    async def __aenter__(self) -> Entity:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    @property
    def cantrip(self) -> Cantrip:
        """The cantrip, with the gates that its sources added."""
        return self._cantrip

    @property
    def cantrip_id(self) -> str:
        return self._cantrip.id

    @property
    def call(self) -> Call:
        return self._cantrip.call

    @property
    def circle(self) -> Circle:
        """The circle with the wards that are in force now."""
        return self._circle

    @property
    def require_done(self) -> bool:
        """Whether only done ends a cast now, by the call or by the wards in force (LOOP-6)."""
        return self._cantrip.require_done or self._circle.wards.require_done_tool

    @property
    def retry(self) -> RetryPolicy:
        return self._cantrip.retry

    @property
    def folding(self) -> Folding:
        return self._cantrip.folding

    @property
    def busy(self) -> bool:
        """Whether a cast is running."""
        return self._run is not None

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
    ) -> CastResult:
        """Run one cast on an intent. The entity remembers all earlier casts (ENTITY-5).

        ``trace_id`` (32 hex digits) or ``trace`` join the cast to an outside trace. ``context`` is placed before the
        intent.
        After `cancel`, the result has the reason ``cancelled``. An outer cancellation is recorded and raised again.

        Raises `IntentRequired`, `EntityBusy`, `EntityClosed`, `CrystalError` where a query failed and is not retried,
        and `LoomWriteError` where the trace could not be written.
        """
        if not isinstance(intent, str) or not intent.strip():
            raise IntentRequired("intent is required: say what the entity is to do (INTENT-1)")
        self._check_free()
        return await self._cast(CastRun(self, intent, _trace(trace_id, trace), context))

    async def resume(self, *, trace_id: str | None = None, trace: tracing.Trace | None = None) -> CastResult:
        """Continue the last cast without a new message, after a cancel, a ward, an error or the end of the process
        (`forking.resume`).

        A fork that has not cast yet continues the cast of its turn, or the cast that came next.
        The continuation is a cast of its own in the loom, with the same intent; ``resumes`` in its record names the
        continued one. The count of turns towards ``max_turns`` continues too, unless that limit was reached. Raises
        the errors of `cast`, and `IntentRequired` where there is nothing to continue.
        """
        self._check_free()
        where = own_point(self, self.begun)
        return await self._cast(CastRun(self, where.cast.intent or "", _trace(trace_id, trace), where.blocks, where))

    async def resample(self, turn_id: str | None = None, samples: int | None = None, **options: Any) -> ForkGroup:
        """Fork one of this entity's turns several times and resume each fork.

        The default is its last turn. See `Cantrip.resample`.
        """
        self.root()
        return await self.cantrip.resample(turn_id or self.last_turn, samples, loom=self.loom, **options)

    def _check_free(self) -> None:
        if self.closed:
            raise EntityClosed(f"entity {self.id} has ended; invoke the cantrip again")
        if self._run is not None:
            raise EntityBusy(f"entity {self.id} is busy with another cast; wait for it, or cancel it first")

    async def _cast(self, run: CastRun) -> CastResult:
        http_clients.acquire(self.crystal, self)
        self._run = run
        self._scope = anyio.CancelScope()
        whole = False
        try:
            with anyio.CancelScope() as self._reaching:
                await self.reach()
            self._reaching = None
            result = await self._run.run(self._scope)
            whole = result.terminated
            return result
        finally:
            self.loom.release_cast(run.id)
            self._run = None
            self._scope = None
            if not whole and self._children is not None:
                # A cast that is cut off ends all entities below it, also those that wait for their next intent
                # (COMP-9).
                await self._children.end()

    @asynccontextmanager
    async def stream(self, intent: str | None, *, buffer: int = BUFFER, **options: Any) -> AsyncIterator[CastStream]:
        """Run a cast as a stream of events, with back-pressure. Leaving the block early cancels the cast.

        With None as the intent it resumes. ``options`` are those of `cast` or `resume`. After the last event,
        ``stream.result`` is the `CastResult`.
        """
        failure: Exception | None = None
        with self.hub.listening(buffer=buffer) as subscription:
            async with anyio.create_task_group() as group:
                stream = CastStream(subscription)
                group.start_soon(stream._drive, self, intent, options)
                try:
                    yield stream
                except Exception as error:  # noqa: BLE001
                    # Raised again below: from inside the task group it would reach the caller as an ExceptionGroup.
                    failure = error
                finally:
                    stream._leave(self)
        if failure is not None:
            raise failure
        if stream._error is not None and not stream._raised:
            raise stream._error

    def cancel(self, reason: str = "cancelled") -> bool:
        """Stop the running cast. Returns False if none runs. The current turn is recorded with that reason."""
        if self._run is None or self._scope is None:
            return False
        if self._run.stop_reason is None:
            self._run.stop_reason = reason
        self._scope.cancel()
        if self._reaching is not None:
            self._reaching.cancel()
        return True

    async def reach(self) -> None:
        """Connect to the cantrip's gate sources and add their gates to the circle. Done once, before the first turn.

        Raises `CantripError` where a source fails that the entity cannot do without.
        """
        circle = await self._sources.connect(self.cantrip.circle)
        if circle is None:
            return
        self._cantrip = self.cantrip.replace(circle=circle)
        self._circle = circle
        self.context = Context(self.call, circle, text_calls=writes_calls(self.crystal))
        if self._parts:
            self.take_up(self.last_turn, self._parts)
        self.hold_to(self._held)

    def problems(self) -> list[str]:
        """Problems with gate sources, and remarks of the crystal, that were not reported yet. They are for the user."""
        crystal, told = self.crystal, self._sources.take_problems()
        if crystal is not self._remarked:
            self._remarked = crystal
            told = [*getattr(crystal, "remarks", ()), *told]
        return told

    async def session(self) -> MediumSession:
        """The session of this entity's medium. It is opened on first use."""
        if self._session is not None and not self._outdated and self.revive is None:
            return self._session
        async with self._opening:
            if self._outdated and self._session is not None:
                await self._renew(self._session)
            session = await self._opened()
        revive, self.revive = self.revive, None
        if revive is not None:
            try:
                await revive()
            except BaseException:
                # A partly restored state must not be used: the next use restores from the start.
                self.revive = revive
                await self.discard_session()
                raise
        return self._session or session

    async def _renew(self, old: MediumSession) -> None:
        """Open the medium again under the wards that are in force now, and restore its state."""
        source: Any = old
        taken = None
        keeps = getattr(self.circle.medium, "keeps_state", False)
        if keeps:
            with suppress(SandboxError):
                taken = await source.snapshot()
        self._session, self._outdated = None, False
        try:
            session: Any = await self._opened()
            if taken is not None:
                await session.restore(taken, source.chunks)
                if taken.missing:
                    lost = "; ".join(f"{name} ({why})" for name, why in taken.missing[:10])
                    session.remark(f"the wards changed, and what could not be kept is gone: {lost}")
            elif keeps:
                session.remark("what had been defined was lost: the wards changed, and no snapshot could be taken")
        finally:
            with anyio.CancelScope(shield=True):
                await old.close()

    def hold_to(self, wards: Wards | Callable[[Circle], Wards | None] | None) -> None:
        """Set further wards, in force from the next call and the next program on. None removes them again.

        Wards that depend on the gates come as a function of the circle, because the circle may still get more gates.
        The description of the circle that the crystal saw stays as it is; the caller must announce the change in the
        context (LOOM-6).
        """
        self._held = wards
        more = wards(self.cantrip.circle) if callable(wards) else wards
        circle = (
            self.cantrip.circle
            if more is None
            else self.cantrip.circle.replace(wards=compose(self.cantrip.circle.wards, more))
        )
        before, self._circle = self.circle.wards, circle
        self.executor.set_circle(circle)
        if any(getattr(before, name) != getattr(circle.wards, name) for name in _OF_THE_SANDBOX):
            self._outdated = True
        if self._run is not None:
            self._run.hold_to(circle.wards)
        if self._children is not None:
            self._children.hold_to(circle.wards)

    async def refused(self, call: ToolCall, cast_id: str) -> Output | None:
        """Ask the interceptors about a program.

        Returns the output of a refusal, from the first one that refuses; None if it may run.
        """
        askers = [i for i in self.cantrip.interceptors if hasattr(i, "program")]
        text = self.circle.medium.code(call) if askers else None
        if text is None:
            return None
        program = ProgramCall(call.gate, text, call.id, self.circle, self.id, cast_id, self.depth)
        for asker in askers:
            try:
                why: GateReply | None = await asker.program(program)
            except BaseException as error:
                # An interceptor that fails has not given permission.
                if interrupts(error):
                    raise
                text = f"the program was not run: nobody could be asked for permission ({describe(error)})"
                why = GateReply(text, annotations={"permission": "unasked", "error": "you could not be asked"})
            if why is not None:
                return Output(error=str(why.result), annotations=why.annotations or msgspec.UNSET)
        return None

    async def _opened(self) -> MediumSession:
        if self._session is None:
            self._session = session = await self.circle.medium.open(self.circle, self.id)
            if self._pieces is not None:
                session.chunks = self._pieces  # type: ignore[attr-defined]
            gained = getattr(self._session, "gates_gained", None)
            if gained is not None:
                self.executor.dynamic_gates.set_listener(gained)
        return self._session

    @property
    def tools(self) -> tuple[ToolDefinition, ...]:
        """The tools for the next query: the circle's tools.

        If the medium has no tool of its own, gates that were added later are included, because the entity could not
        call them otherwise.
        """
        if self.circle.medium.tool is not None:
            return self.circle.tools
        return self.circle.tools + self.executor.dynamic_gates.definitions

    async def discard_session(self) -> None:
        """Close the medium's session. The next use opens a new one."""
        session, self._session = self._session, None
        if session is not None:
            with anyio.CancelScope(shield=True):
                await session.close()

    def use_crystal(self, crystal: Crystal) -> None:
        """Use another crystal from the next query on.

        If it writes its calls in another way, the capability block changes.
        """
        before, self.crystal = self.crystal, crystal
        by_text = writes_calls(crystal)
        if by_text != writes_calls(before):
            self.context.present(text_calls=by_text)
            self._cantrip = self.cantrip.replace(crystal=crystal)
            if self.last_turn:
                self.loom.know(self.cantrip_id, *self.cantrip.records, self.cantrip.shown)

    def take_up(self, turn_id: str, parts: Sequence[CastPart]) -> None:
        """Start with another entity's history, up to a turn of this loom (LOOM-4). Call it before the first cast."""
        self.loom.know(self.cantrip_id, *self.cantrip.records, self.cantrip.shown)
        self.context.load(parts)
        self._parts = parts if self.cantrip.sources else ()
        self.last_turn = turn_id
        if self.loom.has_children:
            self.children.born, self.children.below = self.loom.children_until(turn_id)

    async def keep_state(self, turn_id: str) -> None:
        """Start to store a snapshot of the medium's current state for a turn.

        The rest of the work runs during the next query; `state_kept` waits for it.
        """
        if self._session is None or self._pieces is None:
            return
        await self.state_kept()
        began = anyio.Event()
        self._keeping = asyncio.create_task(self._keep_state(self._session, self._pieces, turn_id, began))
        await began.wait()

    async def _keep_state(self, session: Any, pieces: LoomPieces, turn_id: str, began: anyio.Event) -> dict[str, str]:
        """Store the snapshot.

        Returns what it does not contain, and why. A snapshot that could not be opened again is not offered.
        """
        lost: dict[str, str] = {}
        try:
            taken = await session.snapshot(began.set)
            described = taken.record()
            lost = {name: self.redactor.diagnostic(why) for name, why in taken.missing}
        except SandboxError as error:
            described = {"error": self.redactor.diagnostic(str(error))}
            lost = {"all variables": described["error"]}
        except asyncio.CancelledError:
            described = {"error": "the cast was stopped before the state could be kept"}
            lost = {"all variables": described["error"]}
        finally:
            began.set()
        pieces.keep(turn_id, self.id, described)
        return lost

    async def state_kept(self, patience: float | None = None) -> None:
        """Wait until the last snapshot is in the loom, and report what it does not contain.

        ``patience`` is the maximum wait in seconds. After it the snapshot is abandoned, which is also recorded.
        """
        task = self._keeping
        if task is None:
            return
        await asyncio.wait([task], timeout=patience)
        if not task.done():
            task.cancel()
            await asyncio.wait([task])
        self._keeping = None
        lost = task.result()
        fresh = {name: why for name, why in lost.items() if self._unkept.get(name) != why}
        self._unkept = lost
        if fresh and self._session is not None:
            text = "; ".join(f"{name} ({why})" for name, why in list(fresh.items())[:10])
            text = f"not kept in the snapshot, and gone where this session is opened again: {text}"
            await self.remark(text, aloud=True)

    async def remark(self, text: str, *, aloud: bool) -> None:
        """Show the entity a text before the output of its next program; with ``aloud``, show it to the user too."""
        remark = getattr(self._session, "remark", None)
        if remark is not None:
            remark(text)
        if aloud and self.hub.active:
            cast_id = self._run.id if self._run is not None else ""
            await self.hub.send(Noticed(entity_id=self.id, cast_id=cast_id, depth=self.depth, text=text))

    async def keep_files(self, turn: Turn) -> None:
        """Record the workspace's files as they are after a turn, if the recipe asks for it (``loom.files``)."""
        if self._files is not None:
            await self._files.keep(turn)

    async def fork(
        self,
        turn_id: str | None = None,
        *,
        cantrip: Cantrip | None = None,
        state: State = "snapshot",
        worktree: bool | str | PathLike[str] = False,
    ) -> Entity:
        """Make a new entity that continues from one of this entity's turns, by default its last. See `Cantrip.fork`.

        ``cantrip`` may have another crystal, call or circle. Without it the fork has the same cantrip.
        """
        from cantrip_acp.core.forking.fork import fork

        self.root()
        chosen = cantrip if cantrip is not None else self.cantrip
        last = turn_id or self.last_turn
        return await fork(chosen, last, loom=self.loom, state=state, live=self, worktree=worktree)

    async def warm(self) -> None:
        """Prepare what the first turn would otherwise wait for: open the medium and start its worker processes.

        Run it once, concurrently with other work; `close` ends it. Problems are only logged here; the first turn
        reports them.
        """
        if self.closed or self.revive is not None:
            return
        with anyio.CancelScope() as self._warming:
            try:
                await self.reach()
                warm = getattr(await self.session(), "warm", None)
                if warm is not None:
                    await warm()
            except CantripError as problem:
                log.debug("nothing could be prepared for %s: %s", self.id, problem)
            finally:
                self._warmed.set()

    def root(self) -> None:
        """Make sure that the call is in the loom as this entity's root (CALL-4).

        A child's root hangs on the turn that spawned it.
        """
        if not self.last_turn:
            call, circle = self.cantrip.records
            above = self.birth.turn_id if self.birth is not None else None
            self.last_turn = self.loom.begin(self.cantrip_id, call, circle, self.id, self.cantrip.shown, above=above)

    @property
    def ends_when_cut(self) -> bool:
        """Whether this entity ends if its running cast is cut off now. Its medium's state is not needed then.

        This is true for a child that is cast once, and for any child that is cut off by an entity above it.
        """
        return self.once or (self.birth is not None and self._scope is not None and not self._scope.cancel_called)

    @property
    def children(self) -> Children:
        """Tracks the entities below this one."""
        if self._children is None:
            from cantrip_acp.delegation.child_tracker import Children

            self._children = Children(self)
        return self._children

    def printed(self) -> Output | None:
        """What the running program has printed since the last request. None if no program runs."""
        so_far = getattr(self._session, "so_far", None)
        return so_far() if so_far is not None else None

    async def close(self) -> None:
        """End the entity, its running cast, and everything that its medium started. Safe to call twice."""
        self.closed = True
        self.cancel()
        if self._warming is not None:
            self._warming.cancel()
            with anyio.CancelScope(shield=True):
                await self._warmed.wait()
        session, self._session = self._session, None
        with anyio.CancelScope(shield=True):
            if self._children is not None:
                await self._children.end()
            if self._keeping is not None:
                with suppress(CantripError):
                    await self.state_kept(patience=0)
            if session is not None:
                await session.close()
            await self.executor.close()
            if self._files is not None:
                await self._files.close()
            await self._sources.close()
            await http_clients.release(self.crystal, self)


def _trace(trace_id: str | None, trace: tracing.Trace | None) -> tracing.Trace:
    return trace if trace is not None else tracing.trace_from({"trace_id": trace_id} if trace_id else None)


def check_new(loom: Loom, entity_id: str | None) -> None:
    """Raise `EntityExists` if the loom has an entity with this id, and `DefinitionError` if it is not a valid id."""
    if entity_id is None:
        return
    given: Any = entity_id
    if not isinstance(given, str) or not given.strip() or len(given) > _LONGEST_ID or not given.isprintable():
        raise DefinitionError(
            f"an entity's id is a printable text of at most {_LONGEST_ID} characters, not {shown(given)}"
        )
    if loom.has_entity(given):
        raise EntityExists(
            f"the loom has an entity {given!r} already; leave the id out for a new one, or fork from one of its turns"
        )


_LONGEST_ID = 200


def _pinning(entity: Entity) -> Checkpoints:
    from cantrip_acp.core.lifecycle.checkpoints import Checkpoints

    return Checkpoints(entity)


__all__ = ["CastResult", "CastStream", "Entity"]
