"""Output files: writes to a path that a user names. What happens depends on what is at the path:

    a regular file, or nothing       a new file is written in the same folder and then renamed to the path
    a symbolic link                  refused: a program that works in the folder may have made it
    a FIFO, a character device       written into, never replaced
    one of our own descriptors       written into, also by a link: /dev/stdout, /dev/fd/3, the shell's >(command)
    a loom, also a damaged loom      refused, like a folder, a socket and a disk

Each decision is made on an opened descriptor. The rename exchanges the new file with the file that was checked. If
another file took its place in between, the exchange is undone and the command fails.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, NoReturn

from msgspec import Struct

from cantrip_acp.files.folder import Folder
from cantrip_acp.types.errors import OutputError

_LOOK = getattr(os, "O_PATH", os.O_RDONLY | os.O_NONBLOCK)
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_INTO = os.O_WRONLY | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OWN_DESCRIPTORS = re.compile(r"/(proc/(self|thread-self|[0-9]+|self/task/[0-9]+)/fd|dev/fd)/?\Z")
_HEAD = 1 << 16
"""Bytes at the start of a file in which the first records of a loom are searched."""
_SQLITE_MAGIC = b"SQLite format 3\0"
_COMPANIONS = ("-wal", "-shm", "-journal")
"""Suffixes of the files that belong to a SQLite database. Replacing such a file damages the database."""
_NOREPLACE, _EXCHANGE = 1, 2


@contextmanager
def output_file(
    path: Path | str, *, mode: int = 0o666, overwrite: bool = True, make_folder: bool = False
) -> Iterator[BinaryIO]:
    """A stream whose content is at ``path`` when the block ends; see the table above.

    A plain file is replaced as a whole and keeps its permissions, and its owner if we may set it. If the block or the
    writing fails, the old file is unchanged. ``mode`` is for a new file, minus the umask. Without ``overwrite``, an
    existing file is an error. With ``make_folder`` its folder is made, if it is missing. Raises `OutputError`.
    """
    path = Path(path)
    with _errors(path):
        place = _find(path, make_folder)
    try:
        if not overwrite and place.kind is not None:
            raise OutputError(f"cannot write {path}: it exists already; name another file")
        if place.kind in (None, stat.S_IFREG):
            with _replaced(place, mode) as file:
                yield file
        else:
            with _errors(path):
                file = _opened_into(place)
            try:
                with _errors(path), file:
                    yield file
            finally:
                with suppress(OSError):
                    file.close()
    finally:
        place.close()


def check_appendable(path: Path | str) -> None:
    """Raise `OutputError` if ``path`` is a loom or anything else that a log must not be appended to."""
    with _errors(Path(path)):
        _find(Path(path)).close()


class _Place(Struct):
    """The path of the output and what is there.

    ``kind`` is the file type, None if nothing is there; ``fd`` is open on the existing file.
    """

    path: Path
    folder: int
    name: str
    fd: int = -1
    kind: int | None = None
    status: os.stat_result | None = None

    def close(self) -> None:
        for descriptor in (self.fd, self.folder):
            if descriptor >= 0:
                os.close(descriptor)
        self.fd = self.folder = -1


@contextmanager
def _errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise OutputError(f"cannot write {path}: the program that reads from it has closed it") from error
        where = f"{error.filename}: " if error.errno == errno.ELOOP and error.filename else ""
        raise OutputError(f"cannot write {path}: {where}{error.strerror or error}") from error


def _find(path: Path, make_folder: bool = False) -> _Place:
    """Open what is at a path and determine its type."""
    place = _at(path, Folder.holding(path, make=make_folder).fd, path.name)
    try:
        if place.kind == stat.S_IFLNK:
            place = _descriptor(place)
        match place.kind:
            case None:
                _refuse_companion(place)
            case stat.S_IFREG:
                _refuse_loom(place)
                _refuse_companion(place)
            case stat.S_IFDIR:
                raise OutputError(f"cannot write {path}: it is a folder; name a file in it")
            case stat.S_IFSOCK:
                raise OutputError(f"cannot write {path}: it is a socket; name a file")
            case stat.S_IFBLK:
                raise OutputError(f"cannot write {path}: it is a disk (a block device); name a file")
        return place
    except BaseException:
        place.close()
        raise


def _at(path: Path, folder: int, name: str) -> _Place:
    place = _Place(path, folder, name)
    try:
        if not name or name == "..":
            raise OutputError(f"cannot write {path}: it is a folder; name a file in it")
        try:
            place.fd = os.open(name, _LOOK | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        except FileNotFoundError:
            return place
        place.status = os.fstat(place.fd)
        place.kind = stat.S_IFMT(place.status.st_mode)
        return place
    except BaseException:
        place.close()
        raise


def _descriptor(link: _Place) -> _Place:
    """One of our own descriptors, to which a link leads. Any other link is refused."""
    if _is_own_descriptors(link.folder):
        return _open_descriptor(link.path, link.name, link)
    text = os.readlink(link.name, dir_fd=link.folder)
    head, name = os.path.split(text)
    if name.isdigit():
        folder = os.open(head or ".", _LOOK | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=link.folder)
        own = _is_own_descriptors(folder)
        os.close(folder)
        if own:
            return _open_descriptor(link.path, name, link)
    raise OutputError(
        f"cannot write {link.path}: it is a symbolic link, to {text}. Links are not followed, because a program that works in "
        "the folder may have made it. Name its target instead, or remove the link"
    )


def _is_own_descriptors(folder: int) -> bool:
    try:
        where = os.readlink(f"/proc/self/fd/{folder}")
    except OSError:
        return False
    match = _OWN_DESCRIPTORS.match(where)
    return match is not None and (match[2] in (None, "self", "thread-self", str(os.getpid())) or "task" in where)


def _open_descriptor(path: Path, name: str, link: _Place) -> _Place:
    """One of our own descriptors, such as the pipe of the shell's ``>(command)``."""
    if not name.isdigit():
        raise OutputError(f"cannot write {path}: there is no such open descriptor")
    place = _Place(path, -1, name, os.dup(int(name)), 0)
    link.close()
    return place


