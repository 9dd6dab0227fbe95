"""Protected and hidden paths: the files that gates and commands must not write, and the files that they must not read.

**Protected** (`PROTECTED_FILES`, each with its reason) are files that another program executes only because somebody
opens or enters the folder, or runs a read-only command there. An entity that writes such a file can run code outside
the sandbox later. Files that a person runs on purpose (a Makefile, a test, a package's own code) are not protected.
**Hidden** are environment files, keys and credentials, and the copies of them that editors make.
Gates use these lists directly. The sandbox searches the same names on the disk (`cantrip_acp.sandbox.policy.protected`).
"""

from __future__ import annotations

import os
import re
import stat
import unicodedata
from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase, translate
from functools import lru_cache

from msgspec import Struct


class Protected(Struct, frozen=True):
    """A protected name or pattern, at any depth. With a slash, the part before it is the name of the file's folder.

    If ``first``, commands on macOS also cannot create it at the top of a writable folder. If ``always``, no recipe can allow it.
    ``home``: programs read it in the home folder alone, so it is protected only if a gate may write the home folder.
    """

    name: str
    reason: str
    first: bool = False
    always: bool = False
    home: bool = False


_GIT = "version control runs the hooks and the programs that its settings name"
_EDITOR = "the editor runs the tasks and the programs that it names when the folder is opened"
_AGENT = "a coding agent runs the hooks and the servers that it names when it starts in the folder"
_ENTERED = "a shell runs it when it enters the folder"
_SHELL = "a shell runs it when it starts"
_HOOKS = "a hook of git runs the commands that it names"
_BUILD = "a build tool reads it for every command, and runs the programs that it names"
_VERSIONS = "a version manager runs what it names when a shell enters the folder"
_DEBUGGER = "the program runs the commands in it when it starts"
_PYTHON = "editors and tools run the interpreter of a virtual environment by themselves"

