"""Cursor context: the key path at the cursor, and whether a key or a value is typed there. The text may be broken."""

from __future__ import annotations

import re
from dataclasses import dataclass

from cantrip_acp.lsp.recipes.syntax.tree import Node, Span
from cantrip_acp.lsp.server.documents import OpenDocument
from cantrip_acp.recipes.parse.problem_positions import KeyPath

_WORD = re.compile(r"""[^\s,\[\]{}"'#=]*\Z""")
_KEY = re.compile(r"""("(?:[^"\\]|\\.)*"|'[^']*'|[^\s"'\[{#][^:"'\[{#]*?)[ \t]*:(?:[ \t]+|\Z)""")


@dataclass(frozen=True, slots=True)
class CursorContext:
    """``path`` is the path of the value that is being typed. With ``keys`` it is a mapping whose keys fit here; with ``values`` a
    value fits. ``word`` is the text typed so far. ``dashed``: a dash is before it; ``inline``: it is inside brackets."""

    path: KeyPath
    word: Span
    keys: bool = False
    values: bool = False
    inline: bool = False
    dashed: bool = False


def of(document: OpenDocument, offset: int) -> CursorContext | None:
    """The context at an offset; None in prose and in comments."""
    source = document.text.source
    begin = document.text.starts[document.text.line_of(offset)]
    before = source[begin:offset]
    word = _WORD.search(before)
    span = (offset - len(word[0]) if word is not None else offset, offset)
    node = document.tree.at(offset)
    if node.kind == "scalar" and node.quote in ("|", ">") and offset > node.span[0] + 1:
        return None
    if re.search(r"(?:^|[ \t])#", re.sub(r"""(["'])(?:(?!\1).)*\1""", "", before)):
        return None
    around = _brackets(node, offset)
    if around is not None:
        return _inside(source, around, offset, span)
    return _in_block(document, begin, before, span)


def _brackets(node: Node | None, offset: int) -> Node | None:
    while node is not None:
        if node.quote in ("[", "{") and node.span[0] < offset and (offset < node.span[1] or not node.closed):
            return node
        node = node.parent
    return None


def _inside(source: str, around: Node, offset: int, word: Span) -> CursorContext:
    if around.quote == "[":
        index = sum(1 for child in around.children if child.span[1] < word[0])
        return CursorContext((*around.path, index), word, keys=False, values=True, inline=True)
    # Start after the last complete pair of this mapping, so that separators inside its value do not count.
    ends = [child.whole[1] for child in around.children if child.kind != "empty" and child.whole[1] < word[0]]
    begin = max([around.span[0] + 1, *ends])
    part = source[begin:offset].lstrip(" ,\r\n\t")
    name, found, _ = part.partition(":")
    if found:
        return CursorContext((*around.path, name.strip().strip("\"'")), word, values=True, inline=True)
    return CursorContext(around.path, word, keys=True, inline=True)


def _in_block(document: OpenDocument, begin: int, before: str, word: Span) -> CursorContext:
    blocks = _open_blocks(document.tree, begin)
    column, rest = len(before) - len(before.lstrip(" ")), before.lstrip(" ")
    path: KeyPath | None = None
    dashed = False
    while rest[:1] == "-" and rest[1:2] in ("", " "):
        parent = _list(blocks, column, begin) if path is None else (path, 0)
        path = (*parent[0], parent[1])
        inner = rest[1:].lstrip(" ")
        column, rest, dashed = column + len(rest) - len(inner), inner, True
    found = _KEY.match(rest)
    if path is None:
        holder, path = _holder(blocks, column)
    else:
        holder = False
    if found is not None:
        return CursorContext(
            (*path, found[1].strip("\"'")), (max(word[0], word[1] - len(rest) + found.end()), word[1]), values=True
        )
    return CursorContext(path, word, keys=True, values=not holder, dashed=dashed)


def _holder(blocks: list[_Block], column: int) -> tuple[bool, KeyPath]:
    """(True, path) of the mapping with keys at this column; else (False, path) of the block that waits for a value."""
    for opened in reversed(blocks):
        if opened.indent == column and opened.node.kind == "mapping":
            return True, opened.node.path
        if opened.indent < column:
            if opened.waiting is not None:
                return False, opened.waiting.path
            last = opened.node.children[-1] if opened.node.children else opened.node
            return False, last.path
    return True, ()


def _list(blocks: list[_Block], column: int, begin: int) -> tuple[KeyPath, int]:
    """The list with dashes at this column, and its number of items."""
    for opened in reversed(blocks):
        if opened.indent == column and opened.node.kind == "list":
            return opened.node.path, sum(1 for child in opened.node.children if child.whole[0] < begin)
        if opened.indent <= column and opened.waiting is not None:
            return opened.waiting.path, 0
    return (), 0


@dataclass(frozen=True, slots=True)
class _Block:
    """A mapping or list that later lines may extend. ``indent`` is the column of its keys or dashes."""

    indent: int
    node: Node
    waiting: Node | None
    """The child that has no value yet."""


def _open_blocks(root: Node, at: int) -> list[_Block]:
    """The blocks that a line at an offset may extend, by the text before it; the outermost first."""
    out: list[_Block] = []
    node = root
    while node.indent >= 0:
        last = next((child for child in reversed(node.children) if child.whole[0] < at), None)
        if last is None:
            break
        later = last.indent >= 0 and bool(last.children) and last.children[0].whole[0] >= at
        out.append(_Block(node.indent, node, last if last.kind == "empty" or later else None))
        node = last
    return out
