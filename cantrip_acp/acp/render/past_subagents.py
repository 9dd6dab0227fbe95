"""Past subagents: shows what the children of a recorded call said and did, as it was shown live.

The loom says which turn and which call started a child. Looms of earlier versions name only the turn; there the
children of a call are those of its turn with the same intent, in the order of their start.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any

from cantrip_acp.acp.render.subagent_view import CHILDREN, Family
from cantrip_acp.core import events
from cantrip_acp.core.errors import LoomError
from cantrip_acp.gates.files.file_changes import diffs_of
from cantrip_acp.loom.records.turn import Output

if TYPE_CHECKING:
    from cantrip_acp.acp import protocol as acp
    from cantrip_acp.acp.render.past_calls import PastGate
    from cantrip_acp.loom.loom import Loom
    from cantrip_acp.loom.records.turn import CastRecord, GateRecord, Turn

SPAWNING = frozenset({"call_agent", "call_agent_batch", "cantrip.cast", "cantrip.cast_batch", "cantrip.send"})
MOST_TURNS = 400
"""Turns of children that are read for one session, so that loading does not wait for a large swarm."""


class PastFamily:
    """The children in one loom. It reads them when a call needs them, and shows each child with only one call."""

    def __init__(self, loom: Loom, entities: Iterable[str]) -> None:
        """``entities`` are the entities whose turns are replayed; a database also holds others."""
        self._loom = loom
        self._entities = frozenset(entities)
        self._left = MOST_TURNS
        self._shown: set[str] = set()

    @cached_property
    def _casts(self) -> dict[str, list[CastRecord]]:
        """The casts of children by the turn that started them, in order of start."""
        places, family = self._loom.places, set(self._entities)
        for place in places.values():
            above = places.get(place.parent_id) if place.role == "call" and place.parent_id is not None else None
            if above is not None and above.entity_id in family:
                family.add(place.entity_id)
        spoken = {place.cast_id: place.entity_id for place in places.values()}
        # For a cast without a turn the entity is not known yet.
        wanted = [cast_id for cast_id in self._loom.cast_ids if cast_id not in spoken or spoken[cast_id] in family]
        found: dict[str, list[CastRecord]] = {}
        for start in self._loom.cast_starts(wanted).values():
            if start.parent_turn_id is not None and start.entity_id in family:
                found.setdefault(start.parent_turn_id, []).append(start)
        return found

    @cached_property
    def _turns(self) -> dict[str, list[str]]:
        """The turn ids of each cast, by its id."""
        found: dict[str, list[str]] = {}
        for turn_id, place in self._loom.places.items():
            if place.cast_id is not None and place.role == "crystal":
                found.setdefault(place.cast_id, []).append(turn_id)
        return found

    def content(self, turn: Turn, call: PastGate) -> list[acp.ToolContent]:
        """The actions of a call's children, for a call of this (whole) turn; empty where it started none."""
        record = call.record
        if record.gate not in SPAWNING:
            return []
        family = Family()
        # A damaged record of a child must not stop the session from loading.
        with suppress(LoomError):
            for event in self._events(self._parts(turn), record, call.call_id, (), ()):
                family.heard(event)
        return family.end(call.call_id)

    def _parts(self, turn: Turn) -> list[str]:
        """The turns of one utterance, last one first."""
        parts = [turn.id]
        while turn.continues is not None and parts[-1] != turn.continues:
            above = self._loom.places[parts[-1]].parent_id
            if above is None or above not in self._loom.places:
                break
            parts.append(above)
        return parts

    def _events(
        self, parts: list[str], record: GateRecord, call_id: str, path: tuple[str, ...], calls: tuple[str, ...]
    ) -> Iterator[events.ChildEvent]:
        if isinstance(record.call_id, str):
            for child in [cast for part in reversed(parts) for cast in self._casts.get(part, ())]:
                if child.parent_call_id == record.call_id and child.id not in self._shown and self._left > 0:
                    self._shown.add(child.id)
                    place = child.parent_call_index if isinstance(child.parent_call_index, int) else None
                    yield from self._child(child, (*path, child.entity_id), (*calls, call_id), place)
            return
        # A loom of an earlier version: match children to the call by their intent.
        args: Any = record.args if isinstance(record.args, dict) else {}
        several = isinstance(args.get("requests"), list)
        for index, each in enumerate(args["requests"] if several else [args]):
            intent = each.get("intent") if isinstance(each, dict) else each
            start = next(
                (
                    cast
                    for part in reversed(parts)
                    for cast in self._casts.get(part, ())
                    if cast.intent == intent and cast.id not in self._shown
                ),
                None,
            )
            if start is None or self._left <= 0 or index >= 10 * CHILDREN:
                continue
            self._shown.add(start.id)
            yield from self._child(start, (*path, start.entity_id), (*calls, call_id), index if several else None)

    def _child(
        self, start: CastRecord, path: tuple[str, ...], calls: tuple[str, ...], index: int | None
    ) -> Iterator[events.ChildEvent]:
        ids: dict[str, Any] = {"entity_id": start.entity_id, "cast_id": start.id, "depth": len(path)}

        def told(inner: events.Event) -> events.ChildEvent:
            return events.ChildEvent(**ids, path=path, calls=calls, index=index, inner=inner)

        yield told(events.CastStarted(**ids, intent=start.intent or "", trace_id=start.trace_id or ""))
        parts: list[str] = []
        for turn_id in self._turns.get(start.id, ()):
            self._left -= 1
            if self._left < 0:
                break
            turn = self._loom.turn(turn_id)
            parts = [turn_id, *parts] if turn.continues is not None else [turn_id]
            if turn.utterance.content:
                yield told(events.Text(**ids, delta=turn.utterance.content, message_id=turn_id))
            for call in turn.utterance.tool_calls:
                if call.gate in ("bash", "python"):
                    yield told(_command(ids, call.gate, call.args))
            for number, record in enumerate(turn.observation.results):
                call_id = record.call_id or f"{turn_id}.{number}"
                title = record.title or ""
                yield told(events.GateCalled(**ids, call_id=call_id, gate=record.gate, args=record.args, title=title))
                if record.gate in SPAWNING:
                    yield from self._events(parts, record, call_id, path, calls)
                diffs = tuple(diffs_of(record.diffs or (), record.args))
                if record.is_error or diffs:
                    more: dict[str, Any] = {"result": record.result, "is_error": record.is_error, "diffs": diffs}
                    more["annotations"] = record.annotations or {}
                    yield told(events.GateFinished(**ids, call_id=call_id, gate=record.gate, **more))
            if isinstance(turn.observation.output, Output):
                yield from map(told, _output(ids, turn_id, turn.observation.output))
        end = self._loom.cast_end(start.id)
        if end is not None:
            over: dict[str, Any] = {
                "terminated": bool(end.terminated),
                "truncated": bool(end.truncated),
                "reason": end.reason or "",
            }
            yield told(events.CastEnded(**ids, result=end.result, usage={}, trace_id="", turns=len(parts), **over))


def _command(ids: dict[str, Any], tool: str, args: str) -> events.CommandStarted:
    import json

    try:
        given = json.loads(args)
        text = str(given.get("command" if tool == "bash" else "code", ""))
    except (ValueError, AttributeError, RecursionError):
        text = args
    return events.CommandStarted(**ids, call_id="", command=text, tool=tool)


def _output(ids: dict[str, Any], call_id: str, output: Output) -> Iterator[events.Event]:
    text = output.printed
    if text:
        yield events.CommandOutput(**ids, call_id=call_id, stream="stdout", data=text)
    notes = output.annotations or {}
    yield events.CommandFinished(
        **ids, call_id=call_id, exit_code=output.exit_code, error=output.error, annotations=notes
    )
