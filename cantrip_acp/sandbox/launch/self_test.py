"""Self-test: small attacks that the sandbox must stop, each with a control that shows that the attack works outside.

They run in one real sandbox over a folder of test files: readable files must be readable, others must not. They run
once per process before the first command or cell, and in `cantrip doctor`.
"""

from __future__ import annotations

import os
import shlex
import socket
from dataclasses import dataclass

from cantrip_acp.core.errors import SandboxError, SandboxMissing
from cantrip_acp.core.wards import Wards
from cantrip_acp.files.temporary import TemporaryFolder
from cantrip_acp.sandbox.launch.sandbox import Sandbox


@dataclass(frozen=True, slots=True)
class Result:
    """One attack, and whether the sandbox stopped it."""

    name: str
    text: str
    held: bool


_SCRIPT = r"""
say() { if [ "$2" = 0 ]; then echo "$1 yes"; else echo "$1 no"; fi; }
[ "$(cat control)" = control ]; say read_control $?
(echo written > out/file) 2>/dev/null; say write_control $?
grep -qs HOME= /proc/self/environ; say environment_control $?
cat /proc/self/cmdline | cmp -s - control; [ $? = 1 ]; say processes_control $?
grep -qs 'sl *local_address' /proc/net/tcp; say network_control $?
grep -qs '^Seccomp:.*2' /proc/self/status; say filter_control $?
chmod 700 out/file 2>/dev/null; say mode_control $?
chmod u+s out/file 2>/dev/null; say set_id $?
cat @BAIT@ >/dev/null 2>&1; say read_outside $?
(mkdir -p @FOLDER@; echo x > @FOLDER@/outside) 2>/dev/null
(echo x > /usr/cantrip-canary) 2>/dev/null; say write_outside $?
(echo x > file) 2>/dev/null; say write_readable $?
(mkdir -p out/.git && echo x > out/.git/config) 2>/dev/null; say make_git $?
grep -qs CANTRIP_CANARY /proc/1/environ /proc/self/environ; say environment $?
cat /proc/@PID@/cmdline 2>/dev/null | cmp -s - cmdline; say processes $?
grep -qs ':@HEX@ 0*:0000 0A' /proc/net/tcp || (exec 3<>/dev/tcp/127.0.0.1/@PORT@) 2>/dev/null; say network $?
unshare -U true 2>/dev/null; say namespaces $?
(echo 0 > /proc/sys/kernel/panic) 2>/dev/null; say kernel $?
"""

_TEXTS = {
    "read_outside": "files outside of the workspace cannot be read",
    "write_outside": "files outside of the workspace cannot be written",
    "write_readable": "the workspace can be written where the wards say so alone",
    "make_git": "git's own folder cannot be made where there is none",
    "environment": "the environment of this process cannot be seen",
    "processes": "processes of this machine cannot be seen",
    "network": "there is no network, not even to this machine",
    "namespaces": "no further namespaces can be made",
    "kernel": "kernel settings cannot be written",
    "set_id": "no program is left that runs as this user for others",
}


async def attempt() -> list[Result]:
    """Try all attacks. Raises `SandboxMissing` where there is no sandbox, `SandboxError` where the controls fail."""
    bait = _Bait()
    try:
        wards = Wards(bash_writable_paths=(bait.out,), bash_timeout_ms=20_000)
        outcome = await Sandbox(wards, bait.workspace).run(bait.script())
        seen = dict(line.split() for line in outcome.stdout.splitlines() if len(line.split()) == 2)
        failed = [name for name in _CONTROLS if seen.get(f"{name}_control") != "yes"]
        if failed:
            words = outcome.stderr.strip() or outcome.ended_because or f"status {outcome.exit_code}"
            raise SandboxError(f"a command in the sandbox could not do what it may ({', '.join(failed)}): {words}")
        results = [Result(name, text, seen.get(name) == "no") for name, text in _TEXTS.items()]
        return [*results, Result("host", "nothing was left on this machine but what may be written", bait.untouched())]
    finally:
        bait.remove()


async def require() -> None:
    """Raise `SandboxMissing` unless a sandbox works here and stops every attack."""
    try:
        results = await attempt()
    except SandboxMissing:
        raise
    except (SandboxError, OSError) as error:
        raise SandboxMissing(f"the sandbox could not be tried: {error}") from error
    broken = [result.text for result in results if not result.held]
    if broken:
        raise SandboxMissing(
            f"a sandbox was made, but it does not hold on this machine. What was tried shows that this is NOT so: "
            f"{'; '.join(broken)}.",
            mend="Run `cantrip doctor` for all that was tried, and report it with the output of `cantrip sandbox policy`.",
        )


_CONTROLS = ("read", "write", "mode", "environment", "processes", "network", "filter")
"""What must succeed inside, so that a failed attack means something: allowed reads and writes, and the kernel files
that the attacks look at.
"""


class _Bait:
    """A folder with a file to read, a folder to write, and a file that must not be touched."""

    def __init__(self) -> None:
        self._temporary = TemporaryFolder("cantrip-canary-")
        self.folder = self._temporary.path
        self.workspace = os.path.join(self.folder, "workspace")
        self.out = os.path.join(self.workspace, "out")
        os.makedirs(self.out)
        for path, data in (
            (f"{self.workspace}/control", b"control"),
            (f"{self.workspace}/cmdline", _command_line()),
            (f"{self.folder}/bait", b"secret"),
        ):
            with open(path, "wb") as file:
                file.write(data)
        self._listener = socket.create_server(("127.0.0.1", 0))
        os.environ["CANTRIP_CANARY"] = "1"
        self._prove()

    def _prove(self) -> None:
        """Do outside of the sandbox each thing that must fail inside. Raises `SandboxError` where that is not
        possible."""
        with open(f"{self.folder}/bait", encoding="ascii") as file:
            bait = file.read()
        os.mkdir(f"{self.folder}/outside")
        os.rmdir(f"{self.folder}/outside")
        with socket.create_connection(self._listener.getsockname(), timeout=5):
            self._listener.accept()[0].close()
        if bait != "secret":
            raise SandboxError(
                "the bait cannot be read outside of the sandbox either, so its protection cannot be shown"
            )

    def script(self) -> str:
        values = {
            "@BAIT@": shlex.quote(f"{self.folder}/bait"),
            "@FOLDER@": shlex.quote(self.folder),
            "@PORT@": str(self._listener.getsockname()[1]),
            "@HEX@": f"{self._listener.getsockname()[1]:04X}",
            "@PID@": str(os.getpid()),
        }
        script = _SCRIPT
        for name, value in values.items():
            script = script.replace(name, value)
        return script

    def untouched(self) -> bool:
        left = os.listdir(self.out), sorted(os.listdir(self.workspace)), sorted(os.listdir(self.folder))
        return left == (["file"], ["cmdline", "control", "out"], ["bait", "workspace"])

    def remove(self) -> None:
        self._listener.close()
        os.environ.pop("CANTRIP_CANARY", None)
        self._temporary.close()


def _command_line() -> bytes:
    """This process's command line, which any process on this machine can read."""
    try:
        with open("/proc/self/cmdline", "rb") as file:
            return file.read()
    except OSError as error:
        raise SandboxError(f"/proc cannot be read here: {error.strerror}") from error
