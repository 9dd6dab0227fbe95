"""Processes and environment: nothing of the host's is seen or touched, and nothing of a command's stays."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.sandbox.attack.attack import Attack, control, held
from tests.sandbox.attack.attack_scene import Scene
from tests.sandbox.attack.weakened_sandbox import calls, hidden_environment, option, options
from tests.sandbox.integration.test_hostile import a_time, alive

_PIDS = option("--unshare-pid")


def key(scene: Scene) -> None:
    os.environ["CANTRIP_ATTACK_KEY"] = scene.secret


def left(marker: str) -> object:
    def check(scene: Scene) -> bool:
        time.sleep(0.05)
        return bool(alive(a_time(marker)))

    return check


def descriptor(scene: Scene) -> None:
    scene.more_descriptor = os.open(scene.beside, os.O_RDONLY)  # type: ignore[attr-defined]
    os.set_inheritable(scene.more_descriptor, True)  # type: ignore[attr-defined]


ATTACKS = [
    Attack(
        "read the environment",
        'env | grep -q "@HALF@""@REST@" && broke read',
        hidden_environment(),
        prepare=key,
    ),
    Attack(
        "read the first process's environment",
        "tr '\\0' '\\n' < /proc/1/environ | grep -q '@HALF@''@REST@' && broke read",
        hidden_environment(),
        prepare=key,
    ),
    Attack(
        "read another process's environment",
        "cat /proc/@VICTIM@/environ | grep -q '@HALF@''@REST@' && broke read",
        _PIDS,
        outer="a process outside of this user namespace cannot be looked through, with or without its number",
    ),
    Attack(
        "see the machine's processes",
        "[ $(ls -d /proc/[0-9]* | wc -l) -gt 8 ] && broke sees",
        _PIDS,
    ),
    Attack("kill a process of the machine", "kill -9 @VICTIM@ && broke killed", _PIDS, host=Scene.victim_hurt),
    Attack("stop a process of the machine", "kill -STOP @VICTIM@ && broke stopped", _PIDS, host=Scene.victim_hurt),
    Attack(
        "change a process's priority", "renice -n 5 -p @VICTIM@ && broke reniced", _PIDS, host=Scene.victim_hurt,
        outer="the process has capabilities, as root's have, and so keeps its priority",
    ),
    Attack(
        "look through a process's files",
        "ls /proc/@VICTIM@/root/ /proc/@VICTIM@/cwd/ && broke sees",
        _PIDS,
        outer="a process outside of this user namespace cannot be looked through, with or without its number",
    ),
    Attack(
        "debug a process of the machine",
        "r, e = syscall(@PTRACE@, 16, @VICTIM@, 0, 0)\nif r == 0: broke('attached')",
        _PIDS,
        python=True,
        outer="a process outside of this user namespace cannot be attached to, with or without its number",
    ),
    Attack(
        "see what the machine is called",
        "[ \"$(uname -n)\" = sandbox ] || broke named $(uname -n)",
        option("--hostname", "sandbox"),
    ),
    Attack(
        "use the machine's shared memory segments",
        "ls -i /proc/self/ns/ipc -L | grep -q '^@IPC@ ' && broke same",
        option("--unshare-ipc"),
    ),
    Attack(
        "see the machine's control groups",
        "ls -i /proc/self/ns/cgroup -L | grep -q '^@CGROUP@ ' && broke same",
        option("--unshare-cgroup-try"),
    ),
    Attack(
        "outlive the command in a session of its own",
        f"setsid sleep {a_time('outlive')} >/dev/null 2>&1 </dev/null & sleep 0.1",
        _PIDS,
        host=left("outlive"),  # type: ignore[arg-type]
    ),
    Attack(
        "outlive the command by a double fork",
        f"(setsid sh -c 'trap \"\" TERM HUP INT; sleep {a_time('double')}' >/dev/null 2>&1 </dev/null &) ; sleep 0.1",
        _PIDS,
        host=left("double"),  # type: ignore[arg-type]
    ),
    Attack(
        "gain capabilities",
        "grep -q '^CapEff:.*[1-9a-f]' /proc/self/status && broke has",
        options("dropped capabilities", lambda args, _: _capable(args)),
    ),
    Attack(
        "a new user namespace with every capability",
        "libc.unshare(0x10000000)\nif 'CapEff:\\t0000000000000000' not in open('/proc/self/status').read(): broke('has')",
        calls("unshare"),
        python=True,
    ),
]  # fmt: skip


def _capable(args: list[str]) -> list[str]:
    at = args.index("--cap-drop")
    return [*args[:at], "--cap-add", "ALL", *args[at + 2 :]]


def _prepared(attack: Attack) -> Attack:
    from dataclasses import replace

    from tests.sandbox.attack.weakened_sandbox import number

    facts = {
        "@PTRACE@": str(number("ptrace")),
        "@IPC@": str(os.stat("/proc/self/ns/ipc").st_ino),
        "@CGROUP@": str(os.stat("/proc/self/ns/cgroup").st_ino),
    }
    program = attack.program
    for name, value in facts.items():
        program = program.replace(name, value)
    return replace(attack, program=program)


ATTACKS = [_prepared(attack) for attack in ATTACKS]


@pytest.fixture(autouse=True)
def _no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANTRIP_ATTACK_KEY", "")


@pytest.fixture
def _ends_what_it_started() -> object:
    """A control lets something live on: it is ended by its number, once it was found by the time that it alone sleeps."""
    yield
    for marker in ("outlive", "double"):
        for name in os.listdir("/proc"):
            try:
                line = Path(f"/proc/{name}/cmdline").read_bytes() if name.isdigit() else b""
            except OSError:
                continue
            if a_time(marker).encode() in line and int(name) != os.getpid():
                os.kill(int(name), 9)


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda a: a.name)
async def test_held(attack: Attack, scene: Scene) -> None:
    await held(attack, scene)


@pytest.mark.usefixtures("_ends_what_it_started")
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda a: a.name)
async def test_control(attack: Attack, scene: Scene) -> None:
    reason = await control(attack, scene)
    if reason is not None:
        pytest.skip(f"unprovable here: {reason}")
