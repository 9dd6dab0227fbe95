"""Tuples: what is valid, what an id depends on, what a pattern selects."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantrip_acp.text import redaction
from cantrip_acp.tuplespace.canonical_json import canonical_json, content_id
from cantrip_acp.tuplespace.errors import NewerSchema, TupleError
from cantrip_acp.tuplespace.tuples import MAX_BYTES, Pattern, contains, new_tuple, parse_tuple, tuple_id

EXAMPLE: dict[str, Any] = {
    "schema": "yool-tuple/v1",
    "map_pos": {"repo": "EVT", "branch": "feat/JIRA-456", "sprint_id": "JIRA-456", "stack": "dotnet"},
    "authority": {"user": "wes", "agent": "sendsprint", "ci": False},
    "lane": "build",
    "agent_terms": {
        "budget_usd": 0.50,
        "budget_tokens": 50000,
        "deadline_iso": "2026-05-19T20:00:00Z",
        "max_retries": 2,
        "cpu_quota_pct": 60,
        "disk_quota_mb": 100,
    },
    "src_ptr": ["jira://EVT/JIRA-456", "commit://abc123"],
    "payload": [
        {"yool": "agent.dev.dotnet", "args": {}},
        {"yool": "agent.lint.dotnet", "args": {}},
        {"yool": "agent.test.dotnet", "args": {"filter": "Unit"}},
    ],
    "receipts": [],
    "parent_id": None,
    "created_at": "2026-05-19T17:30:00Z",
}
"""The example of the seed, §2.2."""


def test_the_id_is_the_hash_of_the_canonical_form() -> None:
    hashed = {k: v for k, v in EXAMPLE.items() if k not in ("receipts", "created_at")}
    canonical = json.dumps(hashed, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert tuple_id(EXAMPLE) == "sha256:" + hashlib.sha256(canonical.encode()).hexdigest()
    work = parse_tuple(EXAMPLE)
    assert work.id == tuple_id(EXAMPLE)
    assert work.document == {**EXAMPLE, "id": work.id}
    assert parse_tuple(canonical_json(work.document)) == work


@pytest.mark.parametrize("change", [{"receipts": ["sha256:" + "a" * 64]}, {"created_at": "2027-01-01T00:00:00+01:00"}])
def test_receipts_and_time_do_not_change_the_id(change: dict[str, Any]) -> None:
    assert parse_tuple({**EXAMPLE, **change}).id == tuple_id(EXAMPLE)


@pytest.mark.parametrize("field", [k for k in EXAMPLE if k not in ("receipts", "created_at", "schema")])
def test_every_other_field_changes_the_id(field: str) -> None:
    other = {"lane": "test", "parent_id": "sha256:" + "b" * 64, "src_ptr": [], "payload": EXAMPLE["payload"][:1]}
    assert parse_tuple({**EXAMPLE, field: other.get(field, {})}).id != tuple_id(EXAMPLE)


def test_the_same_work_has_the_same_id_at_any_time() -> None:
    one = new_tuple("build", [{"yool": "agent.lint.ruff"}])
    two = new_tuple("build", [{"yool": "agent.lint.ruff"}])
    again = new_tuple("build", [{"yool": "agent.lint.ruff"}], map_pos={"sample": 3})
    assert one.id == two.id != again.id


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lane": ""}, r"\$\.lane"),
        ({"lane": "no spaces"}, r"\$\.lane"),
        ({"lane": 3}, r"Expected `str`, got `int` - at `\$\.lane`"),
        ({"payload": []}, r"\$\.payload"),
        ({"payload": [{"yool": "lint"}]}, r"\$\.payload\[0\]\.yool"),
        ({"payload": [{"yool": "a.b", "arguments": {}}]}, r"unknown field `arguments` - at `\$\.payload\[0\]`"),
        ({"payload": [{"yool": "a.b", "after": ["x"]}]}, "no step has the id 'x'"),
        ({"payload": [{"yool": "a.b", "id": "x"}, {"yool": "a.b", "id": "x"}]}, "same id"),
        ({"payload": [{"yool": "a.b", "id": "x", "after": ["x"]}]}, "wait for each other"),
        ({"agent_terms": {"budget_usd": -1}}, r"\$\.agent_terms\.budget_usd"),
        ({"agent_terms": {"cpu_quota_pct": 101}}, r"\$\.agent_terms\.cpu_quota_pct"),
        ({"agent_terms": {"deadline_iso": "tomorrow"}}, r"'tomorrow' is not a time with a zone"),
        ({"agent_terms": {"deadline_iso": "2026-05-19T20:00:00"}}, "not a time with a zone"),
        ({"schema": "yool-tuple/2"}, r"\$\.schema"),
        ({"id": "sha256:" + "0" * 64}, "its content has the id sha256:"),
        ({"parent_id": "me"}, r"\$\.parent_id"),
        ({"budget": 1}, "unknown field `budget`"),
        ({"map_pos": {"n": float("nan")}}, "not JSON data"),
        ({"map_pos": {"n": "a\0b"}}, "NUL"),
        ({"map_pos": {"big": "x" * MAX_BYTES}}, "at most 1048576 are allowed"),
    ],
)
def test_what_is_wrong_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(TupleError, match=message):
        parse_tuple({**EXAMPLE, **change})


@pytest.mark.parametrize("text", ["", "[]", "{", '"x"', b"\xff", "[" * 100_000, "null"])
def test_what_is_no_tuple_is_an_error(text: str | bytes) -> None:
    with pytest.raises(TupleError):
        parse_tuple(text)


def test_a_tuple_cannot_be_changed() -> None:
    work = parse_tuple(EXAMPLE)
    with pytest.raises(AttributeError):
        work.lane = "test"  # type: ignore[misc]
    with pytest.raises(TypeError):
        dict.__getattribute__(work.map_pos, "__setitem__")("repo", "other")


def test_steps_run_in_order_or_after_those_that_they_name() -> None:
    assert parse_tuple(EXAMPLE).step_needs() == [set(), {0}, {1}]
    steps: list[dict[str, Any]] = [
        {"yool": "a.b", "id": "last", "after": ["left", "right"]},
        {"yool": "a.b", "id": "left", "after": ["first"]},
        {"yool": "a.b", "id": "right", "after": ["first"]},
        {"yool": "a.b", "id": "first"},
    ]
    assert new_tuple("x", steps).step_needs() == [{1, 2}, {3}, {3}, set()]


@pytest.mark.parametrize(
    ("pattern", "matches"),
    [
        ({}, True),
        ({"lane": "build"}, True),
        ({"lane": "test"}, False),
        ({"map_pos": {"repo": "EVT", "stack": "dotnet"}}, True),
        ({"map_pos": {"repo": "EVT", "stack": "python"}}, False),
        ({"payload": [{"yool": "agent.test.dotnet"}]}, True),
        ({"payload": [{"args": {"filter": "Unit"}}, {"yool": "agent.dev.dotnet"}]}, True),
        ({"payload": [{"yool": "agent.dev.dotnet", "args": {"filter": "Unit"}}]}, False),
        ({"authority": {"ci": False}}, True),
        ({"authority": {"ci": 0}}, False),
        ({"agent_terms": {"max_retries": 2.0}}, True),
        ({"src_ptr": ["commit://abc123"]}, True),
        ({"parent_id": None}, True),
    ],
)
def test_a_pattern_is_a_part_of_a_tuple(pattern: dict[str, Any], matches: bool) -> None:
    assert Pattern(pattern).matches(EXAMPLE) is matches


@pytest.mark.parametrize("pattern", [{"lanes": "x"}, {"lane": 3}, {"map_pos": {"x": float("inf")}}])
def test_a_pattern_that_can_match_nothing_is_an_error(pattern: dict[str, Any]) -> None:
    with pytest.raises(TupleError):
        Pattern(pattern)


_DATA = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=8,
)


@given(_DATA)
def test_data_contains_itself_and_its_id_survives_json(value: Any) -> None:
    assert contains(value, value)
    try:
        identity = content_id(value)
    except TupleError:
        return
    assert content_id(json.loads(canonical_json(value))) == identity


@pytest.mark.parametrize(
    ("step", "place"),
    [
        ({"yool": "a.b", "args": {"intent": "use " + "ghp_" + "A1b2" * 9}}, "$.payload[0].args.intent"),
        ({"yool": "a.b", "args": {"env": [{"deep": "known-secret-value"}]}}, "$.payload[0].args.env[0].deep"),
    ],
)
def test_a_tuple_with_a_secret_is_refused_without_showing_it(step: dict[str, Any], place: str) -> None:
    redaction.shared().add("known-secret-value")
    with pytest.raises(TupleError, match="is a secret, or looks like one") as refused:
        new_tuple("x", [step])
    assert f"at `{place}`" in str(refused.value)
    assert "known-secret-value" not in str(refused.value)
    assert "ghp_" not in str(refused.value)


STEPS: list[dict[str, Any]] = [{"yool": "a.b"}]
FULL: dict[str, Any] = {"schema": "yool-tuple/v2", "lane": "x", "payload": STEPS}


@pytest.mark.parametrize(
    "more",
    [
        {"parent_id": None, "src_ptr": [], "map_pos": {}},
        {"authority": None, "agent_terms": {"max_retries": None}, "receipts": None, "created_at": None},
        {"flags": {"no_cache": False}},
        {"flags": None, "payload": [{"yool": "a.b", "args": {}, "after": None}]},
        {"receipts": ["sha256:" + "0" * 64], "created_at": "2026-05-19T17:30:00Z"},
    ],
)
def test_in_version_2_absent_null_and_empty_fields_are_the_same(more: dict[str, Any]) -> None:
    work = parse_tuple(FULL)
    same = parse_tuple({**FULL, **more})
    assert same.id == work.id
    # Also with the id, which was made of the normal form.
    assert parse_tuple({**FULL, **more, "id": work.id}).id == work.id
    assert parse_tuple(same.document) == same
    # What a step gets is not changed.
    assert parse_tuple({**FULL, "payload": [{"yool": "a.b", "args": {"x": None}}]}).id != work.id


def test_a_step_that_waits_for_nothing_is_not_one_without_after() -> None:
    steps = [{"yool": "a.b", "after": []}, {"yool": "a.c", "after": []}]
    assert new_tuple("x", steps, flags={}).step_needs() == [set(), set()]
    assert new_tuple("x", [{**step, "after": None} for step in steps], flags={}).step_needs() == [set(), {0}]


def test_flags_are_of_version_2_and_make_other_work() -> None:
    work = new_tuple("x", STEPS, flags={"no_cache": True})
    assert (work.schema, work.no_cache) == ("yool-tuple/v2", True)
    assert work.id != new_tuple("x", STEPS, flags={}).id
    assert new_tuple("x", STEPS).schema == "yool-tuple/v1"
    with pytest.raises(TupleError, match=r"flags need the schema yool-tuple/v2 - at `\$\.flags`"):
        parse_tuple({**FULL, "schema": "yool-tuple/v1", "flags": {"no_cache": True}})
    with pytest.raises(TupleError, match="unknown field `fast`"):
        parse_tuple({**FULL, "flags": {"fast": True}})


def test_ids_of_version_1_have_no_normal_form() -> None:
    first = {**FULL, "schema": "yool-tuple/v1"}
    assert parse_tuple(first).id != parse_tuple({**first, "parent_id": None}).id


def test_a_newer_schema_is_named_and_says_what_to_do() -> None:
    with pytest.raises(
        NewerSchema, match=r"schema yool-tuple/v3, and this version .* knows .*/v2\. Upgrade cantrip-acp"
    ):
        parse_tuple({**FULL, "schema": "yool-tuple/v3", "anything": 1})
    with pytest.raises(TupleError, match="Invalid enum value"):
        parse_tuple({**FULL, "schema": "other/v1"})
