"""Each matcher in both directions."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from cantrip_acp.conformance.matchers import Scope, contains, entity, equal, lacks, scalar, subset

TURNS = [
    SimpleNamespace(id="t_a", parent_id=None, entity_id="e_1"),
    SimpleNamespace(id="t_b", parent_id="t_a", entity_id="e_1"),
]


@pytest.mark.parametrize(
    ("expected", "actual", "holds"),
    [
        ("not_null", 0, True),
        ("not_null", "", True),
        ("not_null", None, False),
        ("null", None, True),
        ("null", "null", True),
        ("null", 0, False),
        (None, None, True),
        (None, False, False),
        ("greater_than(0)", 0.001, True),
        ("greater_than(0)", 0, False),
        ("greater_than( 1.5 )", 2, True),
        ("greater_than(-1)", 0, True),
        ("greater_than(1e3)", 1001, True),
        ("greater_than(0)", True, False),
        ("greater_than(0)", "5", False),
        ("greater_than(0)", None, False),
        ("greater_than(x)", 5, False),
        ("turns[0].id", "t_a", True),
        ("turns[1].id", "t_a", False),
        ("turns[2].id", "t_a", False),
        ("turns[1].parent_id", "t_a", True),
        (1, 1.0, True),
        (1, True, False),
        (0, False, False),
        (True, 1, False),
        (True, True, True),
        ("on", True, True),
        ("off", True, False),
        ("1", 1, False),
        (1, "1", False),
        ("a", "a", True),
        ("a", "A", False),
        ([], None, False),
    ],
)
def test_scalar(expected: object, actual: object, holds: bool) -> None:
    assert scalar(expected, actual, Scope(TURNS)) is holds
    assert (not list(equal(expected, actual, "p", Scope(TURNS)))) is holds


@pytest.mark.parametrize(
    ("expected", "actual", "equals", "within"),
    [
        ({"a": 1}, {"a": 1}, True, True),
        ({"a": 1}, {"a": 1, "b": 2}, False, True),
        ({"a": 1, "b": None}, {"a": 1}, False, True),
        ({"a": {"b": "not_null"}}, {"a": {"b": 1, "c": 2}}, False, True),
        ({"a": 2}, {"a": 1}, False, False),
        ({"a": [1]}, {"a": [1, 2]}, False, False),
        ([1, "greater_than(1)"], [1, 2], True, True),
        ([1], (1,), True, True),
        ({}, [], False, False),
    ],
)
def test_mappings_and_lists(expected: object, actual: object, equals: bool, within: bool) -> None:
    assert (not list(equal(expected, actual, "p", Scope()))) is equals
    assert (not list(subset(expected, actual, "p", Scope()))) is within


def test_entities_bind_on_first_use() -> None:
    scope = Scope()
    assert not list(entity("parent", "e_1", "p", scope))
    assert not list(entity("child", "e_2", "p", scope))
    assert not list(entity("parent", "e_1", "p", scope))
    assert "as before" in str(next(entity("parent", "e_2", "p", scope)))
    assert "another entity than parent" in str(next(entity("child_2", "e_1", "p", scope)))
    assert list(entity("e_9", "e_1", "p", scope))
    assert not list(entity("not_null", "e_1", "p", scope))


def test_texts() -> None:
    assert not list(contains("b", "abc", "p"))
    assert not list(contains(["a", "c"], "abc", "p"))
    assert [p.path for p in contains(["a", "x", "y"], "abc", "p")] == ["p", "p"]
    assert not list(lacks(["x", "y"], "abc", "p"))
    assert len(list(lacks(["a", "x"], "abc", "p"))) == 1
    assert not list(contains(42, "the answer is 42", "p"))


def test_reports_stay_short() -> None:
    (problem,) = equal("x" * 10_000, "y" * 1_000_000, "p", Scope())
    assert len(str(problem)) < 500
