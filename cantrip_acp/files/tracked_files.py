"""Whether git tracks a file with its present content (`is_tracked`). Such a file is not hidden: everybody who has the
repository has it, and commands find it in ``.git`` anyway.

The index says the hash of what git tracks; git is not run. Commands may write an index, or make a repository around a file.
That shows them nothing: they would need the hash of a content that they cannot read. They could only guess a content and see
whether it is right. So that guessing is hopeless, an index that changed is read again after `_AGAIN_S` seconds at the
earliest, for gates and sandboxes together; until then the old one counts. A file with other content than the index says
(changed since, with other line ends, a file of LFS) stays hidden, and so does a link.
"""

from __future__ import annotations

import hashlib
import os
import stat
import threading
import time

from msgspec import Struct

from cantrip_acp.files.git_index import entries
from cantrip_acp.files.protected_paths import is_secret_file, plain

_AGAIN_S = 600.0
_LARGEST_INDEX = 256 * 1024 * 1024
_LARGEST_FILE = 4 * 1024 * 1024
_LARGEST_LINK = 4096
_CLOCK_TICK_NS = 50_000_000
"""A file that changed so recently may change again without a new time, so the answer for it is not kept."""
_MOST_ANSWERS = 10_000
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_PRIVATE = 0o600


class _Index(Struct, frozen=True):
    """The hashes of the files with names that are hidden otherwise, by path in the work tree."""

    stamp: tuple[int, ...]
    read: float
    hashes: dict[bytes, frozenset[bytes]]


_lock = threading.Lock()
_indexes: dict[str, _Index] = {}
"""By work tree, not by index: who can choose the index of a work tree (by a file ``.git``) cannot choose where it is."""
_answers: dict[str, tuple[int, ...]] = {}
"""The files that were tracked, each with its stamp then."""


def is_tracked(path: str, *, fd: int | None = None, folder: int | None = None) -> bool:
    """Whether git tracks the regular file at this absolute path, whose folders are no links, with just this content.

    ``fd``: the open file. ``folder``: a descriptor of the folder to open it in, which may be a copy of that at ``path``.
    """
    try:
        return _is_tracked(path, fd, folder)
    except (OSError, ValueError):
        return False


def _is_tracked(path: str, fd: int | None, folder: int | None) -> bool:
    if fd is not None:
        status = os.fstat(fd)
    elif folder is not None:
        status = os.stat(os.path.basename(path), dir_fd=folder, follow_symlinks=False)
    else:
        status = os.lstat(path)
    if not stat.S_ISREG(status.st_mode) or status.st_size > _LARGEST_FILE:
        return False
    with _lock:
        if _answers.get(path) == _stamp(status):
            return True
        found = _tracked_content(path)
        if not found:
            return False
        content, status = _read(path, fd, folder)
        if status.st_size != len(content):
            return False
        head = b"blob %d\0" % len(content)
        if (
            not {hashlib.sha1(head + content, usedforsecurity=False).digest(), hashlib.sha256(head + content).digest()}
            & found
        ):
            return False
        if time.time_ns() - status.st_ctime_ns > _CLOCK_TICK_NS:
            if len(_answers) >= _MOST_ANSWERS:
                _answers.clear()
            _answers[path] = _stamp(status)
        return True


def _tracked_content(path: str) -> frozenset[bytes]:
    """The hashes of the contents that the repository around a path has for it."""
    top = os.path.dirname(path)
    while not os.path.lexists(os.path.join(top, ".git")):
        above = os.path.dirname(top)
        if above == top:  # It is "/", or "//".
            return frozenset()
        top = above
    index = _index(top)
    name = os.fsencode(os.path.relpath(path, top))
    return index.hashes.get(name, frozenset()) if index is not None else frozenset()


def _index(top: str) -> _Index | None:
    known = _indexes.get(top)
    if known is not None and time.monotonic() - known.read < _AGAIN_S:
        return known
    try:
        path = os.path.join(_git_folder(os.path.join(top, ".git")), "index")
        stamp = _stamp(os.lstat(path))
        hashes = known.hashes if known is not None and known.stamp == stamp else _hashes(path)
    except (OSError, ValueError):
        return known
    _indexes[top] = _Index(stamp, time.monotonic(), hashes)
    return _indexes[top]


def _git_folder(git: str) -> str:
    if stat.S_ISDIR(os.lstat(git).st_mode):
        return git
    text = os.fsdecode(_bytes(git, _LARGEST_LINK)).strip()
    if not text.startswith("gitdir:"):
        raise ValueError("it names no git folder")
    return os.path.normpath(os.path.join(os.path.dirname(git), text.removeprefix("gitdir:").strip()))


def _hashes(path: str) -> dict[bytes, frozenset[bytes]]:
    data = _bytes(path, _LARGEST_INDEX)
    texts = [data]
    if b"link" in data[-4096:]:
        # A split index keeps most of its entries in a second file.
        folder = os.path.dirname(path)
        shared = [name for name in os.listdir(folder) if name.startswith("sharedindex.")]
        texts += [_bytes(os.path.join(folder, name), _LARGEST_INDEX) for name in shared]
    found: dict[bytes, set[bytes]] = {}
    for text in texts:
        for each in entries(text):
            regular = each.mode[2] >> 4 == 0x8
            if regular and is_secret_file(plain(os.fsdecode(each.path.rpartition(b"/")[2])), _PRIVATE):
                found.setdefault(each.path, set()).add(each.content)
    return {name: frozenset(hashes) for name, hashes in found.items()}


def _read(path: str, fd: int | None, folder: int | None) -> tuple[bytes, os.stat_result]:
    if fd is not None:
        return os.pread(fd, _LARGEST_FILE + 1, 0), os.fstat(fd)
    opened = os.open(path if folder is None else os.path.basename(path), _OPEN, dir_fd=folder)
    try:
        status = os.fstat(opened)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("it is not a file")
        return os.pread(opened, _LARGEST_FILE + 1, 0), status
    finally:
        os.close(opened)


def _bytes(path: str, largest: int) -> bytes:
    opened = os.open(path, _OPEN)
    with open(opened, "rb") as file:
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            raise ValueError("it is not a file")
        return file.read(largest)


def _stamp(status: os.stat_result) -> tuple[int, ...]:
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
