"""Suites: which files make one, what each key does, and what is said of a wrong one."""

from __future__ import annotations

import re
from pathlib import Path

import jsonschema
import pytest
from ruamel.yaml import YAML

from cantrip_acp.evaluation.run import read_baseline
from cantrip_acp.evaluation.suite import BUILT_IN, TEMPLATE, Suite, SuiteModel, load_suite
from cantrip_acp.recipes.models.schema import schema_of
from cantrip_acp.types.errors import DefinitionError, UntrustedRecipe

RECIPE = "crystal: {provider: scripted, responses: []}\ncircle: {medium: conversation, gates: [done], wards: [max_turns: 1]}\n"


def load(name: str | Path, folder: Path, **more: str) -> Suite:
    return load_suite(str(name), workspace=folder, state_dir=folder / "state", **more)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "r.cantrip.yaml").write_text(RECIPE)
    (tmp_path / "score.py").write_text("def score(thread):\n    return 1\n")
    return tmp_path


def suite(folder: Path, text: str, name: str = "suite.yaml") -> Suite:
    (folder / name).write_text(text)
    return load(folder / name, folder)


def test_tasks_are_in_the_file_in_task_files_and_in_a_dataset(folder: Path) -> None:
    (folder / "tasks").mkdir()
    (folder / "tasks/b.yaml").write_text("intent: Do b.\nchecks: [answer: b]\n")
    (folder / "d.jsonl").write_text(
        '{"intent": "Do c.", "reference": 3, "id": "c"}\n\n{"intent": "Do d.", "reference": "x"}\n'
    )
    found = suite(
        folder,
        "recipe: r.cantrip.yaml\nchecks: [reference: exact]\ndataset: d.jsonl\nsamples: 4\n"
        "tasks:\n  - {name: a, intent: Do a., reference: 1, seconds: 5}\n  - tasks/*.yaml\n",
    )
    assert [(t.name, t.intent, t.reference) for t in found.tasks] == [
        ("a", "Do a.", 1), ("b", "Do b.", None), ("c", "Do c.", 3), ("d-2", "Do d.", "x"),
    ]  # fmt: skip
    assert found.samples == 4
    assert [t.seconds for t in found.tasks] == [5, 900, 900, 900]
    # A task's own checks take the place of the suite's.
    assert [list(t.checks) for t in found.tasks[:2]] == [[("reference", "exact")], [("answer", ["b"])]]
    assert [t.name for t in found.chosen(["d", "b"])] == ["b", "d-2"]
    with pytest.raises(DefinitionError, match="no task has a name that begins with z"):
        found.chosen(["z"])


def test_a_line_of_a_dataset_may_have_any_character_of_json(folder: Path) -> None:
    (folder / "d.jsonl").write_text('{"intent": "One\u2028two\x85three", "reference": 1}\r\n"Four"\n', encoding="utf-8")
    found = suite(folder, "recipe: r.cantrip.yaml\nchecks: [answer: x]\ndataset: d.jsonl\n")
    assert [task.intent for task in found.tasks] == ["One\u2028two\x85three", "Four"]


@pytest.mark.parametrize(
    "samples", ["[1]", '[{"task": "a"}]', "3", '[{"crystal": 1, "task": 1, "digest": 1, "score": "x"}]']
)
def test_a_baseline_that_is_no_result_is_an_error_of_the_user(tmp_path: Path, samples: str) -> None:
    (tmp_path / "result.json").write_text(f'{{"format": 1, "samples": {samples}}}')
    with pytest.raises(DefinitionError, match="is not a result of cantrip eval"):
        read_baseline(tmp_path)


def test_a_folder_is_a_suite(folder: Path) -> None:
    tasks = folder / "tasks"
    tasks.mkdir()
    for name in ("two", "one"):
        (tasks / f"{name}.yaml").write_text("intent: x\nchecks: [answer: y]\nrecipe: ../r.cantrip.yaml\n")
    (tasks / "other.cantrip.yaml").write_text(RECIPE)
    assert [t.name for t in load(tasks, folder).tasks] == ["one", "two"]
    suite(folder, "name: mine\nrecipe: r.cantrip.yaml\ntasks: [{intent: x, checks: [{answer: y}]}]\n")
    found = load(folder, folder)
    assert (found.name, [t.name for t in found.tasks]) == ("mine", ["task-1"])
    assert load("coding", folder).name == "coding"


def test_a_digest_changes_with_what_is_asked_and_not_with_the_recipe(folder: Path) -> None:
    text = "recipe: r.cantrip.yaml\nscore: score.py\ntasks: [{name: a, intent: x}]\n"

    def digests() -> tuple[str, str]:
        (task,) = load(folder / "suite.yaml", folder).tasks
        return task.digest, task.recipe_digest

    suite(folder, text)
    first = digests()
    assert digests() == first
    (folder / "r.cantrip.yaml").write_text(RECIPE + "# other\n")
    second = digests()
    assert (second[0] == first[0], second[1] == first[1]) == (True, False)
    (folder / "score.py").write_text("def score(thread):\n    return 0\n")
    assert digests()[0] != second[0]
    # What a scoring function imports judges too.
    (folder / "score.py").write_text("from own_helper import value\ndef score(thread):\n    return value\n")
    (folder / "own_helper.py").write_text("value = 1\n")
    third = digests()
    (folder / "own_helper.py").write_text("value = 0\n")
    assert digests()[0] != third[0]
    suite(folder, text.replace("intent: x", "intent: y"))
    assert digests()[0] != second[0]


