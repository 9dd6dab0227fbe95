"""The plan of a session: the entity's own entries, and below them one for each child of a call that starts several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cantrip_acp.acp import protocol as acp
from cantrip_acp.acp.render.formatting import headline
from cantrip_acp.acp.render.subagent_view import MAX_CHILDREN
from cantrip_acp.types import events

PLAN = "plan"
"""The id of a session's plan."""


class Batch:
    """The entries of the children of one call."""

    def __init__(self, intents: Sequence[str]) -> None:
        self.entries = [
            acp.PlanEntry(f"Child {n}: {headline(intent)}", "medium", "pending") for n, intent in enumerate(intents, 1)
        ]
        self.ended = False
        """Whether the call has ended. The entries stay until the plan changes."""

    @classmethod
    def of(cls, event: events.GateCalled) -> Batch | None:
        """The batch of a call that starts several children. None for any other call, and for too many children."""
        requests = event.args.get("requests") if isinstance(event.args, dict) else None
        if not isinstance(requests, list) or not 2 <= len(requests) <= MAX_CHILDREN:
            return None
        if event.gate not in ("call_agent_batch", "cantrip.cast_batch"):
            return None
        intents = [r if isinstance(r, str) else r.get("intent") if isinstance(r, dict) else None for r in requests]
        named = [each for each in intents if isinstance(each, str)]
        return cls(named) if len(named) == len(intents) else None


class SessionPlan:
    """The plan as the client sees it."""

    def __init__(self, client: acp.ClientAbilities) -> None:
        self._client = client
        self._own: list[acp.PlanEntry] = []
        self._batches: list[Batch] = []

    def set(self, entries: tuple[events.PlanEntry, ...]) -> list[acp.Update]:
        """Set the entity's own entries."""
        self._own = [acp.PlanEntry(e.content, e.priority, e.status) for e in entries]
        return self._update(drop_ended=True)

    def progress(self, batch: Batch, index: int, inner: Any) -> list[acp.Update]:
        """Update the entry of a child after one of its events. ``index`` is the child's place in the batch."""
        if index >= len(batch.entries):
            return []
        entry = batch.entries[index]
        if isinstance(inner, events.CastStarted):
            entry.status = "in_progress"
        elif isinstance(inner, events.CastEnded):
            entry.status = "completed"
            if not inner.record.terminated:
                entry.content += f" (stopped: {inner.record.reason})"
        else:
            return []
        if batch not in self._batches:
            self._batches.append(batch)
        return self._update(drop_ended=isinstance(inner, events.CastStarted))

    def clear(self) -> None:
        self._own, self._batches = [], []

    def _update(self, *, drop_ended: bool) -> list[acp.Update]:
        if drop_ended:
            self._batches = [batch for batch in self._batches if not batch.ended]
        shown = [*self._own, *(entry for batch in self._batches for entry in batch.entries)]
        entries = [acp.PlanEntry(e.content, e.priority, e.status) for e in shown]
        return [acp.PlanUpdate(acp.PlanItems(PLAN, entries)) if self._client.plan_updates else acp.Plan(entries)]
