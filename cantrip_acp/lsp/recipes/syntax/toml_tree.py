"""TOML syntax tree, read statement by statement, so that a broken line does not spoil the lines around it."""

from __future__ import annotations

import re

from cantrip_acp.lsp.recipes.syntax.flow import Flow
from cantrip_acp.lsp.recipes.syntax.tree import Node, Span

_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n|\Z)")
_PART = re.compile(r"""[ \t]*("(?:[^"\\\r\n]|\\.)*"|'[^'\r\n]*'|[A-Za-z0-9_-]+)[ \t]*""")
_STATEMENT = re.compile(
    r"""[ \t]*(?:\[\[?[ \t]*[A-Za-z_"'][^\]\r\n,]*\]\]?[ \t]*(?:#[^\r\n]*)?(?=[\r\n]|\Z)|[A-Za-z_][A-Za-z0-9_."'-]*[ \t]*=)"""
)


class Reader:
    """Reads statements; `table` is the table that the next ones belong to."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.root = Node("mapping", (0, len(source)))
        self.table = self.root

    def read(self) -> Node:
        """The tree of the whole text."""
        at, size = 0, len(self.source)
        while at < size:
            match = _LINE.match(self.source, at)
            assert match is not None
            end, text_end = match.end(), at + len(match[0].rstrip("\r\n"))
            start = at + len(match[0]) - len(match[0].lstrip(" \t"))
            if start >= text_end or self.source[start] == "#":
                at = end
            elif self.source[start] == "[":
                self._header(start, text_end)
                at = end
            else:
                at = max(end, self._pair(start, text_end, end))
            _reach(self.table, text_end)
        return self.root

    def _keys(self, at: int, end: int) -> tuple[list[tuple[str, Span]], int]:
        parts: list[tuple[str, Span]] = []
        while True:
            found = _PART.match(self.source, at, end)
            if found is None:
                return parts, at
            raw = found[1]
            name = raw[1:-1] if raw[0] in "\"'" else raw
            parts.append((name, found.span(1)))
            at = found.end()
            if at >= end or self.source[at] != ".":
                return parts, at
            at += 1

    def _header(self, start: int, end: int) -> None:
        array = self.source.startswith("[[", start)
        parts, _ = self._keys(start + (2 if array else 1), end)
        node = self.root
        for index, (name, span) in enumerate(parts):
            last = index == len(parts) - 1
            child = node.get(name)
            if child is None:
                child = node.add(Node("list" if array and last else "mapping", (start, end), key=name, key_span=span))
            if array and last and child.kind == "list":
                child = child.add(Node("mapping", (start, end), key=len(child.children)))
            elif child.kind == "list" and child.children:
                child = child.children[-1]
            node = child
            if node.kind not in ("mapping", "list"):
                node.kind = "mapping"
        self.table = node

    def _pair(self, start: int, text_end: int, end: int) -> int:
        parts, at = self._keys(start, text_end)
        if not parts:
            return end
        node = self.table
        for name, span in parts[:-1]:
            inner = node.get(name)
            if inner is None:
                inner = node.add(Node("mapping", span, key=name, key_span=span))
            node = inner
        name, span = parts[-1]
        if at >= text_end or self.source[at] != "=":
            node.add(Node("empty", (span[1], span[1]), key=name, key_span=span, closed=False))
            return end
        at += 1
        while at < text_end and self.source[at] in " \t":
            at += 1
        flow = Flow(self.source, at, self._limit(at, text_end, end), "=")
        child = flow.value() if at < text_end and self.source[at] != "#" else Node("empty", (at, at))
        child.key, child.key_span = name, span
        node.add(child)
        if node is not self.table:
            _reach(node, child.span[1])
        match = _LINE.match(self.source, flow.at)
        return match.end() if match is not None else end

    def _limit(self, at: int, text_end: int, end: int) -> int:
        """The latest end of a value: its line, or the next statement if it may have several lines."""
        if self.source.startswith(('"""', "'''"), at):
            found = self.source.find(self.source[at : at + 3], at + 3)
            return found + 5 if found >= 0 else text_end
        if self.source[at : at + 1] not in ("[", "{"):
            return text_end
        while end < len(self.source):
            match = _LINE.match(self.source, end)
            assert match is not None
            if _STATEMENT.match(self.source, end) or match.end() == match.start():
                break
            end = match.end()
        return end


def _reach(node: Node, end: int) -> None:
    """Extend a table, and the tables around it, to its last statement."""
    current: Node | None = node
    while current is not None:
        if current.span[1] < end:
            current.span = (current.span[0], end)
        current = current.parent


def parse(source: str) -> Node:
    """The tree of a TOML text."""
    return Reader(source).read()
