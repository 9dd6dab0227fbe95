"""What readers hear of children, what a tree costs, and how its traces nest."""

from __future__ import annotations

from typing import Any

import anyio
import msgspec

from cantrip_acp import Cantrip
from cantrip_acp.types import events
from cantrip_acp.types.usage import Usage
from tests.support.scripted_children import call, calls, done, parent, turns


async def heard(spell: Cantrip) -> list[events.Event]:
    async with spell.cast_stream("go") as stream:
        return [event async for event in stream]


def family() -> Cantrip:
    down = calls(("echo", {"text": "x"}), ("call_agent", {"intent": "deeper"}))
    return parent(
        call("call_agent_batch", requests=["a", "b"]),
        done(),
        wards=[{"max_depth": 2}],
        children=[{"responses": [down, done("A")], "children": [[done("deep")]]}, [{"chunks": ["B", "!"]}]],
    )


async def test_a_childs_events_are_marked_with_their_place() -> None:
    spell = family()
    seen = await heard(spell)
    called = next(e for e in seen if isinstance(e, events.GateCalled))
    children = [e for e in seen if isinstance(e, events.ChildEvent)]
    assert {e.depth for e in children} == {1, 2}
    assert {e.index for e in children if e.depth == 1} == {0, 1}
    for event in children:
        assert event.path[-1] == event.entity_id == event.inner.entity_id
        assert len(event.path) == len(event.calls) == event.depth
        assert event.calls[0] == called.call_id
        assert event.call_id == event.calls[-1]
        assert not isinstance(event.inner, events.ChildEvent)
    deep = next(e for e in children if e.depth == 2)
    asked = next(e.inner for e in children if isinstance(e.inner, events.GateCalled) and e.inner.gate == "call_agent")
    assert deep.calls == (called.call_id, asked.call_id)
    # Whole casts, from their start to their result, between the call and its result.
    kinds = [type(e.inner).__name__ for e in children if e.index == 1 and e.depth == 1]
    assert kinds == ["CastStarted", "QueryStarted", "Text", "Text", "UsageReported", "TurnEnded", "CastEnded"]
    ended = next(i for i, e in enumerate(seen) if isinstance(e, events.GateFinished))
    assert all(i < ended for i, e in enumerate(seen) if isinstance(e, events.ChildEvent))


async def test_a_turn_that_was_divided_is_told_part_by_part() -> None:
    spell = family()
    own = [e for e in await heard(spell) if not isinstance(e, events.ChildEvent)]
    told = [e.turn.id for e in own if isinstance(e, events.TurnEnded)]
    root = turns(spell)[0].entity_id
    assert told == [t.id for t in turns(spell) if t.entity_id == root]
    assert sum(isinstance(e, events.UsageReported) for e in own) == 2


async def test_events_as_json() -> None:
    lines = [events.as_json(e) for e in await heard(family())]
    child = next(line for line in lines if line["event"] == "child" and line["inner"]["event"] == "turn")
    assert set(child) == {"event", "entity_id", "cast_id", "depth", "path", "calls", "call_id", "index", "inner"}
    assert child["inner"]["entity_id"] == child["entity_id"]
    assert msgspec.json.encode(lines)


async def test_a_slow_reader_slows_a_child() -> None:
    spell = parent(
        call("call_agent", intent="talk"), done(), children=[[{"chunks": [str(n) for n in range(200)]}, done()]]
    )
    async with spell.invoke() as entity, entity.stream("go", buffer=4) as stream:
        iterator = stream.__aiter__()
        await iterator.__anext__()
        await anyio.sleep(0.1)
        # The child waits in the middle of its first words: nothing of it was written.
        assert len(turns(spell)) <= 1
        async for _ in iterator:
            pass
        assert stream.result.result == "ok"


async def test_without_readers_nothing_is_built() -> None:
    spell = family()
    async with spell.invoke() as entity:
        await entity.cast("go")
        assert not entity.hub.active


async def test_usage_and_cost_roll_up() -> None:
    used: dict[str, Any] = {"prompt_tokens": 10, "completion_tokens": 1, "cost": 0.5}
    spell = parent(
        call("call_agent_batch", requests=["a", "b"]),
        done(),
        usage=used,
        wards=[{"max_depth": 2}],
        children=[
            {"responses": [call("call_agent", intent="c"), done()], "usage": used, "children": [[done()]]},
            {"responses": [done()], "usage": used},
        ],
    )
    async with spell.invoke() as entity:
        result = await entity.cast("go")
        assert entity.usage == result.usage
    # Two queries of the root, two of the first child, one of the second; the grandchild's script says nothing.
    assert result.usage == Usage(50, 5, cost=2.5)
    assert result.own_usage == Usage(20, 2, cost=1.0)
    assert result.children_usage == Usage(30, 3, cost=1.5)
    ends = [end.usage for _, end in spell.loom.casts() if end is not None]
    assert [end["total_tokens"] for end in ends] == [55, 22, 11, 0]
    assert [end["children"]["total_tokens"] if "children" in end else None for end in ends] == [33, 0, None, None]
    by_turns = sum(t.metadata.tokens_prompt + t.metadata.tokens_completion for t in turns(spell))
    assert by_turns == 55


async def test_one_trace_for_the_whole_tree() -> None:
    spell = family()
    result = await spell.cast("go")
    assert {t.metadata.trace_id for t in turns(spell)} == {result.trace_id}
    starts = [start for start, _ in spell.loom.casts()]
    assert [s.parent_turn_id is None for s in starts] == [True, False, False, False]
    assert all(s.parent_turn_id in spell.loom for s in starts[1:])
