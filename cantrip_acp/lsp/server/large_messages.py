"""Large messages: very long texts in a message are left out while the message is still arriving.
An editor that opens a loom of 100 MB sends the whole text. The server does not need it, and parsing it as JSON would block all
other requests for a second. Pieces are filtered as they arrive; a message of a few hundred bytes remains.
"""

from __future__ import annotations

import json

LONG = 3 * 1024 * 1024
"""The most bytes of a text (and of a message) that are kept whole."""
_MARK = "\ue000left out: "


class Skimmer:
    """Takes the pieces of one message; `body` returns what was kept."""

    def __init__(self) -> None:
        self._out = bytearray()
        self._inside = False
        self._escaped = False
        """Whether the last piece ended in the middle of an escape."""
        self._begin = 0
        """Where the current text begins in the kept bytes."""
        self._dropped = 0

    def feed(self, piece: bytes) -> None:
        """Take the next piece."""
        # Backslashes occur only inside texts, so pairs of them can be recognized without knowing where a text begins.
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
        """Bytes kept so far."""
        return len(self._out)

    def body(self) -> bytes:
        """The message without the texts that were left out."""
        return bytes(self._out)


def left_out(text: str) -> int:
    """How many bytes were left out of a text; 0 if it is complete."""
    size = text.removeprefix(_MARK)
    return int(size) if size != text and size.isascii() and size.isdigit() else 0
