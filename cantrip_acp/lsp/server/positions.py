"""A document's text, and conversion between offsets and the protocol's positions.
Only LF, CRLF and CR end a line. A column counts bytes (UTF-8), 16-bit units or characters, as client and server agreed.
A position after a line's end means its end; one after the last line means the text's end.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from functools import cached_property
from typing import Literal

from lsprotocol import types

Encoding = Literal["utf-8", "utf-16", "utf-32"]

_HALF = re.compile("[\ud800-\udfff]")
MOST_PARTS = 25_000
"""Lines, and half of the values of lists and mappings in one line, of the largest text that is answered about within 5 s."""
_END = re.compile(r"\r\n|\r|\n")


class TextDocument:
    """An immutable text; `changed` makes the next one. Offsets count characters from 0."""

    def __init__(self, source: str, encoding: Encoding = "utf-16") -> None:
        self.source = source
        self.encoding = encoding

    @cached_property
    def readable(self) -> str:
        """The text, encodable as UTF-8 and of the same length: lone surrogates, which JSON can carry, become U+FFFD."""
        if self.source.isascii():
            return self.source
        try:
            self.source.encode()
        except UnicodeEncodeError:
            return _HALF.sub("\ufffd", self.source)
        return self.source

    @cached_property
    def starts(self) -> list[int]:
        return [0, *(found.end() for found in _END.finditer(self.source))]

    @cached_property
    def too_large(self) -> str | None:
        """Why the text has no answers: they would take longer than a person waits. None for all but enormous texts."""
        parts = len(self.starts) + sum(map(self.source.count, ",[{")) // 2
        if parts <= MOST_PARTS:
            return None
        return (
            f"the file is too large for the editor's help: about {parts:,} lines and values; at most {MOST_PARTS:,} are "
            "read while you type. `cantrip recipe check FILE` reads all of it"
        )

    def line(self, number: int) -> str:
        """A line (from 0) without its line end; empty after the last line."""
        if number >= len(self.starts):
            return ""
        end = self.starts[number + 1] if number + 1 < len(self.starts) else len(self.source)
        return self.source[self.starts[number] : end].rstrip("\r\n")

    def line_of(self, offset: int) -> int:
        """The number (from 0) of the line that contains an offset."""
        return bisect_right(self.starts, offset) - 1

    def offset(self, position: types.Position) -> int:
        """The offset of a client's position."""
        if position.line >= len(self.starts):
            return len(self.source)
        if position.line < 0:
            return 0
        line = self.line(position.line)
        return self.starts[position.line] + self._characters(line, max(position.character, 0))

    def position(self, offset: int) -> types.Position:
        """The client's position of an offset."""
        return types.Position(*self.spot(offset))

    def spot(self, offset: int) -> tuple[int, int]:
        """The client's line and column of an offset, as plain numbers: for many positions, objects would be slow."""
        offset = min(max(offset, 0), len(self.source))
        starts = self.starts
        number = bisect_right(starts, offset) - 1
        return number, self.units(self.source[starts[number] : offset])

    def range(self, start: int, end: int) -> types.Range:
        return types.Range(self.position(start), self.position(end))

    def units(self, text: str) -> int:
        """The length of a text in the client's units."""
        if text.isascii() or self.encoding == "utf-32":
            return len(text)
        if self.encoding == "utf-8":
            return len(text.encode("utf-8", "surrogatepass"))
        return len(text.encode("utf-16-le", "surrogatepass")) // 2

    def offset_at(self, line: int, column: int) -> int:
        """The offset of a line and a column that count characters from 1, as in the loader's messages."""
        if line > len(self.starts):
            return len(self.source)
        begin = self.starts[max(line, 1) - 1]
        return min(begin + max(column, 1) - 1, begin + len(self.line(max(line, 1) - 1)))

    def changed(self, change: types.TextDocumentContentChangeEvent) -> TextDocument:
        """The text after one change of the client."""
        if not isinstance(change, types.TextDocumentContentChangePartial):
            return TextDocument(change.text, self.encoding)
        start, end = sorted((self._cut(change.range.start), self._cut(change.range.end)))
        before, after = self.source[: start[0]], self.source[end[0] :]
        if start[1]:
            before += _halves(self.source[start[0]])[0]
        if end[1]:
            after = _halves(after[0])[1] + after[1:]
        return TextDocument(_joined(before, change.text, after), self.encoding)

    def _cut(self, position: types.Position) -> tuple[int, bool]:
        """The offset of an edit's edge, and whether the edge is between the two halves of a character (UTF-16)."""
        at = self.offset(position)
        if self.encoding != "utf-16" or self.source[at : at + 1] <= "\uffff":
            return at, False
        begin = self.starts[self.line_of(at)]
        return at, self.line_of(at) == position.line and self.units(self.source[begin:at]) < position.character

    def _characters(self, line: str, units: int) -> int:
        if self.encoding == "utf-32" or line.isascii():
            return min(units, len(line))
        counted = 0
        for index, character in enumerate(line):
            if counted >= units:
                return index
            code = ord(character)
            if self.encoding == "utf-8":
                counted += 1 if code < 0x80 else 2 if code < 0x800 else 3 if code < 0x10000 else 4
            else:
                counted += 2 if code > 0xFFFF else 1
            if counted > units:  # inside a character: use its start
                return index
        return len(line)


def _halves(character: str) -> str:
    """The two UTF-16 halves of a character above U+FFFF."""
    code = ord(character) - 0x10000
    return chr(0xD800 + (code >> 10)) + chr(0xDC00 + (code & 0x3FF))


def _joined(before: str, new: str, after: str) -> str:
    """Join three parts of a text. Two surrogate halves that meet become one character, as the client counts them."""
    source = before + new + after
    if not any(_HALF.match(edge) for edge in (before[-1:], new[:1], new[-1:], after[:1])):
        return source
    return source.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
