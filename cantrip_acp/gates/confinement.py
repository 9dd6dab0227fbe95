"""Path confinement: a gate can only use paths below its root folder, even if other programs move files at the same time.

A path is opened name by name from a descriptor of the root, and the system follows no links. Links are read here and
resolved as text, below the root. The final file is opened through the descriptor of its folder. So if a command replaces a
folder by a link between two steps, the gate fails but does not leave the root. Magic links such as ``/proc/self/fd/3`` are
also treated as text. Pipes, sockets and devices are refused before they are opened.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import TYPE_CHECKING, NoReturn

from cantrip_acp.files import guarded, hidden_paths, paths, scratch_copy
from cantrip_acp.files.env_files import is_env_file, masked_descriptor
from cantrip_acp.files.protected_paths import (
    is_git_config,
    plain,
    separate_git_folder,
    why_hidden,
    why_protected,
    without_credentials,
)
from cantrip_acp.files.tracked_files import is_tracked
from cantrip_acp.types.errors import GateError, SandboxError
from cantrip_acp.types.records import Location

if TYPE_CHECKING:
    from cantrip_acp.gates.contract import GateContext
    from cantrip_acp.types.records import Location

_MAX_LINKS = 40
_MAX_STEPS = 10_000
"""The most folders opened for one path. Each ``..`` starts again at the root, so a long path could take seconds."""
_REPLACED_LINKS = 16
"""The number of attempts to resolve a path while links in it are being replaced."""
_LONGEST = 4_096
"""The most bytes of a whole path. Descriptors allow deeper folders, but other programs could not remove them."""
_KERNEL = ("proc", "sys", "dev")


class Root:
    """The folder that a gate is confined to.

    ``path`` is its absolute path as it was configured. It has two parts: ``base``, which no command can replace, and below
    it ``inner``, which is checked name by name like a path from an entity. ``changeable`` are the folders in which commands
    may replace files: the workspace, and the folders that wards make writable.
    """

    __slots__ = ("_absolute_is_root", "_allowed", "_hidden", "_others", "_own", "base", "inner", "path")

    def __init__(
        self,
        path: str,
        changeable: Sequence[str] = (),
        *,
        absolute_is_root: bool = False,
        others: Sequence[str] = (),
        own: tuple[frozenset[str], str] | None = None,
        allowed: tuple[str, ...] = (),
        hidden: tuple[str, ...] = (),
    ) -> None:
        """``others`` are more root folders, for absolute paths inside them. ``own`` is `paths.own()`. ``allowed`` is the
        ward ``allow_protected``, ``hidden`` the ward ``hidden_paths``."""
        self._allowed = allowed
        self._hidden = hidden
        self.path = _plain(path)
        above = [folder for folder in map(_plain, changeable) if _below(self.path, folder) is not None]
        self.base = min(above, key=len, default=self.path)
        self.inner = tuple(_below(self.path, self.base) or ())
        self._absolute_is_root = absolute_is_root
        self._others = tuple(Root(other, changeable, own=own, allowed=allowed, hidden=hidden) for other in others)
        # A root inside this program's own folders is allowed, for example for the files of a fork.
        real = _real(self.path)
        states, config = own if own is not None else paths.own()
        self._own = tuple(
            (tuple(below), writing)
            for folder, writing in (*((state, False) for state in states), (config, True))
            if (below := _below(folder, real))
        )

    @staticmethod
    def of(context: GateContext) -> Root:
        """The root of a call: the dependency ``root`` (relative to the workspace), or by default the workspace.

        With the dependency ``absolute_is_root``, absolute paths start at the root, as if it were a separate file
        system. Raises `GateError` if there is neither a root nor a workspace.
        """
        dependencies, workspace, wards = context.dependencies, context.workspace, context.wards
        root = dependencies.get("root")
        others: tuple[str, ...] = ()
        if root is None:
            others = tuple(map(os.fspath, context.folders))
            if workspace is None:
                raise GateError("this gate has no folder to work in: bind 'root', or give the circle a workspace")
            root = workspace
        root, changeable = os.fspath(root), (*wards.bash_writable_paths, *wards.code_writable_paths)
        if workspace is not None:
            changeable = (os.fspath(workspace), *others, *changeable)
            root = os.path.join(workspace, root)
        if not os.path.isabs(root):
            raise GateError(
                f"the root {root!r} of this gate is relative, and there is no workspace that it could be in"
            )
        absolute_is_root = bool(dependencies.get("absolute_is_root"))
        return _root(root, changeable, absolute_is_root, others, paths.own(), wards.allow_protected, wards.hidden_paths)

    def check(self) -> None:
        """Raise `GateError` if the root does not exist or cannot be opened."""
        os.close(self._open(()))

    def lexical(self, path: str) -> str | None:
        """Resolve ``path`` as text, without reading the disk. Returns the absolute path; None if it is outside the root."""
        names = self._parts(path)
        if names is None:
            other = self._other(path)
            return other.lexical(path) if other is not None else None
        parts: list[str] = []
        for name in names:
            if name != "..":
                parts.append(name)
            elif parts:
                parts.pop()
            else:
                return None
        return os.path.join(self.path, *parts)

    @contextmanager
    def find(self, path: str, *, writing: bool = False, masking: bool = False) -> Iterator[PathHandle]:
        """Open a handle of ``path`` for a ``with`` block. The file need not exist.

        Raises `GateError` for paths that leave the root or are hidden. With ``writing``, also for protected paths. With
        ``masking``, a file ``.env`` whose values can be masked is not hidden, and is opened with masked values.
        """
        place = self._walk(path, writing)
        why = place.why_hidden
        if why is not None and not (masking and place.masked() is not None):
            os.close(place.folder)
            raise GateError(f"{quoted_path(path)} {why}.")
        try:
            yield place
        finally:
            os.close(place.folder)

    def descend(self, names: Sequence[str]) -> int:
        """Open the folder with these names below ``base`` for listing, without following links. The caller closes it."""
        folder = self._open_base()
        try:
            for name in names:
                folder = replace_descriptor(folder, os.open(name, WALK, dir_fd=folder))
            return os.open(".", LIST, dir_fd=folder)
        except OSError as error:
            raise os_failure(error, "/".join(names) or ".") from None
        finally:
            os.close(folder)

    @property
    def opened(self) -> str:
        """The real path of the root: the path itself, or that of its copy while scratch copies are used."""
        held = scratch_copy.current()
        return self.path if held is None else held.at(self.path)

    def _walk(self, path: str, writing: bool) -> PathHandle:
        if not path:
            raise GateError("the path is empty", "give a path below the gate's folder, such as 'README.md' or '.'")
        shown = quoted_path(path)
        if "\0" in path:
            raise GateError(f"the path {shown} has a NUL character, which no file name can have")
        try:
            if len(os.fsencode(path)) >= _LONGEST:
                raise GateError(f"{shown} is too long for a path")
        except UnicodeEncodeError:
            raise GateError(f"the path {shown} has a character that no file name can have") from None
        first = self._parts(path)
        if first is None:
            other = self._other(path)
            if other is not None:
                return other._walk(path, writing)
            self._escape(shown)
        held = scratch_copy.current()
        if writing and held is not None:
            try:
                held.add((self.base,))
            except SandboxError as error:
                raise GateError(str(error)) from None
        pending, done, links = first[::-1], list[str](), list[str]()
        steps = 0
        folder = self._open(())
        try:
            while pending:
                steps += 1
                if steps > _MAX_STEPS:
                    raise GateError(f"{shown} leads through too many folders and links", "give a shorter path")
                name = pending.pop()
                if name == "..":
                    if not done:
                        self._escape(shown)
                    done.pop()
                    if not pending or pending[-1] != "..":
                        steps += len(done)
                        folder = replace_descriptor(folder, self._open(tuple(done)))
                    continue
                if pending:
                    try:
                        child = os.open(name, WALK, dir_fd=folder)
                    except FileNotFoundError:
                        if ".." in pending:
                            raise GateError(f"no such folder: {'/'.join([*done, name])!r}, in {shown}") from None
                        return self._make_handle(path, done, [name, *pending[::-1]], links, folder, None, writing)
                    except OSError as error:
                        if error.errno not in (errno.ENOTDIR, errno.ELOOP):
                            raise
                    else:
                        folder = replace_descriptor(folder, child)
                        done.append(name)
                        continue
                else:
                    try:
                        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
                    except FileNotFoundError:
                        return self._make_handle(path, done, [name], links, folder, None, writing)
                    if not stat.S_ISLNK(status.st_mode):
                        return self._make_handle(path, [*done, name], [], links, folder, status, writing)
                try:
                    target = os.readlink(name, dir_fd=folder)
                except OSError as error:
                    if error.errno == errno.EINVAL:
                        raise GateError(f"{'/'.join([*done, name])!r} is not a folder, in {shown}") from None
                    raise
                links.append(name)
                if len(links) > _MAX_LINKS:
                    raise GateError(f"{shown} leads through too many symbolic links, probably in a circle")
                onward = self._parts(target)
                if onward is None:
                    self._escape(shown, link="/".join([*done, name]))
                if target.startswith("/"):
                    done.clear()
                    folder = replace_descriptor(folder, self._open(()))
                pending += onward[::-1]
            return self._make_handle(path, done, [], links, folder, os.stat(".", dir_fd=folder), writing, name=".")
        except OSError as error:
            os.close(folder)
            raise os_failure(error, path) from None
        except BaseException:
            os.close(folder)
            raise

    def _make_handle(
        self,
        path: str,
        done: list[str],
        missing: list[str],
        links: list[str],
        folder: int,
        status: os.stat_result | None,
        writing: bool,
        name: str | None = None,
    ) -> PathHandle:
        parts = (*done, *missing)
        if len(os.fsencode(os.path.join(self.path, *parts))) >= _LONGEST:
            raise GateError(f"{quoted_path(path)} is too long for a path")
        if parts and parts[0] in _KERNEL and self.path == "/":
            raise GateError(f"{quoted_path(path)} belongs to the kernel; gates cannot use it")
        inner = (*self.inner, *parts)
        mode = status.st_mode if status is not None else None
        why = why_hidden(inner, mode)
        if why is not None and status is not None and self.is_tracked(inner, folder=folder):
            why = None
        masked = None
        if why is not None and not writing and not links and status is not None and is_env_file(parts[-1]):
            # Whether its values can be masked is seen when it is read.
            masked, why = why, None
        why = why or self._why_own_folder(parts, writing)
        if why is None and self.hides(inner):
            why = "is hidden by the ward hidden_paths. Work without it"
            if guarded.is_held(os.path.join(self.base, *inner)):
                why = "is open in this program, which keeps its records there, and is hidden. Work without it"
        for link in links:
            # A link named .env points to a file with secrets, even if that file has another name.
            why = why or (why_hidden((link,), mode) if mode is None or stat.S_ISREG(mode) else None)
        if why is None and writing:
            home = paths.within(_real(os.path.expanduser("~")), self.base)
            why = why_protected(inner, self._allowed, home=home) or self._why_git_folder(parts)
            if why is None and (named := guarded.why_named(os.path.join(self.base, *inner))) is not None:
                why = f"cannot be written here, because {named}. Say in your answer what should be changed there"
        if why is not None:
            raise GateError(f"{quoted_path(path)} {why}.")
        return PathHandle(self, path, parts, folder, name or parts[-1], status, tuple(missing), masked)

    def _why_git_folder(self, parts: Sequence[str]) -> str | None:
        found = separate_git_folder(_real(self.path))
        below = _below(found, _real(self.path)) if found is not None else None
        if below is None or tuple(map(plain, parts[: len(below)])) != tuple(map(plain, below)):
            return None
        return (
            "is protected: it is in the git folder that the file .git names, and git runs the hooks and the programs that its "
            "settings name, so only a person changes it. Say in your answer what should be changed there"
        )

    def hides(self, inner: Sequence[str]) -> bool:
        """Whether the ward ``hidden_paths`` hides the file or folder with these names below ``base``, or it is open here."""
        path = os.path.join(self.base, *inner)
        return guarded.is_held(path) or (bool(self._hidden) and hidden_paths.hides(self._hidden, path))

    def is_tracked(self, inner: Sequence[str], *, fd: int | None = None, folder: int | None = None) -> bool:
        """Whether git tracks the file with these names below ``base`` with its present content, so that it is not hidden.

        ``fd``: the open file. ``folder``: its open folder.
        """
        return is_tracked(os.path.join(_real(self.base), *inner), fd=fd, folder=folder)

    def _why_own_folder(self, parts: Sequence[str], writing: bool) -> str | None:
        """Say why a path in this program's own folders is refused: files there decide what is allowed. None if it is not."""
        for names, only_writing in self._own:
            if (writing or not only_writing) and tuple(map(plain, parts[: len(names)])) == tuple(map(plain, names)):
                return (
                    "belongs to this program: it has settings, sessions and permissions, so only a person may change it. "
                    "Say in your answer what should be changed there"
                )
        return None

    def _parts(self, path: str) -> list[str] | None:
        """The names of ``path`` below the root; None if it is an absolute path outside the root."""
        if not path.startswith("/"):
            return _names(path)
        for spelling in (self.path, _real(self.path)):
            below = _below(path, spelling)
            if below is not None:
                return below
        return _names(path) if self._absolute_is_root else None

    def _other(self, path: str) -> Root | None:
        """The other root that contains an absolute path."""
        return next((root for root in self._others if root._parts(path) is not None), None)

    def _open(self, parts: Sequence[str]) -> int:
        """Open a folder below the root. The caller closes the descriptor."""
        folder = self._open_base()
        try:
            for name in (*self.inner, *parts):
                folder = replace_descriptor(folder, os.open(name, WALK, dir_fd=folder))
        except OSError as error:
            os.close(folder)
            where = repr("/".join(parts)) if parts else "the gate's folder"
            linked = error.errno in (errno.ENOTDIR, errno.ELOOP)
            why = "it leads through a symbolic link, or is not a folder" if linked else os_reason(error)
            raise GateError(f"{where} cannot be used: {why}") from None
        return folder

    def _open_base(self) -> int:
        try:
            held = scratch_copy.current()
            return os.open(self.base if held is None else held.at(self.base), WALK & ~os.O_NOFOLLOW)
        except OSError as error:
            raise GateError(f"the gate's folder cannot be used: {os_reason(error)}") from None

    def _escape(self, shown: str, link: str | None = None) -> NoReturn:
        by = f" (by the symbolic link {link!r})" if link else ""
        raise GateError(
            f"{shown} leads outside the folder that this gate works in{by}",
            "Give a path inside it, relative to it, such as 'src/main.py'",
        )


