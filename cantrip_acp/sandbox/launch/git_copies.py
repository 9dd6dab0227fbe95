"""Git folders that commands may use (the ward ``git_writes: limited``): they see a private copy, and what is harmless is kept.

Nothing in a git folder can be protected name by name while the user's own git runs beside a command: a file ``commondir``, a
link in the place of a log or ``core.fsmonitor`` for a moment are enough to run a program of the command. So a command never
writes the real folder. It gets a copy of everything but the objects, which it sees read-only (``objects/info/alternates`` of
the copy names them). After the command, `GitCopy.take_over` looks at what changed in the copy, checks each file and each new
object, and puts what is harmless into the real folder, with git's own lock files. The rest is named in the output.
"""

from __future__ import annotations

import difflib
import hashlib
import io
import os
import re
import secrets
import stat
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress

from cantrip_acp.files.folder import Folder
from cantrip_acp.files.git_index import read_index
from cantrip_acp.files.paths import within_any
from cantrip_acp.files.protected_paths import without_credentials
from cantrip_acp.files.temporary import TemporaryFolder
from cantrip_acp.sandbox.policy.harmless_git import (
    hidden_entries,
    largest_of,
    parse_settings,
    todo_without_commands,
    why_file_harmful,
    why_harmful,
    why_settings_change_harmful,
    why_settings_harmful,
)
from cantrip_acp.types.errors import SandboxError

OBJECTS = "/run/objects"
"""Where the real objects are inside, each repository in a folder of its own."""

_MOST_FILES = 50_000
_LARGEST_FILE = 256 * 1024 * 1024
_LOCK_SECONDS = 1.0
_TODO = ("rebase-merge/git-rebase-todo", "rebase-merge/git-rebase-todo.backup", "sequencer/todo")
_OPERATIONS = ("rebase-merge", "rebase-apply", "sequencer")
_TRANSIENT = re.compile(
    r"(?:.*/)?(?:[^/]+\.lock|gc\.pid|fsmonitor--daemon[^/]*|[^/]+\.sample|next-index-[^/]*|\.[^/]*)\Z"
)
_LOOSE = re.compile(r"[0-9a-f]{38}(?:[0-9a-f]{24})?\Z")

OWN_SETTINGS = """\
# While Cantrip runs a command: no signing without the user's keys, no programs beside it, no packs.
[commit]
\tgpgSign = false
[tag]
\tgpgSign = false
[core]
\tfsmonitor = false
[gc]
\tauto = 0
[maintenance]
\tauto = false
[fetch]
\tunpackLimit = 1000000000
"""

_SHARED = re.compile(r"(?:refs|logs/refs|rr-cache)/|(?:packed-refs|config|shallow)\Z")
"""What all worktrees of a repository share."""

State = tuple[int, int, int, int, int]
Changes = dict[str, tuple[bytes | None, bytes | None]]
"""Files of a git folder by their absolute path: the content before and after; None if there is no such file."""


