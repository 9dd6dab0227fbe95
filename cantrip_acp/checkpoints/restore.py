"""Restores files: plans what to write and delete, and does it so that nothing is lost and a killed process can go on.

A restore undoes differences. Where a file is as the entity left it, it becomes what it was. Where the user changed it too,
the user's changes stay: by a three-way merge of lines, else the file is left as it is and named as a conflict. Before any
file is written, the present contents are in the store, and so is a journal. Each file is replaced at once (a temporary
file, then a rename), and no link is followed.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field

from cantrip_acp.checkpoints.merge import is_text, merge
from cantrip_acp.checkpoints.store import IGNORED, Change, Changes, Checkpoint, Entry, Store, content_hash
from cantrip_acp.checkpoints.watcher import SKIPPED, entry_of, open_folder
from cantrip_acp.files.folder import Folder
from cantrip_acp.types.errors import CheckpointError

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

UNSURE = "it changed while a command ran, perhaps by you"
"""Why a file is a conflict that nobody is known to have changed but the command."""

Write = Callable[[str, bytes], bool]
"""Writes an absolute path through the editor. False if the editor could not."""


@dataclass(frozen=True, slots=True)
class Step:
    """One file of a plan: its present state and its wanted one. ``merged``: the user's changes stay in it. ``unsaved``: the
    editor has unsaved changes; ``now`` is then the text in the editor."""

    now: Entry | None
    then: Entry | None
    merged: bool = False
    unsaved: bool = False
    disk: Entry | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """What a restore will do. ``conflicts`` and ``left`` are files that it leaves as they are, each with the reason: a
    conflict can be forced, what is left cannot be restored at all."""

    steps: Mapping[str, Step]
    conflicts: Mapping[str, str] = field(default_factory=dict)
    left: Mapping[str, str] = field(default_factory=dict)
    to: str = ""
    over: Mapping[str, Step] = field(default_factory=dict)
    """For each conflict the step that restores the file over the user's changes."""
    takes_back: str = ""
    """The restore that this one takes back, if it is a redo."""

    def overwriting(self, agreed: Mapping[str, Step]) -> Plan:
        """This plan; a conflict is decided for the earlier state if its step in `over` equals the one in ``agreed``.

        A file that was changed after the user had agreed has another step, so it stays a conflict.
        """
        chosen = {path: step for path, step in self.over.items() if agreed.get(path) == step}
        return Plan(
            dict(sorted({**self.steps, **chosen}.items())),
            {path: why for path, why in self.conflicts.items() if path not in chosen},
            self.left,
            self.to,
            {path: step for path, step in self.over.items() if path not in chosen},
            self.takes_back,
        )

    @property
    def empty(self) -> bool:
        return not (self.steps or self.conflicts or self.left)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a restore: the written or deleted files, and the skipped ones, each with the reason."""

    done: Mapping[str, Step]
    skipped: Mapping[str, str]
    checkpoint: Checkpoint | None


def combine(steps: Iterable[Changes]) -> dict[str, list[Change]]:
    """The changes of each path, newest first. ``steps`` are newest first too. Changes that follow each other are one."""
    found: dict[str, list[Change]] = {}
    for changes in steps:
        for path, (before, after) in changes.items():
            pairs = found.setdefault(path, [])
            if pairs and pairs[-1][0] == after:
                pairs[-1] = (before, pairs[-1][1])
            else:
                pairs.append((before, after))
    for path in tuple(found):
        found[path] = [pair for pair in found[path] if pair[0] != pair[1]]
        if not found[path]:
            del found[path]
    return found


def look_at(store: Store, path: str) -> Entry | None:
    """The file or link at a path now. Its content is put in the store. None if nothing or a folder is there."""
    folder = _open_above(store, path)
    if folder is None:
        return None
    try:
        name = path.rpartition("/")[2]
        try:
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return None
        return (
            None
            if stat.S_ISDIR(status.st_mode)
            else entry_of(name, folder, path, os.path.join(store.workspace, path), status, store.add)
        )
    finally:
        os.close(folder)


def make_plan(
    store: Store,
    undone: Mapping[str, Sequence[Change]],
    *,
    to: str = "",
    takes_back: str = "",
    unsaved: Mapping[str, bytes] | None = None,
    unsure: Set[str] = frozenset(),
    force: bool = False,
) -> Plan:
    """Plan to undo changes (of `combine`). ``unsaved`` are texts in the editor that differ from the disk. ``unsure`` are
    paths that perhaps the user changed, so that the user must say whether they are undone.

    With ``force`` conflicts are decided for the earlier state. What can be merged is merged all the same.
    """
    steps: dict[str, Step] = {}
    over: dict[str, Step] = {}
    conflicts: dict[str, str] = {}
    left: dict[str, str] = {}
    for path in sorted(undone):
        try:
            disk = now = look_at(store, path)
        except CheckpointError as error:
            left[path] = str(error)
            continue
        if unsaved is not None and (text := unsaved.get(path)) is not None:
            mode = disk.mode if disk is not None else stat.S_IFREG | 0o644
            now = Entry(mode, store.add(text), len(text))
        wanted, merged, problem, conflict = _undo(store, now, undone[path])
        if now != disk and now is not None and wanted is not None and wanted.hash == now.hash:
            # The editor has the wanted text already. What is to be restored is the file on the disk.
            now = disk
            wanted, merged, problem, conflict = _undo(store, disk, undone[path])
        if problem:
            left[path] = problem
            continue
        if wanted == now:
            continue
        step = Step(now, wanted, merged, now != disk, disk)
        if not conflict and path in unsure:
            conflict = UNSURE
        if conflict:
            conflicts[path], over[path] = conflict, step
        else:
            steps[path] = step
    plan = Plan(steps, conflicts, left, to, over, takes_back)
    return plan.overwriting(over) if force else plan


def _undo(store: Store, now: Entry | None, pairs: Sequence[Change]) -> tuple[Entry | None, bool, str, str]:
    """Undo changes of one file.

    Returns its wanted state, whether changes of the user were merged into it, why it cannot be restored at all, and why it
    can be restored only over changes of the user. The reasons are "" if they do not apply.
    """
    conflict = ""
    merged = False
    at = now
    for before, after in pairs:
        if at == before:
            continue
        if before is not None and before.why == IGNORED and at is not None:
            # It is there again.
            continue
        if before is not None and not before.kept:
            return at, merged, f"its earlier content was not kept: {before.why}", ""
        if at is not None and not at.kept:
            return at, merged, f"its present content cannot be kept: {at.why}", ""
        if at == after:
            at = before
        elif (both := _merge(store, at, before, after)) is not None:
            at, merged = both, True
        else:
            what = (
                "it would be deleted"
                if before is None
                else "it was deleted"
                if at is None
                else _why_unmerged(store, at)
            )
            conflict = conflict or f"you changed it after the entity did ({what})"
            at, merged = before, False
    return at, merged, "", conflict


def _why_unmerged(store: Store, now: Entry) -> str:
    return (
        "the same lines" if not now.is_link and is_text(store.content(now.hash)) else "it is no text that can be merged"
    )


def _merge(store: Store, now: Entry | None, before: Entry | None, after: Entry | None) -> Entry | None:
    if now is None or before is None or after is None or not after.kept:
        return None
    if any(each.is_link for each in (now, before, after)):
        return None
    mode = before.mode if now.mode == after.mode else now.mode
    text = merge(store.content(after.hash), store.content(now.hash), store.content(before.hash))
    return None if text is None else Entry(mode, store.add(text), len(text))


def run_plan(store: Store, loom: str, entity: str, plan: Plan, *, write: Write | None = None) -> Outcome:
    """Do a restore, and save it as a checkpoint of the entity. Blocking. Raises `CheckpointError`."""
    if not plan.steps:
        return Outcome({}, {}, None)
    with store.restoring():
        parent = store.last(loom, entity)
        known = _last_states(store, parent)
        # First store the user's changes since then, also those in the editor.
        others = {p: (known.get(p, s.now), s.now) for p, s in plan.steps.items() if known.get(p, s.now) != s.now}
        with store.writing():
            if others:
                parent = store.save(loom, entity, parent, "user", others).id
            changes = {path: (step.now, step.then) for path, step in plan.steps.items()}
            number = store.begin_restore(loom, entity, plan.to, changes, plan.takes_back)
        return _apply(store, loom, entity, number, plan, write)


def finish_restores(store: Store, loom: str, entity: str) -> list[Outcome]:
    """Complete the restores of an entity that a crash interrupted. Files that were changed since are left as they are."""
    outcomes = []
    for number, *_ in store.unfinished_restores(loom, entity):
        with store.restoring():
            for again, to, takes_back, changes in store.unfinished_restores(loom, entity):
                if again == number:
                    steps = {path: Step(now, then, disk=now) for path, (now, then) in changes.items()}
                    outcomes.append(
                        _apply(store, loom, entity, number, Plan(steps, to=to, takes_back=takes_back), None)
                    )
    return outcomes


def _last_states(store: Store, last: str | None) -> dict[str, Entry | None]:
    """The last recorded state of each path that changed in a chain."""
    found: dict[str, Entry | None] = {}
    for step in store.chain(last) if last is not None else ():
        found.update({path: after for path, (_, after) in step.changes.items()})
    return found


def _apply(store: Store, loom: str, entity: str, number: int, plan: Plan, write: Write | None) -> Outcome:
    done: dict[str, Step] = {}
    skipped: dict[str, str] = {}
    # Deletions first: a file may be in the place of a folder. The deepest ones first, so that folders become empty.
    order = sorted(plan.steps, key=lambda path: (plan.steps[path].then is not None, -path.count("/"), path))
    for path in order:
        step = plan.steps[path]
        try:
            why = _apply_one(store, path, step, write)
        except OSError as problem:
            why = f"it cannot be written: {problem.strerror}"
        except CheckpointError as problem:
            # The other files are restored all the same.
            why = str(problem)
        if why is None:
            done[path] = step
        else:
            skipped[path] = why
    made: Checkpoint | None = None
    with store.writing():
        store.end_restore(number)
        if done:
            parent = store.last(loom, entity)
            changes = {path: (step.now, step.then) for path, step in done.items()}
            made = store.save(loom, entity, parent, "restore", changes, to=plan.to, takes_back=plan.takes_back)
    return Outcome(done, skipped, made)


def _apply_one(store: Store, path: str, step: Step, write: Write | None) -> str | None:
    """Write or delete one file. Returns why it was left as it is; None if it is now as wanted."""
    name = path.rpartition("/")[2]
    temporary = f".cantrip-restore-{content_hash(os.fsencode(path)).hex()[:16]}"
    present = look_at(store, path)
    if present == step.then and not step.unsaved:
        return None
    if present != step.disk:
        _remove_temporary(store, path, temporary)
        return "it was changed meanwhile"
    if step.unsaved:
        if step.then is None or write is None or step.then.is_link:
            return "it has unsaved changes in the editor"
        if not write(os.path.join(store.workspace, path), store.content(step.then.hash)):
            return "the editor did not take the change"
        return None
    if step.then is None:
        folder = _open_above(store, path)
        if folder is not None:
            try:
                os.unlink(name, dir_fd=folder)
            finally:
                os.close(folder)
            _remove_empty_folders(store, path)
        return None
    folder = _open_above(store, path, make=True)
    if folder is None:
        return "something else is in the place of its folder"
    try:
        with suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=folder)
        content = store.content(step.then.hash)
        if step.then.is_link:
            os.symlink(os.fsdecode(content), temporary, dir_fd=folder)
        else:
            fd = os.open(temporary, _NEW, 0o600, dir_fd=folder)
            try:
                view = memoryview(content)
                while view:
                    view = view[os.write(fd, view) :]
                os.fchmod(fd, stat.S_IMODE(step.then.mode) & 0o777)
                os.fsync(fd)
            finally:
                os.close(fd)
        with suppress(OSError):
            # An empty folder may be in its place.
            os.rmdir(name, dir_fd=folder)
        try:
            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError:
            os.unlink(temporary, dir_fd=folder)
            raise
    finally:
        os.close(folder)
    return None


def write_tree(store: Store, checkpoint: str, folder: str) -> None:
    """Make a folder's files those of a checkpoint. Files that were not kept, and ``.git``, stay as they are there."""
    tree = store.tree(checkpoint)
    for above, folders, names in os.walk(folder):
        folders[:] = [each for each in folders if each not in SKIPPED]
        for name in (*names, *(each for each in folders if os.path.islink(os.path.join(above, each)))):
            path = os.path.relpath(os.path.join(above, name), folder)
            if path not in tree and name not in SKIPPED:
                os.unlink(os.path.join(above, name))
    for above, folders, _ in os.walk(folder, topdown=False):
        if above != folder and not any(each in SKIPPED for each in folders):
            with suppress(OSError):
                os.rmdir(above)
    for path, entry in tree.items():
        if not entry.kept or os.path.isabs(path):
            continue
        target = os.path.join(folder, path)
        content, mode = store.content(entry.hash), stat.S_IMODE(entry.mode) & 0o777
        if not entry.is_link and _is_file_with(target, content, mode):
            continue
        os.makedirs(os.path.dirname(target), exist_ok=True)
        # Each file is old or new at every moment, also if the process is killed.
        temporary = os.path.join(os.path.dirname(target), f".cantrip-{os.urandom(6).hex()}")
        if entry.is_link:
            os.symlink(os.fsdecode(content), temporary)
        else:
            with open(temporary, "xb") as file:
                file.write(content)
            os.chmod(temporary, mode)
        os.replace(temporary, target)


