"""Temporary folders, and the deletion of temporary folders of killed processes (at the next start, or by `cantrip gc`).

The name of a folder contains the id and the start time of the process that made it. The process locks the folder while
it runs. A folder is deleted only if it belongs to this user, its process has ended and nobody has locked it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator

PREFIXES = ("cantrip-git-", "cantrip-canary-", "cantrip-copies-", "cantrip-eval-")
_NAME = re.compile(rf"({'|'.join(PREFIXES)})(?:([0-9]+)-([0-9]+)-)?[^/]*\Z")
_OLD = 3600.0
"""Age in seconds after which a folder without a process id in its name may be deleted."""
_cleaned = False


class TemporaryFolder:
    """A new temporary folder, until `close`. The first one in a process also removes folders of killed processes."""

    def __init__(self, prefix: str) -> None:
        global _cleaned
        if not _cleaned:
            _cleaned = True
            for path in leftovers():
                remove(path)
        pid = os.getpid()
        name = f"{prefix}{pid}-{process_start_time(pid) or 0}-"
        self._lock = -1
        while self._lock < 0:
            self.path = os.path.realpath(tempfile.mkdtemp(prefix=name))
            self._lock = _lock(self.path)

    def close(self) -> None:
        """Remove the folder. Safe to call twice."""
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
        if name.startswith(PREFIXES):
            path = os.path.join(base, name)
            with _lock_if_left(path) as left:
                pass
            if left:
                yield path


def remove(path: str) -> bool:
    """Remove a folder of an ended process, after another check. Returns whether the folder is gone."""
    with _lock_if_left(path) as left:
        if left:
            shutil.rmtree(path, ignore_errors=True)
    return not os.path.lexists(path)


def _lock(path: str) -> int:
    """Lock a new folder. Returns a descriptor, or -1 if another process removed the folder first.

    A process in another container cannot see our process. So it may remove the folder before it is locked.
    """
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return -1
    try:
        fcntl.flock(folder, fcntl.LOCK_SH)
        if os.path.samestat(os.fstat(folder), os.stat(path)):
            return folder
    except FileNotFoundError:
        pass
    except BaseException:
        os.close(folder)
        raise
    os.close(folder)
    return -1


@contextlib.contextmanager
def _lock_if_left(path: str) -> Iterator[bool]:
    """Yield whether the process of a folder has ended. If so, the folder is locked inside the block."""
    match = _NAME.match(os.path.basename(path))
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        yield False
        return
    try:
        yield match is not None and _is_left(folder, match)
    finally:
        os.close(folder)


def _is_left(folder: int, match: re.Match[str]) -> bool:
    try:
        status = os.fstat(folder)
        if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
            return False
        if match[2] is None:
            if time.time() - status.st_mtime < _OLD:
                return False
        elif process_start_time(int(match[2])) == int(match[3]):
            return False
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def process_start_time(pid: int) -> int | None:
    """When a process started, in clock ticks since boot. None if there is no such process, or if it is a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The process name may hold any characters, but it is the last thing in parentheses.
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])
