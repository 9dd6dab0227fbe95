"""Query digest: a short hash of what a crystal was sent (messages, tools, parameters), recorded with each turn.

Readers rebuild the same query from the loom (`history.replayed_context`) and compare. The hash of a query is made of one hash
for each message, so that a long session hashes each message only once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from operator import is_
from typing import TYPE_CHECKING, Any

import msgspec

from cantrip_acp.loom.base import as_kept
from cantrip_acp.loom.stores.rows import mend
from cantrip_acp.text.json_data import freeze, plain
from cantrip_acp.types.records import SentQuery

if TYPE_CHECKING:
    from cantrip_acp.crystals.contract import Query
    from cantrip_acp.types.call import Call
    from cantrip_acp.types.messages import Message, ToolDefinition

_PART_BYTES = 16
_BYTES = 12
"""Of the digest of a query: 96 bits, 24 hex digits."""


class SentQueries:
    """What the records of one entity's turns say about its queries."""

    def __init__(self) -> None:
        self._digest = QueryDigest()
        self._turns: dict[bytes, str] = {}
        """The turns whose records have tools that are not the cantrip's, by the hash of the tools."""

    def describe(self, query: Query, usual: tuple[ToolDefinition, ...]) -> SentQuery:
        """``usual`` are the cantrip's tools, which need not be named."""
        digest = self._digest.digest(query.messages, query.tools, query.params)
        if query.tools == usual:
            return SentQuery(digest)
        return SentQuery(digest, self._turns.get(self._digest.tools_hash(query.tools)) or freeze(query.tools))

    def recorded(self, sent: SentQuery, turn_id: str) -> None:
        """A turn has this description: later turns with the same tools refer to it."""
        if isinstance(sent.tools, tuple):
            self._turns[self._digest.tools_hash(sent.tools)] = turn_id


class QueryDigest:
    """Hashes the queries of one entity, or of one window of a thread."""

    __slots__ = ("_hasher", "_known", "_parameters", "_parts", "_tools")

    def __init__(self) -> None:
        self._known: list[Message] = []
        self._parts: list[bytes] = []
        """The hash of each message."""
        self._hasher = _hasher()
        """It has read the hashes of all known messages."""
        self._tools: tuple[tuple[ToolDefinition, ...], bytes] = ((), b"")
        self._parameters: tuple[Call | None, bytes] = (None, b"")

    def digest(self, messages: Sequence[Message], tools: tuple[ToolDefinition, ...], call: Call) -> str:
        """The digest of a query in hex digits."""
        self._read(messages)
        hasher = self._hasher.copy()
        hasher.update(self.tools_hash(tools))
        hasher.update(self._parameters_hash(call))
        found: str = hasher.hexdigest()
        return found

    def _read(self, messages: Sequence[Message]) -> None:
        known, count = self._known, len(self._known)
        known += messages[count:]
        # Equality, because it looks at each pair only whether it is one object: nearly free, also for thousands of messages.
        if known == messages:
            new = [_hash(each) for each in known[count:]]
            self._parts += new
            self._hasher.update(b"".join(new))
            return
        # A fold, a cut or new knowledge replaced messages; the others keep their hash.
        before = dict(zip(map(id, known), self._parts, strict=False))
        self._parts = [before.get(id(each)) or _hash(each) for each in messages]
        self._hasher = _hasher()
        self._hasher.update(b"".join(self._parts))
        self._known = list(messages)

    def tools_hash(self, tools: tuple[ToolDefinition, ...]) -> bytes:
        """The hash of the tools of a query."""
        known, found = self._tools
        if len(known) != len(tools) or not all(map(is_, known, tools)) or not found:
            found = _hash([[tool.name, tool.description, plain(tool.parameters)] for tool in tools])
            self._tools = tools, found
        return found

    def _parameters_hash(self, call: Call) -> bytes:
        known, found = self._parameters
        if known is not call:
            found = _hash({name: plain(value) for name, value in call.record().items() if name != "system_prompt"})
            self._parameters = call, found
        return found


def _hash(data: Any) -> bytes:
    # Readers make the same query of the loom's records.
    data = as_kept(data)
    try:
        encoded = msgspec.json.encode(data, order="deterministic")
    except UnicodeEncodeError:
        encoded = msgspec.json.encode(mend(msgspec.to_builtins(data)), order="deterministic")
    return hashlib.blake2b(encoded, digest_size=_PART_BYTES).digest()


def _hasher() -> Any:
    return hashlib.blake2b(digest_size=_BYTES)
