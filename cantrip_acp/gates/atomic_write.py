"""Atomic write: the new content goes to a temporary file, which is then renamed over the old one.

A reader sees the old file or the new one. The name is replaced, never written through: neither a link that was put
there meanwhile, nor another hard link of the file, is changed. The content is not synced to the disk, as in editors
and git: file systems keep the order of write and rename, and the call stays fast.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from contextlib import suppress

from cantrip_acp.core.errors import GateError
from cantrip_acp.gates.confinement import PathHandle, os_failure

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def replace_file(place: PathHandle, data: bytes) -> None:
    """Make ``data`` the content of the file at ``place``; its permissions and owner stay, missing folders are made.

    Raises `GateError` where that fails or where the file has changed since ``place`` was found; the old file is then
    unchanged.
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
                _copy_owner_and_mode(descriptor, old)
        finally:
            os.close(descriptor)
        _check_unchanged(place)
        os.replace(draft, place.name, src_dir_fd=place.folder, dst_dir_fd=place.folder)
        made = False
    except OSError as error:
        if error.errno in (errno.EISDIR, errno.ENOTEMPTY):
            raise GateError(f"{place.shown!r} became a folder meanwhile; nothing was written") from None
        refusal = os_failure(error, place.path, "write")
        raise GateError(
            f"{refusal}; {'the old file is unchanged' if old is not None else 'no file was made'}"
        ) from None
    finally:
        if made:
            with suppress(OSError):
                os.unlink(draft, dir_fd=place.folder)


MIN_FREE = "CANTRIP_MIN_FREE_MB"
"""Environment variable of the user: MiB of a disk that a turn must leave free; 0 disables the check."""
_MIB = 1024 * 1024
_ALWAYS_FITS = _MIB


def least_free(free: int, total: int) -> int:
    """Bytes that a turn must leave free on a disk, given its free and total bytes.

    By default 1 GB or 5 %, whichever is less. If less is free already, half of it may be used, so that small work can
    continue. Raises `GateError` where the setting is no number.
    """
    said = os.environ.get(MIN_FREE, "").strip()
    try:
        least = min(1_000_000_000, total // 20) if not said else int(said) * _MIB
        if least < 0:
            raise ValueError
    except ValueError:
        raise GateError(f"{MIN_FREE} must be a number of MiB, 0 or more, not {said[:40]!r}") from None
    return least if free >= least else free // 2


def _check_room(place: PathHandle, size: int) -> None:
    """Raise `GateError` where a file of this size would fill the disk."""
    if size <= _ALWAYS_FITS:
        return
    disk = os.fstatvfs(place.folder)
    free = disk.f_bavail * disk.f_frsize
    least = least_free(free, disk.f_blocks * disk.f_frsize)
    if least and size >= free:
        refusal = os_failure(OSError(errno.ENOSPC, ""), place.path, "write")
        raise GateError(f"{refusal}; {'the old file is unchanged' if place.status is not None else 'no file was made'}")
    if free - size < least:
        raise GateError(
            f"{place.shown!r} was not written: its {size:,} bytes would leave less than {least // _MIB:,} MiB free on the disk, "
            f"which has {free // _MIB:,} MiB ({MIN_FREE} sets how much must stay free)"
        )


def check_writable(place: PathHandle) -> None:
    """Raise `GateError` where ``place`` is no regular file, or one that may not be written."""
    old = place.status
    if old is not None and not stat.S_ISREG(old.st_mode):
        place.open_file()
    if old is not None and not os.access(place.name, os.W_OK, dir_fd=place.folder, **_ACCESS_OPTIONS):
        raise GateError(f"{place.shown!r} is read-only: permission denied; the file was not changed")


# Check the file itself with our effective user, where the system supports it.
_ACCESS_OPTIONS = {
    "effective_ids": os.access in os.supports_effective_ids,
    "follow_symlinks": os.access not in os.supports_follow_symlinks,
}


def _write(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _copy_owner_and_mode(descriptor: int, old: os.stat_result) -> None:
    """Give the new file the old one's owner and permissions, without set-user-id: the new content was not approved
    for it."""
    own = os.fstat(descriptor)
    if (own.st_uid, own.st_gid) != (old.st_uid, old.st_gid):
        with suppress(PermissionError):
            os.fchown(descriptor, old.st_uid, old.st_gid)
    os.fchmod(descriptor, stat.S_IMODE(old.st_mode) & 0o777)


def _check_unchanged(place: PathHandle) -> None:
    """Raise if another program changed the file since it was read: this write would undo its changes."""
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
