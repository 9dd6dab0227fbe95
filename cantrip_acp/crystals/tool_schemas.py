"""Schemas of tools on the wire: rewrites a JSON Schema so that a provider takes it.

One schema that a provider refuses would fail the whole request, and so every cast of the session, although other tools are
what it is about. So the rules that are known are applied before (`for_wire`), and a tool that is refused all the same is sent
once more without its schema, which its description then has (`ToolSchemas.learn`). Nothing is lost: arguments are checked
against the tool's own schema when it is called.

The rules, each from the errors of the API:

- Anthropic: no ``oneOf``, ``anyOf``, ``allOf`` at the root (claude-code#40075, langchain#39271); names of arguments match
  ``^[a-zA-Z0-9_.-]{1,64}$`` (claude-code#79418).
- OpenAI: at the root ``type: object`` and none of ``oneOf``, ``anyOf``, ``allOf``, ``enum``, ``const``, ``not``
  (google-calendar-mcp#39, home-generative-agent#545); an array has ``items`` (aichat#1049, also with a list of types).
- Google: `google.request.convert_schema`, with a root as for OpenAI.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from cantrip_acp.crystals.openai.tool_names import wire_name
from cantrip_acp.types.errors import CrystalError
from cantrip_acp.types.messages import ToolDefinition

_UNIONS = ("allOf", "anyOf", "oneOf")
_NOT_AT_ROOT = (*_UNIONS, "enum", "const", "not", "$ref")
_KEY = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_PARTS = ("properties", "$defs", "definitions")
_LISTS = ("prefixItems", *_UNIONS)
_SINGLE = ("items", "additionalProperties", "contains", "not", "if", "then", "else", "propertyNames")
_MOST_REFERENCES = 20
_MOST_UNIONS = 100
"""The most unions of one schema that are merged. A schema of an MCP server may refer to itself."""
_DESCRIBED = 4_000
"""The most characters of a schema in a description."""

_ABOUT_SCHEMA = re.compile(r"schema|parameters|function_declarations|\btools?\b", re.IGNORECASE)
_BY_INDEX = re.compile(r"(?:\btools[.\[](\d+)|function_?[dD]eclarations\[(\d+)\])")
_BY_NAME = re.compile(r"(?:function|tool)s? ['\"`]([A-Za-z0-9_-]{1,64})['\"`]", re.IGNORECASE)


def for_wire(schema: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """The schema as all providers take it, and what it no longer says, as words for the description.

    A schema that they take as it is keeps all its keys in their order.
    """
    whole = dict(schema)
    notes: list[str] = []
    if any(key in whole for key in _NOT_AT_ROOT):
        whole = _with_plain_root(whole, notes, [_MOST_UNIONS])
    elif whole.get("type") != "object":
        whole = {**whole, "type": "object", "properties": whole.get("properties", {})}
    properties = whole.get("properties")
    if isinstance(properties, Mapping):
        odd = {name: each for name, each in properties.items() if not _KEY.fullmatch(name)}
        if odd:
            whole["properties"] = {name: each for name, each in properties.items() if name not in odd}
            whole["required"] = [name for name in whole.get("required", ()) if name not in odd]
            whole.pop("additionalProperties", None)
            notes.append(f"It also takes these arguments: {_json(odd)}")
    made: dict[str, Any] = _with_items(whole)
    return made, " ".join(notes)


def _with_plain_root(schema: Mapping[str, Any], notes: list[str], left: list[int]) -> dict[str, Any]:
    """Merge the unions and the reference at the root into one object with all properties of the variants.

    ``left`` has the number of unions that may still be merged.
    """
    merged: dict[str, Any] = {key: each for key, each in schema.items() if key not in _NOT_AT_ROOT}
    properties: dict[str, Any] = dict(merged.get("properties") or {})
    required = [name for name in merged.get("required") or () if isinstance(name, str)]
    own = dict.fromkeys(required)
    if "$ref" in schema:
        target = _resolved({"$ref": schema["$ref"]}, schema)
        notes.extend(_take(target, schema, properties, own, left))
        for key, each in target.items():
            if key not in _NOT_AT_ROOT and key not in ("properties", "required"):
                merged.setdefault(key, each)
    for each in _variants(schema, "allOf"):
        notes.extend(_take(each, schema, properties, own, left))
        if each.get("additionalProperties") is False:
            merged.pop("additionalProperties", None)
    for union, words in (("anyOf", "at least"), ("oneOf", "exactly")):
        variants = _variants(schema, union)
        if not variants:
            continue
        sets: list[list[str]] = []
        for each in variants:
            needed: dict[str, None] = {}
            _take(each, schema, properties, needed, left)
            sets.append([name for name in needed if name not in own])
        for name in sets[0]:
            if all(name in names for names in sets):
                own[name] = None
        named = [", ".join(names) for names in sets if names]
        if len(named) > 1 and len(set(named)) > 1:
            notes.append(f"Give {words} one of these sets of arguments: {'; '.join(dict.fromkeys(named))}.")
    merged["type"] = "object"
    merged["properties"] = properties
    if own or "required" in merged:
        merged["required"] = list(own)
    return merged


def _take(
    variant: Mapping[str, Any],
    root: Mapping[str, Any],
    properties: dict[str, Any],
    required: dict[str, None],
    left: list[int],
) -> list[str]:
    """Add the properties and the required names of a variant. Returns what unions within it said."""
    notes: list[str] = []
    left[0] -= 1
    if left[0] > 0 and any(key in variant for key in _UNIONS):
        inner = {**variant, **{key: root[key] for key in ("$defs", "definitions") if key in root}}
        variant = _with_plain_root(inner, notes, left)
    own = variant.get("properties")
    for name, each in (own if isinstance(own, Mapping) else {}).items():
        before = properties.get(name)
        if before is None or before == {}:
            properties[name] = each
        elif before != each:
            properties[name] = _either(before, each)
    required.update(dict.fromkeys(name for name in variant.get("required") or () if isinstance(name, str)))
    return notes


def _either(one: Any, other: Any) -> dict[str, Any]:
    values = [_only_values(each) for each in (one, other)]
    if values[0] is not None and values[1] is not None:
        # The tag of a discriminated union.
        joined = [*values[0], *(each for each in values[1] if each not in values[0])]
        kept = {key: each for key, each in one.items() if key not in ("const", "enum", "default")}
        return {**kept, "enum": joined}
    options = one["anyOf"] if isinstance(one, Mapping) and set(one) == {"anyOf"} else [one]
    return {"anyOf": options if other in options else [*options, other]}


def _only_values(schema: Any) -> list[Any] | None:
    if not isinstance(schema, Mapping):
        return None
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return list(values) if isinstance(values, list | tuple) else None


def _variants(schema: Mapping[str, Any], union: str) -> list[Mapping[str, Any]]:
    """The variants of a union that are objects, with their references resolved."""
    found = schema.get(union)
    if not isinstance(found, list | tuple):
        return []
    resolved = [_resolved(each, schema) for each in found if isinstance(each, Mapping)]
    return [each for each in resolved if each.get("type", "object") == "object"]


def _resolved(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema with a reference at its root replaced by its target."""
    beside: dict[str, Any] = {}
    for _ in range(_MOST_REFERENCES):
        reference = schema.get("$ref")
        if not isinstance(reference, str):
            return {**schema, **beside}
        beside = {**{key: each for key, each in schema.items() if key != "$ref"}, **beside}
        target: Any = root
        for step in reference.partition("#")[2].split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            target = target.get(name) if isinstance(target, Mapping) else None
        if not isinstance(target, Mapping) or target is root:
            return beside
        schema = target
    return beside


