"""Text search in the turns of a loom, in short steps: the page names where to continue, and ends the search by not
asking.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import Any

from cantrip_acp.loom.records.turn import Turn
from cantrip_acp.loom.view import summary

AROUND = 60
"""The number of characters displayed before and after a match."""


def matches(turn: Turn, wanted: str) -> dict[str, Any] | None:
    """Where a turn contains the words (in lower case); None where it does not."""
    for place, text in summary.texts(turn):
        found = found_in(text, wanted)
        if found is not None:
            return {"in": place, **found}
    return None


def found_in(text: str, wanted: str) -> dict[str, str] | None:
    """The text before, at and after the first match."""
    # Lower case may be longer than the text (İ). Then the position is a guess, and the match is still reported.
    at = text.lower().find(wanted)
    if at < 0:
        return None
    end = at + len(wanted)
    before, after = text[max(0, at - AROUND) : at], text[end : end + AROUND]
    return {"before": _joined(before), "match": text[at:end], "after": _joined(after)}


def _joined(text: str) -> str:
    """The text on one line; a space stays at its start or end."""
    return re.sub(r"\s+", " ", text)


class Patience:
    """The time limit of one answer."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    @property
    def over(self) -> bool:
        return time.monotonic() >= self._end


def page(numbers: Sequence[int], turns: Sequence[Turn], wanted: str) -> list[dict[str, Any]]:
    """The hits among some turns."""
    hits = []
    for number, turn in zip(numbers, turns, strict=True):
        hit = matches(turn, wanted)
        if hit is not None:
            hits.append({"n": number, **hit})
    return hits
