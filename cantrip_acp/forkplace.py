"""Where a fork works: in a worktree with the files as they stood at its turn, apart from the user and from other forks.

The fork's circle is the same one moved there: its workspace, and every gate root and ward path that lay in the repository.
A worktree stays when the fork has ended, since what was done in it is in no branch; whoever has looked at it removes it
(``git worktree remove --force DIR``), or it goes with the fork's loom.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cantrip_acp import folders
from cantrip_acp.errors import GitError
from cantrip_acp.git import worktrees
from cantrip_acp.git.repository import Repository
from cantrip_acp.git.worktrees import Worktree

if TYPE_CHECKING:
    from cantrip_acp.cantrip import Cantrip
    from cantrip_acp.loom.loom import Loom

IGNORED = "files that git ignores: they are never pinned (an environment of Python, say, or node_modules)"


@dataclass(frozen=True, slots=True)
class Place:
    """A worktree, the cantrip that acts in it, and what of the files of then is not there."""

    worktree: Worktree
    cantrip: Cantrip
    missing: tuple[str, ...]


def make(cantrip: Cantrip, loom: Loom, turn_id: str, where: bool | str | os.PathLike[str], entity_id: str) -> Place:
    """A worktree with the files of a turn; ``where`` is its folder, or True for one of its own in the state folder.

    Blocking. Raises `GitError` where the files of that turn were not pinned, or cannot be had any more.
    """
    workspace = cantrip.circle.workspace
    if workspace is None:
        raise GitError("this cantrip's circle has no workspace, so a fork of it needs no worktree")
    kept = loom.files_at(turn_id)
    if kept is None:
        raise GitError(
            f"no files are pinned at turn {turn_id!r} or before it: a recipe asks for that with loom: {{files: true}}, and "
            "earlier turns have none; fork without a worktree, and the files are as they are now"
        )
    if kept.commit is None:
        raise GitError(f"the files at turn {turn_id!r} could not be pinned: {kept.error}")
    repository = Repository.of(workspace)
    if repository is None:
        raise GitError(f"{workspace} is in no git repository; name the folder that the loom is of with --cwd")
    folder = _chosen(repository, where, entity_id)
    header = loom.header
    why = making(header.id if header is not None else "", entity_id)
    made = worktrees.make(repository, kept.commit, kept.head, folder, why=why)
    moved = cantrip.with_circle(cantrip.circle.moved(repository.top, made.folder))
    return Place(made, moved, (*(f"file {line}" for line in kept.missing), IGNORED))


def making(loom_id: str, entity_id: str) -> str:
    """Why a worktree is locked while its fork is being made; a crash leaves it so."""
    return f"cantrip {loom_id} {entity_id} is being made"


def _chosen(repository: Repository, where: bool | str | os.PathLike[str], entity_id: str) -> Path:
    if not isinstance(where, bool):
        return Path(where).expanduser().absolute()
    name = "".join(c if c.isalnum() or c in "-_." else "-" for c in f"{os.path.basename(repository.top)}-{entity_id}")
    return folders.private(folders.state_dir() / "worktrees") / name
