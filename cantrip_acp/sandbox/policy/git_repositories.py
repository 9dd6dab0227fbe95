"""Git repositories of a workspace: git folders elsewhere, credentials in git settings, and unfetched submodules.

`git status` on the host enters each submodule folder that has a ``.git`` and runs the programs that its settings name
(``core.fsmonitor``). In a submodule folder that was never fetched, a command could create a repository. The next
`git status` of the user or their editor would then run its code on the host. So commands must not change such a
folder (`unfetched`). The list of submodule folders comes from the git index, which commands cannot write. git itself
is not run here, because it would run what untrusted settings name.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from cantrip_acp.files.git_index import read_index
from cantrip_acp.files.protected_paths import without_credentials
from cantrip_acp.sandbox.launch.process_tree import OUT_OF_RESOURCES
from cantrip_acp.sandbox.policy.harmless_git import why_harmful as why_harmful

_LARGEST_TEXT = 4096
_LARGEST_CONFIG = 1024 * 1024


def redacted_config(path: str) -> str | None:
    """The text of a git settings file without credentials; None if it contains no credentials."""
    text = _read_text(path, _LARGEST_CONFIG)
    clean = without_credentials(text)
    return None if clean == text else clean + "\n"


def config_files(folder: str) -> list[str]:
    """The paths of the settings files in a git folder, including those of its submodules and worktrees."""
    found = [f"{folder}/config", f"{folder}/config.worktree"]
    for kind in ("modules", "worktrees"):
        for at, folders, files in os.walk(f"{folder}/{kind}", onerror=_unreadable):
            found += [f"{at}/{name}" for name in ("config", "config.worktree") if name in files]
            if "HEAD" in files:
                # A git folder: deeper git folders can only be its submodules.
                folders[:] = [name for name in folders if name == "modules"]
    return [path for path in found if os.path.isfile(path) and not os.path.islink(path)]


def _unreadable(error: OSError) -> None:
    if error.errno in OUT_OF_RESOURCES:
        raise error


def git_folders(workspace: str) -> tuple[str, ...]:
    """Real paths of the git folders that a ``.git`` file in the workspace refers to. git needs them inside.

    The ``.git`` file is untrusted and may name any path. So a path is used only if it is a git folder that refers
    back to this workspace.
    """
    link = os.path.join(workspace, ".git")
    if not os.path.isfile(link) or os.path.islink(link):
        return ()
    target = _read_text(link)
    if not target.startswith("gitdir:"):
        return ()
    folder = os.path.realpath(os.path.join(workspace, target.removeprefix("gitdir:").strip()))
    if not _is_git_folder(folder, "HEAD"):
        return ()
    # The git folder must name this workspace. Otherwise a hostile .git file could show another repository.
    back = os.path.join(folder, "gitdir")
    worktree = _config_worktree(folder)
    claims = [os.path.realpath(os.path.join(folder, _read_text(back)))] if os.path.isfile(back) else []
    if worktree is not None:
        claims.append(os.path.realpath(os.path.join(folder, worktree, ".git")))
    if os.path.realpath(link) not in claims:
        return ()
    found = [folder]
    common = os.path.join(folder, "commondir")
    if os.path.isfile(common):
        shared = os.path.realpath(os.path.join(folder, _read_text(common)))
        if _is_git_folder(shared, "objects") and folder.startswith(shared + "/"):
            found = [shared]
    return tuple(found)


def worktree_name(workspace: str) -> str:
    """The name of a worktree in its repository; empty if the workspace is no worktree. `git_folders` has checked it."""
    target = _read_text(os.path.join(workspace, ".git")).removeprefix("gitdir:").strip()
    above, _, name = target.rstrip("/").rpartition("/")
    return name if above.endswith("/worktrees") else ""


def _is_git_folder(folder: str, sign: str) -> bool:
    return os.path.exists(os.path.join(folder, sign))


def _config_worktree(folder: str) -> str | None:
    """``core.worktree`` of a submodule's git folder."""
    for line in _read_text(os.path.join(folder, "config"), 65_536).splitlines():
        name, _, value = line.partition("=")
        if name.strip().lower() == "worktree":
            return value.strip().strip('"')
    return None


