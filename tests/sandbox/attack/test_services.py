"""Services and the network that they share: what runs on is as confined as a command, and ends when its session ends.

The attacks of commands are tried again in a shared network, where a sandbox is started in namespaces that exist already.
"""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from unittest import mock

import anyio
import anyio.to_thread
import pytest

from cantrip_acp.gates.services import Place, Services
from cantrip_acp.gates.wards import Wards
from cantrip_acp.sandbox import Background, Sandbox, ensure_checked
from cantrip_acp.sandbox.launch import background, process_tree
from cantrip_acp.sandbox.launch.shared_network import SharedNetwork
from cantrip_acp.types.errors import GateError
from cantrip_acp.types.records import ServiceRecord
from tests.sandbox.attack import test_kernel, test_network, test_processes, test_unix_sockets
from tests.sandbox.attack.attack import Attack, control, held
from tests.sandbox.attack.attack_scene import Scene
from tests.sandbox.attack.weakened_sandbox import Defence, option
from tests.sandbox.integration.test_hostile import a_time

SHARED = [
    *(each for module in (test_network, test_unix_sockets, test_processes, test_kernel) for each in module.ATTACKS)
]


@pytest.fixture
def _shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each sandbox runs in a network that it could share with others."""
    run = Sandbox.run

    async def shared(self: Sandbox, *args: object, **options: object) -> object:
        await self.share_network(0)
        return await run(self, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Sandbox, "run", shared)


@pytest.mark.usefixtures("_shared")
@pytest.mark.parametrize("attack", SHARED, ids=lambda a: a.name)
async def test_held_in_a_shared_network(attack: Attack, scene: Scene) -> None:
    await held(attack, scene)


def _not_entered() -> Defence:
    """Bubblewrap is started where we are, and nobody looks. It keeps the network, which is then the machine's."""

    @contextlib.contextmanager
    def removed(scene: Scene) -> Iterator[None]:
        with (
            mock.patch.object(SharedNetwork, "enter"),
            mock.patch.object(SharedNetwork, "check"),
            mock.patch.object(Sandbox, "supervisor", None),
        ):
            yield

    return Defence("the namespaces that are entered", removed)


@pytest.mark.usefixtures("_shared")
async def test_control_of_a_shared_network(scene: Scene) -> None:
    attack = next(each for each in test_network.ATTACKS if each.name == "connect to this machine")
    assert await control(Attack(attack.name, attack.program, _not_entered(), host=attack.host), scene) is None


@pytest.mark.usefixtures("_shared")
async def test_a_sandbox_that_is_not_in_its_network_does_not_run(scene: Scene) -> None:
    with mock.patch.object(SharedNetwork, "enter"):
        outcome = await scene.run(Attack("none", "echo ran", option("--unshare-pid")))
    assert "ran" not in outcome.stdout
    assert outcome.ended_because is not None


@asynccontextmanager
async def services(scene: Scene, **wards: object) -> AsyncIterator[tuple[Services, Place, list[ServiceRecord]]]:
    """The services of an entity that works in the scene's workspace, and their records."""
    records: list[ServiceRecord] = []
    made = Services("e_1", records.append)
    found = Wards.of({"bash_writable_paths": ["workspace"], **wards}, base=scene.workspace)
    try:
        yield made, Place(found, scene.workspace, (), "c_1"), records
    finally:
        await made.close()


