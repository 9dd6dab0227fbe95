"""Session history: the past as updates for ``session/load``, in order, each tool call once and in its final state.

All data come from the loom. No update names a terminal, because the terminals of another process are gone; outputs are
sent as content.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from cantrip_acp.acp import protocol as acp
from cantrip_acp.acp.render.event_translator import OUTPUT_LIMIT, folded, is_in_chat
from cantrip_acp.acp.render.formatting import (
    ASKED_IN_CHAT,
    STOPPED,
    as_code,
    as_content,
    counted,
    ended,
    failure,
    headline,
    images,
    marks,
    places,
    pretty,
    raw_output,
    result,
)
from cantrip_acp.acp.render.past_calls import PastGate, PastProgram, calls_of
from cantrip_acp.acp.render.past_subagents import PastFamily
from cantrip_acp.core.context_block import block_of
from cantrip_acp.core.errors import GateError
from cantrip_acp.core.events import Diff, Location
from cantrip_acp.crystals.text_tools.parse import read_calls
from cantrip_acp.gates.contract import GateContext
from cantrip_acp.gates.files.file_changes import diffs_of
from cantrip_acp.gates.interaction.ask_user import in_chat
from cantrip_acp.gates.interaction.plan import entries_of
from cantrip_acp.loom.query.history import CastPart, lived
from cantrip_acp.mediums.program_events import signal_name

if TYPE_CHECKING:
    from cantrip_acp.core.entity import Entity
    from cantrip_acp.loom.records.turn import ContextRecord, GateRecord, Turn, Utterance, VoidedAttempt

_EDITED = re.compile(r"(?: at line|, at lines) (\d{1,9})")


def replayed(
    entity: Entity, parts: Sequence[CastPart] | None = None, *, compaction: bool = False
) -> Iterator[acp.Update]:
    """The updates for an entity's whole history, oldest first; folds only where the client shows compactions.

    ``parts`` is that history, where the caller has just read it.
    """
    used: tuple[int | None, Turn] | None = None
    parts = past(entity, parts)
    family = PastFamily(entity.loom, {entity.id, *(turn.entity_id for part in parts for turn in part.turns)})
    sent: set[str | None] = set()
    for part in parts:
        # A cast that resumes an earlier one has no message of its own.
        if part.start is None or part.start.resumes not in sent:
            yield from _asked(part)
        sent.add(part.id)
        for turn in part.turns:
            if turn.role == "crystal":
                yield from _voided(turn.id, turn.metadata.voided or ())
                yield from _turn(entity, part, turn, family)
                used = (turn.metadata.context, turn)
            elif turn.role == "fold" and compaction:
                yield folded(turn.id, turn.utterance.content or "")
        if part.partial is not None:
            yield from _voided(part.partial.id, part.partial.voided)
            yield from _said(part.partial.id, part.partial.utterance)
    size = entity.crystal.context_window
    if used is not None and size:
        cost = entity.usage.cost
        held = entity.context.tokens if used[0] is None else used[0]
        yield acp.UsageUpdate(held, size, acp.Cost(cost) if cost is not None else None)


def past(entity: Entity, parts: Sequence[CastPart] | None = None) -> list[CastPart]:
    """The casts of an entity in order, including those that ended before a turn was written. ``parts`` as in `replayed`."""
    loom = entity.loom
    if parts is None:
        parts = lived(loom, entity.last_turn, entity.id) if entity.last_turn and entity.last_turn in loom else ()
    known = {part.id: part for part in parts}
    spoken = {place.cast_id for place in loom.places.values()}
    ordered: list[CastPart] = [part for part in parts if part.id is None]
    for cast_id in loom.cast_ids:
        part = known.get(cast_id)
        if part is None and cast_id not in spoken:
            start, context = loom.cast_of(cast_id)
            if start is not None and start.entity_id == entity.id:
                part = CastPart(cast_id, start, context)
        if part is not None:
            ordered.append(part)
    return ordered


def _asked(part: CastPart) -> Iterator[acp.Update]:
    """The user's message: the intent with its links, images and audio."""
    if part.start is None:
        return
    message_id = f"{part.id}:intent"
    if part.intent:
        yield acp.UserMessageChunk(acp.TextContent(part.intent), message_id)
    for record in part.context:
        shown = _attached(record)
        if shown is not None:
            yield acp.UserMessageChunk(shown, message_id)


