"""The difference of two crystals in one result: exact probabilities, and an interval that can be checked by hand."""

from __future__ import annotations

import random
from typing import Any

import pytest

from cantrip_acp.evaluation.statistics import differences

Cells = dict[str, dict[str, list[dict[str, Any]]]]


def samples(*passed: int) -> list[dict[str, Any]]:
    return [{"outcome": "passed" if each else "failed", "score": float(each)} for each in passed]


def paired(both: int, second: int, first: int, none: int) -> Cells:
    """One sample of each task: passed by both, only by the second, only by the first, by none."""
    kinds = [(1, 1)] * both + [(0, 1)] * second + [(1, 0)] * first + [(0, 0)] * none
    return {name: {f"t{n}": samples(kind[side]) for n, kind in enumerate(kinds)} for side, name in enumerate("ab")}


def test_paired_samples_give_mcnemars_probability_and_newcombes_interval() -> None:
    (found,) = differences(paired(20, 12, 3, 5))
    assert (found.first, found.second, found.tasks, found.what) == ("a", "b", 40, "pass rate")
    assert (found.before, found.after) == (pytest.approx(0.575), pytest.approx(0.8))
    # Twice the probability of at most 3 of 15 heads.
    assert found.p == pytest.approx(2 * (1 + 15 + 105 + 455) / 2**15)
    # By hand from Wilson's intervals 0.422 to 0.715 and 0.652 to 0.895, and phi = 64 / 316.4.
    assert found.interval == pytest.approx((0.043, 0.388), abs=0.003)
    assert found.counts


def test_samples_of_one_task_give_fishers_probability() -> None:
    (found,) = differences({"a": {"t": samples(0, 0, 0, 0, 0, 1)}, "b": {"t": samples(1, 1, 1, 1, 1, 1)}})
    # 7 of 12 passed. The second has 6 of them: C(6,6) C(6,1) / C(12,7), and as far in the other direction.
    assert found.p == pytest.approx(2 * 6 / 792)
    assert found.interval is not None
    assert found.interval[0] < found.difference < found.interval[1]


def test_equal_crystals_do_not_differ() -> None:
    (found,) = differences(paired(10, 0, 0, 5))
    assert (found.difference, found.p, found.counts) == (0, 1.0, False)
    assert found.interval is not None
    assert found.interval[0] < 0 < found.interval[1]


def test_scores_are_paired_by_task() -> None:
    def scored(*values: float) -> dict[str, list[dict[str, Any]]]:
        return {f"t{n}": [{"outcome": "failed", "score": value}] for n, value in enumerate(values)}

    # The tasks differ much more than the crystals.
    first = [n / 12 for n in range(12)]
    (found,) = differences(
        {"a": scored(*first), "b": scored(*(n + 0.02 + 0.001 * (i % 3) for i, n in enumerate(first)))}
    )
    assert found.what == "mean score"
    assert found.interval is not None
    assert 0.019 < found.interval[0] < found.difference < found.interval[1] < 0.023
    assert found.p < 0.01
    assert found.counts


def test_several_pairs_are_corrected_and_tasks_of_one_crystal_are_left_out() -> None:
    cells = paired(20, 8, 1, 5)
    assert differences(cells)[0].counts
    cells["c"] = {**cells["a"], "new": samples(1)}
    found = {(each.first, each.second): each for each in differences(cells)}
    assert list(found) == [("a", "b"), ("a", "c"), ("b", "c")]
    assert found["a", "c"].tasks == 34
    # p is 0.039: it counts alone, not as one of three.
    assert found["a", "b"].p == pytest.approx(0.0390625)
    assert not found["a", "b"].counts
    assert differences({"a": cells["a"]}) == []
    assert differences({"a": {"one": samples(1)}, "b": {"other": samples(1)}}) == []


def test_the_interval_covers_the_true_difference_as_often_as_it_says() -> None:
    source, hits, runs = random.Random(7), 0, 400
    for _ in range(runs):
        cells: Cells = {"a": {}, "b": {}}
        for n in range(25):
            rate = source.betavariate(2, 2)
            cells["a"][f"t{n}"] = samples(*(source.random() < rate for _ in range(3)))
            cells["b"][f"t{n}"] = samples(*(source.random() < rate * 0.7 for _ in range(3)))
        (found,) = differences(cells)
        assert found.interval is not None
        hits += found.interval[0] <= -0.15 <= found.interval[1]
    assert hits / runs > 0.92
