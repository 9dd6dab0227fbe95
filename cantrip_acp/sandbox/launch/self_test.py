"""Self-test: small attacks that the sandbox must stop. Controls show that each attack would work outside.

All attacks run in one real sandbox, with a folder of test files. They run once per process before the first command or
cell (`ensure_checked`), and in `cantrip doctor`. `check_network_list` checks the proxy: a test server that the list
contains must be reachable, and another one must not be.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import socket
import threading
from dataclasses import dataclass
from typing import Any

import anyio

from cantrip_acp.files import scratch_copy
from cantrip_acp.files.quarantine import Quarantine
from cantrip_acp.files.temporary import TemporaryFolder
from cantrip_acp.sandbox.launch import availability, unix_sockets
from cantrip_acp.sandbox.launch.macos_processes import processes
from cantrip_acp.sandbox.launch.sandbox import Sandbox, machine
from cantrip_acp.sandbox.policy import interpreter
from cantrip_acp.sandbox.policy.policy import SandboxOptions
from cantrip_acp.types.errors import SandboxError, SandboxMissing
from cantrip_acp.types.styled import Styled


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
(mkdir -p out/.git && echo '[core] fsmonitor = evil' > out/.git/config) 2>/dev/null; say quarantine_control $?
grep -qs CANTRIP_CANARY /proc/1/environ /proc/self/environ; say environment $?
cat /proc/@PID@/cmdline 2>/dev/null | cmp -s - cmdline; say processes $?
grep -qs ':@HEX@ 0*:0000 0A' /proc/net/tcp || (exec 3<>/dev/tcp/127.0.0.1/@PORT@) 2>/dev/null; say network $?
unshare -U true 2>/dev/null; say namespaces $?
(echo 0 > /proc/sys/kernel/panic) 2>/dev/null; say kernel $?
{ grep -L '^Seccomp:.*2' /proc/[0-9]*/status; grep -H '^CapEff:.*[1-9a-f]' /proc/[0-9]*/status; } | grep -q .; say attach $?
[ -z @PYTHON@ ] || @PYTHON@ -I -S -c "$SOCKETS" || true
"""

_SOCKETS = """
import os, socket, time
def say(name, path):
    with socket.socket(socket.AF_UNIX) as client:
        try: client.connect(path); print(name, "yes", flush=True)
        except OSError: print(name, "no", flush=True)
with socket.socket(socket.AF_UNIX) as server:
    server.bind("out/own"); server.listen(); say("sockets_control", "out/own"); os.unlink("out/own")
say("socket_before", "before")
print("now", flush=True)
end = time.monotonic() + 10
while not os.path.exists("out/later") and time.monotonic() < end: time.sleep(0.001)
say("socket_later", "out/later")
"""
"""The attacks with Unix sockets. At the line ``now`` the host opens ``out/later`` (see `_Bait.open_later`)."""

_SEATBELT_SCRIPT = r"""
say() { if [ "$2" = 0 ]; then echo "$1 yes"; else echo "$1 no"; fi; }
[ "$(cat control)" = control ]; say read_control $?
(echo written > out/file) 2>/dev/null; say write_control $?
[ -n "$HOME" ] && (echo x > "$HOME/x" && echo x > "$TMPDIR/x"); say folders_control $?
sleep 0 & wait $!; say processes_control $?
cat @BAIT@ >/dev/null 2>&1; say read_outside $?
(mkdir -p @FOLDER@; echo x > @FOLDER@/outside) 2>/dev/null; say write_outside $?
(echo x > file) 2>/dev/null; say write_readable $?
(mkdir -p out/.git && echo x > out/.git/config) 2>/dev/null; say make_git $?
(mkdir -p out/.GIT && echo x > out/.GIT/config) 2>/dev/null; say make_git_case $?
env | grep -qs CANTRIP_CANARY; say environment $?
kill -0 @PID@ 2>/dev/null; say signals $?
(exec 3<>/dev/tcp/127.0.0.1/@PORT@) 2>/dev/null; say network $?
set -m
sleep 1000 & echo "left $!"
/usr/bin/perl -MPOSIX -e 'if (my $p = fork) { print "left $p\n"; exit } setsid; exec "sleep", 1000'
"""
"""The attacks on macOS. Each line ``left PID`` names a process that left the group of the command and must be ended."""

_TEXTS = {
    "read_outside": "files outside of the workspace cannot be read",
    "write_outside": "files outside of the workspace cannot be written",
    "write_readable": "the workspace can be written only in the folders that the wards allow",
    "environment": "the environment of this process cannot be seen",
    "processes": "processes of this machine cannot be seen",
    "network": "there is no network, not even to this machine",
    "namespaces": "no further namespaces can be created",
    "kernel": "kernel settings cannot be written",
    "attach": "no process that can be attached to (ptrace) has capabilities or lacks the system call filter",
    "set_id": "no file can get the mode to run as this user for other users (setuid)",
}
_SOCKET_TEXTS = {
    "socket_before": "a Unix socket of this machine in a visible folder cannot be connected to",
    "socket_later": "nor can one that is opened there while a command runs",
}
_SEATBELT_TEXTS = {
    **{name: _TEXTS[name] for name in ("read_outside", "write_outside", "write_readable", "environment", "network")},
    "make_git": "a .git folder cannot be created if there is none",
    "make_git_case": "nor can it be created in upper or lower case",
    "signals": "processes of this machine cannot be signalled",
}


