"""Repository: finds the git repository of a folder without running git, because an untrusted ``.git`` may name programs.

A `SafeGitFolder` is a temporary git folder with a clean ``config``. It uses the repository's objects and, if requested, its
index. git does not read the repository's ``config`` there, so it cannot run a program that the repository names.
"""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Mapping, Sequence

from msgspec import Struct

from cantrip_acp.git.run import TIMEOUT, GitResult, run
from cantrip_acp.types.errors import GitError

_LARGEST_LINK = 4096


class Repository(Struct, frozen=True):
    """A git repository with files.

    ``top`` is the folder with the files. ``git_dir`` has git's data for that folder (``HEAD``, ``index``). ``common_dir`` has
    the data that all worktrees share (objects, refs, settings). All are real, absolute paths.
    """

    top: str
    git_dir: str
    common_dir: str

    @classmethod
    def of(cls, folder: str | os.PathLike[str]) -> Repository | None:
        """Find the innermost repository that contains a folder; None if there is none.

        Raises `GitError` if it is not safe or not usable: a link to another repository, of another user, or damaged.
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
        """The path of this worktree's index, which need not exist."""
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
    ) -> GitResult:
        """Run git on refs and objects, with the repository's settings overridden as `run.run` does.

        Commands that read or write files of the worktree must use `SafeGitFolder` instead.
        """
        own = {"GIT_DIR": self.git_dir, "GIT_WORK_TREE": self.top, **env}
        return run(args, env=own, cwd=self.top, stdin=stdin, timeout=timeout, statuses=statuses, users=users)

    def setting(self, name: str) -> str | None:
        """Read a git setting such as ``user.name`` for this user in this repository; None if it is not set.

        The value may come from the untrusted repository. Use it only as text, never as a program.
        """
        ran = self.git("config", "--get", name, statuses=(0, 1), users=True)
        return ran.text if ran.status == 0 else None

    def commit(self, revision: str = "HEAD") -> str | None:
        """The id of the commit that a revision names; None if there is no such commit."""
        ran = self.git(
            "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}", statuses=(0, 1, 128)
        )
        return ran.text if ran.status == 0 and ran.text else None

    def branch(self) -> str | None:
        """The branch of HEAD; None if HEAD is detached."""
        ran = self.git("symbolic-ref", "--quiet", "--short", "HEAD", statuses=(0, 1))
        return ran.text or None

    def object_format(self) -> str:
        """The hash algorithm: sha1 or sha256."""
        return self.git("rev-parse", "--show-object-format").text


def _folders(link: str, top: str) -> tuple[str, str]:
    """Find the git folder that ``link`` is or names, and the common folder. Raises `GitError` if they are not safe."""
    status = os.lstat(link)
    if stat.S_ISLNK(status.st_mode):
        raise GitError(
            f"{link} is a symbolic link to another repository, which is not used{_how_to_point_back(os.path.realpath(link), top)}"
        )
    if stat.S_ISDIR(status.st_mode):
        if os.path.lexists(os.path.join(link, "commondir")):
            raise GitError(f"{link} is a folder that names another repository, so it is not used")
        folder = common = link
    elif stat.S_ISREG(status.st_mode):
        folder, common = _linked(link, top)
    else:
        raise GitError(f"{link} is not a repository")
    if not os.path.exists(os.path.join(folder, "HEAD")) or not os.path.isdir(os.path.join(common, "objects")):
        raise GitError(f"{link} is not a repository, or is damaged: it has no HEAD or no objects")
    for each in {folder, common}:
        # git does the same: a repository of another user could make git act for us.
        if os.stat(each).st_uid not in _ours():
            raise GitError(f"{each} belongs to another user, so it is not used")
    return folder, common


def _linked(link: str, top: str) -> tuple[str, str]:
    """Find the folder that a ``.git`` file names (a worktree, a submodule, a separate git folder).

    That folder must point back to the file.
    """
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
    elif os.path.isfile(os.path.join(folder, "config")):
        # A submodule has this setting; `git init --separate-git-dir` does not make it.
        ran = run(
            ["config", "--file", os.path.join(folder, "config"), "--no-includes", "--get", "core.worktree"],
            statuses=(0, 1),
        )
        if ran.status == 0 and os.path.realpath(os.path.join(folder, ran.text)) == top:
            return folder, folder
    raise GitError(
        f"{link} names {folder}, which does not point back to this folder, so it is not used{_how_to_point_back(folder, top)}"
    )


