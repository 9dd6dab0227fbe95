"""One loom into another: from every store to every store, ids kept, twice the same as once."""

from __future__ import annotations

from pathlib import Path

import pytest

from cantrip_acp import Loom, LoomError
from cantrip_acp.loom.stores.rows import encoded
from cantrip_acp.training.importing.import_file import detect_format, import_file, merge
from cantrip_acp.training.importing.json_lines import ImportProblem
from cantrip_acp.types.records import LoomHeader, Turn, Utterance
from tests.support.fixtures.core import done, make

pytestmark = pytest.mark.anyio


async def test_what_was_added_to_the_source_since_is_added(tmp_path: Path) -> None:
    path = tmp_path / "growing.loom.jsonl"
    into = Loom.memory()
    for rewarded in (False, True):
        with Loom.open(path) as source:
            await make(done("x"), loom=source).cast("go")
            if rewarded:
                source.annotate_reward(source.leaves()[0], 1.0)
        report = import_file(str(path), into)
        assert (report.casts, report.rewards) == (1, int(rewarded))
    assert into.turn(into.leaves()[0]).reward == 1.0


async def test_damage_in_the_source_is_told_and_the_rest_taken(tmp_path: Path) -> None:
    path = tmp_path / "damaged.loom.jsonl"
    with Loom.open(path) as source:
        await make(done("x"), loom=source).cast("one")
        await make(done("y"), loom=source).cast("two")
    lines = path.read_bytes().splitlines(keepends=True)
    broken = next(n for n, line in enumerate(lines) if b'"role":"crystal"' in line)
    lines[broken] = b"x" * (len(lines[broken]) - 1) + b"\n"
    path.write_bytes(b"".join(lines))
    into = Loom.memory()
    report = import_file(str(path), into)
    assert len([t for t in into.turns() if t.role == "crystal"]) == 1
    assert any(note.startswith("damage in the source: line") for note in report.notes)


def test_turns_below_a_lost_one_are_told() -> None:
    source = Loom.memory()
    for record in (
        LoomHeader("l"),
        Turn("b", "gone", "c", "e", None),
        Turn("c", "b", "c", "e", None, utterance=Utterance("x")),
    ):
        source._tree.add(source._store.append(record, encoded(record)), record)
    into = Loom.memory()
    report = merge(source, into)
    assert report.turns == 0
    assert report.notes == {"turns whose parent is lost in the source": 2}


def test_kinds_are_told_by_the_first_line(tmp_path: Path) -> None:
    for text, kind in (
        ('{"type":"loom","id":"l"}\n', "loom"),
        ('\n{"id": "x", "nodes": []}\n', "verifiers"),
        ('{"id": "x", "traces": []}\n', "verifiers"),
        ('{"jsonrpc": "2.0", "id": 0, "method": "initialize"}\n', "acp"),
    ):
        path = tmp_path / "x"
        path.write_text(text)
        assert detect_format(str(path)) == kind
    with Loom.open(f"sqlite:{tmp_path}/a.db") as loom:
        loom.append(LoomHeader("l"))
    assert detect_format(f"sqlite:{tmp_path}/a.db") == detect_format(str(tmp_path / "a.db")) == "loom"
    for text, words in (
        ("", "there is nothing in it"),
        ('{"a": 1}', ":1: this cannot be imported"),
        ("\x00\x01", ":1: not JSON"),
    ):
        path = tmp_path / "x"
        path.write_text(text)
        with pytest.raises(ImportProblem, match=words):
            detect_format(str(path))


def test_what_is_no_loom_is_refused_and_a_torn_one_is_taken(tmp_path: Path) -> None:
    other = tmp_path / "other.csv"
    other.write_text("a,b\n1,2\n")
    with Loom.memory() as into:
        for what, says in ((other, "this is not a loom"), (tmp_path / "none", "none")):
            with pytest.raises(LoomError, match=says):
                import_file(str(what), into, "loom")
        with pytest.raises(LoomError, match="no such file"):
            import_file(str(tmp_path / "none"), into, "verifiers")
        torn = tmp_path / "torn.loom.jsonl"
        with Loom.open(torn) as loom:
            loom.append(Turn("t0", None, "c", "e", None, role="call"))
        torn.write_bytes(torn.read_bytes() + b'{"type":"tu')
        assert import_file(str(torn), into, "loom").turns == 1


def test_records_that_are_there_with_another_content_are_named() -> None:
    one, other = Loom.memory(), Loom.memory()
    for loom, entity in ((one, "e"), (other, "f")):
        loom.append(Turn("t0", None, "c", "same", None, role="call"))
        loom.append(Turn("t1", "t0", "c", entity, "k"))
    report = merge(one, other)
    assert report.notes == {"records that are there already with another content; those stay (turn)": 1}
    assert (report.turns, report.known) == (0, 2)
