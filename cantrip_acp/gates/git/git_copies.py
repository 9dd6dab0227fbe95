"""Workspace files for git: git only lists file names, and then works on copies that we make.

git opens files by name and follows links. Between git's check and git's read, a command in the workspace could replace a
file by a link to a secret of the host, and then see the secret in a diff or a commit. Our copies are read without following
links.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from cantrip_acp.files.protected_paths import why_hidden
from cantrip_acp.gates.confinement import Root, one_line, quoted_path
from cantrip_acp.gates.contract import GateContext
from cantrip_acp.git.repository import Repository, SafeGitFolder
from cantrip_acp.types.errors import GateError, GitError

LARGEST = 50 * 1024 * 1024
MOST_FILES = 5_000


class GitWorkspace:
    """The repository of a call's workspace. The workspace may be only a part of it. Blocking: use it in a thread.

    Raises `GateError` if the workspace is not in a repository.
    """

    def __init__(self, context: GateContext) -> None:
        if context.workspace is None:
            raise GateError("there is no workspace, so there is no repository")
        self.folder = os.path.realpath(context.workspace)
        try:
            found = Repository.of(self.folder)
        except GitError as error:
            raise GateError(str(error)) from None
        if found is None:
            unused = "; GIT_DIR of the environment is not used" if "GIT_DIR" in os.environ else ""
            raise GateError(f"{context.workspace} is not in a git repository{unused}")
        self.repository = found
        below = os.path.relpath(self.folder, found.top)
        self.below: tuple[str, ...] = () if below == "." else tuple(below.split("/"))
        self.root = Root(str(context.workspace), (str(context.workspace),), hidden=context.wards.hidden_paths)

    @property
    def scope(self) -> list[str]:
        """The workspace as a git path; empty if it is the whole repository."""
        return ["/".join(self.below)] if self.below else []

    def git_paths(self, paths: Iterable[str]) -> list[str]:
        """Convert a call's paths to paths from the repository's top. Raises `GateError` for outside or hidden paths."""
        found = []
        for path in paths:
            absolute = self.root.lexical(path) if path and "\0" not in path else None
            if absolute is None:
                raise GateError(
                    f"{quoted_path(path)} is outside of the workspace", "give paths in it, such as src/main.py"
                )
            parts = tuple(p for p in absolute[len(self.root.path) :].split("/") if p)
            if ".git" in parts:
                raise GateError(f"{quoted_path(path)} belongs to git; it is not a file of the project")
            why = why_hidden(parts, None)
            if why is None and self.root.hides(parts):
                why = "is hidden by the ward hidden_paths"
            if why is not None:
                raise GateError(f"{quoted_path(path)} {why}.")
            found.append("/".join((*self.below, *parts)) or ".")
        return found

    def shown(self, name: str) -> str:
        """Format a git path for people, relative to the workspace."""
        inner = name[len("/".join(self.below)) + 1 :] if self.below else name
        return one_line(inner)

    def is_hidden(self, name: str) -> bool:
        """Whether the file is hidden from entities."""
        parts = name.split("/")[len(self.below) :]
        return why_hidden(parts, None) is not None or self.root.hides(parts)

    def names(self, out: bytes) -> list[str]:
        """Parse git's NUL-separated names, without hidden ones and those outside the workspace."""
        prefix = "".join(f"{part}/" for part in self.below)
        told = [os.fsdecode(name) for name in out.split(b"\0") if name]
        return [name for name in dict.fromkeys(told) if name.startswith(prefix) and not self.is_hidden(name)]

    def changed_files(self, plain: SafeGitFolder, paths: Sequence[str]) -> list[str]:
        """The sorted names of files that differ from the commit in ``plain``'s index or were deleted.

        Submodules and files that a sparse checkout leaves out are not included.
        """
        names = self.names(plain.git("ls-files", "-z", "-d", "-m", "--", *paths).out)
        if len(names) > MOST_FILES:
            raise GateError(f"{len(names):,} files differ; the limit of this gate is {MOST_FILES:,}", "name a path")
        if not names:
            return []
        kept = set(names)
        for entry in plain.git("ls-files", "-z", "--stage", "--", *names).out.split(b"\0")[:-1]:
            told, _, name = entry.partition(b"\t")
            if told.startswith(b"160000"):
                kept.discard(os.fsdecode(name))
        gone = [n for n in kept if not os.path.lexists(os.path.join(self.repository.top, n))]
        if gone:
            for entry in self.repository.git("ls-files", "-z", "-t", "--", *gone).out.split(b"\0"):
                if entry.startswith(b"S "):
                    kept.discard(os.fsdecode(entry[2:]))
        return sorted(kept)

    def untracked_files(self, plain: SafeGitFolder, paths: Sequence[str]) -> list[str]:
        """The sorted names of files that are not in ``plain``'s index and not ignored, without nested repositories."""
        told = plain.git("ls-files", "-z", "-o", "--exclude-standard", "--", *paths).out
        return sorted(name for name in self.names(told) if not name.endswith("/"))

    def commit(self, revision: str) -> str:
        """The commit id of a revision. Raises `GateError` if there is none."""
        if not revision or revision.startswith("-") or any(c in revision for c in "\0\n\r"):
            raise GateError(f"{quoted_path(revision)} is not a revision", "give a branch, a tag, a commit or HEAD~1")
        found = self.repository.commit(revision)
        if found is None:
            where = " (it has no commits yet)" if self.repository.commit() is None else ""
            raise GateError(f"there is no commit {quoted_path(revision)} in this repository{where}")
        return found

    def copy_files(self, names: Sequence[str], into: Path) -> None:
        """Copy files to a private folder. Missing files are skipped, and links stay links. Raises `GateError`."""
        if len(names) > MOST_FILES:
            raise GateError(f"{len(names):,} files are more than the limit of {MOST_FILES:,}", "name fewer paths")
        for name in names:
            parts = name.split("/")[len(self.below) :]
            try:
                folder = self.root.descend((*self.root.inner, *parts[:-1]))
            except GateError:
                # Its folder was deleted, or is a link now. For git the file does not exist.
                continue
            try:
                _copy(folder, parts[-1], into / name)
            except OSError as error:
                raise GateError(f"{one_line(name)} cannot be read: {error.strerror}") from None
            finally:
                os.close(folder)


def _copy(folder: int, name: str, target: Path) -> None:
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return
    if stat.S_ISLNK(status.st_mode):
        target.parent.mkdir(parents=True, exist_ok=True)
        os.symlink(os.readlink(name, dir_fd=folder), target)
        return
    if not stat.S_ISREG(status.st_mode):
        return
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return
        if status.st_size > LARGEST:
            raise GateError(
                f"{one_line(name)} has more than {LARGEST // 1024 // 1024} MiB, which is the limit of this gate"
            )
        data = file.read(LARGEST + 1)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data)
    target.chmod(0o755 if status.st_mode & 0o100 else 0o644)


class FileCopies:
    """A folder of copied files, with the index of one commit (or an empty one), for git. Use it in a ``with`` block."""

    def __init__(self, work: GitWorkspace, commit: str | None, names: Sequence[str]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="cantrip-work-")
        files = Path(self._folder.name)
        try:
            work.copy_files(names, files)
            self.plain = SafeGitFolder(work.repository, files=str(files), exact=False)
        except BaseException:
            self._folder.cleanup()
            raise
        try:
            self.plain.git("read-tree", *([commit] if commit is not None else ["--empty"]))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> SafeGitFolder:
        return self.plain

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        self.plain.close()
        self._folder.cleanup()
