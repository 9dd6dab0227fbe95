"""Scratch copies: redirects writes from folders to copies of them.

While copies are in force (`in_force`), every new sandbox and every gate that writes a file uses them. So recorded
code can run again without changing the user's files. They apply to the task that sets them and to the tasks it
starts.
"""

from __future__ import annotations

import os
import shutil
import stat
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar

from cantrip_acp.core.errors import SandboxError

LARGEST_COPY = 2 << 30
"""Maximum total bytes of the writable folders that are copied."""


def source_of(path: str, copies: Mapping[str, str]) -> str:
    """The path in its folder's copy, if there is one; else the path itself."""
    for root in sorted(copies, key=len, reverse=True):
        if path == root or path.startswith(root.rstrip("/") + "/"):
            return copies[root] + path[len(root.rstrip("/")) :]
    return path


def copied(roots: Iterable[str], folder: str, first: int = 0) -> dict[str, str]:
    """Copy folders into another folder.

    Maps each folder to its copy. A folder inside another one is part of that copy.

    Blocking. Raises `SandboxError` if they are larger than `LARGEST_COPY`, or one cannot be read.
    """
    outer = outermost(roots)
    size = sum(_size(root) for root in outer)
    if size > LARGEST_COPY:
        raise SandboxError(
            f"the writable folders are {size >> 20:,} MiB; code is run again only in a copy of them, which may "
            f"have {LARGEST_COPY >> 20:,} MiB"
        )
    made: dict[str, str] = {}
    for number, root in enumerate(outer, first):
        copy = os.path.join(folder, str(number))
        try:
            shutil.copytree(root, copy, symlinks=True, ignore=_no_files)
        except (OSError, shutil.Error) as error:
            raise SandboxError(f"{root} cannot be copied, so no code is run again in it: {error}") from error
        made[root] = copy
    return made


def outermost(roots: Iterable[str]) -> list[str]:
    """These folders without those that are inside another of them."""
    given = list(dict.fromkeys(roots))
    return [p for p in given if not any(o != p and p.startswith(o.rstrip("/") + "/") for o in given)]


class Copies:
    """Copies in a folder. Each is made when it is first needed, and then used by all."""

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
            self._made.update(copied(new, self.folder, len(self._made)))

    def at(self, path: str) -> str:
        """Where to open a path: in its copy if there is one, else as given."""
        real = os.path.realpath(path)
        found = source_of(real, self._made)
        return path if found == real else found


_IN_FORCE: ContextVar[Copies | None] = ContextVar("copies", default=None)


def current() -> Copies | None:
    """The copies that are in force in this task."""
    return _IN_FORCE.get()


@contextmanager
def in_force(copies: Copies | None) -> Iterator[None]:
    """Let everything that begins in this block write to copies. With None, it writes to the folders themselves."""
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
    """Names that are not a file, a folder or a link. They are not copied."""
    left = []
    for name in names:
        mode = os.lstat(os.path.join(folder, name)).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)):
            left.append(name)
    return left
