"""Summarizes a turn for the page: its line in the list, and the columns for totals, marks and filters."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

from cantrip_acp.loom.query.thread import answer
from cantrip_acp.types.records import GateRecord, Turn

ERROR, TERMINATED, TRUNCATED, CONTINUES, CHANGED = 1, 2, 4, 8, 16
"""Bits of the column ``flags``: something failed; the cast ended here, or was cut off here; the turn continues an
earlier utterance; it changed files by a gate."""

_LINE = 200
_WRITING = {"write_file", "edit_file"}


def numbers(turns: Iterable[Turn]) -> dict[str, list[Any]]:
    """Columns: ``time`` (ms since 1970, null where unknown), ``ms``, tokens, ``cost`` (US dollars), flags, reason,
    gates; ``same`` is equal for turns with the same content."""
    names = ("time", "ms", "input", "output", "cached", "cost", "flags", "reason", "gates", "reward", "model", "same")
    columns: dict[str, list[Any]] = {name: [] for name in names}
    for turn in turns:
        metadata = turn.metadata
        for name, value in zip(
            names,
            (
                moment(metadata.timestamp),
                round(metadata.duration_ms, 3),
                metadata.tokens_prompt,
                metadata.tokens_completion,
                metadata.tokens_cached,
                metadata.cost,
                flags(turn),
                turn.reason,
                list(dict.fromkeys(turn.gate_calls)),
                turn.reward,
                metadata.model,
                content_key(turn),
            ),
            strict=True,
        ):
            columns[name].append(value)
    return columns


def content_key(turn: Turn) -> str:
    """A short text that is equal for turns in which the same was said, run and seen; ids, times and costs do not count."""
    said, seen = turn.utterance, turn.observation
    content = (
        (said.thinking, said.content, said.code),
        () if said.code or seen.results else [(call.gate, call.args) for call in said.tool_calls],
        [(record.gate, record.is_error, record.args, record.result) for record in seen.results],
        [(o.stdout, o.stderr, o.error, o.value, o.exit_code) for o in seen.programs],
    )
    return f"{zlib.crc32(repr(content).encode('utf-8', 'surrogatepass')):08x}"


def flags(turn: Turn) -> int:
    """The bits that are true for a turn."""
    seen = turn.observation
    failed = any(record.is_error for record in seen.results) or any(output.failed for output in seen.programs)
    changed = any(record.gate in _WRITING and not record.is_error for record in seen.results)
    return (
        ERROR * (failed or turn.reason == "error")
        | TERMINATED * turn.terminated
        | TRUNCATED * turn.truncated
        | CONTINUES * (turn.continues is not None)
        | CHANGED * changed
    )


def row(turn: Turn) -> dict[str, Any]:
    """A line of the list: the answer, or what was said or run, on one line, and its kind."""
    said = turn.utterance
    if turn.role == "call":
        return {"text": "", "kind": "call"}
    if turn.reason == "done" and (result := answer(turn)) is not None:
        return {"text": line(plain(result)), "kind": "code" if said.code else "calls"}
    if said.code:
        return {"text": line(said.code), "kind": "code", "said": line(said.content or "")}
    if said.tool_calls:
        call = said.tool_calls[0]
        return {"text": line(format_arguments(call.args)), "kind": "calls", "said": line(said.content or "")}
    if not said.content and turn.observation.results:
        # It continues an earlier utterance, after a delegation.
        record = turn.observation.results[0]
        return {"text": line(plain(record.result)), "kind": "calls"}
    return {"text": line(said.content or said.thinking or ""), "kind": "fold" if turn.role == "fold" else "text"}


def format_arguments(args: str) -> str:
    """Arguments as text: a single one as its value, several with their names."""
    try:
        given = json.loads(args) if len(args) < 100_000 else None
    except ValueError:
        given = None
    if not isinstance(given, dict) or not given:
        return args
    if len(given) == 1:
        return plain(next(iter(given.values())))
    first, *rest = given.items()
    lead = (
        plain(first[1])
        if first[0] in ("path", "command", "intent", "pattern", "query")
        else f"{first[0]}: {plain(first[1])}"
    )
    return "  ".join([lead, *(f"{name}: {plain(value)}" for name, value in rest)])


def line(text: str) -> str:
    """The beginning of a text as one line."""
    return " ".join(text[: _LINE * 4].split())[:_LINE]


def texts(turn: Turn) -> Iterator[tuple[str, str]]:
    """Yield every searchable text of a turn, with the name of its field."""
    said, seen = turn.utterance, turn.observation
    for name, text in (("content", said.content), ("thinking", said.thinking), ("code", said.code)):
        if text:
            yield name, text
    for call in said.tool_calls:
        yield f"call of {call.gate}", f"{call.gate} {call.args}"
    for record in seen.results:
        yield f"result of {record.gate}", _result(record)
    output = seen.output
    if output is not None:
        for name, value in (
            ("stdout", output.stdout),
            ("stderr", output.stderr),
            ("error", output.error),
            ("value", output.value),
        ):
            if value:
                yield name, plain(value)
    yield "id", turn.id
    if turn.metadata.model:
        yield "model", turn.metadata.model


def _result(record: GateRecord) -> str:
    return f"{record.gate} {plain(record.args)} {plain(record.result)}"


def plain(value: Any) -> str:
    """A value as text: a string as it is, other data as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def moment(timestamp: str) -> float | None:
    """Milliseconds since 1970; None for an invalid time."""
    try:
        return datetime.fromisoformat(timestamp).timestamp() * 1000
    except (ValueError, OverflowError, OSError):
        return None
