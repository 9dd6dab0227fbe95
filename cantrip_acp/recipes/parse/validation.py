"""Checks the data of a recipe with the pydantic models: returns the canonical data, or every problem with its position.

Canonical data is plain JSON data. Aliases of keys are replaced by their names, ``on`` and ``off`` by booleans, and only
keys in the file are present. The rest of the package uses canonical data, so that only this module needs pydantic.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, SecretStr, TypeAdapter, ValidationError

from cantrip_acp.gates.wards import WARDS
from cantrip_acp.recipes.models import field_types
from cantrip_acp.recipes.models.crystal import Crystal, Script
from cantrip_acp.recipes.models.field_types import TAG, nearest, show_value
from cantrip_acp.recipes.models.recipe import Recipe
from cantrip_acp.recipes.parse import cross_field
from cantrip_acp.recipes.parse.document import Document
from cantrip_acp.recipes.parse.problem_positions import KeyPath, Mend, Places, Problem
from cantrip_acp.types.errors import RecipeError

_ABSENT = {
    "circle": "cantrip requires a circle: add the key circle with a medium, gates and wards",
    "call": "cantrip requires a call",
    "crystal": "cantrip requires a crystal: add the key crystal with a provider and a model",
}
_WANTED: dict[KeyPath, str] = {
    ("circle",): "cantrip requires a circle: a mapping with gates and wards",
    ("call",): "cantrip requires a call: a mapping, or omit the key for an empty call",
}


def recipe(document: Document) -> dict[str, Any]:
    """The canonical data of a recipe. Raises `RecipeError` with every problem, in the order of the file."""
    found = list(problems(document))
    if found:
        raise RecipeError(problems=found)
    return _canonical(Recipe.model_validate(document.data, context={}))


def problems(document: Document) -> list[Problem]:
    """Every problem of a recipe, in the order of the file. Empty if the recipe is valid."""
    if not isinstance(document.data, dict):
        wanted = "a recipe must be a mapping with the keys name, crystal, call and circle"
        return [document.problem((), f"{wanted}, not {show_value(document.data)}")]
    found = list(_structure(document))
    explained = _explained(found)
    for path, text, at_key, rule, mend in cross_field.breaches(document.data):
        if mend is None or mend.kind not in explained:
            found.append(document.problem(path, text, at_key=at_key, rule=rule, mend=mend))
    return _in_order(found)


def _explained(found: list[Problem]) -> set[str]:
    """The kinds of fixes that become unnecessary once other problems are solved: a misspelled ``done`` is also reported as
    missing."""
    explained = set()
    for part, name, fix in (("gates", "done", "add-done"), ("wards", "max_turns", "add-max-turns")):
        for each in found:
            misspelled = each.mend is not None and each.mend.kind == "rename" and each.mend.value in (part, name)
            if each.key.startswith("circle") and (misspelled or each.key == f"circle.{part}"):
                explained.add(fix)
    return explained


def script(document: Document) -> dict[str, Any]:
    """The data of a script file: ``responses``, and ``children`` and ``usage`` if the file has them."""
    data = document.data
    if not isinstance(data, list | dict):
        wanted = "a script must be a list of responses, or a mapping with responses"
        raise RecipeError(problems=[document.problem((), f"{wanted}, not {show_value(data)}")])
    known: dict[int, tuple[str, tuple[str, ...]]] = {}
    try:
        # In a recipe, union tags choose between a list and a mapping. For a script file the choice is made here.
        read = TypeAdapter(Script).validate_python(data, context=known)
    except ValidationError as error:
        raise RecipeError(problems=_in_order(list(_translate(document, error, known)))) from None
    held = _plain(read)
    return {"responses": held} if isinstance(held, list) else held


def crystal(given: dict[str, Any], error: Callable[[KeyPath, str], Exception]) -> dict[str, Any]:
    """The canonical data of a crystal's mapping that was written in Python. ``error`` makes the error to raise."""
    document = Document("", Path(), {"crystal": given}, Places())
    known: dict[int, tuple[str, tuple[str, ...]]] = {}
    try:
        read = _HasCrystal.model_validate(document.data, context=known)
    except ValidationError as invalid:
        first = invalid.errors(include_url=False)[0]
        at: KeyPath = tuple(p for p in first["loc"] if not (isinstance(p, str) and p.startswith(TAG)))
        missing = first["type"] == "missing"
        raise error(at[1:-1] if missing else at[1:], next(_translate(document, invalid, known)).message) from None
    for breach in cross_field.breaches(document.data):
        if breach.path[0] == "crystal":
            raise error(breach.path[1:], breach.message)
    data: dict[str, Any] = _plain(read)["crystal"]
    return data


