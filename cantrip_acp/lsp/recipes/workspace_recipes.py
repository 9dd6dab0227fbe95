"""All recipes of the workspace, open or on disk, for workspace symbols, workspace diagnostics and file references.
Folders are searched in a thread, with limits. Folders of package managers and version control, and folders that are too deep,
are skipped. A file is read again when it has changed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from cantrip_acp.lsp.server.documents import Documents, Held
from cantrip_acp.lsp.server.positions import Text
from cantrip_acp.recipes.parse.document import MAX_BYTES, SUFFIXES

PASSED = {"node_modules", "__pycache__", "venv", "site-packages", "target", "dist", "build"}
"""Folders that contain no recipes of the user. Folders that begin with a dot are skipped too, except ``.cantrip``."""
DEEPEST = 8
FOLDERS = 4_000
FILES = 500


class Library:
    """Recipes read from disk, by path. Only one thread may use it at a time."""

    def __init__(self) -> None:
        self._held: dict[Path, tuple[tuple[int, int], Held]] = {}

    def all(self, documents: Documents) -> list[Held]:
        """Every recipe below the workspace's folders: the client's text if it is open, else the file on disk."""
        opened = {held.path: held for held in list(documents.held.values()) if held.recipe}
        found = dict(opened)
        left = FOLDERS
        for folder in documents.folders:
            for path in _recipes(folder, left):
                if len(found) >= FILES:
                    break
                if path not in found and (held := self.read(path, documents)) is not None:
                    found[path] = held
        return [found[path] for path in sorted(found)]

    def read(self, path: Path, documents: Documents) -> Held | None:
        """A recipe on disk; None if it cannot be read or is too large."""
        try:
            stat = os.stat(path)
            mark = (stat.st_mtime_ns, stat.st_size)
            kept = self._held.get(path)
            if kept is not None and kept[0] == mark:
                return kept[1]
            if stat.st_size > MAX_BYTES:
                return None
            source = path.read_bytes().decode("utf-8", "replace")
        except OSError:
            self._held.pop(path, None)
            return None
        held = Held(path.as_uri(), Text(source, documents.encoding), None)
        self._held[path] = (mark, held)
        return held

    def forget(self) -> None:
        """Drop what was found about the recipes: files that they name may have changed."""
        for _, held in self._held.values():
            held.reading = None


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
