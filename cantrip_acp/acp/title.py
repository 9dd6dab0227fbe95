"""A session's title from what its user first asked: by rule, so it costs no query and is there at once."""

from __future__ import annotations

import re

LONGEST = 60

_FENCE = re.compile(r"(```|~~~).*?(\1|\Z)", re.DOTALL)
_LINK = re.compile(r"!?\[@?([^\]\n]*)\]\([^)\n]*\)")
_TAG = re.compile(r"</?[A-Za-z][^>\n]{0,200}>")
_MARKS = re.compile(r"^[\s>#*+-]+|`+|(?<!\w)[*_]{1,3}(?=\S)|(?<=\S)[*_]{1,3}(?!\w)", re.MULTILINE)
_COURTESY = re.compile(
    r"^(?:(?:hi|hello|hey|ok|okay|so|now|well|please|kindly|thanks|(?:can|could|would|will) you(?: please)?|"
    r"i(?:'d| would) like you to|i want you to|i need you to|let's|help me(?: to)?)\b[\s,!.:;-]*)+",
    re.IGNORECASE,
)
_SENTENCE = re.compile(r"(?<=[^\s.]{2})[.!?](?=\s|\Z)|[。！？]")


def title_of(intent: str) -> str | None:
    """The first thing that was asked, in at most `LONGEST` characters; None where nothing can be read.

    >>> title_of("Hi! Could you please fix the failing test in `tests/test_app.py`? It broke today.")
    'Fix the failing test in tests/test_app.py'
    """
    text = _LINK.sub(r"\1", _TAG.sub(" ", _FENCE.sub(" ", intent[:5_000])))
    lines = [_MARKS.sub("", line).strip() for line in text.splitlines()]
    text = " ".join(next((line for line in lines if len(line) > 2), " ".join(lines)).split())
    bare = _COURTESY.sub("", text)
    text = bare if len(bare) > 3 else text
    end = _SENTENCE.search(text, 8)
    if end is not None:
        text = text[: end.start()]
    text = "".join(c for c in text if c.isprintable()).strip(" \t.,;:!?-–—")
    if len(text) > LONGEST:
        cut = text[: LONGEST - 1]
        head, space, _ = cut.rpartition(" ")
        text = (head if space and len(head) > LONGEST // 2 else cut).rstrip(" ,;:-–—") + "…"
    return text[:1].upper() + text[1:] if text else None
