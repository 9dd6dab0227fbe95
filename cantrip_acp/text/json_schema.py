"""JSON Schema: checks values, such as the arguments of gates.

jsonschema does the work. Two things are our own, because schemas come from MCP servers and from recipes too:

- Patterns are matched by pydantic-core's engine, in linear time. `re` can take hours for a short text.
- No reference leaves the schema: nothing is downloaded.

Importing jsonschema takes longer than a small cast. So a schema that has only the frequent keywords is first checked by
`_quick`, which accepts most values and leaves all others to jsonschema.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import islice
from math import isfinite
from typing import Any

from cantrip_acp.text.json_data import FrozenDict, FrozenList

Quick = Callable[[Any], bool]
"""True for values that fit. False for others, and for values that it cannot decide about."""

_KINDS: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (dict, FrozenDict),
    "array": (list, FrozenList),
    "null": (type(None),),
}
_TEXTS = frozenset({"title", "description", "default", "examples", "$comment"})
_SCALARS = frozenset({str, int, bool, type(None)})


class Schema:
    """A JSON Schema, of draft 2020-12 if it does not name another. Raises ValueError if it is not valid."""

    def __init__(self, schema: Any) -> None:
        self._schema = schema
        self._quick = _quick(schema)
        self._full: Any = None
        if self._quick is None:
            self._full = _full(schema)

    def is_valid(self, value: Any) -> bool:
        """Whether the value fits. Raises ValueError, TypeError or RecursionError for a value that is not JSON data."""
        if self._quick is not None and self._quick(value):
            return True
        json.dumps(value, allow_nan=False)
        return not self.problems(value, 1)

    def problems(self, value: Any, most: int) -> list[str]:
        """The parts of a value that do not fit, each with its place, such as ``steps.0.name: 5 is not of type 'string'``. At
        most ``most``."""
        from referencing.exceptions import Unresolvable

        found = []
        try:
            errors = list(islice(self._validator().iter_errors(value), most))
        except Unresolvable as lost:
            raise ValueError(str(lost)) from None
        for error in errors:
            place = ".".join(str(part) for part in error.absolute_path)
            found.append(f"{place}: {error.message}" if place else str(error.message))
        return found

    def _validator(self) -> Any:
        if self._full is None:
            self._full = _full(self._schema)
        return self._full


def _full(schema: Any) -> Any:
    """A validator of jsonschema. Raises ValueError for a schema that is not valid."""
    import jsonschema
    from referencing import Registry

    if not isinstance(schema, dict | bool):
        raise ValueError("it is not an object")
    base = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        base.check_schema(schema, jsonschema.FormatChecker(formats=()))
    except jsonschema.SchemaError as error:
        place = ".".join(str(part) for part in error.absolute_path)
        raise ValueError(f"{place}: {error.message}" if place else error.message) from None
    try:
        text = json.dumps(schema)
    except (TypeError, ValueError) as error:
        raise ValueError(f"it is not JSON data: {error}") from None
    if '"patternProperties"' in text and '"unevaluatedProperties"' in text:
        raise ValueError("unevaluatedProperties beside patternProperties is not supported")
    for pattern in (*_found(schema, "pattern"), *_found(schema, "patternProperties")):
        _matcher(pattern)
    if '"$id"' not in text:
        _check_references(schema, base)
    own = {
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
    }
    # An empty registry: a reference to another address is not resolved.
    return jsonschema.validators.extend(base, own)(schema, registry=Registry())


def _check_references(schema: Any, base: Any) -> None:
    """Raise ValueError if a reference within the schema has no target."""
    from referencing import Registry
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import specification_with

    resource = specification_with(base.META_SCHEMA["$schema"]).create_resource(schema)
    resolver = Registry().with_resource("", resource).resolver()
    for reference in _found(schema, "$ref"):
        try:
            resolver.lookup(reference)
        except Unresolvable:
            raise ValueError(f"its reference {reference!r} has no target") from None


def _found(schema: Any, keyword: str) -> Iterator[str]:
    """All texts at a keyword anywhere in the schema, and the keys of a mapping there."""
    if isinstance(schema, dict):
        for key, each in schema.items():
            if key == keyword and isinstance(each, str):
                yield each
            elif key == keyword and isinstance(each, dict):
                yield from each
            yield from _found(each, keyword)
    elif isinstance(schema, list):
        for each in schema:
            yield from _found(each, keyword)


@lru_cache(512)
def _matcher(pattern: str) -> Any:
    """A validator of pydantic-core whose `isinstance_python` searches a text. None if the linear engine lacks what the
    pattern needs (a look-around or a back reference): such a pattern is not checked. Raises ValueError for a wrong one."""
    import re

    from pydantic_core import SchemaError, SchemaValidator, core_schema

    try:
        return SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex", strict=True))
    except SchemaError as error:
        try:
            re.compile(pattern)
        except re.error:
            raise ValueError(f"its pattern {pattern!r} is not a regular expression: {error}") from None
        return None


def _matches(pattern: str, text: str) -> bool:
    matcher = _matcher(pattern)
    return matcher is None or bool(matcher.isinstance_python(text))


def _pattern(validator: Any, pattern: str, value: Any, schema: Any) -> Iterator[Any]:
    from jsonschema import ValidationError

    if isinstance(value, str) and not _matches(pattern, value):
        yield ValidationError(f"{value!r} does not match {pattern!r}")


def _pattern_properties(validator: Any, patterns: dict[str, Any], value: Any, schema: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for pattern, part in patterns.items():
            for key, each in value.items():
                if _matches(pattern, key):
                    yield from validator.descend(each, part, path=key, schema_path=pattern)


def _additional_properties(validator: Any, part: Any, value: Any, schema: Any) -> Iterator[Any]:
    from jsonschema import ValidationError

    if not isinstance(value, dict):
        return
    known, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    further = [key for key in value if key not in known and not any(_matches(each, key) for each in patterns)]
    if isinstance(part, dict):
        for key in further:
            yield from validator.descend(value[key], part, path=key)
    elif not part and further:
        named = ", ".join(map(repr, further))
        verb = "was" if len(further) == 1 else "were"
        yield ValidationError(f"Additional properties are not allowed ({named} {verb} unexpected)")


# --- The frequent keywords, without jsonschema. A schema becomes functions once.


def _quick(schema: Any) -> Quick | None:
    """A function that is True only for values that fit. None if the schema has other keywords, or a wrong one."""
    if not isinstance(schema, dict):
        return None
    rest = {key: each for key, each in schema.items() if key not in _TEXTS}
    if not rest:
        return lambda value: type(value) in _SCALARS
    if set(rest) == {"anyOf"} and isinstance(rest["anyOf"], list) and rest["anyOf"]:
        parts = [_quick(part) for part in rest["anyOf"]]
        return None if None in parts else lambda value: any(part(value) for part in parts if part)
    named = rest.pop("type", None)
    kinds: set[type] = set()
    for name in named if isinstance(named, list) and named else [named]:
        if not isinstance(name, str) or name not in _KINDS:
            return None
        kinds.update(_KINDS[name])
    checks: list[Quick] = [lambda value: type(value) in kinds]
    if float in kinds:
        checks.append(lambda value: type(value) is not float or isfinite(value))
    for taken, make in ((dict, _quick_object), (list, _quick_array)):
        if taken in kinds:
            made = make(rest)
            if made is None or len(kinds) > 2:
                return None
            checks.append(made)
    for key, wanted in rest.items():
        made = _quick_bound(key, wanted, kinds)
        if made is None:
            return None
        checks.append(made)
    return lambda value: all(check(value) for check in checks)


def _quick_object(rest: dict[str, Any]) -> Quick | None:
    """Make the check for the keywords of objects, and remove these from ``rest``."""
    properties, required = rest.pop("properties", {}), rest.pop("required", [])
    more = rest.pop("additionalProperties", True)
    further = None if isinstance(more, bool) else _quick(more)
    if not isinstance(more, bool) and further is None:
        return None
    if not isinstance(properties, dict) or not isinstance(required, list) or len(set(required)) != len(required):
        return None
    if not all(isinstance(name, str) for name in required):
        return None
    parts = {name: _quick(part) for name, part in properties.items()}
    if None in parts.values():
        return None
    return lambda value: (
        all(name in value for name in required)
        # jsonschema decides about keys that are not named, if they have no schema.
        and all((part := parts.get(key, further)) is not None and part(each) for key, each in value.items())
    )


def _quick_array(rest: dict[str, Any]) -> Quick | None:
    """Make the check for the keyword ``items``, and remove it from ``rest``."""
    item = _quick(rest.pop("items", {}))
    return None if item is None else lambda value: all(map(item, value))


def _quick_bound(key: str, wanted: Any, kinds: set[type]) -> Quick | None:
    if key == "enum" and isinstance(wanted, list) and wanted and all(type(each) is str for each in wanted):
        return lambda value: type(value) is str and value in wanted
    if key in ("minimum", "maximum") and type(wanted) in (int, float) and kinds <= {int, float}:
        return (lambda value: bool(value >= wanted)) if key == "minimum" else lambda value: bool(value <= wanted)
    lengths = kinds <= {str} if key.endswith("Length") else kinds <= {list, FrozenList}
    if key in ("minLength", "maxLength", "minItems", "maxItems") and type(wanted) is int and wanted >= 0 and lengths:
        return (lambda value: len(value) >= wanted) if key[:3] == "min" else lambda value: len(value) <= wanted
    return None
