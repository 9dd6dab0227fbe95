"""Translates the core's events into the display model (`cantrip cast`, `cantrip loom fork --cast`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cantrip_acp.acp.render import formatting
from cantrip_acp.cli.render.display import (
    ChildAction,
    ChildActionKind,
    FileChange,
    Item,
    Message,
    Note,
    Plan,
    ToolCall,
    command_of,
    duration,
    exit_code_of,
    result_text,
)
from cantrip_acp.crystals.human import waited_seconds
from cantrip_acp.gates.contract import as_text
from cantrip_acp.text.sanitize import clean_line
from cantrip_acp.types import events


class EventTranslator:
    """Translates the events of one entity, in order. ``dot`` is the sign between the parts of a line."""

    def __init__(self, *, dot: str = "·") -> None:
        self._dot = f" {dot} "
        # A call of ``done`` is shown only if it fails, because its answer is shown at the end of the cast.
        self._done: list[ToolCall] = []
        # Commands that were stopped because ``done`` was called in them. They did not fail.
        self._answered: set[str | None] = set()
        self._started: set[str] = set()
        self._half_line = False
        # Seconds that questions had waited for the user at the end of the last turn.
        self._waited = waited_seconds()
        self._numbers: dict[str, str] = {}
        self._child_counts: dict[str, int] = {}

    def translate(self, event: events.Event) -> Iterator[Item]:
        """Yield the display items for an event (for most events one or none)."""
        match event:
            case events.ChildEvent():
                if (action := self._child(event)) is not None:
                    yield action
            case events.Text():
                yield Message("agent", event.message_id, event.delta)
            case events.Thought():
                yield Message("thought", event.message_id, event.delta)
            case events.PlanChanged():
                yield Plan(tuple((entry.content, entry.status) for entry in event.entries))
            case events.GateCalled() | events.GateStarted() | events.GateFinished():
                call = _gate_call(event)
                gate = event.record.gate if isinstance(event, events.GateFinished) else event.gate
                yield from self._answer(event, call) if gate == "done" else (call,)
            case events.CommandStarted():
                self._half_line = False
                self._started.add(event.call_id)
                yield ToolCall(event.call_id, event.tool, "execute", "in_progress", command=event.command)
            case events.CommandOutput():
                self._half_line = not event.data.endswith("\n")
                yield ToolCall(event.call_id, output=event.styled.coded())
            case events.CommandFinished():
                yield from self._command_finished(event)
            case events.RetryScheduled():
                status = f" ({event.status})" if event.status else ""
                error = clean_line(event.error)
                yield Note(f"the query failed{status}: {error}; asking again {event.when}", warning=True)
            case events.Voided():
                yield Note(f"attempt {event.attempt} was interrupted; ignore its text above", warning=True)
            case events.Noticed():
                yield Note(clean_line(event.text, 2000), warning=True)
            case events.Folded():
                many = event.last > 1
                yield Note(f"turns 1 to {event.last} were folded" if many else f"turn {event.last} was folded")
            case events.TurnEnded():
                turn, meta = event.turn, event.turn.metadata
                waited, self._waited = waited_seconds() - self._waited, waited_seconds()
                seconds = max(meta.duration_ms / 1000 - waited, 0.0)
                parts = (f"turn {turn.sequence}", duration(seconds), *meta.usage.words(), turn.id)
                yield Note(self._dot.join(parts))

    def _answer(self, event: events.Event, call: ToolCall) -> Iterator[ToolCall]:
        self._done.append(call)
        if isinstance(event, events.GateFinished):
            if event.record.is_error:
                yield from self._done
            else:
                self._answered.add(event.record.parent_call_id or None)
            self._done = []

    def _command_finished(self, event: events.CommandFinished) -> Iterator[ToolCall]:
        status = "failed" if event.failed and event.call_id not in self._answered else "completed"
        record, exit_code = event.record, event.exit_code
        # For example a traceback, which no piece of the output contained.
        error = f"{_failure(record.error, record.annotations or {})}\n" if record.error else ""
        if event.call_id not in self._started:
            # The user refused the command, so it never started. The question above shows it.
            yield ToolCall(event.call_id, "not run", "execute")
        elif error and self._half_line:
            error = f"\n{error}"
        stopped_by = events.signal_name(exit_code)
        yield ToolCall(event.call_id, status=status, output=error, exit_code=exit_code, signal=stopped_by)

    def _child(self, event: events.ChildEvent) -> ChildAction | None:
        inner = event.inner
        found: tuple[ChildActionKind, str] | None = None
        match inner:
            case events.CastStarted():
                found = "intent", inner.intent
            case events.GateCalled() if inner.gate != "done":
                found = "action", inner.title or inner.gate
            case events.GateFinished(record=record) if record.is_error:
                text = _failure(as_text(record.result), record.annotations or {})
                found = "failure", f"{record.gate}: {text}"
            case events.CommandStarted():
                found = "action", f"{inner.tool}: {inner.command}"
            case events.CommandFinished(record=record) if record.error:
                found = "failure", _failure(record.error, record.annotations or {})
            case events.RetryScheduled():
                found = "retry", f"the query failed: {inner.error}; asking again {inner.when}"
            case events.CastEnded(record=end):
                turns = f"{end.turns} turn{'' if end.turns == 1 else 's'}"
                error = f": {inner.error}" if inner.error else ""
                result = as_text(end.result) if end.terminated else f"{end.reason}{error}"
                found = "done" if end.terminated else "stopped", f"{result}{self._dot}{turns}"
        return ChildAction(event.calls[0], self._number(event.path), *found) if found is not None else None

    def _number(self, path: tuple[str, ...]) -> str:
        """The number of a child, in the order of the starts: ``2``, and ``2.1`` for the first child of the second."""
        found = self._numbers.get(path[-1])
        if found is None:
            parent = path[-2] if len(path) > 1 else ""
            count = self._child_counts[parent] = self._child_counts.get(parent, 0) + 1
            start = f"{self._number(path[:-1])}." if parent else ""
            found = self._numbers[path[-1]] = f"{start}{count}"
        return found


def _failure(text: str, annotations: Mapping[str, Any]) -> str:
    """The text of a failure for people.

    If a call was refused without a question to the user, the whole text is shown: it says how to allow the call.
    """
    return text if annotations.get("permission") == "refused" else formatting.failure_text(text, annotations)


def _gate_call(event: events.GateCalled | events.GateStarted | events.GateFinished) -> ToolCall:
    if isinstance(event, events.GateStarted):
        return ToolCall(event.call_id, status="in_progress")
    if isinstance(event, events.GateCalled):
        locations = tuple((place.path, place.line) for place in event.locations)
        title, command = event.title or event.gate, command_of(event.args)
        return ToolCall(event.call_id, title, event.kind, "pending", locations, command, event.via is not None)
    record = event.record
    result: Any = record.result
    return ToolCall(
        event.call_id,
        record.title or record.gate,
        status="failed" if record.is_error else "completed",
        locations=tuple((place.path, place.line) for place in record.locations or ()) or None,
        inner=bool(record.parent_call_id),
        changes=tuple(FileChange(each.path, each.old_text, each.new_text) for each in event.diffs),
        result=_failure(result_text(result), record.annotations or {}) if record.is_error else result_text(result),
        exit_code=exit_code_of(result),
    )
