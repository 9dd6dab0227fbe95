"""Recorded events: turns the records of a loom back into the events that readers got while the records were written.

Whoever shows a running entity (`types.events`) can show a recorded one with the same code. The events of a cast come in
the order in which its calls were announced. What no record holds is missing:

- ``query``, ``gate_start`` and ``notice`` events (except for what the model could not read of a message), and
  ``retry`` events (a `Voided` attempt is in the records).
- How the text was split: each message is one `Text`. Its ``message_id`` is the id of its turn.
- ``size`` of `UsageReported` (the window of the crystal) and ``cwd`` of `CommandStarted`.
- The title before the call of a gate that changed it: `GateCalled` has the final title.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec

from cantrip_acp.loom.query.history import CastPart
from cantrip_acp.loom.records.turn_parts import join_parts
from cantrip_acp.types import events
from cantrip_acp.types.context_block import unread_notice
from cantrip_acp.types.errors import LoomError
from cantrip_acp.types.file_changes import diffs_of
from cantrip_acp.types.records import DURING_CAST, STEERING, CastRecord
from cantrip_acp.types.usage import Usage

if TYPE_CHECKING:
    from cantrip_acp.loom.loom import Loom
    from cantrip_acp.types.messages import ToolCall
    from cantrip_acp.types.records import ContextRecord, GateRecord, Output, Turn, Utterance, VoidedAttempt

CHILD_TURNS = 400
"""Turns of children that are read, so that a large number of children does not delay the session."""

_PROGRAM = {"bash": "command", "python": "code"}
"""The tools of the mediums, and the argument that holds the program."""


class RecordedEvents:
    """The events of one entity's casts, and of its children, from the records of one loom.

    ``casts`` are those of the entity and of the entities whose turns it continues (`loom.query.history` finds them).
    """

    def __init__(self, loom: Loom, casts: Iterable[CastPart], *entities: str) -> None:
        self._loom = loom
        self._entities = {*entities, *(turn.entity_id for part in casts for turn in part.turns)}
        self._child_turns = CHILD_TURNS

    def cast(self, part: CastPart, depth: int = 0) -> Iterator[events.Event]:
        """The events of one cast: `CastStarted` first, and `CastEnded` last if its end is on the path.

        The intent's links, images and sounds are in ``part.context``; no event has them.
        """
        start, last = part.start, part.turns[-1] if part.turns else None
        entity_id = start.entity_id if start is not None else last.entity_id if last is not None else ""
        ids: dict[str, Any] = {"entity_id": entity_id, "cast_id": part.id or "", "depth": depth}
        trace_id = (start.trace_id if start is not None else None) or ""
        yield events.CastStarted(**ids, intent=part.intent, trace_id=trace_id)
        yield from _unread(ids, (record for record in part.context if record.source not in DURING_CAST))
        spent = Usage()
        steering = _steering(part)
        yield from _steered(ids, steering.pop(None, ()))
        for turn in part.turns:
            if turn.role == "fold":
                yield events.Folded(**ids, turn=turn)
            elif turn.role == "crystal":
                yield from self._turn(ids, turn)
                usage = turn.metadata.usage
                spent = spent + usage
                used = turn.metadata.context or 0
                yield events.UsageReported(**ids, usage=usage, cumulative=spent, used=used, size=None)
                yield events.TurnEnded(**ids, turn=turn)
            yield from _steered(ids, steering.pop(turn.id, ()))
        if part.partial is not None:
            yield from _voided(ids, part.partial.id, part.partial.voided)
            yield from _utterance_events(ids, part.partial.id, part.partial.utterance)
        elif last is not None and last.reason is None:
            return  # the path leaves the cast before its end
        end = self._loom.cast_end(part.id) if part.id is not None else None
        if end is not None:
            yield events.CastEnded(**ids, record=end)
        elif last is not None and last.reason is not None:
            yield events.CastEnded(**ids, record=_ended_by(last, len(part.turns), trace_id))

    def _turn(self, ids: dict[str, Any], turn: Turn) -> Iterator[events.Event]:
        """The events of one utterance and of everything that it called. The calls of a program follow its start."""
        utterance = turn.utterance
        yield from _voided(ids, turn.id, turn.metadata.voided or ())
        yield from _utterance_events(ids, turn.id, utterance)
        outputs = list(turn.observation.programs)
        if outputs and not utterance.tool_calls:
            # The text held a program that was not clear, so nothing was run.
            yield from (events.Noticed(**ids, text=output.error) for output in outputs if output.error is not None)
            return
        parts = self._parts(turn)
        begun = _programs_begun(parts)
        direct: dict[str, tuple[str, GateRecord]] = {}
        by_program: dict[str | None, list[tuple[str, GateRecord]]] = {}
        for call_id, record in _in_order_of_call(turn, parts):
            if record.tool_call_id is not None:
                direct[record.tool_call_id] = (call_id, record)
            else:
                by_program.setdefault(record.parent_call_id or None, []).append((call_id, record))
        for index, call in enumerate(utterance.tool_calls):
            if call.id in direct:
                yield from self._gate(ids, *direct[call.id])
            elif outputs or (call.gate in _PROGRAM and turn.reason != "done"):
                program_id = f"{next(begun, parts[-1].id)}.{index}"
                text = _program_text(call)
                yield events.CommandStarted(**ids, call_id=program_id, command=text, tool=call.gate)
                for call_id, record in by_program.pop(program_id, ()):
                    yield from self._gate(ids, call_id, record)
                if not outputs:
                    return  # it was stopped before it began
                yield from _program_ended(ids, program_id, call.gate, outputs.pop(0))
        for left in by_program.values():
            for call_id, record in left:
                yield from self._gate(ids, call_id, record)

    def _gate(self, ids: dict[str, Any], call_id: str, record: GateRecord) -> Iterator[events.Event]:
        yield events.GateCalled(
            **ids,
            call_id=call_id,
            gate=record.gate,
            args=record.args,
            kind=record.kind or "other",
            title=record.title or record.gate,
            locations=record.locations or (),
            via=record.parent_call_id or None,
        )
        yield from self._children(ids, call_id)
        question = (record.annotations or {}).get(events.ASKED_IN_CHAT)
        if isinstance(question, str):
            yield events.Text(**ids, delta=question, message_id=f"{call_id}:question")
        diffs = tuple(diffs_of(record.diffs or (), record.args))
        yield events.GateFinished(**ids, call_id=call_id, record=record, diffs=diffs)
        if record.gate == "plan" and not record.is_error:
            with suppress(KeyError, TypeError, AttributeError, ValueError):
                yield events.PlanChanged(**ids, entries=events.plan_entries(record.args))

    def _parts(self, turn: Turn) -> list[Turn]:
        """The turns of one utterance, first one first."""
        return self._loom.bodies(self._loom.utterance_ids(turn.id)[-1]) if turn.continues is not None else [turn]

    # --- children

    @cached_property
    def _child_casts(self) -> dict[str, list[CastRecord]]:
        """The casts of children by the call that started them, in order of start."""
        places, family = self._loom.places, set(self._entities)
        for place in places.values():
            above = places.get(place.parent_id) if place.role == "call" and place.parent_id is not None else None
            if above is not None and above.entity_id in family:
                family.add(place.entity_id)
        entity_of = {place.cast_id: place.entity_id for place in places.values()}
        # For a cast without a turn the entity is not known yet.
        wanted = [cast_id for cast_id in self._loom.cast_ids if entity_of.get(cast_id) in (None, *family)]
        found: dict[str, list[CastRecord]] = {}
        for start in self._loom.cast_starts(wanted).values():
            if isinstance(start.parent_call_id, str) and start.entity_id in family:
                found.setdefault(start.parent_call_id, []).append(start)
        return found

    @cached_property
    def _turns_of_casts(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for turn_id, place in self._loom.places.copy().items():
            if place.cast_id is not None and place.role == "crystal":
                found.setdefault(place.cast_id, []).append(turn_id)
        return found

    def _children(self, ids: dict[str, Any], call_id: str) -> Iterator[events.ChildEvent]:
        """The events of the children that a call started."""
        if self._child_turns <= 0:
            return
        for start in self._child_casts.get(call_id, ()):
            if self._child_turns <= 0:
                return
            index = start.parent_call_index if isinstance(start.parent_call_index, int) else None
            # A damaged record of a child must not hide the rest.
            with suppress(LoomError):
                for event in self._child(start, ids["depth"] + 1):
                    yield events.ChildEvent.above(event, start.entity_id, call_id, index)

    def _child(self, start: CastRecord, depth: int) -> Iterator[events.Event]:
        turn_ids = self._turns_of_casts.get(start.id, [])[: self._child_turns]
        self._child_turns -= len(turn_ids)
        partial = next((each for each in self._loom.partials() if each.cast_id == start.id), None)
        yield from self.cast(CastPart(start.id, start, (), join_parts(self._loom.bodies(turn_ids)), partial), depth)


def _steered(ids: dict[str, Any], records: Sequence[ContextRecord]) -> Iterator[events.Event]:
    """The user's messages from while the cast ran, as events, and notices about parts that the model could not read."""
    yield from (events.Steered(**ids, record=record) for record in records)
    yield from _unread(ids, records)


