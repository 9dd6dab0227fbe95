"""The watcher of a workspace: knows each file's state, and finds what changed since it last looked.

On Linux the kernel reports changes (inotify): when a command has ended, its changes are already reported, so finding them
costs nothing per unchanged file. Elsewhere, and if the kernel refuses or its queue overflows, all files are compared by
their times. No link is followed, also not in the folders above a file, because a program may replace one at any moment.

Which files are kept: all below the folders, except ``.git`` and its like, and new files that ``.gitignore`` (or
``.git/info/exclude``) ignores. A file that was kept once is kept on, so that an ignore rule cannot hide a change. An ignored
file that the entity is about to write is kept from then on (`Watcher.follow`), and nothing else in its folder. The
content of files that are hidden from entities, larger than `LARGEST` or not readable is not stored, nor that of sockets and
other special files. Their changes are noticed, and named as left out. Of ignored names only the loss is noticed.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

import msgspec

from cantrip_acp.checkpoints.store import IGNORED, LARGEST, MOST_BYTES, MOST_FILES, Change, Entry, Store, content_hash
from cantrip_acp.files import guarded
from cantrip_acp.files.descriptors import is_ready
from cantrip_acp.files.folder import Folder
from cantrip_acp.files.ignore_files import Level, Rules, level_of_folder
from cantrip_acp.files.protected_paths import is_git_config, why_hidden
from cantrip_acp.files.tracked_files import is_tracked
from cantrip_acp.types.errors import CheckpointError

SKIPPED = frozenset({".git", ".hg", ".svn", ".jj"})
"""Names that are never looked at: the data of version control."""

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_FRESH = 50_000_000
"""Nanoseconds. A file that was changed more recently than that may change again without another time."""
_NOT_READABLE = "not readable"
_TOGETHER = 16 * 1024 * 1024
"""About how many bytes are added to the store in one transaction."""

Signature = tuple[int, int, int, int, int]
"""Size, times of modification and change, number and mode of a file; it differs after a change."""


class _Folder:
    """A folder and what is in it. ``path`` is "" for the workspace, relative inside of it, absolute elsewhere."""

    __slots__ = ("files", "folders", "ignored", "level", "narrow", "path", "revealed", "watch")

    def __init__(self, path: str, level: Level, *, revealed: bool = False) -> None:
        self.path = path
        self.narrow = False
        """Whether the rules ignore the folder, so that only files in it that are kept for another reason are checked."""
        self.level = level
        self.watch = -1
        self.ignored: set[str] = set()
        """The names in it that are there and ignored."""
        self.revealed = revealed
        """Whether the folder was ignored until now and has not been read since."""
        self.files: dict[str, tuple[Entry, Signature | None]] = {}
        self.folders: dict[str, _Folder] = {}


class _Kept:
    """How many files are kept, and their contents, which are added to the store together."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._count = self._bytes = 0
        self._have = store.hashes()
        self._new: list[tuple[bytes, bytes]] = []
        self._new_bytes = 0

    def add(self, entry: Entry) -> None:
        self._count += 1
        self._bytes += entry.size if entry.kept else 0
        if self._count > MOST_FILES or self._bytes > MOST_BYTES:
            limit = f"{MOST_FILES:,} files" if self._count > MOST_FILES else f"{MOST_BYTES // 1024**3} GiB"
            raise CheckpointError(
                f"{self._store.workspace} has more than {limit}; add generated files to .gitignore, or open a smaller folder"
            )

    def remove(self, entry: Entry) -> None:
        self._count -= 1
        self._bytes -= entry.size if entry.kept else 0

    def has(self, content: bytes) -> bool:
        """Whether the content with this hash is kept."""
        return content in self._have

    def keep(self, data: bytes) -> bytes:
        """Keep a content. Returns its hash."""
        found = content_hash(data)
        if found not in self._have:
            self._have.add(found)
            self._new.append((found, data))
            self._new_bytes += len(data)
            if self._new_bytes > _TOGETHER:
                self.flush()
        return found

    def flush(self) -> None:
        if self._new:
            self._store.add_all(self._new)
            self._new, self._new_bytes = [], 0


