"""Plans a deletion in the state folder, and carries it out.

A plan changes nothing. Only one run at a time deletes in a state folder (`locked`). If a run is interrupted, every loom is either
whole or gone, and the next run continues.
"""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from cantrip_acp.files import paths, quarantine
from cantrip_acp.files.folder import Entry, Folder
from cantrip_acp.retention import looms
from cantrip_acp.retention.looms import LoomFiles, References
from cantrip_acp.retention.rules import DAY, Item, ItemKept, Rules
from cantrip_acp.types.errors import CantripError, LoomError

LOCK = "gc.lock"

Progress = Callable[[int, int], None]
"""Called with how many looms were read, and how many there are."""

_COMPILED = re.compile(r"[0-9a-f]{64}\.json|\.[0-9a-f]{64}\.json\.\d+")


@dataclass(slots=True)
class Plan:
    """The result. An item is deleted unless it has a reason to be kept. ``loom_bytes`` is the size of all looms now;
    ``freed`` is the size of everything that will be deleted."""

    state: Path
    rules: Rules
    items: list[Item] = field(default_factory=list)
    looms: int = 0
    loom_bytes: int = 0
    notes: list[str] = field(default_factory=list)
    opened: list[Folder] = field(default_factory=list, repr=False)

    def close(self) -> None:
        """Close the folders. The plan can then no longer be carried out."""
        while self.opened:
            self.opened.pop().close()

    @property
    def to_delete(self) -> list[Item]:
        return [item for item in self.items if item.kept is None]

    @property
    def kept(self) -> list[Item]:
        return [item for item in self.items if item.kept is not None]

    @property
    def freed(self) -> int:
        return sum(item.size + item.beside for item in self.to_delete)


def make_plan(state: Path, rules: Rules, *, progress: Progress | None = None, now: float | None = None) -> Plan:
    """Make the plan for a state folder; it is empty if there is no such folder. Raises `OSError`."""
    plan = Plan(state, rules)
    folder = Folder.open(state)
    if folder is None:
        return plan
    plan.opened.append(folder)
    now = time.time() if now is None else now
    _plan_looms(plan, folder, now, progress or (lambda done, total: None))
    recipes = folder.sub("recipes")
    if recipes is not None:
        plan.opened.append(recipes)
        _plan_compiled_recipes(plan, recipes, now)
    homes = folder.sub(paths.HOMES)
    if homes is not None:
        plan.opened.append(homes)
        _plan_homes(plan, homes, now)
    _plan_quarantine(plan, now)
    return plan


def _plan_looms(plan: Plan, state: Folder, now: float, progress: Progress) -> None:
    """Find looms by age and size."""
    folder = state.sub(looms.FOLDER)
    if folder is None:
        if state.entry(looms.FOLDER) is not None:
            plan.notes.append(f"{looms.FOLDER} is not a folder but a link or a file; it was left alone")
        return
    plan.opened.append(folder)
    found = looms.list_looms(folder)
    plan.looms, plan.loom_bytes = len(found), sum(each.size for each in found)
    kept = {each.name: looms.MARKED for each in found if each.marked}
    references: dict[str, References] = {}
    while True:
        why = looms.choose_by_rules(found, plan.rules, now, kept)
        more = {
            e.name: looms.IN_USE for e in found if e.name in why and e.name not in kept and looms.is_open(folder, e)
        }
        chosen = set(why) - set(kept) - set(more)
        if chosen:
            references = references or _read_references(plan, folder, found, progress)
            more |= _needed(references, chosen)
            more |= _changed_forks(state, found, chosen - set(more), references)
        if not more:
            break
        # Looms that are kept use space, so others may have to be deleted instead.
        kept |= more
    for each in found:
        if each.name in why:
            delete_elsewhere = looms.delete_elsewhere(state, folder, each)
            item = looms.loom_item(folder, each, why[each.name], kept.get(each.name), delete_elsewhere)
            item.beside = _worktree_bytes(state, references.get(each.name))
            plan.items.append(item)
    limit = plan.rules.max_size
    if limit is not None and plan.loom_bytes - sum(e.size for e in found if e.name in chosen) > limit:
        plan.notes.append("the looms that are kept take more room than --max-size allows")


def _plan_compiled_recipes(plan: Plan, folder: Folder, now: float) -> None:
    """Find compiled recipes that were not read for long; they are compiled again when needed."""
    limit = plan.rules.older_than
    for entry in folder.entries() if limit is not None else ():
        unused = now - max(entry.status.st_mtime, entry.status.st_atime)
        if limit is not None and entry.is_file and _COMPILED.fullmatch(entry.name) and unused > limit:
            name, why = f"recipes/{entry.name}", "made again when needed"
            plan.items.append(
                Item("compiled recipe", name, entry.size, entry.status.st_mtime, why, _delete_file(folder, entry))
            )


