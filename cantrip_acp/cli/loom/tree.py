"""Draws a loom's tree as text: one line per turn, a branch where threads part, and labels for forks and children."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from cantrip_acp.cli.render.table import number
from cantrip_acp.cli.render.terminal import Screen
from cantrip_acp.text.sanitize import clean_line

if TYPE_CHECKING:
    from cantrip_acp.loom.loom import Loom
    from cantrip_acp.loom.query.outline import Outline
    from cantrip_acp.loom.records.turn import Turn

_WORDS = 80


def draw(screen: Screen, loom: Loom) -> None:
    """Draw every turn below its parent. A chain stays in one column; only a branch moves to the right.
    The first line of an entity says how it began: as a fork, or as a child with its intent. Rewards follow, also relative ones.
    """
    from cantrip_acp.loom.query.outline import Outline
    from cantrip_acp.loom.query.thread import Endings
    from cantrip_acp.training.rewards import relative_of

    outline = Outline(loom)
    children: dict[str | None, list[str]] = {}
    for turn_id, place in outline.places.items():
        parent = place.parent_id if place.parent_id in outline.places else None
        children.setdefault(parent, []).append(turn_id)
    heads = {head for spawned in outline.spawned.values() for head in spawned}
    dot = f" {screen.marks.dot} "
    endings, leaves = Endings(loom, outline.starts), frozenset(outline.leaves)
    for turn_id, prefix, mark in _walk(children):
        turn = loom.turn(turn_id)
        begun = _begun(loom, outline, turn, turn_id in heads)
        if turn.role == "call":
            parts = [(f"{prefix}{mark}", "dim"), (begun, "cyan"), ("call ", "bold")]
            screen.line(*parts, (f"{turn.id}{dot}{turn.cantrip_id}", "dim"))
            continue
        parts = [
            (f"{prefix}{mark}", "dim"),
            (f"{turn.id} ", "bold" if turn.terminated else ""),
            (begun, "cyan"),
            (clean_line(_told(turn), _WORDS), "dim" if turn.role == "fold" else ""),
        ]
        reason = endings.thread(turn).outcome if turn_id in leaves else turn.reason
        if reason is not None:
            parts.append((f"{dot}{reason}", "green" if turn.terminated else "yellow"))
        if turn.reward is not None:
            parts.append((f"{dot}reward {number(turn.reward)}", "magenta"))
        relative = relative_of(loom, turn_id)
        if relative is not None:
            parts.append((f"{dot}relative {number(relative)}", "magenta"))
        screen.line(*parts)


def _begun(loom: Loom, outline: Outline, turn: Turn, spawned: bool) -> str:
    """How the entity of a turn began, if this is its first turn; else an empty text."""
    place = outline.places[turn.id]
    if spawned:
        # A child's root turn has no cast yet; the turn after it has one.
        first = next(iter(outline.next.get(turn.id, [])), turn.id)
        intent = outline.intent(first)
        return f"child {clean_line(intent, _WORDS)!r}  " if intent else "child  "
    above = outline.places.get(place.parent_id) if place.parent_id is not None else None
    if above is None or above.entity_id == place.entity_id or turn.role == "call":
        return ""
    fork = loom.fork_of(place.entity_id)
    if fork is None or fork.from_turn != place.parent_id:
        return ""
    return f"fork by {clean_line(fork.strategy, 20)}  " if fork.strategy != "none" else "fork  "


def _walk(children: dict[str | None, list[str]]) -> Iterator[tuple[str, str, str]]:
    """Yield each turn with the text before it on its line. Uses a stack: threads are too long for recursion."""
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