class GitCopy:
    """The git folder ``path`` and its copy at ``copy``. ``writable``: the folders that commands may write. ``worktree``: the
    name of the worktree whose repository it is, if commands may not change the main folder and the other worktrees.

    Raises `OSError`, and `SandboxError` for a folder that cannot be copied: then it stays read-only.
    """

    def __init__(self, path: str, writable: tuple[str, ...], worktree: str = "") -> None:
        self.path = path
        self.worktree = worktree
        self._writable = writable
        if os.lstat(path).st_uid != os.geteuid():
            raise SandboxError(f"{path} belongs to another user")
        self._temporary = TemporaryFolder("cantrip-git-")
        self.copy = self._temporary.path
        os.chmod(self.copy, stat.S_IMODE(os.stat(path).st_mode))
        self._known: dict[str, tuple[State, State]] = {}
        self._bases: set[str] = set()
        self._lock = threading.Lock()
        self.refresh()

    @property
    def bound(self) -> tuple[tuple[str, str], ...]:
        """What commands see read-only: (path inside, host folder) pairs."""
        found = [(_inside(f"{self.path}/{base}"), f"{self.path}/{base}objects") for base in sorted(self._bases)]
        lfs = f"{self.path}/lfs"
        return (*found, *([(lfs, lfs)] if os.path.isdir(lfs) else []))

    # --- to the copy

    def refresh(self) -> None:
        """Copy what changed in the real folder since the last call, for the next command. Raises `OSError`, `SandboxError`."""
        with self._lock:
            bases: set[str] = set()
            here = dict(_walk(self.path, bases))
            if "" not in bases:
                raise SandboxError(f"{self.path} is no git folder")
            with Folder.top(self.path) as real, Folder.top(self.copy) as copy:
                for base in bases:
                    # A command may have removed them.
                    alternates, text = f"{base}objects/info/alternates", f"{_inside(f'{self.path}/{base}')}\n".encode()
                    if _content(copy, alternates) != text:
                        _write(copy, alternates, text, 0o644)
                    for folder in ("objects/pack", "refs/heads", "refs/tags"):
                        _make(copy, base + folder)
                if os.path.isdir(f"{self.path}/lfs"):
                    _make(copy, "lfs")
                self._bases = bases
                for name, state in here.items():
                    known = self._known.get(name)
                    if known is None or known[0] != state:
                        self._restore(real, copy, name)
                for name in [each for each in self._known if each not in here]:
                    _delete(copy, name)
                    del self._known[name]

    def _restore(self, real: Folder, copy: Folder, name: str) -> None:
        """Show in the copy what the real folder has."""
        try:
            with real.file(name) as file:
                status = os.fstat(file.fileno())
                data = file.read(_LARGEST_FILE + 1)
        except OSError:
            _delete(copy, name)
            self._known.pop(name, None)
            return
        if len(data) > _LARGEST_FILE:
            raise SandboxError(f"{self.path}/{name} is too large")
        if _is_settings(name, self._bases):
            data = _shown_settings(data, own=name.rpartition("/")[2] == "config")
        _write(copy, name, data, stat.S_IMODE(status.st_mode))
        self._known[name] = (_state(status), _state_of(copy, name) or _GONE)

    # --- from the copy

    def take_over(self) -> tuple[list[str], Changes]:
        """Put what commands changed in the copy into the real folder, if it is harmless and the user did not change it meanwhile.

        Returns what to say about it, and the changes.
        """
        with self._lock:
            bases = set(self._bases)
            found = dict(_walk(self.copy, bases, loose=True))
            names = sorted(
                name
                for name in {*found, *self._known}
                if found.get(name) != self._known.get(name, (_GONE, None))[1] and not _TRANSIENT.match(name)
            )
            with Folder.top(self.path) as real, Folder.top(self.copy) as copy:
                if not names:
                    return [], {}
                taking = _TakingOver(self, real, copy, found, names, bases)
                try:
                    taking.run()
                finally:
                    for name in taking.left_out:
                        self._restore(real, copy, name)
                    for name in taking.changes:
                        if _state_of(real, name) is None:
                            self._known.pop(name, None)
                        elif name in taking.edited:
                            self._restore(real, copy, name)
                        elif (theirs := _state_of(copy, name)) is not None:
                            self._known[name] = (_state_of(real, name) or _GONE, theirs)
                return taking.said, {f"{self.path}/{name}": each for name, each in taking.changes.items()}

    def close(self) -> None:
        """Remove the copy. Safe to call twice."""
        self._temporary.close()

    def real_is_as_known(self, real: Folder, name: str) -> bool:
        """Whether the user did not change a file since the copy was made."""
        known = self._known.get(name)
        return _state_of(real, name) == (known[0] if known is not None else None)

    def is_known(self, name: str) -> bool:
        """Whether the real folder had this file, or one below this folder, when the command began."""
        return name in self._known or any(each.startswith(f"{name}/") for each in self._known)

    @property
    def writable(self) -> tuple[str, ...]:
        """The folders that commands may write."""
        return self._writable


class _Refused(Exception):
    """Why a change stays out of the real folder."""


