"""Newline-delimited framing (ACP, Transports): bytes become lines, whatever size they come in."""

from __future__ import annotations

MAX_LINE = 64 * 1024 * 1024
"""Bytes of the longest line that is read; a longer one is dropped while it comes."""


class TooLong:
    """Stands where a line of more than the allowed length was."""


TOO_LONG = TooLong()


class LineSplitter:
    """Cuts chunks at newlines. Each byte is looked at once, and an overlong line takes no memory beyond the limit."""

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
        """What stands after the last newline, now that no more will come."""
        return self._complete(b"") if self._parts else []

    def _keep(self, part: bytes) -> bool:
        """Store a piece of an unfinished line; true at the moment when it has become too long."""
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
