"""A fan-out of 100,000 tuples, all visited, beside a flat list of them: memory, and the time to make one tuple.

Each visited leaf gets a note, as a grader would leave one. A process of its own measures each.
"""

from __future__ import annotations

import json
import subprocess
import sys

from bench.measure import Table, row
from bench.options import Options

LEAVES = 100_000
_PROGRAM = """
import json, sys, time, tracemalloc
from cantrip_acp.tuplespace.fan_out import batch_spawn
flat = sys.argv[1] == "flat"
tracemalloc.start()
fan_out = batch_spawn("grade", [{"yool": "a.b", "args": {"intent": "Grade the answer."}}], 5, 10)
kept = []
for index in range(len(fan_out)):
    if flat:
        kept.append((fan_out.work(index), {"reward": index % 7, "answer": "fine"}))
    else:
        fan_out.visit(index).notes.update(reward=index % 7, answer="fine")
size = tracemalloc.get_traced_memory()[0]
tracemalloc.stop()
began = time.perf_counter()
for index in range(0, len(fan_out), 100):
    fan_out.work(index)
print(json.dumps([size / 1e6, (time.perf_counter() - began) * 1e6 / 1000]))
"""


def run(options: Options) -> Table:
    found = {}
    for kind in ("flat", "virtual"):
        done = subprocess.run([sys.executable, "-c", _PROGRAM, kind], capture_output=True, text=True, check=True)
        found[kind] = json.loads(done.stdout)
    flat = row(f"a flat list of {LEAVES:,} tuples with notes", [found["flat"][0]], "MB")
    virtual = row(
        f"a fan-out of {LEAVES:,}, all visited, with notes", [found["virtual"][0]], "MB", baseline=flat,
        goal="<= 0.25 x the list",
    )  # fmt: skip
    made = row("the tuple of a leaf, made when it is asked for", [found["virtual"][1]], "µs")
    return Table("fan_out", "a fan-out that exists only when visited", (flat, virtual, made))
