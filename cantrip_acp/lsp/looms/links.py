"""Links between records of a loom: definition, references, and links from children to the turns that spawned them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from cantrip_acp.lsp.looms.document import LoomDocument
from cantrip_acp.lsp.looms.outline import span
from cantrip_acp.lsp.server.positions import Encoding, TextDocument
from cantrip_acp.types.records import CastRecord, ForkRecord, RewardRecord, Turn

MOST = 1_000
"""The most references that are returned."""
MOST_LINKS = 500
_LONGEST_LINE = 1_000_000
"""The longest line, in bytes, in which the word under the cursor is searched."""
_PARENT = re.compile(rb'"parent_turn_id":\s*"((?:[^"\\]|\\.){1,200})"')


def word(book: LoomDocument, position: int, character: int, encoding: Encoding) -> str:
    """The quoted text at a column of a line; empty if there is none."""
    if book.lines.length(position) > _LONGEST_LINE:
        return ""
    line = TextDocument(book.text(position).decode("utf-8", "replace"), encoding)
    from lsprotocol import types

    at = line.offset(types.Position(0, character))
    begin = line.source.rfind('"', max(0, at - 200), at)
    end = line.source.find('"', at, at + 200)
    return line.source[begin + 1 : end] if 0 <= begin < end else ""


def target(book: LoomDocument, name: str) -> int | None:
    """The line of the turn, cast, entity (its first cast) or cantrip with this id; None if there is none."""
    index = book.index
    number = index.numbers.get(name)
    if number is not None:
        return book.line(number)
    for cast, places in enumerate(index.casts):
        if places.id == name or index.entities[places.entity] == name:
            return book.span(cast)[0]
    at = book.cantrips.get(name)
    return None if at is None else book.lines.at(at)


def above(book: LoomDocument, position: int) -> int | None:
    """The line that a record refers to: a child's cast to its spawning turn, a turn to its parent, other records to their turn."""
    record = book.one(position)
    match record:
        case Turn():
            turn = book.index.numbers.get(record.id, -1)
            parent = book.index.parents[turn] if turn >= 0 else -1
            return book.line(parent) if parent >= 0 else None
        case CastRecord():
            cast = next((n for n, places in enumerate(book.index.casts) if places.id == record.id), None)
            spawner = book.tree.spawner(cast) if cast is not None else None
            return book.line(spawner) if spawner is not None else None
        case RewardRecord(turn_id=name) | ForkRecord(from_turn=name):
            return target(book, name) if name is not None else None
        case _:
            named = getattr(record, "turn_id", None)
            return target(book, named) if isinstance(named, str) else None


def references(book: LoomDocument, name: str) -> list[int]:
    """The lines that refer to the turn, cast, entity or cantrip with this id, in order."""
    return sorted(dict.fromkeys(line for line, _ in zip(_references(book, name), range(MOST), strict=False)))


def _references(book: LoomDocument, name: str) -> Iterator[int]:
    index = book.index
    number = index.numbers.get(name)
    if number is not None:
        yield book.line(number)
        if number in book.lines.begun:
            yield book.lines.begun[number]
        for cast in book.tree.spawned(number):
            yield book.span(cast)[0]
        for position in (*index.forks.get(number, ()), *book.rewards.get(number, ())):
            yield book.lines.at(position)
        for kept in (index.snapshots, index.files):
            if number in kept:
                yield book.lines.at(kept[number])
        for below, parent in enumerate(index.parents):
            if parent == number:
                yield book.line(below)
        return
    for cast, places in enumerate(index.casts):
        if name in (places.id, index.entities[places.entity]):
            for position in (places.start, *places.context, places.end):
                if position is not None:
                    yield book.lines.at(position)
            for turn in book.tree.turns[cast]:
                yield book.line(turn)
    if name in book.cantrips:
        yield book.lines.at(book.cantrips[name])
        for turn, role in enumerate(index.roles):
            if role == 0 and book.body(turn).cantrip_id == name:
                yield book.line(turn)


def links(book: LoomDocument, uri: str, encoding: Encoding) -> list[dict[str, Any]]:
    """Links from the start of each child's cast to the turn that spawned it."""
    out: list[dict[str, Any]] = []
    for cast, places in enumerate(book.index.casts):
        spawner = book.tree.spawner(cast)
        if spawner is None or places.start is None or book.lines.length(places.start) > _LONGEST_LINE:
            continue
        line = book.text(places.start)
        found = _PARENT.search(line)
        if found is None:
            continue
        text = TextDocument("", encoding)
        begin, end = (text.units(line[: found.start(1)].decode("utf-8", "replace")), 0)
        end = begin + text.units(found[1].decode("utf-8", "replace"))
        at = book.lines.at(places.start)
        where = {"start": {"line": at, "character": begin}, "end": {"line": at, "character": end}}
        tip = "The turn that spawned this child"
        out.append({"range": where, "target": f"{uri}#L{book.line(spawner) + 1}", "tooltip": tip})
        if len(out) >= MOST_LINKS:
            break
    return out


def locations(uri: str, lines: list[int]) -> list[dict[str, Any]]:
    return [{"uri": uri, "range": span(line, line)} for line in lines]
