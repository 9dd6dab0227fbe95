"""The gate ``edit_file``: replaces an exact piece of text in a file. All other bytes stay unchanged.

Line endings need not match: an old text with ``\\n`` also matches a file with other line endings, and the new text gets the
file's endings. If the old text is not found, the error shows the most similar lines.
"""

from __future__ import annotations

import bisect
import difflib
import itertools
import re
import unicodedata
from collections.abc import Awaitable, Iterator, Mapping
from functools import partial
from typing import Any

import anyio.to_thread
from msgspec import Struct

from cantrip_acp.gates.atomic_write import check_writable, replace_file
from cantrip_acp.gates.confinement import PathHandle, Root, display_path
from cantrip_acp.gates.contract import Gate, GateContext, GateReply
from cantrip_acp.gates.files import file_content as text
from cantrip_acp.gates.files.file_content import newline_of, valid_unicode
from cantrip_acp.gates.files.write_file import MAX_BYTES, diff_for_editor, read_whole
from cantrip_acp.gates.registry import FILE_OPTIONS
from cantrip_acp.types.errors import GateError
from cantrip_acp.types.records import Diff

INLINE = 262_144
"""Up to this many bytes, no thread is used, because it would cost more than the work. The limit is lower than for writing,
because the error for a missing text compares many lines.
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
        if context.known is not None:
            context.known.saw_edit(place.absolute, before, replaced.text)
        return edit_reply(place, replaced, before)


def _prepared(args: Mapping[str, Any], place: PathHandle, context: GateContext) -> tuple[str, Replacement, bytes]:
    """Compute the current text, the replacement, and the new bytes. Raises `GateError` if the edit is not possible."""
    largest = int(context.dependencies.get("max_bytes", MAX_BYTES))
    data = read_whole(place, largest)
    if data is None:
        raise GateError(f"{place.shown!r} has more than {largest:,} bytes, which is the limit of this gate")
    decoded = text.decode_file(place, data, args["new_text"])
    if decoded is None:
        kind = text.binary_kind(data) or "damaged UTF-16 or UTF-32"
        raise GateError(f"{place.shown!r} is a binary file ({kind}, {len(data):,} bytes), not text")
    before, encoding = decoded
    old, new = args["old_text"], args["new_text"]
    every = bool(args.get("replace_all", False))
    replaced = replace_exactly(before, old, new, every=every, shown=place.shown, largest=largest)
    written = _encode(before, replaced.text, encoding, new, place.shown)
    if len(written) > largest:
        raise GateError(f"the file would have {len(written):,} bytes; this gate writes up to {largest:,}")
    return before, replaced, written


def edit_reply(place: PathHandle, replaced: Replacement, before: str, note: str = "") -> GateReply:
    """Make the reply for an edited file."""
    return GateReply(
        _summary(place.shown, replaced.lines) + note,
        locations=(place.location(replaced.lines[0]),),
        diffs=diff_for_editor(place, before, replaced.text),
        title=f"Edit {place.shown}",
    )


def _summary(shown: str, lines: tuple[int, ...]) -> str:
    if len(lines) == 1:
        return f"edited {shown} at line {lines[0]}"
    listed = ", ".join(map(str, lines[:10])) + (", …" if len(lines) > 10 else "")
    return f"edited {shown}: {len(lines)} replacements, at lines {listed}"


def _encode(before: str, changed: str, encoding: text.Encoding, new: str, shown: str) -> bytes:
    # A surrogate in the file's text means an invalid byte. In the new text it has no meaning.
    if any("\ud800" <= c <= "\udfff" for c in new):
        raise GateError(
            "new_text has half of a surrogate pair, which a text file cannot store", "send whole characters"
        )
    text.check_letters(encoding, before, new, shown)
    try:
        return encoding.encode(changed)
    except UnicodeEncodeError as error:
        raise GateError(
            f"{shown!r} is in {encoding.label}, which does not have the character {changed[error.start]!r}",
            "leave that character out",
        ) from None


def _preview(args: Mapping[str, Any], context: GateContext) -> GateReply:
    shown, locations = display_path(args["path"], context)
    return GateReply(None, title=f"Edit {shown}", locations=locations)


def _proposes(args: Mapping[str, Any], context: GateContext) -> tuple[Diff, ...]:
    with Root.of(context).find(args["path"], writing=True) as place:
        before, replaced, _ = _prepared(args, place, context)
        check_writable(place)
        return diff_for_editor(place, before, replaced.text)


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


MOST = 16_777_216
_MOST_PLACES = 100_000
_SHOWN_PLACES = 8
_COMPARED_LINES = 20_000
_CANDIDATES = 40
_LINE = 160


class Replacement(Struct, frozen=True):
    """The new text, and the numbers (from 1) of the replaced lines in the old text."""

    text: str
    lines: tuple[int, ...]


def replace_exactly(content: str, old: str, new: str, *, every: bool, shown: str, largest: int = MOST) -> Replacement:
    """Replace the only occurrence of ``old`` by ``new``, or all occurrences with ``every``.

    Raises `GateError` if ``old`` is empty, not found, ambiguous, or equal to ``new``, or if the result would be longer than
    ``largest`` characters.
    """
    if not old:
        raise GateError("old_text is empty", "give the text to replace, or use write_file for a whole file")
    if old == new:
        raise GateError("old_text and new_text are the same; nothing would change")
    spans = _spans(content, old, overlapping=not every)
    if not spans:
        raise GateError(*_not_found_error(content, old, shown))
    many = f"more than {_MOST_PLACES:,}" if len(spans) > _MOST_PLACES else str(len(spans))
    if len(spans) > 1 and not every:
        lines = _line_numbers(content, [start for start, _ in spans[: _SHOWN_PLACES + 1]])
        places = ", ".join(map(str, lines[:_SHOWN_PLACES])) + (", …" if len(lines) > _SHOWN_PLACES else "")
        raise GateError(
            f"old_text is ambiguous: it is found {many} times in {shown!r}, at lines {places}",
            "Add more of the lines around the right one, or set replace_all",
        )
    if len(spans) > _MOST_PLACES:
        raise GateError(f"old_text is found {many} times in {shown!r}", "write the whole file, or use a command")
    if len(content) + len(spans) * (len(new) - len(old)) > largest:
        raise GateError(f"{shown!r} would become longer than the {largest:,} characters that this gate writes")
    whole = newline_of(content)
    pieces: list[str] = []
    at = 0
    for start, end in spans:
        found = content[start:end]
        newline = newline_of(found) if "\n" in found or "\r" in found else whole
        pieces += (content[at:start], _with_newlines(new, newline))
        at = end
    pieces.append(content[at:])
    changed = "".join(pieces)
    if changed == content:
        raise GateError("old_text and new_text differ only in line endings, which stay as the file has them")
    return Replacement(changed, tuple(_line_numbers(content, [start for start, _ in spans])))


def _spans(content: str, old: str, *, overlapping: bool) -> list[tuple[int, int]]:
    """Find ``old`` exactly, else with any line endings. A match never splits a ``\\r\\n``. Returns (start, end) pairs."""
    spans = []
    for at in _positions(content, old, overlapping):
        end = at + len(old)
        if not (content[end - 1 : end + 1] == "\r\n" or (at and content[at - 1 : at + 1] == "\r\n")):
            spans.append((at, end))
    if spans or ("\n" not in old and "\r" not in old):
        return spans
    # Search in a copy with one kind of line ending. Each pair of CR and LF before a position shifts it by one.
    pairs = [match.start() - number for number, match in enumerate(re.finditer("\r\n", content))]
    same, old = _one_ending(content), _one_ending(old)
    for at in _positions(same, old, overlapping):
        end = at + len(old)
        spans.append((at + bisect.bisect_left(pairs, at), end + bisect.bisect_left(pairs, end)))
    return spans


def _positions(content: str, old: str, overlapping: bool) -> Iterator[int]:
    at, found = content.find(old), 0
    while at >= 0 and found <= _MOST_PLACES:
        yield at
        found += 1
        at = content.find(old, at + (1 if overlapping else len(old)))


def _one_ending(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _with_newlines(new: str, newline: str) -> str:
    if newline == "\n" or "\n" not in new:
        return new
    return re.sub(r"(?<!\r)\n", newline, new)


def _line_numbers(content: str, positions: list[int]) -> list[int]:
    lines, line, at = [], 1, 0
    lone_returns = newline_of(content) == "\r"
    for position in positions:
        line += content.count("\r" if lone_returns else "\n", at, position)
        at = position
        lines.append(line)
    return lines


def _not_found_error(content: str, old: str, shown: str) -> tuple[str, str]:
    """Make the error text and hint for a missing ``old``, with the likely reason and the most similar lines."""
    message = f"old_text is not found in {shown!r}"
    if not content:
        return f"{message}: the file is empty", ""
    seen = _find_ignoring_looks(content, old)
    if seen is not None:
        start, (there, here) = seen
        line = content.count("\n", 0, start) + 1
        column = start - (content.rfind("\n", 0, start) + 1) + 1
        return (
            f"{message}: there is a text that looks like it, but at line {line}, column {column} the file has "
            f"{_named(there)} where old_text has {_named(here)}",
            "Copy the character from the file, or replace a piece without it",
        )
    lines = [line.rstrip("\r") for line in content.split("\n")]
    wanted = [line.rstrip("\r") for line in old.split("\n")]
    spaced = _find_ignoring_spaces(lines, wanted)
    if spaced is not None:
        last = spaced + len(wanted)
        found = "\n".join(lines[spaced : min(last, spaced + _SHOWN_PLACES)])
        return (
            f"{message}, but lines {spaced + 1} to {last} differ from it only in white space",
            f"They are:\n{valid_unicode(found)}",
        )
    broken = (
        "\nThe file has bytes that are not text, shown as \ufffd: leave them out of old_text."
        if "\ufffd" in old
        else ""
    )
    near = _nearest(lines, next((line for line in wanted if line.strip()), ""))
    if not near:
        return message, f"read the file again and copy the text exactly{broken}"
    listed = "\n".join(f"  {number}: {valid_unicode(lines[number - 1])[:_LINE]}" for number in near)
    return message, f"The nearest lines to its first one:\n{listed}{broken}"


_LOOKALIKES = str.maketrans(
    {
        **dict.fromkeys("\u2018\u2019\u201a\u201b\u2032", "'"),
        **dict.fromkeys("\u201c\u201d\u201e\u2033", '"'),
        **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212", "-"),
        "\u00ad": None,
        "\u0131": "i",
    }
)
_COMPARED_LOOKS = 1_000_000
"""A longer text is not searched for what looks alike."""


def _look(character: str) -> str:
    """What a character looks like: nothing if it is invisible, else in a plain form."""
    if unicodedata.category(character) == "Cf":
        return ""
    if unicodedata.category(character) == "Zs":
        return " "
    return unicodedata.normalize("NFKD", character.translate(_LOOKALIKES))


def _find_ignoring_looks(content: str, old: str) -> tuple[int, tuple[str, str]] | None:
    """Find the place where a text is in the content with characters that look the same. Returns the position of the first
    difference, and the characters there and in ``old`` ("" for none)."""
    if len(content) > _COMPARED_LOOKS or (content.isascii() and old.isascii()):
        return None
    # Each character of the plain text with the position of the one that it comes from.
    looks = [(each, at) for at, character in enumerate(content) if character != "\r" for each in _look(character)]
    plain = "".join(each for each, _ in looks)
    wanted = "".join(_look(each) for each in old if each != "\r")
    found = plain.find(wanted) if wanted else -1
    if found < 0:
        return None
    start = looks[found][1]
    end = looks[found + len(wanted)][1] if found + len(wanted) < len(looks) else len(content)
    there = [(each, at) for at, each in enumerate(content[start:end], start) if each != "\r"]
    here = [each for each in old if each != "\r"]
    pairs = itertools.zip_longest(there, here, fillvalue=None)
    for found_here, given in pairs:
        character, at = found_here or ("", end)
        if character != given:
            return at, (character, given or "")
    return None


def _named(character: str) -> str:
    if not character or character == "\n":
        return "nothing" if not character else "a line end"
    return f"U+{ord(character):04X} ({unicodedata.name(character, 'no name').lower()})"


def _find_ignoring_spaces(lines: list[str], wanted: list[str]) -> int | None:
    """The index at which the wanted lines occur with different white space; None if they do not."""
    squeezed = [" ".join(line.split()) for line in wanted]
    while len(squeezed) > 1 and not squeezed[-1]:
        squeezed.pop()
    if not any(squeezed):
        return None
    first = squeezed[0]
    have = [" ".join(line.split()) for line in lines]
    for index, line in enumerate(have):
        if line == first and have[index : index + len(squeezed)] == squeezed:
            return index
    return None


def _nearest(lines: list[str], wanted: str) -> list[int]:
    """The numbers of the lines most similar to ``wanted``, best first."""
    wanted = wanted.strip()[:500]
    words = set(re.findall(r"\w+", wanted))
    # Comparing letters is slow, so first choose lines with common words or a similar length.
    ranked = sorted(
        (-len(words & set(re.findall(r"\w+", line[:500]))), abs(len(line) - len(wanted)), number)
        for number, line in enumerate(lines[:_COMPARED_LINES], 1)
        if line.strip()
    )
    scored = []
    for _, _, number in ranked[:_CANDIDATES]:
        ratio = difflib.SequenceMatcher(None, wanted, lines[number - 1].strip()[:500], autojunk=False).ratio()
        if ratio >= 0.5:
            scored.append((-ratio, number))
    return [number for _, number in sorted(scored)[:3]]
