"""The loom: append-only, one write a turn, crashes, locks, damage, a full disk (LOOM-1..3, 7, 9, 10)."""

from __future__ import annotations

import json
import os
import resource
import signal
from pathlib import Path
from typing import Any

import pytest

from cantrip_acp import Loom, LoomError, Turn
from cantrip_acp.types.errors import LoomAppendOnly, LoomWriteError, TurnNotFound
from cantrip_acp.types.records import RewardRecord, Utterance, new_id
from tests.support.fixtures.core import done, echo, make

pytestmark = pytest.mark.anyio


def turn(n: int, parent: str | None) -> Turn:
    return Turn(f"t{n}", parent, "c", "e", "k", sequence=n, utterance=Utterance(f"said {n} – ünï"))


def filled(path: Path, count: int = 5) -> Loom:
    loom = Loom.open(path)
    for n in range(count):
        loom.append(turn(n, f"t{n - 1}" if n else None))
    return loom


async def test_records_have_the_promised_shape(tmp_path: Path) -> None:
    path = tmp_path / "a.loom.jsonl"
    usage = {"prompt_tokens": 5, "completion_tokens": 2, "cached_tokens": 1}
    cantrip = make(echo(content="hello", thinking="hmm"), done("x"), loom=Loom.open(path), usage=usage)
    result = await cantrip.cast("the secret intent of this cast")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["type"] for line in lines] == ["loom", "cantrip", "turn", "cast", "utterance", "turn", "turn", "cast"]
    # What was said is written before anything is done about it; done alone does nothing.
    said = lines.pop(4)
    assert set(said) == {
        "type", "id", "parent_id", "cantrip_id", "entity_id", "cast_id", "sequence", "utterance", "gates", "usage", "model",
        "query", "prev", "sum",
    }  # fmt: skip
    first = lines[4]
    assert (said["id"], said["utterance"], said["gates"]) == (first["id"], first["utterance"], ["echo"])
    assert set(first) == {
        "type", "id", "parent_id", "cantrip_id", "entity_id", "cast_id", "role", "sequence", "continues", "utterance",
        "observation", "gate_calls", "metadata", "reward", "terminated", "truncated", "reason",
        "prev", "sum",
    }  # fmt: skip
    assert set(first["utterance"]) == {"content", "thinking", "tool_calls", "code"}
    assert set(first["observation"]) == {"results", "output"}
    assert first["observation"]["results"] == [
        {"gate": "echo", "args": {"text": "hi"}, "result": "hi", "is_error": False, "tool_call_id": "tc_1_1",
         "call_id": f"{first['id']}.g0"}
    ]  # fmt: skip
    meta = first["metadata"]
    assert (meta["tokens_prompt"], meta["tokens_completion"], meta["tokens_cached"]) == (5, 2, 1)
    assert meta["duration_ms"] > 0
    assert [set(line["metadata"]["query"]) for line in (lines[4], lines[5])] == [{"digest"}] * 2
    assert meta["trace_id"] == result.trace_id
    assert lines[2]["role"] == "call"
    assert [line["parent_id"] for line in (lines[2], lines[4], lines[5])] == [None, lines[2]["id"], lines[4]["id"]]
    assert (lines[5]["terminated"], lines[5]["reason"]) == (True, "done")
    assert "the secret intent" not in json.dumps(lines[4:6])
    assert (lines[6]["event"], lines[6]["result"], lines[6]["reason"]) == ("end", "x", "done")


def test_it_opens_again_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    filled(path).close()
    with Loom.open(path) as loom:
        assert [t.id for t in loom.turns()] == ["t0", "t1", "t2", "t3", "t4"]
        assert loom.turn("t3").utterance.content == "said 3 – ünï"
        loom.append(turn(5, "t1"))
        assert [[t.id for t in thread] for thread in loom.threads()] == [
            ["t0", "t1", "t2", "t3", "t4"],
            ["t0", "t1", "t5"],
        ]
        assert loom.children("t1") == ["t2", "t5"]
    assert not loom.problems


@pytest.mark.parametrize(
    ("turn_id", "reward", "said"),
    [
        ("nothing", 1.0, "no turn 'nothing'"),
        ("t0", float("nan"), "a number"),
        ("t0", "high", "a number"),
        ("t0", True, "a number"),
    ],
)
def test_a_reward_that_is_appended_is_checked_too(turn_id: str, reward: Any, said: str) -> None:
    loom = Loom.memory()
    loom.append(turn(0, None))
    with pytest.raises(LoomError, match=said):
        loom.append(RewardRecord(turn_id, reward))
    assert loom.assigned() == []
    # A scorer that failed leaves a record without a value.
    loom.append(RewardRecord("t0", None, note="it failed"))
    assert len(loom.assigned()) == 1


def test_append_only(tmp_path: Path) -> None:
    for loom in (Loom.memory(), filled(tmp_path / "a", 0)):
        loom.append(turn(0, None))
        with pytest.raises(LoomAppendOnly, match="loom is append-only"):
            loom.append(turn(0, None))
        with pytest.raises(LoomAppendOnly, match="loom is append-only"):
            loom.delete_turn("t0")
        with pytest.raises(LoomAppendOnly, match="loom is append-only"):
            del loom["t0"]
        with pytest.raises(LoomError, match="parent that is not in this loom"):
            loom.append(turn(1, "t9"))
        with pytest.raises(AttributeError):
            loom.turn("t0").reward = 1.0  # type: ignore[misc]
        with pytest.raises(TurnNotFound):
            loom.turn("t1")


