"""Symbols, folds and code lenses of a loom: casts with their turns, and below a turn the casts of the children that it spawned.
A large loom has more than an editor can show. Their number is limited, and an entry says how many are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from cantrip_acp.lsp.looms import labels
from cantrip_acp.lsp.looms.document import LoomDocument

MOST = 2_000
"""The most symbols of one loom."""
MOST_FOLDS = 5_000
_DEEPEST = 24

_EVENT, _FUNCTION, _OPERATOR, _FILE, _NULL = 24, 12, 25, 1, 21
"""Symbol kinds of the protocol."""


def symbols(book: LoomDocument) -> list[dict[str, Any]]:
    return _Outline(book).all()


class _Outline:
    def __init__(self, book: LoomDocument) -> None:
        self.book = book
        self.room = MOST

    def all(self) -> list[dict[str, Any]]:
        book, out = self.book, []
        if book.index.header is not None:
            counts = (labels.many(len(book.index), "turn"), labels.many(len(book.index.casts), "cast"))
            out.append(_symbol(labels.plain(book.index.header.id), labels.DOT.join(counts), _FILE, (0, 0), (0, 0), []))
        return out + self.casts(book.tree.top(), 0)

    def casts(self, numbers: Sequence[int], depth: int) -> list[dict[str, Any]]:
        """Casts with their turns. If there are too many, only the first and the last ones."""
        most = max(1, self.room // 2)
        left_out: Sequence[int] = ()
        if len(numbers) > most:
            head = most // 2
            left_out = numbers[head : len(numbers) - (most - head)]
            numbers = [*numbers[:head], *numbers[len(numbers) - (most - head) :]]
        self.room -= len(numbers)
        share = max(1, self.room // max(1, len(numbers)))
        out = []
        for number in numbers:
            if left_out and number > left_out[-1]:
                lines = (self.book.span(left_out[0])[0], self.book.span(left_out[-1])[1])
                out.append(_more(len(left_out), "cast", lines))
                left_out = ()
            out.append(self.cast(number, share, depth))
        return out

    def cast(self, number: int, share: int, depth: int) -> dict[str, Any]:
        data = labels.cast(self.book, number)
        turns = self.book.tree.turns[number]
        shown = turns[: min(len(turns), share, max(1, self.room))]
        self.room -= len(shown)
        inside = []
        for turn, body in zip(shown, self.book.bodies(shown), strict=True):
            inside.append(self.turn(labels.turn(self.book, turn, body), depth))
        if len(shown) < len(turns):
            rest = turns[len(shown) :]
            inside.append(_more(len(rest), "turn", (self.book.line(rest[0]), self.book.line(rest[-1]))))
        name = data["intent"] or "(no intent)"
        first = data["line"]
        return _symbol(name, labels.cast_facts(data), _EVENT, (first, data["endLine"]), (first, first), inside)

    def turn(self, data: dict[str, Any], depth: int) -> dict[str, Any]:
        line = data["line"]
        spawned = self.book.tree.spawned(data["n"]) if data["children"] and depth < _DEEPEST and self.room > 0 else []
        below = self.casts(spawned, depth + 1) if spawned else []
        last = max([line, *(self.book.span(cast)[1] for cast in spawned)])
        kind = _OPERATOR if data["role"] == "fold" else _FUNCTION
        return _symbol(labels.turn_name(data), labels.turn_facts(data), kind, (line, last), (line, line), below)


def _symbol(
    name: str, detail: str, kind: int, lines: tuple[int, int], chosen: tuple[int, int], children: list[dict[str, Any]]
) -> dict[str, Any]:
    return {
        "name": name,
        "detail": detail,
        "kind": kind,
        "range": span(*lines),
        "selectionRange": span(*chosen),
        "children": children,
    }


def _more(count: int, what: str, lines: tuple[int, int]) -> dict[str, Any]:
    return _symbol(f"… {labels.many(count, f'more {what}')}", "open the loom in the viewer", _NULL, lines, lines, [])


def span(first: int, last: int, length: int = 1) -> dict[str, Any]:
    """Lines as a range; ``length`` is the number of units of the last line."""
    return {"start": {"line": first, "character": 0}, "end": {"line": last, "character": length}}


def folds(book: LoomDocument) -> list[dict[str, Any]]:
    """A folding range for each cast, and for each turn with more than its own line. Outer ranges come first."""
    found: dict[int, int] = {}
    for first, last in _foldable(book):
        if last > first and last > found.get(first, -1):
            found[first] = last
            if len(found) >= MOST_FOLDS:
                break
    return [{"startLine": first, "endLine": found[first], "kind": "region"} for first in sorted(found)]


def _foldable(book: LoomDocument) -> Iterator[tuple[int, int]]:
    for cast in range(len(book.index.casts)):
        yield book.span(cast)
    parents = {parent for cast in range(len(book.index.casts)) if (parent := book.tree.spawner(cast)) is not None}
    for turn in sorted(parents.union(book.lines.begun)):
        line = book.line(turn)
        last = max([line, *(book.span(cast)[1] for cast in book.tree.spawned(turn))])
        yield book.lines.begun.get(turn, line), last


MOST_TURNS, MOST_CASTS = 300, 200
"""The most turns and casts with lenses. If there are more, the first and the last ones have lenses."""


def lenses(book: LoomDocument, uri: str) -> list[dict[str, Any]]:
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
    for cast in _first_and_last(casts, MOST_CASTS):
        inside = book.tree.turns[cast]
        if inside:
            line, leaf = book.span(cast)[0], book.index.ids[inside[-1]]
            lens(line, "Open in viewer", "view", turn=leaf)
            lens(line, "Replay", "replay", turn=leaf)
            lens(line, "Export", "export", turn=leaf)
    for turn in _first_and_last(turns, MOST_TURNS):
        line, name, reward = book.line(turn), book.index.ids[turn], book.reward(turn)
        lens(line, "Fork here", "fork", turn=name)
        lens(line, "Reward" if reward is None else f"Reward: {reward:g}", "reward", turn=name)
        lens(line, "Open in viewer", "view", turn=name)
    return out


def _first_and_last(numbers: list[int], most: int) -> list[int]:
    """All numbers, or the first and the last ones."""
    return numbers if len(numbers) <= most else [*numbers[: most // 2], *numbers[-(most - most // 2) :]]
