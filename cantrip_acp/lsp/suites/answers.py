"""The server's answers for a suite, one function per request (`document_kinds`)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from lsprotocol import types

from cantrip_acp.conformance.grammar import FREE
from cantrip_acp.core.wards import WARDS
from cantrip_acp.lsp.server.large_messages import left_out
from cantrip_acp.lsp.server.wire import Prepared, prepared
from cantrip_acp.lsp.suites import document, schema_lookup

if TYPE_CHECKING:
    from cantrip_acp.conformance.grammar import Shape
    from cantrip_acp.lsp.recipes.syntax.tree import Node
    from cantrip_acp.lsp.server.documents import Held
    from cantrip_acp.lsp.server.server import Server
    from cantrip_acp.recipes.parse.source_map import KeyPath

_SYMBOL = types.SymbolKind
_ITEM = types.CompletionItemKind
_LONG = 4_000
"""The most cases of one file with lenses."""


def opened(ls: Server, item: types.TextDocumentItem) -> None:
    if not left_out(item.text):
        ls.suites.changed(ls.documents.open(item), 0.0)


def edited(
    ls: Server, about: types.VersionedTextDocumentIdentifier, changes: list[types.TextDocumentContentChangeEvent]
) -> None:
    held = ls.documents.held.get(about.uri)
    if held is not None and not any(left_out(change.text) for change in changes):
        held.change(changes, about.version)
        ls.suites.changed(held)


def closed(ls: Server, uri: str) -> None:
    held = ls.documents.held.get(uri)
    ls.documents.close(uri)
    if held is not None:
        ls.suites.closed(held)


def _held(ls: Server, params: Any) -> Held | None:
    held = ls.documents.held.get(params.text_document.uri)
    return held if held is not None and document.is_suite(held.text.source) else None


def completion(ls: Server, params: types.CompletionParams) -> types.CompletionList | None:
    held = _held(ls, params)
    if held is None:
        return None
    from cantrip_acp.lsp.recipes.syntax import cursor_context

    offset = held.text.offset(params.position)
    at = cursor_context.of(held, offset)
    if at is None:
        return None
    found: list[types.CompletionItem] = []
    if at.keys:
        found += _keys(held, at.path, at.word)
    if at.values:
        found += _values(at.path)
    spot = held.text.range(*at.word)
    for order, item in enumerate(found):
        item.text_edit = types.TextEdit(spot, item.insert_text or item.label)
        item.insert_text, item.sort_text = None, f"{order:04}"
    return types.CompletionList(is_incomplete=False, items=found)


def _keys(held: Held, path: KeyPath, word: tuple[int, int]) -> Iterator[types.CompletionItem]:
    shape = schema_lookup.at(path if path else (0,))
    node = held.tree.find(path)
    line = held.text.line_of(word[0])
    written = {
        child.key
        for child in (node.children if node is not None and node.kind == "mapping" else ())
        if child.key_span is not None and held.text.line_of(child.key_span[0]) != line
    }
    ward = path[2:3] == ("circle",) and path[3:4] == ("wards",)
    dash = "" if path else "- "
    for name in (shape.keys or {}) if shape is not None and shape is not FREE else ():
        if name not in written:
            about = WARDS[name]["meaning"] if ward and name in WARDS else schema_lookup.KEYS.get(name, "")
            text = types.MarkupContent(types.MarkupKind.Markdown, about) if about else None
            yield types.CompletionItem(name, kind=_ITEM.Property, documentation=text, insert_text=f"{dash}{name}: ")


def _values(path: KeyPath) -> Iterator[types.CompletionItem]:
    last = path[-1] if path else None
    if path[1:] == ("rule",):
        for rule, meaning in schema_lookup.rules().items():
            text = types.MarkupContent(types.MarkupKind.Markdown, meaning)
            yield types.CompletionItem(
                rule, kind=_ITEM.Reference, detail=meaning.splitlines()[0][:80], documentation=text
            )
    elif path[2:4] == ("circle", "gates") and len(path) in (4, 5):
        for gate in schema_lookup.GATES:
            yield types.CompletionItem(gate, kind=_ITEM.Function, detail="gate")
    elif isinstance(last, str) and last in schema_lookup.WORDS and path[1:2] != ("expect",):
        for word in schema_lookup.WORDS[last]:
            yield types.CompletionItem(word, kind=_ITEM.EnumMember)
    elif isinstance(last, str) and last in schema_lookup.FLAGS:
        for word in ("true", "false"):
            yield types.CompletionItem(word, kind=_ITEM.Value)
    elif path[1:2] == ("expect",) and _plain(schema_lookup.at(path)):
        for word in schema_lookup.MATCHERS:
            yield types.CompletionItem(word, kind=_ITEM.Value, detail="matcher")


def _plain(shape: Shape | None) -> bool:
    return shape is not None and shape.scalar and not shape.keys


def hover(ls: Server, params: types.HoverParams) -> types.Hover | None:
    held = _held(ls, params)
    if held is None:
        return None
    node = held.tree.at(held.text.offset(params.position))
    offset = held.text.offset(params.position)
    path = node.path
    on_key = node.key_span is not None and node.key_span[0] <= offset <= node.key_span[1]
    span = node.key_span if on_key and node.key_span is not None else node.span
    if path[1:] == ("rule",) and not on_key:
        rule = node.value.strip().upper()
        meaning = schema_lookup.rules().get(rule)
        said = f"**{rule}** [↗]({schema_lookup.link(rule)})\n\n{meaning}" if meaning else ""
    elif on_key and isinstance(path[-1], str):
        name = path[-1]
        ward = "wards" in path
        about = WARDS[name]["meaning"] if ward and name in WARDS else schema_lookup.KEYS.get(name, "")
        said = f"**{name}**\n\n{about}" if about and schema_lookup.at(path) is not None else ""
    else:
        said = ""
    if not said:
        return None
    from cantrip_acp.lsp.server.markup import fitted

    content = fitted(types.MarkupContent(types.MarkupKind.Markdown, said), ls.hover_formats)
    return types.Hover(content, held.text.range(*span))


def symbols(ls: Server, params: types.DocumentSymbolParams) -> list[types.DocumentSymbol] | None:
    held = _held(ls, params)
    if held is None:
        return None
    out = []
    for node in held.tree.children:
        parts = [
            types.DocumentSymbol(
                str(child.key), _SYMBOL.Property, held.text.range(*child.whole), held.text.range(*(child.key_span))
            )
            for child in node.children
            if isinstance(child.key, str) and child.key_span is not None and child.key not in ("rule", "name")
        ]
        rule, name = _word(node, "rule"), _word(node, "name")
        start, end = node.whole
        chosen = (start, min(end, start + max(1, len(held.text.line(held.text.line_of(start))) - 2)))
        label = f"{rule} {name}".strip() or "(no name)"
        kind = _SYMBOL.Method if node.get("action") is not None else _SYMBOL.Key
        out.append(
            types.DocumentSymbol(
                label[:120], kind, held.text.range(start, end), held.text.range(*chosen), children=parts
            )
        )
    return out


def folds(ls: Server, params: types.FoldingRangeParams) -> list[types.FoldingRange] | None:
    held = _held(ls, params)
    if held is None:
        return None
    from cantrip_acp.lsp.recipes import outline

    return outline.folds(held)


async def lenses(ls: Server, params: types.CodeLensParams) -> Prepared | None:
    held = _held(ls, params)
    if held is None or not held.tree.children:
        return None
    known, uri, cases = ls.suites.outcomes(held), held.uri, held.tree.children
    lines = [held.text.line_of(node.whole[0]) for node in cases]
    names = [(_word(node, "rule"), _word(node, "name")) for node in cases]

    def made() -> Prepared:
        out: list[dict[str, Any]] = []

        def lens(at: int, title: str, **given: Any) -> None:
            spot = {"line": at, "character": 0}
            command = {"title": title, "command": "cantrip.conformance.run", "arguments": [{"uri": uri, **given}]}
            out.append({"range": {"start": spot, "end": spot}, "command": command})

        lens(lines[0], f"▶ Run all {len(lines):,} cases" if len(lines) > 1 else "▶ Run all")
        for line, name in list(zip(lines, names, strict=True))[:_LONG]:
            mark = known.get(name)
            lens(line, f"▶ Run{f' ({mark})' if mark else ''}", line=line + 1)
        return prepared(out)

    return await asyncio.to_thread(made)


def _word(node: Node, key: str) -> str:
    child = node.get(key)
    return re.sub(r"\s+", " ", child.value).strip() if child is not None and child.kind == "scalar" else ""


def diagnostics(ls: Server, params: types.DocumentDiagnosticParams) -> Prepared:
    """An empty report: problems are published when they are found, also for clients that pull, because runs find problems too."""
    return prepared({"kind": "full", "items": []})