def _unread(ids: dict[str, Any], records: Iterable[ContextRecord]) -> Iterator[events.Event]:
    text = unread_notice(records)
    if text is not None:
        yield events.Noticed(**ids, text=text)


def _steering(part: CastPart) -> dict[str | None, list[ContextRecord]]:
    """The user's messages from while a cast ran, by the turn that they follow; None is the start of the cast."""
    known = {turn.id for turn in part.turns}
    found: dict[str | None, list[ContextRecord]] = {}
    for record in part.context:
        if record.source == STEERING:
            # A cast that continues another one begins after a turn of that one.
            after = record.after if isinstance(record.after, str) else None
            if after in known or after is None or not part.turns or part.turns[0].parent_id == after:
                found.setdefault(after if after in known else None, []).append(record)
    return found


def _ended_by(last: Turn, turns: int, trace_id: str) -> CastRecord:
    """The end of a cast whose process ended between its last turn and the record of its end."""
    results = [record.result for record in last.observation.results if record.gate == "done" and not record.is_error]
    return CastRecord(
        last.cast_id or "",
        "end",
        last.entity_id,
        last.cantrip_id,
        trace_id,
        result=results[-1] if results else last.utterance.content,
        terminated=last.terminated,
        truncated=last.truncated,
        reason=last.reason,
        turns=turns,
    )


