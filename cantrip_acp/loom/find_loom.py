"""Finds the loom that the user names: a file, a session's id, a database address, or the newest loom of the state folder."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from cantrip_acp.loom.stores.address import is_address
from cantrip_acp.types.errors import DefinitionError, TurnNotFound

if TYPE_CHECKING:
    from cantrip_acp.loom.loom import Loom

ENDING = ".loom.jsonl"
_LAST = ("last", "@")
_LONGEST_NUMBER = 6
"""A word of so many digits or more is the beginning of an id, not the number of a turn."""


def find_loom(name: str | None, state_dir: Path) -> Path | str:
    """A loom's file, or the database address as given; without a name, or with an empty one, the newest loom of the state
    folder. Raises DefinitionError, which says where it looked."""
    looms = state_dir / "looms"
    if not name:
        kept = sorted(looms.glob(f"*{ENDING}"), key=lambda p: p.stat().st_mtime)
        if not kept:
            raise DefinitionError(f"there is no loom in {looms}; name a file, or cast something first")
        return kept[-1]
    if is_address(name):
        return name
    path = Path(name).expanduser()
    if path.is_dir():
        raise DefinitionError(f"this is a folder; name a loom in it (*{ENDING})", where=name)
    for candidate in (path, looms / name, looms / f"{name}{ENDING}"):
        if candidate.is_file():
            return candidate
    raise DefinitionError(f"no such file, and no loom of that name in {looms}", where=name)


def list_looms(state_dir: Path) -> list[Path]:
    """All looms of the state folder, the most recently written first."""
    found = []
    for path in (state_dir / "looms").glob(f"*{ENDING}"):
        with contextlib.suppress(OSError):  # the file was removed in the meantime
            found.append((path.stat().st_mtime, path))
    return [path for _, path in sorted(found, reverse=True)]


def open_by_name(name: str | None, state_dir: Path) -> Loom:
    """Find a loom and open it read-only. Raises as `find_loom`, and LoomError if the file is not a loom."""
    return open_readonly(find_loom(name, state_dir))


def open_readonly(path: Path | str) -> Loom:
    """Open the loom at a path or an address, read-only. Raises LoomError if it cannot be opened or is not a loom."""
    from cantrip_acp.loom.loom import Loom
    from cantrip_acp.types.errors import LoomError

    held = Loom.open(path, readonly=True)
    if held.problems and held.header is None and not len(held):
        held.close()
        raise LoomError(f"{path}: this is not a loom: {held.problems[0]}")
    return held


def find_turn(loom: Loom, wanted: str | None) -> str:
    """The id of the turn that a user names: by an id or its beginning, or by its number in the thread that was written last (1
    is the first answer, 0 the root). Without a name, with an empty one, ``last`` or ``@``, it is the leaf that was written last.

    Raises TurnNotFound if no turn or several turns match.
    """
    if not wanted or wanted in _LAST:
        leaves = loom.leaves()
        if not leaves:
            raise TurnNotFound("this loom has no turn yet")
        return leaves[-1]
    if wanted in loom:
        return wanted
    if wanted.isdecimal() and len(wanted) < _LONGEST_NUMBER and (wanted == "0" or not wanted.startswith("0")):
        return _numbered(loom, int(wanted))
    begin = wanted if wanted.startswith("t_") else f"t_{wanted}"
    found = [i for i in loom.places.copy() if i.startswith((begin, wanted))]
    if len(found) == 1:
        return found[0]
    if not found:
        raise TurnNotFound(f"no turn's id begins with {wanted!r} in this loom; `cantrip loom tree` lists the turns")
    shown = ", ".join(found[:5]) + (" …" if len(found) > 5 else "")
    raise TurnNotFound(f"{len(found)} turns' ids begin with {wanted!r}: {shown}; write more of the id")


def answers(loom: Loom) -> list[str]:
    """The ids of the model's turns in the thread that was written last, in order: the first one has the number 1."""
    from cantrip_acp.loom.query.history import casts_of, crystal_turns

    return [each.id for _, each in crystal_turns(casts_of(loom, find_turn(loom, None)))]


def _numbered(loom: Loom, number: int) -> str:
    if number == 0:
        return loom.path(find_turn(loom, None))[0]
    numbered = answers(loom)
    if number > len(numbered):
        raise TurnNotFound(f"there is no turn {number}: the thread that was written last has {len(numbered)} turns")
    return numbered[number - 1]