PROTECTED_FILES: tuple[Protected, ...] = (
    Protected(".git", _GIT, first=True, always=True),
    Protected(".hg", _GIT, always=True),
    Protected(".svn", _GIT, always=True),
    Protected(".jj", _GIT, always=True),
    Protected(".gitconfig", _GIT),
    Protected(".gitmodules", "git fetches from the addresses that it names", first=True),
    Protected(".cantrip", "it holds the recipes that a person trusts", first=True, always=True),
    Protected(".catalog", "it says what agents may do, and holds the receipts of their work", first=True, always=True),
    Protected(".vscode", _EDITOR, first=True),
    Protected("*.code-workspace", _EDITOR),
    Protected(".devcontainer", "the editor builds and runs the container that it describes", first=True),
    Protected(".devcontainer.json", "the editor builds and runs the container that it describes"),
    Protected(".idea", _EDITOR, first=True),
    Protected(".fleet", _EDITOR, first=True),
    Protected(".zed", _EDITOR, first=True),
    Protected(".helix", _EDITOR, first=True),
    Protected(".vs", _EDITOR),
    Protected("*.sublime-project", _EDITOR),
    Protected(".externaltoolbuilders", _EDITOR),
    Protected(".exrc", _EDITOR, first=True),
    Protected(".vimrc", _EDITOR),
    Protected(".nvimrc", _EDITOR, first=True),
    Protected(".nvim.lua", _EDITOR, first=True),
    Protected(".lvimrc", _EDITOR),
    Protected(".dir-locals.el", _EDITOR, first=True),
    Protected(".dir-locals-2.el", _EDITOR),
    Protected(".mcp.json", _AGENT, first=True),
    Protected(".agents", _AGENT, first=True),
    Protected(".claude", _AGENT, first=True),
    Protected(".codex", _AGENT, first=True),
    Protected(".cursor", _AGENT, first=True),
    Protected(".gemini", _AGENT, first=True),
    Protected(".qwen", _AGENT),
    Protected(".windsurf", _AGENT),
    Protected(".kiro", _AGENT),
    Protected(".continue", _AGENT),
    Protected(".roo", _AGENT),
    Protected(".amazonq", _AGENT),
    Protected(".junie", _AGENT),
    Protected(".goose", _AGENT),
    Protected(".crush.json", _AGENT),
    Protected("crush.json", _AGENT),
    Protected(".opencode", _AGENT, first=True),
    Protected("opencode.json", _AGENT, first=True),
    Protected("opencode.jsonc", _AGENT, first=True),
    Protected(".aider.conf.yml", _AGENT, first=True),
    Protected(".envrc", _ENTERED, first=True),
    Protected(".autoenv", _ENTERED),
    Protected(".autoenv.zsh", _ENTERED),
    Protected(".bashrc", _SHELL, home=True),
    Protected(".bash_profile", _SHELL, home=True),
    Protected(".bash_login", _SHELL, home=True),
    Protected(".bash_logout", _SHELL, home=True),
    Protected(".profile", _SHELL, home=True),
    Protected(".zshrc", _SHELL, home=True),
    Protected(".zshenv", _SHELL, home=True),
    Protected(".zprofile", _SHELL, home=True),
    Protected(".zlogin", _SHELL, home=True),
    Protected(".zlogout", _SHELL, home=True),
    Protected(".inputrc", _SHELL, home=True),
    Protected(".husky", _HOOKS),
    Protected(".githooks", _HOOKS),
    Protected(".pre-commit-config.yaml", _HOOKS, first=True),
    Protected(".overcommit.yml", _HOOKS),
    *(
        Protected(f"{dot}lefthook{local}.{ending}", _HOOKS)
        for dot in ("", ".")
        for local in ("", "-local")
        for ending in ("yml", "yaml", "toml", "json")
    ),
    Protected(".cargo", _BUILD, first=True),
    Protected(".npmrc", _BUILD, first=True),
    Protected(".pnpmfile.cjs", _BUILD),
    Protected(".yarnrc", _BUILD),
    Protected(".yarnrc.yml", _BUILD),
    Protected(".yarn/releases", _BUILD),
    Protected(".yarn/plugins", _BUILD),
    Protected(".bazelrc", _BUILD),
    Protected("tools/bazel", _BUILD),
    Protected(".mvn", _BUILD),
    Protected("gradle/wrapper", "a development environment runs it when it imports the project"),
    Protected(".bundle", _BUILD),
    Protected(".mise.toml", _VERSIONS),
    Protected(".mise.local.toml", _VERSIONS),
    Protected("mise.toml", _VERSIONS),
    Protected("mise.local.toml", _VERSIONS),
    Protected(".mise", _VERSIONS),
    Protected(".rtx.toml", _VERSIONS),
    Protected(".tool-versions", _VERSIONS),
    Protected(".ripgreprc", "ripgrep runs the preprocessor that it names for every search", home=True),
    Protected(".gdbinit", _DEBUGGER),
    Protected(".lldbinit", _DEBUGGER),
    Protected(".irbrc", _DEBUGGER),
    Protected(".pryrc", _DEBUGGER),
    Protected("pyvenv.cfg", _PYTHON),
    Protected("bin/python", _PYTHON),
    Protected("bin/python[23]*", _PYTHON),
    Protected("bin/pypy*", _PYTHON),
    Protected("bin/activate", _PYTHON),
    Protected("bin/activate[._]*", _PYTHON),
    Protected("scripts/python*.exe", _PYTHON),
    Protected("site-packages/*.pth", "the interpreter runs it at every start"),
    Protected("site-packages/sitecustomize.py", "the interpreter runs it at every start"),
    Protected("site-packages/usercustomize.py", "the interpreter runs it at every start"),
)
"""Files that may run code without a request. If ``pyvenv.cfg`` is allowed, all files of a Python interpreter are allowed."""

_PLAIN = {row.name: row for row in PROTECTED_FILES if not set(row.name) & set("/*[")}
_IN_FOLDER: dict[str, list[tuple[str, Protected]]] = {}
_ANYWHERE: list[tuple[re.Pattern[str], Protected]] = []
for _row in PROTECTED_FILES:
    _folder, _, _name = _row.name.rpartition("/")
    if _folder:
        _IN_FOLDER.setdefault(_folder, []).append((_name, _row))
    elif _row.name not in _PLAIN:
        _ANYWHERE.append((re.compile(translate(_name)), _row))

