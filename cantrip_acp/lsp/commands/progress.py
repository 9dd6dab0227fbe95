"""Progress of a running cast in one line: its turns, tokens and cost, and the entity's last words."""

from __future__ import annotations

from cantrip_acp.types import events
from cantrip_acp.types.usage import NO_USAGE

WORDS = 100
"""The most characters of the last words."""


class CastProgress:
    """Takes a cast's events and makes the progress line."""

    def __init__(self) -> None:
        self.turns = 0
        self._usage = NO_USAGE
        self._words = ""
        self._message: str | None = None
        self._children: set[str] = set()

    def update(self, event: events.Event) -> None:
        if isinstance(event, events.ChildEvent):
            self._child(event)
        elif isinstance(event, events.TurnEnded):
            self.turns += event.turn.is_utterance
        elif isinstance(event, events.UsageReported):
            self._usage = event.cumulative
        elif isinstance(event, events.Text | events.Thought):
            if event.message_id != self._message:
                self._message, self._words = event.message_id, ""
            self._words = (self._words + event.delta)[-4 * WORDS :]
        elif isinstance(event, events.GateCalled) and event.gate != "done":
            self._report(event.title or event.gate)
        elif isinstance(event, events.CommandStarted):
            self._report(f"$ {event.command}" if event.tool == "bash" else f">>> {event.command}")
        elif isinstance(event, events.RetryScheduled):
            self._report(f"asking again {event.when}: {event.error}")

    def line(self) -> str:
        parts = [f"turn {self.turns + 1}"]
        if self._usage.total_tokens:
            parts.append(f"{self._usage.total_tokens:,} tokens")
        if self._usage.cost is not None:
            parts.append(money(self._usage.cost))
        if self._children:
            parts.append(f"{len(self._children)} children at work")
        words = " ".join(self._words.split())
        if words:
            parts.append(words if len(words) <= WORDS else f"…{words[-WORDS:]}")
        return " · ".join(parts)

    def _child(self, event: events.ChildEvent) -> None:
        if isinstance(event.inner, events.CastStarted):
            self._children.add(event.entity_id)
        elif isinstance(event.inner, events.CastEnded):
            self._children.discard(event.entity_id)

    def _report(self, words: str) -> None:
        self._message, self._words = None, words[: 2 * WORDS]


def money(dollars: float) -> str:
    """An amount for people: two digits from 1 dollar on, four from a tenth of a cent on, else six."""
    return (
        f"${dollars:.2f}"
        if dollars >= 1
        else f"${dollars:.4f}"
        if dollars >= 0.001 or not dollars
        else f"${dollars:.6f}"
    )
