"""Cleans and limits command output: the result is valid text without terminal control sequences.

Output from a sandbox is hostile. An escape sequence can move an editor's cursor, change a window title or act like
typed input. `Cleaner` turns bytes into text that is safe to display. `Collector` stores the first and the last part of
any amount of output.
"""

from __future__ import annotations

import codecs
import re
from collections import deque

_OTHER = r"\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f"
_SEQUENCE = re.compile(
    # CSI: parameters, intermediates, final byte.
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    # OSC, DCS, SOS, PM and APC: a string up to its terminator, but never across a line. So it cannot hide the rest.
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c|(?=\n)|(?=\x1b))"
    # Two-character escapes, including character sets; then a single ESC.
    r"|\x1b[ -/]*[0-~]|\x1b"
    # A carriage return before a newline; then all other control characters except tab, newline and carriage return.
    r"|\r+(?=\n)|[" + _OTHER + "]"
)
_UNFINISHED = re.compile(
    r"(?:\x1b(?:\[[0-?]*[ -/]*|[\]PX^_][^\x07\x1b\x9c\n]*\x1b?|[ -/]*)?|\x9b[0-?]*[ -/]*"
    r"|[\x9d\x90\x98\x9e\x9f][^\x07\x1b\x9c\n]*\x1b?|\r+)\Z"
)
_SUSPECT = re.compile("[\r" + _OTHER + "]")
_HOLD = 4096
"""The maximum length in characters of an unfinished sequence. A longer one is treated as text."""

_BIDI = dict.fromkeys([*range(0x202A, 0x202F), *range(0x2066, 0x206A)])
"""Direction overrides. They make text look different from its content, so they are removed."""
_BIDI_SEARCH = re.compile("[\u202a-\u202e\u2066-\u2069]")


def clean(text: str) -> str:
    """The text without terminal control sequences, control characters and direction overrides.

    A carriage return without a newline becomes a newline, so that the states of a progress bar stay readable.

        >>> clean("\\x1b[31mred\\x1b[0m\\a \\x1b]0;title\\x07done\\r\\n")
        'red done\\n'
    """
    if _SUSPECT.search(text):
        text = _SEQUENCE.sub("", text).replace("\r", "\n")
    if _BIDI_SEARCH.search(text):
        text = text.translate(_BIDI)
    return text


class Cleaner:
    """Does what `clean` does for a stream. It joins sequences and characters that are cut between two pieces."""

    __slots__ = ("_decoder", "_pending")

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._pending = ""

    def feed(self, data: bytes) -> str:
        text = self._pending + self._decoder.decode(data)
        self._pending = ""
        unfinished = _UNFINISHED.search(text, max(0, len(text) - _HOLD))
        if unfinished:
            self._pending = unfinished[0]
            text = text[: unfinished.start()]
            if self._pending[0] == "\x1b":
                # It ends a string before it. Alone at the end of a text, it is removed.
                text += "\x1b"
        return clean(text)

    def finish(self) -> str:
        """Return the text of an unfinished sequence. Call it when the stream has ended."""
        text = self._pending + self._decoder.decode(b"", final=True)
        self._pending = ""
        return clean(text)


