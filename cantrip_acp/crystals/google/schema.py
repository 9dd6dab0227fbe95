"""Gemini schema: reduces a gate's JSON Schema to the part that Gemini's ``parametersJsonSchema`` takes.

An unsupported keyword is expressed differently where possible (``const`` as an enum), else dropped. Nothing becomes
less strict: arguments are checked against the whole schema when the gate is called.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_KEPT = frozenset(
    {
        "type",
        "format",
        "title",
        "description",
        "enum",
        "minItems",
        "maxItems",
        "minimum",
        "maximum",
        "required",
        "propertyOrdering",
        "$id",
        "$anchor",
    }
)
_SCHEMAS = ("items", "additionalProperties")
_LISTS = ("prefixItems", "anyOf", "oneOf")
_NAMED = ("properties", "$defs", "definitions")


def accepted(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema as Gemini takes it. It depends only on the schema, and keeps its key order."""
    if "$ref" in schema:
        # Next to a reference, it allows only keys that start with $.
        out: dict[str, Any] = {"$ref": str(schema["$ref"]).replace("#/definitions/", "#/$defs/", 1)}
    else:
        out = {}
        for key, value in schema.items():
            if key in _KEPT:
                out[key] = value
            elif key in _SCHEMAS:
                out[key] = accepted(value) if isinstance(value, Mapping) else value
            elif key in _LISTS and isinstance(value, list | tuple):
                out[key] = [accepted(each) for each in value if isinstance(each, Mapping)]
    for key in _NAMED:
        if isinstance(value := schema.get(key), Mapping):
            name = "$defs" if key == "definitions" else key
            if name == "$defs" or "$ref" not in out:
                out[name] = {each: accepted(v) for each, v in value.items() if isinstance(v, Mapping)}
    if "$ref" not in out:
        _say_otherwise(schema, out)
    return out


def _say_otherwise(schema: Mapping[str, Any], out: dict[str, Any]) -> None:
    if "const" in schema:
        const = schema["const"]
        if isinstance(const, bool):
            out.setdefault("type", "boolean")
        elif isinstance(const, str | int | float):
            out["enum"] = [const]
    if any(not isinstance(v, str | int | float) or isinstance(v, bool) for v in out.get("enum") or ()):
        # Its enums hold only strings and numbers.
        out.pop("enum", None)
    for key, name in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if isinstance(schema.get(key), int | float) and not isinstance(schema[key], bool):
            out.setdefault(name, schema[key])
    whole = schema.get("allOf")
    if isinstance(whole, list | tuple):
        for each in whole:
            if isinstance(each, Mapping):
                _join(out, accepted(each))


def _join(out: dict[str, Any], more: Mapping[str, Any]) -> None:
    """Merge one schema of an ``allOf``. Where two define the same key, the first one wins."""
    for key, value in more.items():
        if key == "properties":
            out[key] = {**value, **out.get(key, {})}
        elif key == "required":
            out[key] = list(dict.fromkeys([*out.get(key, ()), *value]))
        else:
            out.setdefault(key, value)
