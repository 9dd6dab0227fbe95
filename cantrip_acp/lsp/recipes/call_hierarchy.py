"""Call hierarchy of a recipe: which entity delegates to which, from the recipe's entity down to its children and theirs.
A child is identified by its crystal (the parent's own, or one of ``crystals``) and its depth. The hierarchy ends at
``max_depth``, and uses only gates that the wards do not deny.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from lsprotocol import types

from cantrip_acp.gates.registry import ALIASES, DELEGATION
from cantrip_acp.gates.wards import WARDS, Wards
from cantrip_acp.lsp.recipes import lint
from cantrip_acp.lsp.recipes.syntax.tree import Node, Span
from cantrip_acp.lsp.recipes.workspace_recipes import title, title_span
from cantrip_acp.lsp.server.documents import OpenDocument

OWN = ""
"""The crystal of a child that has its parent's crystal."""


class EntityHierarchy:
    """A recipe's entity and all entities below it. ``data`` is the recipe's data from the last analysis."""

    def __init__(self, document: OpenDocument, data: Any) -> None:
        self._document = document
        circle = data.get("circle") if isinstance(data, dict) else None
        self._circle: dict[str, Any] = circle if isinstance(circle, dict) else {}

    def at(self, position: types.Position) -> list[types.CallHierarchyItem]:
        """The entity at a position: a child, at the name of its crystal; else the recipe's own entity."""
        path = self._document.tree.at(self._document.text.offset(position)).path
        if len(path) >= 2 and path[0] == "crystals" and self._reach and isinstance(path[1], str):
            return [self._item(path[1], 1)]
        return [self._item(None, 0)]

    def children_of(self, data: dict[str, Any]) -> list[types.CallHierarchyOutgoingCall]:
        """The children that an entity can make, and the gates that make them."""
        depth = _depth(data)
        gates = self._gates(depth)
        if not gates or depth >= self._reach:
            return []
        spots = [self._document.text.range(*span) for span in gates]
        return [types.CallHierarchyOutgoingCall(self._item(name, depth + 1), spots) for name in self._choices]

    def parents_of(self, data: dict[str, Any]) -> list[types.CallHierarchyIncomingCall]:
        """The entities that can make this one, and the gates that make it."""
        depth = _depth(data)
        if depth == 0:
            return []
        spots = [self._document.text.range(*span) for span in self._gates(depth - 1)]
        above = [None] if depth == 1 else self._choices
        return [types.CallHierarchyIncomingCall(self._item(name, depth - 1), spots) for name in above]

    def _item(self, crystal: str | None, depth: int) -> types.CallHierarchyItem:
        document, recipe = self._document, title(self._document)
        kind = types.SymbolKind.Class if crystal is None else types.SymbolKind.Object
        if crystal is None:
            name, span = recipe, title_span(document)
        elif crystal == OWN:
            name, span = f"child of {recipe}", next(iter(self._gates(0)), title_span(document))
        else:
            given = document.tree.find(("crystals", crystal))
            name, span = crystal, (given.key_span if given is not None and given.key_span else title_span(document))
        spot = document.text.range(*span)
        data = {"kind": "recipe", "crystal": crystal, "depth": depth}
        detail = self._detail(crystal, depth)
        return types.CallHierarchyItem(name, kind, document.uri, spot, spot, detail=detail, data=data)

    def _detail(self, crystal: str | None, depth: int) -> str:
        tree = self._document.tree
        parts = [str(self._circle.get("medium", "conversation"))]
        model = _model(tree.find(("crystals", crystal)) if crystal else tree.get("crystal"))
        if model:
            parts.append(model)
        if depth:
            parts.append(f"depth {depth}")
        return " · ".join([*parts, f"max_depth {max(0, self._wards.max_depth - depth)}"])

    def _gates(self, depth: int) -> list[Span]:
        """The places where the circle at a depth lists gates that make children. Allow and deny lists for children apply
        below the root."""
        denied = {*self._wards.remove_gate, *(self._wards.child_gate_denylist if depth else ())}
        allowed = self._wards.child_gate_allowlist if depth else None
        found: list[Span] = []
        for name, path in lint.gates(self._circle).items():
            gate = ALIASES.get(name, name)
            if gate in DELEGATION and gate not in denied and (allowed is None or gate in allowed):
                node = self._document.tree.find(path)
                if node is not None:
                    found.append(node.span)
        return found

    @cached_property
    def _choices(self) -> list[str]:
        """The possible crystals of a child, its parent's first."""
        named = self._document.tree.get("crystals")
        return [OWN, *(str(child.key) for child in (named.children if named is not None else ()) if child.key)]

    @cached_property
    def _reach(self) -> int:
        """The maximum number of levels of children."""
        return self._wards.max_depth if self._gates(0) else 0

    @cached_property
    def _wards(self) -> Wards:
        from cantrip_acp.types.errors import DefinitionError

        try:
            return Wards.of([{name: value} for name, value, _ in lint.wards(self._circle) if name in WARDS])
        except (DefinitionError, TypeError):
            return Wards()


def _depth(data: dict[str, Any]) -> int:
    depth = data.get("depth")
    return depth if isinstance(depth, int) and not isinstance(depth, bool) and depth > 0 else 0


def _model(node: Node | None) -> str:
    if node is None:
        return ""
    if node.kind == "scalar":
        return node.value
    parts = [child.value for key in ("provider", "model") if (child := node.get(key)) is not None and child.value]
    return ":".join(parts)
