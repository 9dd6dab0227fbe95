"""Pattern matching for scripts: compares a script's expectations with what the agent did, and describes each mismatch.
A pattern is plain data. A mapping fits a mapping that has at least its keys. A list fits a list of the same length, entry
by entry. Any other value fits an equal value. A mapping with one of these keys is a condition instead: `contains` (a text
in a text, an entry in a list), `matches` (a regular expression somewhere in a text), `equals` (exactly this value),
`not` (a pattern that must not fit), `any: true` (there is a value that is not null).
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

CONDITIONS: Final = ("contains", "matches", "equals", "not", "any")

_SHOWN: Final = 4000


def is_condition(pattern: Any) -> bool:
    """Whether a mapping is a condition, not a pattern of keys."""
    return isinstance(pattern, Mapping) and len(pattern) == 1 and next(iter(pattern)) in CONDITIONS


def mismatches(pattern: Any, value: Any, where: str) -> Iterator[str]:
    """Yield each mismatch with its place; nothing if all fits."""
    if is_condition(pattern):
        ((name, wanted),) = pattern.items()
        yield from _condition(name, wanted, value, where)
    elif isinstance(pattern, Mapping):
        if not isinstance(value, Mapping):
            yield f"{where}: expected an object, and it is {shown(value)}"
            return
        for key, wanted in pattern.items():
            if key not in value and wanted is not None and not _may_be_absent(wanted):
                yield f"{where}.{key}: is missing; there are {', '.join(map(str, value)) or 'no keys'}"
            else:
                yield from mismatches(wanted, value.get(key), f"{where}.{key}")
    elif isinstance(pattern, list):
        if not isinstance(value, Sequence) or isinstance(value, str):
            yield f"{where}: expected a list, and it is {shown(value)}"
            return
        if len(value) != len(pattern):
            yield f"{where}: expected {len(pattern)} entries, and there are {len(value)}: {shown(value)}"
        for place, (wanted, found) in enumerate(zip(pattern, value, strict=False)):
            yield from mismatches(wanted, found, f"{where}[{place}]")
    elif not _same(pattern, value):
        yield difference(where, pattern, value)


def fits(pattern: Any, value: Any) -> bool:
    return next(mismatches(pattern, value, ""), None) is None


def in_order(patterns: Sequence[Any], values: Sequence[Any], where: str, what: str, line: Any) -> Iterator[str]:
    """Each pattern must fit a value that comes after the value of the pattern before it. Other values may come between.
    `line` turns a value into one line, for the list of the found values.
    """
    at = 0
    for place, pattern in enumerate(patterns):
        found = next((n for n in range(at, len(values)) if fits(pattern, values[n])), None)
        if found is None:
            behind = " behind the one before" if at else ""
            had = "".join(f"\n    {n}  {line(value)}" for n, value in enumerate(values)) or " none"
            yield f"{where}[{place}]: no {what}{behind} fits {shown(pattern)}; there were:{had}"
            near = max(range(at, len(values)), key=lambda n: _alike(pattern, values[n]), default=at)
            if near < len(values) and _alike(pattern, values[near]):
                yield from mismatches(pattern, values[near], f"the nearest, {near}")
            return
        at = found + 1


def text_pattern(pattern: Any) -> Any:
    """For texts of a whole turn, a plain text means that the turn's text must contain it."""
    return {"contains": pattern} if isinstance(pattern, str) else pattern


def difference(where: str, wanted: Any, found: Any) -> str:
    """Describe a value that differs from the wanted one; for long texts, show the lines that differ."""
    if isinstance(wanted, str) and isinstance(found, str) and "\n" in wanted + found:
        lines = difflib.unified_diff(wanted.splitlines(), found.splitlines(), "expected", "found", lineterm="", n=2)
        return f"{where}:\n" + "\n".join(f"    {each}" for each in list(lines)[:60])
    return f"{where}:\n    - {shown(wanted)}\n    + {shown(found)}"


def shown(value: Any) -> str:
    """A value on one line, cut if it is long."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}… ({len(text)} characters)"


def _condition(name: str, wanted: Any, value: Any, where: str) -> Iterator[str]:
    if name == "contains":
        if isinstance(value, str) and isinstance(wanted, str):
            if wanted not in value:
                yield f"{where}: does not contain {shown(wanted)}; it is {shown(value)}"
        elif isinstance(value, Sequence) and not isinstance(value, str):
            if not any(fits(wanted, each) for each in value):
                yield f"{where}: no entry fits {shown(wanted)}; it is {shown(value)}"
        else:
            yield f"{where}: expected something that contains {shown(wanted)}, and it is {shown(value)}"
    elif name == "matches":
        if not isinstance(value, str) or not re.search(wanted, value):
            yield f"{where}: does not match /{wanted}/; it is {shown(value)}"
    elif name == "equals":
        if not _same(wanted, value):
            yield difference(where, wanted, value)
    elif name == "not":
        if fits(wanted, value):
            yield f"{where}: must not fit {shown(wanted)}, and it is {shown(value)}"
    elif (value is not None) is not bool(wanted):
        yield f"{where}: must {'' if wanted else 'not '}be there, and it is {shown(value)}"


def _may_be_absent(pattern: Any) -> bool:
    return is_condition(pattern) and next(iter(pattern)) in ("not", "any")


def _same(wanted: Any, value: Any) -> bool:
    # In Python True equals 1; in a pattern it must not.
    return bool(wanted == value) and isinstance(wanted, bool) == isinstance(value, bool)


def _alike(pattern: Any, value: Any) -> int:
    """How many keys fit. If some fit, the report says which others do not."""
    if not isinstance(pattern, Mapping) or not isinstance(value, Mapping) or is_condition(pattern):
        return 0
    return sum(key in value and fits(wanted, value[key]) for key, wanted in pattern.items())
