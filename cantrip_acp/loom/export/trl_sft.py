"""TRL, supervised fine-tuning: rows of ``messages`` and ``tools``, as ``SFTTrainer`` reads them.

``tools`` is JSON text, and a call's arguments are the object itself: that is what TRL and chat templates expect. A thread whose
turns were folded is several rows, each what the crystal saw; ``cantrip.trained_from`` is the first message that no earlier row has
as its own, for those who mask by hand.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from cantrip_acp.loom.export.messages import rendered, tools
from cantrip_acp.loom.export.source import Source


class TrlSft:
    """One row a window of each thread."""

    name = "trl-sft"
    summary = "TRL supervised fine-tuning: messages and tools"
    marks_truncated = False

    def rows(self, source: Source) -> Iterator[dict[str, Any]]:
        for episode in source.episodes(marked=False):
            for number, window in enumerate(episode.windows()):
                messages = [
                    rendered(m, arguments="data", thinking="reasoning_content", note=source.note)
                    for m in window.messages
                ]
                for message in messages:
                    # A template may join it to other text.
                    message["content"] = "" if message["content"] is None else message["content"]
                about = {**episode.about(), "window": number, "trained_from": window.uttered[0].at}
                yield {"messages": messages, "tools": json.dumps(tools(window.tools)), "cantrip": about}
            source.take(episode.leaf)