class Watcher:
    """Knows the files of a workspace and of more folders. Blocking; one call at a time. Close it.

    ``skip`` says of an absolute path that it must be left out. ``known`` are files that were kept before. When
    ``abandoned`` becomes true, the first reading ends early, with a `CheckpointError`. Without ``watch`` the kernel is not
    asked. Raises `CheckpointError` if the folders have too many files.
    """

    def __init__(
        self,
        store: Store,
        more: Sequence[str] = (),
        *,
        skip: Callable[[str], bool] = lambda path: False,
        known: Mapping[str, Entry] | None = None,
        abandoned: Callable[[], bool] = lambda: False,
        watch: bool = True,
    ) -> None:
        self._store = store
        self._skip = skip
        self._known = known if known is not None else {}
        self._followed = set(self._known)
        """The files that are kept even if the rules ignore them."""
        self._followed_folders = _folders_of(self._known)
        self._cache = _read_cache(store.cache())
        self._kept = _Kept(store)
        self._changes: dict[str, Change] = {}
        self.revealed: set[str] = set()
        """The files of the last `changes` that existed before and only stopped being ignored."""
        self._revealed: set[str] = set()
        self._linked: set[int] = set()
        """The numbers of changed files that have more than one name. The kernel reports a change under one of them."""
        self._unread: list[tuple[_Folder, str]] | None = []
        """While all files are found for the first time: those whose content is read afterwards."""
        self._abandoned = abandoned
        self._inotify = _Inotify.start() if watch else None
        workspace = store.workspace
        tops = {"": workspace}
        for folder in map(os.path.realpath, more):
            if folder != workspace and not folder.startswith(workspace.rstrip("/") + "/"):
                tops[folder] = folder
        self._roots = {path: _Folder(path, level_of_folder(real)) for path, real in tops.items()}
        self._exclude = _info_exclude(workspace)
        try:
            for root in self._roots.values():
                self._rescan(root)
            self._read_all()
            self._kept.flush()
        except BaseException:
            self.close()
            raise
        self._changes.clear()
        self._revealed.clear()
        self._linked.clear()
        self._cache = {}

    def close(self) -> None:
        """Stop watching. Safe to call twice."""
        inotify, self._inotify = self._inotify, None
        if inotify is not None:
            inotify.close()

    @property
    def cheap(self) -> bool:
        """Whether looking for changes takes no time per unchanged file."""
        return self._inotify is not None

    @property
    def unchanged(self) -> bool:
        """Whether the kernel reports that nothing happened since `changes`. Takes microseconds and does not block."""
        return self._inotify is not None and not self._changes and not self._inotify.pending()

    def tree(self) -> dict[str, Entry]:
        """All files, by path."""
        found: dict[str, Entry] = {}
        for folder in self._folders():
            for name, (entry, _) in folder.files.items():
                found[_join(folder.path, name)] = entry
        return found

    def changes(self) -> dict[str, Change]:
        """The changes since the last call (or since the watcher was made). New contents are in the store."""
        if self._inotify is None:
            self._rescan_all()
        else:
            self._look_at_events(self._inotify)
        self._kept.flush()
        found, self._changes = self._changes, {}
        self.revealed, self._revealed = self._revealed, set()
        return {path: pair for path, pair in found.items() if pair[0] != pair[1]}

    def follow(self, paths: Iterable[str]) -> bool:
        """Store these files now and follow them from now on, also if they are ignored or do not exist yet. Returns whether
        there are changes for `changes` to return."""
        for path in paths:
            root = next((each for each in self._roots if each and path.startswith(each + "/")), "")
            if path in self._followed or (os.path.isabs(path) and not root) or SKIPPED.intersection(path.split("/")):
                continue
            if os.path.isdir(self._absolute(path)):
                continue
            self._followed.add(path)
            self._followed_folders |= _folders_of([path])
            folder = self._roots[root]
            *above, name = path.removeprefix(root).strip("/").split("/")
            for part in above:
                if part not in folder.folders:
                    name = part
                    break
                folder = folder.folders[part]
            if name in folder.ignored:
                with suppress(OSError):
                    if (fd := self._open(folder.path)) is not None:
                        try:
                            self._look_at(folder, fd, name)
                        finally:
                            os.close(fd)
        return bool(self._changes)

    def cache(self) -> bytes:
        """The times and hashes of all files, for `Store.keep_cache`."""
        rows = []
        for folder in self._folders():
            for name, (entry, signature) in folder.files.items():
                if signature is not None and entry.kept:
                    rows.append((os.fsencode(_join(folder.path, name)), signature, entry.hash))
        return msgspec.msgpack.encode(rows)

    def _folders(self) -> Iterator[_Folder]:
        todo = list(self._roots.values())
        while todo:
            folder = todo.pop()
            todo += folder.folders.values()
            yield folder

    # --- finding changes

    def _look_at_events(self, inotify: _Inotify) -> None:
        dirty: dict[tuple[str, str], tuple[_Folder, str]] = {}
        for watch, name in inotify.read():
            if watch < 0:
                self._rescan_all()
                return
            folder = inotify.folders.get(watch)
            if folder is not None and name:
                dirty[folder.path, name] = (folder, name)
        # The rules come first: a command may make a project with its rules and all that they ignore.
        for path, name in sorted(dirty, key=lambda each: (each[1] != ".gitignore", each)):
            folder, name = dirty[path, name]
            if inotify.folders.get(folder.watch) is not folder or name in SKIPPED:
                continue
            try:
                fd = self._open(folder.path)
            except OSError:
                continue
            if fd is None:
                continue
            try:
                self._look_at(folder, fd, name)
                if name == ".gitignore":
                    self._reload_rules(folder, fd)
                    self._rescan(folder)
            finally:
                os.close(fd)
        if self._linked:
            self._look_at_other_names()

    def _look_at_other_names(self) -> None:
        """Compare the files that are the same as a changed one under another name (hard links)."""
        numbers, self._linked = self._linked, set()
        for folder in self._folders():
            names = [name for name, (_, seen) in folder.files.items() if seen is None or seen[3] in numbers]
            fd = self._open(folder.path) if names else None
            if fd is not None:
                try:
                    for name in names:
                        self._look_at(folder, fd, name)
                finally:
                    os.close(fd)
        self._linked.clear()

    def _rescan_all(self) -> None:
        self._exclude = _info_exclude(self._store.workspace)
        for root in self._roots.values():
            root.level = level_of_folder(root.path or self._store.workspace)
            self._rescan(root)

    def _rescan(self, folder: _Folder) -> None:
        """Compare a folder and all below it with the disk."""
        todo = [folder]
        while todo:
            each = todo.pop()
            try:
                fd = self._open(each.path)
            except OSError:
                # The folder exists but cannot be entered now: its content counts as unchanged.
                continue
            if fd is None:
                self._lose(each)
                continue
            try:
                self._watch(each, fd)
                todo += self._scan(each, fd)
            finally:
                os.close(fd)

    def _scan(self, folder: _Folder, fd: int) -> list[_Folder]:
        """Compare a folder's own entries with the disk. Returns its folders."""
        try:
            names = os.listdir(fd)
        except OSError:
            return []
        for name in names:
            if name not in SKIPPED:
                self._look_at(folder, fd, name, enter=False)
        gone = (folder.files.keys() | folder.folders.keys() | folder.ignored) - set(names)
        for name in gone:
            self._remove(folder, name)
        folder.revealed = False
        return list(folder.folders.values())

    def _look_at(self, folder: _Folder, fd: int, name: str, *, enter: bool = True) -> None:
        """Compare one entry of a folder with the disk. With ``enter``, also everything in it if it is a folder."""
        try:
            status = os.stat(name, dir_fd=fd, follow_symlinks=False)
        except FileNotFoundError:
            self._remove(folder, name)
            return
        except OSError:
            return
        path = _join(folder.path, name)
        if stat.S_ISDIR(status.st_mode):
            self._forget_file(folder, name)
            child = folder.folders.get(name)
            if child is None:
                if self._left_out(folder, name, path, True):
                    return
                child = folder.folders[name] = self._enter(folder, fd, name, path)
                child.narrow = self._ruled_out(folder, name, path, True)
                child.revealed = not child.narrow and (folder.revealed or name in folder.ignored)
                folder.ignored.discard(name)
            elif not enter:
                if child.level.above is not folder.level:
                    child.level = self._enter(folder, fd, name, path).level
                if child.narrow and not self._ruled_out(folder, name, path, True):
                    child.narrow, child.revealed = False, True
            if enter:
                self._rescan(child)
            return
        if (lost := folder.folders.pop(name, None)) is not None:
            self._lose(lost)
        known = folder.files.get(name)
        signature: Signature | None = _signature(status)
        if known is not None and known[1] == signature:
            return
        if known is None and self._left_out(folder, name, path, False):
            return
        if known is None and (folder.revealed or name in folder.ignored):
            folder.ignored.discard(name)
            self._revealed.add(path)
        if status.st_nlink > 1:
            self._linked.add(status.st_ino)
        entry = self._entry(fd, name, path, status)
        if time.time_ns() - max(status.st_mtime_ns, status.st_ctime_ns) < _FRESH:
            signature = None
        if known is None:
            self._kept.add(entry)
        if self._unread is not None and entry.kept and not entry.hash:
            self._unread.append((folder, name))
        folder.files[name] = (entry, signature)
        if known is None or known[0] != entry:
            self._note(path, None if known is None else known[0], entry)

    def _read_all(self) -> None:
        """Read the files that were found for the first time. Only now, because there may be too many of them."""
        unread, self._unread = self._unread or [], None
        at: _Folder | None = None
        fd: int | None = None
        try:
            for folder, name in unread:
                if self._abandoned():
                    raise CheckpointError("the session was closed before all files were saved")
                if folder is not at:
                    if fd is not None:
                        os.close(fd)
                    at, fd = folder, None
                    with suppress(OSError):
                        fd = self._open(folder.path)
                entry, signature = folder.files[name]
                found = read_file(name, fd) if fd is not None and signature is not None else None
                if found is not None and _signature(found[1]) == signature:
                    if time.time_ns() - max(signature[1], signature[2]) < _FRESH:
                        signature = None
                    folder.files[name] = (entry._replace(hash=self._kept.keep(found[0]), version=""), signature)
                    continue
                # It was changed since it was found.
                del folder.files[name]
                self._kept.remove(entry)
                if fd is not None:
                    self._look_at(folder, fd, name)
        finally:
            if fd is not None:
                os.close(fd)

    def _remove(self, folder: _Folder, name: str) -> None:
        self._forget_file(folder, name)
        if name in folder.ignored:
            folder.ignored.discard(name)
            self._note(_join(folder.path, name), Entry(0, b"", 0, IGNORED), None)
        if (lost := folder.folders.pop(name, None)) is not None:
            self._lose(lost)

    def _forget_file(self, folder: _Folder, name: str) -> None:
        if (known := folder.files.pop(name, None)) is not None:
            self._kept.remove(known[0])
            self._note(_join(folder.path, name), known[0], None)

    def _lose(self, folder: _Folder) -> None:
        """Note that a folder is gone, with everything below it."""
        if self._inotify is not None:
            self._inotify.remove(folder)
        for name in (*folder.files, *folder.ignored):
            self._remove(folder, name)
        for child in folder.folders.values():
            self._lose(child)
        folder.folders.clear()

    def _note(self, path: str, before: Entry | None, after: Entry | None) -> None:
        first = self._changes.get(path)
        self._changes[path] = (before if first is None else first[0], after)

    # --- folders and rules

    def _enter(self, folder: _Folder, fd: int, name: str, path: str) -> _Folder:
        try:
            inner = os.open(name, _FOLDER, dir_fd=fd)
        except OSError:
            return _Folder(path, folder.level)
        try:
            return _Folder(path, folder.level.enter(name, inner))
        finally:
            os.close(inner)

    def _reload_rules(self, folder: _Folder, fd: int) -> None:
        above = folder.level.above
        if folder.path in self._roots:
            folder.level = level_of_folder(self._absolute(folder.path))
        elif above is not None:
            folder.level = above.enter(folder.level.name, fd)

    def _left_out(self, folder: _Folder, name: str, path: str, is_folder: bool) -> bool:
        if self._skip(self._absolute(path)):
            return True
        if not self._ignored(folder, name, path, is_folder):
            return False
        folder.ignored.add(name)
        return True

    def _ignored(self, folder: _Folder, name: str, path: str, is_folder: bool) -> bool:
        if path in (self._followed_folders if is_folder else self._followed):
            return False
        return self._ruled_out(folder, name, path, is_folder)

    def _ruled_out(self, folder: _Folder, name: str, path: str, is_folder: bool) -> bool:
        """Whether a rule ignores it or a folder above it."""
        if folder.narrow or folder.level.ignores(name, is_folder, by_git=True):
            return True
        return bool(self._exclude) and not os.path.isabs(path) and self._exclude.ignores(path, is_folder) is True

    def _absolute(self, path: str) -> str:
        if not path:
            return self._store.workspace
        return path if path[0] == "/" else f"{self._store.workspace}/{path}"

    def _open(self, path: str) -> int | None:
        root = next((each for each in self._roots if each and (path == each or path.startswith(each + "/"))), "")
        return open_folder(root or self._store.workspace, path.removeprefix(root).strip("/"))

    def _watch(self, folder: _Folder, fd: int) -> None:
        if self._inotify is None or folder.watch >= 0:
            return
        try:
            self._inotify.add(folder, fd)
        except OSError:
            # The limit of watches is reached: compare all files each time instead.
            self.close()

    # --- contents

    def _entry(self, fd: int, name: str, path: str, status: os.stat_result) -> Entry:
        if (
            self._unread is not None
            and not stat.S_ISLNK(status.st_mode)
            and not _why_not_kept(path, status, self._absolute(path))
        ):
            cached = self._cache.get(path)
            if cached is not None and cached[0] == _signature(status) and self._kept.has(cached[1]):
                return Entry(status.st_mode, cached[1], status.st_size)
            return Entry(status.st_mode, b"", status.st_size, "", _version(status))
        return entry_of(name, fd, path, self._absolute(path), status, self._kept.keep)


