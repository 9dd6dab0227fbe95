"""Ignore files and globs: decides which files are ignored, with the rules of git and ripgrep.

A tree is walked from the top, and an ignored folder is not entered. ``.rgignore`` overrides ``.ignore``, which overrides
``.gitignore``. Of several files of one kind, the deepest one with a matching line decides, and in this file the last
matching line. A ``.gitignore`` above a repository's top folder has no effect inside the repository.
"""

from __future__ import annotations

import itertools
import os
import re
import stat
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Protocol

from msgspec import Struct

from cantrip_acp.types.errors import GateError

IGNORE_FILES = (".rgignore", ".ignore", ".gitignore")
_LARGEST = 262_144
"""The most bytes of an ignore file that are read."""
_MOST_LINES = 2_000
"""The most lines of an ignore file that are used, because each path is compared to each line."""
_MOST_ALTERNATIVES = 100
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class RootFolder(Protocol):
    """What `level_of` needs of a gate's root: the folder ``base``, the names ``inner`` below it, and a way down."""

    @property
    def base(self) -> str: ...

    @property
    def inner(self) -> tuple[str, ...]: ...

    def descend(self, parts: Sequence[str]) -> int: ...


class Rule(Struct, frozen=True):
    """One line of an ignore file. ``negated``: it starts with ``!`` and cancels earlier lines."""

    match: re.Pattern[str]
    negated: bool
    folders_only: bool


class Rules:
    """The rules of one ignore file. Paths are relative to its folder."""

    __slots__ = ("_rules",)

    def __init__(self, lines: Iterable[str]) -> None:
        rules = [rule for line in lines if (rule := _rule(line)) is not None]
        self._rules = tuple(reversed(rules))

    def __bool__(self) -> bool:
        return bool(self._rules)

    def ignores(self, path: str, folder: bool) -> bool | None:
        """Whether ``path`` is ignored; None if no line matches."""
        for rule in self._rules:
            if (folder or not rule.folders_only) and rule.match.match(path):
                return not rule.negated
        return None


class Level(Struct, frozen=True):
    """A folder with its own ignore files, and the level of its parent folder."""

    above: Level | None
    name: str
    rules: tuple[Rules, ...]
    repository: bool

    def ignores(self, name: str, folder: bool, *, by_git: bool = False) -> bool:
        """Whether an entry of this folder is ignored; with ``by_git`` only the rules of ``.gitignore`` count."""
        for kind in (2,) if by_git else range(len(IGNORE_FILES)):
            path, level = name, self
            while True:
                verdict = level.rules[kind].ignores(path, folder)
                if verdict is not None:
                    return verdict
                # git does not look above a repository's top folder.
                if level.above is None or (kind == 2 and level.repository):
                    break
                path, level = f"{level.name}/{path}", level.above
        return False

    def enter(self, name: str, folder: int) -> Level:
        """The level of a subfolder, which is open as ``folder``."""
        return Level(self, name, _read_rules(folder), _has_git(folder))


def level_of(root: RootFolder, parts: Sequence[str]) -> tuple[Level, bool]:
    """Load the level of a folder below a root, with all ignore files above it. Also returns whether the folder itself is
    ignored.

    Raises `GateError` if the folder does not exist any more.
    """
    level = level_of_folder(root.base)
    ignored = False
    names = (*root.inner, *parts)
    for number, name in enumerate(names, 1):
        ignored = ignored or level.ignores(name, True)
        folder = root.descend(names[:number])
        try:
            level = level.enter(name, folder)
        finally:
            os.close(folder)
    return level, ignored


