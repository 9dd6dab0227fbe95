"""Large messages: a text in one that is longer than any that is looked at is left out while the message is still coming in.

An editor that opens a loom of 100 MB sends it whole. Nobody here needs that text, and reading it as JSON would hold up every
other request for a second. A piece is looked through as it arrives; what stays is a message of a few hundred bytes.
"""

from __future__ import annotations

import json

LONG = 3 * 1024 * 1024
"""Bytes of a text (and of a message) up to which all of it is kept."""
_MARK = "\ue000left out: "


class Skimmer:
    """Takes the pieces of one message; `body` is what is kept of it."""

    def __init__(self) -> None:
        self._out = bytearray()
        self._inside = False
        self._escaped = False
        """Whether the last piece ended in the middle of an escape."""
        self._begin = 0
        """Where in what is kept the text began that is being read."""
        self._dropped = 0

    def feed(self, piece: bytes) -> None:
        """The next piece."""
        # Backslashes stand in texts alone, so pairs of them can be told apart without knowing where texts begin.
        masked = (b"_" + piece[1:] if self._escaped else piece).replace(b"\\\\", b"__").replace(b'\\"', b"__")
        self._escaped = masked.endswith(b"\\")
        at = 0
        while True:
            end = masked.find(b'"', at)
            stop = len(piece) if end < 0 else end
            self._take(piece[at:stop])
            if end < 0:
                return
            if self._inside and self._dropped:
                self._out += json.dumps(f"{_MARK}{self._dropped}")[1:-1].encode()
                self._dropped = 0
            self._out += b'"'
            self._inside = not self._inside
            self._begin = len(self._out)
            at = end + 1

    def _take(self, part: bytes) -> None:
        if self._dropped:
            self._dropped += len(part)
            return
        self._out += part
        if self._inside and len(self._out) - self._begin > LONG:
            self._dropped = len(self._out) - self._begin
            del self._out[self._begin :]

    @property
    def kept(self) -> int:
        """Bytes that are kept so far."""
        return len(self._out)

    def body(self) -> bytes:
        """The message, without what was left out."""
        return bytes(self._out)


def left_out(text: str) -> int:
    """How many bytes were left out of a text; 0 where it is whole."""
    size = text.removeprefix(_MARK)
    return int(size) if size != text and size.isascii() and size.isdigit() else 0
