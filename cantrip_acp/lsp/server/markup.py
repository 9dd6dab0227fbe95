"""Explanations in the format that the client reads: Markdown, or the same words without its marks."""

from __future__ import annotations

import re
from collections.abc import Sequence

from lsprotocol import types

_FENCE = re.compile(r"(?m)^```.*\n?")
_LINK = re.compile(r"\[([^\]\n]*)\]\([^)\n]*\)")
_RULE = re.compile(r"(?m)^---\n?")


def fitted(content: types.MarkupContent, formats: Sequence[types.MarkupKind] | None) -> types.MarkupContent:
    """The content in one of the formats; in none of them where none was named: then it is plain."""
    if content.kind == types.MarkupKind.PlainText or types.MarkupKind.Markdown in (formats or ()):
        return content
    return types.MarkupContent(types.MarkupKind.PlainText, plain(content.value))


def plain(text: str) -> str:
    """Markdown of ours as it reads: no fences, no stars, of a link its words."""
    text = _RULE.sub("", _LINK.sub(r"\1", _FENCE.sub("", text)))
    return re.sub(r"\n{3,}", "\n\n", text.replace("**", "").replace(" ↗", "")).strip()
