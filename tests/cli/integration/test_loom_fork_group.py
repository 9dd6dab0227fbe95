"""`cantrip loom fork --samples` and `--worktree`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cantrip_acp import Cantrip, Circle, Loom, ScriptedCrystal
from cantrip_acp.core import exports
from cantrip_acp.training.export.selection import Source
from tests.support.command_line import recipe, run
from tests.support.git_repositories import repository, users_state

WRITER = """
crystal:
  provider: scripted
  responses:
    - {tool_calls: [{gate: write_file, args: {path: new.txt, content: "one\\n"}}]}
    - {tool_calls: [{gate: write_file, args: {path: new.txt, content: "two\\n"}}]}
    - {tool_calls: [{gate: done, args: {answer: written}}]}
circle:
  gates: [done, write_file, read_file]
  wards: [{max_turns: 5}]
loom: {files: true}
"""
READER = """
crystal:
  provider: scripted
  responses:
    - {when: "Read", tool_calls: [{gate: read_file, args: {path: new.txt}}, {gate: done, args: {answer: read}}]}
    - {when: "Say", content: nothing}
circle:
  gates: [done, read_file]
  wards: [{max_turns: 5}]
"""


@pytest.fixture
def where(tmp_path: Path) -> Path:
    return repository(tmp_path / "project")


def cast(tmp_path: Path, where: Path) -> tuple[Path, str]:
    loom = tmp_path / "x.loom.jsonl"
    done = run("cast", recipe(tmp_path, WRITER), "Write.", "--loom", loom, "--cwd", where, cwd=tmp_path)
    assert done.status == 0, done.err
    with Loom.open(loom, readonly=True) as held:
        return loom, next(t.id for t in held.turns() if t.role == "crystal")


def test_a_fork_in_a_worktree(tmp_path: Path, where: Path) -> None:
    loom, first = cast(tmp_path, where)
    before = users_state(where)
    reader, state = recipe(tmp_path, READER), tmp_path / "state"
    options = ["-r", reader, "--cwd", where, "--state-dir", state, "--worktree"]
    done = run("loom", "fork", loom, first, "Read it.", *options, cwd=tmp_path)
    assert done.status == 0, done.err
    assert "there were no variables to restore" in done.out
    assert "missing  files that git ignores" in done.out
    (folder,) = (state / "worktrees").iterdir()
    assert f"worktree {folder}" in done.out
    assert (folder / "new.txt").read_text() == "one\n"
    side = tmp_path / "side"
    done = run("loom", "fork", loom, first, "Read it.", *options[:-1], f"--worktree={side}", "--json", cwd=tmp_path)
    assert done.status == 0, done.err
    assert (side / "new.txt").read_text() == "one\n"
    assert users_state(where) == before
    taken = run("loom", "fork", loom, first, "Read it.", *options[:-1], "--worktree", side, cwd=tmp_path)
    assert taken.status == 1
    assert "not empty" in taken.err


def test_a_group_of_forks(tmp_path: Path, where: Path) -> None:
    loom, first = cast(tmp_path, where)
    reader, sides = recipe(tmp_path, READER), tmp_path / "sides"
    options = ["-r", reader, "--cwd", where, "--samples", "3", "--concurrency", "2"]
    done = run("loom", "fork", loom, first, "Read it.", *options, "--worktree", sides, "--json", cwd=tmp_path)
    assert done.status == 0, done.err
    *forks, group = done.lines
    assert sorted(fork["number"] for fork in forks) == [0, 1, 2]
    assert {fork["worktree"] for fork in forks} == {str(sides / number) for number in "123"}
    assert {fork["group"] for fork in forks} == {group["group"]}
    assert set(group["forks"]) == {fork["entity_id"] for fork in forks}
    with Loom.open(loom, readonly=True) as held:
        records = [held.fork_of(entity) for entity in group["forks"]]
        assert {record.group for record in records if record} == {group["group"]}
    text = run("loom", "fork", loom, first, "Say.", *options, cwd=tmp_path)
    assert text.status == 0, text.err
    assert "3 forks of" in text.out
    assert "3 of 3 done" in text.out
    assert text.out.count("nothing") == 3


def test_a_group_in_which_casts_fail(tmp_path: Path, where: Path) -> None:
    loom, first = cast(tmp_path, where)
    options = ["-r", recipe(tmp_path, READER), "--cwd", where, "--samples", "2"]
    done = run("loom", "fork", loom, first, "Other.", *options, cwd=tmp_path)
    assert done.status == 1
    assert done.out.count("the script has run out") == 2
    assert "0 of 2 done" in done.out
    wrong = run("loom", "fork", loom, first, "Other.", *options[:-1], "0", cwd=tmp_path)
    assert wrong.status == 2


SUMS = """
crystal:
  provider: scripted
  responses:
    - {tool_calls: [{gate: done, args: {answer: '391'}}]}
    - {tool_calls: [{gate: done, args: {answer: '381'}}]}
    - {content: I do not know.}
