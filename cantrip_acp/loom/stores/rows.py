"""Database rows: a record as its columns, with its head and its body as JSON. SQLite and PostgreSQL stores share
this.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, cast

import msgspec
from msgspec import Struct

from cantrip_acp.loom.records import record_heads
from cantrip_acp.loom.records.tree import Problem
from cantrip_acp.loom.stores import checksum
from cantrip_acp.types.records import FORMAT, LaterRecord, Record, Turn

_encoder = msgspec.json.Encoder()
_encode = _encoder.encode

TAKEN = "cantrip: this turn is already written"
ORPHAN = "cantrip: the parent of this turn is not in this loom"
HEADED = "cantrip: this loom has its header already"
KEPT = "cantrip: a loom is append-only"
"""The messages of the databases' own triggers. A store recognizes an error by its message."""


class Row(Struct, frozen=True):
    """One record. ``turn_id`` and ``parent_id`` are set for turns only; ``head`` and ``body`` are JSON."""

    kind: str
    turn_id: str | None
    parent_id: str | None
    head: bytes
    body: bytes
    entity: str = ""
    """The chain of the record: an entity's, or the loom's own (empty) if it belongs to no entity."""


def encoded(record: Record | LaterRecord) -> bytes:
    """A record as JSON. Half of a surrogate pair cannot be encoded and becomes a mark."""
    if isinstance(record, LaterRecord):
        return bytes(record.data)
    try:
        return _encode(record)
    except UnicodeEncodeError:
        return _encode(mend(msgspec.to_builtins(record)))


def encode_into(record: Record | LaterRecord, buffer: bytearray) -> bytes | bytearray:
    """A record as JSON (`encoded`), mostly written into ``buffer``: that is faster than making a new buffer."""
    if isinstance(record, LaterRecord):
        return bytes(record.data)
    try:
        _encoder.encode_into(record, buffer)
    except UnicodeEncodeError:
        buffer[:] = encoded(record)
    return buffer


def row_of(record: Record | LaterRecord, body: bytes | None = None) -> Row:
    """The row of a record. ``body`` is its JSON if that holds more than this version knows."""
    if isinstance(record, LaterRecord):
        return _later_row(record, bytes(record.data) if body is None else body)
    if body is None:
        try:
            body = _encode(record)
        except UnicodeEncodeError:
            body = encoded(record)
            record = record_heads.record_decoder().decode(body)
    entity = getattr(record, "entity_id", "")
    if isinstance(record, Turn):
        turn = record_heads.TurnHead(*(getattr(record, name) for name in record_heads.TurnHead.__struct_fields__))
        return Row("turn", record.id, record.parent_id, _encode(turn), body, entity)
    kind = record_heads.kind(record)
    if kind in ("loom", "cantrip"):
        # They are small and few, and needed completely.
        return Row(kind, None, None, body, body)
    head = msgspec.to_builtins(record)
    if kind == "snapshot":
        head = {**head, "data": {"pieces": dict.fromkeys(record_heads.pieces_of(record))}}
    fields = {"type", *_FIELDS[kind]}
    return Row(kind, None, None, _encode({k: v for k, v in head.items() if k in fields}), body, entity)


def _later_row(record: LaterRecord, body: bytes) -> Row:
    data = msgspec.json.decode(body)
    head = {k: v for k, v in data.items() if v is None or (isinstance(v, str | int | float) and len(str(v)) < 200)}
    found = [data.get(key) if record.name == "turn" else None for key in ("id", "parent_id")]
    turn_id, parent_id = (value if isinstance(value, str) else None for value in found)
    entity = data.get("entity_id")
    return Row(record.name, turn_id, parent_id, _encode(head), body, entity if isinstance(entity, str) else "")


_FIELDS = {
    str(head.__struct_config__.tag): head.__struct_fields__
    for head in (
        record_heads.UtteranceHead,
        record_heads.CastHead,
        record_heads.ContextHead,
        record_heads.RewardHead,
        record_heads.SnapshotHead,
        record_heads.FoldHead,
        record_heads.ForkHead,
        record_heads.FilesHead,
        record_heads.ConfigHead,
        record_heads.ServiceHead,
    )
}


def record_of(body: bytes | memoryview) -> Record | LaterRecord:
    """Decode the record of a stored body. Raises `msgspec.DecodeError` or `UnicodeError`."""
    try:
        return record_heads.record_decoder().decode(body)
    except msgspec.ValidationError:
        name = record_heads.later(body, sealed=checksum.is_valid(body) is True)
        if name is None:
            raise
        return LaterRecord(name, msgspec.Raw(checksum.strip(body)))


def sealed(head: bytes) -> bytes:
    """A head with its own checksum. Lists and trees read heads alone, so they must notice a changed one by itself."""
    buffer = bytearray(head)
    buffer.pop()
    return bytes(buffer) + f',"sum":"{checksum.of(buffer)}"}}'.encode()


def head_of(head: bytes | memoryview) -> record_heads.Head | record_heads.LaterHead:
    """Decode a stored head. Raises `msgspec.DecodeError` if it was changed since it was written."""
    if checksum.is_valid(head) is False:
        raise msgspec.DecodeError(f"its head was {checksum.CHANGED}")
    return record_heads.decode(head)


