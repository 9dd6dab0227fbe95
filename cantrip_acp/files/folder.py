"""Files beneath a folder: opened name by name from the folder's descriptor, never by a link, and never outside of it.

The product uses it for files in folders that others write too: a workspace, whose commands may plant links there, and the
state folder. A file that is read or written is a regular file with one name: the content of a file with a second name
would change in another place too.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Self

from msgspec import Struct

from cantrip_acp.files import paths

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
"""Between a look and the opening, a file may be replaced by a pipe, which NONBLOCK does not wait for, or by a terminal."""

_SECOND_NAME = "the file has a second name (a hard link), by which others may change it; remove one, or copy the file"


class Entry(Struct, frozen=True):
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
            return cls.top(path)
        except (FileNotFoundError, NotADirectoryError):
            return None

    @classmethod
    def top(cls, path: Path | str) -> Folder:
        """Open the folder at a path; links in the path are followed. Raises `OSError`."""
        return cls(Path(path), os.open(path, _FOLDER & ~os.O_NOFOLLOW))

    @classmethod
    def of(cls, path: Path, *, make: bool = False) -> Folder:
        """Open a named folder that others may have made: it must not be a link. Its parents may be links. With ``make`` it is
        created, with its parents. Raises `OSError`."""
        above, name = os.path.split(os.path.abspath(path))
        if make:
            paths.make(Path(above))
        with cls.top(above) as parent:
            return parent.beneath(name or ".", make=make)

    @classmethod
    def holding(cls, path: Path | str, *, make: bool = False, mode: int = 0o777) -> Folder:
        """Open the folder of a file that a user named. Below the current folder, which commands may be able to write, links
        to folders are not followed; elsewhere they are. With ``make`` missing folders are made. Raises `OSError`."""
        above = Path(path).parent
        base = _current_folder_above(above)
        if base is not None:
            with cls.top(base) as start:
                return start.beneath(os.path.relpath(os.path.abspath(above), base), make=make, mode=mode)
        if make:
            paths.make(above, mode)
        return cls.top(above)

    @classmethod
    def make_database(cls, path: Path, mode: int = 0o777) -> None:
        """Create a database file for the user alone, if it is missing, and its folders with ``mode``. SQLite would let others
        read it, and would give its log the same mode. An existing file is not opened: closing it would drop the locks of this
        process's other connections. Raises `OSError`, also for a link."""
        with cls.holding(path, make=True, mode=mode) as folder:
            entry = folder.entry(path.name)
            if entry is None:
                with suppress(FileExistsError):
                    os.close(folder.open_file(path.name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
            elif stat.S_ISLNK(entry.status.st_mode):
                raise _failure(OSError(errno.ELOOP, ""), path, folder.fd, path.name)
            elif entry.is_file and entry.status.st_nlink > 1:
                raise OSError(errno.EINVAL, _SECOND_NAME, str(path))

    def sub(self, name: str) -> Folder | None:
        """Open a folder in this one; None if the name is missing, no folder or a link."""
        try:
            return self.beneath(name)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                return None
            raise

    def beneath(self, below: str, *, make: bool = False, mode: int = 0o777) -> Folder:
        """Open a folder below this one, with slashes between the names; without a name, this one. With ``make`` missing folders
        are made.

        Raises `OSError`: its text says what is wrong, its ``filename`` where.
        """
        place, fd = self.path, os.dup(self.fd)
        try:
            for name in (each for each in below.split("/") if each not in ("", ".")):
                place /= name
                self._check_name(name, place)
                if make:
                    with suppress(FileExistsError):
                        os.mkdir(name, mode, dir_fd=fd)
                try:
                    inner = os.open(name, _FOLDER, dir_fd=fd)
                except OSError as error:
                    raise _failure(error, place, fd, name) from None
                os.close(fd)
                fd = inner
        except BaseException:
            os.close(fd)
            raise
        return Folder(place, fd)

    def open_file(self, name: str, flags: int = os.O_RDONLY, mode: int = 0o666) -> int:
        """Open a file in this folder. It is a regular file with one name. The caller closes the descriptor.

        Raises `OSError`, also for a link, a pipe, and a file with a second name.
        """
        self._check_name(name, self.path / name)
        if flags & os.O_TRUNC:
            raise ValueError("O_TRUNC would empty the file before it is checked: use replace()")
        try:
            fd = os.open(name, flags | _FILE, mode, dir_fd=self.fd)
        except OSError as error:
            raise _failure(error, self.path / name, self.fd, name) from None
        status = os.fstat(fd)
        problem = None
        if not stat.S_ISREG(status.st_mode):
            problem = "it is not a regular file"
        elif status.st_nlink > 1:
            problem = _SECOND_NAME
        if problem is not None:
            os.close(fd)
            raise OSError(errno.EINVAL, problem, str(self.path / name))
        return fd

    def file(self, below: str) -> BinaryIO:
        """Open a file below this folder for reading, with slashes between the names. Raises `OSError`."""
        above, _, name = below.rpartition("/")
        with self.beneath(above) as folder:
            return os.fdopen(folder.open_file(name), "rb")

    def replace(self, name: str, content: bytes, mode: int = 0o666) -> None:
        """Put a new file with this content in the place of a name. A link with that name is replaced, not followed."""
        self._check_name(name, self.path / name)
        draft = f".{name[:200]}.{secrets.token_hex(8)}.part"
        try:
            with os.fdopen(self.open_file(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.rename(draft, name, src_dir_fd=self.fd, dst_dir_fd=self.fd)
        except BaseException:
            self.unlink(draft)
            raise

    @staticmethod
    def _check_name(name: str, place: Path) -> None:
        if not name or name == ".." or "/" in name or "\0" in name:
            raise OSError(errno.EINVAL, "it is not the name of a file in this folder", str(place))

    def entry(self, name: str) -> Entry | None:
        """The present entry with this name; None if it is missing."""
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
        """Delete a folder and everything in it, without following links; it may already be gone.

        Folders that their owner may not write, such as those of Go's module cache, are made writable first.
        """
        try:
            import shutil

            for _, folders, _, fd in os.fwalk(name, dir_fd=self.fd, follow_symlinks=False):
                for each in folders:
                    status = os.stat(each, dir_fd=fd, follow_symlinks=False)
                    if stat.S_ISDIR(status.st_mode) and status.st_mode & 0o700 != 0o700:
                        os.chmod(each, 0o700, dir_fd=fd)
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
        last = entry.status.st_mtime
        for _, folders, files, fd in os.fwalk(name, dir_fd=self.fd, follow_symlinks=False):
            for each in (*folders, *files):
                try:
                    last = max(last, os.stat(each, dir_fd=fd, follow_symlinks=False).st_mtime)
                except FileNotFoundError:
                    continue
        return last

    def close(self) -> None:
        os.close(self.fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _current_folder_above(path: Path) -> Path | None:
    """The folder at or above a path that is the current folder, as the path spells it. None if there is none."""
    whole = Path(os.path.abspath(path))
    with suppress(FileNotFoundError, NotADirectoryError):
        here = os.stat(".")
        for each in reversed((whole, *whole.parents)):
            if each != each.parent and os.path.samestat(os.stat(each), here):
                return each
    return None


def _failure(error: OSError, place: Path, folder: int, name: str) -> OSError:
    """Add the place to an error, and for a link a hint on what to do."""
    number = error.errno or errno.EIO
    if number in (errno.ELOOP, errno.ENOTDIR):
        with suppress(OSError):
            target = os.readlink(name, dir_fd=folder)
            return OSError(
                errno.ELOOP,
                f"it is a symbolic link, to {target}. Links are not followed here, because a program that works in the folder "
                "may have made it; remove it, or put what it names in its place",
                str(place),
            )
    return OSError(number, error.strerror, str(place))
