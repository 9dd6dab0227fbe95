"""A loom's tree as text: a line a turn, a branch where threads part."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from cantrip_acp.cli.screen import Screen
from cantrip_acp.cli.untrusted import clean_line

if TYPE_CHECKING:
    from cantrip_acp.loom.loom import Loom
    from cantrip_acp.loom.turn import Turn

_WORDS = 80


def draw(screen: Screen, loom: Loom) -> None:
    """Every turn below its parent. A chain stays in one column; only a branch moves to the right."""
    children: dict[str | None, list[str]] = {}
    for turn in loom.turns():
        parent = turn.parent_id if turn.parent_id in loom else None
        children.setdefault(parent, []).append(turn.id)
    dot = f" {screen.marks.dot} "
    for turn_id, prefix, mark in _walk(children):
        turn = loom.turn(turn_id)
        if turn.role == "call":
            screen.line((f"{prefix}{mark}", "dim"), ("call ", "bold"), (f"{turn.id}{dot}{turn.cantrip_id}", "dim"))
            continue
        parts = [
            (f"{prefix}{mark}", "dim"),
            (f"{turn.id} ", "bold" if turn.terminated else ""),
            (clean_line(_told(turn), _WORDS), "dim" if turn.role == "fold" else ""),
        ]
        if turn.reason is not None:
            parts.append((f"{dot}{turn.reason}", "green" if turn.terminated else "yellow"))
        if turn.reward is not None:
            parts.append((f"{dot}reward {turn.reward:g}", "magenta"))
        screen.line(*parts)


def _walk(children: dict[str | None, list[str]]) -> Iterator[tuple[str, str, str]]:
    """Each turn with what stands before it; a stack in place of recursion, since threads are long."""
    stack: list[tuple[str, str, str, str]] = [(root, "", "", "") for root in reversed(children.get(None, []))]
    while stack:
        turn_id, prefix, mark, below = stack.pop()
        yield turn_id, prefix, mark
        next_ones = children.get(turn_id, [])
        if len(next_ones) == 1:
            stack.append((next_ones[0], below, "", below))
            continue
        for place, child in reversed(list(enumerate(next_ones))):
            last = place == len(next_ones) - 1
            stack.append((child, below, "└─ " if last else "├─ ", below + ("   " if last else "│  ")))


def _told(turn: Turn) -> str:
    said = turn.utterance
    parts = [", ".join(turn.gate_calls)] if turn.gate_calls else []
    if said.code:
        parts.append(said.code)
    elif said.content:
        parts.append(said.content)
    return "  ".join(parts) or "…"
