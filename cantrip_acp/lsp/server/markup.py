"""Converts Markdown to plain text for clients that show no Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence

from lsprotocol import types

_FENCE = re.compile(r"(?m)^```.*\n?")
_LINK = re.compile(r"\[([^\]\n]*)\]\([^)\n]*\)")
_RULE = re.compile(r"(?m)^---\n?")


def fitted(content: types.MarkupContent, formats: Sequence[types.MarkupKind] | None) -> types.MarkupContent:
    """The content in a format that the client shows; plain text if it names no format."""
    if content.kind == types.MarkupKind.PlainText or types.MarkupKind.Markdown in (formats or ()):
        return content
    return types.MarkupContent(types.MarkupKind.PlainText, plain(content.value))


def plain(text: str) -> str:
    """Our Markdown as plain text: without fences, rules and stars; links become their text."""
    text = _RULE.sub("", _LINK.sub(r"\1", _FENCE.sub("", text)))
    return re.sub(r"\n{3,}", "\n\n", text.replace("**", "").replace(" ↗", "")).strip()
