"""Cast results: how a cast ended, and the stream of its events."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cantrip_acp.core.errors import CantripError
from cantrip_acp.crystals.contract import Usage

if TYPE_CHECKING:
    from cantrip_acp.core.entity import Entity
    from cantrip_acp.core.events import Event, Subscription


@dataclass(frozen=True, slots=True)
class CastResult:
    """How a cast ended.

    ``result`` is the argument of ``done``, or the last text (LOOP-6); None if a ward or a cancel cut the cast off.
    ``reason`` is one of done, text, max_turns, max_seconds, max_tokens, max_cost, cancelled, parent_terminated,
    refusal, error.
    ``summary`` says what was done before a truncation (LOOP-4). ``loom`` is where the trace is, None in memory.
    ``usage`` includes all children; ``children_usage`` is their part, None if there were none. Both count every
    billed query: failed and repeated attempts, cancelled streams as far as their provider reported, summaries of
    folding.
    ``warnings`` name the wards that could not be enforced, or not exactly, and say why.
    """

    result: Any
    terminated: bool
    truncated: bool
    reason: str
    usage: Usage
    turns: int
    entity_id: str
    cast_id: str
    trace_id: str
    summary: str | None = None
    loom: str | None = None
    children_usage: Usage | None = None
    warnings: tuple[str, ...] = ()

    @property
    def own_usage(self) -> Usage:
        """``usage`` without the children's part."""
        return self.usage if self.children_usage is None else self.usage - self.children_usage

    def record(self) -> dict[str, Any]:
        """The result as data, as the last line of ``cantrip cast --json`` has it."""
        return {
            "result": self.result,
            "terminated": self.terminated,
            "truncated": self.truncated,
            "reason": self.reason,
            "usage": self.usage.record(),
            "entity_id": self.entity_id,
            "cast_id": self.cast_id,
            "trace_id": self.trace_id,
            "turns": self.turns,
            "loom": self.loom,
            **({"children_usage": self.children_usage.record()} if self.children_usage is not None else {}),
            **({"warnings": list(self.warnings)} if self.warnings else {}),
        }


# --- A cast as a stream of events, with its result after the last one.


class CastStream:
    """The events of one cast; iterate it. ``result`` is available after the last event."""

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription
        self._result: CastResult | None = None
        self._error: BaseException | None = None
        self._raised = False
        self._running = False
        self._left = False

    def _leave(self, entity: Entity) -> None:
        """The reader left: cancel the cast if it runs; if it has not begun, it never will."""
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
            # Kept for `result`: raised from here it would come as an ExceptionGroup.
            self._error = error
        finally:
            self._running = False
            self._subscription.finish()

    def __aiter__(self) -> AsyncIterator[Event]:
        return self._subscription.__aiter__()

    @property
    def result(self) -> CastResult:
        """How the cast ended. Raises the error that the cast failed with. Read it after the last event."""
        if self._error is not None:
            self._raised = True
            raise self._error
        if self._result is None:
            raise RuntimeError("the cast has not ended; read its events to the end first")
        return self._result
