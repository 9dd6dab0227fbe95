"""Makes the JSON Schema of recipes from the models. It accepts exactly the recipes that can be loaded.

It is published for editors as ``recipes/cantrip.schema.json`` (`recipes.generate` writes the file).
"""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel

from cantrip_acp.recipes.models import schema_docs
from cantrip_acp.recipes.models.recipe import Recipe
from cantrip_acp.recipes.parse import cross_field

ID = "urn:cantrip-acp:recipe"


def recipe_schema() -> dict[str, Any]:
    """The schema (draft 2020-12) of a recipe's data.

    It includes gates, mediums and providers of other installed packages, so it may differ from the published schema.
    """
    schema: dict[str, Any] = _tidy(Recipe.model_json_schema(mode="validation"))
    parts = schema.pop("$defs")
    parts["Call"]["allOf"] = cross_field.BOTH_CALL
    parts["ScriptedCrystal"] |= cross_field.SCRIPTED
    parts["ModelCrystal"] |= cross_field.MODEL
    parts["McpServer"] |= cross_field.SERVERS
    parts["Circle"] |= cross_field.OF_CODE
    parts["Circle"]["properties"]["gates"] |= cross_field.gates_schema()
    parts["Circle"]["properties"]["wards"] |= cross_field.WARDS_SCHEMA
    parts["Ward"] |= cross_field.ONE_WARD
    schema_docs.add_descriptions(schema["properties"], "")
    for name, part in parts.items():
        schema_docs.add_descriptions(part.get("properties", {}), name)
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": ID,
        "title": "Cantrip recipe",
        "description": schema.pop("description"),
    }
    return head | schema | {"examples": [EXAMPLE], "$defs": dict(sorted(parts.items()))}


def schema_of(model: type[BaseModel], title: str) -> dict[str, Any]:
    """The schema of another kind of file that is made of these models, such as a suite of tasks."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": title,
        **_tidy(model.model_json_schema(mode="validation")),
    }


EXAMPLE = {
    "name": "word-count",
    "crystal": "anthropic:claude-sonnet-5-5",
    "call": {"system_prompt": "You are a file-processing assistant."},
    "circle": {
        "medium": "bash",
        "gates": ["done", "list_dir", {"name": "read_file", "root": "data"}],
        "wards": [{"max_turns": 10}, {"bash_network": False}],
    },
}


def text() -> str:
    return json.dumps(recipe_schema(), indent=2, ensure_ascii=False) + "\n"


def _tidy(node: Any, *, names: bool = False) -> Any:
    """Remove pydantic's titles, default values and empty choices.

    If ``names``, the keys of ``node`` are names of fields or parts, not keywords of JSON Schema.
    """
    if isinstance(node, list):
        return [_tidy(item) for item in node]
    if not isinstance(node, dict):
        return node
    out: dict[str, Any] = {}
    for key, value in node.items():
        if not names and key in ("title", "default"):
            continue
        out[key] = _tidy(value, names=not names and key in ("properties", "$defs"))
    if not names and "oneOf" in out:
        out["oneOf"] = [o for o in out["oneOf"] if o.get("$ref") not in _empty()]
    if names:
        for name in ("AddedCrystal", "AddedGate"):
            if f"#/$defs/{name}" in _empty():
                out.pop(name, None)
    return out


def _empty() -> set[str]:
    """References to the parts for added crystals and gates, if no package adds any: an empty choice is not valid."""
    from cantrip_acp.recipes.parse import names

    parts = {"#/$defs/AddedCrystal": names.added_crystals(), "#/$defs/AddedGate": names.added_gates()}
    return {reference for reference, added in parts.items() if not added}
