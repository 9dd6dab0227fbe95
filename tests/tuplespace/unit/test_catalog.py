"""The catalog: its file, its lookups, and what a project folder puts into it."""

from __future__ import annotations

import contextlib
import json
import textwrap
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantrip_acp.recipes import load
from cantrip_acp.text.json_data import thaw
from cantrip_acp.tuplespace.batch import batch_tuples, cast_yool, read_intents, recipe_digest
from cantrip_acp.tuplespace.catalog.agents_md import AgentBlock, parse_agents
from cantrip_acp.tuplespace.catalog.build import build_catalog
from cantrip_acp.tuplespace.catalog.capabilities import (
    KINDS,
    Catalog,
    UnknownCapability,
    capability,
    parse_catalog,
    read_catalog,
)
from cantrip_acp.tuplespace.errors import TupleError
from cantrip_acp.types.errors import DefinitionError, RecipeError

AGENTS = """\
# Guide

## Agents

### dev-agent
- yool_id: agent.dev.${stack}.v1
- authority: [user, ci]
- lane: build
- agent_terms:
budget_usd: 0.50
cpu_quota_pct: 60
disk_quota_mb: 100
- Role: implements code from spec
- Triggers: new task in .specs/sprints/

### lint-agent
- yool_id: agent.lint.${stack}.v1
- authority: [user, ci]
- lane: build
- agent_terms:
budget_usd: 0.05
cpu_quota_pct: 30
disk_quota_mb: 10
- Role: enforces style
- Triggers: post-edit
"""
"""The example of the seed, whose indentation is lost."""

segment = st.text("abz09_-", min_size=1, max_size=6)
one = st.fixed_dictionaries(
    {
        "name": st.builds(lambda parts: "agent." + ".".join(parts), st.lists(segment, min_size=1, max_size=4)),
        "version": st.text(min_size=1, max_size=8).filter(str.isprintable),
        "kind": st.sampled_from(KINDS),
        "source": st.text(max_size=8),
    },
    optional={
        "lane": st.sampled_from(["build", "review"]),
        "authority": st.lists(st.sampled_from(["user", "ci"]), max_size=2),
        "agent_terms": st.fixed_dictionaries({}, optional={"budget_usd": st.floats(0, 1e6) | st.integers(0, 9)}),
        "description": st.text(max_size=20),
        "input_schema": st.dictionaries(st.text(max_size=3), st.integers() | st.booleans() | st.none(), max_size=3),
    },
)
catalogs = st.lists(one, max_size=12, unique_by=lambda fields: fields["name"]).map(
    lambda every: Catalog(capability(**fields) for fields in every)
)


def agent(name: str, **fields: Any) -> Any:
    return capability(
        **{"name": name, "version": "v1", "kind": "agent", "source": "AGENTS.md", "lane": "build"} | fields
    )


# --- the file


@given(catalogs)
def test_a_catalog_is_the_same_after_writing_and_reading(catalog: Catalog) -> None:
    text = catalog.to_json()
    again = parse_catalog(text, "file")
    assert [*again] == [*catalog]
    assert again.catalog_id == catalog.catalog_id == json.loads(text)["catalog_id"]
    assert again.to_json() == text
    assert not catalog.diff(again)


@given(catalogs, catalogs)
def test_a_diff_leads_from_one_catalog_to_the_other(old: Catalog, new: Catalog) -> None:
    found = old.diff(new)
    by_name = {each.name: each for each in old}
    for each in found.removed:
        assert by_name.pop(each.name) == each
    for before, after in found.changed:
        assert by_name[after.name] == before
        by_name[after.name] = after
    by_name |= {each.name: each for each in found.added}
    assert Catalog(by_name.values()).catalog_id == new.catalog_id
    assert bool(found) == (old.catalog_id != new.catalog_id)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda d: d["capabilities"][0].update(lane="other"), "edited or merged by hand"),
        (lambda d: d["capabilities"].append(d["capabilities"][0]), "each name may be used once"),
        (lambda d: d["capabilities"][0].update(kind="thing"), "kind"),
        (lambda d: d["capabilities"][0].update(name="One"), "name"),
        (lambda d: d["capabilities"][0].update(more=1), "more"),
        (lambda d: d["capabilities"][0].update(agent_terms={"budget_usd": -1}), "budget_usd"),
        (lambda d: d.update(schema="cantrip-catalog/v9"), "v9"),
        (lambda d: d.pop("catalog_id"), "catalog_id"),
    ],
)
def test_a_file_that_is_not_valid_is_refused(tmp_path: Path, change: Any, says: str) -> None:
    data = json.loads(Catalog([agent("agent.dev.python")]).to_json())
    change(data)
    (tmp_path / "c.json").write_text(json.dumps(data))
    with pytest.raises(TupleError) as error:
        read_catalog(tmp_path / "c.json")
    assert says in str(error.value)
    assert str(error.value).startswith(f"{tmp_path}/c.json: ")
    assert "cantrip catalog build" in str(error.value)


