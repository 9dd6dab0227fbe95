"""Usage that a provider does not report is shown as unknown, and never as 0."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.command_line import Terminal, recipe, run

UNKNOWN = """
crystal:
  provider: scripted
  responses:
    - content: The answer.
      usage: {prompt_tokens: null, completion_tokens: null, cached_tokens: null, cost: null}
circle:
  gates: [done]
  wards: [{max_turns: 3}, {max_cost_usd: 1}]
"""
WARD = "max_cost_usd cannot be enforced: the cost of 1 query of scripted is not known"


def test_a_cast_and_every_reader_of_its_loom(tmp_path: Path) -> None:
    path, loom = recipe(tmp_path, UNKNOWN), tmp_path / "x.loom.jsonl"
    told = run("cast", path, "Go.", "--loom", loom, cwd=tmp_path)
    assert "tokens unknown" in told.out + told.err
    assert "cost unknown" in told.out + told.err
    assert "$0" not in told.out + told.err
    assert WARD in " ".join((told.out + told.err).split())
    again = run("cast", path, "Go.", "--json", cwd=tmp_path)
    events = [json.loads(line) for line in again.out.splitlines()]
    end = events[-1]
    usage = end["usage"]
    assert [usage[name] for name in ("prompt_tokens", "completion_tokens", "total_tokens", "cost")] == [None] * 4
    assert (usage["queries_without_usage"], usage["queries_without_cost"]) == (1, 1)
    assert WARD in end["warnings"][0]
    for command in (["show", loom], ["thread", loom], ["list", loom], ["tree", loom], ["stats", loom]):
        out = run("loom", *command, cwd=tmp_path)
        assert out.status == 0, out.err
        assert "$0" not in out.out, command
        assert "0 tokens" not in out.out, command
    stats = run("loom", "stats", loom, cwd=tmp_path).out
    assert "not all known of 1 query" in stats
    assert "not known" in stats
    data = json.loads(run("loom", "stats", loom, "--json", cwd=tmp_path).out)
    assert (data["tokens"]["total"], data["cost"], data["queries_without_cost"]) == (None, None, 1)
    (line,) = json.loads(run("loom", "list", loom, "--json", cwd=tmp_path).out)["threads"]
    assert (line["tokens"], line["cost"]) == (None, None)
    for name in ("otlp", "art", "openai", "verifiers", "trl-sft"):
        exported = run("loom", "export", loom, "--format", name, cwd=tmp_path)
        assert exported.status == 0, exported.err
        for zero in ('"cost":0', '"cost": 0', '"prompt_tokens":0', '"input_tokens","value":{"intValue":"0"'):
            assert zero not in exported.out, (name, zero)


def test_the_repl(tmp_path: Path) -> None:
    with Terminal("repl", recipe(tmp_path, UNKNOWN), cwd=tmp_path, TERM="dumb") as terminal:
        terminal.wait_for("❯ ")
        terminal.type("go\r")
        shown = terminal.wait_for("❯ ")
        assert "tokens unknown" in shown
        assert WARD in " ".join(shown.split())
        terminal.type("/usage\r")
        shown = terminal.wait_for("❯ ")
        assert "tokens unknown, cost unknown" in shown or ("tokens unknown" in shown and "cost unknown" in shown)
        assert "$0" not in shown
        terminal.type("\x04")
        assert terminal.end() == 0
