"""`cantrip loom fork|tree|reward`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cantrip_acp import Loom
from cantrip_acp.types.records import ForkRecord, RewardRecord
from tests.support.command_line import recipe, run

COUNTER = """
crystal:
  provider: scripted
  responses:
    - {content: first, tool_calls: [{gate: echo, args: {text: one}}]}
    - {tool_calls: [{gate: done, args: {answer: original}}]}
circle:
  gates: [done, echo]
  wards: [{max_turns: 5}]
"""
OTHER = COUNTER.replace("original", "another").replace("content: first", "content: second")


@pytest.fixture
def loom(tmp_path: Path) -> Path:
    file = tmp_path / "x.loom.jsonl"
    assert run("cast", recipe(tmp_path, COUNTER), "Count.", "--loom", file, cwd=tmp_path).status == 0
    return file


def first_turn(loom: Path) -> str:
    with Loom.open(loom, readonly=True) as held:
        return next(t.id for t in held.turns() if t.role == "crystal")


def test_a_fork_goes_on_from_a_turn(tmp_path: Path, loom: Path) -> None:
    origin = first_turn(loom)
    other = recipe(tmp_path, OTHER)
    done = run("loom", "fork", loom, origin[:-2], "Go on.", "--recipe", other, cwd=tmp_path)
    assert done.status == 0, done.err
    assert f"fork of {origin}" in done.out
    assert "● another" in done.out
    with Loom.open(loom, readonly=True) as held:
        assert [t.result for t in held.threads()] == ["original", "another"]
        assert [r.from_turn for r in held.records() if isinstance(r, ForkRecord)] == [origin]
    tree = run("loom", "tree", loom, cwd=tmp_path)
    assert tree.status == 0, tree.err
    lines = tree.out.splitlines()
    assert lines[0].startswith("call ")
    assert lines[1].startswith(origin)
    assert [line[:3] for line in lines[2:4]] == ["├─ ", "└─ "]
    assert lines[-1].endswith("done · done")


def test_a_fork_of_the_last_turn_is_a_branch_in_the_tree(tmp_path: Path, loom: Path) -> None:
    with Loom.open(loom, readonly=True) as held:
        end = held.leaves()[-1]
    assert run("loom", "fork", loom, end, "Go on.", "-r", recipe(tmp_path, OTHER), cwd=tmp_path).status == 0
    lines = run("loom", "tree", loom, cwd=tmp_path).out.splitlines()
    at = next(n for n, line in enumerate(lines) if line.startswith(end))
    assert lines[at + 1].startswith("└─ ")
    assert "fork" in lines[at + 1]


def test_a_fork_as_json_lines(tmp_path: Path, loom: Path) -> None:
    done = run("loom", "fork", loom, "", "Go on.", "-r", recipe(tmp_path, OTHER), "--json", cwd=tmp_path)
    assert done.status == 0, done.err
    assert done.lines[-1]["event"] == "result"
    assert done.lines[-1]["result"] == "another"


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["t_nowhere", "x", "-r", "./r.cantrip.yaml"], 2, "no turn's id begins with 't_nowhere'"),
        (["", " ", "-r", "./r.cantrip.yaml"], 2, "intent is required"),
        (["", "x"], 2, "--recipe"),
        (["", "x", "-r", "./r.cantrip.yaml", "--state", "magic"], 2, "--state"),
    ],
)
def test_what_cannot_be_forked(tmp_path: Path, loom: Path, arguments: list[str], status: int, says: str) -> None:
    before = loom.read_bytes()
    done = run("loom", "fork", loom, *arguments, cwd=tmp_path)
    assert done.status == status
    assert says in done.err
    assert loom.read_bytes() == before


def test_a_reward_is_kept_with_who_and_when(tmp_path: Path, loom: Path) -> None:
    origin = first_turn(loom)
    for given, note in (("0.25", "slow"), ("1", "right after all")):
        done = run("loom", "reward", loom, origin, given, "--note", note, "--by", "ann", cwd=tmp_path)
        assert done.status == 0, done.err
    with Loom.open(loom, readonly=True) as held:
        assert held.turn(origin).reward == 1.0
        kept = [r for r in held.records() if isinstance(r, RewardRecord)]
        assert [(r.reward, r.by, r.note) for r in kept] == [(0.25, "ann", "slow"), (1.0, "ann", "right after all")]
        assert all(r.timestamp for r in kept)
    assert "reward 1" in run("loom", "tree", loom, cwd=tmp_path).out
    thread = json.loads(run("loom", "thread", loom, "--json", cwd=tmp_path).out)
    assert 1.0 in [t["reward"] for t in thread["turns"]]
    wrong = run("loom", "reward", loom, origin, "nan", cwd=tmp_path)
    assert wrong.status == 2
    assert "a reward is a number" in wrong.err


def test_a_replay_tells_what_is_the_same_and_what_is_not(tmp_path: Path) -> None:
    loom = tmp_path / "y.loom.jsonl"
    shell = recipe(
        tmp_path,
        """
crystal: {provider: scripted, responses: [{bash: "cat a.txt; pwd"}, {bash: "cantrip_done ok"}]}
circle: {medium: bash, gates: [done], wards: [{max_turns: 5}]}
""",
    )
    (tmp_path / "a.txt").write_text("old\n")
    assert run("cast", shell, "Look.", "--loom", loom, cwd=tmp_path).status == 0
    before = loom.read_bytes()
    same = run("loom", "replay", loom, "-r", shell, cwd=tmp_path)
    assert (same.status, same.out) == (0, "2 turns, all the same\n"), same.err
    (tmp_path / "a.txt").write_text("new\n")
    other = run("loom", "replay", loom, "-r", shell, "--json", cwd=tmp_path)
    assert other.status == 1
    told = json.loads(other.out)
    assert told["divergence"].startswith("turn 1 ")
    assert "it printed 'new" in told["divergence"]
    assert loom.read_bytes() == before


def test_a_fork_resumes_without_an_intent(tmp_path: Path, loom: Path) -> None:
    origin = first_turn(loom)
    other = recipe(tmp_path, OTHER)
    done = run("loom", "fork", loom, origin, "--resume", "-r", other, cwd=tmp_path)
    assert done.status == 0, done.err
    assert "● another" in done.out
    group = run("loom", "fork", loom, origin, "--resume", "--samples", "2", "-r", other, "--json", cwd=tmp_path)
    assert group.status == 0, group.err
    with Loom.open(loom, readonly=True) as held:
        starts = [start for start, _ in held.casts()]
        assert [start.intent for start in starts] == ["Count."] * 4
        assert {start.resumes for start in starts[1:]} == {starts[0].id}
    rows = run("loom", "export", loom, "-f", "trl-sft", cwd=tmp_path)
    for line in rows.out.splitlines():
        assert [m["content"] for m in json.loads(line)["messages"] if m["role"] == "user"] == ["Count."]
    for arguments, says in (
        ([origin, "More.", "--resume"], "cannot be used together"),
        ([origin, "More.", "--cast", "c_x"], "--cast needs --resume"),
        ([origin], "or use --resume"),
        ([origin, "--resume", "--cast", "c_x"], "cast 'c_x' does not contain turn"),
        (["", "--resume"], "there is nothing to continue"),
    ):
        refused = run("loom", "fork", loom, *arguments, "-r", other, cwd=tmp_path)
        assert (refused.status, says in refused.err) == (2, True), refused.err
