"""`cantrip loom fork --samples` and `--worktree`."""

from __future__ import annotations

from pathlib import Path

import pytest

from cantrip_acp import Loom
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
