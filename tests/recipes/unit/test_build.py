"""From a recipe to a cantrip: what the file says is what the entity gets."""

from pathlib import Path

import pytest

from cantrip_acp.recipes import load, load_for_session
from cantrip_acp.recipes.build.build import build
from cantrip_acp.types.errors import DefinitionError, RecipeError
from tests.support.recipe_writer import write

SCRIPT = "- {tool_calls: [{gate: done, args: {answer: from the script}}]}\n"

WHOLE = """
name: whole
crystal:
  provider: scripted
  model: m-1
  context_window: 5000
  responses: [{content: hi}]
call:
  system_prompt: "  You, byte for byte.\\n"
  temperature: 0
  stop: END
  require_done: on
circle:
  medium: conversation
  gates: [done, {name: echo, ephemeral: on}]
  wards: [{max_turns: 3.0}, {require_done: off}, {bash_writable_paths: [workspace, sub]}, {max_turns: 2}]
retry: {max_retries: 1, retryable_status_codes: [418], base_s: 0.5}
"""


def test_everything_arrives(tmp_path: Path) -> None:
    cantrip = build(load(write(tmp_path, WHOLE)), workspace=tmp_path)
    assert cantrip.name == "whole"
    assert (cantrip.crystal.model, cantrip.crystal.context_window) == ("m-1", 5000)
    assert cantrip.call.system_prompt == "  You, byte for byte.\n"
    assert (cantrip.call.temperature, cantrip.call.stop) == (0, ("END",))
    assert cantrip.require_done
    assert cantrip.circle.gates["echo"].ephemeral
    assert not cantrip.circle.gates["done"].ephemeral
    assert cantrip.circle.wards.max_turns == 2
    assert cantrip.circle.wards.bash_writable_paths == (str(tmp_path), str(tmp_path / "sub"))
    assert (cantrip.retry.max_retries, cantrip.retry.statuses, cantrip.retry.base_s) == (1, frozenset({418}), 0.5)


def test_the_name_is_the_files_where_it_has_none(tmp_path: Path) -> None:
    text = "circle: {gates: [done], wards: [{max_turns: 1}]}"
    assert load(write(tmp_path, text, "word-count.cantrip.yaml")).name == "word-count"
    assert load(write(tmp_path, text, "plain.yml")).name == "plain"


def recipe(extra: str = "", gates: str = "[done]") -> str:
    return f"circle:\n  gates: {gates}\n  wards: [{{max_turns: 3}}]\n{extra}"


def test_files_are_relative_to_the_recipe(tmp_path: Path) -> None:
    write(tmp_path, SCRIPT, "in/session.yaml")
    write(tmp_path, b"\xef\xbb\xbfA prompt.\r\n", "in/prompt.md")
    path = write(
        tmp_path,
        recipe("crystal: scripted:session.yaml\ncall: {system_prompt_file: prompt.md}\n"),
        "in/r.cantrip.yaml",
    )
    cantrip = build(load(path), workspace=tmp_path / "elsewhere")
    assert cantrip.call.system_prompt == "A prompt.\r\n"
    assert cantrip.cast_sync("go").result == "from the script"


def test_gate_roots_are_relative_to_the_sessions_folder(tmp_path: Path) -> None:
    path = write(
        tmp_path, recipe("crystal: scripted:x\n", "[done, {name: read_file, root: data}]"), "in/r.cantrip.yaml"
    )
    write(tmp_path, "[]", "in/x")
    cantrip = build(load(path), workspace=tmp_path / "ws")
    assert cantrip.circle.gates["read_file"].dependencies["root"] == tmp_path / "ws" / "data"


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        ("crystal: scripted:none.yaml\n", ":4:10: crystal"),
        ("crystal:\n  provider: scripted\n  script: none.yaml\n", ":6:11: crystal.script"),
        ("call:\n  system_prompt_file: none.md\ncrystal: scripted:ok.yaml\n", ":5:23: call.system_prompt_file"),
        ("call:\n  system_prompt_file: .\ncrystal: scripted:ok.yaml\n", ":5:23: call.system_prompt_file"),
    ],
)
def test_a_missing_file_is_named_with_its_place(tmp_path: Path, extra: str, says: str) -> None:
    write(tmp_path, SCRIPT, "ok.yaml")
    path = write(tmp_path, recipe(extra))
    with pytest.raises(DefinitionError) as caught:
        build(load(path), workspace=tmp_path)
    assert f"{path}{says}" in str(caught.value)


