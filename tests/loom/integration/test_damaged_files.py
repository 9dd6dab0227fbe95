"""A file that was cut, reordered, flipped or is foreign in parts: what is good opens, the rest is named line by line."""

from __future__ import annotations

import contextlib
import json
import random
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from cantrip_acp import Loom, LoomError, Turn
from cantrip_acp.loom.records import record_heads
from cantrip_acp.loom.snapshots import SnapshotChunks
from cantrip_acp.loom.stores import checksum
from cantrip_acp.mediums.code.snapshot import Snapshot, keep
from cantrip_acp.types.records import (
    CantripRecord,
    CastRecord,
    ContextRecord,
    LoomHeader,
    Record,
    RewardRecord,
    SnapshotRecord,
    Utterance,
)
from tests.support.command_line import run

KEY = "sk-ant-api03-" + "Zq7" * 20


def written() -> list[bytes]:
    """A small loom with a fork, as its lines."""
    records: list[Record] = [
        LoomHeader("loom_1", created="then"),
        CantripRecord("c", {"system_prompt": "be"}, {"gates": ["done"]}),
        Turn("t0", None, "c", "e", None, role="call"),
        CastRecord("k", "start", "e", "c", intent="go"),
        *(Turn(f"t{n}", f"t{n - 1}", "c", "e", "k", sequence=n, utterance=Utterance(f"ünï {n}")) for n in range(1, 5)),
        Turn("b", "t2", "c", "e2", "k2", utterance=Utterance("another way")),
        RewardRecord("t4", 0.5, "me"),
        SnapshotRecord("s", "t4", "e", {"pieces": {"p": "AAAA"}}),
        CastRecord("k", "end", "e", "c", terminated=True),
    ]
    return [msgspec.json.encode(record) + b"\n" for record in records]


LINES = written()
WHOLE = b"".join(LINES)
FOREIGN = [
    *(b"hello\n", b"{}\n", b"\n", b"  \n", b"[1,2]\n", b'{"type":"odd"}\n', b"\xff\xfe\x00\n", b'{"type":"turn"}\n'),
    *(b"null\n", b"[" * 3000 + b"\n"),
]

_places = st.integers(0, len(WHOLE) - 1)
_lines = st.integers(0, len(LINES) - 1)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """The file after one to four mishaps."""
    data = WHOLE
    for _ in range(draw(st.integers(1, 4))):
        match draw(st.sampled_from(["cut", "flip", "swap", "lose", "twice", "foreign", "zeros", "glue"])):
            case "cut":
                data = data[: draw(_places)]
            case "flip" if data:
                at = draw(_places) % len(data)
                data = data[:at] + bytes([data[at] ^ (1 << draw(st.integers(0, 7)))]) + data[at + 1 :]
            case "zeros" if data:
                at = draw(_places) % len(data)
                data = data[:at] + bytes(draw(st.integers(1, 60))) + data[at + 30 :]
            case kind:
                lines = data.splitlines(keepends=True) or [b""]
                one, two = draw(_lines) % len(lines), draw(_lines) % len(lines)
                match kind:
                    case "swap":
                        lines[one], lines[two] = lines[two], lines[one]
                    case "lose":
                        del lines[one]
                    case "twice":
                        lines.insert(two, lines[one])
                    case "foreign":
                        lines.insert(one, draw(st.sampled_from(FOREIGN)))
                    case "glue":
                        lines[one] = lines[one].rstrip(b"\n")
                data = b"".join(lines)
    return data


def expected(data: bytes) -> tuple[dict[str, record_heads.TurnHead], list[int], list[int]]:
    """What an independent look finds: turns by id, lines that are no records, lines that do not fit what is above them."""
    turns: dict[str, record_heads.TurnHead] = {}
    bad, odd, headed = [], [], False
    lines = data.split(b"\n")
    for number, line in enumerate(lines if lines[-1] else lines[:-1], 1):
        try:
            head = record_heads.decode(line)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            bad.append(number)
            continue
        if isinstance(head, LoomHeader):
            odd += [number] if headed else []
            headed = True
        if isinstance(head, record_heads.TurnHead):
            if head.id in turns:
                odd.append(number)
                continue
            turns[head.id] = head
            if head.parent_id is not None and head.parent_id not in turns:
                odd.append(number)
    return turns, bad, odd


