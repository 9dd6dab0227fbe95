"""Temporary folders, with cleanup of those that a killed process left behind (at the next start, or by `cantrip gc`).

A folder's name holds the id and start time of the process that made it, and that process holds a lock on it while it
runs. A folder counts as left behind only if it belongs to this user, its process has ended and nobody has locked it.
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

PREFIXES = ("cantrip-git-", "cantrip-canary-", "cantrip-copies-")
_NAME = re.compile(rf"({'|'.join(PREFIXES)})(?:([0-9]+)-([0-9]+)-)?[^/]*\Z")
_OLD = 3600.0
"""Age in seconds after which a folder without a process in its name counts as left behind."""
_cleaned = False


class TemporaryFolder:
    """A new temporary folder, until `close`. The first one in a process also removes folders that others left behind."""

    def __init__(self, prefix: str) -> None:
        global _cleaned
        if not _cleaned:
            _cleaned = True
            for path in leftovers():
                remove(path)
        pid = os.getpid()
        name = f"{prefix}{pid}-{started(pid) or 0}-"
        self._lock = -1
        while self._lock < 0:
            self.path = os.path.realpath(tempfile.mkdtemp(prefix=name))
            self._lock = _locked(self.path)

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
            with _claimed(path) as left:
                pass
            if left:
                yield path


def remove(path: str) -> bool:
    """Remove such a folder after a second check. Returns whether it is gone."""
    with _claimed(path) as left:
        if left:
            shutil.rmtree(path, ignore_errors=True)
    return not os.path.lexists(path)


def _locked(path: str) -> int:
    """Lock a new folder. Returns a descriptor, or -1 if another process removed the folder first.

    A process in another container cannot see ours, so it takes a folder that is not locked yet for one left behind.
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
def _claimed(path: str) -> Iterator[bool]:
    """Whether a folder was left behind. Nobody else can start to use it inside the block."""
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
        elif started(int(match[2])) == int(match[3]):
            return False
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def started(pid: int) -> int | None:
    """When a process started, in clock ticks since boot. None if there is no such process, or if it is a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The process name may hold any characters, but it is the last thing in parentheses.
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])