def _voided(ids: dict[str, Any], turn_id: str, attempts: Sequence[VoidedAttempt]) -> Iterator[events.Event]:
    """Events for text that attempts streamed before they broke off. The records hold only the start of a long text."""
    for each in attempts:
        if not each.content and not each.thinking:
            continue  # an empty answer, of which nothing was shown
        message_id = f"{turn_id}:void:{each.attempt}"
        yield from _streamed(ids, message_id, each.thinking, each.content)
        yield events.Voided(**ids, message_id=message_id, attempt=each.attempt, error=each.error)


def _utterance_events(ids: dict[str, Any], message_id: str, utterance: Utterance) -> Iterator[events.Event]:
    text = utterance.content
    if text and utterance.text_calls is True:
        # Calls that the crystal wrote as text were shown as calls.
        from cantrip_acp.crystals.text_tools import read_calls

        text = read_calls(text).words
    yield from _streamed(ids, message_id, utterance.thinking, text)


def _streamed(ids: dict[str, Any], message_id: str, thinking: str | None, text: str | None) -> Iterator[events.Event]:
    if thinking:
        yield events.Thought(**ids, delta=thinking, message_id=message_id)
    if text:
        yield events.Text(**ids, delta=text, message_id=message_id)


def _program_text(call: ToolCall) -> str:
    with suppress(ValueError, AttributeError, RecursionError):
        text = json.loads(call.args).get(_PROGRAM.get(call.gate, "code"))
        return text if isinstance(text, str) else ""
    return ""


def _program_ended(ids: dict[str, Any], call_id: str, tool: str, output: Output) -> Iterator[events.Event]:
    shown = events.shown_output(output)
    if shown.text:
        styles = shown.changes or msgspec.UNSET
        yield events.CommandOutput(**ids, call_id=call_id, stream="stdout", data=shown.text, styles=styles)
    yield events.CommandFinished(**ids, call_id=call_id, tool=tool, record=output)


def _in_order_of_call(turn: Turn, parts: Sequence[Turn]) -> list[tuple[str, GateRecord]]:
    """Each result with the id of its call, in the order of the calls. The loom has results in the order in which they
    came. Results that were imported have no call id."""
    numbers: dict[str, int] = {}
    for part in parts:
        for number in range(len(part.gate_calls)):
            numbers[f"{part.id}.g{number}"] = len(numbers)
    results = [(record.call_id or f"{turn.id}.g{n}", record) for n, record in enumerate(turn.observation.results)]
    return sorted(results, key=lambda each: numbers.get(each[0], len(numbers)))


def _programs_begun(parts: Sequence[Turn]) -> Iterator[str]:
    """The turn in which each program began, in order. A program that delegates is unfinished in its turn, and the next
    turn continues it."""
    unfinished = False
    for part in parts:
        for output in part.observation.programs:
            if not unfinished:
                yield part.id
            unfinished = output.unfinished is True
