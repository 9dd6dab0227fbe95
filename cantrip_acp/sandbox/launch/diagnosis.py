"""What of a sandbox works on a machine, for `cantrip doctor`: the program, the filter, the self-test and the limits."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

import anyio

from cantrip_acp.sandbox.launch import availability, causes, control_groups, limits, sandbox, seccomp, self_test
from cantrip_acp.sandbox.launch.causes import Facts
from cantrip_acp.sandbox.launch.runtime_dir import base_folder as base_folder
from cantrip_acp.types.errors import CantripError, SandboxMissing


class Finding(NamedTuple):
    """One check. ``state``: ``ok``, ``note`` (works, but not fully) or ``missing``. ``mend``: how to mend it."""

    name: str
    state: str
    text: str
    mend: str | None = None


def findings() -> Iterator[Finding]:
    """Check this machine. Runs an event loop of its own, and the attacks of the self-test in a sandbox."""
    yield Finding("machine", "ok", f"outer limits: {Facts.of_this_machine().describe()}")
    yield from _sandbox()
    yield from _limits()


def _sandbox() -> Iterator[Finding]:
    try:
        program = availability.find_program()
    except SandboxMissing as error:
        yield _missing("sandbox", error)
        return
    if availability.back_end() == "seatbelt":
        yield Finding("sandbox.program", "ok", f"sandbox-exec ({program})")
        yield from _self_test()
        return
    version = availability.version(program)
    shown = ".".join(map(str, version)) or "of unknown version"
    if version and version < (0, 8):
        yield Finding("sandbox.bubblewrap", "missing", f"bubblewrap {shown} ({program})", causes.OLD.mend)
        return
    yield Finding("sandbox.bubblewrap", "ok", f"bubblewrap {shown} ({program})")
    machine = os.uname().machine
    if machine not in seccomp.MACHINES:
        cause = seccomp.unknown_architecture(machine)
        yield Finding("sandbox.seccomp", "missing", cause.text, cause.mend)
        return
    size = len(seccomp.program(machine)) // 8
    yield Finding("sandbox.seccomp", "ok", f"system call filter for {machine}, {size} instructions")
    yield from _self_test()


def _self_test() -> Iterator[Finding]:

    try:
        results = anyio.run(self_test.run_attacks)
    except SandboxMissing as error:
        yield _missing("sandbox", error)
        return
    except CantripError as error:
        yield Finding("sandbox", "missing", str(error), "See `cantrip sandbox policy` for what was asked for.")
        return
    for result in results:
        if result.held:
            yield Finding(f"sandbox.{result.name}", "ok", result.text)
        else:
            mend = "Do not run commands here; please report this with the output of `cantrip sandbox policy`."
            yield Finding(f"sandbox.{result.name}", "missing", f"this is NOT true here: {result.text}", mend)
    try:
        anyio.run(self_test.check_network_list)
        text = "the filtering proxy works: with a list of hosts in bash_network, only these hosts can be reached"
        yield Finding("sandbox.hosts", "ok", text)
    except CantripError as error:
        mend = "Use `bash_network: false` or `true` on this machine. A list of hosts is refused."
        yield Finding("sandbox.hosts", "note", str(error), mend)


def _missing(name: str, error: SandboxMissing) -> Finding:
    return Finding(name, "missing", str(error).removesuffix(error.mend or "").rstrip(), error.mend)


def _limits() -> Iterator[Finding]:
    if availability.back_end() == "seatbelt":
        yield Finding("limits", "ok", "CPU, file size and open files of each process are limited by the kernel")
        yield Finding(
            "limits.memory", "note", "memory, processes and private folders of commands are limited by a watchdog"
        )
        return
    yield Finding("limits", "ok", "time, CPU, file size and open files of commands are limited by the kernel")
    late = int(1000 * (limits.FIRST_CHECK + limits.CHECK_INTERVAL))
    group = sandbox.control_groups()
    if control_groups.limits_memory(group):
        yield Finding(
            "limits.group", "ok", f"memory and processes of commands are limited by control groups in {group}"
        )
        return
    yield Finding(
        "limits.memory",
        "note",
        "no control group is delegated to this user, so a watchdog ends a command that uses too much memory. It can be up "
        f"to {late} ms late",
        "Start the agent in a systemd user session. Then the kernel enforces the limit.",
    )
    if group is not None:
        yield Finding("limits.processes", "ok", f"processes of commands are limited by control groups in {group}")
    elif os.getuid() == 0:
        yield Finding(
            "limits.processes",
            "note",
            "the kernel does not count the processes of root, so a watchdog ends a command that exceeds "
            f"sandbox_max_processes. It can be up to {late} ms late",
            "Run as an ordinary user. Then the kernel enforces the limit.",
        )
    else:
        yield Finding("limits.processes", "ok", "the kernel enforces sandbox_max_processes")
