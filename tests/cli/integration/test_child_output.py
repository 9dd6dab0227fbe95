"""A cast with children: as lines for people, and as lines of JSON."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.command_line import run

RECIPE = """
name: family
crystal:
  provider: scripted
  responses:
    - tool_calls: [{gate: call_agent_batch, args: {requests: [count a, fail]}}]
    - tool_calls: [{gate: done, args: {answer: all counted}}]
  children:
    - responses: [{tool_calls: [{gate: call_agent, args: {intent: deeper}}]}, {content: a is 1}]
      children: [[{content: deep}]]
    - [{error: {status: 400, message: boom}}]
circle:
  gates: [done, call_agent, call_agent_batch]
  wards: [{max_turns: 5}, {max_depth: 2}]
"""


def test_children_are_told_under_their_numbers(tmp_path: Path) -> None:
    (tmp_path / "r.cantrip.yaml").write_text(RECIPE)
    shown = run("cast", "r.cantrip.yaml", "go", cwd=tmp_path)
    assert shown.status == 0
    for line in ("1 ❯ count a", "2 ❯ fail", "2 ■ error: boom · 0 turns", "1.1 ❯ deeper", "1.1 ✓ deep · 1 turn"):
        assert line in shown.out
    one, deeper = (next(x for x in shown.out.splitlines() if t in x) for t in ("count a", "❯ deeper"))
    assert len(deeper) - len(deeper.lstrip()) == len(one) - len(one.lstrip()) + 2


def test_children_as_json(tmp_path: Path) -> None:
    (tmp_path / "r.cantrip.yaml").write_text(RECIPE)
    shown = run("cast", "r.cantrip.yaml", "go", "--json", cwd=tmp_path)
    lines = [json.loads(line) for line in shown.out.splitlines()]
    children = [line for line in lines if line["event"] == "child"]
    assert {line["depth"] for line in children} == {1, 2}
    assert lines[-1]["event"] == "result"
    assert lines[-1]["result"] == "all counted"
    spawning = next(line for line in lines if line["event"] == "turn")
    assert all(line["calls"][0].startswith(spawning["id"]) for line in children)
