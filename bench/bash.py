"""A bash turn through the medium, next to the same bubblewrap options run bare.

The command is `true`. Bare means: the very arguments that the medium gives to bubblewrap, system call filter and shell
included, handed over in the same way (by descriptors, in an empty environment), by subprocess and nothing else. Bare with
/bin/sh and no filter, and a shell without any sandbox, are there for the scale.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from pathlib import Path

import anyio

from bench.measure import Table, row
from bench.options import Options
from bench.shell import circle, shell
from cantrip_acp.gates.sandbox_options import sandbox_options
from cantrip_acp.sandbox import Sandbox
from cantrip_acp.sandbox.launch.bubblewrap import encode

PAUSE = 0.03
"""Seconds between two measurements: the kernel takes namespaces apart after their process has ended, and making the next
ones waits for that. Turns of an entity are further apart than this, since a model speaks in between."""


class Bare:
    """The options of a sandbox over a workspace of its own, run without us."""

    def __init__(self, workspace: Path) -> None:
        made = Sandbox(sandbox_options(circle(workspace).wards), workspace)
        self._program = made.program
        self._options = encode(made.arguments())
        self._filter = made.filter
        self._shell = made.policy().shell

    def run(self, *, plain: bool = False) -> None:
        """Run `true`; ``plain``: by /bin/sh, and without the filter."""
        given = {"--args": self._options} if plain else {"--args": self._options, "--seccomp": self._filter}
        command, descriptors = [self._program], []
        try:
            for option, data in given.items():
                descriptors.append(os.memfd_create("bench"))
                os.write(descriptors[-1], data)
                os.lseek(descriptors[-1], 0, os.SEEK_SET)
                command += [option, str(descriptors[-1])]
            command += ["--", "/bin/sh" if plain else self._shell, "-c", "true"]
            subprocess.run(command, env={}, pass_fds=descriptors, stdin=subprocess.DEVNULL, check=True)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)


async def measure(rounds: int, samples: dict[str, list[float]]) -> None:
    with tempfile.TemporaryDirectory(prefix="cantrip-bench-") as base:
        ours, theirs = Path(base) / "ours", Path(base) / "bare"
        ours.mkdir()
        theirs.mkdir()
        bare = Bare(theirs)
        async with shell(ours) as medium:
            for number in range(rounds + 1):
                began = time.perf_counter()
                subprocess.run(["/bin/sh", "-c", "true"], env={}, stdin=subprocess.DEVNULL, check=True)
                samples.setdefault("sh", []).append((time.perf_counter() - began) * 1000)
                await anyio.sleep(PAUSE)
                began = time.perf_counter()
                bare.run()
                samples.setdefault("bare", []).append((time.perf_counter() - began) * 1000)
                await anyio.sleep(PAUSE)
                began = time.perf_counter()
                bare.run(plain=True)
                samples.setdefault("plain", []).append((time.perf_counter() - began) * 1000)
                await anyio.sleep(PAUSE)
                began = time.perf_counter()
                await medium.run("true")
                # The first turn of an entity prepares its folders; it has a row of its own.
                name = "turn" if number else "first"
                samples.setdefault(name, []).append((time.perf_counter() - began) * 1000)
                await anyio.sleep(PAUSE)


def run(options: Options) -> Table:
    samples: dict[str, list[float]] = {}
    for _ in range(5):
        anyio.run(measure, options.rounds(60), samples)
    base = row("the same bubblewrap arguments, bare", samples["bare"], "ms")
    return Table(
        "bash",
        "one bash turn (`true`)",
        (
            base,
            row(
                "cantrip-acp bash medium",
                samples["turn"],
                "ms",
                baseline=base,
                goal="<= 1.5 x bare",
            ),
            row("cantrip-acp: an entity's first turn", samples["first"], "ms", baseline=base),
            row("bare, by /bin/sh and without the filter", samples["plain"], "ms", baseline=base),
            row("/bin/sh -c true, no sandbox", samples["sh"], "ms", baseline=base),
        ),
    )