ALLOWABLE = tuple(row.name for row in PROTECTED_FILES if not row.always)
"""The names that the ward ``allow_protected`` accepts."""

HIDDEN_FILES = frozenset(
    {
        ".netrc", "_netrc", ".npmrc", ".yarnrc", ".pypirc", ".git-credentials", ".pgpass", ".my.cnf", ".s3cfg", ".boto",
        ".dockercfg", ".vault-token", ".terraformrc", ".htpasswd", "credentials.toml", ".envrc", "kubeconfig", ".kubeconfig",
        "application_default_credentials.json",
    }
)  # fmt: skip
HIDDEN_FOLDERS = frozenset({".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker", ".password-store"})
HIDDEN_SUFFIXES = (
    ".p12", ".pfx", ".ppk", ".kdbx", ".keytab", ".jks", ".keystore", ".tfvars", ".tfvars.json", ".tfstate",
)  # fmt: skip
KEY_SUFFIXES = (".pem", ".key")
"""Suffixes of files that are hidden if only the owner may read them. Tools make private keys with such permissions, but
the keys of test data can usually be read by all.
"""

EXAMPLES = frozenset({".env.example", ".env.sample", ".env.template", ".env.dist", ".env.defaults"})
"""Environment files that may be read, because they are examples without secrets."""

_KEY_FILE = re.compile(
    # SSH keys (id_ed25519, id_rsa_work), and the service keys of cloud providers.
    r"id_[^.]*\Z|(?:.*[-_.])?service[-_.]?account[^/]*\.json\Z|client_secret[^/]*\.json\Z"
)
_COPY = re.compile(
    # Copies of a file from editors, merges and installers: swap files, backups, locks, autosaves.
    r"(?P<swap>\.sw[a-p][a-z]?|\.un~|~+|\.~\d+~)\Z|#\Z"
    r"|\.(?:bak|back|backup|orig|old|save|saved|tmp|temp|copy|rej|new|prev|dpkg-\w+|rpm(?:save|new|orig)|\d+)\Z"
    r"|[ _-](?:copy|backup|old)(?: ?\(?\d*\)?)?\Z| \(\d+\)\Z"
)
_MOST_COPIES = 6


@lru_cache(maxsize=4096)
def plain(name: str) -> str:
    """Normalize a file name, so that all spellings that some file system accepts for a name are equal.

    Examples are upper case (macOS, Windows drives), invisible characters (HFS+), dots and spaces at the end, and
    ``git~1`` for ``.git`` (Windows drives).
    """
    if name.isascii():
        folded = name.lower()
    else:
        kept = "".join(c for c in unicodedata.normalize("NFKC", name) if unicodedata.category(c) != "Cf")
        folded = kept.casefold()
    folded = folded.rstrip(". ") or folded
    return ".git" if folded == "git~1" else folded.partition(":")[0] if ":" in folded else folded


def protected_by(name: str, folder: str = "") -> Protected | None:
    """The entry that protects a name in a folder, or None. Both names must be normalized with `plain`."""
    row = _PLAIN.get(name)
    if row is not None:
        return row
    for wanted, row in _IN_FOLDER.get(folder, ()):
        if fnmatchcase(name, wanted):
            return row
    for pattern, row in _ANYWHERE:
        if pattern.match(name):
            return row
    return None


def is_allowed(row: Protected, allowed: Collection[str]) -> bool:
    """Whether the names in the ward ``allow_protected`` allow this entry."""
    return not row.always and (row.name in allowed or (row.reason == _PYTHON and "pyvenv.cfg" in allowed))


def why_protected(parts: Sequence[str], allowed: Collection[str] = (), *, home: bool = True) -> str | None:
    """The reason why a path must not be written, as text that follows the path. None if writing is allowed.

    ``parts`` are the names in the path below the root. ``allowed`` are the names in the ward ``allow_protected``. ``home``:
    whether the home folder is in the root, so that the start files of shells count.
    """
    folder = ""
    for part in parts:
        name = plain(part)
        row = protected_by(name, folder)
        folder = name
        if row is not None and (home or not row.home) and not is_allowed(row, allowed):
            return (
                f"is protected: what is in {part!r} can make programs run outside the sandbox ({row.reason}), so only a "
                "person changes it. Say in your answer what should be changed there"
            )
    return None


