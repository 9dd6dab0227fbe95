"""`cantrip cast-batch`, `worker` and `tuple`: many casts here and by workers, and going on after an interruption."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cantrip_acp.tuplespace.stores import open_store
from tests.support import anthropic_replies, openai_replies, processes
from tests.support.loom_stores import DATABASES
from tests.support.processes import CANTRIP
from tests.support.provider_server import Reply, Request, Wire

RECIPE = """\
name: greeter
crystal:
  provider: scripted
  responses:
    - {when: broken, error: {message: "no connection, or it was lost: refused"}, repeat: true}
    - {when: endless, content: hm, tool_calls: [{gate: echo, args: {text: x}}], repeat: true}
    - {when: slow, content: Late., delay_ms: 60000, repeat: true}
    - tool_calls: [{gate: done, args: {answer: Hello.}}]
      usage: {prompt_tokens: 10, completion_tokens: 5, cost: 0.001}
      repeat: true
circle: {medium: conversation, gates: [done, echo], wards: [{max_turns: 3}]}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "greeter.cantrip.yaml").write_text(RECIPE)
    (tmp_path / "intents.jsonl").write_text('"Say hello."\n\n{"intent": "Say goodbye.", "id": "bye"}\n')
    return tmp_path


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "CANTRIP_STATE_DIR": str(folder / "state")}


