"""Worktrees for forks: a fork works on the files of its turn, apart from the user and from other forks.

The fork's circle is the original one, moved: its workspace, and every gate root and ward path inside the repository.
A worktree stays when the fork has ended, because its changes are in no branch. Remove it with ``git worktree remove
--force DIR``; it is also deleted with the fork's loom.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from cantrip_acp.core.lifecycle.saved_files import state_of
from cantrip_acp.files import paths
from cantrip_acp.git import worktrees
from cantrip_acp.git.repository import Repository
from cantrip_acp.git.worktrees import Worktree
from cantrip_acp.loom.stores.address import is_address
from cantrip_acp.types.errors import CheckpointError, GitError

if TYPE_CHECKING:
    from cantrip_acp.core.definition.cantrip_definition import CantripDefinition
    from cantrip_acp.core.definition.circle import Circle
    from cantrip_acp.loom.loom import Loom
    from cantrip_acp.types.records import FilesRecord

IGNORED = "files that git ignores: they are never kept (an environment of Python, say, or node_modules)"


@dataclass(frozen=True, slots=True)
class ForkWorktree:
    """A worktree, the cantrip that works in it, and which files of that turn are missing."""

    worktree: Worktree
    cantrip: CantripDefinition
    missing: tuple[str, ...]


def make_worktree(
    cantrip: CantripDefinition, loom: Loom, turn_id: str, where: bool | str | os.PathLike[str], entity_id: str
) -> ForkWorktree:
    """Make a worktree with the files of a turn. ``where`` is its folder, or True for one in the state folder.

    Blocking. Raises `GitError` if the files of that turn were not stored, or no longer exist.
    """
    workspace = cantrip.circle.workspace
    if workspace is None:
        raise GitError("this cantrip's circle has no workspace, so a fork of it needs no worktree")
    kept = loom.files_at(turn_id)
    if kept is None:
        raise GitError(
            f"no files were kept at turn {turn_id!r} or before it: no turn had changed a file, or the recipe says loom: "
            "{files: false}. Fork without a worktree; the fork then has the files as they are now"
        )
    if kept.commit is None and kept.checkpoint is UNSET:
        raise GitError(f"the files at turn {turn_id!r} could not be kept: {kept.error}")
    repository = Repository.of(workspace)
    if repository is None:
        raise GitError(f"{workspace} is not in a git repository; with --cwd name the folder in which the loom was made")
    folder = _worktree_path(repository, where, entity_id)
    header = loom.header
    why = lock_reason(header.id if header is not None else "", entity_id)
    if kept.commit is not None:
        # An earlier version kept the files as a commit.
        made = worktrees.make(repository, kept.commit, kept.head, folder, why=why)
    else:
        head = repository.commit() or worktrees.first_commit(repository)
        write = _writer(
            kept, turn_id, os.path.relpath(os.path.realpath(workspace), repository.top), state_of(loom.location)
        )
        made = worktrees.make(repository, head, head, folder, why=why, write=write)
    if loom.location is not None:
        address = is_address(loom.location)
        worktrees.name_loom(made.folder, loom.location if address else os.path.abspath(loom.location))
    there = cantrip.replace(circle=move_circle(cantrip.circle, repository.top, made.folder))
    return ForkWorktree(made, there, (*(f"file {line}" for line in kept.missing), IGNORED))


def _writer(kept: FilesRecord, turn_id: str, below: str, state: Path | None) -> Callable[[str], None]:
    """A function that writes the files of a checkpoint to a worktree, in the folder ``below`` its top."""
    from cantrip_acp.checkpoints.restore import write_tree
    from cantrip_acp.checkpoints.store import Store

    def write(folder: str) -> None:
        try:
            with Store(str(kept.workspace), state=state, create=False) as store:
                write_tree(store, str(kept.checkpoint), os.path.normpath(os.path.join(folder, below)))
        except (CheckpointError, OSError) as problem:
            raise GitError(f"the files at turn {turn_id!r} cannot be read: {problem}") from None

    return write


def move_circle(circle: Circle, old: str, new: str) -> Circle:
    """The circle with everything inside the folder ``old`` (a real path) moved to ``new``.

    This changes the workspace, the further folders, the roots of gates, and the paths of wards.
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


def lock_reason(loom_id: str, entity_id: str) -> str:
    """The lock reason of a worktree whose fork is being made, with the process. A crash leaves the lock."""
    return worktrees.reason(f"cantrip {loom_id} {entity_id} is being made")


def _worktree_path(repository: Repository, where: bool | str | os.PathLike[str], entity_id: str) -> Path:
    if not isinstance(where, bool):
        return Path(where).expanduser().absolute()
    name = "".join(c if c.isalnum() or c in "-_." else "-" for c in f"{os.path.basename(repository.top)}-{entity_id}")
    return paths.private(paths.state_dir() / "worktrees") / name
