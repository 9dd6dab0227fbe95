"""The text of an answer while it streams: thinking in tags is taken out, calls in text are held back from the reader."""

from __future__ import annotations

import re
from collections.abc import Collection

from cantrip_acp.crystals.contract import Delta
from cantrip_acp.crystals.text_tools.parse import Found, read_calls
from cantrip_acp.crystals.text_tools.prompt import FENCE, RESULT

THINK_TAGS = ("think", "thinking", "thought", "reasoning", "seed:think")
"""Elements in which models think, where their server does not take it out."""

_OPEN = {f"<{tag}>": f"</{tag}>" for tag in THINK_TAGS} | {"◁think▷": "◁/think▷", "[THINK]": "[/THINK]"}
_LOST = re.compile(r"\A(.*?)</think>\s*", re.DOTALL)
"""Thinking whose opening tag is part of the prompt, as templates of some models have it."""

_CALL = re.compile(rf"(`{{3,}}|~{{3,}})[ \t]*{FENCE}", re.IGNORECASE)


class Spoken:
    """Takes the text of one answer piece by piece.

    ``names`` are the tools whose calls the model was asked to write as text; without any, text is text and nothing in it is
    a call. ``tags``: look for thinking in tags.
    """

    def __init__(self, names: Collection[str], *, tags: bool) -> None:
        self._names = names
        self._tags = tags
        self._text: list[str] = []
        self._thoughts: list[str] = []
        self._state = "start" if tags else "text"
        self._close = ""
        self._pending = ""
        self._shown: list[str] = []
        self._waiting = ""
        self._line_begins = True
        self._held = False

    def feed(self, piece: str) -> list[Delta]:
        """What can be shown after this piece."""
        self._pending += piece
        out: list[Delta] = []
        if self._state == "start":
            self._begin()
        if self._state == "thinking":
            out += self._think()
        if self._state == "after":
            # Blank lines between thinking and answer belong to neither.
            self._pending = self._pending.lstrip()
            if self._pending:
                self._state = "text"
        if self._state == "text":
            fresh, self._pending = self._pending, ""
            self._text.append(fresh)
            out += self._show(fresh)
        return out

    def finish(self) -> tuple[list[Delta], str | None, str | None, tuple[Found, ...]]:
        """What is still to be shown, and the whole: thinking, the text as it was generated, the calls in it."""
        out: list[Delta] = []
        if self._state == "thinking":
            # It never closed: cut off while thinking.
            self._thoughts.append(self._pending)
            out.append(Delta("thought", self._pending))
        elif self._pending:
            self._text.append(self._pending)
        text = "".join(self._text)
        if self._tags and not self._close and (lost := _LOST.match(text)) is not None:
            self._thoughts.append(lost.group(1))
            text = text[lost.end() :]
        words: str | None = text
        calls: tuple[Found, ...] = ()
        if self._names:
            reading = read_calls(text)
            words, calls = reading.words, reading.calls
        shown = "".join(self._shown)
        if calls:
            shown = shown.strip()
        if words is not None and words.startswith(shown):
            # What was held back, and is no call after all.
            out.append(Delta("text", words[len(shown) :]))
        content = text if text.strip() or not self._names else None
        return [d for d in out if d.text], "".join(self._thoughts).strip() or None, content or None, calls

    def _begin(self) -> None:
        """At the very start: does it open with a tag? Waits while that is not clear."""
        head = self._pending.lstrip()
        for opening, closing in _OPEN.items():
            if head.startswith(opening):
                self._state, self._close = "thinking", closing
                self._pending = head[len(opening) :].lstrip("\n")
                return
        if not any(opening.startswith(head) for opening in _OPEN):
            self._state = "text"

    def _think(self) -> list[Delta]:
        before, found, after = self._pending.partition(self._close)
        if found:
            self._state, self._pending = "after", after
        else:
            # The end may be the beginning of the closing tag.
            keep = _overlap(before, self._close)
            before, self._pending = before[: len(before) - keep], before[len(before) - keep :]
        if not before:
            return []
        self._thoughts.append(before)
        return [Delta("thought", before)]

    def _show(self, fresh: str) -> list[Delta]:
        self._waiting += fresh
        if self._held:
            return []
        cut, self._held = self._first_mark() if self._names else (len(self._waiting), False)
        ready, self._waiting = self._waiting[:cut], self._waiting[cut:]
        if not ready:
            return []
        self._shown.append(ready)
        self._line_begins = ready.endswith("\n")
        return [Delta("text", ready)]

    def _first_mark(self) -> tuple[int, bool]:
        """Where showing must stop, and whether for good: the beginning of a call, or of what may become one."""
        waiting = self._waiting
        at = 0 if self._line_begins else waiting.find("\n") + 1
        if not self._line_begins and not at:
            return len(waiting), False
        while True:
            end = waiting.find("\n", at)
            head = (waiting[at:] if end < 0 else waiting[at:end]).lstrip(" \t")
            if head.startswith(RESULT) or _CALL.match(head):
                return at, True
            if end < 0:
                return (at if _may_become_a_mark(head) else len(waiting)), False
            at = end + 1


def _may_become_a_mark(head: str) -> bool:
    """Whether a line that begins like this, and goes on, may begin a call or an invented result."""
    if RESULT.startswith(head):
        return True
    tag = head.lstrip(head[:1])
    fence = len(head) - len(tag)
    if head[:1] not in ("`", "~"):
        return False
    return not tag or (fence >= 3 and FENCE.startswith(tag.lstrip(" \t").lower()))


def _overlap(text: str, closing: str) -> int:
    """How many characters at the end of ``text`` may begin ``closing``."""
    for length in range(min(len(text), len(closing) - 1), 0, -1):
        if closing.startswith(text[-length:]):
            return length
    return 0
