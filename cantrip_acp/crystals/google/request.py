"""Gemini request: sets how much the model thinks, and converts JSON Schemas of tools to the form that Gemini supports.

`thinking` sets a level from Gemini 3 on, and a token budget for earlier models. `convert_schema` converts a schema for
``parametersJsonSchema``: an unsupported keyword is replaced if possible (``const`` becomes an enum), else dropped. This is
safe, because the arguments are checked against the full schema when the gate is called.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from cantrip_acp.crystals.catalog.types import ModelInfo
from cantrip_acp.crystals.catalog.unsupported_params import nearest_effort
from cantrip_acp.types.errors import CrystalError, DefinitionError

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""The values of ``effort``."""

_THINKS = re.compile(r"(?:^|/)gemini-(?:2\.5|[3-9]|\d\d)|-latest$")
_BY_BUDGET = re.compile(r"(?:^|/)gemini-[12][.\-]")
_BUDGETS = {"none": 0, "minimal": 512, "low": 2048, "medium": 8192, "high": 24576, "xhigh": 24576, "max": 24576}
_LEVELS = {
    "none": "MINIMAL",
    "minimal": "MINIMAL",
    "low": "LOW",
    "medium": "MEDIUM",
    "high": "HIGH",
    "xhigh": "HIGH",
    "max": "HIGH",
}
_XHIGH = re.compile(r"(?:^|/)gemini-(?:4-(?!argon)|[5-9]|\d\d)")
_NEXT = {"MINIMAL": "LOW", "MEDIUM": "HIGH", "XHIGH": "HIGH"}
"""The level to use instead if a model does not support this one."""
_EVERY_LEVEL = ("MINIMAL", "LOW", "MEDIUM", "HIGH", "XHIGH")
_RANGE = re.compile(r"(?:between|range|from)\D{0,20}(\d{1,9})\D{1,12}(\d{1,9})", re.IGNORECASE)
_NOT_TAKEN = re.compile(
    r"not (?:supported|allowed|valid|enabled)|unsupported|does(?: not|n't) support|unknown name|invalid|only works"
    r"|out of range|must be",
    re.IGNORECASE,
)
_PRO_LEAST = 128
_PRO_MOST = 32768


def check(options: Mapping[str, Any]) -> None:
    """Check effort and budget. Raises `DefinitionError` for an invalid value."""
    effort = options.get("effort")
    if effort is not None and effort not in EFFORTS:
        raise DefinitionError(f"effort is {effort!r}; it is one of {', '.join(EFFORTS)}")
    budget = options.get("thinking_budget")
    if budget is not None and (not isinstance(budget, int) or isinstance(budget, bool) or budget < -1):
        raise DefinitionError(
            f"thinking_budget is {budget!r}; it is a number of tokens, 0 for no thinking, or -1 to let the model decide"
        )


def thinking(model: str, info: ModelInfo, options: Mapping[str, Any]) -> dict[str, Any] | None:
    """Make ``thinkingConfig``. None for a model that does not think, because it would refuse the field.

    ``effort`` is one of `EFFORTS`. ``thinking_budget`` is in tokens and overrides ``effort``. A pro model always thinks, so
    it gets the minimum if no thinking is requested.
    """
    effort, budget = options.get("effort"), options.get("thinking_budget")
    # If the model is not in the table, its name decides.
    thinks = info.reasoning or (not info.known and _THINKS.search(model) is not None)
    if not thinks and effort in (None, "none") and budget is None:
        return None
    pro = "-pro" in model
    config: dict[str, Any] = {"includeThoughts": True}
    if budget is not None:
        config["thinkingBudget"] = budget
    elif effort is not None and _BY_BUDGET.search(model):
        tokens = _BUDGETS[effort]
        config["thinkingBudget"] = max(_PRO_LEAST, tokens) if pro else tokens
        if pro and effort in ("xhigh", "max"):
            config["thinkingBudget"] = _PRO_MOST
    elif effort is not None:
        level = "XHIGH" if effort in ("xhigh", "max") and _XHIGH.search(model) else _LEVELS[effort]
        config["thinkingLevel"] = "LOW" if pro and level == "MINIMAL" else level
    if config.get("thinkingBudget") == 0:
        config["includeThoughts"] = False
    return config


def drop_refused_parameter(
    who: str, generation: Mapping[str, Any], error: CrystalError
) -> tuple[dict[str, Any], str] | None:
    """Return ``generationConfig`` without the parameter that ``error`` refuses, and a note for the user.

    The note is empty if the user does not need to know. Returns None if the error is about something else. Only parameters
    for sampling, thinking and log-probabilities are changed, never the messages.
    """
    words = str(error)
    out = dict(generation)
    if error.status == 400 and "responseLogprobs" in out and re.search("logprobs", words, re.IGNORECASE):
        # Few models report log-probabilities, and their error texts differ.
        del out["responseLogprobs"]
        return out, ""
    if error.status != 400 or not _NOT_TAKEN.search(words):
        return None
    if re.search(r"thinking|thought", words, re.IGNORECASE) and "thinkingConfig" in out:
        thought, notice = _thinking_with_less(who, out.pop("thinkingConfig"), words)
        return (out | {"thinkingConfig": thought} if thought is not None else out), notice
    for name, pattern in (
        ("temperature", r"temperature"),
        ("topP", r"top_?p"),
        ("topK", r"top_?k"),
        ("seed", r"\bseed\b"),
    ):
        if name in out and re.search(pattern, words, re.IGNORECASE):
            del out[name]
            return out, ""
    return None