circle:
  medium: conversation
  gates: [done]
  wards: [{max_turns: 2}]
  score: {python: score.py, at: cast}
"""
INTENT = "What is 17 * 23?"


def test_a_fork_with_another_intent_is_in_a_group_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "score.py").write_text("def score(thread, reference):\n    return float(thread.result == reference)\n")
    file, loom = recipe(tmp_path, SUMS), tmp_path / "group.loom.jsonl"
    (tmp_path / "asked.jsonl").write_text(json.dumps({"intent": INTENT, "reference": "391"}))
    asked = ("cast-batch", file, tmp_path / "asked.jsonl", "--samples", "3", "--concurrency", "1", "--loom", loom)
    assert run(*asked, cwd=tmp_path).status == 0
    with Loom.open(loom, readonly=True) as held:
        unsure, call = held.leaves()[-1], next(t.id for t in held.turns() if t.role == "call")
    options = ("--recipe", file, "--samples", "2", "--concurrency", "1")
    assert run("loom", "fork", loom, "", "Are you sure?", *options, "--reference", "391", cwd=tmp_path).status == 0
    groups = json.loads(run("loom", "rank", loom, "--alike", "--json", cwd=tmp_path).out)["groups"]
    assert [group["intent"] for group in groups] == [INTENT, "Are you sure?"]
    assert {thread["intent"] for thread in groups[0]["threads"]} == {INTENT}
    assert [(t["reward"], t["outcome"]) for t in groups[0]["threads"]] == [(1, "done"), (0, "done"), (0, "text")]
    assert [t["reward"] for t in groups[1]["threads"]] == [1, 1]

    def exported(form: str) -> list[dict[str, Any]]:
        done = run("loom", "export", loom, "--format", form, "-o", tmp_path / form, cwd=tmp_path)
        assert done.status == 0, done.err
        return [json.loads(line) for line in (tmp_path / form).read_text().splitlines()]

    pairs = exported("trl-preference")
    assert [(pair["chosen"][0]["tool_calls"][0]["function"]["arguments"], pair["rejected"][-1]) for pair in pairs][
        1:
    ] == [({"answer": "391"}, {"role": "assistant", "content": "I do not know."})]
    for form in ("trl-kto", "trl-sft"):
        found = exported(form)
        assert len(found) == 5
        # The turn that the forks share has the credit of its own cast, and is context in their rows.
        (own,) = [row for row in found if row["completion"][0]["content"] == "I do not know."]
        assert (own["cantrip"]["thread"], own["cantrip"]["reward"], len(own["completion"])) == (unsure, 0, 1)
        assert own.get("label", False) is False
        assert [len(row["completion"]) for row in found] == [1] * 5

    # A fork with the intent of the cast beside it has its reference too.
    assert run("loom", "fork", loom, call, INTENT, "--recipe", file, cwd=tmp_path).status == 0
    with Loom.open(loom, readonly=True) as held:
        assert held.reward(held.leaves()[-1]) == 1
        assert held.cast_starts()[held.turn(held.leaves()[-1]).cast_id].reference == "391"


@pytest.mark.anyio
async def test_a_label_is_not_for_what_came_before_the_fork() -> None:
    loom = Loom.memory()
    crystal = ScriptedCrystal([{"content": "first"}, {"content": "second"}, {"content": "third"}])
    cantrip = Cantrip(crystal, circle=Circle(gates=["done"], wards=[{"max_turns": 2}]), loom=loom)
    await cantrip.cast("Begin.")
    begun = loom.leaves()[-1]
    for reward in (0.0, 1.0):
        async with await cantrip.fork(begun) as entity:
            await entity.cast("Go on.")
        loom.annotate_reward(loom.leaves()[-1], reward)
    rows = list(exports.find("trl-kto").rows(Source(loom)))
    assert [(row["label"], [m["content"] for m in row["completion"]]) for row in rows] == [
        (False, ["second"]),
        (True, ["third"]),
    ]


def test_a_fork_that_failed_is_in_the_tree_and_below_the_ranking(tmp_path: Path) -> None:
    good, loom = (
        recipe(tmp_path, SUMS.replace("  score: {python: score.py, at: cast}\n", "")),
        tmp_path / "x.loom.jsonl",
    )
    bad = recipe(tmp_path, READER.replace("gates: [done, read_file]", "gates: [done]"), "bad.cantrip.yaml")
    assert run("cast", good, INTENT, "--loom", loom, cwd=tmp_path).status == 0
    with Loom.open(loom, readonly=True) as held:
        origin = held.leaves()[-1]
    options = ("--samples", "2", "--concurrency", "1")
    assert run("loom", "fork", loom, origin, "Again.", "-r", good, *options, cwd=tmp_path).status == 0
    assert run("loom", "fork", loom, origin, "Fail.", "-r", bad, cwd=tmp_path).status == 1
    drawn = run("loom", "tree", loom, cwd=tmp_path).out.splitlines()
    assert [("fork" in line, "error" in line) for line in drawn[-3:]] == [(True, False), (True, False), (True, True)]
    assert "the script" in drawn[-1]
    for command in ("tree", "rank", "compare"):
        (failed,) = json.loads(run("loom", command, loom, "--json", cwd=tmp_path).out)["failed_forks"]
        assert (failed["from_turn"], failed["reason"]) == (origin, "error")
        assert failed["entity_id"] in drawn[-1]
    ranked = run("loom", "rank", loom, cwd=tmp_path).out
    assert f"fork {failed['entity_id']} of {origin}: error" in ranked


def test_rank_and_compare_take_the_newest_loom_without_a_name(tmp_path: Path) -> None:
    file, state = recipe(tmp_path, SUMS.replace("  score: {python: score.py, at: cast}\n", "")), tmp_path / "state"
    for intent in (INTENT, INTENT):
        loom = state / "looms" / "a.loom.jsonl"
        assert run("cast", file, intent, "--loom", loom, "--state-dir", state, cwd=tmp_path).status == 0
    for name in ((), ("",)):
        for command in ("rank", "compare"):
            found = run("loom", command, *name, "--state-dir", state, "--json", cwd=tmp_path)
            assert found.status == 0, found.err
            assert json.loads(found.out)["groups"][0]["intent"] == INTENT
    page = run("loom", "view", "", "--state-dir", state, "--html", "page.html", cwd=tmp_path)
    assert page.out.splitlines() == [
        f"{tmp_path}/page.html  3 turns",
        f"open it in a browser: file://{tmp_path}/page.html",
    ]


def test_the_last_words_of_a_cast_have_no_tool_calls(tmp_path: Path) -> None:
    content = json.dumps(
        'I look.\n```tool_call\n{"name": "nothing", "arguments": {}\n```\nThen I go on.\n```tool_call\n{"na'
    )
    text = f"""
crystal: {{provider: scripted, responses: [{{content: {content}, repeat: true}}]}}
circle:
  medium: conversation
  gates: [done]
  wards: [{{max_turns: 1}}, {{require_done_tool: true}}]
"""
    done = run("cast", recipe(tmp_path, text), "Go.", "--json", cwd=tmp_path)
    with Loom.open(done.lines[-1]["loom"], readonly=True) as held:
        (end,) = [held.cast_end(start) for start in held.cast_starts()]
    assert end.summary.endswith("Last words: I look. Then I go on.")
