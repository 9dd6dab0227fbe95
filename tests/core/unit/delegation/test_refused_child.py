"""A child that may not be is refused before anything is spent, and readers are told."""

from __future__ import annotations

from typing import Any

import pytest

from cantrip_acp import Call, Cantrip, Circle, Loom, ScriptedCrystal
from cantrip_acp.core.forking.resume import resume_entity
from cantrip_acp.types.events import ChildEvent, ChildRejected, as_json

pytestmark = pytest.mark.anyio


def done(answer: str = "ok") -> dict[str, Any]:
    return {"tool_calls": [{"gate": "done", "args": {"answer": answer}}]}


def batch(*requests: dict[str, Any]) -> dict[str, Any]:
    return {"tool_calls": [{"gate": "call_agent_batch", "args": {"requests": list(requests)}}]}


def one(**args: Any) -> dict[str, Any]:
    return {"tool_calls": [{"gate": "call_agent", "args": {"intent": "help", **args}}]}


def parent(*responses: Any, children: Any = (), wards: Any = (), loom: Loom | None = None) -> Cantrip:
    return Cantrip(
        ScriptedCrystal(responses, children=children),
        Call(),
        Circle(gates=["done", "echo", "call_agent", "call_agent_batch"], wards=[{"max_turns": 9}, *wards]),
        loom=loom,
    )


async def heard(cantrip: Cantrip) -> list[Any]:
    async with cantrip.invoke() as entity, entity.stream("go") as stream:
        return [event async for event in stream]


@pytest.mark.parametrize(
    ("requests", "ward", "index"),
    [
        ([{"intent": "a"}, {"intent": "b", "gates": ["fetch"]}], "gate", 1),
        ([{"intent": "a"}, {"intent": "b", "crystal": "nobody"}], "crystal", 1),
        # The script has one child: the second's crystal cannot be had.
        ([{"intent": "a"}, {"intent": "b"}], "crystal", 1),
    ],
)
async def test_nothing_of_a_batch_starts(requests: list[dict[str, Any]], ward: str, index: int) -> None:
    cantrip = parent(batch(*requests), done(), children=[{"responses": [done()]}])
    events = await heard(cantrip)
    (rejected,) = [e for e in events if isinstance(e, ChildRejected)]
    assert (rejected.ward, rejected.index) == (ward, index)
    assert as_json(rejected)["event"] == "child_rejected"
    assert not [e for e in events if isinstance(e, ChildEvent)]
    assert len({turn.entity_id for turn in cantrip.loom.turns()}) == 1


async def test_a_lone_child_that_may_not_be() -> None:
    events = await heard(parent(one(gates=["fetch"]), done()))
    (rejected,) = [e for e in events if isinstance(e, ChildRejected)]
    (called,) = {e.call_id for e in events if type(e).__name__ == "GateCalled" and e.gate == "call_agent"}
    assert (rejected.ward, rejected.index, rejected.call_id) == ("gate", None, called)


async def test_counters_survive_forks_and_reloads() -> None:
    wards = [{"max_children_total": 2}, {"max_depth": 2}]
    helper = {"responses": [one(), done()], "children": [{"responses": [done()]}]}
    loom = Loom.memory() if hasattr(Loom, "memory") else None
    cantrip = parent(one(), done(), children=[helper, helper], wards=wards, loom=loom)
    async with cantrip.invoke() as entity:
        await entity.cast("go")
        again = parent(one(), done(), children=[helper] * 4, wards=wards)
        forked = await entity.fork(cantrip=again)
        assert (forked.children.count, forked.children.descendants) == (1, 2)
        result = await forked.cast("once more")
        (refused,) = [
            r for t in entity.loom.turns() if t.cast_id == result.cast_id for r in t.observation.results if r.is_error
        ]
        assert "max_children_total" in str(refused.result)
        await forked.close()
    loaded = resume_entity(again, entity.loom, entity.id).entity
    assert (loaded.children.count, loaded.children.descendants) == (1, 2)
