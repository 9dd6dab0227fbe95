"""Reads git's index: its entries (`entries`), and the submodules among them (`read_index`)."""

from __future__ import annotations

import os
from collections.abc import Iterator

from msgspec import Struct

_SUBMODULE_MODE = b"\x00\x00\xe0\x00"
"""Mode 160000, which marks a submodule in an index. A file without these bytes lists no submodule."""
_EXTENDED = 0x4000
_ASSUME_UNCHANGED = 0x8000
_SKIP_WORKTREE = 0x4000


class Entry(Struct, frozen=True, gc=False):
    """An entry: its path as bytes, its mode as 4 bytes, whether git does not look at the file (assume-unchanged,
    skip-worktree), and the hash of its content (20 bytes, or 32 in a repository with SHA-256)."""

    path: bytes
    mode: bytes
    ignored: bool
    content: bytes


def read_index(data: bytes) -> tuple[str, ...]:
    """Relative paths of the submodules that an index (version 2 to 4) lists; empty if the data is not an index."""
    if data[:4] != b"DIRC" or _SUBMODULE_MODE not in data:
        return ()
    try:
        found = [os.fsdecode(each.path) for each in entries(data) if each.mode == _SUBMODULE_MODE]
    except ValueError:
        return ()
    return tuple(path for path in found if not path.startswith("/") and not {"..", ""} & set(path.split("/")))


def entries(data: bytes) -> list[Entry]:
    """The entries of an index (version 2 to 4). Raises `ValueError` if the data is not an index."""
    if data[:4] != b"DIRC":
        raise ValueError("it is not an index")
    for width in (20, 32):
        try:
            return list(_entries(data, width))
        except (IndexError, ValueError):
            # The object names have the other length (SHA-1: 20 bytes, SHA-256: 32 bytes).
            continue
    raise ValueError("it is not an index, or is damaged")


def _entries(data: bytes, width: int) -> Iterator[Entry]:
    version, count = int.from_bytes(data[4:8]), int.from_bytes(data[8:12])
    at, name = 12, b""
    for _ in range(count):
        begin = at
        mode = data[at + 24 : at + 28]
        content = data[at + 40 : at + 40 + width]
        at += 40 + width
        flags = int.from_bytes(data[at : at + 2])
        more = int.from_bytes(data[at + 2 : at + 4]) if version >= 3 and flags & _EXTENDED else 0
        at += 4 if version >= 3 and flags & _EXTENDED else 2
        if version >= 4:
            drop, at = _varint(data, at)
            kept = name[: len(name) - drop] if drop <= len(name) else None
            if kept is None:
                raise ValueError("the entry shares more characters with the previous name than that name has")
            end = data.index(b"\0", at)
            name, at = kept + data[at:end], end + 1
        else:
            end = data.index(b"\0", at)
            name = data[at:end]
            at = begin + (end - begin + 8) // 8 * 8
        if mode[:1] != b"\0" or mode[2] >> 4 not in (0x4, 0x8, 0xA, 0xE):
            raise ValueError("the entry has a mode that git does not use")
        yield Entry(name, mode, bool(flags & _ASSUME_UNCHANGED or more & _SKIP_WORKTREE), content)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Decode a variable-length number as in git packs, with 7 bits per byte. Returns (value, next position)."""
    byte = data[at]
    value = byte & 0x7F
    while byte & 0x80:
        at += 1
        byte = data[at]
        value = ((value + 1) << 7) | (byte & 0x7F)
    return value, at + 1
