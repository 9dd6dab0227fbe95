"""Errors in files: the mistake itself comes first, with its line and a caret, and with the text to write."""

from pathlib import Path

import pytest

from tests.support.command_line import recipe, run

HEAD = "crystal: {provider: scripted, responses: [{content: hi}]}\n"

CASES = {
    "wards as a mapping": (
        "circle:\n  gates: [done]\n  wards:\n    max_turns: 5\n    bash_writable_paths: [workspace]\n",
        [
            "5:5: circle.wards: must be a list, not a mapping; write wards: [{max_turns: 5}, {bash_writable_paths: [workspace]}]",
            "    5 |     max_turns: 5",
            "      |     ^",
        ],
    ),
    "gates as a mapping": (
        "circle:\n  gates: {done: , read_file: {root: data}}\n  wards: [{max_turns: 5}]\n",
        [
            "3:10: circle.gates: must be a list, not a mapping; write gates: [done, {name: read_file, root: data}]",
            "    3 |   gates: {done: , read_file: {root: data}}",
            "      |          ^",
        ],
    ),
    "a text as a list": (
        "circle:\n  gates: done\n  wards: [{max_turns: 5}]\n",
        ["3:10: circle.gates: must be a list, not 'done'; write gates: [done]", "    3 |   gates: done", "      |          ^"],
    ),
    "misspelled keys": (
        "circle:\n  gate: [done]\n  wards: [{max_turn: 5}]\n",
        [
            "3:3: circle.gate: unknown key in circle: 'gate'; did you mean 'gates'?",
            "    3 |   gate: [done]",
            "      |   ^",
            "4:12: circle.wards[0].max_turn: unknown ward 'max_turn'; did you mean 'max_turns'?",
            "    4 |   wards: [{max_turn: 5}]",
            "      |            ^",
        ],
    ),
    "a bracket that is not closed": (
        "circle:\n  gates: [done\n  wards: [{max_turns: 5}]\n",
        ["3:10: not YAML: this [ has no ] (noticed on line 4)", "    3 |   gates: [done", "      |          ^"],
    ),
    "a limit of tokens that is a word": (
        "call: {max_tokens: no}\ncircle: {gates: [done], wards: [{max_turns: 5}]}\n",
        [
            "2:20: call.max_tokens: must be a whole number of at least 1, not 'no'",
            "    2 | call: {max_tokens: no}",
            "      |                    ^",
        ],
    ),
    "servers as a mapping": (
        "circle: {gates: [done], wards: [{max_turns: 5}]}\nmcp_servers:\n  files: {command: npx, env: {PASSWORD: hunter2}}\n",
        [
            "4:3: mcp_servers: must be a list, not a mapping; write mcp_servers: [{name: files, …}]",
            "    4 |   files: {·······: ···, ···: {········: ·······}}",
            "      |   ^",
        ],
    ),
}  # fmt: skip


@pytest.mark.parametrize("command", ["check", "cast"])
@pytest.mark.parametrize("case", CASES)
def test_a_recipe(case: str, command: str, tmp_path: Path) -> None:
    text, lines = CASES[case]
    recipe(tmp_path, HEAD + text)
    words = ["recipe", "check", "r.cantrip.yaml"] if command == "check" else ["cast", "r.cantrip.yaml", "hi"]
    done = run(*words, cwd=tmp_path)
    assert done.status == 2
    shown = (done.out if command == "check" else done.err).splitlines()
    assert [line.removeprefix("r.cantrip.yaml:") for line in shown] == lines
    assert "hunter2" not in done.out + done.err


def test_a_script_a_suite_and_a_client_script(tmp_path: Path) -> None:
    (tmp_path / "crystal.yaml").write_text("responses:\n  - {contant: hi}\n")
    (tmp_path / "suite").mkdir()
    (tmp_path / "suite" / "suite.yaml").write_text("recipe: coding\ntasks:\n  one: {intent: x}\n")
    (tmp_path / "client.yaml").write_text("steps:\n  - {promt: hi}\n")
    done = run("cast", "coding", "hi", cwd=tmp_path, CANTRIP_CRYSTAL=f"scripted:{tmp_path / 'crystal.yaml'}")
    assert "    2 |   - {contant: hi}\n      |      ^\n" in done.err, done.err
    done = run("eval", "suite", cwd=tmp_path)
    assert done.status == 2
    assert "suite.yaml:3:3: tasks: must be a list" in done.err, done.err
    assert "    3 |   one: {intent: x}\n      |   ^\n" in done.err
    done = run("client", "--script", "client.yaml", "--", "false", cwd=tmp_path)
    assert "    2 |   - {promt: hi}\n      |      ^\n" in done.err, done.err


def test_a_secret_is_not_shown(tmp_path: Path) -> None:
    text = f"{HEAD}circle: {{gates: [done], wards: [{{max_turns: 5}}]}}\napi_key: my-own-password\n"
    done = run("recipe", "check", recipe(tmp_path, text), cwd=tmp_path)
    assert "api_key: ··-···-········" in done.out
    assert "my-own-password" not in done.out + done.err
