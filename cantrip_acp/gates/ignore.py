"""Ignore files and globs, read as git and ripgrep read them.

A path is judged by itself while a tree is walked from the top: an ignored folder is not entered, so nothing below it needs a
rule. ``.rgignore`` outranks ``.ignore``, which outranks ``.gitignore``; within a kind the deepest file that says something
decides, and in it the last line that does. A ``.gitignore`` above a repository's top folder means nothing inside it.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from cantrip_acp.errors import GateError

if TYPE_CHECKING:
    from cantrip_acp.gates.roots import Root

_FILES = (".rgignore", ".ignore", ".gitignore")
_LARGEST = 1_048_576
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Rule:
    """One line. ``keeps``: it was written with ``!``, and takes back what earlier lines ignore."""

    match: re.Pattern[str]
    keeps: bool
    folders_only: bool


class Rules:
    """The lines of one ignore file; paths are relative to its folder."""

    __slots__ = ("_rules",)

    def __init__(self, lines: Iterable[str]) -> None:
        rules = [rule for line in lines if (rule := _rule(line)) is not None]
        self._rules = tuple(reversed(rules))

    def __bool__(self) -> bool:
        return bool(self._rules)

    def ignores(self, path: str, folder: bool) -> bool | None:
        """Whether ``path`` is ignored; None where no line says anything about it."""
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
                # Above a repository's top folder, git looks no further.
                if level.above is None or (kind == 2 and level.repository):
                    break
                path, level = f"{level.name}/{path}", level.above
        return False

    def enter(self, name: str, folder: int) -> Level:
        """The level of a folder below this one, open as ``folder``."""
        return Level(self, name, _read_rules(folder), _has_git(folder))


def level_of(root: Root, parts: Sequence[str]) -> tuple[Level, bool]:
    """The level of a folder below a root, with the ignore files of every folder above it, and whether it is ignored itself.

    Raises `GateError` where the folder is gone meanwhile.
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
    """The level of a folder that no command can exchange, from the file system's root down."""
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
    """A glob that chooses files, as ``rg --glob`` does; with ``!`` in front it leaves them out."""

    __slots__ = ("_rule",)

    def __init__(self, glob: str) -> None:
        try:
            rule = _rule(glob, braces=True)
        except (re.error, ValueError) as error:
            raise GateError(f"the glob {glob!r} cannot be read: {error}") from None
        if rule is None:
            raise GateError(f"the glob {glob!r} names nothing; examples: '*.py', 'src/**/*.{{ts,tsx}}', '!*.md'")
        self._rule = rule

    def wants(self, path: str, folder: bool) -> bool | None:
        """True: in any case; False: not; None: ask the ignore files. ``path`` is relative to the gate's folder."""
        rule = self._rule
        if (folder or not rule.folders_only) and rule.match.fullmatch(path):
            return not rule.keeps
        return None if rule.keeps or folder else False


def _rule(line: str, braces: bool = False) -> Rule | None:
    line = line.rstrip("\r\n")
    if line.startswith("#") and not braces:
        return None
    line = _without_trailing_spaces(line)
    keeps = line.startswith("!")
    if keeps:
        line = line[1:]
    folders_only = line.endswith("/") and not line.endswith("\\/")
    if folders_only:
        line = line[:-1]
    if not line:
        return None
    if "/" in line:
        line = line.removeprefix("/")
    else:
        line = f"**/{line}"
    try:
        return Rule(re.compile(translate(line, braces), re.DOTALL), keeps, folders_only)
    except (re.error, ValueError):
        # An ignore file's bad line ignores nothing, as for git; a glob that somebody asks for is an error.
        if braces:
            raise
        return None


def _without_trailing_spaces(line: str) -> str:
    stripped = line.rstrip(" ")
    if stripped != line and stripped.endswith("\\") and (len(stripped) - len(stripped.rstrip("\\"))) % 2:
        return stripped + " "
    return stripped


@lru_cache(maxsize=4096)
def translate(glob: str, braces: bool) -> str:
    """A glob as a regular expression for a whole path. Raises `ValueError` for an unclosed bracket or brace."""
    out: list[str] = []
    at, size, depth = 0, len(glob), 0
    while at < size:
        c = glob[at]
        if c == "*":
            end = at
            while end < size and glob[end] == "*":
                end += 1
            before = at == 0 or glob[at - 1] == "/"
            after = end == size or glob[end] == "/"
            if end - at == 2 and before and after:
                if end < size:
                    out.append("(?:[^/]+/)*")
                    end += 1
                else:
                    out.append(".+" if at else ".*")
            else:
                out.append("[^/]*")
            at = end
            continue
        if c == "?":
            out.append("[^/]")
        elif c == "[":
            text, at = _bracket(glob, at)
            out.append(text)
            continue
        elif c == "\\":
            if at + 1 == size:
                raise ValueError("it ends in a backslash")
            at += 1
            out.append(re.escape(glob[at]))
        elif c == "{" and braces:
            depth += 1
            out.append("(?:")
        elif c == "}" and depth:
            depth -= 1
            out.append(")")
        elif c == "," and depth:
            out.append("|")
        else:
            out.append(re.escape(c))
        at += 1
    if depth:
        raise ValueError("a '{' is not closed")
    return "".join(out)


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
    # A bracket never matches the separator, whatever it lists.
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
    return Rules(data.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "surrogateescape").split("\n"))


def _has_git(folder: int) -> bool:
    try:
        os.stat(".git", dir_fd=folder, follow_symlinks=False)
    except OSError:
        return False
    return True
