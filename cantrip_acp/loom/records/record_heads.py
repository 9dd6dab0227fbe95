"""Record heads: the few fields of each record that the tree needs, without the body.

Opening a loom decodes only heads, which is several times faster than decoding every record. A body is read on request.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any, get_args

import msgspec

from cantrip_acp.text import codecs
from cantrip_acp.types.records import CantripRecord, LaterRecord, LoomHeader, Record


class TurnHead(msgspec.Struct, frozen=True, tag_field="type", tag="turn"):
    """A turn's place in the tree."""

    id: str
    parent_id: str | None
    cantrip_id: str
    entity_id: str
    cast_id: str | None
    role: str = "crystal"
    continues: str | None = None
    reward: float | None = None


class UtteranceHead(msgspec.Struct, frozen=True, tag_field="type", tag="utterance"):
    """The entity and id of an utterance. The turn with this id holds its outcome; a partial utterance gets no such
    turn."""

    id: str
    entity_id: str
    parent_id: str = ""
    partial: bool = False


class CastHead(msgspec.Struct, frozen=True, tag_field="type", tag="cast"):
    """The id of a cast, and whether this record is its start or its end."""

    id: str
    event: str
    entity_id: str


class ContextHead(msgspec.Struct, frozen=True, tag_field="type", tag="context"):
    """The cast that the context was pinned for."""

    id: str
    entity_id: str
    cast_id: str | None


class RewardHead(msgspec.Struct, frozen=True, tag_field="type", tag="reward"):
    """A turn and its reward."""

    turn_id: str
    reward: float | None
    kind: str | msgspec.UnsetType = msgspec.UNSET


class SnapshotPieces(msgspec.Struct, frozen=True):
    """The keys of the pieces in a snapshot record; the pieces themselves are not decoded."""

    pieces: dict[str, msgspec.Raw] | msgspec.UnsetType = msgspec.UNSET


class SnapshotHead(msgspec.Struct, frozen=True, tag_field="type", tag="snapshot"):
    """The snapshot of a turn."""

    id: str
    turn_id: str
    entity_id: str
    data: SnapshotPieces = SnapshotPieces()


class FoldHead(msgspec.Struct, frozen=True, tag_field="type", tag="fold"):
    """A fold."""

    id: str
    entity_id: str


class ForkHead(msgspec.Struct, frozen=True, tag_field="type", tag="fork"):
    """A fork and the turn that it starts from."""

    id: str
    from_turn: str | None
    entity_id: str


class FilesHead(msgspec.Struct, frozen=True, tag_field="type", tag="files"):
    """The files after a turn, or a restore."""

    id: str
    turn_id: str
    entity_id: str
    restored: str | msgspec.UnsetType = msgspec.UNSET


class ConfigHead(msgspec.Struct, frozen=True, tag_field="type", tag="config"):
    """A change of an entity's configuration."""

    id: str
    entity_id: str


class ServiceHead(msgspec.Struct, frozen=True, tag_field="type", tag="service"):
    """The start or the end of a service."""

    id: str
    event: str
    entity_id: str


class LaterHead(msgspec.Struct, frozen=True, tag_field="type", tag="later"):
    """A record of a later version. This version keeps it and cannot use it; ``name`` is its ``type``."""

    name: str


Head = (
    LoomHeader
    | CantripRecord
    | TurnHead
    | UtteranceHead
    | CastHead
    | ContextHead
    | RewardHead
    | SnapshotHead
    | FoldHead
    | ForkHead
    | FilesHead
    | ConfigHead
    | ServiceHead
)
"""A record's head. Headers and cantrips are small and few, so they are read completely."""


# Making a decoder takes milliseconds, and a process that only writes needs none.
@cache
def head_decoder() -> msgspec.json.Decoder[Head]:
    return codecs.json_decoder(Head)


@cache
def record_decoder() -> msgspec.json.Decoder[Record]:
    return codecs.json_decoder(Record)


_KINDS = frozenset(str(shape.__struct_config__.tag) for shape in get_args(Head))


def later(line: bytes | memoryview, *, sealed: bool = False) -> str | None:
    """The ``type`` of a record that only a later version can use; None for a known record and for invalid data.

    ``sealed``: the checksum of the record is right, so nothing changed it since it was written. Then a record of a
    known type that does not decode is of a later version too.
    """
    try:
        data = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    name = data.get("type") if isinstance(data, dict) else None
    if not isinstance(name, str) or not _NAME.match(name) or not (sealed or ("id" in data and name not in _KINDS)):
        return None
    return name


_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}\Z")


def decode(line: bytes | memoryview, *, sealed: bool = False) -> Head | LaterHead:
    """The head of a record; it keeps no reference to ``line``. Raises `msgspec.DecodeError`."""
    try:
        head = head_decoder().decode(line)
    except msgspec.ValidationError:
        name = later(line, sealed=sealed)
        if name is None:
            raise
        return LaterHead(name)
    if isinstance(head, SnapshotHead) and isinstance(head.data.pieces, dict):
        # A raw value would keep the memory of the whole line.
        bare = SnapshotPieces(dict.fromkeys(head.data.pieces, msgspec.Raw()))
        return SnapshotHead(head.id, head.turn_id, head.entity_id, bare)
    return head


def pieces_of(record: Any) -> Any:
    """The keys of the pieces in a snapshot's record or head."""
    data = record.data
    if isinstance(data, SnapshotPieces):
        return () if data.pieces is msgspec.UNSET else data.pieces
    pieces = data.get("pieces") if isinstance(data, dict) else None
    return pieces if isinstance(pieces, dict) else ()


def kind(record: Record | Head | LaterHead | LaterRecord) -> str:
    return str(record.__struct_config__.tag)
