"""Code lenses of a loom: commands above the lines of its casts and turns."""

from __future__ import annotations

from typing import Any

from cantrip_acp.lsp.looms import labels
from cantrip_acp.lsp.looms.document import Book
from cantrip_acp.lsp.looms.outline import span

MOST_TURNS, MOST_CASTS = 300, 200
"""The most turns and casts with lenses. If there are more, the first and the last ones have lenses."""


def lenses(book: Book, uri: str) -> list[dict[str, Any]]:
    """The lenses of a loom, each with its command."""
    out: list[dict[str, Any]] = []

    def lens(line: int, title: str, command: str, **given: Any) -> None:
        arguments = [{"uri": uri, **given}]
        command = f"cantrip.loom.{command}"
        out.append({"range": span(line, line), "command": {"title": title, "command": command, "arguments": arguments}})

    turns = [n for n in range(len(book.index)) if book.index.roles[n] != 0]
    casts = list(range(len(book.index.casts)))
    left = max(0, len(turns) - MOST_TURNS)
    first = 0 if book.index.header is not None or not turns else book.line(turns[0])
    if book.index.header is not None or turns:
        counts = labels.DOT.join((labels.many(len(turns), "turn"), labels.many(len(casts), "cast")))
        lens(first, f"Open in viewer ({counts})", "view")
        lens(first, "Export", "export")
    if left:
        lens(first, f"… {labels.many(left, 'turn')} without lenses: open the rest in the viewer", "view")
    for cast in _ends(casts, MOST_CASTS):
        inside = book.turns[cast]
        if inside:
            line, leaf = book.span(cast)[0], book.index.ids[inside[-1]]
            lens(line, "Open in viewer", "view", turn=leaf)
            lens(line, "Replay", "replay", turn=leaf)
            lens(line, "Export", "export", turn=leaf)
    for turn in _ends(turns, MOST_TURNS):
        line, name, reward = book.line(turn), book.index.ids[turn], book.reward(turn)
        lens(line, "Fork here", "fork", turn=name)
        lens(line, "Reward" if reward is None else f"Reward: {reward:g}", "reward", turn=name)
        lens(line, "Open in viewer", "view", turn=name)
    return out


def _ends(numbers: list[int], most: int) -> list[int]:
    """All numbers, or the first and the last ones."""
    return numbers if len(numbers) <= most else [*numbers[: most // 2], *numbers[-(most - most // 2) :]]