def _opened_into(place: _Place) -> BinaryIO:
    """Open a device or a pipe for writing. Like ``>`` of a shell, opening a FIFO waits for a reader."""
    if place.kind == 0:
        descriptor, place.fd = place.fd, -1
        return os.fdopen(descriptor, "wb")
    descriptor = os.open(place.name, _INTO, dir_fd=place.folder)
    if place.status is None or not os.path.samestat(os.fstat(descriptor), place.status):
        os.close(descriptor)
        _changed(place)
    return os.fdopen(descriptor, "wb")


def _changed(place: _Place) -> NoReturn:
    raise OutputError(
        f"cannot write {place.path}: the file was replaced by another one at the same time; nothing was changed. Try again"
    )


# --- plain files -----------------------------------------------------------------------------------------------------


@contextmanager
def _replaced(place: _Place, mode: int) -> Iterator[BinaryIO]:
    old = place.status
    draft = f".{place.name[:200]}.{secrets.token_hex(8)}.part"
    with _errors(place.path):
        if old is not None and not os.access(f"/proc/self/fd/{place.fd}", os.W_OK) and os.path.exists("/proc/self/fd"):
            raise OutputError(f"cannot write {place.path}: Permission denied; the old file is unchanged")
        descriptor = os.open(draft, _NEW, mode if old is None else 0o600, dir_fd=place.folder)
    try:
        with _errors(place.path):
            with os.fdopen(descriptor, "wb") as file:
                yield file
                file.flush()
                if old is not None:
                    _take_over(file.fileno(), old)
                os.fsync(file.fileno())
            _rename(place, draft)
    finally:
        with suppress(FileNotFoundError, NotADirectoryError):
            os.unlink(draft, dir_fd=place.folder)


