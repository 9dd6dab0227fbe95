"""Folder access by file descriptor: never reaches outside the folder and never follows a link."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Entry:
    """A name in a folder, as it was when it was read. For a link, this is the link itself, not its target."""

    name: str
    status: os.stat_result

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.status.st_mode)

    @property
    def is_folder(self) -> bool:
        return stat.S_ISDIR(self.status.st_mode)

    @property
    def size(self) -> int:
        return self.status.st_size if self.is_file else 0

    @property
    def changed(self) -> float:
        """Modification time in seconds since the epoch."""
        return self.status.st_mtime


class Folder:
    """An open folder. ``path`` is for messages."""

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self.fd = fd

    @classmethod
    def open(cls, path: Path) -> Folder | None:
        """Open the folder at a path that the user chose; links in that path are followed. None if there is no
        folder."""
        try:
            return cls(path, os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def sub(self, name: str) -> Folder | None:
        """Open a folder in this one; None if the name is missing, no folder or a link."""
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            return Folder(self.path / name, os.open(name, flags, dir_fd=self.fd))
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                return None
            raise

    def entry(self, name: str) -> Entry | None:
        """One name, as it is now; None if it is missing."""
        try:
            return Entry(name, os.stat(name, dir_fd=self.fd, follow_symlinks=False))
        except FileNotFoundError:
            return None

    def entries(self) -> Iterator[Entry]:
        """Yield every name, sorted. A name that disappears meanwhile is skipped."""
        for name in sorted(os.listdir(self.fd)):
            entry = self.entry(name)
            if entry is not None:
                yield entry

    def unlink(self, name: str) -> None:
        """Delete a file; it may already be gone."""
        try:
            os.unlink(name, dir_fd=self.fd)
        except FileNotFoundError:
            return

    def remove_tree(self, name: str) -> None:
        """Delete a folder and everything in it, without following links; it may already be gone."""
        try:
            shutil.rmtree(name, dir_fd=self.fd)
        except FileNotFoundError:
            return

    def tree_size(self, name: str) -> int:
        """The size of all files below a folder, in bytes."""
        total = 0
        for _, _, files, fd in os.fwalk(name, dir_fd=self.fd, follow_symlinks=False):
            for file in files:
                try:
                    total += os.stat(file, dir_fd=fd, follow_symlinks=False).st_size
                except FileNotFoundError:
                    continue
        return total

    def tree_changed(self, name: str) -> float:
        """The latest modification time of anything below a folder, in seconds since the epoch; 0 if there is no such
        folder."""
        entry = self.entry(name)
        if entry is None or not entry.is_folder:
            return 0.0
        last = entry.changed
        for _, folders, files, fd in os.fwalk(name, dir_fd=self.fd, follow_symlinks=False):
            for each in (*folders, *files):
                try:
                    last = max(last, os.stat(each, dir_fd=fd, follow_symlinks=False).st_mtime)
                except FileNotFoundError:
                    continue
        return last

    def close(self) -> None:
        os.close(self.fd)
