"""Casts, also of children, that ended before their first turn are listed and drawn; turns are counted as people count them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from cantrip_acp import Cantrip, Circle, Loom, ScriptedCrystal
from cantrip_acp.types.events import QueryStarted
from tests.support.command_line import run
from tests.support.fixtures.core import INSTANT, done

pytestmark = pytest.mark.anyio


async def test_it_is_listed_with_its_reason(tmp_path: Path) -> None:
    path = tmp_path / "a.loom.jsonl"
    asks = {"tool_calls": [{"gate": "call_agent", "args": {"intent": "Look behind the door."}}]}
    failing = [{"error": {"status": 400, "message": "no such model"}}]
    with Loom.open(path) as loom:
        circle = Circle("conversation", ["done", "call_agent"], {"max_turns": 3, "max_depth": 1})
        await Cantrip(
            ScriptedCrystal([asks, done("over")], children=[failing]), circle=circle, loom=loom, retry=INSTANT
        ).cast("Go.")
    tree = run("loom", "tree", path, cwd=tmp_path).out
    line = next(each for each in tree.splitlines() if "Look behind the door." in each)
    assert "error: " in line
    assert "no such model" in line
    threads = json.loads(run("loom", "list", path, "--json", cwd=tmp_path).out)["threads"]
    child = next(each for each in threads if each["parent"] is not None)
    assert (child["intent"], child["outcome"], child["turns"]) == ("Look behind the door.", "error", 0)
    found = json.loads(run("loom", "list", path, "--intent", "behind", "--json", cwd=tmp_path).out)["threads"]
    assert [each["leaf"] for each in found] == [child["leaf"]]


async def test_a_cast_that_was_cancelled_before_its_first_turn_is_listed(tmp_path: Path) -> None:
    path = tmp_path / "a.loom.jsonl"
    with Loom.open(path) as loom:
        crystal = ScriptedCrystal([done("over")])
        circle = Circle("conversation", ["done"], {"max_turns": 3})
        await Cantrip(crystal, circle=circle, loom=loom).cast("Go.")
        slow = Cantrip(
            ScriptedCrystal([{"content": "late", "delay_ms": 60_000}]), circle=circle, loom=loom, retry=INSTANT
        )
        async with slow.invoke() as entity, entity.stream("Wait for it.") as events:
            async for event in events:
                if isinstance(event, QueryStarted):
                    entity.cancel()
    found = json.loads(run("loom", "list", path, "--outcome", "cancelled", "--json", cwd=tmp_path).out)["threads"]
    assert [(each["intent"], each["outcome"], each["turns"]) for each in found] == [("Wait for it.", "cancelled", 0)]
    tree = run("loom", "tree", path, cwd=tmp_path).out
    assert re.search(r"^├─ t_\w+ 'Go.'  .* · done$", tree, re.MULTILINE), tree
    assert re.search(r"^└─ e_\w+ 'Wait for it.' · cancelled$", tree, re.MULTILINE), tree
    assert run("loom", "show", path, cwd=tmp_path).status == 0


async def test_all_commands_count_turns_as_max_turns_does(tmp_path: Path) -> None:
    """A turn that a child divides is one turn, though it has two records."""
    path = tmp_path / "a.loom.jsonl"
    asks = {"tool_calls": [{"gate": "call_agent", "args": {"intent": "Look."}}]}
    with Loom.open(path) as loom:
        circle = Circle("conversation", ["done", "call_agent"], {"max_turns": 2, "max_depth": 1})
        crystal = ScriptedCrystal([asks, done("over")], children=[[done("seen")]])
        result = await Cantrip(crystal, circle=circle, loom=loom).cast("Go.")
        assert result.turns == 2
        (root,) = [thread for thread in loom.threads() if thread.leaf.entity_id == result.entity_id]
        (child,) = [thread for thread in loom.threads() if thread.leaf.entity_id != result.entity_id]
        forked = loom.path(root.leaf.id)[1]
        records = sum(turn.role == "crystal" for turn in loom.turns())
    assert records == 4

    def told(*words: str | Path) -> str:
        ran = run("loom", *words, cwd=tmp_path)
        assert ran.status == 0, ran.err
        return ran.out

    assert "3 turns" in told("show", path).splitlines()[0]
    assert ": 3 turns, " in told("check", path)
    assert re.search(r"^turns +3$", told("stats", path), re.MULTILINE)
    assert "2 turns" in told("thread", path, root.leaf.id).splitlines()[-1]
    listed = json.loads(told("list", path, "--json"))["threads"]
    assert {each["leaf"]: each["turns"] for each in listed} == {root.leaf.id: 2, child.leaf.id: 1}
    assert "1 turn in common; they separate at " in told("diff", path, root.leaf.id, forked)
    assert "2 turns in common; they separate at " in told("diff", path, root.leaf.id, root.leaf.id)
