"""How model requests led to each other, as a harness that trains an entity reads it (`ai.prime.acp/semantic-edges-v1`)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cantrip_acp import Cantrip, Circle, ScriptedCrystal
from cantrip_acp.core.casting.request_graph import RequestGraph
from cantrip_acp.core.folding.policy import Folding
from tests.support.acp_client import RawClient

KEY = "ai.prime.acp/semantic-edges-v1"
DONE = {"tool_calls": [{"gate": "done", "args": {"answer": "ok"}}]}
ECHO = {"tool_calls": [{"gate": "echo", "args": {"text": "x"}}]}


def call(gate: str, **args: Any) -> dict[str, Any]:
    return {"tool_calls": [{"gate": gate, "args": args}]}


def drawn(edges: list[dict[str, str]]) -> list[tuple[int, int, str]]:
    """Edges with requests numbered by first appearance."""
    numbers: dict[str, int] = {}
    for edge in edges:
        for key in ("source_request_id", "target_request_id"):
            numbers.setdefault(edge[key], len(numbers))
    return [(numbers[e["source_request_id"]], numbers[e["target_request_id"]], e["type"]) for e in edges]


@pytest.mark.parametrize("asked", ["initialize", "session"])
def test_a_reply_has_the_edges_that_its_prompt_made(start: Callable[..., RawClient], folder: Path, asked: str) -> None:
    agent = start(
        [ECHO, call("call_agent", intent="help"), DONE, DONE],
        gates=["echo", "done", "call_agent"],
        crystal={"children": [[ECHO, DONE]]},
        capabilities={"_meta": {KEY: True}} if asked == "initialize" else None,
    )
    session = agent.session(folder, **({"_meta": {KEY: True}} if asked == "session" else {}))
    first = agent.prompt(session)["_meta"][KEY]
    assert set(first) == {"edges"}
    edges = first["edges"]
    assert all(set(edge) == {"source_request_id", "target_request_id", "type"} for edge in edges)
    # 0, 1: the parent's first two; 2, 3: the child's; 4: the parent's third.
    assert drawn(edges) == [
        (0, 1, "continuation"),
        (1, 2, "subagent_call"),
        (2, 3, "continuation"),
        (1, 4, "continuation"),
        (3, 4, "subagent_return"),
    ]
    second = agent.prompt(session)["_meta"][KEY]["edges"]
    assert drawn(second) == [(0, 1, "continuation")]
    assert second[0]["source_request_id"] == edges[-1]["target_request_id"]


def test_who_does_not_ask_is_told_nothing(start: Callable[..., RawClient], folder: Path) -> None:
    agent = start([ECHO, DONE])
    assert KEY not in agent.prompt(agent.session(folder))["_meta"]


def test_another_recipe_keeps_what_was_asked(start: Callable[..., RawClient], folder: Path, recipe: Any) -> None:
    other = recipe([DONE, ECHO, DONE])
    agent = start([DONE], capabilities={"_meta": {KEY: True}})
    session = agent.session(folder)
    agent.prompt(session)
    (folder / ".cantrip").mkdir()
    (folder / ".cantrip" / "other.cantrip.yaml").write_text(Path(other).read_text())
    chosen = {"sessionId": session, "configId": "recipe", "value": "other"}
    agent.call("session/set_config_option", chosen)
    assert drawn(agent.prompt(session)["_meta"][KEY]["edges"]) == [(0, 1, "continuation")]


async def _edges(spell: Cantrip, casts: int = 1) -> list[tuple[int, int, str]]:
    async with spell.invoke() as entity:
        entity.requests.named = True
        for _ in range(casts):
            await entity.cast("go")
        return drawn([{f: getattr(e, f) for f in e.__struct_fields__} for e in entity.requests.drain()])


@pytest.mark.anyio
async def test_children_beside_each_other_return_to_one_request() -> None:
    spell = Cantrip(
        ScriptedCrystal([call("call_agent_batch", requests=["a", "b"]), DONE], children=[[DONE], [DONE]]),
        circle=Circle(gates=["done", "call_agent_batch"], wards=[{"max_turns": 5}]),
    )
    kinds = [kind for _, _, kind in await _edges(spell)]
    assert sorted(kinds) == ["continuation", *["subagent_call"] * 2, *["subagent_return"] * 2]


@pytest.mark.anyio
async def test_a_fold_by_rule_is_a_compaction() -> None:
    spell = Cantrip(
        ScriptedCrystal([ECHO, ECHO, ECHO, DONE]),
        circle=Circle(gates=["done", "echo"], wards=[{"max_turns": 9}]),
        folding=Folding(trigger_after_turns=2, keep_turns=1),
    )
    assert [kind for _, _, kind in await _edges(spell)][:2] == ["continuation", "compaction"]


@pytest.mark.anyio
async def test_a_summary_that_a_model_wrote_stands_between() -> None:
    spell = Cantrip(
        ScriptedCrystal([ECHO, ECHO, DONE]),
        circle=Circle(gates=["done", "echo"], wards=[{"max_turns": 9}]),
        folding=Folding(trigger_after_turns=2, keep_turns=1, summarizer=ScriptedCrystal([{"content": "So far: x."}])),
    )
    assert await _edges(spell) == [(0, 1, "continuation"), (1, 2, "compaction_attempt"), (2, 3, "compaction")]


def test_a_request_that_nobody_answered_is_nowhere() -> None:
    parent = RequestGraph()
    child = RequestGraph(parent)
    child.called(parent)
    parent.answered("")
    child.answered("c1")
    child.returned(parent)
    child.returned(parent)
    parent.answered("p1")
    assert [(e.source_request_id, e.target_request_id, e.type) for e in parent.drain()] == [
        ("c1", "p1", "subagent_return")
    ]
    assert parent.drain() == child.drain() == []
