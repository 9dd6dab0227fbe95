"""Judges what is in a git folder that untrusted commands wrote: may the user's own git use it?

`why_harmful` judges a whole folder, `why_file_harmful` one file of it. Both know what is harmless and refuse the rest: settings
that could name a program or another place, hooks, files with commands that git runs later (`git rebase --continue`), files
that git would write somewhere else (links, an index with ``.git/hooks`` in it), and everything that they do not know. They
never run git, follow no link, and answer with a reason instead of an exception.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Sequence

from cantrip_acp.files.git_index import entries
from cantrip_acp.files.paths import within_any
from cantrip_acp.files.protected_paths import plain

_LARGEST_TEXT = 1024 * 1024
_LARGEST_TABLE = 64 * 1024 * 1024
"""Bytes of an index, of packed refs and of a reflog."""
_MOST_ENTRIES = 200_000
_DEEPEST = 24

Settings = list[tuple[str, str]]
"""Settings of git in the order of their file: the full key, with its section and name in lower case, and the value."""


def why_harmful(git_folder: str, *, writable: Sequence[str] = ()) -> str | None:
    """Why the user's git should not use this ``.git`` (a folder, or a file that names one); None if it is harmless.

    ``writable``: the folders that commands can write. A remote in one of them, or beside ``git_folder``, could get hooks
    that a later push runs, so it is harmful.
    """
    try:
        judge = _Judge(os.path.dirname(os.path.abspath(git_folder)), writable)
        kind = os.lstat(git_folder).st_mode
        if stat.S_ISREG(kind):
            return judge.link(git_folder)
        if not stat.S_ISDIR(kind):
            return "it is neither a file nor a folder (a link leads to another repository)"
        return judge.folder(git_folder, "", 0)
    except _Harm as harm:
        return str(harm)
    except (OSError, ValueError, RecursionError) as error:
        return f"it cannot be read ({error.strerror if isinstance(error, OSError) else error})"


class _Harm(Exception):
    """The reason for a refusal."""


class _Judge:
    """Judges one ``.git`` below ``top``, the folder that has it."""

    def __init__(self, top: str, writable: Sequence[str]) -> None:
        self.top = os.path.realpath(top)
        self.writable = (self.top, *writable)
        self.left = _MOST_ENTRIES

    def link(self, path: str) -> str | None:
        """Judge a file ``.git``: it must name a worktree or a submodule of a repository at or above it that points back."""
        text = _text(_read(path, 4096), "the file .git")
        if not text.startswith("gitdir: "):
            return "the file .git names no git folder"
        target = os.path.normpath(os.path.join(os.path.dirname(path), text.removeprefix("gitdir: ").strip()))
        head, _, below = target.rpartition("/.git/")
        if not head or below.partition("/")[0] not in ("worktrees", "modules") or os.path.realpath(target) != target:
            return f"the file .git names {target}, which is no worktree and no submodule of a repository"
        if not within_any(self.top, (os.path.realpath(head),)):
            return f"the file .git names the repository of another folder, {head}"
        back = os.path.join(target, "gitdir")
        if below.startswith("worktrees/"):
            claim = os.path.join(target, _text(_read(back, 4096), "gitdir").strip())
            if os.path.normpath(claim) != os.path.abspath(path):
                return f"the worktree {target} does not point back to this folder"
        judge = _Judge(head, self.writable)
        return judge._worktree(target) if below.startswith("worktrees/") else judge.folder(target, "", 0)

    def folder(self, path: str, name: str, depth: int, kind: str = "repository") -> str | None:
        """Judge the files in a git folder. ``kind`` is repository, or worktree for a folder in ``worktrees/``."""
        if depth > _DEEPEST:
            raise _Harm(f"{name} is too deep")
        with os.scandir(path) as found:
            listed = sorted(found, key=lambda entry: entry.name)
        for entry in listed:
            self.left -= 1
            if self.left < 0:
                raise _Harm(f"it has more than {_MOST_ENTRIES:,} files")
            here = f"{name}/{entry.name}" if name else entry.name
            if entry.is_symlink():
                raise _Harm(f"{here} is a symbolic link, and git would write where it leads")
            if entry.is_dir(follow_symlinks=False):
                self._inner(entry.path, here, depth, kind)
            elif not entry.is_file(follow_symlinks=False):
                raise _Harm(f"{here} is no file (a socket, pipe or device)")
            else:
                self._file(entry, here, kind)
        return None

    def _inner(self, path: str, name: str, depth: int, kind: str) -> None:
        parts = name.split("/")
        if parts[0] in ("modules", "worktrees") and kind == "repository":
            sub = os.path.isfile(os.path.join(path, "HEAD")) and len(parts) > 1
            if sub and parts[0] == "worktrees":
                why = self._worktree(path)
            elif sub:
                why = _Judge(self.top, self.writable).folder(path, "", depth + 1)
            else:
                why = self.folder(path, name, depth + 1)
            if why is not None:
                raise _Harm(f"{name}: {why}")
        elif parts[0] in _FOLDERS or (parts[0] == "rebase-apply"):
            self.folder(path, name, depth + 1, kind)
        else:
            raise _Harm(f"{name} is a folder that git does not make there")

    def _worktree(self, path: str) -> str | None:
        if _text(_read(os.path.join(path, "commondir"), 4096), "commondir").strip() != "../..":
            return "its commondir leads to another repository"
        claim = _text(_read(os.path.join(path, "gitdir"), 4096), "gitdir").strip()
        if os.path.basename(claim) != ".git":
            return "its gitdir names no .git"
        return self.folder(path, "", 0, "worktree")

    def _file(self, entry: os.DirEntry[str], name: str, kind: str) -> None:
        if kind == "worktree" and name in ("gitdir", "commondir", "locked"):
            return
        if name.startswith("objects/"):
            if name in ("objects/info/alternates", "objects/info/http-alternates"):
                raise _Harm(f"{name} leads to the objects of another repository")
            return
        if name.startswith("hooks/"):
            if not name.endswith(".sample"):
                raise _Harm(f"{name} is a program that git runs")
            return
        if name in ("config", "config.worktree"):
            data = _read(entry.path, _LARGEST_TEXT)
            where = os.path.dirname(entry.path)
            why = why_settings_harmful(parse_settings(data), where, self.top, self.writable)
            if why is not None:
                raise _Harm(f"{name}: {why}")
            return
        largest = largest_of(name)
        if largest is None:
            raise _Harm(f"{name} is a file that git does not make there")
        why = why_file_harmful(name, _read(entry.path, largest))
        if why is not None:
            raise _Harm(f"{name} {why}")


_FOLDERS = frozenset({"objects", "refs", "logs", "hooks", "info", "branches", "rebase-merge", "sequencer", "rr-cache"})
_TEXTS = frozenset(
    {
        "HEAD", "ORIG_HEAD", "FETCH_HEAD", "MERGE_HEAD", "MERGE_MSG", "MERGE_MODE", "MERGE_AUTOSTASH", "MERGE_RR", "SQUASH_MSG",
        "CHERRY_PICK_HEAD", "REVERT_HEAD", "REBASE_HEAD", "AUTO_MERGE", "COMMIT_EDITMSG", "TAG_EDITMSG", "NOTES_EDITMSG",
        "EDIT_DESCRIPTION", "BISECT_LOG", "BISECT_NAMES", "BISECT_TERMS", "BISECT_START", "BISECT_EXPECTED_REV", "BISECT_HEAD",
        "BISECT_ANCESTORS_OK", "BISECT_FIRST_PARENT", "BISECT_RUN", "description", "shallow", "gc.log", "branches",
        "info/exclude", "info/sparse-checkout", "info/refs", "info/attributes",
    }
)  # fmt: skip
_SYMBOLIC = frozenset(
    {"HEAD", "ORIG_HEAD", "REBASE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD", "AUTO_MERGE", "BISECT_HEAD"}
)
_TABLE = re.compile(r"(?:index|packed-refs|sharedindex\.[0-9a-f]{40,64}|logs/.+)\Z", re.DOTALL)
_OPERATION = re.compile(r"(?:rebase-merge|rebase-apply|sequencer)/([\w.-]+)\Z")
_OBJECT = re.compile(rb"[0-9a-f]{40}(?:[0-9a-f]{24})?\n?\Z")
_REF = re.compile(rb"ref: refs/[^\0-\x20\x7f~^:?*\[\\]+\n?\Z")


def largest_of(name: str) -> int | None:
    """The most bytes that a file of a git folder may have; None if git makes no such file, or it is none of those that may
    come from a command (settings, hooks, alternates)."""
    if _TABLE.match(name):
        return _LARGEST_TABLE
    if name in _TEXTS or name.startswith(("refs/", "rr-cache/")) or _OPERATION.match(name):
        return _LARGEST_TEXT
    return None


def why_file_harmful(name: str, data: bytes) -> str | None:
    """Why this content of a file in a git folder is harmful, as text that follows the name; None if it is harmless.

    ``name`` is its path in the git folder (``refs/heads/main``), one for which `largest_of` returns a size.
    """
    operation = _OPERATION.match(name)
    if operation is not None:
        return _why_operation_harmful(operation[1], data)
    if name == "index" or name.startswith("sharedindex."):
        return _why_index_harmful(data)
    if name.startswith("refs/") or name in _SYMBOLIC:
        if not (_OBJECT.match(data) or (_REF.match(data) and b"/../" not in data)):
            return "is not the name of a commit or of a ref"
        return None
    if name.startswith("BISECT_"):
        return None if all(map(_BISECT_LINE.match, data.splitlines())) else "has a line that git does not write there"
    if name == "info/attributes" and _DRIVER.search(data):
        return "names a filter or a driver, which may be a program of your own settings"
    return None


_BISECT_LINE = re.compile(rb"#|git bisect [a-z]+(?:[\w ./@{}~^:+,=%-]|'[\w ./@{}~^:+,=%-]*')*\Z|[\w ./'~^:+,=%-]*\Z")
_DRIVER = re.compile(rb"(?:filter|diff|merge)=(?!(?:union|ours|binary|text|lfs)\b)")


def hidden_entries(data: bytes) -> set[str]:
    """The paths in an index that git does not look at (assume-unchanged, skip-worktree): changes of them show nowhere."""
    try:
        return {os.fsdecode(each.path) for each in entries(data) if each.ignored}
    except ValueError:
        return set()


def _why_index_harmful(data: bytes) -> str | None:
    try:
        listed = entries(data)
    except ValueError as error:
        return f"cannot be read: {error}"
    for entry in listed:
        path = entry.path
        # Most entries have no such bytes; only the others are looked at by name.
        if _PLAIN_PATH.match(path) and b".git" not in path.lower() and b"git~" not in path.lower():
            continue
        for part in os.fsdecode(path).rstrip("/").split("/"):
            if part in ("", ".", "..") or plain(part) == ".git" or plain(part).startswith(".git\\") or "\\" in part:
                return f"has the path {os.fsdecode(path)!r}, which git would write into a git folder or outside of this one"
    return None


_PLAIN_PATH = re.compile(rb"(?!\.\.?(?:/|\Z))[\w+@%=,() -][\w.+@%=,() -]*(?:/(?!\.\.?(?:/|\Z))[\w.+@%=,() -]+)*\Z")

_STEPS = frozenset(
    {
        "p", "pick", "r", "reword", "e", "edit", "s", "squash", "f", "fixup", "b", "break", "d", "drop", "l", "label", "t", "reset",
        "m", "merge", "u", "update-ref", "noop", "revert",
    }
)  # fmt: skip
STRATEGIES = frozenset({b"", b"ort", b"recursive", b"resolve", b"octopus", b"ours", b"subtree"})
"""Any other strategy of a merge is the name of a program."""
_AUTHOR = re.compile(rb"(?:GIT_AUTHOR_(?:NAME|EMAIL|DATE)=(?:'[^']*'|\\')*\n?)*\Z")
_APPLY_OPTIONS = re.compile(
    rb"(?:\s|'-C\d+'|'-p\d+'|'--whitespace=\w+'|'--ignore-(?:space-change|whitespace)'|'--reject')*\Z"
)


def _why_operation_harmful(name: str, data: bytes) -> str | None:
    """Judge a file of a rebase, a cherry-pick or ``git am`` that goes on later."""
    if name.startswith(("git-rebase-todo", "todo", "done")):
        return None if todo_without_commands(data) == data else "has a step that runs a command (exec)"
    if name == "strategy" and data.strip() not in STRATEGIES:
        return "names a program as merge strategy"
    if name == "author-script" and not _AUTHOR.match(data):
        return "has more than an author"
    if name == "apply-opt" and not _APPLY_OPTIONS.match(data):
        return "has options that may write other files"
    if name == "opts":
        for key, value in parse_settings(data):
            if key == "options.strategy" and value.encode() not in STRATEGIES:
                return "names a program as merge strategy"
    return None


def todo_without_commands(data: bytes) -> bytes:
    """The steps of a rebase or cherry-pick in which each step that is not known to be harmless is a comment."""
    lines = []
    for line in data.splitlines(keepends=True):
        word = line.split(None, 1)[0].decode("ascii", "replace") if line.strip() else ""
        harmless = not word or line.startswith(b"#") or word in _STEPS
        lines.append(line if harmless else b"# " + line)
    return b"".join(lines)


# --- settings

_HEADER = re.compile(r'\[\s*([A-Za-z0-9.-]+)(?:\s+"((?:[^"\\\n]|\\.)*)")?\s*\]')
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9-]*")
_VALUE = re.compile(r'(?:[^"\\\n#;]|\\\n|\\.|"(?:[^"\\\n]|\\\n|\\.)*")*')


def parse_settings(data: bytes) -> Settings:
    """The settings of a git file. Raises `ValueError` for what git would not read, or might read in another way."""
    text = data.decode("utf-8", "surrogateescape").removeprefix("\ufeff").replace("\r\n", "\n")
    if "\0" in text or "\r" in text:
        raise ValueError("the settings have control characters")
    found: Settings = []
    section, at = "", 0
    while at < len(text):
        if text[at] in " \t\n":
            at += 1
        elif text[at] in "#;":
            at = (text + "\n").index("\n", at)
        elif text[at] == "[":
            header = _HEADER.match(text, at)
            if header is None:
                raise ValueError("the settings have a section that cannot be read")
            sub = re.sub(r"\\(.)", r"\1", header[2]) if header[2] is not None else None
            section = header[1].lower() + (f".{sub}" if sub is not None else "")
            at = header.end()
        else:
            name = _NAME.match(text, at)
            if name is None or not section:
                raise ValueError("the settings have a line that cannot be read")
            at = name.end()
            while text[at : at + 1] in (" ", "\t"):
                at += 1
            value = "true"
            if text[at : at + 1] == "=":
                written = _VALUE.match(text, at + 1)
                assert written is not None
                at = written.end()
                value = _unquoted(written[0])
            if at < len(text) and text[at] not in "\n#;":
                raise ValueError("the settings have a value that cannot be read")
            found.append((f"{section}.{name[0].lower()}", value))
    return found


def _unquoted(written: str) -> str:
    out, quoted, at, end = [], False, 0, 0
    written = written.strip(" \t")
    while at < len(written):
        char = written[at]
        if char == '"':
            quoted = not quoted
        elif char == "\\":
            at += 1
            after = written[at]
            if after != "\n":
                known = {"n": "\n", "t": "\t", "b": "\b", '"': '"', "\\": "\\"}
                if after not in known:
                    raise ValueError("the settings have an escape that cannot be read")
                out.append(known[after])
        else:
            out.append(char)
        at += 1
        end = len(out)
    return "".join(out[:end])


_HARMLESS = re.compile(
    r"core\.(?:repositoryformatversion|filemode|bare|logallrefupdates|ignorecase|precomposeunicode|symlinks|autocrlf|eol|safecrlf"
    r"|quotepath|abbrev|compression|loosecompression|bigfilethreshold|longpaths|sparsecheckout|sparsecheckoutcone|untrackedcache"
    r"|preloadindex|checkstat|trustctime|fscache|whitespace|commentchar|splitindex|commitgraph|multipackindex|hidedotfiles"
    r"|sharedrepository|fsync|fsyncmethod|fsyncobjectfiles)"
    r"|(?:user|author|committer)\.(?:name|email)|user\.useconfigonly|init\.(?:defaultbranch|defaultobjectformat)"
    r"|extensions\.(?:objectformat|worktreeconfig|partialclone|noop|preciousobjects|relativeworktrees|compatobjectformat)"
    r"|(?:pull|rebase|merge|rerere|color|column|status|log|advice|gc|pack|index|feature|commit|tag|push|fetch|format\.pretty"
    r"|submodule|worktree|checkout|stash|transfer|branch|remote|maintenance|lfs)"
    r"\.(?:rebase|ff|autostash|autosquash|updaterefs|enabled|autoupdate|ui|short|branch|showuntrackedfiles|date|decorate|auto|autodetach"
    r"|threads|version|manyfiles|verbose|cleanup|gpgsign|sort|default|autosetupremote|followtags|prune|prunetags|parallel"
    r"|fsckobjects|guessremote|userelativepaths|conflictstyle|renames|renamelimit|autosetupmerge|autosetuprebase|pushdefault"
    r"|active|recurse|abbrevcommit|repositoryformatversion|detachedhead|pruneexpire|reflogexpire|strategy)"
    r"|diff\.(?:renames|renamelimit|algorithm|mnemonicprefix|noprefix|context|submodule|colormoved|colormovedws|ignoresubmodules)"
    r"|remote\.(?:.+)\.(?:url|pushurl|fetch|push|tagopt|prune|prunetags|mirror|skipdefaultupdate|skipfetchall|promisor"
    r"|partialclonefilter|gh-resolved)"
    r"|branch\.(?:.+)\.(?:remote|merge|rebase|pushremote|description|vscode-merge-base|github-pr-owner-number)"
    r"|submodule\.(?:.+)\.(?:url|active|branch|ignore|fetchrecursesubmodules|shallow|update)|lfs\.(?:.+)\.access",
    re.DOTALL,
)  # fmt: skip
_ADDRESS = re.compile(
    r"(?:https?|ssh|git)://(?!-)(?:[^/\s@]+@(?!-))?[\w.\[\]:-]+(?:/[^\s\\]*)?\Z|(?:[\w.-]+@)?(?!-)[\w.-]+:(?![:/]{2}|-)[^\s\\:]+\Z"
)


def why_settings_harmful(
    settings: Iterable[tuple[str, str]], where: str, top: str, writable: Sequence[str]
) -> str | None:
    """Why settings are harmful in the git folder ``where`` of the work tree ``top``; None if they are harmless.

    ``writable``: folders that commands can write; a remote there is harmful.
    """
    for key, value in settings:
        last = key.rpartition(".")[2]
        if key == "core.worktree":
            tree = os.path.normpath(os.path.join(where, value))
            if tree == top or tree.startswith(top + "/"):
                continue
            return f"core.worktree leads to {tree}, outside of the folder of this repository"
        if _HARMLESS.fullmatch(key) is None:
            return f"{key} is a setting that may run a program or lead elsewhere"
        if any(ord(char) < 32 and char != "\t" for char in value):
            return f"{key} has a control character"
        if last in ("url", "pushurl") and key.startswith(("remote.", "submodule.")):
            if (why := why_address_harmful(value, where, top, writable)) is not None:
                return f"{key} {why}"
        if key.startswith("branch.") and last in ("remote", "pushremote") and not re.fullmatch(r"[\w./-]+", value):
            return f"{key} is no name of a remote"
        if last == "update" and value not in ("checkout", "rebase", "merge", "none"):
            return f"{key} names a command"
        if last in ("merge", "fetch", "push", "remote", "pushremote") and value.startswith("-"):
            return f"{key} begins with a dash"
    return None


def why_address_harmful(address: str, where: str, top: str, writable: Sequence[str]) -> str | None:
    """Why git should not use an address of a remote, as text that follows its setting; None if it is harmless."""
    if _ADDRESS.match(address):
        return None
    path = address.removeprefix("file://")
    if "::" in address or address.startswith("-") or "://" in path or not path.strip() or "\\" in path:
        return "is an address that may run a program"
    leads = os.path.realpath(os.path.join(top, path))
    if within_any(leads, (top, *writable)):
        return f"leads to {leads}, where commands can make hooks that a push would run"
    return None


def _read(path: str, largest: int) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise _Harm(f"{os.path.basename(path)} is not a file")
        data = file.read(largest + 1)
    if len(data) > largest:
        raise _Harm(f"{os.path.basename(path)} is larger than {largest:,} bytes")
    return data


def _text(data: bytes, what: str) -> str:
    text = data.decode("utf-8", "surrogateescape").rstrip("\n")
    if "\n" in text or "\0" in text:
        raise _Harm(f"{what} has more than one line")
    return text


_NEVER_CHANGED = re.compile(r"(?:core|extensions|transfer|fetch|maintenance|gc|commit|tag|lfs)\.")
_ADDED_ONLY = re.compile(
    r"(?:remote\..+\.(?:url|pushurl|fetch|push)|submodule\..+\.url|branch\..+\.(?:remote|pushremote))", re.DOTALL
)


def why_settings_change_harmful(
    before: Settings, after: Settings, where: str, top: str, writable: Sequence[str]
) -> str | None:
    """Why a change of settings is harmful; None if all new ones are harmless, and no address of a remote is another one."""
    new = [each for each in after if each not in before]
    for key, _ in (*new, *(each for each in before if each not in after)):
        if _NEVER_CHANGED.match(key) or not _HARMLESS.fullmatch(key):
            return f"{key} is a setting that only you change"
    why = why_settings_harmful(new, where, top, writable)
    if why is not None:
        return why
    had = {key for key, _ in before}
    for key, _ in new:
        if key in had and _ADDED_ONLY.fullmatch(key):
            return f"{key} is where you fetch from and push to; only you change it"
    return None
