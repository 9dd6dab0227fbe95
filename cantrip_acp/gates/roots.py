"""Root confinement: a gate reaches what lies below its root, and nothing else, whoever moves things meanwhile.

A path is walked name by name from a descriptor of the root, and no step follows a link: links are read and resolved here,
as text, below the root. What is opened in the end is opened by the descriptor of its folder and is not a link either. So a
command that swaps a folder for a link between two steps makes the gate fail, never leave. Magic links such as
``/proc/self/fd/3`` are text like any other link, and pipes, sockets and devices are refused before anything is opened.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import TYPE_CHECKING, NoReturn

from cantrip_acp.errors import GateError
from cantrip_acp.gates.guarded import why_hidden, why_protected

if TYPE_CHECKING:
    from cantrip_acp.events import Location
    from cantrip_acp.gates.contract import GateContext

_MAX_LINKS = 40
_MAX_STEPS = 10_000
"""Folders opened for one path. ``..`` walks again from the root, so a long path of them could cost seconds."""
_NEAR_NAMES = 2_000
"""Names of a folder that are looked at for the nearest one."""

_WALK = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# NONBLOCK: a pipe that takes the file's place between two looks must not hold us; NOCTTY: nor become our terminal.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

_KERNEL = ("proc", "sys", "dev")
_KINDS = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a character device"),
    (stat.S_ISBLK, "a block device"),
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISLNK, "a symbolic link"),
)


class Root:
    """The folder that a gate is confined to.

    ``path`` is its absolute path as its owner spells it: ``base``, which nobody inside can exchange, and below it ``inner``.
    A root in the workspace has the workspace as its base, and the rest is walked like any path of an entity, since commands
    may exchange what lies there.
    """

    __slots__ = ("_absolute_is_root", "base", "inner", "path")

    def __init__(self, path: str, workspace: str | None = None, *, absolute_is_root: bool = False) -> None:
        self.path = os.path.normpath(os.path.join(workspace or "/", path))
        self.base = self.path
        self.inner: tuple[str, ...] = ()
        if workspace is not None:
            base = os.path.normpath(workspace)
            inner = _below(self.path, base)
            if inner is not None:
                self.base, self.inner = base, tuple(inner)
        self._absolute_is_root = absolute_is_root

    @staticmethod
    def of(context: GateContext) -> Root:
        """The root of a call: the dependency ``root``, from the workspace where it is relative; else the workspace.

        With the dependency ``absolute_is_root``, absolute paths start at the root, as if it were a file system of its own.
        Raises `GateError` where there is neither.
        """
        dependencies, workspace = context.dependencies, context.workspace
        root = dependencies.get("root")
        if root is None:
            if workspace is None:
                raise GateError("this gate has no folder to work in: bind 'root', or give the circle a workspace")
            root = workspace
        root, base = os.fspath(root), os.fspath(workspace) if workspace is not None else None
        if base is None and not os.path.isabs(root):
            raise GateError(
                f"the root {root!r} of this gate is relative, and there is no workspace that it could be in"
            )
        return _root(root, base, bool(dependencies.get("absolute_is_root")))

    def check(self) -> None:
        """Raise `GateError` where the root is not there or cannot be entered."""
        os.close(self._open(()))

    def lexical(self, path: str) -> str | None:
        """Where ``path`` seems to lead, without a look at the disk: an absolute path, or None outside of the root."""
        names = self._parts(path)
        if names is None:
            return None
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
    def find(self, path: str, *, writing: bool = False) -> Iterator[Place]:
        """The place that ``path`` leads to, for the length of a ``with`` block. It need not exist.

        Raises `GateError` for what leaves the root, for what is hidden, and, with ``writing``, for what is protected.
        """
        place = self._walk(path, writing)
        try:
            yield place
        finally:
            os.close(place.folder)

    def descend(self, names: Sequence[str]) -> int:
        """A descriptor, fit for listing, of the folder with these names below ``base``, no links. The caller closes it."""
        folder = self._open_base()
        try:
            for name in names:
                folder = _exchange(folder, os.open(name, _WALK, dir_fd=folder))
            return os.open(".", _LIST, dir_fd=folder)
        except OSError as error:
            raise failure(error, "/".join(names) or ".") from None
        finally:
            os.close(folder)

    def _walk(self, path: str, writing: bool) -> Place:
        if not path:
            raise GateError("the path is empty; give a path below the gate's folder, such as 'README.md' or '.'")
        shown = spelled(path)
        if "\0" in path:
            raise GateError(f"the path {shown} has a NUL character, which no file name can have")
        try:
            os.fsencode(path)
        except UnicodeEncodeError:
            raise GateError(f"the path {shown} has a character that no file name can have") from None
        first = self._parts(path)
        if first is None:
            self._escape(shown)
        pending, done, links = first[::-1], list[str](), list[str]()
        steps = 0
        folder = self._open(())
        try:
            while pending:
                steps += 1
                if steps > _MAX_STEPS:
                    raise GateError(f"{shown} is too long a way through folders and links; give a shorter path")
                name = pending.pop()
                if name == "..":
                    if not done:
                        self._escape(shown)
                    done.pop()
                    if not pending or pending[-1] != "..":
                        steps += len(done)
                        folder = _exchange(folder, self._open(tuple(done)))
                    continue
                if pending:
                    try:
                        child = os.open(name, _WALK, dir_fd=folder)
                    except FileNotFoundError:
                        if ".." in pending:
                            raise GateError(f"no such folder: {'/'.join([*done, name])!r}, in {shown}") from None
                        return self._place(path, done, [name, *pending[::-1]], links, folder, None, writing)
                    except OSError as error:
                        if error.errno not in (errno.ENOTDIR, errno.ELOOP):
                            raise
                    else:
                        folder = _exchange(folder, child)
                        done.append(name)
                        continue
                else:
                    try:
                        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
                    except FileNotFoundError:
                        return self._place(path, done, [name], links, folder, None, writing)
                    if not stat.S_ISLNK(status.st_mode):
                        return self._place(path, [*done, name], [], links, folder, status, writing)
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
                    folder = _exchange(folder, self._open(()))
                pending += onward[::-1]
            return self._place(path, done, [], links, folder, os.stat(".", dir_fd=folder), writing, name=".")
        except OSError as error:
            os.close(folder)
            raise failure(error, path) from None
        except BaseException:
            os.close(folder)
            raise

    def _place(
        self,
        path: str,
        done: list[str],
        missing: list[str],
        links: list[str],
        folder: int,
        status: os.stat_result | None,
        writing: bool,
        name: str | None = None,
    ) -> Place:
        parts = (*done, *missing)
        if parts and parts[0] in _KERNEL and self.path == "/":
            raise GateError(f"{spelled(path)} is the kernel's, not a file of a project; gates do not go there")
        inner = (*self.inner, *parts)
        mode = status.st_mode if status is not None else None
        why = why_hidden(inner, mode)
        for link in links:
            # A link named .env: its target is an environment file under another name.
            why = why or (why_hidden((link,), mode) if mode is None or stat.S_ISREG(mode) else None)
        if why is None and writing:
            why = why_protected(inner)
        if why is not None:
            raise GateError(f"{spelled(path)} {why}.")
        return Place(self, path, parts, folder, name or parts[-1], status, tuple(missing))

    def _parts(self, path: str) -> list[str] | None:
        """The names of ``path`` below the root; None where it is absolute and elsewhere."""
        if not path.startswith("/"):
            return _names(path)
        for spelling in (self.path, os.path.realpath(self.path)):
            below = _below(path, spelling)
            if below is not None:
                return below
        return _names(path) if self._absolute_is_root else None

    def _open(self, parts: Sequence[str]) -> int:
        """A descriptor of a folder below the root; the caller closes it."""
        folder = self._open_base()
        try:
            for name in (*self.inner, *parts):
                folder = _exchange(folder, os.open(name, _WALK, dir_fd=folder))
        except OSError as error:
            os.close(folder)
            where = repr("/".join(parts)) if parts else "the gate's folder"
            linked = error.errno in (errno.ENOTDIR, errno.ELOOP)
            reason = "it leads through a symbolic link, or is no folder" if linked else _reason(error)
            raise GateError(f"{where} cannot be used: {reason}") from None
        return folder

    def _open_base(self) -> int:
        try:
            return os.open(self.base, _WALK & ~os.O_NOFOLLOW)
        except OSError as error:
            raise GateError(f"the gate's folder cannot be used: {_reason(error)}") from None

    def _escape(self, shown: str, link: str | None = None) -> NoReturn:
        by = f" (by the symbolic link {link!r})" if link else ""
        raise GateError(
            f"{shown} leads outside the folder that this gate works in{by}. "
            "Give a path inside it, relative to it, such as 'src/main.py'"
        )


class Place:
    """Where a path leads: ``name`` in the open folder ``folder``, and never a link.

    ``parts`` are its real names below the root. ``status`` is None where nothing is there; ``missing`` then holds the
    names that would have to be made, the last one included.
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
        """The path below the root, for people: ``src/app.py``, or ``.``; always valid text."""
        return valid("/".join(self.parts)) or "."

    @property
    def absolute(self) -> str:
        return valid(os.path.join(self.root.path, *self.parts))

    def location(self, line: int | None = None) -> Location:
        from cantrip_acp.events import Location

        return Location(self.absolute, line)

    def open_file(self) -> tuple[int, os.stat_result]:
        """A descriptor for reading and what it is; a regular file for certain. The caller closes it."""
        if self.status is None:
            raise self.no_such("file")
        if not stat.S_ISREG(self.status.st_mode):
            raise self._unfit(self.status, "file")
        try:
            descriptor = os.open(self.name, _READ, dir_fd=self.folder)
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
        return descriptor, status

    def open_folder(self) -> int:
        """A descriptor of the folder that this is, fit for listing. The caller closes it."""
        if self.status is None:
            raise self.no_such("folder")
        if not stat.S_ISDIR(self.status.st_mode):
            raise self._unfit(self.status, "folder")
        try:
            return os.open(self.name, _LIST, dir_fd=self.folder)
        except OSError as error:
            raise failure(error, self.path) from None

    def make_parents(self) -> None:
        """Make the folders that are missing above this place."""
        while len(self.missing) > 1:
            name = self.missing[0]
            try:
                with suppress(FileExistsError):
                    os.mkdir(name, dir_fd=self.folder)
                self.folder = _exchange(self.folder, os.open(name, _WALK, dir_fd=self.folder))
            except OSError as error:
                raise failure(error, self.path, "make its folder") from None
            self.missing = self.missing[1:]

    def no_such(self, kind: str) -> GateError:
        """The error for what is not there, with the nearest name where there is one."""
        import difflib

        name, parent = self.missing[0], self.parts[: len(self.parts) - len(self.missing)]
        what = kind if len(self.missing) == 1 else "folder"
        where = valid("/".join([*parent, name]))
        near: list[str] = []
        with suppress(OSError):
            listing = os.open(".", _LIST, dir_fd=self.folder)
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
        return GateError(named + (f". Did you mean {hint}?" if hint else ""))

    def _unfit(self, status: os.stat_result, wanted: str) -> GateError:
        kind = next((text for test, text in _KINDS if test(status.st_mode)), "a file")
        hint = ""
        if wanted == "file" and stat.S_ISDIR(status.st_mode):
            hint = "; list_dir shows what is in it"
        return GateError(f"{self.shown!r} is {kind}, not a {wanted}{hint}")


