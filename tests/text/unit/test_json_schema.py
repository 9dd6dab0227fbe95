"""Checking values by JSON Schema: the short way accepts nothing that the whole way would not, and patterns end."""

from __future__ import annotations

import http.server
import threading
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cantrip_acp.text.json_data import freeze
from cantrip_acp.text.json_schema import Schema, _quick

SCALARS = st.none() | st.booleans() | st.integers(-5, 5) | st.floats(-5, 5) | st.text("ab", max_size=3)
NAMES = st.sampled_from("abcd")
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3))


def _leaves() -> st.SearchStrategy[dict[str, Any]]:
    short = st.fixed_dictionaries(
        {}, optional={"minLength": st.integers(0, 2), "maxLength": st.integers(0, 3), "description": st.just("text")}
    )
    bounds = st.fixed_dictionaries({}, optional={"minimum": st.integers(-3, 3), "maximum": st.floats(-3, 3)})
    numbers = st.sampled_from(("integer", "number", ["integer", "number"]))
    return st.one_of(
        st.just({}),
        st.sampled_from(({"type": "null"}, {"type": "boolean"}, {"type": ["string", "null"]}, {"type": "strin"})),
        short.map(lambda rest: {"type": "string", **rest}),
        st.lists(st.text("ab", max_size=2), min_size=1, max_size=3, unique=True).map(
            lambda a: {"type": "string", "enum": a}
        ),
        st.tuples(numbers, bounds).map(lambda pair: {"type": pair[0], **pair[1]}),
        st.just({"type": "string", "pattern": "^a+$"}),
    )


def _branches(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    properties = st.dictionaries(NAMES, inner, max_size=3)
    required = st.lists(NAMES, max_size=2, unique=True)
    closed = st.fixed_dictionaries({}, optional={"additionalProperties": st.booleans(), "required": required})
    sizes = st.fixed_dictionaries({}, optional={"minItems": st.integers(0, 2), "maxItems": st.integers(0, 2)})
    return st.one_of(
        st.tuples(properties, closed).map(lambda pair: {"type": "object", "properties": pair[0], **pair[1]}),
        st.tuples(inner, sizes).map(lambda pair: {"type": "array", "items": pair[0], **pair[1]}),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: {"anyOf": parts}),
    )


SCHEMAS = st.recursive(_leaves(), _branches, max_leaves=8)


@settings(max_examples=400, deadline=None)
@given(SCHEMAS, VALUES)
def test_every_verdict_is_that_of_another_validator(schema: dict[str, Any], value: Any) -> None:
    try:
        other = jsonschema_rs.validator_for(schema)
    except ValueError:
        with pytest.raises(ValueError, match=r"\S"):
            Schema(schema)
        return
    ours = Schema(schema)
    assert ours.is_valid(value) == other.is_valid(value)
    assert ours.is_valid(freeze(value)) == other.is_valid(value)
    assert bool(ours.problems(value, 1)) != other.is_valid(value)


@pytest.mark.parametrize(
    ("schema", "value", "problem"),
    [
        ({"type": "object", "additionalProperties": False}, {"a": 1}, "Additional properties are not allowed ('a' was unexpected)"),
        ({"patternProperties": {"^x": {"type": "null"}}, "additionalProperties": False}, {"x1": 1}, "x1: 1 is not of type 'null'"),
        ({"patternProperties": {"^x": {}}, "additionalProperties": {"type": "null"}}, {"y": 1}, "y: 1 is not of type 'null'"),
        ({"pattern": r"^\p{L}+$"}, "été1", r"'été1' does not match '^\\p{L}+$'"),
        ({"$defs": {"n": {"type": "integer"}}, "items": {"$ref": "#/$defs/n"}}, [1, "2"], "1: '2' is not of type 'integer'"),
        ({"prefixItems": [{"const": 1}], "items": False}, [1, 2], "Expected at most 1 item but found 1 extra: 2"),
        ({"dependentRequired": {"a": ["b"]}}, {"a": 1}, "'b' is a dependency of 'a'"),
    ],
)  # fmt: skip
def test_other_keywords(schema: dict[str, Any], value: Any, problem: str) -> None:
    assert _quick(schema) is None or not _quick(schema)(value)  # type: ignore[misc]
    assert (Schema(schema).is_valid(value), Schema(schema).problems(value, 5)) == (False, [problem])


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "strin"},
        {"type": "object", "properties": {"a": {"minimum": "1"}}},
        {"$ref": "#/$defs/gone"},
        {"pattern": "("},
        {"patternProperties": {"[": {}}},
        {"patternProperties": {"a": {}}, "unevaluatedProperties": False},
        {"required": "a"},
        5,
    ],
)
def test_a_wrong_schema_is_refused(schema: Any) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        Schema(schema)


def test_a_hostile_pattern_takes_no_time() -> None:
    text = "a" * 50_000 + "!"
    assert not Schema({"type": "string", "pattern": "^(a+)+$"}).is_valid(text)
    assert not Schema({"patternProperties": {"^(a|a)*$": {}}, "additionalProperties": False}).is_valid({text: 1})
    # The engine has no look-around and no back references. Such a pattern is not checked.
    assert Schema({"type": "string", "pattern": r"^(?=(a+)+$)(a)\2*$"}).is_valid(text)


@pytest.mark.parametrize("value", [{"a": object()}, {"a": float("nan")}, {"a": {1, 2}}])
def test_what_is_no_json_data_does_not_fit(value: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        Schema({"type": "object"}).is_valid(value)


def test_nothing_is_downloaded() -> None:
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: object) -> None: ...

    web = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=web.serve_forever, daemon=True).start()
    base = f"http://127.0.0.1:{web.server_port}"
    try:
        with pytest.raises(ValueError, match="has no target"):
            Schema({"$ref": f"{base}/a"})
        later = Schema({"$id": f"{base}/", "properties": {"a": {"$ref": "c"}}})
        with pytest.raises(ValueError, match="Unresolvable"):
            later.is_valid({"a": 1})
        assert jsonschema_rs.validator_for({"$ref": f"{base}/control"}) is not None
    finally:
        web.shutdown()
    assert asked == ["/control"]
