"""Git repositories of a workspace: git folders outside of the workspace, and credentials in git settings."""

from __future__ import annotations

import os

from cantrip_acp.files.protected_paths import without_credentials
from cantrip_acp.sandbox.launch.process_tree import NO_ROOM

_LARGEST = 4096
_LARGEST_CONFIG = 1024 * 1024


def scrubbed(path: str) -> str | None:
    """The text of a git settings file without credentials; None where it has none."""
    text = _read(path, _LARGEST_CONFIG)
    clean = without_credentials(text)
    return None if clean == text else clean + "\n"


def config_files(folder: str) -> list[str]:
    """The settings files in a git folder: its own, those of its submodules, and those of its worktrees."""
    found = [f"{folder}/config", f"{folder}/config.worktree"]
    for kind in ("modules", "worktrees"):
        for at, folders, files in os.walk(f"{folder}/{kind}", onerror=_unreadable):
            found += [f"{at}/{name}" for name in ("config", "config.worktree") if name in files]
            if "HEAD" in files:
                # A git folder: deeper git folders can only be its submodules.
                folders[:] = [name for name in folders if name == "modules"]
    return [path for path in found if os.path.isfile(path) and not os.path.islink(path)]


def _unreadable(error: OSError) -> None:
    if error.errno in NO_ROOM:
        raise error


def git_folders(workspace: str) -> tuple[str, ...]:
    """Real paths of git folders that ``.git`` in the workspace refers to, so that git works inside; often none.

    A ``.git`` file came with the workspace and may name any path, so a path is shown only if it is a git folder.
    """
    link = os.path.join(workspace, ".git")
    if not os.path.isfile(link) or os.path.islink(link):
        return ()
    target = _read(link)
    if not target.startswith("gitdir:"):
        return ()
    folder = os.path.realpath(os.path.join(workspace, target.removeprefix("gitdir:").strip()))
    if not _is_git_folder(folder, "HEAD"):
        return ()
    # A worktree's own folder must name this workspace. Otherwise a hostile .git file could open another repository.
    back = os.path.join(folder, "gitdir")
    worktree = _config_worktree(folder)
    claims = [os.path.realpath(os.path.join(folder, _read(back)))] if os.path.isfile(back) else []
    if worktree is not None:
        claims.append(os.path.realpath(os.path.join(folder, worktree, ".git")))
    if os.path.realpath(link) not in claims:
        return ()
    found = [folder]
    common = os.path.join(folder, "commondir")
    if os.path.isfile(common):
        shared = os.path.realpath(os.path.join(folder, _read(common)))
        if _is_git_folder(shared, "objects") and folder.startswith(shared + "/"):
            found = [shared]
    return tuple(found)


def _is_git_folder(folder: str, sign: str) -> bool:
    return ".git" in folder.split("/") and os.path.exists(os.path.join(folder, sign))


def _config_worktree(folder: str) -> str | None:
    """``core.worktree`` of a submodule's git folder."""
    for line in _read(os.path.join(folder, "config"), 65_536).splitlines():
        name, _, value = line.partition("=")
        if name.strip().lower() == "worktree":
            return value.strip().strip('"')
    return None


def _read(path: str, largest: int = _LARGEST) -> str:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read(largest).strip()
    except OSError as error:
        if error.errno in NO_ROOM:
            raise
        return ""
