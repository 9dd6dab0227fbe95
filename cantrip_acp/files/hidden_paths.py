"""The paths that the ward ``hidden_paths`` takes away: which they are, and which of them exist.

A pattern is an absolute path, or one that ends below the folder of the session. ``*`` and ``?`` stand for characters of one
name, ``**`` for any number of folders. What is below a hidden path is hidden too.
"""

from __future__ import annotations

import glob
import os
import re
import sys
from collections.abc import Iterable
from functools import lru_cache

_WILD = re.compile(r"[*?[]")


def may_be_above(patterns: Iterable[str], name: str) -> bool:
    """Whether the patterns could match something below this name, if it were a folder."""
    depth = name.count("/") + 1
    for each in patterns:
        parts = each.removeprefix("./").removeprefix("/").split("/")
        if "**" in parts[:depth] or (len(parts) > depth and matcher("/".join(parts[:depth])).fullmatch(f"/{name}")):
            return True
    return False


@lru_cache(maxsize=256)
def matcher(pattern: str) -> re.Pattern[str]:
    """Make a function that tells whether a path, which begins with a slash, fits a pattern or is below a match."""
    parts: list[str] = []
    for name in (part for part in pattern.split("/") if part):
        if name == "**":
            parts.append("(?:/[^/]+)*")
            continue
        text = "".join("[^/]*" if c == "*" else "[^/]" if c == "?" else re.escape(c) for c in name)
        parts.append(f"/{text}")
    # A Mac's file system takes Private for private.
    return re.compile(f"{''.join(parts)}(?:/.*)?", re.DOTALL | (re.IGNORECASE if sys.platform == "darwin" else 0))


def _real(pattern: str) -> str:
    """The pattern with the links in the folders before its first wildcard resolved."""
    parts = pattern.split("/")
    fixed = next((i for i, part in enumerate(parts) if _WILD.search(part)), len(parts) - 1)
    return os.path.join(os.path.realpath("/".join(parts[:fixed]) or "/"), *parts[fixed:])


def existing(patterns: Iterable[str]) -> tuple[str, ...]:
    """The real paths that the patterns name now, outermost only, sorted. A hidden link hides what it leads to."""
    found: set[str] = set()
    for pattern in patterns:
        if _WILD.search(pattern):
            wild = re.sub(r"\[", "[[]", pattern)
            found.update(map(os.path.realpath, glob.iglob(wild, recursive=True, include_hidden=True)))
        elif os.path.exists(pattern):
            found.add(os.path.realpath(pattern))
    paths = sorted(found)
    return tuple(p for p in paths if not any(p != other and p.startswith(other + "/") for other in paths))


def hides(patterns: Iterable[str], path: str) -> bool:
    """Whether this absolute path is hidden: by a pattern, or because a hidden link leads to it or to a folder above it."""
    patterns = tuple(patterns)
    if not patterns:
        return False
    real = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
    for pattern in patterns:
        if any(matcher(each).fullmatch(given) for each in {pattern, _real(pattern)} for given in {path, real}):
            return True
    return any(real == each or real.startswith(each + "/") for each in existing(patterns))
