"""Semantic tokens: which words of a recipe are keys, wards, gates, mediums, providers, models, or names that it defines."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from lsprotocol import types

from cantrip_acp.gates.registry import ALIASES
from cantrip_acp.gates.wards import WARDS
from cantrip_acp.lsp.recipes.hover import MEDIUMS, is_crystal, is_gate
from cantrip_acp.lsp.recipes.syntax.tree import Node, Span
from cantrip_acp.lsp.server.documents import OpenDocument
from cantrip_acp.recipes.parse.problem_positions import KeyPath

# --- The token types and modifiers. `server/features.py` announces them at the start; they are used below.

TYPES = ("keyword", "property", "parameter", "function", "enumMember", "namespace", "class", "variable")
MODIFIERS = ("declaration", "deprecated")


_OLDER = {"require_done", *ALIASES}
_NUMBERS = count(1)


def full_tokens(document: OpenDocument) -> types.SemanticTokens:
    """The tokens of the whole text. They are kept, so that the next answer can be a difference."""
    data = _numbers(document, _tokens(document))
    document.colored = (str(next(_NUMBERS)), data)
    return types.SemanticTokens(data, document.colored[0])


def part(document: OpenDocument, spot: types.Range) -> types.SemanticTokens:
    """The tokens that touch a range."""
    start, end = document.text.offset(spot.start), document.text.offset(spot.end)
    return types.SemanticTokens(_numbers(document, (t for t in _tokens(document) if t[0][0] < end and t[0][1] > start)))


def changed(document: OpenDocument, before: str) -> types.SemanticTokens | types.SemanticTokensDelta:
    """The differences from an earlier answer; all tokens if that answer is no longer stored."""
    if document.colored is None or document.colored[0] != before:
        return full_tokens(document)
    old = document.colored[1]
    made = full_tokens(document)
    new = made.data
    head = 0
    while head < min(len(old), len(new)) and old[head] == new[head]:
        head += 1
    head -= head % 5
    tail = 0
    while tail < min(len(old), len(new)) - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    tail -= tail % 5
    edits: list[types.SemanticTokensEdit] = []
    if head < len(old) - tail or head < len(new) - tail:
        edits = [types.SemanticTokensEdit(head, len(old) - tail - head, list(new[head : len(new) - tail]))]
    return types.SemanticTokensDelta(edits, made.result_id)


Token = tuple[Span, str, tuple[str, ...]]


def _tokens(document: OpenDocument) -> Iterator[Token]:
    """Every token in text order. Tokens do not overlap, and none crosses a line end."""
    at = 0
    found = sorted((t for t in _all(document) if t[0][0] < t[0][1]), key=lambda token: token[0])
    source = document.text.source
    for span, kind, modifiers in found:
        if span[0] >= at and "\n" not in source[slice(*span)] and "\r" not in source[slice(*span)]:
            at = span[1]
            yield span, kind, modifiers


def _all(document: OpenDocument) -> Iterator[Token]:
    stack: list[tuple[Node, KeyPath]] = [
        (child, (child.key,)) for child in document.tree.children if child.key is not None
    ]
    while stack:
        node, path = stack.pop()
        if node.key_span is not None and isinstance(node.key, str):
            kind, modifiers = _key(path)
            if kind:
                yield _without_quotes(document, node.key_span), kind, modifiers
        if node.kind == "scalar":
            yield from _value(node, path)
        # A script's arguments are data.
        if path[-1] != "args":
            stack += [(child, (*path, child.key)) for child in node.children if child.key is not None]
    if "&" in document.text.source:
        from cantrip_acp.lsp.recipes.references import anchors

        for span, _, sign in anchors(document):
            yield span, "variable", ("declaration",) if sign == "&" else ()


def _key(path: KeyPath) -> tuple[str, tuple[str, ...]]:
    name = path[-1]
    older = ("deprecated",) if name == "require_done" and path[0] in ("call", "circle") else ()
    if len(path) == 1:
        return "keyword", ()
    if path[:2] == ("circle", "wards") and len(path) == 4:
        return ("parameter", older) if name in WARDS or older else ("", ())
    if path[0] == "crystals" and len(path) == 2:
        return "variable", ("declaration",)
    return "property", older


def _value(node: Node, path: KeyPath) -> Iterator[Token]:
    start, end = node.span
    if node.quote in ("'", '"') and node.closed:
        start, end = start + 1, end - 1
    elif node.quote:
        return
    text = node.value
    if path == ("circle", "medium"):
        if text in MEDIUMS:
            yield (start, end), "enumMember", ()
    elif is_gate(path):
        given = ("declaration",) if path[:2] == ("circle", "gates") else ()
        yield (start, end), "function", (*given, *(("deprecated",) if text in _OLDER else ()))
    elif is_crystal(path):
        provider, colon, model = text.partition(":")
        if end - start == len(text):
            yield (start, start + len(provider)), "namespace", ()
            if colon and model:
                yield (start + len(provider) + 1, end), "class", ()
    elif path[-1] == "provider" and path[0] in ("crystal", "crystals"):
        yield (start, end), "namespace", ()
    elif path[-1] == "model" and path[0] in ("crystal", "crystals"):
        yield (start, end), "class", ()
    elif path == ("folding", "summarizer"):
        yield (start, end), "variable", ()


def _without_quotes(document: OpenDocument, span: Span) -> Span:
    return (span[0] + 1, span[1] - 1) if document.text.source[span[0]] in "\"'" and span[1] - span[0] > 1 else span


def _numbers(document: OpenDocument, tokens: Iterator[Token]) -> list[int]:
    """The protocol's encoding: five numbers for each token, positions relative to the token before."""
    out: list[int] = []
    line, column = 0, 0
    for span, kind, modifiers in tokens:
        at, start = document.text.spot(span[0])
        length = document.text.units(document.text.source[slice(*span)])
        bits = sum(1 << MODIFIERS.index(name) for name in modifiers)
        out += [at - line, start - (column if at == line else 0), length, TYPES.index(kind), bits]
        line, column = at, start
    return out
