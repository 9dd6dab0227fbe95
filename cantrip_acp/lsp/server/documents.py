"""The documents that the client has open, each with the results of analyzing it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from lsprotocol import types
from pygls.uris import to_fs_path

from cantrip_acp.lsp.server.positions import Encoding, TextDocument
from cantrip_acp.recipes.parse.document import SUFFIXES

if TYPE_CHECKING:
    from cantrip_acp.lsp.recipes.diagnostics import Analysis
    from cantrip_acp.lsp.recipes.syntax.tree import Node


class OpenDocument:
    """One open document. ``analysis`` and ``tree`` belong to the current ``text``; None until they are needed."""

    def __init__(self, uri: str, text: TextDocument, version: int | None) -> None:
        self.uri = uri
        self.path = Path(to_fs_path(uri) or uri.rpartition("/")[2] or "recipe.cantrip.yaml")
        self.text = text
        self.version = version
        self.analysis: Analysis | None = None
        self.untrusted = 0
        """The number of keys that need trust which the recipe lacks, from the last analysis of the whole text."""
        self.first: asyncio.Task[None] | None = None
        """The task of the first analysis, once it has begun."""
        self.colored: tuple[str, list[int]] | None = None
        """The id and the data of the last semantic tokens sent."""
        self.waiting: asyncio.TimerHandle | None = None
        self._tree: Node | None = None

    @property
    def recipe(self) -> bool:
        """Whether this is a recipe, by its file name."""
        return self.path.name.endswith(SUFFIXES)

    @property
    def tree(self) -> Node:
        """The syntax tree, also of a broken text. That of an empty text if the text is too large."""
        if self._tree is None:
            from cantrip_acp.lsp.recipes.syntax import tree

            self._tree = tree.parse(self.text.readable if self.text.too_large is None else "")
        return self._tree

    def change(self, changes: list[types.TextDocumentContentChangeEvent], version: int | None) -> None:
        for change in changes:
            self.text = self.text.changed(change)
        self.version, self.analysis, self._tree = version, None, None

    def drop(self) -> None:
        """Cancel the waiting analysis."""
        if self.waiting is not None:
            self.waiting.cancel()
            self.waiting = None


class Documents:
    """Open documents by URI; `folders` are the roots of the client's workspace."""

    def __init__(self) -> None:
        self.by_uri: dict[str, OpenDocument] = {}
        self.folders: list[Path] = []
        self.encoding: Encoding = "utf-16"

    def open(self, item: types.TextDocumentItem) -> OpenDocument:
        """Open a document. If it is open already, the new text replaces it."""
        self.close(item.uri)
        document = self.by_uri[item.uri] = OpenDocument(item.uri, TextDocument(item.text, self.encoding), item.version)
        return document

    def close(self, uri: str) -> None:
        document = self.by_uri.pop(uri, None)
        if document is not None:
            document.drop()

    def at(self, path: Path) -> OpenDocument | None:
        return next((document for document in self.by_uri.values() if document.path == path), None)

    def recipe(self, uri: str) -> OpenDocument | None:
        """The open recipe at a URI; None if there is none, or if it is too large (a diagnostic says so)."""
        document = self.by_uri.get(uri)
        return document if document is not None and document.recipe and document.text.too_large is None else None

    def workspace(self, path: Path) -> Path:
        """The folder to cast a recipe in: the innermost root that contains it, else its own folder (outside
        ``.cantrip``)."""
        inside = [folder for folder in self.folders if path.is_relative_to(folder)]
        if inside:
            return max(inside, key=lambda folder: len(folder.parts))
        return path.parent.parent if path.parent.name == ".cantrip" else path.parent
