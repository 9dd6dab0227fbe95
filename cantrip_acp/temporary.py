"""Temporary folders that a kill leaves behind and the next start, or `cantrip gc`, removes.

A folder's name holds the process that made it (its id and when it began), and that process holds a lock on the folder while
it lives. Only a folder of this user, whose process has ended and that nobody has locked, is a leftover.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator

from cantrip_acp.loom.stores.writers import started

PREFIXES = ("cantrip-git-", "cantrip-canary-", "cantrip-copies-")
_NAME = re.compile(rf"({'|'.join(PREFIXES)})(?:([0-9]+)-([0-9]+)-)?[^/]*\Z")
_OLD = 3600.0
"""Seconds after which a folder whose name tells of no process is a leftover."""
_cleaned = False


class TemporaryFolder:
    """A new folder of ours, until `close`. Also removes, once a process, what others left behind."""

    def __init__(self, prefix: str) -> None:
        global _cleaned
        if not _cleaned:
            _cleaned = True
            for path in leftovers():
                remove(path)
        pid = os.getpid()
        self.path = os.path.realpath(tempfile.mkdtemp(prefix=f"{prefix}{pid}-{started(pid) or 0}-"))
        self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(self._lock, fcntl.LOCK_SH)

    def close(self) -> None:
        """Remove the folder; safe to call twice."""
        if self._lock >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1


def leftovers() -> Iterator[str]:
    """The temporary folders of this user whose process has ended."""
    base = tempfile.gettempdir()
    try:
        names = os.listdir(base)
    except OSError:
        return
    for name in names:
        if name.startswith(PREFIXES) and _is_left(os.path.join(base, name)):
            yield os.path.join(base, name)


def remove(path: str) -> bool:
    """Remove a leftover, looked at once more; whether it is gone."""
    if _is_left(path):
        shutil.rmtree(path, ignore_errors=True)
    return not os.path.lexists(path)


def _is_left(path: str) -> bool:
    match = _NAME.match(os.path.basename(path))
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        status = os.fstat(folder)
        if match is None or status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
            return False
        if match[2] is None:
            if time.time() - status.st_mtime < _OLD:
                return False
        elif started(int(match[2])) == int(match[3]):
            return False
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except OSError:
        return False
    finally:
        os.close(folder)
