"""A reader of a file of lines follows what its writer adds, and says where it is not that file any more."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from cantrip_acp import Loom, LoomError, Turn
from cantrip_acp.loom.stores import index_file
from cantrip_acp.types.errors import LoomChanged
from cantrip_acp.types.records import Utterance
from tests.support import processes

WRITER = """
import sys, time
from cantrip_acp import Loom, Turn
from cantrip_acp.types.records import Utterance
loom = Loom.open(sys.argv[1])
for n in range(int(sys.argv[2])):
    loom.append(Turn(f"t{n}", f"t{n - 1}" if n else None, "c", "e", "k", sequence=n, utterance=Utterance("x" * (n * 37 % 9000))))
    loom.annotate_reward(f"t{n}", n)
    if n % 100 == 0:
        time.sleep(0.01)
"""


def turn(n: int, said: str = "hello") -> Turn:
    return Turn(f"t{n}", f"t{n - 1}" if n else None, "c", "e", "k", sequence=n, utterance=Utterance(said))


def line(n: int, said: str = "hello") -> bytes:
    return msgspec.json.encode(turn(n, said)) + b"\n"


def add(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "a.loom.jsonl"
    with Loom.open(path) as loom:
        for n in range(3):
            loom.append(turn(n))
    return path


def test_another_process_is_followed_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "live.loom.jsonl"
    path.touch()
    with Loom.open(path, readonly=True) as reader:
        process = processes.Popen([sys.executable, "-c", WRITER, str(path), "600"])
        seen = 0
        until = time.monotonic() + 100
        while len(reader) < 600 and time.monotonic() < until:
            seen += reader.refresh()
            if len(reader):
                last = reader.leaves()[-1]
                assert reader.turn(last).sequence == len(reader) - 1
            assert not reader.problems
        assert process.wait(100) == 0
        seen += reader.refresh()
        assert seen == 1 + 600 * 2
        assert [t.sequence for t in reader.thread("t599")] == list(range(600))
        assert reader.turn("t599").reward == 599
        assert reader.header is not None
        assert reader.refresh() == 0
    with Loom.open(path, readonly=True) as fresh:
        assert fresh.leaves() == ["t599"]


def test_a_turn_that_is_asked_for_is_looked_for(path: Path) -> None:
    with Loom.open(path, readonly=True) as reader, Loom.open(path) as writer:
        assert "t3" not in reader
        writer.append(turn(3))
        assert reader.turn("t3") == turn(3)


def test_a_torn_line_waits_for_its_rest(path: Path) -> None:
    whole = line(3, "ü" * 5000)
    with Loom.open(path, readonly=True) as reader:
        for cut in (1, len(whole) // 2, len(whole) - 1):
            before = path.read_bytes()
            add(path, whole[:cut])
            assert reader.refresh() == 0
            assert not reader.problems
            path.open("r+b").truncate(len(before))
        add(path, whole[:4000])
        assert (reader.refresh(), "t3" in reader) == (0, False)
        add(path, whole[4000:] + line(4)[:9])
        assert reader.refresh() == 1
        assert reader.turn("t3").utterance.content == "ü" * 5000
        add(path, line(4)[9:] + line(5) + line(6))
        assert reader.refresh() == 3
        assert reader.path("t6")[-1] == "t6"


def test_what_was_torn_at_opening_is_no_problem_once_it_is_whole(path: Path) -> None:
    add(path, line(3)[:50])
    with Loom.open(path, readonly=True) as reader:
        assert [p.message for p in reader.problems] == ["last line is torn (a crash while writing); ignored"]
        assert reader.refresh() == 0
        assert len(reader.problems) == 1
        add(path, line(3)[50:60])
        assert reader.refresh() == 0
        assert len(reader.problems) == 1
        add(path, line(3)[60:])
        assert reader.refresh() == 1
        assert not reader.problems


def test_what_was_torn_at_opening_is_set_aside_by_the_next_writer(path: Path) -> None:
    add(path, line(3)[:50])
    with Loom.open(path, readonly=True) as reader:
        with Loom.open(path) as writer:
            assert reader.refresh() == 0
            assert not reader.problems
            writer.append(turn(3, "another"))
        assert reader.turn("t3").utterance.content == "another"


def test_a_whole_record_without_its_newline_counts_once(path: Path) -> None:
    add(path, line(3)[:-1])
    with Loom.open(path, readonly=True) as reader:
        assert len(reader) == 4
        assert reader.refresh() == 0
        add(path, b"\n")
        assert reader.refresh() == 0
        add(path, line(4))
        assert (reader.refresh(), len(reader)) == (1, 5)
        assert reader.turn("t4").id == "t4"


def test_damage_is_told_by_its_line_wherever_the_reader_began(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_file, "WORTH", 100)
    with Loom.open(path) as writer:
        writer.append(turn(3))
    assert index_file.path_of(path).exists()
    for _ in ("by its index", "by its heads"):
        with Loom.open(path, readonly=True) as reader:
            before = path.read_bytes()
            add(path, b"nonsense\n\n" + line(4))
            assert reader.refresh() == 1
            assert [(p.line, p.offset) for p in reader.problems] == [(6, len(before)), (7, len(before) + 9)]
            assert "t4" in reader
        path.write_bytes(before)
        index_file.path_of(path).unlink(missing_ok=True)


def _replaced(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(path.read_bytes() + line(3))
    os.replace(other, path)


def _deleted(path: Path) -> None:
    path.unlink()


def _cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 5)


def _emptied(path: Path) -> None:
    os.truncate(path, 0)


def _rewritten(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"hello", b"HELLO") + line(3))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_replaced, "was replaced by another file; open it again"),
        (_deleted, "was deleted"),
        (_cut, "was cut since it was opened; open it again"),
        (_emptied, "was cut since it was opened; open it again"),
        (_rewritten, "was written over since it was opened; open it again"),
    ],
)
def test_another_file_is_said(path: Path, change: Callable[[Path], None], said: str) -> None:
    with Loom.open(path, readonly=True) as reader:
        reader.refresh()
        change(path)
        for _ in range(2):
            with pytest.raises(LoomChanged, match=said) as caught:
                reader.refresh()
            assert str(path) in str(caught.value)
    with pytest.raises(LoomError, match="closed"):
        reader.refresh()


def test_a_loom_that_is_moved_is_followed(path: Path) -> None:
    with Loom.open(path, readonly=True) as reader, Loom.open(path) as writer:
        path.rename(path.with_name("b.loom.jsonl"))
        writer.append(turn(3))
        assert reader.refresh() == 1


def test_a_look_for_nothing_reads_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Loom.open(path, readonly=True) as reader:
        reader.refresh()
        monkeypatch.setattr(os, "pread", lambda *a: pytest.fail("read"))
        monkeypatch.setattr(os, "preadv", lambda *a: pytest.fail("read"))
        assert reader.refresh() == 0


def test_a_writer_that_waited_for_an_empty_file_does_not_write_into_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.loom.jsonl"
    first = Loom.open(path)
    held = os.open(path, os.O_RDWR)
    real = os.open

    def late(name: str | Path, *more: int, **named: int) -> int:
        if Path(name).name == path.name and first.location:
            # Opened while the other one still had it, locked after that one took its empty file away.
            monkey.undo()
            first.close()
            return os.dup(held)
        return real(name, *more, **named)

    with pytest.MonkeyPatch.context() as monkey:
        monkey.setattr(os, "open", late)
        second = Loom.open(path)
    second.append(turn(0))
    second.close()
    os.close(held)
    with Loom.open(path, readonly=True) as loom:
        assert len(loom) == 1