def _plain(path: str) -> str:
    """Normalize an absolute path. Two leading slashes become one: POSIX gives them another meaning, but Linux does not."""
    return "/" + os.path.normpath(path).lstrip("/")


def _real(path: str) -> str:
    """Resolve all links in ``path``. Try again if another program replaces a link at the same time, which raises an
    `OSError` in Python before 3.13."""
    for _ in range(_REPLACED_LINKS):
        try:
            return os.path.realpath(path)
        except OSError:
            continue
    raise GateError(f"another program keeps replacing links in {path}; try again later")


def _names(path: str) -> list[str]:
    return [name for name in path.split("/") if name not in ("", ".")]


def _below(path: str, folder: str) -> list[str] | None:
    """The names of an absolute path below an absolute folder; None if it is not below the folder."""
    parts, root = _names(path), _names(folder)
    return parts[len(root) :] if parts[: len(root)] == root else None


@lru_cache(maxsize=64)
def _root(
    path: str,
    changeable: tuple[str, ...],
    absolute_is_root: bool,
    others: tuple[str, ...],
    own: tuple[frozenset[str], str],
    allowed: tuple[str, ...],
    hidden: tuple[str, ...],
) -> Root:
    return Root(
        path, changeable, absolute_is_root=absolute_is_root, others=others, own=own, allowed=allowed, hidden=hidden
    )


