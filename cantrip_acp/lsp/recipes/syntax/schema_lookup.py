"""Schema lookup: what is allowed at a key path, by the published JSON Schema of recipes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from cantrip_acp.lsp.recipes.syntax.tree import Node
from cantrip_acp.recipes.parse.problem_positions import KeyPath

Schema = dict[str, Any]


@cache
def _root_schema() -> Schema:
    from cantrip_acp import recipes

    definition: Schema = json.loads((Path(recipes.__file__).parent / "cantrip.schema.json").read_bytes())
    return definition


def at(path: KeyPath, root: Node) -> list[Schema]:
    """Every schema that the value at a path may have. The file's own content decides between alternatives, if it can."""
    found = [_root_schema()]
    node: Node | None = root
    for part in path:
        found = [inner for schema in _fitting(found, node) for inner in _step(schema, part)]
        node = node.get(part) if node is not None else None
    return _fitting(found, node)


def keys(path: KeyPath, root: Node) -> dict[str, Schema]:
    """The keys of the mapping at a path, each with its schema."""
    out: dict[str, Schema] = {}
    for schema in at(path, root):
        for name, inner in schema.get("properties", {}).items():
            out.setdefault(name, _merged(inner))
    return out


def words(path: KeyPath, root: Node) -> list[Any]:
    out: list[Any] = []
    for schema in at(path, root):
        given = [schema["const"]] if "const" in schema else schema.get("enum", ())
        out += [word for word in given if word not in out]
        if schema.get("type") == "boolean":
            out += [word for word in (True, False) if word not in out]
    return out


def described(path: KeyPath, root: Node) -> str:
    """The description of a key; empty if it has none."""
    if not path or not isinstance(path[-1], str):
        return ""
    inner = keys(path[:-1], root).get(path[-1])
    return str(inner.get("description", "")) if inner else ""


def kind(schema: Schema) -> str:
    if "type" in schema:
        given = schema["type"]
        return " or ".join(given) if isinstance(given, list) else str(given)
    if "enum" in schema:
        return "one of " + ", ".join(str(word) for word in schema["enum"][:6])
    parts = [kind(inner) for inner in (*schema.get("anyOf", ()), *schema.get("oneOf", ()))]
    return " or ".join(dict.fromkeys(part for part in parts if part and not part.startswith("one of On")))


def _merged(schema: Schema) -> Schema:
    """A reference together with the keys beside it."""
    if "$ref" not in schema:
        return schema
    return _referred(schema) | {key: value for key, value in schema.items() if key != "$ref"}


def _referred(schema: Schema) -> Schema:
    definition: Schema = _root_schema()["$defs"][schema["$ref"].rpartition("/")[2]]
    return definition


def _flat(schema: Schema) -> Iterator[Schema]:
    if "$ref" in schema:
        yield from _flat(_referred(schema))
        return
    # Alternatives that only say which keys are required together are not a choice.
    choices = [c for c in (*schema.get("oneOf", ()), *schema.get("anyOf", ())) if not {"required", "not"} >= c.keys()]
    if not choices:
        yield schema
    for choice in choices:
        yield from _flat(choice)


def _fitting(schemas: list[Schema], node: Node | None) -> list[Schema]:
    flat = [inner for schema in schemas for inner in _flat(schema)]
    if node is None or node.kind != "mapping":
        return flat
    mappings = [schema for schema in flat if "properties" in schema or "additionalProperties" in schema]
    best = [schema for schema in mappings if _matches_discriminator(schema, node)]
    return best or mappings or flat


def _matches_discriminator(schema: Schema, node: Node) -> bool:
    """Whether the mapping's content fits this schema."""
    properties = schema.get("properties", {})
    for name in ("provider", "name", "python"):
        child = node.get(name)
        if child is None:
            if name == "python" and name in schema.get("required", ()):
                return False
            continue
        if name not in properties:
            return False
        wanted = [properties[name]["const"]] if "const" in properties[name] else properties[name].get("enum")
        if wanted is not None and child.value and child.value not in wanted:
            return False
    return True


def _step(schema: Schema, part: str | int) -> Iterator[Schema]:
    if isinstance(part, int):
        inner = schema.get("items")
    else:
        inner = schema.get("properties", {}).get(part)
        if inner is None:
            inner = schema.get("additionalProperties")
    if isinstance(inner, dict):
        yield inner
