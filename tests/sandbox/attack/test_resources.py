"""Resources: a command takes its share of the machine and no more. Each bomb stays inside a limit first shown to hold."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import pytest

from cantrip_acp.sandbox.launch import command, sandbox
from cantrip_acp.sandbox.launch import limits as resource_limits
from cantrip_acp.sandbox.policy.policy import MIB
from tests.sandbox.attack.attack import BROKE, TRIED, Attack
from tests.sandbox.attack.attack_scene import Scene
from tests.sandbox.attack.weakened_sandbox import Defence, calls, limited, patched

_SMALL = {"memory": 150 * MIB, "temporary": 16 * MIB, "shared_memory": 8 * MIB, "file": 4 * MIB, "open_files": 64}
_WIDE = 400 * MIB


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits that are reached soon, so that nothing here takes much of the machine even if one does not hold."""
    compose = sandbox.compose

    def smaller(*args: object, **more: object) -> object:
        policy = compose(*args, **more)  # type: ignore[arg-type]
        return replace(policy, limits=replace(policy.limits, **_SMALL))

    monkeypatch.setattr(sandbox, "compose", smaller)


def sized(path: str, size: int) -> Defence:
    """A private file system with more room."""
    from tests.sandbox.attack.weakened_sandbox import options

    def edit(args: list[str], scene: Scene) -> list[str]:
        at = next(n for n in range(len(args)) if args[n] == "--tmpfs" and args[n + 1] == scene.fill(path))
        assert args[at - 2] == "--size"
        return [*args[: at - 1], str(size), *args[at:]]

    return options(f"the size of {path}", edit)


_ALONE = {"memory": _WIDE}
_HOLD = "x = bytearray(300_000_000); x[::4096] = b'y' * len(x[::4096])\nimport time; time.sleep(@HOLD@); broke('kept')"

_KERNEL = patched("the count of the kernel's own memory", resource_limits, "kernel_memory_used", lambda *_: 0)
_PAIRS = """
held = []
def pass_on(pair):
    # Both ends go into a third pair, which alone stays open.
    way = socket.socketpair()
    for end in pair:
        socket.send_fds(way[0], [b"x"], [end.fileno()]); end.close()
    held.extend(way)
# So many that several of these fit beside each other into what one user may have on its way.
for n in range(600):
    pair = socket.socketpair()
    for end in pair:
        end.setblocking(False)
        try:
            while True: end.send(bytes(32768))
        except BlockingIOError: pass
    held += pair
"""