class _TakingOver:
    """One pass over the changes in a copy."""

    def __init__(
        self,
        owner: GitCopy,
        real: Folder,
        copy: Folder,
        found: Mapping[str, State],
        names: list[str],
        bases: set[str],
    ) -> None:
        self.owner = owner
        self.real = real
        self.copy = copy
        self.found = found
        self.names = names
        self.bases = bases
        self.said: list[str] = []
        self.changes: Changes = {}
        self.left_out: list[str] = []
        self.edited: set[str] = set()
        """Files of which the real folder has another content than the copy."""

    def run(self) -> None:
        if not {"HEAD", "config"} <= self.found.keys():
            self._say("the command deleted or replaced it; it stays as it was")
            self.left_out += self.names
            return
        ready: list[tuple[str, bytes | None]] = []
        broken: set[str] = set()
        for name in self.names:
            try:
                ready.append((name, self._judged(name)))
            except (_Refused, OSError, ValueError) as error:
                why = error.strerror if isinstance(error, OSError) else str(error)
                self._say(f"{name} stays as it was: {why}")
                self.left_out.append(name)
                base, rest = _split(name, self.bases)
                if rest.split("/")[0] in _OPERATIONS:
                    broken.add(base + rest.split("/")[0] + "/")
        for name, _ in ready:
            if name.startswith(tuple(broken)):
                self.left_out.append(name)
        ready = [each for each in ready if not each[0].startswith(tuple(broken))]
        if any(data is not None for _, data in ready):
            try:
                self._take_objects()
            except (_Refused, OSError) as error:
                why = error.strerror if isinstance(error, OSError) else str(error)
                self._say(f"nothing of this command is kept in .git: {why}")
                self.left_out += [name for name, _ in ready]
                return
        # Deletions come first, so that a branch `a/b` can take the place of a branch `a`; HEAD and the index come last.
        for name, data in sorted(
            ready, key=lambda each: (each[1] is not None, _split(each[0], self.bases)[1] in ("HEAD", "index"))
        ):
            try:
                self._put(name, data)
            except (_Refused, OSError) as error:
                why = error.strerror if isinstance(error, OSError) else str(error)
                self._say(f"{name} stays as it was: {why}")
                self.left_out.append(name)

    def _say(self, text: str) -> None:
        self.said.append(f"{self.owner.path}: {text}")

    def _judged(self, name: str) -> bytes | None:
        """The content that a changed file may get in the real folder; None to delete it. Raises `_Refused`."""
        base, rest = _split(name, self.bases)
        gone = name not in self.found
        only = self.owner.worktree
        # A worktree has its own folder in the repository, and shares the rest with the others.
        if only and base != f"worktrees/{only}/" and (base or not _SHARED.match(rest)):
            raise _Refused("it belongs to another worktree")
        if base.startswith("worktrees/") and rest in ("gitdir", "commondir", "locked"):
            return self._worktree(base, rest, name, gone)
        if _is_settings(name, self.bases):
            if gone and base and not any(each.startswith(base) for each in self.found):
                raise _Refused("the repository of a submodule is not deleted")
            return self._settings(base, name, gone)
        largest = largest_of(rest)
        if largest is None or rest == "info/attributes":
            raise _Refused("git runs what it says, or does not know it")
        if gone:
            if rest == "HEAD" and any(each.startswith(base) for each in self.found):
                raise _Refused("without it the folder is no repository")
            return None
        data = self._read(name, largest)
        if rest in _TODO:
            clean = todo_without_commands(data)
            if clean != data:
                self._say(
                    f"steps in {name} that run a command are comments now, because they would run outside of the sandbox"
                )
                self.edited.add(name)
                data = clean
        why = why_file_harmful(rest, data)
        if why is not None:
            raise _Refused(f"it {why}")
        if rest == "index":
            self._check_submodules(base, name, data)
            self._name_hidden(name, data)
        return data

    def _read(self, name: str, largest: int) -> bytes:
        with self.copy.file(name) as file:
            data = file.read(largest + 1)
        if len(data) > largest:
            raise _Refused(f"it is larger than {largest:,} bytes")
        return data

    def _check_submodules(self, base: str, name: str, data: bytes) -> None:
        """git enters each submodule that the index names. Where a command made a repository, it must be harmless."""
        if base:
            return
        before = _content(self.real, name) or b""
        top = os.path.dirname(self.owner.path)
        for path in set(read_index(data)) - set(read_index(before)):
            link = os.path.join(top, path, ".git")
            if os.path.realpath(os.path.dirname(link)) != os.path.join(top, path):
                raise _Refused(f"it names a submodule {path}, which is a link")
            if os.path.lexists(link) and not os.path.isfile(link):
                why = why_harmful(link, writable=self.owner.writable)
                if why is not None:
                    raise _Refused(f"it names a submodule {path}, and there {why}")

    def _name_hidden(self, name: str, data: bytes) -> None:
        before = _content(self.real, name) or b""
        more = sorted(hidden_entries(data) - hidden_entries(before))
        if more:
            rest = f" and {len(more) - 5} more" if len(more) > 5 else ""
            self._say(
                f"git does not look at changes of {', '.join(more[:5])}{rest} any more (assume-unchanged or skip-worktree)"
            )

    def _worktree(self, base: str, rest: str, name: str, gone: bool) -> bytes | None:
        folder = base.rstrip("/")
        if gone:
            if any(each.startswith(base) for each in self.found):
                raise _Refused("it says which repository the worktree belongs to")
            return None
        data = self._read(name, 4096)
        if self.owner.is_known(f"{folder}/{rest}") and rest != "locked":
            raise _Refused("it says which repository the worktree belongs to")
        text = os.fsdecode(data).rstrip("\n")
        if rest == "commondir" and text != "../..":
            raise _Refused("it leads to another repository")
        if rest == "gitdir":
            where = os.path.normpath(os.path.join(self.owner.path, folder, text))
            if os.path.basename(where) != ".git" or not within_any(os.path.realpath(where), self.owner.writable):
                raise _Refused(f"it names {where}, which commands may not write")
        return data

    def _settings(self, base: str, name: str, gone: bool) -> bytes | None:
        if gone or not name.endswith("config"):
            raise _Refused("settings of git change only one by one")
        new = self._read(name, 1024 * 1024)
        where = os.path.join(self.owner.path, base).rstrip("/")
        top = os.path.dirname(self.owner.path)
        if not self.owner.is_known(name):
            why = why_settings_harmful(parse_settings(new), where, top, self.owner.writable)
            if why is not None:
                raise _Refused(why)
            return new
        with self.real.file(name) as file:
            old = file.read(1024 * 1024)
        after = _changed_settings(old, new)
        before, now = parse_settings(old), parse_settings(after)
        why = why_settings_change_harmful(before, now, where, top, self.owner.writable)
        if why is not None:
            raise _Refused(why)
        self.edited.add(name)
        for key, value in now:
            if (key, value) not in before and not key.startswith("branch."):
                self._say(f"new setting {key} = {value}")
        return after

    # --- objects

    def _take_objects(self) -> None:
        used = {_split(name, self.bases)[0] for name in self.found}
        for base in sorted(used & self.bases):
            try:
                objects = self.copy.beneath(f"{base}objects")
            except OSError:
                continue
            with objects:
                self._take_from(base, objects)

    def _take_from(self, base: str, objects: Folder) -> None:
        known = self.owner.is_known(f"{base}HEAD")
        with self.real.beneath(f"{base}objects", make=True) as target:
            packs = objects.sub("pack")
            if packs is not None:
                with packs:
                    packed = [each.name for each in packs.entries() if re.match(r"pack-[0-9a-f]+\.", each.name)]
                    if packed and known:
                        for each in packed:
                            packs.unlink(each)
                        raise _Refused("it packed objects (git gc, git repack), which is not possible here")
                    for each in sorted(packed, key=lambda n: n.endswith(".idx")):
                        with packs.file(each) as file, target.beneath("pack", make=True) as into:
                            _stream(file.read, into, each)
            for prefix in sorted(os.listdir(objects.fd)):
                if re.fullmatch(r"[0-9a-f]{2}", prefix) and (fan := objects.sub(prefix)) is not None:
                    with fan, target.beneath(prefix, make=True) as into:
                        for loose in sorted(os.listdir(fan.fd)):
                            if _LOOSE.match(loose):
                                _take_object(fan, loose, prefix, into)

    # --- to the real folder

    def _put(self, name: str, data: bytes | None) -> None:
        if not self.owner.real_is_as_known(self.real, name):
            raise _Refused("it changed meanwhile, and yours is kept")
        above, _, last = name.rpartition("/")
        if data is None and above:
            try:
                folder = self.real.beneath(above)
            except OSError:
                self.changes[name] = (None, None)
                return
        else:
            folder = self.real.beneath(above, make=True)
        with folder:
            before: bytes | None = None
            with suppress(OSError), os.fdopen(folder.open_file(last), "rb") as file:
                before = file.read()
            with _GitLock(folder, last) as lock:
                if not self.owner.real_is_as_known(self.real, name):
                    raise _Refused("it changed meanwhile, and yours is kept")
                if data is None:
                    folder.unlink(last)
                else:
                    lock.put(data)
        self.changes[name] = (before, data)
        while data is None and above.partition("/")[0] not in ("", "objects") and above.count("/") > 0:
            with suppress(OSError):
                os.rmdir(os.path.join(self.owner.path, above))
            above = above.rpartition("/")[0]


