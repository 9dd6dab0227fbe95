"""Who owns a change of a file: the entity, the user, or nobody knows.

A gate owns the paths that it wrote, and nothing else. A command or cell that cannot write there owns nothing. One that can
owns what its text says that it writes (``> out.txt``, ``rm -r build``), and everything if it was over in a moment. What
else changes while it runs may be the user's: the kernel does not say which process wrote. All the rest is the user's, and
so is a file that only stopped being ignored.
"""

from __future__ import annotations

import fnmatch
import os
import re
import shlex
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, TypeAlias

from cantrip_acp.checkpoints.store import Change
from cantrip_acp.text import shell_parse

Owner: TypeAlias = Literal["user", "turn", "unsure"]

_MOMENT = 0.25
"""Seconds. Nobody is assumed to save a file while a program runs that is over so soon."""
_ANYWHERE = ("",)
_MOST_NAMED = 200
"""The most paths of one command that are kept although they are ignored."""


class Writer:
    """A gate call or a program while it runs. Paths are as in the store: relative in the workspace, else absolute.

    ``folders``: where it may write without saying so ("" is the workspace and everything else). ``paths``: what it certainly
    writes. ``says``: patterns of what its text says that it writes; one with a slash at its end names a path with all below.
    """

    __slots__ = ("began", "ended", "folders", "paths", "says")

    def __init__(self, *, folders: Sequence[str] = (), paths: Iterable[str] = (), says: Iterable[str] = ()) -> None:
        self.folders = tuple(folders)
        self.paths = set(paths)
        self.says = tuple(says)
        self.began = time.monotonic()
        self.ended: float | None = None

    def end(self) -> None:
        """Note that the call or program has ended."""
        self.ended = time.monotonic()

    def named(self) -> set[str]:
        """The paths that it certainly writes or names as written."""
        said = [each.rstrip("/") for each in self.says if not re.search(r"[*?\[]", each)] if self.folders else []
        return self.paths.union(said[:_MOST_NAMED])

    @property
    def writes(self) -> bool:
        """Whether it can change any file."""
        return bool(self.folders or self.paths)

    def owner(self, path: str) -> Owner:
        """Who changed a path while this ran, as far as can be told."""
        if path in self.paths:
            return "turn"
        if not any(not each or path == each or path.startswith(each + "/") for each in self.folders):
            return "user"
        if (self.ended or time.monotonic()) - self.began < _MOMENT or any(_is_in(path, each) for each in self.says):
            return "turn"
        return "unsure"


def of_program(text: str, folders: Sequence[str], *, shell: bool) -> Writer:
    """The writer of a program that may write in these folders."""
    if not shell:
        return Writer(folders=folders)
    return Writer(folders=() if only_reads(text) else folders, says=written_words(text))


def of_anything() -> Writer:
    """The writer of a call of foreign code, such as a function of the user, which may write anywhere."""
    return Writer(folders=_ANYWHERE)


class Attribution:
    """The changes since the last checkpoint, in order, each with its owner."""

    def __init__(self) -> None:
        self._steps: list[tuple[Owner, dict[str, Change]]] = []

    def add(self, changes: Mapping[str, Change], owner: Callable[[str], Owner]) -> None:
        """Add the changes of a period."""
        for path, change in changes.items():
            by = owner(path)
            # An earlier step may take it, unless a later one has the same path.
            latest = next((n for n in range(len(self._steps) - 1, -1, -1) if path in self._steps[n][1]), 0)
            for other, known in self._steps[latest:]:
                if other == by:
                    known[path] = (known[path][0], change[1]) if path in known else change
                    break
            else:
                self._steps.append((by, {path: change}))

    def changes(self) -> list[dict[str, Change]]:
        """The added changes that `take` has not returned."""
        return [found for _, found in self._steps]

    def take(self) -> list[tuple[Owner, dict[str, Change]]]:
        """Remove and return the added changes, without those that cancel out."""
        steps, self._steps = self._steps, []
        kept = [(by, {path: each for path, each in found.items() if each[0] != each[1]}) for by, found in steps]
        return [(by, found) for by, found in kept if found]


_CHANGES = frozenset({"mkdir", "touch", "rmdir"})
"""Programs that `shell_parse` counts as harmless, but that change files."""


def only_reads(command: str) -> bool:
    """Whether a shell command certainly changes no file.

    >>> [only_reads(text) for text in ("sleep 2; cat a.txt", "git status", "touch a", "cat a > b", "make")]
    [True, True, False, False, False]
    """
    found = shell_parse.rules(command)
    prefixes = (
        [shell_parse.command_prefix(command)] if found is None else [text if safe else None for text, safe in found]
    )
    return all(each is not None and each.split()[0] not in _CHANGES for each in prefixes)


