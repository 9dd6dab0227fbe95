"""Keeping secrets out of what is written, shown or sent.

Two degrees. Observations lose the *values* that this process holds as secrets (its environment's keys and tokens, and
what was registered): exactly those, since an entity that edits files must see files as they are. Diagnostics (logs,
errors, protocol messages) also lose whatever merely looks like a key.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Any

MASK = "[redacted]"

_SECRET_NAME = re.compile(
    r"(?:^|_)(?:API_?KEY|KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|AUTH|COOKIE|PRIVATE_KEY|DSN)(?:_|$)",
    re.IGNORECASE,
)
_LOOKS_SECRET = re.compile(
    r"(?:sk|pk|rk|or|gsk|xai)-[A-Za-z0-9_\-]{16,}"
    r"|AIza[A-Za-z0-9_\-]{30,}"
    r"|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}"
    r"|AKIA[A-Z0-9]{16}"
    r"|xox[abprs]-[A-Za-z0-9\-]{10,}"
    r"|eyJ[A-Za-z0-9_\-]{10,}\.[A-Za-z0-9_\-]{10,}\.[A-Za-z0-9_\-]*"
    r"|(?i:bearer)\s+[A-Za-z0-9._~+/\-]{16,}=*"
)
_SHORTEST = 8
"""A shorter value is no secret, and would be found in ordinary text."""


def looks_secret(name: str) -> bool:
    """Whether a variable of that name is taken to hold a secret: ``OPENAI_API_KEY``, ``DB_PASSWORD``, ``GH_TOKEN``."""
    return bool(_SECRET_NAME.search(name))


class Redactor:
    """Replaces known secret values in text and JSON data. Its repr shows none of them."""

    __slots__ = ("_firsts", "_longest", "_pattern", "_values")

    def __init__(self, values: Iterable[str] = ()) -> None:
        self._values: frozenset[str] = frozenset()
        self._pattern: re.Pattern[str] | None = None
        self._firsts: re.Pattern[str] | None = None
        self._longest = 0
        self.add(*values)

    @classmethod
    def from_environment(cls) -> Redactor:
        """A redactor of what this process's environment holds under secret-looking names."""
        return cls(v for k, v in os.environ.items() if looks_secret(k) and not os.path.isabs(v))

    def add(self, *values: str) -> None:
        """Register more secret values; those under 8 characters are passed over."""
        more = {v.strip() for v in values if len(v.strip()) >= _SHORTEST}
        if more - self._values:
            self._values = self._values | more
            longest_first = sorted(self._values, key=len, reverse=True)
            self._pattern = re.compile("|".join(re.escape(v) for v in longest_first))
            self._firsts = re.compile("[" + "".join(re.escape(c) for c in sorted({v[0] for v in longest_first})) + "]")
            self._longest = len(longest_first[0])

    @property
    def active(self) -> bool:
        """Whether there is anything to look for."""
        return self._pattern is not None

    def text(self, text: str) -> str:
        """The text with known secrets masked."""
        return text if self._pattern is None else self._pattern.sub(MASK, text)

    def settled(self, text: str) -> int:
        """How much of a text is sure to be masked rightly, whatever follows it: at its end a secret may have begun."""
        if self._pattern is None or self._firsts is None:
            return len(text)
        end = len(text)
        for begun in self._firsts.finditer(text, max(0, end - self._longest + 1)):
            rest = text[begun.start() :]
            if any(v.startswith(rest) for v in self._values):
                end = begun.start()
                break
        if end < len(text):
            for whole in self._pattern.finditer(text):
                if whole.start() < end < whole.end():
                    end = whole.end()
        return end

    def data(self, value: Any) -> Any:
        """JSON data with known secrets masked in every text, keys included."""
        if self._pattern is None:
            return value
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.data(k): self.data(v) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return [self.data(v) for v in value]
        return value

    def diagnostic(self, text: str) -> str:
        """The text with known secrets masked, and all that looks like one; for logs and errors."""
        return _LOOKS_SECRET.sub(MASK, self.text(text))

    def __repr__(self) -> str:
        return f"Redactor({len(self._values)} values)"

    def __reduce__(self) -> Any:
        raise TypeError("a Redactor holds secrets and cannot be pickled")


class Pieces:
    """Masks known secrets in a text that comes in pieces, wherever they are cut; what may be one's beginning is held back."""

    __slots__ = ("_held", "_redactor")

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._held = ""

    def feed(self, piece: str) -> str:
        """What can be shown by now; often all of it."""
        text = self._held + piece
        end = self._redactor.settled(text)
        self._held = text[end:]
        return self._redactor.text(text[:end])

    def end(self) -> str:
        """What was held back: no more comes."""
        text, self._held = self._held, ""
        return self._redactor.text(text)


_shared: Redactor | None = None


def shared() -> Redactor:
    """The process's redactor, made from its environment when it is first asked for."""
    global _shared
    if _shared is None:
        _shared = Redactor.from_environment()
    return _shared
