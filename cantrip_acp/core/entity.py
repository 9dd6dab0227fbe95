"""The entity: what appears when a cantrip is cast on an intent, and keeps its state from cast to cast (§1.4, ENTITY-1..6)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import anyio
import msgspec

from cantrip_acp import telemetry
from cantrip_acp.core.context import Context, ContextBlock
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
from cantrip_acp.core.forking.continuation import own_point
from cantrip_acp.core.loop import CastResult, CastRun
from cantrip_acp.core.request_graph import Lineage
from cantrip_acp.core.result import CastStream
from cantrip_acp.core.token_log import TokenTrail
from cantrip_acp.core.wards import Wards, compose
from cantrip_acp.crystals import http_clients
from cantrip_acp.crystals.contract import Usage
from cantrip_acp.gates.contract import GateReply, ProgramCall
from cantrip_acp.gates.executor import GateExecutor
from cantrip_acp.gates.gate_source import Reached
from cantrip_acp.loom.records.snapshots import LoomPieces
from cantrip_acp.loom.records.turn import Output, new_id
from cantrip_acp.mediums.text_program import writes_calls
from cantrip_acp.text.redaction import shared

if TYPE_CHECKING:
    from os import PathLike

    from cantrip_acp.core.call import Call
    from cantrip_acp.core.cantrip import Cantrip
    from cantrip_acp.core.circle import Circle
    from cantrip_acp.core.events import Birth
    from cantrip_acp.core.folding.policy import Folding
    from cantrip_acp.core.forking.checkpoint import Pinning
    from cantrip_acp.core.forking.fork import State
    from cantrip_acp.core.forking.group import ForkGroup
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
"""Wards that a medium's session is built with, so that a change of one asks for another session."""


