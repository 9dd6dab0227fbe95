"""A parent's end is its children's (COMP-9): at once, with what they had done in the loom, and nothing left running."""

from __future__ import annotations

from collections import Counter

import anyio
import pytest

from cantrip_acp import Cantrip
from tests.support.scripted_children import call, calls, done, ends, of_root, parent, turns
from tests.support.waiting import wait_until

SLOW = {"delay_ms": 60_000, "content": "too late"}


async def has(spell: Cantrip, *results: str) -> None:
    """Wait until gates have given these results."""
    await wait_until(lambda: {*results} <= {r.result for t in turns(spell) for r in t.observation.results})


async def cancelled_with(spell: Cantrip, *results: str) -> None:
    """Cancel a cast when its gates have given these results."""
    async with spell.invoke() as entity, anyio.create_task_group() as group:
        group.start_soon(entity.cast, "go")
        await has(spell, *results)
        entity.cancel()


async def test_children_are_cut_off_with_their_parent() -> None:
    spell = parent(
        call("call_agent_batch", requests=["a", "b"]),
        children=[[call("echo", text="x"), SLOW], [call("echo", text="y"), SLOW]],
    )
    await cancelled_with(spell, "x", "y")
    assert [(e.reason, e.truncated) for e in ends(spell)] == [
        ("parent_terminated", True),
        ("parent_terminated", True),
        ("cancelled", True),
    ]
    spawning, one, two, rest = turns(spell)
    assert {r.result for t in (one, two) for r in t.observation.results} == {"x", "y"}
    assert (rest.continues, rest.truncated, rest.reason) == (spawning.id, True, "cancelled")
    assert rest.observation.results[0].is_error
    assert "interrupted" in rest.observation.results[0].result


async def test_the_turn_that_a_child_was_in_is_kept() -> None:
    spell = parent(
        call("call_agent", intent="a"),
        wards=[{"max_depth": 2}],
        children=[
            {
                "responses": [calls(("echo", {"text": "kept"}), ("call_agent", {"intent": "b"}))],
                "children": [[call("echo", text="deep"), SLOW]],
            }
        ],
    )
    await cancelled_with(spell, "deep")
    assert Counter(e.reason for e in ends(spell)) == {"parent_terminated": 2, "cancelled": 1}
    child = [t for t in turns(spell) if t.entity_id == turns(spell)[1].entity_id]
    assert [(t.truncated, t.reason) for t in child] == [(False, None), (True, "parent_terminated")]
    # What is told of an end comes from below: a child's is written before its parent's.
    assert [e.entity_id for e in ends(spell)][-1] == turns(spell)[0].entity_id


@pytest.mark.parametrize(
    ("ward", "reason"),
    [
        ({"max_seconds": 2}, "max_seconds"),
        ({"max_total_tokens": 25}, "max_tokens"),
        ({"max_cost_usd": 0.25}, "max_cost"),
    ],
)
async def test_a_roots_wards_hold_for_the_whole_tree(ward: dict, reason: str) -> None:
    spell = parent(
        call("call_agent", intent="a"),
        usage={"prompt_tokens": 10, "completion_tokens": 0, "cost": 0.1},
        wards=[ward],
        children=[
            {
                "responses": [call("echo", text="1"), call("echo", text="2"), SLOW, done()],
                "usage": {"prompt_tokens": 10, "cost": 0.1},
            }
        ],
    )
    result = await spell.cast("go")
    assert (result.reason, result.truncated) == (reason, True)
    assert [e.reason for e in ends(spell)] == ["parent_terminated", reason]
    assert len(turns(spell)) == 4


async def test_a_childs_own_wards_end_the_child_alone() -> None:
    spell = parent(
        call("call_agent", intent="a", wards=[{"max_seconds": 0.1}]), done("went on"), children=[[SLOW], [done()]]
    )
    assert (await spell.cast("go")).result == "went on"
    assert [e.reason for e in ends(spell)] == ["max_seconds", "done"]
    assert "the child was cut off by max_seconds" in of_root(spell)[1].observation.results[0].result


async def test_a_closed_parent_takes_its_children_along() -> None:
    spell = parent(call("call_agent", intent="a"), children=[[call("echo", text="x"), SLOW]])
    async with anyio.create_task_group() as group:
        group.start_soon(spell.cast, "go")
        await has(spell, "x")
        group.cancel_scope.cancel()
    assert [e.reason for e in ends(spell)] == ["parent_terminated", "cancelled"]
    assert len(turns(spell)) == 3