class _GitLock:
    """git's own lock of a file: ``NAME.lock``, which takes the place of the file at the end. Raises `_Refused`."""

    def __init__(self, folder: Folder, name: str) -> None:
        self.folder = folder
        self.name = name
        self.fd = -1

    def __enter__(self) -> _GitLock:
        end = time.monotonic() + _LOCK_SECONDS
        while self.fd < 0:
            try:
                self.fd = os.open(
                    f"{self.name}.lock",
                    os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC,
                    0o666,
                    dir_fd=self.folder.fd,
                )
            except FileExistsError:
                if time.monotonic() > end:
                    raise _Refused(f"another git has locked it ({self.name}.lock)") from None
                time.sleep(0.02)
        return self

    def put(self, data: bytes) -> None:
        """Put this content into the file."""
        left = memoryview(data)
        while left:
            left = left[os.write(self.fd, left) :]
        with suppress(OSError):
            os.fchmod(self.fd, stat.S_IMODE(os.stat(self.name, dir_fd=self.folder.fd, follow_symlinks=False).st_mode))
        os.rename(f"{self.name}.lock", self.name, src_dir_fd=self.folder.fd, dst_dir_fd=self.folder.fd)

    def __exit__(self, *_: object) -> None:
        mine = os.fstat(self.fd).st_ino
        os.close(self.fd)
        with suppress(OSError):
            if os.stat(f"{self.name}.lock", dir_fd=self.folder.fd, follow_symlinks=False).st_ino == mine:
                self.folder.unlink(f"{self.name}.lock")


