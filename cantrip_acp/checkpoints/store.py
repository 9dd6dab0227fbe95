"""The store of one workspace's checkpoints: an SQLite database in the state folder.

A **checkpoint** is the files at one moment. It has the differences to its parent, each with the state before and after,
so that it can be undone. The first one of a chain has all files (its tree). A chain belongs to an entity: `refs` maps the
loom and the entity to the last checkpoint. Contents are compressed and stored once, by their hash (BLAKE2b, 20 bytes).

Every write is one transaction, so a killed process leaves a whole store. Two locks are files beside the database:
whoever uses the store holds the first one shared (`gc` needs it alone); a restore holds the second one alone.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import sqlite3
import stat
import threading
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from cantrip_acp.db import Kind
from cantrip_acp.db import sqlite as db
from cantrip_acp.files import paths
from cantrip_acp.types.errors import CheckpointError

KIND = Kind(
    "checkpoints",
    # The letters CCHK.
    0x4343484B,
    CheckpointError,
    CheckpointError,
    "cantrip-acp reads up to {}. Upgrade cantrip-acp",
)
FOLDER = "checkpoints"
"""The folder of the stores, in the state folder."""
LARGEST = 10 * 1024 * 1024
"""The most bytes of one file that are kept. A larger file is named as left out."""
MOST_FILES = 200_000
MOST_BYTES = 2 * 1024 * 1024 * 1024
"""The most files, and the most bytes, of a workspace. In a larger one no checkpoints are kept."""

By = Literal["start", "user", "turn", "unsure", "restore"]
"""Who made the changes of a checkpoint: nobody (the first one), the user, a turn of the entity, a turn or perhaps the user
meanwhile, or a restore."""
IGNORED = "ignored by git, so no copy was kept"
"""Why the content of a file is not kept that an ignore rule covers. Only its loss is noticed."""

_BUSY = 60.0
"""Seconds to wait for another process that writes to the store."""
_COMPRESSED_FROM = 64
_CHAIN = 100_000


class Entry(NamedTuple):
    """What is at a path: its mode with the file type, the hash of its content, and its size in bytes.

    A link's content is its target. An empty hash means that the content is not kept; then ``why`` says the reason, and
    ``version`` identifies the content (from its times and size).
    """

    mode: int
    hash: bytes
    size: int
    why: str = ""
    version: str = ""

    @property
    def kept(self) -> bool:
        return not self.why

    @property
    def is_link(self) -> bool:
        return stat.S_ISLNK(self.mode)


Change: TypeAlias = "tuple[Entry | None, Entry | None]"
"""The state of a path before and after; None if nothing was there."""
Changes: TypeAlias = "Mapping[str, Change]"
Mark: TypeAlias = "tuple[str, Entry | None, bool]"
"""The kept changes of a file: everything up to a checkpoint, or (True) only the hunks that an entry has."""


class Checkpoint(msgspec.Struct, frozen=True):
    """The files at one moment, as differences to ``parent``.

    ``turn`` is the turn that made them, ``cast`` its cast. For a restore, ``to`` is the checkpoint whose files were
    restored, and ``takes_back`` the restore that it takes back, if it is a redo. ``base`` is true for the first one of a
    chain, whose tree is stored.
    """

    id: str
    parent: str | None
    by: By
    changes: Changes
    turn: str = ""
    cast: str = ""
    to: str = ""
    base: bool = False
    time: float = 0.0
    takes_back: str = ""


def content_hash(data: bytes) -> bytes:
    """The hash under which a content is stored."""
    return hashlib.blake2b(data, digest_size=20).digest()


def store_name(workspace: str | os.PathLike[str]) -> str:
    """The name of a workspace's store, without a suffix."""
    return hashlib.blake2b(os.fsencode(os.path.realpath(workspace)), digest_size=12).hexdigest()


