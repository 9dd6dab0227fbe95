"""Snapshots of a code medium's state, stored so that what did not change is not stored again.

A snapshot is a pickle that the host never opens: bytes, cut where their content says so and kept by their hash. The same
content further on or further back is cut at the same places, so a small change costs a small piece. A long list of pieces is
kept in the same way, and its own list if that is long, so what a snapshot names does not grow with the state either.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from cantrip_acp.core.errors import SandboxError
from cantrip_acp.text import codecs

SMALLEST = 2_048
LARGEST = 65_536
LISTED = 256
"""Pieces that a snapshot names itself; a longer list is cut into pieces of its own."""
_KEY_BYTES = 20
_DEEPEST = 8
_CLASSES = bytes(1 if hashlib.blake2b(bytes([b]), digest_size=1).digest()[0] < 32 else 0 for b in range(256))
"""One byte in eight belongs to the class that a cut looks for, chosen so that no kind of data has all or none of them."""
_CUT = b"\x01\x01\x01\x01"


class ChunkStore(Protocol):
    """Pieces by their hash. A store never changes or forgets a piece while a snapshot may need it."""

    def put(self, key: str, data: bytes) -> bool:
        """Keep a piece; False where it was there already."""
        ...

    def get(self, key: str) -> bytes:
        """A piece; raises KeyError."""
        ...


class MemoryChunks:
    """Pieces kept in memory. ``size`` is how many bytes they are."""

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

    ``chunks`` are the hashes of its pieces in order, ``size`` their bytes, ``written`` how many bytes were new to the store.
    Where ``levels`` is more than 0, ``chunks`` are those of the list of pieces, or of that list's list, and so on.
    ``names`` are the bindings that it holds. ``missing`` names each binding that could not be kept, and why.
    ``modules`` were imported: what they hold inside (a random generator's seed, a registry) is not part of it.
    ``python`` is the version that alone can open it, ``cells`` how many had run.
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
        """As plain data, for a loom."""
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
        """The snapshot of such a record. Raises `SandboxError` for what is none."""
        import msgspec

        try:
            return codecs.convert(record, cls)
        except msgspec.ValidationError as error:
            raise SandboxError(f"this is no record of a snapshot: {error}") from error


@dataclass(frozen=True, slots=True)
class Kept:
    """A state in a store; the fields are those of `Snapshot`."""

    chunks: tuple[str, ...]
    size: int
    written: int
    levels: int


def keep(pieces: Sequence[bytes], store: ChunkStore) -> Kept:
    """Cut a state and store it."""
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
    """The pieces of a state, each checked against its hash. Raises `SandboxError` where one is lost or changed."""
    if not 0 <= snapshot.levels <= _DEEPEST:
        raise SandboxError(f"this is no snapshot: its list of pieces has {snapshot.levels} levels")
    keys: Sequence[str] = snapshot.chunks
    # A foreign record could name a piece a million times, in every one of its levels.
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
            raise SandboxError("this is no snapshot: its pieces are more than it says")
        yield piece


def cut(data: bytes) -> Iterator[bytes]:
    """Pieces of `SMALLEST` to `LARGEST` bytes, 4 to 8 thousand for most data.

    A cut lies behind four bytes in a row of one class, wherever those come: it depends on nothing before them but the
    last cut.
    """
    classes = data.translate(_CLASSES)
    start = 0
    while start < len(data):
        end = classes.find(_CUT, start + SMALLEST, start + LARGEST)
        end = min(start + LARGEST, len(data)) if end < 0 else end + len(_CUT)
        yield data[start:end]
        start = end
