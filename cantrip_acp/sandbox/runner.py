"""One entity's sandbox: its policy kept up to date, and one command after another run in it.

    sandbox = Sandbox(wards, workspace)
    outcome = await sandbox.run("make test")

What is costly is done once: looking at the machine, the prepared folders, the arguments. Before each command only what the
workspace may have changed is looked at again.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import anyio
import anyio.to_thread

from cantrip_acp.errors import DefinitionError, SandboxError, SandboxMissing
from cantrip_acp.sandbox import bubblewrap, limits, probe, seccomp
from cantrip_acp.sandbox.controlgroup import ControlGroup, find_parent
from cantrip_acp.sandbox.gatewire import Call, GateWire, WireSession
from cantrip_acp.sandbox.guarded import NEVER_MADE, Findings, Survey
from cantrip_acp.sandbox.host import Host
from cantrip_acp.sandbox.output import Collector, share
from cantrip_acp.sandbox.policy import Policy, compose
from cantrip_acp.sandbox.process import Hooks, Launch, Status, Tree
from cantrip_acp.sandbox.repositories import git_folders, scrubbed
from cantrip_acp.sandbox.runtime import runtime
from cantrip_acp.sandbox.standins import Standins, is_standin
from cantrip_acp.sandbox.toolchains import find_tools
from cantrip_acp.wards import Wards

_LONG_COMMAND = 100_000
"""Bytes of a command that is handed over in a file: the kernel takes 128 KiB in one argument."""
_COMMAND_FILE = "/run/command"
_SLOW_LOOK = 0.005
"""Seconds of looking at a workspace from which on it is done in a thread."""
_PACE = 0.01
_PACED_FROM = 20
"""A listener gets at most one piece in this many seconds, after the first few: a program that writes letter by letter."""
_LIVE_MOST = 262_144
"""Bytes of output that wait for a slow reader before the command is made to wait too."""

Listener = Callable[[str, str], Awaitable[None]]
"""Hears output while it comes: the stream's name (stdout, stderr) and cleaned text."""


Tap = Callable[[int, bytes], None]
"""Gets output as it came, 1 or 2 for the stream, before anything is bounded or cleaned. It may block, and then the command
waits too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a command left behind. ``exit_code`` is 0 to 255, None where it was ended before its time."""

    exit_code: int | None
    stdout: str
    stderr: str
    truncated: bool
    timed_out: bool = False
    ended_because: str | None = None
    last_line: str = ""
    duration_ms: float = 0.0


