"""Who writes a loom that several processes share: enough of a process to tell, later and elsewhere, whether it has ended."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from functools import cache

import msgspec


class Writer(msgspec.Struct, frozen=True):
    """A process. ``started`` is in clock ticks since the machine's start; ``namespace`` is that of its process ids."""

    host: str
    boot: str
    namespace: str
    pid: int
    started: int


def this() -> Writer:
    """The process that asks."""
    return Writer(socket.gethostname(), _boot(), _namespace(), os.getpid(), started(os.getpid()) or 0)


def has_ended(writer: Writer) -> bool | None:
    """Whether a process has ended; None where that cannot be told from here (another host, another container)."""
    if not writer.boot or not writer.started:
        return None
    if writer.boot != _boot():
        # The same host after a restart: nothing that ran before it runs now.
        return True if writer.host == socket.gethostname() else None
    if writer.namespace != _namespace():
        return None
    return started(writer.pid) != writer.started


def abandoned(last: Mapping[str, int | None], writers: Mapping[int, Writer], own: int | None) -> set[str]:
    """The entities whose last writer has ended or has closed the loom. ``last`` names it, ``writers`` are those that did
    not close the loom, ``own`` is whoever asks. Where nobody can tell, the entity is left alone."""
    gone = set()
    for entity, number in last.items():
        if number is None or number == own:
            continue
        writer = writers.get(number)
        if writer is None or has_ended(writer):
            gone.add(entity)
    return gone


@cache
def _boot() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def started(pid: int) -> int | None:
    """When a process began; None where there is none. One that has ended and was not waited for is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name may hold anything, but it is the last thing in parentheses.
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])
