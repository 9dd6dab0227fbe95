"""`cantrip cast-batch` and the files of the workspace: what has changed is new work, also where casts write files themselves."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from cantrip_acp import Cantrip, DefinitionError, Loom, ScriptedCrystal
from cantrip_acp.recipes import load as load_recipe
from cantrip_acp.tuplespace.batch import recipe_digest
from cantrip_acp.tuplespace.stores import open_store
from tests.cli.integration.test_cast_batch import environment, postgres, rows, run, start, threads
from tests.support import openai_replies, processes
from tests.support.loom_stores import DATABASES
from tests.support.processes import CANTRIP
from tests.support.provider_server import Reply, Request, Wire
from tests.support.waiting import wait_for

__all__ = ["postgres"]

READER = """\
name: reader
crystal:
  provider: scripted
  responses:
    - {when: broken, error: {message: "no connection, or it was lost: refused"}, repeat: true}
    - {tool_calls: [{gate: done, args: {answer: Read.}}], usage: {prompt_tokens: 1, completion_tokens: 1, cost: 0.001},
       repeat: true}
circle: {medium: conversation, gates: [done, read_file], wards: [{max_turns: 3}]}
"""
WRITER = """\
name: writer
crystal: {{provider: local, model: m, base_url: "{url}/v1"}}
circle: {{medium: bash, gates: [done], wards: [{{max_turns: 5}}, {{bash_writable_paths: ["."]}}]}}
"""
BATCH = ("cast-batch", "r.cantrip.yaml", "intents.jsonl")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "work"
    made.mkdir()
    (made / "r.cantrip.yaml").write_text(READER)
    (made / "intents.jsonl").write_text('"one"\n"two"\n')
    (made / "code.py").write_text("1")
    return made


def earlier(done: subprocess.CompletedProcess[str]) -> int:
    """How many casts were done in an earlier run."""
    found = re.search(r"^(\d+) ended in an earlier run", done.stderr, re.MULTILINE)
    return int(found[1]) if found else 0


class Model:
    """A model whose answers write files: it appends the intent to ``log.txt``, and then it is done. It can be held up."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.go.set()
        self.waits = threading.Semaphore(0)
        self.wire = Wire(self._answer)

    def _answer(self, request: Request) -> Reply:
        if not request.path.endswith("/chat/completions"):
            return Reply(404)
        body = json.loads(request.body)
        (intent,) = [each["content"] for each in body["messages"] if each["role"] == "user"][:1]
        if not any(each["role"] == "tool" for each in body["messages"]):
            command = {"command": f"echo {intent} >> log.txt"}
            return openai_replies.chat_stream(openai_replies.call_delta(0, "c1", "bash", json.dumps(command)))
        if "slow" in intent and not self.go.is_set():
            self.waits.release()
            self.go.wait(60)
        return openai_replies.chat_stream(openai_replies.call_delta(0, "c2", "done", json.dumps({"answer": intent})))


def test_a_changed_file_is_new_work_and_the_commands_own_files_are_not(folder: Path) -> None:
    words = (*BATCH, "--out", "out.jsonl", "--report", "page.html", "--space", "space.db", "--loom", "own.loom.db")
    (folder / ".gitignore").write_text("*.log\n")
    assert earlier(run(folder, *words)) == 0
    assert {"out.jsonl", "page.html", "space.db", "own.loom.db"} <= {each.name for each in folder.iterdir()}
    (folder / "x.log").write_text("ignored")
    (folder / ".catalog").mkdir()
    (folder / ".catalog/tuples.jsonl").write_text("")
    (folder / "intents.jsonl").write_text('"one"\n"two"\n"three"\n')
    with open(folder / "shell.txt", "w") as shell:
        again = processes.run(
            [*CANTRIP, *words, "--json"],
            cwd=folder,
            stdout=shell,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(folder),
        )
    assert earlier(again) == 2, again.stderr
    (folder / "shell.txt").unlink()
    (folder / "code.py").write_text("2")
    changed = run(folder, *words)
    assert earlier(changed) == 0
    assert "the files have changed since this batch ended, so it is new work" in changed.stderr
    (folder / "code.py").write_text("1")
    assert earlier(run(folder, *words)) == 3, "these files had their casts"
    os.chmod(folder / "code.py", 0o755)
    assert earlier(run(folder, *words)) == 0


