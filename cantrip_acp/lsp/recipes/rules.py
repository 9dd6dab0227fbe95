"""The explanations of the diagnostics' rules, from `rules.md`."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

PAGE = Path(__file__).with_name("rules.md")


@cache
def meanings() -> dict[str, str]:
    """Every rule with its meaning, from `rules.md`."""
    parts = re.split(r"(?m)^## (.+)$", PAGE.read_text(encoding="utf-8"))
    return {name.strip(): text.strip() for name, text in zip(parts[1::2], parts[2::2], strict=True)}


def link(rule: str) -> str:
    """The URI of a rule's explanation."""
    return f"{PAGE.as_uri()}#{rule.lower()}"
