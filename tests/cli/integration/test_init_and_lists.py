"""`cantrip init`, `gates`, `wards`, `completion` and the settings file."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cantrip_acp.gates import registry
from cantrip_acp.gates.wards import WARDS
from tests.support.command_line import CANTRIP, GREETER, Terminal, recipe, run


def test_three_answers_make_a_recipe_that_runs(tmp_path: Path) -> None:
    with Terminal("init", "helper", cwd=tmp_path) as terminal:
        terminal.wait_for("What is the entity for?")
        terminal.wait_for("> ")
        terminal.type('Say "hello": politely.\r')
        terminal.wait_for("Which model?")
        terminal.wait_for("> ")
        terminal.type("99\r")
        terminal.wait_for("type a number from 1 to")
        terminal.type("scripted\r")
        terminal.wait_for("What may it do?")
        terminal.wait_for("> ")
        terminal.type("2\r")
        assert "cantrip cast helper" in terminal.wait_for("talk:")
        assert terminal.end() == 0
    shown = json.loads(run("recipe", "show", "helper", "--json", cwd=tmp_path).out)
    assert shown["call"]["system_prompt"] == 'Say "hello": politely.'
    assert "write_file" in [gate["name"] for gate in shown["gates"]]
    done = run("cast", "helper", "What is here?", cwd=tmp_path)
    assert done.status == 0, done.err
    again = run("init", "helper", "--yes", cwd=tmp_path)
    assert again.status == 2
    assert "--force" in again.err


@pytest.mark.parametrize("may", ["read", "edit", "run"])
def test_init_without_questions(may: str, tmp_path: Path) -> None:
    done = run("init", "--may", may, "--yes", cwd=tmp_path, ANTHROPIC_API_KEY="sk-ant-none", CANTRIP_CRYSTAL="")
    assert done.status == 0, done.err
    text = (tmp_path / ".cantrip" / "helper.cantrip.yaml").read_text()
    assert 'crystal: "anthropic:' in text
    assert run("recipe", "check", "helper", cwd=tmp_path).status == 0
    wrong = run("init", "other", "--model", "antropic:x", "--yes", cwd=tmp_path)
    assert wrong.status == 2
    assert "did you mean" in wrong.err
    assert not (tmp_path / ".cantrip" / "other.cantrip.yaml").exists()
    for model, why in (
        ("nosuch:x", "unknown provider 'nosuch'"),
        ("embedded:no", "no embedded model 'no', only: smollm2"),
    ):
        wrong = run("init", "other", "--model", model, "--yes", cwd=tmp_path)
        assert wrong.err.startswith(f"cantrip: --model {model}: ")
        assert why in wrong.err
        assert "other.cantrip.yaml" not in wrong.err
        assert not (tmp_path / ".cantrip" / "other.cantrip.yaml").exists()


@pytest.mark.parametrize(("model", "limited"), [("embedded", True), ("gguf:x.gguf", True), ("ollama:qwen3", False)])
def test_init_limits_the_answers_of_an_embedded_model(model: str, limited: bool, tmp_path: Path) -> None:
    assert run("init", "--model", model, "--yes", cwd=tmp_path).status == 0
    assert ("  max_tokens: 200 " in (tmp_path / ".cantrip" / "helper.cantrip.yaml").read_text()) is limited


def test_gates_and_wards_are_listed_and_explained(tmp_path: Path) -> None:
    gates = json.loads(run("gates", "--json", cwd=tmp_path).out)["gates"]
    assert [gate["name"] for gate in gates] == registry.names()
    one = run("gates", "read_file", cwd=tmp_path).out
    assert "offset (integer)" in one
    assert "root (string)" in one
    assert "did you mean 'read_file'" in run("gates", "readfile", cwd=tmp_path).err
    wards = json.loads(run("wards", "--json", cwd=tmp_path).out)["wards"]
    assert {ward["name"] for ward in wards} == set(WARDS)
    for ward in wards:
        text = f"circle: {{gates: [done], wards: [{{max_turns: 5}}, {{{ward['name']}: {ward['example']}}}]}}\n"
        if "[NAME]" not in text:
            checked = run("recipe", "check", recipe(tmp_path, text), cwd=tmp_path)
            assert "circle.wards" not in checked.out + checked.err, (ward, checked)
    assert "queries in one cast" in run("wards", "max_turns", cwd=tmp_path).out


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("cantrip re", {"recipe", "repl"}),
        ("cantrip cast gre", {"greeter"}),
        ("cantrip repl fam", {"familiar"}),
        ("cantrip recipe show gre", {"greeter"}),
        ("cantrip loom fork x y --recipe gre", {"greeter"}),
        ("cantrip loom show cas", None),
        ("cantrip loom view cas", None),
        ("cantrip cast greeter x --js", {"--json"}),
    ],
)
def test_words_are_completed_in_bash(words: str, expected: set[str] | None, tmp_path: Path) -> None:
    recipe(tmp_path, GREETER, ".cantrip/greeter.cantrip.yaml")
    state = tmp_path / "state"
    assert run("cast", "greeter", "hi", cwd=tmp_path, CANTRIP_STATE_DIR=str(state)).status == 0
    looms = {path.name.removesuffix(".loom.jsonl") for path in (state / "looms").glob("*.loom.jsonl")}
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "cantrip").symlink_to(Path(sys.executable).parent / "cantrip")
    script = (
        'eval "$(cantrip completion bash)"\n'
        f"COMP_WORDS=({words})\nCOMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))\n"
        '_cantrip_completion cantrip\nprintf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "CANTRIP_STATE_DIR": str(state), "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"},
    )
    assert set(done.stdout.split()) == (looms if expected is None else expected), done.stderr


def test_the_settings_file_has_defaults_for_options(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.mkdir()
    settings = config / "settings.toml"
    made = recipe(tmp_path, GREETER)
    env = {"CANTRIP_CONFIG_DIR": str(config)}
    settings.write_text('[cast]\njson = true\n[loom.list]\nlimit = 1\n[gc]\nolder_than = "90d"\n')
    done = run("cast", made, "hi", cwd=tmp_path, **env)
    assert done.lines[-1]["event"] == "result", done
    for text, says in (
        ("[cst]\n", ":1:1: cst: unknown command 'cst'; did you mean 'cast'?\n    1 | [cst]\n      | ^"),
        (
            "[cast]\njsn = true\n",
            ":2:1: cast.jsn: unknown option of cast 'jsn'; did you mean 'json'?\n    2 | jsn = true",
        ),
        ("cast = 1\n", ":1:1: cast: must be a table"),
        ("[cast\n", ":1:6: this is not TOML"),
    ):
        settings.write_text(text)
        done = run("cast", made, "hi", cwd=tmp_path, **env)
        assert done.status == 2
        assert str(settings) in done.err
        assert says in done.err


def test_the_documented_settings_are_accepted(tmp_path: Path) -> None:
    page = Path(__file__).parents[3] / "docs" / "files.md"
    text = page.read_text().split("```toml\n")[1].split("```")[0]
    (tmp_path / "settings.toml").write_text(text)
    for page_words in (["repl", "--help"], ["cast", "--help"], ["loom", "list", "--help"], ["gc", "--help"]):
        done = subprocess.run(
            [*CANTRIP, *page_words],
            capture_output=True,
            text=True,
            env={**os.environ, "CANTRIP_CONFIG_DIR": str(tmp_path)},
        )
        assert done.returncode == 0, done.stderr
