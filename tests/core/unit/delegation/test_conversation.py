"""Delegation by tool calls: a turn ends where a child begins, and the parent goes on with the child's answer."""

from __future__ import annotations

import pytest

from cantrip_acp import Cantrip
from cantrip_acp.loom.query.history import casts_of
from tests.support.scripted_children import call, calls, done, of_root, parent, results, turns


async def test_the_parent_waits_and_gets_the_answer() -> None:
    spell = parent(call("call_agent", intent="six times seven"), done("ok"), children=[[done(42)]])
    result = await spell.cast("go")
    assert result.result == "ok"
    assert results(spell) == [42, 42, "ok"]


async def test_the_turn_that_spawns_is_written_before_the_childs_first() -> None:
    spell = parent(
        calls(("echo", {"text": "before"}), ("call_agent", {"intent": "work"}), ("echo", {"text": "after"})),
        done(),
        children=[[call("echo", text="inside"), done("worked")]],
    )
    await spell.cast("go")
    spawning, inner, last, rest, end = turns(spell)
    assert [t.sequence for t in (spawning, rest, end)] == [1, 2, 3]
    assert [t.sequence for t in (inner, last)] == [1, 2]
    assert spawning.gate_calls == ("echo", "call_agent")
    assert [r.result for r in spawning.observation.results] == ["before"]
    root_of_child = spell.loom.turn(inner.parent_id or "")
    assert (root_of_child.role, root_of_child.parent_id) == ("call", spawning.id)
    assert (rest.parent_id, rest.continues) == (spawning.id, spawning.id)
    assert [r.result for r in rest.observation.results] == ["worked", "after"]
    assert rest.gate_calls == ("echo",)
    assert not rest.utterance.tool_calls
    assert end.parent_id == rest.id
    assert end.continues is None


async def test_the_crystal_sees_one_utterance_with_one_observation() -> None:
    spell = parent(
        calls(("echo", {"text": "a"}), ("call_agent", {"intent": "work"}), ("call_agent", {"intent": "more"})),
        done(),
        children=[[done("one")], [done("two")]],
    )
    await spell.cast("go")
    assert spell.crystal.queries == 2
    shown = [(m.role, m.content) for m in spell.crystal.invocations[1].messages[1:]]
    assert shown == [("assistant", None), ("tool", "a"), ("tool", "one"), ("tool", "two")]
    spawned = of_root(spell)
    assert [t.continues for t in spawned] == [None, spawned[0].id, None]
    # A query is paid for once.
    assert [t.metadata.duration_ms > 0 for t in spawned] == [True] * 3


async def test_max_turns_counts_queries() -> None:
    two = calls(("call_agent", {"intent": "a"}), ("call_agent", {"intent": "b"}))
    spell = parent(two, done("in time"), children=[[done()], [done()]], wards=[{"max_turns": 2}])
    result = await spell.cast("go")
    assert (result.result, result.turns) == ("in time", 2)


async def test_a_child_knows_nothing_but_its_intent() -> None:
    spell = parent(
        call("echo", text="a secret of the parent"),
        call("call_agent", intent="look around", system_prompt="You are small."),
        done("small"),
        done(),
        prompt="You are large.",
    )
    # The child plays on in its parent's script, so its query is the third.
    await spell.cast("the parent's task")
    messages = spell.crystal.invocations[2].messages
    assert [(m.role, m.content) for m in messages] == [("system", "You are small."), ("user", "look around")]


async def test_a_call_is_inherited_where_none_is_given() -> None:
    spell = parent(call("call_agent", intent="look"), done("child"), done("parent"), prompt="You are one.")
    assert (await spell.cast("go")).result == "parent"
    assert spell.crystal.invocations[1].messages[0].content == "You are one."


async def test_data_is_read_page_by_page_and_is_in_no_prompt() -> None:
    text = "".join(f"line {n}\n" for n in range(1000))
    spell = parent(
        call("call_agent", intent="read", context=text),
        done(),
        children=[[call("read_context", limit=14), call("read_context", offset=14, limit=7), done("read")]],
    )
    await spell.cast("go")
    pages = results(spell)[:2]
    assert pages[0] == f"line 0\nline 1\n\n[characters 0 to 14 of {len(text):,}; go on with offset 14]"
    assert pages[1].startswith("line 2\n\n[characters 14 to 21")
    # The parent wrote the data into its own call; nothing else was ever sent.
    assert all("line 5" not in (m.content or "") for q in spell.crystal.invocations for m in q.messages)


async def test_large_data_is_not_in_the_loom() -> None:
    spell = parent(call("call_agent", intent="x", context="y" * 200_000), done(), children=[[done("x")]])
    await spell.cast("go")
    record = of_root(spell)[1].observation.results[0]
    assert record.args["context"] == {
        "kept_elsewhere": True,
        "bytes": 200_000,
        "sha256": record.args["context"]["sha256"],
        "begins": "y" * 200,
    }


async def test_the_older_names_are_understood() -> None:
    spell = parent(
        call("call_entity", intent="a"),
        call("call_entity_batch", requests=["b", {"intent": "c"}]),
        done(),
        gates=["done", "call_entity", "call_entity_batch"],
        children=[[done(n)] for n in range(3)],
    )
    await spell.cast("go")
    assert [t.gate_calls for t in of_root(spell)][:4] == [("call_agent",), (), ("call_agent_batch",), ()]
    assert [r.result for t in of_root(spell) for r in t.observation.results][:2] == [0, [1, 2]]


@pytest.mark.parametrize(
    ("child", "says"),
    [
        ([{"error": {"status": 400, "message": "the model is gone"}}], "the child failed: the model is gone"),
        ([call("echo", text="x")] * 20, "the child was cut off by max_turns. Stopped by max_turns after 3 turns."),
        ([], "the script has run out"),
    ],
)
async def test_what_a_child_fails_with_is_an_error_that_its_parent_survives(child: list, says: str) -> None:
    spell = parent(
        call("call_agent", intent="fail", wards=[{"max_turns": 3}]), done("survived"), children=[{"responses": child}]
    )
    result = await spell.cast("go")
    assert result.result == "survived"
    record = of_root(spell)[1].observation.results[0]
    assert record.is_error
    assert says in record.result


async def test_what_does_not_fit_spawns_nothing() -> None:
    spell = parent(
        calls(("call_agent", {}), ("call_agent", {"intent": " "}), ("call_agent", {"intent": "x", "depth": 1})), done()
    )
    await spell.cast("go")
    first = turns(spell)[0]
    assert [r.is_error for r in first.observation.results] == [True] * 3
    assert "missing required argument 'intent'" in first.observation.results[0].result
    assert "intent is required" in first.observation.results[1].result
    assert len(spell.loom.casts()) == 1


async def lived_turns(spell: Cantrip, turn_id: str) -> list[tuple[str, ...]]:
    return [tuple(r.gate for r in t.observation.results) for part in casts_of(spell.loom, turn_id) for t in part.turns]


async def test_what_an_entity_lived_through_is_its_own() -> None:
    spell = parent(
        calls(("echo", {"text": "a"}), ("call_agent", {"intent": "work"})),
        done(),
        children=[[call("echo", text="b"), done("worked")]],
    )
    await spell.cast("go")
    mine, child = of_root(spell)[-1], turns(spell)[2]
    assert await lived_turns(spell, mine.id) == [("echo", "call_agent"), ("done",)]
    assert await lived_turns(spell, child.id) == [("echo",), ("done",)]
    # And a thread is a path from the root all the same (LOOM-12).
    assert next(t.id for t in spell.loom.thread(child.id).acted) == turns(spell)[0].id
