"""What nobody may see or touch in a folder that commands can read or write.

**Protected** names are read-only, and cannot be made where they do not exist: version control, editor and agent
configuration, shell start-up files. Whoever writes them runs code outside of the sandbox later. **Hidden** ones read as
an empty note: environment files, keys, credentials.

`Survey` finds them in a folder and keeps what it found by each folder's change time, so that looking again before every
command costs one `stat` a folder.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from cantrip_acp.sandbox.process import NO_ROOM
from cantrip_acp.sandbox.standins import is_standin

NEVER_MADE = (
    ".git",
    ".vscode",
    ".idea",
    ".zed",
    ".cantrip",
    ".mcp.json",
    ".claude",
    ".cursor",
    ".codex",
    ".envrc",
    ".bashrc",
    ".bash_profile",
    ".bash_login",
    ".profile",
    ".zshrc",
    ".zshenv",
    ".zprofile",
    ".zlogin",
)
"""Names at the top of a writable folder that are read-only where they exist and cannot be made where they do not."""

PROTECTED = frozenset(
    {
        *NEVER_MADE, ".gitconfig", ".husky", ".githooks", ".hg", ".svn", ".jj", ".bash_logout", ".zlogout", ".inputrc", ".exrc",
        ".vimrc", ".nvimrc", ".nvim.lua", ".fleet", ".gemini", ".windsurf", ".kiro", ".continue", ".opencode", ".roo",
        ".aider.conf.yml",
    }
)  # fmt: skip
"""Names that are read-only wherever they exist below a writable folder."""

_HISTORIES = frozenset({".git", ".hg", ".svn", ".jj"})
"""Not looked into; what git keeps of credentials there is told by `repositories.scrubbed`."""

HIDDEN_FILES = frozenset(
    {
        ".netrc", "_netrc", ".npmrc", ".yarnrc", ".pypirc", ".git-credentials", ".pgpass", ".my.cnf", ".s3cfg", ".boto",
        ".dockercfg", ".vault-token", ".terraformrc", "credentials.toml", "id_rsa", "id_dsa", "id_ecdsa", "id_ed25519",
        "id_ecdsa_sk", "id_ed25519_sk",
    }
)  # fmt: skip
HIDDEN_FOLDERS = frozenset({".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker", ".password-store"})
HIDDEN_SUFFIXES = (".p12", ".pfx", ".ppk", ".kdbx", ".keytab")
KEY_SUFFIXES = (".pem", ".key")
"""Hidden where only their owner may read them, as every tool makes a private key; a test's fixture is readable to all."""

EXAMPLES = frozenset({".env.example", ".env.sample", ".env.template", ".env.dist", ".env.defaults"})
"""Environment files that are written to be read."""

_PASSED_BY = frozenset(
    {"node_modules", "__pycache__", ".tox", ".nox", ".mypy_cache", ".ruff_cache", ".pytest_cache", "site-packages"}
)
"""Folders that are not looked into: large, and made by tools from what is public."""

_SETTLED_NS = 50_000_000
"""A folder changed this recently may change again within its clock's tick, so it is read anew next time."""


@dataclass(slots=True)
class _Folder:
    changed: int
    read: int
    folders: list[str]
    protected: list[str]
    hidden: list[str]
    readable: bool = True


@dataclass(frozen=True, slots=True)
class Findings:
    """Absolute paths, sorted. ``linked``: protected names at the top that are symbolic links."""

    protected: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    linked: tuple[str, ...] = ()


