"""Hundreds of small trees, each cancelled at a moment of its own: no orphan, no lost turn, no hung task (COMP-9).

A seed gives the same trees again; what a moment falls on differs from run to run, which is the point.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Mapping
from typing import Any

import anyio
import psutil
import pytest

from cantrip_acp import Cantrip, Circle, ScriptedCrystal
from cantrip_acp.core.event_hub import Subscription
from cantrip_acp.types.errors import CrystalError
from cantrip_acp.types.records import TERMINATIONS, CastRecord, Turn
from tests.support.scripted_children import GATES, call, calls, done

REASONS = {*TERMINATIONS, "cancelled", "parent_terminated", "error", "max_turns"}


def script(rng: random.Random, depth: int, medium: str) -> dict[str, Any]:
    """An entity of a few turns, which may wait, fail, echo and spawn."""
    steps: list[dict[str, Any]] = []
    children: list[dict[str, Any]] = []
    for _ in range(rng.randint(1, 3)):
        size = rng.randint(1, 4)
        kind = rng.choice(("echo", "wait", "one", "batch", "fail") if depth else ("echo", "wait", "wait", "fail"))
        if kind == "fail" and rng.random() < 0.7:
            kind = "echo"
        if kind == "one":
            children.append(script(rng, depth - 1, "conversation"))
        elif kind == "batch":
            children += [script(rng, depth - 1, "conversation") for _ in range(size)]
        if kind == "fail":
            steps.append({"error": {"status": 400, "message": "by chance"}})
            break
        if kind == "wait":
            steps.append({**call("echo", text="waited"), "delay_ms": rng.randint(0, 25)})
        else:
            steps.append(said(kind, size, medium))
    end = {"conversation": done("end"), "code": {"code": "done('end')"}, "bash": {"bash": "cantrip_done end"}}[medium]
    return {"responses": [*steps, end], "children": children}


def said(kind: str, size: int, medium: str) -> dict[str, Any]:
    """A step as the crystal of that medium says it; children talk, so that they are quick to make."""
    requests = [{"intent": "do", "medium": "conversation"}] * size
    batch = json.dumps({"requests": requests})
    code = {
        "echo": "echo('x')",
        "one": "call_agent('do', medium='conversation')",
        "batch": f"call_agent_batch({requests})",
    }
    bash = {
        "echo": "cantrip_echo x",
        "one": "call_agent do --medium conversation",
        "batch": f"call_agent_batch --json '{batch}'",
    }
    talk = {
        "echo": call("echo", text="x"),
        "one": calls(("echo", {"text": "y"}), ("call_agent", {"intent": "do"})),
        "batch": call("call_agent_batch", requests=requests),
    }
    return {"conversation": talk[kind], "code": {"code": code[kind]}, "bash": {"bash": bash[kind]}}[medium]


async def lived_and_cut(seed: int, medium: str, most: float) -> Cantrip:
    rng = random.Random(seed)
    made = script(rng, 3, medium)
    wards = [{"max_turns": 8}, {"max_depth": 3}, {"max_concurrent_children": rng.randint(1, 4)}]
    crystal = ScriptedCrystal(made["responses"], children=made["children"])
    spell = Cantrip(crystal, circle=Circle(medium, GATES, wards))
    async with spell.invoke() as entity:
        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:

                async def cast() -> None:
                    try:
                        await entity.cast("go")
                    except CrystalError:
                        assert any("by chance" in (e.error or "") for e in ends(spell).values())

                if seed % 2:
                    # Somebody listens, slowly: whatever is told can be where the end falls.
                    group.start_soon(listen, entity.subscribe(buffer=1))
                group.start_soon(cast)
                await anyio.sleep(rng.uniform(0, most))
                how = rng.choice(("cancel", "scope", "leave"))
                if how == "cancel":
                    entity.cancel()
                elif how == "scope":
                    group.cancel_scope.cancel()
                else:
                    while entity.busy:
                        await anyio.sleep(0.002)
                while entity.busy and how == "cancel":
                    await anyio.sleep(0.002)
                group.cancel_scope.cancel()
    return spell


def ends(spell: Cantrip) -> Mapping[str, CastRecord]:
    return {r.id: r for r in spell.loom.records() if isinstance(r, CastRecord) and r.event == "end"}


async def listen(subscription: Subscription) -> None:
    async for _ in subscription:
        await anyio.sleep(0.0005)


def check(spell: Cantrip) -> int:
    """What must hold of every loom; how many casts it has."""
    turns: dict[str, Turn] = {}
    starts: dict[str, CastRecord] = {}
    count: dict[str, int] = {}
    for record in spell.loom.records():
        if isinstance(record, Turn):
            # Nothing refers to what is not there yet (LOOM-1).
            assert record.parent_id is None or record.parent_id in turns
            assert record.continues is None or turns[record.continues].entity_id == record.entity_id
            turns[record.id] = record
            if record.role == "crystal" and record.continues is None:
                count[record.cast_id or ""] = count.get(record.cast_id or "", 0) + 1
        elif isinstance(record, CastRecord) and record.event == "start":
            assert record.parent_turn_id is None or record.parent_turn_id in turns
            starts[record.id] = record
    ended = ends(spell)
    # Every cast that began ended, and tells of every turn that it had.
    assert starts.keys() == ended.keys()
    for cast_id, end in ended.items():
        assert end.reason in REASONS
        assert end.turns == count.get(cast_id, 0)
        if starts[cast_id].parent_turn_id is None:
            assert end.reason != "parent_terminated"
    # A child of a cut parent that was not done was cut with it, and nothing outlived its parent.
    order = [e.id for e in ended.values()]
    for cast_id, start in starts.items():
        if start.parent_turn_id is not None:
            above = turns[start.parent_turn_id].cast_id or ""
            assert order.index(cast_id) < order.index(above)
    # What the parts of an utterance say fits together again.
    for turn in turns.values():
        if turn.continues is not None:
            assert not turn.utterance.tool_calls
            assert turns[turn.parent_id or ""].entity_id == turn.entity_id
    return len(starts)


def tasks() -> int:
    return len(asyncio.all_tasks())


@pytest.mark.parametrize("block", range(4))
async def test_random_trees_of_conversations(block: int) -> None:
    before, casts = tasks(), 0
    for seed in range(block * 100, block * 100 + 75):
        casts += check(await lived_and_cut(seed, "conversation", 0.06))
    assert tasks() == before
    assert casts > 150


@pytest.mark.parametrize("medium", ["code", "bash"])
async def test_random_trees_with_sandboxes(medium: str) -> None:
    here = psutil.Process()
    before, known = tasks(), set(here.children(recursive=True))
    for seed in range(1000, 1012):
        check(await lived_and_cut(seed, medium, 0.5))
    with anyio.move_on_after(60):
        while left := [p for p in here.children(recursive=True) if p not in known and "bwrap" in name_of(p)]:
            await anyio.sleep(0.05)
    assert left == []
    assert tasks() == before


def name_of(process: psutil.Process) -> str:
    try:
        return "" if process.status() == psutil.STATUS_ZOMBIE else process.name()
    except psutil.NoSuchProcess:
        return ""
