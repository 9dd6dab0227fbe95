"""Compares two threads: their shared turns, the turn where they part, and the differences after it, turn by turn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import msgspec

from cantrip_acp.loom.query.listing import Listing, ThreadLine
from cantrip_acp.loom.query.outline import Outline
from cantrip_acp.types.errors import TurnNotFound

if TYPE_CHECKING:
    from cantrip_acp.loom.loom import Loom
    from cantrip_acp.types.records import Output, Turn

Value = Any


@dataclass(frozen=True, slots=True)
class Pair:
    """The n-th turns of both threads after they part, counted from 1; None if one thread has already ended.

    A fold, and what a turn did after children divided it, are pairs of their own with the number of the turn before.

    ``differs`` has what is different, by name (``content``, ``code``, ``calls``, ``results``, ``output``, ``reason``,
    ``reward``, ``tokens``, ``intent`` …), each with the left and the right value. Ids, times and durations always
    differ and are left out.
    """

    number: int
    left: Turn | None
    right: Turn | None
    differs: dict[str, tuple[Value, Value]] = field(default_factory=dict)

    @property
    def same(self) -> bool:
        """Whether both turns have the same content; model, tokens and cost may differ."""
        return (
            self.left is not None and self.right is not None and not (self.differs.keys() - {"tokens", "cost", "model"})
        )


@dataclass(frozen=True, slots=True)
class Difference:
    """Two threads. ``shared`` are the records of turns that both have, root first; ``parted_at`` is the last of them, None if
    they share none. ``turns_shared`` counts the turns among them."""

    left: ThreadLine
    right: ThreadLine
    shared: tuple[str, ...]
    parted_at: str | None
    turns_shared: int
    pairs: tuple[Pair, ...]

    def record(self) -> dict[str, Any]:
        """The difference as JSON data."""
        return {
            "left": self.left.record(),
            "right": self.right.record(),
            "shared": list(self.shared),
            "parted_at": self.parted_at,
            "turns_shared": self.turns_shared,
            "turns": [
                {
                    "number": pair.number,
                    "left": pair.left.id if pair.left is not None else None,
                    "right": pair.right.id if pair.right is not None else None,
                    "same": pair.same,
                    "differs": {name: {"left": a, "right": b} for name, (a, b) in pair.differs.items()},
                }
                for pair in self.pairs
            ],
        }


def difference(loom: Loom, left: str, right: str, *, listing: Listing | None = None) -> Difference:
    """Compare two threads, each named by its last turn, or by any turn, where the comparison then ends.

    Raises `TurnNotFound`.
    """
    for turn_id in (left, right):
        if turn_id not in loom:
            raise TurnNotFound(f"no turn {turn_id!r} in this loom")
    listing = listing if listing is not None else Listing(loom)
    outline = listing.outline
    paths = outline.path(left), outline.path(right)
    shared = 0
    for a, b in zip(*paths, strict=False):
        if a != b:
            break
        shared += 1
    both = [loom.bodies(i for i in path[shared:] if outline.places[i].role != "call") for path in paths]
    pairs: list[Pair] = []
    number = 0
    for one, other in zip_longest(*both):
        number += any(turn is not None and turn.is_utterance for turn in (one, other))
        pairs.append(Pair(max(1, number), one, other, _differs(outline, one, other)))
    prefix = tuple(paths[0][:shared])
    return Difference(
        listing.line(left),
        listing.line(right),
        prefix,
        prefix[-1] if prefix else None,
        sum(outline.places[turn_id].is_utterance for turn_id in prefix),
        tuple(pairs),
    )


def _differs(outline: Outline, left: Turn | None, right: Turn | None) -> dict[str, tuple[Value, Value]]:
    if left is None or right is None:
        return {}
    there = dict(_turn_values(outline, right))
    return {name: (value, there[name]) for name, value in _turn_values(outline, left) if value != there[name]}


def _turn_values(outline: Outline, turn: Turn) -> Iterator[tuple[str, Value]]:
    """Yield everything in a turn that can be compared, as plain data."""
    said, seen, about = turn.utterance, turn.observation, turn.metadata
    yield "intent", outline.intent(turn.id)
    yield "role", turn.role
    yield "thinking", said.thinking
    yield "content", said.content
    yield "code", said.code
    # The ids of calls differ always, so they are left out.
    yield "calls", [{"gate": c.gate, "args": msgspec.to_builtins(c.args)} for c in said.tool_calls]
    yield (
        "results",
        [{"gate": r.gate, "args": r.args, "result": r.result, "is_error": r.is_error} for r in seen.results],
    )
    outputs = seen.outputs if seen.outputs is not msgspec.UNSET and seen.outputs else (seen.output,)
    yield "output", [_output(o) for o in outputs if o is not None]
    yield "reason", turn.reason
    yield "reward", turn.reward
    yield "model", about.model
    yield "tokens", [about.tokens_prompt, about.tokens_completion]
    yield "cost", about.cost


def _output(output: Output) -> dict[str, Any]:
    data: dict[str, Any] = msgspec.to_builtins(output)
    return data


def gates_used(loom: Loom, turn_ids: list[str]) -> dict[str, int]:
    """How often each gate was called in these turns, the most frequent first."""
    counts: dict[str, int] = {}
    for turn in loom.bodies(turn_ids):
        for gate in turn.gate_calls:
            counts[gate] = counts.get(gate, 0) + 1
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
