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
import msgspec
from msgspec import UNSET

from cantrip_acp.files import paths
from cantrip_acp.gates.contract import InterceptorBase
from cantrip_acp.gates.registry import BUILT_IN, CHILD_FUNCTIONS
from cantrip_acp.loom.stores.address import is_address
from cantrip_acp.text.defaults import complete
from cantrip_acp.types.errors import CantripError, CheckpointError, GitError
from cantrip_acp.types.records import FilesRecord, ForkRecord, new_id, now

if TYPE_CHECKING:
    from cantrip_acp.checkpoints.history import FileHistory, Target
    from cantrip_acp.checkpoints.ownership import Attribution, Owner, Writer
    from cantrip_acp.checkpoints.restore import Outcome, Plan, Step, Write
    from cantrip_acp.checkpoints.store import Checkpoint, Store
    from cantrip_acp.checkpoints.watcher import Watcher
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
        self._store: Store | None = None
        self._watcher: Watcher | None = None
        self._lock = anyio.Lock()
        self._closed = False
        self._begun = False
        self._writers: list[Writer] = []
        """The calls and programs that run now and may change files."""
        self._recent: list[Writer] = []
        """These, and those that ended since the last look at the files."""
        self._worked = False
        """Whether a call or program has run since a turn was stored."""
        self._attribution: Attribution | None = None
        self._first: Checkpoint | None = None
        """The first checkpoint of a fork or a new entity, until one of its turns records it."""
        self.problem: str | None = None
        """Why no files are kept; None while they are."""
        self.notes: list[str] = []
        """Notices for the user, such as a restore that was completed after a crash."""

    # --- keeping

    async def prepare(self) -> None:
        """Read all files before the first turn needs it. Problems are reported then, too."""
        if can_change_files(self._entity.circle):
            await self._run(self._watch)

    async def before_calls(self, calls: tuple[ToolCall, ...], circle: Circle) -> None:
        """Store the present files before the first call that may change some. If that fails, the user must know it before
        deciding whether the call may run."""
        if not self._begun and any(_may_change(call.gate, circle) for call in calls):
            self._append_first(await self._run(self._open))

    @asynccontextmanager
    async def call(
        self, gate: Gate, circle: Circle, locations: Iterable[Location]
    ) -> AsyncIterator[Callable[[Iterable[str]], None]]:
        """Context in which an allowed gate call runs. Yields a function for the absolute paths that the call wrote."""
        writer = self._writer_of(gate, circle, locations) if _gate_changes(gate) else None

        def wrote(found: Iterable[str]) -> None:
            if writer is not None:
                writer.paths.update(self._names_of(found))

        async with self._writing(writer):
            yield wrote

    @asynccontextmanager
    async def program(self, text: str, circle: Circle) -> AsyncIterator[None]:
        """Context in which an allowed command or cell runs."""
        from cantrip_acp.checkpoints.ownership import of_program

        shell = circle.medium.name == "bash"
        folders = circle.wards.bash_writable_paths if shell else circle.wards.code_writable_paths
        writer = of_program(text, self._folders(folders), shell=shell)
        # Where a text names a path from the root.
        writer.says = tuple(
            self._name_of(each.rstrip("/")) + each[len(each.rstrip("/")) :] if os.path.isabs(each) else each
            for each in writer.says
        )
        async with self._writing(writer):
            yield

    def _writer_of(self, gate: Gate, circle: Circle, locations: Iterable[Location]) -> Writer:
        from cantrip_acp.checkpoints.ownership import Writer, of_anything

        if gate.name in ("run_tests", "start"):
            return Writer(folders=self._folders(circle.wards.bash_writable_paths))
        if gate.name in BUILT_IN.keys() - {"client_terminal"} or gate.name in CHILD_FUNCTIONS:
            writes = gate.kind == "edit" and gate.proposes is not None
            return Writer(paths=self._names_of(each.path for each in locations) if writes else ())
        return of_anything()

    @asynccontextmanager
    async def _writing(self, writer: Writer | None) -> AsyncIterator[None]:
        """Surround anything that may change files: changes from before are attributed first, so that the owner of each change
        is known."""
        if writer is None or not writer.writes or self._off() or self._entity.loom.header is None:
            # Without a cast there is no record to keep files for.
            yield
            return
        self._append_first(await self._run(self._open))
        await self._look()
        if named := writer.named():
            await self._run(lambda: self._follow(named))
        self._writers.append(writer)
        self._recent.append(writer)
        self._worked = True
        try:
            yield
        finally:
            writer.end()
            self._writers.remove(writer)
            await self._look()

    async def _look(self) -> None:
        """Attribute all changes until now to their owners. Where reading all files is slow, this happens only at the end of a
        turn."""
        if self._recent and self._watcher is not None and not self._watcher.cheap:
            return
        if self._unchanged():
            self._recent = list(self._writers)
        else:
            await self._run(self._attribute)

    async def store(self, turn: Turn, circle: Circle) -> None:
        """Keep the files as a turn leaves them, if it changed any. This also happens while a cast is being cancelled."""
        if not self._worked:
            if not self._begun and self._entity.cantrip.loom_settings.get("files") is True:
                # With ``files: true`` in the recipe, the user wants files for every turn, also for one that changed nothing.
                first = await self._run(self._open)
                if first is not None:
                    self._append(first, turn.id, turn.entity_id)
            return
        self._worked = bool(self._writers)
        made = await self._run(lambda: self._save_turn(turn.id))
        made, self._first = made or self._first, None
        if made is not None:
            self._append(made, turn.id, turn.entity_id)

    async def close(self) -> None:
        """Release the store; the kept files stay. Safe to call twice."""
        self._closed = True
        with anyio.CancelScope(shield=True):
            async with self._lock:
                await anyio.to_thread.run_sync(self._close)

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

    def _unchanged(self) -> bool:
        """Whether no file was changed since the last look, as far as that is known at once."""
        return self._begun and self._watcher is not None and self._watcher.unchanged

    def _off(self) -> bool:
        return self.problem is not None or self._closed

    def _fail(self, why: str) -> None:
        entity = self._entity
        self.problem = why
        self._close()
        if entity.last_turn:
            entity.loom.append(FilesRecord(new_id("w"), entity.last_turn, entity.id, error=why, timestamp=now()))
        for interceptor in entity.cantrip.interceptors:
            complete(interceptor, InterceptorBase).without_checkpoints(why)

    def _close(self) -> None:
        watcher, self._watcher = self._watcher, None
        store, self._store = self._store, None
        try:
            if watcher is not None and store is not None:
                store.keep_cache(watcher.cache())
        except CheckpointError:
            # The next scan reads the files again.
            pass
        finally:
            if watcher is not None:
                watcher.close()
            if store is not None:
                store.close()

    def _watch(self) -> None:
        """Open the store, and read all files. Does nothing if that was done."""
        if self._watcher is not None:
            return
        from cantrip_acp.checkpoints.restore import finish_restores
        from cantrip_acp.checkpoints.store import Store
        from cantrip_acp.checkpoints.watcher import Watcher

        circle = self._entity.circle
        assert circle.workspace is not None
        if self._store is None:
            self._store = Store(circle.workspace, state=state_of(self._entity.loom.location))
        store, last = self._store, self._last()
        if last is not None:
            for outcome in finish_restores(store, *self._key()):
                self.notes.append(
                    f"A restore that was interrupted is complete now: {len(outcome.done)} files, "
                    f"{len(outcome.skipped)} left as they are."
                )
            last = self._last()
        known = store.tree(last) if last is not None else {}
        self._watcher = Watcher(
            store,
            [str(folder) for folder in circle.folders],
            skip=self._skips(),
            known=known,
            abandoned=lambda: self._closed,
        )
        store.keep_cache(self._watcher.cache())

    def _last(self) -> str | None:
        """The entity's last checkpoint. A fork continues the chain of the other entity, if its files were kept."""
        entity, store = self._entity, self._store
        assert store is not None
        if entity.loom.header is None:
            return None
        loom, name = self._key()
        last = store.last(loom, name)
        if last is None and entity.last_turn and entity.last_turn in entity.loom:
            kept = entity.loom.files_at(entity.last_turn)
            if kept is not None and kept.checkpoint is not UNSET and kept.workspace == store.workspace:
                if store.has(kept.checkpoint):
                    last = kept.checkpoint
                    store.point(loom, name, last)
        return last

    def _open(self) -> Checkpoint | None:
        """Store the present files before the entity changes any, unless that was done. Returns the first checkpoint of a
        chain."""
        self._watch()
        if self._begun:
            return None
        store, watcher = self._store, self._watcher
        assert store is not None, "_watch opened it"
        assert watcher is not None, "_watch made it"
        (loom, name), last = self._key(), self._last()
        watcher.changes()
        tree = watcher.tree()
        self._begun = True
        before = None if last is None else store.tree(last)
        if before is None:
            return store.save(loom, name, None, "start", {}, tree=tree)
        changed = {
            path: (before.get(path), tree.get(path))
            for path in before.keys() | tree.keys()
            if before.get(path) != tree.get(path)
        }
        if changed:
            store.save(loom, name, last, "user", changed)
        return None

    def _skips(self) -> Callable[[str], bool]:
        """Whether a path must never be kept: the state folders, and the loom that records the checkpoints."""
        from cantrip_acp.git import file_snapshots

        states, config = paths.own()
        loom = (self._entity.loom.location or "").removeprefix("sqlite:")
        own = os.path.realpath(loom) if loom and "://" not in loom else None
        folder, name = os.path.split(own) if own is not None else ("", "")

        def skips(path: str) -> bool:
            if path in states or path == config:
                return True
            if own is None or os.path.dirname(path) != folder:
                return False
            return file_snapshots.belongs_to_loom(os.path.basename(path), name)

        return skips

    def _key(self) -> tuple[str, str]:
        from cantrip_acp.git import file_snapshots

        header = self._entity.loom.header
        assert header is not None, "a cast has begun"
        return chain_key(file_snapshots.ref_of(header.id, self._entity.id))

    def _save_users(self) -> Checkpoint | None:
        begun = self._begun
        first = self._open()
        if begun:
            self._save_turn("")
        return first

    def _save_turn(self, turn_id: str) -> Checkpoint | None:
        """Store the changes since the last checkpoint, by owner. Returns the record of the turn; None if the entity certainly
        changed no file."""
        self._open()
        self._attribute()
        store, attribution = self._store, self._attribution
        assert store is not None, "_watch opened it"
        assert attribution is not None, "_attribute made it"
        loom, name = self._key()
        cast = self._entity.running.id if self._entity.running is not None else self._entity.last_cast
        made: Checkpoint | None = None
        for by, changes in attribution.take():
            turn = "" if by == "user" else turn_id
            saved = store.save(loom, name, store.last(loom, name), by, changes, turn=turn, cast=cast)
            if by != "user":
                earlier = made.changes if made is not None else {}
                made = msgspec.structs.replace(saved, changes={**earlier, **changes})
        return made

    def _follow(self, paths: Iterable[str]) -> None:
        """Watch files that a call is about to write, also ignored ones."""
        if self._watcher is not None and self._watcher.follow(paths):
            self._attribute()

    def _attribute(self) -> None:
        """Attribute the changes since the last look to their owners."""
        from cantrip_acp.checkpoints.ownership import Attribution
        from cantrip_acp.checkpoints.store import IGNORED

        watcher, recent = self._watcher, self._recent
        if watcher is None:
            return
        if self._attribution is None:
            self._attribution = Attribution()
        changes, self._recent = watcher.changes(), list(self._writers)
        revealed = watcher.revealed

        def owner(path: str) -> Owner:
            found = set() if path in revealed else {each.owner(path) for each in recent}
            return "turn" if "turn" in found else "unsure" if "unsure" in found else "user"

        # Ignored files that the user deletes do not matter.
        self._attribution.add(
            {p: each for p, each in changes.items() if each[0] is None or each[0].why != IGNORED or owner(p) != "user"},
            owner,
        )

    def _names_of(self, found: Iterable[str]) -> set[str]:
        """Absolute paths as the store names them, and the targets of links among them."""
        names = set()
        for path in found:
            folder, name = os.path.split(path)
            # The folder's real path, because the watcher follows no link.
            names |= {
                self._name_of(os.path.join(os.path.realpath(folder), name)),
                self._name_of(os.path.realpath(path)),
            }
        return names

    def _name_of(self, path: str) -> str:
        workspace = os.path.realpath(str(self._entity.circle.workspace))
        return os.path.relpath(path, workspace) if path.startswith(workspace.rstrip("/") + "/") else path

    def _folders(self, found: Iterable[str]) -> list[str]:
        """The folders of a ward, named as in the store."""
        workspace = os.path.realpath(str(self._entity.circle.workspace))
        real = [os.path.realpath(os.path.join(workspace, "" if each == "workspace" else each)) for each in found]
        return ["" if each == workspace else self._name_of(each) for each in real]

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
        first = await self._run(self._open if running else self._save_users)
        self._append_first(first)
        if self._store is None:
            raise CheckpointError(f"no files are kept in this session: {self.problem or 'it is closed'}")
        store, (loom, name) = self._store, self._key()
        async with self._lock:
            return await anyio.to_thread.run_sync(
                lambda: FileHistory(store, loom, name, lost=lambda: self._lost(store))
            )

    def _lost(self, store: Store) -> str | None:
        """A warning for the user if the loom records checkpoints of this entity that the store no longer has."""
        from cantrip_acp.git import file_snapshots

        loom = self._entity.loom
        ref = file_snapshots.ref_of(loom.header.id, self._entity.id) if loom.header is not None else ""
        for record in loom.records():
            if isinstance(record, FilesRecord) and record.checkpoint is not UNSET and record.ref == ref:
                if record.workspace == store.workspace and not store.has(record.checkpoint):
                    return (
                        f"the copies of files that earlier prompts of this session changed were deleted from {store.path}; only "
                        "later changes can be undone"
                    )
        return None

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
        if self._off() or not self._begun:
            return False
        async with self._lock:
            return not self._off() and await anyio.to_thread.run_sync(self._was_saved, path, data)

    def _was_saved(self, path: str, data: bytes) -> bool:
        from cantrip_acp.checkpoints.store import content_hash

        store, last = self._store, self._last()
        if store is None or last is None or not store.has_content(data):
            return False
        name, wanted = self._name_of(os.path.realpath(path)), content_hash(data)
        chain = store.chain(last)
        changes = [*(each.changes for each in chain), *(self._attribution.changes() if self._attribution else ())]
        states = [store.tree(chain[0].id).get(name), *(entry for each in changes for entry in each.get(name, ()))]
        return any(entry is not None and entry.hash == wanted for entry in states)

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
        from cantrip_acp.checkpoints.restore import run_plan

        store, (loom, name) = self._opened_store(), self._key()

        def work() -> Outcome:
            self._save_turn("")
            outcome = run_plan(store, loom, name, plan, write=write)
            watcher = self._watcher
            if watcher is not None:
                # What the restore did is in its checkpoint. What else happened meanwhile is the user's.
                changes = watcher.changes()
                others = {
                    path: (before if path not in outcome.done else outcome.done[path].then, after)
                    for path, (before, after) in changes.items()
                    if path not in outcome.done or outcome.done[path].then != after
                }
                if others:
                    store.save(loom, name, store.last(loom, name), "user", others)
            return outcome

        with anyio.CancelScope(shield=True):
            async with self._lock:
                outcome = await anyio.to_thread.run_sync(work)
        if outcome.checkpoint is not None:
            self._append(outcome.checkpoint, self._entity.last_turn, self._entity.id, turn_id)
        return outcome

    def _opened_store(self) -> Store:
        if self._store is None:
            raise CheckpointError(f"no files are kept in this session: {self.problem or 'it is closed'}")
        return self._store


def state_of(loom: str | None) -> Path | None:
    """The state folder that a loom is in; None if it is elsewhere, and then the usual one is used."""
    folder = Path(loom).parent if loom is not None and not is_address(loom) else None
    return folder.parent if folder is not None and folder.name == "looms" else None


def chain_key(ref: str) -> tuple[str, str]:
    """The names of loom and entity under which the store has a chain, from the ``ref`` of its records."""
    _, _, loom, entity = ref.split("/")
    return loom, entity


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
