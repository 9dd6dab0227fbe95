"""The index beside a large loom saves reading it, and is never believed where it might be wrong."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cantrip_acp import Loom
from cantrip_acp.loom.stores import index_file
from cantrip_acp.types.records import GateRecord, Observation, Turn, TurnMetadata, Utterance, now

BODY = "word " * 400


@pytest.fixture(autouse=True)
def _small_looms_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_file, "WORTH", 100_000)


def grow(loom: Loom, count: int, start: int = 0) -> None:
    parent = loom.begin("k", {"system_prompt": "x"}, {}, "e") if not start else list(loom._tree.turns)[-1]
    for n in range(start, start + count):
        turn = Turn(
            f"t_{n}",
            parent,
            "k",
            "e",
            None,
            sequence=n + 1,
            utterance=Utterance(BODY),
            observation=Observation((GateRecord("echo", {}, "ü" * 50, False, "c"),)),
            metadata=TurnMetadata(1, 1, 0, None, 1.0, now(), "m", None),
        )
        loom.append(turn)
        parent = turn.id


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "x.loom.jsonl"
    with Loom.open(path) as loom:
        grow(loom, 200)
        loom.annotate_reward("t_7", 0.5)
    return path


def whole(path: Path) -> tuple[list[str], list[str], int, float | None]:
    with Loom.open(path, readonly=True) as loom:
        turns = list(loom.turns())
        return [t.id for t in turns], loom.leaves(), len(loom.problems), loom.turn("t_7").reward


def from_index(path: Path) -> bool:
    fd = os.open(path, os.O_RDONLY)
    try:
        return index_file.read(path, fd) is not None
    finally:
        os.close(fd)


def test_it_tells_the_same_as_the_file(path: Path) -> None:
    index = index_file.path_of(path)
    assert index.stat().st_mode & 0o777 == 0o600
    assert from_index(path)
    told = whole(path)
    index.unlink()
    assert whole(path) == told
    assert told[3] == 0.5
    assert len(told[0]) == 201


def test_what_was_written_since_is_seen(path: Path) -> None:
    index = index_file.path_of(path)
    old = index.read_bytes()
    with Loom.open(path) as loom:
        grow(loom, 3, 200)
    assert from_index(path)
    assert whole(path)[1] == ["t_202"]
    # A writer that was killed leaves an index of before.
    index.write_bytes(old)
    assert not from_index(path)
    assert whole(path)[1] == ["t_202"]


@pytest.mark.parametrize("damage", ["", "garbage", "half", "flip", "other version"])
def test_a_damaged_index_is_passed_over(path: Path, damage: str) -> None:
    index = index_file.path_of(path)
    told, good = whole(path), index.read_bytes()
    match damage:
        case "half":
            index.write_bytes(good[: len(good) // 2])
        case "flip":
            index.write_bytes(good[:-9] + bytes([good[-9] ^ 1]) + good[-8:])
        case "other version":
            index.write_bytes(good.replace(b"index\n", b"indey\n", 1))
        case _:
            index.write_text(damage)
    assert not from_index(path)
    assert whole(path) == told


def test_a_loom_that_was_changed_is_read_again(path: Path) -> None:
    data = bytearray(path.read_bytes())
    at = data.index(b'"t_100"')
    data[at + 3] = ord("\xff")
    time.sleep(0.01)
    path.write_bytes(data)
    assert not from_index(path)
    assert whole(path)[2] > 0


def test_problems_are_told_again(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    lines.insert(50, b"not a record\n")
    path.write_bytes(b"".join(lines))
    Loom.open(path).close()
    assert from_index(path)
    with Loom.open(path, readonly=True) as loom:
        assert [p.line for p in loom.problems] == [51]


def test_a_link_in_its_place_is_not_followed(path: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    part = path.with_name(f".{path.name}.index.part")
    part.symlink_to(precious)
    with Loom.open(path) as loom:
        grow(loom, 1, 200)
    assert precious.read_text() == "mine"
    assert whole(path)[1] == ["t_200"]


WRITER = """
import sys
from cantrip_acp.loom.stores import index_file as sidecar
sidecar.WORTH = 100_000
from cantrip_acp import Loom
print("ready", flush=True)
while True:
    with Loom.open(sys.argv[1]) as loom:
        loom.annotate_reward("t_1", 1.0)
    print("again", flush=True)
"""


def test_a_kill_while_it_is_written_loses_nothing(path: Path) -> None:
    for attempt in range(6):
        command = [sys.executable, "-c", WRITER, str(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            process.stdout.readline()
            process.stdout.readline()
            time.sleep(0.003 * attempt)
            process.send_signal(signal.SIGKILL)
        told = whole(path)
        index_file.path_of(path).unlink(missing_ok=True)
        assert whole(path) == told
        assert len(told[0]) == 201