class _HasCrystal(BaseModel):
    crystal: Crystal


def data_of(document: Document, model: type[BaseModel]) -> dict[str, Any]:
    """The data of another kind of file, such as a suite of tasks. Raises `RecipeError` with every problem."""
    known: dict[int, tuple[str, tuple[str, ...]]] = {}
    try:
        read = model.model_validate(document.data, context=known)
    except ValidationError as error:
        raise RecipeError(problems=_in_order(list(_translate(document, error, known)))) from None
    held: dict[str, Any] = _plain(read)
    return held


def _in_order(found: list[Problem]) -> list[Problem]:
    unique = {(p.line, p.column, p.message): p for p in found}
    return sorted(unique.values(), key=lambda p: (p.line, p.column))


def _structure(document: Document) -> Iterator[Problem]:
    known: dict[int, tuple[str, tuple[str, ...]]] = {}
    try:
        Recipe.model_validate(document.data, context=known)
    except ValidationError as error:
        yield from _translate(document, error, known)


def _translate(
    document: Document, error: ValidationError, known: Mapping[int, tuple[str, tuple[str, ...]]]
) -> Iterator[Problem]:
    for number, item in enumerate(error.errors(include_url=False)):
        # Remove union tags from the path, because they are not keys of the document.
        path: KeyPath = tuple(p for p in item["loc"] if not (isinstance(p, str) and p.startswith(TAG)))
        kind = item["type"]
        parent = _at(document.data, path[:-1])
        noun, keys = known.get(id(parent), ("mapping", ()))
        if kind == "extra_forbidden":
            name = str(path[-1])
            what = "ward" if noun == "ward" else f"key in {noun}:"
            meant = _MEANT.get((noun, name))
            if number >= _MOST_HINTS:
                # To look for near names takes longer than all else.
                yield document.problem(path, f"unknown {what} {show_value(name)}", at_key=True, rule="unknown-key")
                continue
            near = field_types.near(name, keys) if meant is None else meant if meant in keys else None
            ward = field_types.near(name, tuple(WARDS)) if near is meant is None and noun != "ward" else None
            hint = f"; {ward} is a ward: write `- {ward}: …` under circle.wards" if ward else nearest(name, keys)
            hint = f"; did you mean {meant!r}?" if meant is not None else hint
            text = f"unknown {what} {show_value(name)}{hint}"
            mend = Mend("rename", near, name) if near is not None else None
            yield document.problem(path, text, at_key=True, rule="unknown-key", mend=mend)
        elif kind == "missing":
            missing = str(path[-1])
            # Prefer the message about a missing done gate or turn ward to the message about a missing key.
            if noun != "circle":
                part = missing in _ABSENT and noun == "recipe"
                where = "" if noun == "recipe" else f" in {noun}"
                text = _ABSENT[missing] if part else f"missing required key {missing!r}{where}"
                mend = Mend(missing) if part else None
                rule = "CANTRIP-1" if part else "schema"
                yield document.problem(path[:-1], text, at_key=True, rule=rule, mend=mend)
        else:
            rule = "CANTRIP-1" if path in _WANTED else _RULES.get(kind, "schema")
            mend = Mend(str(path[0])) if path in _WANTED else _mend(kind, item)
            yield document.problem(path, _WANTED.get(path) or _message(kind, item), rule=rule, mend=mend)


