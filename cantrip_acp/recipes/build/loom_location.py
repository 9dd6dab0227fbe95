"""Loom location: where the casts of a recipe are recorded, for the command line and for editors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cantrip_acp.core.errors import DefinitionError

if TYPE_CHECKING:
    from cantrip_acp.loom.loom import Loom


def open_loom(settings: Mapping[str, Any], file: Path | str | None, state: Path) -> Loom:
    """The loom that the user named, else that of the recipe's ``loom`` settings, else a new file in the state folder.

    Raises `DefinitionError` where it cannot be opened.
    """
    from cantrip_acp.files.paths import private
    from cantrip_acp.loom.loom import Loom
    from cantrip_acp.loom.records.turn import new_id
    from cantrip_acp.loom.stores.address import is_address

    fsync = bool(settings.get("fsync", False))
    if file is not None and is_address(file):
        return Loom.open(file, fsync=fsync)
    if file is not None:
        file = Path(file)
        if file.exists() and not file.is_file():
            what = "a folder" if file.is_dir() else "no regular file"
            raise DefinitionError(f"this is {what}; --loom takes a file", where=str(file))
        return Loom.open(file, fsync=fsync)
    store = settings.get("store", "jsonl")
    if store == "memory":
        return Loom.memory()
    if is_address(store):
        return Loom.open(store, fsync=fsync)
    try:
        folder = private(state / "looms")
    except OSError as error:
        mend = "--state-dir or $CANTRIP_STATE_DIR names another folder, --loom a file"
        raise DefinitionError(f"the state folder cannot be used: {error.strerror}; {mend}", where=str(state)) from None
    return Loom.open(folder / f"{new_id('cast')}.loom.jsonl", fsync=fsync)