class Sandbox:
    """One entity's sandbox. Raises `DefinitionError` for wards or a workspace that cannot be kept."""

    def __init__(
        self,
        wards: Wards,
        workspace: Path | str | None,
        *,
        wire: GateWire | None = None,
        host: Host | None = None,
        home_source: str | None = None,
        private: tuple[str, ...] = (),
        more_readable: tuple[str, ...] = (),
    ) -> None:
        self.host = host if host is not None else machine()
        self.workspace = _workspace(workspace)
        self._wards = replace(
            wards, bash_writable_paths=_writable(wards.bash_writable_paths, workspace, self.workspace)
        )
        self._wire = wire
        self._home_source = home_source
        self._private = private
        self._more_readable = more_readable
        self._program = probe.find_bubblewrap()
        self._filter = seccomp.program(os.uname().machine)
        self._surveys: dict[str, Survey] = {}
        self._prepared: _Prepared | None = None
        self._looking = anyio.Lock()
        self._more_tools()
        self.policy()

    def _more_tools(self) -> None:
        """Interpreters of the workspace's virtual environments, and the links on the way to the workspace."""
        if self.workspace is None:
            return
        folders = [os.path.join(self.workspace, name) for name in (".venv", "venv", "env", ".env")]
        more = find_tools((), self.host.home, [f for f in folders if os.path.isfile(os.path.join(f, "pyvenv.cfg"))])
        self.host = replace(
            self.host,
            tools=tuple(sorted({*self.host.tools, *more.roots})),
            links=tuple(sorted({*self.host.links, *more.links})),
        )

    @property
    def _slow(self) -> bool:
        return any(survey.seconds > _SLOW_LOOK for survey in self._surveys.values())

    def policy(self) -> Policy:
        """The policy of a command that would start now."""
        return self._prepare().policy

    def arguments(self) -> list[str]:
        """Bubblewrap's options for a command that would start now."""
        return list(self._prepare().options)

    @property
    def program(self) -> str:
        """The back end's program."""
        return self._program

    @property
    def filter(self) -> bytes:
        """The system call filter."""
        return self._filter

    def _prepare(self) -> _Prepared:
        roots = {r for r in (self.workspace, *self._wards.bash_writable_paths, *self._more_readable) if r}
        gone = next((r for r in sorted(roots) if not os.path.exists(r)), None)
        if gone is not None:
            raise SandboxError(f"{gone} is not there any more; commands cannot run without it")
        roots = {r for r in roots if not any(r != o and r.startswith(o + "/") for o in roots)}
        findings = {r: self._surveys.setdefault(r, Survey(r)).refresh() for r in sorted(roots)}
        writable = self._wards.bash_writable_paths
        existing = tuple(
            path
            for root in writable
            for name in NEVER_MADE
            if os.path.lexists(path := os.path.join(root, name)) and not is_standin(path)
        )
        linked = tuple(p for p in existing if os.path.islink(p))
        closed = tuple(r for r in writable if not os.access(r, os.W_OK | os.X_OK))
        repositories = git_folders(self.workspace) if self.workspace is not None else ()
        histories = [*repositories, *(p for f in findings.values() for p in f.protected if p.endswith("/.git"))]
        settings = tuple((p, _stamp(f"{p}/config")) for p in histories)
        key = (tuple(findings.values()), existing, linked, closed, settings)
        if self._prepared is not None and self._prepared.key == key:
            return self._prepared
        # A protected name at the top of a root that lies inside the surveyed one is found by the survey below it, too.
        for root, found in findings.items():
            findings[root] = replace(found, linked=tuple(sorted({*found.linked, *linked})))
        mine = runtime()
        policy = compose(
            self._wards,
            self.workspace,
            self.host,
            findings,
            existing=existing,
            gates=tuple(sorted(self._wire.commands)) if self._wire is not None else (),
            wire=self._wire.folder if self._wire is not None else None,
            home_source=self._home_source,
            private=(*self._private, mine.folder),
            repositories=repositories,
            more_readable=self._more_readable,
            replaced=[(f"{p}/config", mine.keep(text)) for p in histories if (text := scrubbed(p)) is not None],
            closed=closed,
        )
        places = mine.places(self.host, policy.home, network=policy.network)
        folders = frozenset(p for p in policy.hidden if os.path.isdir(p))
        options = bubblewrap.arguments(policy, places, folders=folders)
        self._prepared = _Prepared(key, policy, options, bubblewrap.encode(options))
        return self._prepared

    async def run(
        self,
        command: str,
        *,
        listener: Listener | None = None,
        environment: Mapping[str, str] | None = None,
        call: Call | None = None,
        tap: Tap | None = None,
        started: Callable[[Running], None] | None = None,
        timeout_ms: int | None = None,
    ) -> Outcome:
        """Run one shell command and wait until nothing of it is left.

        ``listener`` hears the output as cleaned text, ``tap`` its bytes. ``environment`` adds variables; ``call`` answers
        gate calls where there is a wire; ``started`` gets a handle to end the command early. When cancelled, the tree is
        killed, and `Running.partial` gives what there was.

        Raises `SandboxMissing` where the sandbox cannot be set up, `SandboxError` for a command that no shell can take.
        """
        if "\0" in command:
            raise SandboxError("a command cannot hold a NUL character")
        if self._slow:
            # A very large workspace is looked at beside the loop, not on it.
            async with self._looking:
                prepared = await anyio.to_thread.run_sync(self._prepare)
        else:
            prepared = self._prepare()
        running = Running(self, prepared, command, listener, tap, environment or {}, timeout_ms)
        if started is not None:
            started(running)
        if self._wire is None or call is None:
            return await running.run()
        return await _wired(self._wire, call, running)


