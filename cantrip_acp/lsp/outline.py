"""The outline of a recipe: its symbols, and what can be folded."""

from __future__ import annotations

from typing import Any

from lsprotocol import types

from cantrip_acp.lsp.documents import Held
from cantrip_acp.lsp.meaning import is_crystal
from cantrip_acp.lsp.tree import Node
from cantrip_acp.recipes.parse.source_map import KeyPath

_KIND = types.SymbolKind
SHOWN = 60
"""Characters of a value beside its key."""
DEEPEST = 4
"""Levels of keys that are symbols; below them stand a script's arguments and the like."""


def symbols(held: Held) -> list[dict[str, Any]]:
    """Every key and item, one in another: ``DocumentSymbol``s as plain data, since a long recipe has thousands."""
    return [
        _symbol(held, child, (child.key,)) for child in held.tree.children if child.key is not None and _named(child)
    ]


def _named(node: Node) -> bool:
    return bool(name(node))


def name(node: Node) -> str:
    """What a node is called: its key, or of an item what it holds."""
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


def _symbol(held: Held, node: Node, path: KeyPath) -> dict[str, Any]:
    text, (start, end) = held.text, node.whole
    chosen = node.key_span or (start, min(end, start + max(1, len(text.line(text.line_of(start))))))
    chosen = (max(chosen[0], start), min(chosen[1], end))
    inside = [child for child in node.children if _named(child)] if len(path) < DEEPEST else []
    only = node.kind == "mapping" and isinstance(node.key, int) and len(node.children) == 1
    detail = node.value if node.kind == "scalar" and isinstance(node.key, str) else ""
    if only and node.children[0].kind == "scalar":  # a ward: one line for both
        detail, inside = node.children[0].value, []
    first = detail.strip().splitlines()[:1]
    made = {
        "name": name(node),
        "kind": _kind(node, path).value,
        "range": _range(held, start, end),
        "selectionRange": _range(held, *chosen),
        "children": [_symbol(held, child, (*path, child.key)) for child in inside if child.key is not None],
    }
    return made | {"detail": first[0][:SHOWN]} if first else made


def _range(held: Held, start: int, end: int) -> dict[str, Any]:
    (line, column), (last, behind) = held.text.spot(start), held.text.spot(end)
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


def folds(held: Held) -> list[types.FoldingRange]:
    """Every value of more than a line, and comments of more than a line."""
    out: dict[int, types.FoldingRange] = {}
    for node in held.tree.walk():
        if node.parent is None:
            continue
        start, end = node.whole
        first, last = held.text.line_of(start), held.text.line_of(max(start, end - 1))
        if last > first and (first not in out or out[first].end_line < last):
            out[first] = types.FoldingRange(first, last)
    begin: int | None = None
    for number in range(len(held.text.starts) + 1):
        comment = number < len(held.text.starts) and held.text.line(number).lstrip().startswith("#")
        if comment and begin is None:
            begin = number
        elif not comment and begin is not None:
            if number - 1 > begin:
                out.setdefault(begin, types.FoldingRange(begin, number - 1, kind=types.FoldingRangeKind.Comment))
            begin = None
    return [out[line] for line in sorted(out)]
