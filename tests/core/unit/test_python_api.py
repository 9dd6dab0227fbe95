"""`Cantrip(...)` and `Cantrip.load` as a script uses them: crystals by name, the short form of a circle, wrong arguments."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import cantrip_acp
from cantrip_acp import Call, Cantrip, Circle, DefinitionError, McpServer, McpServers, Wards
from cantrip_acp.recipes import load
from cantrip_acp.recipes.build.build import build
from cantrip_acp.recipes.trust import Ledger
from cantrip_acp.types.errors import RecipeError, UntrustedRecipe
from tests.support.fixtures.core import done, make
from tests.support.recipe_writer import write

CRYSTALS = (
    "ollama:qwen3",
    "anthropic:claude-sonnet-5-5",
    "openai:gpt-5",
    "google:gemini-3-pro",
    "openrouter:meta-llama/llama-4",
    "lmstudio:any",
    "gguf:model.gguf",
    "embedded",
    "embedded:smollm2",
    "human",
    "scripted:play.yaml",
)
KEYS = ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "OPENROUTER_API_KEY")


@pytest.mark.parametrize("text", CRYSTALS)
def test_a_text_names_the_crystal_that_it_names_in_a_recipe(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for key in KEYS:
        monkeypatch.setenv(key, "k")
    write(tmp_path, "responses: [{content: hello}]", "play.yaml")
    write(tmp_path, "GGUF", "model.gguf")
    made = Cantrip(text, max_turns=3).crystal
    path = write(tmp_path, f"crystal: {text}\ncircle: {{gates: [done], wards: [{{max_turns: 3}}]}}\n")
    same = build(load(path), workspace=tmp_path).crystal
    assert type(made) is type(same)
    assert (made.name, made.model, made.context_window) == (same.name, same.model, same.context_window)


SERVER = "http://127.0.0.1:8000/v1"


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"model": "ollama:qwen3", "effort": "low"}, {"provider": "ollama", "model": "qwen3", "effort": "low"}),
        ({"model": "qwen3:8b", "base_url": SERVER}, {"provider": "local", "model": "qwen3:8b", "base_url": SERVER}),
        (
            {"model": "local:m", "base_url": SERVER, "price": {"input": 0.5, "output": 1}, "context_window": 9000},
            {
                "provider": "local",
                "model": "m",
                "base_url": SERVER,
                "price": {"input": 0.5, "output": 1},
                "context_window": 9000,
            },
        ),
        (
            {"model": "openai:gpt-5", "base_url": SERVER, "api_key_env": "OPENAI_API_KEY"},
            {"provider": "openai", "model": "gpt-5", "base_url": SERVER, "api_key_env": "OPENAI_API_KEY"},
        ),
        ({"model": "embedded", "tools": "text"}, {"provider": "embedded", "tools": "text"}),
        ({"model": "ollama:qwen3"}, "ollama:qwen3"),
    ],
)
def test_a_model_with_options_is_the_crystal_that_a_recipe_has(
    given: dict[str, Any], wanted: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    named = Cantrip(**given, max_turns=3).crystal
    mapped = Cantrip(wanted, max_turns=3).crystal
    circle = "circle: {gates: [done], wards: [{max_turns: 3}]}\n"
    path = write(tmp_path, f"crystal: {json.dumps(wanted)}\n{circle}")
    assert endpoint(named) == endpoint(mapped) == endpoint(build(load(path), workspace=tmp_path).crystal)


def endpoint(crystal: Any) -> Any:
    """What a crystal sends its queries to, and how."""
    end = crystal.endpoint
    return (
        type(crystal),
        end.provider,
        end.model,
        end.base_url,
        end.api_key and end.api_key.reveal(),
        end.info,
        dict(end.options),
    )


def test_a_price_makes_a_limit_of_cost_possible() -> None:
    here: dict[str, Any] = {"model": "m", "base_url": SERVER, "wards": {"max_cost_usd": 1}, "max_turns": 3}
    with pytest.raises(DefinitionError, match="give the crystal a price"):
        Cantrip(**here)
    price = endpoint(Cantrip(**here, price={"input": 2, "output": 8}).crystal)[5].price
    assert (price.input, price.output) == (2, 8)


def test_children_may_have_crystals_by_name() -> None:
    cantrip = Cantrip("ollama:qwen3", crystals={"small": "ollama:tiny"}, max_turns=3)
    assert cantrip.crystals["small"].model == "tiny"
    assert cantrip.replace(crystal="ollama:other").crystal.model == "other"


def test_the_short_form_makes_the_same_cantrip(tmp_path: Path) -> None:
    short = make(done()).crystal
    made = Cantrip(
        short,
        gates=["echo"],
        medium="conversation",
        wards={"max_seconds": 60},
        max_turns=10,
        workspace=tmp_path,
        data={"a": 1},
        system_prompt="You echo.",
    )
    circle = Circle(
        "conversation", ["echo", "done"], [{"max_seconds": 60}, {"max_turns": 10}], workspace=tmp_path, data={"a": 1}
    )
    assert made.id == Cantrip(short, Call(system_prompt="You echo."), circle).id
    assert list(made.circle.gates) == ["echo", "done", "read_context"]
    assert made.replace(name="x").id == made.id


def test_a_changed_argument_makes_another_cantrip(tmp_path: Path) -> None:
    def look() -> str:
        """Look."""
        return "nothing"

    first = Cantrip(
        make(done()).crystal, gates=["echo"], wards=[{"max_seconds": 60}, {"max_turns": 3}], result_type=int
    )
    second = first.replace(max_turns=10, system_prompt="Be brief.", gates=[look], workspace=tmp_path)
    assert (second.circle.wards.max_turns, second.circle.wards.max_seconds) == (10, 60)
    assert list(second.circle.gates) == ["look", "done"]
    assert second.circle.gates["done"].properties["answer"]["type"] == "integer"
    assert second.circle.workspace == tmp_path
    assert second.call.system_prompt == "Be brief."
    assert (first.circle.wards.max_turns, list(first.circle.gates)) == (3, ["echo", "done"])
    assert second.replace(call=Call(temperature=0), system_prompt="x").call == Call(temperature=0, system_prompt="x")
    assert Cantrip(first.crystal, wards=Wards.of({"max_seconds": 3}), max_turns=2).circle.wards.max_turns == 2
    with pytest.raises(DefinitionError, match="a circle and also gates: put it into the circle"):
        first.replace(circle=first.circle, gates=["echo"])
    with pytest.raises(
        DefinitionError, match=r"unknown field 'max_turn' in Cantrip\.replace; did you mean 'max_turns'"
    ):
        first.replace(max_turn=3)


def test_mcp_servers_are_one_source() -> None:
    servers = [McpServer(name=name, command="serve") for name in ("notes", "issues")]
    [source] = Cantrip("ollama:qwen3", max_turns=3, sources=servers).sources
    assert isinstance(source, McpServers)
    assert source.servers == tuple(servers)
    with pytest.raises(DefinitionError, match=r"cantrip.sources\[0\] must have a method open"):
        Cantrip("ollama:qwen3", max_turns=3, sources=[5])  # type: ignore[list-item]


def test_a_script_without_an_event_loop_and_a_coroutine_use_it_alike() -> None:
    assert Cantrip(make(done("hello")).crystal, max_turns=2).cast_sync("Say hello.").result == "hello"


async def test_in_a_coroutine_it_is_awaited(anyio_backend: str) -> None:
    cantrip = Cantrip(make(done("hello"), done("again")).crystal, max_turns=2)
    assert (await cantrip.cast("Say hello.")).result == "hello"
    with pytest.raises(RuntimeError, match=r"an event loop runs, as in a notebook; write `await cantrip.cast\(…\)`"):
        cantrip.cast_sync("Say hello.")


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({}, "cantrip requires a circle: give max_turns=10, .*such as gates="),
        ({"gates": ["echo"]}, "max_turns=10"),
        (
            {"circle": Circle(wards={"max_turns": 1}), "max_turns": 2},
            "a circle and also max_turns: put it into the circle",
        ),
        (
            {"circle": Circle(wards={"max_turns": 1}), "gates": [], "medium": "bash"},
            "a circle and also gates, medium: put them into the circle",
        ),
        ({"max_turn": 2}, "unknown argument 'max_turn' in Cantrip; did you mean 'max_turns'"),
        ({"max_turns": 2, "model": "ollama:qwen3"}, "a crystal and also model: give one of them"),
        ({"max_turns": 2, "base_url": SERVER}, "base_url without model: give model="),
        (
            {"max_turns": 2, "crystal": {"provider": "locl"}},
            "cantrip.crystal.provider: unknown provider 'locl'; did you mean 'local'",
        ),
        ({"max_turns": 2, "crystal": {"provider": "vllm"}}, "cantrip.crystal: missing required key 'model'"),
        ({"max_turns": 2, "crystal": {"provider": "local", "model": "m", "base_ur": "x"}}, "did you mean 'base_url'"),
        ({"call": Call(), "system_prompt": "x", "max_turns": 2}, "a call and also system_prompt: put it into the call"),
        (
            {"crystal": "olama:qwen3", "max_turns": 2},
            "cantrip.crystal: 'olama:qwen3' is not a crystal; did you mean ollama:qwen3",
        ),
        ({"crystal": "", "max_turns": 2}, "cantrip.crystal: is empty; write PROVIDER:MODEL"),
        ({"crystal": "scripted:gone.yaml", "max_turns": 2}, "cantrip.crystal: the script .*gone.yaml: no such file"),
        (
            {"crystals": {"small": "nobody:x"}, "max_turns": 2},
            r"cantrip.crystals\['small'\]: 'nobody:x' is not a crystal",
        ),
    ],
)
def test_wrong_arguments_are_explained(more: dict[str, Any], says: str) -> None:
    with pytest.raises(DefinitionError, match=says):
        Cantrip(**{"crystal": make(done()).crystal, **more})


RECIPE = """\
name: review
crystal: {provider: scripted, responses: [{tool_calls: [{gate: done, args: {answer: 4}}], repeat: true}]}
circle: {gates: [done, {name: read_file, root: .}], wards: [{max_turns: 3}]}
loom: {store: jsonl}
"""


def test_a_recipe_is_loaded_from_its_file(tmp_path: Path) -> None:
    path = write(tmp_path, RECIPE, "review.cantrip.yaml")
    cantrip = Cantrip.load(path, workspace=tmp_path)
    assert cantrip.name == "review"
    assert cantrip.circle.workspace == tmp_path.resolve()
    assert cantrip.cast_sync("Judge it.").result == 4
    assert cantrip.loom.location is None
    typed = Cantrip.load(str(path), workspace=tmp_path, result_type=int, crystal="ollama:qwen3")
    assert typed.crystal.model == "qwen3"
    assert typed.circle.gates["done"].properties["answer"]["type"] == "integer"


def test_a_recipe_is_loaded_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, RECIPE, ".cantrip/review.cantrip.yaml")
    assert Cantrip.load("review").name == "review"
    with pytest.raises(DefinitionError, match="no recipe is named 'reviw'; did you mean 'review'"):
        Cantrip.load("reviw")
    write(tmp_path, RECIPE.replace("gates: [done", "gates: [fetch, done"), ".cantrip/review.cantrip.yaml")
    with pytest.raises(UntrustedRecipe, match="it reaches the network"):
        Cantrip.load("review")
    assert "fetch" in Cantrip.load(".cantrip/review.cantrip.yaml").circle.gates
    Ledger(Path(cantrip_state(monkeypatch, tmp_path))).grant(tmp_path)
    assert "fetch" in Cantrip.load("review").circle.gates


def cantrip_state(monkeypatch: pytest.MonkeyPatch, folder: Path) -> str:
    monkeypatch.setenv("CANTRIP_STATE_DIR", str(folder / "state"))
    return str(folder / "state")


def test_a_wrong_recipe_is_an_error_with_its_place(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"bad\.cantrip\.yaml:1:1: .*nam"):
        Cantrip.load(write(tmp_path, "nam: x\ncircle: {gates: [done], wards: [{max_turns: 3}]}", "bad.cantrip.yaml"))


def test_everything_that_the_package_exports_is_there() -> None:
    for name in cantrip_acp.__all__:
        assert getattr(cantrip_acp, name) is not None
    assert cantrip_acp.events.Text is not None
    with pytest.raises(AttributeError, match="no attribute 'Cantrp'"):
        _ = cantrip_acp.Cantrp
