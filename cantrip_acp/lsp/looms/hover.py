"""Hover text for a line of a loom, in Markdown: intent, utterance, gates and their results, usage, reward.
Text from entities or strangers goes into code fences, never into Markdown: it cannot make a link, picture or command.
"""

from __future__ import annotations

import json
import re
from typing import Any

from msgspec import UNSET

from cantrip_acp.loom.records import record_heads
from cantrip_acp.lsp.looms import labels
from cantrip_acp.lsp.looms.document import LoomDocument
from cantrip_acp.text.sanitize import clean
from cantrip_acp.types.records import (
    CantripRecord,
    CastRecord,
    ContextRecord,
    FilesRecord,
    FoldRecord,
    ForkRecord,
    LaterRecord,
    LoomHeader,
    Record,
    RewardRecord,
    SnapshotRecord,
    Turn,
)

LONGEST = 1_200
"""The most characters shown of one text."""
_GATES = 8


def record(book: LoomDocument, position: int) -> str:
    """The record at a position, as Markdown; empty if there is nothing to show."""
    found = book.one(position)
    match found:
        case None:
            return "This record cannot be read."
        case Turn():
            number = book.index.numbers.get(found.id)
            if number is None or book.index.positions[number] != position:
                return "A second turn of this id; the first one counts."
            return turn(book, number)
        case LaterRecord():
            return f"A record of kind {_code(found.name)} of a later version. It is kept, and this version does not use it."
        case CastRecord():
            number = next((n for n, places in enumerate(book.index.casts) if places.id == found.id), None)
            return cast(book, number) if number is not None else ""
        case _ if record_heads.kind(found) == "utterance":
            return _utterance(book, found)
        case _:
            return _other(book, found)


def turn(book: LoomDocument, number: int) -> str:
    """A turn as Markdown: its id, the cast's intent, the crystal's words, the programs and calls, and their results."""
    body = book.body(number)
    data = labels.turn(book, number, body)
    head = {"call": "Call", "fold": "Fold"}.get(body.role, f"Turn {body.sequence}")
    out = [f"**{head}** {_code(body.id)}{labels.DOT}{_line(labels.turn_facts(data))}"]
    about = [labels.when(body.metadata.timestamp)] if body.metadata.timestamp else []
    about += [labels.plain(body.metadata.model)] if body.metadata.model else []
    if data["children"]:
        about.append(labels.many(data["children"], "child cast"))
    if data["forks"]:
        about.append(f"{data['forks']} forked from here")
    if about:
        out.append(_line(labels.DOT.join(about)))
    where = book.index.cast_of[number]
    start = book.cast(where)[0] if where >= 0 else None
    if start is not None and start.intent:
        out.append(f"Intent\n\n{fence(start.intent, 400)}")
    if body.role == "call":
        cantrip = book.index.cantrips.get(body.cantrip_id)
        return "\n\n".join([*out, *([_cantrip(cantrip)] if cantrip is not None else [])])
    return "\n\n".join([*out, *_utterance_lines(body), *_observed(body)])


def _utterance_lines(body: Turn) -> list[str]:
    said, out = body.utterance, []
    if said.thinking:
        out.append(f"Thought\n\n{fence(said.thinking, 400)}")
    if said.content:
        out.append(f"Said\n\n{fence(said.content)}")
    if said.code:
        out.append(f"Ran\n\n{fence(said.code)}")
    for call in said.tool_calls[:_GATES]:
        out.append(f"Called {_code(call.gate)}\n\n{fence(call.args, 400)}")
    if len(said.tool_calls) > _GATES:
        out.append(f"… and {len(said.tool_calls) - _GATES} more calls")
    return out


def _observed(body: Turn) -> list[str]:
    out = []
    for result in body.observation.results[:_GATES]:
        failed = " failed" if result.is_error else ""
        out.append(f"{_code(result.gate)}{failed} answered\n\n{fence(_text(result.result), 600)}")
    output = body.observation.output
    if output is not None:
        ended = "" if output.exit_code is None else f" (exit {output.exit_code})"
        for name, text in (("Output", output.stdout), ("Errors", output.stderr), ("Failed", output.error or "")):
            if text:
                out.append(f"{name}{ended}\n\n{fence(text, 600)}")
        if output.value is not None:
            out.append(f"Value\n\n{fence(_text(output.value), 600)}")
        if not (output.stdout or output.stderr or output.error) and ended:
            out.append(f"No output{ended}")
    return out


def cast(book: LoomDocument, number: int) -> str:
    """A cast as Markdown: intent, how it ended, its usage."""
    data = labels.cast(book, number)
    start, end = book.cast(number)
    out = [f"**Cast** {_code(data['id'])}{labels.DOT}{_line(labels.cast_facts(data))}"]
    about = [labels.when(data["started"])] if data["started"] else []
    about += [f"{data['model']}"] if data["model"] else []
    if about:
        out.append(_line(labels.DOT.join(about)))
    if data["parent"]:
        out.append(f"A child, spawned by turn {_code(data['parent'])}")
    if start is not None and start.intent:
        out.append(f"Intent\n\n{fence(start.intent)}")
    if end is not None:
        answer = end.error or (None if end.result is None else _text(end.result)) or end.summary
        if answer:
            out.append(f"{'Failed' if end.error else 'Answered'}\n\n{fence(answer)}")
    else:
        out.append("No end was recorded: it still runs, or was cut off.")
    return "\n\n".join(out)


