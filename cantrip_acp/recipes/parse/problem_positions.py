"""Source map: the line and column of every key and value of a document.

A key path is a tuple of mapping keys and list indices, such as ``("circle", "wards", 0, "max_turns")``.
Lines and columns count from 1; a column counts characters.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from msgspec import Struct

from cantrip_acp.types.errors import RecipeError

KeyPath = tuple[str | int, ...]
Place = tuple[int, int]

MAX_DEPTH = 100
"""Maximum levels of nested lists and mappings."""

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*\Z")


class Places(Struct):
    """The positions (line, column) in a document: ``keys`` for mapping keys, ``values`` for the beginnings of values."""

    keys: dict[KeyPath, Place] = {}
    values: dict[KeyPath, Place] = {}

    def key(self, path: KeyPath) -> Place:
        """The position of a key or of a list item. If it is missing, the position of the nearest parent."""
        while path:
            if path in self.keys:
                return self.keys[path]
            if path in self.values:
                return self.values[path]
            path = path[:-1]
        return self.values.get((), (1, 1))

    def value(self, path: KeyPath) -> Place:
        """The position of a value's beginning. If the value is missing, the position of the nearest parent's key."""
        return self.values[path] if path in self.values else self.key(path)


def dotted(path: Iterable[str | int]) -> str:
    """A key path for people: ``circle.wards[0].max_turns``."""
    out = ""
    for part in path:
        if isinstance(part, int):
            out += f"[{part}]"
        elif _PLAIN.match(part):
            out += f".{part}" if out else part
        else:
            out += f"[{part!r}]"
    return out


class Mend(Struct, frozen=True):
    """A fix for a problem: the ``kind`` of change, the new ``value``, and the ``word`` that the value replaces."""

    kind: str
    value: str = ""
    word: str = ""


class Problem(Struct, frozen=True):
    """One problem: its file, position and key, and what to do about it."""

    file: str
    line: int
    column: int
    key: str
    message: str
    rule: str = "schema"
    """The id of the broken rule, from the specification or from `lsp/recipes/rules.md`."""
    mend: Mend | None = None

    def __str__(self) -> str:
        at = f"{self.file}:{self.line}:{self.column}: "
        return f"{at}{self.key}: {self.message}" if self.key else f"{at}{self.message}"


def broken(
    name: str, line: int, column: int, message: str, *, rule: str = "syntax", mend: Mend | None = None
) -> RecipeError:
    """The error for a text that could not be parsed."""
    return RecipeError(problems=[Problem(name, line, column, "", message, rule, mend)])
