"""A session's past as updates: what ``session/load`` replays, in order, each tool call once and in its final state.

Everything comes from the loom. No update names a terminal, since those of another process are gone: outputs are content.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from cantrip_acp.acp import protocol as acp
from cantrip_acp.acp.pastfamily import PastFamily
from cantrip_acp.acp.shown import as_code, as_content, headline, places, pretty, shortened
from cantrip_acp.acp.translate import folded
from cantrip_acp.context import block_of
from cantrip_acp.events import Diff, Location
from cantrip_acp.gates.contract import GateContext, as_text
from cantrip_acp.loom.history import CastPart, lived
from cantrip_acp.loom.stores.address import is_address

if TYPE_CHECKING:
    from cantrip_acp.entity import Entity
    from cantrip_acp.loom.turn import ContextRecord, GateRecord, Output, Turn


def replayed(entity: Entity, *, compaction: bool = False) -> Iterator[acp.Update]:
    """Every update of what an entity lived through, oldest first; folds where the client shows compactions.

    Reads the loom as it goes.
    """
    used: tuple[int, Turn] | None = None
    family = PastFamily(entity.loom)
    for part in past(entity):
        yield from _asked(part)
        for turn in part.turns:
            if turn.role == "crystal":
                yield from _turn(entity, part, turn, family)
                used = (turn.metadata.tokens_prompt + turn.metadata.tokens_completion, turn)
            elif turn.role == "fold" and compaction:
                yield folded(turn.id, turn.utterance.content or "")
    size = entity.crystal.context_window
    if used is not None and size:
        cost = entity.usage.cost
        yield acp.UsageUpdate(used[0], size, acp.Cost(cost) if cost is not None else None)


def past(entity: Entity) -> list[CastPart]:
    """The casts of an entity in order, those among them that ended before a turn was written."""
    loom = entity.loom
    parts = lived(loom, entity.last_turn) if entity.last_turn and entity.last_turn in loom else []
    known = {part.id: part for part in parts}
    if loom.location is None or is_address(loom.location):
        # A database holds everybody's casts: those without a turn are not looked for among them.
        return parts
    ordered: list[CastPart] = [part for part in parts if part.id is None]
    for cast_id in loom.cast_ids:
        part = known.get(cast_id)
        if part is None:
            start, context = loom.cast_of(cast_id)
            if start is not None and start.entity_id == entity.id:
                part = CastPart(cast_id, start, context)
        if part is not None:
            ordered.append(part)
    return ordered


def _asked(part: CastPart) -> Iterator[acp.Update]:
    """What the user sent: the intent, in which links stand, and the pictures."""
    if part.start is None:
        return
    message_id = f"{part.id}:intent"
    if part.intent:
        yield acp.UserMessageChunk(acp.TextContent(part.intent), message_id)
    for record in part.context:
        shown = _attached(record)
        if shown is not None:
            yield acp.UserMessageChunk(shown, message_id)


def _attached(record: ContextRecord) -> acp.ImageContent | acp.LinkContent | None:
    attachment = block_of(record).attachment
    if attachment is None:
        return None
    if attachment.kind == "image":
        return acp.ImageContent(attachment.data, attachment.mime, attachment.uri)
    return acp.LinkContent(record.title or attachment.kind, attachment.uri) if attachment.uri else None


def _turn(entity: Entity, part: CastPart, turn: Turn, family: PastFamily) -> Iterator[acp.Update]:
    said = turn.utterance
    if said.thinking:
        yield acp.AgentThoughtChunk(acp.TextContent(said.thinking), f"{turn.id}:thought")
    if said.content:
        yield acp.AgentMessageChunk(acp.TextContent(said.content), turn.id)
    yield from _calls(entity, turn, family)
    if turn.reason == "done":
        result = next((r.result for r in reversed(turn.observation.results) if r.gate == "done"), None)
        answer = result if isinstance(result, str) else as_code(pretty(result), "json") if result is not None else ""
        if answer and answer.strip() != (said.content or "").strip():
            yield acp.AgentMessageChunk(acp.TextContent(answer), f"{turn.cast_id}:answer")


def _calls(entity: Entity, turn: Turn, family: PastFamily) -> Iterator[acp.Update]:
    """The calls of an utterance in order; what a program called by itself follows the first program."""
    medium = entity.circle.medium
    observation = turn.observation
    outputs: Sequence[Output] = ()
    if isinstance(observation.outputs, tuple):
        outputs = observation.outputs
    elif observation.output is not None:
        outputs = (observation.output,)
    left = iter(outputs)
    direct: dict[str, tuple[int, GateRecord]] = {}
    inner: list[tuple[int, GateRecord]] = []
    for number, record in enumerate(observation.results):
        if record.tool_call_id is None:
            inner.append((number, record))
        else:
            direct[record.tool_call_id] = (number, record)
    for index, call in enumerate(turn.utterance.tool_calls):
        if medium.tool is not None and call.gate == medium.tool:
            call_id = f"{turn.id}.{index}"
            yield _program(entity, call_id, call.gate, medium.code(call) or "", next(left, None))
            for number, record in inner:
                yield _gate(entity, turn, number, record, family, via=call_id)
            inner = []
        elif call.id in direct:
            yield _gate(entity, turn, *direct[call.id], family, via=None)
    for number, record in inner:
        yield _gate(entity, turn, number, record, family, via=None)


def _program(entity: Entity, call_id: str, tool: str, code: str, output: Output | None) -> acp.ToolCall:
    well = output is not None and output.error is None and output.exit_code in (0, None)
    shown = entity.circle.medium.observe(output) if output is not None else "[stopped before it had ended]"
    return acp.ToolCall(
        tool_call_id=call_id,
        title=headline(code),
        name=tool,
        kind="execute",
        status="completed" if well else "failed",
        content=[as_content(as_code(shortened(shown)))] if shown else None,
        raw_input={"code" if tool == "python" else "command": code},
        raw_output={
            "output": output.stdout + output.stderr,
            "exit_code": output.exit_code,
            "truncated": output.truncated,
        }
        if output is not None
        else None,
    )


def _gate(
    entity: Entity, turn: Turn, number: int, record: GateRecord, family: PastFamily, *, via: str | None
) -> acp.ToolCall:
    gate = entity.circle.gates.get(record.gate) or entity.cantrip.circle.gates.get(record.gate)
    call_id = f"{turn.id}.g{number}"
    name, locations = record.gate, tuple[Location, ...]()
    args: Any = record.args
    if gate is not None and gate.preview is not None and isinstance(args, dict):
        context = GateContext(
            gate.dependencies,
            entity.circle.wards,
            entity.circle.workspace,
            entity.id,
            turn.cast_id or turn.id,
            turn.metadata.trace_id or "",
            call_id,
            entity.circle.folders,
        )
        # What it was about may be gone by now; the record is shown all the same.
        with suppress(Exception):
            seen = gate.preview(args, context)
            name, locations = seen.title or name, tuple(seen.locations)
    content: list[acp.ToolContent] = [] if record.is_error else [*_changed(record, locations)]
    children = family.content(turn, record)
    if record.is_error or (not content and record.gate != "done"):
        said = shortened(as_text(record.result) if record.result is not None else "")
        if said:
            content.append(as_content(said if record.is_error else as_code(said)))
    return acp.ToolCall(
        tool_call_id=call_id,
        title=headline(name),
        name=record.gate,
        kind=gate.kind if gate is not None else "other",
        status="failed" if record.is_error else "completed",
        content=[*children, *content] or None,
        locations=places(locations),
        raw_input=args,
        raw_output=record.result,
        meta={"cantrip": {"via": via}} if via else None,
    )


def _changed(record: GateRecord, locations: tuple[Location, ...]) -> Iterator[acp.Diff]:
    """The change that a call made, as far as its arguments tell it."""
    if record.gate not in ("write_file", "edit_file") or not locations or not isinstance(record.args, dict):
        return
    change = Diff(
        locations[0].path,
        record.args.get("old_text"),
        record.args.get("new_text" if record.gate == "edit_file" else "content", ""),
    )
    if isinstance(change.new_text, str):
        yield acp.Diff(*msgspec.structs.astuple(change))