def open_folder(root: str, below: str) -> int | None:
    """Open a folder below a root without following links. None if it is not there. The caller closes it.

    Raises `OSError` if it is there and cannot be opened.
    """
    try:
        with Folder.top(root) as top:
            return top.beneath(below).fd
    except OSError as problem:
        if problem.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return None
        raise


def entry_of(
    name: str, fd: int, path: str, absolute: str, status: os.stat_result, keep: Callable[[bytes], bytes]
) -> Entry:
    """The state of a file or link in an open folder. ``keep`` stores a content and returns its hash."""
    mode = status.st_mode
    if stat.S_ISLNK(mode):
        try:
            target = os.fsencode(os.readlink(name, dir_fd=fd))
        except OSError:
            # Another thing has taken its place.
            return Entry(mode, b"", 0, _NOT_READABLE, _version(status))
        return Entry(mode, keep(target), len(target))
    if why := _why_not_kept(path, status, absolute):
        return Entry(mode, b"", status.st_size if stat.S_ISREG(mode) else 0, why, _version(status))
    found = read_file(name, fd)
    if found is None:
        return Entry(mode, b"", status.st_size, _NOT_READABLE, _version(status))
    return Entry(mode, keep(found[0]), len(found[0]))


def _why_not_kept(path: str, status: os.stat_result, absolute: str) -> str:
    """Why the content of a thing that is no link is not stored; empty if it is."""
    parts = path.split("/")
    if not stat.S_ISREG(status.st_mode):
        return "a special file, such as a socket or a device"
    if guarded.is_held(absolute):
        # Closing the file would drop this process's SQLite locks on the database.
        return "a loom or database that is open here"
    if is_git_config(parts) or (why_hidden(parts, status.st_mode) is not None and not is_tracked(absolute)):
        return "hidden from entities, because it may hold keys"
    return f"larger than {LARGEST // 1024 // 1024} MB" if status.st_size > LARGEST else ""


