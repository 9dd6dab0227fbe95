"""TRL, supervised fine-tuning: rows of ``prompt``, ``completion`` and ``tools``, as ``SFTTrainer`` reads them.

The loss is on the completion alone: it begins with the first utterance that no earlier row has as its own. So what several
threads share (forks and samples of one turn, windows of one thread) is trained once, in the first row that has it. A row with
nothing of its own is not written. ``messages`` is prompt and completion in one, for whoever masks by hand.

``tools`` is JSON text, and a call's arguments are the object itself: that is what TRL and chat templates expect. A thread whose
turns were folded is several rows, each what the crystal saw; ``cantrip.trained_from`` is the place in ``messages`` where the
completion begins.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from cantrip_acp.training.export.rows import rendered, tools
from cantrip_acp.training.export.selection import Source


class TrlSft:
    """One row a window of each thread."""

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
                    # An answer that was interrupted is nothing to learn; the completion is learned whole.
                    if m.kind != "partial" or at < fresh[0]
                ]
                for message in messages:
                    # A template may join it to other text.
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
