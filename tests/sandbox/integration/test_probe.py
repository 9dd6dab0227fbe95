"""Why there is no sandbox: the causes are told apart, each with its own mend."""

from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from cantrip_acp.sandbox import Sandbox, SandboxOptions
from cantrip_acp.sandbox.launch import availability, seccomp
from cantrip_acp.types.errors import SandboxMissing

ROOT = Path(__file__).parents[3]
_OUTER = """
import os, subprocess, sys
setup, *command = sys.argv[1:]
exec(setup)
os.execv(command[0], command)
"""


@dataclass(frozen=True)
class Outer:
    """An outer sandbox that limits what runs inside as a container does.

    ``options``: further options of bubblewrap. ``setup``: Python that runs in it before the doctor. ``cause``, ``mend``:
    what the doctor must say. With cause "" the same outer sandbox without the limit: there a sandbox must work.
    """

    options: tuple[str, ...] = ()
    setup: str = ""
    cause: str = ""
    mend: str = ""
    denied: tuple[str, ...] = ()


_ADMIN = ("--cap-add", "ALL")
OUTER = {
    "no limit": Outer(_ADMIN),
    "filter like Docker's": Outer(
        ("--ro-bind-data", "EMPTY", "/.dockerenv"),
        cause="system call filter of the container forbids new namespaces",
        mend="docker run --security-opt seccomp=unconfined IMAGE",
        denied=("unshare", "mount", "umount2", "pivot_root", "setns", "clone"),
    ),
    "covered /proc like Podman's": Outer(
        (*_ADMIN, "--ro-bind-data", "EMPTY", "/run/.containerenv", "--ro-bind", "/dev/null", "/proc/cmdline"),
        cause="the container covers parts of /proc (/proc/cmdline, …)",
        mend="podman run --security-opt unmask=ALL IMAGE",
    ),
    "namespaces switched off": Outer(
        _ADMIN,
        setup="open('/proc/sys/user/max_user_namespaces', 'w').write('0')",
        cause="user.max_user_namespaces=0",
        mend="echo user.max_user_namespaces=15000 | sudo tee /etc/sysctl.d/60-cantrip.conf && sudo sysctl --system",
    ),
    "chroot": Outer(
        _ADMIN,
        setup="os.chroot('/jail'); os.chdir('/')",
        cause="runs in a chroot",
        mend="sudo unshare --mount",
    ),
}


@pytest.mark.parametrize("name", OUTER)
def test_doctor_in_an_outer_sandbox_names_the_limit(name: str, workspace: Path) -> None:
    """The limits of containers, made here for real. An editor that sandboxes its agents leaves no room for ours: nothing runs."""
    outer = OUTER[name]
    shown = [w for p in dict.fromkeys((sys.prefix, sys.base_prefix, str(ROOT))) for w in ("--ro-bind", p, p)]
    system = ["--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin", "--symlink", "usr/lib", "/lib", "--symlink",
              "usr/lib64", "/lib64", "--ro-bind", "/etc", "/etc", "--bind", "/proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp",
              *shown]  # fmt: skip
    if name == "chroot":
        paths = {"--ro-bind": 2, "--bind": 2, "--symlink": 2, "--dev": 1, "--tmpfs": 1}
        words = iter(system)
        inner = []
        for word in words:
            operands = [next(words) for _ in range(paths[word])]
            inner += [word, *operands[:-1], f"/jail{operands[-1]}"]
        system += inner
    with tempfile.TemporaryFile() as empty, tempfile.TemporaryFile() as calls:
        options = [str(empty.fileno()) if word == "EMPTY" else word for word in outer.options]
        if outer.denied:
            calls.write(_denying(outer.denied))
            calls.seek(0)
            options += ["--seccomp", str(calls.fileno())]
        done = subprocess.run(
            ["bwrap", "--unshare-user", "--uid", "0", *system, *options, "--chdir", str(ROOT),
             "--setenv", "CANTRIP_STATE_DIR", "/tmp/state",
             sys.executable, "-c", _OUTER, outer.setup, sys.executable, "-m", "cantrip_acp.cli.main", "doctor", "--json"],
            capture_output=True, text=True, timeout=60, check=False, pass_fds=(empty.fileno(), calls.fileno()),
        )  # fmt: skip
    assert done.stdout, done.stderr
    found = {f["name"]: f for f in json.loads(done.stdout)["findings"]}
    if not outer.cause:
        assert done.returncode == 0, found
        return
    assert done.returncode == 3
    assert outer.cause in found["sandbox"]["text"]
    assert f"`{outer.mend}" in found["sandbox"]["mend"]


def _denying(names: tuple[str, ...]) -> bytes:
    """A filter that denies these calls, and of clone only new namespaces, as that of Docker does."""
    numbers = seccomp.MACHINES[os.uname().machine].numbers
    out = [(0x20, 0, 0, 0)]
    for call in names:
        deny = [(0x20, 0, 0, 16), (0x45, 0, 1, seccomp.NEW_NAMESPACES)] if call == "clone" else []
        block = [*deny, (0x06, 0, 0, 0x50000 | errno.EPERM), *([(0x06, 0, 0, seccomp.ALLOW)] if deny else [])]
        out += [(0x15, 0, len(block), numbers[call]), *block]
    return seccomp.assemble([*out, (0x06, 0, 0, seccomp.ALLOW)])


async def test_a_back_end_that_fails_is_no_result(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its words are not the command's output, and the command did not run."""
    fake = workspace / "bwrap"
    fake.write_text("#!/bin/sh\necho 'bwrap: setting up uid map: Permission denied' >&2\nexit 1\n")
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(availability.find_bubblewrap, "__defaults__", (str(workspace),))
    with pytest.raises(SandboxMissing):
        await Sandbox(SandboxOptions(), None).run("echo hi")


def test_bubblewrap_is_not_taken_from_path(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PATH may begin with a folder that a command can write."""
    fake = workspace / "bwrap"
    fake.write_text("#!/bin/sh\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(workspace))
    assert availability.find_bubblewrap() != str(fake)
