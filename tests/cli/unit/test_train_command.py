"""`cantrip train` without torch: the missing extra, the folder of an example, and the curve of a run."""

from __future__ import annotations

import random
import runpy
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cantrip_acp import Cantrip, Circle, Loom
from cantrip_acp.cli.commands import train as command
from cantrip_acp.cli.errors import USAGE, report_error
from cantrip_acp.core.scoring import Scorer
from cantrip_acp.crystals.scripted import ScriptedCrystal
from cantrip_acp.files.installation import install_command
from cantrip_acp.loom.query.thread import Thread
from cantrip_acp.training.trainer import supervised
from cantrip_acp.training.trainer.example import EXAMPLES, Example, Question, Settings
from cantrip_acp.training.trainer.history import Evaluation, Step, chart, write_page
from cantrip_acp.training.trainer.rollouts import roll_out
from cantrip_acp.types.errors import CantripError, DefinitionError


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: None if name in ("torch", "peft") else object())

    done = CliRunner().invoke(command.train, ["larger"], standalone_mode=False)

    assert done.return_value == 1
    assert done.stderr == f"cantrip: torch, peft is not installed; install it with: {install_command('train')}\n"


def test_the_examples_of_the_package_are_found_by_name() -> None:
    found = Example.load("larger")

    assert found.folder == EXAMPLES / "larger"
    assert found.settings.model == "embedded:smollm2"
    trained = {question.intent for question in found.train}
    assert len(trained) == 400
    assert not trained & {question.intent for question in found.held_out}
    for question in (*found.train, *found.held_out):
        first, second = (int(word.strip(",?")) for word in question.intent.split() if word.strip(",?").isdigit())
        assert question.reference == max(first, second)


def test_an_example_is_copied_to_be_changed(tmp_path: Path) -> None:
    """Without torch: the copy has every file, and is an example."""
    words = ["store", "--copy-to", str(tmp_path / "my store")]
    done = CliRunner().invoke(command.train, words, standalone_mode=False)

    assert done.return_value == 0
    assert done.stdout.splitlines()[-1] == f"train on it: cantrip train '{tmp_path}/my store'"
    (tmp_path / "my store" / "train.toml").write_text("steps = 3\ngroups = 2\n")
    copied, original = Example.load(str(tmp_path / "my store")), Example.load("store")
    assert (copied.settings.steps, copied.train, copied.held_out) == (3, original.train, original.held_out)
    assert {each.name for each in copied.folder.iterdir()} == {
        each.name for each in original.folder.iterdir() if each.is_file()
    }
    again = CliRunner().invoke(command.train, words, standalone_mode=False)
    assert "exists already; name a new folder" in str(again.exception)


def test_the_examples_are_where_a_reader_of_the_repository_looks() -> None:
    assert (Path(__file__).parents[3] / "examples" / "train").resolve() == EXAMPLES.resolve()


async def fails(thread: Thread) -> float:
    raise KeyError("no such answer")


@pytest.mark.parametrize(
    ("score", "why"),
    [(fails, "the scoring function failed: KeyError: 'no such answer'"), (None, "needs a scoring function")],
)
async def test_casts_without_any_reward_end_the_run(score: Callable[..., Any] | None, why: str) -> None:
    """Else a run would go on to its last step and learn nothing."""
    crystal = ScriptedCrystal([{"content": "40", "repeat": True}])
    scorer = None if score is None else Scorer(score, at="cast")
    made = Cantrip(crystal, circle=Circle("conversation", ["done"], {"max_turns": 1}, score=scorer))

    with pytest.raises(CantripError, match=f"no cast got a reward; .*{why}"):
        await roll_out(made, crystal, Loom.memory(), [Question("Which is larger, 3 or 40?")], [], samples=2)


def test_questions_of_a_pair_are_trained_together() -> None:
    found = Example.load("larger")

    drawn = [found.draw(16, random.Random(f"0-{step}")) for step in (1, 2)]

    assert drawn[0] != drawn[1]
    for questions in drawn:
        pairs = Counter(question.pair for question in questions)
        assert list(pairs.values()) == [2] * 8
        for pair in pairs:
            # Each is the other with its numbers swapped.
            one, two = (question.intent for question in questions if question.pair == pair)
            assert one != two
            assert {word.strip(",") for word in one.strip("?").split()} == {
                word.strip(",") for word in two.strip("?").split()
            }


def test_the_example_distil_has_no_questions_to_train_but_answers_to_learn() -> None:
    found = Example.load("distil")

    assert found.settings.method == "sft"
    assert found.train == []
    assert not {each.intent for each in found.demonstrations} & {each.intent for each in found.held_out}
    for shown in found.demonstrations:
        assert shown.responses[0]["tool_calls"][0]["args"]["answer"] == str(shown.reference)


def test_the_numbers_of_the_example_store_are_those_of_its_gate() -> None:
    found = Example.load("store")
    gates = runpy.run_path(str(found.folder / "gates.py"))

    for question in (*found.train, *found.held_out, *found.demonstrations):
        assert gates["count"](question.intent.split()[2]) == question.reference


