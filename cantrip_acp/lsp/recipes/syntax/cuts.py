"""Where a YAML text can be cut into pieces that read by themselves as they read where they stand."""

from __future__ import annotations

import re

SMALL = 12
"""Lines of a piece that is not cut further."""

MOST = 12
"""Items of a list that stay together."""

OPENING = re.compile(
    r"""[ ]*(?:- )?(?:"[^"\\\r\n]*"|'[^'\r\n]*'|[A-Za-z_][^\s:#'"]*)[ ]*:[ \t]*(?:#[^\r\n]*)?\r?\n?\Z"""
)
"""The line of a key whose value stands below it."""


def cuts(lines: list[str], begin: int, end: int) -> tuple[str, list[int]] | None:
    """Where pieces begin, and whether they are pairs or items; None where a cut is not plain to see."""
    indent = -1
    starts: list[int] = []
    dashes = False
    together = 0
    deeper = "\0"
    for number in range(begin, end):
        line = lines[number]
        if line.startswith(deeper):
            continue  # most lines are
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
            continue  # a list may stand at its key's own column
        if dashes != dashed or (not dashed and stripped[0] in "[{|>?&*!\t}])"):
            return None
        # A few items together; which ones, their text decides, so that a new line among them moves no other cut. Items
        # that all begin alike are counted.
        together += 1
        if not dashes or not starts or together > MOST or hash("".join(lines[number : number + 3])) % 6 == 0:
            starts.append(number)
            together = 0
    if not starts:
        return None
    starts[0] = begin
    return ("list" if dashes else "mapping"), starts
