"""Notices (ACP, Session Notices) and compactions of an agent's context.
A compaction is shown once, when it has ended. Its first update and the pieces of its summary may come long before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cantrip_acp.cli.render.terminal import Block, Screen
from cantrip_acp.cli.render.tool_call import listed, mapped, text
from cantrip_acp.text.sanitize import clean_line

_MOST = 64
"""The most running compactions to remember, so that an agent that never ends them cannot fill the memory."""
_LONGEST = 100_000


def words_of(content: object) -> str:
    """A content block as text. Content that is not text is shown by its name or kind and size."""
    if isinstance(content, str):
        return content
    if not isinstance(content, Mapping):
        return ""
    kind = text(content, "type")
    if kind == "text":
        return text(content, "text")
    if kind == "resource_link":
        return f"[{text(content, 'title') or text(content, 'name')}]({text(content, 'uri')})"
    if kind == "resource":
        return f"[{text(mapped(content, 'resource'), 'uri')}]"
    size = len(text(content, "data")) * 3 // 4
    return f"[{kind or 'content'} {text(content, 'mimeType')}, {size:,} bytes]"


def notice(screen: Screen, update: Mapping[str, Any]) -> None:
    """Show a `notice`: the title, coloured by its severity, and the description below it."""
    style = {"warning": "yellow", "error": "red"}.get(text(update, "severity"), "dim")
    title = clean_line(text(update, "title")) or "a notice without a title"
    screen.line((f"{screen.marks.notice} {title}", style), indent=2)
    for line in text(update, "description").strip().splitlines():
        screen.line((clean_line(line), "dim"), indent=4)


class Compactions:
    """Collects `compaction_update` and `compaction_summary_chunk`: the summary so far of each compaction, by id."""

    def __init__(self, screen: Screen, *, full: bool) -> None:
        self._screen = screen
        self._full = full
        self._summaries: dict[str, str] = {}

    def chunk(self, update: Mapping[str, Any]) -> None:
        """Add a piece to a summary."""
        self._keep(text(update, "compactionId"), lambda known: known + words_of(update.get("content")))

    def over(self, update: Mapping[str, Any]) -> bool:
        """Take an update. True if it ended the compaction: then call `show`."""
        key = text(update, "compactionId")
        if "summary" in update:
            self._keep(key, lambda _: "\n\n".join(map(words_of, listed(update, "summary"))))
        return text(update, "status") in ("completed", "failed", "cancelled")

    def show(self, update: Mapping[str, Any]) -> None:
        """Show how a compaction ended, with its summary."""
        summary = self._summaries.pop(text(update, "compactionId"), "").strip()
        status = text(update, "status")
        if status != "completed":
            why = clean_line(text(update, "error") or text(mapped(update, "error"), "message"))
            words = f"compacting the context {'failed' if status == 'failed' else 'was cancelled'}"
            self._screen.line((f"{self._screen.marks.notice} {words}{f': {why}' if why else ''}", "yellow"), indent=2)
            return
        words = "the context was compacted: a summary stands for what came before"
        self._screen.line((f"{self._screen.marks.notice} {words}", "dim"), indent=2)
        if summary:
            block = Block(self._screen, indent=2, head=None if self._full else 12, tail=0 if self._full else 4)
            block.feed(summary)
            block.close()

    def _keep(self, key: str, change: Any) -> None:
        if key not in self._summaries and len(self._summaries) >= _MOST:
            del self._summaries[next(iter(self._summaries))]
        self._summaries[key] = change(self._summaries.get(key, ""))[:_LONGEST]
