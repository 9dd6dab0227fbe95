"""`cantrip eval`: results, intervals and pages, going on after an interruption, regressions, tasks of Inspect and of verifiers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cantrip_acp import Loom
from tests.support import openai_replies, processes
from tests.support.processes import CANTRIP
from tests.support.provider_server import Reply, Request, Wire
from tests.support.waiting import wait_for

pytestmark = pytest.mark.timeout(400)

RECIPE = """\
name: greeter
crystal: {provider: scripted, script: good.yaml}
circle: {medium: conversation, gates: [done], wards: [{max_turns: 3}]}
"""
GOOD = """\
- when: hello
  repeat: true
  usage: {prompt_tokens: 10, completion_tokens: 5, cost: 0.25}
  tool_calls: [{gate: done, args: {answer: "Hello, Ada"}}]
- {when: count, repeat: true, usage: {prompt_tokens: 20, completion_tokens: 1, cost: 0.25}, content: "1 2 3"}
"""
SUITE = """\
recipe: greeter.cantrip.yaml
checks: [reference: includes]
tasks:
  - {name: hello, intent: Say hello to Ada., reference: Ada}
  - {name: count, intent: Please count to 3., reference: "3"}
"""
INSPECT = """\
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import choice, includes
from inspect_ai.solver import generate, multiple_choice, prompt_template, system_message


@task
def counting():
    return Task(
        dataset=[Sample(input="count", target="3", id="three"), Sample(input="count", target="7", id="seven")],
        solver=[system_message("You can count."), prompt_template("Please {prompt}!"), generate()],
        scorer=includes(),
    )


@task
def choices():
    sample = Sample(input="Say hello", choices=["No", "Yes"], target="B", files={"a.txt": "a long line " * 40})
    return Task(dataset=[sample], solver=multiple_choice(), scorer=choice())
"""
VERIFIERS = """\
import verifiers.v1 as vf


class Data(vf.TaskData):
    answer: str


class Counting(vf.Task[Data, vf.State, vf.TaskConfig]):
    @vf.reward
    async def says(self, task, trace) -> float:
        return float(trace.last_reply == task.answer)

    @vf.reward(weight=0.5)
    async def asked(self, trace) -> float:
        return float([m.role for m in trace.messages] == ["system", "user", "assistant"])


class Counts(vf.Taskset[Counting, vf.TasksetConfig]):
    def load(self):
        for name, answer in (("three", "1 2 3"), ("seven", "7")):
            yield Counting(Data(name=name, prompt="Please count!", system_prompt="You can count.", answer=answer), self.config.task)


__all__ = ["Counts"]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "greeter.cantrip.yaml").write_text(RECIPE)
    (tmp_path / "good.yaml").write_text(GOOD)
    (tmp_path / "bad.yaml").write_text(GOOD.replace("1 2 3", "1 2"))
    (tmp_path / "suite.yaml").write_text(SUITE)
    return tmp_path