def test_results_of_an_earlier_command_are_no_new_work(folder: Path) -> None:
    """The next command may write its results elsewhere, or nowhere."""
    run(folder, *BATCH, "--out", "results.jsonl", "--report", "page.html")
    assert (folder / "results.jsonl").stat().st_size
    assert earlier(run(folder, *BATCH)) == 2
    assert earlier(run(folder, *BATCH, "--out", "others.jsonl")) == 2
    assert earlier(run(folder, *BATCH)) == 2
    (folder / "other.py").write_text("1")
    assert earlier(run(folder, *BATCH)) == 0


@pytest.mark.parametrize(
    "recipe",
    [
        READER.replace("[done, read_file]", "[done, echo]"),
        READER + "inputs: []\n",
        READER + "inputs: ['src/**']\n",
    ],
)
def test_files_that_cannot_matter_or_are_not_declared_do_not_count(folder: Path, recipe: str) -> None:
    (folder / "r.cantrip.yaml").write_text(recipe)
    run(folder, *BATCH)
    (folder / "code.py").write_text("2")
    assert earlier(run(folder, *BATCH)) == 2


def test_git_or_not_the_same_files_count(folder: Path) -> None:
    (folder / ".gitignore").write_text("build/\n")
    (folder / "build").mkdir()
    (folder / "build/kept.txt").write_text("1")
    run(folder, *BATCH)
    for words in (["init", "-q"], ["add", "-A"], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x"]):
        subprocess.run(["git", *words], cwd=folder, check=True)
    assert earlier(run(folder, *BATCH)) == 2, "to commit changes no file"
    # What git tracks counts, although it is ignored.
    subprocess.run(["git", "add", "-f", "build/kept.txt"], cwd=folder, check=True)
    assert earlier(run(folder, *BATCH)) == 0


def test_what_casts_write_is_no_new_work_and_what_others_write_is(folder: Path) -> None:
    model = Model()
    with model.wire as wire:
        (folder / "r.cantrip.yaml").write_text(WRITER.format(url=wire.url))
        run(folder, *BATCH, "--concurrency", "1")
        assert (folder / "log.txt").read_text() == "one\ntwo\n"
        again = run(folder, *BATCH, "--json")
        assert earlier(again) == 2
        assert sorted(each["cast"]["result"] for each in rows(again.stdout)) == ["one", "two"]
        # Another file with the same intents, and one more sample of each.
        (folder / "intents.jsonl").rename(folder / "renamed.jsonl")
        assert earlier(run(folder, *BATCH[:2], "renamed.jsonl", "--samples", "2", "--concurrency", "1")) == 2
        assert (folder / "log.txt").read_text() == "one\ntwo\none\ntwo\n"
        assert earlier(run(folder, *BATCH[:2], "renamed.jsonl", "--samples", "2")) == 4
        (folder / "code.py").write_text("2")
        changed = run(folder, *BATCH[:2], "renamed.jsonl")
        assert (earlier(changed), "so it is new work" in changed.stderr) == (0, True)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_batch_whose_casts_write_goes_on(folder: Path, how: signal.Signals) -> None:
    (folder / "intents.jsonl").write_text('"one"\n"slow two"\n"three"\n')
    model = Model()
    with model.wire as wire:
        (folder / "r.cantrip.yaml").write_text(WRITER.format(url=wire.url))
        model.go.clear()
        process = start(folder, *BATCH, "--concurrency", "1")
        assert model.waits.acquire(timeout=60)
        process.send_signal(how)
        process.communicate(timeout=60)
        model.go.set()
        (folder / "intents.jsonl").write_text('"one"\n"slow two"\n"three"\n"four"\n')
        done = run(folder, *BATCH, "--concurrency", "1")
        assert earlier(done) == 1
        assert "the files have changed since this batch began" in done.stderr
        assert (folder / "log.txt").read_text() == "one\nslow two\nthree\nfour\n"
        assert earlier(run(folder, *BATCH)) == 4


def test_again_all_begins_anew_and_the_same_command_without_it_goes_on(folder: Path) -> None:
    (folder / "intents.jsonl").write_text('"one"\n"slow two"\n')
    model = Model()
    with model.wire as wire:
        (folder / "r.cantrip.yaml").write_text(WRITER.format(url=wire.url))
        for again in ((), ("--again", "all")):
            model.go.clear()
            process = start(folder, *BATCH, *again, "--concurrency", "1")
            assert model.waits.acquire(timeout=60)
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)
        model.go.set()
        assert earlier(run(folder, *BATCH)) == 1
        # What the first one left to do was given up.
        assert (folder / "log.txt").read_text() == "one\nslow two\none\nslow two\n"
        assert earlier(run(folder, *BATCH)) == 2