ATTACKS = [
    Attack(
        "many processes",
        'for i in $(seq 60); do sleep 60 & done; sleep @HOLD@; [ "$(jobs -r | wc -l)" -ge 60 ] && broke forked',
        limited("the limit of processes", processes=512),
        wards={"sandbox_max_processes": 40},
        ends=True,
    ),
    Attack("a large memory", _HOLD, limited("the limit of memory", memory=2 * _WIDE), python=True, ends=True),
    Attack(
        "memory in many processes",
        "for n in range(6):\n    if os.fork() == 0:\n        x = bytearray(50_000_000); x[::4096] = b'y' * len(x[::4096])\n"
        "        time.sleep(@HOLD@ + 2); os._exit(0)\n"
        "time.sleep(@HOLD@); broke('kept')",
        limited("the limit of memory", memory=2 * _WIDE),
        python=True,
        ends=True,
    ),
    Attack(
        "memory in files that have no name",
        """
try:
    fds = [os.memfd_create("x") for n in range(60)]
    for fd in fds:
        for n in range(3): os.write(fd, bytes(1_000_000))
except OSError as error: print(error)
else: time.sleep(@HOLD@); broke("kept")
""",
        calls("memfd_create"),
        python=True,
        ends=True,
        outer="a control group counts it",
    ),
    Attack(
        "memory that processes share",
        "m = mmap.mmap(-1, 300_000_000)\nm[::4096] = b'y' * len(m[::4096])\ntime.sleep(@HOLD@); broke('kept')",
        limited("the limit of memory", memory=2 * _WIDE),
        python=True,
        ends=True,
    ),
    Attack(
        "memory in segments that outlive processes",
        """
libc.shmat.restype = ctypes.c_void_p
for n in range(30):
    segment = libc.shmget(0, 10_000_000, 0o1600)
    if segment < 0: break
    address = libc.shmat(segment, None, 0)
    ctypes.memset(address, 1, 10_000_000)
    libc.shmdt(ctypes.c_void_p(address))
else: time.sleep(@HOLD@); broke("kept")
""",
        calls("shmget"),
        python=True,
        ends=True,
        outer="a control group counts it",
    ),
    Attack(
        "memory of a process that cannot be looked at",
        "libc.prctl(4, 0)\n" + _HOLD,
        limited("the limit of memory", memory=2 * _WIDE),
        python=True,
        ends=True,
    ),
    Attack(
        "fill /tmp",
        "for n in 1 2 3 4 5 6; do head -c 3500000 /dev/zero > /tmp/$n || exit; done; broke filled",
        sized("/tmp", 64 * MIB),
        ends=True,
    ),
    Attack(
        "fill the home",
        "for n in 1 2 3 4 5 6; do head -c 3500000 /dev/zero > ~/$n || exit; done; broke filled",
        sized("@HOME@", 64 * MIB),
        ends=True,
    ),
    Attack(
        "fill /dev/shm",
        "for n in 1 2 3; do head -c 3500000 /dev/zero > /dev/shm/$n || exit; done; broke filled",
        sized("/dev/shm", 64 * MIB),
        ends=True,
    ),
    Attack(
        "many small files",
        "mkdir /tmp/d; cd /tmp/d; seq 400000 | xargs -n 5000 touch; sleep 0.5; broke kept",
        limited("the limit of memory", memory=8 * _WIDE),
        ends=True,
        outer="the private file system is out of records before the limit of memory is reached",
    ),
    Attack(
        "a large file on the machine's disk",
        "head -c 6M /dev/zero > big; [ $(stat -c %s big) -gt 5000000 ] && broke wrote",
        limited("the limit of a file's size", file=64 * MIB),
    ),
    Attack(
        "many open files",
        "held = []\ntry:\n    for n in range(100): held.append(os.open('/dev/null', 0))\nexcept OSError as e: print(e)\n"
        "else: broke('opened')",
        limited("the limit of open files", open_files=4096),
        python=True,
    ),
    Attack(
        "a core dump beside the program",
        "ulimit -c unlimited 2>/dev/null; [ \"$(ulimit -c)\" = 0 ] || broke allowed; sh -c 'kill -SEGV $$'",
        patched("the limit of core dumps", resource_limits, "apply", lambda *args, **more: None),
        outer="whoever started the tests allows no core dumps",
    ),
    Attack(
        "spin",
        "timeout 3 sh -c 'while :; do :; done'; broke spun",
        patched("the wall clock", sandbox.Running, "_on_timeout", lambda self: None),
        ends=True,
        timeout_ms=400,
    ),
    Attack(
        "hang with every signal ignored",
        "trap '' TERM INT HUP QUIT ALRM; sleep 2; sleep 1; broke waited",
        patched("the wall clock", sandbox.Running, "_on_timeout", lambda self: None),
        ends=True,
        timeout_ms=400,
    ),
    Attack(
        "flood the output",
        "head -c 3000000 /dev/zero | tr '\\0' 'x'",
        limited("the bound of output", output=8 * MIB),
        wards={"bash_max_output_bytes": 10_000},
        ends=True,
        host=lambda scene: scene.seen > 1_000_000,
    ),
    Attack(
        "flood the output with what grows when it is cleaned",
        "head -c 1000000 /dev/zero | tr '\\0' '\\377'",
        limited("the bound of output", output=8 * MIB),
        wards={"bash_max_output_bytes": 10_000},
        ends=True,
        host=lambda scene: scene.seen > 1_000_000,
    ),
]

