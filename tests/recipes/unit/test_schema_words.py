"""The published schema says of every key what it means and shows one: what other editors' servers have to go by."""

from collections.abc import Iterator
from typing import Any

from jsonschema import Draft202012Validator

from cantrip_acp.recipes.models import schema_docs
from cantrip_acp.recipes.models.schema import recipe_schema

SCHEMA = recipe_schema()


def keys() -> Iterator[tuple[str, str]]:
    for part, schema in [("", SCHEMA), *SCHEMA["$defs"].items()]:
        for key in schema.get("properties", {}):
            yield part, key


def of(part: str) -> dict[str, Any]:
    return SCHEMA if not part else SCHEMA["$defs"][part]


def test_every_key_is_described_and_shown() -> None:
    for part, key in keys():
        schema = of(part)["properties"][key]
        assert schema.get("description", "").strip(), (part, key)
        assert schema.get("examples"), (part, key)
        judge = Draft202012Validator({"$defs": SCHEMA["$defs"], **schema})
        for example in schema["examples"]:
            assert judge.is_valid(example), (part, key, example)


def test_nothing_is_said_of_keys_that_are_not_there() -> None:
    known = set(keys())
    for table in (schema_docs.DESCRIBED, schema_docs.EXAMPLES):
        assert {(part, key) for part, said in table.items() for key in said} <= known