def _version(status: os.stat_result) -> str:
    return f"{status.st_size}:{status.st_mtime_ns}:{status.st_ino}"


def _folders_of(paths: Iterable[str]) -> set[str]:
    """All folders above these paths."""
    folders = {""}
    for path in paths:
        while (path := path.rpartition("/")[0]) not in folders:
            folders.add(path)
    return folders


def read_file(name: str, fd: int) -> tuple[bytes, os.stat_result] | None:
    """Read a regular file of at most `LARGEST` bytes in an open folder. Returns its content, and its status before that.

    None if it cannot be read, or is another thing.
    """
    try:
        file = os.open(name, _READ, dir_fd=fd)
    except OSError:
        return None
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            return None
        pieces: list[bytes] = []
        read, size = 0, status.st_size
        while read <= LARGEST and (piece := os.read(file, min(LARGEST + 1 - read, max(size - read + 1, 4096)))):
            pieces.append(piece)
            read += len(piece)
            if read == size:
                break
        return (b"".join(pieces), status) if read <= LARGEST else None
    except OSError:
        return None
    finally:
        os.close(file)


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _signature(status: os.stat_result) -> Signature:
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_mode


def _read_cache(data: bytes) -> dict[str, tuple[Signature, bytes]]:
    if not data:
        return {}
    return {os.fsdecode(path): (tuple(seen), found) for path, seen, found in msgspec.msgpack.decode(data)}