WRONG = {
    "recipe: r.cantrip.yaml\ntasks: [{intent: x, checks: [{has: {../../etc/passwd: root}}]}]": r"inside the sample's folder",
    "recipe: r.cantrip.yaml\ntasks: [{intent: x, checks: [{lacks: {/etc/passwd: root}}]}]": r"inside the sample's folder",
    "recipe: r.cantrip.yaml\ntasks: [{intent: x, checks: [{missing: a/../../b}]}]": r"inside the sample's folder",
    "sample: 3\ntasks: []": r"s\.yaml:1:1: sample: unknown key in suite: 'sample'; did you mean 'samples'\?",
    "[]": r"s\.yaml:1:1: must be a mapping, not a list",
    "{}": r"s\.yaml:1:1: a suite needs tasks",
    "tasks:\n- {name: a}": r"s\.yaml:2:3: tasks\[0\]: missing required key 'intent'",
    "tasks:\n- intent: x": r"s\.yaml:2:3: tasks\[0\]: nothing judges the task 'task-1'",
    "tasks:\n- intent: x\n  checks: [{likes: x}]": r"s\.yaml:3:13: tasks\[0\]\.checks\[0\]\.likes: unknown key",
    "tasks:\n- intent: x\n  checks: [{answer: a, has: {b: c}}]": r"s\.yaml:3:12: .*a check has exactly one of the keys",
    "tasks:\n- intent: x\n  checks: [answer: '(']": r"s\.yaml:3:20: .*not a regular expression",
    "tasks:\n- intent: x\n  checks: [unchanged: a.py]": r"s\.yaml:3:11: .*unchanged names 'a.py', which is not a file of the task",
    "tasks:\n- intent: x\n  checks: [reference: exact]": r"s\.yaml:3:11: .*has no reference to check",
    "tasks:\n- intent: x\n  checks: [answer: y]\n  files: {../x: y}": r"s\.yaml:4:.*must be a path|a path inside the task's folder",
    "tasks:\n- {intent: x, checks: [answer: y], recipe: none.cantrip.yaml}": r"s\.yaml:2:.*recipe: .*no such file",
    "tasks:\n- {intent: x, score: none.py}": r"s\.yaml:2:.*score: .*no such file",
    "tasks: [none/*.yaml]": r"s\.yaml:1:9: tasks\[0\]: no task file matches",
    "tasks: [none/**.yaml]": r"s\.yaml:1:9: tasks\[0\]: Invalid pattern",
    "checks: [answer: y]\ntasks:\n- {name: a, intent: x}\n- {name: a, intent: x}": r"two tasks have the name 'a'",
    "dataset: d.jsonl\nchecks: [answer: y]": r"s\.yaml:1:10: dataset: .*no such file",
}


SHAPES = [
    text
    for text, told in WRONG.items()
    if any(word in told for word in ("unknown key", "must be", "missing", "exactly one"))
]


def test_the_schema_agrees_with_the_loader() -> None:
    """About shapes: a schema cannot see files, names and regular expressions."""
    schema = schema_of(SuiteModel, "Suite")
    jsonschema.Draft202012Validator.check_schema(schema)
    valid = jsonschema.Draft202012Validator(schema).is_valid
    assert valid(YAML(typ="safe").load((TEMPLATE / "suite.yaml").read_text()))
    tasks = [YAML(typ="safe").load(path.read_text()) for path in (BUILT_IN / "coding").glob("*.yaml")]
    assert valid({"tasks": [*tasks, "tasks/*.yaml"]})
    assert len(SHAPES) > 4
    assert [text for text in SHAPES if valid(YAML(typ="safe").load(text))] == []


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_suite_is_told_where(folder: Path, text: str) -> None:
    with pytest.raises(DefinitionError) as told:
        suite(folder, text, "s.yaml")
    assert re.search(WRONG[text], str(told.value)), told.value


def test_a_wrong_line_of_a_dataset_is_told_where(folder: Path) -> None:
    (folder / "d.jsonl").write_text('{"intent": "x"}\n{"prompt": "x"}\n')
    with pytest.raises(DefinitionError, match=r"d\.jsonl:2: .*prompt"):
        suite(folder, "recipe: r.cantrip.yaml\nchecks: [answer: y]\ndataset: d.jsonl")


def test_what_is_not_there(folder: Path) -> None:
    with pytest.raises(DefinitionError, match=r"no such file or folder \(built-in suites: coding\)"):
        load("codings", folder)
    (folder / "empty").mkdir()
    with pytest.raises(DefinitionError, match=r"neither suite\.yaml nor task files"):
        load(folder / "empty", folder)


def test_a_recipe_of_the_workspace_must_be_trusted(folder: Path) -> None:
    """A suite was named by its path, but a recipe that it finds by name came with somebody's repository."""
    (folder / ".cantrip").mkdir()
    (folder / ".cantrip/theirs.cantrip.yaml").write_text(RECIPE + "loom: {store: 'sqlite:x.db'}\n")
    with pytest.raises(UntrustedRecipe, match="not trusted"):
        suite(folder, "recipe: theirs\ntasks: [{intent: x, checks: [{answer: y}]}]")
