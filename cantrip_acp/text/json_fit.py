"""Arguments that mean what a JSON Schema asks for, but are written another way: made into what it asks for.

Models and the parsers of servers write 3.0 for an integer, "2" for a number, "true" for a boolean, and null for what they do
not give. A value is changed only where the schema leaves no other meaning; whether the result fits decides the schema itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Any

_LARGEST = 2**63
_WHOLE = re.compile(r"[+-]?\d{1,18}\Z")
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?\Z")
_WORDS = {"true": True, "false": False}
_UNIONS = ("anyOf", "oneOf", "allOf")
_MOST_REFERENCES = 20


def fit(value: Any, schema: Any, *, nulls: bool = True, texts: bool = False) -> Any:
    """The value in the form that the schema asks for. The same object if nothing changes.

    Whole floats become integers where no other number fits. With ``nulls``, a key that is not required and whose value may
    not be null is left out if it is null. With ``texts``, numbers, booleans and null in texts count where no text fits.
    """
    return _Fit(schema, nulls, texts).value(value, [schema])


def has_float(value: Any) -> bool:
    """Whether there is a float anywhere in the data."""
    if isinstance(value, dict):
        return any(map(has_float, value.values()))
    return any(map(has_float, value)) if isinstance(value, list) else type(value) is float


class _Fit:
    __slots__ = ("_nulls", "_root", "_texts")

    def __init__(self, root: Any, nulls: bool, texts: bool) -> None:
        self._root = root
        self._nulls = nulls
        self._texts = texts

    def value(self, value: Any, schemas: Iterable[Any]) -> Any:
        """Convert a value to the form of one of the schemas."""
        parts = self._parts(schemas)
        if isinstance(value, Mapping):
            return self._object(value, parts)
        if isinstance(value, list):
            return self._list(value, parts)
        kinds = _kinds(parts)
        if kinds is None:
            return value
        if type(value) is float:
            whole = "integer" in kinds and "number" not in kinds and value.is_integer() and abs(value) < _LARGEST
            return int(value) if whole else value
        if self._texts and isinstance(value, str) and "string" not in kinds:
            return _read(value.strip(), kinds)
        return value

    def _object(self, value: Mapping[str, Any], parts: list[Mapping[str, Any]]) -> Any:
        made: dict[str, Any] = {}
        changed = False
        required = {name for part in parts for name in part.get("required") or () if isinstance(name, str)}
        for key, each in value.items():
            of_key = [
                part["properties"][key]
                for part in parts
                if isinstance(part.get("properties"), Mapping) and key in part["properties"]
            ]
            declared = bool(of_key)
            if not declared:
                of_key = [part["additionalProperties"] for part in parts if "additionalProperties" in part]
            if self._nulls and each is None and declared and key not in required:
                kinds = _kinds(self._parts(of_key))
                if kinds is not None and "null" not in kinds:
                    changed = True
                    continue
            made[key] = fitted = self.value(each, of_key) if of_key else each
            changed = changed or fitted is not each
        return made if changed else value

    def _list(self, value: list[Any], parts: list[Mapping[str, Any]]) -> Any:
        made = []
        for index, each in enumerate(value):
            of_item = []
            for part in parts:
                first = part.get("prefixItems")
                if isinstance(first, list) and index < len(first):
                    of_item.append(first[index])
                elif "items" in part:
                    of_item.append(part["items"])
            made.append(self.value(each, of_item) if of_item else each)
        return made if any(new is not old for new, old in zip(made, value, strict=True)) else value

    def _parts(self, schemas: Iterable[Any]) -> list[Mapping[str, Any]]:
        """The schemas with their references followed and their unions taken apart. An empty mapping takes anything."""
        found: list[Mapping[str, Any]] = []
        waiting = list(schemas)
        followed = 0
        while waiting:
            schema = waiting.pop(0)
            if not isinstance(schema, Mapping):
                if schema is not False:
                    found.append({})
                continue
            reference = schema.get("$ref")
            if isinstance(reference, str):
                followed += 1
                waiting.append(self._target(reference) if followed <= _MOST_REFERENCES else True)
                continue
            unions = [schema[name] for name in _UNIONS if isinstance(schema.get(name), list)]
            for union in unions:
                waiting.extend(union)
            if not unions or any(key in schema for key in ("type", "enum", "const", "properties", "items")):
                found.append(schema)
        return found

    def _target(self, reference: str) -> Any:
        """The target of a reference within the schema; True, which accepts anything, if there is none."""
        if not reference.startswith("#"):
            return True
        found = self._root
        for step in reference[1:].split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, Mapping) or name not in found:
                return True
            found = found[name]
        return found


def _kinds(parts: Iterable[Mapping[str, Any]]) -> set[str] | None:
    """The kinds of values that may fit one of the schemas; None if any may."""
    kinds: set[str] = set()
    for part in parts:
        values = part.get("enum", [part["const"]] if "const" in part else None)
        if isinstance(values, list):
            kinds.update(map(_kind, values))
            continue
        named = part.get("type")
        names = [named] if isinstance(named, str) else named
        if not isinstance(names, list):
            if "properties" not in part:
                return None
            names = ["object"]
        kinds.update(name for name in names if isinstance(name, str))
    return kinds


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, str):
        return "string"
    if isinstance(value, int | float):
        return "integer" if isinstance(value, int) else "number"
    return "array" if isinstance(value, list) else "object"


def _read(text: str, kinds: set[str]) -> Any:
    """Parse a text as a value of one of the kinds; return the text if that is not possible."""
    if "boolean" in kinds and text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if ("integer" in kinds or "number" in kinds) and _WHOLE.match(text):
        return int(text)
    if ("integer" in kinds or "number" in kinds) and _NUMBER.match(text) and isfinite(number := float(text)):
        if "number" in kinds:
            return number
        return int(number) if number.is_integer() and abs(number) < _LARGEST else text
    return None if "null" in kinds and text.lower() in ("null", "none") else text