def _utterance(book: LoomDocument, found: Any) -> str:
    number = book.index.numbers.get(found.id)
    if number is not None:
        return turn(book, number)
    head = f"**Said** {_code(found.id)}: what came of it is not written yet, or its process ended meanwhile."
    return "\n\n".join([head, *_utterance_lines(Turn(found.id, None, "", "", None, utterance=found.utterance))])


def _other(book: LoomDocument, found: Record) -> str:
    match found:
        case LoomHeader():
            counts = (labels.many(len(book.index), "turn"), labels.many(len(book.index.casts), "cast"))
            made = f"{labels.when(found.created)}{labels.DOT}{labels.plain(found.generator)}"
            return f"**Loom** {_code(found.id)}{labels.DOT}{labels.DOT.join(counts)}\n\n{_line(made)}"
        case CantripRecord():
            return _cantrip(found)
        case RewardRecord():
            by = f" by {_line(labels.plain(found.by))}" if found.by else ""
            given = "none" if found.reward is None else f"{found.reward:g}"
            kind = found.kind if isinstance(found.kind, str) else "explicit"
            head = f"**Reward** {given}{by} ({_line(labels.plain(kind))}) for turn {_code(found.turn_id)}"
            return f"{head}\n\n{fence(found.note, 400)}" if found.note else head
        case ForkRecord():
            at = _code(found.from_turn) if found.from_turn else "the call"
            lost = "".join(f"\n\nMissing: {_line(labels.plain(each))}" for each in found.missing[:8])
            return f"**Fork** of turn {at}; the medium's state: {_line(labels.plain(found.strategy))}{lost}"
        case FoldRecord():
            return f"**Fold** of {labels.many(len(found.turns), 'turn')}\n\n{fence(found.summary)}"
        case ContextRecord():
            return (
                f"**Context** {_line(labels.plain(found.title))} from {_line(labels.plain(found.source))}\n\n"
                + fence(found.text, 600)
            )
        case SnapshotRecord():
            return f"**Snapshot** of the medium's state after turn {_code(found.turn_id)}"
        case FilesRecord():
            error = f": {_line(labels.plain(found.error))}" if found.error else ""
            if found.restored is not UNSET:
                return f"**Restore** of files, as they were after turn {_code(found.restored or found.turn_id)}"
            return f"**Files** as they were after turn {_code(found.turn_id)}{error}"
        case _:
            return ""


def _cantrip(found: CantripRecord) -> str:
    circle = found.circle
    gates = [g.get("name") if isinstance(g, dict) else g for g in circle.get("gates") or ()]
    named = ", ".join(labels.plain(gate, 60) for gate in gates[:40] if gate)
    medium = labels.plain(circle.get("medium") or "")
    out = [f"**Cantrip** {_code(found.id)}{labels.DOT}{_line(medium)}{labels.DOT}gates: {_line(named) or 'none'}"]
    wards = circle.get("wards")
    if wards:
        out.append(f"Wards\n\n{fence(_text(wards), 400)}")
    prompt = found.call.get("system_prompt")
    if prompt:
        out.append(f"System prompt\n\n{fence(_text(prompt), 600)}")
    return "\n\n".join(out)


def fence(text: str, most: int = LONGEST) -> str:
    """The text in a code fence that nothing in the text can end."""
    shown = clean(text[:most]).rstrip()
    longest = max((len(run) for run in re.findall(r"`+", shown)), default=0)
    mark = "`" * max(3, longest + 1)
    cut = f"\n\n… {len(text) - most:,} characters more" if len(text) > most else ""
    return f"{mark}text\n{shown}\n{mark}{cut}"


def unmarked(text: str) -> str:
    """The Markdown as plain text, for clients that show no Markdown: without fences, stars and escapes."""
    inside = ""
    out = []
    for line in text.split("\n"):
        mark = re.match(r"`{3,}", line)
        if mark is not None and inside in ("", line):
            inside = "" if inside else mark[0]
        elif inside:
            out.append(line)
        else:
            out.append(re.sub(r"\\([\\`*_{}\[\]()#+!|<>~&])|\*\*|`", r"\1", line))
    return "\n".join(out)


def _line(text: str) -> str:
    """A short text with all characters escaped that Markdown or HTML would interpret."""
    return re.sub(r"([\\`*_{}\[\]()#+!|<>~&])", r"\\\1", text).replace("://", ":\u200b//")


def _code(text: str) -> str:
    return "`" + labels.plain(text, 80).replace("`", "'") + "`"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
