"""Where a YAML text can be cut into pieces that have the same meaning alone as in the whole text."""

from __future__ import annotations

import re

SMALL = 12
"""A piece with at most this many lines is not cut further."""

MOST = 12
"""The most items of a list in one piece."""

OPENING = re.compile(
    r"""[ ]*(?:- )?(?:"[^"\\\r\n]*"|'[^'\r\n]*'|[A-Za-z_][^\s:#'"]*)[ ]*:[ \t]*(?:#[^\r\n]*)?\r?\n?\Z"""
)
"""The line of a key whose value is below it."""


def cuts(lines: list[str], begin: int, end: int) -> tuple[str, list[int]] | None:
    """The first lines of the pieces, and whether they are pairs or items; None if no cut is certain."""
    indent = -1
    starts: list[int] = []
    dashes = False
    together = 0
    deeper = "\0"
    for number in range(begin, end):
        line = lines[number]
        if line.startswith(deeper):
            continue  # a shortcut: true for most lines
        stripped = line.lstrip(" ")
        if stripped[:1] in ("", "\r", "\n", "#"):
            continue
        column = len(line) - len(stripped)
        if indent < 0:
            indent = column
            deeper = " " * (indent + 1)
            dashes = stripped.startswith(("- ", "-\n", "-\r"))
        if column < indent:
            return None
        if column > indent:
            continue
        dashed = stripped.startswith(("- ", "-\n", "-\r"))
        if dashed and not dashes:
            continue  # a list may be at the column of its key
        if dashes != dashed or (not dashed and stripped[0] in "[{|>?&*!\t}])"):
            return None
        # A few items stay together. Their text decides which, so that a new line moves no other cut.
        # If all items begin alike, their number decides.
        together += 1
        if not dashes or not starts or together > MOST or hash("".join(lines[number : number + 3])) % 6 == 0:
            starts.append(number)
            together = 0
    if not starts:
        return None
    starts[0] = begin
    return ("list" if dashes else "mapping"), starts
