"""The loom that a person means: a file, a session's id, or the newest one in the state folder."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from cantrip_acp.core.errors import DefinitionError, TurnNotFound
from cantrip_acp.loom.stores.address import is_address

if TYPE_CHECKING:
    from cantrip_acp.loom.loom import Loom

ENDING = ".loom.jsonl"


def find(name: str | None, state_dir: Path) -> Path | str:
    """A loom's file, or a database's address as it was given. Raises `DefinitionError` that says where it was looked for."""
    looms = state_dir / "looms"
    if name is None:
        kept = sorted(looms.glob(f"*{ENDING}"), key=lambda p: p.stat().st_mtime)
        if not kept:
            raise DefinitionError(f"no loom lies in {looms}; name a file, or cast something first")
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


def every(state_dir: Path) -> list[Path]:
    """All looms of the state folder, the one that was written to last first."""
    found = []
    for path in (state_dir / "looms").glob(f"*{ENDING}"):
        with contextlib.suppress(OSError):  # gone meanwhile
            found.append((path.stat().st_mtime, path))
    return [path for _, path in sorted(found, reverse=True)]


def opened(name: str | None, state_dir: Path) -> Loom:
    """The loom that is meant, to read. Raises as `find`, and `LoomError` for what is no loom."""
    return reading(find(name, state_dir))


def reading(path: Path | str) -> Loom:
    """The loom at a path or an address, to read. Raises `LoomError` where it cannot be opened or is none."""
    from cantrip_acp.core.errors import LoomError
    from cantrip_acp.loom.loom import Loom

    held = Loom.open(path, readonly=True)
    if held.problems and held.header is None and not len(held):
        held.close()
        raise LoomError(f"{path}: this is no loom: {held.problems[0]}")
    return held


def leaf(loom: Loom, wanted: str | None) -> str:
    """The id of a turn from an id or the beginning of one; without, the leaf that was written last.

    Raises `TurnNotFound` where none or several fit.
    """
    if wanted is None:
        leaves = loom.leaves()
        if not leaves:
            raise TurnNotFound("this loom holds no turn yet")
        return leaves[-1]
    if wanted in loom:
        return wanted
    begin = wanted if wanted.startswith("t_") else f"t_{wanted}"
    found = [i for i in loom.places if i.startswith((begin, wanted))]
    if len(found) == 1:
        return found[0]
    if not found:
        raise TurnNotFound(f"no turn's id begins with {wanted!r} in this loom")
    shown = ", ".join(found[:5]) + (" …" if len(found) > 5 else "")
    raise TurnNotFound(f"{len(found)} turns' ids begin with {wanted!r}: {shown}; write more of it")
