"""Cleans and limits command output: the result is valid text without terminal control sequences.

Output from a sandbox is hostile. An escape sequence can move an editor's cursor, change a window title or act like
typed input. `Cleaner` turns bytes into text that is safe to display. `Collector` stores the first and the last part of
any amount of output, with the lines as a program left them: a line that it rewrote (a progress bar) counts once.
The colours of an output are beside its text (`types.styled`).
"""

from __future__ import annotations

import codecs
import re
import time
from collections import deque

from cantrip_acp.text.program_output import gap_note
from cantrip_acp.types.styled import (
    ESCAPE,
    NOTHING_SAID,
    PLAIN,
    SGR,
    Style,
    Styled,
    after,
    after_bytes,
    codes_in,
    join,
    over,
    params_of,
)

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


def separate(text: str, style: Style = PLAIN) -> tuple[Styled, Style]:
    """What `clean` makes of a text that begins in this style, with its colours beside it; and the style after it.

    >>> separate("\\x1b[31mred\\x1b[0m\\a")[0]
    Styled(text='red', changes=((0, '31'), (3, '')))
    """
    if "\x1b" not in text:
        text = clean(text)
        return Styled(text, ((0, params_of(style)),) if text and style != PLAIN else ()), style
    split = SGR.split(text)
    texts = split[::2]
    whole = "".join(texts)
    # Usually there are no other codes.
    if _SUSPECT.search(whole) or _BIDI_SEARCH.search(whole):
        # A code ends a string that is open before it.
        texts = [*(clean(f"{each}\x1b") for each in texts[:-1]), clean(texts[-1])]
        whole = "".join(texts)
    changes: list[tuple[int, str]] = []
    length, last = 0, PLAIN
    for piece, params in zip(texts, [*split[1::2], ""], strict=True):
        if piece:
            if style != last:
                changes.append((length, params_of(style)))
                last = style
            length += len(piece)
        style, before = after(style, params), style
    # No code follows the last text.
    return Styled(whole, tuple(changes)), before


class Cleaner:
    """Does what `clean` does for a stream. It joins sequences and characters that are cut between two pieces.

    `separate` keeps the colours; ``style`` is the style of what comes next. `feed` is for text without them.
    """

    __slots__ = ("_decoder", "_pending", "style")

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._pending = ""
        self.style = PLAIN

    def feed(self, data: bytes) -> str:
        return clean(self._whole(data))

    def separate(self, data: bytes) -> Styled:
        styled, self.style = separate(self._whole(data), self.style)
        return styled

    def _whole(self, data: bytes) -> str:
        """The text without an unfinished sequence at its end."""
        text = self._pending + self._decoder.decode(data)
        self._pending = ""
        unfinished = _UNFINISHED.search(text, max(0, len(text) - _HOLD))
        if unfinished:
            self._pending = unfinished[0]
            text = text[: unfinished.start()]
            if self._pending[0] == "\x1b":
                # It ends a string before it. Alone at the end of a text, it is removed.
                text += "\x1b"
        return text

    def finish(self) -> str:
        """Return the text of an unfinished sequence. Call it when the stream has ended."""
        return self.separate_rest().text

    def separate_rest(self) -> Styled:
        """Do what `finish` does, with the style of that text."""
        text = self._pending + self._decoder.decode(b"", final=True)
        self._pending = ""
        styled, self.style = separate(text, self.style)
        return styled


_LONG_LINE = 16_384
"""Bytes of an unfinished line that a program may still rewrite. What is before them in a longer line stays."""
_LATER = 4_096
"""Bytes of the newest output that a listener gets at once after the first ``limit`` bytes."""
_LATER_SECONDS = 0.25


_LEAST = 2_000


