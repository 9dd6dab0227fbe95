"""A recipe's text as plain data with places: the one entry for every format that recipes are written in.

What comes out is JSON data: texts, finite numbers, booleans, null, lists, and mappings with text keys.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from cantrip_acp.core.errors import RecipeError
from cantrip_acp.recipes.parse.source_map import KeyPath, Mend, Places, Problem

MAX_BYTES = 2 * 1024 * 1024
"""Above this a file is no recipe; scripts of long sessions stay below it."""

MAX_DEPTH = 100
"""Levels of lists and mappings in one another."""

SUFFIXES = (".cantrip.yaml", ".cantrip.yml", ".cantrip.toml")
"""What a recipe's file is called; the first of two that exist wins."""


@dataclass(slots=True)
class Document:
    """``file`` is the name that messages use, ``path`` where the text was read. The data may hold secrets."""

    file: str
    path: Path
    data: Any = field(repr=False)
    places: Places = field(repr=False)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a recipe may hold secrets and is not pickled; read it again from its path")

    def problem(
        self,
        path: KeyPath,
        message: str,
        *,
        at_key: bool = False,
        key: str | None = None,
        rule: str = "schema",
        mend: Mend | None = None,
    ) -> Problem:
        """What is wrong at a value (or, with ``at_key``, with the key itself)."""
        from cantrip_acp.recipes.parse.source_map import dotted

        line, column = self.places.key(path) if at_key else self.places.value(path)
        return Problem(self.file, line, column, dotted(path) if key is None else key, message, rule, mend)


def parse(raw: bytes, path: Path, *, file: str | None = None) -> Document:
    """The document in ``raw``; ``path`` tells the format by its ending and is what messages name.

    Raises `RecipeError` with line and column for what is not UTF-8, not YAML or TOML, or not plain data.
    """
    name = file if file is not None else str(path)
    if len(raw) > MAX_BYTES:
        raise broken(name, 1, 1, f"the file is {len(raw):,} bytes long; a recipe has at most {MAX_BYTES:,}")
    text = _decode(raw, name)
    if path.suffix == ".toml":
        from cantrip_acp.recipes.parse import toml_text

        data, places = toml_text.read(text, name)
    else:
        from cantrip_acp.recipes.parse import yaml_text

        data, places = yaml_text.read(text, name)
    return Document(name, path, data, places)


def _decode(raw: bytes, name: str) -> str:
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = raw[: error.start]
        line = before.count(b"\n") + 1
        column = len(before[before.rfind(b"\n") + 1 :].decode("utf-8", "replace")) + 1
        byte = raw[error.start]
        raise broken(
            name, line, column, f"not UTF-8 (byte 0x{byte:02x}); save the file in the encoding UTF-8"
        ) from None
    return text


def broken(
    name: str, line: int, column: int, message: str, *, rule: str = "syntax", mend: Mend | None = None
) -> RecipeError:
    """The error for a text that could not be read as far as data."""
    return RecipeError(problems=[Problem(name, line, column, "", message, rule, mend)])