async def _wired(wire: GateWire, call: Call, running: Running) -> Outcome:
    """Run a command with its gates: calls are served beside it, and end with it."""
    try:
        async with anyio.create_task_group() as group:
            session = WireSession(wire, call, group, lambda: running.pid)
            session.open()
            try:
                return await running.run()
            finally:
                session.close()
                group.cancel_scope.cancel()
    except BaseExceptionGroup as failures:
        # One failure of a call or of the command: nobody outside knows that there is a group.
        first: BaseException = failures
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise first from None
    raise SandboxError("the command ended without an outcome")


@dataclass(frozen=True, slots=True)
class _Prepared:
    key: object
    policy: Policy
    options: list[str]
    encoded: bytes


class Running:
    """One command under way."""

    def __init__(
        self,
        sandbox: Sandbox,
        prepared: _Prepared,
        command: str,
        listener: Listener | None,
        tap: Tap | None,
        environment: Mapping[str, str],
        timeout_ms: int | None,
    ) -> None:
        policy = prepared.policy
        self._sandbox = sandbox
        self._prepared = prepared
        self._command = command
        self._listener = listener
        self._tap = tap
        self._environment = environment
        self._timeout_ms = policy.limits.timeout_ms if timeout_ms is None else min(timeout_ms, policy.limits.timeout_ms)
        self._streams = {1: Collector(policy.limits.output), 2: Collector(policy.limits.output)}
        self._folders = ("/tmp", "/dev/shm", policy.home) if policy.home_source is None else ("/tmp", "/dev/shm")
        self._watchdog = limits.Watchdog(policy.limits, self._folders, count=sandbox.host.uid == 0)
        self._began = time.perf_counter()
        self._timed_out = False
        self._standins: list[Standins] = []
        self._group: ControlGroup | None = None
        self._timers: list[asyncio.TimerHandle] = []
        self.tree: Tree | None = None

    @property
    def pid(self) -> int:
        """The host's number of the sandbox's first process, 0 before there is one."""
        return self.tree.pid if self.tree is not None else 0

    def end(self, because: str) -> None:
        """Kill the command's whole tree at once."""
        if self.tree is not None:
            self.tree.end(because)

    async def run(self) -> Outcome:
        try:
            self._start()
            reports = 0
            while self._tree.running:
                await self._tree.changed()
                reports += await self._report()
                if reports > _PACED_FROM and self._listener is not None and self._tree.running:
                    await anyio.sleep(_PACE)
            await self._report()
        finally:
            status = self._clean()
        await self._report(last=True)
        if status.exit_code is None and status.ended_because is None:
            raise probe.explain(self._streams[2].text(4096)).error()
        return self.partial(status)

    @property
    def _tree(self) -> Tree:
        assert self.tree is not None
        return self.tree

    def _start(self) -> None:
        policy = self._prepared.policy
        extra: list[str] = []
        inherited: list[int] = []
        try:
            if policy.home_source is not None:
                _ready_home(policy)
            for root in policy.writable:
                standing = Standins(root, NEVER_MADE, runtime().pool(root))
                self._standins.append(standing)
                absent = [os.path.basename(p) for p in policy.absent if os.path.dirname(p) == root]
                runtime().holds(root)
                standing.make(absent)
            for name, value in self._environment.items():
                extra += ["--setenv", name, value]
            run = [policy.shell, "-c", self._command]
            data = self._command.encode("utf-8", "surrogateescape")
            if len(data) > _LONG_COMMAND:
                script = _in_memory(data)
                inherited.append(script)
                run = [policy.shell, _COMMAND_FILE]
                at_root = ["--perms", "0444", "--ro-bind-data", str(script), _COMMAND_FILE]
                options = bubblewrap.encode([*at_root, *self._prepared.options, *extra])
            else:
                options = self._prepared.encoded + bubblewrap.encode(extra)
            args = _in_memory(options)
            inherited.append(args)
            calls = _in_memory(self._sandbox.filter)
            inherited.append(calls)
            argv = [runtime().token, "--seccomp", str(calls), "--args", str(args), "--", *run]
            launch = Launch(program=self._sandbox.program, argv=argv, inherited=inherited)
            self.tree = Tree(launch, Hooks(output=self._on_output, prepared=self._on_prepared))
            inherited = []
            self.tree.start()
        except BaseException:
            for fd in inherited:
                os.close(fd)
            raise
        loop = asyncio.get_running_loop()
        self._timers.append(loop.call_later(self._timeout_ms / 1000, self._on_timeout))
        self._timers.append(loop.call_later(limits.FIRST, self._on_watch))

    def _on_prepared(self, pid: int) -> None:
        policy = self._prepared.policy
        parent = control_groups()
        if parent is not None:
            bounds = policy.limits
            try:
                name = f"{runtime().token}-{pid}"
                self._group = ControlGroup(parent, name, memory=bounds.memory, processes=bounds.processes + 1)
                self._group.place(pid)
            except OSError:
                # Not delegated to us after all: the watchdog serves.
                if self._group is not None:
                    self._group.remove()
                    self._group = None
        limits.apply(pid, policy.limits, cores=self._sandbox.host.cores, root=self._sandbox.host.uid == 0)

    def _on_output(self, stream: int, data: bytes) -> None:
        if self._tap is not None:
            self._tap(stream, data)
        collector = self._streams[stream]
        collector.feed(data)
        if self._listener is not None and collector.waiting > _LIVE_MOST:
            self._tree.pause(True)

    def _on_timeout(self) -> None:
        if not self._tree.exited:
            self._timed_out = self._tree.status.ended_because is None
            self._tree.end(f"it ran longer than {self._timeout_ms} ms (bash_timeout_ms)")

    def _on_watch(self) -> None:
        if self._tree.exited:
            return
        verdict = self._watchdog.verdict(self._tree.pid) if self._tree.pid else None
        if verdict is not None:
            self._tree.end(f"it used {verdict}")
            return
        self._timers[1] = asyncio.get_running_loop().call_later(limits.INTERVAL, self._on_watch)

    async def _report(self, *, last: bool = False) -> int:
        """Hand what came to whoever listens; while they are slow, the command is too. Gives how many pieces there were."""
        pieces = 0
        for stream, name in ((1, "stdout"), (2, "stderr")):
            collector = self._streams[stream]
            if self._listener is None or not (last or collector.waiting):
                continue
            text = collector.finish() if last else collector.take()
            if text:
                pieces += 1
                await self._listener(name, text)
        if self.tree is not None and not last:
            self.tree.pause(False)
        return pieces

    def _clean(self) -> Status:
        for timer in self._timers:
            timer.cancel()
        status = self.tree.finish() if self.tree is not None else Status()
        if self._group is not None:
            if status.ended_because is None and self._group.exceeded():
                limit = self._prepared.policy.limits.memory // (1024 * 1024)
                status.exit_code, status.ended_because = None, f"it used more than {limit} MiB of memory"
            self._group.remove()
            self._group = None
        for standing in self._standins:
            standing.remove()
            runtime().released(standing.folder)
        self._standins = []
        return status

    def partial(self, status: Status | None = None) -> Outcome:
        """What there is: the end, or what came before a cancel."""
        if status is None:
            status = self.tree.status if self.tree is not None else Status()
        out, err, truncated = share(self._streams[1], self._streams[2], self._prepared.policy.limits.output)
        return Outcome(
            exit_code=status.exit_code,
            stdout=out,
            stderr=err,
            truncated=truncated,
            timed_out=self._timed_out,
            ended_because=status.ended_because,
            last_line=self._streams[1].last_line(),
            duration_ms=(time.perf_counter() - self._began) * 1000,
        )


