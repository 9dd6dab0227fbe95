"""Fan-outs: a million tuples that exist only when they are visited."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantrip_acp.tuplespace.errors import TupleError
from cantrip_acp.tuplespace.fan_out import FanOut, batch_spawn, compress_token, expand_token

STEPS = [{"yool": "a.b", "args": {"intent": "Grade it."}}]


def test_a_million_leaves_cost_nothing_until_they_are_visited() -> None:
    million = batch_spawn("grade", STEPS, 3, 100, map_pos={"run": 1})
    assert len(million) == 1_000_000
    assert million.sizes == {"leaves": 1_000_000, "live": 0, "tokens": 0}
    assert million.work(123_456).map_pos == {"run": 1, "path": [12, 34, 56]}  # type: ignore[comparison-overlap]
    assert million.work(999_999).id == batch_spawn("grade", STEPS, 3, 100, map_pos={"run": 1}).work(999_999).id
    assert [each.map_pos["path"] for each in itertools.islice(million, 2)] == [[0, 0, 0], [0, 0, 1]]  # type: ignore[index]
    with pytest.raises(IndexError):
        million.work(1_000_000)


@given(st.integers(1, 4), st.integers(1, 7), st.data())
def test_each_leaf_has_its_own_path_and_id(depth: int, branching: int, data: st.DataObject) -> None:
    fan_out = FanOut("x", STEPS, depth, branching)
    index = data.draw(st.integers(0, len(fan_out) - 1))
    path = fan_out.path(index)
    assert len(path) == depth
    assert sum(digit * branching ** (depth - 1 - level) for level, digit in enumerate(path)) == index
    other = data.draw(st.integers(0, len(fan_out) - 1))
    assert (fan_out.work(index).id == fan_out.work(other).id) == (index == other)


def test_leaves_that_nobody_uses_are_small_and_keep_their_notes() -> None:
    fan_out = FanOut("x", STEPS, 2, 50, compression_threshold=100)
    for index in range(0, 2_000, 2):
        fan_out.visit(index).notes["reward"] = index
        fan_out.visit(index + 1)
    assert fan_out.sizes["live"] <= 100
    assert fan_out.sizes["tokens"] <= 1_000, "a leaf without notes leaves nothing"
    assert [leaf.notes["reward"] for leaf in fan_out.visited()] == list(range(0, 2_000, 2))
    leaf = fan_out.visit(0)
    assert (leaf.notes, leaf.path, leaf.work.lane) == ({"reward": 0}, (0, 0), "x")
    fan_out.prune_idle()
    assert fan_out.sizes == {"leaves": 2_500, "live": 0, "tokens": 1_000}


@given(st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=200), max_size=5))
def test_a_token_is_what_it_was_made_of(notes: dict[str, object]) -> None:
    assert expand_token(compress_token(notes)) == notes


def test_a_token_of_long_notes_is_short() -> None:
    notes = {"answer": "The same line again.\n" * 100}
    assert len(compress_token(notes)) < 100


@pytest.mark.parametrize(("depth", "branching"), [(0, 3), (1, 0), (1, 1001), (13, 10)])
def test_a_fan_out_has_bounds(depth: int, branching: int) -> None:
    with pytest.raises(TupleError, match="a fan-out has a depth of 1 or more"):
        FanOut("x", STEPS, depth, branching)


def test_steps_are_checked_at_once() -> None:
    with pytest.raises(TupleError, match="yool"):
        FanOut("x", [{"yool": "no dots"}], 2, 2)


def test_the_threshold_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("YOOL_TUPLE_COMPRESSION_THRESHOLD", "7")
    assert FanOut("x", STEPS, 1, 2).compression_threshold == 7
    monkeypatch.setenv("YOOL_TUPLE_COMPRESSION_THRESHOLD", "many")
    with pytest.raises(TupleError, match="YOOL_TUPLE_COMPRESSION_THRESHOLD must be a whole number"):
        FanOut("x", STEPS, 1, 2)