@dataclass(slots=True)
class Survey:
    """What is guarded below ``root``, a real path. Symbolic links are never followed."""

    root: str
    _folders: dict[str, _Folder] = field(default_factory=dict)
    _findings: Findings = field(default_factory=Findings)
    seconds: float = 0.0
    """How long the last look took."""

    def refresh(self) -> Findings:
        """Look again: one `stat` a folder, and those that changed are read anew."""
        began = time.monotonic()
        seen: dict[str, _Folder] = {}
        protected: list[str] = []
        hidden: list[str] = []
        stack = [self.root]
        changed = False
        while stack:
            path = stack.pop()
            known = self._folders.get(path)
            try:
                status = os.stat(path, follow_symlinks=False)
            except OSError as error:
                if error.errno in NO_ROOM:
                    raise
                changed = True
                continue
            if known is None or known.changed != status.st_mtime_ns or known.read - known.changed < _SETTLED_NS:
                known = _read(path, status.st_mtime_ns)
                changed = True
            seen[path] = known
            protected += known.protected
            hidden += known.hidden
            stack += known.folders
        if changed or len(seen) != len(self._folders):
            self._findings = Findings(
                protected=tuple(sorted(p for p in protected if not os.path.islink(p))),
                hidden=tuple(sorted({real for p in hidden if (real := _hidden_real(p, self.root))})),
                linked=tuple(sorted(p for p in protected if os.path.dirname(p) == self.root and os.path.islink(p))),
            )
        self._folders = seen
        self.seconds = time.monotonic() - began
        return self._findings

    def at(self, path: str) -> tuple[str, ...] | None:
        """The `NEVER_MADE` names that stood in a folder when it was last looked at, as paths; None for one that is not
        looked into. Stand-ins are not among them."""
        folder = self._folders.get(path)
        if folder is None or not folder.readable:
            return None
        return tuple(sorted(p for p in folder.protected if p.rpartition("/")[2] in NEVER_MADE))


def places(writable: Iterable[str], absent: Iterable[str]) -> Iterator[tuple[str, tuple[str, ...], list[str]]]:
    """Where stand-ins must stand for what is absent: each folder, all names that may ever stand there, and those of now."""
    here: dict[str, list[str]] = {root: [] for root in writable}
    for path in absent:
        here.setdefault(os.path.dirname(path), []).append(os.path.basename(path))
    for folder, names in here.items():
        yield folder, tuple(dict.fromkeys((*NEVER_MADE, *names))), names


def is_hidden_file(name: str) -> bool:
    """Whether a file of this name holds secrets by its name alone."""
    if name.startswith(".env"):
        return name not in EXAMPLES and (len(name) == 4 or name[4] in ".-_" or name == ".envrc")
    return name in HIDDEN_FILES or name.endswith(HIDDEN_SUFFIXES)


def _read(path: str, changed: int) -> _Folder:
    folders: list[str] = []
    protected: list[str] = []
    hidden: list[str] = []
    now = time.time_ns()
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                name = entry.name
                if entry.is_dir(follow_symlinks=False):
                    if name in PROTECTED:
                        if not is_standin(entry.path):
                            protected.append(entry.path)
                        if name not in _HISTORIES:
                            folders.append(entry.path)
                    elif name in HIDDEN_FOLDERS:
                        hidden.append(entry.path)
                    elif name not in _PASSED_BY:
                        folders.append(entry.path)
                    continue
                if name in PROTECTED:
                    protected.append(entry.path)
                if is_hidden_file(name) or (name.endswith(KEY_SUFFIXES) and _private(entry)):
                    hidden.append(entry.path)
    except OSError as error:
        if error.errno in NO_ROOM:
            raise
        # Not readable for us, so not readable inside: the sandbox runs as the same user.
        return _Folder(changed, now, [], [], [], readable=False)
    return _Folder(changed, now, folders, protected, hidden)


def _private(entry: os.DirEntry[str]) -> bool:
    try:
        return not stat.S_IMODE(entry.stat().st_mode) & 0o077
    except OSError:
        return False


def _hidden_real(path: str, root: str) -> str | None:
    """What to cover so that ``path`` cannot be read: itself, or what it links to inside the same folder."""
    real = os.path.realpath(path)
    if real != root and real.startswith(root.rstrip("/") + "/") and os.path.exists(real):
        return real
    return None
