"""A cell through the code medium: warm and cold, a gate call from it, and a snapshot of 1 MB of state.

The floors: a bare Python, started without site in the same sandbox options, and a line there and back through a pipe to a
Python that runs outside of any sandbox.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from functools import partial
from statistics import median

import anyio
import msgspec

from bench.measure import Table, row
from bench.options import Options
from bench.shell import Turn
from cantrip_acp.core.definition.circle import Circle
from cantrip_acp.mediums.code.session import CodeSession
from cantrip_acp.sandbox.launch.bubblewrap import encode
from cantrip_acp.types.messages import ToolCall
from cantrip_acp.types.records import Output

CALLS = 200
LOOP = f"""
import time
began = time.perf_counter()
for _ in range({CALLS}): echo("hello")
time.perf_counter() - began
"""
STATE = """
import random
rows = [{'id': n, 'name': f'row {n}', 'values': [random.random() for _ in range(4)]} for n in range(3000)]
numbers = [random.randrange(10**6) for _ in range(50_000)]
text = ''.join(chr(97 + random.randrange(26)) for n in range(300_000))
data = random.randbytes(200_000)
shared = rows[:100]
def total(): return sum(r['values'][0] for r in rows)
"""
PICKLE = """
import pickle, time
def plain():
    began = time.perf_counter()
    pickle.dumps((rows, numbers, text, data, shared), 5)
    return (time.perf_counter() - began) * 1000
"""
ECHO = "import sys\nfor line in sys.stdin: eval(line); print(1, flush=True)\n"


async def cell(session: CodeSession, turn: Turn, code: str) -> Output:
    """One cell. Raises RuntimeError where it fails: a benchmark of failures measures nothing."""
    output = await session.run(ToolCall("t", "python", msgspec.json.encode({"code": code}).decode()), turn)
    if output.error is not None:
        raise RuntimeError(output.error)
    return output


class Bare:
    """Bubblewrap with the options of a session, and a Python that only starts."""

    def __init__(self, session: CodeSession) -> None:
        self._program = session.sandbox.program
        self._options = encode(session.sandbox.arguments())

    def run(self) -> None:
        descriptor = os.memfd_create("arguments")
        os.write(descriptor, self._options)
        os.lseek(descriptor, 0, os.SEEK_SET)
        try:
            python = [os.path.realpath(sys.executable), "-I", "-S", "-c", "pass"]
            command = [self._program, "--args", str(descriptor), "--", *python]
            subprocess.run(command, env={}, pass_fds=(descriptor,), stdin=subprocess.DEVNULL, check=True)
        finally:
            os.close(descriptor)


async def measure(rounds: int, samples: dict[str, list[float]]) -> None:
    def took(name: str, began: float) -> None:
        samples.setdefault(name, []).append((time.perf_counter() - began) * 1000)

    circle = Circle("code", ["done", "echo"], {"max_turns": 10})
    warm = await circle.medium.open(circle, "e_bench")
    assert isinstance(warm, CodeSession)
    turn = Turn(circle.wards)
    bare = Bare(warm)
    pipe = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", ECHO], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    )
    assert pipe.stdin is not None and pipe.stdout is not None
    await cell(warm, turn, "import time")
    try:
        for _ in range(rounds):
            began = time.perf_counter()
            pipe.stdin.write(b"1 + 1\n")
            pipe.stdout.readline()
            took("pipe", began)
            began = time.perf_counter()
            await cell(warm, turn, "1 + 1")
            took("warm", began)
        for _ in range(max(5, rounds // 5)):
            began = time.perf_counter()
            bare.run()
            took("bare", began)
            cold = await circle.medium.open(circle, "e_bench")
            assert isinstance(cold, CodeSession)
            began = time.perf_counter()
            await cell(cold, turn, "1 + 1")
            took("cold", began)
            await cold.close()
            spent = float(str((await cell(warm, turn, LOOP)).value))
            samples.setdefault("gate", []).append(spent * 1000 / CALLS)
        await cell(warm, turn, STATE + PICKLE)
        await warm.snapshot()
        for number in range(max(5, rounds // 5)):
            spent = float(str((await cell(warm, turn, f"rows[{number}]['name'] = 'changed'\nplain()")).value))
            samples.setdefault("pickle", []).append(spent)
            began = time.perf_counter()
            kept = await warm.snapshot(partial(took, "held", began))
            took("snapshot", began)
            samples.setdefault("size", []).append(kept.size / 1e6)
            samples.setdefault("written", []).append(kept.written / kept.size)
            other = await circle.medium.open(circle, "e_bench")
            assert isinstance(other, CodeSession)
            await cell(other, turn, "1")
            began = time.perf_counter()
            await other.restore(kept, warm.chunks)
            took("restore", began)
            await other.close()
    finally:
        pipe.kill()
        pipe.wait()
        await warm.close()


def run(options: Options) -> Table:
    samples: dict[str, list[float]] = {}
    anyio.run(measure, options.rounds(100), samples)
    base = row("bubblewrap and python -I -S -c pass, bare", samples["bare"], "ms")
    pipe = row("a line to a bare Python and back", samples["pipe"], "ms")
    plain = row("pickle.dumps of 1 MB, in the cell", samples["pickle"], "ms")
    size = f"{median(samples['size']):.2f} MB, {median(samples['written']):.0%} of it new"
    return Table(
        "code",
        "a cell of Python (`1 + 1`), its gates and its state",
        (
            base,
            row(
                "code turn, cold",
                samples["cold"],
                "ms",
                baseline=base,
                goal="<= 35 ms",
            ),
            pipe,
            row(
                "code turn, warm",
                samples["warm"],
                "ms",
                baseline=pipe,
                goal="<= 0.5 ms",
            ),
            row(
                "gate call from code",
                samples["gate"],
                "ms",
                baseline=pipe,
                goal="<= 0.3 ms",
                note=f"means of {CALLS} calls",
            ),
            plain,
            row(
                "snapshot of 1 MB, until the turn goes on",
                samples["held"],
                "ms",
                baseline=plain,
                goal="<= 20 ms",
                note=size,
            ),
            row(
                "the same until it is opened again and stored, beside the next query",
                samples["snapshot"],
                "ms",
                baseline=plain,
            ),
            row("restore of it, in a fresh worker", samples["restore"], "ms", baseline=plain),
        ),
    )
