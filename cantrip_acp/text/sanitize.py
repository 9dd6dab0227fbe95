"""Sanitizing: makes text from an agent, a model or a command safe to write to a terminal.

Such text may contain escape sequences that move the cursor, change the title, write the clipboard or answer for the
user. It may also contain invisible characters that make a line look different from what it does. The cleaned text has
only printable characters, newlines and tabs.
"""

from __future__ import annotations

import json
import re
from typing import Final

from cantrip_acp.text.redaction import beginning
from cantrip_acp.types.styled import PLAIN, SGR, Styled, after, join, params_of

# All characters that need a closer look: C0 and C1 controls except newline and tab, DEL, line separators, surrogates,
# bidirectional overrides and isolates, and the invisible tag characters.
_SUSPECT: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff\U000e0000-\U000e007f]"
)

_STRING_STARTS_7BIT: Final = frozenset("]PX^_")
_STRING_STARTS_8BIT: Final = frozenset("\x9d\x90\x98\x9e\x9f")
_LONGEST_SEQUENCE: Final = 4096

_MENTION: Final = re.compile(r"\[@((?:(?!\]\()[^\n])*)\]\([^()\s]*\)")
_LINKS_AT_END: Final = re.compile(r"(?:\s*\[@(?:(?!\]\(|\[@)[^\n])*\]\([^()\s]*\))*\s*\Z")

_LONGEST_CODE: Final = 204
_BEGUN_CODE: Final = re.compile(r"\x1b(?:\[[0-9;:]*)?\Z")

_TEXT, _ESCAPE, _CSI, _STRING, _STRING_ESCAPE, _INTERMEDIATE = range(6)


class Cleaner:
    """Cleans text that comes in pieces. An escape sequence that is split over two pieces is recognized."""

    def __init__(self) -> None:
        self._state = _TEXT
        self._length = 0
        self._carriage_return = False

    def feed(self, text: str) -> str:
        """The printable part of the next piece.

        A lone carriage return becomes a newline, so that it overwrites nothing.
        """
        if self._state == _TEXT and not self._carriage_return and _SUSPECT.search(text) is None:
            return text
        out: list[str] = []
        place = 0
        while place < len(text):
            if self._state == _TEXT and not self._carriage_return:
                suspect = _SUSPECT.search(text, place)
                end = len(text) if suspect is None else suspect.start()
                out.append(text[place:end])
                if suspect is None:
                    break
                place = end
            self._step(text[place], out)
            place += 1
        return "".join(out)

    def close(self) -> str:
        """The text that was held back at the end (at most one newline)."""
        held = "\n" if self._carriage_return else ""
        self._state = _TEXT
        self._carriage_return = False
        return held

    def _step(self, character: str, out: list[str]) -> None:
        if self._carriage_return:
            self._carriage_return = False
            out.append("\n")
            if character == "\n":
                return
        if self._state == _TEXT:
            self._text(character, out)
            return
        self._length += 1
        # A sequence ends at a line's end or after a few thousand characters. So an unfinished one (by accident, or to
        # hide what follows) cannot swallow the rest of the output.
        if character == "\n" or self._length > _LONGEST_SEQUENCE:
            self._state = _TEXT
            self._text(character, out)
        elif self._state == _ESCAPE:
            self._escape(character)
        elif self._state == _INTERMEDIATE:
            self._state = _INTERMEDIATE if "\x20" <= character <= "\x2f" else _TEXT
        elif self._state == _CSI:
            if character == "\x1b":
                self._begin(_ESCAPE)
            elif not "\x20" <= character <= "\x3f":
                self._state = _TEXT
        elif self._state == _STRING:
            if character in "\x07\x9c":
                self._state = _TEXT
            elif character == "\x1b":
                self._state = _STRING_ESCAPE
        elif character == "\\":
            self._state = _TEXT
        else:
            self._escape(character)

    def _escape(self, character: str) -> None:
        if character == "[":
            self._begin(_CSI)
        elif character in _STRING_STARTS_7BIT:
            self._begin(_STRING)
        elif "\x20" <= character <= "\x2f":
            self._state = _INTERMEDIATE
        elif character != "\x1b":
            self._state = _TEXT

    def _begin(self, state: int) -> None:
        self._state = state
        self._length = 0

    def _text(self, character: str, out: list[str]) -> None:
        if _SUSPECT.match(character) is None:
            out.append(character)
        elif character == "\x1b":
            self._begin(_ESCAPE)
        elif character == "\x9b":
            self._begin(_CSI)
        elif character in _STRING_STARTS_8BIT:
            self._begin(_STRING)
        elif character == "\r":
            self._carriage_return = True
        elif character in "\u2028\u2029":
            out.append("\n")
        elif character > "\x9f" and character < "\U000e0000":
            out.append("\ufffd")


class StyledCleaner:
    """Cleans text that comes in pieces as `Cleaner` does, and keeps its colours beside it."""

    def __init__(self) -> None:
        self._cleaner = Cleaner()
        self._style = PLAIN
        self._begun = ""
        """A code that is cut at the end of the last piece."""

    def feed(self, text: str) -> Styled:
        """The printable part of the next piece with its colours."""
        if not self._begun and "\x1b" not in text:
            return self._styled(self._cleaner.feed(text))
        text = self._begun + text
        begun = _BEGUN_CODE.search(text, max(0, len(text) - _LONGEST_CODE))
        self._begun = "" if begun is None else begun[0]
        text = text[: len(text) - len(self._begun)]
        pieces: list[Styled] = []
        at = 0
        for code in SGR.finditer(text):
            pieces.append(self._styled(self._cleaner.feed(text[at : code.end()])))
            self._style = after(self._style, code[1])
            at = code.end()
        return join([*pieces, self._styled(self._cleaner.feed(text[at:]))])

    def close(self) -> Styled:
        """What was held back at the end of the text."""
        begun, self._begun = self._begun, ""
        return self._styled(self._cleaner.feed(begun) + self._cleaner.close())

    def _styled(self, text: str) -> Styled:
        params = params_of(self._style)
        return Styled(text, ((0, params),) if params and text else ())


def clean(text: str) -> str:
    """A whole text, made safe for a terminal."""
    cleaner = Cleaner()
    return cleaner.feed(text) + cleaner.close()


def escaped_json(text: str) -> str:
    r"""JSON in which the characters that a terminal would obey, or that hide, are escapes. Its value is the same.

    >>> escaped_json('{"intent": "a\u202eb"}')
    '{"intent": "a\\u202eb"}'
    """
    return _SUSPECT.sub(lambda found: json.dumps(found[0])[1:-1], text)


def without_links(text: str) -> str:
    """A prompt as people wrote it: a mention is ``@name``, and the links that a client adds at the end for names that are
    already in the text are left out.

    >>> without_links("explain @a.py and @b.py[@a.py](file:///w/a.py) [@b.py](file:///w/b.py)")
    'explain @a.py and @b.py'
    >>> without_links("look at [@a.py](file:///w/a.py) here")
    'look at @a.py here'
    """
    if "[@" not in text:
        return text
    links = _LINKS_AT_END.search(text)
    assert links is not None
    own = _MENTION.sub(r"@\1", text[: links.start()]).rstrip()
    names = [f"@{name}" for name in _MENTION.findall(links[0])]
    return " ".join([own, *(name for name in names if name not in own)]).strip()


def clean_line(text: str, limit: int = 400) -> str:
    """A text for one line (a title, a name): cleaned, with white space collapsed, cut at `limit` characters."""
    line = " ".join(clean(beginning(text, limit * 8)).split())
    return line if len(line) <= limit else beginning(line, limit - 1) + "…"
