"""Filters for threads: by intent, outcome, reward, gate, text, time and model."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from cantrip_acp.core.errors import DefinitionError

if TYPE_CHECKING:
    from cantrip_acp.loom.query.listing import ThreadLine
    from cantrip_acp.loom.records.turn import Turn

_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_COMPARISON = re.compile(rf"(>=|<=|!=|==|=|>|<)?\s*({_NUMBER})")
_SPAN = re.compile(rf"({_NUMBER})\s*\.\.\s*({_NUMBER})")
_AGO = re.compile(r"(\d{1,6})\s*([smhdw])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "=": operator.eq,
    "==": operator.eq,
    "!=": operator.ne,
    "": operator.eq,
}


@dataclass(frozen=True, slots=True)
class Wanted:
    """A filter for threads. Every given condition must hold; texts match in upper and lower case.

    - ``intent``: part of the intent of any of its casts.
    - ``outcome``: a reason, or terminated, truncated, active.
    - ``reward``: a test of its reward, which may be None (`rewarded`).
    - ``gate``: called in any of its turns.
    - ``text``: part of what was said, run or observed in any of its turns.
    - ``since`` and ``until`` (with a time zone, `when`): the time of its last turn.
    - ``model``: part of the model's name.
    """

    intent: str | None = None
    outcome: str | None = None
    reward: Callable[[float | None], bool] | None = None
    gate: str | None = None
    text: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    model: str | None = None

    def fits(self, line: ThreadLine) -> bool:
        """Whether a thread's line has the wanted outcome, model and time. The other conditions cannot be checked on a
        line."""
        if self.outcome is not None and self.outcome not in (line.outcome, line.state):
            return False
        if self.model is not None and self.model.casefold() not in (line.model or "").casefold():
            return False
        if self.since is None and self.until is None:
            return True
        ended = moment(line.ended)
        if ended is None or (self.since is not None and ended < self.since):
            return False
        return self.until is None or ended <= self.until


def rewarded(text: str) -> Callable[[float | None], bool]:
    """Parse a test of rewards: ``>0.5``, ``<=-1``, ``0.2..0.8`` (both included), ``1``, ``none``, ``any``.

    Raises `DefinitionError` for anything else. A missing reward is neither above nor below a number.
    """
    words = text.strip().lower()
    if words in ("none", "any"):
        return lambda reward: (reward is None) == (words == "none")
    span = _SPAN.fullmatch(words)
    if span is not None:
        low, high = float(span[1]), float(span[2])
        return lambda reward: reward is not None and low <= reward <= high
    found = _COMPARISON.fullmatch(words)
    if found is None:
        raise DefinitionError(f"{text!r} is no comparison of rewards; write such as '>0.5', '0.2..0.8', none or any")
    compare, number = _OPERATORS[found[1] or ""], float(found[2])
    return lambda reward: reward is not None and compare(reward, number)


def when(text: str, *, end: bool = False) -> datetime:
    """Parse a time: ``2h`` (that long ago: s, m, h, d, w), or a day or time in ISO 8601 (local where it has no zone).

    ``end``: a day means its last moment. Raises `DefinitionError`.
    """
    words = text.strip()
    ago = _AGO.fullmatch(words.lower())
    try:
        if ago is not None:
            return datetime.now(UTC) - timedelta(seconds=int(ago[1]) * _SECONDS[ago[2]])
        found = datetime.fromisoformat(words)
        if end and re.fullmatch(r"\d{4}-?\d\d-?\d\d", words):
            found += timedelta(days=1, microseconds=-1)
        return found if found.tzinfo is not None else found.astimezone()
    except (ValueError, OverflowError, OSError):
        raise DefinitionError(
            f"{text!r} is no time; write such as 2h or 7d (ago), 2026-11-21 or 2026-11-21T08:30"
        ) from None


def moment(text: str) -> datetime | None:
    """Parse a record's time; None where it cannot be read."""
    try:
        found = datetime.fromisoformat(text)
        return found if found.tzinfo is not None else found.astimezone()
    except (ValueError, OverflowError, OSError):
        return None


def words(turn: Turn) -> str:
    """All text that was said, run and observed in a turn, case-folded, for a text search."""
    said, seen = turn.utterance, turn.observation
    parts = [said.content or "", said.thinking or "", said.code or ""]
    for call in said.tool_calls:
        parts += _texts(call.args)
    for record in seen.results:
        parts += _texts(record.args)
        parts += _texts(record.result)
    outputs = seen.outputs if seen.outputs is not msgspec.UNSET and seen.outputs else (seen.output,)
    for output in outputs:
        if output is not None:
            parts += [output.stdout, output.stderr, output.error or "", *_texts(output.value)]
    return "\n".join(parts).casefold()


def _texts(value: Any) -> Iterator[str]:
    waiting = [value]
    while waiting:
        held = waiting.pop()
        if isinstance(held, str):
            yield held
        elif isinstance(held, dict):
            waiting += [*held.values(), *held.keys()]
        elif isinstance(held, list | tuple):
            waiting += held
        elif held is not None:
            yield str(held)