def display_path(path: str, context: GateContext, line: int | None = None) -> tuple[str, tuple[Location, ...]]:
    """The path as text for a title, and its location (empty if it leads out of the root).

    The user decides by this title whether a write is allowed, so a link is shown with its target.
    """
    root = Root.of(context)
    try:
        with root.find(path) as place:
            shown, absolute = place.shown, place.absolute
        lexical = root.lexical(path)
        if lexical is not None and valid_text(lexical) != absolute:
            shown = f"{one_line(path)} → {shown}"
        return shown, (Location(absolute, line),)
    except GateError:
        lexical = root.lexical(path)
        return one_line(path), (Location(valid_text(lexical), line),) if lexical is not None else ()


WALK = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
"""Flags to open a folder on the path, a folder to list, and a file. Between two checks, a file may be replaced by a pipe or
a terminal. NONBLOCK prevents that a pipe blocks us. NOCTTY prevents that a terminal becomes ours.
"""

_COLON = re.compile(r":(?=\s|$)")
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\U000e0000-\U000e007f]")
"""Characters that move a cursor, end a line, change the text direction, or are invisible."""
_LARGEST_CONFIG = 1024 * 1024
_NEAR_NAMES = 500
"""The most names of a folder that are searched for a similar name."""
_KINDS = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a character device"),
    (stat.S_ISBLK, "a block device"),
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISLNK, "a symbolic link"),
)


