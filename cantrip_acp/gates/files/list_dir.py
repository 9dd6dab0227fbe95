"""The gate ``list_dir``: lists the names in a folder, with ``details`` also their types and sizes.

It works breadth first, so that a shortened list of a deep tree still shows its top folders. Links are shown, not followed.
"""

from __future__ import annotations

import heapq
import os
import stat
import time
from collections.abc import Awaitable, Mapping
from typing import Any

import anyio.to_thread
from msgspec import Struct

from cantrip_acp.files.ignore_files import Level, level_of
from cantrip_acp.files.protected_paths import plain, why_hidden
from cantrip_acp.gates.confinement import PathHandle, Root, display_path, one_line, valid_text
from cantrip_acp.gates.contract import Gate, GateContext, GateReply
from cantrip_acp.gates.registry import FILE_OPTIONS

MAX_ENTRIES = 1_000
"""The most entries of a result. The dependency ``max_entries`` changes it."""
MAX_DEPTH = 20
_READ_NAMES = 200_000
"""The most names that are read of one folder. If there are more, the list is incomplete, and a note says so."""
_SECONDS = 10.0
"""Seconds after which ignore files are no longer applied, because they may be slow."""
_LARGE_FOLDER = 131_072
"""The size in bytes above which a folder is listed in a thread (about three thousand names)."""

_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_IGNORED = "ignored, not opened"
_UNOPENED = frozenset({".git", ".hg", ".svn", ".jj"})
_KINDS = ((stat.S_ISFIFO, "pipe"), (stat.S_ISSOCK, "socket"), (stat.S_ISCHR, "device"), (stat.S_ISBLK, "device"))


class _Entry(Struct):
    parts: tuple[str, ...]
    status: os.stat_result | None
    link: str | None = None
    mark: str = ""

    @property
    def folder(self) -> bool:
        return self.status is not None and stat.S_ISDIR(self.status.st_mode)

    @property
    def name(self) -> str:
        return valid_text("/".join(self.parts)) + ("/" if self.folder else "")

    def detailed(self) -> str:
        status = self.status
        name = one_line(self.name)
        if self.link is not None:
            text = f"{name} -> {one_line(self.link)}"
        elif status is None or self.folder:
            text = name
        else:
            kind = next((kind for test, kind in _KINDS if test(status.st_mode)), None)
            text = f"{name}  {kind or f'{status.st_size:,} bytes'}"
        return f"{text}  ({self.mark})" if self.mark else text


def _list_dir(args: Mapping[str, Any], context: GateContext) -> GateReply | Awaitable[GateReply]:
    path, depth, details = args.get("path", "."), int(args.get("depth", 1)), bool(args.get("details", False))
    most = int(context.dependencies.get("max_entries", MAX_ENTRIES))
    with Root.of(context).find(path) as place:
        listing = _Listing(place, depth, details, most)
        size = place.status.st_size if place.status is not None else 0
        if depth == 1 and not details and size <= _LARGE_FOLDER:
            return listing.run(place.open_folder())
        folder = place.open_folder()
    return listing.run_in_thread(folder)