def run(folder: Path, *words: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    done = processes.run([*CANTRIP, "eval", *words], cwd=folder, capture_output=True, text=True, timeout=100)
    assert done.returncode == status, done.stdout + done.stderr
    return done


def rows(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_each_cell_has_a_rate_an_interval_its_cost_and_its_threads(folder: Path) -> None:
    done = run(
        folder, "suite.yaml", "--crystal", "scripted:good.yaml", "--crystal", "scripted:bad.yaml", "--samples", "2", "--out", "out",
        "--jobs", "3", status=1,
    )  # fmt: skip
    good, bad = (
        next(line for line in done.stdout.splitlines() if line.startswith(f"scripted:{n}.yaml"))
        for n in ("good", "bad")
    )
    # Two tasks, each with the same outcome twice: the interval is that of two samples.
    assert good.split("  ")[0:1] == ["scripted:good.yaml"]
    assert "4/4" in good
    assert "100% [34%, 100%]" in good
    assert "2/4" in bad
    assert "50% [9%, 91%]" in bad
    assert "@2 50%" in bad
    assert "$1.0000" in good
    assert "the answer does not say '3'" in done.stdout
    data = json.loads((folder / "out/result.json").read_bytes())
    assert (data["planned"], data["ended"], len(data["samples"])) == (8, 8, 8)
    cell = data["crystals"]["scripted:bad.yaml"]["tasks"]["count"]
    assert (cell["passed"], cell["samples"], cell["cost"], cell["tokens_in"], cell["turns"]) == (0, 2, 0.5, 40, 1)
    page = (folder / "out/report.html").read_text()
    for record in data["samples"]:
        with Loom.open(folder / "out" / record["loom"], readonly=True) as loom:
            thread = loom.thread(record["turn"])
            assert thread.result == record["answer"]
            assert loom.reward(record["turn"]) == record["score"]
        link = next(
            part.split('"')[0]
            for part in page.split('href="')
            if part.split('"')[0].endswith(f"#turn={record['turn']}")
        )
        assert record["turn"] in (folder / "out" / link.partition("#")[0]).read_text()


def test_what_has_ended_is_not_run_again(folder: Path) -> None:
    command = ("suite.yaml", "--crystal", "scripted:good.yaml", "--out", "out", "--json")
    first = rows(run(folder, *command).stdout)
    assert [r.get("task") for r in first] == ["hello", "count", None]
    again = run(folder, *command, "--samples", "2")
    assert "2 ended in an earlier run" in again.stderr
    assert [(r["task"], r["sample"]) for r in rows(again.stdout)[:-1]] == [("hello", 1), ("count", 1)]
    # Samples of one run and one task are a group.
    run(folder, *command[:3], "--samples", "2", "--out", "group")
    (loom,) = (folder / "group/looms").iterdir()
    ranked = processes.run([*CANTRIP, "loom", "rank", str(loom), "--json"], cwd=folder, capture_output=True, text=True)
    assert ranked.returncode == 0, ranked.stderr
    assert [len(group["threads"]) for group in json.loads(ranked.stdout)["groups"]] == [2, 2]
    # Another text of a task is other work, and the rest is not.
    (folder / "suite.yaml").write_text(SUITE.replace("hello to Ada", "hello to Ada now"))
    changed = rows(run(folder, *command, "--samples", "2").stdout)
    assert [r["task"] for r in changed[:-1]] == ["hello", "hello"]


def test_another_default_crystal_and_another_recorded_session_are_other_work(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "greeter.cantrip.yaml").write_text(
        RECIPE.replace("crystal: {provider: scripted, script: good.yaml}\n", "")
    )
    monkeypatch.setenv("CANTRIP_CRYSTAL", "scripted:good.yaml")
    run(folder, "suite.yaml", "--out", "out")
    again = run(folder, "suite.yaml", "--out", "out", "--json")
    assert "2 ended in an earlier run" in again.stderr
    monkeypatch.setenv("CANTRIP_CRYSTAL", "scripted:bad.yaml")
    other = run(folder, "suite.yaml", "--out", "out", "--json", status=1)
    assert [(r["task"], r["outcome"]) for r in rows(other.stdout)[:-1]] == [("hello", "passed"), ("count", "failed")]
    task = "recipe: greeter.cantrip.yaml\ntasks: [{intent: x, checks: [answer: yes], recorded: [content: %s]}]\n"
    (folder / "played.yaml").write_text(task % "'yes'")
    played = ("played.yaml", "--crystal", "recorded", "--out", "played")
    run(folder, *played)
    (folder / "played.yaml").write_text(task % "'no'")
    run(folder, *played, status=1)


def test_what_a_suite_prints_is_not_in_the_json(folder: Path) -> None:
    (folder / "score.py").write_text('print("loading")\ndef score(thread):\n    print("scoring")\n    return 1\n')
    (folder / "suite.yaml").write_text("recipe: greeter.cantrip.yaml\nscore: score.py\ntasks: [{intent: hello}]\n")
    done = run(folder, "suite.yaml", "--out", "out", "--json")
    assert len(rows(done.stdout)) == 2
    assert {"loading", "scoring"} <= set(done.stderr.splitlines())


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_an_evaluation_that_was_interrupted_goes_on(folder: Path, how: signal.Signals) -> None:
    slow = GOOD.replace("content:", "delay_ms: 600000, content:")
    (folder / "slow.yaml").write_text(slow)
    command = [*CANTRIP, "eval", "suite.yaml", "--crystal", "scripted:slow.yaml", "--out", "out"]
    process = processes.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    log = folder / "out/samples.jsonl"
    wait_for(lambda: log.exists() and log.read_bytes().endswith(b"\n"), seconds=60)
    os.kill(process.pid, how)
    output, errors = process.communicate(timeout=60)
    if how == signal.SIGINT:
        assert process.returncode == 130, errors
        assert "1/1" in output
        assert "1 of 2 samples are missing: interrupted. To continue, add: --out out" in errors
        data = json.loads((folder / "out/result.json").read_bytes())
        assert (data["planned"], data["ended"]) == (2, 1)
        assert "1 of 2 samples have ended" in (folder / "out/report.html").read_text()
    else:
        # A process that is killed while it writes leaves a part of a line.
        with log.open("ab") as file:
            file.write(b'{"key": "')
    (folder / "slow.yaml").write_text(GOOD)
    done = run(folder, *command[len(CANTRIP) + 1 :])
    assert "1 ended in an earlier run" in done.stderr
    assert [r["task"] for r in rows(log.read_text())] == ["hello", "count"]
    assert "2/2" in done.stdout


def test_a_regression_ends_with_1(folder: Path) -> None:
    run(folder, "suite.yaml", "--crystal", "scripted:good.yaml", "--samples", "6", "--out", "first")
    same = run(folder, "suite.yaml", "--crystal", "scripted:good.yaml", "--out", "same", "--baseline", "first")
    assert "pass rate 1 → 1, p = 1: not worse" in same.stdout
    bad = ("suite.yaml", "--crystal", "scripted:bad.yaml", "--baseline", "first/result.json")
    worse = run(folder, *bad, "--samples", "6", "--out", "worse", status=1)
    # 6 of 6 before and 0 of 6 after: 1 in 924 by chance.
    assert (
        "scripted:bad.yaml, count (baseline: scripted:good.yaml): pass rate 1 → 0, p = 0.00108: REGRESSION"
        in worse.stdout
    )
    assert "hello" not in worse.stdout.partition("Against the baseline")[2]
    assert json.loads((folder / "worse/result.json").read_bytes())["comparisons"][0]["regression"] is True
    # One sample says little, and yet all if the crystal always answers alike.
    once = run(folder, *bad, "--out", "once")
    assert "count (baseline: scripted:good.yaml): pass rate 1 → 0, p = 0.143: worse, not significant" in once.stdout
    run(folder, *bad, "--any-drop", "--out", "once", status=1)
    # What was asked has changed, so it is not compared.
    (folder / "suite.yaml").write_text(SUITE.replace("count to 3", "count up to 3"))
    other = run(folder, *bad, "--any-drop", "--out", "other")
    assert "not compared: scripted:bad.yaml, count: new, or changed since the baseline" in other.stdout
    # Tasks that are gone are named, and a comparison of nothing is no success.
    part = run(folder, "suite.yaml", "--only", "hello", "--out", "part", "--baseline", "first")
    assert "not compared: recipe: tasks of the baseline without a judged sample in this run: count" in part.stdout
    none = run(folder, "suite.yaml", "--only", "count", "--out", "none", "--baseline", "first", status=1)
    assert "no task could be compared with the baseline" in none.stderr


def test_two_models_are_compared_and_failures_are_grouped_by_task(folder: Path) -> None:
    models = ("-m", "scripted:good.yaml", "-m", "scripted:bad.yaml")
    done = run(folder, "suite.yaml", *models, "--samples", "6", "--out", "out", status=1)
    assert "count, scripted:bad.yaml: 6 of 6 samples (text):" in done.stdout
    assert done.stdout.count("cantrip loom view") == 1
    assert done.stdout.count("does not") == 1
    assert "(6 times)" in done.stdout
    # 6 of 6 against 0 of 6 in the one task that differs: 1 in 924, in each direction.
    assert (
        "scripted:bad.yaml against scripted:good.yaml: pass rate 1 → 0.5, difference -50 points (95 % CI "
        in done.stdout
    )
    assert "p = 0.00216, 2 tasks: scripted:good.yaml is better" in done.stdout
    (found,) = json.loads((folder / "out/result.json").read_bytes())["differences"]
    assert (found["first"], found["second"], found["counts"]) == ("scripted:good.yaml", "scripted:bad.yaml", True)
    assert found["interval"][0] < found["difference"] == -0.5 < found["interval"][1]
    assert "<h2>Differences</h2>" in (folder / "out/report.html").read_text()


def test_a_secret_in_a_note_is_in_no_loom(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVAL_TEST_API_KEY", "sesame-is-open")
    (folder / "score.py").write_text('import os\ndef score(thread):\n    return 0, os.environ["EVAL_TEST_API_KEY"]\n')
    (folder / "s.yaml").write_text("recipe: greeter.cantrip.yaml\ntasks: [{intent: count, score: score.py}]\n")
    run(folder, "s.yaml", "--out", "out", status=1)
    for file in (folder / "out").rglob("*"):
        assert file.is_dir() or b"sesame-is-open" not in file.read_bytes(), file
    (loom,) = (folder / "out" / "looms").glob("*.loom.jsonl")
    assert "below 1: [redacted]" in loom.read_text()


def test_a_budget_ends_it_and_what_failed_is_not_judged(folder: Path) -> None:
    done = run(
        folder,
        "suite.yaml",
        "--crystal",
        "scripted:good.yaml",
        "--samples",
        "2",
        "--budget-usd",
        "0.6",
        "--out",
        "out",
        status=1,
    )
    assert "1 of 4 samples are missing: the budget is spent" in done.stderr
    (folder / "none.yaml").write_text("- {when: hello, error: {status: 401, message: wrong key}, repeat: true}\n")
    broken = run(folder, "suite.yaml", "--crystal", "scripted:none.yaml", "--out", "broken", status=1)
    assert "wrong key" in broken.stdout
    data = json.loads((folder / "broken/result.json").read_bytes())["crystals"]["scripted:none.yaml"]
    assert (data["errors"], data["passed"], data["rate"]) == (2, 0, None)
    # An unknown cost is not zero.
    (folder / "unknown.yaml").write_text(GOOD.replace(", cost: 0.25", ""))
    unknown = run(folder, "suite.yaml", "--crystal", "scripted:unknown.yaml", "--out", "unknown")
    assert next(line for line in unknown.stdout.splitlines() if line.startswith("scripted:unknown")).split()[-3] == "?"
    # What was not judged runs again.
    (folder / "none.yaml").write_text(GOOD)
    run(folder, "suite.yaml", "--crystal", "scripted:none.yaml", "--out", "broken")


def test_scores_and_verifiers_judge(folder: Path) -> None:
    """The function gets what it has parameters for; the verifier reads the thread and the expected answer."""
    (folder / "score.py").write_text(
        "def score(thread, reference, intent, answer, workspace):\n"
        "    assert thread.result == answer and intent.startswith('Say') and (workspace / 'a.txt').read_text() == 'x'\n"
        "    return (0.75 if reference in answer else 0, 'as expected')\n"
    )
    (folder / "judge.cantrip.yaml").write_text(
        "name: judge\ncrystal: {provider: scripted, responses: [{repeat: true, when: these are the expected answers, "
        'content: \'{"reward": 0.25, "note": "too short"}\', usage: {prompt_tokens: 1, completion_tokens: 1, cost: 0.5}}]}\n'
        "circle: {medium: conversation, gates: [done], wards: [max_turns: 1]}\n"
    )
    task = "{intent: Say hello to Ada., reference: Ada, files: {a.txt: x}, pass_at: 0.5, score: score.py"
    text = f"recipe: greeter.cantrip.yaml\ntasks: [{task}"
    (folder / "suite.yaml").write_text(text + "}]\n")
    one = rows(run(folder, "suite.yaml", "--out", "one", "--json").stdout)[0]
    assert (one["outcome"], one["score"], one["wrong"]) == ("passed", 0.75, [])
    (folder / "suite.yaml").write_text(text + ", verifier: judge.cantrip.yaml}]\n")
    done = run(folder, "suite.yaml", "--out", "two", "--json", status=1)
    two = rows(done.stdout)[0]
    assert (two["outcome"], two["score"], two["wrong"]) == ("failed", 0.25, ["the score is 0.25, below 0.5: too short"])
    assert two["usage"]["cost"] == 0.75
    assert "runs score.py on this machine, outside of the sandbox" in done.stderr
    (folder / "score.py").write_text("def score(thread):\n    raise OSError('no disk')\n")
    three = rows(run(folder, "suite.yaml", "--out", "three", "--json", status=1).stdout)[0]
    assert (three["outcome"], "no disk" in three["error"]) == ("error", True)


def test_a_new_suite_runs_and_wrong_words_are_told(folder: Path) -> None:
    run(folder, "mine", "--new")
    done = run(folder, "mine", "--out", "out")
    assert "2/2" in done.stdout
    assert "exists already" in run(folder, "mine", "--new", status=2).stderr
    assert "fruit" not in run(folder, "mine", "--list").stdout
    assert "'nobody:x' is not a crystal" in run(folder, "mine", "--crystal", "nobody:x", "--out", "x", status=2).stderr
    assert "other files" in run(folder, "mine", "--out", "mine", status=2).stderr
    assert "is not a result" in run(folder, "mine", "--baseline", "mine/suite.yaml", status=2).stderr
    assert "bug-discount" in run(folder, "coding", "--list").stdout


def test_inspect_tasks_run_with_their_own_solvers_and_scorers(folder: Path) -> None:
    pytest.importorskip("inspect_ai", reason="Inspect is not installed: pip install inspect_ai")
    (folder / "tasks.py").write_text(INSPECT)
    (folder / "good.yaml").write_text('- {when: multiple choice, content: "ANSWER: B"}\n' + GOOD)
    done = run(folder, "tasks.py", "--crystal", "scripted:good.yaml", "--out", "out", "--json", status=1)
    assert f"runs {folder / 'tasks.py'} on this machine, outside of the sandbox" in done.stderr
    found = {r["task"]: r for r in rows(done.stdout)[:-1]}
    assert {name: r["outcome"] for name, r in found.items()} == {
        "counting/three": "passed", "counting/seven": "failed", "choices/1": "passed",
    }  # fmt: skip
    with Loom.open(folder / "out" / found["counting/three"]["loom"], readonly=True) as loom:
        thread = loom.thread(found["counting/three"]["turn"])
        assert loom.cast_of(thread.leaf.cast_id or "")[0].intent == "Please count!"  # type: ignore[union-attr]
        prompt = (loom.cantrip(thread[0].cantrip_id) or thread).call["system_prompt"]  # type: ignore[union-attr]
    assert prompt == "Answer the user's message.\n\nYou can count."


def test_tasks_of_verifiers_run_with_their_own_rewards(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "lib").mkdir()
    (folder / "lib" / "counts_v1.py").write_text(VERIFIERS)
    monkeypatch.setenv("PYTHONPATH", str(folder / "lib"))
    try:
        import verifiers.v1  # noqa: F401
    except ImportError:
        assert "to run it: pip install verifiers" in run(folder, "verifiers:counts-v1", status=2).stderr
        pytest.skip("verifiers is not installed: pip install verifiers (570 MB)")
    done = run(folder, "verifiers:counts-v1", "--crystal", "scripted:good.yaml", "--out", "out", "--json", status=1)
    assert "runs the taskset counts-v1 of verifiers on this machine, outside of the sandbox" in done.stderr
    found = {r["task"]: r for r in rows(done.stdout)[:-1]}
    assert {name: (r["kind"], r["outcome"], r["score"]) for name, r in found.items()} == {
        "three": ("verifiers", "passed", 1.5), "seven": ("verifiers", "failed", 0.5),
    }  # fmt: skip
    assert "asked 0.5, says 0" in found["seven"]["wrong"][0]
    with Loom.open(folder / "out" / found["three"]["loom"], readonly=True) as loom:
        start, _ = loom.cast_of(loom.thread(found["three"]["turn"]).leaf.cast_id or "")
        assert start is not None
        assert (start.intent, start.reference) == ("Please count!", "1 2 3")
    assert "taskset 'sums' not found" in run(folder, "verifiers:sums", status=2).stderr
    needs = VERIFIERS.replace("(self, task, trace)", "(self, task, trace, runtime)")
    (folder / "lib" / "counts_v1.py").write_text(needs)
    assert "needs a runtime or tools of verifiers (says)" in run(folder, "verifiers:counts-v1", status=2).stderr


def test_an_inspect_task_says_what_it_needs(folder: Path) -> None:
    (folder / "tasks.py").write_text(INSPECT)
    try:
        import inspect_ai  # noqa: F401
    except ImportError:
        assert "to run it: pip install inspect_ai" in run(folder, "tasks.py", status=2).stderr
    else:
        assert "defines no task 'none' (tasks: counting, choices)" in run(folder, "tasks.py@none", status=2).stderr
        (folder / "tasks.py").write_text(INSPECT.replace('id="three")', 'id="three", sandbox="docker")'))
        assert "needs a sandbox or a setup of Inspect" in run(folder, "tasks.py", status=2).stderr


def test_samples_do_not_read_each_other(folder: Path) -> None:
    def answer(request: Request) -> Reply:
        if not request.path.endswith("/chat/completions"):
            return Reply(404)
        told = [each for each in json.loads(request.body)["messages"] if each["role"] == "tool"]
        if not told:
            return openai_replies.chat_stream(openai_replies.call_delta(0, "c", "recall", '{"query": "walrus"}'))
        return openai_replies.chat_stream({"content": "It is a walrus, Ada."})

    with Wire(answer) as model:
        crystal = f'{{provider: local, model: m, base_url: "{model.url}/v1"}}'
        recipe = RECIPE.replace("{provider: scripted, script: good.yaml}", crystal)
        (folder / "greeter.cantrip.yaml").write_text(recipe + "memory: {culture: true, sessions: 8, batches: true}\n")
        (folder / "suite.yaml").write_text(SUITE.replace(SUITE.splitlines()[-1], ""))
        done = run(folder, "suite.yaml", "--samples", "3", "--jobs", "1", "--out", "out")
        texts = [each.body.decode() for each in model.requests if each.path.endswith("/chat/completions")]
    assert len(texts) == 6, done.stderr
    assert not any("It is a walrus" in text for text in texts)
