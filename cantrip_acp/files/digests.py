"""Digests of the files that a call reads: equal only if all of them have the same names, modes and content.

Ignored files (`.gitignore` and the like) and version control folders do not count, except files that git tracks. Content is
read once. Later a file counts as unchanged while size, times and inode are the same, unless it changed so shortly before it was
read that a later change would not show in its times.
"""

from __future__ import annotations

import hashlib
import os
import stat
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from cantrip_acp.files import guarded
from cantrip_acp.files.folder import Folder
from cantrip_acp.files.ignore_files import IGNORE_FILES, Level, level_of_folder
from cantrip_acp.files.paths import private
from cantrip_acp.text.codecs import msgpack_decoder

MOST_FILES = 50_000
"""A folder with more files has no digest, unless the caller wants it: to look at it would take longer than most calls."""
_RACY_NS = 2_000_000_000
"""A file that changed so shortly before it was read is read again next time."""
_SKIPPED = frozenset({".git", ".hg", ".svn", ".jj", "CVS"})
_SMALL = 1 << 20
"""Bytes of a file that is read at once."""
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_Mark = tuple[int, int, int, int]


class FileDigests:
    """Digests of folders, with a cache of what was read before. Any thread may use it.

    ``kept`` is a file that only the user can write, with the cache for later processes.
    """

    def __init__(self, kept: Path | None = None) -> None:
        self._kept = kept
        self._known: dict[str, tuple[_Mark, bytes]] = {}
        self._folders: dict[str, _Folder] = {}
        self._lock = threading.Lock()
        self._strict = True

    def folder(
        self, path: Path, keep: Callable[[str], bool] = lambda _: True, *, most: int | None = None, strict: bool = True
    ) -> str | None:
        """The digest of all files below a folder that are not ignored and whose names ``keep`` takes.

        None if there are more than ``most`` (`MOST_FILES`), or one cannot be read. If it is not ``strict``, such a file counts by
        its name and size; a folder that cannot be read, and what is neither a file nor a link, does not count.
        """
        with self._lock:
            digest = hashlib.blake2b(digest_size=32)
            count, self._strict = 0, strict
            if not self._known and self._kept is not None:
                self._known = _load(self._kept)
            seen: dict[str, tuple[_Mark, bytes]] = {}
            try:
                for name, place in self._walk(path):
                    # To close a database that is open here would take its locks from this process.
                    if not keep(name) or guarded.is_held(place):
                        continue
                    status = None
                    try:
                        status = os.lstat(place)
                        content = self._content(place, status, seen)
                    except OSError as error:
                        if strict:
                            raise
                        if status is None or isinstance(error, FileNotFoundError) or not stat.S_ISREG(status.st_mode):
                            continue
                        content = b"%d" % status.st_size
                    count += 1
                    if count > (MOST_FILES if most is None else most):
                        return None
                    mode = f"{stat.S_IFMT(status.st_mode):o} {status.st_mode & 0o111:o}"
                    digest.update(f"{name}\0{mode}\0".encode(errors="surrogateescape") + content)
            except (OSError, ValueError):
                return None
            prefix = f"{path}{os.sep}"
            known = {key: value for key, value in self._known.items() if not key.startswith(prefix)} | seen
            if self._kept is not None and known != self._known:
                _save(self._kept, known)
            self._known = known
            return digest.hexdigest()

    def _content(self, place: str, status: os.stat_result, seen: dict[str, tuple[_Mark, bytes]]) -> bytes:
        if stat.S_ISLNK(status.st_mode):
            return os.fsencode(os.readlink(place)) + b"\0"
        if not stat.S_ISREG(status.st_mode):
            raise OSError("neither a file nor a link")
        mark = _mark(status)
        known = self._known.get(place)
        if known is None or known[0] != mark:
            now = time.time_ns()
            known = (mark, _hash(place, status.st_size))
            if now - max(status.st_mtime_ns, status.st_ctime_ns) < _RACY_NS:
                return known[1]
        seen[place] = known
        return known[1]

    def _walk(self, folder: Path) -> Iterator[tuple[str, str]]:
        """The files below a folder that count, in a fixed order: the name of each below the folder, and its path."""
        try:
            tracked = _tracked(folder)
        except (OSError, ValueError):
            if self._strict:
                raise
            tracked = set()
        for name, place in self._below(str(folder)):
            tracked.discard(name)
            yield name, place
        for name in sorted(tracked):
            place = os.path.join(folder, name)
            if os.path.lexists(place) and not os.path.isdir(place):
                yield name, place

    def _below(self, top: str) -> Iterator[tuple[str, str]]:
        """The files below a folder. Without recursion: a command can make thousands of folders inside each other."""
        # These change if an ignore file of the folder, or of one above it, does.
        marks = (*(_marks(str(each)) for each in Path(top).parents), _marks(top))
        found = self._entries(top, lambda: level_of_folder(top), marks)
        stack = [(top, "", marks, found.level, iter(found.entries))]
        while stack:
            folder, prefix, marks, level, entries = stack[-1]
            for name, is_folder in entries:
                place = f"{folder}/{name}"
                if is_folder:
                    inner = (*marks, _marks(place))
                    found = self._entries(place, partial(_enter, level, name, place), inner)
                    stack.append((place, f"{prefix}{name}/", inner, found.level, iter(found.entries)))
                    break
                yield f"{prefix}{name}", place
            else:
                stack.pop()

    def _entries(self, folder: str, enter: Callable[[], Level], marks: tuple[Any, ...]) -> _Folder:
        """The entries of a folder that count, from the cache if neither the folder nor an ignore file has changed."""
        try:
            mark = _mark(os.lstat(folder))
            known = self._folders.get(folder)
            if known is not None and known.mark == mark and known.marks == marks:
                return known
            now = time.time_ns()
            level = enter()
            with os.scandir(folder) as found:
                entries = sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in found)
        except OSError:
            # It has gone meanwhile, may not be read, or has too long a path.
            if self._strict:
                raise
            return _Folder((0, 0, 0, 0), marks, Level(None, "", (), False), [])
        kept = [each for each in entries if each[0] not in _SKIPPED and not level.ignores(*each)]
        known = _Folder(mark, marks, level, kept)
        if now - max(mark[1], mark[2]) >= _RACY_NS:
            self._folders[folder] = known
        return known