async def run_attacks() -> list[Result]:
    """Try all attacks. Raises `SandboxMissing` if there is no sandbox, `SandboxError` if a control fails."""
    bait = _Bait()
    try:
        options = SandboxOptions(bash_writable_paths=(bait.out,), bash_timeout_ms=20_000)
        seatbelt = availability.back_end() == "seatbelt"
        python = None if seatbelt else interpreter.find(None, machine())
        sandbox = Sandbox(options, bait.workspace, host=python.on(machine()) if python is not None else None)
        supervised = sandbox.supervisor is not None
        outcome = await sandbox.run(
            bait.script(_SEATBELT_SCRIPT if seatbelt else _SCRIPT, python.program if python and supervised else ""),
            environment={"SOCKETS": _SOCKETS},
            listener=bait.open_later,
        )
        seen = dict(line.split() for line in outcome.stdout.splitlines() if len(line.split()) == 2)
        if supervised and seen.get("filter_control") == "yes" and seen.get("sockets_control") != "yes":
            # This kernel, or what confines this process, does not let us answer for the programs inside.
            unix_sockets.give_up()
            return await run_attacks()
        failed = [
            name for name in (_SEATBELT_CONTROLS if seatbelt else _CONTROLS) if seen.get(f"{name}_control") != "yes"
        ]
        if failed:
            words = outcome.stderr.strip() or outcome.ended_because or f"status {outcome.exit_code}"
            raise SandboxError(f"a command in the sandbox could not do what is allowed ({', '.join(failed)}): {words}")
        texts = _SEATBELT_TEXTS if seatbelt else {**_TEXTS, **(_SOCKET_TEXTS if supervised else {})}
        results = [Result(name, text, seen.get(name) == "no") for name, text in texts.items()]
        if seatbelt:
            left = [int(pid) for pid in re.findall(r"^left (\d+)$", outcome.stdout, re.MULTILINE)]
            ended = len(left) == 2 and processes().keys().isdisjoint(left)
            results.append(Result("left", "processes that leave the group of their command are ended with it", ended))
        else:
            moved = [each.name for each in outcome.quarantined] == ["out/.git"]
            results.append(
                Result("quarantine", "a .git folder that names programs is moved away when it was made", moved)
            )
        return [
            *results,
            Result("host", "the attacks changed nothing outside of the writable folder", bait.untouched()),
        ]
    finally:
        bait.remove()


async def require() -> None:
    """Raise `SandboxMissing` unless a sandbox works here and stops every attack."""
    try:
        results = await run_attacks()
    except SandboxMissing:
        raise
    except (SandboxError, OSError) as error:
        raise SandboxMissing(f"the sandbox could not be tested: {error}") from error
    broken = [result.text for result in results if not result.held]
    if broken:
        raise SandboxMissing(
            f"a sandbox was created, but it does not protect this machine. The self-test shows that this is NOT so: "
            f"{'; '.join(broken)}.",
            mend="Run `cantrip doctor` for the whole self-test, and report its output with that of `cantrip sandbox policy`.",
        )


_CONTROLS = ("read", "write", "mode", "environment", "processes", "network", "filter", "quarantine")
"""Controls that must succeed inside, so that a failed attack is meaningful: allowed reads and writes, and access to the
kernel files that the attacks read.
"""


