"""Values that mean what a schema asks for: made into it, and left alone wherever something else may be meant."""

from __future__ import annotations

from typing import Any

import pytest

from cantrip_acp.text.json_fit import fit
from cantrip_acp.text.json_schema import Schema

INT = {"type": "integer"}
STR = {"type": "string"}
NULL = {"type": "null"}
TREE = {
    "$ref": "#/$defs/Node",
    "$defs": {
        "Node": {
            "type": "object",
            "properties": {"n": INT, "next": {"anyOf": [{"$ref": "#/$defs/Node"}, NULL]}, "label": STR},
            "required": ["n"],
        }
    },
}


@pytest.mark.parametrize(
    ("schema", "given", "made"),
    [
        (INT, 3.0, 3),
        (INT, -0.0, 0),
        (INT, 3.5, 3.5),
        (INT, 1e300, 1e300),
        (INT, True, True),
        ({"type": "number"}, 3.0, 3.0),
        ({}, 3.0, 3.0),
        (True, 3.0, 3.0),
        ({"anyOf": [INT, {"type": "number"}]}, 3.0, 3.0),
        ({"anyOf": [INT, STR]}, 3.0, 3),
        ({"anyOf": [INT, {}]}, 3.0, 3.0),
        ({"type": ["integer", "null"]}, 3.0, 3),
        ({"enum": [1, 2]}, 1.0, 1),
        ({"enum": [1.0, 2]}, 1.0, 1.0),
        ({"const": 1}, 1.0, 1),
        ({"type": "array", "items": INT}, [1.0, 2], [1, 2]),
        ({"type": "array", "prefixItems": [STR, INT]}, ["a", 2.0], ["a", 2]),
        ({"type": "object", "additionalProperties": INT}, {"a": 1.0}, {"a": 1}),
        ({"type": "object", "properties": {"a": INT}}, {"a": 1.0, "b": 1.0}, {"a": 1, "b": 1.0}),
        (TREE, {"n": 1.0, "next": {"n": 2.0, "next": None, "label": None}}, {"n": 1, "next": {"n": 2, "next": None}}),
        ({"$ref": "#/$defs/Lost"}, 1.0, 1.0),
        ({"$ref": "https://example.com/x"}, 1.0, 1.0),
        ({"$defs": {"A": {"$ref": "#/$defs/A"}}, "$ref": "#/$defs/A"}, 1.0, 1.0),
        ({"properties": {"a": INT, "b": INT}, "required": ["a"]}, {"a": None, "b": None}, {"a": None}),
        ({"properties": {"a": {"type": ["integer", "null"]}}}, {"a": None}, {"a": None}),
        ({"properties": {"a": {}}}, {"a": None}, {"a": None}),
        ({"properties": {"a": {"enum": ["x", None]}}}, {"a": None}, {"a": None}),
        # One of two shapes requires it.
        (
            {"anyOf": [{"properties": {"a": INT}}, {"properties": {"a": INT}, "required": ["a"]}]},
            {"a": None},
            {"a": None},
        ),
        (INT, "3", "3"),
    ],
)
def test_what_means_the_same(schema: Any, given: Any, made: Any) -> None:
    found = fit(given, schema)
    assert found == made
    assert repr(found) == repr(made)
    if found == given and repr(found) == repr(given):
        assert found is given


@pytest.mark.parametrize(
    ("schema", "given", "made"),
    [
        (INT, "2", 2),
        (INT, " -2 ", -2),
        (INT, "2.0", 2),
        (INT, "2.5", "2.5"),
        (INT, "two", "two"),
        (INT, "1_000", "1_000"),
        (INT, "0x10", "0x10"),
        (INT, "9" * 50, "9" * 50),
        ({"type": "number"}, "2.5e3", 2500.0),
        ({"type": "number"}, "nan", "nan"),
        ({"type": "number"}, "1e999", "1e999"),
        ({"type": "boolean"}, "true", True),
        ({"type": "boolean"}, "False", False),
        ({"type": "boolean"}, "yes", "yes"),
        ({"anyOf": [{"type": "boolean"}, INT]}, "2", 2),
        ({"anyOf": [INT, NULL]}, "null", None),
        ({"anyOf": [INT, STR]}, "2", "2"),
        ({}, "2", "2"),
        ({"enum": [1, 2]}, "2", 2),
        ({"enum": ["1", 2]}, "2", "2"),
        ({"type": "array", "items": INT}, ["1", 2], [1, 2]),
        ({"properties": {"a": INT, "b": STR}}, {"a": "1", "b": "1"}, {"a": 1, "b": "1"}),
    ],
)
def test_numbers_and_booleans_in_texts(schema: Any, given: Any, made: Any) -> None:
    assert repr(fit(given, schema, texts=True)) == repr(made)


def test_keys_without_a_name_are_checked_by_their_schema() -> None:
    schema = Schema({"type": "object", "additionalProperties": INT})
    assert schema.is_valid({"a": 1})
    assert not schema.is_valid({"a": "x"})
    assert schema.problems({"a": "x"}, 1) == ["a: 'x' is not of type 'integer'"]


def test_a_null_is_left_out_only_if_it_is_asked_for() -> None:
    schema = {"properties": {"a": INT, "b": INT}}
    assert fit({"a": 1.0, "b": None}, schema, nulls=False) == {"a": 1, "b": None}
    assert fit({"a": 1.0, "b": None}, schema) == {"a": 1}
