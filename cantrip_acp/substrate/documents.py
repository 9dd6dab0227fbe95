"""Text files of a workspace, for scopes: found and read without leaving it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

from cantrip_acp.gates.confinement import Root
from cantrip_acp.gates.files import file_content
from cantrip_acp.types.errors import GateError

DOCUMENTS = ("AGENTS.md", "CLAUDE.md")
LARGEST = 200_000
"""Maximum size of a document, in bytes. What follows is not stored."""
MOST_FILES = 100
_MOST_FOLDERS = 500
"""How many folders are searched for documents of subfolders, and how deep."""
_DEEPEST = 4
_NEVER = {"node_modules", "vendor", "venv", "env", "__pycache__", "target", "dist", "build", "site-packages"}


def read_text(root: Root | Path, name: str) -> str | None:
    """The text of a file, up to `LARGEST`. None if it is empty, not text, or outside the root."""
    try:
        if isinstance(root, Path):
            descriptor = os.open(root / name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        else:
            with root.find(name) as place:
                descriptor, _ = place.open_file()
        with open(descriptor, "rb") as file:
            data = file.read(LARGEST + 1)
    except (GateError, OSError):
        # It does not exist, or it is a link to somewhere else: skip it.
        return None
    decoded = file_content.decode(data[:LARGEST])
    text = decoded[0].encode("utf-8", "replace").decode().strip() if decoded is not None else ""
    if text and len(data) > LARGEST:
        text += f"\n[cut here: the file has more than {LARGEST:,} bytes; read_file shows the rest]"
    return text or None


def folder_names(root: Root | Path, folder: str) -> list[str]:
    """The names in a folder. Empty if it does not exist or is outside the root."""
    try:
        if isinstance(root, Path):
            return sorted(os.listdir(root / folder))
        with root.find(folder) as place:
            descriptor = place.open_folder()
        try:
            return sorted(os.listdir(descriptor))
        finally:
            os.close(descriptor)
    except (GateError, OSError):
        return []


def documents_below(workspace: Path) -> Iterator[str]:
    """Documents below the workspace, breadth first. Hidden folders and folders of packages are not searched."""
    waiting: list[tuple[str, int]] = [("", 0)]
    searched = 0
    while waiting and searched < _MOST_FOLDERS:
        folder, depth = waiting.pop(0)
        searched += 1
        try:
            with os.scandir(workspace / folder) as entries:
                inside = sorted(entries, key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in inside:
            path = f"{folder}/{entry.name}" if folder else entry.name
            if entry.name in DOCUMENTS and folder and entry.is_file(follow_symlinks=False):
                yield path
            elif depth < _DEEPEST and entry.is_dir(follow_symlinks=False):
                if not entry.name.startswith(".") and entry.name not in _NEVER:
                    waiting.append((path, depth + 1))


def short_hash(text: str) -> str:
    """16 letters and digits for an id."""
    return blake2b(text.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()


def file_name(name: str) -> str:
    """A file's name as a chunk's name: one line of at most 200 characters, the last ones of a long name."""
    line = "".join(letter if letter.isprintable() else "?" for letter in name)
    return line if len(line) <= 200 else f"…{line[-199:]}"
