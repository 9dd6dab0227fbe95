"""Completion at the cursor: keys, gates, wards, mediums, models with windows and prices, and paths."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

from lsprotocol import types

from cantrip_acp.gates.wards import WARDS
from cantrip_acp.lsp.recipes import hover
from cantrip_acp.lsp.recipes.file_references import path_beside
from cantrip_acp.lsp.recipes.syntax import cursor_context, schema_lookup
from cantrip_acp.lsp.recipes.syntax.cursor_context import CursorContext
from cantrip_acp.lsp.server.documents import OpenDocument

_KIND = types.CompletionItemKind
MOST = 300
"""The most names of a folder that are offered."""

_STORES = {
    "jsonl": "a file in the state folder",
    "memory": "nothing is kept",
    "sqlite:": "an SQLite file",
    "postgresql://": "a PostgreSQL database",
}

_HIDDEN = ("On", "ON", "Off", "OFF", "on", "off")


def completions(document: OpenDocument, position: types.Position, workspace: Path) -> list[types.CompletionItem]:
    """The completions at a position; empty in prose, in comments, and where any value is possible."""
    offset = document.text.offset(position)
    at = cursor_context.of(document, offset)
    if at is None:
        return []
    found = list(_keys(document, at)) if at.keys else []
    if at.values:
        values = list(_values(document, at, workspace))
        # A gate is more often a name than a mapping.
        found = values + found if hover.is_gate(at.path) else found + values
    spot = document.text.range(*at.word)
    out: list[types.CompletionItem] = []
    seen: set[str] = set()
    for order, item in enumerate(found):
        if item.label in seen:
            continue
        seen.add(item.label)
        new = item.insert_text or item.label
        item.text_edit, item.insert_text = types.TextEdit(spot, new), None
        item.filter_text = item.filter_text or item.label
        item.sort_text = f"{order:04}"
        out.append(item)
    return out


def _keys(document: OpenDocument, at: CursorContext) -> Iterator[types.CompletionItem]:
    node = document.tree.find(at.path)
    line = document.text.line_of(at.word[0])
    # Without the key that is being typed.
    written = {
        child.key
        for child in (node.children if node is not None and node.kind == "mapping" else ())
        if child.key_span is not None and document.text.line_of(child.key_span[0]) != line
    }
    if at.path[:2] == ("circle", "wards") and at.path[2:3] and written:
        return  # each ward has one key
    for name, schema in schema_lookup.keys(at.path, document.tree).items():
        if name in written or schema.get("deprecated"):
            continue
        ward = at.path[:2] == ("circle", "wards") and name in WARDS
        text = hover.ward(name) if ward else str(schema.get("description", ""))
        yield types.CompletionItem(
            name,
            kind=_KIND.Property,
            detail="ward" if ward else schema_lookup.kind(schema) or None,
            documentation=types.MarkupContent(types.MarkupKind.Markdown, text) if text else None,
            insert_text=f"{name}: ",
        )


def _values(document: OpenDocument, at: CursorContext, workspace: Path) -> Iterator[types.CompletionItem]:
    path = at.path
    # At a list's first item: offer the items with the dash, or in brackets.
    is_list = any(schema.get("type") == "array" for schema in schema_lookup.at(path, document.tree)) and not at.dashed
    if is_list and not schema_lookup.words(path, document.tree):
        whole = document.text.line(document.text.line_of(at.word[0])).strip().endswith(":")
        for item in _items(document, CursorContext((*path, 0), at.word, values=True, inline=True), workspace):
            text = item.insert_text or item.label
            item.insert_text = f"[{text}]" if whole or _same_line(document, at) else f"- {text}"
            yield item
        if path == ("circle", "wards") and not _same_line(document, at):
            for item in _keys(document, CursorContext((*path, 0), at.word, keys=True)):
                item.insert_text = f"- {item.label}: "
                yield item
        return
    yield from _items(document, at, workspace)


def _same_line(document: OpenDocument, at: CursorContext) -> bool:
    line = document.text.line_of(at.word[0])
    before = document.text.source[document.text.starts[line] : at.word[0]]
    return bool(before.strip())


def _items(document: OpenDocument, at: CursorContext, workspace: Path) -> Iterator[types.CompletionItem]:
    path = at.path
    if path == ("circle", "medium"):
        for name, text in hover.MEDIUMS.items():
            yield types.CompletionItem(
                name, kind=_KIND.EnumMember, detail=text, insert_text=_written(document, at, name)
            )
        return
    if hover.is_gate(path) or (len(path) == 5 and hover.is_gate(path[:4])):
        yield from _gates(document, at)
        return
    if hover.is_crystal(path) or path[-1:] == ("model",):
        yield from _models(document, at)
        return
    if path == ("folding", "summarizer"):
        named = document.tree.find(("crystals",))
        for child in named.children if named is not None else ():
            yield types.CompletionItem(
                str(child.key), kind=_KIND.Reference, insert_text=_written(document, at, str(child.key))
            )
        return
    if path == ("loom", "store"):
        for label, what in _STORES.items():
            yield types.CompletionItem(
                label, kind=_KIND.EnumMember, detail=what, insert_text=_written(document, at, label)
            )
        return
    base = _base(document, path, workspace)
    if base is not None:
        yield from _paths(document, at, *base)
        return
    for word in schema_lookup.words(path, document.tree):
        if word in _HIDDEN:
            continue
        label = word if isinstance(word, str) else json.dumps(word)
        text = _written(document, at, label) if isinstance(word, str) else label
        yield types.CompletionItem(label, kind=_KIND.EnumMember, insert_text=text)


def _gates(document: OpenDocument, at: CursorContext) -> Iterator[types.CompletionItem]:
    from cantrip_acp.recipes.parse import cross_field, names

    listed = document.tree.find(("circle", "gates"))
    present = set()
    for child in listed.children if listed is not None else ():
        named = child.get("name") if child.kind == "mapping" else child
        if named is not None and not named.span[0] <= at.word[1] <= named.span[1]:
            present.add(cross_field.gate_name(named.value))
    of_circle = at.path[:2] == ("circle", "gates")
    for name in names.gate_names():
        if of_circle and name in present:
            continue
        detail = "gate" if of_circle or name in present else "gate (not in this circle)"
        yield types.CompletionItem(
            name,
            kind=_KIND.Function,
            detail=detail,
            insert_text=_written(document, at, name),
            data={"kind": "recipe", "gate": name},
        )


def _models(document: OpenDocument, at: CursorContext) -> Iterator[types.CompletionItem]:
    from cantrip_acp.crystals.catalog import lookup
    from cantrip_acp.recipes.parse import names
    from cantrip_acp.types.errors import DefinitionError

    only: str | None = None
    if at.path[-1:] == ("model",):
        given = document.tree.find((*at.path[:-1], "provider"))
        only = given.value if given is not None and given.value else None
        if only is None:
            return
    try:
        known = list(lookup.list_models(only))
    except DefinitionError:
        known = []
    for provider, model, _ in known:
        label = model if only else f"{provider}:{model}"
        detail = hover.model_line(provider, model) or None
        yield types.CompletionItem(label, kind=_KIND.Value, detail=detail, insert_text=_written(document, at, label))
    if only is None:
        for name in names.provider_names():
            label = name if name == "human" else f"{name}:"
            yield types.CompletionItem(
                label, kind=_KIND.Module, detail="provider", insert_text=_written(document, at, label)
            )


def _base(document: OpenDocument, path: tuple[str | int, ...], workspace: Path) -> tuple[Path, str] | None:
    """The base folder of a path at this key, and the required ending (``/``: folders only). None if the value is not a path."""
    last = path[-1] if path else None
    folder = document.path.parent
    if path in (("call", "system_prompt_file"), ("result_schema",)):
        return folder, ""
    if last == "python" and path[:1] == ("circle",):
        return folder, ".py"
    if last == "script" and path[:1] in (("crystal",), ("crystals",)):
        return folder, ""
    if last == "root" and path[:2] == ("circle", "gates"):
        return workspace, "/"
    if path[:2] == ("circle", "wards") and len(path) >= 4 and str(path[3]).endswith("_paths"):
        return workspace, "/"
    return None


def _paths(document: OpenDocument, at: CursorContext, base: Path, wanted: str) -> Iterator[types.CompletionItem]:
    typed = document.text.source[at.word[0] : at.word[1]]
    head = typed.rpartition("/")[0] + "/" if "/" in typed else ""
    folder = path_beside(base, head) if head else base
    if wanted == "/" and not head:
        yield types.CompletionItem("workspace", kind=_KIND.Folder, detail="the session's folder")
    try:
        with os.scandir(folder) as entries:
            found = sorted((e.name, e.is_dir()) for e in entries if not e.name.startswith(".") or typed.startswith("."))
    except (OSError, ValueError):
        return
    for name, is_folder in found[:MOST]:
        if is_folder or (wanted != "/" and name.endswith(wanted)):
            label = f"{head}{name}{'/' if is_folder else ''}"
            kind = _KIND.Folder if is_folder else _KIND.File
            yield types.CompletionItem(label, kind=kind, insert_text=_written(document, at, label))


def _written(document: OpenDocument, at: CursorContext, text: str) -> str:
    """A text quoted as the format needs it; unchanged if the cursor is inside quotes."""
    before = document.text.source[at.word[0] - 1 : at.word[0]]
    if before in ('"', "'") and before:
        return text
    plain = all(c.isalnum() or c in "_-./:" for c in text) and not text.startswith("-") and not text.endswith(":")
    return text if plain or text.endswith(":") else json.dumps(text, ensure_ascii=False)


def resolve(item: types.CompletionItem) -> types.CompletionItem:
    data = item.data
    if isinstance(data, dict) and isinstance(data.get("gate"), str) and item.documentation is None:
        text = hover.gate(data["gate"])
        if text:
            item.documentation = types.MarkupContent(types.MarkupKind.Markdown, text)
    return item
