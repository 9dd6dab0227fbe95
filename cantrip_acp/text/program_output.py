"""Output of a program that is shown or kept in part: its beginning, a line that says how much is missing, and its end."""

from __future__ import annotations

import re

from cantrip_acp.types.styled import Styled, join

UNFINISHED, UNFINISHED_PART = "unfinished", "unfinished part"
"""The streams under which listeners of a program get what its unfinished line says: a state that the program has finished,
or what there is of it. Neither is output."""

_GAP = re.compile(r"\[… (?:([\d,]+) lines \(([\d,]+) bytes\)|([\d,]+) bytes) not shown …\]")
"""A line as `gap_note` writes it."""


def gap_note(lines: int, size: int, *, after: str) -> str:
    """The line in an output that stands for ``lines`` lines, in all ``size`` bytes, that are not there. ``after`` is the text
    before it.

    >>> gap_note(48_700, 3_100_250, after="line 1\\n")
    '[… 48,700 lines (3,100,250 bytes) not shown …]\\n'
    """
    what = f"{lines:,} lines ({size:,} bytes)" if lines > 1 else f"{size:,} bytes"
    return ("" if after.endswith("\n") or not after else "\n") + f"[… {what} not shown …]\n"


def shorten_output(text: str, limit: int) -> str:
    """An output of about ``limit`` characters at most: some of its beginning, a note with the size of the gap, and its end.

    What the sandbox has left out in the gap before counts too.
    """
    cut = _shortened(text, limit)
    return text if cut is None else text[: cut[0]] + cut[1] + text[cut[2] :]


def shorten_styled_output(styled: Styled, limit: int) -> Styled:
    """Do what `shorten_output` does, and keep the colours."""
    cut = _shortened(styled.text, limit)
    if cut is None:
        return styled
    return join([styled.part(0, cut[0]), Styled(cut[1]), styled.part(cut[2], len(styled.text))])


def _shortened(text: str, limit: int) -> tuple[int, str, int] | None:
    """Where the beginning ends, the note, and where the end begins. None if the text is short enough."""
    if len(text) <= limit:
        return None
    first = text[: limit // 4]
    first = first[: first.rfind("\n") + 1] or first
    last = text[-(limit - limit // 4) :]
    last = last[last.find("\n") + 1 :] if "\n" in last[: len(last) // 2] else last
    gap = text[len(first) : -len(last)]
    lines, size = gap.count("\n"), len(gap.encode("utf-8", "replace"))
    for earlier in _GAP.finditer(gap):
        lines += int((earlier[1] or "1").replace(",", "")) - 1
        size += int((earlier[2] or earlier[3]).replace(",", "")) - len(earlier[0])
    return len(first), gap_note(lines, size, after=first), len(text) - len(last)