def _with_items(schema: Any) -> Any:
    """Each array has ``items``. The same object if nothing changes."""
    if not isinstance(schema, Mapping):
        return schema
    out: dict[str, Any] = {}
    changed = False
    for key, value in schema.items():
        made: Any = value
        if key in _PARTS and isinstance(value, Mapping):
            parts = {name: _with_items(each) for name, each in value.items()}
            made = parts if any(parts[name] is not value[name] for name in parts) else value
        elif key in _LISTS and isinstance(value, list | tuple):
            listed = [_with_items(each) for each in value]
            made = listed if any(new is not old for new, old in zip(listed, value, strict=True)) else value
        elif key in _SINGLE:
            made = _with_items(value)
        out[key] = made
        changed = changed or made is not value
    named = schema.get("type")
    array = named == "array" or (isinstance(named, list | tuple) and "array" in named)
    if array and "items" not in schema and "prefixItems" not in schema:
        return {**out, "items": {}}
    return out if changed else schema


class ToolSchemas:
    """The tools of a crystal's requests, with the schemas that its provider takes."""

    def __init__(self, who: str) -> None:
        self._who = who
        self._refused: set[str] = set()
        """The tools, by their names on the wire, whose schemas were refused."""
        self._notices: list[str] = []
        self._known: dict[int, tuple[ToolDefinition, str, dict[str, Any]]] = {}

    def render(self, tool: ToolDefinition) -> tuple[str, dict[str, Any]]:
        """The description and the schema to send."""
        if wire_name(tool.name) in self._refused:
            text = f"{tool.description}\n\nArguments, as a JSON Schema: {_json(tool.parameters)}"
            return text.strip(), {"type": "object", "properties": {}}
        known = self._known.get(id(tool))
        if known is None or known[0] is not tool:
            schema, note = for_wire(tool.parameters)
            known = (tool, f"{tool.description}\n\n{note}".strip() if note else tool.description, schema)
            if len(self._known) >= 1_000:
                self._known.clear()
            self._known[id(tool)] = known
        return known[1], known[2]

    def learn(self, error: CrystalError, tools: Sequence[ToolDefinition]) -> bool:
        """Learn from an error. True if it refuses the schema of one tool, and so a new attempt without it helps."""
        if error.status not in (400, 422) or not tools or not _ABOUT_SCHEMA.search(str(error)):
            return False
        tool = _named(str(error), tools)
        if tool is None:
            return False
        if wire_name(tool.name) in self._refused:
            # Its name or its description is what the provider does not take.
            error.args = (f"{error} (the tool {tool.name})",)
            return False
        self._refused.add(wire_name(tool.name))
        self._notices.append(
            f"{self._who} does not take the schema of the tool {tool.name}, so it reads it in the tool's description ({error})"
        )
        return True

    def notices(self) -> tuple[str, ...]:
        """Return the new notes for the user. Each note is returned once."""
        notices, self._notices = tuple(self._notices), []
        return notices


def _named(text: str, tools: Iterable[ToolDefinition]) -> ToolDefinition | None:
    """The tool that an error names by its place among the tools or by its name."""
    listed = list(tools)
    for name in _BY_NAME.findall(text):
        for tool in listed:
            if wire_name(tool.name) == name:
                return tool
    # In ``tools[0].function_declarations[3]`` the second number counts.
    numbers = [int(one or other) for one, other in _BY_INDEX.findall(text)]
    declared = re.search(r"function_?[dD]eclarations\[(\d+)\]", text)
    if declared is not None:
        numbers = [int(declared[1])]
    return listed[numbers[0]] if numbers and numbers[0] < len(listed) else None


def _json(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= _DESCRIBED else text[:_DESCRIBED] + " …"