class _Listing:
    """One running call of the gate."""

    def __init__(self, place: PathHandle, depth: int, details: bool, most: int) -> None:
        self.shown, self.location = place.shown, place.location()
        self.depth, self.details, self.most = depth, details, most
        self.inside, self.root = place.parts, place.root
        self.entries: list[_Entry] = []
        self.more = 0
        self.deadline = time.monotonic() + _SECONDS
        self.complete = True

    async def run_in_thread(self, folder: int) -> GateReply:
        # Wait for the thread even after a cancel, so that only the thread closes the descriptor. Its work is limited.
        return await anyio.to_thread.run_sync(self.run, folder)

    def run(self, folder: int) -> GateReply:
        try:
            self._collect(folder)
        finally:
            os.close(folder)
        names: list[str] = []
        for entry in sorted(self.entries, key=lambda e: e.parts):
            names.append(entry.detailed() if self.details else entry.name)
        if self.more:
            at_least = "" if self.complete else "at least "
            names.append(f"[cut: {at_least}{self.more:,} more; list one of the folders, or use search]")
        title = f"List {self.shown}"
        result: Any = "\n".join(names) or "(the folder is empty)" if self.details else names
        return GateReply(result, locations=(self.location,), title=title)

    def _collect(self, folder: int) -> None:
        judge = None
        if self.depth > 1 or self.details:
            judge, ignored = level_of(self.root, self.inside)
            # If the listed folder itself is ignored, show its content.
            judge = None if ignored else judge
        level: list[tuple[tuple[str, ...], Level | None]] = [((), judge)]
        for depth in range(self.depth):
            below: list[tuple[tuple[str, ...], Level | None]] = []
            for parts, rules in level:
                opened = _open_below(folder, parts)
                if opened is None:
                    continue
                try:
                    if parts and rules is not None:
                        rules = rules.enter(parts[-1], opened)
                    for entry in self._read(opened, parts, rules):
                        if entry.folder and not entry.mark and depth + 1 < self.depth:
                            if plain(entry.parts[-1]) not in _UNOPENED:
                                below.append((entry.parts, rules))
                finally:
                    os.close(opened)
            level = below

    def _read(self, folder: int, parts: tuple[str, ...], rules: Level | None) -> list[_Entry]:
        room = self.most - len(self.entries)
        names: list[str] = []
        try:
            with os.scandir(folder) as found:
                for number, item in enumerate(found):
                    if number == _READ_NAMES:
                        self.complete = False
                        break
                    names.append(item.name)
        except OSError:
            # The folder cannot be opened. Its name is already in the list.
            return []
        kept: list[_Entry] = []
        chosen = names if len(names) <= room else heapq.nsmallest(2 * room, names)
        for name in sorted(chosen):
            if len(kept) == room:
                break
            entry = self._entry(folder, (*parts, name), rules)
            if entry is not None:
                kept.append(entry)
            else:
                names.remove(name)
        self.more += len(names) - len(kept)
        self.entries += kept
        return kept

    def _entry(self, folder: int, parts: tuple[str, ...], rules: Level | None) -> _Entry | None:
        name = parts[-1]
        link = None
        try:
            status: os.stat_result | None = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except OSError:
            return None
        assert status is not None
        if self.root.hides((*self.root.inner, *self.inside, *parts)):
            return None
        if stat.S_ISLNK(status.st_mode):
            try:
                link = os.readlink(name, dir_fd=folder)
            except OSError:
                return None
        entry = _Entry(parts, status, link)
        inner = (*self.inside, *parts)
        if why_hidden(inner, status.st_mode) is not None and not self.root.is_tracked(
            (*self.root.inner, *inner), folder=folder
        ):
            entry.mark = "hidden"
        elif rules is not None and time.monotonic() < self.deadline and rules.ignores(name, entry.folder):
            entry.mark = _IGNORED if entry.folder and self.depth > 1 else "ignored"
        return entry


def _open_below(folder: int, parts: tuple[str, ...]) -> int | None:
    """Open a folder below another one; None if it no longer exists, is not a folder, or is not readable."""
    opened = os.dup(folder)
    try:
        for name in parts:
            opened, old = os.open(name, _OPEN, dir_fd=opened), opened
            os.close(old)
    except OSError:
        os.close(opened)
        return None
    return opened


def _preview(args: Mapping[str, Any], context: GateContext) -> GateReply:
    shown, locations = display_path(args.get("path", "."), context)
    return GateReply(None, title=f"List {shown}", locations=locations)


LIST_DIR = Gate(
    name="list_dir",
    options={
        **FILE_OPTIONS,
        "max_entries": {"type": "integer", "minimum": 1, "description": "a whole number of at least 1"},
    },
    description=(
        "List a folder: a sorted list of names, folders with '/' at the end. depth 2 and more also lists what is in them, but "
        "for ignored folders. With details, text with a line an entry: sizes, where links lead, what is ignored."
    ),
    parameters={
        "type": "object",
        "properties": {
            "path": {"type": "string", "default": ".", "description": "The folder. Default: the gate's folder."},
            "depth": {
                "type": "integer",
                "minimum": 1,
                "maximum": MAX_DEPTH,
                "default": 1,
                "description": "How many levels. Default: 1.",
            },
            "details": {"type": "boolean", "default": False, "description": "Sizes and kinds too. Default: false."},
        },
        "additionalProperties": False,
    },
    handler=_list_dir,
    kind="read",
    preview=_preview,
)