def _stamp(path: str) -> tuple[int, int]:
    """What changes when a file does."""
    try:
        status = os.stat(path)
    except OSError:
        return (0, 0)
    return (status.st_mtime_ns, status.st_size)


def _ready_home(policy: Policy) -> None:
    """Make the folders of a kept home that things are mounted in; a link that a command put there instead goes."""
    assert policy.home_source is not None
    for below in bubblewrap.kept_folders(policy):
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
            # Made anew by every command, and it must not be there before.
            if os.path.isdir(own) and not os.path.islink(own):
                raise SandboxError(f"{own} stands where the link {path} -> {target} must be; remove it")
            os.unlink(own)


_groups: list[str | None] = []


def control_groups() -> str | None:
    """Where groups can be made, None where they cannot; looked for once."""
    if not _groups:
        _groups.append(find_parent())
    return _groups[0]


_machine: Host | None = None


def machine() -> Host:
    """This machine, looked at once."""
    global _machine
    if _machine is None:
        _machine = Host.look()
    return _machine


_checked = False


async def check() -> None:
    """Raise `SandboxMissing` where this machine cannot give a sandbox; a real one is tried, once per process."""
    global _checked
    if _checked:
        return
    try:
        outcome = await Sandbox(Wards(bash_timeout_ms=10_000), None).run("exit 7")
    except SandboxMissing:
        raise
    except SandboxError as error:
        raise SandboxMissing(str(error)) from error
    if outcome.exit_code != 7:
        raise SandboxMissing(
            f"a sandbox was made, but a command in it fails: {outcome.stderr or outcome.ended_because}"
        )
    _checked = True