def _take_over(descriptor: int, old: os.stat_result) -> None:
    """Copy the old file's owner and permissions to the new one, without set-user-id: new content must not get that
    right.
    """
    own = os.fstat(descriptor)
    if (own.st_uid, own.st_gid) != (old.st_uid, old.st_gid):
        with suppress(PermissionError):
            os.fchown(descriptor, old.st_uid, old.st_gid)
    os.fchmod(descriptor, stat.S_IMODE(old.st_mode) & 0o777)


def _rename(place: _Place, draft: str) -> None:
    """Rename the new file to its final name. After that, the temporary name is the old file, which the caller deletes."""
    if place.status is None:
        try:
            done = _renameat2(place.folder, draft, place.name, _NOREPLACE)
        except FileExistsError:
            _changed(place)
        if not done:
            with suppress(FileExistsError):
                os.link(draft, place.name, src_dir_fd=place.folder, dst_dir_fd=place.folder, follow_symlinks=False)
                return
            _changed(place)
        return
    try:
        done = _renameat2(place.folder, draft, place.name, _EXCHANGE)
    except FileNotFoundError:
        _changed(place)
    if not done:
        # The kernel or the file system cannot exchange files, so check again and rename.
        if not _same(place, place.name):
            _changed(place)
        os.replace(draft, place.name, src_dir_fd=place.folder, dst_dir_fd=place.folder)
    elif not _same(place, draft):
        _renameat2(place.folder, draft, place.name, _EXCHANGE)
        _changed(place)


def _same(place: _Place, name: str) -> bool:
    assert place.status is not None
    try:
        return os.path.samestat(os.stat(name, dir_fd=place.folder, follow_symlinks=False), place.status)
    except FileNotFoundError:
        return False


def _renameat2(folder: int, old: str, new: str, how: int) -> bool:
    """Rename a file without replacing another one, or exchange two names. Returns False if the system cannot. Raises
    `OSError`."""
    import ctypes

    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is None:
        return False
    if call(folder, os.fsencode(old), folder, os.fsencode(new), how) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
        return False
    raise OSError(number, os.strerror(number))


# --- looms -----------------------------------------------------------------------------------------------------------


def _refuse_loom(place: _Place) -> None:
    try:
        descriptor = os.open(place.name, _READ, dir_fd=place.folder)
    except PermissionError:
        raise OutputError(
            f"cannot write {place.path}: it cannot be read, so it could be a loom; remove it first or name another file"
        ) from None
    try:
        if place.status is None or not os.path.samestat(os.fstat(descriptor), place.status):
            _changed(place)
        if _is_loom(descriptor):
            raise OutputError(f"cannot write {place.path}: it is a loom, which is never replaced; name another file")
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OutputError(f"cannot write {place.path}: another program is writing it; name another file") from None
        except OSError:
            pass
    finally:
        os.close(descriptor)


def _refuse_companion(place: _Place) -> None:
    """Raise `OutputError` if the file is the log of a database, because the log is part of the database."""
    for ending in _COMPANIONS:
        if place.name.endswith(ending):
            with suppress(OSError):
                base = os.open(place.name.removesuffix(ending), _READ, dir_fd=place.folder)
                try:
                    found = _is_loom(base)
                finally:
                    os.close(base)
                if found:
                    raise OutputError(f"cannot write {place.path}: it is part of a loom; name another file")


def _is_loom(descriptor: int) -> bool:
    """Whether a file begins like a loom. One valid record near the start is enough, because the header may be damaged."""
    import msgspec

    from cantrip_acp.loom.records import record_heads

    data = os.pread(descriptor, _HEAD, 0)
    if data.startswith(_SQLITE_MAGIC):
        # Every database may be a loom: the data that identifies it may be only in its log.
        return True
    lines = data.split(b"\n")
    for line in lines:
        with suppress(msgspec.DecodeError, UnicodeError, RecursionError):
            record_heads.head_decoder().decode(line)
            return True
    return b'{"type":"loom"' in lines[0][:64]