class Entity:
    """A living instance of a cantrip. It takes one cast at a time and remembers them all.

    Made by `Cantrip.invoke` (or, for one cast, by `Cantrip.cast`); there is no other way (ENTITY-1). Close it when it is
    no longer needed, or use it in ``async with``: that ends what its medium started. Its record stays in the loom.
    """

    def __init__(
        self, cantrip: Cantrip, loom: Loom, *, entity_id: str | None = None, birth: Birth | None = None
    ) -> None:
        """``birth`` is where a child comes from; an entity without one is the root of its tree."""
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
        """What all casts so far have used (PROD-3)."""
        self.sequence = 0
        self.trail = TokenTrail()
        self.last_turn = ""
        self.begun = ""
        """The cast whose intent stands last in the context, where it was begun in this process."""
        self.names_requests: bool = birth is not None and birth.run.entity.names_requests
        """Whether each query has an id of its own, which providers send along as a header (`Query.request_id`)."""
        self.lineage: Lineage = Lineage(None if birth is None else birth.run.entity.lineage)
        self.revive: Callable[[], Awaitable[None]] | None = None
        """Gives a medium that was just opened what it had held before, where this entity lived in another process."""
        self.once = False
        """Whether it is cast once and then closed, as a child that was called is."""
        keeps = bool(cantrip.loom_settings.get("snapshots")) and getattr(self.circle.medium, "keeps_state", False)
        self._unkept: dict[str, str] = {}
        self._pieces: LoomPieces | None = LoomPieces(loom) if keeps else None
        self._children: Children | None = None
        self._reached = Reached(cantrip.sources if birth is None else ())
        self._remarked: Crystal | None = None
        """The crystal whose remarks were told."""
        self._reaching: anyio.CancelScope | None = None
        self._parts: Sequence[CastPart] = ()
        self._held: Wards | Callable[[Circle], Wards | None] | None = None
        pins = bool(cantrip.loom_settings.get("files")) and self.circle.workspace is not None
        self._files: Pinning | None = _pinning(self) if pins else None
        self._session: MediumSession | None = None
        self._outdated = False
        self._keeping: asyncio.Task[dict[str, str]] | None = None
        """The snapshot that is being made."""
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
        """What it is an instance of, with the gates that its sources gave."""
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
        """Whether prose alone ends a cast now: the call and the wards in force say so (LOOP-6)."""
        return self._cantrip.require_done or self._circle.wards.require_done_tool

    @property
    def retry(self) -> RetryPolicy:
        return self._cantrip.retry

    @property
    def folding(self) -> Folding:
        return self._cantrip.folding

    @property
    def busy(self) -> bool:
        """Whether a cast runs."""
        return self._run is not None

    def subscribe(self, *, lossy: bool = False, buffer: int = BUFFER) -> Subscription:
        """A reader of all that happens in this entity, cast after cast; see `events` for the two kinds."""
        return self.hub.subscribe(lossy=lossy, buffer=buffer)

    async def cast(
        self,
        intent: str,
        *,
        trace_id: str | None = None,
        trace: telemetry.Trace | None = None,
        context: Sequence[ContextBlock] = (),
    ) -> CastResult:
        """Pursue an intent to its end, with everything remembered from earlier casts (ENTITY-5).

        ``trace_id`` (32 hex digits) or ``trace`` join it to a request elsewhere; ``context`` is pinned before the intent.
        A cancel from `cancel` is a result with reason ``cancelled``; an outer cancellation is recorded and raised on.

        Raises `IntentRequired`, `EntityBusy`, `EntityClosed`, `CrystalError` where a query failed for good, and
        `LoomWriteError` where the trace could not be kept.
        """
        if not isinstance(intent, str) or not intent.strip():
            raise IntentRequired("intent is required: say what the entity is to do (INTENT-1)")
        self._check_free()
        return await self._cast(CastRun(self, intent, _trace(trace_id, trace), context))

    async def resume(self, *, trace_id: str | None = None, trace: telemetry.Trace | None = None) -> CastResult:
        """Go on with the last cast, which was cut, without a new message: after a cancel, a ward, an error, or the end of the
        process (`reopening`). A fork that has not cast yet goes on with the cast of its turn, or with the one that came next.

        It is a cast of its own in the loom, with the same intent; ``resumes`` in its record names the one that it goes on with.
        Turns count on towards ``max_turns``, unless that limit was reached. Raises as `cast`, and `IntentRequired` where there
        is nothing to go on with.
        """
        self._check_free()
        where = own_point(self, self.begun)
        return await self._cast(CastRun(self, where.cast.intent or "", _trace(trace_id, trace), where.blocks, where))

    async def resample(self, turn_id: str | None = None, samples: int | None = None, **options: Any) -> ForkGroup:
        """Several forks of one of this entity's turns, its last where none is named, that each resume; see `Cantrip.resample`."""
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
                # What is cut off takes all below it along, those too that waited for their next intent (COMP-9).
                await self._children.end()

    @asynccontextmanager
    async def stream(self, intent: str | None, *, buffer: int = BUFFER, **options: Any) -> AsyncIterator[CastStream]:
        """A cast as a stream of events, with back-pressure; leaving the block early cancels the cast.

        None as the intent resumes. ``options`` are those of `cast` or `resume`.
        After the last event, ``stream.result`` is the `CastResult`.
        """
        failure: Exception | None = None
        with self.hub.listening(buffer=buffer) as subscription:
            async with anyio.create_task_group() as group:
                stream = CastStream(subscription)
                group.start_soon(stream._drive, self, intent, options)
                try:
                    yield stream
                except Exception as error:  # noqa: BLE001
                    # Raised on below: from inside the task group it would reach the caller as an ExceptionGroup.
                    failure = error
                finally:
                    stream._leave(self)
        if failure is not None:
            raise failure
        if stream._error is not None and not stream._raised:
            raise stream._error

    def cancel(self, reason: str = "cancelled") -> bool:
        """Stop the running cast; False where none runs. The turn in flight is recorded with that reason."""
        if self._run is None or self._scope is None:
            return False
        if self._run.stop_reason is None:
            self._run.stop_reason = reason
        self._scope.cancel()
        if self._reaching is not None:
            self._reaching.cancel()
        return True

    async def reach(self) -> None:
        """Reach what the cantrip's further gates come from, and take these into the circle; once, before the first turn.

        Raises `CantripError` where the entity cannot do without one.
        """
        circle = await self._reached.circle(self.cantrip.circle)
        if circle is None:
            return
        self._cantrip = self.cantrip.replace(circle=circle)
        self._circle = circle
        self.context = Context(self.call, circle, text_calls=writes_calls(self.crystal))
        if self._parts:
            self.take_up(self.last_turn, self._parts)
        self.hold_to(self._held)

    def problems(self) -> list[str]:
        """What went wrong with sources of gates, and what the crystal remarks, that was told to nobody yet: for the user."""
        crystal, told = self.crystal, self._reached.told()
        if crystal is not self._remarked:
            self._remarked = crystal
            told = [*getattr(crystal, "remarks", ()), *told]
        return told

    async def session(self) -> MediumSession:
        """The inside of this entity's medium, opened when it is first needed."""
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
                # Half of a state is none: the next use begins again.
                self.revive = revive
                await self.discard_session()
                raise
        return self._session or session

    async def _renew(self, old: MediumSession) -> None:
        """Open the medium again under the wards that are in force now, with the state that it had."""
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
        """Put further wards in force, from the next call and the next program on; None gives the cantrip's own again.

        Wards that depend on what gates there are come as a function of the circle, which may yet get more of them.
        What the crystal was told of its circle stays as it is; whoever changes it says so in the context (LOOM-6).
        """
        self._held = wards
        more = wards(self.cantrip.circle) if callable(wards) else wards
        circle = (
            self.cantrip.circle
            if more is None
            else self.cantrip.circle.replace(wards=compose(self.cantrip.circle.wards, more))
        )
        before, self._circle = self.circle.wards, circle
        self.executor.hold_to(circle)
        if any(getattr(before, name) != getattr(circle.wards, name) for name in _OF_THE_SANDBOX):
            self._outdated = True
        if self._run is not None:
            self._run.hold_to(circle.wards)
        if self._children is not None:
            self._children.hold_to(circle.wards)

    async def refused(self, call: ToolCall, cast_id: str) -> Output | None:
        """What a program leaves that may not run, by the first interceptor that says so; None where it may."""
        askers = [i for i in self.cantrip.interceptors if hasattr(i, "program")]
        text = self.circle.medium.code(call) if askers else None
        if text is None:
            return None
        program = ProgramCall(call.gate, text, call.id, self.circle, self.id, cast_id, self.depth)
        for asker in askers:
            try:
                why: GateReply | None = await asker.program(program)
            except BaseException as error:
                # Whoever cannot be asked has not allowed it.
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
                self.executor.overlay.tell(gained)
        return self._session

    @property
    def tools(self) -> tuple[ToolDefinition, ...]:
        """What the crystal is offered on the next query: the circle's, and in a medium that has no tool of its own what
        the entity has gained since, which could not be called otherwise."""
        if self.circle.medium.tool is not None:
            return self.circle.tools
        return self.circle.tools + self.executor.overlay.definitions

    async def discard_session(self) -> None:
        """End the medium's session; the next use opens a fresh one."""
        session, self._session = self._session, None
        if session is not None:
            with anyio.CancelScope(shield=True):
                await session.close()

    def use_crystal(self, crystal: Crystal) -> None:
        """Ask another crystal from the next query on. One that gives its calls in another way is told so."""
        before, self.crystal = self.crystal, crystal
        by_text = writes_calls(crystal)
        if by_text != writes_calls(before):
            self.context.present(text_calls=by_text)
            self._cantrip = self.cantrip.replace(crystal=crystal)
            if self.last_turn:
                self.loom.know(self.cantrip_id, *self.cantrip.records, self.cantrip.shown)

    def take_up(self, turn_id: str, parts: Sequence[CastPart]) -> None:
        """Begin with what another entity lived through, up to a turn of this loom (LOOM-4); before the first cast."""
        self.loom.know(self.cantrip_id, *self.cantrip.records, self.cantrip.shown)
        self.context.load(parts)
        self._parts = parts if self.cantrip.sources else ()
        self.last_turn = turn_id
        if self.loom.has_children:
            self.children.born, self.children.below = self.loom.children_until(turn_id)

    async def keep_state(self, turn_id: str) -> None:
        """Begin to put a snapshot of the medium's state in the loom, as that of a turn: the state as it is now. What remains
        to be done is done beside the next query; `state_kept` waits for it."""
        if self._session is None or self._pieces is None:
            return
        await self.state_kept()
        began = anyio.Event()
        self._keeping = asyncio.create_task(self._keep_state(self._session, self._pieces, turn_id, began))
        await began.wait()

    async def _keep_state(self, session: Any, pieces: LoomPieces, turn_id: str, began: anyio.Event) -> dict[str, str]:
        """What is not kept of the state, and why. Nothing is offered as a snapshot that did not open again."""
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
        """Wait until the last snapshot is in the loom, and tell what could not be kept of it. ``patience`` is how many seconds
        it may take; after that it is given up, which is recorded too."""
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
        """Let the entity read something before the output of its next program, and the user, too, where it is said aloud."""
        remark = getattr(self._session, "remark", None)
        if remark is not None:
            remark(text)
        if aloud and self.hub.active:
            cast_id = self._run.id if self._run is not None else ""
            await self.hub.send(Noticed(entity_id=self.id, cast_id=cast_id, depth=self.depth, text=text))

    async def keep_files(self, turn: Turn) -> None:
        """Pin the workspace's files as a turn leaves them, where that was asked for (``loom.files``)."""
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
        """A new entity that goes on from one of this one's turns, its last where none is named; see `Cantrip.fork`.

        ``cantrip`` may have another crystal, call or circle; without it the fork is of the same.
        """
        from cantrip_acp.core.forking.fork import fork

        self.root()
        chosen = cantrip if cantrip is not None else self.cantrip
        last = turn_id or self.last_turn
        return await fork(chosen, last, loom=self.loom, state=state, live=self, worktree=worktree)

    async def warm(self) -> None:
        """Do ahead of the first turn what it would wait for: open the medium and start what that keeps running.

        Run it once, beside everything else; `close` ends it. What cannot be had is for the first turn to say.
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
        """Make sure that the loom has the call as this entity's root (CALL-4); a child's hangs on the turn of its birth."""
        if not self.last_turn:
            call, circle = self.cantrip.records
            above = self.birth.turn_id if self.birth is not None else None
            self.last_turn = self.loom.begin(self.cantrip_id, call, circle, self.id, self.cantrip.shown, above=above)

    @property
    def ends_when_cut(self) -> bool:
        """Whether this entity ends where its running cast is cut off now: nothing of its medium's state is wanted then.

        So it is with a child that is cast once, and with any child that is cut off from above.
        """
        return self.once or (self.birth is not None and self._scope is not None and not self._scope.cancel_called)

    @property
    def children(self) -> Children:
        """The account of the entities below this one."""
        if self._children is None:
            from cantrip_acp.delegation.child_tracker import Children

            self._children = Children(self)
        return self._children

    def printed(self) -> Output | None:
        """What the program that runs has printed since this was last asked; None where none runs."""
        so_far = getattr(self._session, "so_far", None)
        return so_far() if so_far is not None else None

    async def close(self) -> None:
        """End the entity: its running cast, and all that its medium started. Safe to call twice."""
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
            await self._reached.close()
            await http_clients.release(self.crystal, self)


def _trace(trace_id: str | None, trace: telemetry.Trace | None) -> telemetry.Trace:
    return trace if trace is not None else telemetry.trace_from({"trace_id": trace_id} if trace_id else None)


def check_new(loom: Loom, entity_id: str | None) -> None:
    """Raise `EntityExists` where a loom has an entity of this id, `DefinitionError` for what is no id."""
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


def _pinning(entity: Entity) -> Pinning:
    from cantrip_acp.core.forking.checkpoint import Pinning

    return Pinning(entity)


__all__ = ["CastResult", "CastStream", "Entity"]
