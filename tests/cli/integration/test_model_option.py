"""`--model`: another model than the recipe's own, for one run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cantrip_acp.loom.loom import Loom
from cantrip_acp.recipes.build.crystal_choices import crystal_for_run
from cantrip_acp.recipes.recipe import Recipe, load
from cantrip_acp.types.errors import DefinitionError, MissingKey
from cantrip_acp.types.records import ConfigRecord
from tests.support.command_line import GREETER, recipe, run, start

OWN = """
name: own
crystal: {provider: openai, model: gpt-5.1, price: {input: 1, output: 2}, context_window: 5000, effort: low, tools: text}
crystals: {fast: "scripted:hello.yaml"}
call: {temperature: 0.5}
circle:
  gates: [done]
  wards: [{max_turns: 3}]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    recipe(tmp_path, OWN)
    recipe(tmp_path, GREETER, "greeter.cantrip.yaml")
    (tmp_path / "hello.yaml").write_text("- {content: Hello from the script., repeat: true}\n")
    (tmp_path / "other.yaml").write_text("- {content: Hello from another., repeat: true}\n")
    return tmp_path


@pytest.fixture
def own(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Recipe:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.setenv(name, "k-12345678")
    return load(folder / "r.cantrip.yaml", folder)


def configs(loom: Path) -> list[Any]:
    with Loom.open(loom, readonly=True) as held:
        return [each.changes for each in held.records() if isinstance(each, ConfigRecord)]


@pytest.mark.parametrize(("given", "recorded"), [("scripted:hello.yaml", "scripted:hello.yaml"), ("fast", "fast")])
def test_cast_with_another_model(folder: Path, given: str, recorded: str) -> None:
    loom = folder / "x.loom.jsonl"
    done = run("cast", "./r.cantrip.yaml", "Hi.", "-m", given, "--loom", loom, cwd=folder)
    assert done.status == 0, done.err
    assert "Hello from the script." in done.out
    assert configs(loom) == [{"crystal": recorded}]


def test_the_loom_says_nothing_of_a_model_that_was_not_chosen(folder: Path) -> None:
    loom = folder / "x.loom.jsonl"
    assert run("cast", "./greeter.cantrip.yaml", "Hi.", "--loom", loom, cwd=folder).status == 0
    assert configs(loom) == []


def test_repl_with_another_model(folder: Path) -> None:
    loom = folder / "x.loom.jsonl"
    model = ("--model", "scripted:hello.yaml", "--loom", loom)
    done = run("repl", "./r.cantrip.yaml", *model, cwd=folder, stdin="Hi.\n")
    assert done.status == 0, done.err
    assert "Hello from the script." in done.out
    assert configs(loom) == [{"crystal": "scripted:hello.yaml"}]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("claude-opuss-5-5", "did you mean anthropic:claude-opus-5-5?"),
        ("antropic:claude-opus-5-5", "did you mean anthropic:claude-opus-5-5?"),
        ("claude-opus-99", "did you mean anthropic:claude-opus-99?"),
        ("nobody:x", "'nobody:x' is not a crystal; write PROVIDER:MODEL"),
        ("", "--model: is empty"),
        ("scripted:", "write scripted:FILE"),
        ("scripted:absent.yaml", "absent.yaml"),
        ("claude-opus-5-5", "no key for anthropic: set ANTHROPIC_API_KEY"),
        ("embedded:nothing", "nothing"),
    ],
)
def test_a_name_that_cannot_be_used(folder: Path, given: str, said: str) -> None:
    done = run("cast", "./r.cantrip.yaml", "Hi.", "-m", given, cwd=folder)
    assert done.status == 2, done.err
    assert said in done.err
    assert done.out == ""


def test_what_belongs_to_the_recipes_own_model_stays_with_it(own: Recipe) -> None:
    crystal: Any
    crystal, notes = crystal_for_run(own, "gpt-5.1", "--model")
    assert (crystal.context_window, notes) == (5000, ())
    crystal, notes = crystal_for_run(own, "claude-opus-5", "--model")
    assert (crystal.name, crystal.model) == ("anthropic", "claude-opus-5")
    assert crystal.context_window != 5000
    assert notes[0] == (
        "anthropic:claude-opus-5 takes the place of openai:gpt-5.1, so these keys of the recipe's crystal are not used: "
        "context_window, price, tools"
    )


def test_parameters_that_a_model_does_not_take_are_told(own: Recipe) -> None:
    _, notes = crystal_for_run(own, "claude-opus-5-5", "--model")
    assert "anthropic:claude-opus-5-5 does not take temperature, which the recipe's call sets" in notes


def test_a_name_of_two_providers_is_not_guessed(own: Recipe, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CANTRIP_CONFIG_DIR", str(tmp_path))
    (tmp_path / "models.toml").write_text("[openrouter.'claude-opus-5-5']\ncontext_window = 1000\n")
    with pytest.raises(DefinitionError, match="did you mean anthropic:claude-opus-5-5 or openrouter:claude-opus-5-5"):
        crystal_for_run(own, "claude-opus-5-5", "--model")
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    with pytest.raises(MissingKey):
        crystal_for_run(own, "anthropic:claude-opus-5-5", "--model")


def test_a_batch_with_another_model_is_other_work(folder: Path) -> None:
    (folder / "intents.jsonl").write_text('"Say hello."\n')
    state, out = folder / "state", folder / "out.jsonl"
    own = ("cast-batch", "./r.cantrip.yaml", "intents.jsonl", "--state-dir", state, "--out", out)
    for script, said in (("hello", "the script"), ("other", "another"), ("hello", "the script")):
        done = run(*own, "-m", f"scripted:{script}.yaml", cwd=folder)
        assert done.status == 0, done.err
        assert f"Hello from {said}." in out.read_text()
    assert "ended in an earlier run" in done.err + done.out
    looms = sorted((state / "looms").glob("*.jsonl"))
    assert sorted(configs(each)[0]["crystal"] for each in looms) == ["scripted:hello.yaml", "scripted:other.yaml"]


@pytest.mark.parametrize(("model", "status"), [("scripted:hello.yaml", 0), ("scripted:other.yaml", 1)])
def test_a_worker_takes_only_the_work_of_its_model(folder: Path, model: str, status: int) -> None:
    (folder / "intents.jsonl").write_text('"Say hello."\n')
    space, out = ("--space", folder / "space.db", "--state-dir", folder / "state", "--lane", "l"), folder / "out.jsonl"
    batch = start(
        "cast-batch", "./r.cantrip.yaml", "intents.jsonl", *space, "-m", "scripted:hello.yaml", "--out", out, cwd=folder
    )
    try:
        left = False
        while batch.poll() is None and not left:
            # The batch may not have put its work yet.
            worker = run("worker", "./r.cantrip.yaml", "-m", model, "--until-empty", *space, cwd=folder)
            left = worker.status == 1
            assert left == ("or another model" in worker.err), worker.err
        assert left == bool(status)
    finally:
        if status:
            batch.kill()
        _, errors = batch.communicate()
    if not status:
        assert batch.returncode == 0, errors
        assert '"done"' in out.read_text()


def test_eval_takes_models_by_both_names(folder: Path) -> None:
    suite = folder / "suite"
    assert run("eval", "--new", suite, cwd=folder).status == 0
    done = run("eval", suite, "-m", "scripted:hello.yaml", "--crystal", "scripted:other.yaml", "--json", cwd=folder)
    assert done.status == 1, done.err
    assert {each["crystal"] for each in done.lines[:-1]} == {"scripted:hello.yaml", "scripted:other.yaml"}