_GONE: State = (0, 0, 0, 0, 0)


def _inside(folder: str) -> str:
    return f"{OBJECTS}/{hashlib.blake2b(os.fsencode(folder.rstrip('/')), digest_size=8).hexdigest()}"


def _walk(top: str, bases: set[str], *, loose: bool = False) -> Iterator[tuple[str, State]]:
    """The files in a git folder but its objects, by name. ``bases`` gets the folders with objects ("" or "modules/x/").

    With ``loose`` it is a copy, which a command may have filled; links and special files count as files there.
    """
    stack, count = [""], 0
    while stack:
        at = stack.pop()
        try:
            with os.scandir(os.path.join(top, at)) as entries:
                listed = list(entries)
        except OSError:
            continue
        names = {each.name for each in listed}
        holds = "HEAD" in names and "objects" in names
        if holds:
            bases.add(at)
        for each in listed:
            count += 1
            if count > _MOST_FILES:
                raise SandboxError(f"{top} has more than {_MOST_FILES:,} files besides its objects")
            name = at + each.name
            if each.is_dir(follow_symlinks=False):
                if not (holds and each.name == "objects") and name not in ("objects", "lfs"):
                    stack.append(f"{name}/")
            elif loose or (each.is_file(follow_symlinks=False) and not each.name.endswith(".lock")):
                with suppress(OSError):
                    yield name, _state(each.stat(follow_symlinks=False))


def _state(status: os.stat_result) -> State:
    return status.st_ino, status.st_mode, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _state_of(folder: Folder, name: str) -> State | None:
    above, _, last = name.rpartition("/")
    try:
        with folder.beneath(above) as inner:
            entry = inner.entry(last)
    except OSError:
        return None
    return _state(entry.status) if entry is not None else None


