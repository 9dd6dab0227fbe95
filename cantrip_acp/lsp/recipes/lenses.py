"""Code lenses of a recipe: cast it, cast it with another intent, show the last result, open its loom."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from lsprotocol import types

from cantrip_acp.lsp.commands.casts import CastOutcome, summary
from cantrip_acp.lsp.server.positions import TextDocument

if TYPE_CHECKING:
    from cantrip_acp.lsp.server.documents import OpenDocument
    from cantrip_acp.lsp.server.language_server import Server


# --- Intents that the author noted in the recipe: comments ``# intent: TEXT`` on their own lines.

_NOTED = re.compile(r"[ \t]*#+[ \t]*intent:[ \t]*(\S.*?)[ \t]*\Z", re.IGNORECASE)


def noted(text: TextDocument) -> list[tuple[int, str]]:
    """Each noted intent with its line, counted from 0."""
    if "intent:" not in text.source.lower():
        return []
    found = ((number, _NOTED.match(text.line(number))) for number in range(len(text.starts)))
    return [(number, match[1]) for number, match in found if match is not None]


SHOWN = 50
"""The most characters of an intent in a lens."""


def lenses(server: Server, document: OpenDocument) -> list[types.CodeLens]:
    """The lenses at the recipe's first key, and one at each noted intent."""
    first = next(iter(document.tree.children), None)
    top = document.text.line_of(first.whole[0]) if first is not None else 0
    about = {"uri": document.uri}
    out: list[types.CodeLens] = []

    def add(line: int, title: str, command: str, **more: Any) -> None:
        span = types.Range(types.Position(line, 0), types.Position(line, document.text.units(document.text.line(line))))
        out.append(types.CodeLens(span, command=types.Command(title, command, arguments=[{**about, **more}])))

    for line, intent in noted(document.text):
        add(line, f"▶ Cast: {_short(intent)}", "cantrip.cast", intent=intent)
    running = server.casts.running.get(document.path)
    if running:
        count = f" ({len(running)} casts)" if len(running) > 1 else ""
        add(top, f"■ Stop{count}", "cantrip.stop")
    add(top, "▶ Cast", "cantrip.cast")
    add(top, "Cast with…", "cantrip.castWith")
    if document.untrusted:
        count = "1 key asks" if document.untrusted == 1 else f"{document.untrusted} keys ask"
        add(top, f"Trust… ({count} for it)", "cantrip.trust")
    last = server.casts.last.get(document.path)
    if isinstance(last, CastOutcome):
        add(top, f"{'✓' if last.well else '✗'} {summary(last)}", "cantrip.lastResult")
        if last.loom:
            add(top, "Open loom", "cantrip.openLoom", loom=last.loom)
    elif last is not None:
        add(top, f"✗ {_short(last)}", "cantrip.lastResult")
    return out


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"
