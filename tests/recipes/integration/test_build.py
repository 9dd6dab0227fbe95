"""The tests of `tests/recipes/unit/test_build.py` that start processes."""

import pickle
from pathlib import Path

import pytest

from cantrip_acp.recipes import load
from cantrip_acp.recipes.build.build import build
from cantrip_acp.recipes.models.recipe import Recipe
from cantrip_acp.types.errors import DefinitionError, MissingKey
from tests.recipes.unit.test_build import recipe
from tests.support.recipe_writer import write


def test_without_a_crystal_it_says_what_to_set(tmp_path: Path) -> None:
    path = write(tmp_path, recipe())
    with pytest.raises(MissingKey, match=r"ANTHROPIC_API_KEY.*CANTRIP_CRYSTAL=PROVIDER:MODEL.*scripted:FILE"):
        build(load(path), workspace=tmp_path)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("nonsense", "CANTRIP_CRYSTAL: 'nonsense' is not a crystal"),
        ("nonsense:m", "is not a crystal; write PROVIDER:MODEL.*providers: alibaba, anthropic, .*openai"),
        ("antropic:claude-x", "is not a crystal; did you mean anthropic:claude-x?"),
        ("claude-sonet-5-5", "is not a crystal; did you mean anthropic:claude-sonnet-5-5\\? Write PROVIDER:MODEL"),
        ("scripted:", "CANTRIP_CRYSTAL: 'scripted:' is not complete; write scripted:FILE"),
        ("scripted:none.yaml", "CANTRIP_CRYSTAL: the script .*none.yaml: no such file"),
        ("anthropic:claude", "no key for anthropic: set ANTHROPIC_API_KEY or ANTHROPIC_AUTH_TOKEN in the environment"),
    ],
)
def test_a_bad_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str, says: str) -> None:
    monkeypatch.setenv("CANTRIP_CRYSTAL", value)
    with pytest.raises(DefinitionError, match=says):
        build(load(write(tmp_path, recipe())), workspace=tmp_path)


def test_headers_are_kept_nowhere(tmp_path: Path) -> None:
    text = recipe("crystal:\n  provider: openai\n  model: m\n  headers: {x-team: s3cret-value-9}\n")
    found = load(write(tmp_path, text), state_dir=tmp_path / "state")
    assert "s3cret" not in repr(found)
    assert not list((tmp_path / "state").rglob("*.json"))
    assert "s3cret" not in repr(found.document)
    model = Recipe.model_validate(found.document.data, context={})
    assert "s3cret" not in f"{model!r} {model} {model.model_dump()} {model.model_dump_json()}"
    for held in (found, found.document, model, model.crystal):
        with pytest.raises(TypeError, match="cannot be pickled"):
            pickle.dumps(held)
    with pytest.raises(MissingKey) as caught:
        build(found)
    assert "s3cret" not in str(caught.value)