_SEATBELT_CONTROLS = ("read", "write", "folders", "processes")


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
        self._unix: list[socket.socket] = []
        self._folders: list[int] = []
        self._seatbelt = availability.back_end() == "seatbelt"
        if not self._seatbelt:
            self._open_unix(self.workspace, "before")
        os.environ["CANTRIP_CANARY"] = "1"
        self._prove()

    def _prove(self) -> None:
        """Do outside of the sandbox what must fail inside. Raises `SandboxError` if that is not possible."""
        with open(f"{self.folder}/bait", encoding="ascii") as file:
            bait = file.read()
        os.mkdir(f"{self.folder}/outside")
        os.rmdir(f"{self.folder}/outside")
        with socket.create_connection(self._listener.getsockname(), timeout=5):
            self._listener.accept()[0].close()
        if not self._seatbelt:
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(self._unix[0].getsockname())
        if bait != "secret":
            raise SandboxError(
                "the test file cannot be read outside of the sandbox either, so the self-test cannot show that it is protected"
            )

    def _open_unix(self, folder: str, name: str) -> None:
        server = socket.socket(socket.AF_UNIX)
        self._unix.append(server)
        # The path of a temporary folder may be longer than that of a socket may be.
        at = os.open(folder, os.O_PATH | os.O_DIRECTORY)
        self._folders.append(at)
        server.bind(f"/proc/self/fd/{at}/{name}")
        server.listen()

    async def open_later(self, stream: str, text: Styled) -> None:
        """Open the socket that is opened while the attacks run, when they ask for it."""
        if "now\n" in text.text and len(self._unix) == 1:
            self._open_unix(self.out, "later")

    def script(self, script: str, python: str) -> str:
        """The attacks with the values of this folder and machine. ``python``: the program for those with Unix sockets."""
        values = {
            "@PYTHON@": shlex.quote(python),
            "@BAIT@": shlex.quote(f"{self.folder}/bait"),
            "@FOLDER@": shlex.quote(self.folder),
            "@PORT@": str(self._listener.getsockname()[1]),
            "@HEX@": f"{self._listener.getsockname()[1]:04X}",
            "@PID@": str(os.getpid()),
        }
        for name, value in values.items():
            script = script.replace(name, value)
        return script

    def untouched(self) -> bool:
        left = sorted(os.listdir(self.out)), sorted(os.listdir(self.workspace)), sorted(os.listdir(self.folder))
        before = [] if self._seatbelt else ["before"]
        out = ["file", *(["later"] if len(self._unix) > 1 else [])]
        return left == (out, [*before, "cmdline", "control", "out"], ["bait", "workspace"])

    def remove(self) -> None:
        self._listener.close()
        for server in self._unix:
            server.close()
        for at in self._folders:
            os.close(at)
        os.environ.pop("CANTRIP_CANARY", None)
        quarantine = Quarantine(self.workspace)
        for each in quarantine.entries():
            quarantine.drop(each.id)
        self._temporary.close()


def _command_line() -> bytes:
    """This process's command line, which any process on this machine can read. Empty on macOS, which has no /proc."""
    if availability.back_end() == "seatbelt":
        return b""
    try:
        with open("/proc/self/cmdline", "rb") as file:
            return file.read()
    except OSError as error:
        raise SandboxError(f"/proc cannot be read here: {error.strerror}") from error


_NETWORK_SCRIPT = """
ask() {
  exec 3<>"/dev/tcp/127.0.0.1/${HTTP_PROXY##*:}" || return
  printf 'GET http://127.0.0.1:%s/ HTTP/1.1\\r\\nHost: 127.0.0.1:%s\\r\\n\\r\\n' "$1" "$1" >&3
  IFS= read -r line <&3; echo "$2 $line"
}
ask @LISTED@ listed
ask @OTHER@ other
(exec 4<>/dev/tcp/127.0.0.1/@LISTED@) 2>/dev/null && echo direct yes
true
"""


async def check_network_list() -> None:
    """Raise `SandboxError` if a list of hosts is not enforced here. Needs bash inside."""
    requests: list[str] = []

    def handler(name: str) -> Any:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            requests.append(name)
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
            writer.close()

        return answer

    listed = await asyncio.start_server(handler("listed"), "127.0.0.1", 0)
    other = await asyncio.start_server(handler("other"), "127.0.0.1", 0)
    try:
        ports = [server.sockets[0].getsockname()[1] for server in (listed, other)]
        script = _NETWORK_SCRIPT.replace("@LISTED@", str(ports[0])).replace("@OTHER@", str(ports[1]))
        options = SandboxOptions(bash_network=(f"127.0.0.1:{ports[0]}",), bash_timeout_ms=20_000)
        outcome = await Sandbox(options, None).run(script)
    finally:
        listed.close()
        other.close()
    lines = [re.sub(r"^(\w+ HTTP/1.1 \d+).*", r"\1", line.strip()) for line in outcome.stdout.splitlines()]
    if lines != ["listed HTTP/1.1 204", "other HTTP/1.1 403"] or requests != ["listed"]:
        raise SandboxError(
            f"a list of hosts in bash_network is not enforced here: {outcome.stdout.strip() or outcome.stderr.strip()[-300:]}"
        )


_checked = False
_checking = threading.Lock()
"""Only one self-test at a time in this process, for all threads and event loops."""


async def ensure_checked() -> None:
    """Raise `SandboxMissing` if the sandbox of this machine fails the self-test, which runs once per process."""
    global _checked
    if _checked:
        return
    # Do not wait in a thread. After a cancel during the wait, nobody would release the lock.
    while not _checking.acquire(blocking=False):  # noqa: ASYNC110 - no event reaches another thread's loop
        await anyio.sleep(0.005)
    try:
        if not _is_checked():
            # The self-test must see its own folders and not copies of them.
            with scratch_copy.in_force(None):
                await require()
            _checked = True
    finally:
        _checking.release()


def _is_checked() -> bool:
    """Read the flag again: another thread may have set it during the wait."""
    return _checked