def _attached(record: ContextRecord) -> acp.ImageContent | acp.AudioContent | acp.LinkContent | None:
    attachment = block_of(record).attachment
    if attachment is None:
        return None
    if attachment.kind == "image":
        return acp.ImageContent(attachment.data, attachment.mime, attachment.uri)
    if attachment.kind == "audio":
        return acp.AudioContent(attachment.data, attachment.mime)
    return acp.LinkContent(record.title or attachment.kind, attachment.uri) if attachment.uri else None


def _turn(entity: Entity, part: CastPart, turn: Turn, family: PastFamily) -> Iterator[acp.Update]:
    said = turn.utterance
    yield from _said(turn.id, said)
    yield from _calls(entity, turn, family)
    if turn.reason == "done":
        given = next((r.result for r in reversed(turn.observation.results) if r.gate == "done"), None)
        answer = given if isinstance(given, str) else as_code(pretty(given), "json") if given is not None else ""
        if answer and answer.strip() != (said.content or "").strip():
            yield acp.AgentMessageChunk(acp.TextContent(answer), f"{turn.cast_id}:answer")


def _voided(message_id: str, attempts: Sequence[VoidedAttempt]) -> Iterator[acp.Update]:
    """Notes about attempts that broke off. Their text is in the loom, and is not shown again."""
    for each in attempts:
        text = f"(Attempt {each.attempt} broke off: {each.error}. The model was asked again.)\n\n"
        meta = {"cantrip": {"attempt": each.attempt}}
        yield acp.AgentThoughtChunk(acp.TextContent(text), f"{message_id}:void:{each.attempt}", meta)


def _said(message_id: str, said: Utterance) -> Iterator[acp.Update]:
    if said.thinking:
        yield acp.AgentThoughtChunk(acp.TextContent(said.thinking), f"{message_id}:thought")
    words = said.content
    if words and said.text_calls is True:
        # As it was streamed: calls written as text are shown as calls.
        words = read_calls(words).words
    if words:
        yield acp.AgentMessageChunk(acp.TextContent(words), message_id)


def _calls(entity: Entity, turn: Turn, family: PastFamily) -> Iterator[acp.Update]:
    """The calls of an utterance, in the order in which they were announced."""
    for call in calls_of(entity.loom, turn, entity.circle.medium):
        if isinstance(call, PastProgram):
            yield _program(call)
        else:
            question = is_in_chat(call.record.gate, call.record.result)
            yield _gate(entity, turn, call, family)
            if question and (said := _question(call.record.args)):
                yield acp.AgentMessageChunk(acp.TextContent(said), f"{call.call_id}:question")
            if call.record.gate == "plan" and not call.record.is_error:
                yield from _planned(call.record.args)


def _question(args: Any) -> str:
    """The text of a question that was asked in the chat."""
    asked = args.get("question") if isinstance(args, dict) else None
    choices = args.get("choices") if isinstance(args, dict) else None
    return in_chat(asked, choices if isinstance(choices, list) else ()) if isinstance(asked, str) else ""


def _planned(args: Any) -> Iterator[acp.Update]:
    """The plan that a call set."""
    with suppress(KeyError, TypeError, AttributeError, GateError):
        yield acp.Plan([acp.PlanEntry(e.content, e.priority, e.status) for e in entries_of(args)])


def _program(call: PastProgram) -> acp.ToolCall:
    """A command or cell as it was shown at its end (`mediums.program_events`, `event_translator`)."""
    output, content, raw = call.output, list[acp.ToolContent](), None
    well, annotations = False, {"stopped": True} if output is None else output.annotations or {}
    if output is None:
        content = [as_content(STOPPED)]
    else:
        python = call.tool == "python"
        exit_code = (0 if output.error is None else 1) if python else output.exit_code
        # A program that calls `done` is ended by that; this is not a failure.
        well = call.done or (output.error is None and exit_code == 0)
        text = output.printed
        if python and output.value is not None:
            text += f"=> {output.value}\n"
        if text:
            content.append(as_content(as_code(ended(text))))
        if output.error is not None:
            said = failure(output.error, annotations)
            content.append(as_content(as_code(said) if "\n" in said else said))
            text += ("" if text[-1:] in ("", "\n") else "\n") + output.error + "\n"
        raw = {
            "output": text[-OUTPUT_LIMIT:],
            "exit_code": exit_code,
            "signal": signal_name(exit_code),
            "timed_out": output.timed_out is True,
            "truncated": output.truncated,
        }
    return acp.ToolCall(
        tool_call_id=call.call_id,
        title=headline(call.text),
        name=call.tool,
        kind="execute",
        status="completed" if well else "failed",
        content=content or None,
        raw_input={"code" if call.tool == "python" else "command": call.text},
        raw_output=raw,
        meta=marks(annotations),
    )


