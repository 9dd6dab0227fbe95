"""A large loom's tree beside its file, so that opening need not read the file: ``NAME.index``.

It only ever saves time. It is believed where it was made of exactly this file (size, time of change, inode and the last
bytes agree), and rebuilt from the file everywhere else; whoever deletes it loses nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import zlib
from pathlib import Path

import msgspec

from cantrip_acp.loom.records.tree import Place, Tree
from cantrip_acp.loom.stores import tree_codec
from cantrip_acp.loom.stores.contract import Problem
from cantrip_acp.text import codecs

WORTH = 4_000_000
"""Bytes of a loom from which on an index is kept; a smaller one is read in a few milliseconds."""

_VERSION = 3
_MAGIC = b"cantrip loom index\n"
_TAIL = 4_096
_SHAPE = (*Tree.__struct_fields__, *Place.__struct_fields__, *Problem.__struct_fields__)
"""An index of another version's tree is none."""


class Stamp(msgspec.Struct, frozen=True, array_like=True):
    """Which file, in which state."""

    version: int
    size: int
    mtime_ns: int
    inode: int
    tail: bytes


class Index(msgspec.Struct, frozen=True, array_like=True):
    """A file's tree, what was wrong with it and how many lines it has."""

    stamp: Stamp
    shape: tuple[str, ...]
    turns: tree_codec.Packed
    tree: Tree
    problems: list[Problem]
    lines: int


_decoder: msgspec.msgpack.Decoder[Index] = codecs.msgpack_decoder(Index)


def path_of(loom: Path) -> Path:
    """Where a loom's index lies."""
    return loom.with_name(f"{loom.name}.index")


def read(loom: Path, fd: int) -> Index | None:
    """The index of the open file; None where there is none of exactly this file."""
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
    """Keep the tree of a file that nobody else writes; a failure costs nothing but time at the next opening."""
    if os.fstat(fd).st_size < WORTH:
        return
    rest = msgspec.structs.replace(tree, turns={})
    body = msgspec.msgpack.encode(Index(_stamp(fd), _SHAPE, tree_codec.pack(tree.turns), rest, problems, lines))
    target = path_of(loom)
    # A name of its own until it is whole: a crash leaves the old index, which then agrees with no file, or none.
    # One name is enough, since the loom has one writer, and what a crash leaves is overwritten the next time.
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
    # Against half-written and decayed files, not against anybody: who may write it may write the loom.
    return zlib.crc32(body).to_bytes(4, "big")


def _stamp(fd: int) -> Stamp:
    status = os.fstat(fd)
    tail = os.pread(fd, _TAIL, max(0, status.st_size - _TAIL))
    return Stamp(
        _VERSION, status.st_size, status.st_mtime_ns, status.st_ino, hashlib.blake2b(tail, digest_size=16).digest()
    )
