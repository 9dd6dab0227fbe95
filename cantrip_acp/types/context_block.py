"""Context blocks: what a crystal sees besides call, capabilities and intent, and the contributors that add them."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import msgspec
from msgspec import Struct

from cantrip_acp.types.messages import Attachment, Message
from cantrip_acp.types.records import ContextRecord, new_id, now

_BLOCK_END = re.compile(r"</(\s*context)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ContextBlock:
    """Something the crystal sees besides call, capabilities and intent: a document, a note, pinned knowledge.

    It is content, never authority. ``source`` says who added it, ``title`` what it is, ``uri`` where it is from.
    An image, a sound or a document uses ``attachment`` instead of ``text``; it is sent with the intent itself.
    """

    text: str = ""
    title: str = ""
    source: str = "user"
    uri: str | None = None
    attachment: Attachment | None = None
    after: str | None = None
    """For knowledge that changed during a cast, and for a message of the user during a cast: the turn before the first
    query that saw it. None if that was the first query of the cast."""
    placement: Literal["system", "history"] = "system"
    """Where knowledge is: in the system prompt, or in a message of the user before all others."""

    def render(self) -> str:
        """The block as text for the crystal."""
        from html import escape

        head = escape(self.title or self.uri or self.source)
        where = f' uri="{escape(self.uri)}"' if self.uri else ""
        # A text that closes its own block could add text that seems to be outside of any source.
        text = _BLOCK_END.sub(r"<\\/\1", self.text)
        return f'<context source="{escape(self.source)}" title="{head}"{where}>\n{text}\n</context>'


DOCUMENTS = "repository"
"""The ``source`` of blocks with the workspace's own documents. Folding keeps the latest version of each in the
context.
"""


KNOWLEDGE = "knowledge"
"""The ``source`` of the block with what a session knows. There is at most one; it stands after call and capabilities."""


WARDS = "wards:"
"""The beginning of the ``uri`` of a block that says what a change of the wards means to the entity. The rest is a name, such
as that of a mode: of several such blocks the last one holds, and one that holds already need not be told again."""


def steering_message(block: ContextBlock) -> Message:
    """The message with which the crystal reads a block that was added while a cast ran (`DURING_CAST`)."""
    if block.attachment is not None:
        return Message("user", block.title or block.attachment.kind, kind="steering", attachments=(block.attachment,))
    return Message("user", block.render() if block.uri or block.title else block.text, kind="steering")


class CastInfo(Struct, frozen=True):
    """The cast that a contributor adds context to.

    ``pinned`` returns the blocks of earlier casts that the crystal still sees, oldest first. It includes blocks from
    another process, but none that were folded away.
    """

    entity_id: str
    cast_id: str
    intent: str
    trace_id: str
    pinned: Callable[[], Sequence[ContextBlock]] = tuple


Contributor = Callable[[CastInfo], Awaitable[Sequence[ContextBlock]]]
"""Adds context blocks when a cast begins. They are placed before its intent, and in the loom as ``context`` records."""


@runtime_checkable
class KnowledgeSource(Protocol):
    """A contributor that also has ``refresh``: it is asked before each query what the session knows."""

    async def __call__(self, info: CastInfo) -> Sequence[ContextBlock]: ...

    async def refresh(self, info: CastInfo) -> ContextBlock | None:
        """Return a block with the source `KNOWLEDGE`. None, or the same block as before, changes nothing."""


@runtime_checkable
class Recorder(Protocol):
    """A contributor that also sees each record of the loom, from the first cast on."""

    async def __call__(self, info: CastInfo) -> Sequence[ContextBlock]: ...

    def recorded(self, loom: Any, record: object) -> None:
        """Take a record that was just written. It must return at once."""


def record_of(block: ContextBlock, entity_id: str, cast_id: str, unread_by: str | None) -> ContextRecord:
    """Make the record of a context block. ``unread_by``: the model that is to read it and cannot read its attachment."""
    attachment, unset = block.attachment, msgspec.UNSET
    return ContextRecord(
        new_id("x"),
        entity_id,
        cast_id,
        block.source,
        block.title,
        block.text,
        block.uri,
        now(),
        mime=attachment.mime if attachment is not None else unset,
        data=attachment.data if attachment is not None else unset,
        after=block.after if block.after is not None else unset,
        placement=block.placement if block.source == KNOWLEDGE else unset,
        unread_by=unset if unread_by is None else unread_by,
    )


_KINDS = {"image": "pictures", "audio": "audio", "document": "PDF files and other documents"}


def unread_notice(records: Iterable[ContextRecord]) -> str | None:
    """The notice for the user about attachments that the model could not read. None if it could read all."""
    unread = [record for record in records if isinstance(record.unread_by, str)]
    if not unread:
        return None
    attached = [record.attachment for record in unread if record.attachment is not None]
    kinds = " or ".join(dict.fromkeys(_KINDS[each.kind] for each in attached))
    names = ", ".join(dict.fromkeys(each.title or each.mime for each in attached))
    return f"{unread[0].unread_by} cannot read {kinds}. It got the message without: {names}."


def block_of(record: ContextRecord) -> ContextBlock:
    """Make a context block from its record in the loom."""
    after = record.after if isinstance(record.after, str) else None
    placement: Literal["system", "history"] = "history" if record.placement == "history" else "system"
    return ContextBlock(record.text, record.title, record.source, record.uri, record.attachment, after, placement)
