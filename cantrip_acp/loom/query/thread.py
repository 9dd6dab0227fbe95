"""Threads: a path from the root to a leaf of a loom, and how it ended (§6.2, LOOM-7, LOOM-10).

Only `Endings` decides the state of a thread or a cast. Commands, pages, exports and editors all use it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

from cantrip_acp.types.records import TERMINATIONS, CastRecord, Turn

if TYPE_CHECKING:
    from cantrip_acp.loom.base import BaseLoom

State = Literal["terminated", "truncated", "active"]
"""The state of a thread or a cast (LOOM-7). It is active only while a living process runs it."""

INTERRUPTED = "interrupted"
"""The reason of a cast whose process ended before the cast did."""

PROCESS_ENDED = "interrupted: the process ended"
"""The error in the end record that a later process writes for an interrupted cast."""


class Ending(Struct, frozen=True):
    """The state of a thread or a cast, and why it ended: a recorded reason, or `INTERRUPTED`. None while it is active.

    ``cast_id`` is the last cast of a thread.
    """

    state: State
    reason: str | None = None
    cast_id: str | None = None
    error: str | None = None

    @property
    def outcome(self) -> str:
        """The reason of the end, or ``active``."""
        return self.reason or self.state


def cast_ending(end: CastRecord | None, *, running: bool, cast_id: str | None = None) -> Ending:
    """The state of a cast; ``running``: a living process runs it."""
    if end is None:
        return Ending("active", None, cast_id) if running else Ending("truncated", INTERRUPTED, cast_id)
    if end.terminated or (not end.truncated and end.reason in TERMINATIONS):
        return Ending("terminated", end.reason, cast_id)
    return Ending("truncated", INTERRUPTED if end.error == PROCESS_ENDED else end.reason, cast_id, end.error)


class Endings:
    """How a loom's threads and casts had ended at the time of creation.

    All start records are read at once, and an end record only when somebody asks for it.
    """

    def __init__(self, loom: BaseLoom, starts: Mapping[str, CastRecord] | None = None) -> None:
        self._loom = loom
        self._last_turn: dict[str, str] = {}
        """The last turn of each entity."""
        self._last_of: dict[str, str] = {}
        """The last turn of each cast."""
        for turn_id, place in loom.places.copy().items():
            if place.role != "call":
                self._last_turn[place.entity_id] = turn_id
                if place.cast_id is not None:
                    self._last_of[place.cast_id] = turn_id
        self._casts: dict[str, list[str]] = {}
        for start in (loom.cast_starts() if starts is None else starts).values():
            self._casts.setdefault(start.entity_id, []).append(start.id)
        self._running = loom.running_casts()

    def cast(self, cast_id: str) -> Ending:
        """The state of a cast."""
        return cast_ending(self._loom.cast_end(cast_id), running=cast_id in self._running, cast_id=cast_id)

    def thread(self, leaf: Turn) -> Ending:
        """The state of the thread to a turn. A later cast of the same entity without any turn counts as the thread's
        last cast, also if the entity has only its ``call`` turn."""
        if self._last_turn.get(leaf.entity_id, leaf.id if leaf.role == "call" else None) == leaf.id:
            for silent in reversed(self._casts.get(leaf.entity_id, ())):
                if silent == leaf.cast_id or silent in self._last_of:
                    break
                end = self._loom.cast_end(silent)
                if end is None or end.withdrawn is not True or leaf.role == "call":
                    return self.cast(silent)
        cast_id = leaf.cast_id
        if leaf.terminated or leaf.truncated:
            end = None if cast_id is None else self._loom.cast_end(cast_id)
            if end is not None and end.error == PROCESS_ENDED:
                return Ending("truncated", INTERRUPTED, cast_id, end.error)
            if end is None and cast_id is not None and leaf.reason == "error" and cast_id not in self._running:
                # The process that wrote this turn was killed before it wrote the cast's end.
                return self.cast(cast_id)
            state: State = "terminated" if leaf.terminated else "truncated"
            return Ending(state, leaf.reason, cast_id, end.error if end is not None else None)
        if cast_id is not None and self._last_of.get(cast_id) == leaf.id:
            return self.cast(cast_id)
        # The cast continued from here, on another path or after the turn.
        return Ending("truncated", None if cast_id is not None else INTERRUPTED, cast_id)


@dataclass(frozen=True, slots=True)
class Thread(Sequence[Turn]):
    """The turns from a root to one leaf, in order. The first is the ``call`` turn where the loom has one."""

    turns: tuple[Turn, ...]
    ending: Ending

    def __len__(self) -> int:
        return len(self.turns)

    def __getitem__(self, index: Any) -> Any:
        return self.turns[index]

    def __iter__(self) -> Iterator[Turn]:
        return iter(self.turns)

    @property
    def leaf(self) -> Turn:
        return self.turns[-1]

    @property
    def acted(self) -> tuple[Turn, ...]:
        """The turns in which the crystal spoke, without the call and folds."""
        return tuple(t for t in self.turns if t.role == "crystal")

    @property
    def state(self) -> State:
        """active, interrupted, terminated (by `done` or a last text) or truncated: as it was when the thread was read."""
        return self.ending.state

    @property
    def reason(self) -> str | None:
        """Why the thread ended; None while it is active."""
        return self.ending.reason

    @property
    def result(self) -> Any:
        """The answer of a terminated thread: the value for ``done``, or the last text. None otherwise."""
        return answer(self.leaf)


def answer(turn: Turn) -> Any:
    """The answer that a turn ended its cast with; None if it did not end it."""
    if turn.reason == "done":
        for record in reversed(turn.observation.results):
            if record.gate == "done" and not record.is_error:
                return record.result
    if turn.reason == "text":
        return turn.utterance.content
    return None