def alive(mark: str) -> list[int]:
    """The processes of the machine that are ``sleep MARK``."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{name}/cmdline").read_bytes() == f"sleep\0{mark}\0".encode():
                found.append(int(name))
    return found


async def until(condition: Callable[[], bool], seconds: float = 20) -> None:
    with anyio.fail_after(seconds):
        while not condition():
            await anyio.sleep(0.02)


STUBBORN = "trap '' TERM HUP INT; (setsid sh -c \"trap '' TERM HUP INT; exec sleep @T@\" &); exec sleep @T@"


async def test_what_forks_away_and_refuses_signals_ends(scene: Scene) -> None:
    mark = a_time("stubborn service")
    async with services(scene) as (made, place, records):
        await made.start(STUBBORN.replace("@T@", mark), "s", place)
        await until(lambda: len(alive(mark)) >= 2)
        before = time.monotonic()
        await made.close()
        assert time.monotonic() - before < 3
        assert alive(mark) == []
        assert records[-1].event == "end"


async def test_control_of_what_forks_away(scene: Scene) -> None:
    mark = a_time("stubborn service without its namespace")
    # The self-test would notice.
    await ensure_checked()
    with option("--unshare-pid").removed(scene):
        async with services(scene) as (made, place, _):
            await made.start(STUBBORN.replace("@T@", mark), "s", place)
            await until(lambda: len(alive(mark)) >= 2)
            await made.close()
            left = alive(mark)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left


KILLED = """
import asyncio, sys
from pathlib import Path
from cantrip_acp.gates.services import Place, Services
from cantrip_acp.gates.wards import Wards
async def main():
    folder = Path(sys.argv[1])
    made = Services("e_1", lambda record: None)
    wards = Wards.of({"bash_writable_paths": ["workspace"]}, base=folder)
    await made.start(sys.argv[2], "s", Place(wards, folder, (), "c_1"))
    print("ready", flush=True)
    await asyncio.sleep(1000)
asyncio.run(main())
"""
NAKED = """
import subprocess, sys, time
subprocess.Popen(sys.argv[2].split(), start_new_session=True, stdout=subprocess.DEVNULL)
print("ready", flush=True)
time.sleep(1000)
"""


@pytest.mark.parametrize("confined", [True, False])
async def test_nothing_outlives_a_killed_agent(scene: Scene, confined: bool) -> None:
    """The control is the same program without a sandbox: it survives."""
    mark = a_time(f"killed {confined}")
    command = STUBBORN.replace("@T@", mark) if confined else f"sleep {mark}"
    words = [sys.executable, "-c", KILLED if confined else NAKED, str(scene.workspace), command]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as agent:
        assert agent.stdout is not None
        assert agent.stdout.readline() == b"ready\n"
        await until(lambda: bool(alive(mark)))
        agent.kill()
    if confined:
        await until(lambda: alive(mark) == [])
        return
    await anyio.sleep(1)
    left = alive(mark)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left


async def test_a_thousand_services(scene: Scene) -> None:
    async with services(scene, max_services=3) as (made, place, records):
        refused = 0
        for _ in range(1000):
            try:
                await made.start("sleep 1000", None, place)
            except GateError:
                refused += 1
        assert (len(made.running), refused, len(records)) == (3, 997, 3)
    # The control: the ward alone stops the fourth.
    async with services(scene, max_services=4) as (made, place, _):
        for _ in range(4):
            await made.start("sleep 1000", None, place)
        assert len(made.running) == 4


async def test_many_short_services_leave_nothing(scene: Scene) -> None:
    async with services(scene) as (made, place, _):
        await made.start("true", "first", place)
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(60):
            await made.start("true", None, place)
        await until(lambda: made.shared is None)
        # Some are held by cycles of what has ended.
        gc.collect()
        assert len(os.listdir("/proc/self/fd")) <= before + 2
        assert len(made.all) <= 52


@pytest.mark.parametrize("slowed", [True, False])
async def test_a_flood_of_output_is_slowed_down(scene: Scene, slowed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = 0
    take = Background._on_output

    def count(self: Background, data: bytes) -> None:
        nonlocal seen
        seen += len(data)
        take(self, data)

    monkeypatch.setattr(Background, "_on_output", count)
    if not slowed:
        monkeypatch.setattr(background, "_MOST_A_SECOND", 10**12)
    async with services(scene) as (made, place, _):
        await made.start("yes flood", "s", place)
        await anyio.sleep(2)
        text = await made.read("s", 0, "")
        assert len(text) < 110_000
        assert "left out" in text or "shortened" in text
    assert (seen < 6 * background._MOST_A_SECOND) is slowed if slowed else seen > 40 * 1024 * 1024


@pytest.mark.parametrize("allowed", [False, True])
async def test_the_disk_is_not_filled(scene: Scene, allowed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    room = shutil.disk_usage(scene.workspace).free // 2**20
    monkeypatch.setenv("CANTRIP_MIN_FREE_MB", "0" if allowed else str(room - 60))
    async with services(scene) as (made, place, records):
        writer = "for i in 1 2 3 4 5 6; do head -c 50M /dev/zero > big$i; sleep 0.3; done"
        # Other programs may have filled the disk meanwhile: then it is ended at once.
        with contextlib.nullcontext() if allowed else contextlib.suppress(GateError):
            await made.start(writer, "s", place)
            await made.read("s", 60, "")
        (why,) = [each.why for each in records if each.event == "end"]
        assert ("exit status 0" in why) is allowed
        assert ("killed" in why) is not allowed


async def test_a_held_port_keeps_no_command_from_its_proxy(scene: Scene) -> None:
    holder = """
