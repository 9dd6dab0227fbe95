"""Finds the repository of a folder without running git, because a ``.git`` from a stranger may name anything."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cantrip_acp.core.errors import GitError
from cantrip_acp.git.run import TIMEOUT, Ran, run

_LARGEST_LINK = 4096


@dataclass(frozen=True, slots=True)
class Repository:
    """A git repository with files.

    ``top`` is the folder with its files, ``git_dir`` git's data for that folder (``HEAD``, ``index``), ``common_dir``
    what all its worktrees share (objects, refs, settings). All are real, absolute paths.
    """

    top: str
    git_dir: str
    common_dir: str

    @classmethod
    def of(cls, folder: str | os.PathLike[str]) -> Repository | None:
        """The innermost repository that contains a folder; None if there is none.

        Raises `GitError` for what only looks like one: a link to another, another user's, a bare one.
        """
        at = os.path.realpath(folder)
        while True:
            if os.path.lexists(link := os.path.join(at, ".git")):
                git_dir, common = _folders(link, at)
                return cls(at, git_dir, common)
            if at == "/":
                return None
            at = os.path.dirname(at)

    @property
    def index(self) -> str:
        """The index of this worktree; it need not exist."""
        return os.path.join(self.git_dir, "index")

    @property
    def objects(self) -> str:
        """The folder of objects."""
        return os.path.join(self.common_dir, "objects")

    def git(
        self,
        *args: str,
        stdin: bytes = b"",
        env: Mapping[str, str] = {},
        timeout: float = TIMEOUT,
        statuses: Sequence[int] = (0,),
        users: bool = False,
    ) -> Ran:
        """Run git on refs and objects, with the repository's settings overridden as `run.run` does.

        Commands that read or write files of the worktree must use `safe_config.Plain` instead.
        """
        own = {"GIT_DIR": self.git_dir, "GIT_WORK_TREE": self.top, **env}
        return run(args, env=own, cwd=self.top, stdin=stdin, timeout=timeout, statuses=statuses, users=users)

    def setting(self, name: str) -> str | None:
        """A setting as git sees it for this user in this repository (``user.name``); None if it is not set.

        The repository's own settings come from a stranger: use the value as text, never as a program.
        """
        ran = self.git("config", "--get", name, statuses=(0, 1), users=True)
        return ran.text if ran.status == 0 else None

    def commit(self, revision: str = "HEAD") -> str | None:
        """The id of the commit that a revision names; None if there is none, as in a repository without commits."""
        ran = self.git(
            "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}", statuses=(0, 1, 128)
        )
        return ran.text if ran.status == 0 and ran.text else None

    def branch(self) -> str | None:
        """The branch of HEAD; None if HEAD is detached."""
        ran = self.git("symbolic-ref", "--quiet", "--short", "HEAD", statuses=(0, 1))
        return ran.text or None

    def object_format(self) -> str:
        """sha1 or sha256."""
        return self.git("rev-parse", "--show-object-format").text


def _folders(link: str, top: str) -> tuple[str, str]:
    """The git folder that ``link`` is or names, and the common folder. Raises `GitError` if either is doubtful."""
    status = os.lstat(link)
    if stat.S_ISLNK(status.st_mode):
        raise GitError(f"{link} is a symbolic link; a repository that lies elsewhere is left alone")
    if stat.S_ISDIR(status.st_mode):
        if os.path.lexists(os.path.join(link, "commondir")):
            raise GitError(f"{link} is a folder that names another repository; it is left alone")
        folder = common = link
    elif stat.S_ISREG(status.st_mode):
        folder, common = _linked(link, top)
    else:
        raise GitError(f"{link} is no repository")
    if not os.path.exists(os.path.join(folder, "HEAD")) or not os.path.isdir(os.path.join(common, "objects")):
        raise GitError(f"{link} is no repository, or a damaged one: it has no HEAD or no objects")
    for each in {folder, common}:
        # Like git itself: another user's repository may be made to do things in our name.
        if os.stat(each).st_uid not in _ours():
            raise GitError(f"{each} belongs to another user; a repository that is not yours is left alone")
    return folder, common


def _linked(link: str, top: str) -> tuple[str, str]:
    """The folder that a ``.git`` file names: a worktree's or a submodule's, which must point back to this place."""
    target = _read(link)
    if not target.startswith("gitdir:"):
        raise GitError(f"{link} is a file that names no git folder")
    folder = os.path.realpath(os.path.join(top, target.removeprefix("gitdir:").strip()))
    back = os.path.join(folder, "gitdir")
    if os.path.isfile(back):
        claim = os.path.join(folder, _read(back))
        common = os.path.realpath(os.path.join(folder, _read(os.path.join(folder, "commondir")) or "."))
        inside = os.path.dirname(folder) == os.path.join(common, "worktrees")
        if inside and os.path.realpath(claim) == os.path.realpath(link):
            return folder, common
    elif os.path.isfile(os.path.join(folder, "config")) and "modules" in folder.split("/"):
        ran = run(
            ["config", "--file", os.path.join(folder, "config"), "--no-includes", "--get", "core.worktree"],
            statuses=(0, 1),
        )
        if ran.status == 0 and os.path.realpath(os.path.join(folder, ran.text)) == top:
            return folder, folder
    raise GitError(f"{link} names {folder}, which knows nothing of this folder; it is left alone")


def _ours() -> set[int]:
    found = {os.geteuid()}
    if os.geteuid() == 0 and (sudo := os.environ.get("SUDO_UID", "")).isdigit():
        found.add(int(sudo))
    return found


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read(_LARGEST_LINK).strip()
    except OSError:
        return ""
