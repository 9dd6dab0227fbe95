"""Snapshot storage: stores a code medium's state in pieces, so that unchanged pieces are not stored again.

A snapshot is a pickle that the host never opens, only its bytes. They are cut at places that depend on the content,
and each piece is stored under its hash. Moved content is cut at the same places, so a small change costs a small
piece. A long list of pieces is stored in the same way, and so is the list of that list. So a snapshot's own list of
pieces does not grow with the state.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from cantrip_acp.text import codecs
from cantrip_acp.types.errors import SandboxError

SMALLEST = 2_048
LARGEST = 65_536
LISTED = 256
"""Maximum number of pieces that a snapshot lists itself. A longer list is cut into pieces too."""
_KEY_BYTES = 20
_DEEPEST = 8
_CLASSES = bytes(1 if hashlib.blake2b(bytes([b]), digest_size=1).digest()[0] < 32 else 0 for b in range(256))
"""One byte in eight belongs to the class that a cut looks for. A hash selects them, so that no kind of data has all
or none of them.
"""
_CUT = b"\x01\x01\x01\x01"


class ChunkStore(Protocol):
    """Stores pieces by their hash. A store never changes or deletes a piece that a snapshot may need."""

    def put(self, key: str, data: bytes) -> bool:
        """Store a piece. Returns False if it was already stored."""
        ...

    def get(self, key: str) -> bytes:
        """A stored piece. Raises KeyError if there is none."""
        ...


class MemoryChunks:
    """Pieces in memory. ``size`` is their total number of bytes."""

    def __init__(self) -> None:
        self._pieces: dict[str, bytes] = {}
        self.size = 0

    def put(self, key: str, data: bytes) -> bool:
        if key in self._pieces:
            return False
        self._pieces[key] = data
        self.size += len(data)
        return True

    def get(self, key: str) -> bytes:
        return self._pieces[key]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state between two turns.

    ``chunks`` are the hashes of its pieces in order, ``size`` their total bytes, ``written`` the bytes that were new
    to the store. If ``levels`` is more than 0, ``chunks`` are the pieces of the list of pieces, or of that list's
    list, and so on.
    ``names`` are the variables that it holds. ``missing`` has each variable that could not be stored, and why.
    ``modules`` were imported: their internal state (a random generator's seed, a registry) is not part of the
    snapshot.
    ``python`` is the only version that can open it, ``cells`` the number of cells that had run.
    """

    chunks: tuple[str, ...] = ()
    size: int = 0
    written: int = 0
    names: tuple[str, ...] = ()
    missing: tuple[tuple[str, str], ...] = ()
    modules: tuple[str, ...] = ()
    python: str = ""
    cells: int = 0
    levels: int = 0

    def record(self) -> dict[str, object]:
        """The snapshot as plain data, for a loom."""
        return {
            "chunks": list(self.chunks),
            "size": self.size,
            "names": list(self.names),
            "missing": [list(each) for each in self.missing],
            "modules": list(self.modules),
            "python": self.python,
            "cells": self.cells,
            **({"levels": self.levels} if self.levels else {}),
        }

    @classmethod
    def of(cls, record: dict[str, object]) -> Snapshot:
        """Make a snapshot from such a record. Raises `SandboxError` if the record is invalid."""
        import msgspec

        try:
            return codecs.convert(record, cls)
        except msgspec.ValidationError as error:
            raise SandboxError(f"this is not a record of a snapshot: {error}") from error


@dataclass(frozen=True, slots=True)
class Kept:
    """A stored state; the fields are those of `Snapshot`."""

    chunks: tuple[str, ...]
    size: int
    written: int
    levels: int


def keep(pieces: Sequence[bytes], store: ChunkStore) -> Kept:
    """Cut a state into pieces and store them."""
    data = b"".join(pieces)
    size = len(data)
    keys, written = _put(data, store)
    levels = 0
    while len(keys) > LISTED:
        keys, more = _put(b"".join(map(bytes.fromhex, keys)), store)
        written += more
        levels += 1
    return Kept(tuple(keys), size, written, levels)


def _put(data: bytes, store: ChunkStore) -> tuple[list[str], int]:
    keys: list[str] = []
    written = 0
    for piece in cut(data):
        key = hashlib.blake2b(piece, digest_size=_KEY_BYTES).hexdigest()
        if store.put(key, piece):
            written += len(piece)
        keys.append(key)
    return keys, written


def fetch(snapshot: Snapshot, store: ChunkStore) -> Iterator[bytes]:
    """The pieces of a state, each checked against its hash. Raises `SandboxError` if one is missing or changed."""
    if not 0 <= snapshot.levels <= _DEEPEST:
        raise SandboxError(f"this is not a snapshot: its list of pieces has {snapshot.levels} levels")
    keys: Sequence[str] = snapshot.chunks
    # Limit the size: a foreign record could name one piece a million times on every level.
    most = (snapshot.size // SMALLEST + 1) * _KEY_BYTES
    for _ in range(snapshot.levels):
        listed = b"".join(_got(keys, store, most))
        keys = [listed[at : at + _KEY_BYTES].hex() for at in range(0, len(listed), _KEY_BYTES)]
    return _got(keys, store, snapshot.size)


def _got(keys: Sequence[str], store: ChunkStore, most: int) -> Iterator[bytes]:
    size = 0
    for key in keys:
        try:
            piece = store.get(key)
        except KeyError:
            raise SandboxError(f"a piece of the snapshot is missing in its store: {key}") from None
        if hashlib.blake2b(piece, digest_size=_KEY_BYTES).hexdigest() != key:
            raise SandboxError(f"a piece of the snapshot was changed in its store: {key}")
        size += len(piece)
        if size > most:
            raise SandboxError("this is not a snapshot: it has more pieces than it says")
        yield piece


def cut(data: bytes) -> Iterator[bytes]:
    """Cut data into pieces of `SMALLEST` to `LARGEST` bytes, 4 to 8 thousand for most data.

    A cut comes after four bytes in a row of one class. So it depends only on these bytes and the previous cut.
    """
    classes = data.translate(_CLASSES)
    start = 0
    while start < len(data):
        end = classes.find(_CUT, start + SMALLEST, start + LARGEST)
        end = min(start + LARGEST, len(data)) if end < 0 else end + len(_CUT)
        yield data[start:end]
        start = end