def _hash(place: str, size: int) -> bytes:
    """The hash of a file's content."""
    descriptor = os.open(place, _READ)
    if size > _SMALL:
        with open(descriptor, "rb") as file:
            return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=32)).digest()
    digest = hashlib.blake2b(digest_size=32)
    try:
        while part := os.read(descriptor, _SMALL):
            digest.update(part)
    finally:
        os.close(descriptor)
    return digest.digest()


def _load(kept: Path) -> dict[str, tuple[_Mark, bytes]]:
    """Load the cache of earlier processes. An unusable file counts as empty."""
    try:
        found: dict[str, tuple[_Mark, bytes]] = msgpack_decoder(dict[str, tuple[_Mark, bytes]]).decode(
            kept.read_bytes()
        )
        return found
    except (OSError, msgspec.DecodeError):
        return {}


def _save(kept: Path, known: dict[str, tuple[_Mark, bytes]]) -> None:
    with suppress(OSError, UnicodeError), Folder.of(private(kept.parent)) as folder:
        folder.replace(kept.name, msgspec.msgpack.encode(known), 0o600)


class _Folder(NamedTuple):
    mark: _Mark
    marks: tuple[Any, ...]
    level: Level
    entries: list[tuple[str, bool]]


def _enter(above: Level, name: str, place: str) -> Level:
    descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        return above.enter(name, descriptor)
    finally:
        os.close(descriptor)


def _tracked(folder: Path) -> set[str]:
    """The names of what git tracks below a folder, seen from there. Raises ValueError for an index that cannot be read.

    The index: git's documentation, gitformat-index.
    """
    top = next((each for each in (folder, *folder.parents) if os.path.lexists(each / ".git")), None)
    if top is None:
        return set()
    place = top / ".git"
    try:
        if place.is_file():
            # A worktree.
            place = top / place.read_text().removeprefix("gitdir:").strip()
        data = (place / "index").read_bytes()
        magic, version, count = struct.unpack_from(">4sII", data)
        if magic != b"DIRC" or version not in (2, 3):
            raise ValueError(f"an index of version {version}")
        names, at = set(), 12
        # The hash of each file, as long as the one at the end.
        flags_at = 40 + (32 if hashlib.sha256(data[:-32]).digest() == data[-32:] else 20)
        below = "" if top == folder else f"{folder.relative_to(top)}/"
        for _ in range(count):
            flags = struct.unpack_from(">H", data, at + flags_at)[0]
            start = at + flags_at + (4 if flags & 0x4000 else 2)
            end = data.index(b"\0", start)
            if (name := os.fsdecode(data[start:end])).startswith(below):
                names.add(name.removeprefix(below))
            at += (end - at + 8) // 8 * 8
    except (FileNotFoundError, NotADirectoryError):
        return set()
    except struct.error:
        raise ValueError("an index that is cut off") from None
    return names


def _marks(folder: str) -> tuple[Any, ...]:
    """A value that changes if an ignore file of a folder changes, or if the folder becomes the top of a repository."""
    marks: list[Any] = []
    for name in (*IGNORE_FILES, ".git"):
        try:
            status = os.lstat(f"{folder}/{name}")
            marks.append(_mark(status) if name != ".git" else True)
        except OSError:
            marks.append(None)
    return tuple(marks)


def _mark(status: os.stat_result) -> _Mark:
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


def programs_digest(paths: Sequence[str]) -> str:
    """The digest of programs and folders of packages, by the size and times of each, and of a folder's entries."""
    digest = hashlib.blake2b(digest_size=32)
    for path in paths:
        digest.update(f"{path}\0{os.path.realpath(path)}\0".encode(errors="surrogateescape"))
        try:
            status = os.stat(path)
            digest.update(f"{status.st_size} {status.st_mtime_ns}\0".encode())
            if stat.S_ISDIR(status.st_mode):
                with os.scandir(path) as found:
                    for name, time_ns in sorted((entry.name, entry.stat().st_mtime_ns) for entry in found):
                        # Python itself writes its cache there.
                        if name != "__pycache__":
                            digest.update(f"{name} {time_ns}\0".encode(errors="surrogateescape"))
        except OSError as error:
            digest.update(f"{error.errno}\0".encode())
    return digest.hexdigest()