def test_what_failed_is_repeated_also_with_changed_files(folder: Path) -> None:
    (folder / "intents.jsonl").write_text('"one"\n"broken"\n')
    run(folder, *BATCH, "--max-retries", "0", status=1)
    (folder / "code.py").write_text("2")
    again = run(folder, *BATCH, "--max-retries", "0", "--again", "failed", "--json", status=1)
    assert earlier(again) == 1
    assert "the files have changed since this batch ended" in again.stderr
    assert [(each["intent"], each["state"]) for each in rows(again.stdout)] == [("one", "done"), ("broken", "failed")]
    # The files as they are now were never new work.
    assert earlier(run(folder, *BATCH, "--max-retries", "0", status=1)) == 2


def test_two_equal_batches_at_once_agree(folder: Path) -> None:
    (folder / "intents.jsonl").write_text("".join(f'"number {number}"\n' for number in range(8)))
    model = Model()
    with model.wire as wire:
        (folder / "r.cantrip.yaml").write_text(WRITER.format(url=wire.url))
        both = [start(folder, *BATCH, "--concurrency", "2", "--loom", f"{name}.loom.db") for name in ("a", "b")]
        for each in both:
            _, stderr = each.communicate(timeout=60)
            assert each.returncode == 0, stderr
            assert "8/8 casts" in stderr
    assert sorted((folder / "log.txt").read_text().split("\n")[:-1]) == [f"number {number}" for number in range(8)]


@pytest.mark.parametrize("kind", DATABASES)
def test_workers_end_a_batch_that_nobody_waits_for(folder: Path, kind: str, request: pytest.FixtureRequest) -> None:
    space = ["--space", "space.db"]
    if kind == "postgres":
        space = ["--space", request.getfixturevalue("postgres").new_schema()]
    model = Model()
    with model.wire as wire:
        (folder / "r.cantrip.yaml").write_text(WRITER.format(url=wire.url))
        batch = start(folder, *BATCH, "--lane", "x", *space)
        wait_for(lambda: _waiting(folder, space) == 2)
        batch.send_signal(signal.SIGINT)
        batch.communicate(timeout=60)
        run(folder, "worker", "r.cantrip.yaml", "--lane", "x", *space, "--loom", "w.loom.db", "--until-empty")
        done = run(folder, *BATCH, "--lane", "x", *space, "--json")
        assert earlier(done) == 2, done.stderr
        assert "the files have changed since this batch began" in done.stderr
        again = run(folder, *BATCH, "--lane", "x", *space)
        assert (earlier(again), "changed" in again.stderr) == (2, False)
    assert sorted((folder / "log.txt").read_text().split()) == ["one", "two"]


