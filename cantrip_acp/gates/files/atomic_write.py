"""Replacing a file whole: the new content is written beside it and takes its name in one step, or nothing happens.

A reader sees the old file or the new one. What is at the name is replaced, never written through: not a link that was put
there meanwhile, nor another name of the same file elsewhere. The content is not forced to the disk, as editors and git do
it too: file systems keep the order of content and renaming, and a gate call stays fast.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from contextlib import suppress

from cantrip_acp.core.errors import GateError
from cantrip_acp.gates.path_handle import Place, failure

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def replace_file(place: Place, data: bytes) -> None:
    """Make ``data`` the content of the file at ``place``; its permissions and owner stay, missing folders are made.

    Raises `GateError` where it cannot be done or where the file is no longer what ``place`` found; the old file then
    stands as it was.
    """
    old = place.status
    check_writable(place)
    place.make_parents()
    _check_room(place, len(data))
    draft = f".cantrip-{secrets.token_hex(8)}.tmp"
    made = False
    try:
        descriptor = os.open(draft, _NEW, 0o666 if old is None else 0o600, dir_fd=place.folder)
        made = True
        try:
            _write(descriptor, data)
            if old is not None:
                _dress(descriptor, old)
        finally:
            os.close(descriptor)
        _check_unchanged(place)
        os.replace(draft, place.name, src_dir_fd=place.folder, dst_dir_fd=place.folder)
        made = False
    except OSError as error:
        if error.errno in (errno.EISDIR, errno.ENOTEMPTY):
            raise GateError(f"{place.shown!r} became a folder meanwhile; nothing was written") from None
        refusal = failure(error, place.path, "write")
        raise GateError(
            f"{refusal}; {'the old file is unchanged' if old is not None else 'no file was made'}"
        ) from None
    finally:
        if made:
            with suppress(OSError):
                os.unlink(draft, dir_fd=place.folder)


MIN_FREE = "CANTRIP_MIN_FREE_MB"
"""The user's word, in the environment of the program: how many MiB of a disk a turn leaves free; 0 for no such check."""
_MIB = 1024 * 1024
_ALWAYS_FITS = _MIB


def least_free(free: int, total: int) -> int:
    """How many bytes a turn must leave free of a disk with so many, and so many free now: by default 1 GB or 5 %, whichever
    is less. A disk that has less already may be filled to half of what is left, so that small work goes on.

    Raises `GateError` where the setting is no number.
    """
    said = os.environ.get(MIN_FREE, "").strip()
    try:
        least = min(1_000_000_000, total // 20) if not said else int(said) * _MIB
        if least < 0:
            raise ValueError
    except ValueError:
        raise GateError(f"{MIN_FREE} must be a number of MiB, 0 or more, not {said[:40]!r}") from None
    return least if free >= least else free // 2


def _check_room(place: Place, size: int) -> None:
    """Raise `GateError` where a file of this size would fill the disk."""
    if size <= _ALWAYS_FITS:
        return
    disk = os.fstatvfs(place.folder)
    free = disk.f_bavail * disk.f_frsize
    least = least_free(free, disk.f_blocks * disk.f_frsize)
    if least and size >= free:
        refusal = failure(OSError(errno.ENOSPC, ""), place.path, "write")
        raise GateError(f"{refusal}; {'the old file is unchanged' if place.status is not None else 'no file was made'}")
    if free - size < least:
        raise GateError(
            f"{place.shown!r} was not written: its {size:,} bytes would leave less than {least // _MIB:,} MiB free on the disk, "
            f"which has {free // _MIB:,} MiB ({MIN_FREE} sets how much must stay free)"
        )


def check_writable(place: Place) -> None:
    """Raise `GateError` where what is at ``place`` is no regular file, or one that may not be written."""
    old = place.status
    if old is not None and not stat.S_ISREG(old.st_mode):
        place.open_file()
    if old is not None and not os.access(place.name, os.W_OK, dir_fd=place.folder, **_ITSELF):
        raise GateError(f"{place.shown!r} is read-only: permission denied; the file was not changed")


# Of the file itself, and as who we are, where the system can tell.
_ITSELF = {
    "effective_ids": os.access in os.supports_effective_ids,
    "follow_symlinks": os.access not in os.supports_follow_symlinks,
}


def _write(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _dress(descriptor: int, old: os.stat_result) -> None:
    """The old file's owner and permissions on the new one; never set-user-id, which new content has not earned."""
    own = os.fstat(descriptor)
    if (own.st_uid, own.st_gid) != (old.st_uid, old.st_gid):
        with suppress(PermissionError):
            os.fchown(descriptor, old.st_uid, old.st_gid)
    os.fchmod(descriptor, stat.S_IMODE(old.st_mode) & 0o777)


def _check_unchanged(place: Place) -> None:
    """Whoever else changed the file since it was read has changes that this would undo."""
    old = place.status
    try:
        now = os.stat(place.name, dir_fd=place.folder, follow_symlinks=False)
    except FileNotFoundError:
        now = None
    if old is None and now is None:
        return
    if old is not None and now is not None and _identity(old) == _identity(now):
        return
    raise GateError(
        f"{place.shown!r} was changed by somebody else in this moment; nothing was written", "Read it again"
    )


def _identity(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_mode
