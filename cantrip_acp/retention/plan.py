"""Plans a deletion: finds what would be deleted and what would stay, without changing anything."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from cantrip_acp.core.errors import LoomError
from cantrip_acp.retention import leftovers, looms, worktrees
from cantrip_acp.retention import looms as references
from cantrip_acp.retention.dir_handle import Folder
from cantrip_acp.retention.rules import Item, Rules

Progress = Callable[[str, int, int], None]
"""Called with what is being read, how many of it were read, and how many there are."""


@dataclass(frozen=True, slots=True)
class Look:
    """The input of a collector: the open state folder, the rules, the time (seconds since the epoch)."""

    state: Folder
    rules: Rules
    now: float
    progress: Progress = lambda what, done, of: None


@dataclass(slots=True)
class Plan:
    """The result. An item is deleted unless it has a reason to stay. ``held`` is the size of all looms now, in bytes;
    ``freed`` the size of everything that will be deleted."""

    state: Path
    rules: Rules
    items: list[Item] = field(default_factory=list)
    looms: int = 0
    held: int = 0
    notes: list[str] = field(default_factory=list)
    opened: list[Folder] = field(default_factory=list, repr=False)

    def close(self) -> None:
        """Close the folders. The plan can then no longer be carried out."""
        while self.opened:
            self.opened.pop().close()

    @property
    def going(self) -> list[Item]:
        return [item for item in self.items if item.stays is None]

    @property
    def staying(self) -> list[Item]:
        return [item for item in self.items if item.stays is not None]

    @property
    def freed(self) -> int:
        return sum(item.size + item.beside for item in self.going)


def collect_looms(look: Look, plan: Plan) -> None:
    """Find looms by age and size, and the files of looms that are gone."""
    folder = look.state.sub(looms.FOLDER)
    if folder is None:
        if look.state.entry(looms.FOLDER) is not None:
            plan.notes.append(f"{looms.FOLDER} is no folder but a link or a file; it was left alone")
        return
    plan.opened.append(folder)
    shelf, orphans = looms.shelf(folder)
    plan.looms, plan.held = len(shelf), sum(each.size for each in shelf)
    stays = {each.name: looms.MARKED for each in shelf if each.marked}
    named: dict[str, references.Named] = {}
    while True:
        why = looms.over(shelf, look.rules, look.now, stays)
        found = {e.name: looms.IN_USE for e in shelf if e.name in why and e.name not in stays and looms.held(folder, e)}
        going = set(why) - set(stays) - set(found)
        if going:
            found |= _needed(look, plan, folder, shelf, going, named)
            found |= _worked_in(look.state, shelf, going - set(found), named)
        if not found:
            break
        # Looms that stay use space, so others may have to be deleted instead.
        stays |= found
    for each in shelf:
        if each.name in why:
            before = worktrees.let_go(look.state, folder, each)
            item = looms.item(folder, each, why[each.name], stays.get(each.name), before)
            item.beside = _worktrees_size(look.state, named.get(each.name))
            plan.items.append(item)
    collect_worktrees(look, plan, folder, shelf, named)
    plan.items += leftovers.beside(folder, orphans, looms.FOLDER, look.now)
    room = look.rules.max_size
    if room is not None and plan.held - sum(e.size for e in shelf if e.name in going) > room:
        plan.notes.append("what must stay takes more room than looms may take")


def collect_worktrees(
    look: Look, plan: Plan, folder: Folder, shelf: list[looms.Shelved], named: dict[str, references.Named]
) -> None:
    """Find forks' worktrees that no loom names, and worktrees whose creation was interrupted."""
    own = look.state.sub(worktrees.FOLDER)
    if own is not None:
        plan.opened.append(own)
    _read_all(look, plan, folder, shelf, named)
    repositories = {path for each in named.values() for path in each.repositories}
    half = worktrees.half_made(own, repositories, look.now)
    plan.items += half
    if own is None or not any(entry.is_folder for entry in own.entries()):
        return
    if all(each.known for each in named.values()):
        theirs = {name for each in named.values() for name in worktrees.own(look.state, each.worktrees)}
        theirs |= {os.path.basename(item.name) for item in half}
        plan.items += worktrees.left(own, theirs, look.rules, look.now)


def _worktrees_size(state: Folder, named: references.Named | None) -> int:
    names = worktrees.own(state, named.worktrees) if named is not None else []
    folder = state.sub(worktrees.FOLDER) if names else None
    if folder is None:
        return 0
    try:
        return sum(folder.tree_size(name) for name in names if folder.entry(name) is not None)
    finally:
        folder.close()


def _worked_in(
    state: Folder, shelf: list[looms.Shelved], going: set[str], named: dict[str, references.Named]
) -> dict[str, str]:
    found = {}
    for each in shelf:
        if each.name in going:
            name = worktrees.worked_in(state, each, worktrees.own(state, named[each.name].worktrees))
            if name is not None:
                found[each.name] = f"{worktrees.FOLDER}/{name}, of its fork, was changed since"
    return found


def _needed(
    look: Look,
    plan: Plan,
    folder: Folder,
    shelf: list[looms.Shelved],
    going: set[str],
    named: dict[str, references.Named],
) -> dict[str, str]:
    """The looms in ``going`` that must stay because other looms refer to them."""
    _read_all(look, plan, folder, shelf, named)
    unknown = next((name for name, each in named.items() if not each.known and name not in going), None)
    if unknown is not None:
        return dict.fromkeys(going, f"{unknown}, which cannot be read, may go on from it")
    return {name: f"{by} goes on from it" for name, by in references.needed(named, going).items()}


def _read_all(
    look: Look, plan: Plan, folder: Folder, shelf: list[looms.Shelved], named: dict[str, references.Named]
) -> None:
    """Read what every loom refers to, once."""
    for number, each in enumerate(shelf if not named else ()):
        look.progress("looms", number + 1, len(shelf))
        try:
            named[each.name] = references.read(folder, each)
        except LoomError as error:
            gone = folder.entry(each.name) is None
            named[each.name] = references.Named(known=gone)
            if not gone:
                plan.notes.append(f"{looms.FOLDER}/{each.name} cannot be read: {error}")


def collect_leftovers(look: Look, plan: Plan) -> None:
    """Find leftover files elsewhere in the state folder and in the temporary folder."""
    recipes = look.state.sub("recipes")
    if recipes is not None:
        plan.opened.append(recipes)
        plan.items += leftovers.compiled(recipes, look.rules, look.now)
    plan.items += leftovers.standins(look.state, look.now)
    plan.items += leftovers.temporary_folders()


COLLECTORS: tuple[Callable[[Look, Plan], None], ...] = (collect_looms, collect_leftovers)
"""The functions that find items. For another kind of state, write a function and add it here."""


def make(state: Path, rules: Rules, *, progress: Progress | None = None, now: float | None = None) -> Plan:
    """Make the plan for a state folder; it is empty where there is no such folder. Raises `OSError`."""
    plan = Plan(state, rules)
    folder = Folder.open(state)
    if folder is not None:
        plan.opened.append(folder)
        look = Look(folder, rules, time.time() if now is None else now, progress or (lambda what, done, of: None))
        for collect in COLLECTORS:
            collect(look, plan)
    return plan
