"""Spawn to the reply to initialize, and spawn to the reply to session/new.

The baseline is the same exchange with `python -c` and the standard library's json: what an interpreter costs. Both are
spawned in turn. session/new is asked for at once after initialize, as editors do.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from bench.agent import AGENT, RESPONDER, connect, workspace
from bench.measure import Table, row
from bench.options import Options

SCRIPT = "responses: [{content: hello, repeat: true}]\n"


def run(options: Options) -> Table:
    samples: dict[tuple[str, str], list[float]] = {}

    def measure(name: str, command: Sequence[str]) -> None:
        with connect(command, environment, folder) as agent:
            agent.initialize()
            samples.setdefault((name, "initialize"), []).append((time.perf_counter() - agent.spawned) * 1000)
            agent.session()
            samples.setdefault((name, "session/new"), []).append((time.perf_counter() - agent.spawned) * 1000)

    with workspace(SCRIPT) as (folder, environment):
        for each in (("floor", RESPONDER), ("ours", AGENT)):
            measure(*each)
        samples.clear()  # the first start of each also compiled and cached
        for _ in range(options.rounds(40)):
            measure("floor", RESPONDER)
            measure("ours", AGENT)
    first = row("stdlib responder: initialize", samples["floor", "initialize"], "ms")
    second = row("stdlib responder: session/new", samples["floor", "session/new"], "ms")
    return Table(
        "start",
        "spawn to the reply to initialize; spawn to the reply to session/new",
        (
            first,
            row(
                "cantrip-acp: initialize",
                samples["ours", "initialize"],
                "ms",
                baseline=first,
                goal="<= 40 ms",
                reached=lambda made: made.median <= 40,
            ),
            second,
            row(
                "cantrip-acp: session/new",
                samples["ours", "session/new"],
                "ms",
                baseline=second,
                goal="<= 200 ms",
                reached=lambda made: made.median <= 200,
            ),
        ),
    )
