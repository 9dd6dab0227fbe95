"""Kernel memory of a process tree that no process's count contains: page tables and socket buffers.

Half a gigabyte of page tables takes a quarter of a second and no resident memory. A pair of sockets holds 0.4 MB, and
a process may have thousands. A control group counts both. Without one the watchdog asks this module: first for the
whole machine's use, which is quick to read, and only where that is too much, for the tree's use.
Pipes are not counted: the kernel limits them for each user (``fs.pipe-user-pages-soft``).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

UNIX_SOCKET = 425_984
"""Bytes that may wait in one end of a pair: twice ``net.core.wmem_max``, as on most machines. The kernel does not
report how much does wait.
"""

_PAGE = os.sysconf("SC_PAGE_SIZE")


def most(pid: int, machine_tables: int) -> int:
    """Upper bound in bytes for any tree: page tables of the whole machine, and socket memory in the network of ``pid``.

    ``machine_tables``: bytes of page tables (PageTables in /proc/meminfo).
    """
    return machine_tables + (_lines(pid, "unix") - 1) * UNIX_SOCKET + _waiting(pid)


def kept(pid: int, tree: Iterable[str]) -> int:
    """Bytes that the kernel holds for the tree with first process ``pid``; ``tree`` are its process numbers."""
    names = list(tree)
    total = sum(_tables(name) for name in names)
    # In a separate network, sockets that are being passed between processes belong to the tree too.
    ours = None if _own_network(pid) else {number for name in names for number in _sockets(name)}
    total += UNIX_SOCKET * sum(1 for fields in _rows(pid, "unix") if ours is None or fields[6] in ours)
    for kind in ("tcp", "tcp6", "udp", "udp6"):
        for fields in _rows(pid, kind):
            if ours is None or fields[9] in ours:
                sent, _, received = fields[4].partition(b":")
                # A waiting byte takes about two, including the kernel's record of it.
                total += 2 * (int(sent, 16) + int(received, 16))
    return total


def _rows(pid: int, kind: str) -> Iterator[list[bytes]]:
    """Rows of a table of a process's network, without the header."""
    try:
        with open(f"/proc/{pid}/net/{kind}", "rb") as file:
            next(file, b"")
            for line in file:
                fields = line.split()
                if len(fields) >= (7 if kind == "unix" else 10):
                    yield fields
    except OSError:
        return


def _lines(pid: int, kind: str) -> int:
    try:
        with open(f"/proc/{pid}/net/{kind}", "rb") as file:
            return sum(1 for _ in file)
    except OSError:
        return 1


def _waiting(pid: int) -> int:
    """Bytes that the TCP and UDP sockets of the machine hold."""
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


def _tables(name: str) -> int:
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


def _sockets(name: str) -> Iterator[bytes]:
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