def test_a_bad_script_names_its_own_place(tmp_path: Path) -> None:
    write(tmp_path, "- content: a\n- contnt: b\n", "s.yaml")
    path = write(tmp_path, recipe("crystal: scripted:s.yaml\n"))
    with pytest.raises(RecipeError) as caught:
        build(load(path), workspace=tmp_path)
    assert f"{tmp_path / 's.yaml'}:2:3: [1].contnt: unknown key in response: 'contnt'; did you mean 'content'?" in str(
        caught.value
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (recipe(gates="[done, read_context]"), ":2:17: circle.gates[1]: gate read_context is not available"),
    ],
)
def test_what_this_version_lacks_is_refused_by_name(tmp_path: Path, text: str, says: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(RecipeError) as caught:
        build(load(path), workspace=tmp_path)
    assert f"{path}{says}" in str(caught.value)


def test_the_first_provider_with_a_key_gives_a_crystal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, recipe())
    monkeypatch.setenv("OPENROUTER_API_KEY", "sk-or-0123456789abcdef")
    assert build(load(path), workspace=tmp_path).crystal.name == "openrouter"
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-0123456789abcdef")
    crystal = build(load(path), workspace=tmp_path).crystal
    assert (crystal.name, crystal.model, crystal.context_window) == ("anthropic", "claude-sonnet-5-5", 1_000_000)
    monkeypatch.setenv("CANTRIP_CRYSTAL", "ollama:qwen3")
    assert build(load(path), workspace=tmp_path).crystal.name == "ollama"


def test_the_environment_names_a_crystal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, recipe())
    monkeypatch.setenv("CANTRIP_CRYSTAL", f"scripted:{write(tmp_path, SCRIPT, 's.yaml')}")
    assert build(load(path), workspace=tmp_path).cast_sync("go").result == "from the script"
    # The recipe's own comes first.
    own = write(tmp_path, recipe("crystal: {provider: scripted, responses: [{content: own}]}\n"), "own.cantrip.yaml")
    assert build(load(own), workspace=tmp_path).cast_sync("go").result == "own"


def test_a_provider_alone_is_asked_for_its_usual_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-none-of-yours-000000")
    path = write(tmp_path, recipe())
    chosen = {}
    for value in ("anthropic", ""):
        monkeypatch.setenv("CANTRIP_CRYSTAL", value)
        chosen[value] = build(load(path), workspace=tmp_path).crystal.model
    assert chosen["anthropic"] == chosen[""]


def test_each_build_has_a_crystal_of_its_own(tmp_path: Path) -> None:
    text = recipe("crystal: {provider: scripted, responses: [{content: once}]}\n")
    path = write(tmp_path, text)
    for _ in range(2):
        cantrip = load_for_session(str(path), tmp_path, tmp_path / "state", trusted=True)
        assert cantrip.cast_sync("go").result == "once"


def test_what_was_read_before_is_not_parsed_again(tmp_path: Path) -> None:
    text = recipe("crystal: {provider: scripted, responses: [{content: once}]}\n")
    path, state = write(tmp_path, text), tmp_path / "state"
    first = load(path, state_dir=state)
    kept = list((state / "recipes").glob("*.json"))
    assert len(kept) == 1
    assert kept[0].stat().st_mode & 0o077 == 0
    assert (state / "recipes").stat().st_mode & 0o077 == 0
    assert load(path, state_dir=state).data == first.data
    # Damage costs a parse and nothing else; another text is another key.
    kept[0].write_text("{nonsense")
    assert load(path, state_dir=state).data == first.data
    path.write_text(text.replace("once", "twice"))
    assert load(path, state_dir=state).data != first.data


def test_errors_have_places_after_a_cached_read(tmp_path: Path) -> None:
    path = write(tmp_path, recipe(gates="[done, read_context]"))
    for _ in range(2):
        with pytest.raises(RecipeError, match=r":2:17: circle.gates\[1\]: "):
            build(load(path, state_dir=tmp_path / "state"), workspace=tmp_path)


def test_a_full_state_folder_costs_nothing(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.write_text("a file where the folder should be")
    assert load(write(tmp_path, recipe()), state_dir=state).name == "r"


@pytest.mark.parametrize("count", [250])
def test_what_is_kept_does_not_grow_for_ever(tmp_path: Path, count: int) -> None:
    from cantrip_acp.recipes import cache

    for n in range(count):
        cache._save(tmp_path / "recipes" / f"{n}.json", {"n": n})
    assert len(list((tmp_path / "recipes").iterdir())) == cache.MAX_ENTRIES


def test_folding_and_its_summarizer_are_built(tmp_path: Path) -> None:
    summary = "{provider: scripted, responses: [{content: short}], model: small}"
    text = recipe(f"folding: {{trigger_after_turns: 4, keep_turns: 1, summarizer: cheap}}\ncrystals: {{cheap: {summary}}}\n"
                  "crystal: {provider: scripted, responses: []}\nloom: {snapshots: true}\n")  # fmt: skip
    cantrip = build(load(write(tmp_path, text)), workspace=tmp_path)
    assert (cantrip.folding.trigger_after_turns, cantrip.folding.keep_turns) == (4, 1)
    assert cantrip.folding.summarizer is not None
    assert cantrip.folding.summarizer.model == "small"
    assert cantrip.loom_settings["snapshots"] is True


def test_a_summarizer_that_no_crystals_has(tmp_path: Path) -> None:
    text = recipe("folding: {summarizer: cheap}\ncrystal: {provider: scripted, responses: []}\n")
    with pytest.raises(RecipeError, match=r":4:23: folding.summarizer: the recipe's crystals have no 'cheap'"):
        build(load(write(tmp_path, text)), workspace=tmp_path)