def _is_file_with(path: str, content: bytes, mode: int) -> bool:
    """Whether there is a file with this content and mode."""
    try:
        status = os.lstat(path)
        if not stat.S_ISREG(status.st_mode) or (status.st_size, stat.S_IMODE(status.st_mode)) != (len(content), mode):
            return False
        with open(path, "rb") as file:
            return file.read() == content
    except OSError:
        return False


def _remove_temporary(store: Store, path: str, temporary: str) -> None:
    folder = _open_above(store, path)
    if folder is not None:
        try:
            with suppress(OSError):
                os.unlink(temporary, dir_fd=folder)
        finally:
            os.close(folder)


def _split(store: Store, path: str) -> tuple[str, str]:
    """The top folder of a path, and the folder's path below it."""
    above = path.rpartition("/")[0]
    return ("/", above[1:]) if os.path.isabs(path) else (store.workspace, above)


def _open_above(store: Store, path: str, *, make: bool = False) -> int | None:
    """Open the folder of a path without following links. With ``make`` missing folders are made."""
    top, below = _split(store, path)
    if not make:
        try:
            return open_folder(top, below)
        except OSError as problem:
            raise CheckpointError(f"the folder of {path!r} cannot be opened: {problem.strerror}") from None
    with Folder.top(top) as folder:
        try:
            return folder.beneath(below, make=True).fd
        except OSError as problem:
            if problem.errno in (errno.ENOTDIR, errno.ELOOP):
                return None
            raise


def _remove_empty_folders(store: Store, path: str) -> None:
    """Remove the folders of a deleted file that are empty now, below the workspace or the other folder."""
    above = path.rpartition("/")[0]
    while above and not os.path.isabs(path):
        folder = _open_above(store, above)
        if folder is None:
            return
        try:
            os.rmdir(above.rpartition("/")[2], dir_fd=folder)
        except OSError:
            return
        finally:
            os.close(folder)
        above = above.rpartition("/")[0]
