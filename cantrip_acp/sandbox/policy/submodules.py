"""Submodule folders without a repository: git on the host would enter them, so commands must not change them.

`git status` enters each submodule folder that has a ``.git`` and runs the programs that its settings name
(``core.fsmonitor``). In a submodule folder that was never fetched, a command could make its own repository. The
user's next `git status`, or their editor's, would run that code on the host.
The list of these folders comes from the git index, which commands cannot write. git itself is not run, because it
would run what untrusted settings name.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from cantrip_acp.sandbox.launch.process_tree import NO_ROOM
from cantrip_acp.sandbox.policy.placeholders import is_placeholder

_MODE = b"\x00\x00\xe0\x00"
"""Mode 160000, which an index uses for a submodule. A file without these bytes needs no further reading."""
_LARGEST = 256 * 1024 * 1024
_LARGEST_LINK = 4096
_EXTENDED = 0x4000

Stamp = tuple[str, str, int, int, int]
"""An index: its path, its work tree, and file facts that change when it does."""


def indexes(histories: Iterable[str], roots: Iterable[str]) -> tuple[Stamp, ...]:
    """The git indexes that may list submodules: of each ``.git`` in ``histories`` (absolute paths), and of the
    repositories that contain the ``roots``."""
    found: dict[str, Stamp] = {}
    for history in (*histories, *(above for root in roots for above in _above(root))):
        folder = _git_folder(history)
        if folder is None:
            continue
        path = os.path.join(folder, "index")
        try:
            status = os.stat(path, follow_symlinks=False)
        except OSError:
            continue
        found[history] = (path, os.path.dirname(history), status.st_mtime_ns, status.st_size, status.st_ino)
    return tuple(found[history] for history in sorted(found))


@dataclass(frozen=True, slots=True)
class Unfetched:
    """Absolute paths, sorted.

    ``empty``: folders of submodules without a ``.git``, and files in their place. ``missing``: the first path that
    would have to be made for such a folder. ``linked``: links on the way to one.
    """

    empty: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    linked: tuple[str, ...] = ()


def unfetched(stamps: Iterable[Stamp]) -> Unfetched:
    """The submodule paths without a repository."""
    found: dict[str, set[str]] = {"empty": set(), "missing": set(), "linked": set()}
    for stamp in stamps:
        for name in _listed(stamp):
            path = stamp[1]
            for part in name.split("/"):
                path = os.path.join(path, part)
                kind = _kind(path)
                if kind != "folder":
                    found[kind].add(path)
                    break
            else:
                if not os.path.lexists(os.path.join(path, ".git")):
                    found["empty"].add(path)
    return Unfetched(**{kind: tuple(sorted(paths)) for kind, paths in found.items()})


def _kind(path: str) -> str:
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return "missing"
    if stat.S_ISLNK(mode):
        return "linked"
    # git would not enter it, but a command could replace it by a folder.
    return "empty" if not stat.S_ISDIR(mode) else "missing" if is_placeholder(path) else "folder"


def _above(root: str) -> Iterator[str]:
    folder = os.path.dirname(root)
    while folder != "/":
        if os.path.lexists(path := os.path.join(folder, ".git")):
            yield path
            return
        folder = os.path.dirname(folder)


def _git_folder(history: str) -> str | None:
    """The git folder: ``.git`` itself, or the folder that it names."""
    try:
        if stat.S_ISDIR(os.lstat(history).st_mode):
            return history
        text = _read(history, _LARGEST_LINK).decode("utf-8", "surrogateescape").strip()
    except OSError as error:
        if error.errno in NO_ROOM:
            raise
        return None
    if not text.startswith("gitdir:"):
        return None
    return os.path.normpath(os.path.join(os.path.dirname(history), text.removeprefix("gitdir:").strip()))


@lru_cache(maxsize=64)
def _listed(stamp: Stamp) -> tuple[str, ...]:
    try:
        data = _read(stamp[0], _LARGEST)
        folder = os.path.dirname(stamp[0])
        # A split index keeps most of its entries in a second file.
        shared = [n for n in os.listdir(folder) if n.startswith("sharedindex.")] if b"link" in data[-4096:] else []
        texts = [data, *(_read(os.path.join(folder, name), _LARGEST) for name in shared)]
    except OSError as error:
        if error.errno in NO_ROOM:
            raise
        return ()
    return tuple(sorted({name for text in texts for name in read(text)}))


def read(data: bytes) -> tuple[str, ...]:
    """Relative paths of the submodules that an index (versions 2 to 4) lists; none if the data is no index."""
    if data[:4] != b"DIRC" or _MODE not in data:
        return ()
    for width in (20, 32):
        try:
            found = list(_entries(data, width))
        except (IndexError, ValueError):
            # The object names have the other length.
            continue
        return tuple(name for name in found if name)
    return ()


def _entries(data: bytes, width: int) -> Iterator[str]:
    version, count = int.from_bytes(data[4:8]), int.from_bytes(data[8:12])
    at, name = 12, b""
    for _ in range(count):
        begin = at
        mode = data[at + 24 : at + 28]
        at += 40 + width
        flags = int.from_bytes(data[at : at + 2])
        at += 4 if version >= 3 and flags & _EXTENDED else 2
        if version >= 4:
            drop, at = _varint(data, at)
            kept = name[: len(name) - drop] if drop <= len(name) else None
            if kept is None:
                raise ValueError("an entry that shares more than there is")
            end = data.index(b"\0", at)
            name, at = kept + data[at:end], end + 1
        else:
            end = data.index(b"\0", at)
            name = data[at:end]
            at = begin + (end - begin + 8) // 8 * 8
        if mode[:1] != b"\0" or mode[2] >> 4 not in (0x4, 0x8, 0xA, 0xE):
            raise ValueError("no mode of git's")
        if mode == _MODE:
            text = os.fsdecode(name)
            parts = text.split("/")
            yield "" if text.startswith("/") or ".." in parts or "" in parts else text


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Decode a variable-length number of git's packs, 7 bits per byte: (value, next position)."""
    byte = data[at]
    value = byte & 0x7F
    while byte & 0x80:
        at += 1
        byte = data[at]
        value = ((value + 1) << 7) | (byte & 0x7F)
    return value, at + 1


def _read(path: str, largest: int) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(0, "not a file")
        return file.read(largest)
