"""Three-way merge of texts by lines (diff3), in Python, so that it also works without git."""

from __future__ import annotations

import codecs
from difflib import SequenceMatcher

MOST_LINES = 20_000
"""Longer texts are not merged, because a comparison takes quadratic time."""


def merge(base: bytes, ours: bytes, theirs: bytes) -> bytes | None:
    """Return ``ours`` with the change from ``base`` to ``theirs``. None if both sides changed the same or adjacent lines.

    Binary contents (with a NUL byte) are merged only if one side is unchanged. Texts in UTF-16 with a mark are texts.
    """
    if ours in (base, theirs):
        return theirs
    if theirs == base:
        return ours
    if (wide := _wide(base, ours, theirs)) is not None:
        codec, texts = wide
        found = merge(*texts)
        return None if found is None else found.decode().encode(codec)
    if any(b"\0" in each for each in (base, ours, theirs)):
        return None
    a, b, c = (each.splitlines(keepends=True) for each in (base, ours, theirs))
    if max(len(a), len(b), len(c)) > MOST_LINES:
        return None
    out: list[bytes] = []
    at = 0
    mine, other = _edits(a, b), _edits(a, c)
    while mine or other:
        if mine and other and _touch(mine[0], other[0]):
            if mine[0] != other[0]:
                return None
            # Both made the same change.
            first, last, lines = mine.pop(0)
            other.pop(0)
        elif not other or (mine and mine[0][:2] < other[0][:2]):
            first, last, lines = mine.pop(0)
        else:
            first, last, lines = other.pop(0)
        out += a[at:first]
        out += lines
        at = last
    return b"".join((*out, *a[at:]))


def is_text(content: bytes) -> bool:
    """Whether the content has lines that can be merged."""
    return b"\0" not in content or _wide(content) is not None


def _wide(*contents: bytes) -> tuple[str, list[bytes]] | None:
    """The codec of contents in UTF-16, all with the same mark, and their texts in UTF-8; None if one is something else."""
    for mark, codec in ((codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be")):
        if all(each.startswith(mark) for each in contents):
            try:
                return codec, [each.decode(codec).encode() for each in contents]
            except UnicodeError:
                return None
    return None


_Edit = tuple[int, int, list[bytes]]
"""Replaces the lines of the base from the first number up to the second by others."""


def _edits(old: list[bytes], new: list[bytes]) -> list[_Edit]:
    matcher = SequenceMatcher(None, old, new, autojunk=False)
    return [(i1, i2, new[j1:j2]) for tag, i1, i2, j1, j2 in matcher.get_opcodes() if tag != "equal"]


def _touch(one: _Edit, two: _Edit) -> bool:
    """Whether two edits overlap or are adjacent, so that their order or meaning is unclear."""
    return one[0] <= two[1] and two[0] <= one[1]


def without(base: bytes, now: bytes, before: bytes) -> bytes | None:
    """The present text as it would be without the change from ``before`` to ``base``, for a comparison with it. Lines that
    were changed since too are as in ``before``. None for binary or too long contents."""
    if now == base:
        return before
    if (wide := _wide(base, now, before)) is not None:
        codec, texts = wide
        found = without(*texts)
        return None if found is None else found.decode().encode(codec)
    if any(b"\0" in each for each in (base, now, before)):
        return None
    a, b, c = (each.splitlines(keepends=True) for each in (base, now, before))
    if max(len(a), len(b), len(c)) > MOST_LINES:
        return None
    back = _edits(a, c)
    since = [edit for edit in _edits(a, b) if edit not in back and not any(_overlap(edit, other) for other in back)]
    out: list[bytes] = []
    at = 0
    # If both only insert at one place, the lines of the earlier state come first.
    for first, last, lines in sorted((*back, *since), key=lambda edit: edit[:2]):
        out += a[at:first]
        out += lines
        at = last
    return b"".join((*out, *a[at:]))


def _overlap(one: _Edit, two: _Edit) -> bool:
    """Whether two edits change the same lines, or one inserts inside of the other. Edits side by side do not overlap."""
    return one[0] < two[1] and two[0] < one[1]
