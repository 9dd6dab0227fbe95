"""Files that this process keeps from its own gates and sandboxes, whatever their names are.

**Named** files: a recipe of the workspace runs or reads them, and trust covers their content. Gates and commands cannot write
them. **Held** files: looms and databases that this process has open. Gates and commands do not see them.
Gates ask here for each path; a sandbox asks before each command.
"""

from __future__ import annotations

import errno
import fcntl
import os
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Protocol
from weakref import WeakKeyDictionary, WeakSet

from cantrip_acp.files import paths
from cantrip_acp.files.protected_paths import PROTECTED_FILES

_lock = threading.RLock()
_named: dict[str, dict[str, str]] = {}


def name_files(owner: str, files: Mapping[str, str]) -> None:
    """Guard the files that ``owner`` names, each with the name of who names it. They replace the files that ``owner`` named
    before."""
    with _lock:
        _named[owner] = {
            _folded(each): by for path, by in files.items() for each in (_real(path), os.path.realpath(path))
        }


def named() -> dict[str, str]:
    """The real path of each named file, and of a link's target, with the name of who names it."""
    with _lock:
        # Who named it first is told: a recipe is read before its servers start.
        found = {path: by for files in reversed(_named.values()) for path, by in files.items()}
    return {**_start_files(os.path.expanduser("~")), **found}


@lru_cache(maxsize=4)
def _start_files(home: str) -> dict[str, str]:
    """The start files that a link in the home folder leads to, as of somebody who has them in a repository."""
    links = [os.path.join(home, row.name) for row in PROTECTED_FILES if row.home]
    return {
        _folded(os.path.realpath(path)): f"the link ~/{os.path.basename(path)}"
        for path in links
        if os.path.islink(path) and os.path.isfile(path)
    }


def why_named(path: str) -> str | None:
    """Why the file at an absolute path is read-only, as text that follows "because". None if nobody names it."""
    files = named()
    by = files.get(_folded(_real(path))) if files else None
    return (
        None
        if by is None
        else f"{by} names it, and what it names decides what runs outside the sandbox or what a model is told"
    )


# Files that are open here


class Running(Protocol):
    """A running process tree in a sandbox."""

    @property
    def is_running(self) -> bool:
        """Whether one of its processes may still run."""
        ...


_holders: WeakSet[Held] = WeakSet()
_running: WeakKeyDictionary[Running, tuple[str, ...]] = WeakKeyDictionary()


class Held:
    """A file that is open here for writing, until `release`. ``suffixes``: those of the files beside it that belong to it.

    ``made``: suffixes of files that belong to it and need not exist. They are made, empty, before a command starts that could
    make them. ``removed``: those of them that are removed again at the end.

    Raises `OSError` if something that runs in a sandbox could write it: its sandbox was made before, and shows the file.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        suffixes: Sequence[str] = (),
        made: Sequence[str] = (),
        removed: Sequence[str] = (),
    ) -> None:
        self._open: dict[str, int] = {}
        self.path = os.path.realpath(path)
        folded = _folded(self.path)
        self.files = frozenset(f"{folded}{suffix}" for suffix in ("", *suffixes, *made))
        self._made = tuple(f"{self.path}{suffix}" for suffix in made)
        self._removed = tuple(f"{self.path}{suffix}" for suffix in removed)
        if _is_below(folded, map(_folded, paths.own()[0])):
            # No sandbox and no gate sees the state folder.
            return
        with _lock:
            for each, roots in list(_running.items()):
                folder = next((root for root in roots if _is_below(self.path, (root,))), None)
                if folder is not None and each.is_running:
                    raise OSError(
                        errno.EBUSY,
                        f"commands or cells that run in this process may write {folder}, and could change the file. Open it "
                        "before they start or after they have ended, or put it outside of that folder",
                        str(path),
                    )
            _holders.add(self)

    def make_others(self, roots: Sequence[str]) -> None:
        """Create the missing files that belong to it, if commands could create them."""
        for path in self._made if _is_below(self.path, roots) else ():
            if path not in self._open:
                with suppress(OSError):
                    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
                    self._open[path] = os.open(path, flags, 0o600)
                    fcntl.flock(self._open[path], fcntl.LOCK_SH | fcntl.LOCK_NB)

    def release(self) -> None:
        """Note that the file is closed. Safe to call twice."""
        with _lock:
            _holders.discard(self)
            while self._open:
                path, fd = self._open.popitem()
                with suppress(OSError):
                    # Another process that holds the file needs it too.
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if path in self._removed and os.fstat(fd).st_size == 0:
                        os.unlink(path)
                os.close(fd)

    def __del__(self) -> None:
        if self._open and not sys.is_finalizing():
            self.release()


def is_held(path: str) -> bool:
    """Whether the file at an absolute path is open in this process, or belongs to an open one."""
    holders = tuple(_holders)
    if not holders:
        return False
    name = _folded(os.path.basename(path))
    if not any(each.rpartition("/")[2] == name for held in holders for each in held.files):
        return False
    real = _folded(_real(path))
    return any(real in held.files for held in holders)


def held(roots: Sequence[str]) -> tuple[str, ...]:
    """The real paths of existing files that are open in this process, with the files that belong to them. Missing ones are
    created if commands that may write these folders could create them."""
    with _lock:
        holders = tuple(_holders)
        for each in holders:
            each.make_others(roots)
        return tuple(sorted({path for each in holders for path in each.files if os.path.exists(path)}))


def runs(running: Running, roots: tuple[str, ...]) -> None:
    """Register a process tree in a sandbox that may write these folders."""
    with _lock:
        _running[running] = roots


def _is_below(path: str, roots: Iterable[str]) -> bool:
    return any(path == root or path.startswith(root.rstrip("/") + "/") for root in roots)


def _real(path: str) -> str:
    """The path with links in its folders resolved, but not a link of the file itself: whoever replaces that link changes the
    target."""
    above, name = os.path.split(path)
    return os.path.join(os.path.realpath(above), name)


def _folded(path: str) -> str:
    # A Mac's file system takes Work.db for work.db.
    return path.casefold() if sys.platform == "darwin" else path
