"""The gate ``write_file``: creates a file, or replaces the whole content of an existing file."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Mapping
from functools import partial
from typing import Any

import anyio.to_thread

from cantrip_acp.gates.atomic_write import check_writable, replace_file
from cantrip_acp.gates.confinement import PathHandle, Root, display_path
from cantrip_acp.gates.contract import Gate, GateContext, GateReply
from cantrip_acp.gates.files import file_content as text
from cantrip_acp.gates.registry import FILE_OPTIONS
from cantrip_acp.types.errors import GateError
from cantrip_acp.types.records import Diff

MAX_BYTES = 16_777_216
"""The most bytes of a file that gates write or change. The dependency ``max_bytes`` changes it."""
INLINE = 1_048_576
"""Up to this many bytes, no thread is used, because it would cost more than the work."""
MAX_DIFF = 1_048_576
"""The most characters of a text that is shown in an editor. A longer text is written but not shown."""


def _write_file(args: Mapping[str, Any], context: GateContext) -> GateReply | Awaitable[GateReply]:
    with Root.of(context).find(args["path"], writing=True) as place:
        size = place.status.st_size if place.status is not None else 0
    if size + len(args["content"]) > INLINE:
        return anyio.to_thread.run_sync(partial(_write, args, context))
    return _write(args, context)


def _write(args: Mapping[str, Any], context: GateContext) -> GateReply:
    content = args["content"]
    with Root.of(context).find(args["path"], writing=True) as place:
        exists = place.status is not None
        before, old, data, note = _prepared(args, place, context)
        verb = "updated" if exists else "created"
        if old is not None and old == data:
            verb = "unchanged:"
        else:
            check_known(place, before, context)
            replace_file(place, data)
        if context.known is not None:
            context.known.saw(place.absolute, content)
        return write_reply(verb, place, content, before, len(data), note)


def _prepared(
    args: Mapping[str, Any], place: PathHandle, context: GateContext
) -> tuple[str | None, bytes | None, bytes, str]:
    """Compute the current text and bytes, the new bytes, and a note on the encoding. Raises `GateError` if the file cannot
    be written."""
    path, content = args["path"], args["content"]
    largest = int(context.dependencies.get("max_bytes", MAX_BYTES))
    if path.endswith("/") and place.status is None:
        raise GateError(f"{path!r} names a folder", "give the path of a file in it")
    before, encoding = None, text.UTF8
    old: bytes | None = None
    if place.status is not None:
        old = read_whole(place, largest)
        decoded = text.decode_file(place, old, content) if old is not None else None
        if decoded is not None:
            before, encoding = decoded
    elif not content.isascii():
        encoding = text.declared_encoding(place.absolute, place.root.path) or encoding
    content, ends = text.keep_newlines(before or "", content)
    data, note = _encode(before or "", content, encoding, place.shown)
    note += ends
    if len(data) > largest:
        raise GateError(f"content has {len(data):,} bytes; this gate writes files of up to {largest:,}")
    return before, old, data, note


def check_known(place: PathHandle, before: str | None, context: GateContext) -> None:
    """Raise `GateError` if a write would replace a text that neither the entity has read nor the user has seen."""
    if context.known is not None and before is not None:
        context.known.check(place.absolute, place.shown, before)


def write_reply(verb: str, place: PathHandle, content: str, before: str | None, size: int, note: str) -> GateReply:
    """Make the reply for a written file. ``verb`` is ``created``, ``updated`` or ``unchanged:``."""
    lines = content.count("\n") + (0 if content.endswith("\n") or not content else 1)
    return GateReply(
        f"{verb} {place.shown} ({lines:,} line{'' if lines == 1 else 's'}, {size:,} bytes{note})",
        locations=(place.location(first_change(before, content)),),
        diffs=diff_for_editor(place, before, content) if verb != "unchanged:" else (),
        title=f"Write {place.shown}",
    )


def first_change(before: str | None, after: str) -> int | None:
    """The first changed line (from 1); None if the file is new or nothing changed."""
    if before is None or before == after or len(before) + len(after) > MAX_DIFF:
        return None
    pairs = zip(before.split("\n"), after.split("\n"), strict=False)
    shorter = min(before.count("\n"), after.count("\n"))
    return next((number for number, (old, new) in enumerate(pairs, 1) if old != new), shorter + 1)


def read_whole(place: PathHandle, largest: int) -> bytes | None:
    """Read a file's content; None if it is larger than ``largest`` bytes. Raises `GateError` if it cannot be read."""
    descriptor, status = place.open_file()
    place.status = status
    try:
        if status.st_size > largest:
            return None
        pieces, rest = [], largest + 1
        while rest and (piece := os.read(descriptor, rest)):
            pieces.append(piece)
            rest -= len(piece)
        return b"".join(pieces) if rest else None
    except OSError as error:
        raise GateError(f"cannot read {place.shown!r}: {(error.strerror or str(error)).lower()}") from None
    finally:
        os.close(descriptor)


def diff_for_editor(place: PathHandle, before: str | None, after: str) -> tuple[Diff, ...]:
    """The change for editors; empty if it is too long to show."""
    if len(after) + len(before or "") > MAX_DIFF:
        return ()
    return (
        Diff(place.absolute, text.valid_unicode(before) if before is not None else None, text.valid_unicode(after)),
    )


def _encode(before: str, content: str, encoding: text.Encoding, shown: str) -> tuple[bytes, str]:
    """Encode in the file's encoding. If that is a guess and a whole new text has other letters, use UTF-8. Returns the bytes
    and a note."""
    if any("\ud800" <= c <= "\udfff" for c in content):
        raise GateError("content has half of a surrogate pair, which a text file cannot store", "send whole characters")
    if encoding.mark and content.startswith("\ufeff"):
        content = content[1:]
    if encoding.guess and not content.isascii() and not any(each > "\x7f" and each in before for each in content):
        # Nothing of the old letters is left that could be wrong.
        return content.encode("utf-8"), f", now UTF-8; it was not, perhaps {encoding.label}"
    text.check_letters(encoding, before, content, shown)
    try:
        note = "" if encoding.codec == "utf-8" and not encoding.mark else f", {encoding.label}"
        return encoding.encode(content), note
    except UnicodeEncodeError as error:
        raise GateError(
            f"{shown!r} is in {encoding.label}, which does not have the character {content[error.start]!r}; nothing was written",
            "leave that character out, or change what .editorconfig or .gitattributes say of the file first",
        ) from None


def _preview(args: Mapping[str, Any], context: GateContext) -> GateReply:
    shown, locations = display_path(args["path"], context)
    return GateReply(None, title=f"Write {shown}", locations=locations)


def _proposes(args: Mapping[str, Any], context: GateContext) -> tuple[Diff, ...]:
    with Root.of(context).find(args["path"], writing=True) as place:
        before, old, data, _ = _prepared(args, place, context)
        if old is None or old != data:
            check_writable(place)
        return diff_for_editor(place, before, args["content"])


WRITE_FILE = Gate(
    name="write_file",
    options=FILE_OPTIONS,
    description=(
        "Write a file: make a new one with its folders, or replace all of an existing one. "
        "An existing file keeps its encoding, line ends and permissions. To change a part of a file, edit_file is better."
    ),
    parameters={
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "The file, relative to the gate's folder, such as src/main.py."},
            "content": {"type": "string", "description": "The whole new text of the file."},
        },
        "required": ["path", "content"],
        "additionalProperties": False,
    },
    handler=_write_file,
    writes=True,
    proposes=_proposes,
    kind="edit",
    main_text="content",
    preview=_preview,
)
