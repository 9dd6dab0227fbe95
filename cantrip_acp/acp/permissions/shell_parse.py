"""Shell command parser for permissions: which commands are plain, and which prefix an "always" answer may cover.

A command that this parser does not understand is not plain. The user can always allow only its exact text.

An "always" answer may cover all commands with the same first words only if every such command runs the same program,
and if that program, with these options, starts no other program and overwrites no file. For most programs the first
words do not guarantee this: ``git -c alias.x='!sh'``, ``sort --compress-program``, ``find -exec``, a test runner, a shell.
Commands with shell syntax (pipes, redirections, substitutions) are not covered either.
"""

from __future__ import annotations

import re
import shlex

_HEREDOC = re.compile(
    r"\A(?P<head>[^\n]*?)\s*<<(?P<dash>-?)\s*(?P<quote>['\"])(?P<word>[A-Za-z_]\w*)(?P=quote)[ \t]*\n"
)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

_SAFE_PROGRAMS = frozenset(
    {
        "arch", "basename", "cat", "cksum", "cmp", "comm", "cut", "df", "dirname", "du", "echo", "egrep",
        "expand", "false", "fgrep", "fold", "free", "grep", "groups", "head", "hexdump", "id", "jq", "ls",
        "md5sum", "mkdir", "nl", "nproc", "od", "paste", "pwd", "readlink", "realpath", "rev", "rmdir", "seq",
        "sha1sum", "sha256sum", "sha512sum", "stat", "tac", "tail", "touch", "tr", "true", "uname", "unexpand", "uptime",
        "wc", "whoami",
    }
)  # fmt: skip
"""Programs that start no other program and overwrite no file with any arguments."""

_STAT_OPTIONS = (
    r"--(stat|shortstat|numstat|summary|name-only|name-status|no-color|no-ext-diff|no-textconv|ignore-all-space)"
)
_LOG_OPTIONS = (
    rf"-[pwbnsgi0-9]+|{_STAT_OPTIONS}|--(oneline|graph|all|decorate|no-decorate|follow|merges|no-merges|reverse|patch|no-patch"
    r"|abbrev-commit|first-parent|branches|tags|(max-count|skip|since|until|after|before|author|committer|grep)=.*)"
)
_SAFE_OPTIONS = {
    name: re.compile(rf"(?:{options})\Z", re.DOTALL)
    for name, options in {
        "git status": r"-[sbunoalvz]+|--(short|branch|long|ignored|verbose|porcelain(=v[12])?|untracked-files(=\w+)?)",
        "git diff": rf"-[pwbuUsRaz0-9]+|{_STAT_OPTIONS}|--(cached|staged|check|minimal|patience|histogram|word-diff|merge-base)",
        "git log": _LOG_OPTIONS,
        "git show": _LOG_OPTIONS,
        "git blame": r"-[wCMeLslftn0-9,]+",
        "git grep": r"-[niIlLcwvEFPhHqoe0-9]+|--(cached|untracked|count|line-number|name-only|ignore-case|word-regexp)",
        "git ls-files": r"-[cdomsztk]+|--(cached|deleted|modified|others|stage|exclude-standard|error-unmatch)",
        "git rev-parse": r"--(verify|short|abbrev-ref|show-toplevel|git-dir|is-inside-work-tree|show-prefix)",
        "diff": r"-[uUrqNwbBiasyc0-9]+|--(brief|recursive|unified|new-file|ignore-case|ignore-all-space|color=never)",
        "file": r"-[bikLh]+|--(brief|mime|mime-type|mime-encoding|dereference)",
        "find": r"-([HLPaod]|i?name|i?path|i?regex|type|(max|min)depth|size|[acm](time|min)|newer|empty|not|and|or|print0?|"
        r"prune|user|group|perm|readable|writable|executable|links|xdev|mount|depth|true|false|\d+[cwbkMG]?)",
        "rg": r"-[nilLcwvSsFouHNxPUe0-9tTgmABC]+|-[tT]\w+|--(files|hidden|no-ignore|no-heading|heading|line-number|ignore-case|"
        r"smart-case|fixed-strings|files-with-matches|count|sort=\w+|type=\w+|color=never|max-count=\d+|context=\d+|"
        r"word-regexp|only-matching|multiline|json)",
        "sort": r"-[bdfghiMnRrVszuckt0-9,.]+|--(reverse|unique|numeric-sort|human-numeric-sort|version-sort|check)",
        "tree": r"-[adfLIPpshuDFCn0-9]+|--(noreport|dirsfirst|charset=\w+)",
    }.items()
}
"""Programs that only read if they have no other options than these. Each pattern matches a whole option."""


def plain_words(command: str) -> list[str] | None:
    """Split one plain command into words. Returns None for a pipe, list, redirection, substitution or assignment.

    A here-document at the end with a quoted delimiter is plain, because it is only data.
    """
    if "\0" in command:
        return None
    text = command.strip(" \t\n")
    document = _HEREDOC.match(text)
    if document is not None:
        lines = text[document.end() :].split("\n")
        ends = [
            i for i, line in enumerate(lines) if (line.lstrip("\t") if document["dash"] else line) == document["word"]
        ]
        if not ends or ends[0] != len(lines) - 1:
            return None
        text = document["head"]
    if not text or _CONTROL.search(text) or not _has_only_words(text):
        return None
    try:
        words = shlex.split(text)
    except ValueError:
        return None
    if not words or "=" in words[0] or words[0].startswith(("-", "~")):
        return None
    return words


def _has_only_words(text: str) -> bool:
    """Whether the text has only words for a shell, without operators, variables and substitutions."""
    quote = ""
    escaped = False
    for character in text:
        if escaped:
            escaped = False
            if character == "\n":
                return False
        elif quote == "'":
            quote = "" if character == "'" else quote
        elif character == "\\":
            escaped = True
        elif character in "`$":
            return False
        elif quote:
            quote = "" if character == '"' else quote
        elif character in "'\"":
            quote = character
        elif character in ";&|<>(){}\n\r#!":
            return False
    return not quote and not escaped


def command_prefix(command: str) -> str | None:
    """The first words of a command, if all commands with these words run the same harmless program. Otherwise None: only
    the exact text of the command can be allowed.

    >>> [command_prefix(c) for c in ("git status --short", "ls -la src", "pytest -x", "git -c a.b=c status", "ls; rm x")]
    ['git status', 'ls', None, None, None]
    """
    if "\\" in command or "\n" in command or not all(c.isalnum() or c.isascii() for c in command):
        # Here a shell could find other words than this parser.
        return None
    words = plain_words(command)
    if words is None:
        return None
    if words[0] in _SAFE_PROGRAMS:
        return words[0]
    name = " ".join(words[:2]) if words[0] == "git" else words[0]
    options = _SAFE_OPTIONS.get(name)
    if options is None or _has_glob_word(command):
        return None
    arguments = words[len(name.split()) :]
    return name if all(w == "--" or not w.startswith("-") or options.match(w) for w in arguments) else None


def _has_glob_word(command: str) -> bool:
    """Whether a word starts with a file name pattern. The shell could turn such a word into an option, because ``*`` also
    matches a file named ``--output=x``."""
    quote, in_word = "", False
    for character in command:
        if quote:
            quote, in_word = ("", in_word) if character == quote else (quote, True)
        elif character in "'\"":
            quote = character
        elif character in " \t":
            in_word = False
        elif character in "*?[" and not in_word:
            return True
        else:
            in_word = True
    return False
