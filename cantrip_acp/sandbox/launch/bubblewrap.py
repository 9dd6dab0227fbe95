"""Makes the bubblewrap arguments of a policy. This is a pure function, and snapshot tests check its output.

Mounts are made in path order, so that the most specific path wins. Each mount costs about 0.1 ms per command. So /etc
is one prepared folder and not one mount for each file.
bubblewrap reads the arguments from a descriptor that is filled before it starts. If we are killed before that, the
descriptor contains no arguments, and then the command sees no file that it could run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cantrip_acp.files.scratch_copy import source_of
from cantrip_acp.sandbox.policy.policy import WIRE, Policy


@dataclass(frozen=True, slots=True)
class HostPaths:
    """Host paths that a policy's arguments use: the prepared /etc, and the note that replaces hidden files.

    ``bound``: folders below /etc that are the host's own.
    """

    etc: str
    note: str
    bound: tuple[str, ...] = ()


_PROCESSORS = "/sys/devices/system"
"""Processors and memory banks, as build tools and runtimes count them. The rest of /sys is not shown."""
NAMESPACES = ("--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-uts", "--unshare-cgroup-try")
_EMPTY_SIZE = 4096
"""The size in bytes of the empty, read-only file system that is mounted over hidden folders."""


NO_COPIES: Mapping[str, str] = {}


def arguments(
    policy: Policy,
    host_paths: HostPaths,
    *,
    folders: frozenset[str] = frozenset(),
    copies: Mapping[str, str] = NO_COPIES,
    devices: tuple[str, ...] = (),
    shared_network: tuple[int, int] | None = None,
) -> list[str]:
    """Bubblewrap's options for a policy, without the program and its command.

    ``folders``: the hidden paths that are folders; an empty folder replaces them instead of the note. ``copies``: the
    host folder that replaces a path, for each replaced path. Commands then write to the copy and never to the path.
    ``devices``: devices of the host to show. ``shared_network``: bubblewrap is started in a network namespace that it
    keeps, whose user namespace may have other numbers for this user and group.
    """
    args = [*NAMESPACES]
    if not policy.network and shared_network is None:
        args.append("--unshare-net")
    if shared_network is not None:
        args += ["--uid", str(shared_network[0]), "--gid", str(shared_network[1])]
    args += ["--die-with-parent", "--new-session", "--cap-drop", "ALL", "--hostname", "sandbox"]
    for name, value in policy.environment:
        args += ["--setenv", name, value]
    limits = policy.limits
    mounts: list[tuple[tuple[str, ...], int, list[str]]] = []

    def add(path: str, rank: int, *options: str) -> None:
        mounts.append((tuple(path.split("/")), rank, list(options)))

    for path, target in policy.system:
        if target is None:
            add(path, 0, "--ro-bind", path, path)
        else:
            add(path, 0, "--symlink", target, path)
    add("/etc", 0, "--ro-bind", host_paths.etc, "/etc")
    for folder in host_paths.bound:
        add(folder, 0, "--ro-bind", folder, folder)
    add("/proc", 0, "--proc", "/proc")
    add("/dev", 0, "--dev", "/dev")
    add("/dev/shm", 0, "--perms", "1777", "--size", str(limits.shared_memory), "--tmpfs", "/dev/shm")
    add("/tmp", 0, "--perms", "1777", "--size", str(limits.temporary), "--tmpfs", "/tmp")
    add("/var/tmp", 0, "--symlink", "/tmp", "/var/tmp")
    # Where Debian's PostgreSQL puts its Unix socket.
    add("/run/postgresql", 0, "--symlink", "/tmp", "/run/postgresql")
    add("/var/run", 0, "--symlink", "/run", "/var/run")
    for folder in ("/var/lib", "/var/log", "/opt", "/mnt", "/srv"):
        add(folder, 0, "--dir", folder)
    add(_PROCESSORS, 0, "--ro-bind-try", _PROCESSORS, _PROCESSORS)
    if policy.home_source is not None:
        add(policy.home, 0, "--bind", policy.home_source, policy.home)
        # The home folder lasts longer than the turn, and commands can write there. So folders that lead to mount points
        # must exist, and commands must not replace them.
        for below in mount_point_parents(policy):
            add(f"{policy.home}/{below}", 0, "--bind", f"{policy.home_source}/{below}", f"{policy.home}/{below}")
    else:
        add(policy.home, 0, "--perms", "0700", "--size", str(limits.temporary), "--tmpfs", policy.home)
    for path, target in policy.links:
        add(path, 1, "--symlink", target, path)
    for path in policy.tools:
        add(path, 1, "--ro-bind", path, path)
    if policy.wire is not None:
        add(WIRE, 1, "--ro-bind", policy.wire, WIRE)
        add(f"{WIRE}/requests", 1, "--perms", "0700", "--size", str(REQUESTS_SIZE), "--tmpfs", f"{WIRE}/requests")
    for path in policy.readable:
        if path not in policy.writable:
            add(path, 2, "--ro-bind", source_of(path, copies), path)
    for path, copy in copies.items():
        # The files that gates wrote into a copy must be visible at the path that it replaces.
        if any(path.startswith(above.rstrip("/") + "/") for above in policy.readable) and path not in policy.writable:
            add(path, 2, "--ro-bind", copy, path)
    for path in policy.writable:
        add(path, 3, "--bind", source_of(path, copies), path)
    for path in policy.pinned:
        add(path, 4, "--bind", source_of(path, copies), path)
    own = dict(policy.copied)
    for path in policy.protected:
        add(path, 5, *(("--bind", own[path]) if path in own else ("--ro-bind", source_of(path, copies))), path)
    for path in own.keys() - set(policy.protected):
        add(path, 5, "--bind", own[path], path)
    masked = {path for path, _ in policy.replaced}
    for path in policy.hidden:
        if path in masked:
            continue
        if path in folders:
            add(path, 6, "--perms", "0555", "--size", str(_EMPTY_SIZE), "--tmpfs", path)
        else:
            add(path, 6, "--ro-bind", host_paths.note, path)
    for path, source in policy.replaced:
        add(path, 7, "--ro-bind", source, path)
    for _, _, options in sorted(mounts, key=lambda m: (m[0], m[1])):
        args += options
    for device in devices:
        args += ["--dev-bind-try", device, device]
    # Last, make /, /dev and /proc read-only, so that files there without a separate mount cannot be written. Otherwise
    # root could use /proc/sys to run programs on the host (core_pattern).
    for path in ("/proc", "/dev", "/"):
        args += ["--remount-ro", path]
    args += ["--chdir", policy.folder]
    return args


def mount_point_parents(policy: Policy) -> list[str]:
    """The folders in a lasting home that lead to a mount point. Paths are relative to the home, outermost first."""
    found: set[str] = set()
    for path in (*policy.tools, *(link for link, _ in policy.links), *policy.readable, *policy.writable):
        if path.startswith(policy.home + "/"):
            parts = path.removeprefix(policy.home + "/").split("/")
            found.update("/".join(parts[:n]) for n in range(1, len(parts)))
    return sorted(found)


REQUESTS_SIZE = 64 * 1024 * 1024
"""The total size limit in bytes of all running gate requests."""


def encode(args: list[str]) -> bytes:
    """Encode arguments for ``--args``. Raises ValueError if an argument contains a NUL byte."""
    out = bytearray()
    for arg in args:
        data = arg.encode("utf-8", "surrogateescape")
        if b"\0" in data:
            raise ValueError(f"an argument contains a NUL byte: {arg!r}")
        out += data + b"\0"
    return bytes(out)