def head_from(body: bytes | memoryview) -> record_heads.Head | record_heads.LaterHead | None:
    """Make a head from a record's body, where the stored head cannot be used. None if the body is damaged too."""
    try:
        return record_heads.decode(row_of(record_of(body), checksum.strip(body)).head)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def agree(head: bytes, record: Record | LaterRecord, *, chained: bool = False) -> bool:
    """Whether a row's head fits its body. A head of an older version may lack newer fields. The head of a chained
    record must decode to the same head as ours."""
    made = row_of(record).head
    bare = checksum.strip(head)
    if bare != head and sealed(bare) != head:
        return False
    head = bare
    try:
        kept = msgspec.json.decode(head)
        if chained and record_heads.decode(head) != record_heads.decode(made):
            return False
        if chained and isinstance(kept, dict):
            # Every bit, also those of a name that no reader knows then.
            whole = msgspec.json.decode(made)
            return kept.keys() <= whole.keys() and _encode({key: whole[key] for key in kept}) == head
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return False
    whole = msgspec.json.decode(made)
    return isinstance(kept, dict) and all(kept[key] == whole[key] for key in kept.keys() & whole.keys())


class Stored(NamedTuple):
    """A row as stored. ``entity`` and ``sum`` are None in a row of an earlier version."""

    n: int
    kind: str
    turn_id: str | None
    parent_id: str | None
    entity: str | None
    sum: str | None
    head: bytes | None
    body: bytes


def damage(stored: Iterable[Stored], ends: Mapping[str, tuple[int, str]] | None) -> Iterator[Problem]:
    """Yield what is wrong with rows, first to last. ``ends`` has the number of records and the last checksum of each
    chain; it is None in tables of an earlier version."""
    chains, reported, last = checksum.Chains(), set(), 0
    for row in stored:
        if row.n > last + 1:
            yield missing(last + 1, row.n - 1)
        last = row.n
        try:
            record = record_of(row.body)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            wrong: str | None = f"is damaged: {error}"
            entity = row.entity
        else:
            made = row_of(record, checksum.strip(row.body))
            entity = row.entity if row.entity is not None else made.entity
            wrong = _differs(row, record, made)
        if entity is not None:
            follows = chains.follow(entity, f"record {row.n}", row.body)
            wrong = wrong or follows
            reported |= {entity} if wrong is not None else set()
        if wrong is not None:
            yield Problem(f"record {row.n} {wrong}", offset=row.n)
    if ends is None:
        return
    for entity, (count, own) in ends.items():
        found = chains.counts.get(entity, 0)
        whose = f"of entity {entity!r}" if entity else "that belong to no entity"
        if own not in chains.last(entity):
            yield Problem(f"the last records {whose} are missing or were replaced: {found:,} of {count:,} are here")
        elif found != count and entity not in reported:
            yield Problem(f"records {whose} were removed or added: {found:,} are here, {count:,} were written")
    for entity in chains.counts.keys() - ends.keys():
        yield Problem(f"the count of records of {entity or 'no entity'!r} is missing: somebody deleted it")


def _differs(row: Stored, record: Record | LaterRecord, made: Row) -> str | None:
    """The name of a column of a row that differs from the written record; None if none differs."""
    if checksum.is_valid(row.body) is False:
        return f"was {checksum.CHANGED}"
    place = checksum.place_of(row.body)
    if place is not None and place != row.n:
        return f"was written as record {place}: it was copied or moved"
    if (row.kind, row.turn_id, row.parent_id) != (made.kind, made.turn_id, made.parent_id):
        return "is not as it was written: its columns and its body differ"
    before, own = checksum.sums(row.body)
    if row.head is not None and not agree(row.head, record, chained=before is not None):
        return "is not as it was written: its head and its body differ"
    if (before is not None or row.sum is not None) and (row.sum, row.entity) != (own, made.entity):
        return "is not as it was written: its columns and its body differ"
    return None


def misplaced(count: int) -> Problem:
    """The problem for records before position 1; nothing reads them."""
    return Problem(
        f"{count:,} record{' has a place' if count == 1 else 's have places'} before the first: added by somebody"
    )


def missing(first: int, last: int) -> Problem:
    """The problem for a gap: positions have no gaps, so a missing record was deleted."""
    which = f"record {first} is" if first == last else f"records {first} to {last} are"
    return Problem(f"{which} missing: deleted by somebody past the database's guards", offset=first)


def too_new(head: Any) -> str | None:
    """What is wrong with the header of a loom of a later version; None for a version that this one reads."""
    written = getattr(head, "format", FORMAT) if record_heads.kind(head) == "loom" else FORMAT
    return f"format {written}; this version reads up to {FORMAT}" if written > FORMAT else None


def mend(value: Any) -> Any:
    """The value with each half of a surrogate pair replaced by a mark."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, dict):
        return {cast("str", mend(k)): mend(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [mend(v) for v in value]
    return value
