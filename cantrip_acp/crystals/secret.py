"""A value that never shows itself: a provider's key, a header."""

from __future__ import annotations

from typing import NoReturn

from cantrip_acp.redaction import MASK, shared


class Secret:
    """Holds one secret text. Its repr, str, format and pickle do not give it away; ``reveal`` does.

    Making one registers it with the process's redactor, so that it is masked in whatever is written from then on.
    """

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value
        shared().add(value)

    def reveal(self) -> str:
        """The text itself, for the one request that needs it."""
        return self._value

    def __bool__(self) -> bool:
        return bool(self._value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash(self._value)

    def __repr__(self) -> str:
        return f"Secret({MASK!r})"

    def __str__(self) -> str:
        return MASK

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Secret cannot be pickled")
