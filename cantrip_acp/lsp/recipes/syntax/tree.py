"""Syntax tree of a recipe, also of a broken one: nodes with spans, found by key path or by offset.

tree-sitter parses the text. If it reports an error, the text is cut where a key or an item begins, and each piece is
parsed alone, so that a broken line does not spoil the lines around it. Only the editor's features use this tree. The
loader decides what is valid (`diagnostics`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Literal

from cantrip_acp.recipes.parse.problem_positions import KeyPath

if TYPE_CHECKING:
    import tree_sitter

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
        return (self.key_span[0], max(self.key_span[1], self.span[1])) if self.key_span else self.span

    def add(self, child: Node) -> Node:
        child.parent = self
        self.children.append(child)
        return child

    def get(self, key: str | int) -> Node | None:
        """The child with a name or an index."""
        if isinstance(key, int):
            return self.children[key] if self.kind == "list" and 0 <= key < len(self.children) else None
        return next((child for child in self.children if child.key == key), None) if self.kind == "mapping" else None

    def find(self, path: KeyPath) -> Node | None:
        node: Node | None = self
        for part in path:
            node = node.get(part) if node is not None else None
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


def parse(source: str) -> Node:
    """The tree of a text, valid or not."""
    # Only ASCII characters have a meaning in YAML. With one byte for each character, bytes are offsets.
    plain = re.sub(r"[^\x00-\x7f]", "x", source)
    try:
        return _Reader(source, plain).block(0, len(source)) or Node("empty", (0, 0))
    except RecursionError:  # nested deeper than any recipe
        return Node("empty", (0, 0))


@cache
def _parser() -> tree_sitter.Parser:
    # Imported with the first recipe: the server starts without it.
    import tree_sitter
    import tree_sitter_yaml

    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_yaml.language()))


_SCALARS = {"plain_scalar": "", "alias": "", "double_quote_scalar": '"', "single_quote_scalar": "'"}
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n|\Z)")
_DASH = re.compile(r"-(?=[ \t\r\n]|\Z)")
_KEY = re.compile(
    r"""([ ]*)("[^"\r\n]*"|'[^'\r\n]*'|[^\s#\[\]{},"'&*!|>%@`-][^:#\r\n]*?|[^\s:]+)[ \t]*:(?=[ \t\r\n]|\Z)"""
)
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"|\'[^\']*\'|(?<!\S)#[^\r\n]*', re.DOTALL)