def _gate(entity: Entity, turn: Turn, call: PastGate, family: PastFamily) -> acp.ToolCall:
    record = call.record
    asked = is_in_chat(record.gate, record.result)
    failed = record.is_error and not asked
    seen = _kept(record) if isinstance(record.call_id, str) else _guessed(entity, turn, call)
    content: list[acp.ToolContent] = (
        [] if record.is_error else [acp.Diff(d.path, d.old_text, d.new_text) for d in seen.diffs]
    )
    if isinstance(record.diffs, tuple):
        content += [as_content(f"[the change of {d.path} is too large to show]") for d in record.diffs if d.omitted]
    if asked:
        content = [as_content(ASKED_IN_CHAT)]
    elif record.is_error or (not content and record.gate != "done"):
        said = record.result
        if record.is_error:
            said = failure(said if isinstance(said, str) else pretty(said), record.annotations or {})
        content += result(said, seen.kind, failed=record.is_error)
    content += images(record.attachments or ())
    return acp.ToolCall(
        tool_call_id=call.call_id,
        title=counted(seen.title, seen.diffs),
        name=record.gate,
        kind=seen.kind,
        status="failed" if failed else "completed",
        content=[*family.content(turn, call), *content] or None,
        locations=places(seen.locations),
        raw_input=record.args,
        raw_output=raw_output(record.result),
        meta=marks(record.annotations or {}, via=call.via),
    )


class _Seen(NamedTuple):
    """What readers saw of a call in addition to its arguments and its result."""

    title: str
    kind: str
    locations: tuple[Location, ...]
    diffs: tuple[Diff, ...]


def _kept(record: GateRecord) -> _Seen:
    return _Seen(
        record.title or record.gate,
        record.kind or "other",
        record.locations or (),
        tuple(diffs_of(record.diffs or (), record.args)),
    )


def _guessed(entity: Entity, turn: Turn, call: PastGate) -> _Seen:
    """Title and locations for a call in a loom of an earlier version, as far as its gate can tell now."""
    record = call.record
    gate = entity.circle.gates.get(record.gate) or entity.cantrip.circle.gates.get(record.gate)
    title, locations = record.gate, tuple[Location, ...]()
    args: Any = record.args
    if gate is not None and gate.preview is not None and isinstance(args, dict):
        context = GateContext(
            gate.dependencies,
            entity.circle.wards,
            entity.circle.workspace,
            entity.id,
            turn.cast_id or turn.id,
            turn.metadata.trace_id or "",
            call.call_id,
            entity.circle.folders,
        )
        # The files may be gone by now; show the record all the same.
        with suppress(Exception):
            seen = gate.preview(args, context)
            title, locations = seen.title or title, tuple(seen.locations)
    kind = gate.kind if gate is not None else "other"
    placed = locations if record.is_error else _placed(record, locations)
    return _Seen(title, kind, placed, () if record.is_error else tuple(_changed(record, locations)))


def _changed(record: GateRecord, locations: tuple[Location, ...]) -> Iterator[Diff]:
    """The change that a call made, as far as its arguments tell.

    The old content of a replaced file is unknown, so no diff is shown for it; it would look like a new file.
    """
    if record.gate not in ("write_file", "edit_file") or not locations or not isinstance(record.args, dict):
        return
    if record.gate == "write_file" and not str(record.result).startswith("created "):
        return
    change = Diff(
        locations[0].path,
        record.args.get("old_text"),
        record.args.get("new_text" if record.gate == "edit_file" else "content", ""),
    )
    if isinstance(change.new_text, str):
        yield change


def _placed(record: GateRecord, locations: tuple[Location, ...]) -> tuple[Location, ...]:
    """The location of an edit with its line, which the result names."""
    lines = _EDITED.findall(record.result) if record.gate == "edit_file" and isinstance(record.result, str) else []
    return tuple(Location(place.path, int(lines[-1])) for place in locations) if lines else locations