def _info_exclude(workspace: str) -> Rules:
    try:
        fd = open_folder(workspace, ".git/info")
    except OSError:
        fd = None
    if fd is None:
        return Rules(())
    try:
        found = read_file("exclude", fd)
    finally:
        os.close(fd)
    data = found[0] if found is not None else b""
    return Rules(data.decode("utf-8", "surrogateescape").split("\n")[:2_000])


class _Inotify:
    """The kernel's reports of changes in folders (inotify(7))."""

    _EVENTS = 0x2 | 0x4 | 0x8 | 0x40 | 0x80 | 0x100 | 0x200
    """IN_MODIFY, ATTRIB, CLOSE_WRITE, MOVED_FROM, MOVED_TO, CREATE, DELETE."""
    _OVERFLOW = 0x4000
    _HEAD = struct.Struct("iIII")

    def __init__(self, fd: int, libc: ctypes.CDLL) -> None:
        self._fd = fd
        self._libc = libc
        self.folders: dict[int, _Folder] = {}
        """The watched folders, by the number of the watch."""

    @classmethod
    def start(cls) -> _Inotify | None:
        """Start watching. Returns None on systems other than Linux, or if the user has no instance left."""
        if not sys.platform.startswith("linux"):
            return None
        libc = ctypes.CDLL(None, use_errno=True)
        fd = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        return cls(fd, libc) if fd >= 0 else None

    def add(self, folder: _Folder, fd: int) -> None:
        """Watch a folder, which is open. Raises `OSError`."""
        # The path leads to the opened folder, whatever was put in its place meanwhile.
        watch: int = self._libc.inotify_add_watch(self._fd, f"/proc/self/fd/{fd}".encode(), self._EVENTS)
        if watch < 0:
            raise OSError(ctypes.get_errno(), "a folder cannot be watched")
        other = self.folders.get(watch)
        if other is not None and other is not folder:
            other.watch = -1
        folder.watch = watch
        self.folders[watch] = folder

    def remove(self, folder: _Folder) -> None:
        if self.folders.get(folder.watch) is folder:
            del self.folders[folder.watch]
            self._libc.inotify_rm_watch(self._fd, folder.watch)
        folder.watch = -1

    def pending(self) -> bool:
        """Whether there is an event to read."""
        return is_ready(self._fd)

    def read(self) -> Iterator[tuple[int, str]]:
        """The watch and the name of each pending event; a watch of -1 means that events were lost."""
        while True:
            try:
                data = os.read(self._fd, 1024 * 1024)
            except OSError as problem:
                if problem.errno in (errno.EAGAIN, errno.EINTR):
                    return
                yield -1, ""
                return
            at = 0
            while at < len(data):
                watch, mask, _, length = self._HEAD.unpack_from(data, at)
                at += self._HEAD.size
                name = data[at : at + length].split(b"\0", 1)[0]
                at += length
                yield (-1 if mask & self._OVERFLOW else watch), os.fsdecode(name)

    def close(self) -> None:
        with suppress(OSError):
            os.close(self._fd)
