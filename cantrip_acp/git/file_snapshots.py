"""File snapshots (pins): store the files of a workspace at one moment as a git commit that is on no branch.

The ref ``refs/cantrip/LOOM/ENTITY`` protects the commit from git's garbage collection. The parents of a pin are the
previous pin and, if it changed, the commit of the user's HEAD. The user's index, HEAD, branches, stash, logs and files are
not changed. The pinner has its own index, so a pin is cheap if nothing changed.

A pin contains every file below the workspace that git tracks or shows in `git status`. Files are stored byte by byte
(without filters and changes of line ends), and symbolic links as links. The rest of the repository is stored as in the
user's index. These files are left out and listed: files larger than `LARGEST`, files that are hidden from entities (keys,
``.env``), files that cannot be read, nested repositories, and the content of submodules. Ignored files, and the loom that
records the pins, are left out without being listed.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from cantrip_acp.core.errors import GitError
from cantrip_acp.git.repository import Repository, SafeGitFolder

LARGEST = 20 * 1024 * 1024
"""The most bytes of a file in a pin. Larger files are left out."""
MOST_FILES = 50_000
MOST_BYTES = 1024 * 1024 * 1024
"""The most bytes that one pin may add. If there is more, a folder is probably missing in `.gitignore`."""
NAMED = 20
"""The most files that are listed as left out."""
_TIMEOUT = 30.0
_SLOW = 0.05
"""If the scan of all files takes more seconds than this, the index is refreshed to make the next scan fast."""

_BESIDE = re.compile(rb"(\.index(\.part)?|\.torn-\d+|\.keep|-wal|-shm|-journal)?\Z")
"""The suffixes of files in the same folder that belong to a loom's file."""
_PLAIN_ID = re.compile(r"[A-Za-z0-9_-]{1,100}\Z")
_OURS = {
    f"GIT_{role}_{what}": value
    for role in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "cantrip"), ("EMAIL", "cantrip@localhost"))
}

Hidden = Callable[[Sequence[str], int | None], str | None]
"""Takes the parts of a file's path and its mode. Returns why it must not be stored; None if it may be stored."""


@dataclass(frozen=True, slots=True)
class Pin:
    """The files at one moment.

    ``commit`` and ``tree`` are in the repository at ``top``, and ``ref`` points to the commit. ``head`` is the commit of the
    user's HEAD at that moment (None in a repository without commits). ``left_out`` has a line ``name: why`` for each file
    that was left out, in order. If there are more than `NAMED`, a last line says how many more.
    """

    top: str
    commit: str
    tree: str
    ref: str
    head: str | None
    left_out: tuple[str, ...] = ()


def ref_of(loom_id: str, entity_id: str | None = None) -> str:
    """The ref of an entity's pins, or the common prefix of the refs of all entities of a loom."""
    return "/".join(("refs/cantrip", *(_name(each) for each in (loom_id, entity_id) if each is not None)))


def loom_of(ref: str) -> str | None:
    """The loom id in a pin's ref; None for any other ref."""
    parts = ref.split("/")
    return parts[2] if len(parts) >= 3 and parts[:2] == ["refs", "cantrip"] else None


def _name(text: str) -> str:
    """Convert an id to a part of a ref. An id with characters that a ref may not have is replaced by its hash."""
    return text if _PLAIN_ID.match(text) else hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


