"""What looms name that lies in other looms: the turn that a fork or a child goes on from."""

from __future__ import annotations

from dataclasses import dataclass, field

from cantrip_acp.loom.loom import Loom
from cantrip_acp.retention.folder import Folder
from cantrip_acp.retention.looms import Shelved


@dataclass(slots=True)
class Named:
    """The turns that a loom holds, those of other looms that it names, and the folders that its forks work in.

    ``known`` is False where it cannot be read.
    """

    holds: set[str] = field(default_factory=set)
    elsewhere: set[str] = field(default_factory=set)
    worktrees: set[str] = field(default_factory=set)
    known: bool = True


def read(folder: Folder, loom: Shelved) -> Named:
    """What a loom names; of a damaged one, what can still be read. Raises `LoomError`."""
    with Loom.open(folder.path / loom.name, readonly=True) as opened:
        folders = {f.worktree for f in opened.forks() if isinstance(f.worktree, str)}
        return Named(set(opened.places), opened.elsewhere(), folders)


def needed(named: dict[str, Named], going: set[str]) -> dict[str, str]:
    """The looms among ``going`` that one which stays goes on from, each with the name of one such; and what these need."""
    holder = {turn: name for name in sorted(going, reverse=True) for turn in named[name].holds}
    stays: dict[str, str] = {}
    look = [name for name in named if name not in going]
    while look:
        by = look.pop()
        for turn in named[by].elsewhere:
            name = holder.get(turn)
            if name is not None and name not in stays:
                stays[name] = by
                look.append(name)
    return stays
