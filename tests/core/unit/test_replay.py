"""Replay: recorded words against the real circle, and the first observation that is another one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cantrip_acp import Cantrip, Circle, Loom, ScriptedCrystal
from cantrip_acp.core.forking.replay import replay
from cantrip_acp.gates.contract import Gate
from cantrip_acp.types.errors import TurnNotFound
from tests.support.fixtures.core import INSTANT, done, echo, make


def leaf(loom: Loom) -> str:
    return loom.leaves()[-1]


def looking(path: Path, calls: list[str]) -> Gate:
    def look(name: str) -> str:
        """Look at a file."""
        calls.append(name)
        return (path / name).read_text()

    return Gate.of(look)


def spell(path: Path, calls: list[str], *responses: dict[str, Any], loom: Loom | None = None) -> Cantrip:
    circle = Circle(gates=["done", "echo", looking(path, calls)], wards=[{"max_turns": 9}])
    return Cantrip(ScriptedCrystal(responses), circle=circle, loom=loom, retry=INSTANT)


LOOK = {"content": "let me see", "tool_calls": [{"gate": "look", "args": {"name": "a"}}]}


async def test_the_same_world_gives_the_same_thread(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("as it was")
    calls: list[str] = []
    cantrip = spell(tmp_path, calls, LOOK, echo("x"), {"tool_calls": [{"gate": "nope", "args": {}}]}, done("end"))
    async with cantrip.invoke() as entity:
        await entity.cast("go")
    before = len(list(cantrip.loom.records()))
    told = await replay(spell(tmp_path, calls), cantrip.loom, leaf(cantrip.loom))
    assert (told.turns, told.divergence) == (4, None)
    assert calls == ["a", "a"]
    assert len(list(cantrip.loom.records())) == before


async def test_the_first_divergence_is_named(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("as it was")
    cantrip = spell(tmp_path, [], echo("x"), LOOK, done("end"))
    await cantrip.cast("go")
    (tmp_path / "a").write_text("as it is")
    told = await replay(spell(tmp_path, []), cantrip.loom, leaf(cantrip.loom))
    assert told.divergence is not None
    assert told.divergence.number == 2
    assert str(told.divergence).endswith("gate look answered 'as it is' in place of 'as it was'")


async def test_recorded_gates_act_on_nothing(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("as it was")
    calls: list[str] = []
    cantrip = spell(tmp_path, calls, LOOK, LOOK, done("end"))
    await cantrip.cast("go")
    (tmp_path / "a").unlink()
    told = await replay(spell(tmp_path, calls), cantrip.loom, leaf(cantrip.loom), recorded_gates=True)
    assert (told.turns, told.divergence) == (3, None)
    assert calls == ["a", "a"]


async def test_several_casts_cut_and_finished_ones() -> None:
    cantrip = make(echo("one"), done(1), *(echo(str(n)) for n in range(9)), wards=[{"max_turns": 3}])
    async with cantrip.invoke() as entity:
        await entity.cast("first")
        await entity.cast("second")
    told = await replay(make(wards=[{"max_turns": 3}]), cantrip.loom, leaf(cantrip.loom))
    assert (told.turns, told.divergence) == (5, None)


async def test_a_path_into_the_middle_and_one_that_is_none() -> None:
    cantrip = make(echo("one"), echo("two"), done(1))
    await cantrip.cast("first")
    middle = [t.id for t in cantrip.loom.turns() if t.role == "crystal"][1]
    told = await replay(make(), cantrip.loom, middle)
    assert (told.turns, told.divergence) == (2, None)
    with pytest.raises(TurnNotFound):
        await replay(make(), cantrip.loom, "t_nowhere")


async def test_a_circle_that_lacks_a_gate_diverges_there() -> None:
    cantrip = make(echo("one"), done(1))
    await cantrip.cast("first")
    told = await replay(make(gates=["done"]), cantrip.loom, leaf(cantrip.loom))
    assert told.divergence is not None
    assert told.divergence.number == 1
    assert "gate not available" in str(told.divergence)
