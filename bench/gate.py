"""A gate call from the shell inside the sandbox, next to starting the same shell to do nothing.

Both are loops in one sandboxed command that times itself; the gate answers at once on the host, so what is measured is
the way there and back, a process for the gate's command included.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import anyio

from bench.measure import Table, row
from bench.options import Options
from bench.shell import shell

CALLS = 100
LOOP = f"""
loop() {{
  began=$(date +%s%N)
  n=0
  while [ $n -lt {CALLS} ]; do "$@" >/dev/null || exit 1; n=$((n + 1)); done
  echo $(( $(date +%s%N) - began ))
}}
loop /bin/sh -c :
loop cantrip_echo hello
"""


async def measure(rounds: int, samples: dict[str, list[float]]) -> None:
    with tempfile.TemporaryDirectory(prefix="cantrip-bench-") as folder:
        async with shell(Path(folder)) as medium:
            for _ in range(rounds):
                output = await medium.run(LOOP)
                floor, gate = (int(each) / 1e6 / CALLS for each in output.stdout.split())
                samples.setdefault("floor", []).append(floor)
                samples.setdefault("gate", []).append(gate)
            if medium.turn.calls != rounds * CALLS:
                raise RuntimeError(f"{rounds * CALLS} calls were made and {medium.turn.calls} arrived")


def run(options: Options) -> Table:
    samples: dict[str, list[float]] = {}
    anyio.run(measure, options.rounds(30), samples)
    base = row("sh -c :, inside the sandbox", samples["floor"], "ms")
    return Table(
        "gate",
        f"a gate call from the shell (means of {CALLS} calls)",
        (
            base,
            row(
                "cantrip_echo hello",
                samples["gate"],
                "ms",
                baseline=base,
                goal="<= 1.5 ms",
            ),
        ),
    )
