"""Ignore files and globs, with the rules of git and ripgrep.

Each path is checked alone while a tree is walked from the top: an ignored folder is not entered, so nothing below it
needs a rule. ``.rgignore`` overrides ``.ignore``, which overrides ``.gitignore``. Within a kind the deepest file with
a matching line decides, and in it the last such line. A ``.gitignore`` above a repository's top folder has no effect
inside it.
"""

from __future__ import annotations

import itertools
import os
import re
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from cantrip_acp.core.errors import GateError

if TYPE_CHECKING:
    from cantrip_acp.gates.confinement import Root

_FILES = (".rgignore", ".ignore", ".gitignore")
_LARGEST = 262_144
"""Bytes of an ignore file that are read, and the number of lines that count: each entry is compared to each line."""
_MOST_LINES = 2_000
_MOST_ALTERNATIVES = 100
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Rule:
    """One line. ``keeps``: it starts with ``!`` and cancels earlier lines."""

    match: re.Pattern[str]
    keeps: bool
    folders_only: bool


class Rules:
    """The lines of one ignore file; paths are relative to its folder."""

    __slots__ = ("_rules",)

    def __init__(self, lines: Iterable[str]) -> None:
        rules = [rule for line in lines if (rule := _line(line)) is not None]
        self._rules = tuple(reversed(rules))

    def __bool__(self) -> bool:
        return bool(self._rules)

    def ignores(self, path: str, folder: bool) -> bool | None:
        """Whether ``path`` is ignored; None where no line matches."""
        for rule in self._rules:
            if (folder or not rule.folders_only) and rule.match.fullmatch(path):
                return not rule.keeps
        return None


@dataclass(frozen=True, slots=True)
class Level:
    """A folder on the way down: its own ignore files, and the levels above."""

    above: Level | None
    name: str
    rules: tuple[Rules, ...]
    repository: bool

    def ignores(self, name: str, folder: bool) -> bool:
        """Whether an entry of this folder is ignored."""
        for kind in range(len(_FILES)):
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


def level_of(root: Root, parts: Sequence[str]) -> tuple[Level, bool]:
    """The level of a folder below a root, including all ignore files above it, and whether the folder is ignored
    itself.

    Raises `GateError` where the folder has disappeared.
    """
    level = _trusted_level(root.base)
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


