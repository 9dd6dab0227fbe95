"""Updates a second over a pipe: one prompt, its words streamed piece by piece.

Counted from the first byte of the first update to the reply, as agent_message_chunk notifications that arrived. The
baselines are the standard library's json, a line and a write an update, and an agent made with the official Python SDK.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence

from bench.agent import AGENT, connect, workspace
from bench.loops import ROOT
from bench.measure import Table, row
from bench.options import Options

UPDATES = 5_000
MARK = b'"agent_message_chunk"'


def script() -> str:
    """A crystal that answers every prompt with so many pieces."""
    chunks = json.dumps([f"word {number} " for number in range(UPDATES)])
    return f"responses: [{{chunks: {chunks}, repeat: true}}]\n"


def run(options: Options) -> Table:
    samples: dict[str, list[float]] = {"json": [], "sdk": [], "ours": []}
    counts: set[int] = set()

    def measure(name: str, command: Sequence[str], prompts: int) -> None:
        with connect(command, environment | {"PYTHONPATH": str(ROOT)}, folder) as agent:
            if name == "json":
                session = "sess_0123456789"
            else:
                agent.initialize()
                session = agent.session()
            # What comes before the first prompt's updates (commands, modes) does not count.
            for _ in range(prompts):
                request = agent.prompt(session)
                # The baseline has no ids: it answers 1 whatever it was asked.
                end = b'"result":{"stopReason"' if name == "json" else b'"stopReason"'
                received, tail, began = 0, b"", 0.0
                while end not in tail:
                    block = os.read(agent.output.fileno(), 1 << 20)
                    if not block:
                        raise EOFError(f"{name} ended in the middle of request {request}")
                    began = began or time.perf_counter()
                    # A mark may be cut in two by the end of a block.
                    joined = tail[-len(MARK) + 1 :] + block
                    received += joined.count(MARK)
                    tail = (tail + block)[-4096:]
                samples[name].append(received / (time.perf_counter() - began))
                if name == "ours":
                    counts.add(received)

    with workspace(script()) as (folder, environment):
        for _ in range(options.rounds(5)):
            measure("json", (sys.executable, "-m", "bench.subjects.json_updates", str(UPDATES)), 4)
            measure("sdk", (sys.executable, "-m", "bench.subjects.sdk_agent", str(UPDATES)), 4)
            measure("ours", AGENT, 4)
    base = row("plain json, a write an update", samples["json"], "updates/s", more=True)
    received = ", ".join(f"{count:,}" for count in sorted(counts))
    return Table(
        "updates",
        f"updates a second over a pipe, {UPDATES:,} pieces a prompt",
        (
            base,
            row("official Python SDK", samples["sdk"], "updates/s", baseline=base, more=True),
            row(
                "cantrip-acp",
                samples["ours"],
                "updates/s",
                baseline=base,
                goal=">= 60,000",
                more=True,
                note=f"{received} arrived of {UPDATES:,} pieces",
            ),
        ),
    )
