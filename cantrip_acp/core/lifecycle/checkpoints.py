"""Checkpoints: keeps the workspace's files of each turn that changed some (LOOM-4), and restores them.

They are in a store in the state folder (`checkpoints.store`), never in the workspace or its repository. It is on wherever
an entity can write to a workspace; a recipe turns it off with ``loom: {files: false}``. The root of a tree of entities
keeps them for all, because children work in the same files. A failure is recorded and never fails a cast.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
from msgspec import UNSET

from cantrip_acp.core.lifecycle.saved_files import SavedFiles, state_of
from cantrip_acp.gates.contract import InterceptorBase
from cantrip_acp.text.defaults import complete
from cantrip_acp.types.errors import CantripError, CheckpointError, GitError
from cantrip_acp.types.records import FilesRecord, ForkRecord, new_id, now

if TYPE_CHECKING:
    from cantrip_acp.checkpoints.history import FileHistory, Target
    from cantrip_acp.checkpoints.ownership import Writer
    from cantrip_acp.checkpoints.restore import Outcome, Plan, Step, Write
    from cantrip_acp.checkpoints.store import Checkpoint, Store
    from cantrip_acp.core.definition.circle import Circle
    from cantrip_acp.core.state import EntityState
    from cantrip_acp.gates.contract import Gate
    from cantrip_acp.git.repository import Repository
    from cantrip_acp.loom.loom import Loom
    from cantrip_acp.types.messages import ToolCall
    from cantrip_acp.types.records import Location, Turn

_READS = frozenset({"read", "search", "think", "fetch"})
_NAMED = 20
"""The most files that a record names as not kept."""


class Checkpoints:
    """Keeps and restores the files of one root entity's workspace."""

    def __init__(self, entity: EntityState) -> None:
        self._entity = entity
        self._files = SavedFiles(entity, abandoned=lambda: self._closed)
        self._lock = anyio.Lock()
        """One thread at a time works on the files."""
        self._closed = False
        self._worked = False
        """Whether a call or program has run since a turn was stored."""
        self._first: Checkpoint | None = None
        """The first checkpoint of a fork or a new entity, until one of its turns records it."""
        self.problem: str | None = None
        """Why no files are kept; None while they are."""

    def take_notes(self) -> list[str]:
        """New notices for the user, such as a restore that was completed after a crash."""
        notes, self._files.notes = self._files.notes, []
        return notes

    # --- keeping

    async def prepare(self) -> None:
        """Read all files before the first turn needs it. Problems are reported then, too."""
        if can_change_files(self._entity.circle):
            await self._run(self._files.watch)

    async def before_calls(self, calls: tuple[ToolCall, ...], circle: Circle) -> None:
        """Store the present files before the first call that may change some. If that fails, the user must know it before
        deciding whether the call may run."""
        if not self._files.begun and any(_may_change(call.gate, circle) for call in calls):
            self._append_first(await self._run(self._files.open))

    @asynccontextmanager
    async def call(
        self, gate: Gate, circle: Circle, locations: Iterable[Location]
    ) -> AsyncIterator[Callable[[Iterable[str]], None]]:
        """Context in which an allowed gate call runs. Yields a function for the absolute paths that the call wrote."""
        writer = self._files.writer_of_call(gate, circle, locations) if _gate_changes(gate) else None

        def wrote(found: Iterable[str]) -> None:
            if writer is not None:
                writer.paths.update(self._files.names_of(found))

        async with self._writing(writer):
            yield wrote

    @asynccontextmanager
    async def program(self, text: str, circle: Circle) -> AsyncIterator[None]:
        """Context in which an allowed command or cell runs."""
        async with self._writing(self._files.writer_of_program(text, circle)):
            yield

    @asynccontextmanager
    async def _writing(self, writer: Writer | None) -> AsyncIterator[None]:
        """Surround anything that may change files: changes from before are attributed first, so that the owner of each change
        is known."""
        if writer is None or not writer.writes or self._off() or self._entity.loom.header is None:
            # Without a cast there is no record to keep files for.
            yield
            return
        self._append_first(await self._run(self._files.open))
        await self._look()
        if named := writer.named():
            await self._run(lambda: self._files.follow(named))
        self._files.begin(writer)
        self._worked = True
        try:
            yield
        finally:
            self._files.end(writer)
            await self._look()

    async def _look(self) -> None:
        if self._files.must_look():
            await self._run(self._files.attribute)

    async def store(self, turn: Turn, circle: Circle) -> None:
        """Keep the files as a turn leaves them, if it changed any. This also happens while a cast is being cancelled."""
        if not self._worked:
            if not self._files.begun and self._entity.cantrip.loom_settings.get("files") is True:
                # With ``files: true`` in the recipe, the user wants files for every turn, also for one that changed nothing.
                first = await self._run(self._files.open)
                if first is not None:
                    self._append(first, turn.id, turn.entity_id)
            return
        self._worked = self._files.writing
        made = await self._run(lambda: self._files.save_turn(turn.id))
        made, self._first = made or self._first, None
        if made is not None:
            self._append(made, turn.id, turn.entity_id)

    async def close(self) -> None:
        """Release the store; the kept files stay. Safe to call twice."""
        self._closed = True
        with anyio.CancelScope(shield=True):
            async with self._lock:
                await anyio.to_thread.run_sync(self._files.close)

    async def _run(self, work: Callable[[], Checkpoint | None]) -> Checkpoint | None:
        """Run blocking work in a thread, one piece at a time. A failure turns checkpoints off and is reported once."""
        if self._off():
            return None
        with anyio.CancelScope(shield=True):
            async with self._lock:
                if not self._off():
                    try:
                        return await anyio.to_thread.run_sync(work)
                    except (CheckpointError, OSError) as error:
                        # A session that is being closed has stopped it itself.
                        if not self._closed:
                            self._fail(str(error))
        return None

    def _off(self) -> bool:
        return self.problem is not None or self._closed

    def _fail(self, why: str) -> None:
        entity = self._entity
        self.problem = why
        self._files.close()
        if entity.last_turn:
            entity.loom.append(FilesRecord(new_id("w"), entity.last_turn, entity.id, error=why, timestamp=now()))
        for interceptor in entity.cantrip.interceptors:
            complete(interceptor, InterceptorBase).without_checkpoints(why)

    def _append_first(self, first: Checkpoint | None) -> None:
        """Record the first checkpoint of a chain at the last turn, so that a fork of it finds its files too.

        The last turn of a new fork belongs to another entity, which may have worked in another folder, and a new entity has
        none. So its next turn records it.
        """
        entity = self._entity
        if first is None:
            return
        place = entity.loom.places.get(entity.last_turn)
        if place is not None and place.entity_id == entity.id:
            self._append(first, entity.last_turn, entity.id)
        else:
            self._first = first

    def _append(self, made: Checkpoint, turn_id: str, entity_id: str, restored: str | None = None) -> None:
        from cantrip_acp.git import file_snapshots

        header = self._entity.loom.header
        assert header is not None, "a cast has begun"
        ref = file_snapshots.ref_of(header.id, self._entity.id)
        workspace = os.path.realpath(str(self._entity.circle.workspace))
        self._entity.loom.append(files_record(made, turn_id, entity_id, ref, workspace, restored))

    # --- restoring

    async def history(self, *, running: bool = False) -> FileHistory:
        """The history of the files until now, or while a cast is ``running`` until its last turn. Raises `CheckpointError`
        if none are kept."""
        from cantrip_acp.checkpoints.history import FileHistory

        if self.problem is not None:
            raise CheckpointError(f"no files are kept in this session: {self.problem}")
        if self._entity.loom.header is None:
            raise CheckpointError("nothing was changed in this session yet")
        first = await self._run(self._files.open if running else self._files.save_users)
        self._append_first(first)
        store, (loom, name) = self._opened_store(), self._files.key()
        async with self._lock:
            return await anyio.to_thread.run_sync(
                lambda: FileHistory(store, loom, name, lost=lambda: self._files.lost(store))
            )

    async def plan(self, target: Target, *, unsaved: Mapping[str, bytes] | None = None, force: bool = False) -> Plan:
        """Plan a restore (`checkpoints.restore.make_plan`)."""
        from cantrip_acp.checkpoints.restore import make_plan

        store = self._opened_store()
        async with self._lock:
            return await anyio.to_thread.run_sync(
                lambda: make_plan(
                    store,
                    target.undone,
                    to=target.to,
                    takes_back=target.takes_back,
                    unsaved=unsaved,
                    unsure=target.unsure,
                    force=force,
                )
            )

    async def was_saved(self, path: str, data: bytes) -> bool:
        """Whether a file had this content on the disk at some time of the session, as far as that was kept."""
        if self._off() or not self._files.begun:
            return False
        async with self._lock:
            return not self._off() and await anyio.to_thread.run_sync(self._files.was_saved, path, data)

    async def contents(self, step: Step) -> tuple[bytes, bytes]:
        """The present content of a file in a plan, and the content after its step; empty if the file is absent."""
        store = self._opened_store()
        async with self._lock:
            return await anyio.to_thread.run_sync(
                lambda: (
                    b"" if step.now is None else store.content(step.now.hash),
                    b"" if step.then is None else store.content(step.then.hash),
                )
            )

    async def restore(self, plan: Plan, *, turn_id: str = "", write: Write | None = None) -> Outcome:
        """Do a restore, and record it. ``turn_id`` is the turn whose files are restored, if it is one."""
        store = self._opened_store()
        with anyio.CancelScope(shield=True):
            async with self._lock:
                outcome = await anyio.to_thread.run_sync(self._files.restore, store, plan, write)
        if outcome.checkpoint is not None:
            self._append(outcome.checkpoint, self._entity.last_turn, self._entity.id, turn_id)
        return outcome

    def _opened_store(self) -> Store:
        if self._files.store is None:
            raise CheckpointError(f"no files are kept in this session: {self.problem or 'it is closed'}")
        return self._files.store


