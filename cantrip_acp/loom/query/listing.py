"""Thread listing: one line of figures for each thread of a loom, with filters.

Even a hundred thousand turns are listed without reading every body. Heads give the tree; the start and end of each cast
give intent and usage. Bodies are read for each thread's last turn and for casts that a fork or a crash cut in two. All
turns are read only where a filter asks for a gate or a text.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from cantrip_acp.loom import rewards
from cantrip_acp.loom.query.outline import Outline
from cantrip_acp.loom.query.thread import Endings, State
from cantrip_acp.types.errors import DefinitionError, TurnNotFound
from cantrip_acp.types.usage import NO_USAGE, Usage

if TYPE_CHECKING:
    from cantrip_acp.loom.loom import Loom
    from cantrip_acp.types.records import CastRecord, Turn


class Spent(msgspec.Struct, frozen=True):
    """What queries used, and the time in seconds."""

    usage: Usage = NO_USAGE
    seconds: float = 0.0

    def __add__(self, other: Spent) -> Spent:
        return Spent(self.usage + other.usage, self.seconds + other.seconds)

    def record(self) -> dict[str, Any]:
        """As JSON data; unknown values are null, with the number of queries where something is unknown."""
        used = self.usage
        return {
            "tokens": used.total_tokens,
            "tokens_prompt": used.prompt_tokens,
            "tokens_completion": used.completion_tokens,
            "tokens_cached": used.cached_tokens,
            "cost": used.cost,
            **used.unknown(),
            "seconds": round(self.seconds, 6),
        }


class ThreadLine(msgspec.Struct, frozen=True):
    """One thread. ``leaf`` is the id of its last turn; ``intent``, ``model`` and ``started`` are those of its last
    cast.

    ``outcome`` is the reason that its last cast ended with, ``interrupted`` if its process ended first, or
    ``active``. ``state`` is terminated, truncated or active (`thread.Endings`). ``turns``, ``casts``, ``children`` and
    ``spent`` count from the root; for a child's thread, from where it was spawned. What a fork shares with its origin
    counts in both. ``forked_from`` and ``parent`` are ids of turns; a fork of a child's thread has no ``parent``.
    """

    leaf: str
    intent: str | None
    state: State
    outcome: str
    reward: float | None
    relative: float | None
    turns: int
    casts: int
    children: int
    spent: Spent
    model: str | None
    started: str
    ended: str
    entity_id: str
    forked_from: str | None = None
    parent: str | None = None

    def record(self) -> dict[str, Any]:
        """As JSON data."""
        data: dict[str, Any] = msgspec.to_builtins(self)
        del data["spent"]
        return {**data, **self.spent.record()}


@dataclass(frozen=True, slots=True)
class _Sums:
    """The sums of a thread up to a turn."""

    turns: int = 0
    casts: int = 0
    children: int = 0
    rewards: int = 0
    total: float = 0.0
    matches: bool = False
    """Whether the intent of any cast so far is the wanted one."""
    head: str = ""
    """The first turn of the current cast."""
    length: int = 0
    """The number of crystal turns of that cast so far."""
    forked_from: str | None = None
    parent: str | None = None


class Listing:
    """The threads of a loom at the time of creation."""

    def __init__(self, loom: Loom, *, outline: Outline | None = None) -> None:
        self.loom = loom
        self.outline = outline if outline is not None else Outline(loom)
        self._cast_turns: dict[str, int] = {}
        for place in self.outline.places.values():
            if place.is_utterance and place.cast_id is not None:
                self._cast_turns[place.cast_id] = self._cast_turns.get(place.cast_id, 0) + 1
        self._endings = Endings(loom, self.outline.starts)
        self._ends: dict[str, CastRecord | None] = {}
        self._usage: dict[str, Spent] = {}
        self._within: dict[str, Spent] = {}
        self._sums: dict[str, _Sums] = {}

    def line(self, leaf_id: str) -> ThreadLine:
        """One thread's line. Raises `TurnNotFound`."""
        leaf = self.loom.turn(leaf_id)
        if not self._sums:
            self._compute_sums(None)
        return self._line(leaf)

    def spent(self, turn_id: str) -> Spent:
        """The tokens, cost and time of the whole path to a turn, that turn included. Raises `TurnNotFound`."""
        if turn_id not in self.outline.places:
            raise TurnNotFound(f"no turn {turn_id!r} in this loom")
        if not self._sums:
            self._compute_sums(None)
        return self._spent_until(turn_id)

    def lines(self, wanted: ThreadFilter | None = None) -> Iterator[ThreadLine]:
        """Yield the lines of all threads that match the filter, the most recently written first. A cast that ended before its
        first turn, of an entity without another one, is a thread that has only its call."""
        wanted = wanted if wanted is not None else ThreadFilter()
        self._compute_sums(wanted.intent)
        silent = [line for line in self._silent_roots() if wanted.matches_without_turns(line)]
        held = self._matching_turns(wanted)
        for leaf_id in reversed(self._last_turns()):
            sums = self._sums[leaf_id]
            if wanted.intent is not None and not sums.matches:
                continue
            if wanted.reward is not None and not wanted.reward(self._reward(leaf_id, sums)):
                continue
            if held is not None and leaf_id not in held:
                continue
            line = self._line(self.loom.turn(leaf_id))
            if wanted.matches(line):
                while silent and silent[-1].started > line.ended:
                    yield silent.pop()
                yield line
        yield from reversed(silent)

    def _silent_roots(self) -> Iterator[ThreadLine]:
        for call_id, start in self.outline.silent_roots:
            ending, end = self._endings.cast(start.id), self._end(start.id)
            model = start.attributes.get("model")
            yield ThreadLine(
                leaf=call_id or "",
                intent=start.intent,
                state=ending.state,
                outcome=ending.outcome,
                reward=None,
                relative=None,
                turns=0,
                casts=1,
                children=0,
                spent=Spent() if end is None else _spent_of(start, end),
                model=None if model is None else str(model),
                started=start.timestamp,
                ended=start.timestamp if end is None else end.timestamp,
                entity_id=start.entity_id,
            )

    def _last_turns(self) -> list[str]:
        """The last turns of all threads, and the ``call`` turns of children that ended before their first turn."""
        silent = {i for i in self.outline.silent_children if self.outline.cast_of_silent(i) is not None}
        if not silent:
            return self.outline.leaves
        wanted = silent.union(self.outline.leaves)
        return [turn_id for turn_id in self.outline.places if turn_id in wanted]

    def _compute_sums(self, intent: str | None) -> None:
        """Compute each turn's sums from those of its parent, in one pass: parents come before their turns."""
        outline, starts = self.outline, self.outline.starts
        own = outline.follows
        spawned_at = {head: at for at, heads in outline.spawned.items() for head in heads}
        fits = {c for c, s in starts.items() if intent is not None and intent.casefold() in (s.intent or "").casefold()}
        sums: dict[str, _Sums] = {}
        self._sums = sums
        nothing = _Sums()
        for turn_id, place in outline.places.items():
            above = sums[place.parent_id] if turn_id in own and place.parent_id is not None else nothing
            parent_cast = outline.places[place.parent_id].cast_id if above is not nothing and place.parent_id else None
            same = place.cast_id is not None and place.cast_id == parent_cast
            reward = self.loom.reward(turn_id)
            cast_id = place.cast_id
            if place.role == "call" and (begun := outline.cast_of_silent(turn_id)) is not None:
                cast_id = begun.id
            speaks = place.is_utterance
            forked = above.forked_from
            if place.parent_id is not None and above is not nothing and outline.next[place.parent_id][0] != turn_id:
                # At a call, new casts begin and are no forks. Elsewhere, every follower but the first is a fork.
                forked = place.parent_id if outline.places[place.parent_id].role != "call" else forked
            sums[turn_id] = _Sums(
                above.turns + speaks,
                above.casts + (place.cast_id is not None and not same),
                above.children + len(outline.spawned.get(turn_id, ())),
                above.rewards + (reward is not None),
                above.total + (reward or 0.0),
                above.matches or (cast_id in fits),
                above.head if same else turn_id,
                (above.length if same else 0) + speaks,
                forked,
                spawned_at.get(turn_id, above.parent),
            )

    def _reward(self, leaf_id: str, sums: _Sums) -> float | None:
        graded = rewards.grade(self.loom, leaf_id)
        if graded is not None:
            return graded
        return sums.total if sums.rewards and math.isfinite(sums.total) else None

    def _line(self, leaf: Turn) -> ThreadLine:
        sums = self._sums[leaf.id]
        ending = self._endings.thread(leaf)
        start = self.outline.starts.get(ending.cast_id or "")
        model = start.attributes.get("model") if start is not None else None
        forked_from, parent = sums.forked_from, sums.parent
        if parent is not None and (fork := self.loom.fork_of(leaf.entity_id)) is not None:
            # The fork of a child's thread is no child: nobody waits for its answer.
            forked_from, parent = forked_from or fork.from_turn, None
        return ThreadLine(
            leaf=leaf.id,
            intent=start.intent if start is not None else None,
            state=ending.state,
            outcome=ending.outcome,
            reward=self._reward(leaf.id, sums),
            relative=rewards.relative_of(self.loom, leaf.id),
            turns=sums.turns,
            casts=sums.casts,
            children=sums.children,
            spent=self._spent_until(leaf.id),
            model=leaf.metadata.model or (str(model) if model is not None else None),
            started=start.timestamp if start is not None else leaf.metadata.timestamp,
            ended=leaf.metadata.timestamp or (start.timestamp if start is not None else ""),
            entity_id=leaf.entity_id,
            forked_from=forked_from,
            parent=parent,
        )

    def _end(self, cast_id: str | None) -> CastRecord | None:
        if cast_id is None:
            return None
        if cast_id not in self._ends:
            self._ends[cast_id] = self.loom.cast_end(cast_id)
        return self._ends[cast_id]

    def _has_whole_cast(self, turn_id: str, sums: _Sums) -> bool:
        """Whether all turns of a turn's cast are on the path to it."""
        cast_id = self.outline.places[turn_id].cast_id
        return cast_id is not None and self._cast_turns.get(cast_id, 0) == sums.length

    def _spent_until(self, leaf_id: str) -> Spent:
        """Sum the tokens, cost and time of the path to a turn, cast by cast. A complete cast is taken from its end record."""
        chain: list[str] = []
        at: str | None = leaf_id
        while at is not None and at not in self._usage:
            chain.append(at)
            head = self._sums[at].head
            above = self.outline.places[head].parent_id
            at = above if head in self.outline.follows else None
        total = self._usage[at] if at is not None else Spent()
        for turn_id in reversed(chain):
            total = total + self._spent_in_cast(turn_id)
            self._usage[turn_id] = total
        return total

    def _spent_in_cast(self, turn_id: str) -> Spent:
        sums, place = self._sums[turn_id], self.outline.places[turn_id]
        if place.role == "call":
            return Spent()
        end, start = self._end(place.cast_id), self.outline.starts.get(place.cast_id or "")
        if end is not None and end.usage and self._has_whole_cast(turn_id, sums):
            return _spent_of(start, end)
        # The cast was cut in two: add turn by turn. Each turn is read once, however many forks leave its cast.
        ids: list[str] = []
        at: str | None = turn_id
        while at is not None and at not in self._within:
            ids.append(at)
            at = self.outline.places[at].parent_id if at != sums.head else None
        total = self._within[at] if at is not None else Spent()
        for turn in self.loom.bodies(reversed(ids)):
            about = turn.metadata
            total += Spent(about.usage, about.duration_ms / 1000)
            self._within[turn.id] = total
        return total

    def _matching_turns(self, wanted: ThreadFilter) -> set[str] | None:
        """The turns on whose path the wanted gate was called and the wanted text occurs; None if neither is
        wanted."""
        if wanted.gate is None and wanted.text is None:
            return None
        gates: set[str] = set()
        texts: set[str] = set()
        text = None if wanted.text is None else wanted.text.casefold()
        own = self.outline.follows
        for turn_id, place in self.outline.places.items():
            above = place.parent_id if turn_id in own else None
            gate_known = wanted.gate is None or above in gates
            text_known = text is None or above in texts
            if not (gate_known and text_known):
                turn = self.loom.turn(turn_id)
                gate_known = gate_known or wanted.gate in turn.gate_calls
                text_known = text_known or (text is not None and text in searchable_text(turn))
            if gate_known:
                gates.add(turn_id)
            if text_known:
                texts.add(turn_id)
        return gates & texts


