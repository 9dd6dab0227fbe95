"""Encodes the places of a loom's turns as columns: half the bytes and half the time of one row per turn.

Values that many turns share (entity, cast) are stored once, and a parent is a number, because ids are most of the data.
"""

from __future__ import annotations

from array import array
from typing import Any, Literal

import msgspec

from cantrip_acp.loom.records.tree import Place

_SHARED = tuple(name for name in Place.__struct_fields__ if name not in ("parent_id", "position"))


class Packed(msgspec.Struct, frozen=True, array_like=True):
    """Columns. Each of ``parents`` is an index into ``ids`` + None + ``lost``. Each of ``shared`` has its distinct
    values and, for every turn, the index of its value."""

    ids: list[str]
    lost: list[str]
    parents: bytes
    positions: bytes
    shared: dict[str, tuple[list[Any], bytes]]


def pack(turns: dict[str, Place]) -> Packed:
    """Encode these places as columns."""
    ids, places = list(turns), list(turns.values())
    number: dict[str | None, int] = dict(zip([*ids, None], range(len(ids) + 1), strict=True))
    lost = [p.parent_id for p in places if p.parent_id is not None and p.parent_id not in turns]
    lost = list(dict.fromkeys(lost))
    number.update(zip(lost, range(len(ids) + 1, len(ids) + 1 + len(lost)), strict=True))
    shared = {}
    for name in _SHARED:
        column = [getattr(place, name) for place in places]
        codes = {value: code for code, value in enumerate(dict.fromkeys(column))}
        shared[name] = (list(codes), array("I", map(codes.__getitem__, column)).tobytes())
    return Packed(
        ids,
        lost,
        array("I", [number[place.parent_id] for place in places]).tobytes(),
        array("Q", [place.position for place in places]).tobytes(),
        shared,
    )


def unpack(packed: Packed) -> dict[str, Place]:
    """Decode the places. Raises `ValueError`, `KeyError` or `IndexError` for invalid columns."""
    names: list[Any] = [*packed.ids, None, *packed.lost]
    columns = {
        "parent_id": map(names.__getitem__, _numbers("I", packed.parents)),
        "position": iter(_numbers("Q", packed.positions)),
    }
    for name in _SHARED:
        values, codes = packed.shared[name]
        columns[name] = map(values.__getitem__, _numbers("I", codes))
    places = map(Place, *(columns[name] for name in Place.__struct_fields__))
    return dict(zip(packed.ids, places, strict=True))


def _numbers(kind: Literal["I", "Q"], data: bytes) -> array[int]:
    numbers = array(kind)
    numbers.frombytes(data)
    return numbers
