"""Formatting of recipes. It changes only the layout: comments and texts stay as they are.
It removes spaces at line ends, limits empty lines to two in a row, ends the file with one newline, and puts one space after
a key and a dash. It does nothing if the loader would read the result differently.
"""

from __future__ import annotations

import re

from lsprotocol import types

from cantrip_acp.lsp.server.documents import OpenDocument
from cantrip_acp.recipes.parse import document
from cantrip_acp.types.errors import RecipeError

_AFTER_KEY = re.compile(r"\A([ \t]*(?:-[ ]+)*[A-Za-z_][A-Za-z0-9_-]*:)[ \t]{2,}(?=[^\s#])")
_AFTER_DASH = re.compile(r"\A([ \t]*-)[ ]{2,}(?=[^\s#-][^:]*\Z)")


def edits(document: OpenDocument) -> list[types.TextEdit]:
    """The edits that format a document; none if it is broken or already formatted."""
    source = document.text.source
    new = formatted(document)
    if new == source or not _same(document, source, new):
        return []
    # One edit per line, so that cursors and folds stay in place.
    before, after = source.splitlines(keepends=True), new.splitlines(keepends=True)
    if len(before) != len(after):
        return [types.TextEdit(document.text.range(0, len(source)), new)]
    out: list[types.TextEdit] = []
    at = 0
    for old, changed in zip(before, after, strict=True):
        if old != changed:
            out.append(types.TextEdit(document.text.range(at, at + len(old)), changed))
        at += len(old)
    return out


def formatted(document: OpenDocument) -> str:
    texts = _texts(document)
    newline = "\r\n" if "\r\n" in document.text.source else "\n"
    out: list[str] = []
    empty = 0
    for number in range(len(document.text.starts)):
        line = document.text.line(number)
        if number in texts:
            out.append(line)
            empty = 0
            continue
        line = line.rstrip(" \t")
        empty = empty + 1 if not line else 0
        if empty > 2:
            continue
        out.append(_AFTER_DASH.sub(r"\1 ", _AFTER_KEY.sub(r"\1 ", line)))
    return newline.join(out).rstrip("\r\n") + newline


def _texts(document: OpenDocument) -> set[int]:
    """The lines inside multi-line texts, where every space counts."""
    out: set[int] = set()
    for node in document.tree.walk():
        if node.kind == "scalar":
            first, last = (
                document.text.line_of(node.span[0]),
                document.text.line_of(max(node.span[0], node.span[1] - 1)),
            )
            out.update(range(first + 1, last + 1))
            if node.quote and last > first and node.quote not in ("|", ">"):
                out.add(first)
    return out


def _same(held: OpenDocument, before: str, after: str) -> bool:
    try:
        first = document.parse(before.encode("utf-8", "replace"), held.path)
        return bool(document.parse(after.encode("utf-8", "replace"), held.path).data == first.data)
    except RecipeError:
        return False
