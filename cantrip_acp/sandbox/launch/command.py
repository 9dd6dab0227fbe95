"""Runs one command in a sandbox: starts it, streams its output, enforces its limits, kills it, cleans up."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

import anyio
import anyio.to_thread

from cantrip_acp.files import guarded
from cantrip_acp.files.quarantine import Quarantined
from cantrip_acp.sandbox.launch import bubblewrap, causes, environment_programs, git_copies, limits, seatbelt
from cantrip_acp.sandbox.launch import control_groups as controlgroup
from cantrip_acp.sandbox.launch.control_groups import ControlGroup
from cantrip_acp.sandbox.launch.environment_programs import ProgramsFolder
from cantrip_acp.sandbox.launch.git_copies import GitCopy
from cantrip_acp.sandbox.launch.limits import WatchdogRunner
from cantrip_acp.sandbox.launch.macos_processes import GroupTree, GroupWatchdog, set_priority
from cantrip_acp.sandbox.launch.new_names import NewNames, Watched
from cantrip_acp.sandbox.launch.output import Collector
from cantrip_acp.sandbox.launch.process_tree import (
    Hooks,
    Launch,
    Status,
    Tree,
    memory_file,
    no_room_text,
    sandbox_error,
)
from cantrip_acp.sandbox.launch.runtime_dir import runtime
from cantrip_acp.sandbox.launch.shared_network import SharedNetwork
from cantrip_acp.sandbox.launch.unix_sockets import Supervisor
from cantrip_acp.sandbox.network.clients import name_of_client
from cantrip_acp.sandbox.network.hosts import AllowedHosts
from cantrip_acp.sandbox.network.name_server import random_address, sockets_beside
from cantrip_acp.sandbox.network.netns_listener import NetnsListener, listen_in
from cantrip_acp.sandbox.network.proxy import Proxy
from cantrip_acp.sandbox.policy.host_toolchains import Host
from cantrip_acp.sandbox.policy.policy import Policy, proxy_variables
from cantrip_acp.text.program_output import UNFINISHED, UNFINISHED_PART
from cantrip_acp.types.errors import SandboxError
from cantrip_acp.types.styled import Changes, Styled

_LONG_COMMAND = 100_000
"""A command with more bytes is passed in a file, because the kernel allows 128 KiB in one argument."""
_COMMAND_FILE = "/run/command"
_MIN_PAUSE = 0.01
_UNPAUSED_PIECES = 20
_DELAYED = 0.3
"""The minimum pause in seconds between two pieces of output for a listener, because a program may write letter by
letter. The first `_UNPAUSED_PIECES` pieces are sent without a pause.
"""
_MAX_WAITING_OUTPUT = 262_144
"""Bytes of output that may wait for a slow listener. If more wait, the command must wait too."""

Listener = Callable[[str, Styled], Awaitable[None]]
"""Receives output while the command runs: the name of the stream (stdout, stderr), and cleaned text with its colours."""


Ask = Callable[[str, int, str, str, str], Awaitable[str]]
"""Asks whether a command may reach a host: host, port, command, the program that wants it (empty if unknown), and its address in a
private network (empty if it is on the internet). Returns why not; empty if it may.
"""

Spawn = Callable[..., object]
"""Starts a coroutine function with its arguments in a task group."""

Tap = Callable[[int, bytes], None]
"""Receives raw output before it is limited or cleaned: 1 (stdout) or 2 (stderr), and bytes. It may block. Then the
command waits too.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Result of a command.

    ``exit_code``: 0 to 255, or None if the command was killed. ``truncated``: whether output was left out.
    ``ended_because``: why the sandbox killed the command. ``last_line``: the last line of standard output.
    ``styles``: the colours of stdout and of stderr.
    """

    exit_code: int | None
    stdout: str
    stderr: str
    truncated: bool
    timed_out: bool = False
    ended_because: str | None = None
    last_line: str = ""
    duration_ms: float = 0.0
    warning: str | None = None
    """A message about a full disk, for a command that was not killed for that."""
    styles: tuple[Changes, Changes] = ((), ())
    quarantined: tuple[Quarantined, ...] = ()
    """The protected files that it made, and that were moved away."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """The policy and the bubblewrap options with which a command is started.

    ``key``: the inputs; if they are equal, a `Prepared` can be used again. ``options``: bubblewrap's options.
    ``encoded``: the same options as bubblewrap reads them. ``program``: the path of bubblewrap. ``filter``: the system
    call filter. ``seatbelt``: the program is sandbox-exec; then there are no options and no filter. ``supervisor``: see
    `Sandbox.supervisor`. ``programs`` and ``git``: the folders of `Policy.copied`. ``network``: see `Sandbox.network`.
    ``watched``: where protected names that it makes are moved away; None if it writes nothing, and on macOS.
    """

    key: object
    policy: Policy
    options: list[str]
    encoded: bytes
    host: Host
    program: str
    filter: bytes
    seatbelt: bool = False
    supervisor: Supervisor | None = None
    programs: tuple[ProgramsFolder, ...] = ()
    git: tuple[GitCopy, ...] = ()
    network: SharedNetwork | None = None
    watched: Watched | None = None


class Running:
    """One running command. Create it, and call `run` once."""

    def __init__(
        self,
        prepared: Prepared,
        command: str,
        listener: Listener | None,
        tap: Tap | None,
        environment: Mapping[str, str],
        timeout_ms: int | None,
        ask: Ask | None = None,
    ) -> None:
        self.policy = policy = prepared.policy
        self._ask = ask
        self._prepared = prepared
        self._command = command
        self._listener = listener
        self._tap = tap
        self._environment = dict(environment)
        self._timeout_ms = policy.limits.timeout_ms if timeout_ms is None else min(timeout_ms, policy.limits.timeout_ms)
        self._most = policy.limits.output
        self._streams = {1: Collector(self._most), 2: Collector(self._most)}
        self._folders = ("/tmp", "/dev/shm", policy.home) if policy.home_source is None else ("/tmp", "/dev/shm")
        self._watching = WatchdogRunner()
        kept = (policy.home_source,) if policy.home_source is not None else ()
        disks = (*policy.writable, *kept)
        self._private: seatbelt.PrivateFolder | None = seatbelt.PrivateFolder.make() if prepared.seatbelt else None
        self._watchdog: limits.Watchdog
        if self._private is not None:
            self._watchdog = GroupWatchdog(policy.limits, self._private.measured(policy), disks)
        else:
            self._watchdog = limits.Watchdog(policy.limits, self._folders, count=prepared.host.uid == 0, disks=disks)
        self._started_at = time.perf_counter()
        self._timed_out = False
        self._seconds_left = self._timeout_ms / 1000
        self._timer_started = 0.0
        self._pauses = 0
        self._names = NewNames(prepared.watched, command) if prepared.watched is not None else None
        self._group: ControlGroup | None = None
        self._timers: list[asyncio.TimerHandle] = []
        self._netns_listener: NetnsListener | None = None
        self._network_error: str | None = None
        self._spawn: Spawn | None = None
        self._stdin = -1
        self._processor_ms = policy.limits.timeout_ms
        self.tree: Tree | None = None
        guarded.runs(self, policy.writable)

    @property
    def is_running(self) -> bool:
        """Whether a process of it may still run."""
        return self.tree is not None and not self.tree.exited

    def set_task_starter(self, spawn: Spawn) -> None:
        """Set the function that starts the proxy as a task, if the policy has one. The caller stops that task later."""
        self._spawn = spawn

    def set_stdin(self, descriptor: int) -> None:
        """Give the command this descriptor as its standard input. Call it before `run`, which closes it here."""
        self._stdin = descriptor

    @property
    def pid(self) -> int:
        """The process ID of the sandbox's first process, as the host counts; 0 before that process exists."""
        return self.tree.pid if self.tree is not None else 0

    def end(self, because: str) -> None:
        """Kill the command's whole tree at once."""
        if self.tree is not None:
            self.tree.end(because)

    @contextmanager
    def pause_timeout(self) -> Iterator[None]:
        """Pause the command's timeout while a gate runs that has its own limits."""
        self._pauses += 1
        if self._pauses == 1 and self._timers:
            self._timers[0].cancel()
            self._seconds_left -= time.monotonic() - self._timer_started
        try:
            yield
        finally:
            self._pauses -= 1
            if not self._pauses and self._timers and not self._tree.exited:
                self._timer_started = time.monotonic()
                self._timers[0] = asyncio.get_running_loop().call_later(
                    max(0.001, self._seconds_left), self._on_timeout
                )

    def so_far(self) -> tuple[Styled, Styled, bool]:
        """The output since the last call: stdout, stderr, and whether output was left out. `partial` returns the rest."""
        if self.tree is not None:
            self.tree.read_now()
        stdout, stderr, truncated, self._most = self._streams[1].part(self._streams[2], self._most)
        return stdout, stderr, truncated

    async def run(self) -> Outcome:
        """Run the command until it has ended and return its result. Raises `SandboxError`, `SandboxMissing`."""
        try:
            options: list[str] = []
            if self._prepared.network is not None and self.policy.hosts is not None:
                options = await self._serve_in(self._prepared.network)
            self._start(options)
            reports = 0
            while self._tree.running:
                # Send the last state of a line that is sent only a few times a second, even if the command now prints nothing.
                delayed = self._listener is not None and any(each.delayed for each in self._streams.values())
                with anyio.move_on_after(_DELAYED if delayed else None):
                    await self._tree.changed()
                reports += await self._report()
                if reports > _UNPAUSED_PIECES and self._listener is not None and self._tree.running:
                    await anyio.sleep(_MIN_PAUSE)
            await self._report()
        finally:
            status = self._clean_up()
            if self._names is not None:
                for line in await self._names.finish():
                    self._on_output(2, os.fsencode(line))
        if self._watchdog.disk_use.limit is not None:
            over = await anyio.to_thread.run_sync(self._watchdog.disk_use.end)
            if over is not None and status.ended_because is None:
                status.exit_code, status.ended_because = None, f"it used {over}"
        await self._report(last=True)
        if self._network_error is not None:
            raise SandboxError(self._network_error)
        if status.exit_code is None and status.ended_because is None:
            explain = causes.explain_seatbelt if self._prepared.seatbelt else causes.explain
            raise explain(self._streams[2].text(4096).text).error()
        return self.partial(status)

    @property
    def _tree(self) -> Tree:
        assert self.tree is not None
        return self.tree

    def _start(self, options: list[str]) -> None:
        """Start it, with further options of bubblewrap."""
        if self._private is not None:
            self._start_with_seatbelt(self._private)
        else:
            self._start_with_bubblewrap(options)
        loop = asyncio.get_running_loop()
        self._timer_started = time.monotonic()
        self._timers.append(loop.call_later(self._seconds_left, self._on_timeout))
        self._timers.append(loop.call_later(limits.FIRST_CHECK, self._on_watch))

    def _start_with_seatbelt(self, private: seatbelt.PrivateFolder) -> None:
        policy = self._prepared.policy
        port = 0
        if policy.hosts is not None and self._spawn is not None:
            listener = socket.create_server(("127.0.0.1", 0))
            listener.setblocking(False)
            port = listener.getsockname()[1]
            self._spawn(self._proxy().serve, [listener])
        script = private.script(self._command)
        launch = private.launch(
            policy,
            (policy.shell, script),
            script=script,
            program=self._prepared.program,
            environment=self._environment,
            limits=replace(policy.limits, timeout_ms=self._processor_ms),
            cores=self._prepared.host.cores,
            port=port,
        )
        launch.stdin = self._stdin
        hooks = Hooks(output=self._on_output, prepared=lambda pid: set_priority(pid, policy.limits.cpu_percent))
        tree = GroupTree(launch, hooks, private.token)
        assert isinstance(self._watchdog, GroupWatchdog)
        self.tree = self._watchdog.tree = tree
        self._stdin = -1
        tree.start()

    async def _serve_in(self, network: SharedNetwork) -> list[str]:
        """Start the proxy in a network that exists already. Returns options of bubblewrap.

        Each command has its own proxy, at a port of its own, and its own address where names lead.
        """
        address = random_address()
        try:
            sockets = await listen_in(network.descriptor, self._sockets_beside(address))
        except SandboxError:
            if self.policy.hosts:
                raise
            # Without a proxy there is less of a network, which is what the policy says.
            return []
        if self._spawn is None:
            for each in sockets:
                each.close()
            return []
        for name, value in proxy_variables(sockets[0].getsockname()[1]).items():
            self._environment.setdefault(name, value)
        self._spawn(self._proxy().serve, sockets)
        return ["--ro-bind", runtime().write_once(f"nameserver {address}\n"), "/etc/resolv.conf"]

    def _sockets_beside(self, *address: str) -> list[str]:
        """The sockets for programs that know no proxy."""
        return sockets_beside(AllowedHosts.of(self.policy.hosts or ()), *address)

    def _proxy(self) -> Proxy:
        return Proxy(
            AllowedHosts.of(self._prepared.policy.hosts or ()),
            lambda line: self._on_output(2, f"{line}\n".encode()),
            self._ask_about if self._ask is not None else None,
        )

    async def _ask_about(self, host: str, port: int, client: int, address: str) -> str:
        assert self._ask is not None
        program = ""
        if self.pid:
            program = await anyio.to_thread.run_sync(name_of_client, self.pid, client)
        with self.pause_timeout():
            return await self._ask(host, port, self._command, program, address)

    def _start_with_bubblewrap(self, further: list[str]) -> None:
        policy = self._prepared.policy
        extra = list(further)
        inherited: list[int] = []
        try:
            if policy.home_source is not None:
                _prepare_home(policy)
            if self._names is not None:
                self._names.begin()
            for name, value in self._environment.items():
                extra += ["--setenv", name, value]
            run = [policy.shell, "-c", self._command]
            data = self._command.encode("utf-8", "surrogateescape")
            if len(data) > _LONG_COMMAND:
                script = memory_file(data)
                inherited.append(script)
                run = [policy.shell, _COMMAND_FILE]
                at_root = ["--perms", "0444", "--ro-bind-data", str(script), _COMMAND_FILE]
                options = bubblewrap.encode([*at_root, *self._prepared.options, *extra])
            else:
                options = self._prepared.encoded + bubblewrap.encode(extra)
            args = memory_file(options)
            inherited.append(args)
            calls = memory_file(self._prepared.filter)
            inherited.append(calls)
            argv = [runtime().token, "--seccomp", str(calls), "--args", str(args), "--", *run]
            launch = Launch(
                program=self._prepared.program,
                argv=argv,
                inherited=inherited,
                stdin=self._stdin,
                supervisor=self._prepared.supervisor,
                network=self._prepared.network,
            )
            bounds = policy.limits
            if (parent := control_groups()) is not None:
                self._group = controlgroup.make(parent, runtime().group_name(parent), bounds)
            if self._group is not None:
                launch.within = self._group.enter
            if policy.hosts is not None and self._prepared.network is None:
                beside = self._sockets_beside()
                self._netns_listener = NetnsListener(self._on_network_ready, self._on_network_failed, beside)
                self._netns_listener.start()
            hooks = Hooks(output=self._on_output, prepared=self._on_prepared, hold=self._netns_listener is not None)
            self.tree = Tree(launch, hooks)
            inherited, self._stdin = [], -1
            self.tree.start()
        except BaseException as error:
            for fd in inherited:
                os.close(fd)
            if isinstance(error, OSError):
                raise sandbox_error("the command cannot be started in the sandbox", error) from error
            raise

    def _on_prepared(self, pid: int) -> None:
        policy = self._prepared.policy
        if self._group is not None:
            self._group = self._group.add_process(pid)
        bounds = replace(policy.limits, timeout_ms=self._processor_ms)
        limits.apply(pid, bounds, cores=self._prepared.host.cores, root=self._prepared.host.uid == 0)
        if self._netns_listener is not None:
            try:
                self._netns_listener.open(pid)
            except OSError as error:
                self._fail(
                    f"the sandbox's network cannot be entered from outside ({no_room_text(error) or error.strerror})"
                )

    def _on_network_ready(self, sockets: list[socket.socket]) -> None:
        """Start the proxy on its sockets, and let the command run."""
        if self._spawn is None or self._tree.exited:
            for each in sockets:
                each.close()
            return
        self._spawn(self._proxy().serve, sockets)
        self._tree.release()

    def _on_network_failed(self, why: str) -> None:
        if not self._prepared.policy.hosts and not self._tree.exited:
            # Without a proxy there is less of a network, which is what the policy says.
            self._tree.release()
            return
        self._fail(why)

    def _fail(self, why: str) -> None:
        self._network_error = why
        self._tree.end(why)

    def _on_output(self, stream: int, data: bytes) -> None:
        if self._tap is not None:
            self._tap(stream, data)
        collector = self._streams[stream]
        collector.feed(data)
        if self._listener is not None and collector.waiting > _MAX_WAITING_OUTPUT:
            self._tree.pause(True)

    def _on_timeout(self) -> None:
        if not self._tree.exited:
            self._timed_out = self._tree.status.ended_because is None
            self._tree.end(f"it ran longer than {self._timeout_ms} ms (bash_timeout_ms)")

    def _on_watch(self) -> None:
        if self._tree.exited:
            return
        pid = self._tree.pid
        self._watching.ask(lambda: self._judge(pid) if pid else None, self._on_verdict)

    def _judge(self, pid: int) -> str | None:
        if self._names is not None and (why := self._names.look()) is not None:
            return why
        verdict = self._watchdog.verdict(pid)
        return f"it used {verdict}" if verdict is not None else None

    def _on_verdict(self, verdict: str | None) -> None:
        if self._tree.exited:
            return
        # If the command has ended since, its process ID may be reused. Then the measurement is of another process.
        if verdict is not None and self._tree.alive:
            self._tree.end(verdict)
            return
        self._timers[1] = asyncio.get_running_loop().call_later(limits.CHECK_INTERVAL, self._on_watch)

    async def _report(self, *, last: bool = False) -> int:
        """Send new output to the listener and return the number of pieces. A slow listener slows the command down."""
        pieces = 0
        for stream, name in ((1, "stdout"), (2, "stderr")):
            collector = self._streams[stream]
            if self._listener is None:
                continue
            text = collector.finish() if last else collector.read() if collector.waiting else Styled("")
            if text.text:
                pieces += 1
                await self._listener(name, text)
            if not last and (state := collector.state()) is not None:
                await self._listener(UNFINISHED if state[1] else UNFINISHED_PART, state[0])
        if self.tree is not None and not last:
            self.tree.pause(False)
        return pieces

    def _clean_up(self) -> Status:
        for timer in self._timers:
            timer.cancel()
        if self._netns_listener is not None:
            self._netns_listener.close()
        status = self.tree.finish() if self.tree is not None else Status()
        if self._group is not None:
            if status.ended_because is None and self._group.exceeded():
                limit = self._prepared.policy.limits.memory // (1024 * 1024)
                status.exit_code, status.ended_because = None, f"it used more than {limit} MiB of memory"
            self._group.remove()
            self._group = None
        lines = environment_programs.take_over(self._prepared.programs) + git_copies.take_over(self._prepared.git)
        for line in lines:
            self._on_output(2, line)
        if self._private is not None:
            if not status.gone:
                status.exit_code, status.ended_because = None, "not all of its processes could be ended"
            self._private.remove()
        return status

    def rest(self) -> dict[str, Styled]:
        """Output that was printed and not passed to the listener, by stream. Call it after the end of the command."""
        return {"stdout": self._streams[1].finish(), "stderr": self._streams[2].finish()}

    def partial(self, status: Status | None = None) -> Outcome:
        """The result of the command, or the result so far if it still runs or was cancelled."""
        if status is None:
            status = self.tree.status if self.tree is not None else Status()
        out, err, truncated = self._streams[1].share(self._streams[2], self._most)
        return Outcome(
            exit_code=status.exit_code,
            stdout=out.text,
            stderr=err.text,
            truncated=truncated,
            timed_out=self._timed_out,
            ended_because=status.ended_because,
            last_line=self._streams[1].last_line(),
            # A short command may have filled the disk before the first check of the watchdog.
            warning=self._watchdog.disks.full_message() if status.ended_because is None else None,
            duration_ms=(time.perf_counter() - self._started_at) * 1000,
            styles=(out.changes, err.changes),
            quarantined=tuple(self._names.moved) if self._names is not None else (),
        )


