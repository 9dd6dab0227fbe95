"""Sandbox of one entity: keeps its policy up to date and runs its commands.

    sandbox = Sandbox(SandboxOptions(), workspace)
    outcome = await sandbox.run("make test")

Expensive work is done once: the facts about the machine, the prepared folders, the arguments. Before each command,
only the files in the workspace that matter for the policy are checked again.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from cantrip_acp.files import guarded, hidden_paths, scratch_copy
from cantrip_acp.files import paths as folders
from cantrip_acp.files.env_files import is_env_file, masked_file
from cantrip_acp.files.paths import within, within_any
from cantrip_acp.files.quarantine import Quarantined
from cantrip_acp.files.scratch_copy import copy_folders, source_of
from cantrip_acp.sandbox.gate_ipc.server import Call, GateWire, WireSession
from cantrip_acp.sandbox.launch import availability, bubblewrap, process_tree, seatbelt, seccomp
from cantrip_acp.sandbox.launch.command import Ask, Listener, Outcome, Prepared, Running, Tap, control_groups
from cantrip_acp.sandbox.launch.environment_programs import ProgramsFolder, programs_folder
from cantrip_acp.sandbox.launch.git_copies import GitCopy, git_copy
from cantrip_acp.sandbox.launch.new_names import Watched, recover
from cantrip_acp.sandbox.launch.process_tree import sandbox_error
from cantrip_acp.sandbox.launch.runtime_dir import runtime
from cantrip_acp.sandbox.launch.shared_network import SharedNetwork
from cantrip_acp.sandbox.launch.unix_sockets import Supervisor, supervisor
from cantrip_acp.sandbox.policy import git_repositories
from cantrip_acp.sandbox.policy.git_repositories import config_files, git_folders, redacted_config
from cantrip_acp.sandbox.policy.host_toolchains import Host
from cantrip_acp.sandbox.policy.policy import Policy, SandboxOptions, check_roots, compose, real_paths
from cantrip_acp.sandbox.policy.protected import NEVER_MADE, Findings, Survey
from cantrip_acp.types.errors import DefinitionError, SandboxError

_SLOW_SEARCH = 0.005
"""Seconds. If the search in a workspace takes longer, it counts as slow and is done in a thread."""

_MOST_REPOSITORIES = 16
"""Git folders in the writable folders that commands may use. Those beyond stay read-only."""

_NO_COPIES = (
    "commands and cells cannot write to copies of folders on macOS, where a copy cannot be shown at the path that it "
    "replaces; use Linux for that, or a folder that may be changed"
)


class Sandbox:
    """The sandbox of one entity.

    ``wire``: its gate commands. ``home_source``: a host folder for a home that lasts longer than a turn.
    ``private``: our own folders to hide. ``more_readable``: paths outside the workspace to show.
    ``unix_sockets``: its programs may make Unix sockets even if this kernel cannot keep them from those of the host, because
    they are ours. ``folder``: where commands start if they do not see the whole
    workspace; something in it must be visible. ``memory``: bytes for all its processes. ``devices``: devices of the host
    that its programs may use (Linux).
    Raises `DefinitionError` for options or a workspace that cannot be enforced, and `SandboxMissing`.
    """

    def __init__(
        self,
        options: SandboxOptions,
        workspace: Path | str | None,
        *,
        wire: GateWire | None = None,
        host: Host | None = None,
        home_source: str | None = None,
        private: tuple[str, ...] = (),
        more_readable: tuple[str, ...] = (),
        unix_sockets: bool = False,
        folder: str | None = None,
        memory: int | None = None,
        devices: Iterable[str] = (),
    ) -> None:
        self.host = host if host is not None else machine()
        self.workspace = _workspace(workspace)
        self._writable = real_paths(options.bash_writable_paths, workspace, "bash_writable_paths", writing=True)
        self._options = replace(options, bash_writable_paths=self._writable)
        self._wire = wire
        self._home_source = home_source
        self._private = private
        self._more_readable = more_readable
        self._folder = folder
        self._memory = memory
        self._devices = tuple(devices)
        self._program = availability.find_program()
        self._seatbelt = availability.back_end() == "seatbelt"
        self._own_sockets = unix_sockets
        self._surveys: dict[str, Survey] = {}
        self._copies: dict[str, str] = {}
        self._shared = scratch_copy.current()
        self.network: SharedNetwork | None = None
        """The network that it shares with others; None if each program has its own, or that of the machine."""
        self._prepared: Prepared | None = None
        self._recovered: list[Quarantined] = []
        self._prepare_lock = anyio.Lock()
        self._add_workspace_interpreters()
        self.policy()

    def _add_workspace_interpreters(self) -> None:
        """Add to the host facts the interpreters that virtual environments in the workspace link to."""
        if self.workspace is None:
            return
        folders = [os.path.join(self.workspace, name) for name in (".venv", "venv", "env", ".env")]
        self.host = self.host.with_tools((), [f for f in folders if os.path.isfile(os.path.join(f, "pyvenv.cfg"))])

    @property
    def _slow(self) -> bool:
        return any(survey.seconds > _SLOW_SEARCH for survey in self._surveys.values())

    def policy(self) -> Policy:
        """The policy of a command that would start now."""
        return self._prepare().policy

    def prepared(self) -> Prepared:
        """Everything that is needed to start a command now."""
        return self._prepare()

    def arguments(self) -> list[str]:
        """Bubblewrap's options for a command that would start now."""
        return list(self._prepare().options)

    @property
    def program(self) -> str:
        """The path of the sandbox program (bubblewrap)."""
        return self._program

    @property
    def filter(self) -> bytes:
        """The system call filter; empty on macOS."""
        if self._seatbelt:
            return b""
        own = self._options.bash_network is not True
        sockets = self._own_sockets or self.supervisor is not None
        return seccomp.program(os.uname().machine, seccomp.Allowed(unix_sockets=sockets, attaching=own))

    @property
    def supervisor(self) -> Supervisor | None:
        """The supervisor that separates its Unix sockets from the host's; None if it is not needed or not possible."""
        if self._seatbelt or self._options.bash_network is True:
            return None
        return supervisor(self._program)

    async def share_network(self, pid: int) -> None:
        """Have a network that other sandboxes can `join`: that of a running sandbox with this process, or a new one (pid 0).

        Raises `SandboxError` and OSError, and does nothing where programs have the machine's network, and on macOS.
        """
        if self._seatbelt or self._options.bash_network is True:
            return
        if pid:
            self.network = SharedNetwork.of(pid)
        else:
            self.network = await anyio.to_thread.run_sync(SharedNetwork.make, self._program)
        self._prepared = None

    def join(self, other: Sandbox | None) -> None:
        """Run later programs in the network of another sandbox if it shares one, else in one of their own."""
        network = other.network if other is not None and self._options.bash_network is not True else None
        if network is not self.network:
            self.network = network
            self._prepared = None

    def write_to_copies(self, folder: str) -> bool:
        """Copy all writable folders into ``folder``. Later commands write to the copies, at the same paths inside.

        Returns False if nothing is writable. Blocks. Raises `SandboxError` if a folder cannot be read or is larger
        than `scratch_copy.LARGEST_COPY`, and on macOS, where a copy cannot be shown at another path.
        """
        if self._seatbelt:
            raise SandboxError(_NO_COPIES)
        self._copies = copy_folders(self._prepare().policy.writable, folder)
        self._prepared = None
        return bool(self._copies)

    def _prepare(self) -> Prepared:
        check_roots(self._writable, self.workspace, self.host.home, self._more_readable)
        roots = {r for r in (self.workspace, *self._writable, *self._more_readable) if r}
        gone = next((r for r in sorted(roots) if not os.path.exists(r)), None)
        if gone is not None:
            raise SandboxError(f"{gone} does not exist any more; commands cannot run without it")
        roots = {r for r in roots if not any(r != o and r.startswith(o + "/") for o in roots)}
        if self._writable and not self._seatbelt:
            self._recovered += recover(self._home_of_quarantine)
        findings = {r: self._survey(r).refresh() for r in sorted(roots)}
        writable = self._writable
        existing = tuple(path for root in writable for path in self._existing_protected(root))
        linked = tuple(p for p in existing if os.path.islink(p))
        closed = tuple(r for r in writable if not os.access(r, os.W_OK | os.X_OK))
        repositories = git_folders(self.workspace) if self.workspace is not None else ()
        own = tuple(p for f in findings.values() for p in f.protected if p.endswith("/.git"))
        histories = [*repositories, *own]
        configs = [path for folder in histories for path in config_files(folder)]
        settings = tuple((path, _modified(path)) for path in configs)
        unfetched = (
            git_repositories.unfetched(git_repositories.indexes(own, writable))
            if writable
            else git_repositories.Unfetched()
        )
        environments = [path for found in findings.values() for path in found.hidden if is_env_file(path)]
        settings = (*settings, *((path, _modified(path)) for path in environments))
        private = (*self._private, *_own_folders(roots))
        taken_away = self.taken_away()
        named, named_absent = _named_files(writable, findings)
        home, instead = self._home_source, self._copies
        if self._shared is not None:
            if self._seatbelt:
                raise SandboxError(_NO_COPIES)
            self._shared.add((*writable, *((home,) if home is not None else ())))
            instead = {**self._shared.made, **self._copies}
            home = source_of(home, instead) if home is not None else None
        copies = {r: self._survey(r).refresh() for root in writable if (r := source_of(root, instead)) != root}
        programs = self._programs(findings, instead)
        git = self._git_copies(own, repositories, instead)
        copied = (*((each.path, each.copy) for each in programs), *((each.path, each.copy) for each in git))
        bound = tuple(pair for each in git for pair in each.bound)
        configs = [path for path in configs if not within_any(path, [each.path for each in git])]
        answering = self.supervisor
        key = (
            tuple(findings.values()), existing, linked, closed, settings, unfetched, private, tuple(instead.items()), taken_away,
            named, named_absent, copied, bound, answering is not None, tuple(copies.items()),
        )  # fmt: skip
        if self._prepared is not None and self._prepared.key == key:
            return self._prepared
        # A root may be inside another root. Then the findings of the outer root must also contain the protected names
        # of the inner root.
        for root, found in findings.items():
            findings[root] = replace(found, linked=tuple(sorted({*found.linked, *linked})))
        mine = runtime()
        policy = compose(
            self._options,
            self.workspace,
            self.host,
            findings,
            existing=existing,
            gates=tuple(sorted(self._wire.commands)) if self._wire is not None else (),
            wire=self._wire.folder if self._wire is not None else None,
            home_source=home,
            private=(*private, mine.folder),
            repositories=repositories,
            more_readable=self._more_readable,
            replaced=[
                *bound,
                *((path, mine.write_once(text)) for path in configs if (text := redacted_config(path)) is not None),
                *((path, mine.write_once(text)) for path, text in self.host.settings if not within(path, "/etc")),
                *((path, mine.write_once(text)) for path in environments if (text := masked_file(path)) is not None),
            ],
            copied=copied,
            closed=closed,
            unfetched=unfetched,
            taken_away=taken_away,
            named=named,
            named_absent=named_absent,
            # On macOS a folder of which only a part may be read cannot be entered.
            folder=None if self._seatbelt else self._folder,
            memory=self._memory,
        )
        if self._seatbelt:
            real = seatbelt.real_paths(policy)
            self._prepared = Prepared(key, real, [], b"", self.host, self._program, b"", seatbelt=True)
            return self._prepared
        # Here commands can make these names, and they are moved away.
        policy = replace(policy, absent=())
        host_paths = mine.host_paths(self.host, policy.home, network=policy.network)
        shut = frozenset(p for p in policy.hidden if os.path.isdir(p))
        options = bubblewrap.arguments(
            policy,
            host_paths,
            folders=shut,
            copies=instead,
            devices=self._devices,
            shared_network=(os.getuid(), os.getgid()) if self.network is not None else None,
        )
        self._prepared = Prepared(
            key,
            policy,
            options,
            bubblewrap.encode(options),
            self.host,
            self._program,
            self.filter,
            supervisor=answering,
            programs=programs,
            git=git,
            network=self.network,
            watched=self._watched(policy, findings, copies, named_absent),
        )
        return self._prepared

    @property
    def _home_of_quarantine(self) -> str:
        """The folder whose quarantine gets what its commands make."""
        return self.workspace or self._writable[0]

    def _watched(
        self,
        policy: Policy,
        findings: Mapping[str, Findings],
        copies: Mapping[str, Findings],
        missing: tuple[str, ...],
    ) -> Watched | None:
        if not policy.writable:
            return None
        roots = tuple(copies) or policy.writable
        searched = copies or {r: f for r, f in findings.items() if any(within_any(w, (r,)) for w in policy.writable)}
        return Watched(
            self._home_of_quarantine,
            roots,
            tuple(self._survey(root) for root in searched),
            before=frozenset(name for found in searched.values() for name in found.names),
            shut=frozenset(path for found in searched.values() for path in found.shut),
            missing=missing if not copies else (),
            allowed=self._options.allow_protected,
            copies=bool(copies),
            recovered=self._recovered,
        )

    def _programs(self, findings: Mapping[str, Findings], copies: Mapping[str, str]) -> tuple[ProgramsFolder, ...]:
        """The folders of programs of old virtual environments, of which commands see a copy.

        Where a whole folder is replaced by a copy, and on macOS, they are read-only.
        """
        if self._seatbelt:
            return ()
        found = (
            programs_folder(root, path)
            for root, each in findings.items()
            for path in each.programs
            if within_any(path, self._writable) and not within_any(path, copies)
        )
        return tuple(each for each in found if each is not None)

    def _git_copies(
        self, own: Sequence[str], repositories: Sequence[str], copies: Mapping[str, str]
    ) -> tuple[GitCopy, ...]:
        """The git folders that commands may use, each with its copy. The others, and all on macOS, are read-only."""
        if self._seatbelt or not self._options.git_writes or self.workspace is None:
            return ()
        worktree = git_repositories.worktree_name(self.workspace)
        inside = [path for path in own if within_any(path, self._writable) and os.path.isdir(path)]
        outside = [path for path in repositories if self.workspace in self._writable]
        found = [git_copy(path, self._writable) for path in inside[:_MOST_REPOSITORIES] if not within_any(path, copies)]
        found += [git_copy(path, self._writable, worktree) for path in outside if path not in inside]
        return tuple(each for each in found if each is not None)

    def seatbelt_profile(self, home: str, temporary: str) -> seatbelt.Profile:
        """The policy as a profile for macOS's sandbox-exec, with these private folders."""
        return seatbelt.profile(self.policy(), home=home, temporary=temporary)

    def taken_away(self) -> tuple[str, ...]:
        """The real paths that ``hidden_paths`` names and that exist now, and the files that this process has open."""
        base = self.workspace or "/"
        patterns = [os.path.join(base, pattern) for pattern in self._options.hidden_paths]
        open_here = guarded.held(self._writable)
        named = hidden_paths.existing(patterns)
        return tuple(sorted({*named, *(path for path in open_here if not within_any(path, named))}))

    def hides_what(self, known: frozenset[tuple[str, int]]) -> bool:
        """Whether a process that began when `identities` were ``known`` still sees nothing that is hidden now."""
        return self.identities() <= known

    def identities(self) -> frozenset[tuple[str, int]]:
        """The hidden files and folders, each with its inode: a file that replaced another one is not covered by its mount."""
        found = set()
        for path in self.taken_away():
            with suppress(OSError):
                found.add((path, os.stat(path).st_ino))
        return frozenset(found)

    def _survey(self, root: str) -> Survey:
        return self._surveys.setdefault(root, Survey(root, frozenset(self._options.allow_protected)))

    def _existing_protected(self, root: str) -> Iterable[str]:
        """The paths of protected names that exist at the top of a writable folder."""
        for survey in self._surveys.values():
            if (found := survey.at(root)) is not None:
                return found
        paths = [os.path.join(root, name) for name in NEVER_MADE]
        allowed = self._options.allow_protected
        return [path for path in paths if os.path.basename(path) not in allowed and os.path.lexists(path)]

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
        ask: Ask | None = None,
    ) -> Outcome:
        """Run one shell command and wait until none of its processes is left.

        ``listener`` receives the output as cleaned text, ``tap`` as bytes. ``environment``: further variables.
        ``call`` answers gate calls, if the sandbox has gate commands. ``ask`` is asked whether a host may be reached that the
        policy does not list; the timeout does not count meanwhile. Without it such a host is refused at once.
        ``started`` is called with a handle that can kill
        the command early. On cancellation the tree is killed, and `Running.partial` returns the output so far.
        Raises `SandboxMissing` if the sandbox cannot be set up, and `SandboxError` if this command cannot run.
        """
        if "\0" in command:
            raise SandboxError("a command cannot contain a NUL character")
        try:
            if self._slow:
                # The search takes long, so do it in a thread. The event loop must not be blocked.
                async with self._prepare_lock:
                    prepared = await anyio.to_thread.run_sync(self._prepare)
            else:
                prepared = self._prepare()
        except OSError as error:
            raise sandbox_error("the sandbox cannot be prepared", error) from error
        running = Running(prepared, command, listener, tap, environment or {}, timeout_ms, ask)
        if started is not None:
            started(running)
        wired = self._wire is not None and call is not None
        if not wired and prepared.policy.hosts is None:
            return await running.run()
        return await _served(self._wire, call, running)


