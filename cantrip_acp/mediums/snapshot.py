"""Snapshots of a code medium's state, stored so that what did not change is not stored again.

A snapshot is a pickle that the host never opens: bytes, cut where their content says so and kept by their hash. The same
content further on or further back is cut at the same places, so a small change costs a small piece.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from cantrip_acp.errors import SandboxError

SMALLEST = 2_048
LARGEST = 65_536
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

    ``chunks`` are the hashes of its pieces in order, ``size`` their bytes, ``written`` how many of those were new.
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
        }

    @classmethod
    def of(cls, record: dict[str, object]) -> Snapshot:
        """The snapshot of such a record. Raises `SandboxError` for what is none."""
        import msgspec

        try:
            return msgspec.convert(record, cls)
        except msgspec.ValidationError as error:
            raise SandboxError(f"this is no record of a snapshot: {error}") from error


def keep(pieces: Sequence[bytes], store: ChunkStore) -> tuple[tuple[str, ...], int, int]:
    """Cut a state and store it: the hashes in order, the bytes in all, and the bytes that were new."""
    data = b"".join(pieces)
    keys: list[str] = []
    written = 0
    for piece in cut(data):
        key = hashlib.blake2b(piece, digest_size=20).hexdigest()
        if store.put(key, piece):
            written += len(piece)
        keys.append(key)
    return tuple(keys), len(data), written


def fetch(snapshot: Snapshot, store: ChunkStore) -> Iterator[bytes]:
    """The pieces of a state, each checked against its hash. Raises `SandboxError` where one is lost or changed."""
    for key in snapshot.chunks:
        try:
            piece = store.get(key)
        except KeyError:
            raise SandboxError(f"a piece of the snapshot is missing in its store: {key}") from None
        if hashlib.blake2b(piece, digest_size=20).hexdigest() != key:
            raise SandboxError(f"a piece of the snapshot was changed in its store: {key}")
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