_MOST_HINTS = 200
_MEANT = {
    **dict.fromkeys([("recipe", "model"), ("recipe", "llm")], "crystal"),
    **{("recipe", word): "call.system_prompt" for word in ("prompt", "system_prompt", "system", "instructions")},
    **{("recipe", word): "circle.gates" for word in ("tools", "gates")},
    **{("recipe", word): f"circle.{word}" for word in ("medium", "wards", "score")},
    **{("recipe", word): "circle.wards" for word in ("limits",)},
    ("circle", "tools"): "gates",
    ("circle", "limits"): "wards",
    ("call", "prompt"): "system_prompt",
}
"""Keys that people write by the mapping that they write them in, and the keys that they mean."""

_RULES = {"unknown": "unknown-name", "no-crystal": "CANTRIP-1"}
"""The rule of an error by its pydantic error type."""


def _mend(kind: str, item: Mapping[str, Any]) -> Mend | None:
    if kind == "list_type":
        return Mend("list")
    mend = (item.get("ctx") or {}).get("mend")
    return Mend(*mend) if mend is not None else None


def _message(kind: str, item: Mapping[str, Any]) -> str:
    wanted = {
        "model_type": "a mapping",
        "dict_type": "a mapping",
        "list_type": "a list",
        "literal_error": f"must be {(item.get('ctx') or {}).get('expected')}",
    }.get(kind)
    if wanted is None:
        return str(item["msg"])
    text = f"{wanted if kind == 'literal_error' else f'must be {wanted}'}, not {show_value(item['input'])}"
    return f"{text}; {_as_list(item['loc'], item['input'])}" if kind == "list_type" else text


def _as_list(path: tuple[Any, ...], value: Any) -> str:
    """How to write a value as the list that it should be. Contents are shown only where no secret can be."""
    key = str(path[-1]) if path else ""
    if not isinstance(value, dict):
        return (
            f"write {key}: [{value}]"
            if isinstance(value, str) and _WORD.fullmatch(value)
            else "write [ and ] around it"
        )
    names = [name for name in value if isinstance(name, str) and _WORD.fullmatch(name)][:_SHOWN_ITEMS]
    if key == "wards" and names:
        items = ", ".join(f"{{{name}: {_flow(value[name])}}}" for name in names)
    elif key == "gates" and names:
        items = ", ".join(
            name if not isinstance(value[name], dict) else f"{{name: {name}{''.join(_pairs(value[name]))}}}"
            for name in names
        )
    elif names and all(isinstance(each, dict) for each in value.values()):
        # The keys are names of items, as for servers in other programs.
        items = ", ".join(f"{{name: {name}, …}}" for name in names)
    else:
        return "write [ and ] around it, or `- ` before its first line and two spaces before the others"
    more = ", …" if len(value) > len(names) else ""
    return f"write {key}: [{items}{more}]"


def _pairs(options: Mapping[str, Any]) -> Iterator[str]:
    return (f", {name}: {_flow(value)}" for name, value in options.items())


def _flow(value: Any) -> str:
    """Write a short value as YAML on one line."""
    if isinstance(value, list):
        return f"[{', '.join(map(_flow, value))}]"
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    shown = str(value)
    return shown if _WORD.fullmatch(shown) else show_value(value)


_WORD = re.compile(r"[A-Za-z0-9_./:-]{1,40}")
_SHOWN_ITEMS = 8


def _at(data: Any, path: KeyPath) -> Any:
    for part in path:
        try:
            data = data[part]
        except (KeyError, IndexError, TypeError):
            return None
    return data


def _canonical(model: Recipe) -> dict[str, Any]:
    data: dict[str, Any] = _plain(model)
    call = data.get("call", {})
    if "require_done" in call:
        call["require_done_tool"] = call.pop("require_done")
    for ward in data["circle"]["wards"]:
        if "require_done" in ward:
            ward["require_done_tool"] = ward.pop("require_done")
    return data


def _plain(value: Any) -> Any:
    """Convert models to mappings of the keys that were set, and secrets to their texts."""
    if isinstance(value, BaseModel):
        held = {n: _plain(value.__dict__[n]) for n in type(value).model_fields if n in value.model_fields_set}
        return held | (value.model_extra or {})
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return value
