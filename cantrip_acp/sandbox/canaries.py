"""Small attacks that the sandbox must stop, each with a control that shows the attack itself works.

They run in one real sandbox over a bait folder of our own: what is readable must be read, what is not must not be.
"""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import tempfile
from dataclasses import dataclass

from cantrip_acp.errors import SandboxError
from cantrip_acp.sandbox.runner import Sandbox
from cantrip_acp.wards import Wards


@dataclass(frozen=True, slots=True)
class Result:
    """What was tried, and whether the sandbox held."""

    name: str
    text: str
    held: bool


_SCRIPT = r"""
say() { if [ "$2" = 0 ]; then echo "$1 yes"; else echo "$1 no"; fi; }
[ "$(cat control)" = control ]; say read_control $?
(echo written > out/file) 2>/dev/null; say write_control $?
cat @BAIT@ >/dev/null 2>&1; say read_outside $?
(mkdir -p @FOLDER@; echo x > @FOLDER@/outside) 2>/dev/null
(echo x > /usr/cantrip-canary) 2>/dev/null; say write_outside $?
(echo x > file) 2>/dev/null; say write_readable $?
mkdir out/.git 2>/dev/null; say make_git $?
tr '\0' '\n' </proc/1/environ 2>/dev/null | grep -q CANTRIP_CANARY; say environment $?
grep -qs 'cantrip-[s]entinel' /proc/[0-9]*/cmdline; say processes $?
(exec 3<>/dev/tcp/127.0.0.1/@PORT@) 2>/dev/null; say network $?
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
}


async def attempt() -> list[Result]:
    """Try them all. Raises `SandboxMissing` where there is no sandbox, `SandboxError` where the controls fail."""
    bait = _Bait()
    try:
        wards = Wards(bash_writable_paths=(bait.out,), bash_timeout_ms=20_000)
        outcome = await Sandbox(wards, bait.workspace).run(bait.script())
        seen = dict(line.split() for line in outcome.stdout.splitlines() if len(line.split()) == 2)
        if seen.get("read_control") != "yes" or seen.get("write_control") != "yes":
            words = outcome.stderr.strip() or outcome.ended_because or f"status {outcome.exit_code}"
            raise SandboxError(f"a command in the sandbox could not do what it may: {words}")
        results = [Result(name, text, seen.get(name) == "no") for name, text in _TEXTS.items()]
        return [*results, Result("host", "nothing was left on this machine but what may be written", bait.untouched())]
    finally:
        bait.remove()


class _Bait:
    """A folder of ours with something to read, something to write and something that must not be touched."""

    def __init__(self) -> None:
        self.folder = os.path.realpath(tempfile.mkdtemp(prefix="cantrip-canary-"))
        self.workspace = os.path.join(self.folder, "workspace")
        self.out = os.path.join(self.workspace, "out")
        os.makedirs(self.out)
        for path, text in ((f"{self.workspace}/control", "control"), (f"{self.folder}/bait", "secret")):
            with open(path, "w", encoding="ascii") as file:
                file.write(text)
        self._listener = socket.create_server(("127.0.0.1", 0))
        os.environ["CANTRIP_CANARY"] = "1"

    def script(self) -> str:
        values = {
            "@BAIT@": shlex.quote(f"{self.folder}/bait"),
            "@FOLDER@": shlex.quote(self.folder),
            "@PORT@": str(self._listener.getsockname()[1]),
        }
        script = _SCRIPT
        for name, value in values.items():
            script = script.replace(name, value)
        return script

    def untouched(self) -> bool:
        left = os.listdir(self.out), sorted(os.listdir(self.workspace)), sorted(os.listdir(self.folder))
        return left == (["file"], ["control", "out"], ["bait", "workspace"])

    def remove(self) -> None:
        self._listener.close()
        os.environ.pop("CANTRIP_CANARY", None)
        shutil.rmtree(self.folder, ignore_errors=True)
