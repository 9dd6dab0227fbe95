"""A record as a row of a database: what it is, what the tree needs of it, and all of it, each as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import msgspec

from cantrip_acp import shapes
from cantrip_acp.loom import heads
from cantrip_acp.loom.stores.contract import Problem
from cantrip_acp.loom.turn import FORMAT, Record, Turn

_encode = msgspec.json.Encoder().encode
_decoder: msgspec.json.Decoder[Record] = shapes.json_decoder(Record)

TAKEN = "cantrip: this turn is already written"
ORPHAN = "cantrip: the parent of this turn is not in this loom"
HEADED = "cantrip: this loom has its header already"
KEPT = "cantrip: a loom is append-only"
"""What the databases' own triggers say; a store tells them apart by it."""


@dataclass(frozen=True, slots=True)
class Row:
    """One record. ``turn_id`` and ``parent_id`` are a turn's, None for all else; ``head`` and ``body`` are JSON."""

    kind: str
    turn_id: str | None
    parent_id: str | None
    head: bytes
    body: bytes


def row_of(record: Record) -> Row:
    """The row of a record; half of a surrogate pair, which is no text, becomes a mark."""
    try:
        body = _encode(record)
    except UnicodeEncodeError:
        body = _encode(mend(msgspec.to_builtins(record)))
        record = _decoder.decode(body)
    if isinstance(record, Turn):
        turn = heads.TurnHead(*(getattr(record, name) for name in heads.TurnHead.__struct_fields__))
        return Row("turn", record.id, record.parent_id, _encode(turn), body)
    kind = heads.kind(record)
    if kind in ("loom", "cantrip"):
        # Small and few, and needed whole.
        return Row(kind, None, None, body, body)
    head = msgspec.to_builtins(record)
    if kind == "snapshot":
        head = {**head, "data": {"pieces": dict.fromkeys(heads.pieces_of(record))}}
    fields = {"type", *_FIELDS[kind]}
    return Row(kind, None, None, _encode({k: v for k, v in head.items() if k in fields}), body)


_FIELDS = {
    str(head.__struct_config__.tag): head.__struct_fields__
    for head in (
        heads.UtteranceHead,
        heads.CastHead,
        heads.ContextHead,
        heads.RewardHead,
        heads.SnapshotHead,
        heads.FoldHead,
        heads.ForkHead,
        heads.FilesHead,
        heads.ConfigHead,
    )
}


def record_of(body: bytes) -> Record:
    """The record of a row's body. Raises `msgspec.DecodeError` or `UnicodeError`."""
    return _decoder.decode(body)


def agree(head: bytes, record: Record) -> bool:
    """Whether a row's head is that of its body. An older head may lack what later ones have."""
    try:
        kept = msgspec.json.decode(head)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return False
    whole = msgspec.json.decode(row_of(record).head)
    return isinstance(kept, dict) and all(kept[key] == whole[key] for key in kept.keys() & whole.keys())


def missing(first: int, last: int) -> Problem:
    """Records have places without gaps, so one that is not there was there once."""
    which = f"record {first} is" if first == last else f"records {first} to {last} are"
    return Problem(f"{which} missing: deleted by somebody past the database's guards", offset=first)


def too_new(head: Any) -> str | None:
    """What is wrong with a header of a later version; None for all that this version reads."""
    written = getattr(head, "format", FORMAT) if heads.kind(head) == "loom" else FORMAT
    return f"format {written}; this version reads up to {FORMAT}" if written > FORMAT else None


def mend(value: Any) -> Any:
    """The value with a mark for each half of a surrogate pair."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, dict):
        return {cast("str", mend(k)): mend(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [mend(v) for v in value]
    return value
