"""A folder that is worked in by its descriptor: nothing outside of it is reached, and no link is followed."""

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
    """A name in a folder as it was when it was looked at; a link is itself, never what it leads to."""

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
        """Seconds since the epoch."""
        return self.status.st_mtime


class Folder:
    """An open folder. ``path`` is for people."""

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self.fd = fd

    @classmethod
    def open(cls, path: Path) -> Folder | None:
        """The folder at a path that the user chose (links in the path are theirs); None where there is none."""
        try:
            return cls(path, os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def sub(self, name: str) -> Folder | None:
        """A folder in this one; None where there is none of that name, or a link."""
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            return Folder(self.path / name, os.open(name, flags, dir_fd=self.fd))
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                return None
            raise

    def entry(self, name: str) -> Entry | None:
        """One name, as it is now."""
        try:
            return Entry(name, os.stat(name, dir_fd=self.fd, follow_symlinks=False))
        except FileNotFoundError:
            return None

    def entries(self) -> Iterator[Entry]:
        """Every name, sorted; what goes away meanwhile is passed over."""
        for name in sorted(os.listdir(self.fd)):
            entry = self.entry(name)
            if entry is not None:
                yield entry

    def unlink(self, name: str) -> None:
        """Remove a file; it may be gone already."""
        try:
            os.unlink(name, dir_fd=self.fd)
        except FileNotFoundError:
            return

    def remove_tree(self, name: str) -> None:
        """Remove a folder with all that is in it, links unfollowed; it may be gone already."""
        try:
            shutil.rmtree(name, dir_fd=self.fd)
        except FileNotFoundError:
            return

    def tree_size(self, name: str) -> int:
        """Bytes of the files below a folder."""
        total = 0
        for _, _, files, fd in os.fwalk(name, dir_fd=self.fd, follow_symlinks=False):
            for file in files:
                try:
                    total += os.stat(file, dir_fd=fd, follow_symlinks=False).st_size
                except FileNotFoundError:
                    continue
        return total

    def tree_changed(self, name: str) -> float:
        """When anything below a folder was changed last, in seconds since the epoch; 0 where there is no such folder."""
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
