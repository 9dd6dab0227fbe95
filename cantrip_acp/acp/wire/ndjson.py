"""Newline-delimited JSON framing (ACP, Transports): splits byte chunks of any size into lines."""

from __future__ import annotations

MAX_LINE = 64 * 1024 * 1024
"""Bytes of the longest accepted line. A longer line is dropped while it is read."""


class TooLong:
    """Marks the place of a line that was longer than allowed."""


TOO_LONG = TooLong()


class LineSplitter:
    """Splits chunks at newlines. It reads each byte once, and an overlong line takes no memory beyond the limit."""

    def __init__(self, max_line: int = MAX_LINE) -> None:
        self._max = max_line
        self._parts: list[bytes] = []
        self._size = 0
        self._skipping = False

    def feed(self, chunk: bytes) -> list[bytes | TooLong]:
        """The lines that this chunk completes, without their newlines."""
        first, newline, rest = chunk.partition(b"\n")
        if not newline:
            lines: list[bytes | TooLong] = []
            if self._keep(first):
                lines.append(TOO_LONG)
            return lines
        *middle, last = rest.split(b"\n")
        lines = self._complete(first)
        lines.extend(line if len(line) <= self._max else TOO_LONG for line in middle)
        if last and self._keep(last):
            lines.append(TOO_LONG)
        return lines

    def end(self) -> list[bytes | TooLong]:
        """The text after the last newline, when no more bytes come."""
        return self._complete(b"") if self._parts else []

    def _keep(self, part: bytes) -> bool:
        """Store a part of an unfinished line. Returns True once, when the line becomes too long."""
        if self._skipping:
            return False
        self._size += len(part)
        if self._size > self._max:
            self._parts.clear()
            self._skipping = True
            return True
        if part:
            self._parts.append(part)
        return False

    def _complete(self, part: bytes) -> list[bytes | TooLong]:
        too_long = self._keep(part)
        line = b"".join(self._parts)
        dropped = self._skipping
        self._parts.clear()
        self._size = 0
        self._skipping = False
        if too_long:
            return [TOO_LONG]
        return [] if dropped else [line]
