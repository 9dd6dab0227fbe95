"""Shell command parser for permissions: which commands are plain, and which prefix an "always" answer may cover.

A command that this parser does not understand is not plain. The user can always allow only its exact text.

An "always" answer may cover all commands with the same first words only if every such command runs the same program,
and if that program, with these options, starts no other program and overwrites no file. For most programs the first
words do not guarantee this: ``git -c alias.x='!sh'``, ``sort --compress-program``, ``find -exec``, a test runner, a shell.

A command of several plain ones (``a && b | c; d``) has a rule for each part (`rules`). Everything else that a shell knows
(substitutions, redirections, assignments, functions, keywords) leaves only the exact text. A shell parser such as tree-sitter
would read more, but what may be divided is less than what this scanner reads.
"""

from __future__ import annotations

import os.path
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
        "md5sum", "mkdir", "nl", "nproc", "od", "paste", "pwd", "readlink", "realpath", "rev", "rmdir", "seq", "sleep",
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


_QUIET = re.compile(r"(?:2>&1|[12]?>[ ]?/dev/null)(?=[ \t;&|]|\Z)")
"""The redirections that write nothing: they say nothing about what a command does."""
_SAME_SHELL = frozenset(
    {
        "!", ".", ":", "[", "[[", "]]", "{", "}", "alias", "bg", "bind", "break", "builtin", "caller", "case", "cd", "command",
        "compgen", "complete", "compopt", "continue", "coproc", "declare", "dirs", "disown", "do", "done", "elif", "else",
        "enable", "esac", "eval", "exec", "exit", "export", "fc", "fg", "fi", "for", "function", "getopts", "hash", "help",
        "history", "if", "in", "jobs", "kill", "let", "local", "logout", "mapfile", "popd", "printf", "pushd", "read",
        "readarray", "readonly", "return", "select", "set", "shift", "shopt", "source", "suspend", "test", "then", "time",
        "times", "trap", "type", "typeset", "ulimit", "umask", "unalias", "unset", "until", "wait", "while",
    }
)  # fmt: skip
"""Words of the shell that change what later parts mean, or that begin a compound command."""
_RUNS_WORDS = frozenset(
    {
        "ash", "bash", "busybox", "chroot", "csh", "dash", "doas", "env", "fish", "flock", "ionice", "ksh", "nice", "nohup",
        "parallel", "setsid", "sh", "ssh", "stdbuf", "su", "sudo", "taskset", "tcsh", "timeout", "unshare", "watch", "xargs",
        "zsh",
    }
)  # fmt: skip
"""Programs whose arguments or input are again a command."""


def rules(command: str) -> list[tuple[str, bool]] | None:
    """The rules that together cover a command of several plain ones. Each is the prefix that `command_prefix` finds (True),
    or an exact text (False). None if only the exact text of the whole can be allowed.

    A part reads what the part before its pipe writes. So such a part needs a prefix, which is harmless with any input;
    otherwise the pipeline is one rule. ``cd FOLDER &&`` at the start belongs to each exact text after it.

    >>> rules("git status && pytest -x 2>&1 | tail -5; ls")
    [('git status', True), ('pytest -x', False), ('tail', True), ('ls', True)]
    >>> rules("cd web && npm test | head")
    [('cd web && npm test', False), ('head', True)]
    >>> rules("git status; rm $x"), rules("git status > x"), rules("git status")
    (None, None, None)
    """
    divided = _divide(command)
    if divided is None:
        return None
    parts, operators = divided
    folder = ""
    if parts[0].startswith("cd ") and operators:
        words = plain_words(parts[0])
        # With another operator, a failing cd would leave the later parts in the first folder.
        if words is None or len(words) != 2 or not set(operators) <= {"&&", "|"} or operators[0] != "&&":
            return None
        if not re.fullmatch(r"\w[\w./-]*", words[1], re.ASCII) or ".." in words[1].split("/"):
            return None
        folder, parts, operators = f"cd {words[1]} && ", parts[1:], operators[1:]
    if not folder and not operators and parts == [command.strip(" \t")]:
        return None
    found: list[tuple[str, bool]] = []
    pipeline: list[str] = []
    for part, operator in zip(parts, [*operators, ""], strict=True):
        pipeline.append(part)
        if operator == "|":
            continue
        each = [_rule(part, folder) for part in pipeline]
        if None in each:
            return None
        if all(rule is not None and rule[1] for rule in each[1:]):
            found += [rule for rule in each if rule is not None]
        else:
            found.append((folder + " | ".join(pipeline), False))
        pipeline = []
    return list(dict.fromkeys(found))


def _rule(part: str, folder: str) -> tuple[str, bool] | None:
    words = plain_words(part)
    if words is None or words[0] in _SAME_SHELL or os.path.basename(words[0]) in _RUNS_WORDS:
        return None
    if any(character in "*?[]" for character in words[0]):
        return None
    prefix = command_prefix(part)
    # In another folder, git reads the settings of another repository, which may name programs.
    if prefix is None or (folder and prefix.startswith("git ")):
        return folder + part, False
    return prefix, True


def _divide(command: str) -> tuple[list[str], list[str]] | None:
    """Divide a command at ``&&``, ``||``, ``;`` and ``|`` outside of quotes. Returns the parts, without redirections that
    write nothing, and the operators between them. None if anything else of a shell's syntax is in it."""
    if not command.isascii() or "\\" in command or _CONTROL.search(command.replace("\t", " ")) or "\n" in command:
        return None
    parts, operators = [""], []
    quote, at = "", 0
    while at < len(command):
        character = command[at]
        if quote:
            if character in "`$" and quote == '"':
                return None
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character in ";&|":
            operator = command[at : at + 2] if command[at : at + 2] in ("&&", "||") else character
            if operator == "&" or command[at + len(operator) : at + len(operator) + 1] in tuple(";&|"):
                return None
            operators.append(operator)
            parts.append("")
            at += len(operator)
            continue
        elif (quiet := _QUIET.match(command, at)) is not None and command[at - 1 : at] in tuple(" \t"):
            at = quiet.end()
            continue
        parts[-1] += character
        at += 1
    if quote:
        return None
    parts = [part.strip(" \t") for part in parts]
    if operators and operators[-1] == ";" and not parts[-1]:
        parts, operators = parts[:-1], operators[:-1]
    return (parts, operators) if all(parts) else None


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
