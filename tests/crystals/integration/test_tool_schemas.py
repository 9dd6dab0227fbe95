"""Schemas of tools as MCP servers and Python make them, at servers with the rules of the providers: one odd tool fails
nothing, and its arguments are still checked against its own schema."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from cantrip_acp import Cantrip, Circle
from cantrip_acp.crystals.google.request import convert_schema
from cantrip_acp.crystals.tool_schemas import for_wire
from cantrip_acp.gates.contract import Gate
from cantrip_acp.text.json_schema import Schema
from cantrip_acp.types.errors import CrystalError
from cantrip_acp.types.events import Noticed
from tests.support.families import FAMILIES, Family
from tests.support.provider_server import Reply, Request, Wire

STR = {"type": "string"}


def of(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


class Node(BaseModel):
    name: str
    children: list[Node] = []


NODE = Node.model_json_schema()

ODD: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any] | None]] = {
    # The schema, arguments that fit it, and arguments that do not.
    "one of two arguments": (
        {**of(route=STR, file=STR), "anyOf": [{"required": ["route"]}, {"required": ["file"]}]},
        {"file": "a"},
        {},
    ),
    "exactly one": (
        {**of(yaml=STR, dir=STR), "oneOf": [{"required": ["yaml"]}, {"required": ["dir"]}]},
        {"dir": "a"},
        {"dir": "a", "yaml": "b"},
    ),
    "a union of objects": (
        {
            "type": "object",
            "anyOf": [
                {**of(content=STR), "required": ["content"]},
                {**of(source_url=STR), "required": ["source_url"]},
            ],
        },
        {"source_url": "http://x"},
        {"content": 3},
    ),
    "a tagged union": (
        {
            "type": "object",
            "oneOf": [
                {**of(kind={"const": "circle"}, r={"type": "number"}), "required": ["kind", "r"]},
                {**of(kind={"const": "box"}, w={"type": "number"}), "required": ["kind", "w"]},
            ],
        },
        {"kind": "box", "w": 1.5},
        {"kind": "box", "r": 1},
    ),
    "allOf": ({"type": "object", "allOf": [of(a=STR), {**of(b=STR), "required": ["b"]}]}, {"b": "x"}, {"a": "x"}),
    "a reference at the root": ({"type": "object", **NODE}, {"name": "a", "children": [{"name": "b"}]}, {"name": 3}),
    "a reference in a union": (
        {"type": "object", "oneOf": [{"$ref": "#/$defs/A"}], "$defs": {"A": {**of(a=STR), "required": ["a"]}}},
        {"a": "x"},
        {},
    ),
    "a recursive argument": (
        {**of(tree={"$ref": "#/$defs/Node"}), "$defs": NODE["$defs"]},
        {"tree": {"name": "a", "children": [{"name": "b", "children": []}]}},
        {"tree": {"name": "a", "children": [{}]}},
    ),
    "a literal with null": (of(order={"enum": ["up", "down", None]}), {"order": "up"}, {"order": "left"}),
    "an enum at the root": ({**of(a=STR), "enum": [{"a": "x"}]}, {"a": "x"}, {"a": "y"}),
    "not at the root": ({**of(a=STR, b=STR), "not": {"required": ["a", "b"]}}, {"a": "x"}, {"a": "x", "b": "y"}),
    "an array without items": (of(paths={"type": "array"}), {"paths": ["a"]}, {"paths": "a"}),
    "a list of types with array": (of(a={"type": ["string", "array"]}), {"a": ["x"]}, {"a": 3}),
    "odd names of arguments": (
        {**of(**{"filter[id]": STR, "$top": {"type": "integer"}}), "additionalProperties": False},
        {"filter[id]": "7", "$top": 3},
        {"filter[id]": 7},
    ),
}


def objects(schema: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(schema, dict):
        yield schema
        for each in schema.values():
            yield from objects(each)
    elif isinstance(schema, list):
        for each in schema:
            yield from objects(each)


def sent(body: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    """Name, description and schema of each tool in a request."""
    tools = body.get("tools", [])
    if tools and "functionDeclarations" in tools[0]:
        return [(t["name"], t["description"], t["parametersJsonSchema"]) for t in tools[0]["functionDeclarations"]]
    tools = [tool.get("function", tool) for tool in tools]
    return [(t["name"], t["description"], t.get("input_schema", t.get("parameters"))) for t in tools]


def problem(family: Family, body: dict[str, Any]) -> str | None:
    """What the provider says about the tools of a request, by the rules that are known of it."""
    for index, (name, _, schema) in enumerate(sent(body)):
        if family.name == "anthropic":
            where = f"tools.{index}.custom.input_schema"
            if {"oneOf", "allOf", "anyOf"} & set(schema):
                return f"{where}: input_schema does not support oneOf, allOf, or anyOf at the top level"
            if any(not re.fullmatch(r"[a-zA-Z0-9_.-]{1,64}", key) for key in schema.get("properties", {})):
                return f"{where}.properties: Property keys should match pattern '^[a-zA-Z0-9_.-]{{1,64}}$'"
        elif family.name == "google":
            where = f"GenerateContentRequest.tools[0].function_declarations[{index}].parameters"
            for part in objects(schema):
                if "enum" in part and any(type(each) not in (str, int, float) for each in part["enum"]):
                    return f"{where}: enum: only strings and numbers are allowed"
                if {"const", "not", "allOf"} & set(part):
                    return f"{where}: Unknown name: Cannot find field."
        else:
            bad = {"oneOf", "anyOf", "allOf", "enum", "const", "not"} & set(schema)
            if bad or schema.get("type") != "object":
                return (
                    f"Invalid schema for function '{name}': schema must have type 'object' and not have "
                    "'oneOf'/'anyOf'/'allOf'/'enum'/'not' at the top level."
                )
            for part in objects(schema):
                kinds = part.get("type")
                if (kinds == "array" or (isinstance(kinds, list) and "array" in kinds)) and not (
                    {"items", "prefixItems"} & set(part)
                ):
                    return f"Invalid schema for function '{name}': In context=('properties', 'x'), array schema missing items."
    return None


def server(family: Family, calls: list[tuple[str, dict[str, Any]]], problem: Any = problem) -> Wire:
    left = iter([*calls, ("done", {"answer": "ok"})])

    def answer(request: Request) -> Reply:
        assert family.problem(request) is None
        said = problem(family, request.json())
        if said is not None:
            return family.refuse(400, said)
        name, args = next(left)
        return family.call(name, args, f"call{len(wire.requests):05}")

    wire = Wire(answer)
    return wire


def odd_gate(schema: dict[str, Any], name: str = "odd") -> Gate:
    return Gate(name, "An odd tool.", schema, lambda args, context: json.dumps(dict(args)))


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
@pytest.mark.parametrize("odd", ODD)
async def test_an_odd_schema_is_taken_and_its_arguments_are_checked(family: Family, odd: str) -> None:
    schema, right, wrong = ODD[odd]
    calls = [("odd", right), *([] if wrong is None else [("odd", wrong)])]
    with server(family, calls) as wire:
        spell = Cantrip(
            family.crystal(wire.url), circle=Circle(gates=["done", odd_gate(schema)], wards=[{"max_turns": 5}])
        )
        result = await spell.cast("go")
        # No request was refused: the schema is right from the first one on.
        assert len(wire.requests) == len(calls) + 1
    assert result.result == "ok"
    records = [r for turn in spell.loom.turns() for r in turn.observation.results if r.gate == "odd"]
    assert json.loads(records[0].result) == right
    assert [r.is_error for r in records] == [False, True][: len(records)]


@pytest.mark.parametrize("odd", ODD)
def test_what_fits_the_tool_fits_what_is_sent(odd: str) -> None:
    schema, right, _ = ODD[odd]
    for wire in (for_wire(schema)[0], convert_schema(for_wire(schema)[0])):
        assert Schema(wire).problems(right, 3) == []


def test_a_schema_that_all_take_is_sent_as_it_is() -> None:
    schema = of(a=STR, b={"anyOf": [STR, {"type": "null"}]}, c={"type": "array", "items": STR})
    wire, note = for_wire(schema)
    assert (json.dumps(wire), note) == (json.dumps(schema), "")


def test_what_the_schema_no_longer_says_is_in_the_description() -> None:
    _, note = for_wire(ODD["one of two arguments"][0])
    assert note == "Give at least one of these sets of arguments: route; file."
    _, note = for_wire(ODD["odd names of arguments"][0])
    assert "filter[id]" in note
    wire, _ = for_wire(ODD["a tagged union"][0])
    assert wire["required"] == ["kind"]
    assert wire["properties"]["kind"] == {"enum": ["circle", "box"]}


def test_a_literal_with_null_keeps_its_values_for_google() -> None:
    def sort(order: Literal["up", "down", None] = None) -> str:
        return str(order)

    made = convert_schema(Gate.of(sort).parameters)
    assert made["properties"]["order"] == {"anyOf": [{"type": "string", "enum": ["up", "down"]}, {"type": "null"}]}


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
async def test_a_rule_that_nobody_knows_costs_one_request_and_names_the_tool(family: Family) -> None:
    strange = odd_gate({**of(a={"type": "string", "x-strange": 1}), "required": ["a"]}, "github.search")
    plain = odd_gate(of(b=STR), "plain")

    def rule(family: Family, body: dict[str, Any]) -> str | None:
        for index, (name, _, schema) in enumerate(sent(body)):
            if "x-strange" in json.dumps(schema):
                if family.name == "google":
                    return f"Invalid value at 'tools[0].function_declarations[{index}].parameters': x-strange"
                if family.name == "anthropic":
                    return f"tools.{index}.custom.input_schema: x-strange is not supported"
                return f"Invalid schema for function '{name}': x-strange is not supported"
        return None

    if family.name == "google":
        # Its conversion drops what it does not know.
        strange = odd_gate({**of(a={"type": "string", "title": "x-strange"}), "required": ["a"]}, "github.search")
    with server(family, [("plain", {"b": "x"})], rule) as wire:
        spell = Cantrip(
            family.crystal(wire.url), circle=Circle(gates=["done", plain, strange], wards=[{"max_turns": 5}])
        )
        notices = []
        async with spell.cast_stream("go") as events:
            async for event in events:
                notices += [event.text] if isinstance(event, Noticed) else []
        assert len(wire.requests) == 3
        described = {name: text for name, text, _ in sent(wire.requests[-1].json())}
    assert any("of the tool github_search" in each for each in notices)
    assert "x-strange" in next(text for name, text in described.items() if name == "github_search")


async def test_a_tool_that_is_refused_without_its_schema_is_named() -> None:
    family = FAMILIES["anthropic"]
    with Wire(lambda request: family.refuse(400, "tools.1.custom.input_schema: no")) as wire:
        gates = ["done", odd_gate(of(a=STR), "github.search")]
        spell = Cantrip(family.crystal(wire.url), circle=Circle(gates=gates, wards=[{"max_turns": 5}]))
        with pytest.raises(CrystalError, match=r"the tool github_search"):
            await spell.cast("go")
        assert len(wire.requests) == 2


def test_a_hostile_schema_that_refers_to_itself_ends() -> None:
    """Of an MCP server: it would recurse without an end, or take a time that grows with each level."""
    again = {"$ref": "#/$defs/A"}
    for union in ("anyOf", "oneOf", "allOf"):
        wire, _ = for_wire({"type": "object", "properties": {}, **again, "$defs": {"A": {union: [again] * 50}}})
        assert wire["type"] == "object"
        assert union not in wire
    assert for_wire({"type": "object", "$ref": "#"})[0]["properties"] == {}


def test_the_root_is_an_object_whatever_the_schema_says() -> None:
    for schema in ({}, {"type": ["object", "null"]}, {"anyOf": [True, {"type": "string"}]}, {"$ref": "#/lost"}):
        assert for_wire(schema)[0] == {"type": "object", "properties": {}}
