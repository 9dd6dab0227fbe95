"""`cantrip recipe check` refuses what a cast refuses: both over one table of recipes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cantrip_acp.recipes import load
from cantrip_acp.recipes.build.build import build
from cantrip_acp.recipes.inspect import check
from cantrip_acp.types.errors import DefinitionError
from tests.support.recipe_writer import write

LOCAL = '{provider: local, model: m, base_url: "http://127.0.0.1:9/v1"}'


def recipe(
    crystal: str | None = None,
    medium: str = "conversation",
    gates: str = "[done]",
    wards: str = "",
    circle: str = "",
    more: str = "",
) -> str:
    program = {"code": "code: '1'", "bash": "bash: 'true'"}.get(medium, "content: ''")
    crystal = crystal or f"{{provider: scripted, responses: [{{{program}}}, {{content: ok, repeat: true}}]}}"
    own = f"  medium: {medium}\n  gates: {gates}\n  wards: [{{max_turns: 2}}{wards}]\n{circle}"
    return f"crystal: {crystal}\ncircle:\n{own}{more}"


COST = ", {max_cost_usd: 0.1}"
REFUSED = {
    "no price for a limit of cost": (recipe(LOCAL, wards=COST), "max_cost_usd needs a price"),
    "no price, by name": (recipe("vllm:m", wards=COST), "max_cost_usd needs a price"),
    "no address": (recipe("local:m"), "needs base_url"),
    "a header": (recipe(LOCAL[:-1] + ', headers: {"a b": x}}'), "name of a header"),
    "an address with a query": (recipe(LOCAL.replace("v1", "v1?x=1")), r"must not contain \?"),
    "prompts of tokens": (recipe("{provider: vllm, model: m, token_prompts: true}"), "needs tools: text"),
    "an embedded model with an address": (
        recipe('{provider: embedded, model: smollm2, base_url: "http://x/v1"}'),
        "takes no base_url",
    ),
    "a summarizer that is not there": (recipe(more="folding: {summarizer: x}\n"), "crystals have no 'x'"),
    "gates of a file without gates": (recipe(gates="[done, {python: empty.py}]"), "exports no gate"),
    "a file that defines no score": (recipe(circle="  score: {python: empty.py}\n"), "no function with the name score"),
    "a protected name that is none": (recipe(wards=", {allow_protected: [nope]}"), "not a protected name"),
    "the system as a readable path": (recipe(medium="code", wards=", {code_readable_paths: [/etc]}"), "of the system"),
    "everything as a writable path": (recipe(medium="bash", wards=", {bash_writable_paths: [/]}"), "never written"),
    "a file as a writable path": (recipe(medium="bash", wards=", {bash_writable_paths: [empty.py]}"), "not a folder"),
    "an address as a host": (recipe(medium="bash", wards=', {bash_network: ["http://x"]}'), "only the host"),
    "the whole workspace hidden": (
        recipe(medium="bash", wards=", {hidden_paths: [workspace]}"),
        "the workspace itself",
    ),
}
"""Recipes that a cast refuses, and why."""

ENVIRONMENT = {
    "a key": (recipe("anthropic:claude-sonnet-5-5"), "no key for anthropic"),
    "a key by its variable": (recipe("{provider: openai, model: gpt-5.5, api_key_env: NOPE_KEY}"), "set NOPE_KEY"),
    "a variable of a server": (
        recipe(more="mcp_servers: [{name: a, command: echo, env_names: [NOPE_NOT]}]\n"),
        "NOPE_NOT is not set",
    ),
    "a folder": (recipe(medium="code", wards=", {code_readable_paths: [nope]}"), "does not exist"),
}
"""Recipes that only lack something here: a cast refuses them, and the check notes it."""

ACCEPTED = {
    "the smallest": recipe(),
    "a price": recipe(LOCAL[:-1] + ", price: {input: 1, output: 2}}"),
    "gates of a file": recipe(gates="[done, {python: own.py}]"),
    "a score": recipe(circle="  score: {python: score.py}\n"),
    "paths": recipe(medium="code", wards=", {code_readable_paths: [sub]}, {hidden_paths: [sub/x]}"),
    "an embedded model by default": recipe("{provider: embedded, tools: text}"),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "OPENAI_API_KEY", "CANTRIP_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    write(tmp_path, "", "empty.py")
    write(tmp_path, "from cantrip_acp import gate\n\n@gate\ndef own() -> str:\n    'Own.'\n    return 'x'\n", "own.py")
    write(tmp_path, "def score(turn):\n    return 1.0\n", "score.py")
    (tmp_path / "sub").mkdir()
    return tmp_path


def cast(path: Path, folder: Path) -> None:
    build(load(path), workspace=folder).cast_sync("Go.")


@pytest.mark.sandbox
@pytest.mark.parametrize("name", REFUSED)
def test_what_a_cast_refuses_the_check_refuses(name: str, folder: Path) -> None:
    text, why = REFUSED[name]
    path = write(folder, text)
    with pytest.raises(DefinitionError, match=why):
        cast(path, folder)
    report = check(path, workspace=folder)
    assert not report.ok
    assert any(re.search(why, problem) for problem in report.problems), report.problems


@pytest.mark.sandbox
@pytest.mark.parametrize("name", ENVIRONMENT)
def test_what_is_only_missing_here_is_noted(name: str, folder: Path) -> None:
    text, why = ENVIRONMENT[name]
    path = write(folder, text)
    with pytest.raises(DefinitionError, match=why):
        cast(path, folder)
    report = check(path, workspace=folder)
    assert report.ok, report.problems
    assert any(why in note for note in report.notes), report.notes


@pytest.mark.parametrize("name", ACCEPTED)
def test_a_right_recipe_is_accepted(name: str, folder: Path) -> None:
    report = check(write(folder, ACCEPTED[name]), workspace=folder)
    assert report.problems == ()


@pytest.mark.sandbox
def test_relative_paths_of_cells_start_at_the_workspace(folder: Path) -> None:
    write(folder / "sub", "in the file", "a.txt")
    (folder / "other.txt").write_text("not readable")
    code = "import os; print(os.getcwd(), open('sub/a.txt').read(), os.path.exists('other.txt'))"
    text = recipe(
        f'{{provider: scripted, responses: [{{code: "{code}"}}, {{content: ok}}]}}',
        medium="code",
        wards=", {code_readable_paths: [sub]}",
    )
    cantrip = build(load(write(folder, text)), workspace=folder)
    cantrip.cast_sync("Read it.")
    output = cantrip.loom.threads()[0].acted[0].observation.output
    assert output is not None
    assert output.stdout == f"{folder} in the file False\n"
