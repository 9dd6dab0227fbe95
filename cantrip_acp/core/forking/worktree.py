"""Where a fork works: in a worktree with the files as they stood at its turn, apart from the user and from other forks.

The fork's circle is the same one moved there: its workspace, and every gate root and ward path that lay in the repository.
A worktree stays when the fork has ended, since what was done in it is in no branch; whoever has looked at it removes it
(``git worktree remove --force DIR``), or it goes with the fork's loom.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cantrip_acp.core.errors import GitError
from cantrip_acp.files import paths
from cantrip_acp.git import worktrees
from cantrip_acp.git.repository import Repository
from cantrip_acp.git.worktrees import Worktree
from cantrip_acp.loom.stores.address import is_address

if TYPE_CHECKING:
    from cantrip_acp.core.cantrip import Cantrip
    from cantrip_acp.core.circle import Circle
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
    if loom.location is not None:
        address = is_address(loom.location)
        worktrees.name_loom(made.folder, loom.location if address else os.path.abspath(loom.location))
    there = cantrip.replace(circle=moved(cantrip.circle, repository.top, made.folder))
    return Place(made, there, (*(f"file {line}" for line in kept.missing), IGNORED))


def moved(circle: Circle, old: str, new: str) -> Circle:
    """The circle in another place: what lies in the folder ``old`` (a real path) is taken from ``new`` instead.

    That is the workspace, the roots that gates are bound to, and the paths of wards; all else stays where it is.
    """

    def there(path: Any) -> Any:
        real = os.path.realpath(path)
        inside = real == old or real.startswith(old.rstrip("/") + "/")
        return type(path)(new + real[len(old.rstrip("/")) :]) if inside else path

    own = {gate.name for gate in circle.own_gates}
    gates = [
        replace(gate, dependencies={**gate.dependencies, "root": there(gate.dependencies["root"])})
        if gate.dependencies.get("root") is not None
        else gate
        for gate in circle.declared_gates
        if gate.name in own
    ]
    return circle.replace(
        workspace=None if circle.workspace is None else there(circle.workspace),
        folders=[there(folder) for folder in circle.folders],
        wards=circle.wards.moved(there),
        gates=gates,
    )


def making(loom_id: str, entity_id: str) -> str:
    """Why a worktree is locked while its fork is being made, and by which process; a crash leaves it so."""
    return worktrees.reason(f"cantrip {loom_id} {entity_id} is being made")


def _chosen(repository: Repository, where: bool | str | os.PathLike[str], entity_id: str) -> Path:
    if not isinstance(where, bool):
        return Path(where).expanduser().absolute()
    name = "".join(c if c.isalnum() or c in "-_." else "-" for c in f"{os.path.basename(repository.top)}-{entity_id}")
    return paths.private(paths.state_dir() / "worktrees") / name