def target_of_turn(history: FileHistory, loom: Loom, last_turn: str, turn_id: str) -> Target:
    """The target of a restore to a turn of the thread that ends in ``last_turn``. Blocking."""
    thread = {each: index for index, each in enumerate(loom.path(last_turn))}

    def index_of(turn: str) -> int | None:
        if turn in thread:
            return thread[turn]
        if turn not in loom:
            return None
        # A child's turn: it came before the next turn of the thread.
        above = [thread[each] for each in loom.path(turn) if each in thread]
        return above[-1] + 1 if above else None

    return history.to_turn(index_of, thread[turn_id])


def files_record(
    made: Checkpoint,
    turn_id: str,
    entity_id: str,
    ref: str,
    workspace: str,
    restored: str | None = None,
) -> FilesRecord:
    """The loom's record of a checkpoint. ``restored`` is the turn whose files were restored ("" if none), for a restore."""
    left = [
        f"{_printable(path)}: {after.why}"
        for path, (_, after) in sorted(made.changes.items())
        if after is not None and not after.kept
    ]
    more = [f"and {len(left) - _NAMED} more"] if len(left) > _NAMED else []
    return FilesRecord(
        new_id("w"),
        turn_id,
        entity_id,
        ref=ref,
        missing=(*left[:_NAMED], *more),
        timestamp=now(),
        checkpoint=made.id,
        workspace=workspace,
        changed=len(made.changes),
        restored=restored or UNSET,
    )


