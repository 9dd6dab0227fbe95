"""Intervals, pass@k and regressions against textbook values and against their definitions."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from math import comb
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantrip_acp.evaluation import statistics
from cantrip_acp.evaluation.statistics import (
    cell,
    clustered_wilson,
    compare,
    mean_interval,
    pass_at,
    wilson,
    worse_by_chance,
)


def sample(
    outcome: str = "passed", *, task: str = "a", score: float | None = None, cost: float | None = 0.0
) -> dict[str, Any]:
    usage = {
        "prompt_tokens": 10,
        "completion_tokens": 5,
        "cost": cost,
        "queries_without_usage": 0,
        "queries_without_cost": int(cost is None),
    }
    value = float(outcome == "passed") if score is None else score
    return {"task": task, "outcome": outcome, "score": value, "turns": 2, "seconds": 1.0, "usage": usage}


def samples(passed: int, of: int, **more: Any) -> list[dict[str, Any]]:
    return [sample("passed" if n < passed else "failed", **more) for n in range(of)]


@pytest.mark.parametrize(
    ("rate", "n", "low", "high"),
    # Newcombe 1998, table I, method 3.
    [
        (81 / 263, 263, 0.2553, 0.3662),
        (15 / 148, 148, 0.0624, 0.1605),
        (0.0, 20, 0.0, 0.1611),
        (1 / 29, 29, 0.0061, 0.1718),
    ],
)
def test_wilsons_interval_is_that_of_the_literature(rate: float, n: int, low: float, high: float) -> None:
    assert wilson(rate, n) == (pytest.approx(low, abs=6e-5), pytest.approx(high, abs=6e-5))


@pytest.mark.parametrize(
    ("df", "t"), [(1, 12.7062), (2, 4.3027), (3, 3.1824), (5, 2.5706), (10, 2.2281), (30, 2.0423), (1000, 1.9623)]
)
def test_students_quantiles_are_those_of_the_tables(df: int, t: float) -> None:
    assert statistics._t(df) == pytest.approx(t, abs=4e-3)


def test_the_interval_of_a_mean() -> None:
    low, high = mean_interval([1.0, 2.0, 3.0]) or (0.0, 0.0)
    assert (low, high) == (pytest.approx(2 - 4.3027 / 3**0.5, abs=1e-3), pytest.approx(2 + 4.3027 / 3**0.5, abs=1e-3))
    assert mean_interval([1.0]) is None
    assert mean_interval([1.0, 1.0]) is None


def test_samples_of_one_task_count_as_fewer_than_samples_of_many() -> None:
    same = [[True] * 5, [False] * 5] * 2
    mixed = [[True, False, True, False, True, False]] * 4
    assert clustered_wilson(same) == wilson(0.5, 4)
    assert clustered_wilson(mixed) == wilson(0.5, 24)
    # It cannot be estimated, so each task is one sample.
    assert clustered_wilson([[True] * 5] * 8) == wilson(1.0, 8)
    assert clustered_wilson([[True] * 5]) == wilson(1.0, 5)


@given(st.integers(1, 6), st.data())
def test_pass_at_k_is_the_share_of_draws_with_a_pass(n: int, data: st.DataObject) -> None:
    passed, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    draws = list(itertools.combinations([True] * passed + [False] * (n - passed), k))
    assert pass_at(n, passed, k) == pytest.approx(sum(map(any, draws)) / len(draws))


Sides = tuple[Sequence[float], Sequence[float]]
bits = st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=3)


@given(st.lists(st.tuples(bits, bits), min_size=1, max_size=3))
def test_the_exact_test_counts_every_permutation(pairs: list[Sides]) -> None:
    def ways(old: Sequence[float], new: Sequence[float]) -> list[float]:
        pool = [*old, *new]
        return [sum(pool[i] for i in chosen) for chosen in itertools.combinations(range(len(pool)), len(new))]

    totals = [sum(each) for each in itertools.product(*(ways(old, new) for old, new in pairs))]
    seen = sum(sum(new) for _, new in pairs)
    assert worse_by_chance(pairs) == pytest.approx(sum(total <= seen for total in totals) / len(totals))


def test_known_tests_are_special_cases() -> None:
    # One task: Fisher's exact test. The lady who tastes tea: 4 of 4 before, 0 of 4 after.
    assert worse_by_chance([([1.0] * 4, [0.0] * 4)]) == pytest.approx(1 / comb(8, 4))
    # A sample for each task: McNemar's. 5 tasks became worse, 1 better, 4 as before.
    pairs: list[Sides] = [([1.0], [0.0])] * 5 + [([0.0], [1.0])] + [([1.0], [1.0])] * 4
    assert worse_by_chance(pairs) == pytest.approx((1 + 6) / 2**6)


def test_graded_scores_are_permuted_with_the_same_result_each_time() -> None:
    pairs: list[Sides] = [([0.9, 0.8, 0.85, 0.9], [0.2, 0.1, 0.3, 0.25])] * 2
    assert worse_by_chance(pairs) == worse_by_chance(pairs) < 0.01
    assert worse_by_chance([(new, old) for old, new in pairs]) > 0.99


def test_a_regression_is_what_chance_does_not_explain() -> None:
    before = {"a": samples(1, 1), "b": samples(1, 1, task="b")}
    after = {"a": samples(0, 1), "b": samples(1, 1, task="b")}
    every, one = compare("x", "x", before, after)
    assert (every.task, one.task, every.before, every.after) == (None, "a", 1.0, 0.5)
    assert not every.regression
    assert not one.regression
    assert all(each.regression for each in compare("x", "x", before, after, any_drop=True))
    much = compare("x", "x", {"a": samples(10, 10), "b": samples(5, 10)}, {"a": samples(1, 10), "b": samples(5, 10)})
    assert [(each.task, each.regression) for each in much] == [(None, True), ("a", True)]
    better = compare("x", "x", after, before, any_drop=True)
    assert [(each.task, each.regression) for each in better] == [(None, False)]


def test_many_tasks_are_corrected_for_their_number() -> None:
    """Of 40 tasks one falls from 4 of 4 to 0 of 4 (p = 1/70): among so many this is chance."""
    before = {str(n): samples(4, 4) for n in range(40)}
    after = before | {"7": samples(0, 4)}
    assert not any(each.regression for each in compare("x", "x", before, after) if each.task is not None)
    (_, alone) = compare("x", "x", {"7": before["7"]}, {"7": after["7"]})
    assert alone.regression


def test_a_cell_says_what_is_not_known() -> None:
    found = cell([sample(cost=0.5), sample(cost=None), sample("failed"), sample("error")])
    assert (found.samples, found.passed, found.errors, found.rate) == (4, 1 + 1, 1, pytest.approx(2 / 3))
    assert (found.cost, found.unknown_cost, found.tokens_in) == (0.5, 1, 40)
    nothing = cell([sample("error", cost=None)])
    assert (nothing.rate, nothing.interval, nothing.score, nothing.pass_at, nothing.cost) == (
        None,
        None,
        None,
        None,
        None,
    )
    assert nothing.unknown_cost == 1
    graded = cell([sample(score=0.5), sample("failed", task="b", score=0.1)])
    assert graded.score == pytest.approx(fmean([0.5, 0.1]))
