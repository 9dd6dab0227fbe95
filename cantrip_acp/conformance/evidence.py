"""The evidence of a case as plain data: turns, threads, casts and queries, read from the loom and the crystals."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import msgspec

from cantrip_acp.conformance.actions import CaseRun
from cantrip_acp.conformance.matchers import Scope
from cantrip_acp.gates.contract import as_text
from cantrip_acp.loom.query.thread import Thread, answer
from cantrip_acp.types.messages import Message, ToolCall
from cantrip_acp.types.records import CastRecord, Output, Turn


class Evidence:
    """What a finished case left behind. It lists only the crystal's turns; the ``call`` turn and folds are left out."""

    def __init__(self, performance: CaseRun) -> None:
        self.performance = performance
        self.scene = performance.scene
        self.loom = performance.scene.loom
        self.scope = Scope(self.turns)

    @cached_property
    def turns(self) -> list[Turn]:
        """The crystal's turns in the order of writing. The parent of each is the nearest crystal turn above it."""
        every = {turn.id: turn for turn in self.loom.turns()}
        last = {turn.cast_id: turn.id for turn in every.values() if turn.role == "crystal"}
        cut = {end.id: end for _, end in self.loom.casts() if end is not None and end.truncated}
        seen = [_visible(turn, every) for turn in every.values() if turn.role == "crystal"]
        # A written turn never changes. If the cast was cut off after its last turn, only the cast's end says so.
        return [
            msgspec.structs.replace(turn, truncated=True, reason=cut[turn.cast_id or ""].reason)
            if turn.cast_id in cut and last[turn.cast_id] == turn.id and not (turn.terminated or turn.truncated)
            else turn
            for turn in seen
        ]

    @cached_property
    def threads(self) -> list[tuple[Turn, ...]]:
        """The turns of each path from root to leaf in which a crystal spoke, in the order in which the leaves were
        written."""
        return [turns for turns in map(self.seen, self.loom.threads()) if turns]

    def seen(self, thread: Thread | None) -> tuple[Turn, ...]:
        """A thread's turns, in the form of `turns`."""
        if thread is None:
            return ()
        mine = {turn.id: turn for turn in self.turns}
        return tuple(mine[turn.id] for turn in thread.acted)

    @cached_property
    def casts(self) -> list[tuple[CastRecord, CastRecord | None]]:
        """The casts that the case made (not those of children), each with its start and its end."""
        return [(start, end) for start, end in self.loom.casts() if start.parent_turn_id is None]

    @property
    def last_end(self) -> CastRecord | None:
        return self.casts[-1][1] if self.casts else None

    @cached_property
    def last_thread(self) -> tuple[Turn, ...]:
        """The path from the root to the last turn of the last cast's entity."""
        if not self.casts:
            return ()
        entity = self.casts[-1][0].entity_id
        own = [turn for turn in self.turns if turn.entity_id == entity]
        return self.seen(self.loom.thread(own[-1].id)) if own else ()

    @property
    def last_turns(self) -> list[Turn]:
        """The turns of the last cast only."""
        return [turn for turn in self.turns if self.casts and turn.cast_id == self.casts[-1][0].id]

    @cached_property
    def entities(self) -> list[str]:
        """All entities in order: first those that the case created, then children and forks."""
        made = list(self.performance.entities)
        known = set(made)
        for turn in self.turns:
            if turn.entity_id not in known:
                known.add(turn.entity_id)
                made.append(turn.entity_id)
        return made

    def result_of(self, turns: Sequence[Turn]) -> Any:
        """The result of a thread."""
        leaf = self.loom.turn(turns[-1].id)
        ends = {end.id: end for _, end in self.loom.casts() if end is not None}
        end = ends.get(leaf.cast_id or "")
        return end.result if end is not None and leaf.terminated else answer(leaf)


def _visible(turn: Turn, every: Mapping[str, Turn]) -> Turn:
    parent = every.get(turn.parent_id or "")
    while parent is not None and parent.role != "crystal":
        parent = every.get(parent.parent_id or "")
    return msgspec.structs.replace(turn, parent_id=parent.id if parent is not None else None)


def turn_data(turn: Turn) -> dict[str, Any]:
    """A turn as plain data. Arguments of tool calls are decoded if they are JSON."""
    data: dict[str, Any] = msgspec.to_builtins(turn)
    data["utterance"]["tool_calls"] = [call_data(call) for call in turn.utterance.tool_calls] or None
    data["metadata"]["truncation_reason"] = turn.reason if turn.truncated else None
    return data


def call_data(call: ToolCall) -> dict[str, Any]:
    """A tool call as plain data."""
    try:
        args = json.loads(call.args)
    except ValueError:
        args = call.args
    return {"id": call.id, "gate": call.gate, "args": args}


def observation_text(turn: Turn) -> str:
    """Everything that the circle answered in a turn, as one text."""
    parts = [as_text(record.result) for record in turn.observation.results]
    if turn.observation.output is not None:
        parts.append(output_text(turn.observation.output))
    return "\n".join(parts)


def output_text(output: Output) -> str:
    """The output of a command or cell, as one text."""
    parts = [output.stdout, output.stderr, output.error or ""]
    if output.value is not None:
        parts.append(as_text(output.value))
    return "\n".join(part for part in parts if part)


def message_text(message: Message) -> str:
    """Everything in a message: its text, and the arguments of its calls, both as sent and decoded."""
    parts = [message.content or ""]
    for call in message.tool_calls:
        parts.append(call.args)
        args = call_data(call)["args"]
        if isinstance(args, Mapping):
            parts.extend(as_text(value) for value in args.values())
    return "\n".join(parts)
