"""Scratch copies: redirects writes from folders to temporary copies of them.

A replay runs recorded code again without changing the user's files. Inside the block `in_force`, every new sandbox and
every gate that writes a file uses the copies. This applies to the task that entered the block and to the tasks that it
starts.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar

from cantrip_acp.files import guarded
from cantrip_acp.types.errors import SandboxError

LARGEST_COPY = 2 << 30
"""Maximum total bytes of the writable folders that are copied."""


def source_of(path: str, copies: Mapping[str, str]) -> str:
    """The path in the copy of its folder. If the folder has no copy, the path itself."""
    for root in sorted(copies, key=len, reverse=True):
        if path == root or path.startswith(root.rstrip("/") + "/"):
            return copies[root] + path[len(root.rstrip("/")) :]
    return path


def copy_folders(roots: Iterable[str], folder: str, first: int = 0) -> dict[str, str]:
    """Copy folders into another folder. Returns a mapping from each folder to its copy.

    A folder that is inside another one of the folders is only in the copy of that folder.

    Blocking. Raises `SandboxError` if they are larger than `LARGEST_COPY`, or one cannot be read.
    """
    import shutil

    outer = outermost(roots)
    size = sum(_size(root) for root in outer)
    if size > LARGEST_COPY:
        raise SandboxError(
            f"a replay runs code in a copy of the writable folders. They have {size >> 20:,} MiB, and the limit is "
            f"{LARGEST_COPY >> 20:,} MiB: move large files out, or make fewer folders writable"
        )
    made: dict[str, str] = {}
    for number, root in enumerate(outer, first):
        copy = os.path.join(folder, str(number))
        try:
            shutil.copytree(root, copy, symlinks=True, ignore=_no_files)
        except (OSError, shutil.Error) as error:
            raise SandboxError(f"{root} cannot be copied, so the code does not run again: {error}") from error
        made[root] = copy
    return made


def outermost(roots: Iterable[str]) -> list[str]:
    """The folders that are not inside another one of them."""
    given = list(dict.fromkeys(roots))
    return [p for p in given if not any(o != p and p.startswith(o.rstrip("/") + "/") for o in given)]


class Copies:
    """The copies of writable folders. A copy is made when it is needed for the first time, and then reused."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._made: dict[str, str] = {}
        self._lock = threading.Lock()

    @property
    def made(self) -> Mapping[str, str]:
        """The copies so far, by the real path of the original."""
        return dict(self._made)

    def add(self, roots: Iterable[str]) -> None:
        """Make copies of these folders. Blocking. Raises `SandboxError` if one cannot be copied."""
        with self._lock:
            real = [os.path.realpath(root) for root in roots]
            new = [p for p in real if source_of(p, self._made) == p and os.path.isdir(p)]
            self._made.update(copy_folders(new, self.folder, len(self._made)))

    def at(self, path: str) -> str:
        """The path to open instead of ``path``: in the copy of its folder if there is one, else ``path``."""
        real = os.path.realpath(path)
        found = source_of(real, self._made)
        return path if found == real else found


_IN_FORCE: ContextVar[Copies | None] = ContextVar("copies", default=None)


def current() -> Copies | None:
    """The copies that this task uses, or None."""
    return _IN_FORCE.get()


@contextmanager
def in_force(copies: Copies | None) -> Iterator[None]:
    """Use the copies for everything that starts in this block. With None, the original folders are used."""
    token = _IN_FORCE.set(copies)
    try:
        yield
    finally:
        _IN_FORCE.reset(token)


def _size(root: str) -> int:
    total = 0
    for folder, _, names in os.walk(root):
        for name in names:
            with suppress(OSError):
                total += os.lstat(os.path.join(folder, name)).st_size
    return total


def _no_files(folder: str, names: list[str]) -> list[str]:
    """The names that are not copied, because they are not a file, a folder or a link, or are open here as a loom or database."""
    left = []
    for name in names:
        mode = os.lstat(os.path.join(folder, name)).st_mode
        known = stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)
        # To close a database that is open here would take its locks from this process.
        if not known or guarded.is_held(os.path.join(folder, name)):
            left.append(name)
    return left