def _trusted_level(path: str) -> Level:
    """The level of a folder that no command can replace, from the file system's root down."""
    level = Level(None, "", (_NONE,) * len(_FILES), False)
    parts = [part for part in path.split("/") if part]
    for depth in range(len(parts) + 1):
        name = parts[depth - 1] if depth else ""
        above = level if depth else None
        try:
            folder = os.open("/" + "/".join(parts[:depth]), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            level = Level(above, name, (_NONE,) * len(_FILES), False)
            continue
        try:
            level = Level(above, name, _read_rules(folder), _has_git(folder))
        finally:
            os.close(folder)
    return level


class Globs:
    """A glob that selects files, like ``rg --glob``; with ``!`` in front it excludes them."""

    __slots__ = ("_excludes", "_rules")

    def __init__(self, glob: str) -> None:
        self._excludes = glob.startswith("!")
        try:
            found = [_rule(one) for one in _alternatives(glob.removeprefix("!"))]
        except (re.error, ValueError) as error:
            raise GateError(f"the glob {glob!r} cannot be read: {error}") from None
        self._rules = [rule for rule in found if rule is not None]
        if not self._rules:
            raise GateError(f"the glob {glob!r} names nothing; examples: '*.py', 'src/**/*.{{ts,tsx}}', '!*.md'")

    def wants(self, path: str, folder: bool) -> bool | None:
        """True: always; False: never; None: ask the ignore files. ``path`` is relative to the gate's folder."""
        for rule in self._rules:
            if (folder or not rule.folders_only) and rule.match.fullmatch(path):
                return not self._excludes
        return None if self._excludes or folder else False


def _line(line: str) -> Rule | None:
    """The rule of one line of an ignore file; None for empty and unreadable lines, as in git."""
    line = line.rstrip("\r\n")
    if line.startswith("#"):
        return None
    line = _without_trailing_spaces(line)
    keeps = line.startswith("!")
    try:
        return _rule(line[1:] if keeps else line, keeps)
    except (re.error, ValueError):
        return None


def _rule(glob: str, keeps: bool = False) -> Rule | None:
    """The rule of one glob; None for an empty one. Raises `ValueError`, `re.error`."""
    folders_only = glob.endswith("/") and not glob.endswith("\\/")
    if folders_only:
        glob = glob[:-1]
    if not glob:
        return None
    glob = glob.removeprefix("/") if "/" in glob else f"**/{glob}"
    return Rule(re.compile(translate(glob), re.DOTALL), keeps, folders_only)


def _without_trailing_spaces(line: str) -> str:
    stripped = line.rstrip(" ")
    if stripped != line and stripped.endswith("\\") and (len(stripped) - len(stripped.rstrip("\\"))) % 2:
        return stripped + " "
    return stripped


@lru_cache(maxsize=4096)
def translate(glob: str) -> str:
    """A glob as a regular expression for a whole path. Raises `ValueError` for an unclosed bracket.

    Backtracking is limited: only the last piece of a name after a star, and the last run of names after ``**``, may
    move. An earlier piece stays at its first match. So matching takes at most quadratic time, and an ignore file
    cannot block its reader.
    """
    names = _names(glob)
    runs: list[list[str]] = [[]]
    for name in names:
        if name is None:
            runs.append([])
        else:
            runs[-1].append(name)
    if len(runs) == 1:
        return "/".join(runs[0])
    first, *middle, last = runs
    out = ["/".join([*first, ""])]
    out += [f"(?>(?:[^/]+/)*?{'/'.join(run)}/)" for run in middle if run]
    if last:
        out.append(f"(?:[^/]+/)*{'/'.join(last)}")
    else:
        out.append(".+" if len(names) > 1 else ".*")
    return "".join(out)


def _names(glob: str) -> list[str | None]:
    """The names of a glob as regular expressions, None for ``**``."""
    names: list[str | None] = []
    # The pieces of a name between its stars; each matches a fixed number of characters.
    pieces, stars, at = [""], 0, 0

    def end() -> None:
        if stars == 2 and pieces == ["", "", ""]:
            names.append(None)
            return
        head, *rest = pieces
        middle = "".join(f"(?>[^/]*?{piece})" for piece in rest[:-1] if piece)
        names.append(head + middle + (f"[^/]*{rest[-1]}" if rest else ""))

    while at < len(glob):
        c = glob[at]
        if c == "/":
            end()
            pieces, stars = [""], 0
        elif c == "*":
            pieces.append("")
            stars += 1
        elif c == "?":
            pieces[-1] += "[^/]"
        elif c == "[":
            text, at = _bracket(glob, at)
            pieces[-1] += text
            continue
        elif c == "\\":
            if at + 1 == len(glob):
                raise ValueError("it ends in a backslash")
            at += 1
            pieces[-1] += re.escape(glob[at])
        else:
            pieces[-1] += re.escape(c)
        at += 1
    end()
    return names


def _alternatives(glob: str) -> list[str]:
    """Expand a glob with braces into globs without braces. Raises `ValueError`."""
    done, pending = list[str](), [glob]
    while pending:
        if len(done) + len(pending) > _MOST_ALTERNATIVES:
            raise ValueError(f"it stands for more than {_MOST_ALTERNATIVES} globs")
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
    """The first brace, its own commas, and its end."""
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


def _bracket(glob: str, start: int) -> tuple[str, int]:
    at = start + 1
    negated = glob[at : at + 1] in ("!", "^")
    at += negated
    items: list[str] = []
    first = True
    while True:
        if at >= len(glob):
            raise ValueError("a '[' is not closed")
        c = glob[at]
        if c == "]" and not first:
            break
        first = False
        named = re.match(r"\[:([a-z]+):\]", glob[at:]) if c == "[" else None
        if named is not None and named[1] in _CLASSES:
            items.append(_CLASSES[named[1]])
            at += named.end()
            continue
        if c == "\\" and at + 1 < len(glob):
            at += 1
            c = glob[at]
        if glob[at + 1 : at + 2] == "-" and glob[at + 2 : at + 3] not in ("", "]"):
            high = glob[at + 2]
            step = 3
            if high == "\\" and at + 3 < len(glob):
                high, step = glob[at + 3], 4
            if c <= high:
                items.append(f"{re.escape(c)}-{re.escape(high)}")
            at += step
            continue
        items.append(re.escape(c))
        at += 1
    if not items:
        return ("[^/]" if negated else "(?!)"), at + 1
    # A bracket never matches the separator.
    return f"(?!/)[{'^' if negated else ''}{''.join(items)}]", at + 1


_CLASSES = {
    "alnum": "A-Za-z0-9", "alpha": "A-Za-z", "digit": "0-9", "lower": "a-z", "upper": "A-Z", "space": r"\s",
    "punct": r"!-/:-@\[-`{-~", "xdigit": "0-9A-Fa-f", "blank": r" \t", "word": r"\w",
}  # fmt: skip
_NONE = Rules(())


def _read_rules(folder: int) -> tuple[Rules, ...]:
    return tuple(_read(folder, name) for name in _FILES)


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
