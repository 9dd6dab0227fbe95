"""Finds protected and hidden files in folders that commands can read or write.

**Protected** files are read-only inside. Those that a command makes are moved away (`cantrip_acp.sandbox.launch.new_names`);
on macOS commands cannot make those that are marked ``first`` at the top of a writable folder. **Hidden** files show only a
short note, unless git tracks them (`cantrip_acp.files.tracked_files`). The lists of names are those of the gates
(`cantrip_acp.files.protected_paths`). `Survey` searches a folder and caches the result by the time of the last change of each
subfolder, which no program can set. So a new search before every
command costs one `stat` per folder.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass, field

from cantrip_acp.files.protected_paths import (
    HIDDEN_FOLDERS,
    KEY_SUFFIXES,
    PROTECTED_FILES,
    is_allowed,
    is_secret_file,
    plain,
    protected_by,
    separate_git_folder,
)
from cantrip_acp.files.tracked_files import is_tracked
from cantrip_acp.sandbox.launch.process_tree import OUT_OF_RESOURCES

NEVER_MADE = tuple(row.name for row in PROTECTED_FILES if row.first)
"""Names at the top of a writable folder that commands cannot change, and on macOS not create."""

_VERSION_CONTROL = frozenset({".git", ".hg", ".svn", ".jj"})
"""Folders that are not searched. `git_repositories.redacted_config` handles credentials that git stores there."""

_NOT_SEARCHED = frozenset(
    {"node_modules", "__pycache__", ".tox", ".nox", ".mypy_cache", ".ruff_cache", ".pytest_cache", "site-packages"}
)
"""Folders that are not searched, because they are large and contain copies of public files."""

_PROGRAMS = frozenset({"bin", "scripts"})
"""Folders in which a virtual environment has its interpreters."""
_SECRET_UNLESS_PUBLIC = (*KEY_SUFFIXES, ".bak", ".old", ".orig", ".save")

_CLOCK_TICK_NS = 50_000_000
"""Nanoseconds. Within one tick of the clock, a folder may change twice with the same modification time. So a folder
that changed so recently is read again next time.
"""
_LONGEST_PATH = 3000
"""Bytes. Close to the 4096 of the system nothing in a folder can be looked at by its path. So such a folder counts as protected."""


@dataclass(slots=True)
class _Folder:
    changed: int
    read: int
    folders: list[str]
    protected: list[str]
    hidden: list[str]
    names: list[str]
    readable: bool = True
    mode: int = 0
    environment: bool = False
    """Whether it is a virtual environment of Python."""


@dataclass(frozen=True, slots=True)
class Findings:
    """Absolute paths, sorted. ``linked``: protected names at the top of the folder that are symbolic links. ``programs``: those
    protected folders that hold the programs of a virtual environment. ``names``: all protected names, each with NUL and its target
    if it is a link. ``shut``: folders of ours that cannot be read."""

    protected: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    linked: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    names: frozenset[str] = frozenset()
    shut: frozenset[str] = frozenset()


@dataclass(slots=True)
class Survey:
    """Finds protected and hidden paths below ``root``, a real path. Never follows symbolic links.

    ``allowed``: the names in the ward ``allow_protected``.
    """

    root: str
    allowed: frozenset[str] = frozenset()
    _folders: dict[str, _Folder] = field(default_factory=dict)
    _findings: Findings = field(default_factory=Findings)
    _shown: frozenset[str] = frozenset()
    """The files with hidden names that git tracks."""
    _environments: set[str] | None = None
    """The virtual environments that the first search found. Commands may change an environment that they make later."""
    seconds: float = 0.0
    """The duration of the last search in seconds."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def refresh(self) -> Findings:
        """Search again: one `stat` per folder; changed folders are read again. Any thread may call this."""
        with self._lock:
            return self._refresh()

    def _refresh(self) -> Findings:
        began = time.monotonic()
        seen: dict[str, _Folder] = {}
        protected: list[str] = []
        hidden: list[str] = []
        stack = [self.root]
        changed = False
        while stack:
            path = stack.pop()
            known = self._folders.get(path)
            try:
                status = os.stat(path, follow_symlinks=False)
            except OSError as error:
                if error.errno in OUT_OF_RESOURCES:
                    raise
                changed = True
                continue
            if (
                known is None
                or known.changed != status.st_ctime_ns
                or known.mode != status.st_mode
                or known.read - known.changed < _CLOCK_TICK_NS
            ):
                known = self._read(path, status)
                changed = True
            seen[path] = known
            protected += known.protected
            hidden += known.hidden
            stack += known.folders
        environments = {path for path, folder in seen.items() if folder.environment}
        if self._environments is None:
            self._environments = environments
        programs: list[str] = []
        for path in environments & self._environments:
            interpreters = _interpreters(path)
            protected += interpreters
            programs += [each for each in interpreters if not each.endswith("pyvenv.cfg")]
        # A file may change without its folder, so each one is asked about again.
        shown = frozenset(path for path in hidden if is_tracked(path))
        if changed or len(seen) != len(self._folders) or shown != self._shown:
            self._findings = Findings(
                protected=tuple(sorted(p for p in protected if not os.path.islink(p))),
                hidden=tuple(
                    sorted({real for p in hidden if p not in shown and (real := _path_to_hide(p, self.root))})
                ),
                linked=tuple(sorted(p for p in protected if os.path.dirname(p) == self.root and os.path.islink(p))),
                programs=tuple(sorted(p for p in programs if not os.path.islink(p))),
                names=frozenset(name for folder in seen.values() for name in folder.names),
                shut=frozenset(path for path, folder in seen.items() if not folder.readable and path in folder.hidden),
            )
        self._folders, self._shown = seen, shown
        self.seconds = time.monotonic() - began
        return self._findings

    def _read(self, path: str, status: os.stat_result) -> _Folder:
        folders: list[str] = []
        protected: list[str] = []
        hidden: list[str] = []
        environment = False
        here = plain(os.path.basename(path))
        names: list[str] = []
        found = _Folder(status.st_ctime_ns, time.time_ns(), folders, protected, hidden, names, mode=status.st_mode)
        if path != self.root and _can_be_reopened(status):
            # The folder is not readable now, but a command could change its mode (chmod). So hide the whole folder.
            found.readable = False
            hidden.append(path)
            return found
        try:
            with os.scandir(path) as entries:
                for entry in entries:
                    name = plain(entry.name)
                    row = protected_by(name, here)
                    if row is not None and (row.home or is_allowed(row, self.allowed)):
                        row = None
                    if entry.is_dir(follow_symlinks=False):
                        if len(os.fsencode(entry.path)) > _LONGEST_PATH:
                            protected.append(entry.path)
                            names.append(entry.path)
                        elif row is not None:
                            protected.append(entry.path)
                            names.append(entry.path)
                            if entry.name not in _VERSION_CONTROL:
                                folders.append(entry.path)
                        elif name in HIDDEN_FOLDERS:
                            hidden.append(entry.path)
                        elif entry.name not in _NOT_SEARCHED:
                            folders.append(entry.path)
                        continue
                    environment = environment or (entry.name == "pyvenv.cfg" and row is not None)
                    if row is not None and here not in _PROGRAMS and name != "pyvenv.cfg":
                        protected.append(entry.path)
                        names.append(f"{entry.path}\0{os.readlink(entry.path)}" if entry.is_symlink() else entry.path)
                    if entry.name == ".git" and (elsewhere := separate_git_folder(path)) is not None:
                        protected.append(elsewhere)
                    if is_secret_file(name, _mode(entry)):
                        hidden.append(entry.path)
        except OSError as error:
            if error.errno in OUT_OF_RESOURCES:
                raise
            # We cannot read the folder. The sandbox runs as the same user, so its commands cannot read it either.
            found.readable = False
            folders.clear()
            protected.clear()
            hidden.clear()
            names.clear()
        found.environment = environment
        return found

    def at(self, path: str) -> tuple[str, ...] | None:
        """The paths of `NEVER_MADE` names that the last search found in a folder.

        None for a folder that is not searched.
        """
        folder = self._folders.get(path)
        if folder is None or not folder.readable:
            return None
        return tuple(sorted(p for p in folder.protected if p.rpartition("/")[2] in NEVER_MADE))


def _mode(entry: os.DirEntry[str]) -> int | None:
    """The mode of a file if its name is not enough to decide whether to hide it; else None."""
    if not entry.name.lower().rstrip("~").endswith(_SECRET_UNLESS_PUBLIC):
        return None
    try:
        return entry.stat().st_mode
    except OSError:
        return None


def _interpreters(environment: str) -> list[str]:
    """The protected parts of a virtual environment: its settings, and the folder with its interpreters.

    Interpreters are usually links, and a link cannot be protected. So their whole folder is protected.
    """
    names = ("pyvenv.cfg", *sorted(_PROGRAMS))
    return [path for name in names if os.path.lexists(path := os.path.join(environment, name))]


def _can_be_reopened(status: os.stat_result) -> bool:
    """Whether we own this folder and have no access to it. Commands run as the same user and could restore the access."""
    return bool(os.geteuid()) and status.st_uid == os.geteuid() and status.st_mode & 0o500 != 0o500


def _path_to_hide(path: str, root: str) -> str | None:
    """The path to hide so that ``path`` cannot be read: its real path if that is inside ``root``, else None."""
    real = os.path.realpath(path)
    if real != root and real.startswith(root.rstrip("/") + "/") and os.path.exists(real):
        return real
    return None
