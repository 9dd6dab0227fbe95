"""Atomic write: writes the new content to a temporary file, and then renames it over the old file.

A reader sees the old file or the new one, never a part. The old file itself is not written to, so the target of a symbolic
link and other hard links stay unchanged. The content is not synced to the disk. Editors and git do the same, because it is
fast and file systems keep the order of write and rename.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from contextlib import suppress

from cantrip_acp.files import disk_limit
from cantrip_acp.files.disk_limit import MIN_FREE, least_free
from cantrip_acp.gates.confinement import PathHandle, os_failure
from cantrip_acp.types.errors import GateError

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def replace_file(place: PathHandle, data: bytes) -> None:
    """Replace the content of the file at ``place`` by ``data``. Permissions and owner stay. Missing folders are created.

    Raises `GateError` if that fails, or if the file has changed since ``place`` was found. The old file is then unchanged.
    """
    old = place.status
    check_writable(place)
    place.make_parents()
    _check_room(place, len(data))
    limit = disk_limit.current()
    if limit is not None and (over := limit.check_write(len(data))) is not None:
        raise GateError(f"{place.shown!r} was not written: that would be {over}")
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
        if limit is not None:
            limit.add_written(len(data))
    except OSError as error:
        if error.errno in (errno.EISDIR, errno.ENOTEMPTY):
            raise GateError(f"{place.shown!r} is now a folder; nothing was written") from None
        refusal = os_failure(error, place.path, "write")
        raise GateError(
            f"{refusal}; {'the old file is unchanged' if old is not None else 'no file was made'}"
        ) from None
    finally:
        if made:
            with suppress(OSError):
                os.unlink(draft, dir_fd=place.folder)


_MIB = 1024 * 1024
_ALWAYS_FITS = _MIB


def _check_room(place: PathHandle, size: int) -> None:
    """Raise `GateError` if a file of this size would leave too little free space on the disk."""
    if size <= _ALWAYS_FITS:
        return
    disk = os.fstatvfs(place.folder)
    free = disk.f_bavail * disk.f_frsize
    try:
        least = least_free(free, disk.f_blocks * disk.f_frsize)
    except ValueError as error:
        raise GateError(str(error)) from None
    if least and size >= free:
        refusal = os_failure(OSError(errno.ENOSPC, ""), place.path, "write")
        raise GateError(f"{refusal}; {'the old file is unchanged' if place.status is not None else 'no file was made'}")
    if free - size < least:
        raise GateError(
            f"{place.shown!r} was not written: its {size:,} bytes would leave less than {least // _MIB:,} MiB free on the disk, "
            f"which has {free // _MIB:,} MiB ({MIN_FREE} sets how much must stay free)"
        )


def check_writable(place: PathHandle) -> None:
    """Raise `GateError` if ``place`` is not a regular file, or is read-only."""
    old = place.status
    if old is not None and not stat.S_ISREG(old.st_mode):
        place.open_file()
    if old is not None and not os.access(place.name, os.W_OK, dir_fd=place.folder, **_ACCESS_OPTIONS):
        raise GateError(f"{place.shown!r} is read-only: permission denied; the file was not changed")


# If the system supports it, check the file itself, for our effective user.
_ACCESS_OPTIONS = {
    "effective_ids": os.access in os.supports_effective_ids,
    "follow_symlinks": os.access not in os.supports_follow_symlinks,
}


def _write(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _copy_owner_and_mode(descriptor: int, old: os.stat_result) -> None:
    """Give the new file the owner and permissions of the old one, but not set-user-id, which was meant only for the old
    content."""
    own = os.fstat(descriptor)
    if (own.st_uid, own.st_gid) != (old.st_uid, old.st_gid):
        with suppress(PermissionError):
            os.fchown(descriptor, old.st_uid, old.st_gid)
    os.fchmod(descriptor, stat.S_IMODE(old.st_mode) & 0o777)


def _check_unchanged(place: PathHandle) -> None:
    """Raise `GateError` if another program changed the file since it was read. This write would undo its changes."""
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
        f"{place.shown!r} was changed by another program at the same time; nothing was written", "Read it again"
    )


def _identity(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_mode
