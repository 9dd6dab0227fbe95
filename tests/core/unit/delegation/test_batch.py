"""Children beside each other: concurrent within the ward, in order, each with a fate of its own (COMP-3, COMP-8)."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest

from cantrip_acp import Cantrip, Circle
from cantrip_acp.crystals.contract import Emit, Query, Response
from cantrip_acp.types.messages import ToolCall
from tests.support.scripted_children import GATES, call, done, of_root, parent, turns


class Gauge:
    """A crystal whose children tell how many of them run at once, and end in an order of their own."""

    name = model = "gauge"
    context_window = None

    def __init__(self, requests: list[Any], *, delay: float = 0.02) -> None:
        self.requests = requests
        self.delay = delay
        self.running = self.most = self.queries = 0

    def child(self, number: int, depth: int) -> Gauge:
        return self

    async def query(self, query: Query, emit: Emit) -> Response:
        self.queries += 1
        if query.intent == "go":
            if self.requests:
                requests, self.requests = self.requests, []
                args = {"requests": requests}
                return Response(tool_calls=(ToolCall("a", "call_agent_batch", json.dumps(args)),))
            return Response(content="over")
        self.running += 1
        self.most = max(self.most, self.running)
        # The later a child was asked for, the sooner it ends.
        await anyio.sleep(self.delay / (1 + int(query.intent)))
        self.running -= 1
        return Response(content=query.intent)


@pytest.mark.parametrize(("most", "count", "seen"), [(8, 20, 8), (3, 7, 3), (1, 4, 1), (8, 2, 2)])
async def test_no_more_run_at_once_than_the_ward_allows(most: int, count: int, seen: int) -> None:
    crystal = Gauge([{"intent": str(n)} for n in range(count)])
    wards = [{"max_turns": 4}, {"max_concurrent_children": most}]
    spell = Cantrip(crystal, circle=Circle(gates=GATES, wards=wards))
    assert (await spell.cast("go")).result == "over"
    assert crystal.most == seen
    assert of_root(spell)[1].observation.results[0].result == [str(n) for n in range(count)]


async def test_one_childs_failure_is_its_places_error() -> None:
    spell = parent(
        call("call_agent_batch", requests=["a", "b", "c"]),
        done("went on"),
        children=[[done("A")], [{"error": {"status": 400, "message": "no B today"}}], [done({"c": [1]})]],
    )
    assert (await spell.cast("go")).result == "went on"
    record = of_root(spell)[1].observation.results[0]
    assert not record.is_error
    assert record.result == ["A", {"is_error": True, "error": "the child failed: no B today"}, {"c": [1]}]


async def test_a_list_alone_is_a_batch() -> None:
    spell = parent(
        {"tool_calls": [{"gate": "call_agent_batch", "args": '["a", {"intent": "b"}]'}]},
        done(),
        children=[[done(1)], [done(2)]],
    )
    await spell.cast("go")
    assert of_root(spell)[1].observation.results[0].result == [1, 2]


async def test_all_of_a_batch_hang_on_one_turn() -> None:
    spell = parent(call("call_agent_batch", requests=["a", "b", "c"]), done(), children=[[done(n)] for n in range(3)])
    await spell.cast("go")
    spawning = of_root(spell)[0]
    roots = [spell.loom.turn(i) for i in spell.loom.children(spawning.id)]
    assert [t.role for t in roots] == ["call", "call", "call", "crystal"]
    assert roots[3].continues == spawning.id


async def test_a_batch_is_admitted_as_a_whole() -> None:
    spell = parent(
        call("call_agent_batch", requests=[{"intent": "a"}, {"intent": "b", "gates": ["write_file"]}]),
        call("call_agent_batch", requests=[]),
        done(),
        children=[[done(1)]],
    )
    await spell.cast("go")
    refused, empty = (r for t in turns(spell) for r in t.observation.results if r.gate == "call_agent_batch")
    assert refused.result.startswith("request 1: cannot grant gate 'write_file'")
    assert empty.result == []
    assert len(spell.loom.casts()) == 1
