"""Outline of a recipe: symbols, folds, highlights, linked names and selection ranges."""

from __future__ import annotations

from typing import Any

from lsprotocol import types

from cantrip_acp.lsp.recipes import references
from cantrip_acp.lsp.recipes.hover import is_crystal
from cantrip_acp.lsp.recipes.syntax.tree import Node, Span
from cantrip_acp.lsp.server.documents import OpenDocument
from cantrip_acp.recipes.parse.problem_positions import KeyPath

_KIND = types.SymbolKind
SHOWN = 60
"""The most characters of a value beside its key."""
DEEPEST = 4
"""Levels of keys that are symbols; below them come a script's arguments and similar data."""


def symbols(document: OpenDocument) -> list[dict[str, Any]]:
    """Every key and item, nested: ``DocumentSymbol``s as plain data, because a long recipe has thousands."""
    return [
        _symbol(document, child, (child.key,))
        for child in document.tree.children
        if child.key is not None and _named(child)
    ]


def _named(node: Node) -> bool:
    return bool(name(node))


def name(node: Node) -> str:
    """A node's name: its key, or for an item of a list its content."""
    if isinstance(node.key, str):
        return node.key
    if node.kind == "scalar":
        return node.value.strip()[:SHOWN]
    for key in ("name", "python", "content"):
        inner = node.get(key)
        if inner is not None and inner.kind == "scalar" and inner.value.strip():
            return inner.value.strip().splitlines()[0][:SHOWN]
    if node.kind == "mapping" and node.children:
        return str(node.children[0].key)
    return f"[{node.key}]" if node.key is not None else ""


def _symbol(document: OpenDocument, node: Node, path: KeyPath) -> dict[str, Any]:
    text, (start, end) = document.text, node.whole
    chosen = node.key_span or (start, min(end, start + max(1, len(text.line(text.line_of(start))))))
    chosen = (max(chosen[0], start), min(chosen[1], end))
    inside = [child for child in node.children if _named(child)] if len(path) < DEEPEST else []
    only = node.kind == "mapping" and isinstance(node.key, int) and len(node.children) == 1
    detail = node.value if node.kind == "scalar" and isinstance(node.key, str) else ""
    if only and node.children[0].kind == "scalar":  # a ward: one entry for the item and its key
        detail, inside = node.children[0].value, []
    first = detail.strip().splitlines()[:1]
    made = {
        "name": name(node),
        "kind": _kind(node, path).value,
        "range": _range(document, start, end),
        "selectionRange": _range(document, *chosen),
        "children": [_symbol(document, child, (*path, child.key)) for child in inside if child.key is not None],
    }
    return made | {"detail": first[0][:SHOWN]} if first else made


def _range(document: OpenDocument, start: int, end: int) -> dict[str, Any]:
    (line, column), (last, behind) = document.text.spot(start), document.text.spot(end)
    return {"start": {"line": line, "character": column}, "end": {"line": last, "character": behind}}


def _kind(node: Node, path: KeyPath) -> types.SymbolKind:
    if path[:2] == ("circle", "gates") and len(path) == 3:
        return _KIND.Function
    if path[:2] == ("circle", "wards") and len(path) >= 3:
        return _KIND.Constant
    if is_crystal(path):
        return _KIND.Object
    if len(path) == 1 and node.kind == "mapping":
        return _KIND.Module
    if node.kind == "list":
        return _KIND.Array
    return _KIND.Property if node.kind == "scalar" else _KIND.Object


def folds(document: OpenDocument) -> list[types.FoldingRange]:
    """A fold for every value and every comment of more than one line."""
    out: dict[int, types.FoldingRange] = {}
    for node in document.tree.walk():
        if node.parent is None:
            continue
        start, end = node.whole
        first, last = document.text.line_of(start), document.text.line_of(max(start, end - 1))
        if last > first and (first not in out or out[first].end_line < last):
            out[first] = types.FoldingRange(first, last)
    begin: int | None = None
    for number in range(len(document.text.starts) + 1):
        comment = number < len(document.text.starts) and document.text.line(number).lstrip().startswith("#")
        if comment and begin is None:
            begin = number
        elif not comment and begin is not None:
            if number - 1 > begin:
                out.setdefault(begin, types.FoldingRange(begin, number - 1, kind=types.FoldingRangeKind.Comment))
            begin = None
    return [out[line] for line in sorted(out)]


# --- For the cursor's place: other uses of its name, the ranges around it, and names that change together.


def highlights(document: OpenDocument, position: types.Position) -> list[types.DocumentHighlight]:
    """Where the name at a position is defined (write) and used (read)."""
    write, read = types.DocumentHighlightKind.Write, types.DocumentHighlightKind.Read
    offset = document.text.offset(position)
    return [
        types.DocumentHighlight(document.text.range(*span), write if defines else read)
        for span, defines in references.places(document, offset)
    ]


def linked(document: OpenDocument, position: types.Position) -> types.LinkedEditingRanges | None:
    """The uses of a name that the recipe defines; typing in one changes all."""
    if references.renaming(document, position) is None:
        return None
    source = document.text.source
    spans = [span for span, _ in references.places(document, document.text.offset(position))]
    words = {source[slice(*span)] for span in spans}
    if len(spans) < 2 or len(words) != 1:
        return None
    return types.LinkedEditingRanges([document.text.range(*span) for span in spans], r"[A-Za-z_][A-Za-z0-9_.\-]*")


def selections(document: OpenDocument, positions: list[types.Position]) -> list[types.SelectionRange]:
    """For each position, the ranges around it: the word, the value, the pair, and so on up to the whole text."""
    return [_around(document, document.text.offset(position)) for position in positions]


def _around(document: OpenDocument, offset: int) -> types.SelectionRange:
    spans: list[Span] = []
    node: Node | None = document.tree.at(offset)
    while node is not None:
        if node.key_span is not None and node.key_span[0] <= offset <= node.key_span[1]:
            spans.append(node.key_span)
        if node.quote in ("'", '"') and node.closed:
            spans.append((node.span[0] + 1, node.span[1] - 1))
        spans += [node.span, node.whole]
        node = node.parent
    spans.append((0, len(document.text.source)))
    chosen: types.SelectionRange | None = None
    held_spans: list[Span] = []
    for span in spans:  # from the innermost; each range contains the one before and is larger
        inner = held_spans[-1] if held_spans else (offset, offset)
        if span[0] <= inner[0] and inner[1] <= span[1] and (not held_spans or span != inner):
            held_spans.append(span)
    for span in reversed(held_spans):
        chosen = types.SelectionRange(document.text.range(*span), chosen)
    assert chosen is not None  # the whole text is always among them
    return chosen
