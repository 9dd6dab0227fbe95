"""Index file of a large loom: its tree in ``NAME.index`` beside the loom, so that opening need not read the whole loom.

It only saves time. It is used if it was made from exactly this file (size, modification time, inode and last bytes
agree); otherwise it is rebuilt from the loom. Deleting it loses nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import zlib
from array import array
from pathlib import Path
from typing import Any, Literal

import msgspec

from cantrip_acp.files.folder import Folder
from cantrip_acp.loom.records.tree import Place, Problem, Tree
from cantrip_acp.text import codecs

WORTH = 4_000_000
"""The size of a loom, in bytes, from which an index is kept. A smaller loom is read in a few milliseconds."""

_VERSION = 4
_MAGIC = b"cantrip loom index\n"
_TAIL = 4_096
_SHAPE = (*Tree.__struct_fields__, *Place.__struct_fields__, *Problem.__struct_fields__)
"""The fields of the tree. An index with other fields is not used."""


class Stamp(msgspec.Struct, frozen=True, array_like=True):
    """Identifies the file and its state."""

    version: int
    size: int
    mtime_ns: int
    inode: int
    tail: bytes


_SHARED = tuple(name for name in Place.__struct_fields__ if name not in ("parent_id", "position"))


class Packed(msgspec.Struct, frozen=True, array_like=True):
    """Turns as columns. ``parents`` are indices into ``ids`` + None + ``lost``. ``shared`` has, for each field, its distinct
    values and for every turn the index of its value."""

    ids: list[str]
    lost: list[str]
    parents: bytes
    positions: bytes
    shared: dict[str, tuple[list[Any], bytes]]


class Index(msgspec.Struct, frozen=True, array_like=True):
    """A file's tree, its problems and its number of lines."""

    stamp: Stamp
    shape: tuple[str, ...]
    turns: Packed
    tree: Tree
    problems: list[Problem]
    lines: int


def path_of(loom: Path) -> Path:
    """The path of a loom's index."""
    return loom.with_name(f"{loom.name}.index")


def read(loom: Path, fd: int) -> Index | None:
    """The index of the open file; None if there is none for exactly this file."""
    status = os.fstat(fd)
    if status.st_size < WORTH:
        return None
    try:
        with Folder.holding(loom) as folder, folder.file(path_of(loom).name) as file:
            data = file.read()
    except OSError:
        return None
    end = len(_MAGIC) + 4
    body = memoryview(data)[end:]
    if data[: len(_MAGIC)] != _MAGIC or _sum(body) != data[len(_MAGIC) : end]:
        return None
    try:
        index: Index = codecs.msgpack_decoder(Index).decode(body)
        if index.stamp != _stamp(fd) or index.shape != _SHAPE:
            return None
        index.tree.turns = unpack(index.turns)
    except (msgspec.DecodeError, LookupError, ValueError):
        return None
    return index


def write(loom: Path, fd: int, tree: Tree, problems: list[Problem], lines: int) -> None:
    """Save the tree of a file that nobody else writes. A failure only costs time at the next opening."""
    if os.fstat(fd).st_size < WORTH:
        return
    rest = msgspec.structs.replace(tree, turns={})
    body = msgspec.msgpack.encode(Index(_stamp(fd), _SHAPE, pack(tree.turns), rest, problems, lines))
    target = path_of(loom)
    # Write to another name first: after a crash, the old index is there, which then fits no file, or there is none.
    # One name is enough, because a loom has one writer; the next write replaces what a crash left.
    part = target.with_name(f".{target.name}.part")
    try:
        with open(
            os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600), "wb"
        ) as file:
            file.write(_MAGIC + _sum(body) + body)
        os.replace(part, target)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(part)


def _sum(body: bytes | memoryview) -> bytes:
    # Detects half-written and damaged files. It is not a protection: who may write the index may also write the loom.
    return zlib.crc32(body).to_bytes(4, "big")


def _stamp(fd: int) -> Stamp:
    status = os.fstat(fd)
    tail = os.pread(fd, _TAIL, max(0, status.st_size - _TAIL))
    return Stamp(
        _VERSION, status.st_size, status.st_mtime_ns, status.st_ino, hashlib.blake2b(tail, digest_size=16).digest()
    )


def pack(turns: dict[str, Place]) -> Packed:
    """Encode these places as columns."""
    ids, places = list(turns), list(turns.values())
    number: dict[str | None, int] = dict(zip([*ids, None], range(len(ids) + 1), strict=True))
    lost = [p.parent_id for p in places if p.parent_id is not None and p.parent_id not in turns]
    lost = list(dict.fromkeys(lost))
    number.update(zip(lost, range(len(ids) + 1, len(ids) + 1 + len(lost)), strict=True))
    shared = {}
    for name in _SHARED:
        column = [getattr(place, name) for place in places]
        codes = {value: code for code, value in enumerate(dict.fromkeys(column))}
        shared[name] = (list(codes), array("I", map(codes.__getitem__, column)).tobytes())
    return Packed(
        ids,
        lost,
        array("I", [number[place.parent_id] for place in places]).tobytes(),
        array("Q", [place.position for place in places]).tobytes(),
        shared,
    )


def unpack(packed: Packed) -> dict[str, Place]:
    """Decode the places. Raises `ValueError`, `KeyError` or `IndexError` for invalid columns."""
    names: list[Any] = [*packed.ids, None, *packed.lost]
    columns = {
        "parent_id": map(names.__getitem__, _numbers("I", packed.parents)),
        "position": iter(_numbers("Q", packed.positions)),
    }
    for name in _SHARED:
        values, codes = packed.shared[name]
        columns[name] = map(values.__getitem__, _numbers("I", codes))
    places = map(Place, *(columns[name] for name in Place.__struct_fields__))
    return dict(zip(packed.ids, places, strict=True))


def _numbers(kind: Literal["I", "Q"], data: bytes) -> array[int]:
    numbers = array(kind)
    numbers.frombytes(data)
    return numbers
