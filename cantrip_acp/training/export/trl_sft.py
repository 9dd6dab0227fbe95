"""TRL supervised fine-tuning format: rows of ``prompt``, ``completion`` and ``tools``, for ``SFTTrainer``.

The loss is on the completion only. It begins with the first utterance that is in no earlier row. So what several
threads share (forks and samples of one turn, windows of one thread) is trained once, in the first row that has it. A
row without new utterances is not written. ``messages`` is prompt and completion joined, for those who mask by hand.

``tools`` is JSON text, and a call's arguments are the object itself, as TRL and chat templates expect. A folded thread
gives several rows, each with what the crystal saw. ``cantrip.trained_from`` is the index in ``messages`` where the
completion begins.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from cantrip_acp.training.export.rows import rendered, tools
from cantrip_acp.training.export.selection import Source


class TrlSft:
    """Writes one row per window of each thread."""

    name = "trl-sft"
    summary = "TRL supervised fine-tuning: prompt, completion and tools"
    marks_truncated = False

    def rows(self, source: Source) -> Iterator[dict[str, Any]]:
        learned: set[str] = set()
        for episode in source.episodes(marked=False):
            for number, window in enumerate(episode.windows()):
                fresh = [uttered.at for uttered in window.uttered if uttered.first not in learned]
                learned.update(uttered.first for uttered in window.uttered)
                if not fresh:
                    continue
                messages = [
                    rendered(m, arguments="data", thinking="reasoning_content", note=source.note)
                    for at, m in enumerate(window.messages)
                    # An interrupted answer must not be trained, and the whole completion is trained.
                    if m.kind != "partial" or at < fresh[0]
                ]
                for message in messages:
                    # A template may join it to other text, so null becomes empty text.
                    message["content"] = "" if message["content"] is None else message["content"]
                about = {**episode.about(), "window": number, "trained_from": fresh[0]}
                yield {
                    "prompt": messages[: fresh[0]],
                    "completion": messages[fresh[0] :],
                    "messages": messages,
                    "tools": json.dumps(tools(window.tools)),
                    "cantrip": about,
                }
            source.take(episode.leaf)
