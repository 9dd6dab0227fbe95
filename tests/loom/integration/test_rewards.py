"""Rewards in every store: who gave what, what counts, groups and how their threads compare (§6.4, LOOM-3)."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantrip_acp import Loom
from cantrip_acp.loom import rewards
from cantrip_acp.loom.query.outline import Outline
from cantrip_acp.types.errors import LoomError, TurnNotFound
from cantrip_acp.types.records import ForkRecord, GateRecord, Observation, Output, RewardRecord, Turn
from tests.support.loom_stores import Place
from tests.support.loom_trees import grow, start, turn


def test_every_assignment_is_kept_and_the_last_counts(place: Place) -> None:
    loom = grow(place.open())
    loom.annotate_reward("t3", 0.25, by="ann", note="meh")
    loom.annotate_reward("t3", 1, by="verifier:v", kind="verifier")
    loom.annotate_reward("u3", -1, by="rubric", kind="shaped", grade=True)
    loom.annotate_reward("t3", 1.5, by="rank:grpo", kind="relative", group="t2")
    loom.append(RewardRecord("t3", None, "rubric", "ValueError: no", "then", "shaped"))
    for _ in range(2):
        assert [(r.reward, r.by, rewards.kind(r)) for r in rewards.assignments(loom, "t3")] == [
            (0.25, "ann", "explicit"),
            (1.0, "verifier:v", "verifier"),
            (1.5, "rank:grpo", "relative"),
            (None, "rubric", "shaped"),
        ]
        assert all(r.timestamp for r in rewards.assignments(loom))
        assert [r.turn_id for r in rewards.assignments(loom)] == ["t3", "t3", "u3", "t3", "t3"]
        # Neither a relative reward nor a failure to give one covers what was given.
        assert loom.turn("t3").reward == rewards.of_turn(loom, "t3") == rewards.of_thread(loom, "t3") == 1.0
        assert rewards.relative_of(loom, "t3") == rewards.relative_of(loom, "t3", "t2") == 1.5
        assert rewards.relative_of(loom, "t3", "other") is rewards.relative_of(loom, "u3") is None
        assert rewards.of_thread(loom, "u3") == -1
        assert rewards.of_thread(loom, "v2") is None
        assert not loom.problems
        loom = place.again(loom)


def test_steps_add_up_where_there_is_no_grade(place: Place) -> None:
    loom = grow(place.open())
    for turn_id, step in (("t1", 0.5), ("t2", -0.25), ("u2", 2), ("w1", 8)):
        loom.annotate_reward(turn_id, step, kind="shaped")
    loom = place.again(loom)
    outline = Outline(loom)
    for known in (None, outline):
        assert rewards.of_thread(loom, "t3", outline=known) == 0.25
        assert rewards.of_thread(loom, "u3", outline=known) == 2.5
        # A child's thread begins where it was spawned.
        assert rewards.of_thread(loom, "w1", outline=known) == 8
        assert rewards.of_thread(loom, "x1", outline=known) is None
    with pytest.raises(TurnNotFound):
        rewards.of_thread(loom, "nobody")


def test_a_turn_may_come_with_its_reward(place: Place) -> None:
    loom = place.open()
    loom.append(turn("a", None, "e", "k", reward=0.5))
    loom.append(turn("b", "a", "e", "k", reward=0.75))
    for _ in range(2):
        assert (loom.reward("a"), loom.turn("b").reward) == (0.5, 0.75)
        assert rewards.of_thread(loom, "b") == 0.75
        loom = place.again(loom)
    loom.annotate_reward("b", 0)
    assert rewards.of_thread(place.again(loom), "b") == 0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, True, "1", None, 10**400])
def test_what_is_no_reward(bad: object) -> None:
    loom = grow(Loom.memory())
    with pytest.raises(LoomError, match="a reward is a number"):
        loom.annotate_reward("t1", bad)  # type: ignore[arg-type]
    with pytest.raises(TurnNotFound):
        loom.annotate_reward("nobody", 1)


def seen(*failed: bool, outputs: tuple[Output, ...] = ()) -> Turn:
    results = tuple(GateRecord("g", {}, "", f) for f in failed)
    more = Observation(results, outputs[0] if outputs else None, **({"outputs": outputs} if len(outputs) > 1 else {}))
    return Turn("t", None, "c", "e", "k", observation=more)


@pytest.mark.parametrize(
    ("turn_", "share"),
    [
        (seen(), None),
        (seen(False), 1.0),
        (seen(True), 0.0),
        (seen(True, False, False, False), 0.75),
        (seen(outputs=(Output(exit_code=0),)), 1.0),
        (seen(outputs=(Output(exit_code=1),)), 0.0),
        (seen(outputs=(Output(error="timed out"),)), 0.0),
        (seen(False, outputs=(Output(exit_code=-9), Output(), Output(exit_code=0))), 0.75),
    ],
)
def test_implicit_is_the_share_that_succeeded(turn_: Turn, share: float | None) -> None:
    assert rewards.implicit(turn_) == share


def test_implicit_of_threads_puts_the_finished_first() -> None:
    loom = grow(Loom.memory())
    assert rewards.implicit_of(loom.thread("t3")) == pytest.approx((2 + (1 + 0.5 + 1) / 3) / 3)
    assert rewards.implicit_of(loom.thread("u3")) == pytest.approx(((1 + 0) / 2) / 3)
    assert rewards.implicit_of(loom.thread("x1")) == 1.0


def test_implicit_rewards_are_written_where_there_are_none(place: Place) -> None:
    loom = grow(place.open())
    loom.annotate_reward("t3", -1, by="ann")
    written = rewards.record_implicit(loom, list(loom.places))
    assert written == [("t1", 1.0), ("t2", 0.5), ("w1", 1.0), ("u2", 0.0)]
    assert rewards.record_implicit(loom, list(loom.places)) == []
    loom = place.again(loom)
    assert loom.turn("t3").reward == -1
    assert {r.kind for r in rewards.assignments(loom, "t2")} == {"implicit"}


def test_groups(place: Place) -> None:
    loom = place.again(grow(place.open()))
    (group,) = rewards.groups(loom)
    assert (group.turn_id, group.leaves, group.intent) == ("t1", ("t3", "u3", "v2"), None)
    # A child is no branch, and casts on other intents are no group.
    assert rewards.groups(loom, "t2") == rewards.groups(loom, "root") == rewards.groups(loom, "u3") == []
    (alike,) = rewards.groups(loom, alike=True)
    assert (alike.leaves, alike.intent) == (("t3", "u3"), "Fix the bug")
    loom.append(start("k6", "e6", "Other", 40))
    loom.append(turn("y1", "root", "e6", "k6", 41))
    loom.append(ForkRecord("f7", "u2", "e7"))
    loom.append(start("k7", "e7", "Fix the bug", 50))
    loom.append(turn("z3", "u2", "e7", "k7", 51))
    found = rewards.groups(loom)
    # A branch with branches of its own is stood for by what was there first, so older groups stay as they are.
    assert [(g.turn_id, g.leaves) for g in found] == [
        ("root", ("x1", "y1")),
        ("t1", ("t3", "u3", "v2")),
        ("u2", ("u3", "z3")),
    ]
    with pytest.raises(TurnNotFound):
        rewards.groups(loom, "nobody")


def test_forks_of_one_batch_are_a_group_for_trainers(place: Place) -> None:
    loom = grow(place.open())
    for n in range(3):
        loom.append(ForkRecord(f"g{n}", "t1", f"b{n}", group="batch"))
        loom.append(start(f"kb{n}", f"b{n}", "Fix the bug", 40))
        loom.append(turn(f"b{n}", "t1", f"b{n}", f"kb{n}", 41))
    loom = place.again(loom)
    assert [(g.id, g.leaves) for g in rewards.groups(loom, alike=True)] == [
        ("t2", ("t3", "u3")),
        ("batch", ("b0", "b1", "b2")),
    ]
    assert len(rewards.groups(loom)[0].leaves) == 6


def test_ranking(place: Place) -> None:
    loom = grow(place.open())
    (group,) = rewards.groups(loom)
    basis, standings = rewards.ranked(loom, group)
    assert basis == "implicit"
    assert [s.rank for s in standings] == [1, 3, 2]
    loom.annotate_reward("t3", 1)
    basis, standings = rewards.ranked(loom, group)
    assert basis == "reward"
    assert [(s.rank, s.relative) for s in standings] == [(1, 0.0), (None, None), (None, None)]
    with pytest.raises(LoomError, match="ranking needs two"):
        rewards.record_relative(loom, group, standings)
    loom.annotate_reward("u3", 0)
    _, standings = rewards.ranked(loom, group, method="rank")
    assert [s.relative for s in standings] == [1.0, -1.0, None]
    assert rewards.record_relative(loom, group, standings, by="me", note="why") == 2
    loom = place.again(loom)
    assert [
        (r.turn_id, r.reward, r.group, r.by, r.note) for r in rewards.assignments(loom) if r.kind == "relative"
    ] == [
        ("t3", 1.0, group.id, "me", "why"),
        ("u3", -1.0, group.id, "me", "why"),
    ]
    # Doing it again compares what was given, not what came of comparing.
    assert rewards.ranked(loom, group, method="rank")[1] == standings


@pytest.mark.parametrize(
    ("values", "method", "expected"),
    [
        ([], "grpo", []),
        ([3], "grpo", [0]),
        ([2, 2, 2], "grpo", [0, 0, 0]),
        ([1, 0], "grpo", [0.5 / (math.sqrt(0.5) + 1e-4), -0.5 / (math.sqrt(0.5) + 1e-4)]),
        ([3, 1], "centered", [1, -1]),
        ([1, 2, 3], "rank", [-1, 0, 1]),
        ([5, 5, 0], "rank", [0.5, 0.5, -1]),
        ([1e308, -1e308], "centered", [1e308, -1e308]),
    ],
)
def test_relative(values: list[float], method: rewards.Method, expected: list[float]) -> None:
    assert rewards.relative(values, method) == pytest.approx(expected)


@given(
    st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=12),
    st.sampled_from(["grpo", "centered", "rank"]),
)
def test_relative_keeps_the_order_and_is_finite(values: list[float], method: rewards.Method) -> None:
    out = rewards.relative(values, method)
    assert all(math.isfinite(v) for v in out)
    for a, x in zip(values, out, strict=True):
        for b, y in zip(values, out, strict=True):
            assert not (a > b and x < y)
