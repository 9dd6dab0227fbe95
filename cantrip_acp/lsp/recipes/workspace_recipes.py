"""All recipes of the workspace, open or on disk, for workspace symbols, workspace diagnostics and file references.
Folders are searched in a thread, with limits. Folders of package managers and version control, and folders that are too deep,
are skipped. A file is read again when it has changed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from lsprotocol import types

from cantrip_acp.lsp.recipes.outline import name as named
from cantrip_acp.lsp.recipes.syntax.tree import Node, Span
from cantrip_acp.lsp.server.documents import Documents, OpenDocument
from cantrip_acp.lsp.server.positions import TextDocument
from cantrip_acp.recipes.parse.document import MAX_BYTES, SUFFIXES
from cantrip_acp.recipes.recipe import stem

PASSED = {"node_modules", "__pycache__", "venv", "site-packages", "target", "dist", "build"}
"""Folders that contain no recipes of the user. Folders that begin with a dot are skipped too, except ``.cantrip``."""
DEEPEST = 8
FOLDERS = 4_000
FILES = 500


class WorkspaceRecipes:
    """Recipes read from disk, by path. Only one thread may use it at a time."""

    def __init__(self) -> None:
        self._documents: dict[Path, tuple[tuple[int, int], OpenDocument]] = {}

    def all(self, documents: Documents) -> list[OpenDocument]:
        """Every recipe below the workspace's folders: the open text if the client has one, else the file on disk."""
        opened = {document.path: document for document in list(documents.by_uri.values()) if document.recipe}
        found = dict(opened)
        left = FOLDERS
        for folder in documents.folders:
            for path in _recipes(folder, left):
                if len(found) >= FILES:
                    break
                if path not in found and (document := self.read(path, documents)) is not None:
                    found[path] = document
        return [found[path] for path in sorted(found)]

    def read(self, path: Path, documents: Documents) -> OpenDocument | None:
        """A recipe on disk; None if it cannot be read or is too large."""
        try:
            stat = os.stat(path)
            mark = (stat.st_mtime_ns, stat.st_size)
            kept = self._documents.get(path)
            if kept is not None and kept[0] == mark:
                return kept[1]
            if stat.st_size > MAX_BYTES:
                return None
            source = path.read_bytes().decode("utf-8", "replace")
        except OSError:
            self._documents.pop(path, None)
            return None
        document = OpenDocument(path.as_uri(), TextDocument(source, documents.encoding), None)
        self._documents[path] = (mark, document)
        return document

    def forget(self) -> None:
        """Forget the files that recipes name, because these files may have changed."""
        for _, document in self._documents.values():
            document.analysis = None


def _recipes(folder: Path, most: int) -> Iterator[Path]:
    """The recipes below a folder, nearer ones first."""
    waiting = [(folder, 0)]
    looked = 0
    while waiting and looked < most:
        here, depth = waiting.pop(0)
        looked += 1
        try:
            with os.scandir(here) as entries:
                listed = sorted(entries, key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in listed:
            try:
                if entry.is_dir(follow_symlinks=False):
                    hidden = entry.name.startswith(".") and entry.name != ".cantrip"
                    if not hidden and entry.name not in PASSED and depth < DEEPEST:
                        waiting.append((here / entry.name, depth + 1))
                elif entry.name.endswith(SUFFIXES) and entry.is_file():
                    yield here / entry.name
            except OSError:
                continue


MOST = 500
_KIND = types.SymbolKind


def symbols(recipes: list[OpenDocument], query: str) -> list[types.WorkspaceSymbol]:
    """The symbols whose name contains the query's letters in order, the best match first."""
    found: list[tuple[int, int, types.WorkspaceSymbol]] = []
    for document in recipes:
        recipe = title(document)
        for name, kind, span in _of(document, recipe):
            distance = _match_distance(query, name)
            if distance is not None:
                location = types.Location(document.uri, document.text.range(*span))
                container = None if kind is _KIND.Class else recipe
                found.append(
                    (distance, len(found), types.WorkspaceSymbol(location, name, kind, container_name=container))
                )
    return [symbol for _, _, symbol in sorted(found, key=lambda each: each[:2])[:MOST]]


def title(document: OpenDocument) -> str:
    """A recipe's name: from its key, else from its file."""
    given = document.tree.get("name")
    return given.value if given is not None and given.kind == "scalar" and given.value else stem(document.path)


def title_span(document: OpenDocument) -> Span:
    """The span of the recipe's name, or of its first key."""
    given = document.tree.get("name")
    if given is not None and given.kind == "scalar":
        return given.span
    first = next(iter(document.tree.children), None)
    return first.key_span or (0, 0) if first is not None else (0, 0)


def _of(document: OpenDocument, recipe: str) -> Iterator[tuple[str, types.SymbolKind, Span]]:
    yield recipe, _KIND.Class, title_span(document)
    yield from _items(document.tree.find(("circle", "gates")), _KIND.Function)
    yield from _items(document.tree.get("crystals"), _KIND.Object)
    yield from _items(document.tree.get("mcp_servers"), _KIND.Module)


def _items(node: Node | None, kind: types.SymbolKind) -> Iterator[tuple[str, types.SymbolKind, Span]]:
    for child in node.children if node is not None else ():
        called = named(child)
        if called:
            yield called, kind, child.key_span or child.span


def _match_distance(query: str, name: str) -> int | None:
    """The distance of a name from a query: 0 if the name begins with it; None if letters are missing."""
    asked, document = query.lower(), name.lower()
    if not asked or document.startswith(asked):
        return 0
    if asked in document:
        return 1
    letters = iter(document)
    return 2 if all(letter in letters for letter in asked) else None
