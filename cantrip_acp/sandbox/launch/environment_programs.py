"""Programs of virtual environments that were there before the session: commands add some, and never change an interpreter.

The interpreters of an environment are links, which no mount can protect, and editors run them without a request. So commands
see a private copy of the environment's folder of programs (``bin``). After each command, `ProgramsFolder.take_over` puts what
they added, changed or deleted into the real folder, except for names that are protected (`python*`, `activate*`).
"""

from __future__ import annotations

import os
import secrets
import shutil
import stat
import threading
from collections.abc import Iterable
from contextlib import suppress
from weakref import WeakValueDictionary, finalize

from cantrip_acp.files.folder import Entry, Folder
from cantrip_acp.files.protected_paths import plain, protected_by
from cantrip_acp.sandbox.launch.runtime_dir import runtime

LARGEST = 1_000_000_000
"""Bytes. A larger folder is not copied: it stays read-only."""
_MOST_TAKEN = 500_000_000
"""Bytes of a file that is taken over."""

State = tuple[int, ...]


class ProgramsFolder:
    """The folder of programs ``path`` below the folder ``root``, and its private copy in the folder ``copy``.

    Raises `OSError` if a folder on the way is a link.
    """

    def __init__(self, root: str, path: str, copy: str) -> None:
        self.path = path
        self.copy = copy
        self._root = root
        self._real = self._open()
        finalize(self, self._real.close)
        self._copied = Folder.top(copy)
        finalize(self, self._copied.close)
        finalize(self, shutil.rmtree, copy, ignore_errors=True)
        self._known: dict[str, tuple[State, State]] = {}
        self._lock = threading.Lock()

    def _open(self) -> Folder:
        # What is taken over lands in this open folder, even if its path leads elsewhere by then.
        with Folder.top(self._root) as top:
            return top.beneath(os.path.relpath(self.path, self._root))

    def refresh(self) -> None:
        """Copy what changed in the real folder since the last call, for the next command. Raises `OSError`."""
        with self._lock:
            if not os.path.samestat(os.stat(self.path, follow_symlinks=False), os.fstat(self._real.fd)):
                with self._open() as present:
                    os.dup2(present.fd, self._real.fd, inheritable=False)
                self._known = {}
            here = {each.name: each for each in self._real.entries()}
            for name, entry in here.items():
                known = self._known.get(name)
                # A change that a running command made in the copy stays there until it is taken over.
                if known is None or known[0] != _state(entry):
                    self._restore(name, entry)
            for name in [each for each in self._known if each not in here]:
                _remove(self._copied, name)
                del self._known[name]

    def take_over(self) -> list[str]:
        """Put what commands changed in the copy into the real folder. Returns the protected names that they changed.

        A name that the user changed meanwhile stays as the user has it.
        """
        refused = []
        with self._lock:
            entries = {each.name: each for each in self._copied.entries()}
            for name in sorted({*entries, *self._known}):
                known = self._known.get(name, ((), ()))
                if _state_in(self._copied, name) == known[1]:
                    continue
                real = self._real.entry(name)
                if protected_by(plain(name), "bin") or protected_by(plain(name), "scripts"):
                    refused.append(name)
                    self._restore(name, real)
                elif (_state(real) if real is not None else ()) != known[0]:
                    continue
                elif name not in entries:
                    self._real.unlink(name)
                    del self._known[name]
                elif _put(self._copied, entries[name], self._real):
                    self._remember(name)
        return refused

    def _restore(self, name: str, real: Entry | None) -> None:
        _remove(self._copied, name)
        if real is not None and _put(self._real, real, self._copied):
            self._remember(name)

    def _remember(self, name: str) -> None:
        real, copied = _state_in(self._real, name), _state_in(self._copied, name)
        if real and copied:
            self._known[name] = (real, copied)


_folders: WeakValueDictionary[tuple[str, str], ProgramsFolder] = WeakValueDictionary()
_making = threading.Lock()


def programs_folder(root: str, path: str) -> ProgramsFolder | None:
    """The folder of programs at ``path`` below ``root``, ready for the next command. The sandboxes of this process share its
    copy, which is deleted with the last of them. None if it cannot be copied: then it stays read-only."""
    mine = runtime()
    try:
        with _making:
            found = _folders.get((mine.folder, path))
            if found is None:
                with os.scandir(path) as entries:
                    if sum(each.stat(follow_symlinks=False).st_size for each in entries) > LARGEST:
                        return None
                found = _folders[mine.folder, path] = ProgramsFolder(root, path, mine.make_folder("programs"))
        found.refresh()
    except OSError:
        return None
    return found


def refresh(folders: Iterable[ProgramsFolder]) -> None:
    """Show commands what the folders have now. One that cannot be read stays as it was shown before."""
    for each in folders:
        with suppress(OSError):
            each.refresh()


def take_over(folders: Iterable[ProgramsFolder]) -> list[bytes]:
    """Take over what commands changed in the folders. Returns what to say about it, as lines of a command's output."""
    lines = []
    for each in folders:
        try:
            refused = each.take_over()
        except OSError as error:
            lines.append(f"cantrip: {each.path} could not be changed: {error.strerror}\n")
            continue
        if refused:
            names = ", ".join(refused)
            lines.append(f"cantrip: in {each.path}, these stayed as before, because editors run them: {names}\n")
    return [os.fsencode(line) for line in lines]


def _state(entry: Entry) -> State:
    status = entry.status
    return status.st_ino, status.st_mode, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _state_in(folder: Folder, name: str) -> State:
    entry = folder.entry(name)
    return _state(entry) if entry is not None else ()


def _put(source: Folder, entry: Entry, target: Folder) -> bool:
    """Put a copy of a file or a link in the place of the same name. False for anything else, which is left out."""
    name, draft = entry.name, f".{secrets.token_hex(8)}.part"
    there = target.entry(name)
    if there is not None and there.is_folder:
        return False
    try:
        if stat.S_ISLNK(entry.status.st_mode):
            os.symlink(os.readlink(name, dir_fd=source.fd), draft, dir_fd=target.fd)
        elif entry.is_file and entry.size <= _MOST_TAKEN:
            _copy(source, name, target, draft, stat.S_IMODE(entry.status.st_mode) & 0o777)
        else:
            return False
        os.rename(draft, name, src_dir_fd=target.fd, dst_dir_fd=target.fd)
    except BaseException:
        target.unlink(draft)
        raise
    return True


def _copy(source: Folder, name: str, target: Folder, draft: str, mode: int) -> None:
    read = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=source.fd)
    try:
        write = os.open(
            draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=target.fd
        )
        try:
            left = _MOST_TAKEN
            while left and (count := os.sendfile(write, read, None, min(left, 1 << 30))):
                left -= count
            os.fchmod(write, mode)
        finally:
            os.close(write)
    finally:
        os.close(read)


def _remove(folder: Folder, name: str) -> None:
    """Remove what a command may have left in the copy."""
    entry = folder.entry(name)
    if entry is not None and entry.is_folder:
        folder.remove_tree(name)
    else:
        folder.unlink(name)
