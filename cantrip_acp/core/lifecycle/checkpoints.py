"""Checkpoints: after each turn that may have changed files, stores the workspace's files in its git repository
(LOOM-4).

A recipe turns this on with ``loom: {files: true}``. It is off by default, because it writes objects and a ref into
the user's repository, which nobody should find there without having asked. `git.file_snapshots` says what a
checkpoint contains. A failure is recorded and never fails a cast.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from cantrip_acp.core.errors import GitError
from cantrip_acp.files.protected_paths import why_hidden
from cantrip_acp.git import file_snapshots, worktrees
from cantrip_acp.git.repository import Repository
from cantrip_acp.loom.records.turn import FilesRecord, ForkRecord, new_id, now

if TYPE_CHECKING:
    from cantrip_acp.core.state import EntityState
    from cantrip_acp.gates.contract import Gate
    from cantrip_acp.loom.loom import Loom
    from cantrip_acp.loom.records.turn import Turn

_READS = frozenset({"read", "search", "think", "fetch"})
_PATIENCE = 3
"""Failures in a row after which it stops trying: a repository that is too large would slow every turn."""


class Checkpoints:
    """Stores the files of one entity's workspace, turn by turn."""

    def __init__(self, entity: EntityState) -> None:
        self._entity = entity
        self._pinner: file_snapshots.Pinner | None = None
        self._stored_once = False
        self._failed = 0
        self._last_problem: str | None = None

    async def store(self, turn: Turn) -> None:
        """Store the files as a turn leaves them, if they changed. This also happens while a cast is being cancelled."""
        entity = self._entity
        if self._failed >= _PATIENCE or (self._stored_once and not _may_have_changed_files(turn, entity.circle.gates)):
            return
        self._stored_once = True
        with anyio.CancelScope(shield=True):
            try:
                made = await anyio.to_thread.run_sync(self._store_now, turn.id)
            except (GitError, OSError) as error:
                self._fail(turn.id, entity.redactor.diagnostic(str(error)))
                return
        self._failed, self._last_problem = 0, None
        if made is not None:
            missing = tuple(entity.redactor.text(line) for line in made.left_out)
            entity.loom.append(
                FilesRecord(
                    new_id("w"), turn.id, entity.id, made.top, made.commit, made.tree, made.ref, made.head, missing,
                    timestamp=now(),
                )
            )  # fmt: skip

    async def close(self) -> None:
        """Release temporary resources; the stored files stay. Safe to call twice."""
        pinner, self._pinner = self._pinner, None
        if pinner is not None:
            await anyio.to_thread.run_sync(pinner.close)

    def _store_now(self, turn_id: str) -> file_snapshots.Pin | None:
        entity = self._entity
        header = entity.loom.header
        assert header is not None, "a turn was written"
        if self._pinner is None:
            ref = file_snapshots.ref_of(header.id, entity.id)
            loom = (entity.loom.location or "").removeprefix("sqlite:")
            self._pinner = file_snapshots.Pinner(
                str(entity.circle.workspace), ref, hidden=why_hidden, loom=loom or None
            )
        return self._pinner.pin(f"cantrip: files after turn {turn_id}")

    def _fail(self, turn_id: str, why: str) -> None:
        self._failed += 1
        if why == self._last_problem:
            return
        self._last_problem = why
        self._entity.loom.append(FilesRecord(new_id("w"), turn_id, self._entity.id, error=why, timestamp=now()))


def _may_have_changed_files(turn: Turn, gates: Mapping[str, Gate]) -> bool:
    """Whether a turn may have changed a file: a program ran, or a gate was called that does more than read."""
    if turn.observation.output is not None:
        return True
    for name in turn.gate_calls:
        gate = gates.get(name)
        if gate is None or gate.writes or (gate.kind not in _READS and name != "done"):
            return True
    return False


def delete_checkpoints(loom: Loom) -> list[str]:
    """Delete every checkpoint of a loom, and every worktree of its forks. Returns a line for each thing removed.

    For callers that delete the loom itself. Worktrees of forks that a crash interrupted are deleted too. Repositories
    that no longer exist are skipped. Blocking.
    """
    header = loom.header
    if header is None:
        return []
    notes: list[str] = []
    tops: dict[str, None] = {}
    folders: list[str] = []
    for record in loom.records():
        if isinstance(record, FilesRecord) and record.repository is not None:
            tops[record.repository] = None
        elif isinstance(record, ForkRecord) and isinstance(record.worktree, str):
            folders.append(record.worktree)
    for folder in folders:
        notes += _without_worktree(folder)
    for top in tops:
        found = _repository(top)
        if found is not None:
            for folder, why in worktrees.unfinished(found).items():
                if why.startswith(f"cantrip {header.id} "):
                    worktrees.remove(found, folder)
                    notes.append(f"worktree {folder}")
            notes += [f"{ref} in {top}" for ref in file_snapshots.drop(found, header.id)]
    return notes


def _without_worktree(folder: str) -> list[str]:
    found = _repository(folder)
    if found is None or found.top != folder or found.git_dir == found.common_dir:
        return []
    worktrees.remove(found, folder)
    return [f"worktree {folder}"]


def _repository(folder: str) -> Repository | None:
    try:
        return Repository.of(folder)
    except GitError:
        return None
