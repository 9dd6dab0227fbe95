"""Foreign files of JSON lines, taken as hostile: bounded, decoded strictly, each problem with its line."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from cantrip_acp.core.errors import LoomError

LONGEST = 256_000_000
"""Bytes of a line beyond which nobody's trace goes."""


def objects(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each line's object, with ``FILE:LINE``. Raises `ImportProblem` for what is none, and for a file that cannot be read."""
    try:
        if not path.is_file():
            raise ImportProblem(str(path), "this is no regular file" if path.exists() else "no such file")
        with path.open("rb") as file:
            number = 0
            while line := file.readline(LONGEST + 1):
                number += 1
                where = f"{path}:{number}"
                if len(line) > LONGEST:
                    raise ImportProblem(where, f"a line of more than {LONGEST:,} bytes")
                if not line.strip():
                    continue
                yield where, _decoded(where, line)
    except OSError as error:
        raise ImportProblem(str(path), f"cannot be read: {error.strerror}") from error


def _decoded(where: str, line: bytes) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise ImportProblem(where, f"not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ImportProblem(where, f"a JSON object is expected, not {type(found).__name__}")
    return found


# --- What came of an import.

_EMPTY: tuple[Any, ...] = (None, "", [], {})


class Report:
    """``turns``, ``casts`` and ``rewards`` that were added; ``known`` turns that were there already; ``notes`` on what could not
    be represented, by how often."""

    def __init__(self) -> None:
        self.turns = 0
        self.casts = 0
        self.rewards = 0
        self.known = 0
        self.notes: Counter[str] = Counter()

    def note(self, what: str) -> None:
        """Something that a loom has no place for."""
        self.notes[what] += 1

    def fields(self, where: str, data: Mapping[str, Any], known: Collection[str]) -> None:
        """Note the fields of ``data`` that are not ``known`` and hold something; ``where`` names what has them."""
        for key, value in data.items():
            if key not in known and value not in _EMPTY:
                self.note(f"a field that a loom has no place for: {where}.{str(key)[:60]}")

    def record(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "turns": self.turns,
            "casts": self.casts,
            "rewards": self.rewards,
            "known": self.known,
            "notes": dict(self.notes),
        }


class ImportProblem(LoomError):
    """Input that is not what it should be; ``where`` is its file and line."""

    def __init__(self, where: str, message: str) -> None:
        super().__init__(f"{where}: {message}")


def stable(prefix: str, *parts: object) -> str:
    """An id that is the same for the same parts, in the shape of the loom's own."""
    text = "\0".join(map(str, parts))
    return f"{prefix}_{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:22]}"
