"""An entity that spawns as fast as it can: the host goes on, wards cut it off, and the account adds up."""

from __future__ import annotations

import time
from typing import Any

import anyio
import pytest

from cantrip_acp import Cantrip, Circle, ScriptedCrystal
from tests.support.scripted_children import GATES, ends, turns

ENDLESS = {"tool_calls": [{"gate": "call_agent_batch", "args": {"requests": ["go"] * 200}}], "repeat": True}
SPENDS = {"prompt_tokens": 1, "completion_tokens": 0}


class Swarm:
    """Every entity of it spawns 200 others with every word, as deep as it may."""

    name = model = "swarm"
    context_window = None

    def __init__(self) -> None:
        self.script = ScriptedCrystal([ENDLESS], usage=SPENDS)

    def child(self, number: int, depth: int) -> Swarm:
        return self

    async def query(self, query: Any, emit: Any) -> Any:
        return await self.script.query(query, emit)


@pytest.mark.parametrize(
    ("ward", "reason"),
    [({"max_total_tokens": 150}, "max_tokens"), ({"max_seconds": 1.5}, "max_seconds"), ({"max_turns": 1}, "max_turns")],
)
async def test_a_swarm_is_cut_off(ward: dict[str, Any], reason: str) -> None:
    wards = [{"max_turns": 1000}, {"max_depth": 4}, {"max_children_total": 400}, ward]
    spell = Cantrip(Swarm(), circle=Circle(gates=GATES, wards=wards))
    lags = []
    async with anyio.create_task_group() as group:

        async def tick() -> None:
            while True:
                # Processor time of this thread: other processes of the machine do not count.
                began = time.thread_time()
                await anyio.sleep(0.01)
                lags.append(time.thread_time() - began)

        group.start_soon(tick)
        with anyio.fail_after(60):
            result = await spell.cast("go")
        group.cancel_scope.cancel()
    assert result.reason == reason
    # Others have had their turn all along.
    assert max(lags) < 2
    # Every turn that was paid for is in the loom, and every token of a turn in the account.
    assert result.usage.total_tokens >= sum(t.metadata.tokens_prompt for t in turns(spell)) > 0
    born = [start for start, _ in spell.loom.casts()]
    assert len(born) <= 401
    assert len(ends(spell)) == len(born)


async def test_the_account_of_a_swarm_is_kept_to_the_child() -> None:
    wards = [{"max_turns": 2}, {"max_depth": 2}, {"max_children_total": 250}]
    spell = Cantrip(Swarm(), circle=Circle(gates=GATES, wards=wards))
    result = await spell.cast("go")
    children = [start for start, _ in spell.loom.casts() if start.parent_turn_id is not None]
    # 200 at first; none of them can have 200 of its own, nor can the root once more.
    assert len(children) == 200
    assert result.usage.total_tokens == sum(t.metadata.tokens_prompt for t in turns(spell)) == 2 + 200 * 2
    refused = [r for t in turns(spell) for r in t.observation.results if r.is_error]
    assert {(r.annotations or {}).get("child_refused") for r in refused} >= {"max_children_total"}  # type: ignore[union-attr]
