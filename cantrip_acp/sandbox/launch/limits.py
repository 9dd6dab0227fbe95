"""Resource limits of one command, apart from its timeout: limits of the kernel if possible, else a watchdog.

The kernel limits the processes of each user of a namespace, but never those of root. Without control groups it has no
memory limit for a whole process tree. So a control group is used if one is delegated to us. Otherwise the watchdog
adds up what the tree uses, from /proc. The first check is after `FIRST_CHECK` seconds, so a short command has no cost.

Kernel memory (`kernel_memory_used`): page tables and socket buffers are in no count of a single process. Half a
gigabyte of page tables takes a quarter of a second and no resident memory. A pair of sockets holds 0.4 MB, and a
process may have thousands. A control group counts both. Without one, the watchdog first reads the use of the whole
machine, which is quick. Only if that is too much, it measures the tree. Pipes are not counted, because the kernel
limits them for each user (``fs.pipe-user-pages-soft``).
"""

from __future__ import annotations

import asyncio
import os
import resource
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from cantrip_acp.files.disk_limit import MIN_FREE, DiskMeter, least_free
from cantrip_acp.sandbox.policy.policy import MIB, Limits
from cantrip_acp.types.errors import SandboxError

FIRST_CHECK = 0.05
CHECK_INTERVAL = 0.1
_PAGE = os.sysconf("SC_PAGE_SIZE")


