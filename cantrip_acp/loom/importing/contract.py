"""What came of an import."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

from cantrip_acp.core.errors import LoomError

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
