"""How things are shown in an editor: one line for a title, text as content, outputs as code blocks, all of a bounded size."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from cantrip_acp.acp import protocol as acp

if TYPE_CHECKING:
    from cantrip_acp import events

CONTENT_LIMIT = 32 * 1024
"""Characters of a result or an output that are shown as content; ``rawOutput`` and the loom have more."""

TITLE_LIMIT = 160

_FENCED_KINDS = frozenset({"read", "search", "execute", "fetch"})


def headline(text: str) -> str:
    """One line, as an editor has room for."""
    first, _, more = text.strip().partition("\n")
    first = " ".join(first.split())
    if more.strip() or len(first) > TITLE_LIMIT:
        return first[:TITLE_LIMIT].rstrip() + " …"
    return first or "(empty)"


def places(locations: tuple[events.Location, ...]) -> list[acp.Location] | None:
    return [acp.Location(place.path, place.line) for place in locations] or None


def as_content(text: str) -> acp.Content:
    return acp.Content(acp.TextContent(text))


def shortened(text: str) -> str:
    if len(text) <= CONTENT_LIMIT:
        return text
    return f"{text[:CONTENT_LIMIT]}\n[{len(text) - CONTENT_LIMIT} more characters are not shown]"


def as_code(text: str, language: str = "") -> str:
    """As a code block: clients render content as Markdown, and a file or an output is none."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def ended(text: str) -> str:
    """The end of an output: what came last says most."""
    return text if len(text) <= CONTENT_LIMIT else "[earlier output left out]\n" + text[-CONTENT_LIMIT:]


def result(value: Any, kind: str, *, failed: bool) -> list[acp.ToolContent]:
    """What a gate answered; nothing where it answered nothing."""
    text = shortened(value if isinstance(value, str) else pretty(value))
    if not text:
        return []
    return [as_content(as_code(text) if kind in _FENCED_KINDS and not failed else text)]


def pretty(value: Any) -> str:
    return "" if value is None else json.dumps(value, ensure_ascii=False, indent=2, default=str)
