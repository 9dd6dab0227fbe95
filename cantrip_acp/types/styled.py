"""Styled text: a text without escape codes, and beside it where its colours change.

Output of programs is hostile, and secrets are found in text without codes. So whatever reads, stores or masks an output has
its plain text, and the colours are numbers of characters with a style. Codes are made of them only where people see the
text (`Styled.coded`), and only those of colours and letters: SGR, "Select Graphic Rendition" (ECMA 48, 8.3.117).
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable
from functools import lru_cache
from itertools import islice
from typing import Final, NamedTuple

Change = tuple[int, str]
"""From this character on the text has this style: parameters of SGR such as ``1;31``, empty for the style of ordinary
text."""

Changes = tuple[Change, ...]

MOST_CHANGES: Final = 8_000
"""Changes of style that are kept of one output. If there are more, the ones in the middle are left out."""

_MOST_CODES: Final = 256

_BOLD, _DIM, _ITALIC, _UNDERLINE, _INVERSE, _FOREGROUND, _BACKGROUND = range(7)

Style = tuple[str | None, ...]
"""Bold, dim, italic, underline, inverse, foreground, background: each the parameters that set it, empty if it is off. None
if codes did not say anything about it (see `NOTHING_SAID`)."""

PLAIN: Final[Style] = ("",) * 7
NOTHING_SAID: Final[Style] = (None,) * 7
_OFF: Final = ("22", "22", "23", "24", "27", "39", "49")

SGR: Final = re.compile(r"\x1b\[([0-9;:]{0,200})m")
_SGR_BYTES: Final = re.compile(rb"\x1b\[([0-9;:]{0,200})m")
ESCAPE: Final = b"\x1b"

_SIMPLE: Final[dict[int, tuple[tuple[int, str], ...]]] = {
    0: tuple((slot, "") for slot in range(7)),
    1: ((_BOLD, "1"),),
    2: ((_DIM, "2"),),
    3: ((_ITALIC, "3"),),
    4: ((_UNDERLINE, "4"),),
    7: ((_INVERSE, "7"),),
    21: ((_UNDERLINE, "4"),),
    22: ((_BOLD, ""), (_DIM, "")),
    23: ((_ITALIC, ""),),
    24: ((_UNDERLINE, ""),),
    27: ((_INVERSE, ""),),
    39: ((_FOREGROUND, ""),),
    49: ((_BACKGROUND, ""),),
    **{code: ((_FOREGROUND, str(code)),) for code in (*range(30, 38), *range(90, 98))},
    **{code: ((_BACKGROUND, str(code)),) for code in (*range(40, 48), *range(100, 108))},
}


class Styled(NamedTuple):
    """A text and its changes of style, in order. It begins in the style of ordinary text, and what follows it does too."""

    text: str
    changes: Changes = ()

    def part(self, start: int, end: int) -> Styled:
        """The characters from ``start`` to ``end`` with their styles."""
        text = self.text[start:end]
        if not self.changes or not text:
            return Styled(text)
        end = start + len(text)
        before = bisect_right(self.changes, start, key=_place) - 1
        first = ((0, self.changes[before][1]),) if before >= 0 and self.changes[before][1] else ()
        after = bisect_right(self.changes, end - 1, key=_place)
        return Styled(text, (*first, *((at - start, style) for at, style in self.changes[before + 1 : after])))

    def bounded(self, most: int = MOST_CHANGES) -> Styled:
        """The text with at most this many changes of style: the first and the last ones."""
        if len(self.changes) <= most:
            return self
        half = max(most // 2, 1)
        first, last = self.changes[: half - 1], self.changes[-half:]
        return Styled(self.text, (*first, (self.changes[half - 1][0], ""), *last))

    def coded(self) -> str:
        """The text with escape codes, for a terminal. It ends in the style of ordinary text.

        Changes may come from a file. What is no style, or not in order, is left out.

        >>> Styled("a red word", ((2, "31"), (5, ""))).coded()
        'a \\x1b[31mred\\x1b[0m word'
        """
        if not self.changes:
            return self.text
        out: list[str] = []
        last, now = 0, ""
        for at, params in self.changes:
            style = _checked(params)
            if style == now or not last <= at < len(self.text):
                continue
            out += self.text[last:at], _switch(now, style)
            last, now = at, style
        return "".join([*out, self.text[last:], _switch(now, "") if now else ""])


def join(pieces: Iterable[Styled]) -> Styled:
    """The texts in a row, each with its own styles."""
    pieces = [each for each in pieces if each.text]
    if len(pieces) < 2:
        return pieces[0] if pieces else Styled("")
    texts: list[str] = []
    changes: list[Change] = []
    length, now = 0, ""
    for text, own in pieces:
        if now and not (own and own[0][0] == 0):
            changes.append((length, ""))
            now = ""
        for at, style in own:
            if style != now:
                changes.append((length + at, style))
                now = style
        texts.append(text)
        length += len(text)
    return Styled("".join(texts), tuple(changes))


@lru_cache(4096)
def after(style: Style, params: str) -> Style:
    """The style after a code with these parameters. Other effects than colours, bold, dim, italic, underline and inverse do
    not count."""
    said = _assignments(params)
    if not said:
        return style
    changed = list(style)
    for slot, value in said:
        changed[slot] = value
    return tuple(changed)


def after_bytes(style: Style, data: bytes) -> Style:
    """The style after all codes in a skipped output. If there are very many different codes, only the last ones count, to
    limit the time for programs that print nothing else."""
    if ESCAPE not in data:
        return style
    start = max(data.rfind(b"\x1b[0m"), data.rfind(b"\x1b[m"), 0)
    # Of equal codes only the last one counts.
    last_first = dict.fromkeys(reversed(_SGR_BYTES.findall(data, start)))
    for params in reversed(list(islice(last_first, _MOST_CODES))):
        style = after(style, params.decode("ascii"))
    return style


def codes_in(data: bytes) -> bytes:
    """One code that does what all codes in the data do; empty if they do nothing."""
    if ESCAPE not in data:
        return b""
    style = after_bytes(NOTHING_SAID, data)
    if style == PLAIN:
        return b"\x1b[0m"
    off = dict.fromkeys(off for value, off in zip(style, _OFF, strict=True) if value == "")
    params = ";".join([*off, *filter(None, style)])
    return f"\x1b[{params}m".encode() if params else b""


def over(style: Style, later: Style) -> Style:
    """Apply the codes in ``later`` to a style."""
    return tuple(old if new is None else new for old, new in zip(style, later, strict=True))


@lru_cache(4096)
def params_of(style: Style) -> str:
    """The style as parameters of SGR. Empty for ordinary text.

    >>> params_of(after(PLAIN, "01;38;5;9"))
    '1;91'
    """
    return ";".join(filter(None, style))


def _place(change: Change) -> int:
    return change[0]


def _switch(now: str, style: str) -> str:
    return f"\x1b[{'0;' if now and style else ''}{style or '0'}m"


@lru_cache(4096)
def _checked(params: str) -> str:
    """The parameters as this module writes them. What came from a file could hold anything else."""
    return params_of(after(PLAIN, params)) if SGR.fullmatch(f"\x1b[{params}m") else ""


@lru_cache(4096)
def _assignments(params: str) -> tuple[tuple[int, str], ...]:
    """The changes that the parameters of one code make."""
    if len(params) > 200:
        return ()
    said: list[tuple[int, str]] = []
    groups = iter(params.split(";"))
    for group in groups:
        parts = group.split(":")
        code = _number(parts[0])
        if code not in (38, 48, 58):
            if code == 4 and parts[1:2] == ["0"]:
                code = 24
            said += _SIMPLE.get(code, ())
            continue
        if len(parts) > 1:
            # 38:5:N, or 38:2:SPACE:R:G:B with or without the colour space.
            numbers = parts[2:] if parts[1] != "2" or len(parts) < 6 else parts[3:]
            kind = parts[1]
        else:
            kind = next(groups, "")
            numbers = [next(groups, "") for _ in range({"5": 1, "2": 3}.get(kind.lstrip("0"), 0))]
        colour = _colour(kind.lstrip("0"), [_number(each) for each in numbers], code)
        if colour is None:
            break
        if code != 58:
            said.append((_FOREGROUND if code == 38 else _BACKGROUND, colour))
    return tuple(said)


def _number(digits: str) -> int:
    return int(digits) if digits.isdecimal() and len(digits) < 6 else 0 if not digits else 999


def _colour(kind: str, numbers: list[int], code: int) -> str | None:
    """A colour of the table of 256, or of red, green and blue. None if it is no colour."""
    if any(number > 255 for number in numbers):
        return None
    if kind == "2" and len(numbers) >= 3:
        return f"{code};2;{numbers[0]};{numbers[1]};{numbers[2]}"
    if kind != "5" or not numbers:
        return None
    index = numbers[0]
    # The first 16 are the named ones.
    base = code - 8
    return str(base + index) if index < 8 else str(base + 60 + index - 8) if index < 16 else f"{code};5;{index}"
