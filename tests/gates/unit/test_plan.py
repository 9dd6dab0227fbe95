"""The plan gate: what an entity means to do reaches whoever watches, masked, whole, and only when it was taken."""

from __future__ import annotations

from typing import Any

import pytest

from cantrip_acp import Call, Cantrip, Circle, ScriptedCrystal
from cantrip_acp.text.redaction import shared
from cantrip_acp.types.events import GateFinished, PlanChanged, PlanEntry
from cantrip_acp.types.records import GateRecord

DONE = {"tool_calls": [{"gate": "done", "args": {"answer": "ok"}}]}


async def planned(*calls: Any) -> tuple[list[tuple[PlanEntry, ...]], list[GateRecord]]:
    responses = [{"tool_calls": [{"gate": "plan", "args": args}]} for args in calls]
    cantrip = Cantrip(
        ScriptedCrystal([*responses, DONE]), Call(), Circle(gates=["done", "plan"], wards=[{"max_turns": 20}])
    )
    plans, finished = [], []
    async with cantrip.cast_stream("work") as stream:
        async for event in stream:
            if isinstance(event, PlanChanged):
                plans.append(event.entries)
            elif isinstance(event, GateFinished) and event.record.gate == "plan":
                finished.append(event.record)
    return plans, finished


async def test_the_whole_plan_each_time() -> None:
    first = [{"content": "Read", "status": "in_progress", "priority": "high"}, {"content": " Mend\n it "}]
    second = [{"content": "Read", "status": "completed"}]
    plans, finished = await planned({"entries": first}, {"entries": second}, {"entries": []})
    assert plans == [
        (PlanEntry("Read", "high", "in_progress"), PlanEntry("Mend it", "medium", "pending")),
        (PlanEntry("Read", "medium", "completed"),),
        (),
    ]
    assert [f.result for f in finished] == ["plan: 0 of 2 done; now: Read", "plan: 1 of 1 done", "plan: empty"]


@pytest.mark.parametrize(
    "args",
    [
        {},
        {"entries": "read"},
        {"entries": [{"content": ""}]},
        {"entries": [{"content": " \n"}]},
        {"entries": [{"content": "x", "status": "done"}]},
        {"entries": [{"content": "x", "priority": "urgent"}]},
        {"entries": [{"content": "x", "note": "y"}]},
        {"entries": [{"content": "x"}] * 101},
        {"entries": [{"content": "x" * 2_001}]},
    ],
)
async def test_what_is_no_plan_changes_none(args: Any) -> None:
    plans, (finished,) = await planned(args)
    assert finished.is_error
    assert not plans


async def test_a_secret_in_a_plan_is_masked() -> None:
    shared().add("sk-plan-secret-000111222333")
    plans, _ = await planned({"entries": [{"content": "Use sk-plan-secret-000111222333"}]})
    assert "secret" not in plans[0][0].content
