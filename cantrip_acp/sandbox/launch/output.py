"""Cleans and limits command output: the result is valid text without terminal control sequences.

Output from a sandbox is hostile. An escape sequence can move an editor's cursor, change a window title or act like
typed input. `Cleaner` turns bytes into text that is safe to display. `Collector` stores the first and the last part of
any amount of output, with the lines as a program left them: a line that it rewrote (a progress bar) counts once.
"""

from __future__ import annotations

import codecs
import re
import time
from collections import deque

from cantrip_acp.text.program_output import gap_note

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

    A carriage return without a newline becomes a newline: of an output, `Collector` keeps the last state of a line.

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


_LONG_LINE = 16_384
"""Bytes of an unfinished line that a program may still rewrite. What is before them in a longer line stays."""
_LATER = 4_096
"""Bytes of the newest output that a listener gets at once after the first ``limit`` bytes."""
_LATER_SECONDS = 0.25


class Collector:
    """Stores one stream: the first ``limit`` bytes, and the last ``limit`` bytes of the rest.

    A carriage return begins the line again, so only the last state of a line is stored, however often it was rewritten.

    `read` returns the new text for a listener, cleaned: the whole first ``limit`` bytes, and then a few times a second the
    newest lines, with a note about the lines between. `state` is what the unfinished line says.
    """

    __slots__ = (
        "_cleaner",
        "_committed",
        "_head",
        "_later",
        "_later_at",
        "_line",
        "_lines",
        "_live",
        "_skipped",
        "_state",
        "_state_at",
        "_state_told",
        "_tail",
        "_tail_size",
        "limit",
    )

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._committed = 0
        self._lines = 0
        self._line = b""
        """The unfinished line; at its end the carriage return after which new text replaces it."""
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_size = 0
        self._cleaner = Cleaner()
        self._live = bytearray()
        self._later = bytearray()
        self._later_at = 0.0
        self._skipped = (0, 0)
        """Lines and bytes that no listener gets."""
        self._state: tuple[bytes, bool] = (b"", True)
        self._state_told = b""
        self._state_at = 0.0

    @property
    def total(self) -> int:
        """The number of bytes of the output, with each line in its last state."""
        return self._committed + len(_last_state(self._line))

    @property
    def overflowed(self) -> bool:
        return self.total > self.limit

    @property
    def waiting(self) -> int:
        """The number of bytes that `read` would return now."""
        return len(self._live) + (len(self._later) if self._later and self._due(self._later_at) else 0)

    @property
    def delayed(self) -> bool:
        """Whether something waits that `read` or `state` gives in a moment."""
        return bool(self._later) or self._state[0] != self._state_told

    def feed(self, data: bytes) -> None:
        data = self._line + data
        end = data.rfind(b"\n") + 1
        done, line = data[:end], data[end:]
        if b"\r" in done:
            done = b"\n".join([_last_state(each) for each in done.split(b"\n")])
        if b"\r" in line:
            returned = b"\r" if line.endswith(b"\r") else b""
            states = line.rstrip(b"\r").split(b"\r")
            self._state = (states[-1], True) if returned else (states[-2], True) if states[-2] else self._state
            line = states[-1] + returned
        else:
            self._state = (line, False)
        if len(line) > _LONG_LINE:
            done += line.rstrip(b"\r")
            line = b"\r" if line.endswith(b"\r") else b""
        self._line = line
        if done:
            self._store(done)

    def _store(self, data: bytes) -> None:
        self._committed += len(data)
        self._lines += data.count(b"\n")
        room = self.limit - len(self._head)
        if room > 0:
            first = data[:room]
            self._head += first
            self._live += first
            data = data[room:]
        if not data:
            return
        self._tail.append(data)
        self._tail_size += len(data)
        while self._tail_size - len(self._tail[0]) >= self.limit:
            self._tail_size -= len(self._tail.popleft())
        self._later += data
        if len(self._later) > 2 * _LATER:
            cut = self._later.find(b"\n", len(self._later) - _LATER) + 1 or len(self._later) - _LATER
            lines, size = self._skipped
            self._skipped = lines + self._later.count(b"\n", 0, cut), size + cut
            del self._later[:cut]

    @staticmethod
    def _due(last: float) -> bool:
        return time.monotonic() - last >= _LATER_SECONDS

    def read(self, *, last: bool = False) -> str:
        text = self._cleaner.feed(bytes(self._live))
        self._live.clear()
        if self._later and (last or self._due(self._later_at)):
            if self._skipped[1]:
                text += self._cleaner.finish()
                text += gap_note(*self._skipped, after=text)
            text += self._cleaner.feed(bytes(self._later))
            self._later.clear()
            self._skipped = (0, 0)
            self._later_at = time.monotonic()
        return text

    def state(self) -> tuple[str, bool] | None:
        """What the unfinished line says, and whether the program has finished this state of it. None if there is nothing new.

        It is not part of the output: the program may still rewrite it.
        """
        state, complete = self._state
        if state == self._state_told or not self._due(self._state_at):
            return None
        self._state_told = state
        if not state:
            return None
        self._state_at = time.monotonic()
        return clean(state.decode("utf-8", "replace")), complete

    def finish(self) -> str:
        """Return the text that `read` has not returned yet. Call it when the stream has ended."""
        line, self._line = _last_state(self._line), b""
        self._state = self._state_told, True
        if line:
            self._store(line)
        return self.read(last=True) + self._cleaner.finish()

    def text(self, budget: int) -> str:
        """The output in at most ``budget`` bytes: all of it, or the beginning and the end with a note between them."""
        line = _last_state(self._line)
        head, tail = bytes(self._head), b"".join(self._tail)[-self.limit :] + line
        if not self._tail:
            head += line
            tail = b""
        kept = head + tail
        total = self.total
        if total <= budget and len(kept) == total:
            return _cut_to_budget(clean(kept.decode("utf-8", "replace")), budget)
        half = max(0, (budget - _NOTE) // 2)
        first = _cut(head[:half], at_end=True)
        last = _cut(kept[-half:] if half else b"", at_end=False)
        # Whole lines, unless a line is so long that most would be lost.
        if (end := first.rfind(b"\n") + 1) > len(first) // 2:
            first = first[:end]
        if 0 < (begin := last.find(b"\n") + 1) <= len(last) // 2:
            last = last[begin:]
        lines = self._lines - first.count(b"\n") - last.count(b"\n")
        text = clean(first.decode("utf-8", "replace"))
        note = gap_note(lines, total - len(first) - len(last), after=text)
        return _cut_to_budget(text + note + clean(last.decode("utf-8", "replace")), budget)

    def restart(self, limit: int) -> None:
        """Discard the stored bytes and store new output with this limit. `read` is not affected: an unfinished line belongs to
        what was stored until now, so readers get it too."""
        if line := _last_state(self._line):
            self._store(line)
        self._state = self._state_told, True
        self.limit = limit
        self._committed = 0
        self._lines = 0
        self._line = b""
        self._head.clear()
        self._tail.clear()
        self._tail_size = 0

    def last_line(self) -> str:
        """The last non-blank line of the stored output."""
        tail = (bytes(self._head) + b"".join(self._tail))[-self.limit :] + _last_state(self._line)
        lines = clean(tail.decode("utf-8", "replace")).rstrip().rsplit("\n", 1)
        return lines[-1]


_NOTE = 80
"""Bytes that a note about a gap may take."""


def _last_state(line: bytes) -> bytes:
    """What a line, without its end, says after its last carriage return that something follows."""
    line = line.rstrip(b"\r")
    return line[line.rfind(b"\r") + 1 :]


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
