"""Path handle: a checked path below a gate's root, as the open folder that contains it and a name there."""

from __future__ import annotations

import errno
import os
import re
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

from cantrip_acp.core.errors import GateError
from cantrip_acp.files.protected_paths import is_git_config, why_hidden, without_credentials

if TYPE_CHECKING:
    from cantrip_acp.core.events import Location
    from cantrip_acp.gates.confinement import Root

WALK = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
"""Flags for folders on the way, folders to list, and files. NONBLOCK: a pipe that replaces a file between two checks
must not block us. NOCTTY: it must not become our terminal.
"""

_COLON = re.compile(r":(?=\s|$)")
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\U000e0000-\U000e007f]")
"""Characters that move a cursor, end a line, change the text direction, or are invisible."""
_LARGEST_CONFIG = 1024 * 1024
_NEAR_NAMES = 500
"""Names of a folder that are compared to find the nearest one."""
_KINDS = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a character device"),
    (stat.S_ISBLK, "a block device"),
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISLNK, "a symbolic link"),
)


class Place:
    """A path's target: ``name`` in the open folder ``folder``, never a link.

    ``parts`` are its real names below the root. ``status`` is None where nothing exists; then ``missing`` holds the
    names that would have to be made, including the last one.
    """

    __slots__ = ("folder", "missing", "name", "parts", "path", "root", "status")

    def __init__(
        self,
        root: Root,
        path: str,
        parts: tuple[str, ...],
        folder: int,
        name: str,
        status: os.stat_result | None,
        missing: tuple[str, ...],
    ) -> None:
        self.root, self.path, self.parts, self.folder = root, path, parts, folder
        self.name, self.status, self.missing = name, status, missing

    @property
    def shown(self) -> str:
        """The path below the root, for people: ``src/app.py``, or ``.``; always valid text, and one line."""
        return one_line("/".join(self.parts)) or "."

    @property
    def absolute(self) -> str:
        return valid(os.path.join(self.root.path, *self.parts))

    def location(self, line: int | None = None) -> Location:
        from cantrip_acp.core.events import Location

        return Location(self.absolute, line)

    def open_file(self) -> tuple[int, os.stat_result]:
        """Open the file for reading: descriptor and status. It is always a regular file. The caller closes it."""
        if self.status is None:
            raise self.no_such("file")
        if not stat.S_ISREG(self.status.st_mode):
            raise self._unfit(self.status, "file")
        try:
            descriptor = os.open(self.name, READ, dir_fd=self.folder)
        except OSError as error:
            raise failure(error, self.path) from None
        status = os.fstat(descriptor)
        problem = None
        if not stat.S_ISREG(status.st_mode):
            problem = self._unfit(status, "file")
        else:
            why = why_hidden(self.parts, status.st_mode)
            problem = GateError(f"{spelled(self.path)} {why}.") if why is not None else None
        if problem is not None:
            os.close(descriptor)
            raise problem
        if is_git_config((*self.root.inner, *self.parts)):
            return scrubbed(descriptor)
        return descriptor, status

    def open_folder(self) -> int:
        """Open the folder for listing: a descriptor. The caller closes it."""
        if self.status is None:
            raise self.no_such("folder")
        if not stat.S_ISDIR(self.status.st_mode):
            raise self._unfit(self.status, "folder")
        try:
            return os.open(self.name, LIST, dir_fd=self.folder)
        except OSError as error:
            raise failure(error, self.path) from None

    def make_parents(self) -> None:
        """Create the missing parent folders."""
        while len(self.missing) > 1:
            name = self.missing[0]
            try:
                with suppress(FileExistsError):
                    os.mkdir(name, dir_fd=self.folder)
                self.folder = exchange(self.folder, os.open(name, WALK, dir_fd=self.folder))
            except OSError as error:
                raise failure(error, self.path, "make its folder") from None
            self.missing = self.missing[1:]

    def no_such(self, kind: str) -> GateError:
        """The error for a missing path, with the nearest existing name if there is one."""
        import difflib

        name, parent = self.missing[0], self.parts[: len(self.parts) - len(self.missing)]
        what = kind if len(self.missing) == 1 else "folder"
        where = valid("/".join([*parent, name]))
        near: list[str] = []
        with suppress(OSError):
            listing = os.open(".", LIST, dir_fd=self.folder)
            try:
                with os.scandir(listing) as entries:
                    names = [entry.name for entry, _ in zip(entries, range(_NEAR_NAMES), strict=False)]
                near = difflib.get_close_matches(name, names, n=3, cutoff=0.6)
            finally:
                os.close(listing)
        hint = ", ".join(repr(valid("/".join([*parent, n]))) for n in near)
        named = f"no such {what}: {where!r}"
        if where not in self.path:
            named += f", where {spelled(self.path)} leads"
        return GateError(named, f"Did you mean {hint}?" if hint else "")

    def _unfit(self, status: os.stat_result, wanted: str) -> GateError:
        kind = next((text for test, text in _KINDS if test(status.st_mode)), "a file")
        hint = ""
        if wanted == "file" and stat.S_ISDIR(status.st_mode):
            hint = "list_dir shows what is in it"
        return GateError(f"{self.shown!r} is {kind}, not a {wanted}", hint)


