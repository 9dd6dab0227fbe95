"""`result_schema`: an answer with a JSON Schema in every medium, in Python, on the command line and in the check."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cantrip_acp import Cantrip, DefinitionError, ScriptedCrystal
from cantrip_acp.recipes.inspect import check
from tests.support.command_line import run
from tests.support.recipe_writer import write

REVIEW = Path(__file__).parents[3] / "examples" / "11_ci_review.cantrip.yaml"
SCHEMA = "{type: object, properties: {verdict: {enum: [pass, fail]}}, required: [verdict], additionalProperties: false}"
GOOD: dict[str, Any] = {"verdict": "pass"}


def recipe(responses: list[Any], medium: str = "conversation", schema: str = SCHEMA, turns: int = 4) -> str:
    return (
        f"crystal: {{provider: scripted, responses: {json.dumps(responses)}}}\n"
        f"circle: {{medium: {medium}, gates: [done], wards: [{{max_turns: {turns}}}]}}\nresult_schema: {schema}\n"
    )


def done(answer: Any) -> dict[str, Any]:
    return {"tool_calls": [{"gate": "done", "args": {"answer": answer}}]}


@pytest.mark.sandbox
@pytest.mark.parametrize(
    ("medium", "wrong", "right"),
    [
        ("conversation", done({"verdict": "maybe"}), done(GOOD)),
        ("conversation", {"content": "pass"}, done(GOOD)),
        ("conversation", done("pass"), done('{"verdict": "pass"}')),
        ("bash", {"bash": "cantrip_done pass"}, {"bash": 'cantrip_done \'{"verdict": "pass"}\''}),
        ("code", {"code": "done({'verdict': 1})"}, {"code": "done({'verdict': 'pass'})"}),
        ("monty", {"code": "done({'verdict': 1})"}, {"code": "done({'verdict': 'pass'})"}),
    ],
)
def test_only_an_answer_that_fits_ends_a_cast(medium: str, wrong: Any, right: Any, tmp_path: Path) -> None:
    path = write(tmp_path, recipe([wrong, right], medium))
    cantrip = Cantrip.load(path, workspace=tmp_path)
    result = cantrip.cast_sync("Judge.")
    assert (result.result, result.reason, result.turns) == (GOOD, "done", 2)


def test_the_command_line_ends_as_without_a_schema(tmp_path: Path) -> None:
    write(tmp_path, recipe([done({"verdict": 3}), done(GOOD)]), "good.cantrip.yaml")
    ended = run("cast", "./good.cantrip.yaml", "x", "--json", cwd=tmp_path)
    assert (ended.status, ended.lines[-1]["result"]) == (0, GOOD)
    # A cast that a ward ends has no answer, and its last line says so.
    write(tmp_path, recipe([done({"verdict": 3})], turns=1), "cut.cantrip.yaml")
    ended = run("cast", "./cut.cantrip.yaml", "x", "--json", cwd=tmp_path)
    assert ended.status == 1
    assert (ended.lines[-1]["result"], ended.lines[-1]["reason"]) == (None, "max_turns")
    shown = run("recipe", "show", "./cut.cantrip.yaml", "--json", cwd=tmp_path)
    assert json.loads(shown.out)["result_schema"]["required"] == ["verdict"]


@pytest.mark.parametrize("suffix", ["json", "yaml"])
def test_the_schema_may_be_in_a_file(suffix: str, tmp_path: Path) -> None:
    schema = {"$defs": {"v": {"enum": ["pass"]}}, "type": "object", "properties": {"verdict": {"$ref": "#/$defs/v"}}}
    (tmp_path / f"verdict.{suffix}").write_text(json.dumps(schema))
    path = write(tmp_path, recipe([done({"verdict": "fail"}), done(GOOD)], schema=f"verdict.{suffix}"))
    assert check(path, workspace=tmp_path).problems == ()
    result = Cantrip.load(path, workspace=tmp_path).cast_sync("Judge.")
    assert (result.result, result.turns) == (GOOD, 2)


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ("{type: nothing}", "not a valid JSON Schema"),
        ("{properties: {a: {$ref: 'https://example.org/a.json'}}}", "can only refer to its own"),
        ("{$ref: '#/$defs/gone'}", "not a valid JSON Schema"),
        ("3", "must be a JSON Schema"),
        ("gone.json", "the file of the schema"),
        ("broken.json", "the file of the schema"),
        ("list.json", "must be a JSON Schema"),
    ],
)
def test_a_wrong_schema_is_refused_by_check_and_cast(schema: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "list.json").write_text("[1]")
    path = write(tmp_path, recipe([done(GOOD)], schema=schema))
    (problem,) = check(path, workspace=tmp_path).problems
    assert why in problem
    assert ":3:" in problem
    with pytest.raises(DefinitionError, match=why):
        Cantrip.load(path, workspace=tmp_path)


def test_the_example_for_ci_gives_a_verdict(tmp_path: Path) -> None:
    assert check(REVIEW, workspace=tmp_path).problems == ()
    review = {"verdict": "fail", "reasons": ["no test"]}
    crystal = ScriptedCrystal([done({"verdict": "fail"}), done(review)])
    assert Cantrip.load(REVIEW, workspace=tmp_path, crystal=crystal).cast_sync("Review.").result == review