def can_change_files(circle: Circle) -> bool:
    """Whether an entity with this circle may change a file of its workspace."""
    if any(_gate_changes(gate) for gate in circle.gates.values()):
        return True
    wards = circle.wards
    return bool(wards.bash_writable_paths if circle.medium.name == "bash" else wards.code_writable_paths)


def _may_change(name: str, circle: Circle) -> bool:
    if circle.medium.tool is not None and name == circle.medium.tool:
        return True
    gate = circle.gates.get(circle.tool_names.get(name, name))
    return gate is None or _gate_changes(gate)


def _gate_changes(gate: Gate) -> bool:
    """Whether a call of a gate may change a file: it says so, or it does more than read."""
    return gate.writes or (gate.kind not in _READS and gate.name != "done")


def _printable(path: str) -> str:
    text = os.fsencode(path).decode("utf-8", "backslashreplace")
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")


def delete_checkpoints(loom: Loom, *, state: Path | None = None) -> list[str]:
    """Delete every checkpoint of a loom, and every worktree of its forks. Returns a line for each thing removed.

    ``state`` is the state folder with the checkpoints; by default the one that the loom is in, or the usual one. For
    callers that delete the loom itself. Worktrees of forks that a crash interrupted are deleted too. Repositories that no
    longer exist are skipped. Blocking.
    """
    from cantrip_acp.git import file_snapshots, worktrees

    header = loom.header
    if header is None:
        return []
    notes: list[str] = []
    tops: dict[str, None] = {}
    workspaces: dict[str, None] = {}
    folders: list[str] = []
    for record in loom.records():
        if isinstance(record, FilesRecord) and record.repository is not None:
            tops[record.repository] = None
        elif isinstance(record, FilesRecord) and record.workspace is not UNSET:
            workspaces[record.workspace] = None
        elif isinstance(record, ForkRecord) and isinstance(record.worktree, str):
            folders.append(record.worktree)
    for folder in folders:
        notes += _without_worktree(folder)
    for top in (*tops, *workspaces):
        found = _repository(top)
        if found is not None:
            for folder, why in worktrees.unfinished(found).items():
                if why.startswith(f"cantrip {header.id} "):
                    worktrees.remove(found, folder)
                    notes.append(f"worktree {folder}")
            if top in tops:
                # An earlier version kept files in the user's repository.
                notes += [f"{ref} in {top}" for ref in file_snapshots.drop(found, header.id)]
    for workspace in workspaces:
        notes += _forget(workspace, header.id, state or state_of(loom.location))
    return notes


def forget_checkpoints(loom: Loom, state: Path) -> None:
    """Delete the checkpoints of a loom, and nothing else that belongs to it: its session was deleted. Blocking."""
    if loom.header is not None:
        records = [each for each in loom.records() if isinstance(each, FilesRecord)]
        for workspace in {each.workspace for each in records if each.workspace is not UNSET}:
            _forget(workspace, loom.header.id, state)


def _forget(workspace: str, loom_id: str, state: Path | None) -> list[str]:
    from cantrip_acp.checkpoints.store import Store
    from cantrip_acp.git import file_snapshots

    try:
        store = Store(workspace, state=state, create=False)
    except CantripError:
        return []
    count = store.forget([file_snapshots.ref_of(loom_id).split("/")[2]])
    freed = store.sweep()
    return [f"files of {workspace} ({freed:,} bytes freed)"] if count else []


def _without_worktree(folder: str) -> list[str]:
    from cantrip_acp.git import worktrees

    found = _repository(folder)
    if found is None or found.top != folder or found.git_dir == found.common_dir:
        return []
    worktrees.remove(found, folder)
    return [f"worktree {folder}"]


def _repository(folder: str) -> Repository | None:
    from cantrip_acp.git.repository import Repository

    try:
        return Repository.of(folder)
    except GitError:
        return None