async def _served(wire: GateWire | None, call: Call | None, running: Running) -> Outcome:
    """Run a command, and at the same time answer its gate calls and serve its proxy."""
    try:
        async with anyio.create_task_group() as group:
            started_tasks = False

            def start_task(work: Callable[..., Coroutine[Any, Any, object]], *args: object) -> None:
                nonlocal started_tasks
                started_tasks = True
                process_tree.start_soon(group, work, *args)

            running.set_task_starter(start_task)
            session = None
            if wire is not None and call is not None:
                session = WireSession(wire, call, start_task, lambda: running.pid)
                session.open()
            try:
                return await running.run()
            finally:
                if session is not None:
                    session.close()
                if started_tasks:
                    # Cancel only if needed. Most commands call no gate, and a cancel takes as long as a gate call.
                    group.cancel_scope.cancel()
    except BaseExceptionGroup as failures:
        # Raise the first failure and not the group, because callers do not know about the task group.
        first: BaseException = failures
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise first from None
    raise SandboxError("the command ended without an outcome")


def _named_files(writable: Sequence[str], findings: Mapping[str, Findings]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The files that recipes name and that are not protected otherwise: existing ones in writable folders, then missing ones
    whose folder exists. A link cannot be protected; its target can."""
    known = {path for found in findings.values() for path in (*found.protected, *found.hidden)}
    there: set[str] = set()
    absent: set[str] = set()
    for path in guarded.named():
        real = os.path.realpath(path)
        if not within_any(real, writable) or within_any(real, known):
            continue
        if os.path.isfile(real):
            there.add(real)
        elif not os.path.lexists(real) and os.path.isdir(os.path.dirname(real)):
            absent.add(real)
    return tuple(sorted(there)), tuple(sorted(absent))


def _own_folders(roots: Iterable[str]) -> tuple[str, ...]:
    """Our own folders to hide: state, and also configuration, unless a root is in the configuration folder."""
    states, config = folders.own()
    named = any(root == config or root.startswith(f"{config}/") for root in roots)
    return tuple(sorted(path for path in (*states, *(() if named else (config,))) if os.path.isdir(path)))


def _modified(path: str) -> tuple[int, int]:
    """A file's modification time (ns) and size in bytes. They change when the file changes."""
    try:
        status = os.stat(path)
    except OSError:
        return (0, 0)
    return (status.st_mtime_ns, status.st_size)


_machine: Host | None = None
_machine_lock = threading.Lock()


def machine() -> Host:
    """Facts about this machine. They are read once per process."""
    global _machine
    with _machine_lock:
        if _machine is None:
            _machine = Host.detect()
        return _machine


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


__all__ = ["Ask", "Listener", "Outcome", "Prepared", "Running", "Sandbox", "Tap", "control_groups", "machine"]
