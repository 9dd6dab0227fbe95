"""The published JSON Schema accepts exactly what the loader accepts."""

import copy
import json
import random
from pathlib import Path
from typing import Any

import jsonschema
import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cantrip_acp.gates.wards import WARDS
from cantrip_acp.recipes import cache, generate
from cantrip_acp.recipes.models import schema
from cantrip_acp.recipes.parse import validation
from cantrip_acp.recipes.parse.document import Document
from cantrip_acp.recipes.parse.problem_positions import Places
from tests.support.recipe_writer import largest, smallest

SCHEMA = schema.recipe_schema()
PYTHON = jsonschema.Draft202012Validator(SCHEMA)
RUST = jsonschema_rs.Draft202012Validator(SCHEMA)


def loader_takes(data: Any) -> bool:
    return not validation.problems(Document("r", Path("r"), data, Places()))


def agree(data: Any) -> bool:
    """The verdict on which loader and schema agree; two independent validators read the schema."""
    verdict = loader_takes(data)
    assert PYTHON.is_valid(data) == verdict, json.dumps(data)
    assert RUST.is_valid(data) == verdict, json.dumps(data)
    return verdict


def test_it_is_a_valid_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert agree(schema.EXAMPLE)


def test_the_published_files_are_current() -> None:
    stale = "stale; run: python -m cantrip_acp.recipes.generate"
    assert cache.SCHEMA.read_text(encoding="utf-8") == schema.text(), stale
    assert cache.SHIPPED.read_text(encoding="utf-8") == generate.compiled_text(), stale


def test_keys_of_the_code_medium() -> None:
    for medium, right in (("code", True), ("bash", False), ("monty", False), (None, False)):
        for key, value in (("code_python", "venv"), ("loom", True), ("loom", "off")):
            data = smallest()
            data["circle"] |= {key: value} | ({"medium": medium} if medium else {})
            assert agree(data) == right
    for value in ("", " ", 3, ["venv"], None):
        data = smallest()
        data["circle"] |= {"medium": "code", "code_python": value}
        assert not agree(data)


def test_the_smallest_and_the_largest() -> None:
    assert agree(smallest())
    assert agree(largest())