def failure(error: OSError, path: str, doing: str = "") -> GateError:
    """An operating system's refusal, as the entity reads it."""
    return GateError(f"cannot {doing or 'use'} {spelled(path)}: {_reason(error)}")


def valid(text: str) -> str:
    """Text that can be sent anywhere: bytes of a file name that are no UTF-8 are shown as ``\\xff``."""
    if text.isascii():
        return text
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace") if _odd(text) else text


def spelled(path: str) -> str:
    """A path as it was given, quoted, and cut where it is absurdly long."""
    return repr(path if len(path) <= 300 else path[:300] + "…")


def _odd(text: str) -> bool:
    return any("\ud800" <= c <= "\udfff" for c in text)


def _reason(error: OSError) -> str:
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


def _names(path: str) -> list[str]:
    return [name for name in path.split("/") if name not in ("", ".")]


def _below(path: str, folder: str) -> list[str] | None:
    """The names of an absolute path below an absolute folder, None where it does not begin with it."""
    parts, root = _names(path), _names(folder)
    return parts[len(root) :] if parts[: len(root)] == root else None


def _exchange(old: int, new: int) -> int:
    os.close(old)
    return new


@lru_cache(maxsize=64)
def _root(path: str, workspace: str | None, absolute_is_root: bool) -> Root:
    return Root(path, workspace, absolute_is_root=absolute_is_root)