def _write(folder: Folder, name: str, data: bytes, mode: int) -> None:
    """Write a file of the copy. What a command put in the way is removed."""
    above, _, last = name.rpartition("/")
    _make(folder, above)
    with folder.beneath(above, make=True) as inner:
        entry = inner.entry(last)
        if entry is not None and entry.is_folder:
            inner.remove_tree(last)
        draft = f".{secrets.token_hex(8)}"
        with os.fdopen(inner.open_file(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(data)
            os.fchmod(file.fileno(), mode)
        os.rename(draft, last, src_dir_fd=inner.fd, dst_dir_fd=inner.fd)


def _make(folder: Folder, name: str) -> None:
    """Make a folder of the copy. What a command put in the way is removed."""
    at = ""
    for part in name.split("/") if name else []:
        with folder.beneath(at) as inner:
            entry = inner.entry(part)
            if entry is not None and not entry.is_folder:
                inner.unlink(part)
        at = f"{at}/{part}"
        folder.beneath(at, make=True).close()


def _content(folder: Folder, name: str) -> bytes | None:
    try:
        with folder.file(name) as file:
            return file.read(_LARGEST_FILE)
    except OSError:
        return None


def _delete(folder: Folder, name: str) -> None:
    above, _, last = name.rpartition("/")
    with suppress(OSError), folder.beneath(above) as inner:
        entry = inner.entry(last)
        if entry is not None and entry.is_folder:
            inner.remove_tree(last)
        else:
            inner.unlink(last)


def _split(name: str, bases: Iterable[str]) -> tuple[str, str]:
    """The git folder of a file ("", "modules/x/", "worktrees/x/"), and its name there. ``bases``: the folders with objects."""
    parts = name.split("/")
    if parts[0] == "worktrees" and len(parts) > 2:
        return f"worktrees/{parts[1]}/", "/".join(parts[2:])
    base = ""
    while name.startswith(f"{base}modules/"):
        below = [each for each in bases if each.startswith(f"{base}modules/") and name.startswith(each)]
        if not below:
            break
        base = min(below, key=len)
    return base, name.removeprefix(base)


def _is_settings(name: str, bases: Iterable[str]) -> bool:
    return _split(name, bases)[1] in ("config", "config.worktree")


def _shown_settings(data: bytes, *, own: bool) -> bytes:
    text = os.fsdecode(data)
    clean = without_credentials(text)
    clean += "" if clean.endswith("\n") or not clean else "\n"
    return os.fsencode(clean + (OWN_SETTINGS if own else ""))


def _changed_settings(old: bytes, new: bytes) -> bytes:
    """What the real settings become if a command changed the shown ones to ``new``. Credentials stay. Raises `_Refused`."""
    shown = os.fsdecode(_shown_settings(old, own=False))
    text = os.fsdecode(new)
    if OWN_SETTINGS not in text:
        raise _Refused("a setting that Cantrip needs was changed")
    wanted = text.replace(OWN_SETTINGS, "", 1)
    real, before, after = (each.splitlines(keepends=True) for each in (os.fsdecode(old), shown, wanted))
    if len(real) != len(before):
        raise _Refused("the settings have credentials in more than one line")
    lines: list[str] = []
    for kind, a, b, c, d in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        lines += real[a:b] if kind == "equal" else after[c:d]
    return os.fsencode("".join(lines))


def _take_object(fan: Folder, name: str, prefix: str, into: Folder) -> None:
    """Move a loose object into the real folder, if its content has its name. One that is there already stays."""
    if into.entry(name) is None:
        with os.fdopen(fan.open_file(name), "rb") as file:
            hasher = hashlib.sha1(usedforsecurity=False) if len(name) == 38 else hashlib.sha256()
            unpacked, data = zlib.decompressobj(), bytearray()
            try:
                while piece := file.read(1 << 20):
                    data += piece
                    if len(data) > _LARGEST_FILE:
                        raise _Refused("an object is too large")
                    while piece:
                        hasher.update(unpacked.decompress(piece, 1 << 20))
                        piece = unpacked.unconsumed_tail
            except zlib.error:
                raise _Refused(f"the object {prefix}{name} is damaged") from None
        if not unpacked.eof or unpacked.unused_data or hasher.hexdigest() != prefix + name:
            raise _Refused(f"the object {prefix}{name} is damaged")
        _stream(io.BytesIO(data).read, into, name)
    fan.unlink(name)


def _stream(read: Callable[[int], bytes], into: Folder, name: str) -> None:
    draft = f"tmp_{secrets.token_hex(8)}"
    with os.fdopen(into.open_file(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o444), "wb") as file:
        while piece := read(1 << 20):
            file.write(piece)
    os.rename(draft, name, src_dir_fd=into.fd, dst_dir_fd=into.fd)


_copies: dict[tuple[int, str, tuple[str, ...], str], GitCopy] = {}
_making = threading.Lock()


def git_copy(path: str, writable: tuple[str, ...], worktree: str = "") -> GitCopy | None:
    """The copy of a git folder, ready for the next command. All sandboxes of this process with these folders share it.

    None if it cannot be copied: then it stays read-only.
    """
    key = (os.getpid(), path, writable, worktree)
    try:
        with _making:
            found = _copies.get(key)
            if found is not None and not os.path.isdir(found.copy):
                found = None
            if found is None:
                found = _copies[key] = GitCopy(path, writable, worktree)
                return found
        found.refresh()
    except (OSError, SandboxError):
        return None
    return found


def take_over(copies: Iterable[GitCopy]) -> list[bytes]:
    """Take over what commands changed. Returns what to say about it, as lines of a command's output."""
    lines: list[str] = []
    for each in copies:
        try:
            said, _ = each.take_over()
        except (OSError, SandboxError) as error:
            lines.append(f"cantrip: {each.path} could not be changed: {error}\n")
            continue
        lines += [f"cantrip: {text}\n" for text in said]
    return [os.fsencode(line) for line in lines]