import socket, time
held = []
for address in ("127.0.0.1", "127.77.0.1"):
    for port in (53, 80, 443, 21128):
        made = socket.socket()
        try: made.bind((address, port))
        except PermissionError: continue
        made.listen(); held.append(made)
print("held", flush=True); time.sleep(1000)
"""
    (scene.workspace / "holder.py").write_text(holder)
    async with services(scene) as (made, place, _):
        await made.start("python3 holder.py", "s", place)
        assert "held" in await made.read("s", 20, "held")
        sandbox = Sandbox(scene.options(Attack("", "", option("--unshare-pid"))), scene.workspace, host=scene.host)
        sandbox.join(made.shared)
        outcome = await sandbox.run("curl -sS http://example.org/")
        assert "the network refuses example.org:80" in outcome.stdout


async def test_the_machines_loopback_is_not_reached(scene: Scene) -> None:
    port = scene.listener.getsockname()[1]
    reach = f"bash -c 'exec 3<>/dev/tcp/127.0.0.1/{port} && echo connected'; sleep 1000"
    async with services(scene) as (made, place, _):
        await made.start(reach, "s", place)
        assert "connected\n" not in await made.read("s", 2, "refused")
    # The control: with the machine's network it is.
    async with services(scene, bash_network=True) as (made, place, _):
        await made.start(reach, "s", place)
        assert "connected\n" in await made.read("s", 20, "connected")


async def test_a_command_and_a_service_are_apart_but_for_the_network(scene: Scene) -> None:
    """They see neither each other's processes nor temporary files, and reach each other's loopback."""
    mark = a_time("apart")
    async with services(scene) as (made, place, _):
        await made.start(f"echo x > /tmp/own; python3 -m http.server 3000 & exec sleep {mark}", "s", place)
        await until(lambda: bool(alive(mark)))
        (pid,) = alive(mark)
        sandbox = Sandbox(scene.options(Attack("", "", option("--unshare-pid"))), scene.workspace, host=scene.host)
        sandbox.join(made.shared)
        tries = f"kill -9 {pid}; ls /tmp/own; cat /proc/*/cmdline | grep -a {mark}; true"
        outcome = await sandbox.run(
            f"{tries}; for i in $(seq 100); do curl -sSf localhost:3000/README.md && break; sleep 0.1; done"
        )
        assert "A project." in outcome.stdout
        assert "/tmp/own\n" not in outcome.stdout
        assert alive(mark) == [pid]
        sandbox.join(None)
        outcome = await sandbox.run("curl -sS -m 3 localhost:3000/README.md")
        assert "A project." not in outcome.stdout


def test_no_process_of_our_own_namespace_is_signalled() -> None:
    """Of a sandbox without a process namespace, which there is not, that would be every process of the machine."""
    with mock.patch.object(signal, "pidfd_send_signal") as sent:
        process_tree.signal_others(signal.SIGTERM, os.getpid())
    assert not sent.called
