"""YAML syntax tree, read line by line, so that a broken line does not spoil the lines around it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from cantrip_acp.lsp.recipes.syntax.cuts import OPENING, SMALL, cuts
from cantrip_acp.lsp.recipes.syntax.flow import Flow
from cantrip_acp.lsp.recipes.syntax.tree import Node, moved

_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n|\Z)")
_KEY = re.compile(
    r"""(?P<key>"(?:[^"\\\r\n]|\\.)*"|'(?:[^'\r\n]|'')*'|[^\s#&*!|>'"%@`\[\]{},?:-][^\r\n]*?|[-?:][^\s][^\r\n]*?)"""
    r"""[ \t]*:(?=[ \t\r\n]|\Z)"""
)
_ANCHOR = re.compile(r"(?:[&!][^\s]*[ \t]*)+")
_BLOCK = re.compile(r"[|>][-+0-9]*[ \t]*(?:#[^\r\n]*)?(?=[\r\n]|\Z)")
_COMMENT = re.compile(r"[ \t]*(?:#[^\r\n]*)?(?:[\r\n]|\Z)")


@dataclass(slots=True)
class Open:
    """A container that later lines may still extend. ``indent`` is the column of its keys or dashes."""

    indent: int
    node: Node
    waiting: Node | None = None
    """The child that has no value yet."""


class Reader:
    """Reads lines; `open` are the containers around the current line, the outermost first."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.root = Node("empty", (0, 0))
        self.open: list[Open] = []
        self._starts: list[tuple[int, int]] = []

    def read(self) -> Node:
        """The tree of the whole text."""
        at, size = 0, len(self.source)
        while at < size:
            at = self._line(at)
        for opened in reversed(self.open):
            _stretch(opened.node)
        return self.root

    def _line(self, at: int) -> int:
        """Read what begins on the line at ``at``; return the start of the next unread line."""
        match = _LINE.match(self.source, at)
        assert match is not None
        end = match.end()
        text_end = at + len(match[0].rstrip("\r\n"))
        column = _indent(self.source, at, text_end)
        start = at + column
        if start >= text_end or self.source[start] == "#":
            return end
        if column == 0 and self.source.startswith(("---", "..."), start) and _COMMENT.match(self.source, start + 3):
            return end
        return self._content(start, column, text_end, end)

    def _content(self, start: int, column: int, text_end: int, end: int) -> int:
        if self.source[start] == "-" and (start + 1 >= text_end or self.source[start + 1] in " \t"):
            holder = self._container("list", column, start)
            item = holder.node.add(Node("empty", (start + 1, start + 1), key=len(holder.node.children)))
            holder.waiting = item
            inside = start + 1
            while inside < text_end and self.source[inside] in " \t":
                inside += 1
            if inside >= text_end or self.source[inside] == "#":
                return end
            return self._content(inside, column + inside - start, text_end, end)
        found = _KEY.match(self.source, start, text_end)
        if found is not None:
            raw = found["key"]
            name = raw[1:-1] if raw[0] in "\"'" and len(raw) > 1 else raw
            holder = self._container("mapping", column, start)
            child = Node("empty", (found.end(), found.end()), key=name, key_span=(start, start + len(raw)))
            holder.node.add(child)
            holder.waiting = child
            return self._value(child, found.end(), column, text_end, end)
        waiting = self._waiting(column)
        if waiting is not None:
            return self._value(waiting, start, column - 1, text_end, end)
        return end  # neither key nor item: an incomplete line, or the next line of a text

    def _container(self, kind: str, column: int, start: int) -> Open:
        while self.open:
            last = self.open[-1]
            if last.indent > column or (last.indent == column and last.node.kind == "list" and kind == "mapping"):
                _stretch(self.open.pop().node)
            elif last.indent == column and last.node.kind == kind:
                return last
            elif last.indent == column and kind == "list" and last.waiting is None:
                _stretch(self.open.pop().node)
            else:
                break
        parent = self.open[-1] if self.open else None
        if parent is None:
            node = self.root
            if node.kind == "empty" or not node.children:
                node.kind = "list" if kind == "list" else "mapping"
                node.span = (start, start)
        else:
            taken = parent.waiting
            if taken is None or taken.kind != "empty":
                # Deeper than the last value: it belongs to that value, as the author sees it.
                taken = parent.node.children[-1] if parent.node.children else parent.node
            node = taken
            if not node.children and node.kind in ("empty", "scalar"):
                node.kind = "list" if kind == "list" else "mapping"
                node.span, node.value, node.quote = (start, start), "", ""
            parent.waiting = None
        node.indent = column
        opened = Open(column, node)
        self.open.append(opened)
        return opened

    def _waiting(self, column: int) -> Node | None:
        for opened in reversed(self.open):
            if opened.indent < column:
                waiting = opened.waiting
                return waiting if waiting is not None and waiting.kind == "empty" else None
        return None

    def _value(self, node: Node, at: int, column: int, text_end: int, end: int) -> int:
        """Read the value in the rest of a line; ``column`` is the column of its key or dash."""
        while at < text_end and self.source[at] in " \t":
            at += 1
        marked = _ANCHOR.match(self.source, at, text_end)
        if marked is not None:
            at = marked.end()
        if at >= text_end or self.source[at] == "#":
            return end
        block = _BLOCK.match(self.source, at)
        if block is not None:
            return self._block(node, at, column, end)
        first = self.source[at]
        if first in "[{\"'":
            limit = self._limit(end, column) if first in "[{" or not self._ends(at, text_end) else text_end
            flow = Flow(self.source, at, limit, ":")
            _become(node, flow.value())
            return max(end, self._next(flow.at))
        raw = Flow(self.source, at, text_end, ":")
        _become(node, raw.value())
        # The next lines of a plain text.
        while end < len(self.source):
            match = _LINE.match(self.source, end)
            assert match is not None
            line = match[0].rstrip("\r\n")
            stripped = line.strip()
            deeper = len(line) - len(line.lstrip(" ")) > column
            if not stripped or not deeper or stripped.startswith(("#", "- ")) or _KEY.match(stripped):
                break
            node.span = (node.span[0], end + len(line.rstrip()))
            node.value += " " + stripped
            end = match.end()
        return end

    def _block(self, node: Node, at: int, column: int, end: int) -> int:
        node.kind, node.quote = "scalar", self.source[at]
        lines: list[str] = []
        last = end
        while end < len(self.source):
            match = _LINE.match(self.source, end)
            assert match is not None
            line = match[0].rstrip("\r\n")
            if line.strip() and _indent(self.source, end, end + len(line)) <= column:
                break
            lines.append(line)
            end = match.end()
            if line.strip():
                last = end
            if match.end() == match.start():
                break
        cut = min((len(line) - len(line.lstrip(" ")) for line in lines if line.strip()), default=0)
        node.value = "\n".join(line[cut:] for line in lines)
        node.span = (at, max(at + 1, len(self.source[:last].rstrip("\r\n")) if last > at else at + 1))
        return end

    def _ends(self, at: int, text_end: int) -> bool:
        return Flow(self.source, at, text_end, ":").quoted().closed

    def _limit(self, end: int, column: int) -> int:
        """The latest end of a value with several lines."""
        while end < len(self.source):
            match = _LINE.match(self.source, end)
            assert match is not None
            line = match[0].rstrip("\r\n")
            stripped = line.strip()
            if stripped and _indent(self.source, end, end + len(line)) <= column and stripped[0] not in "]}":
                break
            if match.end() == match.start():
                break
            end = match.end()
        return end

    def _next(self, at: int) -> int:
        """The start of the line after ``at``."""
        match = _LINE.match(self.source, at)
        return match.end() if match is not None else len(self.source)


def _indent(source: str, at: int, end: int) -> int:
    column = 0
    while at + column < end and source[at + column] in " \t":
        column += 1
    return column


def _become(node: Node, value: Node) -> None:
    """Put a value into a node; the node keeps its key and its parent."""
    node.kind, node.span, node.value, node.quote, node.closed = (
        value.kind,
        value.span,
        value.value,
        value.quote,
        value.closed,
    )
    for child in value.children:
        node.add(child)


def _stretch(node: Node) -> None:
    if node.children:
        node.span = (node.span[0], max(node.span[1], *(child.whole[1] for child in node.children)))


def open_at(root: Node, at: int) -> list[Open]:
    """The blocks that a line at an offset may extend, by the text before it; the outermost first."""
    out: list[Open] = []
    node = root
    while node.indent >= 0:
        last = next((child for child in reversed(node.children) if child.whole[0] < at), None)
        if last is None:
            break
        later = last.indent >= 0 and bool(last.children) and last.children[0].whole[0] >= at
        out.append(Open(node.indent, node, last if last.kind == "empty" or later else None))
        node = last
    return out


class Pieces:
    """Incremental parsing: keeps trees of pieces by their text, so that a keystroke parses only one piece."""

    def __init__(self) -> None:
        # The same text may occur in several places, but a piece has one place: keep one piece for each.
        self._held: dict[str, list[tuple[int, Node]]] = {}
        self._used: dict[str, list[tuple[int, Node]]] = {}

    def read(self, source: str) -> Node:
        """As `parse`."""
        lines = [found[0] for found in _LINE.finditer(source) if found[0]]
        starts = [0]
        for line in lines:
            starts.append(starts[-1] + len(line))
        self._used = {}
        root = self._block(lines, starts, 0, len(lines))
        self._held = self._used
        return root if root is not None else parse(source)

    def _block(self, lines: list[str], starts: list[int], begin: int, end: int) -> Node | None:
        found = cuts(lines, begin, end)
        if found is None:
            return None
        kind, places = found
        whole: Node | None = None
        for index, start in enumerate(places):
            stop = places[index + 1] if index + 1 < len(places) else end
            piece = self._long(lines, starts, start, stop) if stop - start > SMALL else None
            if piece is None:
                piece = self._piece(lines, starts, start, stop)
            if piece.kind != kind or piece.indent < 0:
                return None
            if whole is None:
                whole = Node(piece.kind, piece.span, indent=piece.indent)
            for child in piece.children:
                if isinstance(child.key, int):
                    child.key = len(whole.children)
                whole.add(child)
            whole.span = (whole.span[0], max(whole.span[1], piece.span[1]))
        return whole

    def _long(self, lines: list[str], starts: list[int], begin: int, end: int) -> Node | None:
        if lines[begin].lstrip().startswith("- ") or OPENING.match(lines[begin]) is None:
            return None
        inner = self._block(lines, starts, begin + 1, end)
        if inner is None:
            return None
        alone = self._piece(lines, starts, begin, begin + 1)
        column = len(lines[begin]) - len(lines[begin].lstrip(" "))
        if len(alone.children) != 1 or inner.indent < column or (inner.indent == column and inner.kind == "mapping"):
            return None
        name = alone.children[0]
        child = Node(inner.kind, inner.span, key=name.key, key_span=name.key_span, indent=inner.indent)
        for each in inner.children:
            child.add(each)
        whole = Node("mapping", (alone.span[0], inner.span[1]), indent=alone.indent)
        whole.add(child)
        return whole

    def _piece(self, lines: list[str], starts: list[int], begin: int, end: int) -> Node:
        text = "".join(lines[begin:end])
        known = self._held.get(text)
        base, node = known.pop(0) if known else (0, parse(text))
        if base != starts[begin]:
            moved(node, starts[begin] - base)
        self._used.setdefault(text, []).append((starts[begin], node))
        return node


def parse(source: str) -> Node:
    """The tree of a YAML text."""
    return Reader(source).read()
