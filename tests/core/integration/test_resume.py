"""The tests of `tests/core/unit/test_resume.py` that start processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cantrip_acp import Call, Cantrip, Circle, Loom, ScriptedCrystal
from tests.core.unit.test_resume import check_every_turn, queries
from tests.support.fixtures.core import INSTANT, done
from tests.training.integration.test_export_mediums import BASH, CODE

pytestmark = pytest.mark.anyio


@pytest.mark.sandbox
@pytest.mark.parametrize(("medium", "script"), [("bash", BASH), ("code", [*CODE[:1], {"code": "x + 1"}, *CODE[2:]])])
async def test_every_turn_of_programs(medium: str, script: list[dict[str, Any]], tmp_path: Path) -> None:
    def again(*responses: dict[str, Any]) -> Cantrip:
        circle = Circle(medium, ["done", "echo"], [{"max_turns": 8}], workspace=tmp_path)
        crystal = ScriptedCrystal(responses or [done("again")], record_inputs=True)
        return Cantrip(crystal, Call(system_prompt="Work."), circle, loom=loom, retry=INSTANT)

    with Loom.open(tmp_path / "x.loom.jsonl") as loom:
        original = again(*script)
        result = await original.cast("go")
        assert await check_every_turn(loom, original, result.entity_id, again) == len(script)


@pytest.mark.sandbox
@pytest.mark.parametrize("other", [{}, {"call": {"system_prompt": "Changed."}}])
async def test_a_crystal_that_writes_its_calls_as_text_is_told_so_again(other: dict[str, Any]) -> None:
    block = "```python\n1 + 1\n```"

    def made(*said: str, **more: Any) -> Cantrip:
        crystal = ScriptedCrystal([{"content": text} for text in said], tools="text", record_inputs=True)
        return Cantrip(crystal, circle=Circle("code", ["done"], {"max_turns": 9}), loom=Loom.memory(), **more)

    original = made(f"{block}\n{block}", f"Now:\n{block}", "Done.")
    await original.cast("go")
    entity_id = next(t.entity_id for t in original.loom.turns() if t.role == "crystal")
    if not other:
        assert await check_every_turn(original.loom, original, entity_id, lambda: made("again")) == 3
    for turn in queries(original.loom, entity_id)[:2]:
        again = made("again", **other)
        await again.resume(turn.id, loom=original.loom, state="none")
        told = [m.content or "" for m in again.crystal.invocations[0].messages if m.kind == "capabilities"]  # type: ignore[attr-defined]
        assert ["exactly one ```python block" in text for text in told] == [True]
