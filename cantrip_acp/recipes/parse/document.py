"""Parses the text of a recipe to a `Document`: plain data with source positions.

The result is JSON data: texts, finite numbers, booleans, null, lists, and mappings with text keys.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from cantrip_acp.recipes.parse.problem_positions import KeyPath, Mend, Places, Problem, broken
from cantrip_acp.text.utf8 import NotUtf8, utf8_text

MAX_BYTES = 2 * 1024 * 1024
"""Maximum bytes of a recipe. Even the scripts of long sessions are smaller."""

SUFFIXES = (".cantrip.yaml", ".cantrip.yml")
"""The suffixes of recipe files. If both files exist, the file with the first suffix is used."""


TOML = "recipes are written in YAML; `cantrip recipe convert FILE` converts a recipe in TOML"


@dataclass(slots=True)
class Document:
    """A parsed document. ``file`` is its name in messages, ``path`` the file that was read.

    The data may contain secrets, so no repr shows it.
    """

    file: str
    path: Path
    data: Any = field(repr=False)
    places: Places = field(repr=False)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a recipe may contain secrets, so it cannot be pickled; read it again from its path")

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
        """A problem at a value (or, with ``at_key``, at the key itself)."""
        from cantrip_acp.recipes.parse.problem_positions import dotted

        line, column = self.places.key(path) if at_key else self.places.value(path)
        return Problem(self.file, line, column, dotted(path) if key is None else key, message, rule, mend)


def parse(raw: bytes, path: Path, *, file: str | None = None) -> Document:
    """Parse the bytes of a recipe. Messages call it ``file``, or ``path`` if ``file`` is None.

    Raises `RecipeError` with line and column for invalid UTF-8, invalid YAML, and YAML that is not plain data.
    """
    name = file if file is not None else str(path)
    if len(raw) > MAX_BYTES:
        raise broken(name, 1, 1, f"the file has {len(raw):,} bytes; a recipe may have at most {MAX_BYTES:,}")
    if path.suffix == ".toml":
        raise broken(name, 1, 1, TOML)
    from cantrip_acp.recipes.parse import yaml_text  # imports the YAML parser, which is slow

    data, places = yaml_text.read(_decode(raw, name), name)
    return Document(name, path, data, places)


def _decode(raw: bytes, name: str) -> str:
    try:
        return utf8_text(raw)
    except NotUtf8 as error:
        raise broken(name, error.line, error.column, str(error)) from None
