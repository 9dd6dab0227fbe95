"""`compile_and_load` in a recipe: the user's own may ward it in, a workspace's may not."""

from __future__ import annotations

from pathlib import Path

import pytest

from cantrip_acp.recipes import load_for_session
from cantrip_acp.types.errors import RecipeError, UntrustedRecipe
from tests.support.command_line import run

RECIPE = """
crystal:
  provider: scripted
  responses:
    - tool_calls:
        - {gate: compile_and_load, args: {module: textkit, source: "def shout(text: str) -> str: return text.upper()"}}
        - {gate: shout, args: {text: hello}}
    - tool_calls: [{gate: done, args: {answer: over}}]
circle:
  gates: [done, compile_and_load]
  wards: [{max_turns: 3}, WARD]
"""


def written(folder: Path, ward: str, name: str = "mine.cantrip.yaml") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(RECIPE.replace("WARD", ward))
    return path


def test_a_recipe_named_on_the_command_line(tmp_path: Path) -> None:
    path = written(tmp_path, "{allow_compile_modules: [textkit]}")
    done = run("cast", path, "go", "--json", cwd=tmp_path)
    assert done.status == 0, done.err
    turn = next(e for e in done.lines if e["event"] == "turn")
    assert [r["result"] for r in turn["observation"]["results"]][1] == "HELLO"


@pytest.mark.parametrize("ward", ["{allow_compile_modules: [textkit]}", "{max_depth: 0}"])
def test_a_workspaces_recipe_may_not_have_it(tmp_path: Path, ward: str) -> None:
    written(tmp_path, ward, ".cantrip/theirs.cantrip.yaml")
    with pytest.raises(UntrustedRecipe) as caught:
        load_for_session("theirs", tmp_path, tmp_path / "state", trusted=False)
    assert "compiles and loads code" in str(caught.value)


@pytest.mark.parametrize(
    ("ward", "said"),
    [
        ("{allow_compile_sha256: [abc]}", "'abc' is not a SHA-256"),
        ("{allow_compile_signers: [ada]}", "'ada' is not a public key"),
    ],
)
def test_a_ward_that_means_nothing_is_told_with_its_place(tmp_path: Path, ward: str, said: str) -> None:
    path = written(tmp_path, ward)
    with pytest.raises(RecipeError) as caught:
        load_for_session(str(path), tmp_path, tmp_path / "state", trusted=True)
    assert said in str(caught.value)
    assert f"{path}:" in str(caught.value)
