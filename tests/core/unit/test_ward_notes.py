"""Changes of the wards in the middle of a cast: the next query is told, once, and the loom gives back what it read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from cantrip_acp import Cantrip, Circle, Entity, Gate, Loom, ScriptedCrystal
from cantrip_acp.core.forking.replay import replay
from cantrip_acp.core.history.replayed_context import differing_turns
from cantrip_acp.gates.contract import GateContext
from cantrip_acp.types.context_block import WARDS, ContextBlock
from cantrip_acp.types.errors import CrystalError
from cantrip_acp.types.records import ContextRecord

pytestmark = pytest.mark.anyio

WORK: dict[str, Any] = {"tool_calls": [{"gate": "work", "args": {}}]}
END: dict[str, Any] = {"tool_calls": [{"gate": "done", "args": {"answer": "x"}}]}


def note(name: str) -> ContextBlock:
    return ContextBlock(f"Now {name}.", "Mode", "session", f"{WARDS}{name}")


class Changes:
    """A gate during whose calls the test does something: one function for each call."""

    def __init__(self, *steps: Callable[[Entity], Any]) -> None:
        self.steps = list(steps)
        self.root: Entity

    @property
    def gate(self) -> Gate:
        async def run(args: Any, context: GateContext) -> str:
            if self.steps:
                self.steps.pop(0)(self.root)
            return "worked"

        return Gate("work", "Work.", {"type": "object", "properties": {}}, run)

    def cantrip(self, crystal: Any, loom: Loom | None = None, gates: Sequence[Any] = ()) -> Cantrip:
        circle = Circle(gates=["done", self.gate, *gates], wards=[{"max_turns": 9, "max_depth": 1}])
        return Cantrip(crystal, {"system_prompt": "Help."}, circle, loom=loom)


def scripted(*responses: dict[str, Any]) -> ScriptedCrystal:
    return ScriptedCrystal(list(responses), record_inputs=True)


def told(loom: Loom) -> list[tuple[str, str]]:
    return [(r.source, r.text) for r in loom.records() if isinstance(r, ContextRecord)]


def set_note(name: str, known: bool = False) -> Callable[[Entity], None]:
    return lambda entity: entity.set_wards(None, note(name), known=known)


async def test_it_comes_before_a_message_that_waits() -> None:
    def both(entity: Entity) -> None:
        entity.steer("Please.")
        entity.set_wards(None, note("plan"))

    crystal, loom, changes = scripted(WORK, END), Loom.memory(), Changes(both)
    async with changes.cantrip(crystal, loom).invoke() as entity:
        changes.root = entity
        await entity.cast("Go.")
    assert told(loom) == [("note", "Now plan."), ("steering", "Please.")]
    seen = [message.content for message in crystal.invocations[1].messages[-2:]]
    assert seen == ['<context source="note" title="Mode" uri="wards:plan">\nNow plan.\n</context>', "Please."]
    assert differing_turns(loom) == []


async def test_changed_and_changed_back_is_not_told() -> None:
    loom, changes = (
        Loom.memory(),
        Changes(set_note("plan"), set_note("ask"), lambda e: (set_note("plan")(e), set_note("ask")(e))),
    )
    async with changes.cantrip(scripted(WORK, WORK, WORK, END), loom).invoke() as entity:
        entity.set_wards(None, note("ask"), known=True)
        changes.root = entity
        await entity.cast("Go.")
    assert told(loom) == [("note", "Now plan."), ("note", "Now ask.")]
    assert differing_turns(loom) == []


async def test_a_running_child_is_told_and_a_later_one_is_not() -> None:
    call = {"tool_calls": [{"gate": "call_agent", "args": {"intent": "Help me."}}]}
    crystal, loom = scripted(call, WORK, END, call, END, END), Loom.memory()
    changes = Changes(set_note("plan"))
    async with changes.cantrip(crystal, loom, ["call_agent"]).invoke() as entity:
        changes.root = entity
        await entity.cast("Go.")
    records = [r for r in loom.records() if isinstance(r, ContextRecord)]
    assert [(r.text, r.entity_id == entity.id) for r in records] == [("Now plan.", False), ("Now plan.", True)]
    assert len({r.entity_id for r in records}) == 2
    assert differing_turns(loom) == []


async def test_a_refused_query_is_told_again() -> None:
    class Refusing:
        name, model, context_window = "r", "r", None

        def __init__(self) -> None:
            self.inner = scripted(END)
            self.asked = 0

        async def query(self, query: Any, emit: Any) -> Any:
            self.asked += 1
            if self.asked == 1:
                raise CrystalError("no", retryable=False, status=400)
            return await self.inner.query(query, emit)

    crystal, loom, changes = Refusing(), Loom.memory(), Changes()
    async with changes.cantrip(crystal, loom).invoke() as entity:
        entity.set_wards(None, note("plan"))
        with pytest.raises(CrystalError):
            await entity.cast("One.")
        await entity.cast("Two.")
    assert told(loom) == [("session", "Now plan.")] * 2
    assert "Now plan." in str(crystal.inner.invocations[0].messages)
    assert differing_turns(loom) == []


async def test_a_replay_and_a_fork_read_it_where_it_was() -> None:
    crystal, loom, changes = scripted(WORK, WORK, END), Loom.memory(), Changes(set_note("plan"))
    async with changes.cantrip(crystal, loom).invoke() as entity:
        changes.root = entity
        await entity.cast("Go.")
        last = entity.last_turn
    turns = [turn.id for turn in loom.turns() if turn.role == "crystal"]
    other = scripted(END, END, END)
    async with await changes.cantrip(other, loom).fork(turns[0], loom=loom) as fork:
        await fork.resume()
    async with await changes.cantrip(other, loom).fork(turns[1], loom=loom) as fork:
        set_note("plan")(fork)
        await fork.resume()
    assert str(other.invocations[0].messages) == str(crystal.invocations[1].messages)
    assert str(other.invocations[1].messages) == str(crystal.invocations[2].messages)
    made = await replay(changes.cantrip(scripted()), loom, last)
    assert (made.turns, made.divergence) == (3, None)
    assert differing_turns(loom) == []