@pytest.mark.parametrize(
    ("file", "text", "why"),
    [
        ("train.toml", "model = 'a'\nstep = 3", r"train\.toml:2:1: step: unknown setting 'step'; did you mean 'steps'"),
        ("train.toml", "samples = 1", r"train\.toml:1:1: samples: must be at least 2, not 1"),
        ("train.toml", "# a\n  groups = 'x'", r"train\.toml:2:3: groups: Expected `int`, got `str`"),
        ("train.toml", "looms = ['a', 3]", r"train\.toml:1:1: looms: Expected `str`, got `int`"),
        ("train.toml", "steps = 3\nrank = \n", r"train\.toml:2:8: this is not TOML: Invalid value"),
        ("train.jsonl", '{"intent": "a"}\n{"question": "b"}\n', r"train\.jsonl:2: .*`question`"),
        ("train.toml", "learning_rate = -1", r"train\.toml:1:1: learning_rate: must be a number above 0, not -1"),
        ("train.toml", "entropy = nan", r"train\.toml:1:1: entropy: must be a number of at least 0, not nan"),
        ("train.jsonl", '{"intent": "a"}\n{"intent": " "}\n', r"train\.jsonl:2: the intent is empty"),
        (
            "demonstrations.jsonl",
            '{"intent": "a", "responses": []}',
            r"demonstrations\.jsonl:1: the responses are empty",
        ),
        (
            "demonstrations.jsonl",
            '\n{"intent": "a", "responses": [{"kontent": "b"}]}',
            r"demonstrations\.jsonl:2: responses\[0\]: unknown key 'kontent'; did you mean 'content'",
        ),
        ("held_out.jsonl", "\n", r"held_out\.jsonl: is empty"),
        ("second.cantrip.yaml", "", "must contain one recipe"),
    ],
)
def test_an_error_in_an_example_names_its_place(tmp_path: Path, file: str, text: str, why: str) -> None:
    for name in ("larger.cantrip.yaml", "train.jsonl", "held_out.jsonl"):
        (tmp_path / name).write_bytes((EXAMPLES / "larger" / name).read_bytes())
    (tmp_path / file).write_text(text)

    with pytest.raises(DefinitionError, match=why):
        Example.load(str(tmp_path))


def test_a_mistake_in_the_settings_is_shown_with_a_caret(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("larger.cantrip.yaml", "train.jsonl", "held_out.jsonl"):
        (tmp_path / name).write_bytes((EXAMPLES / "larger" / name).read_bytes())
    (tmp_path / "train.toml").write_text("steps = 3\n  rank = 0\n")

    with pytest.raises(DefinitionError) as caught:
        Example.load(str(tmp_path))

    assert report_error(caught.value) == USAGE
    first, *rest = capsys.readouterr().err.splitlines()
    assert first == f"cantrip: {tmp_path}/train.toml:2:3: rank: must be at least 1, not 0"
    assert rest == ["    2 |   rank = 0", "      |   ^"]


def test_an_unknown_example_is_refused_with_the_known_ones() -> None:
    with pytest.raises(DefinitionError, match=r"neither a folder nor an example of the package: .*larger"):
        Example.load("smaller")


def test_the_curve_has_a_bar_for_each_step_and_each_evaluation(tmp_path: Path) -> None:
    history = [Step(0, held_out=Evaluation(0.25, 0.1, 8, 1.0))]
    history += [Step(n, reward=n / 4, right=0.5, casts=8, times={"rollout": 1.5}) for n in range(1, 5)]

    lines = chart(history)

    assert lines[0] == " 1.0 │   █"
    assert lines[4] == "     │  ██"
    assert lines[-1] == "held out after step   0: reward 0.25, right 10% of 8"
    write_page(tmp_path / "curve.html", "a<b", history, Settings())
    page = (tmp_path / "curve.html").read_text()
    assert "<h1>cantrip train a&lt;b</h1>" in page
    points = page.partition('class="train" points="')[2].partition('"')[0].split()
    assert len(points) == 4
    assert float(points[0].split(",")[1]) > float(points[-1].split(",")[1])
    assert [each.name for each in tmp_path.iterdir()] == ["curve.html"]


def test_a_question_may_have_any_character_of_json(tmp_path: Path) -> None:
    CliRunner().invoke(command.train, ["store", "--copy-to", str(tmp_path / "mine")], standalone_mode=False)
    (tmp_path / "mine" / "train.jsonl").write_text('{"intent": "One\u2028two\x85three"}\n{"intent": "Four"}\n', "utf-8")
    assert [each.intent for each in Example.load(str(tmp_path / "mine")).train] == ["One\u2028two\x85three", "Four"]


@pytest.mark.parametrize("pattern", ["/looms/*.jsonl", "looms/**.jsonl", ""])
def test_a_pattern_that_cannot_be_searched_is_an_error_of_the_user(tmp_path: Path, pattern: str) -> None:
    example = Example.load("store")
    settings = Settings(method="sft", looms=(pattern,))
    with pytest.raises(DefinitionError, match="looms: "):
        supervised.looms(replace(example, folder=tmp_path, settings=settings))