def _waiting(folder: Path, space: list[str]) -> int:
    found = processes.run(
        [*CANTRIP, "tuple", "status", "--json", *space],
        cwd=folder,
        capture_output=True,
        text=True,
        env=environment(folder),
    )
    lanes: dict[str, Any] = json.loads(found.stdout)["lanes"] if found.returncode == 0 else {}
    assert "batches" not in lanes, "the log of batches is no work"
    return int(lanes["x"]["waiting"]) if "x" in lanes else 0


def test_a_batch_in_a_moved_folder_finds_its_loom_its_budget_and_its_results(folder: Path) -> None:
    (folder / ".gitignore").write_text("/state/\n")
    first = run(folder, *BATCH, "--budget-usd", "1")
    moved = folder.rename(folder.with_name("moved"))
    second = run(moved, *BATCH, "--budget-usd", "1", "--samples", "2")
    assert earlier(second) == 2
    assert "$0.0040 of $1 spent" in second.stderr
    looms = [each.stderr.split("loom     ")[1].splitlines()[0] for each in (first, second)]
    assert looms[0].removeprefix(str(folder)) == looms[1].removeprefix(str(moved))
    assert len(threads(moved, looms[1])) == 4


def test_looms_and_budgets_that_earlier_versions_named_after_the_folder_are_found(folder: Path) -> None:
    (folder / ".gitignore").write_text("/state/\n")
    found = load_recipe(str(folder / "r.cantrip.yaml"), folder)
    digest, path = recipe_digest(found), folder / "intents.jsonl"
    loom = f"batch-{hashlib.sha256(f'{digest} {folder}'.encode()).hexdigest()[:12]}.loom.jsonl"
    budget = f"batch-{hashlib.sha256(f'{digest} None {path}'.encode()).hexdigest()[:12]}"
    (folder / "state/looms").mkdir(parents=True)
    Loom.open(folder / "state/looms" / loom).close()
    (folder / "state/looms" / loom).touch()
    store = open_store(str(folder / "state/tuples.db"))
    store.set_budget(budget, usd=1.0)
    store.close()
    done = run(folder, *BATCH, "--budget-usd", "2")
    assert f"looms/{loom}" in done.stderr
    store = open_store(str(folder / "state/tuples.db"))
    try:
        assert [(each.name, each.usd, each.spent_usd) for each in store.budgets()] == [(budget, 2.0, 0.002)]
    finally:
        store.close()


SAYS = """\
---
name: word-count
description: Says a word.
---
Run the script.
"""


@pytest.mark.parametrize("shared", [False, True])
def test_a_cast_of_a_batch_finds_nothing_that_another_said_or_ran(folder: Path, shared: bool) -> None:
    """`recall` searches what the user told all sessions, but neither earlier sessions nor the runs of other samples."""
    scripts = folder / ".claude/skills/count/scripts"
    scripts.mkdir(parents=True)
    (scripts.parent / "SKILL.md").write_text(SAYS)
    (scripts / "say.py").write_text("print('walrus of a program')\n")

    def answer(request: Request) -> Reply:
        if not request.path.endswith("/chat/completions"):
            return Reply(404)
        said = [each["content"] for each in json.loads(request.body)["messages"] if each["role"] == "tool"]
        calls = [("word-count.say", {}), ("recall", {"query": "walrus"})]
        if len(said) < 2:
            name, args = calls[len(said)]
            tools = [each["function"]["name"] for each in json.loads(request.body)["tools"]]
            (named,) = [each for each in tools if each.replace("_", "-").endswith(name.partition(".")[2] or name)]
            return openai_replies.chat_stream(openai_replies.call_delta(0, f"c{len(said)}", named, json.dumps(args)))
        return openai_replies.chat_stream(openai_replies.call_delta(0, "d", "done", json.dumps({"answer": said[1]})))

    with Wire(answer) as model:
        memory = "{culture: true, programs: true" + (", batches: true}" if shared else "}")
        recipe = WRITER.format(url=model.url).replace("medium: bash", "medium: conversation") + f"memory: {memory}\n"
        (folder / "r.cantrip.yaml").write_text(recipe)
        run(folder, "substrate", "remember", "The walrus of the user.")
        run(folder, "cast", "r.cantrip.yaml", "The walrus of a session.")
        (folder / "intents.jsonl").write_text('"Which one?"\n')
        done = run(folder, *BATCH, "--samples", "2", "--concurrency", "1", "--json")
    for row in rows(done.stdout):
        found = row["cast"]["result"]
        assert "walrus of the user" in found
        assert ("walrus of a session" in found, "walrus of a program" in found) == (shared, shared), found