class Store:
    """The checkpoints of one workspace. Blocking; use from one thread at a time. Close it.

    Raises `CheckpointError` if it cannot be read or written.
    """

    def __init__(self, workspace: str | os.PathLike[str], *, state: Path | None = None, create: bool = True) -> None:
        self.workspace = os.path.realpath(workspace)
        folder = Path(os.path.abspath(state if state is not None else paths.state_dir())) / FOLDER
        self.path = folder / f"{store_name(self.workspace)}.db"
        self._mutex = threading.RLock()
        self._lock = -1
        try:
            if create:
                paths.private(folder)
            elif not self.path.exists():
                raise CheckpointError(f"no files of {self.workspace} were kept: there is no {self.path}")
            self._lock = _shared_lock(self.path.with_suffix(".lock"))
            self._base = db.connect(f"{self.path.as_uri()}?mode=rwc", _BUSY)
            os.chmod(self.path, 0o600)
            (number,) = self._base.execute("PRAGMA application_id").fetchone()
            if not number and self._base.execute("SELECT 1 FROM sqlite_master WHERE name = 'refs'").fetchone():
                # A store from before its tables had a version.
                self._base.execute(f"PRAGMA application_id = {KIND.application}")
            db.migrate(self._base, KIND, MIGRATIONS, self.path, _BUSY)
            self._base.execute("PRAGMA synchronous=NORMAL")
            self._base.execute("INSERT OR IGNORE INTO about VALUES ('workspace', ?)", (os.fsencode(self.workspace),))
        except (OSError, sqlite3.Error) as problem:
            self.close()
            raise KIND.failure("open", self.path, problem) from None
        except CheckpointError:
            self.close()
            raise

    def close(self) -> None:
        """Close the database and release the lock. Safe to call twice."""
        with self._mutex:
            if hasattr(self, "_base"):
                self._base.close()
            lock, self._lock = self._lock, -1
            if lock >= 0:
                os.close(lock)

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction. Transactions inside of it are part of it."""
        with self._mutex:
            try:
                if self._base.in_transaction:
                    yield self._base
                    return
                with db.transaction(self._base):
                    yield self._base
            except sqlite3.Error as problem:
                raise KIND.failure("write", self.path, problem) from None

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._mutex:
            try:
                yield self._base
            except sqlite3.Error as problem:
                # Also if it was closed meanwhile.
                raise KIND.failure("read", self.path, problem) from None

    # --- contents

    def add(self, data: bytes) -> bytes:
        """Store a content. Returns its hash."""
        found = content_hash(data)
        self.add_all([(found, data)])
        return found

    def add_all(self, contents: Iterable[tuple[bytes, bytes]]) -> None:
        """Store contents, each with its hash (`content_hash`), in one transaction."""
        rows = []
        for found, data in contents:
            packed = zlib.compress(data, 1) if len(data) >= _COMPRESSED_FROM else data
            rows.append((found, len(data), packed if len(packed) < len(data) else data))
        with self.writing() as base:
            base.executemany("INSERT OR IGNORE INTO contents VALUES (?, ?, ?)", rows)

    def content(self, found: bytes) -> bytes:
        """Read a stored content. Raises `CheckpointError` if it is not in the store."""
        with self._reading() as base:
            row = base.execute("SELECT size, data FROM contents WHERE hash = ?", (found,)).fetchone()
        if row is None:
            raise CheckpointError(f"the content {found.hex()} is not in {self.path}: it was removed")
        size, data = row
        return data if len(data) == size else zlib.decompress(data)

    def has_content(self, data: bytes) -> bool:
        """Whether this content is stored."""
        with self._reading() as base:
            row = base.execute("SELECT 1 FROM contents WHERE hash = ?", (content_hash(data),)).fetchone()
        return row is not None

    def hashes(self) -> set[bytes]:
        """The hashes of all stored contents."""
        with self._reading() as base:
            return {row[0] for row in base.execute("SELECT hash FROM contents")}

    # --- checkpoints

    def save(
        self,
        loom: str,
        entity: str,
        parent: str | None,
        by: By,
        changes: Changes,
        *,
        turn: str = "",
        cast: str = "",
        to: str = "",
        takes_back: str = "",
        tree: Mapping[str, Entry] | None = None,
    ) -> Checkpoint:
        """Store a checkpoint as the last one of an entity. ``tree`` has all files, for the first one of a chain."""
        now = time.time()
        name, based = f"f_{int(now * 1000):012x}{os.urandom(5).hex()}", tree is not None
        made = Checkpoint(name, parent, by, changes, turn, cast, to, based, now, takes_back)
        kept_tree = None if tree is None else self.add(_pack_tree(tree))
        with self.writing() as base:
            base.execute(
                "INSERT INTO checkpoints VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                # A restore has no turn of its own, so this column has the restore that it takes back.
                (made.id, parent, by, _pack_changes(changes), turn or takes_back, cast, to, kept_tree, now),
            )
            base.execute("INSERT OR REPLACE INTO refs VALUES (?, ?, ?)", (loom, entity, made.id))
        return made

    def last(self, loom: str, entity: str) -> str | None:
        """The id of an entity's last checkpoint; None if it has none."""
        with self._reading() as base:
            row = base.execute("SELECT checkpoint FROM refs WHERE loom = ? AND entity = ?", (loom, entity)).fetchone()
        return row[0] if row is not None else None

    def point(self, loom: str, entity: str, checkpoint: str) -> None:
        """Let an entity's chain end at a checkpoint: a fork starts at one of another entity's."""
        with self.writing() as base:
            base.execute("INSERT OR REPLACE INTO refs VALUES (?, ?, ?)", (loom, entity, checkpoint))

    def has(self, checkpoint: str) -> bool:
        """Whether a checkpoint is in the store."""
        with self._reading() as base:
            return base.execute("SELECT 1 FROM checkpoints WHERE id = ?", (checkpoint,)).fetchone() is not None

    def chain(self, last: str) -> list[Checkpoint]:
        """The checkpoints from the first one of the chain to ``last``. Raises `CheckpointError` if one is missing."""
        found: list[Checkpoint] = []
        at: str | None = last
        with self._reading() as base:
            while at is not None and len(found) < _CHAIN:
                row = base.execute("SELECT * FROM checkpoints WHERE id = ?", (at,)).fetchone()
                if row is None:
                    raise CheckpointError(f"the checkpoint {at} is not in {self.path}: cantrip gc has removed it")
                name, parent, by, changes, turn, cast, to, tree, when = row
                turn, takes_back = ("", turn) if by == "restore" else (turn, "")
                based = tree is not None
                found.append(
                    Checkpoint(name, parent, by, _read_changes(changes), turn, cast, to, based, when, takes_back)
                )
                at = parent
        return found[::-1]

    def tree(self, checkpoint: str) -> dict[str, Entry]:
        """All files at a checkpoint, by path."""
        steps = self.chain(checkpoint)
        with self._reading() as base:
            row = base.execute("SELECT tree FROM checkpoints WHERE id = ?", (steps[0].id,)).fetchone()
        found = _read_tree(self.content(row[0])) if row[0] is not None else {}
        for step in steps[1:]:
            for path, (_, after) in step.changes.items():
                if after is None:
                    found.pop(path, None)
                else:
                    found[path] = after
        return found

    # --- what the user has reviewed

    def reviewed(self, loom: str, entity: str) -> dict[str, Mark]:
        """The changes that the user keeps, by path."""
        with self._reading() as base:
            rows = base.execute("SELECT path, mark FROM reviewed WHERE loom = ? AND entity = ?", (loom, entity))
            return {
                os.fsdecode(path): (at, _entry(entry), partly)
                for path, mark in rows.fetchall()
                for at, entry, partly in [msgspec.msgpack.decode(mark)]
            }

    def review(self, loom: str, entity: str, marks: Mapping[str, Mark]) -> None:
        """Record the changes that the user keeps."""
        rows = [(loom, entity, os.fsencode(path), msgspec.msgpack.encode(mark)) for path, mark in marks.items()]
        with self.writing() as base:
            base.executemany("INSERT OR REPLACE INTO reviewed VALUES (?, ?, ?, ?)", rows)

    # --- the cache of the last scan, and the journal of a restore

    def cache(self) -> bytes:
        """The data of the last `keep_cache`; empty if there is none."""
        with self._reading() as base:
            row = base.execute("SELECT value FROM about WHERE name = 'cache'").fetchone()
        return zlib.decompress(row[0]) if row is not None else b""

    def keep_cache(self, data: bytes) -> None:
        """Store data that makes the next scan faster."""
        with self.writing() as base:
            base.execute("INSERT OR REPLACE INTO about VALUES ('cache', ?)", (zlib.compress(data, 1),))

    @contextmanager
    def restoring(self) -> Iterator[None]:
        """Hold the lock of restores in this workspace. Another process waits for at most `_BUSY` seconds."""
        lock = os.open(self.path.with_suffix(".restore.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            until = time.monotonic() + _BUSY
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except OSError as problem:
                    if problem.errno not in (errno.EWOULDBLOCK, errno.EINTR) or time.monotonic() > until:
                        raise CheckpointError(f"another process restores files of {self.workspace}") from None
                    time.sleep(0.05)
            yield
        finally:
            os.close(lock)

    def begin_restore(self, loom: str, entity: str, to: str, changes: Changes, takes_back: str = "") -> int:
        """Record the steps of a restore before it begins. Returns its number."""
        with self.writing() as base:
            # Ids have no blank.
            row = (loom, entity, f"{to} {takes_back}".rstrip() if takes_back else to, _pack_changes(changes))
            made = base.execute("INSERT INTO restores (loom, entity, target, changes) VALUES (?, ?, ?, ?)", row)
            return made.lastrowid or 0

    def end_restore(self, number: int) -> None:
        """Delete a restore's journal. Call it in the transaction that saves its checkpoint."""
        with self.writing() as base:
            base.execute("DELETE FROM restores WHERE number = ?", (number,))

    def unfinished_restores(self, loom: str, entity: str) -> list[tuple[int, str, str, Changes]]:
        """Interrupted restores of an entity: number, target, the restore that it takes back, and its steps."""
        with self._reading() as base:
            rows = base.execute(
                "SELECT number, target, changes FROM restores WHERE loom = ? AND entity = ?", (loom, entity)
            ).fetchall()
        return [
            (number, to, takes_back, _read_changes(changes))
            for number, target, changes in rows
            for to, _, takes_back in [target.partition(" ")]
        ]

    # --- removing

    def forget(self, looms: Iterable[str]) -> int:
        """Remove the chains of these looms. Returns the number of entities that had one. `sweep` then frees their space."""
        count = 0
        with self.writing() as base:
            for loom in looms:
                count += base.execute("DELETE FROM refs WHERE loom = ?", (loom,)).rowcount
                base.execute("DELETE FROM reviewed WHERE loom = ?", (loom,))
                base.execute("DELETE FROM restores WHERE loom = ?", (loom,))
        return count

    def sweep(self) -> int:
        """Remove data that no chain needs. Returns the freed bytes; 0 if another process has the store open.

        If nothing is left, the files of the store are deleted. The store is closed afterwards.
        """
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.close()
            return 0
        before = _size_of(self.path)
        with self.writing() as base:
            needed: set[bytes] = set()
            alive: set[str] = set()

            def need(changes: bytes) -> None:
                for pair in _read_changes(changes).values():
                    needed.update(each.hash for each in pair if each is not None and each.kept)

            for (changes,) in base.execute("SELECT changes FROM restores").fetchall():
                need(changes)
            for (mark,) in base.execute("SELECT mark FROM reviewed").fetchall():
                if (kept := _entry(msgspec.msgpack.decode(mark)[1])) is not None:
                    needed.add(kept.hash)
            for (last,) in base.execute("SELECT DISTINCT checkpoint FROM refs").fetchall():
                at = last
                while at is not None and at not in alive:
                    alive.add(at)
                    row = base.execute("SELECT parent, changes, tree FROM checkpoints WHERE id = ?", (at,)).fetchone()
                    if row is None:
                        break
                    at = row[0]
                    need(row[1])
                    if row[2] is not None:
                        needed.add(row[2])
                        tree = base.execute("SELECT size, data FROM contents WHERE hash = ?", (row[2],)).fetchone()
                        if tree is not None:
                            data = tree[1] if len(tree[1]) == tree[0] else zlib.decompress(tree[1])
                            needed.update(each.hash for each in _read_tree(data).values() if each.kept)
            for (name,) in base.execute("SELECT id FROM checkpoints").fetchall():
                if name not in alive:
                    base.execute("DELETE FROM checkpoints WHERE id = ?", (name,))
            for (found,) in base.execute("SELECT hash FROM contents").fetchall():
                if found not in needed:
                    base.execute("DELETE FROM contents WHERE hash = ?", (found,))
        if not alive:
            self.close()
            for suffix in (".db", ".db-wal", ".db-shm", ".restore.lock", ".lock"):
                with suppress(FileNotFoundError):
                    os.unlink(self.path.with_suffix(suffix))
            return before
        with self._reading() as base:
            base.execute("VACUUM")
            base.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self.close()
        return max(0, before - _size_of(self.path))


def _shared_lock(path: Path) -> int:
    """Open a lock and hold it shared. Waits while `Store.sweep` holds it alone, and begins anew if that deleted it."""
    while True:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_SH)
            if os.path.samestat(os.fstat(lock), os.stat(path)):
                return lock
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)