def test_reward_is_a_later_record(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with filled(path, 2) as loom:
        before = path.read_bytes()
        loom.annotate_reward("t0", 0.5, by="me")
        loom.annotate_reward("t0", 1)
        assert loom.turn("t0").reward == 1.0
        assert path.read_bytes().startswith(before)
        for bad in (float("nan"), "1", True):
            with pytest.raises(LoomError, match="number"):
                loom.annotate_reward("t0", bad)  # type: ignore[arg-type]
        with pytest.raises(TurnNotFound):
            loom.annotate_reward("zz", 1)
    with Loom.open(path, readonly=True) as again:
        assert again.turn("t0").reward == 1.0
        assert again.turn("t1").reward is None


@pytest.mark.parametrize("cut", [1, 10, 200])
def test_a_torn_last_line_is_set_aside(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "a.loom.jsonl"
    filled(path).close()
    whole = path.read_bytes()
    torn = whole.splitlines()[-1][:-cut]
    path.write_bytes(whole[: -len(whole.splitlines()[-1]) - 1] + torn)
    with Loom.open(path, readonly=True) as reader:
        assert len(reader) == 4
        assert "torn" in str(reader.problems[0])
    with Loom.open(path) as loom:
        assert len(loom) == 4
        (problem,) = loom.problems
        assert problem.line == 6
        assert problem.set_aside is not None
        assert Path(problem.set_aside).read_bytes() == torn
        loom.append(turn(7, "t3"))
        list(loom.records())
        assert loom.problems == (problem,)
    with Loom.open(path) as again:
        assert not again.problems
        assert [t.id for t in again.turns()] == ["t0", "t1", "t2", "t3", "t7"]


def test_a_whole_last_line_without_newline_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "a"
    filled(path).close()
    path.write_bytes(path.read_bytes()[:-1])
    with Loom.open(path) as loom:
        loom.append(turn(9, "t4"))
    with Loom.open(path) as loom:
        assert len(loom) == 6
        assert not loom.problems


@pytest.mark.parametrize(
    "junk",
    [
        b"garbage\n",
        b"\xff\xfe\x00\n",
        b"[1,2]\n",
        b'{"type":"unknown"}\n',
        b"\n",
        b'{"type":"turn"}\n',
        b"[" * 5000 + b"\n",
    ],
)
def test_damage_in_the_middle_is_reported_and_passed_over(tmp_path: Path, junk: bytes) -> None:
    path = tmp_path / "a"
    filled(path).close()
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:3], junk, *lines[3:]]))
    with Loom.open(path) as loom:
        assert len(loom) == 5
        assert [p.line for p in loom.problems] == [4]
        loom.append(turn(9, "t4"))
        assert loom.turn("t9").id == "t9"
    assert junk in path.read_bytes()


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text('{"type":"loom","id":"x","format":99}\n')
    with pytest.raises(LoomError, match="format 99"):
        Loom.open(path)
    Path(path).unlink()
    Loom.open(path).close()
    assert not path.exists(), "a loom in which nothing was written leaves no file"


def test_what_is_no_loom(tmp_path: Path) -> None:
    with pytest.raises(LoomError, match="cannot open"):
        Loom.open(tmp_path)
    os.mkfifo(tmp_path / "fifo")
    for odd in (Path("/dev/full"), Path("/dev/null"), tmp_path / "fifo"):
        for readonly in (True, False):
            with pytest.raises(LoomError, match=r"not a regular file|cannot open"):
                Loom.open(odd, readonly=readonly)
    with pytest.raises(LoomError, match="cannot open"):
        Loom.open(tmp_path / "missing", readonly=True)


@pytest.mark.parametrize(
    "text", [b"# My notes\n\nprecious\n", b"no newline at the end", b'{"type":"other"}', b"\x7fELF\0\0"]
)
def test_somebodys_own_file_is_left_alone(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "README.md"
    path.write_bytes(text)
    with pytest.raises(LoomError, match="is not a loom"):
        Loom.open(path)
    assert path.read_bytes() == text
    assert [p.name for p in tmp_path.iterdir()] == ["README.md"]


@pytest.mark.parametrize("torn", [b'{"ty', b'{"type":"loom","id":"loom_0'])
def test_a_loom_that_was_cut_in_its_first_record_begins_anew(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "a"
    path.write_bytes(torn)
    with Loom.open(path) as loom:
        assert "torn" in str(loom.problems[0])
        loom.append(turn(1, None))
    with Loom.open(path, readonly=True) as loom:
        assert not loom.problems
        assert len(loom) == 1


def test_half_a_surrogate_pair_does_not_lose_the_turn(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with Loom.open(path) as loom:
        loom.append(Turn("t", None, "c", "e", "k", utterance=Utterance("a\ud800b")))
        assert loom.turn("t").utterance.content == "a?b"


async def test_a_cast_on_a_full_disk_ends_with_that_error(tmp_path: Path) -> None:
    path = tmp_path / "a"
    loom = Loom.open(path)
    cantrip = make(*[echo("x" * 3000)] * 8, loom=loom)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, hard))
        with pytest.raises(LoomWriteError, match="cannot write loom"):
            await cantrip.cast("go")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, old)
    loom.close()
    with Loom.open(path) as again:
        assert not again.problems
        assert len(again) >= 2


def test_fsync_and_ids(tmp_path: Path) -> None:
    with Loom.open(tmp_path / "a", fsync=True) as loom:
        loom.append(turn(0, None))
    ids = [new_id("t") for _ in range(2000)]
    assert len(set(ids)) == 2000
    assert os.stat(tmp_path / "a").st_mode & 0o077 == 0