class Collector:
    """Stores one stream: the first ``limit`` bytes, and the last ``limit`` bytes of the rest.

    A carriage return begins the line again, so only the last state of a line is stored, however often it was rewritten.

    `read` returns the new text for a listener, cleaned: the whole first ``limit`` bytes, and then a few times a second the
    newest lines, with a note about the lines between. `state` is what the unfinished line says.

    What is left out may have changed the style of what follows it. So each place where something is left out has the
    style there: of a line that is rewritten, one code that does the same as all codes before; elsewhere a `Style`.
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
        "_popped",
        "_skipped",
        "_skipped_style",
        "_start_style",
        "_state",
        "_state_at",
        "_state_told",
        "_tail",
        "_tail_size",
        "_tail_style",
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
        self._skipped_style = NOTHING_SAID
        """The style after the codes in the skipped bytes."""
        self._start_style = PLAIN
        """The style of the first stored byte."""
        self._tail_style = PLAIN
        """The style at the beginning of the tail, if bytes before it are not stored."""
        self._popped = b""
        """The last of these bytes, because a code could be cut there."""
        self._state: tuple[bytes, bool] = (b"", True)
        self._state_told = b""
        self._state_at = 0.0

    @property
    def total(self) -> int:
        """The number of bytes of the output, with each line in its last state."""
        return self._committed + len(_collapsed(self._line))

    @property
    def waiting(self) -> int:
        """The number of bytes that `read` would return now."""
        return len(self._live) + (len(self._later) if self._later and self._due(self._later_at) else 0)

    @property
    def delayed(self) -> bool:
        """Whether `read` or `state` has something new that it has not returned yet, and soon will."""
        return bool(self._later) or self._state[0] != self._state_told

    def feed(self, data: bytes) -> None:
        data = self._line + data
        end = data.rfind(b"\n") + 1
        done, line = data[:end], data[end:]
        if b"\r" in done:
            done = b"\n".join([_collapsed(each) for each in done.split(b"\n")])
        if b"\r" in line:
            now = _collapsed(line)
            if line.endswith(b"\r"):
                self._state = now, True
                line = now + b"\r"
            else:
                before = line[: line.rfind(b"\r")]
                if not before.endswith(b"\r") and (last := _collapsed(before)):
                    self._state = last, True
                line = now
        else:
            self._state = (line, False)
        if len(line) > _LONG_LINE:
            returned = b"\r" if line.endswith(b"\r") else b""
            done += line.rstrip(b"\r")
            line = returned
            if not returned and (cut := _BEGUN_CODE.search(done, len(done) - 200)) is not None:
                done, line = done[: cut.start()], cut[0]
        self._line = line
        if done:
            self._store(done)

    def _store(self, data: bytes) -> None:
        self._committed += len(data)
        self._lines += data.count(b"\n")
        room = 0 if self._tail else self.limit - len(self._head)
        if room > 0:
            # A character or a code that does not fit belongs whole to what follows.
            first = data if len(data) <= room else _cut(data[:room], at_end=True)
            self._head += first
            self._live += first
            data = data[len(first) :]
        if not data:
            return
        self._tail.append(data)
        self._tail_size += len(data)
        while self._tail_size - len(self._tail[0]) >= self.limit:
            self._pop()
        self._later += data
        if len(self._later) > 2 * _LATER:
            cut = self._later.find(b"\n", len(self._later) - _LATER) + 1 or len(self._later) - _LATER
            lines, size = self._skipped
            self._skipped = lines + self._later.count(b"\n", 0, cut), size + cut
            if self._later.find(ESCAPE, 0, cut) >= 0:
                self._skipped_style = after_bytes(self._skipped_style, bytes(self._later[:cut]))
            del self._later[:cut]

    def _pop(self) -> None:
        """Drop the oldest bytes of the tail."""
        data = self._tail.popleft()
        self._tail_size -= len(data)
        if not self._popped:
            self._tail_style = after_bytes(self._start_style, bytes(self._head))
            self._popped = bytes(self._head[-_LONGEST_CODE:])
        # Codes that are read twice in a row have the same effect.
        self._tail_style = after_bytes(self._tail_style, self._popped + data[:_LONGEST_CODE])
        self._tail_style = after_bytes(self._tail_style, data)
        self._popped = (self._popped + data[-_LONGEST_CODE:])[-_LONGEST_CODE:]

    @staticmethod
    def _due(last: float) -> bool:
        return time.monotonic() - last >= _LATER_SECONDS

    def read(self, *, last: bool = False) -> Styled:
        parts = [self._cleaner.separate(bytes(self._live))]
        self._live.clear()
        if self._later and (last or self._due(self._later_at)):
            if self._skipped[1]:
                parts.append(self._cleaner.separate_rest())
                before = next((each.text for each in reversed(parts) if each.text), "")
                parts.append(Styled(gap_note(*self._skipped, after=before)))
                self._cleaner.style = over(self._cleaner.style, self._skipped_style)
            parts.append(self._cleaner.separate(bytes(self._later)))
            self._later.clear()
            self._skipped = (0, 0)
            self._skipped_style = NOTHING_SAID
            self._later_at = time.monotonic()
        return join(parts)

    def state(self) -> tuple[Styled, bool] | None:
        """The text of the unfinished line, and whether the program has finished this state of it. None if there is nothing
        new.

        It is not part of the output: the program may still rewrite it.
        """
        state, complete = self._state
        if state == self._state_told or not self._due(self._state_at):
            return None
        self._state_told = state
        if not state:
            return None
        self._state_at = time.monotonic()
        style = after_bytes(over(self._cleaner.style, self._skipped_style), bytes(self._live + self._later))
        return separate(state.decode("utf-8", "replace"), style)[0], complete

    def finish(self) -> Styled:
        """Return the text that `read` has not returned yet. Call it when the stream has ended."""
        line, self._line = _collapsed(self._line), b""
        self._state = self._state_told, True
        if line:
            self._store(line)
        return join([self.read(last=True), self._cleaner.separate_rest()])

    def text(self, budget: int) -> Styled:
        """The output in at most ``budget`` bytes: all of it, or the beginning and the end with a note between them."""
        line = _collapsed(self._line)
        head, tail = bytes(self._head), b"".join(self._tail)[-self.limit :] + line
        if not self._tail:
            head += line
            tail = b""
        kept = head + tail
        total = self.total
        if total <= budget and len(kept) == total:
            return _cut_to_budget(self._separate(kept, self._start_style).bounded(), budget)
        half = max(0, (budget - _NOTE) // 2)
        first = _cut(head[:half], at_end=True)
        last = _cut(kept[-half:] if half else b"", at_end=False)
        # Whole lines, unless a line is so long that most would be lost.
        if (end := first.rfind(b"\n") + 1) > len(first) // 2:
            first = first[:end]
        if 0 < (begin := last.find(b"\n") + 1) <= len(last) // 2:
            last = last[begin:]
        lines = self._lines - first.count(b"\n") - last.count(b"\n")
        beginning = self._separate(first, self._start_style)
        note = Styled(gap_note(lines, total - len(first) - len(last), after=beginning.text))
        end_style = self._style_at(len(kept) - len(last), head, tail)
        return _cut_to_budget(join([beginning, note, self._separate(last, end_style)]).bounded(), budget)

    @staticmethod
    def _separate(data: bytes, style: Style) -> Styled:
        return separate(data.decode("utf-8", "replace"), style)[0]

    def _style_at(self, place: int, head: bytes, tail: bytes) -> Style:
        """The style of a byte of ``head + tail``."""
        if place <= len(head):
            return after_bytes(self._start_style, head[:place])
        # The tail has the last `limit` bytes of what is stored.
        unused = b"".join(self._tail)[: -self.limit]
        before = unused + tail[: place - len(head)]
        if self._popped:
            return after_bytes(self._tail_style, self._popped + before)
        return after_bytes(self._start_style, head + before)

    def restart(self, limit: int) -> None:
        """Discard the stored bytes and store new output with this limit. `read` is not affected: an unfinished line belongs to
        what was stored until now, so readers get it too."""
        if line := _collapsed(self._line):
            self._store(line)
        stored = b"".join(self._tail)
        style = self._tail_style if self._popped else after_bytes(self._start_style, bytes(self._head))
        self._start_style = after_bytes(style, (self._popped or bytes(self._head[-_LONGEST_CODE:])) + stored)
        self._popped = b""
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

    def share(self, err: Collector, limit: int) -> tuple[Styled, Styled, bool]:
        """The text of this stream and of standard error, together at most ``limit`` bytes, and whether something was left self.

        If a stream needs less than half of the limit, the other stream gets the rest.
        """
        if self.total + err.total <= limit:
            out_text, err_text = self.text(limit), err.text(limit)
            if len(out_text.text.encode()) + len(err_text.text.encode()) <= limit:
                return out_text, err_text, False
        half = limit // 2
        err_budget = min(err.total, max(half, limit - self.total))
        out_text = self.text(limit - err_budget)
        err_text = err.text(err_budget)
        return out_text, err_text, True

    def part(self, err: Collector, limit: int) -> tuple[Styled, Styled, bool, int]:
        """The output of both streams so far, as `share` returns it for half of ``limit``, and the limit for later output.

        Each call uses half of the remaining limit. So the end of an output is always included.
        """
        stdout, stderr, truncated = self.share(err, max(limit // 2, _LEAST))
        rest = max(limit - len(stdout.text.encode()) - len(stderr.text.encode()), _LEAST)
        self.restart(rest)
        err.restart(rest)
        return stdout, stderr, truncated, rest


_LONGEST_CODE = 204
"""Bytes of a code for colours (`types.styled.SGR`)."""
_BEGUN_CODE = re.compile(rb"\x1b(?:\[[0-9;:]*)?\Z")

_NOTE = 80
"""Bytes that a note about a gap may take."""


def _last_state(line: bytes) -> bytes:
    """The visible state of a line: the text after its last carriage return that text follows. The line is without its end."""
    line = line.rstrip(b"\r")
    return line[line.rfind(b"\r") + 1 :]


def _collapsed(line: bytes) -> bytes:
    """The last state of a line, in the colours that the text before it has left."""
    last = _last_state(line)
    if not last or len(last) == len(line):
        return last
    return codes_in(line[: len(line.rstrip(b"\r")) - len(last)]) + last


def _cut(data: bytes, *, at_end: bool) -> bytes:
    """The data without an incomplete UTF-8 character at the end or at the beginning, and without a begun code at the end."""
    if at_end:
        if (begun := _BEGUN_CODE.search(data, max(0, len(data) - _LONGEST_CODE))) is not None:
            return data[: begun.start()]
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


def _cut_to_budget(styled: Styled, budget: int) -> Styled:
    """Cut text to ``budget`` bytes. A replacement character takes three bytes for one, so cleaned text can be longer."""
    data = styled.text.encode("utf-8", "replace")
    if len(data) <= budget:
        return styled
    return styled.part(0, len(_cut(data[:budget], at_end=True).decode("utf-8", "replace")))