def _prepare_home(policy: Policy) -> None:
    """Create the folders in a lasting home that lead to mount points. A link that a command left there is removed."""
    assert policy.home_source is not None
    os.makedirs(policy.home_source, mode=0o700, exist_ok=True)
    os.utime(policy.home_source)
    for below in bubblewrap.mount_point_parents(policy):
        path = os.path.join(policy.home_source, below)
        if os.path.lexists(path) and (os.path.islink(path) or not os.path.isdir(path)):
            os.unlink(path)
        os.makedirs(path, mode=0o700, exist_ok=True)
    for path in policy.tools:
        if path.startswith(policy.home + "/"):
            own = os.path.join(policy.home_source, os.path.relpath(path, policy.home))
            if os.path.islink(own):
                os.unlink(own)
    for path, target in policy.links:
        own = os.path.join(policy.home_source, os.path.relpath(path, policy.home))
        if path.startswith(policy.home + "/") and os.path.lexists(own):
            # bubblewrap creates this link for every command, so it must not exist before.
            if os.path.isdir(own) and not os.path.islink(own):
                raise SandboxError(f"{own} is in the place of the link {path} -> {target}; remove it")
            os.unlink(own)


_groups: list[str | None] = []


def control_groups() -> str | None:
    """The folder in which we can create control groups; None if there is none. It is searched once per process."""
    if not _groups:
        _groups.append(controlgroup.find_parent())
    return _groups[0]
