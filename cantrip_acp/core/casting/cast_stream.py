"""A cast as a stream of its events."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Generic

import anyio

from cantrip_acp.core.casting.result import CastResult, Value
from cantrip_acp.types.errors import CantripError, NoResult

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from cantrip_acp.core.event_hub import EventHub, Subscription
    from cantrip_acp.types.events import Event


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
        """Cancel the cast because its reader left. A cast that has not begun never will."""
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
