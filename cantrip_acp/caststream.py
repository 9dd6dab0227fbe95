"""A cast as a stream of events, and its result behind the last one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from cantrip_acp.castresult import CastResult
from cantrip_acp.errors import CantripError

if TYPE_CHECKING:
    from cantrip_acp.entity import Entity
    from cantrip_acp.events import Event, Subscription


class CastStream:
    """The events of one cast; iterate it. ``result`` is there after the last event."""

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription
        self._result: CastResult | None = None
        self._error: BaseException | None = None
        self._raised = False
        self._running = False
        self._left = False

    def _leave(self, entity: Entity) -> None:
        """The reader is gone: a cast that still runs is cancelled, one that has not begun never will."""
        self._left = True
        if self._running:
            entity.cancel()
            self._subscription.close()

    async def _drive(self, entity: Entity, intent: str | None, options: dict[str, Any]) -> None:
        if self._left:
            return
        self._running = True
        try:
            self._result = await (entity.resume(**options) if intent is None else entity.cast(intent, **options))
        except CantripError as error:
            # Kept for whoever reads `result`: raised from here it would come as a group.
            self._error = error
        finally:
            self._running = False
            self._subscription.finish()

    def __aiter__(self) -> AsyncIterator[Event]:
        return self._subscription.__aiter__()

    @property
    def result(self) -> CastResult:
        """How the cast ended; raises what it failed with. Read it after the last event."""
        if self._error is not None:
            self._raised = True
            raise self._error
        if self._result is None:
            raise RuntimeError("the cast has not ended; read its events to the end first")
        return self._result
