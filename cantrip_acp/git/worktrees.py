"""Worktrees at pinned files: a folder of its own for a fork, as the workspace was at a turn.

A worktree shares objects and refs with the user's repository and has a HEAD and an index of its own. HEAD stands on the
commit that the user stood on then, on no branch; the index is that commit's, and the files are the pinned ones: so what had
been changed and not committed shows as just that, and a pin never becomes part of anybody's history. Nothing that the
repository names is run on the way, no hook and no filter.
"""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass

from cantrip_acp.core.errors import GitError
from cantrip_acp.files.temporary import started
from cantrip_acp.git.repository import Repository
from cantrip_acp.git.safe_config import Plain

_ID = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?\Z")
_TIMEOUT = 300.0
_MAKING = re.compile(r"\Acantrip .* is being made by process ([0-9]+) of ([0-9]+)\Z")
_LOOM = "cantrip-loom"


@dataclass(frozen=True, slots=True)
class Worktree:
    """A worktree of ``repository`` at ``folder``; ``commit`` is the pin that its files are of."""

    repository: Repository
    folder: str
    commit: str

    def settle(self) -> None:
        """Make the files those of the pin again, whatever was done to them; what git ignores stays.

        Raises `GitError`.
        """
        with Plain(_own(self.folder), files=self.folder) as plain:
            _fill(plain, self.commit)
            left = plain.git("ls-files", "-z", "-o", "--exclude-standard", timeout=_TIMEOUT).out.split(b"\0")[:-1]
            for name in left:
                _take_away(os.path.join(os.fsencode(self.folder), name))

    def finish(self) -> None:
        """Say to git that it is in use as any other: until then it is locked, with the reason that `make` was given."""
        self.repository.git("worktree", "unlock", "--", self.folder, statuses=(0, 128))

    def remove(self) -> None:
        """Remove the folder and what git knows of it, changed or not. Raises `GitError`."""
        remove(self.repository, self.folder)


def make(
    repository: Repository, commit: str, head: str | None, folder: str | os.PathLike[str], *, why: str
) -> Worktree:
    """A worktree in ``folder``, which is empty or not there yet, with the files of a pin and HEAD at ``head``.

    Where the user had no commit yet (``head`` is None) HEAD stands on the pin itself. It is locked for the reason ``why``
    until `Worktree.finish`: so whoever finds one that a crash left behind can tell what it is (`unfinished`).
    Raises `GitError`; nothing is then left behind.
    """
    where = os.path.realpath(folder)
    if os.path.lexists(where) and (not os.path.isdir(where) or os.listdir(where)):
        raise GitError(f"{where} is there already and not empty; name another folder for the worktree")
    for each in (commit, head):
        if each is not None and (not _ID.match(each) or repository.commit(each) is None):
            raise GitError(
                f"the repository at {repository.top} has no commit {each[:40]!r}: its pins were dropped, or the loom is of "
                "another repository; name that one's folder with --cwd"
            )
    os.makedirs(os.path.dirname(where), mode=0o700, exist_ok=True)
    at = head or commit
    try:
        repository.git(
            "worktree", "add", "--detach", "--no-checkout", "--lock", "--reason", why, "--", where, at, timeout=_TIMEOUT
        )
        own = _own(where)
        with Plain(own, files=where) as plain:
            _fill(plain, commit)
            own.git("read-tree", at, timeout=_TIMEOUT)
            # Cheaper for whoever asks for the status next; what differs is said by the status.
            plain.git("update-index", "-q", "--refresh", index=own.index, statuses=(0, 1), timeout=_TIMEOUT)
    except BaseException:
        _give_up(repository, where)
        raise
    return Worktree(repository, where, commit)


def reason(text: str) -> str:
    """Why a worktree is locked, with the process that has locked it."""
    pid = os.getpid()
    return f"{text} by process {pid} of {started(pid) or 0}"


def left_behind(repository: Repository) -> list[str]:
    """The folders of worktrees that were being made when their process ended."""
    found = []
    for folder, why in unfinished(repository).items():
        made = _MAKING.search(why)
        if made is not None and started(int(made[1])) != int(made[2]):
            found.append(folder)
    return found


def name_loom(folder: str, loom: str) -> None:
    """Note in a worktree which loom its fork is in, beside what git keeps of it."""
    with open(os.path.join(_own(folder).git_dir, _LOOM), "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(loom)


def loom_of(folder: str) -> str | None:
    """The loom that a worktree's fork is in; None where nothing says it."""
    try:
        with open(os.path.join(_own(folder).git_dir, _LOOM), encoding="utf-8", errors="surrogateescape") as file:
            return file.read(4096) or None
    except (OSError, GitError):
        return None


def remove(repository: Repository, folder: str | os.PathLike[str]) -> None:
    """Remove a worktree, its folder and what git knows of it, changed or not; fine where the folder is gone already.

    Raises `GitError` for a folder that is no linked worktree of the repository.
    """
    where = os.path.realpath(folder)
    if where not in linked(repository):
        raise GitError(f"{where} is no worktree of the repository at {repository.top}")
    # Twice: a locked one, too.
    repository.git("worktree", "remove", "--force", "--force", "--", where, timeout=_TIMEOUT)


def linked(repository: Repository) -> list[str]:
    """The folders of a repository's linked worktrees, whoever made them."""
    return [worktree["worktree"] for worktree in _listed(repository)]


def unfinished(repository: Repository) -> dict[str, str]:
    """The folders of linked worktrees that are locked, each with the reason that was given."""
    return {each["worktree"]: each["locked"] for each in _listed(repository) if each.get("locked")}


def _listed(repository: Repository) -> list[dict[str, str]]:
    found: list[dict[str, str]] = []
    for line in repository.git("worktree", "list", "--porcelain", "-z").text.split("\0"):
        name, _, value = line.partition(" ")
        if name == "worktree":
            found.append({})
        if found and name:
            found[-1][name] = value
    # The first is the main one.
    return found[1:]


def _fill(plain: Plain, commit: str) -> None:
    plain.git("read-tree", commit, timeout=_TIMEOUT)
    plain.git("checkout-index", "--all", "--force", "--quiet", timeout=_TIMEOUT)


def _own(folder: str) -> Repository:
    found = Repository.of(folder)
    if found is None or found.top != folder:
        raise GitError(f"{folder} is no worktree any more")
    return found


def _take_away(path: bytes) -> None:
    if path.endswith(b"/"):
        # A repository that was made there.
        shutil.rmtree(path.rstrip(b"/"), ignore_errors=True)
    else:
        try:
            os.unlink(path)
            os.removedirs(os.path.dirname(path))
        except OSError:
            # A folder that holds something else stays.
            return


def _give_up(repository: Repository, where: str) -> None:
    """Take away what there is of a worktree that was not finished."""
    shutil.rmtree(where, ignore_errors=True)
    try:
        remove(repository, where)
    except GitError:
        # It never became one; and the error that led here is the one to tell.
        return