class _Reader:
    """Reads parts of one text. ``plain`` is the text with one byte for each character."""

    def __init__(self, source: str, plain: str) -> None:
        self.source = source
        self.plain = plain

    def block(self, begin: int, end: int) -> Node | None:
        """The node of the lines from ``begin`` to ``end``; None if there is none."""
        found, broken = self._parsed(begin, end, "")
        if not broken:
            return found
        starts = self._entries(begin, end)
        if len(starts) > 1:
            return self._joined([self.block(*each) for each in zip(starts, [*starts[1:], end], strict=True)])
        closing = self._unclosed(begin, end)
        if closing:
            closed, broken = self._parsed(begin, begin + len(self.plain[begin:end].rstrip("\r\n")), closing)
            if not broken:
                return closed
        return self._entry(begin, end)

    def _parsed(self, begin: int, end: int, closing: str) -> tuple[Node | None, bool]:
        """The node of a part of the text with ``closing`` behind it, and whether it is broken."""
        # Spaces keep the column of a part that begins inside a line.
        column = begin - max(self.plain.rfind("\n", 0, begin), self.plain.rfind("\r", 0, begin)) - 1
        text = " " * column + self.plain[begin:end] + closing
        root = _parser().parse(text.encode()).root_node
        if root.has_error:
            return None, True
        for document in root.named_children:
            for child in document.named_children:
                if child.type in ("block_node", "flow_node"):
                    return self._node(child, begin - column, end), False
        return None, False

    def _node(self, given: tree_sitter.Node, base: int, limit: int) -> Node:
        """Our node for a value. ``base`` is the offset of tree-sitter's first byte; ``limit`` is the end of the text."""
        inner = [child for child in given.named_children if child.type not in ("anchor", "tag", "comment")]
        if not inner:
            at = min(base + given.end_byte, limit)
            return Node("empty", (at, at))
        value = inner[0]
        kind = value.type
        start, stop = base + value.start_byte, min(base + value.end_byte, limit)
        closed = base + value.end_byte <= limit
        if kind in _SCALARS:
            quote = _SCALARS[kind]
            text = self.source[start + len(quote) : stop - (len(quote) if closed else 0)]
            if "\n" in text:
                text = re.sub(r"[ \t]*\r?\n[ \t]*", " ", text)
            return Node("scalar", (start, stop), value=text, quote=quote, closed=closed)
        if kind == "block_scalar":
            return self._prose(start, stop)
        flow = kind.startswith("flow")
        node = Node(
            "mapping" if kind.endswith("mapping") or kind == "flow_pair" else "list", (start, stop), closed=closed
        )
        if flow:
            node.quote = self.source[start] if kind != "flow_pair" else ""
        else:
            node.indent = value.start_point[1]
        for child in [value] if kind == "flow_pair" else value.named_children:
            if child.type in ("block_mapping_pair", "flow_pair") and node.kind == "mapping":
                self._pair(node, child, base, limit)
            elif child.type == "block_sequence_item":
                children = [each for each in child.named_children if each.type in ("block_node", "flow_node")]
                at = base + child.start_byte + 1
                item = self._node(children[0], base, limit) if children else Node("empty", (at, at))
                item.key = len(node.children)
                node.add(item)
            elif child.type == "flow_pair":
                item = Node("mapping", (base + child.start_byte, min(base + child.end_byte, limit)))
                self._pair(item, child, base, limit)
                item.key = len(node.children)
                node.add(item)
            elif child.type == "flow_node":
                item = self._node(child, base, limit)
                if node.kind == "mapping":
                    item = Node("empty", (item.span[1],) * 2, key=item.value, key_span=item.span)
                else:
                    item.key = len(node.children)
                node.add(item)
        if not flow and node.children:
            node.span = (start, max(child.whole[1] for child in node.children))
        return node

    def _pair(self, holder: Node, pair: tree_sitter.Node, base: int, limit: int) -> None:
        key, value = pair.child_by_field_name("key"), pair.child_by_field_name("value")
        name = self._node(key, base, limit) if key is not None else None
        colon = next((c.end_byte for c in pair.children if c.type == ":"), pair.end_byte)
        at = min(base + colon, limit)
        child = self._node(value, base, limit) if value is not None else Node("empty", (at, at))
        child.key = name.value if name is not None else ""
        child.key_span = name.span if name is not None else None
        holder.add(child)

    def _prose(self, start: int, stop: int) -> Node:
        """A block scalar: its text without the indentation, and its span without empty lines at the end."""
        head = self.source.find("\n", start, stop)
        text = self.source[head + 1 : stop] if head >= 0 else ""
        lines = [line.rstrip("\r") for line in text.rstrip().split("\n")] if text.strip() else []
        cut = min((len(line) - len(line.lstrip(" ")) for line in lines if line.strip()), default=0)
        end = start + len(self.source[start:stop].rstrip())
        return Node("scalar", (start, end), value="\n".join(line[cut:] for line in lines), quote=self.source[start])

    # Broken text

    def _lines(self, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Each line with content: its begin, its end, and the offset of its first character."""
        at = begin
        while at < end:
            match = _LINE.match(self.plain, at, end)
            assert match is not None
            first = at + len(match[0]) - len(match[0].lstrip(" \t\r\n"))
            if first < match.end() and self.plain[first] != "#":
                yield at, match.end(), first
            at = match.end()

    def _entries(self, begin: int, end: int) -> list[int]:
        """Where keys or items begin at the smallest column; the first entry begins at ``begin``."""
        lines = [(at, first, self._column(first)) for at, _, first in self._lines(begin, end)]
        if not lines:
            return [begin]
        least = min(column for _, _, column in lines)
        dashes = next(bool(_DASH.match(self.plain, first)) for _, first, column in lines if column == least)
        starts = [
            at
            for at, first, column in lines
            if column == least and self.plain[first] not in "]}" and (dashes or not _DASH.match(self.plain, first))
        ]
        return [begin, *starts[1:]] if starts and starts[0] == lines[0][0] else [begin, *starts]

    def _column(self, offset: int) -> int:
        return offset - max(self.plain.rfind("\n", 0, offset), self.plain.rfind("\r", 0, offset)) - 1

    def _unclosed(self, begin: int, end: int) -> str:
        """The quotes and brackets that close open ones at the end of a part."""
        bare = _QUOTED.sub("", self.plain[begin:end])
        closing = ""
        for character in bare:
            if character in "[{":
                closing = ("]" if character == "[" else "}") + closing
            elif character in "]}" and closing[:1] == character:
                closing = closing[1:]
            elif character in "\"'":
                return character + closing
        # Behind a comment, a line end comes first.
        commented = "#" in self.plain[begin:end].rstrip("\r\n").rpartition("\n")[2]
        return f"\n{' ' * (self._column(begin) + 80)}{closing}" if closing and commented else closing

    def _joined(self, parts: list[Node | None]) -> Node | None:
        """One block of entries that were read alone. Parts that are neither a key nor an item are left out."""
        blocks = [part for part in parts if part is not None and part.kind in ("mapping", "list") and not part.quote]
        if not blocks:
            return next((part for part in parts if part is not None), None)
        whole = blocks[0]
        for block in blocks[1:]:
            if block.kind == whole.kind:
                for child in block.children:
                    if whole.kind == "list":
                        child.key = len(whole.children)
                    whole.add(child)
                whole.span = (whole.span[0], max(whole.span[1], block.span[1]))
        return whole

    def _entry(self, begin: int, end: int) -> Node | None:
        """A single broken entry: its first line and the lines below are read apart."""
        first = next(self._lines(begin, end), None)
        if first is None:
            return None
        _, stop, at = first
        column = self._column(at)
        if _DASH.match(self.plain, at):
            inside = at + 1
            while inside < stop and self.plain[inside] == " ":
                inside += 1
            item = self.block(inside, end) or Node("empty", (at + 1, at + 1))
            item.key = 0
            node = Node("list", (at, max(item.whole[1], at + 1)), indent=column)
            node.add(item)
            return node
        head, broken = self._parsed(at, stop, "")
        if broken:
            last = at + len(self.plain[at:stop].rstrip("\r\n"))
            head, broken = self._parsed(at, last, self._unclosed(at, stop))
        if broken or (head is not None and head.kind == "scalar"):
            key = _KEY.match(self.plain, at, stop)
            if key is None:
                return self.block(stop, end) if stop < end else None
            text = self.source[key.end() : stop].strip()
            start = key.end() + len(self.source[key.end() : stop]) - len(self.source[key.end() : stop].lstrip())
            value = Node("scalar", (start, start + len(text)), value=text) if text else Node("empty", (key.end(),) * 2)
            value.key, value.key_span = self.source[slice(*key.span(2))].strip("\"'"), key.span(2)
            head = Node("mapping", (at, max(value.span[1], key.end())), indent=column)
            head.add(value)
        below = self.block(stop, end) if stop < end else None
        if head is None:
            return below
        if below is not None and head.children:
            self._attach(head.children[-1], below)
            head.span = (head.span[0], max(head.span[1], below.span[1]))
        return head

    def _attach(self, node: Node, below: Node) -> None:
        """Make the lines below a key its value; if it has one already, they extend it."""
        if node.kind in ("empty", "scalar"):
            node.kind, node.span, node.value, node.quote = below.kind, below.span, below.value, below.quote
            node.closed, node.indent = below.closed, below.indent
        for child in below.children:
            node.add(child)
