"""``edit_file``: replaces one exact piece of a file; all other bytes stay."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from functools import partial
from typing import Any

import anyio.to_thread

from cantrip_acp.core.errors import GateError
from cantrip_acp.core.events import Diff
from cantrip_acp.gates.confinement import Root, located
from cantrip_acp.gates.contract import Gate, GateContext, GateReply
from cantrip_acp.gates.files import encoding as text
from cantrip_acp.gates.files.atomic_write import check_writable, replace_file
from cantrip_acp.gates.files.replacement import Replaced, replace_exactly
from cantrip_acp.gates.files.write_file import MAX_BYTES, read_whole, shown_diff
from cantrip_acp.gates.path_handle import Place
from cantrip_acp.gates.registry import FILE_OPTIONS

INLINE = 262_144
"""Bytes up to which a thread would cost more than the work. Less than for writing: a search for missing text compares
every line.
"""


def _edit_file(args: Mapping[str, Any], context: GateContext) -> GateReply | Awaitable[GateReply]:
    with Root.of(context).find(args["path"], writing=True) as place:
        size = place.status.st_size if place.status is not None else 0
    if size + len(args["old_text"]) + len(args["new_text"]) > INLINE:
        return anyio.to_thread.run_sync(partial(_edit, args, context))
    return _edit(args, context)


def _edit(args: Mapping[str, Any], context: GateContext) -> GateReply:
    with Root.of(context).find(args["path"], writing=True) as place:
        before, replaced, written = _prepared(args, place, context)
        replace_file(place, written)
        return edited(place, replaced, before)


def _prepared(args: Mapping[str, Any], place: Place, context: GateContext) -> tuple[str, Replaced, bytes]:
    """The current text, the replacement, and the new bytes. Raises `GateError` for what cannot be edited."""
    largest = int(context.dependencies.get("max_bytes", MAX_BYTES))
    data = read_whole(place, largest)
    if data is None:
        raise GateError(f"{place.shown!r} is larger than the {largest:,} bytes that this gate edits")
    decoded = text.decode(data)
    if decoded is None:
        kind = text.binary_kind(data) or "damaged UTF-16 or UTF-32"
        raise GateError(f"{place.shown!r} is a binary file ({kind}, {len(data):,} bytes), not text")
    before, encoding = decoded
    old, new = args["old_text"], args["new_text"]
    every = bool(args.get("replace_all", False))
    replaced = replace_exactly(before, old, new, every=every, shown=place.shown, largest=largest)
    written = _encode(replaced.text, encoding, new, place.shown)
    if len(written) > largest:
        raise GateError(f"the file would have {len(written):,} bytes; this gate writes up to {largest:,}")
    return before, replaced, written


def edited(place: Place, replaced: Replaced, before: str, note: str = "") -> GateReply:
    """The reply for an edited file."""
    return GateReply(
        _said(place.shown, replaced.lines) + note,
        locations=(place.location(replaced.lines[0]),),
        diffs=shown_diff(place, before, replaced.text),
        title=f"Edit {place.shown}",
    )


def _said(shown: str, lines: tuple[int, ...]) -> str:
    if len(lines) == 1:
        return f"edited {shown} at line {lines[0]}"
    listed = ", ".join(map(str, lines[:10])) + (", …" if len(lines) > 10 else "")
    return f"edited {shown}: {len(lines)} replacements, at lines {listed}"


def _encode(changed: str, encoding: text.Encoding, new: str, shown: str) -> bytes:
    # A surrogate in the file's text stands for an invalid byte; in the new text it stands for nothing.
    if any("\ud800" <= c <= "\udfff" for c in new):
        raise GateError(
            "new_text holds half of a surrogate pair, which no file can hold as text", "send whole characters"
        )
    try:
        return encoding.encode(changed)
    except UnicodeEncodeError as error:
        raise GateError(
            f"{shown!r} is in {encoding.label}, which has no {changed[error.start]!r}",
            "Leave that character out, or write the whole file with write_file, which makes it UTF-8",
        ) from None


def _preview(args: Mapping[str, Any], context: GateContext) -> GateReply:
    shown, locations = located(args["path"], context)
    return GateReply(None, title=f"Edit {shown}", locations=locations)


def _proposes(args: Mapping[str, Any], context: GateContext) -> tuple[Diff, ...]:
    with Root.of(context).find(args["path"], writing=True) as place:
        before, replaced, _ = _prepared(args, place, context)
        check_writable(place)
        return shown_diff(place, before, replaced.text)


EDIT_FILE = Gate(
    name="edit_file",
    options=FILE_OPTIONS,
    description=(
        "Replace a piece of a text file. old_text must be in the file exactly once, with its indentation, unless replace_all "
        "is set. Encoding and line endings stay as they are."
    ),
    parameters={
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "The file, relative to the gate's folder, such as src/main.py."},
            "old_text": {"type": "string", "description": "The text to replace, exactly as read_file gives it."},
            "new_text": {"type": "string", "description": "What stands there afterwards; empty to take the text away."},
            "replace_all": {
                "type": "boolean",
                "default": False,
                "description": "Replace every occurrence, not only one. Default: false.",
            },
        },
        "required": ["path", "old_text", "new_text"],
        "additionalProperties": False,
    },
    handler=_edit_file,
    writes=True,
    proposes=_proposes,
    kind="edit",
    main_text="new_text",
    preview=_preview,
)
