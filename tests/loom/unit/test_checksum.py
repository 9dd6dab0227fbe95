"""Every line's checksum: a bit that flips is told, wherever it flips, and what is good still opens."""

import json
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xxhash import xxh3_64_hexdigest

from cantrip_acp import Loom, Turn
from cantrip_acp.loom.stores import checksum, index_file
from cantrip_acp.types.errors import LoomError
from cantrip_acp.types.records import CantripRecord, Utterance, UtteranceRecord

LONG = "long words that a head is not made of; " * 40
ODD = 'quotes "utterance":{ and ,"reward":1 and \\ \ud83d\ude00 é\n'.encode("utf-16", "surrogatepass").decode("utf-16")


def filled(path: Path) -> dict[str, Turn]:
    """A loom with turns short and long; by id."""
    with Loom.open(path) as loom:
        loom.append(CantripRecord("c", {}, {}))
        loom.append(Turn("t0", None, "c", "e", None, role="call"))
        for number, said in enumerate((ODD, LONG, LONG + ODD, "x"), 1):
            loom.append(UtteranceRecord(f"t{number}", f"t{number - 1}", "c", "e", "k", number, Utterance(said)))
            loom.append(
                Turn(
                    f"t{number}", f"t{number - 1}", "c", "e", "k", sequence=number, utterance=Utterance(said),
                    reward=number / 2, reason=ODD,
                )
            )  # fmt: skip
        return {turn.id: turn for turn in loom.turns()}


def test_a_line_ends_with_its_checksum(tmp_path: Path) -> None:
    path = tmp_path / "s.loom.jsonl"
    kept = filled(path)
    for line in path.read_bytes().splitlines():
        body, _, rest = line.rpartition(b',"sum":"')
        assert rest.decode() == f'{xxh3_64_hexdigest(body)}"}}'
        assert checksum.is_valid(line) is True
        record = json.loads(line)
        assert list(record)[-1] == "sum"
    with Loom.open(path, readonly=True) as loom:
        assert {turn.id: turn for turn in loom.turns()} == kept
        assert [loom.reward(name) for name in kept] == [None, 0.5, 1.0, 1.5, 2.0]
        assert loom.check() == []


def test_lines_of_others_need_none(tmp_path: Path) -> None:
    path = tmp_path / "s.loom.jsonl"
    kept = filled(path)
    lines = []
    for line in path.read_bytes().splitlines():
        record = json.loads(line)
        del record["sum"], record["prev"]
        # As another program would write it: other order, spaces, text as it is.
        lines.append(json.dumps(dict(reversed(record.items())), ensure_ascii=False))
    path.unlink()
    path.write_text("\n".join(lines) + "\n")
    with Loom.open(path, readonly=True) as loom:
        assert {turn.id: turn for turn in loom.turns()} == kept
        assert loom.check() == []


def test_a_line_that_was_edited_is_told_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "s.loom.jsonl"
    filled(path)
    lines = path.read_bytes().splitlines(keepends=True)
    at = next(n for n, line in enumerate(lines) if b'"type":"turn","id":"t4"' in line)
    lines[at] = lines[at].replace(b'"content":"x"', b'"content":"y"')
    path.write_bytes(b"".join(lines))
    with Loom.open(path) as loom:
        assert [(p.message, p.line) for p in loom.problems] == [(checksum.CHANGED, at + 1)]
        assert loom.turn("t4").utterance.content == "y"
        loom.append(Turn("t5", "t4", "c", "e", "k"))
    with Loom.open(path, readonly=True) as loom:
        assert len(loom.problems) == 1
        assert "t5" in loom


def test_what_rots_below_an_index_is_told_when_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_file, "WORTH", 0)
    path = tmp_path / "s.loom.jsonl"
    filled(path)
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(path.read_bytes().index(LONG.encode()))
        file.write(b"L")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with Loom.open(path, readonly=True) as loom:
        assert loom.problems == ()
        found = [loom.check() for _ in range(2)]
        assert [[p.message for p in each] for each in found] == [[checksum.CHANGED], [checksum.CHANGED]]
        for turn in ("t2", "t2", "t3"):
            loom.turn(turn)
        assert len({p.offset for p in loom.check()}) == 1


@settings(max_examples=400, deadline=None)
@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_a_flipped_bit_is_told(place: float, bit: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "s.loom.jsonl"
        kept = filled(path)
        data = bytearray(path.read_bytes())
        at = int(place * len(data))
        data[at] ^= 1 << bit
        path.write_bytes(data)
        line = data[:at].count(b"\n") + 1
        try:
            loom = Loom.open(path, readonly=True)
        except LoomError as error:
            refused = str(error)
        else:
            refused = ""
        if refused:
            # In the header's format: then the loom is one of a later version.
            assert "Upgrade cantrip-acp" in refused
            assert line == 1
            return
        with loom:
            found = loom.check()
            if not any(problem.line == line for problem in found):
                # In the checksum's key, which hides it: all that was written is there.
                assert {turn.id: turn for turn in loom.turns()} == kept
                ends = (data.find(b"\n", at) if b"\n" in data[at:] else len(data)) - at
                assert ends <= 27
