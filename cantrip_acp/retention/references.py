"""What looms name that goes with other looms: the turn that a fork or a child goes on from, and pinned files."""

from __future__ import annotations

from dataclasses import dataclass, field

from cantrip_acp.git import file_snapshots
from cantrip_acp.loom.loom import Loom
from cantrip_acp.retention.folder import Folder
from cantrip_acp.retention.looms import Shelved


@dataclass(slots=True)
class Named:
    """The turns that a loom holds, those of other looms that it names, and the folders that its forks work in.

    ``repositories`` are the folders whose files it pinned.
    ``id`` is the loom's, ``pinned`` are those of the looms that pinned the files it tells of: a copy's pins are the original's.
    ``known`` is False where it cannot be read.
    """

    holds: set[str] = field(default_factory=set)
    elsewhere: set[str] = field(default_factory=set)
    worktrees: set[str] = field(default_factory=set)
    known: bool = True
    id: str | None = None
    pinned: set[str] = field(default_factory=set)
    repositories: set[str] = field(default_factory=set)


def read(folder: Folder, loom: Shelved) -> Named:
    """What a loom names; of a damaged one, what can still be read. Raises `LoomError`."""
    with Loom.open(folder.path / loom.name, readonly=True) as opened:
        folders = {f.worktree for f in opened.forks() if isinstance(f.worktree, str)}
        pinned = {
            found for f in opened.files() if f.ref is not None and (found := file_snapshots.loom_of(f.ref)) is not None
        }
        loom_id = file_snapshots.loom_of(file_snapshots.ref_of(opened.header.id)) if opened.header is not None else None
        repositories = {f.repository for f in opened.files() if f.repository is not None}
        return Named(set(opened.places), opened.elsewhere(), folders, True, loom_id, pinned, repositories)


def needed(named: dict[str, Named], going: set[str]) -> dict[str, str]:
    """The looms among ``going`` that one which stays needs, each with the name of one such; and what these need."""
    holder = {turn: name for name in sorted(going, reverse=True) for turn in named[name].holds}
    pinner = {named[name].id: name for name in sorted(going, reverse=True) if named[name].id is not None}
    stays: dict[str, str] = {}
    look = [name for name in named if name not in going]
    while look:
        by = look.pop()
        for name in (*map(holder.get, named[by].elsewhere), *map(pinner.get, named[by].pinned)):
            if name is not None and name not in stays:
                stays[name] = by
                look.append(name)
    return stays
