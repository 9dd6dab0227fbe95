"""The places of a loom's turns by columns: half the bytes and half the time of a row a turn.

A text that many turns share (who acted, in which cast) stands once, and a parent is a number: ids are most of what there is.
"""

from __future__ import annotations

from array import array
from typing import Any, Literal

import msgspec

from cantrip_acp.loom.records.tree import Place

_SHARED = tuple(name for name in Place.__struct_fields__ if name not in ("parent_id", "position"))


class Packed(msgspec.Struct, frozen=True, array_like=True):
    """``parents`` are places in ``ids``, then None, then ``lost``; each of ``shared`` has its distinct values and, for every
    turn, which of them."""

    ids: list[str]
    lost: list[str]
    parents: bytes
    positions: bytes
    shared: dict[str, tuple[list[Any], bytes]]


def pack(turns: dict[str, Place]) -> Packed:
    """The columns of these places."""
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
    """The places again. Raises `ValueError`, `KeyError` or `IndexError` for what is no such columns."""
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