def _spent_of(start: CastRecord | None, end: CastRecord) -> Spent:
    seconds = 0.0
    if start is not None:
        began, ended = moment(start.timestamp), moment(end.timestamp)
        if began is not None and ended is not None:
            seconds = max(0.0, (ended - began).total_seconds())
    return Spent(end.own_usage, seconds)


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
class ThreadFilter:
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

    def matches(self, line: ThreadLine) -> bool:
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

    def matches_without_turns(self, line: ThreadLine) -> bool:
        """Whether the line of a thread that has no turn fulfils all conditions."""
        if self.gate is not None or self.text is not None or (self.reward is not None and not self.reward(None)):
            return False
        return (self.intent or "").casefold() in (line.intent or "").casefold() and self.matches(line)


def rewarded(text: str) -> Callable[[float | None], bool]:
    """Parse a test of rewards: ``>0.5``, ``<=-1``, ``0.2..0.8`` (both included), ``1``, ``none``, ``any``.

    Raises `DefinitionError` for anything else. A missing reward is neither above nor below a number.
    """
    wanted = text.strip().lower()
    if wanted in ("none", "any"):
        return lambda reward: (reward is None) == (wanted == "none")
    span = _SPAN.fullmatch(wanted)
    if span is not None:
        low, high = float(span[1]), float(span[2])
        return lambda reward: reward is not None and low <= reward <= high
    found = _COMPARISON.fullmatch(wanted)
    if found is None:
        raise DefinitionError(
            f"{text!r} is not a comparison of rewards; write for example '>0.5', '0.2..0.8', none or any"
        )
    compare, number = _OPERATORS[found[1] or ""], float(found[2])
    return lambda reward: reward is not None and compare(reward, number)


def when(text: str, *, end: bool = False) -> datetime:
    """Parse a time: ``2h`` (that long ago: s, m, h, d, w), or a day or time in ISO 8601 (local if it has no zone).

    ``end``: a day means its last moment. Raises `DefinitionError`.
    """
    wanted = text.strip()
    ago = _AGO.fullmatch(wanted.lower())
    try:
        if ago is not None:
            return datetime.now(UTC) - timedelta(seconds=int(ago[1]) * _SECONDS[ago[2]])
        found = datetime.fromisoformat(wanted)
        if end and re.fullmatch(r"\d{4}-?\d\d-?\d\d", wanted):
            found += timedelta(days=1, microseconds=-1)
        return found if found.tzinfo is not None else found.astimezone()
    except (ValueError, OverflowError, OSError):
        raise DefinitionError(
            f"{text!r} is not a time; write for example 2h or 7d (ago), 2026-11-21 or 2026-11-21T08:30"
        ) from None


def moment(text: str) -> datetime | None:
    """Parse a record's time; None if it cannot be read."""
    try:
        found = datetime.fromisoformat(text)
        return found if found.tzinfo is not None else found.astimezone()
    except (ValueError, OverflowError, OSError):
        return None


def searchable_text(turn: Turn) -> str:
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