def _size_of(path: Path) -> int:
    with suppress(OSError):
        return path.stat().st_size
    return 0


def _pack_changes(changes: Changes) -> bytes:
    rows = [(os.fsencode(path), before, after) for path, (before, after) in changes.items()]
    return zlib.compress(msgspec.msgpack.encode(rows), 1)


def _read_changes(data: bytes) -> dict[str, Change]:
    rows: Sequence[tuple[bytes, list[object] | None, list[object] | None]] = msgspec.msgpack.decode(
        zlib.decompress(data)
    )
    return {os.fsdecode(path): (_entry(before), _entry(after)) for path, before, after in rows}


def _pack_tree(tree: Mapping[str, Entry]) -> bytes:
    return msgspec.msgpack.encode([(os.fsencode(path), tree[path]) for path in sorted(tree)])


def _read_tree(data: bytes) -> dict[str, Entry]:
    rows: Sequence[tuple[bytes, list[object]]] = msgspec.msgpack.decode(data)
    return {os.fsdecode(path): Entry(*each) for path, each in rows}  # type: ignore[arg-type]


def _entry(row: list[object] | None) -> Entry | None:
    return None if row is None else Entry(*row)  # type: ignore[arg-type]


MIGRATIONS = (
    # Stores from before their tables had a version have these tables already.
    """
CREATE TABLE IF NOT EXISTS about (name TEXT PRIMARY KEY, value BLOB);
CREATE TABLE IF NOT EXISTS contents (hash BLOB PRIMARY KEY, size INTEGER, data BLOB);
CREATE TABLE IF NOT EXISTS checkpoints (id TEXT PRIMARY KEY, parent TEXT, by TEXT, changes BLOB, turn TEXT, "cast" TEXT,
    target TEXT, tree BLOB, time REAL);
CREATE TABLE IF NOT EXISTS refs (loom TEXT, entity TEXT, checkpoint TEXT, PRIMARY KEY (loom, entity));
CREATE TABLE IF NOT EXISTS reviewed (loom TEXT, entity TEXT, path BLOB, mark BLOB, PRIMARY KEY (loom, entity, path));
CREATE TABLE IF NOT EXISTS restores (number INTEGER PRIMARY KEY, loom TEXT, entity TEXT, target TEXT, changes BLOB);
""",
)
"""The statements that lead from each version of the tables to the next."""
