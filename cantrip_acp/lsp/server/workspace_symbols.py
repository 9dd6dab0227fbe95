"""Workspace symbols: recipes, their gates, the crystals for their children, and their MCP servers."""

from __future__ import annotations

from collections.abc import Iterator

from lsprotocol import types

from cantrip_acp.lsp.recipes.outline import name as named
from cantrip_acp.lsp.recipes.syntax.tree import Node, Span
from cantrip_acp.lsp.server.documents import Held
from cantrip_acp.recipes.recipe import stem

MOST = 500
_KIND = types.SymbolKind


def symbols(recipes: list[Held], query: str) -> list[types.WorkspaceSymbol]:
    """The symbols whose name contains the query's letters in order, the best match first."""
    found: list[tuple[int, int, types.WorkspaceSymbol]] = []
    for held in recipes:
        recipe = title(held)
        for name, kind, span in _of(held, recipe):
            distance = _fits(query, name)
            if distance is not None:
                location = types.Location(held.uri, held.text.range(*span))
                container = None if kind is _KIND.Class else recipe
                found.append(
                    (distance, len(found), types.WorkspaceSymbol(location, name, kind, container_name=container))
                )
    return [symbol for _, _, symbol in sorted(found, key=lambda each: each[:2])[:MOST]]


def title(held: Held) -> str:
    """A recipe's name: from its key, else from its file."""
    given = held.tree.get("name")
    return given.value if given is not None and given.kind == "scalar" and given.value else stem(held.path)


def title_span(held: Held) -> Span:
    """The span of the recipe's name, or of its first key."""
    given = held.tree.get("name")
    if given is not None and given.kind == "scalar":
        return given.span
    first = next(iter(held.tree.children), None)
    return first.key_span or (0, 0) if first is not None else (0, 0)


def _of(held: Held, recipe: str) -> Iterator[tuple[str, types.SymbolKind, Span]]:
    yield recipe, _KIND.Class, title_span(held)
    yield from _items(held.tree.find(("circle", "gates")), _KIND.Function)
    yield from _items(held.tree.get("crystals"), _KIND.Object)
    yield from _items(held.tree.get("mcp_servers"), _KIND.Module)


def _items(node: Node | None, kind: types.SymbolKind) -> Iterator[tuple[str, types.SymbolKind, Span]]:
    for child in node.children if node is not None else ():
        called = named(child)
        if called:
            yield called, kind, child.key_span or child.span


def _fits(query: str, name: str) -> int | None:
    """The distance of a name from a query: 0 if the name begins with it; None if letters are missing."""
    asked, held = query.lower(), name.lower()
    if not asked or held.startswith(asked):
        return 0
    if asked in held:
        return 1
    letters = iter(held)
    return 2 if all(letter in letters for letter in asked) else None