def _plan_homes(plan: Plan, folder: Folder, now: float) -> None:
    """Find the homes of commands (`bash_home: persistent`) that were not used for long, and those of workspaces that are gone.

    One that was used in the last day stays: a service may use it now.
    """
    limit = plan.rules.older_than
    for entry in folder.entries() if limit is not None else ():
        unused = now - entry.status.st_mtime
        workspace = _workspace_of(folder, entry.name)
        gone = workspace and not os.path.lexists(workspace)
        if limit is not None and entry.is_folder and unused > (DAY if gone else max(limit, DAY)):
            why = f"its workspace {workspace} is gone" if gone else f"last used {looms.days(unused)} ago"
            name, size = f"{paths.HOMES}/{entry.name}", folder.tree_size(entry.name)
            item = Item("home folder", name, size, entry.status.st_mtime, why, _delete_home(folder, entry))
            plan.items.append(item)


def _workspace_of(folder: Folder, home: str) -> str:
    try:
        with folder.file(home + paths.HOME_OF) as file:
            return os.fsdecode(file.read(8192))
    except OSError:
        return ""


def _delete_home(folder: Folder, home: Entry) -> Callable[[], None]:
    def delete() -> None:
        now = folder.entry(home.name)
        if now is not None and now.status.st_mtime_ns != home.status.st_mtime_ns:
            raise ItemKept("used meanwhile")
        folder.remove_tree(home.name)
        folder.unlink(home.name + paths.HOME_OF)

    return delete


def _plan_quarantine(plan: Plan, now: float) -> None:
    """Find what commands made, was moved away, and nobody kept or dropped for long."""
    limit = plan.rules.older_than
    for each in quarantine.workspaces(plan.state) if limit is not None else ():
        for entry in each.entries():
            if limit is not None and now - entry.when > limit:
                name = f"{quarantine.FOLDER}/{each.folder.name}/{entry.id}"
                why = f"{entry.path}, moved away {looms.days(now - entry.when)} ago"
                plan.items.append(
                    Item("quarantined file", name, entry.size, entry.when, why, partial(each.drop, entry.id))
                )


def _delete_file(folder: Folder, entry: Entry) -> Callable[[], None]:
    def delete() -> None:
        now = folder.entry(entry.name)
        if now is not None and (not now.is_file or now.status.st_mtime_ns != entry.status.st_mtime_ns):
            raise ItemKept("changed meanwhile")
        folder.unlink(entry.name)

    return delete


def _worktree_bytes(state: Folder, references: References | None) -> int:
    names = looms.own_worktrees(state, references.worktrees) if references is not None else []
    folder = state.sub(looms.WORKTREES) if names else None
    if folder is None:
        return 0
    try:
        return sum(folder.tree_size(name) for name in names if folder.entry(name) is not None)
    finally:
        folder.close()


def _changed_forks(
    state: Folder, found: list[LoomFiles], chosen: set[str], references: dict[str, References]
) -> dict[str, str]:
    """The chosen looms that must be kept because somebody worked in the worktree of a fork."""
    kept = {}
    for each in found:
        if each.name in chosen:
            names = looms.own_worktrees(state, references[each.name].worktrees)
            if (name := looms.changed_worktree(state, each, names)) is not None:
                kept[each.name] = f"{looms.WORKTREES}/{name}, of its fork, was changed since"
    return kept


def _needed(references: dict[str, References], chosen: set[str]) -> dict[str, str]:
    """The chosen looms that must be kept because other looms refer to them."""
    unknown = next((name for name, each in references.items() if not each.known and name not in chosen), None)
    if unknown is not None:
        return dict.fromkeys(chosen, f"{unknown}, which cannot be read, may continue it")
    return {name: f"{by} goes on from it" for name, by in looms.find_needed(references, chosen).items()}


def _read_references(plan: Plan, folder: Folder, found: list[LoomFiles], progress: Progress) -> dict[str, References]:
    """Read the references of every loom."""
    references: dict[str, References] = {}
    for number, each in enumerate(found):
        progress(number + 1, len(found))
        try:
            references[each.name] = looms.read_references(folder, each)
        except LoomError as error:
            gone = folder.entry(each.name) is None
            references[each.name] = References(known=gone)
            if not gone:
                plan.notes.append(f"{looms.FOLDER}/{each.name} cannot be read: {error}")
    return references


class GcRunning(CantripError):
    """Another run is deleting in this state folder."""


@contextmanager
def locked(state: Path) -> Iterator[None]:
    """Lock the state folder against other runs. Call it before the plan is made, or the plan may list what another run
    deletes. Raises `GcRunning` if another run has the lock."""
    if not state.is_dir():
        yield
        return
    fd = os.open(state / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise GcRunning(f"another cantrip gc is running for {state}; wait until it has finished") from None
        yield
    finally:
        os.close(fd)


def delete_items(plan: Plan) -> Iterator[tuple[Item, str | None, bool]]:
    """Delete the items of a plan. Yields each item, why it was not deleted (None if it was), and whether that is a
    failure (False if the item is in use)."""
    for item in plan.to_delete:
        try:
            item.delete()
        except ItemKept as why:
            item.kept = str(why)
            yield item, str(why), False
        except OSError as error:
            yield item, error.strerror or str(error), True
        except CantripError as error:
            yield item, str(error), True
        else:
            yield item, None, False
