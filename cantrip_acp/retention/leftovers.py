"""Finds leftover files of the state folder: files beside looms that are gone, recipes that were compiled long ago, and
folders of placeholders and temporary folders whose process was killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
from collections.abc import Callable

from cantrip_acp.files import temporary
from cantrip_acp.retention.dir_handle import Entry, Folder
from cantrip_acp.retention.rules import DAY, Item, Rules, Stays

_STANDINS = "cantrip-standins-"
_COMPILED = re.compile(r"[0-9a-f]{64}\.json|\.[0-9a-f]{64}\.json\.\d+")
_SETTLED = DAY
"""Minimum age in seconds. A younger file may belong to something that is just being created."""


def beside(folder: Folder, orphans: list[Entry], where: str, now: float) -> list[Item]:
    """Indexes, torn lines and keep marks of looms that are gone."""
    return [
        Item("leftover", f"{where}/{each.name}", each.size, each.changed, "its loom is gone", _unlink(folder, each))
        for each in orphans
        if now - each.changed > _SETTLED
    ]


def compiled(recipes: Folder, rules: Rules, now: float) -> list[Item]:
    """Compiled recipes that were not read for long; they are compiled again when needed."""
    if rules.older_than is None:
        return []
    return [
        Item("compiled recipe", f"recipes/{e.name}", e.size, e.changed, "made again when needed", _unlink(recipes, e))
        for e in recipes.entries()
        if e.is_file and _COMPILED.fullmatch(e.name) and now - max(e.changed, e.status.st_atime) > rules.older_than
    ]


def standins(folder: Folder, now: float) -> list[Item]:
    """Folders of placeholders (`sandbox.policy.placeholders.Pool`) that no process uses."""
    return [
        Item("stand-ins", e.name, 0, e.changed, "its process was killed", _pool(folder, e.name), _pool_state(folder, e.name))
        for e in folder.entries()
        if e.is_folder and e.name.startswith(_STANDINS) and now - e.changed > _SETTLED
    ]  # fmt: skip


def temporary_folders() -> list[Item]:
    """Temporary folders whose process was killed."""
    items = []
    for path in temporary.leftovers():
        with contextlib.suppress(OSError):
            why, changed = "its process was killed", os.lstat(path).st_mtime
            items.append(Item("temporary folder", path, _size(path), changed, why, _temporary(path)))
    return items


def _temporary(path: str) -> Callable[[], None]:
    def drop() -> None:
        if not temporary.remove(path):
            raise Stays("in use by a process")

    return drop


def _size(path: str) -> int:
    return sum(
        os.lstat(os.path.join(folder, name)).st_size
        for folder, _, names in os.walk(path)
        for name in names
        if os.path.lexists(os.path.join(folder, name))
    )


def _unlink(folder: Folder, entry: Entry) -> Callable[[], None]:
    def drop() -> None:
        now = folder.entry(entry.name)
        if now is not None and (not now.is_file or now.status.st_mtime_ns != entry.status.st_mtime_ns):
            raise Stays("changed meanwhile")
        folder.unlink(entry.name)

    return drop


def _pool_state(folder: Folder, name: str) -> str | None:
    pool = folder.sub(name)
    if pool is None:
        return None
    try:
        fcntl.flock(pool.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if all(stat.S_ISDIR(e.status.st_mode) and stat.S_IMODE(e.status.st_mode) == 0o1700 for e in pool.entries()):
            return None
        return "it holds more than empty stand-ins"
    except BlockingIOError:
        return "in use by a process"
    finally:
        pool.close()


def _pool(folder: Folder, name: str) -> Callable[[], None]:
    def drop() -> None:
        why = _pool_state(folder, name)
        if why is not None:
            raise Stays(why)
        pool = folder.sub(name)
        if pool is None:
            return
        try:
            for entry in pool.entries():
                # rmdir deletes only what is empty.
                os.rmdir(entry.name, dir_fd=pool.fd)
        finally:
            pool.close()
        os.rmdir(name, dir_fd=folder.fd)

    return drop
