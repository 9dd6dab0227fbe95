"""Runs git on a repository's files with our own settings, so that its filters, monitors and converters do not exist.

A `Plain` is a small temporary git folder. It has a clean ``config`` and uses the repository's objects and, if asked,
its index. git never reads the repository's ``config``. So nothing that a repository names needs to be switched off:
git does not know it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from cantrip_acp.files.temporary import TemporaryFolder
from cantrip_acp.git.repository import Repository
from cantrip_acp.git.run import TIMEOUT, Ran, run

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


class Plain:
    """A temporary git folder for a repository. Close it, or use it in a ``with`` block: that removes the folder.

    ``files`` is the folder to work on, by default the repository's own. With ``exact``, files are used byte by byte;
    without it, `.gitattributes` decides about line ends (and about nothing that runs a program).
    """

    def __init__(self, repository: Repository, *, files: str | None = None, exact: bool = True) -> None:
        self.repository = repository
        self.files = files or repository.top
        self._temporary = TemporaryFolder("cantrip-git-")
        self.folder = self._temporary.path
        try:
            self._fill(exact)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Plain:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the folder. Safe to call twice."""
        self._temporary.close()

    @property
    def index(self) -> str:
        """The index of this temporary folder."""
        return os.path.join(self.folder, "index")

    def git(
        self,
        *args: str,
        index: str | None = None,
        stdin: bytes = b"",
        timeout: float = TIMEOUT,
        statuses: Sequence[int] = (0,),
        env: dict[str, str] | None = None,
    ) -> Ran:
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
        # The user's global ignore rules come first, so that the repository's own rules override them, as in git.
        rules = [_users_rules(self.repository), _text(os.path.join(self.repository.common_dir, "info", "exclude"))]
        self._put("info/exclude", "\n".join(rules))

    def _put(self, name: str, text: str) -> None:
        with open(os.path.join(self.folder, name), "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(text)


def _users_rules(repository: Repository) -> str:
    """The user's global ignore rules. The repository's settings are not read."""
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