def newer(data: bytes) -> bool:
    """Whether a flip made it a loom of a later version."""
    for line in data.split(b"\n"):
        with contextlib.suppress(ValueError, RecursionError):
            record = json.loads(line)
            if isinstance(record, dict) and record.get("type") == "loom" and record.get("format", 1) != 1:
                return True
    return False


@settings(max_examples=250, deadline=None)
@given(damaged())
def test_what_is_good_opens_and_the_rest_is_named(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.loom.jsonl"
        path.write_bytes(data)
        if newer(data):
            return
        turns, bad, odd = expected(data)
        with Loom.open(path, readonly=True) as loom:
            assert list(loom.places) == list(turns)
            assert Counter(p.line for p in loom.problems) == Counter(bad + odd)
            starts = _starts(data)
            assert all(p.offset == starts[p.line - 1] for p in loom.problems if p.line is not None)
            named = {p.line for p in loom.check()}
            for number, line in enumerate(data.split(b"\n"), 1):
                _reads(loom, number, line + b"\n", named, turns)
            told = [str(p) for p in loom.problems]
        assert path.read_bytes() == data, "a reader changes nothing"
        try:
            writer = Loom.open(path)
        except LoomError as error:
            assert "is not a loom" in str(error)  # noqa: PT017
            assert path.read_bytes() == data, "somebody's own file"
            return
        with writer:
            assert list(writer.places) == list(turns)
            assert len(writer.problems) == len(told)
            writer.append(Turn("after", None, "c", "e", None))
        aside = b"".join(p.read_bytes() for p in sorted(Path(folder).glob("*.torn-*")))
        kept = path.read_bytes()
        whole = data[: len(data) - len(aside)]
        assert data.endswith(aside)
        assert kept.startswith(whole), "what was there stays where it is"
        with Loom.open(path, readonly=True) as again:
            assert list(again.places) == [*turns, "after"]
            assert len(again.problems) == len(told) - bool(aside)


def _starts(data: bytes) -> list[int]:
    starts = [0]
    for line in data.split(b"\n"):
        starts.append(starts[-1] + len(line) + 1)
    return starts


def _reads(loom: Loom, number: int, line: bytes, named: Any, turns: dict[str, record_heads.TurnHead]) -> None:
    """A line that nothing happened to is read as it was, or is named (a second one of its id)."""
    if line not in LINES or number in named:
        return
    record = msgspec.json.decode(line, type=Record)
    if isinstance(record, Turn):
        reward = loom.reward(record.id)
        found = loom.turn(record.id)
        assert msgspec.structs.replace(found, reward=None) == record
        assert found.reward == reward


def test_cut_anywhere(tmp_path: Path) -> None:
    for at in range(1, len(WHOLE), 17):
        path = tmp_path / str(at) / "a.loom.jsonl"
        path.parent.mkdir()
        path.write_bytes(WHOLE[:at])
        whole = WHOLE[:at].count(b"\n")
        with Loom.open(path) as loom:
            records = list(loom.records())
            # A record that lacks nothing but its newline is whole.
            assert len(records) in (whole, whole + 1)
            torn = len(WHOLE[:at]) - len(b"".join(LINES[: len(records)]))
            assert [p.length for p in loom.problems] == ([torn] if torn > 0 else [])
            loom.append(ContextRecord("x_1", "e_1", "c_1", "documents", "", "text"))
        with Loom.open(path, readonly=True) as loom:
            assert not loom.problems


def test_the_check_reads_bodies_too(tmp_path: Path) -> None:
    path = tmp_path / "a.loom.jsonl"
    lines = list(LINES)
    # Its head is whole; what was observed is not what it should be.
    lines[5] = (
        lines[5].replace(b'"observation":{', b'"observation":[{', 1).replace(b'},"gate_calls"', b'}],"gate_calls"')
    )
    lines[6] = lines[6].replace(b"\xc3\xbc", b"\xff\xbc")
    path.write_bytes(b"".join(lines))
    done = run("loom", "check", path, cwd=tmp_path)
    assert done.status == 1
    told = done.out.splitlines()
    assert [line.split(":")[0] for line in told[:2]] == ["line 6", "line 7"]
    assert told[0].endswith(f"(byte {len(b''.join(LINES[:5])):,})")
    assert told[2] == f"{path}: 5 turns, 2 problems"
    (data,) = run("loom", "check", path, "--json", cwd=tmp_path).lines
    assert [p["line"] for p in data["problems"]] == [6, 7]
    path.write_bytes(WHOLE)
    assert run("loom", "check", path, cwd=tmp_path).out == f"{path}: 5 turns, everything can be read\n"


def test_no_report_tells_a_secret(tmp_path: Path) -> None:
    path = tmp_path / "a.loom.jsonl"
    turn = msgspec.json.encode(Turn("t9", "t4", "c", "e", "k", utterance=Utterance(KEY))) + b"\n"
    hurt = [
        turn[:-5] + b"\n",
        turn.replace(b'"turn"', f'"{KEY}"'.encode(), 1),
        turn.replace(b'"t4"', f'"{KEY}"'.encode(), 1),
        turn.replace(b'"sequence"', f'"{KEY}"'.encode(), 1).replace(b'"utterance":{', b'"utterance":["'),
        turn + turn,
        turn[:-9],
    ]
    path.write_bytes(WHOLE + b"".join(hurt))
    with Loom.open(path, readonly=True) as loom:
        assert len(loom.check()) >= len(hurt)
        assert KEY not in str([*loom.problems, *loom.check()])
    for how in (("check",), ("check", "--json"), ("show", "--json")):
        done = run("loom", *how, path, cwd=tmp_path)
        said = json.dumps(done.lines[0]["problems"]) if "--json" in how else done.out
        assert '"line": 13' in said if "--json" in how else "line 13: " in said
        assert KEY not in said
        assert KEY not in done.err


def test_the_check_says_which_states_are_lost_and_which_cantrips(tmp_path: Path) -> None:
    path = tmp_path / "s.loom.jsonl"
    large = random.Random(7).randbytes(2_000_000)
    with Loom.open(path) as loom:
        loom.append(CantripRecord("c", {}, {}))
        loom.append(Turn("t0", None, "c", "e", None, role="call"))
        for number, state in enumerate((b"small" * 1000, large, large[:-9] + b"and more!"), 1):
            loom.append(Turn(f"t{number}", f"t{number - 1}", "c", "e", "k"))
            pieces = SnapshotChunks(loom)
            kept = keep([state], pieces)
            about = Snapshot(kept.chunks, kept.size, levels=kept.levels)
            assert (kept.levels > 0) == (number > 1)
            pieces.keep(f"t{number}", "e", about.record())
    whole = path.read_bytes().splitlines(keepends=True)
    assert run("loom", "check", path, cwd=tmp_path).out.endswith(": 3 turns, everything can be read\n")

    def told(lines: list[bytes]) -> list[str]:
        path.unlink()
        path.write_bytes(b"".join(lines))
        with Loom.open(path, readonly=True) as loom:
            return [p.message for p in loom.check()]

    at = whole[6].index(b'":"', whole[6].index(b'"pieces"')) + 50
    flipped = whole[6][:at] + (b"A" if whole[6][at : at + 1] != b"A" else b"B") + whole[6][at + 1 :]
    line, first, second, third = told([*whole[:6], flipped, *whole[7:]])
    assert line == checksum.CHANGED
    assert first == "the snapshot after turn 't2': 1 piece is not as written"
    assert [second.partition(":")[0], third.partition(":")[0]] == [
        f"the state after turn 't{n}' cannot be restored" for n in (2, 3)
    ]
    assert [m.partition(": ")[0] for m in told([*whole[:6], *whole[7:]])] == [
        "does not follow the record before it",
        "the state after turn 't3' cannot be restored",
    ]
    assert told([whole[0], *whole[2:]])[1:] == ["turn 't0' names a cantrip that is not here: 'c'"]
