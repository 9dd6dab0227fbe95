"""A cantrip, a circle and a call cannot be changed: what the crystal sees is what the loom records."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cantrip_acp import Call, Cantrip, Circle, DefinitionError, Gate, Loom, ScriptedCrystal, Wards
from cantrip_acp.gates.files.read_file import READ_FILE
from cantrip_acp.gates.wards import compose
from cantrip_acp.types.errors import Immutable
from tests.support.fixtures.core import done, echo


def _names(value: Any) -> list[str]:
    """Every attribute of a definition that is data, hidden ones too."""
    kind = type(value)
    found = {name for each in kind.__mro__ for name in (*vars(each), *getattr(each, "__slots__", ()))}
    found |= set(getattr(value, "__dict__", {}))
    data = {n for n in found if not n.startswith("__") and hasattr(value, n) and not callable(getattr(value, n))}
    return sorted(data)


def _definitions(tmp_path: Path) -> tuple[Cantrip, Circle, Call]:
    circle = Circle(
        "conversation",
        ["done", "echo", {"name": "read_file", "root": "data"}, "call_agent"],
        [{"max_turns": 5}, {"remove_gate": ["search"]}],
        workspace=tmp_path,
        folders=[tmp_path / "more"],
        data={"rows": [1]},
    )
    call = Call("You are exact.", stop=("END",), temperature=0)
    cantrip = Cantrip(
        ScriptedCrystal([echo(), done()]),
        call,
        circle,
        name="n",
        loom_settings={"fsync": False},
        crystals={"small": ScriptedCrystal([])},
    )
    return cantrip, cantrip.circle, cantrip.call


def _walk(value: Any, seen: set[int]) -> None:
    """Try to change everything that a definition holds, in depth."""
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, Cantrip | Circle | Call | Wards | Gate | msgspec.Struct):
        names = value.__struct_fields__ if isinstance(value, msgspec.Struct) else _names(value)
        for name in names:
            held = getattr(value, name)
            with pytest.raises((AttributeError, TypeError)):
                setattr(value, name, held)
            with pytest.raises((AttributeError, TypeError)):
                delattr(value, name)
            assert getattr(value, name) is held or getattr(value, name) == held
            _walk(held, seen)
        with pytest.raises((AttributeError, TypeError)):
            value.something_new = 1
    elif isinstance(value, Mapping):
        assert type(value) is not dict, value
        with pytest.raises((TypeError, AttributeError)):
            value["spoiled"] = 1  # type: ignore[index]
        for each in value.values():
            _walk(each, seen)
    elif isinstance(value, list):
        with pytest.raises(TypeError):
            value.append(1)
        for each in value:
            _walk(each, seen)
    elif isinstance(value, tuple | frozenset):
        for each in value:
            _walk(each, seen)
    else:
        assert not isinstance(value, set | bytearray), value


def test_no_attribute_can_be_changed(tmp_path: Path) -> None:
    cantrip, circle, call = _definitions(tmp_path)
    cantrip_id, records = cantrip.id, msgspec.json.encode(cantrip.records)
    assert cantrip.shown
    assert circle.tools
    assert {"call", "circle", "crystal", "id", "interceptors", "loom", "records", "shown"} <= set(_names(cantrip))
    assert {"gates", "wards", "data", "declared_gates", "tools", "tool_names"} <= set(_names(circle))
    assert set(_names(call)) >= {f.name for f in dataclasses.fields(Call)}
    seen: set[int] = set()
    for each in (cantrip, circle, call):
        _walk(each, seen)
        with pytest.raises(TypeError):
            vars(each)["spoiled"] = 1
    assert (cantrip.id, msgspec.json.encode(cantrip.records)) == (cantrip_id, records)


def test_assigning_a_call_says_that_it_is_immutable(tmp_path: Path) -> None:
    cantrip, circle, call = _definitions(tmp_path)
    for attempt in (
        lambda: setattr(cantrip, "call", Call("another")),
        lambda: delattr(cantrip, "call"),
        lambda: setattr(call, "system_prompt", "another"),
    ):
        with pytest.raises(Immutable, match="call is immutable"):
            attempt()
    with pytest.raises(DefinitionError, match=r"circle is immutable.*replace\(wards=…\)"):
        circle.wards = Wards(max_turns=1)


def test_what_was_handed_in_can_change_without_effect(tmp_path: Path) -> None:
    stop, wards, hosts = ["END"], [{"max_turns": 5, "remove_gate": ["x"]}], ["a.example"]
    settings, data = {"fsync": True}, {"rows": [1]}
    schema: dict[str, Any] = {"type": "object", "properties": {"q": {"type": "string"}}}
    gate = Gate("look", "Look.", schema, lambda args, context: 1, {"hosts": hosts, "deep": {"a": [1]}})
    gates: list[Any] = ["done", gate]
    circle = Circle(gates=gates, wards=wards, data=data, workspace=tmp_path)
    crystals = {"small": ScriptedCrystal([])}
    cantrip = Cantrip(
        ScriptedCrystal([]),
        Call(stop=stop),
        circle,
        loom_settings=settings,
        crystals=crystals,  # type: ignore[arg-type]
    )
    before = msgspec.json.encode([cantrip.records, cantrip.shown])
    stop.append("X")
    wards[0]["max_turns"] = 99
    wards[0]["remove_gate"].append("done")  # type: ignore[attr-defined]
    hosts.append("b.example")
    settings["fsync"] = False
    data["rows"].append(2)
    schema["properties"]["q"]["type"] = "number"
    gates.append("echo")
    crystals["large"] = ScriptedCrystal([])
    again = cantrip.replace(name="again")
    for each in (cantrip, again):
        assert msgspec.json.encode([each.records, each.shown]) == before
        assert each.circle.gates["look"].dependencies == {"hosts": ["a.example"], "deep": {"a": [1]}}
        assert (each.loom_settings, each.circle.data) == ({"fsync": True}, {"rows": [1]})
        assert each.circle.wards.max_turns == 5
        assert tuple(each.crystals) == ("small",)


def test_replace_makes_a_checked_new_one(tmp_path: Path) -> None:
    cantrip, circle, call = _definitions(tmp_path)
    other = cantrip.replace(call=call.replace(system_prompt="Another."))
    assert other.id != cantrip.id
    assert other.records[0]["system_prompt"] == "Another."
    assert (cantrip.call, other.circle, other.loom) == (call, cantrip.circle, cantrip.loom)
    strict = cantrip.replace(circle=circle.replace(wards=[{"max_turns": 2}, {"require_done_tool": True}]))
    assert strict.require_done
    assert not strict.replace(circle=circle).require_done
    with pytest.raises(DefinitionError, match=r"unknown field 'crystel' .*did you mean 'crystal'"):
        cantrip.replace(crystel=None)
    with pytest.raises(DefinitionError, match="circle must have a done gate"):
        cantrip.replace(circle=circle.replace(gates=["echo"]))
    with pytest.raises(DefinitionError, match=r"call\.temperature"):
        call.replace(temperature=3)
    with pytest.raises(DefinitionError, match=r"call\.temperature"):
        dataclasses.replace(call, temperature=float("nan"))


def test_replace_recomputes_what_is_derived(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    circle = Circle(
        "bash",
        ["done", {"name": "read_file", "root": "data"}],
        [{"max_turns": 3}, {"bash_writable_paths": ["workspace", "out"]}],
        workspace=here,
    )
    assert circle.presentation
    moved = circle.replace(workspace=there)
    assert moved.gates["read_file"].dependencies["root"] == there / "data"
    assert moved.wards.bash_writable_paths == (str(there), str(there / "out"))
    assert str(here) not in str(moved.presentation)
    wider = circle.replace(folders=[tmp_path / "beside"])
    assert str(tmp_path / "beside") in wider.wards.bash_writable_paths
    assert wider.replace(folders=()).wards == circle.wards
    fewer = circle.replace(wards=compose(circle.wards, Wards(remove_gate=("read_file",))))
    assert list(fewer.gates) == ["done"]
    shown = Circle(gates=["done"], wards={"max_turns": 1}, data="a")
    assert list(shown.gates) == ["done", "read_context"]
    assert list(shown.replace(medium="code").gates) == ["done"]
    child = Cantrip(ScriptedCrystal([]), circle=Circle(gates=["done", "call_agent"], wards={"max_turns": 1}))
    named = child.replace(crystals={"small": ScriptedCrystal([])})
    assert "small" in str(named.shown)
    assert "small" not in str(named.replace(crystals=None).shown)


async def test_one_prompt_for_crystal_and_loom(tmp_path: Path) -> None:
    crystal = ScriptedCrystal([done()], record_inputs=True)
    cantrip = Cantrip(crystal, Call("First."), Circle(gates=["done"], wards={"max_turns": 2}), loom=Loom.memory())
    async with cantrip.invoke() as entity:
        for name in ("call", "circle", "cantrip", "require_done", "retry", "folding"):
            with pytest.raises(AttributeError):
                setattr(entity, name, "another")
        await entity.cast("go")
    turn = cantrip.loom.threads()[0].turns[0]
    recorded = cantrip.loom.cantrip(turn.cantrip_id)
    assert recorded is not None
    assert recorded.call["system_prompt"] == crystal.invocations[0].messages[0].content == "First."


def test_a_temperature_of_zero_is_recorded() -> None:
    assert Call(temperature=0).record() == {"temperature": 0}


def test_copies_and_pickles(tmp_path: Path) -> None:
    cantrip, circle, call = _definitions(tmp_path)
    for each in (cantrip, circle):
        assert copy.copy(each) is each
        assert copy.deepcopy(each) is each
    assert copy.copy(call) == copy.deepcopy(call) == pickle.loads(pickle.dumps(call)) == call
    plain = Circle(gates=["done", READ_FILE], wards=[{"max_turns": 3}], workspace=tmp_path)
    again = pickle.loads(pickle.dumps(plain))
    assert again.record() == plain.record()
    with pytest.raises(Immutable):
        again.wards = Wards()


def test_a_cantrip_says_why_it_cannot_be_pickled() -> None:
    whole = Cantrip(ScriptedCrystal([{"content": "Done."}]), max_turns=2)
    with pytest.raises(TypeError, match=r"Make it in each process instead.*Cantrip\.load"):
        pickle.dumps(whole)
    assert copy.copy(whole) is copy.deepcopy(whole) is whole
    result = whole.cast_sync("go")
    assert pickle.loads(pickle.dumps(result)).result == "Done."
