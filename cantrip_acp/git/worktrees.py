"""Worktrees: makes a separate folder for a fork, with the files of a checkpoint.

A worktree shares objects and refs with the user's repository and has its own HEAD and index. HEAD is detached, at a commit
of the user's. The index has the files of that commit, and the folder has the files of the checkpoint. So uncommitted changes
are shown as uncommitted. No program that the repository
names is run, also no hooks and filters.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cantrip_acp.files.paths import private
from cantrip_acp.files.temporary import process_start_time
from cantrip_acp.git.repository import Repository, SafeGitFolder
from cantrip_acp.types.errors import GitError

_ID = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?\Z")
_TIMEOUT = 300.0
_OURS = {
    f"GIT_{role}_{what}": value
    for role in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "cantrip"), ("EMAIL", "cantrip@localhost"))
}
_LOOM = "cantrip-loom"


@dataclass(frozen=True, slots=True)
class Worktree:
    """A worktree of ``repository`` at ``folder``. ``commit`` has its files; ``write`` then makes them those of a
    checkpoint."""

    repository: Repository
    folder: str
    commit: str
    write: Callable[[str], None] | None = None

    def settle(self) -> None:
        """Restore the files of the checkpoint, and remove new files. Without a checkpoint, files that git ignores stay.

        Raises `GitError`.
        """
        if self.write is not None:
            self.write(self.folder)
            return
        with SafeGitFolder(_worktree_at(self.folder), files=self.folder) as plain:
            _fill(plain, self.commit)
            left = plain.git("ls-files", "-z", "-o", "--exclude-standard", timeout=_TIMEOUT).out.split(b"\0")[:-1]
            for name in left:
                _delete(os.path.join(os.fsencode(self.folder), name))

    def finish(self) -> None:
        """Unlock the worktree when it is complete. `make` locked it."""
        self.repository.git("worktree", "unlock", "--", self.folder, statuses=(0, 128))

    def remove(self) -> None:
        """Remove the folder and git's data about it, even if files were changed. Raises `GitError`."""
        remove(self.repository, self.folder)


def make(
    repository: Repository,
    commit: str,
    head: str | None,
    folder: str | os.PathLike[str],
    *,
    why: str,
    write: Callable[[str], None] | None = None,
) -> Worktree:
    """Make a worktree in ``folder``, which must be empty or not exist, with the files of a commit and HEAD at ``head``.

    ``write`` then makes the files those of a checkpoint. If ``head`` is None, HEAD is ``commit``. The worktree is locked
    with the reason ``why`` until `Worktree.finish`. So `unfinished` can find a worktree that was left after a crash. If it
    raises `GitError`, nothing is left.
    """
    where = os.path.realpath(folder)
    if os.path.lexists(where) and (not os.path.isdir(where) or os.listdir(where)):
        raise GitError(f"{where} exists and is not empty; name another folder for the worktree")
    for each in (commit, head):
        if each is not None and (not _ID.match(each) or repository.commit(each) is None):
            raise GitError(
                f"the repository at {repository.top} has no commit {each[:40]!r}: its pins were deleted, or the loom belongs "
                "to another repository; name that repository's folder with --cwd"
            )
    private(Path(where).parent)
    at = head or commit
    try:
        repository.git(
            "worktree", "add", "--detach", "--no-checkout", "--lock", "--reason", why, "--", where, at, timeout=_TIMEOUT
        )
        own = _worktree_at(where)
        with SafeGitFolder(own, files=where) as plain:
            _fill(plain, commit)
            own.git("read-tree", at, timeout=_TIMEOUT)
            # This makes the next git status fast.
            if write is not None:
                write(where)
            plain.git("update-index", "-q", "--refresh", index=own.index, statuses=(0, 1), timeout=_TIMEOUT)
    except BaseException:
        _remove_unfinished(repository, where)
        raise
    return Worktree(repository, where, commit, write)


def first_commit(repository: Repository) -> str:
    """Make an empty commit, on no branch, for a worktree of a repository that has no commit yet."""
    tree = repository.git("mktree").text
    return repository.git("commit-tree", tree, stdin=b"cantrip: no commit yet\n", env=_OURS).text


def reason(text: str) -> str:
    """Make a lock reason that includes the id and start time of this process."""
    pid = os.getpid()
    return f"{text} by process {pid} of {process_start_time(pid) or 0}"


def name_loom(folder: str, loom: str) -> None:
    """Record in a worktree's git data the loom of its fork."""
    with open(
        os.path.join(_worktree_at(folder).git_dir, _LOOM), "w", encoding="utf-8", errors="surrogateescape"
    ) as file:
        file.write(loom)


def remove(repository: Repository, folder: str | os.PathLike[str]) -> None:
    """Remove a worktree: its folder and git's data about it, even if files were changed or the folder does not exist.

    Raises `GitError` for a folder that is not a linked worktree of the repository.
    """
    where = os.path.realpath(folder)
    if where not in linked(repository):
        raise GitError(f"{where} is not a worktree of the repository at {repository.top}")
    # --force twice also removes a locked worktree.
    repository.git("worktree", "remove", "--force", "--force", "--", where, timeout=_TIMEOUT)


def linked(repository: Repository) -> list[str]:
    """The folders of all linked worktrees of a repository."""
    return [worktree["worktree"] for worktree in _listed(repository)]


def unfinished(repository: Repository) -> dict[str, str]:
    """The folders of locked linked worktrees, each with the reason of its lock."""
    return {each["worktree"]: each["locked"] for each in _listed(repository) if each.get("locked")}


def _listed(repository: Repository) -> list[dict[str, str]]:
    found: list[dict[str, str]] = []
    for line in repository.git("worktree", "list", "--porcelain", "-z").text.split("\0"):
        name, _, value = line.partition(" ")
        if name == "worktree":
            found.append({})
        if found and name:
            found[-1][name] = value
    # The first one is the main worktree.
    return found[1:]


def _fill(plain: SafeGitFolder, commit: str) -> None:
    plain.git("read-tree", commit, timeout=_TIMEOUT)
    plain.git("checkout-index", "--all", "--force", "--quiet", timeout=_TIMEOUT)


def _worktree_at(folder: str) -> Repository:
    found = Repository.of(folder)
    if found is None or found.top != folder:
        raise GitError(f"{folder} is not a worktree any more")
    return found


def _delete(path: bytes) -> None:
    if path.endswith(b"/"):
        # It is a nested repository.
        shutil.rmtree(path.rstrip(b"/"), ignore_errors=True)
    else:
        try:
            os.unlink(path)
            os.removedirs(os.path.dirname(path))
        except OSError:
            # A folder that is not empty stays.
            return


def _remove_unfinished(repository: Repository, where: str) -> None:
    shutil.rmtree(where, ignore_errors=True)
    try:
        remove(repository, where)
    except GitError:
        # It was never registered. The caller reports the original error.
        return
