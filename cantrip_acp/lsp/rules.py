"""The rules that findings name: what each means, and where that can be read."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

PAGE = Path(__file__).with_name("rules.md")

_NAMED = re.compile(r"\(([A-Z]+-\d+)\)")
_BY_WORDS = (
    ("not YAML", "syntax"),
    ("not TOML", "syntax"),
    ("not UTF-8", "syntax"),
    ("a tab is used", "syntax"),
    ("the file is empty", "CANTRIP-1"),
    ("cantrip requires", "CANTRIP-1"),
    ("duplicate key", "duplicate-key"),
    ("exclude each other", "exclusive-keys"),
    ("is listed twice", "duplicate-gate"),
    ("unknown key", "unknown-key"),
    ("unknown ward", "unknown-key"),
    ("unknown ", "unknown-name"),
)


def of(message: str) -> str:
    """The rule of a message of the loader's."""
    named = _NAMED.search(message)
    if named is not None:
        return named[1]
    return next((rule for words, rule in _BY_WORDS if words in message), "schema")


@cache
def meanings() -> dict[str, str]:
    """Every rule with what it means, from the page."""
    parts = re.split(r"(?m)^## (.+)$", PAGE.read_text(encoding="utf-8"))
    return {name.strip(): text.strip() for name, text in zip(parts[1::2], parts[2::2], strict=True)}


def link(rule: str) -> str:
    """The address of a rule's explanation."""
    return f"{PAGE.as_uri()}#{rule.lower()}"
