"""Set-user-id and set-group-id programs: what a command leaves in a writable folder must never run as us for who starts it.

As root, it would be a way to root for every user of the machine.
"""

from __future__ import annotations

import os
import stat
import tarfile
from collections.abc import Callable

import pytest

from cantrip_acp.sandbox.launch import seccomp
from tests.sandbox.attack.attack import Attack, control, held
from tests.sandbox.attack.attack_scene import Scene
from tests.sandbox.attack.weakened_sandbox import calls, number, option

_MACHINE = seccomp.MACHINES[os.uname().machine].numbers
CHMOD = calls(*(n for n in ("chmod", "fchmod", "fchmodat", "fchmodat2") if n in _MACHINE))
OPEN = calls(*(n for n in ("open", "openat", "openat2", "creat") if n in _MACHINE))
MAKE = calls(*(n for n in ("mknod", "mknodat") if n in _MACHINE))
_WORDS = "import stat\npath = 'planted'\n"
_DONE = "\nif os.path.exists(path) and os.stat(path).st_mode & 0o6000: broke(oct(os.stat(path).st_mode))"


def planted(scene: Scene) -> bool:
    """Whether the workspace holds a file or folder with such a bit, seen from the host."""
    return any(
        os.lstat(os.path.join(folder, name)).st_mode & (stat.S_ISUID | stat.S_ISGID)
        for folder, folders, files in os.walk(scene.workspace)
        for name in (*folders, *files)
    )


def call(name: str, arguments: str, before: str = "", outer: str | None = None) -> Attack:
    """One system call with a mode that it must not have; ``before`` is Python that readies it."""
    program = f"{_WORDS}{before}\nprint(syscall({number(name)}, {arguments})){_DONE}"
    return Attack(f"call {name}", program, calls(name), python=True, host=planted, outer=outer)


_FILE = "open(path, 'w').close(); os.chmod(path, 0o755)"
_OPENED = f"{_FILE}; fd = os.open(path, 0)"

_HOW = "how = struct.pack('QQQ', 0o101, 0o4755, 0)"


def archived(scene: Scene) -> None:
    """An archive that somebody else made, with a program that asks for the bit."""
    with tarfile.open(scene.workspace / "a.tar", "w") as archive:
        member = tarfile.TarInfo("planted")
        member.mode = 0o4755
        archive.addfile(member)


ATTACKS = [
    Attack("chmod u+s", "cp /bin/true planted; chmod u+s planted && broke set", CHMOD, host=planted),
    Attack("chmod 2755", "cp /bin/true planted; chmod 2755 planted && broke set", CHMOD, host=planted),
    Attack("install -m 4755", "install -m 4755 /bin/true planted && broke set", CHMOD, host=planted),
    Attack("a folder that hands on its group", "mkdir planted; chmod g+s planted && broke set", CHMOD, host=planted),
    Attack("unpack with permissions", "tar xpf a.tar && broke set", CHMOD, host=planted, prepare=archived),
    Attack(
        "a copy that keeps permissions",
        "cp /bin/true /tmp/p; chmod 4755 /tmp/p; cp -p /tmp/p planted && [ -u planted ] && broke set",
        CHMOD,
        host=planted,
    ),
    Attack("a program that was made elsewhere inside", "cp /bin/true ~/p; chmod 6755 ~/p && broke set", CHMOD),
    Attack("by Python", f"{_WORDS}{_FILE}\ntry: os.chmod(path, 0o4755)\nexcept OSError as e: print(e){_DONE}", CHMOD,
           python=True, host=planted),
    Attack(
        "a file made with it",
        f"{_WORDS}try: os.open(path, os.O_CREAT | os.O_WRONLY, 0o4755)\nexcept OSError as e: print(e){_DONE}",
        OPEN,
        python=True,
        host=planted,
    ),
    Attack(
        "a file without a name, named afterwards",
        _WORDS + """
try:
    fd = os.open(".", os.O_TMPFILE | os.O_WRONLY, 0o4755)
    print(libc.linkat(-100, b"/proc/self/fd/%d" % fd, -100, b"planted", 0x400), ctypes.get_errno())
except OSError as e: print(e)
""" + _DONE,
        OPEN,
        python=True,
        host=planted,
        outer="this file system has no files without a name, or does not let them be named",
    ),
    Attack(
        "a file made as a device is",
        f"{_WORDS}try: os.mknod(path, 0o104755)\nexcept OSError as e: print(e){_DONE}",
        MAKE,
        python=True,
        host=planted,
    ),
    call("fchmod", "fd, 0o4755", _OPENED),
    call("fchmodat", "-100, b'planted', 0o4755", _FILE),
    call("fchmodat2", "-100, b'planted', 0o4755, 0", _FILE, "this kernel does not have it"),
    call("openat", "-100, b'planted', 0o101, 0o2755"),
    call("openat2", "-100, b'planted', how, 24", _HOW),
    call("mknodat", "-100, b'planted', 0o104755, 0"),
    Attack("call mkdirat", f"{_WORDS}back, error = syscall({number('mkdirat')}, -100, b'planted', 0o2755)\n"
           "if back == 0: broke('made')", calls("mkdirat"), python=True),
    Attack(
        "capabilities of a file",
        "cp /bin/true planted; setcap cap_dac_override+ep planted && broke set; python3 -c \"import os; os.setxattr("
        "'planted', 'security.capability', bytes.fromhex('0100000202000000000000000000000000000000'))\" && broke set",
        option("--cap-drop", "ALL"),
        outer="a user namespace's capabilities are not the machine's",
    ),
]  # fmt: skip

if "chmod" in _MACHINE:
    ATTACKS += [
        call("chmod", "b'planted', 0o4755", _FILE),
        call("open", "b'planted', 0o101, 0o4755"),
        call("creat", "b'planted', 0o4755"),
        call("mknod", "b'planted', 0o104755, 0"),
        Attack("call mkdir", f"{_WORDS}back, error = syscall({number('mkdir')}, b'planted', 0o2755)\n"
               "if back == 0: broke('made')", calls("mkdir"), python=True),
    ]  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda a: a.name)
async def test_held(attack: Attack, scene: Scene) -> None:
    await held(attack, scene)


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda a: a.name)
async def test_control(attack: Attack, scene: Scene) -> None:
    reason = await control(attack, scene)
    if reason is not None:
        pytest.skip(f"unprovable here: {reason}")


def had(mode: int) -> Callable[[Scene], None]:
    def prepare(scene: Scene) -> None:
        (scene.workspace / "planted").write_bytes(b"#!/bin/sh\n" * 1000)
        (scene.workspace / "planted").chmod(mode)

    return prepare


async def test_a_file_that_had_the_bit_loses_it_with_its_content(scene: Scene) -> None:
    """The kernel's own rule, which needs the capabilities dropped."""
    had(0o6755)(scene)
    program = """
with open("planted", "r+b") as file: file.write(b"evil")
if os.stat("planted").st_mode & 0o6000: broke("kept")
"""
    outcome = await scene.run(Attack("write", program, CHMOD, python=True))
    assert (scene.workspace / "planted").read_bytes().startswith(b"evil"), outcome
    assert not planted(scene)
