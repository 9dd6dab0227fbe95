"""Deletes what a loom keeps elsewhere: pinned files in the user's repositories, and forks' worktrees in the state
folder.

Both are deleted with the loom. A worktree in another folder belongs to the user and stays. If somebody worked in a
fork's worktree after the loom was last written, both the worktree and the loom stay.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable

from cantrip_acp.core.errors import GitError, LoomError
from cantrip_acp.core.lifecycle.checkpoints import forget
from cantrip_acp.git import worktrees
from cantrip_acp.git.repository import Repository
from cantrip_acp.loom.loom import Loom
from cantrip_acp.loom.records.turn import FilesRecord, ForkRecord, LoomHeader
from cantrip_acp.retention.dir_handle import Folder
from cantrip_acp.retention.looms import Shelved, days
from cantrip_acp.retention.rules import Item, Rules, Stays

FOLDER = "worktrees"
_MOMENT = 60.0
"""Seconds that may pass between a fork's last change of a file and the record of it."""


def own(state: Folder, paths: Iterable[str]) -> list[str]:
    """The names of those worktrees that are in the state folder."""
    base = os.path.realpath(state.path / FOLDER)
    names = (os.path.basename(path) for path in paths if os.path.dirname(os.path.realpath(path)) == base)
    return [name for name in names if name]


def worked_in(state: Folder, loom: Shelved, names: Iterable[str]) -> str | None:
    """A worktree of a loom that was changed after the loom; None where there is none."""
    folder = state.sub(FOLDER)
    if folder is None:
        return None
    try:
        return next((n for n in names if folder.tree_changed(n) > loom.changed + _MOMENT), None)
    finally:
        folder.close()


def let_go(state: Folder, looms: Folder, loom: Shelved) -> Callable[[], None]:
    """Return a function that deletes a loom's pins and worktrees. Call it while the loom can still be read."""

    def drop() -> None:
        kept = Loom.memory()
        try:
            with Loom.open(looms.path / loom.name, readonly=True) as opened:
                for record in opened.records():
                    if isinstance(record, LoomHeader | FilesRecord):
                        kept.append(record)
                    elif isinstance(record, ForkRecord) and isinstance(record.worktree, str):
                        if own(state, [record.worktree]):
                            kept.append(record)
        except LoomError:
            # The loom cannot be read, now or later.
            return
        forget(kept)

    return drop


def half_made(own: Folder | None, repositories: Iterable[str], now: float) -> list[Item]:
    """Worktrees whose creation was interrupted, in any folder: git lists them for each repository."""
    found: dict[str, Repository] = {}
    places = [*repositories]
    if own is not None:
        places += [os.path.realpath(own.path / entry.name) for entry in own.entries() if entry.is_folder]
    for place in places:
        try:
            repository = Repository.of(place)
            for folder in worktrees.left_behind(repository) if repository is not None else ():
                assert repository is not None
                found[folder] = repository
        except GitError:
            continue
    return [
        Item("worktree", folder, 0, now, "its process ended while it was being made", _unmake(repository, folder))
        for folder, repository in found.items()
    ]


def _unmake(repository: Repository, folder: str) -> Callable[[], None]:
    def drop() -> None:
        if folder in worktrees.left_behind(repository):
            worktrees.remove(repository, folder)

    return drop


def _elsewhere(folder: Folder, name: str) -> str | None:
    """The existing loom outside the state folder that a worktree belongs to, or None; it may also be a database."""
    loom = worktrees.loom_of(os.path.realpath(folder.path / name))
    if loom is None or os.path.dirname(loom) == os.path.realpath(folder.path.parent / "looms"):
        return None
    path = loom.removeprefix("sqlite:")
    return loom if "://" in loom or os.path.lexists(path) else None


def left(folder: Folder, named: set[str], rules: Rules, now: float) -> list[Item]:
    """Worktrees that no loom of the state folder names and that were not changed for long."""
    if rules.older_than is None:
        return []
    items = []
    for entry in folder.entries():
        changed = folder.tree_changed(entry.name) if entry.is_folder and entry.name not in named else now
        if now - changed > rules.older_than:
            why = f"no loom names it, unchanged for {days(now - changed)}"
            size = folder.tree_size(entry.name)
            drop = _remover(folder, entry.name, changed)
            loom = _elsewhere(folder, entry.name)
            stays = None if loom is None else f"{loom} names it"
            items.append(Item("worktree", f"{FOLDER}/{entry.name}", size, changed, why, drop, stays))
    return items


def _remover(folder: Folder, name: str, changed: float) -> Callable[[], None]:
    def drop() -> None:
        entry = folder.entry(name)
        if entry is None:
            return
        if not entry.is_folder or folder.tree_changed(name) > max(changed, time.time() - _MOMENT):
            raise Stays("changed meanwhile")
        where = os.path.realpath(folder.path / name)
        try:
            found = Repository.of(where)
        except GitError:
            found = None
        if found is not None and found.top == where and found.git_dir != found.common_dir:
            worktrees.remove(found, where)
        # If the repository itself is gone, only the folder is left.
        folder.remove_tree(name)

    return drop
