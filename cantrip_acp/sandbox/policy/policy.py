"""Makes the policy of a sandbox: what is visible and writable inside, and with which limits.

A `Policy` is a frozen value, and `compose` is a pure function that makes it. Nothing is visible by default. The
fields ``system``, ``tools``, ``readable`` and ``writable`` add paths; ``protected``, ``absent`` and ``hidden``
restrict them again.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from cantrip_acp.files import guarded
from cantrip_acp.files.paths import within, within_any
from cantrip_acp.files.protected_paths import is_secret_file, plain, protected_by
from cantrip_acp.sandbox.network.hosts import AllowedHosts
from cantrip_acp.sandbox.policy.git_repositories import Unfetched
from cantrip_acp.sandbox.policy.host_toolchains import Host
from cantrip_acp.sandbox.policy.protected import NEVER_MADE, Findings
from cantrip_acp.types.errors import DefinitionError, SandboxError

WIRE = "/run/cantrip"
"""The path of the folder with the gate commands, inside the sandbox."""

PROXY_PORT = 21128
"""The port at 127.0.0.1 inside the sandbox where the filtering proxy listens."""

MIB = 1024 * 1024
LEAST_MEMORY = 4096 * MIB
"""Bytes that all processes of a sandbox may use, even on a small machine."""

_ALL_FETCHED = Unfetched()


@dataclass(frozen=True, slots=True)
class SandboxOptions:
    """What commands in a sandbox may reach and use. By default they read the workspace, write nothing and have no network.

    - ``bash_writable_paths``: folders that may be written. Relative paths start from the workspace.
    - ``bash_network``: True, or the hosts that may be reached with HTTP and HTTPS (`AllowedHosts.of`) through a proxy, which may
      ask about others. With False there is no proxy either.
    - ``allow_protected``: names of protected files (``.git``, ``.vscode``, …) that may be written all the same.
    - ``hidden_paths``: patterns of files and folders that are not visible. Relative ones start from the workspace.
    - ``bash_timeout_ms``: milliseconds of one command. ``bash_max_output_bytes``: bytes that are kept of its output.
    - ``sandbox_max_processes``: processes at once; None: 128 for each processor, at least 1024.
    - ``sandbox_cpu_percent``: processor time in per cent of one processor.
    - ``git_writes``: whether git works in the repositories of the writable folders: refs, index and objects can change, settings,
      hooks and everything that may run a program cannot.

    The names are those of the wards of a circle, and errors use them.
    """

    bash_writable_paths: tuple[str, ...] = ()
    bash_network: bool | tuple[str, ...] = False
    allow_protected: tuple[str, ...] = ()
    hidden_paths: tuple[str, ...] = ()
    bash_timeout_ms: int = 120_000
    bash_max_output_bytes: int = 100_000
    sandbox_max_processes: int | None = None
    sandbox_cpu_percent: int | None = None
    git_writes: bool = False


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one command: sizes in bytes, times in milliseconds. ``memory``, ``processes`` and ``cpu_percent`` (of one
    processor) apply to the whole tree. ``temporary``: of each private folder. The hard limits of this process also apply."""

    timeout_ms: int = 120_000
    output: int = 100_000
    processes: int = 512
    memory: int = LEAST_MEMORY
    file: int = 1024 * 1024 * MIB
    open_files: int = 1024 * 1024
    temporary: int = 1024 * MIB
    shared_memory: int = 1024 * MIB
    cpu_percent: int | None = None

    @classmethod
    def on(cls, host: Host, options: SandboxOptions, memory: int | None) -> Limits:
        """The limits that options set, and else the size of the machine: half of its memory, a quarter in a private folder.

        ``memory``: bytes that replace the machine's half.
        """
        private = max(1024 * MIB, host.memory // 4)
        return cls(
            timeout_ms=options.bash_timeout_ms,
            output=options.bash_max_output_bytes,
            processes=options.sandbox_max_processes or max(1024, 128 * host.cores),
            memory=memory or max(LEAST_MEMORY, host.memory // 2),
            temporary=private,
            shared_memory=private,
            cpu_percent=options.sandbox_cpu_percent,
        )


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy. Paths are absolute and real, and each tuple is sorted.

    ``folder``: the working folder of commands. ``tools``: folders and files of the user's programs, read-only.
    ``pinned``: folders between a writable root and a protected path; they cannot be renamed. ``absent``: protected
    names that do not exist. ``hidden``: paths whose content is replaced by a note. ``replaced``: (path, host file)
    pairs; the path shows the content of the host file. ``copied``: (path, host folder) pairs; commands write to the
    host folder, and what they may change at the path is taken over from there. ``hosts``: the entries that the
    filtering proxy allows; None if there is no proxy. ``home``: the path of the private home folder inside.
    ``home_source``: the host folder that contains it; None if it ends with the turn. ``wire``: the host folder with
    the gate commands.
    """

    folder: str
    workspace: str | None
    system: tuple[tuple[str, str | None], ...]
    tools: tuple[str, ...]
    links: tuple[tuple[str, str], ...]
    readable: tuple[str, ...]
    writable: tuple[str, ...]
    protected: tuple[str, ...]
    pinned: tuple[str, ...]
    absent: tuple[str, ...]
    hidden: tuple[str, ...]
    replaced: tuple[tuple[str, str], ...]
    copied: tuple[tuple[str, str], ...]
    home: str
    home_source: str | None
    gates: tuple[str, ...]
    wire: str | None
    network: bool
    hosts: tuple[str, ...] | None
    environment: tuple[tuple[str, str], ...]
    shell: str
    limits: Limits

    def reasons(self) -> dict[str, str]:
        """For each protected path and each path that cannot be created: the reason why it is protected."""
        found: dict[str, str] = {}
        for path in (*self.protected, *self.absent):
            *_, folder, name = ["", *map(plain, path.split("/"))]
            row = protected_by(name, folder)
            if row is None and (named := guarded.why_named(path)) is not None:
                found[path] = named
                continue
            if row is None and name in ("bin", "scripts"):
                row = protected_by("python", "bin")
            found[path] = row.reason if row is not None else "git expects a submodule there"
        return found


def check_roots(writable: Iterable[str], workspace: str | None, home: str, more_readable: Iterable[str] = ()) -> None:
    """Raise `DefinitionError` for a path that may never be written or shown. Call it before searching in the path."""
    for root in _outermost(writable):
        check_root(root, home, "bash_writable_paths", writing=True)
    if workspace is not None:
        check_root(workspace, home, "the workspace", writing=False)
    for root in more_readable:
        check_root(root, home, "code_readable_paths", writing=False)


def compose(
    options: SandboxOptions,
    workspace: str | None,
    host: Host,
    findings: Mapping[str, Findings],
    *,
    existing: Iterable[str] = (),
    gates: tuple[str, ...] = (),
    wire: str | None = None,
    home_source: str | None = None,
    private: Iterable[str] = (),
    repositories: Iterable[str] = (),
    more_readable: Iterable[str] = (),
    replaced: Iterable[tuple[str, str]] = (),
    copied: Iterable[tuple[str, str]] = (),
    closed: Iterable[str] = (),
    unfetched: Unfetched = _ALL_FETCHED,
    taken_away: Iterable[str] = (),
    named: Iterable[str] = (),
    named_absent: Iterable[str] = (),
    folder: str | None = None,
    memory: int | None = None,
) -> Policy:
    """Make a policy from options, a workspace and the protected paths found there.

    ``workspace`` and the options' writable paths are real paths. ``findings`` has an entry for each readable or writable root.
    ``existing``: paths of `NEVER_MADE` names that exist. ``private``: our own folders that must stay hidden.
    ``repositories``: git folders outside the workspace (of worktrees). ``more_readable``: files and folders outside
    the workspace to show. ``replaced``, ``copied``: see `Policy`. ``closed``: writable folders in which this user cannot create
    entries. ``unfetched``: submodule folders without a repository. ``taken_away``: the real
    paths that ``hidden_paths`` names: nothing in them is visible, whatever else says so. ``named``: files that recipes
    name, which cannot be written; ``named_absent``: those that do not exist, in folders that do. ``folder``: where commands
    start, if it is not the workspace. Raises `DefinitionError` for options that cannot be
    enforced, and `SandboxError` if a protected path is a symbolic link.
    """
    network = options.bash_network
    hosts = AllowedHosts.of(network) if isinstance(network, tuple) else None
    taken_away = tuple(taken_away)
    if workspace is not None and within_any(workspace, taken_away):
        raise DefinitionError(f"{workspace} is the workspace itself; name what to hide in it", where="hidden_paths")
    writable = tuple(p for p in _outermost(options.bash_writable_paths) if not within_any(p, taken_away))
    more_readable = tuple(p for p in more_readable if not within_any(p, taken_away))
    check_roots(writable, workspace, host.home, more_readable)
    readable: tuple[str, ...] = (workspace,) if workspace is not None else ()
    for root in more_readable:
        readable = _outermost((*readable, root))
    for root in writable:
        guard = next((part for part in root.split("/") if part in NEVER_MADE), None)
        if guard is not None:
            raise DefinitionError(f"{root} cannot be writable: {guard} is protected", where="bash_writable_paths")
    repositories = tuple(repositories)
    protected: set[str] = set()
    hidden: set[str] = set()
    for found in findings.values():
        protected.update(p for p in found.protected if within_any(p, writable))
        hidden.update(found.hidden)
    for link in (*(link for found in findings.values() for link in found.linked), *unfetched.linked):
        if within_any(link, writable):
            raise SandboxError(
                f"{link} is a symbolic link. Commands may write its folder, and a link in such a folder cannot be protected. "
                "Put the real file or folder in its place (for .git a file with the line gitdir: FOLDER, and the setting "
                "core.worktree in that repository), take its folder out of bash_writable_paths, or name it in the ward "
                "allow_protected of a recipe that you trust"
            )
    protected.update(p for p in named if within_any(p, writable))
    protected.update(p for p in unfetched.empty if within_any(p, writable) and p not in writable)
    hidden.update(p for p in private if within_any(p, (*readable, *writable)))
    # A mount below a hidden folder would show through it.
    protected = {p for p in protected if not within_any(p, taken_away)}
    hidden = {p for p in hidden if not within_any(p, taken_away)}
    hidden.update(p for p in taken_away if within_any(p, (*readable, *writable)))
    protected -= hidden
    present, shut = set(existing), set(closed)
    absent = {
        path
        for root in writable
        if root not in shut
        for name in NEVER_MADE
        if name not in options.allow_protected
        if (path := os.path.join(root, name)) not in present and path not in protected and path not in hidden
    }
    absent.update(p for p in (*unfetched.missing, *named_absent) if within_any(p, writable))
    absent -= hidden
    pinned = {
        parent
        for path in protected | hidden | absent
        for root in writable
        if within(path, root)
        for parent in _between(path, root)
    }
    shown = (*readable, *writable)
    tools = tuple(t for t in host.tools if not within_any(t, (*shown, *taken_away)))
    home = host.home if host.home and not within_any(host.home, shown) and host.home not in _HOMELESS else "/home/user"
    return Policy(
        folder=workspace or folder or "/tmp",
        workspace=workspace,
        system=host.system,
        tools=tools,
        links=tuple(link for link in host.links if not within_any(link[0], shown)),
        readable=tuple(sorted({*readable, *(r for r in repositories if not within_any(r, (*shown, *taken_away)))})),
        writable=writable,
        protected=tuple(sorted(protected)),
        pinned=tuple(sorted(pinned - set(writable))),
        absent=tuple(sorted(absent)),
        hidden=tuple(sorted(hidden)),
        replaced=tuple(sorted(each for each in replaced if not within_any(each[0], taken_away))),
        copied=tuple(each for each in copied if each[0] in protected or each[0] in repositories),
        home=home,
        home_source=home_source,
        gates=gates,
        wire=wire,
        network=network is True,
        hosts=hosts.entries if hosts is not None else None,
        environment=_environment(host, home, bool(wire), hosts),
        shell=host.shell,
        limits=Limits.on(host, options, memory),
    )


_HOMELESS = frozenset({"/", "/nonexistent", "/dev/null", "/tmp", "/var/empty", "/run", "/usr", "/etc", "/proc", "/dev"})
_FORBIDDEN = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/boot", "/dev", "/proc", "/sys",
              "/run/cantrip", "/nix/store")  # fmt: skip
_TOO_WIDE = frozenset({"/", "/home", "/root", "/var", "/run", "/opt", "/srv", "/mnt", "/media", "/Users"})


def check_root(root: str, home: str, what: str, *, writing: bool) -> None:
    """Raise `DefinitionError` for a real path that is too wide, or of the system. ``what`` is the ward that names it."""
    verb = "written" if writing else "shown"
    if any(ord(c) < 32 for c in root):
        raise DefinitionError(
            f"{what}: {root!r} has a control character in its name, and cannot be {verb} in a sandbox"
        )
    if within_any(root, _FORBIDDEN) or root in _TOO_WIDE or (home and within(home, root)):
        kind = "your home folder or holds it" if home and within(home, root) else "a folder of the system"
        raise DefinitionError(f"{what}: {root} is {kind}, and is never {verb} in a sandbox; name a folder inside it")


def _environment(host: Host, home: str, wired: bool, hosts: AllowedHosts | None) -> tuple[tuple[str, str], ...]:
    """All environment variables of a command, except for the trace context. ``wired``: there are gate commands."""
    path = ":".join(([f"{WIRE}/bin"] if wired else []) + list(host.path))
    values = {
        "LANG": "C.UTF-8",
        **dict(host.environment),
        "HOME": home,
        "PATH": path,
        "USER": host.user,
        "LOGNAME": host.user,
        "SHELL": host.shell,
        "TMPDIR": "/tmp",
        "TERM": "dumb",
        "PAGER": "cat",
        "GIT_PAGER": "cat",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_OPTIONAL_LOCKS": "0",
        # git refuses a repository whose files belong to another user. It is safe to allow that here: programs that a
        # repository makes git run stay in the sandbox.
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "safe.directory",
        "GIT_CONFIG_VALUE_0": "*",
        **(_through_proxy(hosts) if hosts is not None else {}),
    }
    return tuple(sorted(values.items()))


def _through_proxy(hosts: AllowedHosts) -> dict[str, str]:
    """Environment variables that make programs use the proxy.

    Connections to services inside the sandbox bypass the proxy, unless ``hosts`` names the loopback address.
    """
    outside = hosts.loopback()
    direct = ",".join(name for name in ("localhost", "127.0.0.1", "::1") if name not in outside)
    if not outside:
        direct += ",sandbox,127.0.0.0/8"
    values = {"NO_PROXY": direct, "NODE_USE_ENV_PROXY": "1"}
    if not hosts.entries:
        # By default pip tries a host five times, 9 seconds in all, and waits 15 seconds, while a person may still read a question.
        values |= {"PIP_RETRIES": "1", "PIP_DEFAULT_TIMEOUT": "300"}
    return {**values, "no_proxy": direct, **proxy_variables(PROXY_PORT)}


def proxy_variables(port: int) -> dict[str, str]:
    """Environment variables with the address of a proxy at this port of the loopback interface."""
    names = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
    return dict.fromkeys((*names, *map(str.lower, names)), f"http://127.0.0.1:{port}")


def _between(path: str, root: str) -> list[str]:
    """The folders between a root and a path below it, without the root and the path."""
    out = []
    parent = os.path.dirname(path)
    while parent != root and len(parent) > len(root):
        out.append(parent)
        parent = os.path.dirname(parent)
    return out


def _outermost(paths: Iterable[str]) -> tuple[str, ...]:
    unique = sorted(set(paths))
    return tuple(p for p in unique if not any(p != o and within(p, o) for o in unique))


def real_paths(
    paths: Iterable[str], workspace: Path | str | None, where: str, *, writing: bool = False
) -> tuple[str, ...]:
    """The real paths of what the option ``where`` names, without doubles. Relative paths start from the workspace.

    Raises `DefinitionError` for a path that does not exist, leads out of the workspace by a link, is no folder
    (``writing``), or is always hidden. Nothing is made: a typo would leave folders behind.
    """
    base = os.path.abspath(workspace) if workspace is not None else None
    own = os.path.realpath(base) if base is not None else None
    found: dict[str, None] = {}
    for path in paths:
        if not os.path.isabs(path) and base is None:
            raise DefinitionError(f"{path} is relative, and there is no workspace", where=where)
        path = os.path.normpath(os.path.join(base or "/", path))
        real = os.path.realpath(path)
        if base is not None and own is not None and within(path, base) and not within(real, own):
            raise DefinitionError(f"{path} leads out of the workspace, to {real}", where=where)
        if not os.path.exists(real):
            mend = f". Make the folder (mkdir -p {shlex.quote(path)}), or correct the path" if writing else ""
            raise DefinitionError(f"{path} does not exist{mend}", where=where)
        if writing and not os.path.isdir(real):
            raise DefinitionError(f"{path} is not a folder", where=where)
        if not os.path.isdir(real) and (is_secret_file(plain(os.path.basename(real))) or not os.path.isfile(real)):
            raise DefinitionError(
                f"{path} is always hidden: its name is one that secrets have, or it is not a regular file", where=where
            )
        found[real] = None
    return tuple(found)
