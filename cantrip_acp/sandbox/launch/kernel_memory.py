"""Memory that the kernel keeps for a tree and that is in no process's count: tables of pages, and what waits in sockets.

Half a gigabyte of page tables takes a quarter of a second and no resident memory at all; a pair of sockets holds 0.4 MB, and a
process may have thousands. A control group counts both. Without one the watchdog asks here: first what the whole machine has
of each, which is a line of text, and only where that would be too much, what the tree has.

Pipes are not asked for: the kernel itself bounds them for each user (``fs.pipe-user-pages-soft``).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

UNIX_SOCKET = 425_984
"""Bytes that may wait in one end of a pair: twice ``net.core.wmem_max``, as most machines have it. How much does wait there is
told nowhere."""

_PAGE = os.sysconf("SC_PAGE_SIZE")


def most(pid: int, machine_tables: int) -> int:
    """No tree has more than this: what the whole machine has, of sockets' memory in the network of ``pid``.

    ``machine_tables``: bytes of page tables (PageTables in /proc/meminfo).
    """
    return machine_tables + (_lines(pid, "unix") - 1) * UNIX_SOCKET + _waiting(pid)


def kept(pid: int, tree: Iterable[str]) -> int:
    """What is kept for the tree whose first process is ``pid``; ``tree`` are its processes' numbers."""
    names = list(tree)
    total = sum(_tables(name) for name in names)
    # In a network of its own, sockets that are on their way from one process to another are its own, too.
    ours = None if _own_network(pid) else {number for name in names for number in _sockets(name)}
    total += UNIX_SOCKET * sum(1 for fields in _rows(pid, "unix") if ours is None or fields[6] in ours)
    for kind in ("tcp", "tcp6", "udp", "udp6"):
        for fields in _rows(pid, kind):
            if ours is None or fields[9] in ours:
                sent, _, received = fields[4].partition(b":")
                # A byte that waits takes about two, with what is kept about it.
                total += 2 * (int(sent, 16) + int(received, 16))
    return total


def _rows(pid: int, kind: str) -> Iterator[list[bytes]]:
    """A table of the network of a process, without its head."""
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
    """What the machine's TCP and UDP sockets hold."""
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
    """Numbers of the sockets that a process has open."""
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
