"""Client files: lets an agent read and write the files below the session's folder, and no others (ACP, File System).

Each path is resolved first. Then it is opened from the folder's descriptor, one component at a time, without following
links. So an agent that also writes in the folder cannot replace a component by a link between the check and the use.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from cantrip_acp.files.folder import Folder
from cantrip_acp.types.errors import CantripError

LARGEST_FILE: Final = 32 * 1024 * 1024
"""Bytes of the largest file that is read or written for an agent."""


class FileRefused(CantripError):
    """A file that the agent may not use. `missing` is true if the file does not exist."""

    def __init__(self, message: str, *, missing: bool = False) -> None:
        self.missing = missing
        super().__init__(message)


class ClientFiles:
    """Text files below one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()

    def read(self, path: str, line: int | None = None, limit: int | None = None) -> str:
        """Read a file, or `limit` lines of it from `line` (counted from 1). Invalid UTF-8 is replaced. Raises
        FileRefused."""
        with self._parent(path) as (parent, name):
            try:
                file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent)
            except FileNotFoundError:
                raise FileRefused(f"{path} does not exist", missing=True) from None
            except OSError as refused:
                raise FileRefused(f"{path} cannot be read: {_reason(refused)}") from refused
            with os.fdopen(file, "rb") as stream:
                self._check(path, stream.fileno())
                data = stream.read(LARGEST_FILE + 1)
        if len(data) > LARGEST_FILE:
            raise FileRefused(f"{path} is larger than {LARGEST_FILE // 1024 // 1024} MiB")
        return _lines(data.decode("utf-8", "replace"), line, limit)

    def write(self, path: str, content: str) -> None:
        """Replace or create a file. The mode of an existing file stays. Missing folders are created. Raises FileRefused.

        The text is written to a temporary file, which then replaces the old file. So no reader sees half of the text.
        """
        data = content.encode("utf-8", "replace")
        if len(data) > LARGEST_FILE:
            raise FileRefused(f"{path} would be larger than {LARGEST_FILE // 1024 // 1024} MiB")
        with self._parent(path, create=True) as (parent, name):
            mode: int | None = None
            with contextlib.suppress(FileNotFoundError):
                existing = os.stat(name, dir_fd=parent, follow_symlinks=False)
                if not stat.S_ISREG(existing.st_mode):
                    raise FileRefused(f"{path} is not a regular file")
                mode = stat.S_IMODE(existing.st_mode)
            temporary = f".{name[:80]}.{os.getpid()}.new"
            try:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                file = os.open(temporary, flags, 0o666, dir_fd=parent)
            except OSError as refused:
                raise FileRefused(f"{path} cannot be written: {_reason(refused)}") from refused
            try:
                with os.fdopen(file, "wb") as stream:
                    if mode is not None:
                        os.fchmod(stream.fileno(), mode)
                    stream.write(data)
                os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
            except OSError as refused:
                with contextlib.suppress(OSError):
                    os.unlink(temporary, dir_fd=parent)
                raise FileRefused(f"{path} cannot be written: {_reason(refused)}") from refused

    @contextlib.contextmanager
    def _parent(self, path: str, *, create: bool = False) -> Iterator[tuple[int, str]]:
        """The descriptor of the folder that holds a file, and the file's name in it."""
        *above, name = self._parts(path)
        try:
            with (
                Folder.top(self.folder) as top,
                top.beneath("/".join(above), make=create) as parent,
            ):
                yield parent.fd, name
        except FileNotFoundError:
            raise FileRefused(f"{path} does not exist", missing=True) from None
        except OSError as refused:
            raise FileRefused(f"{path} cannot be used: {_reason(refused)}") from refused

    def _parts(self, path: str) -> list[str]:
        if "\0" in path:
            raise FileRefused("a path cannot contain a NUL character")
        if not os.path.isabs(path):
            raise FileRefused(f"{path!r} is not an absolute path")
        # Links are resolved only here. A link that is created later has no effect, because `_parent` follows no links.
        try:
            real = Path(os.path.realpath(path))
        except OSError as changing:
            raise FileRefused(f"{path} cannot be resolved: {_reason(changing)}") from changing
        if not real.is_relative_to(self.folder):
            raise FileRefused(f"{path} is outside of the session's folder {self.folder}")
        relative = real.relative_to(self.folder)
        if not relative.parts:
            raise FileRefused(f"{path} is a folder")
        return list(relative.parts)

    def _check(self, path: str, file: int) -> None:
        about = os.fstat(file)
        if not stat.S_ISREG(about.st_mode):
            raise FileRefused(f"{path} is not a regular file")
        if about.st_size > LARGEST_FILE:
            raise FileRefused(f"{path} is larger than {LARGEST_FILE // 1024 // 1024} MiB")


def _lines(text: str, line: int | None, limit: int | None) -> str:
    if line is None and limit is None:
        return text
    first = max((line or 1) - 1, 0)
    # Count lines as editors do: a form feed or a Unicode separator does not end a line.
    lines = text.split("\n")
    lines = [*(f"{each}\n" for each in lines[:-1]), *lines[-1:]]
    return "".join(lines[first : None if limit is None else first + max(limit, 0)])


def _reason(error: OSError) -> str:
    if error.errno in (errno.ELOOP, errno.ENOTDIR):
        return "a link or not a folder, and links are not followed"
    return (error.strerror or str(error)).lower()