class PathHandle:
    """The target of a path: ``name`` in the open folder ``folder`` (a descriptor). It is never a link.

    ``parts`` are its real names below the root. ``status`` is None if the target does not exist. Then ``missing`` are the
    names that do not exist, including the last one. ``why_hidden`` is the reason why only a masked copy may be read, or None.
    """

    __slots__ = ("folder", "missing", "name", "parts", "path", "root", "status", "why_hidden")

    def __init__(
        self,
        root: Root,
        path: str,
        parts: tuple[str, ...],
        folder: int,
        name: str,
        status: os.stat_result | None,
        missing: tuple[str, ...],
        why_hidden: str | None = None,
    ) -> None:
        self.root, self.path, self.parts, self.folder = root, path, parts, folder
        self.name, self.status, self.missing = name, status, missing
        self.why_hidden = why_hidden

    def masked(self) -> str | None:
        """The text of an environment file with masked values; None if it cannot be masked."""
        try:
            descriptor = os.open(self.name, READ, dir_fd=self.folder)
        except OSError:
            return None
        try:
            return masked_descriptor(descriptor)
        finally:
            os.close(descriptor)

    @property
    def shown(self) -> str:
        """The path below the root for people, such as ``src/app.py`` or ``.``. It is valid text on one line."""
        return one_line("/".join(self.parts)) or "."

    @property
    def absolute(self) -> str:
        return valid_text(os.path.join(self.root.path, *self.parts))

    def location(self, line: int | None = None) -> Location:
        from cantrip_acp.types.records import Location

        return Location(self.absolute, line)

    def open_file(self) -> tuple[int, os.stat_result]:
        """Open a regular file for reading. Returns descriptor and status. The caller closes the descriptor."""
        if self.status is None:
            raise self.no_such("file")
        if not stat.S_ISREG(self.status.st_mode):
            raise self._wrong_kind(self.status, "file")
        if self.why_hidden is not None:
            text = self.masked()
            if text is None:
                raise GateError(f"{quoted_path(self.path)} {self.why_hidden}.")
            return _copy_of(text.encode())
        try:
            descriptor = os.open(self.name, READ, dir_fd=self.folder)
        except OSError as error:
            raise os_failure(error, self.path) from None
        status = os.fstat(descriptor)
        problem = None
        if not stat.S_ISREG(status.st_mode):
            problem = self._wrong_kind(status, "file")
        else:
            why = why_hidden(self.parts, status.st_mode)
            if why is not None and self.root.is_tracked((*self.root.inner, *self.parts), fd=descriptor):
                why = None
            problem = GateError(f"{quoted_path(self.path)} {why}.") if why is not None else None
        if problem is not None:
            os.close(descriptor)
            raise problem
        if is_git_config((*self.root.inner, *self.parts)):
            return copy_without_credentials(descriptor)
        return descriptor, status

    def open_folder(self) -> int:
        """Open the folder for listing. The caller closes the descriptor."""
        if self.status is None:
            raise self.no_such("folder")
        if not stat.S_ISDIR(self.status.st_mode):
            raise self._wrong_kind(self.status, "folder")
        try:
            return os.open(self.name, LIST, dir_fd=self.folder)
        except OSError as error:
            raise os_failure(error, self.path) from None

    def make_parents(self) -> None:
        """Create the missing parent folders."""
        while len(self.missing) > 1:
            name = self.missing[0]
            try:
                with suppress(FileExistsError):
                    os.mkdir(name, dir_fd=self.folder)
                self.folder = replace_descriptor(self.folder, os.open(name, WALK, dir_fd=self.folder))
            except OSError as error:
                raise os_failure(error, self.path, "make its folder") from None
            self.missing = self.missing[1:]

    def no_such(self, kind: str) -> GateError:
        """Make the error for a missing path. It suggests similar names, if there are any."""
        import difflib

        name, parent = self.missing[0], self.parts[: len(self.parts) - len(self.missing)]
        what = kind if len(self.missing) == 1 else "folder"
        where = valid_text("/".join([*parent, name]))
        near: list[str] = []
        with suppress(OSError):
            listing = os.open(".", LIST, dir_fd=self.folder)
            try:
                with os.scandir(listing) as entries:
                    names = [entry.name for entry, _ in zip(entries, range(_NEAR_NAMES), strict=False)]
                near = difflib.get_close_matches(name, names, n=3, cutoff=0.6)
            finally:
                os.close(listing)
        hint = ", ".join(repr(valid_text("/".join([*parent, n]))) for n in near)
        named = f"no such {what}: {where!r}"
        if where not in self.path:
            named += f" ({quoted_path(self.path)} leads there)"
        return GateError(named, f"Did you mean {hint}?" if hint else "")

    def _wrong_kind(self, status: os.stat_result, wanted: str) -> GateError:
        kind = next((text for test, text in _KINDS if test(status.st_mode)), "a file")
        hint = ""
        if wanted == "file" and stat.S_ISDIR(status.st_mode):
            hint = "list_dir shows what is in it"
        return GateError(f"{self.shown!r} is {kind}, not a {wanted}", hint)