def put(data: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    at: Any = data
    *parents, last = path.split(".")
    for part in parents:
        at = at[int(part)] if part.isdigit() else at.setdefault(part, {})
    at[int(last) if last.isdigit() else last] = value
    return data


@pytest.mark.parametrize(
    ("path", "value", "good"),
    [
        ("name", "a", True),
        ("name", " ", False),
        ("name", None, False),
        ("extra", 1, False),
        ("crystal", None, False),
        ("crystal", "anthropic:claude-sonnet-4-5", True),
        ("crystal", "anthropic:", False),
        ("crystal", "anthropic", False),
        ("crystal", "acme:x", False),
        ("crystal", "human", True),
        ("crystal", "human\n", False),
        ("crystal", "scripted: x", False),
        ("crystal", {"provider": "anthropic"}, False),
        ("crystal", {"provider": "anthropic", "model": "m", "responses": []}, False),
        ("crystal", {"provider": "scripted"}, False),
        ("crystal", {"provider": "scripted", "responses": []}, True),
        ("crystal", {"provider": "scripted", "responses": [], "script": "x"}, False),
        ("crystal", {"provider": "local", "model": "m", "base_url": "http://localhost:1"}, True),
        ("crystal", {"provider": "local", "model": "m", "base_url": "ftp://x"}, False),
        ("crystal", {"provider": "local", "model": "m", "api_key_env": "A B"}, False),
        ("crystal", {"provider": "local", "model": "m", "api_key_env": "A\n"}, False),
        ("crystal", {"provider": "local", "model": "m", "headers": {"a": 1}}, False),
        ("crystal", {"provider": ["scripted"], "responses": []}, False),
        ("call", None, False),
        ("call", {}, True),
        ("call.temperature", 2, True),
        ("call.temperature", 2.1, False),
        ("call.temperature", True, False),
        ("call.temperature", "0.2", False),
        ("call.max_tokens", 10.0, True),
        ("call.max_tokens", 10.5, False),
        ("call.max_tokens", 0, False),
        ("call.max_tokens", 10**400, True),
        ("call.tool_choice", "none", True),
        ("call.tool_choice", "None", False),
        ("call.stop", "x", True),
        ("call.stop", ["x", ""], False),
        ("call", {"system_prompt": "a", "system_prompt_file": "b"}, False),
        ("call", {"require_done": True}, True),
        ("call", {"require_done": True, "require_done_tool": True}, False),
        ("call.gates", ["done"], False),
        ("circle", None, False),
        ("circle", {}, False),
        ("circle", {"gates": ["done"]}, False),
        ("circle", {"wards": [{"max_turns": 1}]}, False),
        ("circle.medium", "code", True),
        ("circle.medium", "monty", True),
        ("circle.medium", "Bash", False),
        ("circle.gates", [], False),
        ("circle.gates", ["echo"], False),
        ("circle.gates", "done", False),
        ("circle.gates", {"done": {}}, False),
        ("circle.gates", ["done", "done"], False),
        ("circle.gates", ["done", {"name": "done"}], False),
        ("circle.gates", [{"name": "done"}], True),
        ("circle.gates", ["done", "call_agent", "call_entity"], False),
        ("circle.gates", ["done", "call_agent", "call_entity_batch"], True),
        ("circle.gates", ["done", {"name": "echo", "root": "x"}], False),
        ("circle.gates", ["done", {"name": "search", "root": "x"}], True),
        ("circle.gates", ["done", {"root": "x"}], False),
        ("circle.gates", ["done", {"python": "g.py"}], True),
        ("circle.gates", ["done", {"python": "g.py", "name": "x"}], False),
        ("circle.gates", ["done", {"name": ["echo"]}], False),
        ("circle.gates", ["done", None], False),
        ("circle.wards", [], False),
        ("circle.wards", {"max_turns": 1}, False),
        ("circle.wards", [{"max_depth": 1}], False),
        ("circle.wards", [{"max_turns": 1, "max_depth": 1}], False),
        ("circle.wards", [{"max_turns": 1}, {}], False),
        ("circle.wards", [{"max_turns": 1}, {"max_turns": 2}], True),
        ("circle.wards", [{"max_turns": 0}], False),
        ("circle.wards", [{"max_turns": None}], False),
        ("circle.wards", [{"max_turns": 1}, {"remove_gate": "done"}], False),
        ("circle.wards", [{"max_turns": 1}, {"remove_gate": ["echo", "done"]}], False),
        ("circle.wards", [{"max_turns": 1}, {"remove_gate": ["echo"]}], True),
        ("circle.wards", [{"max_turns": 1}, {"bash_network": "on"}], True),
        ("circle.wards", [{"max_turns": 1}, {"bash_network": [1]}], False),
        ("circle.wards", [{"max_turns": 1}, {"require_done_tool": "yes"}], False),
        ("circle.wards", [{"max_turns": 1}, {"bash_home": "shared"}], False),
        ("circle.wards", [{"max_turns": 1}, {"bash_writable_paths": [""]}], False),
        ("circle.wards", [{"max_turns": 1}, {"bash_writable_paths": ["a\0b"]}], False),
        ("folding", {"at_fraction": 0}, False),
        ("folding", {"at_fraction": 1}, True),
        ("retry", {"max_retries": -1}, False),
        ("retry", {"retryable_status_codes": [99]}, False),
        ("loom", {"store": "memory"}, True),
        ("loom", {"store": "jsonl:x"}, False),
        ("loom", {"store": "jsonl\n"}, False),
        ("loom", {"store": "sqlite:x.db"}, True),
        ("loom", {"store": "sqlite:"}, False),
        ("loom", {"store": "postgresql://h/d"}, True),
    ],
)
def test_table(path: str, value: Any, good: bool) -> None:
    assert agree(put(smallest(), path, value)) is good


@pytest.mark.parametrize("data", [None, [], "x", 1, True, {}, {"circle": []}, [smallest()]])
def test_what_is_no_recipe_at_all(data: Any) -> None:
    assert not agree(data)


@pytest.mark.parametrize("name", sorted(WARDS))
@pytest.mark.parametrize("value", [0, 1, 16, -1, 0.5, True, "on", "x", ["x"], [], [1], {}, None, "private", 10**20])
def test_every_ward_with_every_kind_of_value(name: str, value: Any) -> None:
    agree(put(smallest(), "circle.wards", [{"max_turns": 1}, {name: value}]))


_ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.floats(-2, 2, allow_nan=False, allow_infinity=False),
    st.sampled_from(["", " ", "done", "echo", "on", "off", "bash", "scripted", "x\n", "human", "anthropic:x", "jsonl"]),
    st.text(max_size=3),
    st.just([]),
    st.just({}),
    st.just(["done"]),
    st.just([{"max_turns": 1}]),
    st.just({"name": "done"}),
    st.just({"provider": "human"}),
)


def _places(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        found += _places(value, (*path, key))
    return found


def _mutate(data: Any, draw: Any, chance: random.Random) -> None:
    path = chance.choice(_places(data))
    parent = data
    for part in path[:-1]:
        parent = parent[part]
    what = chance.choice(["replace", "replace", "remove", "rename", "copy", "add"])
    if what == "replace":
        parent[path[-1]] = copy.deepcopy(draw(_ODD))
    elif what == "remove":
        del parent[path[-1]]
    elif what == "rename" and isinstance(parent, dict):
        parent[f"{path[-1]}{chance.choice(['s', '_', 'x'])}"] = parent.pop(path[-1])
    elif what == "copy":
        other = chance.choice(_places(data))
        value = data
        for part in other:
            value = value[part]
        parent[path[-1]] = json.loads(json.dumps(value))
    elif isinstance(parent, list):
        parent.append(copy.deepcopy(draw(_ODD)))
    elif isinstance(parent, dict):
        parent[chance.choice(["name", "gates", "wards", "max_turns", "provider", "model", "script", "root"])] = (
            copy.deepcopy(draw(_ODD))
        )


@settings(max_examples=400, deadline=None)
@given(st.data(), st.integers(0, 2**32), st.booleans(), st.integers(1, 4))
def test_mutated_recipes(data: Any, seed: int, large: bool, times: int) -> None:
    chance = random.Random(seed)
    recipe = largest() if large else smallest()
    for _ in range(times):
        if recipe:
            _mutate(recipe, data.draw, chance)
    agree(recipe)
