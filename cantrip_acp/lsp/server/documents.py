"""The documents that the client has open, each with what was read of it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from lsprotocol import types
from pygls.uris import to_fs_path

from cantrip_acp.lsp.server.positions import Encoding, Text
from cantrip_acp.recipes.parse.document import SUFFIXES

if TYPE_CHECKING:
    from cantrip_acp.lsp.recipes.diagnostics import Reading
    from cantrip_acp.lsp.recipes.syntax.chunks import Chunks
    from cantrip_acp.lsp.recipes.syntax.tree import Node
    from cantrip_acp.lsp.recipes.syntax.yaml_tree import Pieces


class Held:
    """One document. ``reading`` and ``tree`` are of ``text``, or None until somebody asks."""

    def __init__(self, uri: str, text: Text, version: int | None) -> None:
        self.uri = uri
        self.path = Path(to_fs_path(uri) or uri.rpartition("/")[2] or "recipe.cantrip.yaml")
        self.text = text
        self.version = version
        self.reading: Reading | None = None
        self.chunks: Chunks | None = None
        self.untrusted = 0
        """How many of a recipe's keys ask for trust that it does not have; of the last reading as a whole."""
        self.first: asyncio.Task[None] | None = None
        """The first reading, once it was begun."""
        self.colored: tuple[str, list[int]] | None = None
        """The semantic tokens that were told last, and the name they went by."""
        self.waiting: asyncio.TimerHandle | None = None
        self._tree: Node | None = None
        self._pieces: Pieces | None = None

    @property
    def toml(self) -> bool:
        return self.path.suffix == ".toml"

    @property
    def recipe(self) -> bool:
        """Whether this is a recipe, by its name."""
        return self.path.name.endswith(SUFFIXES)

    @property
    def tree(self) -> Node:
        """What stands where, also in a broken text."""
        if self._tree is None:
            from cantrip_acp.lsp.recipes.syntax import tree, yaml_tree

            if self.toml:
                self._tree = tree.parse(self.text.readable, toml=True)
            else:
                self._pieces = self._pieces or yaml_tree.Pieces()
                self._tree = self._pieces.read(self.text.readable)
        return self._tree

    def change(self, changes: list[types.TextDocumentContentChangeEvent], version: int | None) -> None:
        """Take the client's changes in, one after the other."""
        for change in changes:
            self.text = self.text.changed(change)
        self.version, self.reading, self._tree = version, None, None

    def drop(self) -> None:
        """Nothing more is to be read of it."""
        if self.waiting is not None:
            self.waiting.cancel()
            self.waiting = None


class Documents:
    """By their address; `folders` are the roots of the client's workspace."""

    def __init__(self) -> None:
        self.held: dict[str, Held] = {}
        self.folders: list[Path] = []
        self.encoding: Encoding = "utf-16"

    def open(self, item: types.TextDocumentItem) -> Held:
        """A document that the client opened; opened twice, the second text counts."""
        self.close(item.uri)
        held = self.held[item.uri] = Held(item.uri, Text(item.text, self.encoding), item.version)
        return held

    def close(self, uri: str) -> None:
        """The client has it no longer."""
        held = self.held.pop(uri, None)
        if held is not None:
            held.drop()

    def at(self, path: Path) -> Held | None:
        """What is open of a file."""
        return next((held for held in self.held.values() if held.path == path), None)

    def recipe(self, uri: str) -> Held | None:
        """The open recipe at an address; None where there is none."""
        held = self.held.get(uri)
        return held if held is not None and held.recipe else None

    def workspace(self, path: Path) -> Path:
        """The folder that a recipe would be cast in: the innermost root that holds it, else where it lies."""
        inside = [folder for folder in self.folders if path.is_relative_to(folder)]
        if inside:
            return max(inside, key=lambda folder: len(folder.parts))
        return path.parent.parent if path.parent.name == ".cantrip" else path.parent
