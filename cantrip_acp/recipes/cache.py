"""Recipe cache: canonical data of texts that were checked before, so that a session starts without parser and models.

The key is a hash of the text and of the schema that it was checked against, so a change of either is a new key. The
data of the built-in recipes ships with the package (``compiled.json``, written by ``python -m
cantrip_acp.recipes.generate``). Other data is kept in the state folder, except where it may hold secrets.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from functools import cache
from pathlib import Path
from typing import Any, Literal

from cantrip_acp.files.paths import private

_log = logging.getLogger(__name__)

SHIPPED = Path(__file__).with_name("compiled.json")
SCHEMA = Path(__file__).with_name("cantrip.schema.json")
MAX_KEPT = 200

Kind = Literal["recipe", "script"]


def canonical(kind: Kind, raw: bytes, path: Path, file: str, state_dir: Path | None) -> dict[str, Any]:
    """The canonical data of a recipe or a script. Raises `RecipeError` that names ``file`` where it is not valid."""
    key = digest(kind, raw)
    shipped = _shipped().get(key)
    if isinstance(shipped, dict):
        return shipped
    kept = state_dir / "recipes" / f"{key}.json" if state_dir is not None else None
    if kept is not None:
        data = _recall(kept)
        if data is not None:
            return data
    data = full(kind, raw, path, file)
    if kept is not None and not _may_be_secret(data):
        _keep(kept, data)
    return data


def full(kind: Kind, raw: bytes, path: Path, file: str) -> dict[str, Any]:
    """The same without the cache."""
    from cantrip_acp.recipes.parse import check
    from cantrip_acp.recipes.parse.document import parse

    document = parse(raw, path, file=file)
    return check.recipe(document) if kind == "recipe" else check.script(document)


def digest(kind: Kind, raw: bytes) -> str:
    """The cache key of a text: kind, content, and the schema."""
    head = f"{kind} yaml {_schema_hash()} ".encode()
    return hashlib.sha256(head + raw).hexdigest()


@cache
def _schema_hash() -> str:
    return hashlib.sha256(SCHEMA.read_bytes()).hexdigest()


@cache
def _shipped() -> dict[str, Any]:
    try:
        data = json.loads(SHIPPED.read_bytes())
    except FileNotFoundError:  # while it is being made
        return {}
    return data if isinstance(data, dict) else {}


def _recall(kept: Path) -> dict[str, Any] | None:
    try:
        data = json.loads(kept.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        _log.debug("what was kept of a recipe cannot be read, so it is read anew: %s: %s", kept, error)
        return None
    return data if isinstance(data, dict) else None


def _keep(kept: Path, data: dict[str, Any]) -> None:
    try:
        folder = private(kept.parent)
        entries = sorted(folder.glob("*.json"), key=lambda p: p.stat().st_mtime)
        for old in entries[: max(0, len(entries) + 1 - MAX_KEPT)]:
            old.unlink(missing_ok=True)
        part = folder / f".{kept.name}.{os.getpid()}"
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            json.dump(data, file, ensure_ascii=False)
        os.replace(part, kept)
    except OSError as error:
        # A state folder that cannot be written only costs time here.
        _log.debug("a recipe's data could not be kept for next time: %s", error)


def _may_be_secret(data: dict[str, Any]) -> bool:
    crystals = [data.get("crystal"), *data.get("crystals", {}).values()]
    if any(not {"headers", "env", "url"}.isdisjoint(server) for server in data.get("mcp_servers", ())):
        return True
    return any(isinstance(c, dict) and not {"headers", "base_url"}.isdisjoint(c) for c in crystals)
