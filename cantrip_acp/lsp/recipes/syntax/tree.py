"""Syntax tree of a recipe, also of a broken one: nodes with spans, found by key path or by offset.
Only the editor's features use it. The loader decides what is valid (`diagnostics`), not this tree.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from cantrip_acp.recipes.parse.source_map import KeyPath

Span = tuple[int, int]
"""Offsets: the first, and the one after the last."""


@dataclass(slots=True, eq=False)
class Node:
    """A value. ``key`` is its name in a mapping or its index in a list, ``key_span`` the span of that name.
    ``value`` is a scalar's text without quotes, ``span`` the value without its key. ``quote`` is its notation: empty for a
    plain scalar, the quote or bracket, or ``|`` or ``>`` for a block.
    """

    kind: Literal["mapping", "list", "scalar", "empty"]
    span: Span
    key: str | int | None = None
    key_span: Span | None = None
    value: str = ""
    quote: str = ""
    children: list[Node] = field(default_factory=list)
    parent: Node | None = field(default=None, repr=False)
    closed: bool = True
    """False for a bracket or a quote that is not closed."""
    indent: int = -1
    """For a YAML block: the column of its keys or dashes."""

    @property
    def path(self) -> KeyPath:
        """The keys from the root to this node."""
        out: list[str | int] = []
        node: Node | None = self
        while node is not None and node.key is not None:
            out.append(node.key)
            node = node.parent
        return tuple(reversed(out))

    @property
    def whole(self) -> Span:
        """The span of key and value."""
        return (self.key_span[0], max(self.key_span[1], self.span[1])) if self.key_span else self.span

    def add(self, child: Node) -> Node:
        """Append a child."""
        child.parent = self
        self.children.append(child)
        return child

    def get(self, key: str | int) -> Node | None:
        """The child with a name or an index."""
        if isinstance(key, int):
            return self.children[key] if self.kind == "list" and 0 <= key < len(self.children) else None
        return next((child for child in self.children if child.key == key), None) if self.kind == "mapping" else None

    def find(self, path: KeyPath) -> Node | None:
        """The node at a key path below this one."""
        node: Node | None = self
        for part in path:
            node = node.get(part) if node is not None else None
        return node

    def nearest(self, path: KeyPath) -> Node:
        """The node at a key path, or the deepest existing node on the way to it."""
        node = self
        for part in path:
            inner = node.get(part)
            if inner is None:
                break
            node = inner
        return node

    def at(self, offset: int) -> Node:
        """The innermost node whose key or value contains an offset."""
        node = self
        while True:
            inner = next((c for c in node.children if c.whole[0] <= offset <= c.whole[1]), None)
            # If two nodes touch at the offset, take the one that begins there.
            if inner is None:
                return node
            following = next((c for c in node.children if c.whole[0] == offset and c is not inner), None)
            node = following or inner

    def walk(self) -> Iterator[Node]:
        """This node and all nodes below it, in text order."""
        stack = [self]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(reversed(node.children))

    def scalars(self) -> list[str]:
        """The texts of a list; a single text counts as a list of one."""
        if self.kind == "scalar":
            return [self.value]
        return [child.value for child in self.children if child.kind == "scalar"]


def moved(node: Node, by: int) -> None:
    """Move a node and all nodes below it by some characters."""
    stack = [node]
    while stack:
        current = stack.pop()
        start, end = current.span
        current.span = (start + by, end + by)
        if current.key_span is not None:
            start, end = current.key_span
            current.key_span = (start + by, end + by)
        stack += current.children


def parse(source: str, *, toml: bool) -> Node:
    """The tree of a text, valid or not."""
    from cantrip_acp.lsp.recipes.syntax import toml_tree, yaml_tree

    return toml_tree.parse(source) if toml else yaml_tree.parse(source)
