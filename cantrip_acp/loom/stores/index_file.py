"""Index file of a large loom: its tree in ``NAME.index`` beside the loom, so that opening need not read the whole loom.

It only saves time. It is used if it was made from exactly this file (size, modification time, inode and last bytes
agree); otherwise it is rebuilt from the loom. Deleting it loses nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import zlib
from pathlib import Path

import msgspec

from cantrip_acp.loom.records.tree import Place, Problem, Tree
from cantrip_acp.loom.stores import tree_codec
from cantrip_acp.text import codecs

WORTH = 4_000_000
"""The size of a loom, in bytes, from which an index is kept. A smaller loom is read in a few milliseconds."""

_VERSION = 3
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


class Index(msgspec.Struct, frozen=True, array_like=True):
    """A file's tree, its problems and its number of lines."""

    stamp: Stamp
    shape: tuple[str, ...]
    turns: tree_codec.Packed
    tree: Tree
    problems: list[Problem]
    lines: int


_decoder: msgspec.msgpack.Decoder[Index] = codecs.msgpack_decoder(Index)


def path_of(loom: Path) -> Path:
    """The path of a loom's index."""
    return loom.with_name(f"{loom.name}.index")


def read(loom: Path, fd: int) -> Index | None:
    """The index of the open file; None where there is none for exactly this file."""
    status = os.fstat(fd)
    if status.st_size < WORTH:
        return None
    try:
        data = path_of(loom).read_bytes()
    except OSError:
        return None
    end = len(_MAGIC) + 4
    body = memoryview(data)[end:]
    if data[: len(_MAGIC)] != _MAGIC or _sum(body) != data[len(_MAGIC) : end]:
        return None
    try:
        index = _decoder.decode(body)
        if index.stamp != _stamp(fd) or index.shape != _SHAPE:
            return None
        index.tree.turns = tree_codec.unpack(index.turns)
    except (msgspec.DecodeError, LookupError, ValueError):
        return None
    return index


def write(loom: Path, fd: int, tree: Tree, problems: list[Problem], lines: int) -> None:
    """Save the tree of a file that nobody else writes. A failure only costs time at the next opening."""
    if os.fstat(fd).st_size < WORTH:
        return
    rest = msgspec.structs.replace(tree, turns={})
    body = msgspec.msgpack.encode(Index(_stamp(fd), _SHAPE, tree_codec.pack(tree.turns), rest, problems, lines))
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
    # Detects half-written and damaged files. It is no protection: who may write the index may also write the loom.
    return zlib.crc32(body).to_bytes(4, "big")


def _stamp(fd: int) -> Stamp:
    status = os.fstat(fd)
    tail = os.pread(fd, _TAIL, max(0, status.st_size - _TAIL))
    return Stamp(
        _VERSION, status.st_size, status.st_mtime_ns, status.st_ino, hashlib.blake2b(tail, digest_size=16).digest()
    )