@pytest.mark.parametrize("text", [b"", b"[]", b"\xff", b'{"schema": "cantrip-catalog/v1"', b"[" * 100_000])
def test_a_file_that_is_no_catalog_is_refused(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "c.json").write_bytes(text)
    with pytest.raises(TupleError):
        read_catalog(tmp_path / "c.json")
    with pytest.raises(TupleError, match="No such file"):
        read_catalog(tmp_path / "absent.json")


def test_a_capability_cannot_be_changed() -> None:
    given = {"type": "object", "properties": {"b": {}, "a": {}}}
    made = agent("agent.dev.python", input_schema=given)
    given["properties"].clear()  # type: ignore[attr-defined]
    catalog = parse_catalog(Catalog([made]).to_json(), "file")
    # In this order: it is the order of positional arguments.
    for schema in (made.input_schema, catalog.lookup("agent.dev.python").input_schema):
        assert [*schema["properties"]] == ["b", "a"]
        with pytest.raises(TypeError):
            schema["properties"]["c"] = {}


# --- lookups


def test_an_unknown_name_is_an_error_with_similar_names() -> None:
    catalog = Catalog([agent("agent.dev.python"), agent("agent.lint.ruff")])
    with pytest.raises(UnknownCapability, match=r"did you mean 'agent\.dev\.python'") as error:
        catalog.lookup("agent.dev.pyton")
    assert error.value.similar == ("agent.dev.python",)
    assert isinstance(error.value, DefinitionError)
    with pytest.raises(UnknownCapability) as error:
        Catalog([]).lookup("x" * 100_000)
    assert len(str(error.value)) < 400


def test_similar_names_are_found_in_a_large_catalog_too() -> None:
    catalog = Catalog(agent(f"agent.area{number % 100}.tool{number}") for number in range(20_000))
    with pytest.raises(UnknownCapability) as error:
        catalog.lookup("agent.area17.tool1017x")
    assert "agent.area17.tool1017" in error.value.similar


def test_a_name_without_version_finds_the_highest() -> None:
    catalog = Catalog(agent(f"agent.dev.python.v{number}") for number in (1, 2, 10, 9))
    assert catalog.lookup("agent.dev.python").name == "agent.dev.python.v10"
    assert catalog.lookup("agent.dev.python.v2").name == "agent.dev.python.v2"
    exact = Catalog([*catalog, agent("agent.dev.python")])
    assert exact.lookup("agent.dev.python").name == "agent.dev.python"


def test_a_list_is_sorted_and_filtered_by_lane_and_kind() -> None:
    catalog = Catalog(
        [agent("agent.b.b"), agent("agent.a.a", lane="test"), agent("agent.cast.c", kind="recipe"), agent("agent.d.d")]
    )
    assert [each.name for each in catalog.list()] == ["agent.a.a", "agent.b.b", "agent.cast.c", "agent.d.d"]
    assert [each.name for each in catalog.list("build")] == ["agent.b.b", "agent.cast.c", "agent.d.d"]
    assert [each.name for each in catalog.list("build", "agent")] == ["agent.b.b", "agent.d.d"]
    assert catalog.list("nothing") == ()


# --- AGENTS.md


def agents(text: str) -> list[AgentBlock]:
    return parse_agents(textwrap.dedent(text), "AGENTS.md")


INDENTED = "\n".join(f"    {line}" if line[:1].islower() else line for line in AGENTS.splitlines())
BULLETS = "\n".join(f"  - {line}" if line[:1].islower() else line for line in AGENTS.splitlines())
FLAT_BULLETS = "\n".join(f"- {line}" if line[:1].islower() else line for line in AGENTS.splitlines())
LOOSE = AGENTS.replace("\n", "\n\n")
WINDOWS = AGENTS.replace("\n", "\r\n")


@pytest.mark.parametrize("text", [AGENTS, INDENTED, BULLETS, FLAT_BULLETS, LOOSE, WINDOWS])
def test_agents_are_read_with_their_indentation_or_without(text: str) -> None:
    dev, lint = parse_agents(text, "AGENTS.md")
    assert (dev.title, dev.lane, dev.authority) == ("dev-agent", "build", ("user", "ci"))
    assert dev.description == "implements code from spec"
    assert dev.agent_terms is not None
    assert (dev.agent_terms.budget_usd, dev.agent_terms.cpu_quota_pct, dev.agent_terms.disk_quota_mb) == (0.5, 60, 100)
    assert lint.agent_terms is not None
    assert lint.agent_terms.budget_usd == 0.05
    assert lint.names({"stack": ("python", "go")}) == ("agent.lint.python.v1", "agent.lint.go.v1")


