"""Threads of delegated children keep their place: told what spawned them, apart or within their parent's."""

from __future__ import annotations

from typing import Any

import pytest

from cantrip_acp import Call, Cantrip, Circle, Loom, ScriptedCrystal
from cantrip_acp.training.export.selection import Source
from tests.support.export_looms import saw
from tests.support.fixtures.core import INSTANT, done, echo
from tests.training.unit.test_export_formats import ALL, exported, rows

pytestmark = pytest.mark.anyio


async def delegated() -> tuple[Loom, ScriptedCrystal]:
    """A parent that asks two children in one utterance, and one more later."""
    loom = Loom.memory()
    crystal = ScriptedCrystal(
        [
            {
                "tool_calls": [
                    {"gate": "call_agent", "args": {"intent": "first part"}},
                    {"gate": "call_agent", "args": {"intent": "second part"}},
                ]
            },
            {"tool_calls": [{"gate": "call_agent", "args": {"intent": "third part"}}]},
            done("all done"),
        ],
        children=[{"responses": [echo(f"child {n}"), done(f"part {n}")]} for n in range(3)],
        record_inputs=True,
    )
    circle = Circle(gates=["done", "echo", "call_agent"], wards=[{"max_turns": 5}, {"max_depth": 1}])
    await Cantrip(crystal, Call(system_prompt="You lead."), circle, loom=loom, retry=INSTANT).cast("the whole")
    return loom, crystal


async def test_parents_and_children_saw_what_they_were_sent() -> None:
    loom, crystal = await delegated()
    (parent,) = [e for e in Source(loom).episodes(marked=True) if e.parent_turn is None]
    told = [messages for _, messages, _ in saw(loom, parent.leaf)]
    assert told == [list(q.messages) for q in crystal.invocations]


async def test_children_are_threads_of_their_own_with_their_parents_turn() -> None:
    loom, _ = await delegated()
    found = rows(loom, "trl-sft")
    children = [r for r in found if r["cantrip"]["parent_turn"] is not None]
    assert len(found) == 4
    assert sorted(m["content"] for r in children for m in r["messages"] if m["role"] == "user") == [
        "first part",
        "second part",
        "third part",
    ]
    spoken = {t.id for t in loom.turns() if t.role == "crystal"}
    assert {r["cantrip"]["parent_turn"] for r in children} <= spoken
    assert len(rows(loom, "trl-sft", children=False)) == 1


async def test_a_trace_holds_its_children_as_branches() -> None:
    loom, _ = await delegated()
    found, source = exported(loom, "verifiers")
    assert len(found) == 1
    assert source.report.threads == 4
    nodes: list[dict[str, Any]] = found[0]["traces"][0]["nodes"]
    kinds = [(n["sampled"], link["type"], link["node"]) for n in nodes for link in n.get("semantic_parents", ())]
    calls = [k for k in kinds if k[1] == "subagent_call"]
    returns = [k for k in kinds if k[1] == "subagent_return"]
    assert len(calls) == len(returns) == 3
    assert all(nodes[k[2]]["sampled"] for k in kinds)
    assert found[0]["traces"][0]["root_reply"] == "all done"
    assert len([n for n in nodes if n["sampled"]]) == 9
    assert rows(loom, "verifiers", children=False)[0]["traces"][0]["metrics"]["turns"] == 3


async def test_a_childs_spans_hang_on_the_turn_that_spawned_it() -> None:
    loom, _ = await delegated()
    spans = [s for r in rows(loom, "otlp") for x in r["resourceSpans"] for s in x["scopeSpans"][0]["spans"]]
    by_id = {s["spanId"]: s for s in spans}
    casts = [s for s in spans if s["name"] == "invoke_agent"]
    assert len(casts) == 4
    below = [by_id[s["parentSpanId"]]["name"] for s in casts if "parentSpanId" in s]
    assert below == ["chat scripted"] * 3
    assert len({s["traceId"] for s in spans}) == 1


@pytest.mark.parametrize("name", [n for n in ALL if n != "trl-preference"])
async def test_every_format_takes_them(name: str) -> None:
    loom, _ = await delegated()
    _, source = exported(loom, name)
    assert source.report.threads == 4
    assert not source.report.left_out


@pytest.mark.parametrize("name", ["verifiers", "atif"])
async def test_a_fork_of_a_child_has_a_row_of_its_own(name: str) -> None:
    loom, _ = await delegated()
    child = next(e for e in Source(loom).episodes(marked=True) if e.intent == "second part")
    first = Source(loom).outline.own_path(child.leaf)[1]
    circle = Circle(gates=["done", "echo"], wards=[{"max_turns": 5}])
    cantrip = Cantrip(ScriptedCrystal([echo("again"), done("another part")]), circle=circle, loom=loom, retry=INSTANT)
    async with await cantrip.fork(first, loom=loom, state="none") as entity:
        await entity.cast("try it again")
    found, source = exported(loom, name)
    assert len(found) == 2
    assert source.report.left_out == {}
    own = [row.get("trajectory_id") or row["traces"][0]["id"] for row in found]
    assert own[1] == loom.leaves()[-1]


async def test_the_rejected_answer_of_a_child_is_an_episode() -> None:
    loom = Loom.memory()
    crystal = ScriptedCrystal(
        [{"tool_calls": [{"gate": "call_agent", "args": {"intent": "a part"}}]}, done("all done")],
        children=[{"responses": [{"content": "I would rather talk."}, done("part")]}],
    )
    circle = Circle(gates=["done", "call_agent"], wards=[{"max_turns": 5}, {"max_depth": 1}])
    await Cantrip(crystal, Call(tool_choice="required"), circle, loom=loom, retry=INSTANT).cast("the whole")
    whole, lost = (row["traces"][0] for row in rows(loom, "verifiers"))
    assert sorted((whole["root_reply"], lost["root_reply"])) == ["I would rather talk.", "all done"]
    trajectories = [each for row in rows(loom, "art") for each in row["trajectories"]]
    assert [each["metadata"]["reason"] for each in trajectories].count("no_call") == 1
