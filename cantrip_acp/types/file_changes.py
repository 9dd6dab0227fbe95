"""File changes in gate records, so that a loaded session shows the same diffs as the live one.

A change stores the old text once, and of the new text only the difference. A call stores at most `LIMIT` characters:
of a larger file the changed lines with a few lines around them, and of a larger change only the file's path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from cantrip_acp.types.records import Diff, FileChange

LIMIT = 256 * 1024
"""Characters of diffs that the loom keeps for one call."""

_AROUND = 3
"""Lines before and after an excerpt."""


def changes_of(diffs: Iterable[Diff], args: Any) -> tuple[FileChange, ...]:
    """Diffs in stored form; ``args`` are the call's recorded arguments."""
    changes: list[FileChange] = []
    room = LIMIT
    for diff in diffs:
        change = _change(diff.path, diff.old_text, diff.new_text, args, room)
        room -= len(change.old_text or "") + len(change.new_text)
        changes.append(change)
    return tuple(changes)


def diffs_of(changes: Iterable[FileChange], args: Any) -> Iterator[Diff]:
    """The diffs of a record with these arguments, without those that were too large to store."""
    for change in changes:
        if change.omitted:
            continue
        old = change.old_text or ""
        if change.new_argument is not None:
            new = args.get(change.new_argument, "") if isinstance(args, Mapping) else ""
        else:
            before, after = change.shared
            new = old[:before] + change.new_text + (old[len(old) - after :] if after else "")
        yield Diff(change.path, change.old_text, new if isinstance(new, str) else "")


def _change(path: str, old: str | None, new: str, args: Any, room: int) -> FileChange:
    if isinstance(args, Mapping) and len(old or "") <= room:
        for name, value in args.items():
            if value == new and isinstance(name, str):
                return FileChange(path, old, new_argument=name)
    change = _differing(path, old, new)
    if len(change.old_text or "") + len(change.new_text) <= room:
        return change
    if old is not None:
        before, after = change.shared
        start = _lines_back(old, before)
        end = _lines_on(old, len(old) - after)
        shorter = _differing(path, old[start:end], new[start : len(new) - (len(old) - end)])
        if len(shorter.old_text or "") + len(shorter.new_text) <= room:
            return FileChange(path, shorter.old_text, shorter.new_text, shorter.shared, excerpt=True)
    return FileChange(path, omitted=True)


def _differing(path: str, old: str | None, new: str) -> FileChange:
    if old is None:
        return FileChange(path, None, new)
    before = _same(lambda count: old[:count] == new[:count], min(len(old), len(new)))
    rest = min(len(old), len(new)) - before
    after = _same(lambda count: old[len(old) - count :] == new[len(new) - count :], rest)
    return FileChange(path, old, new[before : len(new) - after], (before, after))


def _same(matches: Callable[[int], bool], most: int) -> int:
    """The largest count up to ``most`` that matches. If a count matches, all smaller ones must match too."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if matches(middle):
            low = middle
        else:
            high = middle - 1
    return low


def _lines_back(text: str, at: int) -> int:
    for _ in range(_AROUND + 1):
        at = text.rfind("\n", 0, at)
        if at < 0:
            return 0
    return at + 1


def _lines_on(text: str, at: int) -> int:
    for _ in range(_AROUND + 1):
        at = text.find("\n", at) + 1
        if not at:
            return len(text)
    return at
