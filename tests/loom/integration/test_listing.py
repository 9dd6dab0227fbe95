"""The tests of `tests/loom/unit/test_listing.py` that start processes."""

from __future__ import annotations

import json

import pytest

from cantrip_acp import Turn, Usage
from cantrip_acp.loom.query.diff import difference, gates_used
from cantrip_acp.loom.query.listing import Listing, Spent
from cantrip_acp.loom.query.statistics import Statistics
from cantrip_acp.types.errors import TurnNotFound
from tests.support.loom_stores import Place
from tests.support.loom_trees import grow, moment


def test_lines(place: Place) -> None:
    loom = grow(place.open())
    loom.annotate_reward("t3", 0.5)
    listing = Listing(place.again(loom))
    lines = {line.leaf: line for line in listing.lines()}
    assert list(lines) == ["x1", "v2", "u3", "t3", "w1"]
    t3, u3, v2, w1 = (lines[leaf] for leaf in ("t3", "u3", "v2", "w1"))
    assert (t3.intent, t3.state, t3.outcome, t3.reward) == ("Fix the bug", "terminated", "done", 0.5)
    assert (t3.turns, t3.casts, t3.children, t3.model) == (3, 1, 1, "m-1")
    # What its child used is not its own.
    assert t3.spent == Spent(Usage(300, 30, 15, cost=0.75), 300.0)
    assert (t3.forked_from, t3.parent, t3.started, t3.ended) == (None, None, moment(1), moment(5))
    assert (u3.state, u3.outcome, u3.turns, u3.casts, u3.forked_from) == ("truncated", "max_turns", 3, 2, "t1")
    # The shared turn by its own figures, the fork's cast by what its end says.
    assert u3.spent == Spent(Usage(300, 30, 15, cost=0.75), 180.5)
    assert (v2.state, v2.outcome, v2.turns, v2.reward, v2.model) == ("truncated", "interrupted", 2, None, "m-2")
    # The cost of one of its two turns is not known.
    assert v2.spent == Spent(Usage(200, 20, 10, cost=0.25, queries_without_cost=1), 1.0)
    assert (w1.parent, w1.turns, w1.casts, w1.intent, w1.spent.usage.total_tokens) == ("t2", 1, 1, "Read the log", 110)
    assert listing.line("t3") == t3
    record = t3.record()
    assert json.loads(json.dumps(record)) == record
    assert (record["tokens"], record["tokens_prompt"], record["cost"]) == (330, 300, 0.75)


def test_an_empty_loom(place: Place) -> None:
    loom = place.open()
    assert list(Listing(loom).lines()) == []
    counted = Statistics()
    counted.add(loom)
    assert counted.record()["turns"] == 0
    loom.append(Turn("root", None, "c", "e", None, role="call"))
    assert list(Listing(loom).lines()) == []


def test_two_threads_side_by_side(place: Place) -> None:
    loom = grow(place.open())
    loom.annotate_reward("t3", 1)
    loom = place.again(loom)
    told = difference(loom, "t3", "u3")
    assert (told.shared, told.parted_at) == (("root", "t1"), "t1")
    assert [(p.number, p.left and p.left.id, p.right and p.right.id, p.same) for p in told.pairs] == [
        (1, "t2", "u2", False),
        (2, "t3", "u3", False),
    ]
    assert set(told.pairs[0].differs) == {"code", "results", "output"}
    assert told.pairs[1].differs["reward"] == (1.0, None)
    assert told.pairs[1].differs["reason"] == ("done", "max_turns")
    record = told.record()
    assert record["turns"][0]["differs"]["code"] == {"left": None, "right": "ls"}
    assert json.loads(json.dumps(record)) == record
    shorter = difference(loom, "v2", "u3")
    assert [(p.left is None, p.right is None) for p in shorter.pairs] == [(False, False), (True, False)]
    assert shorter.pairs[0].differs["intent"] == ("Fix it otherwise", "Fix the bug")
    same = difference(loom, "t3", "t3")
    assert same.pairs == ()
    apart = difference(loom, "t3", "w1")
    assert apart.parted_at == "t2"
    with pytest.raises(TurnNotFound):
        difference(loom, "t3", "nobody")
    assert gates_used(loom, ["t1", "t2", "t3"]) == {"search": 2, "call_agent": 1, "done": 1}


def test_statistics(place: Place) -> None:
    loom = grow(place.open())
    loom.annotate_reward("t3", 1)
    loom.annotate_reward("t3", 0.5)
    loom.annotate_reward("u3", -0.5, kind="shaped")
    counted = Statistics()
    counted.add(place.again(loom))
    told = counted.record()
    assert told["casts"] == {
        "started": 5,
        "children": 1,
        "outcomes": {"done": 2, "max_turns": 1, "text": 1, "interrupted": 1},
    }
    assert told["turns"] == 8
    assert told["tokens"] == {"prompt": 800, "completion": 80, "cached": 40, "total": 880}
    assert told["cost"] == pytest.approx(1.75)
    assert told["turn_ms"]["p50"] == told["turn_ms"]["p95"] == 500.0
    assert (told["cast_s"]["count"], told["cast_s"]["max"]) == (4, 300.0)
    assert told["gates"]["search"] == {"calls": 2, "errors": 1, "error_rate": 0.5}
    assert told["programs"] == {"calls": 1, "errors": 1, "error_rate": 1.0}
    assert told["rewards"]["given"] == {"explicit": 2, "shaped": 1}
    assert (told["rewards"]["count"], told["rewards"]["mean"]) == (2, 0.0)
    assert {name: m["turns"] for name, m in told["models"].items()} == {"m-1": 7, "m-2": 1}
    assert (told["forks"], told["folds"], told["snapshots"]) == (2, 0, 0)
    assert json.loads(json.dumps(told)) == told