UNCOUNTED = [
    Attack(
        "memory in tables of pages that hold nothing",
        """
memory = mmap.mmap(-1, 300 << 30, flags=mmap.MAP_PRIVATE | 0x4000, prot=mmap.PROT_READ)
try: memory.madvise(15)
except OSError: pass
for at in range(0, 300 << 30, 2 << 20): memory[at]
time.sleep(@HOLD@); broke("kept")
""",
        _KERNEL,
        python=True,
        ends=True,
    ),
    Attack(
        "memory in tables of many processes",
        """
for n in range(6):
    if os.fork() == 0:
        memory = mmap.mmap(-1, 60 << 30, flags=mmap.MAP_PRIVATE | 0x4000, prot=mmap.PROT_READ)
        try: memory.madvise(15)
        except OSError: pass
        for at in range(0, 60 << 30, 2 << 20): memory[at]
        time.sleep(@HOLD@ + 2); os._exit(0)
time.sleep(@HOLD@); broke("kept")
""",
        _KERNEL,
        python=True,
        ends=True,
    ),
    Attack(
        "memory that waits in sockets",
        _PAIRS + "time.sleep(@HOLD@); broke('kept')",
        _KERNEL,
        python=True,
        ends=True,
    ),
    Attack(
        "the same where the network is the machine's",
        _PAIRS + "time.sleep(@HOLD@); broke('kept')",
        _KERNEL,
        python=True,
        ends=True,
        wards={"bash_network": True},
    ),
    Attack(
        "memory in sockets that are on their way",
        _PAIRS.replace("held += pair", "pass_on(pair)") + "time.sleep(@HOLD@); broke('kept')",
        _KERNEL,
        python=True,
        ends=True,
    ),
]
"""What is in no process's count: tried without a control group, which counts it too."""


@pytest.fixture
def ungrouped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "control_groups", lambda: None)
    monkeypatch.setitem(_SMALL, "open_files", 4096)


@pytest.mark.usefixtures("ungrouped")
@pytest.mark.parametrize("attack", UNCOUNTED, ids=lambda a: a.name)
async def test_held_without_a_control_group(attack: Attack, scene: Scene) -> None:
    outcome = await scene.run(attack)
    assert not attack.succeeded(scene, outcome.stdout), outcome
    assert outcome.ended_because is not None
    assert "memory" in outcome.ended_because


@pytest.mark.usefixtures("ungrouped")
@pytest.mark.parametrize("attack", UNCOUNTED, ids=lambda a: a.name)
async def test_control_without_a_control_group(attack: Attack, scene: Scene) -> None:
    with attack.defence.removed(scene):
        outcome = await scene.run(attack)
    assert attack.succeeded(scene, outcome.stdout), outcome


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda a: a.name)
async def test_held(attack: Attack, scene: Scene) -> None:
    before = scene.picture()
    outcome = await scene.run(attack)
    scene.seen = len(outcome.stdout.encode())
    assert attack.ends or TRIED in outcome.stdout, outcome
    assert not attack.succeeded(scene, outcome.stdout), outcome.stdout[-1000:]
    scene.compare(before)


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda a: a.name)
async def test_control(attack: Attack, scene: Scene) -> None:
    with attack.defence.removed(scene):
        outcome = await scene.run(attack)
    scene.seen = len(outcome.stdout.encode())
    if not attack.succeeded(scene, outcome.stdout):
        assert attack.outer is not None, f"{outcome.stdout[-500:]} {outcome.stderr[-500:]} {outcome.ended_because}"
        pytest.skip(f"unprovable here: {attack.outer}")


async def test_a_fork_bomb(scene: Scene) -> None:
    """Inside the limit of processes that `many processes` showed to hold."""
    attack = Attack(
        "a fork bomb",
        ":(){ :|:& };:; sleep 0.5",
        limited("", processes=40),
        wards={"sandbox_max_processes": 40},
        ends=True,
        timeout_ms=3000,
    )
    before = scene.picture()
    outcome = await scene.run(attack)
    assert BROKE not in outcome.stdout
    scene.compare(before)
    with mock.patch.dict(scene.more):
        again = await scene.run(Attack("afterwards", "true", attack.defence))
    assert TRIED in again.stdout
