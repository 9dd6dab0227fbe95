"""Quarantine: protected files that commands made in a workspace, moved to a private folder until a person keeps or drops them.

    >>> for each in Quarantine(workspace).entries():
    ...     print(each.name, each.reason)

Each workspace has a folder in the state folder. In it, each moved file or folder has a folder with its ``content`` and a
``record.json``. Whatever commands may have prepared, nothing is read or written outside the workspace and this folder:
every name is opened from the descriptor of the folder above it, and links are moved but never followed.

While commands run, the folder also has a list of the protected names that existed before (`Quarantine.begin`). If this process
is killed, the next command in the workspace finds the list, and so knows which names are new.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import secrets
import stat
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import msgspec
from msgspec import Struct

from cantrip_acp.files import paths
from cantrip_acp.files.folder import Folder
from cantrip_acp.text.codecs import json_decoder
from cantrip_acp.text.storable import storable
from cantrip_acp.types.errors import CantripError

FOLDER = "quarantine"
_CONTENT = "content"
_RECORD = "record.json"
_RUNNING = "running-"
_KEPT = "kept.json"
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PATH = os.O_PATH if sys.platform == "linux" else 0
_LOOK = _OPEN | _PATH
"""Open a folder that may be unreadable."""
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_MOST_BYTES = 1 << 30
_MOST_FILES = 50_000
"""What is larger than this is not copied from another file system."""
_DIGEST_BYTES = 1 << 26
_DIGEST_FILES = 5_000
_DEEPEST = 100
_LONGEST_COMMAND = 500


class QuarantineError(CantripError):
    """An entry cannot be kept or dropped. The text says why, and what to do."""


class Quarantined(Struct, frozen=True):
    """What was moved away. ``path`` is where it was; ``name`` the same below the workspace. ``reason``: who would run it.

    ``kind``: file, folder, link or other. ``size`` in bytes. ``digest``: SHA-256 of its content; empty if it is too large or
    cannot be read. ``when``: seconds since the epoch. ``command``: the beginning of the command that ran.
    ``lost``: why its content could not be kept; empty if it is there.
    """

    id: str
    path: str
    name: str
    reason: str
    kind: str
    size: int
    digest: str
    when: float
    command: str
    lost: str = ""


class Before(Struct, frozen=True):
    """What a command found before it started: the folders that it may write, and all protected names in them (a link has NUL
    and its target after its path). ``allowed``: names that it may make."""

    roots: tuple[str, ...]
    names: frozenset[str]
    allowed: tuple[str, ...] = ()


class _Stopped(Exception):
    """It is larger or deeper than may be read."""


class Quarantine:
    """The quarantine of a workspace (or of a folder that commands may write). ``state``: another state folder."""

    def __init__(self, workspace: Path | str, state: Path | None = None) -> None:
        self.workspace = os.path.realpath(workspace)
        name = hashlib.blake2b(os.fsencode(self.workspace), digest_size=12).hexdigest()
        self.folder = paths.state_dir(state) / FOLDER / name

    def entries(self, since: float = 0.0) -> list[Quarantined]:
        """What waits for a person, the oldest first. ``since``: only what was moved at this time or later, in seconds since the
        epoch. Raises `OSError`."""
        top = Folder.open(self.folder)
        if top is None:
            return []
        found = []
        with top:
            for entry in top.entries():
                # A name begins with its time.
                if not entry.is_folder or entry.name < _stamp(since):
                    continue
                if (record := _read_record(top, entry.name)) is not None and record.when >= since:
                    found.append(record)
        return sorted(found, key=lambda each: (each.when, each.id))

    def content(self, entry: str) -> Path:
        """Where the content of an entry is now."""
        return self.folder / entry / _CONTENT

    def keep(self, entry: str) -> Quarantined:
        """Put an entry back where it was. Nothing is overwritten. Raises `QuarantineError`."""
        with self._entry(entry) as (record, inside):
            if record.lost:
                raise QuarantineError(f"{record.name} cannot be kept: {record.lost}. Drop it")
            above, name = os.path.split(record.path)
            try:
                with _parent(self.workspace, above) as target:
                    # Remember it first. A command that runs now would take it for its own, and it would be moved away again.
                    self._remember(record.path, record.digest)
                    _put_back(inside, target, name)
                    os.fsync(target.fd)
            except OSError as error:
                raise QuarantineError(_why_not_kept(record, error)) from error
        self._remove(entry)
        return record

    def drop(self, entry: str) -> Quarantined:
        """Delete an entry for good. Raises `QuarantineError`."""
        with self._entry(entry) as (record, _):
            pass
        self._remove(entry)
        return record

    def _entry(self, entry: str) -> _Opened:
        return _Opened(self, entry)

    def _remove(self, entry: str) -> None:
        with Folder.top(self.folder) as top:
            _remove_tree(top, entry)
        with suppress(OSError):
            os.rmdir(self.folder)

    # While commands run

    def begin(self, before: Before) -> Running:
        """Note durably what exists before a command starts. Raises `OSError`."""
        data = msgspec.json.encode([[*map(_hex, each)] for each in msgspec.structs.astuple(before)])
        name = f"{_RUNNING}{os.getpid()}-{secrets.token_hex(4)}"
        for attempt in range(5):
            try:
                with Folder.top(paths.private(self.folder)) as top:
                    # It gets its name when it is whole and locked: a list without a lock is one of a killed process.
                    fd = top.open_file(f".{name}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                    try:
                        fcntl.flock(fd, fcntl.LOCK_EX)
                        with os.fdopen(os.dup(fd), "wb") as file:
                            file.write(data)
                        os.rename(f".{name}", name, src_dir_fd=top.fd, dst_dir_fd=top.fd)
                    except BaseException:
                        os.close(fd)
                        raise
                return Running(str(self.folder / name), fd)
            except FileNotFoundError:
                # The last command of another process removed the folder meanwhile.
                if attempt == 4:
                    raise
        raise AssertionError

    def interrupted(self) -> list[tuple[str, Before | None]]:
        """What commands found whose process was killed while they ran, each with the name of its list. None if the process was
        killed while it wrote the list, so before its command started. Call `forget` when what is new since then is moved."""
        try:
            names = [name for name in os.listdir(self.folder) if name.startswith(_RUNNING)]
        except OSError:
            return []
        found: list[tuple[str, Before | None]] = []
        for name in names:
            with suppress(OSError), Folder.top(self.folder) as top, top.file(name) as file:
                fcntl.flock(file.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
                try:
                    read = json_decoder(list[list[str]]).decode(file.read())
                    roots, known, allowed = ([os.fsdecode(bytes.fromhex(each)) for each in part] for part in read)
                    found.append((name, Before(tuple(roots), frozenset(known), tuple(allowed))))
                except (msgspec.DecodeError, ValueError):
                    found.append((name, None))
        return found

    def forget(self, name: str) -> None:
        """Delete the list of a killed process."""
        with suppress(FileNotFoundError):
            os.unlink(self.folder / name)

    def take(self, root: int, top: str, path: str, reason: str, command: str) -> Quarantined | None:
        """Move ``path``, which is below ``top``, into the quarantine. ``root`` is a descriptor of the folder ``top``.

        None if it is not there any more, or if a link is in the way. Raises `OSError` if it cannot be moved.
        """
        above, name = os.path.split(os.path.relpath(path, top))
        parent = _walk(root, above)
        if parent is None:
            return None
        try:
            return self._take(parent, name, path, reason, command)
        finally:
            os.close(parent)

    def _take(self, parent: int, name: str, path: str, reason: str, command: str) -> Quarantined | None:
        try:
            status = os.stat(name, dir_fd=parent, follow_symlinks=False)
        except FileNotFoundError:
            return None
        paths.private(self.folder)
        now = time.time()
        entry = f"{_stamp(now)}-{secrets.token_hex(4)}"
        shown = os.path.relpath(path, self.workspace) if paths.within(path, self.workspace) else path
        record = Quarantined(entry, path, shown, reason, _kind(status), 0, "", now, command[:_LONGEST_COMMAND])
        with Folder.top(self.folder) as top:
            os.mkdir(entry, 0o700, dir_fd=top.fd)
            with top.beneath(entry) as inside:
                try:
                    lost = _move(parent, name, inside.fd, _CONTENT, status)
                except BaseException as error:
                    os.rmdir(entry, dir_fd=top.fd)
                    if isinstance(error, FileNotFoundError):
                        return None
                    raise
                size, digest = (0, "") if lost else _measure(inside.fd)
                record = msgspec.structs.replace(record, size=size, digest=digest, lost=lost)
                _write_record(inside, record)
        return record

    # What a person kept

    def is_kept(self, root: int, top: str, path: str) -> bool:
        """Whether a person kept this path, and it is as it was then."""
        known = self._kept().get(_hex(path))
        if known is None:
            return False
        above, name = os.path.split(os.path.relpath(path, top))
        parent = _walk(root, above)
        if parent is None:
            return False
        try:
            return _measure(parent, name)[1] == known
        finally:
            os.close(parent)

    def _kept(self) -> dict[str, str]:
        try:
            with Folder.top(self.folder) as top, top.file(_KEPT) as file:
                return json_decoder(dict[str, str]).decode(file.read())
        except (OSError, msgspec.DecodeError):
            return {}

    def _remember(self, path: str, digest: str) -> None:
        if digest:
            known = {**self._kept(), _hex(path): digest}
            with Folder.top(paths.private(self.folder)) as top:
                top.replace(_KEPT, msgspec.json.encode(known), 0o600)

    def place(self, top: Folder, draft: str, name: str) -> None:
        """Give what we made as ``draft`` in the folder ``top`` its protected name, which must not exist. A command that runs now
        would be taken for its maker, so it counts as kept. Raises `OSError`."""
        self._remember(os.path.join(os.path.realpath(top.path), name), _measure(top.fd, draft)[1])
        _rename_new(top.fd, draft, top.fd, name, os.stat(draft, dir_fd=top.fd, follow_symlinks=False))


class Running:
    """The list of names before a command. `close` it when the names that are new are moved."""

    def __init__(self, path: str, fd: int) -> None:
        self._path = path
        self._fd = fd

    def close(self) -> None:
        """Delete the list. Safe to call twice."""
        if self._fd >= 0:
            with suppress(OSError):
                os.unlink(self._path)
                os.rmdir(os.path.dirname(self._path))
            os.close(self._fd)
            self._fd = -1


class _Opened:
    """An entry that is open, in a block."""

    def __init__(self, quarantine: Quarantine, entry: str) -> None:
        self._quarantine = quarantine
        self._id = entry
        self._inside: Folder | None = None

    def __enter__(self) -> tuple[Quarantined, Folder]:
        top = Folder.open(self._quarantine.folder)
        record = None
        if top is not None:
            with top:
                if "/" not in self._id and self._id not in ("", ".", ".."):
                    record = _read_record(top, self._id)
                if record is not None:
                    self._inside = top.beneath(self._id)
        if record is None or self._inside is None:
            raise QuarantineError(
                f"there is no entry {self._id!r} for {self._quarantine.workspace}: `cantrip quarantine list` shows them"
            )
        return record, self._inside

    def __exit__(self, *_: object) -> None:
        if self._inside is not None:
            self._inside.close()


def workspaces(state: Path | None = None) -> list[Quarantine]:
    """The quarantines of all workspaces that have entries."""
    found = []
    folder = paths.state_dir(state) / FOLDER
    top = Folder.open(folder)
    if top is None:
        return []
    with top:
        for each in top.entries():
            inside = top.sub(each.name) if each.is_folder else None
            if inside is None:
                continue
            with inside:
                records = (_read_record(inside, entry.name) for entry in inside.entries() if entry.is_folder)
                first = next((record for record in records if record is not None), None)
            if first is not None:
                here = first.path.removesuffix(first.name).rstrip("/") if first.name != first.path else first.path
                quarantine = Quarantine(here, state)
                if quarantine.folder.name == each.name:
                    found.append(quarantine)
    return found


def _stamp(when: float) -> str:
    return time.strftime("%Y%m%d-%H%M%S", time.gmtime(when))


def _hex(path: str) -> str:
    # A name may be no UTF-8, and JSON is.
    return os.fsencode(path).hex()


def _parent(workspace: str, above: str) -> Folder:
    if paths.within(above, workspace):
        with Folder.top(workspace) as top:
            return top.beneath(os.path.relpath(above, workspace))
    return Folder.top(above)


def _why_not_kept(record: Quarantined, error: OSError) -> str:
    if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
        return f"{record.path} exists, and nothing is overwritten: move it away, or drop the entry {record.id}"
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return f"the folder of {record.path} does not exist any more: make it, or drop the entry {record.id}"
    return f"{record.path} cannot be put back: {error.strerror}"


def _walk(root: int, below: str) -> int | None:
    """A descriptor of a folder below ``root``; None if it is missing or a link is in the way."""
    fd = os.dup(root)
    for name in below.split("/") if below else ():
        try:
            inner = os.open(name, _LOOK, dir_fd=fd)
        except OSError as error:
            os.close(fd)
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES):
                return None
            raise
        os.close(fd)
        fd = inner
    return fd


def _kind(status: os.stat_result) -> str:
    mode = status.st_mode
    return (
        "file" if stat.S_ISREG(mode) else "folder" if stat.S_ISDIR(mode) else "link" if stat.S_ISLNK(mode) else "other"
    )


def _move(source: int, name: str, target: int, new: str, status: os.stat_result) -> str:
    """Move a name between folders. Returns why its content was not kept; empty if it was."""
    try:
        os.rename(name, new, src_dir_fd=source, dst_dir_fd=target)
        return ""
    except PermissionError:
        # A command took away the permissions that moving needs. It had them, and so do we.
        with _Writable(source), _Writable(source, name if stat.S_ISDIR(status.st_mode) else None):
            os.rename(name, new, src_dir_fd=source, dst_dir_fd=target)
        return ""
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
    # Another file system. First give it a name that no program looks for, so that it is harmless at once.
    draft = f".cantrip-moving-{secrets.token_hex(8)}"
    os.rename(name, draft, src_dir_fd=source, dst_dir_fd=source)
    lost = ""
    try:
        left = [_MOST_BYTES, _MOST_FILES]
        _copy(source, draft, target, new, left, 0)
    except (OSError, _Stopped) as error:
        lost = str(error) if isinstance(error, _Stopped) else f"it could not be copied ({error.strerror})"
        with Folder(Path("."), os.dup(target)) as folder:
            _remove_tree(folder, new)
    with Folder(Path("."), os.dup(source)) as folder:
        _remove_tree(folder, draft)
    return lost


class _Writable:
    """Make a folder writable for its owner, in a block: ``above`` itself, or the folder ``name`` in it. What is no folder of ours
    stays as it is."""

    def __init__(self, above: int, name: str | None = None) -> None:
        self._fd = -1
        self._mode = 0
        with suppress(OSError):
            self._fd = os.dup(above) if name is None else os.open(name, _LOOK, dir_fd=above)
            self._mode = stat.S_IMODE(os.fstat(self._fd).st_mode)
            if self._mode & 0o700 != 0o700:
                os.chmod(f"/proc/self/fd/{self._fd}", self._mode | 0o700)

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None:
        if self._fd >= 0:
            with suppress(OSError):
                if self._mode & 0o700 != 0o700:
                    os.chmod(f"/proc/self/fd/{self._fd}", self._mode)
            os.close(self._fd)


def _copy(source: int, name: str, target: int, new: str, left: list[int], depth: int) -> None:
    left[1] -= 1
    if left[1] < 0 or depth > _DEEPEST:
        raise _Stopped("it has too many files, or folders in folders, to be copied from its file system")
    status = os.stat(name, dir_fd=source, follow_symlinks=False)
    if stat.S_ISLNK(status.st_mode):
        os.symlink(os.readlink(name, dir_fd=source), new, dir_fd=target)
    elif stat.S_ISDIR(status.st_mode):
        with _Writable(source, name):
            inner = os.open(name, _OPEN, dir_fd=source)
            try:
                os.mkdir(new, 0o700, dir_fd=target)
                outer = os.open(new, _OPEN, dir_fd=target)
                try:
                    for each in os.listdir(inner):
                        _copy(inner, each, outer, each, left, depth + 1)
                finally:
                    os.close(outer)
            finally:
                os.close(inner)
        os.chmod(new, stat.S_IMODE(status.st_mode) | 0o700, dir_fd=target)
    elif stat.S_ISREG(status.st_mode):
        left[0] -= status.st_size
        if left[0] < 0:
            raise _Stopped(f"it is larger than {_MOST_BYTES >> 20:,} MiB, and on another file system")
        with _file(source, name, status) as read:
            fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=target)
            with os.fdopen(fd, "wb") as write:
                room = status.st_size
                while room > 0 and (data := read.read(min(room, 1 << 20))):
                    room -= len(data)
                    write.write(data)
                os.fchmod(fd, stat.S_IMODE(status.st_mode) & 0o777)
    # Pipes, sockets and devices have no content.


def _file(folder: int, name: str, status: os.stat_result) -> BinaryIO:
    try:
        fd = os.open(name, _READ, dir_fd=folder)
    except PermissionError:
        path = os.open(name, _PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        try:
            if not stat.S_ISREG(os.fstat(path).st_mode):
                raise
            os.chmod(f"/proc/self/fd/{path}", stat.S_IMODE(status.st_mode) | 0o400)
        finally:
            os.close(path)
        fd = os.open(name, _READ, dir_fd=folder)
    return os.fdopen(fd, "rb")


def _measure(folder: int, name: str = _CONTENT) -> tuple[int, str]:
    """The size in bytes, and the digest; an empty digest if it is too large or cannot be read."""
    digest, left = hashlib.sha256(), [_DIGEST_BYTES, _DIGEST_FILES, 0]
    try:
        _digest(folder, name, digest, left, 0)
    except (OSError, _Stopped):
        return left[2], ""
    return left[2], digest.hexdigest()


def _digest(folder: int, name: str, digest: hashlib._Hash, left: list[int], depth: int) -> None:
    left[1] -= 1
    status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    left[2] += status.st_size if stat.S_ISREG(status.st_mode) else 0
    if left[1] < 0 or depth > _DEEPEST:
        raise _Stopped
    kind = _kind(status)
    if depth:
        digest.update(b"%d:%s:" % (len(os.fsencode(name)), os.fsencode(name)))
    if kind == "file" and depth == 0:
        # The digest of a single file is that of its content, as sha256sum prints it.
        pass
    else:
        digest.update(f"{kind}:{stat.S_IMODE(status.st_mode):o}:{status.st_size if kind == 'file' else 0}:".encode())
    if kind == "link":
        digest.update(os.fsencode(os.readlink(name, dir_fd=folder)) + b"\0")
    elif kind == "folder":
        inner = os.open(name, _OPEN, dir_fd=folder)
        try:
            for each in sorted(os.listdir(inner)):
                _digest(inner, each, digest, left, depth + 1)
            digest.update(b"end:")
        finally:
            os.close(inner)
    elif kind == "file":
        left[0] -= status.st_size
        if left[0] < 0:
            raise _Stopped
        with os.fdopen(os.open(name, _READ, dir_fd=folder), "rb") as file:
            digest.update(file.read(status.st_size))


def _put_back(inside: Folder, target: Folder, name: str) -> None:
    """Move the content to a name that does not exist."""
    status = os.stat(_CONTENT, dir_fd=inside.fd, follow_symlinks=False)
    if os.stat(inside.fd).st_dev != os.fstat(target.fd).st_dev:
        draft = f".cantrip-moving-{secrets.token_hex(8)}"
        try:
            _copy(inside.fd, _CONTENT, target.fd, draft, [_MOST_BYTES, _MOST_FILES], 0)
            _rename_new(target.fd, draft, target.fd, name, status)
        except BaseException:
            _remove_tree(target, draft)
            raise
        return
    _rename_new(inside.fd, _CONTENT, target.fd, name, status)


def _rename_new(source: int, old: str, target: int, new: str, status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        # An empty folder of ours keeps the name free. A folder replaces it only while it is empty.
        os.mkdir(new, 0o700, dir_fd=target)
        try:
            with _Writable(source, old):
                os.rename(old, new, src_dir_fd=source, dst_dir_fd=target)
        except BaseException:
            with suppress(OSError):
                os.rmdir(new, dir_fd=target)
            raise
        return
    os.link(old, new, src_dir_fd=source, dst_dir_fd=target, follow_symlinks=False)
    os.unlink(old, dir_fd=source)


def _remove_tree(folder: Folder, name: str) -> None:
    try:
        status = os.stat(name, dir_fd=folder.fd, follow_symlinks=False)
        if not stat.S_ISDIR(status.st_mode):
            os.unlink(name, dir_fd=folder.fd)
            return
        folder.remove_tree(name)
    except FileNotFoundError:
        return
    except (OSError, RecursionError):
        # Too deep for Python, or without permissions. These programs go name by name, and follow no link.
        for words in (["chmod", "-R", "u+rwX"], ["rm", "-rf"]):
            inside = f"/proc/self/fd/{folder.fd}"
            subprocess.run(
                [*words, "--", name], cwd=inside, pass_fds=(folder.fd,), stderr=subprocess.DEVNULL, check=False
            )


def _write_record(inside: Folder, record: Quarantined) -> None:
    shown = {**msgspec.structs.asdict(record), "path": _hex(record.path), "name": _hex(record.name)}
    inside.replace(_RECORD, msgspec.json.encode(storable(shown)), 0o600)


def _read_record(top: Folder, entry: str) -> Quarantined | None:
    try:
        with top.beneath(entry) as inside, inside.file(_RECORD) as file:
            record = json_decoder(Quarantined).decode(file.read())
            if inside.entry(_CONTENT) is None and not record.lost:
                return None
        path, name = (os.fsdecode(bytes.fromhex(each)) for each in (record.path, record.name))
        return msgspec.structs.replace(record, id=entry, path=path, name=name)
    except (OSError, msgspec.DecodeError, ValueError):
        return None


def lines(moved: Collection[Quarantined]) -> Iterator[str]:
    """What a command's output says about what was moved away: one line for each, and one for all that are too many."""
    # Of a name that was made again and again, the last one counts.
    last = {each.path: each for each in moved}
    for each in list(last.values())[:_MOST_LINES]:
        name = each.name if each.name.isprintable() else ascii(each.name)
        if each.lost:
            yield f"cantrip: removed {name} ({each.reason}); it was not kept: {each.lost}\n"
        else:
            yield f"cantrip: moved away {name} ({each.reason}); the user can keep or drop it: cantrip quarantine keep {each.id}\n"
    if len(last) > _MOST_LINES:
        yield f"cantrip: moved away {len(last) - _MOST_LINES:,} more protected names; cantrip quarantine list shows them\n"


_MOST_LINES = 10