def apply(pid: int, limits: Limits, *, cores: int, root: bool) -> None:
    """Set the kernel limits (rlimits) on a sandbox's first process, before its command runs. All processes inherit them.

    ``cores`` multiplies the processor time that ``limits.timeout_ms`` allows. ``root``: whether the user is root.
    """
    seconds = max(1, -(-limits.timeout_ms * cores // 1000)) + 1
    wanted = [
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_FSIZE, limits.file),
        (resource.RLIMIT_NOFILE, limits.open_files),
        (resource.RLIMIT_CORE, 0),
    ]
    if not root:
        wanted.append((resource.RLIMIT_NPROC, limits.processes))
    for what, value in wanted:
        # The process inherited its hard limit from us. So our own hard limit is the maximum.
        hard = resource.getrlimit(what)[1]
        bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
        usual = min(usual_open_files(limits), bound) if what == resource.RLIMIT_NOFILE else bound
        resource.prlimit(pid, what, (usual, bound))
    if limits.cpu_percent is not None and limits.cpu_percent < 100:
        os.setpriority(os.PRIO_PROCESS, pid, niceness(limits.cpu_percent))
    # When the machine has too little memory, the kernel should kill processes of a sandbox first.
    try:
        fd = os.open(f"/proc/{pid}/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        os.write(fd, b"500")
    except OSError:
        return
    finally:
        os.close(fd)


def usual_open_files(limits: Limits) -> int:
    """The files that a process may have open unless it asks for more: as many as this process, at least 4,096.

    Some programs close every number below that limit when they start another one, so it is not the most that is allowed.
    """
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return limits.open_files if soft == resource.RLIM_INFINITY else min(limits.open_files, max(4096, soft))


def niceness(cpu_percent: int) -> int:
    """The niceness for a share of a processor: 1 for 95 %, 7 for 60 %, 15 for 10 %.

    Where no control group limits the processor time, a sandbox then leaves the processor to others that need it.
    """
    return max(os.getpriority(os.PRIO_PROCESS, 0), min(19, round((100 - cpu_percent) / 6)))


def limit_data_size(pid: int, size: int) -> None:
    """Limit the data size in bytes of each process that ``pid`` starts.

    So a program gets an out-of-memory error before the watchdog kills it.
    """
    hard = resource.prlimit(pid, resource.RLIMIT_DATA)[1]
    bound = size if hard == resource.RLIM_INFINITY else min(size, hard)
    resource.prlimit(pid, resource.RLIMIT_DATA, (bound, bound))


@dataclass(frozen=True, slots=True)
class Use:
    """The resources in use by a process tree: the number of processes, and bytes of memory.

    The memory is the resident memory and the content of the private file systems.
    """

    processes: int
    memory: int


def measure(pid: int, folders: Iterable[str] = ()) -> Use:
    """Measure a sandbox's process tree.

    ``pid`` is its first process, as numbered on the host. ``folders`` are its private file systems, as paths inside.
    """
    processes = memory = 0
    for name in _process_numbers(pid):
        processes += 1
        try:
            with open(f"/proc/{name}/statm", "rb") as file:
                fields = file.read().split()
            # Do not add shared pages here. They belong to files, or the private file systems (below) contain them, or
            # `shared_memory` counts them.
            memory += (int(fields[1]) - int(fields[2])) * _PAGE
        except (OSError, IndexError, ValueError):
            continue
    return Use(processes, memory + _file_systems(pid, folders))


def _process_numbers(pid: int) -> Iterator[str]:
    """The IDs of all processes in the process namespace of ``pid``, as text."""
    try:
        namespace = os.readlink(f"/proc/{pid}/ns/pid")
        if namespace == os.readlink("/proc/self/ns/pid"):
            # The sandbox is still being set up. All processes of the machine would be counted.
            return
    except OSError:
        return
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            if os.readlink(f"/proc/{name}/ns/pid") == namespace:
                yield name
        except OSError:
            continue


def shared_memory(pid: int) -> int:
    """Bytes of shared memory that the processes of a tree have mapped and that are in no file system.

    This counts the mapped size, used or not, because the count of a process need not contain such a page. The shared
    memory of the whole machine is used as a second bound (see `Watchdog`).
    """
    sizes: dict[bytes, int] = {}
    for name in _process_numbers(pid):
        try:
            with open(f"/proc/{name}/maps", "rb") as file:
                for line in file:
                    if b" /dev/zero (deleted)" in line or b" /SYSV" in line:
                        begin, end = line.split(b" ", 1)[0].split(b"-")
                        inode = b" ".join(line.split()[3:5])
                        sizes[inode] = max(sizes.get(inode, 0), int(end, 16) - int(begin, 16))
        except (OSError, ValueError):
            continue
    return sum(sizes.values())


def _machine_has(*names: bytes) -> list[int]:
    """Read these lines of /proc/meminfo, in bytes for the whole machine.

    Shmem is the memory that processes share, including file systems in memory.
    """
    found = dict.fromkeys(names, 0)
    try:
        with open("/proc/meminfo", "rb") as file:
            for line in file:
                words = line.split()
                if words[0] in found:
                    found[words[0]] = int(words[1]) * 1024
    except (OSError, IndexError, ValueError):
        pass
    return list(found.values())


def _file_systems(pid: int, folders: Iterable[str]) -> int:
    """Bytes in the private file systems, with about 1 KiB of kernel records for each file."""
    used = 0
    try:
        # Before the sandbox has its own root folder, these paths would lead to folders of the host.
        if os.path.samestat(os.stat(f"/proc/{pid}/root"), os.stat("/")):
            return 0
    except OSError:
        return 0
    for folder in folders:
        inside = f"/proc/{pid}/root{folder}"
        try:
            status = os.statvfs(inside)
            if os.path.lexists(folder) and os.stat(inside).st_dev == os.stat(folder).st_dev:
                # A folder of the host is shown in its place, such as a workspace in /tmp: what is on its disk is no memory.
                continue
        except OSError:
            continue
        used += (status.f_blocks - status.f_bfree) * status.f_frsize + (status.f_files - status.f_ffree) * 1024
    return used


class Disks:
    """Free space on the disks of writable folders during a turn."""

    def __init__(self, folders: Iterable[str]) -> None:
        self._folders = tuple(folders)
        self._must_stay_free: dict[str, int] = {}
        self.begin()

    def begin(self) -> None:
        """Start a turn: compute from the current free space how much must stay free.

        Raises `SandboxError` for a setting that is not valid.
        """
        self._must_stay_free = {}
        seen: set[int] = set()
        for folder in self._folders:
            try:
                device, disk = os.stat(folder).st_dev, os.statvfs(folder)
            except OSError:
                continue
            if device not in seen:
                seen.add(device)
                try:
                    self._must_stay_free[folder] = least_free(
                        disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize
                    )
                except ValueError as error:
                    raise SandboxError(str(error)) from None

    def full_message(self) -> str | None:
        """A message about the first disk with too little free space; None if there is none."""
        for folder, least in self._must_stay_free.items():
            try:
                disk = os.statvfs(folder)
            except OSError:
                continue
            free = disk.f_bavail * disk.f_frsize
            if free < least:
                return (
                    f"the disk of {folder} has {free // MIB:,} MiB free, and a turn leaves at least {least // MIB:,} MiB "
                    f"({MIN_FREE}). What was written is still there: remove what is not needed"
                )
        return None


class Watchdog:
    """Checks whether a process tree uses too much of something.

    ``folders``: its private file systems, as paths inside. ``count``: whether to check the number of processes, because
    the kernel does not. ``disks``: the folders that the tree can write.
    """

    def __init__(self, limits: Limits, folders: tuple[str, ...], *, count: bool, disks: Iterable[str] = ()) -> None:
        self._limits = limits
        self._folders = folders
        self._count = count
        self.disks = Disks(disks)
        self.disk_use = DiskMeter(disks)

    def verdict(self, pid: int, times: int = 1) -> str | None:
        """The reason why the tree with the first process ``pid`` must be killed, or None.

        ``times``: allow this multiple of the memory limit, because pages that forked processes share are counted once
        for each process.
        """
        most = self._limits.memory * times
        if (full := self.disks.full_message()) is not None:
            return f"too much of a disk: {full}"
        if (over := self.disk_use.look(lambda: _process_numbers(pid))) is not None:
            return over
        use = measure(pid, self._folders)
        if self._count and use.processes > self._limits.processes + 1:
            return f"more than {self._limits.processes} processes at once (sandbox_max_processes)"
        memory = use.memory
        if memory <= most:
            shares, tables = _machine_has(b"Shmem:", b"PageTables:")
            if most < memory + shares:
                memory += min(shares, shared_memory(pid))
            if most < memory + kernel_memory_bound(pid, tables):
                memory += kernel_memory_used(pid, _process_numbers(pid))
        if memory > most:
            return f"more than {most // (1024 * 1024)} MiB of memory"
        return None

    def disk_message(self, pid: int) -> str | None:
        """Count the bytes that the tree with the first process ``pid`` has written. Returns a message if the limit is
        exceeded."""
        over = self.disk_use.look(lambda: _process_numbers(pid)) if pid else None
        return f"The code used {over}" if over is not None else None


# Watchdog checks that do not block the event loop.
# The kernel makes a reader of /proc wait while the process changes its memory map. So to read hundreds of processes
# that have just started can take a second. After one slow check, the tree is checked in a thread.

_SLOW = 0.01
"""Seconds. A check that takes longer counts as slow."""


class WatchdogRunner:
    """Runs the watchdog checks of one process tree, in a thread if they are slow."""

    def __init__(self) -> None:
        self._slow = False

    def ask(self, verdict: Callable[[], str | None], on_verdict: Callable[[str | None], None]) -> None:
        """Call ``verdict`` and then ``on_verdict`` with its result, now or later.

        ``on_verdict`` must check whether the tree still exists.
        """
        if not self._slow:
            on_verdict(self._timed(verdict))
            return
        looking = asyncio.get_running_loop().run_in_executor(None, self._timed, verdict)
        looking.add_done_callback(lambda done: None if done.cancelled() else on_verdict(done.result()))

    def _timed(self, verdict: Callable[[], str | None]) -> str | None:
        began = time.perf_counter()
        found = verdict()
        self._slow = time.perf_counter() - began > _SLOW
        return found


UNIX_SOCKET = 425_984
"""Bytes that may wait in one end of a pair of sockets: twice the usual ``net.core.wmem_max``. The kernel does not
report how many bytes wait.
"""


def kernel_memory_bound(pid: int, machine_tables: int) -> int:
    """The most kernel memory in bytes that any tree can use, from the page tables and sockets that exist.

    It counts page tables of the whole machine, and socket memory in the network namespace of ``pid``.
    ``machine_tables``: bytes of page tables (PageTables in /proc/meminfo).
    """
    return machine_tables + (_line_count(pid, "unix") - 1) * UNIX_SOCKET + _inet_socket_bytes(pid)


def kernel_memory_used(pid: int, tree: Iterable[str]) -> int:
    """Bytes that the kernel uses for the tree with the first process ``pid``; ``tree``: the IDs of its processes."""
    names = list(tree)
    total = sum(_page_table_bytes(name) for name in names)
    # In its own network namespace, sockets that are being passed between processes belong to the tree too.
    ours = None if _own_network(pid) else {number for name in names for number in _socket_inodes(name)}
    total += UNIX_SOCKET * sum(1 for fields in _socket_rows(pid, "unix") if ours is None or fields[6] in ours)
    for kind in ("tcp", "tcp6", "udp", "udp6"):
        for fields in _socket_rows(pid, kind):
            if ours is None or fields[9] in ours:
                sent, _, received = fields[4].partition(b":")
                # A waiting byte takes about two bytes, with the kernel's record of it.
                total += 2 * (int(sent, 16) + int(received, 16))
    return total


def _socket_rows(pid: int, kind: str) -> Iterator[list[bytes]]:
    """The rows of a socket table in the network namespace of ``pid``, without the header."""
    try:
        with open(f"/proc/{pid}/net/{kind}", "rb") as file:
            next(file, b"")
            for line in file:
                fields = line.split()
                if len(fields) >= (7 if kind == "unix" else 10):
                    yield fields
    except OSError:
        return


def _line_count(pid: int, kind: str) -> int:
    try:
        with open(f"/proc/{pid}/net/{kind}", "rb") as file:
            return sum(1 for _ in file)
    except OSError:
        return 1


def _inet_socket_bytes(pid: int) -> int:
    """Bytes that the TCP and UDP sockets of the machine use."""
    pages = 0
    try:
        with open(f"/proc/{pid}/net/sockstat", "rb") as file:
            for line in file:
                words = line.split()
                if b"mem" in words:
                    pages += int(words[words.index(b"mem") + 1])
    except (OSError, IndexError, ValueError):
        return 0
    return 2 * pages * _PAGE


def _page_table_bytes(name: str) -> int:
    try:
        with open(f"/proc/{name}/status", "rb") as file:
            for line in file:
                if line.startswith(b"VmPTE:"):
                    return int(line.split()[1]) * 1024
    except (OSError, IndexError, ValueError):
        pass
    return 0


def _own_network(pid: int) -> bool:
    try:
        return os.readlink(f"/proc/{pid}/ns/net") != os.readlink("/proc/self/ns/net")
    except OSError:
        return False


def _socket_inodes(name: str) -> Iterator[bytes]:
    """Inode numbers of the sockets that a process has open."""
    try:
        numbers = os.listdir(f"/proc/{name}/fd")
    except OSError:
        return
    for number in numbers:
        try:
            target = os.readlink(f"/proc/{name}/fd/{number}")
        except OSError:
            continue
        if target.startswith("socket:["):
            yield target[8:-1].encode()
