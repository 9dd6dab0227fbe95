"""Looms of the state folder: which are too old or too large together, and how one is deleted with all that belongs to it.

A loom is in use, and is kept, in four cases: a process has it open (it is locked); a file ``NAME.keep`` is beside it; another
loom that is kept continues from one of its turns (`find_needed`); or a file in the worktree of its fork was changed later.
With a loom go the files beside it, its checkpoints (and those that an earlier version kept in a repository), and the worktrees
of its forks in the state folder. A worktree in another folder belongs to the user and is kept.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from cantrip_acp.core.lifecycle.checkpoints import delete_checkpoints
from cantrip_acp.files.folder import Entry, Folder
from cantrip_acp.git import file_snapshots
from cantrip_acp.loom.loom import Loom
from cantrip_acp.loom.stores import file_locks
from cantrip_acp.retention.rules import DAY, Item, ItemKept, Rules
from cantrip_acp.types.errors import LoomError, LoomLocked
from cantrip_acp.types.records import FilesRecord, ForkRecord, LoomHeader

FOLDER = "looms"
WORKTREES = "worktrees"
LINES = ".loom.jsonl"
DATABASES = (".db", ".sqlite", ".sqlite3")
KEEP = ".keep"
LOCK = ".lock"
_SESSION = (".session.json", LOCK)
"""The files that a session keeps beside its loom ``ID.loom.jsonl``: its lock, and ``ID.session.json``, which a loom may
lack."""
_SQLITE = b"SQLite format 3\0"
_BESIDE = re.compile(r"\.?(?P<loom>.+?)(\.index(\.part)?|\.torn-\d+|\.keep|-wal|-shm|-journal)")

_MOMENT = 60.0
"""Seconds that may pass between a fork's last change of a file and the record of it."""

IN_USE = "open in another process"
MARKED = "marked to be kept"


@dataclass(slots=True)
class LoomFiles:
    """A loom's file and the files beside it that belong to it: index, torn lines, a database's log, the keep mark."""

    name: str
    entry: Entry
    beside: list[Entry]

    @property
    def size(self) -> int:
        return self.entry.size + sum(each.size for each in self.beside)

    @property
    def changed(self) -> float:
        # Readers leave an empty WAL behind; it does not count.
        written = [e.status.st_mtime for e in self.beside if e.name.endswith("-wal") and e.size]
        return max([self.entry.status.st_mtime, *written])

    @property
    def marked(self) -> bool:
        return any(each.name == self.name + KEEP for each in self.beside)


def list_looms(folder: Folder) -> list[LoomFiles]:
    """All looms of the folder, the oldest first. Links are ignored."""
    files = [entry for entry in folder.entries() if entry.is_file]
    looms = {e.name: LoomFiles(e.name, e, []) for e in files if _is_loom(folder, e)}
    for entry in files:
        found = _BESIDE.fullmatch(entry.name)
        name = found["loom"] if found else entry.name.partition(".")[0] + LINES if entry.name.endswith(_SESSION) else ""
        if entry.name not in looms and name in looms:
            looms[name].beside.append(entry)
    return sorted(looms.values(), key=lambda each: (each.changed, each.name))


def _is_loom(folder: Folder, entry: Entry) -> bool:
    if entry.name.endswith(LINES):
        return True
    return entry.name.endswith(DATABASES) and _first_bytes(folder, entry.name, len(_SQLITE)) == _SQLITE


def _first_bytes(folder: Folder, name: str, count: int) -> bytes:
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


def choose_by_rules(looms: list[LoomFiles], rules: Rules, now: float, kept: Container[str]) -> dict[str, str]:
    """The looms that are too old, or that exceed the size limit, each with the reason.

    A loom in ``kept`` is listed if it is too old. It is never chosen to save space, and its size counts against the
    limit.
    """
    why: dict[str, str] = {}
    for each in looms:
        if rules.older_than is not None and now - each.changed > rules.older_than:
            why[each.name] = f"last written {days(now - each.changed)} ago"
    if rules.max_size is not None:
        left = sum(each.size for each in looms if each.name not in why or each.name in kept)
        for each in looms:
            if left <= rules.max_size:
                break
            if each.name not in why and each.name not in kept:
                why[each.name] = "looms take more room than they may"
                left -= each.size
    return why


def days(seconds: float) -> str:
    """Format a time span for people."""
    count = int(seconds / DAY)
    return f"{count} day{'' if count == 1 else 's'}" if count else f"{max(0, int(seconds / 3600))} h"


def is_open(folder: Folder, loom: LoomFiles) -> bool:
    """Whether a process writes the loom or has its session open. For a database, this is only known when it is
    deleted."""
    locks = [e.name for e in loom.beside if e.name.endswith(LOCK)]
    return any(file_locks.written(name, folder.fd) for name in (loom.name, *locks) if not name.endswith(DATABASES))


def loom_item(
    folder: Folder, loom: LoomFiles, why: str, kept: str | None, delete_elsewhere: Callable[[], None] = lambda: None
) -> Item:
    """The loom as an item to delete; ``delete_elsewhere`` deletes what belongs to it elsewhere."""

    def delete() -> None:
        if loom.name.endswith(DATABASES):
            # Check the lock first; afterwards, nobody can read the loom.
            with locked(folder, loom):
                loom.entry = folder.entry(loom.name) or loom.entry
            delete_elsewhere()
        with locked(folder, loom):
            if not loom.name.endswith(DATABASES):
                delete_elsewhere()
            # Delete the loom itself last: if we are killed before, a whole loom is left for the next run.
            for entry in loom.beside:
                folder.unlink(entry.name)
            folder.unlink(loom.name)

    return Item("loom", f"{FOLDER}/{loom.name}", loom.size, loom.changed, why, delete, kept)


