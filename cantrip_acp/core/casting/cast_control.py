"""Runs the casts of one entity: one at a time, in a scope that can be cancelled, and as a stream of events."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Generic

import anyio

from cantrip_acp.core.casting.result import CastResult, Value
from cantrip_acp.core.context_block import ContextBlock
from cantrip_acp.core.definition.circle import check_reference
from cantrip_acp.core.definition.result_type import typed_result
from cantrip_acp.core.errors import CantripError, EntityBusy, EntityClosed, EntityIdle, NoResult
from cantrip_acp.core.lifecycle import children
from cantrip_acp.core.state import SteeringMessage
from cantrip_acp.crystals import http_clients
from cantrip_acp.loom.records.turn import NOTE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from cantrip_acp.core.casting.loop import CastRun
    from cantrip_acp.core.definition.wards import Wards
    from cantrip_acp.core.events import Event, EventHub, Subscription
    from cantrip_acp.core.history.continuation import Point
    from cantrip_acp.core.lifecycle.medium_session import SessionKeeper
    from cantrip_acp.core.state import EntityState
    from cantrip_acp.gates.executor import GateExecutor
    from cantrip_acp.telemetry.tracing import Trace


class CastControl:
    """Starts and cancels the casts of one entity."""

    def __init__(
        self,
        entity: EntityState,
        executor: GateExecutor,
        session: SessionKeeper,
        connect_sources: Callable[[], Awaitable[None]],
        take_notices: Callable[[], list[str]],
    ) -> None:
        self._entity = entity
        self._executor = executor
        self._session = session
        self._take_notices = take_notices
        self._connect_sources = connect_sources
        self._run: CastRun | None = None
        self._connecting: anyio.CancelScope | None = None

    def check_free(self) -> None:
        """Raise `EntityClosed` or `EntityBusy` if no cast can start now."""
        if self._entity.closed:
            raise EntityClosed(f"entity {self._entity.id} has ended; invoke the cantrip again")
        if self._run is not None:
            raise EntityBusy(f"entity {self._entity.id} is busy with another cast; wait for it, or cancel it first")

    async def run(
        self,
        intent: str,
        trace: Trace,
        blocks: Sequence[ContextBlock],
        resumed: Point | None = None,
        reference: Any = None,
    ) -> CastResult:
        """Run one cast to its end (`CastRun`).

        Raises `DefinitionError` if the entity could read the reference, `NoResult` if a result has a type and is missing.
        """
        # An editor shows a session before its first cast.
        from cantrip_acp.core.casting.loop import CastRun, CastServices

        entity = self._entity
        services = CastServices(self._executor, self._session, self._take_notices)
        check_reference(reference, entity.circle, entity.loom.location)
        run = CastRun(entity, services, intent, trace, blocks, resumed, reference)
        http_clients.acquire(entity.crystal, entity)
        self._run, entity.cast = run, run.cast
        whole = False
        try:
            with anyio.CancelScope() as self._connecting:
                await self._connect_sources()
                await self._session.restore_before_query()
                self._tell_of_modules(run, resumed)
                if resumed is None and (note := entity.due_note) is not None:
                    run.cast.blocks = (*run.cast.blocks, note)
            self._connecting = None
            result = await run.run()
            whole = result.terminated
            return typed_result(result, entity.cantrip.result_type)
        finally:
            entity.loom.unlock_cast(run.cast.id)
            self._run = entity.cast = None
            if not whole:
                # A cast that is cut off ends all entities below it, also those that wait for their next intent
                # (COMP-9).
                await children.close_all(entity)

    def _tell_of_modules(self, run: CastRun, resumed: Point | None) -> None:
        """Say in the context which modules were loaded again. A cast that goes on has the same messages as before, so
        it reads only of those that could not be.
        """
        begins = resumed is None or resumed.begins
        text = self._session.take_notes(also_loaded=resumed is None)
        if not text:
            return
        if begins:
            run.cast.blocks = (*run.cast.blocks, ContextBlock(text, "Loaded modules", "cantrip"))
        else:
            run.cast.steering.append(SteeringMessage((ContextBlock(text, "Loaded modules", NOTE),)))

    def cancel(self, reason: str) -> bool:
        """Stop the running cast. Returns False if none runs."""
        if self._run is None:
            return False
        self._run.cast.cancel(reason)
        if self._connecting is not None:
            self._connecting.cancel()
        return True

    def steer(self, message: SteeringMessage) -> None:
        """Add a message for the running cast. Raises `EntityIdle` if none runs, or if it is being stopped."""
        if self._run is None or self._run.cast.stop_reason is not None:
            raise EntityIdle(
                f"entity {self._entity.id} runs no cast that a message could reach; cast it with that intent"
            )
        self._run.cast.steering.append(message)

    def withdraw(self, message: SteeringMessage) -> bool:
        """Take a message back. Returns False if it was delivered, or if its cast has ended."""
        if self._run is None or message not in self._run.cast.steering:
            return False
        self._run.cast.steering.remove(message)
        return True

    def set_wards(self, wards: Wards) -> None:
        """Apply the wards that are in force now to the running cast."""
        if self._run is not None:
            self._run.set_wards(wards)


class CastStream(Generic[Value]):
    """The events of one cast; iterate it. ``result`` is available after the last event."""

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription
        self._result: CastResult[Value] | None = None
        self._error: BaseException | None = None
        self._raised = False
        self._running = False
        self._left = False

    def __aiter__(self) -> AsyncIterator[Event]:
        return self._subscription.__aiter__()

    @property
    def result(self) -> CastResult[Value]:
        """How the cast ended. Raises the error that the cast failed with. Read it after the last event."""
        if self._error is not None:
            self._raised = True
            raise self._error
        if self._result is None:
            raise RuntimeError("the cast has not ended; read its events to the end first")
        return self._result

    def _cancel_for_reader(self, cancel: Callable[[], object]) -> None:
        """The reader left: cancel the cast if it runs; if it has not begun, it never will."""
        self._left = True
        if self._running:
            cancel()
            self._subscription.close()

    async def _run(self, cast: Callable[[], Awaitable[CastResult[Value]]]) -> None:
        if self._left:
            return
        self._running = True
        try:
            self._result = await cast()
        except NoResult as error:
            if not self._left:
                self._error = error
        except CantripError as error:
            # Kept for `result`: raised from here it would come as an ExceptionGroup.
            self._error = error
        finally:
            self._running = False
            self._subscription.finish()


@asynccontextmanager
async def stream_cast(
    hub: EventHub, cast: Callable[[], Awaitable[CastResult[Value]]], cancel: Callable[[], object], buffer: int
) -> AsyncIterator[CastStream[Value]]:
    """Run ``cast`` as a stream of the events of ``hub``, with back-pressure. Leaving the block early cancels it."""
    failure: Exception | None = None
    with hub.listening(buffer=buffer) as subscription:
        async with anyio.create_task_group() as group:
            stream: CastStream[Value] = CastStream(subscription)
            group.start_soon(stream._run, cast)
            try:
                yield stream
            except Exception as error:  # noqa: BLE001
                # Raised again below: from inside the task group it would reach the caller as an ExceptionGroup.
                failure = error
            finally:
                stream._cancel_for_reader(cancel)
    if failure is not None:
        raise failure
    if stream._error is not None and not stream._raised:
        raise stream._error
