"""Saved files: the states of one entity's workspace in the store, and whose each change of it is.

What reads or writes files here blocks, and runs in one thread at a time (`core.lifecycle.checkpoints`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET

from cantrip_acp.files import paths
from cantrip_acp.gates.registry import BUILT_IN, CHILD_FUNCTIONS, SANDBOXED
from cantrip_acp.loom.stores.address import is_address
from cantrip_acp.types.errors import CheckpointError
from cantrip_acp.types.records import FilesRecord

if TYPE_CHECKING:
    from cantrip_acp.checkpoints.ownership import Attribution, Owner, Writer
    from cantrip_acp.checkpoints.restore import Outcome, Plan, Write
    from cantrip_acp.checkpoints.store import Checkpoint, Store
    from cantrip_acp.checkpoints.watcher import Watcher
    from cantrip_acp.core.definition.circle import Circle
    from cantrip_acp.core.state import EntityState
    from cantrip_acp.gates.contract import Gate
    from cantrip_acp.types.records import Location


class SavedFiles:
    """The files of one root entity. ``abandoned`` says that nobody waits for them any more.

    Its methods raise `CheckpointError` and `OSError`.
    """

    def __init__(self, entity: EntityState, abandoned: Callable[[], bool]) -> None:
        self._entity = entity
        self._abandoned = abandoned
        self.store: Store | None = None
        self._watcher: Watcher | None = None
        self._attribution: Attribution | None = None
        self.begun = False
        """Whether the state from before the entity's first change is stored."""
        self._writers: list[Writer] = []
        """The calls and programs that run now and may change files."""
        self._recent: list[Writer] = []
        """These, and those that ended since the last look at the files."""
        self.notes: list[str] = []
        """Notices for the user, such as a restore that was completed after a crash."""

    # --- who writes

    @property
    def writing(self) -> bool:
        """Whether a call or program runs that may change files."""
        return bool(self._writers)

    def writer_of_call(self, gate: Gate, circle: Circle, locations: Iterable[Location]) -> Writer:
        from cantrip_acp.checkpoints.ownership import Writer, of_anything

        if gate.name in SANDBOXED:
            return Writer(folders=self._folders(circle.wards.bash_writable_paths))
        if gate.name in BUILT_IN.keys() - {"client_terminal"} or gate.name in CHILD_FUNCTIONS:
            writes = gate.kind == "edit" and gate.proposes is not None
            return Writer(paths=self.names_of(each.path for each in locations) if writes else ())
        return of_anything()

    def writer_of_program(self, text: str, circle: Circle) -> Writer:
        from cantrip_acp.checkpoints.ownership import of_program

        shell = circle.medium.name == "bash"
        folders = circle.wards.bash_writable_paths if shell else circle.wards.code_writable_paths
        writer = of_program(text, self._folders(folders), shell=shell)
        # Where a text names a path from the root.
        writer.says = tuple(
            self._name_of(each.rstrip("/")) + each[len(each.rstrip("/")) :] if os.path.isabs(each) else each
            for each in writer.says
        )
        return writer

    def begin(self, writer: Writer) -> None:
        self._writers.append(writer)
        self._recent.append(writer)

    def end(self, writer: Writer) -> None:
        writer.end()
        self._writers.remove(writer)

    def must_look(self) -> bool:
        """Whether changes until now must be attributed to their owners (`attribute`). Where reading all files is slow, this
        happens only at the end of a turn."""
        if self._recent and self._watcher is not None and not self._watcher.cheap:
            return False
        if self.begun and self._watcher is not None and self._watcher.unchanged:
            self._recent = list(self._writers)
            return False
        return True

    # --- keeping

    def watch(self) -> None:
        """Open the store, and read all files. Does nothing if that was done."""
        if self._watcher is not None:
            return
        from cantrip_acp.checkpoints.restore import finish_restores
        from cantrip_acp.checkpoints.store import Store
        from cantrip_acp.checkpoints.watcher import Watcher

        circle = self._entity.circle
        assert circle.workspace is not None
        if self.store is None:
            self.store = Store(circle.workspace, state=state_of(self._entity.loom.location))
        store, last = self.store, self._last()
        if last is not None:
            for outcome in finish_restores(store, *self.key()):
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
            abandoned=self._abandoned,
        )
        store.keep_cache(self._watcher.cache())

    def _last(self) -> str | None:
        """The entity's last checkpoint. A fork continues the chain of the other entity, if its files were kept."""
        entity, store = self._entity, self.store
        assert store is not None
        if entity.loom.header is None:
            return None
        loom, name = self.key()
        last = store.last(loom, name)
        if last is None and entity.last_turn and entity.last_turn in entity.loom:
            kept = entity.loom.files_at(entity.last_turn)
            if kept is not None and kept.checkpoint is not UNSET and kept.workspace == store.workspace:
                if store.has(kept.checkpoint):
                    last = kept.checkpoint
                    store.point(loom, name, last)
        return last

    def open(self) -> Checkpoint | None:
        """Store the present files before the entity changes any, unless that was done. Returns the first checkpoint of a
        chain."""
        self.watch()
        if self.begun:
            return None
        store, watcher = self.store, self._watcher
        assert store is not None, "watch opened it"
        assert watcher is not None, "watch made it"
        (loom, name), last = self.key(), self._last()
        watcher.changes()
        tree = watcher.tree()
        self.begun = True
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

    def key(self) -> tuple[str, str]:
        from cantrip_acp.git import file_snapshots

        header = self._entity.loom.header
        assert header is not None, "a cast has begun"
        return chain_key(file_snapshots.ref_of(header.id, self._entity.id))

    def save_users(self) -> Checkpoint | None:
        begun = self.begun
        first = self.open()
        if begun:
            self.save_turn("")
        return first

    def save_turn(self, turn_id: str) -> Checkpoint | None:
        """Store the changes since the last checkpoint, by owner. Returns the record of the turn; None if the entity certainly
        changed no file."""
        self.open()
        self.attribute()
        store, attribution = self.store, self._attribution
        assert store is not None, "watch opened it"
        assert attribution is not None, "attribute made it"
        loom, name = self.key()
        cast = self._entity.running.id if self._entity.running is not None else self._entity.last_cast
        made: Checkpoint | None = None
        for by, changes in attribution.take():
            turn = "" if by == "user" else turn_id
            saved = store.save(loom, name, store.last(loom, name), by, changes, turn=turn, cast=cast)
            if by != "user":
                earlier = made.changes if made is not None else {}
                made = msgspec.structs.replace(saved, changes={**earlier, **changes})
        return made

    def follow(self, paths: Iterable[str]) -> None:
        """Watch files that a call is about to write, also ignored ones."""
        if self._watcher is not None and self._watcher.follow(paths):
            self.attribute()

    def attribute(self) -> None:
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

    def names_of(self, found: Iterable[str]) -> set[str]:
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

    def close(self) -> None:
        watcher, self._watcher = self._watcher, None
        store, self.store = self.store, None
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

    # --- restoring

    def was_saved(self, path: str, data: bytes) -> bool:
        from cantrip_acp.checkpoints.store import content_hash

        store, last = self.store, self._last()
        if store is None or last is None or not store.has_content(data):
            return False
        name, wanted = self._name_of(os.path.realpath(path)), content_hash(data)
        chain = store.chain(last)
        changes = [*(each.changes for each in chain), *(self._attribution.changes() if self._attribution else ())]
        states = [store.tree(chain[0].id).get(name), *(entry for each in changes for entry in each.get(name, ()))]
        return any(entry is not None and entry.hash == wanted for entry in states)

    def lost(self, store: Store) -> str | None:
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

    def restore(self, store: Store, plan: Plan, write: Write | None) -> Outcome:
        """Do a restore, and save it."""
        from cantrip_acp.checkpoints.restore import run_plan

        loom, name = self.key()
        self.save_turn("")
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


def state_of(loom: str | None) -> Path | None:
    """The state folder that a loom is in; None if it is elsewhere, and then the usual one is used."""
    folder = Path(loom).parent if loom is not None and not is_address(loom) else None
    return folder.parent if folder is not None and folder.name == "looms" else None


def chain_key(ref: str) -> tuple[str, str]:
    """The names of loom and entity under which the store has a chain, from the ``ref`` of its records."""
    _, _, loom, entity = ref.split("/")
    return loom, entity