@contextmanager
def locked(folder: Folder, loom: LoomFiles) -> Iterator[None]:
    """Lock a loom against every other process. Raises `ItemKept` if a process has it open, or where it changed."""
    _unchanged(folder, loom)
    with ExitStack() as held:
        try:
            for entry in loom.beside:
                if entry.name.endswith(LOCK):
                    held.enter_context(file_locks.lines(entry.name, folder.fd))
            if loom.name.endswith(LINES):
                held.enter_context(file_locks.lines(loom.name, folder.fd))
                _unchanged(folder, loom)
            else:
                held.enter_context(file_locks.database(folder.path / loom.name))
        except LoomLocked:
            raise ItemKept(IN_USE) from None
        yield


def _unchanged(folder: Folder, loom: LoomFiles) -> None:
    now, was = folder.entry(loom.name), loom.entry.status
    if now is None:
        return
    if (now.status.st_ino, now.status.st_dev) != (was.st_ino, was.st_dev):
        raise ItemKept("replaced meanwhile")
    if (now.size, now.status.st_mtime_ns) != (was.st_size, was.st_mtime_ns):
        raise ItemKept("written meanwhile")
    if folder.entry(loom.name + KEEP) is not None:
        raise ItemKept(MARKED)


# --- What a loom refers to in other looms: the turn that a fork or a child continues from, and pinned files.


@dataclass(slots=True)
class References:
    """The turns that a loom has, the turns of other looms that it names, and the working folders of its forks.

    ``id`` is the loom's id. ``pinned`` are the ids of the looms
    that pinned the files in its records; in a copy, these are pins of the original. ``known`` is False if it cannot
    be read.
    """

    holds: set[str] = field(default_factory=set)
    elsewhere: set[str] = field(default_factory=set)
    worktrees: set[str] = field(default_factory=set)
    known: bool = True
    id: str | None = None
    pinned: set[str] = field(default_factory=set)


def read_references(folder: Folder, loom: LoomFiles) -> References:
    """What a loom refers to; for a damaged loom, what can still be read. Raises `LoomError`."""
    with Loom.open(folder.path / loom.name, readonly=True) as opened:
        folders = {f.worktree for f in opened.forks() if isinstance(f.worktree, str)}
        pinned = {
            found for f in opened.files() if f.ref is not None and (found := file_snapshots.loom_of(f.ref)) is not None
        }
        loom_id = file_snapshots.loom_of(file_snapshots.ref_of(opened.header.id)) if opened.header is not None else None
        return References(set(opened.places), opened.elsewhere(), folders, True, loom_id, pinned)


def find_needed(named: dict[str, References], going: set[str]) -> dict[str, str]:
    """The looms in ``going`` that a staying loom needs, each with the name of that loom. A loom kept this way also
    keeps the looms that it needs."""
    holder = {turn: name for name in sorted(going, reverse=True) for turn in named[name].holds}
    pinner = {named[name].id: name for name in sorted(going, reverse=True) if named[name].id is not None}
    kept: dict[str, str] = {}
    look = [name for name in named if name not in going]
    while look:
        by = look.pop()
        for name in (*map(holder.get, named[by].elsewhere), *map(pinner.get, named[by].pinned)):
            if name is not None and name not in kept:
                kept[name] = by
                look.append(name)
    return kept


# --- What a loom keeps elsewhere: pinned files in repositories, and the worktrees of its forks.


def own_worktrees(state: Folder, paths: Iterable[str]) -> list[str]:
    """The names of those worktrees that are in the state folder."""
    base = os.path.realpath(state.path / WORKTREES)
    names = (os.path.basename(path) for path in paths if os.path.dirname(os.path.realpath(path)) == base)
    return [name for name in names if name]


def changed_worktree(state: Folder, loom: LoomFiles, names: Iterable[str]) -> str | None:
    """A worktree of a loom that was changed after the loom; None if there is none."""
    folder = state.sub(WORKTREES)
    if folder is None:
        return None
    try:
        return next((n for n in names if folder.tree_changed(n) > loom.changed + _MOMENT), None)
    finally:
        folder.close()


def delete_elsewhere(state: Folder, looms: Folder, loom: LoomFiles) -> Callable[[], None]:
    """Return a function that deletes a loom's pins and worktrees. Call it while the loom can still be read."""

    def delete() -> None:
        kept = Loom.memory()
        try:
            with Loom.open(looms.path / loom.name, readonly=True) as opened:
                for record in opened.records():
                    if isinstance(record, LoomHeader | FilesRecord):
                        kept.append(record)
                    elif isinstance(record, ForkRecord) and isinstance(record.worktree, str):
                        if own_worktrees(state, [record.worktree]):
                            kept.append(record)
        except LoomError:
            # The loom cannot be read, now or later.
            return
        delete_checkpoints(kept, state=state.path)
        # If the repository itself is gone, the folder is still there.
        folder = state.sub(WORKTREES)
        if folder is not None:
            try:
                for name in own_worktrees(state, (f.worktree for f in kept.forks() if isinstance(f.worktree, str))):
                    folder.remove_tree(name)
            finally:
                folder.close()

    return delete