def copy_without_credentials(descriptor: int) -> tuple[int, os.stat_result]:
    """Make a copy of a git config without credentials, so that gates can show it. Closes the descriptor."""
    with os.fdopen(descriptor, "rb") as file:
        data = file.read(_LARGEST_CONFIG)
    return _copy_of(without_credentials(data.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape"))


def _copy_of(shown: bytes) -> tuple[int, os.stat_result]:
    import tempfile

    with tempfile.TemporaryFile() as copy:
        copy.write(shown)
        copy.seek(0)
        own = os.dup(copy.fileno())
    return own, os.fstat(own)


def os_failure(error: OSError, path: str, doing: str = "") -> GateError:
    """Make a gate error from an OSError."""
    return GateError(f"cannot {doing or 'use'} {quoted_path(path)}: {os_reason(error)}")


def valid_text(text: str) -> str:
    """Return text that can be encoded: bytes of a file name that are not UTF-8 become ``\\xff``."""
    if text.isascii():
        return text
    return (
        text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace") if _has_surrogates(text) else text
    )


def one_line(text: str) -> str:
    """Like `valid_text`, and control characters become ``\\x0a``. A file name must not look like several lines or control a
    terminal."""
    text = valid_text(text)
    return text if text.isprintable() else _CONTROL.sub(lambda match: _escaped(match[0]), text)


def quoted(text: str) -> str:
    """Quote text as part of a title. Colons are replaced, because some clients cut a title at ``word: rest``.

    >>> quoted("fix: the greeting")
    '“fix – the greeting”'
    """
    return f"“{_COLON.sub(' –', one_line(' '.join(text.split())))}”"


def _escaped(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def quoted_path(path: str) -> str:
    """The original path in quotes, shortened if it is very long."""
    return repr(path if len(path) <= 300 else path[:300] + "…")


def _has_surrogates(text: str) -> bool:
    return any("\ud800" <= c <= "\udfff" for c in text)


def os_reason(error: OSError) -> str:
    known = {
        errno.EACCES: "permission denied",
        errno.EPERM: "permission denied",
        errno.ENOSPC: "the disk is full",
        errno.EDQUOT: "the disk quota is used up",
        errno.EROFS: "the file system is read-only",
        errno.ENAMETOOLONG: "a name in it is too long",
        errno.EWOULDBLOCK: "another program uses it; try again",
        errno.ELOOP: "it is now a symbolic link",
        errno.EFBIG: "it would be larger than the allowed file size",
    }
    return known.get(error.errno or 0) or (error.strerror or str(error)).lower()


def replace_descriptor(old: int, new: int) -> int:
    """Close the old descriptor and return the new one."""
    os.close(old)
    return new
