"""Retention rules: maximum age and size, parsed from flags or from the user's settings."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cantrip_acp.files.toml_file import TomlFile

FILE = "settings.toml"
"""The user's settings in the configuration folder; the table ``gc`` has the retention rules."""

DAY = 86_400.0
DEFAULT_AGE = 90 * DAY

_AGE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*")
_AGES = {"m": 60.0, "min": 60.0, "h": 3600.0, "d": DAY, "w": 7 * DAY, "y": 365 * DAY}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)(b?)\s*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Rules:
    """``older_than``: seconds since a loom was last written. ``max_size``: bytes of all looms. None means no limit."""

    older_than: float | None = DEFAULT_AGE
    max_size: int | None = None


def age(text: str) -> float | None:
    """Parse an age in seconds: ``90d``, ``12h``, ``2w``, ``1y``, ``30min``; None for ``never``. Raises `ValueError`."""
    if text.strip().lower() == "never":
        return None
    found = _AGE.fullmatch(text.lower())
    if found is None or found[2] not in _AGES:
        raise ValueError(f"{text!r} is not an age; write a number and its unit, as in 90d, 12h, 2w or 1y, or never")
    return float(found[1]) * _AGES[found[2]]


def size(text: str) -> int | None:
    """Parse a size in bytes: ``2GB``, ``500MB``, ``1.5GiB``, ``4096``; None for ``unlimited``. Raises `ValueError`."""
    if text.strip().lower() == "unlimited":
        return None
    found = _SIZE.fullmatch(text)
    if found is None or (found[3] and not found[2]):
        raise ValueError(
            f"{text!r} is not a size; write a number and its unit, as in 2GB, 500MB or 1.5GiB, or unlimited"
        )
    base = 1024 if found[3] else 1000
    return int(float(found[1]) * base ** " kmgt".index(found[2].lower() or " "))


def read(config: Path) -> Rules:
    """Read the rules from the user's settings, with defaults for missing keys. Raises `DefinitionError` with file and
    key."""
    try:
        file = TomlFile.read(config / FILE)
    except FileNotFoundError:
        return Rules()
    table = file.data.get("gc", {})
    if not isinstance(table, dict):
        raise file.error("must be a table: write [gc], and below it older_than = '90d'", "gc")
    unknown = sorted(set(table) - {"older_than", "max_size"})
    if unknown:
        raise file.error("is not known; there are older_than and max_size", "gc", unknown[0])
    rules = Rules()
    return Rules(
        rules.older_than if "older_than" not in table else _read(file, table, "older_than", age),
        rules.max_size if "max_size" not in table else _read(file, table, "max_size", size),
    )


def _read(file: TomlFile, table: dict[str, Any], key: str, parse: Any) -> Any:
    if not isinstance(table[key], str):
        raise file.error("must be a text, as in '90d' or '2GB'", "gc", key)
    try:
        return parse(table[key])
    except ValueError as error:
        raise file.error(str(error), "gc", key) from None


# --- One item of the state folder that may be deleted, or that is kept although it is too old.


class ItemKept(Exception):
    """Raised by an item's ``delete`` if it is in use after all; the text says why."""


@dataclass(slots=True)
class Item:
    """``kind`` is loom, compiled recipe, home folder or quarantined file; ``name`` is relative to the state folder.

    ``why`` says why it may be deleted. ``kept`` says why it is kept nevertheless; None if it is deleted. ``delete`` raises
    `ItemKept` or `OSError`. After a crash, ``delete`` can run again and finishes the deletion.
    """

    kind: str
    name: str
    size: int
    changed: float
    why: str
    delete: Callable[[], object] = field(repr=False)
    kept: str | None = None
    beside: int = 0
    """Bytes elsewhere that are deleted with it (a fork's worktree)."""