def _thinking_with_less(who: str, config: Mapping[str, Any], words: str) -> tuple[dict[str, Any] | None, str]:
    """Use the nearest level or budget that the error names, else the next level, else let the model decide."""
    thought = dict(config)
    level, budget = thought.pop("thinkingLevel", None), thought.pop("thinkingBudget", None)
    if level is not None:
        taken = [each for each in _EVERY_LEVEL if each != level and re.search(rf"\b{each}\b", words, re.IGNORECASE)]
        nearest = nearest_effort(level.lower(), [each.lower() for each in taken]).upper() if taken else _NEXT.get(level)
        what = f"{who} does not support the effort {level.lower()}; "
        if nearest is None:
            return thought, what + "it decides by itself how much to think"
        named = f" (supported: {', '.join(taken).lower()})" if taken else ""
        return {**thought, "thinkingLevel": nearest}, f"{what}{nearest.lower()} is used{named}"
    if budget is not None:
        thought["includeThoughts"] = True
        what = f"{who} does not support a thinking budget of {budget:,} tokens; "
        if (limits := _RANGE.search(words)) and int(limits[1]) < int(limits[2]):
            nearest_budget = min(max(budget, int(limits[1])), int(limits[2]))
            if nearest_budget != budget:
                return {**thought, "thinkingBudget": nearest_budget}, f"{what}{nearest_budget:,} is used"
        return thought, what + "it decides by itself how much to think"
    return None, f"{who} does not show its thinking"


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


def convert_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a JSON Schema to the keywords that Gemini supports. The order of keys stays the same."""
    if "$ref" in schema:
        # Next to a $ref, Gemini allows only keys that start with $.
        out: dict[str, Any] = {"$ref": str(schema["$ref"]).replace("#/definitions/", "#/$defs/", 1)}
    else:
        out = {}
        for key, value in schema.items():
            if key in _KEPT:
                out[key] = value
            elif key in _SCHEMAS:
                out[key] = convert_schema(value) if isinstance(value, Mapping) else value
            elif key in _LISTS and isinstance(value, list | tuple):
                out[key] = [convert_schema(each) for each in value if isinstance(each, Mapping)]
    for key in _NAMED:
        if isinstance(value := schema.get(key), Mapping):
            name = "$defs" if key == "definitions" else key
            if name == "$defs" or "$ref" not in out:
                out[name] = {each: convert_schema(v) for each, v in value.items() if isinstance(v, Mapping)}
    if "$ref" not in out:
        _replace_unsupported(schema, out)
    return out


def _replace_unsupported(schema: Mapping[str, Any], out: dict[str, Any]) -> None:
    if "const" in schema:
        const = schema["const"]
        if isinstance(const, bool):
            out.setdefault("type", "boolean")
        elif isinstance(const, str | int | float):
            out["enum"] = [const]
    if any(not isinstance(v, str | int | float) or isinstance(v, bool) for v in out.get("enum") or ()):
        _split_enum(out)
    for key, name in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if isinstance(schema.get(key), int | float) and not isinstance(schema[key], bool):
            out.setdefault(name, schema[key])
    whole = schema.get("allOf")
    if isinstance(whole, list | tuple):
        for each in whole:
            if isinstance(each, Mapping):
                _join(out, convert_schema(each))


def _split_enum(out: dict[str, Any]) -> None:
    """Gemini's enums may contain only strings and numbers. Null and booleans in them become types beside the enum."""
    values = out.pop("enum")
    plain = [each for each in values if isinstance(each, str | int | float) and not isinstance(each, bool)]
    kinds = [name for name, kind in (("boolean", bool), ("null", type(None))) if any(type(v) is kind for v in values)]
    other = any(not isinstance(each, str | int | float | None) for each in values)
    if other or "anyOf" in out or "oneOf" in out or (not plain and len(kinds) != 1):
        return
    out.pop("type", None)
    parts: list[dict[str, Any]] = [{"type": name} for name in kinds]
    if plain:
        texts = {"type": "string"} if all(isinstance(each, str) for each in plain) else {}
        parts.insert(0, {**texts, "enum": plain})
    out.update(parts[0] if len(parts) == 1 else {"anyOf": parts})


def _join(out: dict[str, Any], more: Mapping[str, Any]) -> None:
    """Merge one schema of an ``allOf`` into ``out``. If both have the same key, the value in ``out`` wins."""
    for key, value in more.items():
        if key == "properties":
            out[key] = {**value, **out.get(key, {})}
        elif key == "required":
            out[key] = list(dict.fromkeys([*out.get(key, ()), *value]))
        else:
            out.setdefault(key, value)
