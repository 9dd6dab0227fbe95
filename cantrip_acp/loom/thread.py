"""A thread: one root-to-leaf path through a loom (§6.2, LOOM-10)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from cantrip_acp.loom.turn import Turn


@dataclass(frozen=True, slots=True)
class Thread(Sequence[Turn]):
    """The turns from a root to one leaf, in order; the first is the ``call`` turn where the loom has one."""

    turns: tuple[Turn, ...]

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
    def state(self) -> Literal["terminated", "truncated", "active"]:
        """How it ended (LOOM-7); ``active`` where it has not, or where nobody wrote down that it did."""
        return "terminated" if self.leaf.terminated else "truncated" if self.leaf.truncated else "active"

    @property
    def result(self) -> Any:
        """The answer of a terminated thread: what ``done`` was given, or the last words; None otherwise."""
        return answer(self.leaf)


def answer(turn: Turn) -> Any:
    """What a turn ended its cast with; None where it did not."""
    if turn.reason == "done":
        for record in reversed(turn.observation.results):
            if record.gate == "done" and not record.is_error:
                return record.result
    if turn.reason == "text":
        return turn.utterance.content
    return None