class Collector:
    """Stores one stream: the first ``limit`` bytes, and the last ``limit`` bytes of the rest.

    `read` returns the new text since the last call, cleaned. It returns only the first ``limit`` bytes, because a
    listener does not need more.
    """

    __slots__ = ("_cleaner", "_head", "_live", "_tail", "_tail_size", "limit", "total")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.total = 0
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_size = 0
        self._cleaner = Cleaner()
        self._live = bytearray()

    @property
    def overflowed(self) -> bool:
        return self.total > self.limit

    @property
    def waiting(self) -> int:
        """The number of bytes that `read` would return."""
        return len(self._live)

    def feed(self, data: bytes) -> None:
        self.total += len(data)
        room = self.limit - len(self._head)
        if room > 0:
            first = data[:room]
            self._head += first
            self._live += first
            data = data[room:]
        if data:
            self._tail.append(data)
            self._tail_size += len(data)
            while self._tail_size - len(self._tail[0]) >= self.limit:
                self._tail_size -= len(self._tail.popleft())

    def read(self) -> str:
        data = bytes(self._live)
        self._live.clear()
        return self._cleaner.feed(data)

    def finish(self) -> str:
        """Return the text that `read` has not returned yet. Call it when the stream has ended."""
        return self.read() + self._cleaner.finish()

    def text(self, budget: int) -> str:
        """The output in at most ``budget`` bytes: all of it, or the beginning and the end with a note between them."""
        tail = b"".join(self._tail)[-self.limit :]
        kept = bytes(self._head) + tail
        if self.total <= budget and len(kept) == self.total:
            return _cut_to_budget(clean(kept.decode("utf-8", "replace")), budget)
        note_room = 80
        half = max(0, (budget - note_room) // 2)
        first = _cut(bytes(self._head[:half]), at_end=True)
        last = _cut(kept[-half:] if half else b"", at_end=False)
        note = f"\n[… {self.total - len(first) - len(last)} bytes left out …]\n"
        text = clean(first.decode("utf-8", "replace")) + note + clean(last.decode("utf-8", "replace"))
        return _cut_to_budget(text, budget)

    def restart(self, limit: int) -> None:
        """Discard the stored bytes and store new output with this limit. `read` is not affected."""
        self.limit = limit
        self.total = 0
        self._head.clear()
        self._tail.clear()
        self._tail_size = 0

    def last_line(self) -> str:
        """The last non-blank line of the stored output."""
        tail = (bytes(self._head) + b"".join(self._tail))[-self.limit :]
        lines = clean(tail.decode("utf-8", "replace")).rstrip().rsplit("\n", 1)
        return lines[-1]


def _cut(data: bytes, *, at_end: bool) -> bytes:
    """The data without an incomplete UTF-8 character at the end or at the beginning."""
    if at_end:
        for back in range(1, min(4, len(data)) + 1):
            byte = data[-back]
            if byte >= 0xC0:
                width = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
                return data[:-back] if width > back else data
            if byte < 0x80:
                return data
        return data
    start = 0
    while start < min(3, len(data)) and 0x80 <= data[start] < 0xC0:
        start += 1
    return data[start:]


def _cut_to_budget(text: str, budget: int) -> str:
    """Cut text to ``budget`` bytes. A replacement character takes three bytes for one, so cleaned text can be longer."""
    data = text.encode("utf-8", "replace")
    return text if len(data) <= budget else _cut(data[:budget], at_end=True).decode("utf-8", "replace")


def share(out: Collector, err: Collector, limit: int) -> tuple[str, str, bool]:
    """The text of both streams, together at most ``limit`` bytes, and whether something was left out.

    If a stream needs less than half of the limit, the other stream gets the rest.
    """
    if out.total + err.total <= limit:
        out_text, err_text = out.text(limit), err.text(limit)
        if len(out_text.encode()) + len(err_text.encode()) <= limit:
            return out_text, err_text, False
    half = limit // 2
    err_budget = min(err.total, max(half, limit - out.total))
    out_text = out.text(limit - err_budget)
    err_text = err.text(err_budget)
    return out_text, err_text, True


_LEAST = 2_000


def part(out: Collector, err: Collector, limit: int) -> tuple[str, str, bool, int]:
    """The output of both streams so far, as `share` returns it for half of ``limit``, and the limit for later output.

    Each call uses half of the remaining limit. So the end of an output is always included.
    """
    stdout, stderr, truncated = share(out, err, max(limit // 2, _LEAST))
    rest = max(limit - len(stdout.encode()) - len(stderr.encode()), _LEAST)
    out.restart(rest)
    err.restart(rest)
    return stdout, stderr, truncated, rest