def scrubbed(descriptor: int) -> tuple[int, os.stat_result]:
    """A copy of a repository's settings without the credentials, for gates to show. Closes the descriptor."""
    import tempfile

    with os.fdopen(descriptor, "rb") as file:
        data = file.read(_LARGEST_CONFIG)
    shown = without_credentials(data.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
    with tempfile.TemporaryFile() as copy:
        copy.write(shown)
        copy.seek(0)
        own = os.dup(copy.fileno())
    return own, os.fstat(own)


def failure(error: OSError, path: str, doing: str = "") -> GateError:
    """A gate error from an OSError."""
    return GateError(f"cannot {doing or 'use'} {spelled(path)}: {reason(error)}")


def valid(text: str) -> str:
    """Text that can be sent anywhere: bytes of a file name that are not UTF-8 are shown as ``\\xff``."""
    if text.isascii():
        return text
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace") if _odd(text) else text


def one_line(text: str) -> str:
    """`valid`, and control characters as ``\\x0a``: a file name must not look like another line or control a
    terminal."""
    text = valid(text)
    return text if text.isprintable() else _CONTROL.sub(lambda match: _escaped(match[0]), text)


def quoted(text: str) -> str:
    """A person's or a model's text as part of a title. Some clients cut a title at ``word: rest``, so colons are
    replaced.

        >>> quoted("fix: the greeting")
        '“fix – the greeting”'
    """
    return f"“{_COLON.sub(' –', one_line(' '.join(text.split())))}”"


def _escaped(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def spelled(path: str) -> str:
    """The original path, quoted, and cut if it is very long."""
    return repr(path if len(path) <= 300 else path[:300] + "…")


def _odd(text: str) -> bool:
    return any("\ud800" <= c <= "\udfff" for c in text)


def reason(error: OSError) -> str:
    known = {
        errno.EACCES: "permission denied",
        errno.EPERM: "permission denied",
        errno.ENOSPC: "the disk is full",
        errno.EDQUOT: "the disk quota is used up",
        errno.EROFS: "the file system is read-only",
        errno.ENAMETOOLONG: "a name in it is too long",
        errno.EWOULDBLOCK: "another program holds it; try again",
        errno.ELOOP: "it became a symbolic link meanwhile",
        errno.EFBIG: "it would be larger than files may be here",
    }
    return known.get(error.errno or 0) or (error.strerror or str(error)).lower()


def exchange(old: int, new: int) -> int:
    """Close the old descriptor and return the new one."""
    os.close(old)
    return new
