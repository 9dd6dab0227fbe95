"""A circle's scoring function from a recipe's Python file: what it may be, who may have one, what becomes of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from cantrip_acp import DefinitionError, Loom
from cantrip_acp.loom import rewards
from cantrip_acp.recipes import load, trust
from cantrip_acp.recipes.build.build import build
from cantrip_acp.recipes.inspect import check, circle_of
from cantrip_acp.types.errors import RecipeError, UntrustedRecipe

pytestmark = pytest.mark.anyio

RECIPE = """
crystal:
  provider: scripted
  responses:
    - {tool_calls: [{gate: echo, args: {text: one}}]}
    - {tool_calls: [{gate: done, args: {answer: ok}}]}
circle:
  gates: [done, echo]
  wards: [{max_turns: 5}]
  score: {python: rubric.py}
"""
RUBRIC = "def score(turn):\n    return 1.0 if turn.terminated else -0.1\n"


def written(folder: Path, recipe: str = RECIPE, rubric: str | None = RUBRIC) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    if rubric is not None:
        (folder / "rubric.py").write_text(rubric)
    path = folder / "scored.cantrip.yaml"
    path.write_text(recipe)
    return path


async def test_each_turn_is_scored(tmp_path: Path) -> None:
    loom = Loom.memory()
    await build(load(written(tmp_path)), workspace=tmp_path, loom=loom).cast("go")
    assert [(r.reward, r.by, r.kind) for r in rewards.assignments(loom)] == [
        (-0.1, "rubric.py:score", "shaped"),
        (1.0, "rubric.py:score", "shaped"),
    ]


async def test_a_cast_is_scored_at_its_end(tmp_path: Path) -> None:
    loom = Loom.memory()
    at_cast = RECIPE.replace("rubric.py", "rubric.py, at: cast")
    rubric = "async def score(thread):\n    return len(thread.acted), thread.state\n"
    await build(load(written(tmp_path, at_cast, rubric)), workspace=tmp_path, loom=loom).cast("go")
    (given,) = rewards.assignments(loom)
    assert (given.reward, given.note, given.grade) == (2.0, "terminated", True)


async def test_it_gets_the_intent_and_the_expected_answer(tmp_path: Path) -> None:
    loom = Loom.memory()
    at_cast = RECIPE.replace("rubric.py", "rubric.py, at: cast")
    rubric = "def score(thread, intent, reference):\n    return float(thread.result == reference), intent\n"
    await build(load(written(tmp_path, at_cast, rubric)), workspace=tmp_path, loom=loom).cast("go", reference="ok")
    (given,) = rewards.assignments(loom)
    assert (given.reward, given.note) == (1.0, "go")


@pytest.mark.parametrize(
    ("rubric", "why"),
    [
        (None, "rubric.py"),
        ("x = 1\n", "defines no function with the name score; write: def score(turn): ..."),
        ("score = 3\n", "has a score that is not a function"),
        ("def score(:\n", "rubric.py:1"),
        ("\nraise RuntimeError('no')\n", "rubric.py:2"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(tmp_path: Path, rubric: str | None, why: str) -> None:
    recipe = load(written(tmp_path, rubric=rubric))
    with pytest.raises(DefinitionError) as caught:
        build(recipe, workspace=tmp_path)
    assert why in str(caught.value)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("score: rubric.py", "must be a mapping"),
        ("score: {}", "missing required key 'python' in score"),
        ("score: {python: rubric.py, at: end}", "unknown 'end'"),
        ("score: {python: rubric.py, ad: turn}", "did you mean 'at'?"),
    ],
)
def test_the_key_is_checked(tmp_path: Path, line: str, why: str) -> None:
    path = written(tmp_path, RECIPE.replace("score: {python: rubric.py}", line))
    with pytest.raises(RecipeError) as caught:
        load(path)
    assert why in str(caught.value)


def test_looking_runs_nothing(tmp_path: Path) -> None:
    path = written(tmp_path, rubric="open('ran', 'w')\ndef score(turn): ...\nraise SystemExit\n")
    assert circle_of(load(path), tmp_path).score is None
    assert check(path).problems == ()
    assert not (tmp_path / "ran").exists()
    (tmp_path / "rubric.py").write_text("def score(:\n")
    assert any("rubric.py:1" in problem for problem in check(path).problems)


def test_a_workspace_needs_trust_and_again_when_the_file_changes(tmp_path: Path) -> None:
    workspace, state = tmp_path / "w", tmp_path / "state"
    written(workspace / ".cantrip")
    for change in (None, RUBRIC + "# another\n"):
        if change is not None:
            (workspace / ".cantrip" / "rubric.py").write_text(change)
        with pytest.raises(UntrustedRecipe) as caught:
            trust.require(load("scored", workspace), workspace, state)
        assert "circle.score.python" in str(caught.value)
        assert "outside the sandbox" in str(caught.value)
        trust.Ledger(state).grant(workspace)
        trust.require(load("scored", workspace), workspace, state)
