"""Looms of the state folder: which are too old or too many, what they refer to, and how one is deleted.

A loom is not deleted while somebody writes it (it is locked), if a file ``NAME.keep`` is beside it (`marked`), or if
another loom that stays continues from one of its turns (`needed`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Container, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from cantrip_acp.core.errors import LoomLocked
from cantrip_acp.git import file_snapshots
from cantrip_acp.loom.loom import Loom
from cantrip_acp.loom.stores import lock
from cantrip_acp.retention.dir_handle import Entry, Folder
from cantrip_acp.retention.rules import DAY, Item, Rules, Stays

FOLDER = "looms"
LINES = ".loom.jsonl"
DATABASES = (".db", ".sqlite", ".sqlite3")
KEEP = ".keep"
LOCK = ".lock"
_SESSION = (".session.json", LOCK)
"""The files that a session keeps beside its loom ``ID.loom.jsonl``: its lock, and ``ID.session.json``, which a loom may
lack."""
_SQLITE = b"SQLite format 3\0"
_BESIDE = re.compile(r"\.?(?P<loom>.+?)(\.index(\.part)?|\.torn-\d+|\.keep|-wal|-shm|-journal)")

IN_USE = "open in another process"
MARKED = "marked to be kept"


@dataclass(slots=True)
class Shelved:
    """A loom's file and the files beside it that belong to it: index, torn lines, a database's log, the keep mark."""

    entry: Entry
    beside: list[Entry]

    @property
    def name(self) -> str:
        return self.entry.name

    @property
    def size(self) -> int:
        return self.entry.size + sum(each.size for each in self.beside)

    @property
    def changed(self) -> float:
        # Readers leave an empty WAL behind; it does not count.
        written = [e.changed for e in self.beside if e.name.endswith("-wal") and e.size]
        return max([self.entry.changed, *written])

    @property
    def marked(self) -> bool:
        return any(each.name == self.name + KEEP for each in self.beside)


def shelf(folder: Folder) -> tuple[list[Shelved], list[Entry]]:
    """All looms of the folder, the oldest first, and the files of looms that are gone. Links are ignored."""
    files = [entry for entry in folder.entries() if entry.is_file]
    looms = {e.name: Shelved(e, []) for e in files if _is_loom(folder, e)}
    orphans = []
    for entry in files:
        found = _BESIDE.fullmatch(entry.name)
        if entry.name in looms or found is None or not _loom_name(found["loom"]):
            continue
        owner = looms.get(found["loom"])
        if owner is None:
            orphans.append(entry)
        else:
            owner.beside.append(entry)
    for entry in files:
        if entry.name.endswith(_SESSION):
            owner = looms.get(entry.name.partition(".")[0] + LINES)
            if owner is not None:
                owner.beside.append(entry)
    return sorted(looms.values(), key=lambda each: (each.changed, each.name)), orphans


def _loom_name(name: str) -> bool:
    return name.endswith((LINES, *DATABASES))


def _is_loom(folder: Folder, entry: Entry) -> bool:
    if entry.name.endswith(LINES):
        return True
    return entry.name.endswith(DATABASES) and head(folder, entry.name, len(_SQLITE)) == _SQLITE


def head(folder: Folder, name: str, count: int) -> bytes:
    """The first bytes of a file; empty where it cannot be read."""
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=folder.fd)
    except OSError:
        return b""
    try:
        return os.read(fd, count)
    except OSError:
        return b""
    finally:
        os.close(fd)


def over(looms: list[Shelved], rules: Rules, now: float, stays: Container[str]) -> dict[str, str]:
    """The looms that are too old, or that exceed the size limit, each with the reason.

    A loom in ``stays`` is listed if it is too old. It is never chosen to save space, and its size counts against the
    limit.
    """
    why: dict[str, str] = {}
    for each in looms:
        if rules.older_than is not None and now - each.changed > rules.older_than:
            why[each.name] = f"last written {days(now - each.changed)} ago"
    if rules.max_size is not None:
        left = sum(each.size for each in looms if each.name not in why or each.name in stays)
        for each in looms:
            if left <= rules.max_size:
                break
            if each.name not in why and each.name not in stays:
                why[each.name] = "looms take more room than they may"
                left -= each.size
    return why


def days(seconds: float) -> str:
    """A time span for people."""
    count = int(seconds / DAY)
    return f"{count} day{'' if count == 1 else 's'}" if count else f"{max(0, int(seconds / 3600))} h"


def held(folder: Folder, loom: Shelved) -> bool:
    """Whether a process writes the loom or has its session open. For a database, this is only known when it is
    deleted."""
    locks = [e.name for e in loom.beside if e.name.endswith(LOCK)]
    return any(lock.written(name, folder.fd) for name in (loom.name, *locks) if not name.endswith(DATABASES))


def item(folder: Folder, loom: Shelved, why: str, stays: str | None, before: Callable[[], None] = lambda: None) -> Item:
    """The loom as an item to delete; ``before`` deletes what belongs to it elsewhere."""

    def drop() -> None:
        if loom.name.endswith(DATABASES):
            # Check the lock first; afterwards, nobody can read the loom.
            with alone(folder, loom):
                loom.entry = folder.entry(loom.name) or loom.entry
            before()
        with alone(folder, loom):
            if not loom.name.endswith(DATABASES):
                before()
            # Delete the loom itself last: if we are killed before, a whole loom is left for the next run.
            for entry in loom.beside:
                folder.unlink(entry.name)
            folder.unlink(loom.name)

    return Item("loom", f"{FOLDER}/{loom.name}", loom.size, loom.changed, why, drop, stays)


@contextmanager
def alone(folder: Folder, loom: Shelved) -> Iterator[None]:
    """Lock a loom against every other process. Raises `Stays` where a process has it open, or where it changed."""
    _unchanged(folder, loom)
    with ExitStack() as held:
        try:
            for entry in loom.beside:
                if entry.name.endswith(LOCK):
                    held.enter_context(lock.lines(entry.name, folder.fd))
            if loom.name.endswith(LINES):
                held.enter_context(lock.lines(loom.name, folder.fd))
                _unchanged(folder, loom)
            else:
                held.enter_context(lock.database(folder.path / loom.name))
        except LoomLocked:
            raise Stays(IN_USE) from None
        yield


def _unchanged(folder: Folder, loom: Shelved) -> None:
    now, was = folder.entry(loom.name), loom.entry.status
    if now is None:
        return
    if (now.status.st_ino, now.status.st_dev) != (was.st_ino, was.st_dev):
        raise Stays("replaced meanwhile")
    if (now.size, now.status.st_mtime_ns) != (was.st_size, was.st_mtime_ns):
        raise Stays("written meanwhile")
    if folder.entry(loom.name + KEEP) is not None:
        raise Stays(MARKED)


# --- What a loom refers to in other looms: the turn that a fork or a child continues from, and pinned files.


@dataclass(slots=True)
class Named:
    """The turns that a loom has, the turns of other looms that it names, and the working folders of its forks.

    ``repositories`` are the folders whose files it pinned. ``id`` is the loom's id. ``pinned`` are the ids of the looms
    that pinned the files in its records; in a copy, these are pins of the original. ``known`` is False where it cannot
    be read.
    """

    holds: set[str] = field(default_factory=set)
    elsewhere: set[str] = field(default_factory=set)
    worktrees: set[str] = field(default_factory=set)
    known: bool = True
    id: str | None = None
    pinned: set[str] = field(default_factory=set)
    repositories: set[str] = field(default_factory=set)


def read(folder: Folder, loom: Shelved) -> Named:
    """What a loom refers to; for a damaged loom, what can still be read. Raises `LoomError`."""
    with Loom.open(folder.path / loom.name, readonly=True) as opened:
        folders = {f.worktree for f in opened.forks() if isinstance(f.worktree, str)}
        pinned = {
            found for f in opened.files() if f.ref is not None and (found := file_snapshots.loom_of(f.ref)) is not None
        }
        loom_id = file_snapshots.loom_of(file_snapshots.ref_of(opened.header.id)) if opened.header is not None else None
        repositories = {f.repository for f in opened.files() if f.repository is not None}
        return Named(set(opened.places), opened.elsewhere(), folders, True, loom_id, pinned, repositories)


def needed(named: dict[str, Named], going: set[str]) -> dict[str, str]:
    """The looms in ``going`` that a staying loom needs, each with the name of that loom. A loom kept this way also
    keeps the looms that it needs."""
    holder = {turn: name for name in sorted(going, reverse=True) for turn in named[name].holds}
    pinner = {named[name].id: name for name in sorted(going, reverse=True) if named[name].id is not None}
    stays: dict[str, str] = {}
    look = [name for name in named if name not in going]
    while look:
        by = look.pop()
        for name in (*map(holder.get, named[by].elsewhere), *map(pinner.get, named[by].pinned)):
            if name is not None and name not in stays:
                stays[name] = by
                look.append(name)
    return stays
