"""Environment files (``.env``) with masked values: programs that read them start, and nothing tells what a value is.

`masked_text` keeps the names, the quotes and the number of lines. Every value becomes the same word, and a comment is empty,
because comments hold old values. A text that is not plainly of this form is not shown at all: values of several lines,
interpolated quotes, keys, JSON, or a line that could be a piece of a secret.
"""

from __future__ import annotations

import os
import re
import stat

from cantrip_acp.files.protected_paths import plain

MASKED = "masked-by-cantrip"
"""What each value is inside."""
_LARGEST = 256 * 1024
_LINE = re.compile(
    r"(?P<before>[ \t]*(?:export[ \t]+)?)(?P<name>[A-Za-z_][A-Za-z0-9_.]{0,99})[ \t]*=[ \t]*"
    r"(?P<value>\"(?:[^\"\\]|\\.)*\"|'[^']*'|[^\"'`\s\\=](?:[^\"'`\\]*[^\"'`\\\s])?|)[ \t]*(?:(?<=[\"' \t=])\#.*)?"
)
_PLAIN_NAME = re.compile(r"[A-Z_]+(?:_[A-Z0-9]+)*|[a-z_]+")
"""A name that can stand before an empty value. Other ones could be a secret in base32 or base64, which may end with ``=``."""
_LONGEST_NAME_ALONE = 32


def is_env_file(path: str) -> bool:
    """Whether the file's name is that of an environment file."""
    name = plain(os.path.basename(path))
    return name == ".env" or name.startswith(".env.")


def masked_text(text: str) -> str | None:
    """The text with masked values; None if it is not plainly an environment file."""
    lines = text.split("\n")
    found: list[str] = []
    for line in lines:
        end = "\r" if line.endswith("\r") else ""
        line = line.removesuffix("\r")
        if not line.strip(" \t"):
            found.append(end)
            continue
        if line.lstrip(" \t").startswith("#"):
            found.append("#" + end)
            continue
        given = _LINE.fullmatch(line)
        if given is None:
            return None
        value, name = given["value"], given["name"]
        if not value and not (_PLAIN_NAME.fullmatch(name) and len(name) <= _LONGEST_NAME_ALONE):
            return None
        quote = value[0] if value[:1] in ("'", '"') else ""
        found.append(f"{given['before']}{name}={quote}{MASKED}{quote}{end}")
    return "\n".join(found)


def masked_file(path: str) -> str | None:
    """The masked text of an environment file; None if it is none, or cannot be shown. Links are not followed."""
    if not is_env_file(path):
        return None
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return masked_descriptor(fd)
    finally:
        os.close(fd)


def masked_descriptor(fd: int) -> str | None:
    """The masked text of an open file; None if it cannot be shown."""
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or not 0 < status.st_size <= _LARGEST:
            return None
        return masked_text(os.pread(fd, _LARGEST, 0).decode("utf-8"))
    except (OSError, UnicodeDecodeError):
        return None