def separate_git_folder(folder: str) -> str | None:
    """The git folder that the file ``.git`` of a folder names, if it is in the same folder under a name of its own; else None.

    It has the hooks and the settings of a repository, so it is as protected as a folder ``.git``.
    """
    try:
        fd = os.open(os.path.join(folder, ".git"), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        text = os.read(fd, 4096) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
    finally:
        os.close(fd)
    head, _, name = os.fsdecode(text).strip().partition(":")
    path = os.path.realpath(os.path.join(folder, name.strip()))
    inside = path.startswith(folder.rstrip("/") + "/") and ".git" not in path[len(folder) :].split("/")
    return path if head == "gitdir" and inside and os.path.isdir(path) else None


def why_hidden(parts: Sequence[str], mode: int | None = None) -> str | None:
    """The reason why a path must not be read, as text that follows the path. None if reading is allowed.

    ``mode`` is the mode of the file: a folder is never an environment file, and a key is recognized by its permissions.
    """
    if not parts:
        return None
    name = plain(parts[-1])
    folder = next((part for part in parts if plain(part) in HIDDEN_FOLDERS), None)
    if folder is None and ((mode is not None and stat.S_ISDIR(mode)) or not is_secret_file(name, mode)):
        return None
    what = f"what is in {folder!r} holds" if folder is not None else f"{parts[-1]!r} and files of its kind hold"
    hint = "Names without values may stand in .env.example" if name.startswith(".env") else "Work without it"
    return f"is hidden: {what} keys or credentials. {hint}"


@lru_cache(maxsize=4096)
def is_secret_file(name: str, mode: int | None = None) -> bool:
    """Whether a file with this name (normalized with `plain`) contains secrets, or is an editor's copy of such a file."""
    for _ in range(_MOST_COPIES):
        if _is_secret_name(name):
            return True
        if name.endswith(KEY_SUFFIXES):
            return mode is not None and not stat.S_IMODE(mode) & 0o077
        ending = _COPY.search(name)
        copied = name[: ending.start()] if ending is not None else name
        if ending is None and name.startswith((".#", "#")):
            # A lock or an autosave of Emacs.
            copied = name.lstrip(".").lstrip("#")
        elif ending is not None and ending["swap"] and name.startswith(".") and not _is_secret_name(copied):
            # Vim puts a dot before the name, if the name does not begin with a dot.
            copied = copied.removeprefix(".")
        if copied == name or not copied:
            return False
        name = copied
    return False


def _is_secret_name(name: str) -> bool:
    if name.startswith(".env"):
        return name not in EXAMPLES and (len(name) == 4 or name[4] in ".-_~#" or name == ".envrc")
    return name in HIDDEN_FILES or name.endswith(HIDDEN_SUFFIXES) or _KEY_FILE.match(name) is not None


def is_git_config(parts: Sequence[str]) -> bool:
    """Whether this file contains the settings of a git repository, which may include credentials."""
    return bool(parts) and plain(parts[-1]) in ("config", "config.worktree") and ".git" in map(plain, parts[:-1])


_SECTION = r'(?:[^\S\n]*\[(?:[^"\]\n]|"(?:[^"\\\n]|\\.)*")*\])?[^\S\n]*'
_SECRET_LINE = re.compile(
    rf"^({_SECTION})(?:extraheader|sslkey|sslcert|helper|smtppass|cookiefile"
    r"|[\w-]*(?:token|passw|secret|apikey|api-key|credential)[\w-]*)[^\S\n]*=(?:[^\\\n]|\\.|\\\n)*",
    re.IGNORECASE | re.MULTILINE,
)
_SECRET_URL = re.compile(r'(?<=://)[^/\s"]+@')
_SECRET_QUERY = re.compile(r'([?&][\w-]*(?:token|key|secret|password|auth)[\w-]*=)[^&\s"]+', re.IGNORECASE)


def without_credentials(config: str) -> str:
    """Remove credentials from git settings: headers, passwords, helpers, and user names in addresses.

    Continuous integration often writes a token there.
    """
    return _SECRET_QUERY.sub(r"\1", _SECRET_URL.sub("", _SECRET_LINE.sub(r"\1", config)))
