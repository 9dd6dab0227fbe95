"""Forks, replays and sessions that are opened again, of entities that had children (LOOM-4, LOOM-8)."""

from __future__ import annotations

from pathlib import Path

import pytest

from cantrip_acp import Cantrip, Loom
from cantrip_acp.core.forking.replay import replay
from cantrip_acp.core.forking.resume import resume_entity
from cantrip_acp.types.records import ForkRecord
from tests.support.scripted_children import call, calls, done, of_root, parent, turns

COUNTS = {"code": "seen = [call_agent('one')]\nprint('first', seen)\nseen += call_agent_batch(['two', 'three'])\nseen"}


def counting(**more: object) -> Cantrip:
    return parent(
        COUNTS,
        {"code": "done(sum(seen))"},
        {"code": "done(sum(seen))"},
        medium="code",
        children=[[{"code": f"done({n})"}] for n in (1, 2, 3)] * 2,
        **more,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("recorded", [True, False])
async def test_a_replay_answers_what_children_said_or_lets_them_live_again(recorded: bool) -> None:
    spell = counting()
    assert (await spell.cast("go")).result == 6
    asked = spell.crystal.queries
    found = await replay(spell, spell.loom, of_root(spell)[-1].id, recorded_gates=recorded)
    assert (found.turns, found.divergence) == (2, None)
    assert spell.crystal.queries == asked


async def test_a_fork_by_replay_runs_no_child_again() -> None:
    spell = counting()
    await spell.cast("go")
    casts = len(spell.loom.casts())
    fork = await spell.fork(of_root(spell)[2].id, state="replay")
    async with fork:
        assert len(spell.loom.casts()) == casts
        made = next(r for r in spell.loom.records() if isinstance(r, ForkRecord))
        assert (made.strategy, made.missing) == ("replay", ())
        assert (await fork.cast("and again")).result == 6


async def test_a_fork_from_the_turn_that_spawned_stands_where_it_ended() -> None:
    spell = parent(
        {"code": "before = 1\nafter = call_agent('x')\nbefore = 2"},
        done(),
        {"code": "done([before, 'after' in globals()])"},
        medium="code",
        children=[[done("x")]],
    )
    await spell.cast("go")
    async with await spell.fork(of_root(spell)[0].id, state="auto") as fork:
        assert "a child was spawned here" in (fork.context.messages[-1].content or "")
        assert (await fork.cast("look")).result == [1, False]


async def test_a_fork_from_a_turn_of_a_conversation_that_spawned() -> None:
    spell = parent(
        calls(("echo", {"text": "a"}), ("call_agent", {"intent": "x"}), ("echo", {"text": "b"})),
        done(),
        done("on"),
        children=[[done("x")]],
    )
    await spell.cast("go")
    async with await spell.fork(of_root(spell)[0].id, state="auto") as fork:
        shown = [m.content for m in fork.context.messages[-3:]]
        assert shown[0] == "a"
        assert "what came of it, and what followed, is not known" in (shown[1] or "")
        assert (await fork.cast("go on")).result == "on"


async def test_a_childs_turn_can_be_forked_too() -> None:
    spell = parent(
        call("call_agent", intent="the child's task"), done(), done("mine"), children=[[call("echo", text="x"), done()]]
    )
    await spell.cast("the parent's task")
    inner = turns(spell)[1]
    async with await spell.fork(inner.id) as fork:
        told = [m.content for m in fork.context.messages if m.role == "user"]
        assert told == ["the child's task"]
        assert (await fork.cast("now you")).result == "mine"
        assert spell.loom.turn(fork.last_turn).parent_id == inner.id


async def test_a_session_that_is_opened_again_goes_on_with_its_children_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.loom.jsonl"
    used = {"prompt_tokens": 10}

    def made(loom: Loom) -> Cantrip:
        ask = call("call_agent", intent="x")
        children = [{"responses": [done(n)], "usage": used} for n in range(3)]
        wards = [{"max_children_total": 3}]
        return parent(ask, done(), ask, ask, ask, done(), loom=loom, usage=used, children=children, wards=wards)

    with Loom.open(path) as loom:
        async with made(loom).invoke() as entity:
            first = await entity.cast("go")
            name = entity.id
    with Loom.open(path) as loom:
        again = resume_entity(made(loom), loom, name).entity
        async with again:
            assert again.usage == first.usage
            await again.cast("go on")
            said = [r for t in loom.turns() if t.entity_id == name for r in t.observation.results]
        assert [r.result for r in said if r.gate == "call_agent"][:3] == [0, 1, 2]
        assert "max_children_total" in next(r.result for r in said if r.is_error)
        # Only roots of trees are roots of the loom: a child's call stands below the turn that spawned it.
        assert [t.parent_id is None for t in loom.turns() if t.role == "call"] == [True, False, False, False]
