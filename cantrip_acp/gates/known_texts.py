"""The texts of files that an entity knows, so that `write_file` replaces no text that it has not seen.

A text is known if the entity read or wrote it, or if the user saw it in the diff that was allowed. Line ends and byte order
marks do not count, because an editor may give the same text with others.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING

from cantrip_acp.text.json_data import encodable
from cantrip_acp.types.errors import GateError

if TYPE_CHECKING:
    from cantrip_acp.types.records import GateRecord

_GATES = frozenset({"read_file", "write_file", "edit_file"})
_MOST = 10_000
"""The most files to remember. The oldest are forgotten first."""


class KnownTexts:
    """The file texts that one entity knows, by absolute path."""

    __slots__ = ("_allowed", "_seen", "_times")

    def __init__(self) -> None:
        self._seen: dict[str, bytes] = {}
        self._allowed: dict[str, bytes] = {}
        self._times: dict[str, float] = {}

    def saw(self, path: str, text: str) -> None:
        """Note that the entity read or wrote this text."""
        self._seen.pop(path, None)
        self._seen[path] = digest(text)
        self._allowed.pop(path, None)
        self._times.pop(path, None)
        if len(self._seen) > _MOST:
            del self._seen[next(iter(self._seen))]

    def saw_edit(self, path: str, before: str, after: str) -> None:
        """Note that the entity replaced a part of a text. It knows the whole text only if it knew all of it before."""
        if self._seen.get(path) == digest(before):
            self.saw(path, after)

    def showed(self, path: str, text: str) -> None:
        """Note that the user saw this text in a change and allowed it."""
        self._allowed[path] = digest(text)

    def restore(self, calls: Iterable[GateRecord], timestamp: str) -> None:
        """Note the texts that a turn of an earlier process read and wrote, as of the time of its record (ISO 8601)."""
        for call in calls:
            if call.gate in _GATES and not call.is_error and call.locations and timestamp:
                when = datetime.fromisoformat(timestamp).timestamp()
                self._times.update({each.path: when for each in call.locations})

    def check(self, path: str, shown: str, text: str) -> None:
        """Raise `GateError` if a file's present text differs from the text that the entity or the user has seen."""
        seen, allowed = self._seen.get(path), self._allowed.pop(path, None)
        if seen is None and path in self._times and allowed is None:
            try:
                if os.stat(path).st_mtime <= self._times[path]:
                    return
            except OSError:
                return
        elif (seen is None and allowed is None) or digest(text) in (seen, allowed):
            return
        since = (
            "while the change was being allowed" if seen is None and path not in self._times else "since you read it"
        )
        raise GateError(f"{shown!r} was changed {since}; nothing was written", "read it again, then write it")


def digest(text: str) -> bytes:
    """The digest of a text without its byte order mark, with one kind of line end."""
    same = text.removeprefix("\ufeff").replace("\r\n", "\n")
    # As it was shown to the user: without lone surrogates.
    return hashlib.blake2b(encodable(same).replace("\ufffd", "?").encode(), digest_size=16).digest()
