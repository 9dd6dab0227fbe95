"""What each defence of the sandbox costs a command (`true`), each added to those before it.

The first rows are bubblewrap run bare by subprocess, with the medium's shell and more and more of the options that it uses;
the later ones run through `Sandbox`, with more and more of what it does around them. All take turns in the same run. A row's
note says what it adds to the row that it is compared with (difference of medians; below the noise it may be less than
nothing).
"""

from __future__ import annotations

import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from bench.bash import PAUSE
from bench.measure import Row, Table, row
from bench.options import Options
from cantrip_acp.gates.contract import Gate
from cantrip_acp.sandbox import GateWire, Policy, Sandbox, SandboxOptions, runtime
from cantrip_acp.sandbox.launch.bubblewrap import NAMESPACES, encode

BASE = "bubblewrap, the system's folders alone"
Step = tuple[str, str | None, Callable[[], Awaitable[None]]]
"""A name, the step that it is compared with, and what it does."""


def _bare(program: str, shell: str, options: list[str], filter_: bytes | None = None) -> Callable[[], Awaitable[None]]:
    data = encode(options)

    async def run() -> None:
        fds = []
        argv = [program]
        for option, content in (("--args", data), ("--seccomp", filter_)):
            if content is not None:
                fd = os.memfd_create("bench")
                os.write(fd, content)
                os.lseek(fd, 0, os.SEEK_SET)
                fds.append(fd)
                argv += [option, str(fd)]
        try:
            subprocess.run(
                [*argv, "--", shell, "-c", "true"], env={}, pass_fds=fds, stdin=subprocess.DEVNULL, check=True
            )
        finally:
            for fd in fds:
                os.close(fd)

    return run


def _folders(policy: Policy) -> list[str]:
    options = []
    for path, target in policy.system:
        options += ["--ro-bind", path, path] if target is None else ["--symlink", target, path]
    return options


def _through(sandbox: Sandbox, gates: bool = False) -> Callable[[], Awaitable[None]]:
    async def call(name: str, args: dict[str, Any]) -> tuple[object, bool]:
        return args, False

    async def run() -> None:
        outcome = await sandbox.run("true", call=call if gates else None)
        if outcome.exit_code != 0:
            raise RuntimeError(f"true ended with {outcome.exit_code}: {outcome.stderr or outcome.ended_because}")

    return run


def steps(workspace: Path, stack: ExitStack) -> list[Step]:
    closed = Sandbox(SandboxOptions(), workspace)
    policy, program = closed.policy(), closed.program
    namespaces = [*NAMESPACES, "--unshare-net", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    everything = closed.arguments()
    writable = SandboxOptions(bash_writable_paths=(str(workspace),))
    wire = GateWire({"echo": Gate.of(_echo)}, runtime().make_folder("wire"))
    stack.callback(wire.remove)
    listed = replace(writable, bash_network=("example.org",))
    return [
        ("the shell, no sandbox", None, partial(_shell, policy.shell)),
        (BASE, None, _bare(program, policy.shell, _folders(policy))),
        ("+ namespaces", BASE, _bare(program, policy.shell, [*namespaces, *_folders(policy)])),
        ("+ private /etc, /tmp, /dev, home; tools, workspace", "+ namespaces", _bare(program, policy.shell, everything)),
        (
            "+ system call filter",
            "+ private /etc, /tmp, /dev, home; tools, workspace",
            _bare(program, policy.shell, everything, closed.filter),
        ),
        ("+ held, limited, bounded, reaped by us", "+ system call filter", _through(closed)),
        ("+ a writable workspace: protected names, stand-ins", "+ held, limited, bounded, reaped by us",
         _through(Sandbox(writable, str(workspace)))),
        ("+ gates' wire", "+ a writable workspace: protected names, stand-ins",
         _through(Sandbox(writable, str(workspace), wire=wire), gates=True)),
        ("+ a list of hosts: door and proxy", "+ gates' wire",
         _through(Sandbox(listed, str(workspace), wire=wire), gates=True)),
    ]  # fmt: skip


def _echo(text: str) -> str:
    """Give it back."""
    return text


async def _shell(shell: str) -> None:
    subprocess.run([shell, "-c", "true"], env={}, stdin=subprocess.DEVNULL, check=True)


async def measure(rounds: int, samples: dict[str, list[float]]) -> list[tuple[str, str | None]]:
    with tempfile.TemporaryDirectory(prefix="cantrip-bench-") as base, ExitStack() as stack:
        found = steps(Path(base).resolve(), stack)
        for number in range(rounds + 1):
            for name, _, run in found:
                began = time.perf_counter()
                await run()
                if number:
                    # The first round prepares folders and arguments.
                    samples.setdefault(name, []).append((time.perf_counter() - began) * 1000)
                await anyio.sleep(PAUSE)
        return [(name, against) for name, against, _ in found]


def run(options: Options) -> Table:
    samples: dict[str, list[float]] = {}
    names = anyio.run(measure, options.rounds(60), samples)
    base = row(BASE, samples[BASE], "ms")
    rows: list[Row] = [base]
    for name, against in names:
        if name == BASE:
            continue
        added = ""
        if against is not None:
            added = f"{statistics.median(samples[name]) - statistics.median(samples[against]):+.2f} ms"
        rows.append(row(name, samples[name], "ms", baseline=base, note=added))
    return Table("defences", "what each defence costs a command (`true`)", tuple(rows))