@pytest.mark.parametrize("shared", [False, True])
async def test_casts_of_a_python_batch_do_not_read_each_other(
    folder: Path, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CANTRIP_STATE_DIR", str(folder / "state"))
    monkeypatch.chdir(folder)

    def answer(request: Request) -> Reply:
        if not request.path.endswith("/chat/completions"):
            return Reply(404)
        return openai_replies.chat_stream({"content": "The answer is 42."})

    with Wire(answer) as model:
        memory = "{culture: true, programs: true, sessions: 8" + (", batches: true}" if shared else "}")
        recipe = WRITER.format(url=model.url).replace("medium: bash", "medium: conversation") + f"memory: {memory}\n"
        (folder / "r.cantrip.yaml").write_text(recipe)
        cantrip = Cantrip.load("./r.cantrip.yaml", workspace=folder)
        for each in await cantrip.cast_batch(["What is it?"] * 2, concurrency=1):
            assert not isinstance(each, Exception), each
        await cantrip.cast("What is it?")
        await cantrip.cast("What is it?")
        texts = [each.body.decode() for each in model.requests if each.path.endswith("/chat/completions")]
    assert len(cantrip.loom.cast_starts()) == 4
    # A cast alone is a session as before: it is recorded, and the next one reads of it.
    assert ["The answer is 42." in text for text in texts] == [False, shared, shared, True]


async def test_a_python_batch_casts_again_when_its_inputs_have_changed(folder: Path) -> None:
    (folder / "r.cantrip.yaml").write_text(READER + "inputs: ['*.py']\n")
    intents = ["one", "two"]

    async def earlier_ones(folder: Path, **changes: Any) -> list[bool]:
        with Loom.open(folder / "batch.loom.jsonl") as loom:
            cantrip = Cantrip.load(folder / "r.cantrip.yaml", workspace=folder, loom=loom).replace(**changes)
            found = [(each.number, each.earlier) async for each in cantrip.cast_batch(intents, resume=True)]
            return [was_earlier for _, was_earlier in sorted(found)]

    assert await earlier_ones(folder) == [False, False]
    (folder / "notes.md").write_text("not declared")
    assert await earlier_ones(folder) == [True, True]
    (folder / "code.py").write_text("2")
    assert await earlier_ones(folder) == [False, False]
    (folder / "code.py").write_text("1")
    assert await earlier_ones(folder) == [True, True], "these files had their casts"
    assert await earlier_ones(folder, inputs=()) == [False, False]
    other = folder.with_name("other")
    shutil.copytree(folder, other)
    assert await earlier_ones(other) == [False, False], "without an id, a folder is known by its path"
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    subprocess.run(["git", "-C", str(folder), "remote", "add", "origin", "https://host/o/n"], check=True)
    assert await earlier_ones(folder) == [True, True]
    (folder / "code.py").write_text("3")
    assert await earlier_ones(folder) == [False, False]
    assert await earlier_ones(folder.rename(folder.with_name("moved"))) == [True, True]
    with pytest.raises(DefinitionError, match="the circle has none: give workspace"):
        Cantrip(ScriptedCrystal([]), gates=["echo"], max_turns=2, inputs=["src/**"])
