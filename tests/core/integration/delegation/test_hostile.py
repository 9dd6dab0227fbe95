"""The tests of `tests/core/unit/delegation/test_hostile.py` that start processes."""

from __future__ import annotations

import time

from cantrip_acp import Cantrip, Circle, ScriptedCrystal
from tests.support.scripted_children import GATES, ends


async def test_a_cell_that_spawns_from_many_threads() -> None:
    swarm = (
        "import threading\n"
        "def spawn():\n    while True:\n        try:\n            call_agent('x', medium='conversation')\n"
        "        except GateError:\n            pass\n"
        "for _ in range(100): threading.Thread(target=spawn, daemon=True).start()\n"
        "import time\ntime.sleep(60)"
    )
    crystal = ScriptedCrystal([{"code": swarm}], children=[[{"content": "x"}]] * 3_000)
    wards = [{"max_turns": 3}, {"max_seconds": 1.5}, {"max_children_total": 3_000}]
    spell = Cantrip(crystal, circle=Circle("code", GATES, wards))
    began = time.perf_counter()
    result = await spell.cast("go")
    assert result.reason == "max_seconds"
    assert time.perf_counter() - began < 30
    assert len(ends(spell)) == len(spell.loom.casts())
