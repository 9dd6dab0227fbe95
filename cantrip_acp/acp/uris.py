"""What a link in a prompt leads to: a file or some lines of it, a folder, a difference in git; or nothing that is ours.

Editors write lines in many ways (``#L10``, ``#L10-20``, ``#L10:20``, ``#L10-L20``, ``#L10C5-L20C3``), and put their own schemes
around paths (``zed:///agent/file?path=…``). Nothing is looked up here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import parse_qs, unquote, urlsplit

_LINES = re.compile(r"#?L?(\d{1,9})(?:C\d{1,9})?(?:\s*[-:,]\s*L?(\d{1,9})(?:C\d{1,9})?)?\Z")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_LONGEST = 8_192
"""Characters of an address that is looked at."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where a link leads. ``path`` is as it was written, absolute or from the session's folder; lines are counted from 1.

    With ``diff`` it is what differs from the commit ``base`` (None: from the last one), below ``path`` where there is one.
    """

    path: str = ""
    first: int | None = None
    last: int | None = None
    symbol: str = ""
    diff: bool = False
    base: str | None = None


def target_of(uri: str) -> Target | None:
    """What an address leads to; None for what is no file and no difference (``https:`` and the like)."""
    if len(uri) > _LONGEST or "\0" in uri:
        return None
    if not _SCHEME.match(uri):
        path, _, fragment = uri.partition("#")
        return _file(unquote(path), fragment, "") if path else None
    try:
        parts = urlsplit(uri)
        asked = {name: values[0] for name, values in parse_qs(parts.query, max_num_fields=20).items()}
    except ValueError:
        return None
    kind = parts.path.rstrip("/").rpartition("/")[2]
    if parts.scheme in ("git-diff", "git+diff") or (
        parts.scheme not in ("file", "http", "https") and kind == "git-diff"
    ):
        return Target(path=asked.get("path", ""), diff=True, base=asked.get("base") or asked.get("ref"))
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost"):
            return None
        return _file(unquote(parts.path), parts.fragment, asked.get("symbol", ""))
    if parts.scheme not in ("http", "https") and asked.get("path") and "/agent/" in f"/{parts.netloc}{parts.path}":
        symbol = unquote(kind) if "/symbol/" in parts.path else asked.get("symbol", "")
        return _file(asked["path"], parts.fragment, symbol)
    return None


def _file(path: str, fragment: str, symbol: str) -> Target | None:
    if not path:
        return None
    lines = _LINES.match(fragment)
    if lines is None or not int(lines[1]):
        return Target(path, symbol=symbol)
    first, last = int(lines[1]), int(lines[2] or lines[1])
    return Target(path, min(first, last) or 1, max(first, last), symbol)
