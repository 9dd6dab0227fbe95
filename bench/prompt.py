"""A prompt to the first update of its turn, with a scripted crystal.

Measured in a running agent, one prompt after another in one session. The baseline is the standard library's responder
of `bench.agent`: a pipe there, json, a pipe back.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from bench.agent import AGENT, RESPONDER, connect, workspace
from bench.measure import Table, row
from bench.options import Options

SCRIPT = "responses: [{content: hello, repeat: true}]\n"


def run(options: Options) -> Table:
    floor: list[float] = []
    ours: list[float] = []

    def measure(command: Sequence[str], samples: list[float], rounds: int) -> None:
        with connect(command, environment, folder) as agent:
            agent.initialize()
            session = agent.session()
            for number in range(rounds + 1):
                began = time.perf_counter()
                request = agent.prompt(session)
                while agent.receive().get("params", {}).get("update", {}).get("sessionUpdate") != "agent_message_chunk":
                    pass
                spent = (time.perf_counter() - began) * 1000
                agent.reply(request)
                if number:  # the first prompt of a process also loads what only prompts need
                    samples.append(spent)

    with workspace(SCRIPT) as (folder, environment):
        for _ in range(options.rounds(10)):
            measure(RESPONDER, floor, 20)
            measure(AGENT, ours, 20)
    base = row("stdlib responder", floor, "ms")
    return Table(
        "prompt",
        "prompt to the first agent_message_chunk",
        (
            base,
            row("cantrip-acp", ours, "ms", baseline=base, goal="<= 15 ms"),
        ),
    )
