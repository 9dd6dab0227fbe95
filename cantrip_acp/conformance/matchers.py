"""Matches an expected value with an actual one: equality, and a few texts with a special meaning.

``not_null`` · ``null`` · ``greater_than(x)`` · ``turns[i].id`` (that turn's id). As an entity's id, a name like
``parent`` or ``child`` binds to the first entity that it is compared with, and must match that entity from then on. Two
names never match the same entity.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cantrip_acp.conformance.grammar import Problem

_GREATER = re.compile(r"greater_than\(\s*([-+]?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?)\s*\)\Z")
_TURN = re.compile(r"turns\[(\d+)\]\.(id|parent_id|entity_id)\Z")
_ENTITY = re.compile(r"(parent|child|grandchild|sibling|fork)(_?\d+)?\Z")
_SWITCH = {"on": True, "off": False}

_repr = reprlib.Repr()
_repr.maxstring = _repr.maxother = 160
_repr.maxdict = _repr.maxlist = 8
_repr.maxlevel = 4


@dataclass
class Scope:
    """What references mean in one case: the turns of the loom in order, and the entity that each name is bound to."""

    turns: Sequence[Any] = ()
    entities: dict[str, str] = field(default_factory=dict)


def show(value: Any) -> str:
    """A value for a report: null and booleans as in JSON, on one line, cut if it is long."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    return _repr.repr(value)


def equal(expected: Any, actual: Any, path: str, scope: Scope) -> Iterator[Problem]:
    """Yield the differences. Mappings and lists are compared as a whole; special texts work at any depth."""
    if isinstance(expected, Mapping) and isinstance(actual, Mapping):
        for key in expected:
            if key not in actual:
                yield Problem(f"{path}.{key}", f"expected {show(expected[key])}, but there is no such key")
            else:
                yield from equal(expected[key], actual[key], f"{path}.{key}", scope)
        for key in actual:
            if key not in expected:
                yield Problem(path, f"has {key!r} too, which is not expected")
    elif _is_list(expected) and _is_list(actual):
        yield from items(expected, actual, path, scope)
    elif not scalar(expected, actual, scope):
        yield Problem(path, f"expected {show(expected)}, got {show(actual)}")


def items(expected: Sequence[Any], actual: Sequence[Any], path: str, scope: Scope) -> Iterator[Problem]:
    """Compare two lists: each item and the length."""
    for number, (want, got) in enumerate(zip(expected, actual, strict=False)):
        yield from equal(want, got, f"{path}[{number}]", scope)
    if len(expected) != len(actual):
        yield Problem(path, f"expected {len(expected)} items, got {len(actual)}: {show(list(actual))}")


def subset(expected: Any, actual: Any, path: str, scope: Scope) -> Iterator[Problem]:
    """Like `equal`, but only the given keys of a mapping are compared."""
    if isinstance(expected, Mapping) and isinstance(actual, Mapping):
        for key, want in expected.items():
            yield from subset(want, actual.get(key), f"{path}.{key}", scope)
    else:
        yield from equal(expected, actual, path, scope)


def scalar(expected: Any, actual: Any, scope: Scope) -> bool:
    """Whether one value matches; 1 and 1.0 are equal, 1 and true are not."""
    if isinstance(expected, str):
        if expected == "not_null":
            return actual is not None
        if expected == "null":
            return actual is None or actual == expected
        greater = _GREATER.match(expected)
        if greater:
            return _is_number(actual) and actual > float(greater[1])
        turn = _TURN.match(expected)
        if turn:
            number = int(turn[1])
            return number < len(scope.turns) and actual == getattr(scope.turns[number], turn[2])
        if isinstance(actual, bool) and expected in _SWITCH:
            return actual is _SWITCH[expected]
    if isinstance(expected, bool) or isinstance(actual, bool):
        return expected is actual
    if _is_number(expected) and _is_number(actual):
        return bool(expected == actual)
    return type(expected) is type(actual) and bool(expected == actual)


def entity(expected: Any, actual: str, path: str, scope: Scope) -> Iterator[Problem]:
    """Compare an entity's id with a name that binds, or with any other matcher."""
    if not isinstance(expected, str) or not _ENTITY.match(expected):
        yield from equal(expected, actual, path, scope)
        return
    bound = scope.entities.setdefault(expected, actual)
    if bound != actual:
        yield Problem(path, f"expected {expected} to be entity {bound} as before, got {actual}")
        return
    other = next((name for name, known in scope.entities.items() if known == actual and name != expected), None)
    if other is not None:
        yield Problem(path, f"expected {expected} to be another entity than {other}, but both are {actual}")


def contains(expected: Any, text: str, path: str) -> Iterator[Problem]:
    """Require that a text contains one text, or every text of a list."""
    for want in expected if _is_list(expected) else [expected]:
        if str(want) not in text:
            yield Problem(path, f"expected a text that holds {str(want)!r}, got {show(text)}")


def lacks(expected: Any, text: str, path: str) -> Iterator[Problem]:
    """Require that a text contains neither one text nor any text of a list."""
    for unwanted in expected if _is_list(expected) else [expected]:
        at = text.find(str(unwanted))
        if at >= 0:
            yield Problem(
                path, f"expected no {str(unwanted)!r}, but it stands in …{show(text[max(0, at - 40) : at + 60])}…"
            )


def sized(expected: Sequence[Any]) -> tuple[list[Any], Any]:
    """A list's items, and the ``length`` that may come before them (None if there is none)."""
    wanted = list(expected)
    if wanted and isinstance(wanted[0], Mapping) and set(wanted[0]) == {"length"}:
        return wanted[1:], wanted[0]["length"]
    return wanted, None


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
