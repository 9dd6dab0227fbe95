"""`cantrip loom list|diff|compare|rank|stats|tree|reward`: what they show, on whole, hostile, damaged and empty looms."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from cantrip_acp import Loom
from cantrip_acp.loom import rewards
from cantrip_acp.types.records import RewardRecord
from tests.support.command_line import recipe, run
from tests.support.loom_trees import EVIL, grow

JUDGE = """
crystal:
  provider: scripted
  responses: [{tool_calls: [{gate: done, args: {answer: ANSWER}}]}]
circle: {gates: [done], wards: [{max_turns: 2}]}
"""


@pytest.fixture
def loom(tmp_path: Path) -> Path:
    file = tmp_path / "x.loom.jsonl"
    grow(Loom.open(file)).close()
    return file


def data(*arguments: str | Path, cwd: Path) -> dict[str, Any]:
    done = run("loom", *arguments, "--json", cwd=cwd)
    assert done.status == 0, done.err
    held: dict[str, Any] = json.loads(done.out)
    return held


def leaves(*arguments: str | Path, cwd: Path) -> list[str]:
    return [thread["leaf"] for thread in data("list", *arguments, cwd=cwd)["threads"]]


def test_list(tmp_path: Path, loom: Path) -> None:
    done = run("loom", "list", loom, cwd=tmp_path)
    assert done.status == 0, done.err
    head, *rows = done.out.splitlines()
    assert head.split() == ["thread", "outcome", "turns", "tokens", "cost", "when", "model", "children", "intent"]
    assert [row.split()[0] for row in rows] == ["x1", "v2", "u3", "t3", "w1"]
    assert any(row.startswith("v2") and row.endswith("fork of t1: Fix it otherwise") for row in rows)
    assert any(row.startswith("w1") and row.endswith("child of t2: Read the log") for row in rows)
    assert leaves(loom, "--intent", "OTHERWISE", cwd=tmp_path) == ["v2"]
    assert leaves(loom, "--outcome", "done", "--sort", "turns", cwd=tmp_path) == ["t3", "w1"]
    assert leaves(loom, "--outcome", "done", "--sort", "turns", "--reverse", cwd=tmp_path) == ["w1", "t3"]
    assert leaves(loom, "--gate", "call_agent", "--text", "out", cwd=tmp_path) == ["t3"]
    assert leaves(loom, "--reward", "any", cwd=tmp_path) == []
    assert leaves(loom, "--since", "2026-03-04T05:20Z", "--until", "2026-03-04T05:25Z", cwd=tmp_path) == ["v2"]
    told = data("list", loom, "--limit", "2", cwd=tmp_path)
    assert [t["leaf"] for t in told["threads"]] == ["x1", "v2"]
    assert told["more"] is True
    assert told["problems"] == []
    none = run("loom", "list", loom, "--model", "gpt", cwd=tmp_path)
    assert (none.status, none.out) == (0, "no thread fits the filters\n")
    for bad in (("--reward", "good"), ("--since", "then"), ("--sort", "colour"), ("--limit", "0")):
        assert run("loom", "list", loom, *bad, cwd=tmp_path).status == 2


def test_what_lacks_a_figure_is_last_either_way(tmp_path: Path, loom: Path) -> None:
    with Loom.open(loom) as held:
        held.annotate_reward("u3", -1)
        held.annotate_reward("t3", 1)
    for reverse, first in ((), ["t3", "u3"]), (("--reverse",), ["u3", "t3"]):
        assert leaves(loom, "--sort", "reward", *reverse, cwd=tmp_path)[:2] == first


def test_all_looms_of_the_state_folder(tmp_path: Path, loom: Path) -> None:
    state = tmp_path / "state"
    empty = run("loom", "list", "--state-dir", state, cwd=tmp_path)
    assert (empty.status, empty.out.startswith("no thread yet")) == (0, True)
    assert data("list", "--state-dir", state, cwd=tmp_path)["threads"] == []
    (state / "looms").mkdir(parents=True)
    for name in ("one", "two"):
        (state / "looms" / f"{name}.loom.jsonl").write_bytes(loom.read_bytes())
    (state / "looms" / "bad.loom.jsonl").write_text("not a loom\n")
    done = run("loom", "list", "--state-dir", state, "--outcome", "text", cwd=tmp_path)
    assert done.status == 0, done.err
    assert {name for name in ("one", "two", "bad") if re.search(rf"\b{name} +Other$", done.out, re.M)} == {"one", "two"}
    assert "bad.loom.jsonl: this is not a loom" in done.err
    told = data("list", "--state-dir", state, "--outcome", "text", cwd=tmp_path)
    assert len(told["threads"]) == 2
    assert "this is not a loom" in str(told["problems"])
    counted = data("stats", "--state-dir", state, cwd=tmp_path)
    assert (counted["looms"], counted["turns"]) == (2, 16)
    # By name it is what was asked for, and an error.
    assert run("loom", "list", state / "looms" / "bad.loom.jsonl", cwd=tmp_path).status == 2
    assert run("loom", "list", "nobody", "--state-dir", state, cwd=tmp_path).status == 2


def test_diff(tmp_path: Path, loom: Path) -> None:
    done = run("loom", "diff", loom, "t3", "u3", cwd=tmp_path)
    assert done.status == 0, done.err
    assert "1 turn in common; they separate at t1" in done.out
    assert "turn 1 · t2  u2" in done.out
    assert "+ls" in done.out
    assert "+max_turns" in done.out
    told = data("diff", loom, "t3", "u3", cwd=tmp_path)
    assert told["parted_at"] == "t1"
    assert [pair["same"] for pair in told["turns"]] == [False, False]
    # The two that were written to last.
    # Without names: of the newest fork, the first and the newest; with rewards, the worst and the best.
    assert [data("diff", loom, cwd=tmp_path)[side]["leaf"] for side in ("left", "right")] == ["t3", "v2"]
    assert "of the 3 threads that separate at t1" in run("loom", "diff", loom, cwd=tmp_path).out
    assert data("diff", loom, "u3", cwd=tmp_path)["right"]["leaf"] == "v2"
    for turn, value in (("t3", "0.2"), ("u3", "0.9"), ("v2", "0.5")):
        assert run("loom", "reward", loom, turn, value, cwd=tmp_path).status == 0
    assert [data("diff", loom, cwd=tmp_path)[side]["leaf"] for side in ("left", "right")] == ["t3", "u3"]
    assert data("diff", loom, "v2", cwd=tmp_path)["right"]["leaf"] == "u3"
    (tmp_path / "s" / "looms").mkdir(parents=True)
    (tmp_path / "s" / "looms" / "newest.loom.jsonl").write_bytes(loom.read_bytes())
    assert data("diff", "--state-dir", str(tmp_path / "s"), cwd=tmp_path)["right"]["leaf"] == "u3"
    assert run("loom", "diff", loom, "t3", "nobody", cwd=tmp_path).status == 2


def test_the_threads_of_two_looms_are_compared(tmp_path: Path, loom: Path) -> None:
    # A fork of a session has a loom of its own that begins with a copy of the same turns.
    fork = tmp_path / "fork.loom.jsonl"
    lines = loom.read_text().splitlines(keepends=True)
    with Loom.open(loom, readonly=True) as held:
        common, own = held.path("t3"), held.path("u3")
    gone = [turn for turn in own if turn not in common]
    fork.write_text("".join(line for line in lines if not any(f'"id":"{turn}"' in line for turn in common[2:])))
    loom.write_text("".join(line for line in lines if not any(f'"id":"{turn}"' in line for turn in gone)))
    told = data("diff", loom, "t3", "u3", "--with", fork, cwd=tmp_path)
    assert (told["left"]["leaf"], told["right"]["leaf"], told["parted_at"]) == ("t3", "u3", "t1")
    assert [pair["same"] for pair in told["turns"]] == [False, False]
    done = run("loom", "diff", loom, "t3", "u3", "--with", fork, cwd=tmp_path)
    assert (done.status, "1 turn in common; they separate at t1" in done.out, "+ls" in done.out) == (0, True, True)
    # A turn is looked for in its own loom.
    assert run("loom", "diff", loom, "u3", "t3", "--with", fork, cwd=tmp_path).status == 2
    # Without names, what was written last; of looms that share nothing, everything differs.
    other = tmp_path / "other.loom.jsonl"
    Path(tmp_path, "judge.cantrip.yaml").write_text(JUDGE.replace("ANSWER", "yes"))
    assert run("cast", tmp_path / "judge.cantrip.yaml", "Is it?", "--loom", other, cwd=tmp_path).status == 0
    told = data("diff", loom, "--with", other, cwd=tmp_path)
    assert (told["shared"], told["parted_at"], told["right"]["intent"]) == ([], None, "Is it?")
    assert run("loom", "diff", loom, "--with", tmp_path / "none.loom.jsonl", cwd=tmp_path).status == 2


def test_compare_and_rank(tmp_path: Path, loom: Path) -> None:
    done = run("loom", "compare", loom, cwd=tmp_path)
    assert done.status == 0, done.err
    assert done.out.startswith("t1 · compared by implicit\n")
    assert [line.split()[:2] for line in done.out.splitlines()[2:]] == [["1", "t3"], ["3", "u3"], ["2", "v2"]]
    (group,) = data("compare", loom, "t3", cwd=tmp_path)["groups"]
    assert (group["turn"], group["by"]) == ("t1", "implicit")
    first = group["threads"][0]
    assert (first["turns"], first["tokens"], first["gates"]) == (2, 220, {"call_agent": 1, "done": 1, "search": 1})
    for turn_id, reward in (("t3", "1"), ("u3", "0.5")):
        assert run("loom", "reward", loom, turn_id, reward, cwd=tmp_path).status == 0
    ranked = data("rank", loom, "t1", "--method", "rank", cwd=tmp_path)
    assert ranked["written"] == 0
    found = ranked["groups"][0]["threads"]
    assert [(t["leaf"], t["rank"], t["relative"]) for t in found] == [
        ("t3", 1, 1.0),
        ("u3", 2, -1.0),
        ("v2", None, None),
    ]
    written = run("loom", "rank", loom, "--write", cwd=tmp_path)
    assert (written.status, written.out.splitlines()[-1]) == (0, "2 relative rewards written")
    with Loom.open(loom, readonly=True) as held:
        assert held.turn("t3").reward == 1.0
        assert rewards.relative_of(held, "u3") == pytest.approx(-0.25 / (0.125**0.5 + 1e-4))
    assert leaves(loom, "--reward", "1", cwd=tmp_path) == ["t3"]
    tree = run("loom", "tree", loom, cwd=tmp_path)
    assert tree.status == 0, tree.err
    assert re.search(r"t3 done · done · reward 1 · relative 0\.7069", tree.out)
    assert "u2 fork  ls" in tree.out
    assert "v2 fork by snapshot" in tree.out
    assert "child 'Read the log'  call call4" in tree.out


def test_no_group(tmp_path: Path, loom: Path) -> None:
    done = run("loom", "compare", loom, "x1", cwd=tmp_path)
    assert done.status == 0
    assert done.out.startswith("no threads separate there")
    assert data("rank", loom, "x1", cwd=tmp_path)["groups"] == []
    run("loom", "reward", loom, "t3", "1", cwd=tmp_path)
    alone = run("loom", "rank", loom, "--write", cwd=tmp_path)
    assert alone.status == 0
    assert "0 relative rewards written" in alone.out
    assert "not ranked" in alone.err


def test_stats(tmp_path: Path, loom: Path) -> None:
    done = run("loom", "stats", loom, loom, cwd=tmp_path)
    assert done.status == 0, done.err
    for words in (
        "looms     2",
        "casts     10 · 4 done",
        "turns     16 · 4 forks",
        "p95 500 ms",
        "search          4       2  50.0%",
    ):
        assert words in done.out
    assert data("stats", loom, cwd=tmp_path)["turns"] == 8


def test_rewards_are_given_computed_and_shown(tmp_path: Path, loom: Path) -> None:
    assert (
        run("loom", "reward", loom, "t3", "0.5", "--note", "so so", "--by", "ann", cwd=tmp_path).out
        == "t3  reward 0.5\n"
    )
    assert run("loom", "reward", loom, "t3", "--", "-2", cwd=tmp_path).status == 0
    computed = run("loom", "reward", loom, "t3", "--implicit", cwd=tmp_path)
    assert computed.out.splitlines()[-1] == "2 implicit rewards written"
    shown = run("loom", "reward", loom, "t3", cwd=tmp_path)
    assert shown.out.splitlines()[1].split()[:4] == ["t3", "0.5", "explicit", "ann"]
    told = data("reward", loom, cwd=tmp_path)["rewards"]
    assert [(r["turn_id"], r["reward"], r["kind"]) for r in told] == [
        ("t3", 0.5, "explicit"),
        ("t3", -2.0, "explicit"),
        ("t1", 1.0, "implicit"),
        ("t2", 0.5, "implicit"),
    ]
    assert all(r["timestamp"] for r in told)
    for bad in (
        ("t3", "nan"),
        ("t3", "inf"),
        ("t3", "1", "--implicit"),
        ("t3", "--range", "0..1"),
        ("t3", "--note", "x"),
    ):
        assert run("loom", "reward", loom, *bad, cwd=tmp_path).status == 2
    assert run("loom", "reward", loom, "x1", cwd=tmp_path).out == "no reward was given to x1\n"


def test_a_verifier_recipe(tmp_path: Path, loom: Path) -> None:
    state = tmp_path / "state"
    good = recipe(tmp_path, JUDGE.replace("ANSWER", '\'{"reward": -0.5, "note": "slow"}\''), "good.cantrip.yaml")
    told = run("loom", "reward", loom, "t3", "--verifier", good, "--range", "-1..1", "--state-dir", state, cwd=tmp_path)
    assert (told.status, told.out) == (0, "t3  reward -0.5  by verifier:good (scripted)\nslow\n"), told.err
    beyond = run("loom", "reward", loom, "t3", "--verifier", good, "--state-dir", state, cwd=tmp_path)
    assert beyond.status == 1
    assert "the verifier's reward is not from 0 to 1" in beyond.err
    with Loom.open(loom, readonly=True) as held:
        kept = [r for r in held.records() if isinstance(r, RewardRecord)]
        assert (kept[-1].reward, kept[-1].kind, kept[-1].by) == (-0.5, "verifier", "verifier:good (scripted)")
        assert held.turn("t3").reward == -0.5
    # What it said stands in looms of its own.
    assert len(list((state / "looms").glob("*.loom.jsonl"))) == 2


@pytest.mark.parametrize("command", ["list", "compare", "diff", "stats", "tree", "show"])
def test_hostile_words_do_not_reach_the_terminal(tmp_path: Path, command: str) -> None:
    file = tmp_path / "evil.loom.jsonl"
    with Loom.open(file) as held:
        grow(held, EVIL)
        held.annotate_reward("t3", 1, by=EVIL, note=EVIL)
    for colour in (False, True):
        done = run("loom", command, file, cwd=tmp_path, **({"FORCE_COLOR": "1"} if colour else {}))  # type: ignore[arg-type]
        assert done.status == 0, done.err
        assert "owned" not in done.out + done.err
        assert not set("\x07\x9b\u202e") & set(done.out + done.err)
        # What is left of escapes are our own colours.
        assert not re.search(r"\x1b(?!\[[\d;]*m)", done.out)
        if not colour:
            assert "\x1b" not in done.out
    if command == "list":
        shown = run("loom", "reward", file, cwd=tmp_path)
        assert "owned" not in shown.out
        assert "\x1b" not in shown.out


@pytest.mark.parametrize("command", ["list", "compare", "rank", "stats", "diff"])
def test_damaged_and_empty_looms(tmp_path: Path, loom: Path, command: str) -> None:
    lines = loom.read_bytes().splitlines()
    loom.write_bytes(b"\n".join([*lines[:6], b"{torn", *lines[7:]]) + b'\n{"type":"tu')
    done = run("loom", command, loom, cwd=tmp_path)
    assert done.status == 0, done.err
    if command in ("list", "stats"):
        assert "not a loom record" in done.err
    with Loom.open(tmp_path / "empty.loom.jsonl") as held:
        held.begin("c", {}, {}, "e")
    empty = run("loom", command, tmp_path / "empty.loom.jsonl", cwd=tmp_path)
    assert empty.status == (2 if command == "diff" else 0), empty.err
