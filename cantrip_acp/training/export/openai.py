"""OpenAI's fine-tuning files for chat models: ``messages``, ``tools``, and ``weight`` 0 on what is not trained.

Each utterance is trained in the first row that has it. In later rows (after a fold, or in a fork) it has weight 0.
OpenAI accepts no thinking, and no attachments but images.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cantrip_acp.training.export.rows import rendered, tools
from cantrip_acp.training.export.selection import Source


class OpenAI:
    """Writes one row per window of each thread."""

    name = "openai"
    summary = "OpenAI fine-tuning files: chat messages, tools, weights"
    marks_truncated = False

    def rows(self, source: Source) -> Iterator[dict[str, Any]]:
        learned_ids: set[str] = set()
        for episode in source.episodes(marked=False):
            for window in episode.windows():
                fresh = {u.at for u in window.uttered if u.first not in learned_ids}
                learned_ids.update(u.first for u in window.uttered)
                if not fresh:
                    # Other rows have all of its turns: a prefix that forks share is trained once.
                    continue
                messages = []
                for at, message in enumerate(window.messages):
                    out = rendered(message, arguments="text", thinking=None, note=source.note)
                    if message.role == "assistant":
                        out["weight"] = int(at in fresh)
                    if message.role == "tool":
                        # Tool messages in this format do not have this key.
                        out.pop("name", None)
                    messages.append(out)
                row: dict[str, Any] = {"messages": messages}
                if window.tools:
                    row |= {"tools": tools(window.tools), "parallel_tool_calls": _several(messages)}
                yield row
            source.take(episode.leaf)


def _several(messages: list[dict[str, Any]]) -> bool:
    return any(len(m.get("tool_calls", ())) > 1 for m in messages)