def level_of_folder(path: str) -> Level:
    """Load the level of a folder that no command can replace, with all levels from the file system's root."""
    level = Level(None, "", (_NONE,) * len(IGNORE_FILES), False)
    parts = [part for part in path.split("/") if part]
    for depth in range(len(parts) + 1):
        name = parts[depth - 1] if depth else ""
        above = level if depth else None
        try:
            folder = os.open("/" + "/".join(parts[:depth]), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            level = Level(above, name, (_NONE,) * len(IGNORE_FILES), False)
            continue
        try:
            level = Level(above, name, _read_rules(folder), _has_git(folder))
        finally:
            os.close(folder)
    return level


class Globs:
    """A glob that selects files, like ``rg --glob``. With a leading ``!`` it excludes files."""

    __slots__ = ("_excludes", "_rules")

    def __init__(self, glob: str) -> None:
        self._excludes = glob.startswith("!")
        try:
            globs = _alternatives(glob.removeprefix("!"))
        except ValueError as error:
            raise GateError(f"the glob {glob!r} cannot be read: {error}") from None
        found = [_rule(f"\\{one}" if one.startswith(("#", "!")) else one) for one in globs]
        self._rules = [rule for rule in found if rule is not None]
        if not self._rules and "[" in glob:
            raise GateError(f"the glob {glob!r} cannot be read: a '[' is not closed, or its range is empty")
        if not self._rules:
            raise GateError(f"the glob {glob!r} matches nothing; examples: '*.py', 'src/**/*.{{ts,tsx}}', '!*.md'")

    def selects(self, path: str, folder: bool) -> bool | None:
        """True: selected; False: excluded; None: the ignore files decide. ``path`` is relative to the gate's folder."""
        for rule in self._rules:
            if (folder or not rule.folders_only) and rule.match.match(path):
                return not self._excludes
        return None if self._excludes or folder else False


@lru_cache(maxsize=4096)
def _rule(line: str) -> Rule | None:
    """Parse one line to a rule. None for empty lines, comments, and lines that git does not understand either."""
    from pathspec.patterns.gitignore import GitIgnorePatternError
    from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

    # pathspec matches a folder together with its content. We check one entry at a time.
    line = line if line.endswith("\\ ") else line.rstrip()
    folders_only = line.endswith("/") and not line.endswith("\\/")
    line = _CLASS.sub(lambda match: _CLASSES[match[1]], line.removesuffix("/") if folders_only else line)
    try:
        regex, ignores = GitIgnoreSpecPattern.pattern_to_regex(line)
        if regex is None:
            return None
        # pathspec searches for a slash anywhere here; we match from the start.
        regex = "^[^/]+/" if regex == "/" else regex
        return Rule(re.compile(_without_backtracking(regex), re.DOTALL), not ignores, folders_only)
    except (GitIgnorePatternError, re.error):
        return None


def _without_backtracking(regex: str) -> str:
    """Rewrite a regular expression of pathspec so that it matches the same paths in at most quadratic time.

    Without this, an ignore file could block its reader. Only the last text after a ``*``, and the last names after a
    ``**``, can backtrack. Earlier parts stay at their first match.
    """
    runs = regex.removesuffix(_ENTRY_OR_BELOW).split(_INNER_FOLDERS)
    end = r"\Z" if regex.endswith(_ENTRY_OR_BELOW) else ""
    for number, run in enumerate(runs):
        first, *pieces = run.split(_STAR)
        middle = "".join(f"(?>[^/]*?{piece})" for piece in pieces[:-1] if piece)
        run = first + middle + (_STAR + pieces[-1] if pieces else "")
        if number < len(runs) - 1:
            run += "(?=/)"
            if run.startswith(_ANY_FOLDERS):
                run = f"^(?>(?:[^/]+/)*?{run.removeprefix(_ANY_FOLDERS)})"
            elif number:
                run = f"(?>(?:/[^/]+)*?{run})"
        elif number:
            run = f"(?:/[^/]+)*{run}"
        runs[number] = run
    return "".join(runs) + end


def _alternatives(glob: str) -> list[str]:
    """Expand a glob with braces into globs without braces. Raises `ValueError`."""
    done, pending = list[str](), [glob]
    while pending:
        if len(done) + len(pending) > _MOST_ALTERNATIVES:
            raise ValueError(f"its braces expand to more than {_MOST_ALTERNATIVES} globs")
        glob = pending.pop()
        opened = _find_brace(glob)
        if opened is None:
            done.append(glob)
            continue
        start, commas, close = opened
        edges = [start, *commas, close]
        pending += [glob[:start] + glob[a + 1 : b] + glob[close + 1 :] for a, b in itertools.pairwise(edges)]
    return done


def _find_brace(glob: str) -> tuple[int, list[int], int] | None:
    """Find the positions of the first brace, its own commas, and its end. None if there is no brace."""
    start, depth, commas, at = -1, 0, list[int](), 0
    while at < len(glob):
        c = glob[at]
        if c == "\\":
            at += 1
        elif c == "[" and (end := glob.find("]", at + 2)) > 0:
            at = end
        elif c == "{":
            depth += 1
            start = at if depth == 1 else start
        elif c == "," and depth == 1:
            commas.append(at)
        elif c == "}" and depth:
            depth -= 1
            if depth == 0:
                return start, commas, at
        at += 1
    if depth:
        raise ValueError("a '{' is not closed")
    return None


_ENTRY_OR_BELOW = "(?:(?P<ps_d>/)|$)"
_ANY_FOLDERS = "^(?:.+/)?"
_INNER_FOLDERS = "(?:/.+)?"
_STAR = "[^/]*"
"""The regular expressions of pathspec for the end of a pattern, ``**/`` at its start, ``/**`` inside it, and ``*``."""

_CLASSES = {
    "alnum": "A-Za-z0-9", "alpha": "A-Za-z", "digit": "0-9", "lower": "a-z", "upper": "A-Z", "xdigit": "0-9A-Fa-f",
}  # fmt: skip
"""Character classes such as ``[:alpha:]``, which pathspec does not support."""
_CLASS = re.compile(rf"(?<=.)\[:({'|'.join(_CLASSES)}):\]")
_NONE = Rules(())


def _read_rules(folder: int) -> tuple[Rules, ...]:
    return tuple(_read(folder, name) for name in IGNORE_FILES)


def _read(folder: int, name: str) -> Rules:
    try:
        descriptor = os.open(name, _READ, dir_fd=folder)
    except OSError:
        return _NONE
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return _NONE
        data = os.read(descriptor, _LARGEST)
    except OSError:
        return _NONE
    finally:
        os.close(descriptor)
    return _parsed(data)


@lru_cache(maxsize=64)
def _parsed(data: bytes) -> Rules:
    lines = data.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "surrogateescape").split("\n")
    return Rules(lines[:_MOST_LINES])


def _has_git(folder: int) -> bool:
    try:
        os.stat(".git", dir_fd=folder, follow_symlinks=False)
    except OSError:
        return False
    return True
