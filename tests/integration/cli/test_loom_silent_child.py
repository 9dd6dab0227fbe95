"""A child that failed before its first turn is in the list of threads and in the tree, with its intent and the reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cantrip_acp import Cantrip, Circle, Loom, ScriptedCrystal
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
