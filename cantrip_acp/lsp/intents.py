"""The intents that a recipe's author noted in it: comments ``# intent: TEXT`` on lines of their own, in YAML and TOML alike."""

from __future__ import annotations

import re

from cantrip_acp.lsp.text import Text

_NOTED = re.compile(r"[ \t]*#+[ \t]*intent:[ \t]*(\S.*?)[ \t]*\Z", re.IGNORECASE)


def noted(text: Text) -> list[tuple[int, str]]:
    """Each with its line, from 0."""
    if "intent:" not in text.source.lower():
        return []
    found = ((number, _NOTED.match(text.line(number))) for number in range(len(text.starts)))
    return [(number, match[1]) for number, match in found if match is not None]
