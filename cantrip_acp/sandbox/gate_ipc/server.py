"""Gate call server: receives gate calls of shell commands from the sandbox and sends back the answers.

Inside, each gate is a small shell script on PATH. The script claims one of `SLOTS` numbered slots: it writes its
request as a file with that number, in a private file system of the sandbox. It writes the slot number to one FIFO, the
announcement. Then it reads the answer from the FIFO of the slot and runs it: a quoted script that prints the output and
exits. There is no polling, no fork and no socket. The script has no authority: the host calls the gate, with its
dependencies, wards, redaction and telemetry.
All processes inside are hostile. FIFOs and scripts are on a read-only mount, so they cannot be replaced. The host opens
a request relative to the descriptor of its folder, without following links (O_NOFOLLOW) or blocking (O_NONBLOCK). It
accepts only regular files of limited size, reads them once, and never waits for a reader. Announcements are lines of
limited length. A slot number that was announced twice, or without a request, is ignored. Processes of one sandbox can
forge each other's requests and answers, but they have the same rights.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import stat
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from types import MappingProxyType
from typing import Any

from cantrip_acp.sandbox.gate_ipc import command_words
from cantrip_acp.sandbox.gate_ipc.command_words import Gate
from cantrip_acp.sandbox.launch import availability
from cantrip_acp.sandbox.launch.process_tree import OUT_OF_RESOURCES, sandbox_error
from cantrip_acp.sandbox.policy.policy import WIRE

SLOTS = 64
"""The number of calls that can run at once. Further calls wait for a slot."""

LARGEST_REQUEST = 8 * 1024 * 1024
"""The maximum size in bytes of a request, and of its standard input."""

LARGEST_ANSWER = 8 * 1024 * 1024
"""The maximum number of characters of one answer."""

_LONGEST_LINE = 32
_RETRY_PAUSE = 0.05
"""Seconds until the next attempt if this process had no free file descriptor."""
_NOT_FOUND = 127
_USAGE = 2

Call = Callable[[str, dict[str, object]], Awaitable[tuple[object, bool]]]
"""Calls a gate by its name with arguments. Returns the result, and whether it is an error."""


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    stdout: str = ""
    stderr: str = ""


class GateWire:
    """The scripts and FIFOs for the gates of one entity, in a folder that the sandbox sees read-only."""

    def __init__(
        self,
        gates: Mapping[str, Gate],
        folder: str,
        *,
        aliases: Mapping[str, str] = MappingProxyType({}),
        shell: str | None = None,
    ) -> None:
        """Create the files in ``folder``, which must exist.

        ``gates``: by command name. Each gate gets the commands ``NAME`` and ``cantrip_NAME``. ``aliases``: further names
        of commands, whether or not there are these gates. ``shell``: the shell of the scripts (default: `wrapper_shell`).
        """
        self._aliases = aliases
        self.folder = folder
        self.inside = WIRE if availability.back_end() == "bubblewrap" else folder
        """The path of the folder inside the sandbox."""
        self.sessions = 0
        """The number of commands that use it now."""
        self.commands: dict[str, tuple[str, Gate]] = self._named(gates)
        self._initial = dict(self.commands)
        shell = shell or wrapper_shell()
        flavour = "bash" if os.path.basename(shell.split()[0]) == "bash" else "dash"
        self._terminator = b"\0" if flavour == "bash" else b"\n"
        script = files("cantrip_acp.sandbox.inside").joinpath(f"call.{flavour}").read_text("utf-8")
        script = script.replace(f"w={WIRE}\n", f"w={shlex.quote(self.inside)}\n", 1)
        for part in ("bin", "answers", "requests"):
            os.mkdir(os.path.join(folder, part), 0o755)
        self._write("call", f"#!{shell}\n{script}")
        for name in self.commands:
            self._link(name)
        os.mkfifo(os.path.join(folder, "announce"), 0o600)
        for slot in range(SLOTS):
            os.mkfifo(os.path.join(folder, "answers", str(slot)), 0o600)

    def _link(self, name: str) -> None:
        os.symlink("../call", os.path.join(self.folder, "bin", name))

    def set_added_gates(self, gates: Mapping[str, Gate]) -> None:
        """Replace the commands that were added to the initial ones, also in a sandbox that already runs."""
        if not os.path.isdir(os.path.join(self.folder, "bin")):
            # The folder was removed. The next `GateWire` gets these gates when it is created.
            return
        wanted = {**self._named(gates), **self._initial}
        for name in self.commands.keys() - wanted.keys():
            os.unlink(os.path.join(self.folder, "bin", name))
        for name in wanted.keys() - self.commands.keys():
            self._link(name)
        self.commands = wanted

    def _named(self, gates: Mapping[str, Gate]) -> dict[str, tuple[str, Gate]]:
        """Each gate under its command name, under that name with the prefix ``cantrip_``, and under its aliases."""
        commands: dict[str, tuple[str, Gate]] = {}
        for shown, gate in gates.items():
            commands.setdefault(shown, (shown, gate))
            commands.setdefault(f"cantrip_{shown}", (shown, gate))
        for alias, name in self._aliases.items():
            if name in commands:
                commands.setdefault(alias, commands[name])
        return commands

    def _write(self, name: str, text: str) -> None:
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(path, 0o755)

    def renew(self, slot: int) -> None:
        """Make a new FIFO for a slot. Only a process that has the old FIFO open can still read data from it."""
        fresh = os.path.join(self.folder, "answers", f".{slot}")
        try:
            os.unlink(fresh)
        except FileNotFoundError:
            pass
        os.mkfifo(fresh, 0o600)
        os.rename(fresh, os.path.join(self.folder, "answers", str(slot)))

    def requests_folder(self, pid: int) -> str:
        """The folder of the requests of a command, as the host sees it. ``pid``: the first process of its sandbox."""
        # On macOS nothing is mounted. There the profile keeps commands from replacing this folder.
        return f"{self.folder}/requests" if self.inside != WIRE else f"/proc/{pid}/root{WIRE}/requests"

    def clear_requests(self, pid: int = 0) -> None:
        """Remove what earlier commands left in the folder of requests. No process of their sandbox may run now.

        ``pid``: the first process of a sandbox that will be used again, or 0 before a sandbox is made. On Linux a new
        sandbox has a folder of its own.
        """
        if self.inside == WIRE and not pid:
            return
        try:
            folder = os.open(self.requests_folder(pid), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return
        try:
            for name in os.listdir(folder):
                try:
                    os.unlink(name, dir_fd=folder)
                except OSError:
                    if self.inside != WIRE:
                        shutil.rmtree(f"{self.folder}/requests/{name}", ignore_errors=True)
        finally:
            os.close(folder)

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def answer(self, reply: Reply) -> bytes:
        """Encode a reply as the script that the gate command runs.

        A result without a newline at its end gets one where the command itself prints it, so that the next output begins its
        own line. In a file, a pipe or a variable it is exactly the result.
        """
        out = bytearray()
        for text, where in ((reply.stdout, b""), (reply.stderr, b" >&2")):
            # A shell word cannot contain a NUL, but printf can write one.
            *before, last = text.split("\0")
            for part in before:
                out += b"printf '%s\\0' " + _quoted(part) + where + b"\n"
            if last:
                out += b"printf %s " + _quoted(last) + where + b"\n"
        if reply.stdout and not reply.stdout.endswith("\n"):
            # The first process of the sandbox has the output of the whole command.
            out += b"[ /proc/self/fd/1 -ef /proc/1/fd/1 ] && printf '\\n'\n"
        return bytes(out) + b"exit %d" % reply.status + self._terminator

    def ask_for_input(self, slot: int) -> bytes:
        """The script that makes a gate command send its standard input and then wait for the answer."""
        again = b". /dev/fd/3" if self._terminator == b"\n" else b":"
        return (
            b'command -p head -c %d >|"$w/requests/$i.in"\nprintf \'%%si\\n\' %d >"$w/announce"\n%s'
            % (LARGEST_REQUEST + 1, slot, again)
        ) + self._terminator


class WireSession:
    """Serves the gate calls of one running command. `open` it before the command starts, `close` it afterwards."""

    most_calls = 5_000
    """The maximum number of gate calls of one command, because a host records each."""

    def __init__(
        self,
        wire: GateWire,
        call: Call,
        start_soon: Callable[..., Any],
        pid: Callable[[], int],
        refuse: Callable[[str], str | None] | None = None,
    ) -> None:
        """``start_soon`` starts a task. ``pid`` returns the ID of the sandbox's first process.

        ``refuse`` gets the value of ``CANTRIP_CELL`` in the environment of a call. It returns why the call is refused,
        or None.
        """
        self._wire = wire
        self._refuse = refuse
        self._call = call
        self._start_soon = start_soon
        self._pid = pid
        self._loop = asyncio.get_running_loop()
        self._announce = -1
        self._requests = -1
        self._line = b""
        self._skipping_line = False
        self._busy: dict[int, asyncio.Future[None] | None] = {}
        self._used_slots: set[int] = set()
        self._calls = 0
        self._writers: dict[int, bytes] = {}
        self._open = False

    @property
    def used(self) -> bool:
        """Whether the command has ever written to the announcement FIFO."""
        return bool(self._used_slots or self._calls or self._line or self._skipping_line)

    def open(self) -> None:
        """Open the announcement FIFO. Raises `SandboxError` if it cannot be opened."""
        try:
            # Also open it for writing. Otherwise it would end when one writer closes it.
            self._announce = os.open(f"{self._wire.folder}/announce", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise sandbox_error("gates cannot be called from the sandbox", error) from error
        if self._wire.sessions == 0:
            self._wire.clear_requests()
        self._wire.sessions += 1
        self._loop.add_reader(self._announce, self._on_announce)
        self._open = True

    def close(self) -> None:
        """Ignore later announcements, and renew every used slot for the next command."""
        self._open = False
        if self._announce >= 0:
            self._loop.remove_reader(self._announce)
            # Closing the last descriptor empties the FIFO.
            os.close(self._announce)
            self._announce = -1
            self._wire.sessions -= 1
        for fd in list(self._writers):
            self._stop_writing(fd)
        if self._requests >= 0:
            os.close(self._requests)
            self._requests = -1
        for slot in self._used_slots:
            self._wire.renew(slot)
        self._used_slots.clear()

    # Announcements

    def _on_announce(self) -> None:
        try:
            data = os.read(self._announce, 4096)
        except BlockingIOError:
            return
        *lines, rest = (self._line + data).split(b"\n")
        if self._skipping_line and lines:
            lines = lines[1:]
            self._skipping_line = False
        if len(rest) > _LONGEST_LINE:
            self._skipping_line = True
            rest = b""
        self._line = b"" if self._skipping_line else rest
        for line in dict.fromkeys(lines):
            self._on_slot(line)

    def _on_slot(self, line: bytes) -> None:
        with_input = line.endswith(b"i")
        number = line[:-1] if with_input else line
        if not number.isdigit() or len(number) > 2 or int(number) >= SLOTS:
            return
        slot = int(number)
        if with_input:
            waiting = self._busy.get(slot)
            if waiting is not None and not waiting.done():
                waiting.set_result(None)
            return
        if slot in self._busy:
            return
        try:
            request = self._read_request(str(slot), LARGEST_REQUEST)
        except OSError:
            # The caller waits for an answer. So try again later, when a descriptor may be free.
            self._loop.call_later(_RETRY_PAUSE, self._retry_slot, line)
            return
        if request is None:
            return
        self._busy[slot] = None
        self._used_slots.add(slot)
        self._start_soon(self._serve, slot, request)

    def _retry_slot(self, line: bytes) -> None:
        if self._open:
            self._on_slot(line)

    def _read_request(self, name: str, most: int) -> bytes | None:
        """Read the bytes of a request, at most ``most``; None if there is no readable request.

        Raises OSError if this process can open no more files.
        """
        try:
            if self._requests < 0:
                # Processes inside cannot change the folders above it, which are on read-only mounts.
                folder = self._wire.requests_folder(self._pid())
                self._requests = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self._requests)
        except OSError as error:
            if error.errno in OUT_OF_RESOURCES:
                raise
            return None
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                return None
            if status.st_size > most:
                return b"\0"
            data = b""
            while len(data) <= most and (piece := os.read(fd, most + 1 - len(data))):
                data += piece
            return data
        except OSError:
            return None
        finally:
            os.close(fd)

    # Calls

    async def _serve(self, slot: int, request: bytes) -> None:
        try:
            reply = await self._reply(slot, request)
            if self._open:
                await self._send(slot, self._wire.answer(_bounded(reply)))
        finally:
            self._free_slot(slot)

    async def _reply(self, slot: int, request: bytes) -> Reply:
        self._calls += 1
        if self._calls > self.most_calls:
            return Reply(1, stderr=f"no more than {self.most_calls} gate calls are possible in one command\n")
        words = request.split(b"\0")
        if len(words) < 3 or words[-1]:
            if request == b"\0":
                return Reply(1, stderr=f"a gate call takes at most {LARGEST_REQUEST} bytes of arguments\n")
            return Reply(1, stderr="the gate call was not written completely\n")
        try:
            name, token, *arguments = [w.decode("utf-8") for w in words[:-1]]
        except UnicodeDecodeError:
            return Reply(_USAGE, stderr="gates accept only text: an argument is not valid UTF-8\n")
        found = self._wire.commands.get(name)
        if found is None:
            known = ", ".join(sorted({shown for shown, _ in self._wire.commands.values()}))
            return Reply(_NOT_FOUND, stderr=f"{name}: no such gate (there are: {known})\n")
        _, gate = found
        why = None if self._refuse is None else self._refuse(token)
        if why is not None:
            return Reply(1, stderr=f"{name}: {why}\n")
        try:
            parsed = command_words.parse(gate, arguments, shown=name)
        except command_words.UsageError as error:
            return Reply(_USAGE, stderr=f"{name}: {error}\n")
        if parsed.help:
            return Reply(0, stdout=command_words.contract(gate, name))
        try:
            args: dict[str, object] = command_words.args_from_words(gate, parsed.args)
        except command_words.UsageError as error:
            return Reply(_USAGE, stderr=f"{name}: {error}\n")
        if parsed.stdin_for is not None:
            given = await self._input(slot)
            if given is None or len(given) > LARGEST_REQUEST or given == b"\0":
                return Reply(
                    1, stderr=f"{name}: standard input could not be read, or is over {LARGEST_REQUEST} bytes\n"
                )
            try:
                text = given.decode("utf-8")
            except UnicodeDecodeError:
                return Reply(_USAGE, stderr=f"{name}: gates accept only text: standard input is not valid UTF-8\n")
            # There is no input and no '-': the argument is missing, and the gate reports that.
            if text or "-" in arguments:
                try:
                    args |= command_words.args_from_text(gate, parsed.stdin_for, text)
                except command_words.UsageError as error:
                    return Reply(_USAGE, stderr=f"{name}: standard input: {error}\n")
        result, is_error = await self._call(gate.name, args)
        text = command_words.render(result)
        if is_error:
            return Reply(1, stderr=f"{name}: {text}" + ("" if text.endswith("\n") else "\n"))
        return Reply(0, stdout=text)

    async def _input(self, slot: int) -> bytes | None:
        arrived: asyncio.Future[None] = self._loop.create_future()
        self._busy[slot] = arrived
        await self._send(slot, self._wire.ask_for_input(slot))
        await arrived
        while self._open:
            try:
                return self._read_request(f"{slot}.in", LARGEST_REQUEST)
            except OSError:
                await asyncio.sleep(_RETRY_PAUSE)
        return None

    def _free_slot(self, slot: int) -> None:
        """Renew the FIFO first and then free the slot, so that the next command that claims it gets a new FIFO."""
        if self._open and self._requests >= 0:
            self._wire.renew(slot)
            for name in (f"{slot}.in", str(slot)):
                try:
                    os.unlink(name, dir_fd=self._requests)
                except OSError:
                    continue
        self._busy.pop(slot, None)

    # Answers

    async def _send(self, slot: int, data: bytes) -> None:
        """Write to the FIFO of a slot as fast as its reader reads. Does nothing if the reader has ended."""
        path = f"{self._wire.folder}/answers/{slot}"
        while True:
            try:
                fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
                break
            except OSError as error:
                if error.errno not in OUT_OF_RESOURCES or not self._open:
                    return
            await asyncio.sleep(_RETRY_PAUSE)
        self._writers[fd] = data
        view = memoryview(data)
        try:
            while view and fd in self._writers:
                try:
                    view = view[os.write(fd, view[:65_536]) :]
                except BlockingIOError:
                    await self._writable(fd)
                except BrokenPipeError:
                    return
        finally:
            self._stop_writing(fd)

    async def _writable(self, fd: int) -> None:
        ready: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_writer(fd, lambda: None if ready.done() else ready.set_result(None))
        try:
            await ready
        finally:
            if fd in self._writers:
                self._loop.remove_writer(fd)

    def _stop_writing(self, fd: int) -> None:
        if self._writers.pop(fd, None) is not None:
            self._loop.remove_writer(fd)
            os.close(fd)


def wrapper_shell() -> str:
    """The shell for the gate commands. A small shell is preferred, because its start takes most of a call's time."""
    for path in ("/bin/dash", "/usr/bin/dash", "/bin/busybox", "/usr/bin/busybox"):
        if os.path.exists(path):
            return f"{path} sh" if path.endswith("busybox") else path
    return "/bin/bash" if os.path.exists("/bin/bash") else "/usr/bin/bash"


def _bounded(reply: Reply) -> Reply:
    if len(reply.stdout) + len(reply.stderr) <= LARGEST_ANSWER:
        return reply
    return Reply(1, stderr=f"the gate's result is too large for a shell: over {LARGEST_ANSWER} characters\n")


def _quoted(text: str) -> bytes:
    """Quote text as one shell word."""
    data = text.encode("utf-8", "replace")
    return b"'" + data.replace(b"'", b"'\\''") + b"'"
