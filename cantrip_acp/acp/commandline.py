"""What can be said of a shell command without running it: whether it is one plain command, and by which words it begins.

Everything here errs on the side of asking: what is not understood is no plain command, and only its exact text can be
allowed for good.
"""

from __future__ import annotations

import re
import shlex

_HEREDOC = re.compile(
    r"\A(?P<head>[^\n]*?)\s*<<(?P<dash>-?)\s*(?P<quote>['\"])(?P<word>[A-Za-z_]\w*)(?P=quote)[ \t]*\n"
)

_ANYTHING = frozenset(
    {
        "awk", "bash", "busybox", "chroot", "csh", "dash", "doas", "docker", "env",
        "eval", "exec", "expect", "find", "fish", "flock", "gawk", "ionice", "ksh",
        "lua", "make", "nice", "node", "nohup", "npx", "parallel", "perl", "php",
        "podman", "python", "python2", "python3", "ruby", "runuser", "screen", "script", "sed",
        "setsid", "sh", "source", "ssh", "stdbuf", "strace", "su", "sudo", "systemd-run",
        "tclsh", "time", "timeout", "tmux", "uvx", "watch", "xargs", "zsh", ".",
        "command", "builtin",
    }
)  # fmt: skip
"""Programs that run whatever their arguments say, so that no prefix of such a command tells what it does."""

_WORD = re.compile(r"[A-Za-z][\w:-]*\Z")


def plain(command: str) -> list[str] | None:
    """The words of one plain command, without a pipe, list, redirection, substitution or assignment; None of anything else.

    A here-document with a quoted delimiter that ends the text counts as plain: it is data alone.
    """
    text = command.strip()
    document = _HEREDOC.match(text)
    if document is not None:
        lines = text[document.end() :].split("\n")
        ends = [
            i for i, line in enumerate(lines) if (line.lstrip("\t") if document["dash"] else line) == document["word"]
        ]
        if not ends or ends[0] != len(lines) - 1:
            return None
        text = document["head"]
    if not text or not _harmless(text):
        return None
    try:
        words = shlex.split(text)
    except ValueError:
        return None
    if not words or "=" in words[0] or words[0].startswith(("-", "~")):
        return None
    return words


def _harmless(text: str) -> bool:
    """Whether a shell would see words and nothing else."""
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


def prefix(command: str) -> str | None:
    """The words by which commands of this sort begin, such as ``git status``; None where only the whole text will do.

    >>> prefix("git status --short"), prefix("pytest -x tests"), prefix("python -c 1"), prefix("ls; rm x")
    ('git status', 'pytest', None, None)
    """
    words = plain(command)
    if words is None or "<<" in command or not re.fullmatch(r"[\w./+-]+", words[0]):
        return None
    if words[0].rpartition("/")[2] in _ANYTHING or re.fullmatch(r"python[\d.]*", words[0].rpartition("/")[2]):
        return None
    if len(words) > 1 and _WORD.match(words[1]):
        return f"{words[0]} {words[1]}"
    return words[0]


def begins_with(command: str, words: str) -> bool:
    """Whether a command is a plain one that begins with these words."""
    found = plain(command)
    wanted = words.split(" ")
    return found is not None and "<<" not in command and found[: len(wanted)] == wanted