def test_other_ways_to_write_a_block() -> None:
    (block,) = agents(
        """
        ## The **developer** ##
        * **Yool-ID**: `agent.dev.${stack}.${size}`
        * Lane: `build`
        * Authority: ci
        * Stack: python, dotnet
        * size: [big]
        * Agent terms: {budget_tokens: 5000, max_retries: 2}
        * Description: Writes code: well.
        Some text with a colon: not a term.
        """
    )
    assert block.names({}) == ("agent.dev.python.big", "agent.dev.dotnet.big")
    assert (block.lane, block.authority, block.description) == ("build", ("ci",), "Writes code: well.")
    assert block.agent_terms is not None
    assert block.agent_terms.budget_tokens == 5000


def test_code_blocks_and_other_lists_are_no_agents() -> None:
    assert not agents(
        """
        ## How to write an agent
        - lane: the lane
        ````markdown
        ### dev-agent
        ```
        - yool_id: agent.dev.python
        ```
        ### other
        - agent_terms: nonsense
        ````
        - Role: for people
        """
    )


@pytest.mark.parametrize(
    ("bullets", "line", "says"),
    [
        (["yool_id: agent.dev.python"], 2, "no lane"),
        (["yool_id: agent.dev.${size}", "lane: build"], 2, r"\$\{size\} has no value"),
        (["yool_id: agent.dev.${stack}", "lane: build"], 2, r"\$\{stack\} has no value"),
        (["yool_id: agent.dev.${stack}", "stack: auto-detect", "lane: build"], 2, r"\$\{stack\} has no value"),
        (["yool_id: Agent", "lane: build"], 2, r"'Agent'.*\$\.name"),
        (["yool_id: [a.b]", "lane: build"], 2, "must be a name"),
        (["yool_id: agent.dev.python", "lane: a lane"], 3, r"\$\.lane"),
        (["yool_id: agent.dev.python", "lane: 3"], 3, "must be a text"),
        (["yool_id: agent.dev.python", "lane: build", "authority: [1]"], 4, "authority must be a list"),
        (["yool_id: agent.dev.python", "lane: build", "authority: [user"], 4, "cannot be read"),
        (["yool_id: agent.dev.python", "lane: build", "lane: test"], 4, "twice, first in line 3"),
        (["yool_id: agent.dev.python", "lane: build", "agent_terms: 5"], 4, "must be followed by lines"),
        (["yool_id: agent.dev.python", "lane: build", "agent_terms:\nbudget_usd: much"], 5, "Expected .*budget_usd"),
        (["yool_id: agent.dev.python", "lane: build", "agent_terms:\n  cpu_quota_pct: 101"], 5, "<= 100"),
        (["yool_id: agent.dev.python", "lane: build", "agent_terms:\n  - budget_us: 1"], 5, "a term is budget_usd"),
        (["yool_id: agent.dev.python", "lane: build", "agent_terms: {budget: 1}"], 4, "budget"),
        (["lane: build", "agent_terms:\nbudget_usd: 1"], 3, "no yool_id"),
    ],
)
def test_a_mistake_is_an_error_with_file_and_line(tmp_path: Path, bullets: list[str], line: int, says: str) -> None:
    (tmp_path / "AGENTS.md").write_text("\n".join(["## one", *(f"- {each}" for each in bullets)]))
    with pytest.raises(TupleError, match=says) as error:
        build_catalog(tmp_path)
    assert str(error.value).startswith(f"AGENTS.md:{line}: agent 'one': ")


def test_two_agents_with_one_name_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").write_text("# a\n- yool_id: agent.x.y\n- lane: l\n# b\n- yool_id: agent.x.y\n- lane: l\n")
    with pytest.raises(
        TupleError, match=r"AGENTS\.md:5: agent 'b': 'agent\.x\.y' is the name of agent 'a' in line 1 too"
    ):
        build_catalog(tmp_path)


def test_a_file_that_is_not_utf_8_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").write_bytes(b"\xff\xfe")
    with pytest.raises(TupleError, match=r"AGENTS\.md: .*UTF-8"):
        build_catalog(tmp_path)


