"""What a reader of a loom or of events does to what it was given changes nothing for anybody else."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from cantrip_acp import Cantrip, Circle, Loom, ScriptedCrystal
from cantrip_acp.text.json_data import FrozenDict, FrozenList, freeze, thaw
from cantrip_acp.types.records import CastRecord, ConfigRecord, SnapshotRecord

DATA = {"rows": [{"n": 1}, {"n": 2}]}


def _cantrip(loom: Loom) -> Cantrip:
    said = [
        {"tool_calls": [{"gate": "echo", "args": {"text": "a"}}]},
        {"tool_calls": [{"gate": "done", "args": {"answer": DATA}}]},
    ]
    return Cantrip(
        ScriptedCrystal(said), {"stop": ["x"]}, Circle(gates=["done", "echo"], wards={"max_turns": 5}), loom=loom
    )


def _spoil(value: Any, seen: set[int]) -> None:
    """Try every ordinary way to change a value and everything that it holds."""
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            with pytest.raises(AttributeError):
                setattr(value, name, "spoiled")
            with pytest.raises(AttributeError):
                delattr(value, name)
            _spoil(getattr(value, name), seen)
    elif isinstance(value, Mapping):
        for attempt in (
            lambda: value.__setitem__("spoiled", 1),  # type: ignore[attr-defined]
            lambda: value.update(spoiled=1),  # type: ignore[attr-defined]
            lambda: value.setdefault("spoiled", 1),  # type: ignore[attr-defined]
            lambda: value.clear(),  # type: ignore[attr-defined]
            lambda: value.popitem(),  # type: ignore[attr-defined]
            lambda: value.__ior__({"spoiled": 1}),  # type: ignore[attr-defined]
        ):
            with pytest.raises((TypeError, AttributeError)):
                attempt()
        for each in tuple(value.values()):
            _spoil(each, seen)
    elif isinstance(value, list):
        for attempt in (
            lambda: value.append(1),
            lambda: value.__setitem__(slice(None), []),
            lambda: value.__delitem__(slice(None)),
            lambda: value.__iadd__([1]),
            lambda: value.sort(),
            lambda: value.clear(),
        ):
            with pytest.raises(TypeError):
                attempt()
        for each in value:
            _spoil(each, seen)
    elif isinstance(value, tuple):
        for each in value:
            _spoil(each, seen)
    else:
        assert not isinstance(value, set | bytearray), value


async def test_records_of_the_memory_store_cannot_be_changed() -> None:
    loom = Loom.memory()
    cantrip = _cantrip(loom)
    async with cantrip.cast_stream("go") as stream:
        events = [event async for event in stream]
    alias: dict[str, Any] = {"kept": [1]}
    loom.append(ConfigRecord("k_1", "e_1", alias))
    loom.append(SnapshotRecord("s_1", "t_1", "e_1", alias))
    loom.append(CastRecord("c_x", "start", "e_1", cantrip.id, attributes=alias))
    alias["kept"].append(2)
    before = msgspec.json.encode(list(loom.records()))
    assert b'"kept":[1]' in before
    assert b'"kept":[1,2]' not in before
    given = [
        *loom.records(),
        *loom.turns(),
        *(turn for thread in loom.threads() for turn in thread.turns),
        *(record for pair in loom.casts() for record in pair if record is not None),
        loom.cantrip(cantrip.id),
        loom.header,
        *events,
    ]
    seen: set[int] = set()
    for each in given:
        _spoil(each, seen)
    _spoil(loom.places, seen)
    _spoil(loom.snapshots, seen)
    _spoil(loom.pieces, seen)
    assert msgspec.json.encode(list(loom.records())) == before


async def test_a_result_belongs_to_whoever_asked() -> None:
    cantrip = _cantrip(Loom.memory())
    result = await cantrip.cast("go")
    result.result["rows"].append("mine")
    turn = cantrip.loom.threads()[0].acted[-1]
    assert turn.observation.results[0].result == DATA
    assert cantrip.loom.casts()[0][1].result == DATA  # type: ignore[union-attr]


async def test_one_reader_of_events_cannot_change_what_another_reads() -> None:
    cantrip = _cantrip(Loom.memory())
    async with cantrip.invoke() as entity:
        with entity.subscribe(lossy=True, buffer=1_000) as first, entity.subscribe(lossy=True, buffer=1_000) as second:
            await entity.cast("go")
            first.finish()
            second.finish()
            seen: set[int] = set()
            async for event in first:
                _spoil(event, seen)
            kinds = [type(event).__name__ async for event in second]
    assert "TurnEnded" in kinds
    assert "CastEnded" in kinds


def test_frozen_data_is_like_the_data_that_it_was_made_of() -> None:
    frozen = freeze({"a": [1, {"b": (2, [3])}], "s": {4}})
    assert frozen == {"a": [1, {"b": (2, [3])}], "s": frozenset({4})}
    assert isinstance(frozen, FrozenDict)
    assert isinstance(frozen["a"][1]["b"][1], FrozenList)
    assert freeze(frozen) is frozen
    assert copy.copy(frozen) is frozen
    assert copy.deepcopy(frozen) is frozen
    again = pickle.loads(pickle.dumps(frozen))
    assert again == frozen
    assert isinstance(again["a"], FrozenList)
    mine = thaw(frozen)
    mine["a"].append(1)
    assert len(frozen["a"]) == 2
    assert msgspec.json.encode(freeze({"a": [1]})) == b'{"a":[1]}'