def _read_text(path: str, largest: int = _LARGEST_TEXT) -> str:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read(largest).strip()
    except OSError as error:
        if error.errno in OUT_OF_RESOURCES:
            raise
        return ""


_LARGEST_INDEX = 256 * 1024 * 1024
_LARGEST_LINK = 4096

IndexFile = tuple[str, str, int, int, int]
"""A git index: its path, its work tree, modification time (ns), size (bytes) and inode. Equal values: no change."""


def indexes(histories: Iterable[str], roots: Iterable[str]) -> tuple[IndexFile, ...]:
    """The git indexes that may list submodules.

    They belong to each ``.git`` in ``histories`` (absolute paths) and to the repositories that contain the ``roots``.
    """
    found: dict[str, IndexFile] = {}
    for history in (*histories, *(above for root in roots for above in _git_above(root))):
        folder = _git_folder(history)
        if folder is None:
            continue
        path = os.path.join(folder, "index")
        try:
            status = os.stat(path, follow_symlinks=False)
        except OSError:
            continue
        found[history] = (path, os.path.dirname(history), status.st_mtime_ns, status.st_size, status.st_ino)
    return tuple(found[history] for history in sorted(found))


@dataclass(frozen=True, slots=True)
class Unfetched:
    """Submodules without a repository, as absolute, sorted paths.

    ``empty``: submodule folders without a ``.git``, and files at the path of a submodule. ``missing``: the first
    missing folder on the way to a submodule. ``linked``: symbolic links on the way to a submodule.
    """

    empty: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    linked: tuple[str, ...] = ()


def unfetched(stamps: Iterable[IndexFile]) -> Unfetched:
    """Find the submodules without a repository that these indexes list."""
    found: dict[str, set[str]] = {"empty": set(), "missing": set(), "linked": set()}
    for stamp in stamps:
        for name in _submodules_in(stamp):
            path = stamp[1]
            for part in name.split("/"):
                path = os.path.join(path, part)
                kind = _kind(path)
                if kind != "folder":
                    found[kind].add(path)
                    break
            else:
                if not os.path.lexists(os.path.join(path, ".git")):
                    found["empty"].add(path)
    return Unfetched(**{kind: tuple(sorted(paths)) for kind, paths in found.items()})


def _kind(path: str) -> str:
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return "missing"
    if stat.S_ISLNK(mode):
        return "linked"
    # git would not enter a file, but a command could replace the file by a folder.
    return "folder" if stat.S_ISDIR(mode) else "empty"


def _git_above(root: str) -> Iterator[str]:
    folder = os.path.dirname(root)
    while folder != "/":
        if os.path.lexists(path := os.path.join(folder, ".git")):
            yield path
            return
        folder = os.path.dirname(folder)


def _git_folder(history: str) -> str | None:
    """The git folder of a ``.git`` path: the path itself, or the folder that the file names. None if there is none."""
    try:
        if stat.S_ISDIR(os.lstat(history).st_mode):
            return history
        text = _read_bytes(history, _LARGEST_LINK).decode("utf-8", "surrogateescape").strip()
    except OSError as error:
        if error.errno in OUT_OF_RESOURCES:
            raise
        return None
    if not text.startswith("gitdir:"):
        return None
    return os.path.normpath(os.path.join(os.path.dirname(history), text.removeprefix("gitdir:").strip()))


@lru_cache(maxsize=64)
def _submodules_in(stamp: IndexFile) -> tuple[str, ...]:
    try:
        data = _read_bytes(stamp[0], _LARGEST_INDEX)
        folder = os.path.dirname(stamp[0])
        # A split index keeps most of its entries in a second file.
        shared = [n for n in os.listdir(folder) if n.startswith("sharedindex.")] if b"link" in data[-4096:] else []
        texts = [data, *(_read_bytes(os.path.join(folder, name), _LARGEST_INDEX) for name in shared)]
    except OSError as error:
        if error.errno in OUT_OF_RESOURCES:
            raise
        return ()
    return tuple(sorted({name for text in texts for name in read_index(text)}))


def _read_bytes(path: str, largest: int) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(0, "not a file")
        return file.read(largest)
