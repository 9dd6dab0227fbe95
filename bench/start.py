"""Spawn to the reply to initialize and to session/new; the whole process of `cantrip --help` and of a scripted cast.

The baselines are the same exchange with `python -c` and the standard library's json, and `python -c pass`: what an
interpreter costs. All are spawned in turn. session/new is asked for at once after initialize, as editors do; the agent is killed
at its reply. A busy machine makes most runs slower, so the goals are about the fastest run. CPU time is user and system time.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bench.agent import AGENT, RESPONDER, connect, workspace
from bench.measure import Row, Table, row
from bench.options import Options

SCRIPT = "responses: [{tool_calls: [{gate: done, args: {answer: well}}], repeat: true}]\n"
RECIPE = "name: quick\ncircle: {gates: [done], wards: [{max_turns: 5}]}\n"
CANTRIP = str(Path(sys.executable).parent / "cantrip")
COMMANDS = {
    "python -c pass": (sys.executable, "-c", "pass"),
    "cantrip --help": (CANTRIP, "--help"),
    "cantrip cast": (CANTRIP, "cast", "./quick.cantrip.yaml", "Do it."),
}


def _cpu() -> float:
    """The milliseconds of user and system time of all children that were waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (used.ru_utime + used.ru_stime) * 1000


def run(options: Options) -> Table:
    wall: dict[tuple[str, str], list[float]] = {}
    cpu: dict[str, list[float]] = {}

    def agent(name: str, command: Sequence[str]) -> None:
        with connect(command, environment, folder) as agent:
            agent.initialize()
            wall.setdefault((name, "initialize"), []).append((time.perf_counter() - agent.spawned) * 1000)
            agent.session()
            wall.setdefault((name, "session/new"), []).append((time.perf_counter() - agent.spawned) * 1000)
            agent.kill()

    def command(name: str) -> None:
        before, began = _cpu(), time.perf_counter()
        subprocess.run(
            COMMANDS[name], cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        wall.setdefault((name, ""), []).append((time.perf_counter() - began) * 1000)
        cpu.setdefault(name, []).append(_cpu() - before)

    with workspace(SCRIPT) as (folder, environment):
        (folder / "quick.cantrip.yaml").write_text(RECIPE)
        for turn in range(options.rounds(40) + 1):
            for each in (("stdlib responder", RESPONDER), ("cantrip-acp", AGENT)):
                agent(*each)
            for name in COMMANDS:
                command(name)
            if turn == 0:  # the first start of each also compiled and cached
                wall.clear()
                cpu.clear()

    def limited(name: str, samples: list[float], base: Row | None, most: float | None) -> Row:
        goal = "" if most is None else f"<= {most:g} ms"
        return row(name, samples, "ms", baseline=base, goal=goal)

    rows: list[Row] = []
    for kind, most in (("initialize", 40), ("session/new", 120)):
        base, ours = wall["stdlib responder", kind], wall["cantrip-acp", kind]
        rows += [first := limited(f"stdlib responder: {kind}", base, None, None)]
        rows += [limited(f"cantrip-acp: {kind}", ours, first, None)]
        rows += [fastest := limited(f"stdlib responder: {kind}, fastest", [min(base)], None, None)]
        rows += [limited(f"cantrip-acp: {kind}, fastest", [min(ours)], fastest, most)]
    python, *_ = COMMANDS
    goals = {"cantrip --help": 120, "cantrip cast": 350}
    first = limited(python, wall[python, ""], None, None)
    fastest = limited(f"{python}: fastest", [min(wall[python, ""])], None, None)
    bare = limited(f"{python}: CPU, fastest", [min(cpu[python])], None, None)
    rows += [first, fastest, bare]
    for name, most in goals.items():
        rows += [limited(name, wall[name, ""], first, None)]
        rows += [limited(f"{name}: fastest", [min(wall[name, ""])], fastest, most)]
        rows += [limited(f"{name}: CPU, fastest", [min(cpu[name])], bare, None)]
    return Table("start", "spawn to the replies to initialize and session/new; whole processes", tuple(rows))
