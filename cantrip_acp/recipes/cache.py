"""Recipe cache: stores the data of checked recipes, so that a session starts without the parser and the models.

The key is a hash of the text and of the schema that checked it, so a change of either makes a new key. The data of the
built-in recipes are part of the package (``compiled.json``, written by ``python -m cantrip_acp.recipes.generate``).
The data of other recipes are stored in the state folder, unless they may contain secrets.
"""

from __future__ import annotations

import hashlib
import json
import os
from functools import cache
from pathlib import Path
from typing import Any, Literal

from cantrip_acp.files.paths import private
from cantrip_acp.text.logs import logger

_log = logger(__name__)

SHIPPED = Path(__file__).with_name("compiled.json")
SCHEMA = Path(__file__).with_name("cantrip.schema.json")
MAX_ENTRIES = 200
"""Maximum number of cache entries in the state folder. The oldest ones are deleted."""

Kind = Literal["recipe", "script"]


def canonical(kind: Kind, raw: bytes, path: Path, file: str, state_dir: Path | None) -> dict[str, Any]:
    """The checked data of a recipe or a script, from the cache if possible.

    Raises `RecipeError` if the text is not valid; the error names ``file``.
    """
    key = digest(kind, raw)
    shipped = _shipped().get(key)
    if isinstance(shipped, dict):
        return shipped
    entry = state_dir / "recipes" / f"{key}.json" if state_dir is not None else None
    if entry is not None:
        data = _load(entry)
        if data is not None:
            return data
    data = parse_and_check(kind, raw, path, file)
    if entry is not None and not _may_be_secret(data):
        _save(entry, data)
    return data


def parse_and_check(kind: Kind, raw: bytes, path: Path, file: str) -> dict[str, Any]:
    """The checked data of a recipe or a script, computed without the cache."""
    from cantrip_acp.recipes.parse import validation
    from cantrip_acp.recipes.parse.document import parse

    document = parse(raw, path, file=file)
    return validation.recipe(document) if kind == "recipe" else validation.script(document)


def digest(kind: Kind, raw: bytes) -> str:
    """The cache key of a text: a hash of its kind, its content and the schema."""
    head = f"{kind} yaml {_schema_hash()} ".encode()
    return hashlib.sha256(head + raw).hexdigest()


@cache
def _schema_hash() -> str:
    return hashlib.sha256(SCHEMA.read_bytes()).hexdigest()


@cache
def _shipped() -> dict[str, Any]:
    try:
        data = json.loads(SHIPPED.read_bytes())
    except FileNotFoundError:  # while `generate` makes the file
        return {}
    return data if isinstance(data, dict) else {}


def _load(entry: Path) -> dict[str, Any] | None:
    try:
        data = json.loads(entry.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        _log.debug("the recipe cache entry %s cannot be read, so the recipe is parsed again: %s", entry, error)
        return None
    return data if isinstance(data, dict) else None


def _save(entry: Path, data: dict[str, Any]) -> None:
    try:
        folder = private(entry.parent)
        entries = sorted(folder.glob("*.json"), key=lambda p: p.stat().st_mtime)
        for old in entries[: max(0, len(entries) + 1 - MAX_ENTRIES)]:
            old.unlink(missing_ok=True)
        part = folder / f".{entry.name}.{os.getpid()}"
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            json.dump(data, file, ensure_ascii=False)
        os.replace(part, entry)
    except OSError as error:
        # Without the cache, the next start is only slower.
        _log.debug("the recipe cache entry could not be written: %s", error)


def _may_be_secret(data: dict[str, Any]) -> bool:
    crystals = [data.get("crystal"), *data.get("crystals", {}).values()]
    if any(not {"headers", "env", "url"}.isdisjoint(server) for server in data.get("mcp_servers", ())):
        return True
    return any(isinstance(c, dict) and not {"headers", "base_url"}.isdisjoint(c) for c in crystals)