def run(folder: Path, *words: str, stdin: str = "", status: int = 0) -> subprocess.CompletedProcess[str]:
    done = processes.run(
        [*CANTRIP, *words], cwd=folder, input=stdin, capture_output=True, text=True, timeout=60, env=environment(folder)
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    return processes.Popen(
        [*CANTRIP, *words], cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=environment(folder),
    )  # fmt: skip


def rows(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


BATCH = ("cast-batch", "greeter.cantrip.yaml", "intents.jsonl")


def test_each_intent_is_cast_and_its_samples_are_a_group(folder: Path) -> None:
    done = run(folder, *BATCH, "--samples", "3", "--out", "results.jsonl")
    assert "6/6 casts · $0.0060" in done.stderr
    results = rows((folder / "results.jsonl").read_text())
    assert [(r.get("id"), r["intent"], r["sample"], r["state"]) for r in results] == [
        (name, intent, sample, "done")
        for name, intent in ((None, "Say hello."), ("bye", "Say goodbye."))
        for sample in range(3)
    ]
    assert results[0]["cast"]["result"] == "Hello."
    loom = done.stderr.split("loom     ")[1].splitlines()[0]
    # The looms' commands take them as they are.
    for number, row in enumerate(results[:3]):
        thread = next(t for t in threads(folder, loom) if t["entity_id"] == row["cast"]["entity_id"])
        run(folder, "loom", "reward", loom, thread["leaf"], str(number / 2))
    exported = run(folder, "loom", "export", loom, "--format", "art").stdout
    sizes = sorted(len(group["trajectories"]) for group in rows(exported))
    assert sizes == [3, 3]


def test_references_are_for_the_scoring_function(folder: Path) -> None:
    recipe = RECIPE.rstrip("}\n") + ", score: {python: rubric.py, at: cast}}\n"
    (folder / "greeter.cantrip.yaml").write_text(recipe)
    (folder / "rubric.py").write_text(
        "def score(thread, intent, reference):\n    return float(thread.result == (reference or {}).get('say')), intent\n"
    )
    lines = [
        {"intent": "One", "reference": {"say": "Hello."}},
        {"intent": "Two", "reference": {"say": "Bye."}},
        "Three",
    ]
    (folder / "intents.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = run(folder, *BATCH)
    loom = done.stderr.split("loom     ")[1].splitlines()[0]
    found = [
        t
        for group in rows(run(folder, "loom", "export", loom, "--format", "art").stdout)
        for t in group["trajectories"]
    ]
    assert sorted((t["reward"], t["metadata"]["reference"]) for t in found if t["metadata"]["reference"]) == [
        (0.0, '{"say":"Bye."}'),
        (1.0, '{"say":"Hello."}'),
    ]
    # Where the entities could read the file, it is refused.
    reads = recipe.replace("gates: [done, echo]", "gates: [done, echo, {name: read_file, root: .}]")
    (folder / "greeter.cantrip.yaml").write_text(reads)
    refused = run(folder, *BATCH, status=2)
    assert "intents.jsonl holds the expected answer" in refused.stderr


def threads(folder: Path, loom: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(run(folder, "loom", "list", loom, "--json").stdout)["threads"]
    return found


def test_the_same_command_goes_on_and_again_repeats(folder: Path) -> None:
    run(folder, *BATCH)
    second = run(folder, *BATCH, "--samples", "2", "--json")
    assert "2 ended in an earlier run" in second.stderr
    assert len(rows(second.stdout)) == 4
    third = run(folder, *BATCH, "--again", "all")
    assert "earlier run" not in third.stderr
    status = json.loads(run(folder, "tuple", "status", "--json").stdout)
    [lane] = status["lanes"].values()
    assert (lane["done"], lane["waiting"], lane["failed"]) == (6, 0, 0)
    # Another text of the recipe is other work.
    (folder / "greeter.cantrip.yaml").write_text(RECIPE + "# changed\n")
    assert "earlier run" not in run(folder, *BATCH).stderr


def test_two_commands_share_one_batch(folder: Path) -> None:
    (folder / "greeter.cantrip.yaml").write_text(RECIPE.replace("60000", "1500"))
    (folder / "intents.jsonl").write_text('"slow 1"\n"slow 2"\n"slow 3"\n')
    both = [start(folder, *BATCH, "--concurrency", "1", "--loom", f"{name}.loom.jsonl") for name in ("a", "b")]
    for each in both:
        stdout, stderr = each.communicate(timeout=60)
        assert each.returncode == 0, stdout + stderr
        assert "3/3 casts" in stderr


def test_what_fails_says_why_and_the_others_go_on(folder: Path) -> None:
    stdin = '"broken"\n"Say hello."\n"endless"\n'
    done = run(folder, *BATCH[:2], "-", "--max-retries", "1", "--json", stdin=stdin, status=1)
    states = {row["intent"]: row for row in rows(done.stdout)}
    assert [states[intent]["state"] for intent in ("broken", "Say hello.", "endless")] == ["failed", "done", "failed"]
    assert "2 attempts failed; the last: no connection" in states["broken"]["error"]
    assert "the cast was cut off: max_turns" in states["endless"]["error"]
    assert states["endless"]["cast"]["turns"] == 3
    assert "2 failed" in done.stderr
    assert "1 × the cast was cut off: max_turns" in done.stderr


def test_a_script_that_has_run_out_is_asked_once(folder: Path) -> None:
    recipe = RECIPE.replace("      repeat: true\ncircle", "circle")
    (folder / "greeter.cantrip.yaml").write_text(recipe)
    done = run(folder, *BATCH, "--concurrency", "1", "--json", status=1)
    first, second = rows(done.stdout)
    assert (first["state"], second["state"]) == ("done", "failed")
    assert second["error"].startswith("the script has run out")
    assert "tried again" not in done.stderr


def test_only_what_failed_is_cast_again(folder: Path) -> None:
    stdin = '"broken"\n"Say hello."\n'
    words = (*BATCH[:2], "-", "--max-retries", "0", "--json")
    first = rows(run(folder, *words, stdin=stdin, status=1).stdout)
    again = rows(run(folder, *words, "--again", "failed", stdin=stdin, status=1).stdout)
    assert {row["intent"]: row["tuple_id"] in [each["tuple_id"] for each in first] for row in again} == {
        "broken": False,
        "Say hello.": True,
    }
    # From now on the later attempt is the result.
    later = rows(run(folder, *words, stdin=stdin, status=1).stdout)
    assert sorted(later, key=str) == sorted(again, key=str)
    lanes = json.loads(run(folder, "tuple", "status", "--json").stdout)["lanes"]
    assert [(lane["done"], lane["failed"], lane["repeated"]) for lane in lanes.values()] == [(1, 1, 1)]


@pytest.mark.parametrize("by_workers", [False, True])
def test_a_batch_stops_at_its_budget_and_goes_on_with_a_larger_one(folder: Path, by_workers: bool) -> None:
    (folder / "intents.jsonl").write_text("".join(f'"Say hello {number}."\n' for number in range(10)))
    words = (*BATCH, "--space", "space.db", "--out", "results.jsonl", *(("--lane", "x") if by_workers else ()))
    lane = ("worker", "greeter.cantrip.yaml", "--lane", "x", "--space", "space.db", "--loom", "w.loom.db")
    workers = [start(folder, *lane, "--concurrency", "1") for _ in range(2 * by_workers)]
    try:
        one_at_a_time = () if by_workers else ("--concurrency", "1")
        done = run(folder, *words, "--budget-usd", "0.005", *one_at_a_time, status=1)
        ended = [row["state"] for row in rows((folder / "results.jsonl").read_text())].count("done")
        # The second worker was in the middle of a cast, at most.
        assert ended in ((5, 6) if by_workers else (5,)), done.stderr
        assert f"the budget is spent before {10 - ended} casts ended: raise --budget-usd" in done.stderr
        status = json.loads(run(folder, "tuple", "status", "--json", "--space", "space.db").stdout)
        assert status["lanes"]["alarms"]["waiting"] == 3
        [budget] = status["budgets"]
        assert (budget["usd"], budget["spent_usd"]) == (0.005, ended / 1000)
        assert "100 %" in run(folder, "tuple", "status", "--space", "space.db").stdout or ended == 6
        alarm = json.loads(run(folder, "tuple", "rd", '{"lane": "alarms"}', "--space", "space.db").stdout)["tuple"]
        assert alarm["payload"][0]["args"].items() >= {"percent": 50, "name": budget["name"], "usd": 0.005}.items()
        more = run(folder, *words, "--budget-usd", "1")
        assert "$0.0100 of $1 spent" in more.stderr
        assert [row["state"] for row in rows((folder / "results.jsonl").read_text())] == ["done"] * 10
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()


def test_an_interruption_leaves_the_rest_for_the_same_command(folder: Path) -> None:
    (folder / "intents.jsonl").write_text('"Say hello."\n"slow"\n')
    process = start(folder, *BATCH, "--concurrency", "2", "--json")
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["intent"] == "Say hello."
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    summary = {"error": "interrupted", "exit_status": 130, "done": 1, "failed": 0, "waiting": 1}
    assert json.loads(stdout.splitlines()[-1]) == summary
    assert "run the same command again to continue" in stderr
    assert "tried again" not in stderr, "it was stopped, and is not tried again before the next command"
    lanes = json.loads(run(folder, "tuple", "status", "--json").stdout)["lanes"]
    assert [(lane["done"], lane["waiting"], lane["claimed"]) for lane in lanes.values()] == [(1, 1, 0)]


def test_an_id_names_one_line(folder: Path) -> None:
    (folder / "intents.jsonl").write_text('{"id": "a", "intent": "x"}\n"y"\n{"id": "a", "intent": "z"}\n')
    done = run(folder, *BATCH, status=2)
    assert "intents.jsonl:3: line 1 already has the id 'a'" in done.stderr


EFFECT = """\
name: effect
crystal:
  provider: scripted
  responses:
    - tool_calls: [{gate: bash, args: {command: "echo once >> effects.txt"}}]
      usage: {prompt_tokens: 10, completion_tokens: 5, cost: 0.001}
    - tool_calls: [{gate: done, args: {answer: Done.}}]
      delay_ms: 4000
      usage: {prompt_tokens: 10, completion_tokens: 5, cost: 0.002}
    # A query that SIGTERM stopped has used its answer.
    - tool_calls: [{gate: done, args: {answer: Done.}}]
      usage: {prompt_tokens: 10, completion_tokens: 5, cost: 0.002}
circle: {medium: bash, gates: [done], wards: [{max_turns: 5}, {bash_writable_paths: ["."]}]}
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_cast_that_was_cut_off_goes_on_from_its_loom(folder: Path, how: signal.Signals) -> None:
    (folder / "effect.cantrip.yaml").write_text(EFFECT)
    (folder / "intents.jsonl").write_text('"Write it once."\n')
    process = start(folder, "cast-batch", "effect.cantrip.yaml", "intents.jsonl")
    saved: dict[str, Any] = {}
    for _ in range(100):
        found = processes.run(
            [*CANTRIP, "tuple", "rd", "{}", "--json"],
            cwd=folder,
            capture_output=True,
            text=True,
            env=environment(folder),
        )
        saved = (json.loads(found.stdout)["progress"] if found.returncode == 0 else None) or {}
        if "cost" in saved:
            break
    assert saved["cost"] == {"usd": 0.001, "tokens_in": 10, "tokens_out": 5}
    process.send_signal(how)
    process.communicate(timeout=60)
    done = run(folder, "cast-batch", "effect.cantrip.yaml", "intents.jsonl", "--json")
    [row] = rows(done.stdout)
    assert (folder / "effects.txt").read_text() == "once\n"
    assert (row["cast"]["result"], row["cast"]["entity_id"]) == ("Done.", saved["entity_id"])
    assert (row["cost"]["usd"], row["cost"]["tokens_in"]) == (0.003, 20), "the cost of both attempts"
    assert len(threads(folder, done.stderr.split("loom     ")[1].splitlines()[0])) == 1


def test_a_cast_that_its_budget_stopped_goes_on_when_the_budget_is_raised(folder: Path) -> None:
    (folder / "effect.cantrip.yaml").write_text(EFFECT.replace("delay_ms: 4000", "delay_ms: 500"))
    (folder / "intents.jsonl").write_text('"Write it once."\n')
    words = ("cast-batch", "effect.cantrip.yaml", "intents.jsonl", "--json")
    stopped = run(folder, *words, "--budget-usd", "0.001", status=1)
    assert "$0.0010 of $0.001 spent" in stopped.stderr
    assert "the budget is spent before 1 cast ended" in stopped.stderr
    [row] = rows(run(folder, *words, "--budget-usd", "1").stdout)
    assert row["cast"]["result"] == "Done."
    assert (folder / "effects.txt").read_text() == "once\n"


@pytest.mark.parametrize("kind", DATABASES)
def test_workers_cast_what_is_left_to_them(folder: Path, kind: str, request: pytest.FixtureRequest) -> None:
    space = ["--space", "space.db"]
    if kind == "postgres":
        space = ["--space", request.getfixturevalue("postgres").new_schema()]
    batch = start(folder, *BATCH, "--samples", "4", "--lane", "greetings", *space)
    workers = [
        start(
            folder,
            "worker",
            "greeter.cantrip.yaml",
            "--lane",
            "greetings",
            "--json",
            "--loom",
            f"w{n}.loom.jsonl",
            *space,
        )
        for n in range(2)
    ]
    try:
        _, stderr = batch.communicate(timeout=60)
        assert batch.returncode == 0, stderr
        assert "8/8 casts · $0.0080" in stderr
        assert "loom " not in stderr
        ended: list[dict[str, Any]] = []
        for worker in workers:
            worker.terminate()
            stdout, stderr = worker.communicate(timeout=60)
            assert worker.returncode == 0, stderr
            assert "takes the tuples of lane greetings" in stderr
            ended += rows(stdout)
        assert [row["state"] for row in ended] == ["done"] * 8
        assert len({row["tuple_id"] for row in ended}) == 8
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()


@pytest.fixture(scope="session")
def postgres() -> Any:
    from tests.support import postgres_server

    try:
        with postgres_server.running() as server:
            yield server
    except postgres_server.NoServer as why:
        pytest.skip(str(why))


def test_what_no_worker_can_run_stays_until_one_can(folder: Path) -> None:
    other = folder / "other"
    other.mkdir()
    (other / "greeter.cantrip.yaml").write_text(RECIPE.replace("Hello.", "Evil."))
    lane = ("--lane", "greetings", "--space", "space.db")
    batch = start(folder, *BATCH, *lane, "--out", "results.jsonl")
    assert batch.stderr is not None
    workers = []
    try:
        said = _until(batch, "no worker works on this lane")
        assert "2 casts of lane greetings wait" in said
        assert "Start a worker: cantrip worker greeter.cantrip.yaml --lane greetings" in said
        workers.append(start(folder, "worker", "other/greeter.cantrip.yaml", *lane, "--loom", "sqlite:w.loom.db"))
        _until(batch, "the workers have another text of the recipe")
        status = json.loads(run(folder, "tuple", "status", "--space", "space.db", "--json").stdout)
        assert [(each["count"], each["lane"]) for each in status["stuck"]] == [(2, "greetings")]
        assert "another text of the recipe" in run(folder, "tuple", "status", "--space", "space.db").stdout
        doctor = processes.run(
            [*CANTRIP, "doctor", "--all"], cwd=folder, capture_output=True, text=True, timeout=60,
            env={**environment(folder), "CANTRIP_TUPLE_SPACE": str(folder / "space.db")},
        )  # fmt: skip
        assert "2 in lane greetings wait: agent.cast.greeter: the workers have another text" in " ".join(
            doctor.stdout.split()
        )
        # A worker that stops says that what is left is not for it.
        left = run(
            folder,
            "worker",
            "other/greeter.cantrip.yaml",
            *lane,
            "--loom",
            "sqlite:w.loom.db",
            "--until-empty",
            status=1,
        )
        assert "2 wait for another worker" in left.stderr
        # The new worker beside the old one loses nothing.
        workers.append(start(folder, "worker", "greeter.cantrip.yaml", *lane, "--loom", "sqlite:w.loom.db"))
        _, stderr = batch.communicate(timeout=60)
        assert batch.returncode == 0, stderr
        assert [row["cast"]["result"] for row in rows((folder / "results.jsonl").read_text())] == ["Hello."] * 2
    finally:
        for each in workers:
            each.terminate()
            each.communicate(timeout=60)
        batch.kill()
        batch.communicate()


def _until(process: subprocess.Popen[str], words: str) -> str:
    """The line on standard error that has the words."""
    assert process.stderr is not None
    read = []
    for line in process.stderr:
        read.append(line)
        if words in line:
            return line
    raise AssertionError("".join(read))


def test_a_worker_that_ends_says_by_its_status_that_casts_failed(folder: Path) -> None:
    lane = ("--lane", "x", "--space", "space.db")
    (folder / "endless.jsonl").write_text('"endless"\n')
    batch = start(folder, *BATCH[:2], "endless.jsonl", *lane)
    _until(batch, "no worker works on this lane")
    done = run(folder, "worker", "greeter.cantrip.yaml", *lane, "--loom", "w.loom.db", "--until-empty", status=1)
    assert "1 failed; `cantrip tuple status` shows why" in done.stderr
    batch.communicate(timeout=60)
    assert batch.returncode == 1


def test_a_wrong_key_is_found_by_one_cast_and_the_others_wait(folder: Path) -> None:
    (folder / "greeter.cantrip.yaml").write_text(
        RECIPE.replace('{message: "no connection, or it was lost: refused"}', "{status: 401, message: wrong key}")
    )
    stdin = '"broken 1"\n"broken 2"\n"broken 3"\n'
    done = run(folder, *BATCH[:2], "-", "--concurrency", "1", stdin=stdin, status=2)
    assert "would fail for every tuple: wrong key" in done.stderr
    [lane] = json.loads(run(folder, "tuple", "status", "--json").stdout)["lanes"].values()
    assert (lane["waiting"], lane["failed"]) == (3, 0)


@pytest.mark.parametrize("by_workers", [False, True])
def test_a_missing_key_is_found_once_before_the_first_cast(
    folder: Path, by_workers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    monkeypatch.setenv("CANTRIP_CONFIG_DIR", str(folder / "config"))
    lane = ("--lane", "x") if by_workers else ()
    worker = ("worker", "greeter.cantrip.yaml", *lane, "--space", "space.db", "--loom", "w.loom.db")
    with Wire(lambda _: anthropic_replies.says("Hello.")) as model:
        recipe = (
            "name: greeter\ncrystal: anthropic:claude-sonnet-4-5\ncircle: {gates: [done], wards: [{max_turns: 3}]}\n"
        )
        (folder / "greeter.cantrip.yaml").write_text(recipe)
        batch = start(folder, *BATCH, "--space", "space.db", "--out", "results.jsonl", *lane)
        try:
            if by_workers:
                _until(batch, "no worker works on this lane")
                told = run(folder, *worker, status=2).stderr
            else:
                _, told = batch.communicate(timeout=60)
                assert batch.returncode == 2
            assert told.count("no key for anthropic") == 1, told
            assert not model.requests
            # With a key nothing is lost, and nothing was tried.
            monkeypatch.setenv("ANTHROPIC_API_KEY", "a-key-for-this-test")
            monkeypatch.setenv("ANTHROPIC_BASE_URL", model.url)
            if by_workers:
                run(folder, *worker, "--until-empty")
                batch.communicate(timeout=60)
                assert batch.returncode == 0
            else:
                run(folder, *BATCH, "--space", "space.db", "--out", "results.jsonl")
        finally:
            batch.kill()
            batch.communicate()
        assert len(model.requests) == 2
    store = open_store(str(folder / "space.db"))
    try:
        for row in rows((folder / "results.jsonl").read_text()):
            found = store.get(row["tuple_id"])
            assert found is not None
            assert (row["state"], row["cast"]["result"], found.attempts) == ("done", "Hello.", 1)
    finally:
        store.close()


def test_two_projects_share_no_result_and_a_moved_folder_keeps_its_own(tmp_path: Path) -> None:
    first, second, moved = tmp_path / "a", tmp_path / "b", tmp_path / "c"

    def batch(folder: Path, remote: str | None = None) -> str:
        if not folder.exists():
            folder.mkdir()
            (folder / "greeter.cantrip.yaml").write_text(RECIPE)
            if remote is not None:
                processes.run(["git", "init", "-q", str(folder)], check=True)
                processes.run(["git", "-C", str(folder), "remote", "add", "origin", remote], check=True)
        done = processes.run(
            [*CANTRIP, *BATCH[:2], "-", "--json"], cwd=folder, input='"Say hello."\n', capture_output=True, text=True,
            timeout=60, env=environment(tmp_path),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        [row] = rows(done.stdout)
        assert ("ended in an earlier run" in done.stderr) == (row["tuple_id"] in known)
        known.add(row["tuple_id"])
        return str(row["tuple_id"])

    known: set[str] = set()
    mine = batch(first)
    assert batch(second) != mine
    first.rename(moved)
    assert batch(moved) == mine
    # One project, cloned in two ways, and another path on the same server.
    clone = batch(tmp_path / "d", "https://me:secret@Example.com/team/x.git")
    assert batch(tmp_path / "e", "git@example.com:team/x") == clone
    assert batch(tmp_path / "f", "git@example.com:team/y") != clone
    assert len(known) == 4


def test_a_file_that_the_recipe_names_is_part_of_the_work(folder: Path) -> None:
    (folder / "greeter.cantrip.yaml").write_text(RECIPE + "call: {system_prompt_file: prompt.md}\n")
    (folder / "prompt.md").write_text("Be kind.")
    [one, _] = rows(run(folder, *BATCH, "--json").stdout)
    assert "2 ended in an earlier run" in run(folder, *BATCH).stderr
    (folder / "prompt.md").write_text("Be brief.")
    [other, _] = rows(run(folder, *BATCH, "--json").stdout)
    assert one["tuple_id"] != other["tuple_id"]


def test_an_intent_is_cast_again_when_a_declared_input_has_changed(folder: Path) -> None:
    (folder / "greeter.cantrip.yaml").write_text(RECIPE + "inputs: [src/**, '*.toml']\n")
    (folder / "src/deep").mkdir(parents=True)
    (folder / "src/deep/x.py").write_text("1")
    (folder / ".gitignore").write_text("*.pyc\n")

    def again() -> bool:
        return "2 ended in an earlier run" not in run(folder, *BATCH).stderr

    assert again()
    assert not again()
    (folder / "src/deep/x.pyc").write_text("ignored")
    (folder / "other.py").write_text("not declared")
    assert not again()
    (folder / "src/deep/x.py").write_text("2")
    assert again()
    (folder / "a.toml").write_text("")
    assert again()
    (folder / "src/deep/x.py").write_text("1")
    (folder / "a.toml").unlink()
    assert not again(), "these inputs had their casts"


def test_a_worker_of_another_project_leaves_the_casts(folder: Path) -> None:
    other = folder / "other"
    other.mkdir()
    (other / "greeter.cantrip.yaml").write_text(RECIPE)
    lane = ("--lane", "greetings", "--space", str(folder / "space.db"))
    batch = start(folder, *BATCH, *lane)
    worker = start(other, "worker", "greeter.cantrip.yaml", *lane, "--loom", "w.loom.db")
    try:
        assert "2 casts of lane greetings wait" in _until(batch, "the workers are in another project")
    finally:
        for each in (batch, worker):
            each.kill()
            each.communicate()


MEMORY = """\
name: greeter
crystal: {{provider: local, model: m, base_url: "{url}/v1"}}
memory: {memory}
circle: {{medium: conversation, gates: [done], wards: [{{max_turns: 3}}]}}
"""


@pytest.mark.parametrize("by_workers", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_samples_do_not_read_each_other_unless_the_recipe_wants_it(
    folder: Path, by_workers: bool, shared: bool
) -> None:
    def answer(request: Request) -> Reply:
        if not request.path.endswith("/chat/completions"):
            return Reply(404)
        return openai_replies.chat_stream({"content": "The answer is 42."})

    with Wire(answer) as model:
        memory = "{culture: true, sessions: 8" + (", batches: true}" if shared else "}")
        (folder / "greeter.cantrip.yaml").write_text(MEMORY.format(url=model.url, memory=memory))
        words = (*BATCH[:2], "-", "--samples", "3", "--space", "space.db")
        if not by_workers:
            run(folder, *words, "--concurrency", "1", stdin='"What is it?"\n')
        else:
            (folder / "one.jsonl").write_text('"What is it?"\n')
            batch = start(folder, *BATCH[:2], "one.jsonl", *words[3:], "--lane", "x")
            _until(batch, "no worker works on this lane")
            lane = ("--lane", "x", "--space", "space.db", "--loom", "w.loom.db", "--concurrency", "1")
            run(folder, "worker", "greeter.cantrip.yaml", *lane, "--until-empty")
            batch.communicate(timeout=60)
        texts = [each.body.decode() for each in model.requests if each.path.endswith("/chat/completions")]
    assert len(texts) == 3
    assert ["The answer is 42." in text for text in texts] == [False, shared, shared]


def test_tuples_are_put_and_read(folder: Path) -> None:
    one = {"schema": "yool-tuple/v1", "lane": "build", "payload": [{"yool": "agent.lint.ruff"}]}
    two = {**one, "map_pos": {"repo": "x", "line": "separated\u2028by\x85others"}}
    lines = "".join(f"{json.dumps(each, ensure_ascii=False)}\r\n" for each in (one, two))
    put = run(folder, "tuple", "out", "-", stdin=lines).stdout
    identities = [line.split()[0] for line in put.splitlines()]
    assert "known in lane build" in run(folder, "tuple", "out", "-", stdin=json.dumps(one, indent=1)).stdout
    found = json.loads(run(folder, "tuple", "rd", '{"map_pos": {"repo": "x"}}', "--json").stdout)
    assert (found["tuple"]["id"], found["state"], found["receipts"]) == (identities[1], "waiting", [])
    assert json.loads(run(folder, "tuple", "rd", identities[0]).stdout)["tuple"]["id"] == identities[0]
    assert "build" in run(folder, "tuple", "status").stdout
    assert "there is no such tuple" in run(folder, "tuple", "rd", '{"lane": "none"}', "--wait", "0.1", status=1).stderr


@pytest.mark.parametrize(
    ("words", "stdin", "message"),
    [
        (
            ("tuple", "out", "-"),
            '{"lane": "x"}',
            "stdin:1: the tuple is not valid: Object missing required field `schema`",
        ),
        (("tuple", "out", "-"), "not json", "stdin:1: the tuple is not JSON"),
        (
            ("tuple", "out", "bytes.json"),
            "",
            "bytes.json:1: not UTF-8 (byte 0xff); save the file in the encoding UTF-8",
        ),
        (("tuple", "rd", "[" * 100_000), "", "a pattern is an id (sha256:…) or a JSON object"),
        (("tuple", "rd", "lane"), "", "a pattern is an id (sha256:…) or a JSON object"),
        (("tuple", "rd", "[1]"), "", "a pattern is a JSON object such as"),
        (("tuple", "status", "--space", "greeter.cantrip.yaml"), "", "cannot open tuple-space"),
        ((*BATCH[:2], "-"), "", "stdin has no intents"),
        ((*BATCH[:2], "-"), '{"intention": "x"}', "stdin:1: Object contains unknown field `intention`"),
        ((*BATCH[:2], "-"), '"x"\n" "', "stdin:2: the intent is empty"),
        (("cast-batch", "nope", "intents.jsonl"), "", "no recipe is named 'nope'"),
    ],
)
def test_bad_input_is_named(folder: Path, words: Sequence[str], stdin: str, message: str) -> None:
    (folder / "bytes.json").write_bytes(b"\xff")
    done = run(folder, *words, stdin=stdin, status=2)
    assert message in done.stderr


def test_a_projects_log_resumes_elsewhere(folder: Path) -> None:
    stdin = '"broken"\n"Say hello."\n'
    run(folder, *BATCH[:2], "-", "--max-retries", "0", stdin=stdin, status=1)
    assert ".catalog  written 2 tuples, 2 receipts" in run(folder, "tuple", "export").stdout
    loaded = run(folder, "tuple", "import", "--space", "other.db", "--json").stdout
    assert json.loads(loaded) == {"folder": ".catalog", "loaded": {"tuples": 2, "receipts": 2}}
    # The cast that ended is not repeated there. The other one is, if it is wanted.
    again = run(folder, *BATCH[:2], "-", "--space", "other.db", "--json", "--max-retries", "0", stdin=stdin, status=1)
    assert "2 ended in an earlier run" in again.stderr
    [line] = rows(run(folder, "tuple", "resume", "--failed", "--json", "--space", "other.db").stdout)
    assert line["instead_of"] == next(row["tuple_id"] for row in rows(again.stdout) if row["state"] == "failed")
    assert rows(run(folder, "tuple", "resume", "--failed", "--json", "--space", "other.db").stdout) == []
    assert run(folder, "tuple", "resume", "--space", "other.db").stdout == "nothing to resume\n"
    synced = run(folder, "tuple", "sync", "--space", "other.db").stdout
    assert "loaded 0 tuples, 0 receipts · written 1 tuples, 0 receipts" in synced
    assert "there is no folder nothing" in run(folder, "tuple", "import", "nothing", status=2).stderr


def test_a_large_result_is_shown_and_can_be_read_by_its_hash(folder: Path) -> None:
    (folder / "greeter.cantrip.yaml").write_text(RECIPE.replace("Hello.", "Hello. " * 5000))
    row, _ = rows(run(folder, *BATCH, "--json").stdout)
    assert len(row["cast"]["result"]) > 30_000
    [receipt] = json.loads(run(folder, "tuple", "rd", row["tuple_id"]).stdout)["receipts"]
    [artifact] = receipt["artifacts"]
    assert receipt["result"] == {key: each for key, each in row["cast"].items() if key != "result"}
    assert json.loads(run(folder, "tuple", "rd", artifact["id"]).stdout)["result"] == row["cast"]
    run(folder, "gc", "--yes", "--max-mb", "0")
    purged = json.loads(run(folder, "tuple", "rd", artifact["id"], "--json").stdout)
    assert (purged["artifact"], purged["bytes"]) == (artifact["id"], artifact["bytes"])
    assert purged["purged_at"]
    assert purged["excerpt"].startswith("{")
    again = {each["tuple_id"]: each for each in rows(run(folder, *BATCH, "--json").stdout)}
    row = again[row["tuple_id"]]
    assert (row["state"], row["artifacts"], row["cast"]) == ("done", [artifact], receipt["result"])


def test_a_cast_that_writes_too_much_is_stopped_and_says_so(folder: Path) -> None:
    command = "head -c 9000000 /dev/zero > large; sleep 0.5; nice > share"
    (folder / "writer.cantrip.yaml").write_text(
        EFFECT.replace("echo once >> effects.txt", command).replace("4000", "0").replace("effect", "writer")
    )
    (folder / "intents.jsonl").write_text('"Write it."\n')
    words = ("cast-batch", "writer.cantrip.yaml", "intents.jsonl", "--json")
    [row] = rows(run(folder, *words, "--cast-disk-mb", "4", status=1).stdout)
    assert (
        row["error"]
        == "the cast was stopped: it used more than the 4 MB that the step may write to disks (disk_quota_mb)"
    )
    assert not (folder / "share").exists()
    [row] = rows(run(folder, *words, "--cast-disk-mb", "40", "--cast-cpu-percent", "60").stdout)
    assert row["cast"]["result"] == "Done."
    assert (folder / "share").read_text() == f"{max(7, os.nice(0))}\n"
