"""Files that this process keeps from its own gates and sandboxes, whatever their names are.

**Named** files: a recipe of the workspace runs or reads them, and trust covers their content. Gates and commands cannot write
them. **Held** files: looms and databases that this process has open. Gates and commands do not see them.
Gates ask here for each path; a sandbox asks before each command.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping

_lock = threading.Lock()
_named: dict[str, dict[str, str]] = {}


def name_files(owner: str, files: Mapping[str, str]) -> None:
    """Guard the files that ``owner`` names, each with who names it, in the place of those that it named before."""
    with _lock:
        _named[owner] = {
            _folded(each): by for path, by in files.items() for each in (_real(path), os.path.realpath(path))
        }


def named() -> dict[str, str]:
    """The real path of each named file, and of what it leads to if it is a link, and who names it."""
    with _lock:
        return {path: by for files in _named.values() for path, by in files.items()}


def why_named(path: str) -> str | None:
    """The reason why the file at an absolute path is read-only, as text that follows "because". None if nobody names it."""
    files = named()
    by = files.get(_folded(_real(path))) if files else None
    return None if by is None else f"the recipe {by} names it, and you trust that recipe with what it names"


def _real(path: str) -> str:
    """The path with the links above the file resolved, and without the file's own: who replaces a link changes what the name
    leads to."""
    above, name = os.path.split(path)
    return os.path.join(os.path.realpath(above), name)


def _folded(path: str) -> str:
    # A Mac's file system takes Work.db for work.db.
    return path.casefold() if sys.platform == "darwin" else path
