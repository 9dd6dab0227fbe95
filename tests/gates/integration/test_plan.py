"""The tests of `tests/gates/unit/test_plan.py` that start processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from cantrip_acp import Call, Cantrip, Circle, ScriptedCrystal
from cantrip_acp.types.events import PlanChanged, PlanEntry


@pytest.mark.sandbox
async def test_from_a_cell(tmp_path: Path) -> None:
    cantrip = Cantrip(
        ScriptedCrystal([{"code": "print(plan([{'content': 'Look'}]))\ndone('ok')"}]),
        Call(),
        Circle("code", ["done", "plan"], [{"max_turns": 3}], workspace=tmp_path),
    )
    async with cantrip.cast_stream("work") as stream:
        plans = [event.entries async for event in stream if isinstance(event, PlanChanged)]
    assert plans == [(PlanEntry("Look"),)]
