"""The rules that findings name: what each means, and where that can be read."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

PAGE = Path(__file__).with_name("rules.md")


@cache
def meanings() -> dict[str, str]:
    """Every rule with what it means, from the page."""
    parts = re.split(r"(?m)^## (.+)$", PAGE.read_text(encoding="utf-8"))
    return {name.strip(): text.strip() for name, text in zip(parts[1::2], parts[2::2], strict=True)}


def link(rule: str) -> str:
    """The address of a rule's explanation."""
    return f"{PAGE.as_uri()}#{rule.lower()}"