class Pinner:
    """Makes pins of one workspace, any number of times. Blocking; one call at a time. Close it.

    ``loom`` is the file of the loom that records them, if it has one. Raises `GitError` if the workspace is not in a
    usable repository.
    """

    def __init__(
        self, workspace: str, ref: str, *, hidden: Hidden | None = None, loom: str | os.PathLike[str] | None = None
    ) -> None:
        self._workspace = os.path.realpath(workspace)
        found = Repository.of(self._workspace)
        if found is None:
            raise GitError(f"{workspace} is not in a git repository")
        self.repository = found
        self._below = os.path.relpath(self._workspace, found.top)
        self._ref = ref
        self._hidden = hidden
        self._loom = os.fsencode(os.path.relpath(os.path.realpath(loom), found.top)) if loom is not None else None
        self._tree: str | None = None
        self._left_out: tuple[str, ...] = ()
        self._last: str | None = None
        self._head: str | None = None
        self._slow = _SLOW
        self._submodules: set[bytes] = set()
        self._absent: set[bytes] = set()
        self._plain = SafeGitFolder(found)
        try:
            self._begin()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Remove the pinner's index. The pins stay. Safe to call twice."""
        self._plain.close()

    def pin(self, message: str) -> Pin | None:
        """Store the files as they are now. Returns None if they are the same as at this pinner's last pin.

        Raises `GitError` if they cannot be stored; the next call tries again.
        """
        changed, left_out = self._changes()
        if changed:
            self._plain.git("update-index", "-z", "--add", "--remove", "--stdin", stdin=changed, timeout=_TIMEOUT)
        elif self._tree is not None and left_out == self._left_out:
            return None
        tree = self._plain.git("write-tree", "--missing-ok", timeout=_TIMEOUT).text
        if tree == self._tree and left_out == self._left_out:
            return None
        head = self.repository.commit()
        commit = self._commit(tree, head, message)
        self._tree, self._left_out = tree, left_out
        return Pin(self.repository.top, commit, tree, self._ref, head, left_out)

    def _begin(self) -> None:
        """Start with a copy of the repository's index."""
        if self._below != "." and self._ignored():
            raise GitError(
                f"{self._workspace} is ignored by the repository at {self.repository.top}, and has no own repository"
            )
        entries = []
        for entry in self.repository.git("ls-files", "-z", "-t", "--stage", "--full-name").out.split(b"\0")[:-1]:
            names, _, name = entry.partition(b"\t")
            tag, mode, _, stage = names.split()
            if stage != b"0":
                # A conflict: use the file as it is on disk.
                continue
            if mode == b"160000":
                self._submodules.add(name)
            if tag == b"S":
                # The file is not in a sparse checkout. It is absent, but not deleted.
                self._absent.add(name)
            entries.append(entry[len(tag) + 1 :])
        if entries:
            self._plain.git("update-index", "-z", "--index-info", stdin=b"\0".join(entries) + b"\0")
            self._refresh()

    def _refresh(self) -> None:
        """Update the times of unchanged files in the index, so that they need not be read again."""
        self._plain.git(
            "update-index", "-q", "--refresh", "--force-write-index", timeout=_TIMEOUT, statuses=(0, 1, 129)
        )

    def _ignored(self) -> bool:
        # This command takes paths literally anyway, and it refuses the setting.
        env = {"GIT_LITERAL_PATHSPECS": "0"}
        ran = self._plain.git("check-ignore", "--quiet", "--no-index", "--", self._below, statuses=(0, 1), env=env)
        return ran.status == 0

    def _changes(self) -> tuple[bytes, tuple[str, ...]]:
        """Find the files that differ from the index. Returns input for `update-index`, and lines for left-out files."""
        scope = ["--", self._below] if self._below != "." else []
        began = time.monotonic()
        ran = self._plain.git("ls-files", "-z", "-d", "-m", "-o", "--exclude-standard", *scope, timeout=_TIMEOUT)
        if (spent := time.monotonic() - began) > self._slow:
            # git had to read many files, because their times did not match the index.
            self._refresh()
            self._slow = max(_SLOW, 2 * spent)
        changed: list[bytes] = []
        left_out: list[str] = [
            f"{_printable(name)}: a submodule; its own files are not kept" for name in self._within()
        ]
        size = 0
        for name in dict.fromkeys(ran.out.split(b"\0")[:-1]):
            why, length = self._why_not(name)
            if why is None:
                size += length
                changed.append(name)
            elif why:
                left_out.append(f"{_printable(name)}: {why}")
        if len(changed) > MOST_FILES or size > MOST_BYTES:
            raise GitError(
                f"{len(changed):,} files of {size:,} bytes changed in {self._workspace}, which is too much to store; "
                "add generated files to .gitignore"
            )
        more = len(left_out) - NAMED
        names = (*left_out[:NAMED], f"and {more} more") if more > 0 else tuple(left_out)
        return b"\0".join([*changed, b""]), names

    def _within(self) -> Iterator[bytes]:
        scope = b"" if self._below == "." else os.fsencode(self._below) + b"/"
        return (name for name in sorted(self._submodules) if name.startswith(scope))

    def _why_not(self, name: bytes) -> tuple[str | None, int]:
        """Return why a changed file is left out, and its size in bytes.

        None means that it is stored. An empty text means that it is left out and not listed.
        """
        if name in self._submodules or self._of_loom(name):
            return "", 0
        if name.endswith(b"/"):
            return "a repository of its own; its files are not kept", 0
        path = os.path.join(os.fsencode(self.repository.top), name)
        try:
            status = os.lstat(path)
        except OSError:
            return ("" if name in self._absent else None), 0
        parts = os.fsdecode(name).split("/")
        if self._hidden is not None and self._hidden(parts, status.st_mode) is not None:
            return "hidden from entities; kept as git has it, if it has it", 0
        if stat.S_ISREG(status.st_mode):
            if status.st_size > LARGEST:
                return f"larger than {LARGEST // 1024 // 1024} MiB", 0
            if not os.access(path, os.R_OK):
                return "cannot be read", 0
            return None, status.st_size
        return None, 0

    def _of_loom(self, name: bytes) -> bool:
        """Whether a file is the loom that records these pins, or belongs to it (index, lock, journal)."""
        if self._loom is None:
            return False
        folder, _, own = self._loom.rpartition(b"/")
        where, _, last = name.rpartition(b"/")
        # While an index is written, its name begins with a dot.
        return where == folder and any(
            each.startswith(own) and _BESIDE.match(each, len(own)) is not None for each in (last, last[1:])
        )

    def _commit(self, tree: str, head: str | None, message: str) -> str:
        """Commit the tree to the entity's ref. If another process moved the ref at the same time, try again."""
        for _ in range(5):
            if self._last is None:
                self._last = self.repository.commit(self._ref)
            parents = [each for each in (self._last, head if head != self._head else None) if each is not None]
            line = [word for parent in parents for word in ("-p", parent)]
            made = self.repository.git("commit-tree", tree, *line, stdin=message.encode() + b"\n", env=_OURS).text
            old = self._last or "0" * len(made)
            ran = self.repository.git("update-ref", self._ref, made, old, statuses=(0, 1, 128))
            if ran.status == 0:
                self._last, self._head = made, head
                return made
            self._last = self._head = None
        raise GitError(f"{self._ref} could not be moved: {' '.join(ran.err.split())[:300]}")


def pins(repository: Repository, loom_id: str | None = None) -> dict[str, str]:
    """List the pins of one loom or of all. Maps each ref to its commit."""
    below = ref_of(loom_id) + "/" if loom_id is not None else "refs/cantrip/"
    ran = repository.git("for-each-ref", "--format=%(refname) %(objectname)", below)
    return {ref: commit for ref, _, commit in (line.partition(" ") for line in ran.text.splitlines())}


def drop(repository: Repository, loom_id: str, entity_id: str | None = None) -> list[str]:
    """Delete the pins of a loom or of one entity. Returns the deleted refs. git removes the files later.

    If the HEAD of a worktree is a pin, git keeps that pin. Raises `GitError`.
    """
    found = pins(repository, loom_id)
    if entity_id is not None:
        found = {ref: commit for ref, commit in found.items() if ref == ref_of(loom_id, entity_id)}
    if found:
        lines = "".join(f"delete {ref}\0{commit}\0" for ref, commit in found.items())
        repository.git("update-ref", "--stdin", "-z", stdin=lines.encode())
    return list(found)


def _printable(name: bytes) -> str:
    """Format a file's name for people: printable, and on one line."""
    text = name.decode("utf-8", "backslashreplace")
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")