@given(st.text(st.sampled_from("#-*`: \n[]{}$ay") | st.characters(codec="utf-8"), max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(TupleError):
        for block in parse_agents(f"# a\n- yool_id: agent.b.c\n{text}", "AGENTS.md"):
            _ = block.names({}), block.lane, block.authority, block.agent_terms, block.description


# --- a project


RECIPE = """
name: Re View
description: Reviews a change.
crystal: {provider: human}
circle: {gates: [done], wards: [{max_turns: 3}]}
"""


def test_the_catalog_of_a_project(tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").write_text(AGENTS)
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "App.csproj").touch()
    (tmp_path / ".cantrip").mkdir()
    (tmp_path / ".cantrip" / "review.cantrip.yaml").write_text(RECIPE)
    catalog = build_catalog(tmp_path)
    assert [each.name for each in catalog.list("build")] == [
        "agent.dev.dotnet.v1", "agent.dev.python.v1", "agent.lint.dotnet.v1", "agent.lint.python.v1",
    ]  # fmt: skip
    dev = catalog.lookup("agent.dev.python")
    assert (dev.kind, dev.version, dev.authority, dev.source) == ("agent", "v1", ("user", "ci"), "AGENTS.md: dev-agent")
    read_file = catalog.lookup("gate.read_file")
    assert read_file.input_schema is not None
    assert next(iter(read_file.input_schema["properties"])) == "path"
    assert catalog.lookup("medium.code").kind == "medium"
    assert catalog.lookup("provider.ollama").description.startswith("Models at http://127.0.0.1")
    assert not [each.name for each in catalog if not each.version or not each.description]
    assert build_catalog(tmp_path).to_json() == catalog.to_json()


def test_a_recipe_has_the_name_and_version_that_batches_use(tmp_path: Path) -> None:
    import jsonschema_rs

    (tmp_path / ".cantrip").mkdir()
    (tmp_path / ".cantrip" / "review.cantrip.yaml").write_text(RECIPE)
    recipe = load("review", tmp_path)
    (work,) = batch_tuples(recipe.name, recipe_digest(recipe), read_intents(b'"Look."', "f"), lane="x")
    found = build_catalog(tmp_path).lookup(work.payload[0].yool)
    assert (found.name, found.lane, found.kind) == (cast_yool("Re View"), "Re-View", "recipe")
    assert (found.source, found.description) == (".cantrip/review.cantrip.yaml", "Reviews a change.")
    assert found.version == work.payload[0].args["recipe"]  # type: ignore[index]
    assert jsonschema_rs.is_valid(thaw(found.input_schema), thaw(work.payload[0].args))
    assert not jsonschema_rs.is_valid(thaw(found.input_schema), {"intent": "Look.", "recipe": "sha256:" + "0" * 64})


def test_an_agent_with_the_name_of_a_recipe_sets_its_lane_and_budget(tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").write_text(
        "# reviewer\n- yool_id: agent.cast.coding\n- authority: [ci]\n- agent_terms:\n  budget_usd: 2\n"
    )
    plain, found = build_catalog(tmp_path / "none"), build_catalog(tmp_path)
    ((old, new),) = plain.diff(found).changed
    assert (new.kind, new.lane, new.authority, new.version) == ("recipe", "coding", ("ci",), old.version)
    assert new.agent_terms is not None
    assert new.agent_terms.budget_usd == 2


def test_a_recipe_of_the_project_replaces_a_built_in_one(tmp_path: Path) -> None:
    (tmp_path / ".cantrip").mkdir()
    (tmp_path / ".cantrip" / "mine.cantrip.yaml").write_text(RECIPE.replace("Re View", "coding"))
    assert build_catalog(tmp_path).lookup("agent.cast.coding").source == ".cantrip/mine.cantrip.yaml"
    (tmp_path / ".cantrip" / "other.cantrip.yaml").write_text(RECIPE.replace("Re View", "coding"))
    with pytest.raises(TupleError, match=r"other\.cantrip\.yaml and \.cantrip/mine\.cantrip\.yaml both have the name"):
        build_catalog(tmp_path)


def test_a_recipe_that_is_not_valid_is_an_error_with_its_place(tmp_path: Path) -> None:
    (tmp_path / ".cantrip").mkdir()
    (tmp_path / ".cantrip" / "bad.cantrip.yaml").write_text("crystal: {provider: human}\ncircle: {gatez: [done]}\n")
    with pytest.raises(RecipeError, match=r"^\.cantrip/bad\.cantrip\.yaml:2:"):
        build_catalog(tmp_path)


def test_names_that_are_too_long_are_errors(tmp_path: Path) -> None:
    (tmp_path / ".cantrip").mkdir()
    (tmp_path / ".cantrip" / "long.cantrip.yaml").write_text(RECIPE.replace("Re View", "n" * 300))
    with pytest.raises(TupleError, match="not a valid capability"):
        build_catalog(tmp_path)