def _how_to_point_back(folder: str, top: str) -> str:
    if not os.path.exists(os.path.join(folder, "HEAD")):
        return ""
    if os.path.isfile(os.path.join(folder, "gitdir")):
        return f". If the folder was moved, run there: git worktree repair {shlex.quote(top)}"
    setting = f"git --git-dir={shlex.quote(folder)} config core.worktree {shlex.quote(top)}"
    link = os.path.join(top, ".git")
    if not os.path.islink(link):
        return f". If it is yours, run: {setting}"
    file = f"rm {shlex.quote(link)} && echo {shlex.quote(f'gitdir: {folder}')} > {shlex.quote(link)}"
    return f". If it is yours, make it a file that names the repository: {file} && {setting}"


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


_CONFIG = """\
[core]
\trepositoryformatversion = 1
\tbare = false
\tfilemode = true
\tsymlinks = true
\tlogallrefupdates = false
\tcheckstat = default
[index]
\tthreads = true
[extensions]
\tobjectformat = {objects}
"""

_EXACT = "* !text !crlf !eol -ident -filter !working-tree-encoding -export-subst -export-ignore\n"
"""The content of `info/attributes`, which overrides every `.gitattributes`: bytes are stored and written unchanged."""

_LARGEST_RULES = 1024 * 1024


class SafeGitFolder:
    """A temporary git folder for a repository. Close it, or use it in a ``with`` block, to remove the folder.

    ``files`` is the folder to work on, by default the repository's own folder. With ``exact``, files are used byte by byte.
    Without it, `.gitattributes` decides about line ends, but it cannot run programs.
    """

    def __init__(self, repository: Repository, *, files: str | None = None, exact: bool = True) -> None:
        from cantrip_acp.files.temporary import TemporaryFolder

        self.repository = repository
        self.files = files or repository.top
        self._temporary = TemporaryFolder("cantrip-git-")
        self.folder = self._temporary.path
        try:
            self._fill(exact)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> SafeGitFolder:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the folder. Safe to call twice."""
        self._temporary.close()

    @property
    def index(self) -> str:
        """The path of the index file in this temporary folder."""
        return os.path.join(self.folder, "index")

    def git(
        self,
        *args: str,
        index: str | None = None,
        stdin: bytes = b"",
        timeout: float = TIMEOUT,
        statuses: Sequence[int] = (0,),
        env: dict[str, str] | None = None,
    ) -> GitResult:
        """Run git on files and objects. The repository's refs are not visible here; for those use `Repository.git`.

        ``index`` is the index to work with, by default `index`.
        """
        own = {
            "GIT_DIR": self.folder,
            "GIT_WORK_TREE": self.files,
            "GIT_OBJECT_DIRECTORY": self.repository.objects,
            "GIT_INDEX_FILE": index or self.index,
            **(env or {}),
        }
        return run(args, env=own, cwd=self.files, stdin=stdin, timeout=timeout, statuses=statuses)

    def _fill(self, exact: bool) -> None:
        for name in ("refs", "objects", "info"):
            os.mkdir(os.path.join(self.folder, name))
        self._put("HEAD", "ref: refs/heads/none\n")
        self._put("config", _CONFIG.format(objects=self.repository.object_format()))
        self._put("info/attributes", _EXACT if exact else "* -ident -filter !working-tree-encoding\n")
        # As in git, the user's global ignore rules come first, so that the repository's own rules override them.
        rules = [_users_rules(self.repository), _text(os.path.join(self.repository.common_dir, "info", "exclude"))]
        self._put("info/exclude", "\n".join(rules))

    def _put(self, name: str, text: str) -> None:
        with open(os.path.join(self.folder, name), "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(text)


def _users_rules(repository: Repository) -> str:
    """Read the user's global ignore rules, without the repository's settings."""
    own = {"GIT_DIR": "/nonexistent"}
    ran = run(["config", "--global", "--type=path", "--get", "core.excludesFile"], env=own, statuses=(0, 1), users=True)
    path = ran.text if ran.status == 0 and ran.text else ""
    if not path:
        base = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
        path = os.path.join(base, "git", "ignore")
    return _text(path)


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read(_LARGEST_RULES)
    except OSError:
        return ""
