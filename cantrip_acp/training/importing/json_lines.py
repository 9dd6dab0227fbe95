"""Reads foreign files of JSON lines safely: limited size, strict decoding, and each error with its line."""

from __future__ import annotations

import codecs
import hashlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from cantrip_acp.text.utf8 import NotUtf8, utf8_text
from cantrip_acp.types.errors import LoomError

LONGEST = 256_000_000
"""Maximum size of a line in bytes."""


def objects(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each line's object, with ``FILE:LINE``. Raises `ImportProblem` for an invalid line or an unreadable
    file."""
    try:
        if not path.is_file():
            raise ImportProblem(str(path), "this is not a regular file" if path.exists() else "no such file")
        with path.open("rb") as file:
            number = 0
            while line := file.readline(LONGEST + 1):
                number += 1
                where = f"{path}:{number}"
                if len(line) > LONGEST:
                    raise ImportProblem(where, f"a line of more than {LONGEST:,} bytes")
                if not line.strip():
                    continue
                yield where, _decoded(where, line.removeprefix(codecs.BOM_UTF8) if number == 1 else line)
    except OSError as error:
        raise ImportProblem(str(path), f"cannot be read: {error.strerror}") from error


def documents(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each line's object, as `objects`; or the one object that the file consists of, if it has several lines."""
    lines = objects(path)
    try:
        first = next(lines, None)
    except ImportProblem:
        try:
            if not path.is_file() or path.stat().st_size > LONGEST:
                raise
            found = msgspec.json.decode(path.read_bytes().removeprefix(codecs.BOM_UTF8))
        except (OSError, msgspec.DecodeError, UnicodeError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise
        first = (str(path), found)
    if first is not None:
        yield first
    yield from lines


def _decoded(where: str, line: bytes) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        try:
            utf8_text(line)
        except NotUtf8 as problem:
            raise ImportProblem(where, str(problem)) from None
        raise ImportProblem(where, f"not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ImportProblem(where, f"a JSON object is expected, not {type(found).__name__}")
    return found


# --- The result of an import.

_EMPTY: tuple[Any, ...] = (None, "", [], {})


class Report:
    """Import counts. ``turns``, ``casts`` and ``rewards`` were added; ``known`` turns were there before; ``notes`` counts, by
    kind, the data that could not be represented."""

    def __init__(self) -> None:
        self.turns = 0
        self.casts = 0
        self.rewards = 0
        self.known = 0
        self.notes: Counter[str] = Counter()

    def note(self, what: str, count: int = 1) -> None:
        """Count something that a loom cannot represent."""
        self.notes[what] += count

    def fields(self, where: str, data: Mapping[str, Any], known: Collection[str]) -> None:
        """Note the non-empty fields of ``data`` that are not ``known``; ``where`` names the object that has them."""
        for key, value in data.items():
            if key not in known and value not in _EMPTY:
                self.note(f"a field that a loom has no place for: {where}.{str(key)[:60]}")

    def record(self) -> dict[str, Any]:
        return {
            "turns": self.turns,
            "casts": self.casts,
            "rewards": self.rewards,
            "known": self.known,
            "notes": dict(self.notes),
        }


class ImportProblem(LoomError):
    """Invalid input; ``where`` is its file and line."""

    def __init__(self, where: str, message: str) -> None:
        super().__init__(f"{where}: {message}")


def stable(prefix: str, *parts: object) -> str:
    """An id that is always the same for the same parts, in the format of the loom's ids."""
    text = "\0".join(map(str, parts))
    return f"{prefix}_{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:22]}"