def _in_memory(data: bytes) -> int:
    """A descriptor to read the data from, from its beginning."""
    fd = os.memfd_create("cantrip", os.MFD_CLOEXEC)
    os.write(fd, data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _workspace(workspace: Path | str | None) -> str | None:
    if workspace is None:
        return None
    real = os.path.realpath(workspace)
    if not os.path.isdir(real):
        what = "is not a folder" if os.path.exists(real) else "does not exist"
        raise DefinitionError(f"the workspace {workspace} {what}")
    if not os.access(real, os.R_OK | os.X_OK):
        raise DefinitionError(f"the workspace {workspace} cannot be read by the user who runs this")
    return real


def _writable(paths: tuple[str, ...], given: Path | str | None, workspace: str | None) -> tuple[str, ...]:
    """The wards' paths as real paths. One that was named below the workspace must not lead out of it by a link."""
    found: list[str] = []
    base = os.path.abspath(given) if given is not None else None
    for path in paths:
        if not os.path.isabs(path):
            if base is None:
                raise DefinitionError(f"{path} is relative, and there is no workspace", where="bash_writable_paths")
            path = os.path.join(base, path)
        path = os.path.normpath(path)
        real = os.path.realpath(path)
        if base is not None and workspace is not None and (path == base or path.startswith(base.rstrip("/") + "/")):
            if real != workspace and not real.startswith(workspace.rstrip("/") + "/"):
                raise DefinitionError(f"{path} leads out of the workspace, to {real}", where="bash_writable_paths")
        if not os.path.isdir(real):
            if os.path.exists(real):
                raise DefinitionError(f"{path} is not a folder", where="bash_writable_paths")
            try:
                os.makedirs(real, exist_ok=True)
            except OSError as error:
                raise DefinitionError(
                    f"{path} does not exist and cannot be made: {error.strerror}", where="bash_writable_paths"
                ) from error
        found.append(real)
    return tuple(dict.fromkeys(found))


__all__ = ["Findings", "Outcome", "Running", "Sandbox", "check", "machine"]