_ALL = frozenset({"rm", "touch", "tee", "truncate", "chmod", "unlink", "shred"})
"""Programs that write every path among their arguments."""
_INTO = frozenset({"cp", "mv", "ln", "install"})
"""Programs that write their last argument, or their other arguments into it."""
_BEFORE = frozenset({"sudo", "time", "command", "exec", "nice", "nohup", "then", "do", "else", "if", "while", "!", "{"})


def written_words(command: str) -> list[str]:
    """Patterns of the paths that a shell command says that it writes, relative to the folder where it starts.

    What is deleted or moved ends with a slash, because all below it goes too. What is written into a folder is only the files
    that are named.

    >>> written_words("sed -i s/a/b/ x.py && cd web; rm -rf build *.log; echo hi > out.txt; cp a b/")
    ['x.py', 'web/build/', 'web/*.log/', 'web/out.txt', 'web/b/a']
    """
    lexer = shlex.shlex(command, posix=True, punctuation_chars=";&|<>()\n")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    try:
        tokens = list(lexer)
    except ValueError:
        return []
    found: list[str] = []
    folder: str | None = ""
    words: list[str] = []
    target = here = False

    def end() -> None:
        nonlocal folder, words
        if folder is not None:
            found.extend(os.path.join(folder, each) for each in _written_by(words))
            if words[:1] in (["pushd"], ["popd"]):
                folder = None
            elif words[:1] == ["cd"]:
                folder = os.path.join(folder, words[1]) if len(words) == 2 and _is_plain(words[1]) else None
        words = []

    for token in [*tokens, "\n"]:
        if set(token) <= set(";&|<>()\n"):
            if ">" in token and "(" not in token:
                target = True
                # The number of a descriptor is no argument.
                words = words[:-1] if words and words[-1].isdecimal() else words
                continue
            if "<" in token and "(" not in token:
                # The text after the line is not a command, and the commands after the text are not read.
                here = here or token == "<<"
                continue
            end()
            if ")" in token and folder:
                # A subshell may have changed the folder for itself alone.
                folder = None
            if here and "\n" in token:
                break
        elif target:
            if folder is not None and _is_plain(token) and not token.startswith("/dev/"):
                found.append(os.path.join(folder, token))
        else:
            words.append(token)
        target = False
    named = dict.fromkeys(os.path.normpath(each) + ("/" if each.endswith("/") else "") for each in found)
    return [each for each in named if each.rstrip("/") not in (".", "..", "")]


def _written_by(words: Sequence[str]) -> list[str]:
    while words and (words[0] in _BEFORE or re.match(r"\w+=", words[0])):
        words = words[1:]
    if not words:
        return []
    name, arguments = os.path.basename(words[0]), [each for each in words[1:] if not each.startswith("-")]
    plain = [each for each in arguments if _is_plain(each)]
    if name == "git" and arguments[:1] in (["mv"], ["rm"]):
        name, arguments, plain = arguments[0], arguments[1:], plain[1:]
    if name in ("sed", "perl") and any(re.match(r"-\w*i|--in-place", each) for each in words[1:]):
        return plain[1:] if len(plain) == len(arguments) else plain
    found = [each.rstrip("/") for each in plain] if name in _ALL else []
    if name in _INTO and len(arguments) > 1 and _is_plain(arguments[-1]):
        into = arguments[-1].rstrip("/")
        # It is a folder or a file. In a folder only these are written.
        found = [into, *(os.path.join(into, os.path.basename(each.rstrip("/"))) for each in plain[:-1])]
        if arguments[-1].endswith("/"):
            found = found[1:]
    gone = plain if name == "rm" else plain[:-1] if name == "mv" else []
    return [*(each.rstrip("/") + "/" for each in gone), *([] if name == "rm" else found)]


def _is_plain(word: str) -> bool:
    return bool(word) and not any(each in word for each in "$`{~") and word.strip("*?./") != ""


def _is_in(path: str, pattern: str) -> bool:
    """Whether a path is what a pattern names, or is below it, if the pattern ends with a slash."""
    below, parts, wanted = pattern.endswith("/"), path.split("/"), pattern.rstrip("/").split("/")
    enough = len(parts) >= len(wanted) if below else len(parts) == len(wanted)
    return enough and all(map(fnmatch.fnmatchcase, parts, wanted))
