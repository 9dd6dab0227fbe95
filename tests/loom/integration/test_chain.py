"""Records name the checksum of the one before them: whatever happens to stored records, `check` finds it, in every store."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cantrip_acp import Loom, LoomError, Turn
from cantrip_acp.loom.stores import checksum, sqlite
from cantrip_acp.loom.stores import rows as rows_of_stores
from cantrip_acp.loom.stores.address import open_store
from cantrip_acp.loom.view.reader import LoomReader
from cantrip_acp.training.importing.import_file import merge
from cantrip_acp.types.records import CantripRecord, CastRecord, RewardRecord, Utterance, UtteranceRecord
from tests.support.command_line import run
from tests.support.loom_stores import KEPT, Place

ENTITIES = ("a", "b")


def fill(loom: Loom, turns: int = 8) -> None:
    """Two entities whose records lie between each other, with rewards, which belong to none."""
    loom.append(CantripRecord("c", {}, {}))
    for entity in ENTITIES:
        loom.append(Turn(f"{entity}0", None, "c", entity, None, role="call"))
        loom.append(CastRecord(f"k{entity}", "start", entity, "c", intent="go"))
    for n in range(1, turns):
        for entity in ENTITIES:
            said = Utterance(f"words {n} of {entity} " * (n * 7 % 5 + 1))
            above, cast = f"{entity}{n - 1}", f"k{entity}"
            loom.append(UtteranceRecord(f"{entity}{n}", above, "c", entity, cast, n, said))
            loom.append(Turn(f"{entity}{n}", above, "c", entity, cast, sequence=n, utterance=said))
        loom.append(RewardRecord(f"a{n}", n / 10))
    for entity in ENTITIES:
        loom.append(CastRecord(f"k{entity}", "end", entity, "c", terminated=True, reason="done"))


@pytest.fixture(params=KEPT)
def alone(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Somewhere to keep a loom, in a database of its own: its guards are taken away here."""
    place = Place.at(request.param, tmp_path if request.param != "postgres" else request.getfixturevalue("postgres"))
    if request.param == "postgres":
        name = f"chain{os.urandom(4).hex()}"
        with _owner(place) as owner:
            owner.execute(f"CREATE DATABASE {name}")  # type: ignore[arg-type]
        place.where = place.base.url("chain", database=name)
    yield place
    place.close()


@pytest.fixture
def filled(alone: Place) -> Place:
    with alone.open() as loom:
        fill(loom)
    assert found(alone) == []
    return alone


def found(place: Place) -> list[str]:
    with place.open(readonly=True) as loom:
        # A doubled record leaves no place for the index that forbids it; that alone is not what is looked for.
        return [str(problem) for problem in loom.check() if "which guards the database" not in problem.message]


Row = dict[str, Any]


def stored(place: Place) -> list[Row]:
    """The records as they are kept."""
    if place.kind == "jsonl":
        return [{"body": line} for line in Path(place.where).read_bytes().splitlines(keepends=True)]
    if place.kind == "sqlite":
        base = sqlite3.connect(place.where.removeprefix("sqlite:"))
        base.row_factory = sqlite3.Row
        rows = [dict(row) for row in base.execute("SELECT * FROM record ORDER BY n")]
        base.close()
        return rows
    with _owner(place) as base:
        cursor = base.execute(
            "SELECT r.* FROM cantrip_records r JOIN cantrip_looms l ON l.id = r.loom WHERE l.name = %s ORDER BY n",
            (_name(place),),
        )
        names = [column.name for column in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def store(place: Place, rows: list[Row]) -> None:
    """Put records in the place of all that are kept, past every guard."""
    if place.kind == "jsonl":
        Path(place.where).write_bytes(b"".join(row["body"] for row in rows))
        return
    if place.kind == "sqlite":
        base = sqlite3.connect(place.where.removeprefix("sqlite:"), isolation_level=None)
        guards = base.execute(
            "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' OR sql LIKE '%UNIQUE INDEX%'"
        ).fetchall()
        # No power cut is part of these tests, so nothing is written through to the disk.
        base.execute("PRAGMA synchronous = OFF")
        base.execute("BEGIN")
        for name, sql in guards:
            base.execute(f"DROP {'TRIGGER' if 'TRIGGER' in sql else 'INDEX'} {name}")
        base.execute("DELETE FROM record")
        for names, alike in itertools.groupby(rows, tuple):
            marks = ", ".join("?" * len(names))
            base.executemany(
                f"INSERT INTO record ({', '.join(names)}) VALUES ({marks})", [list(row.values()) for row in alike]
            )
        for _, sql in guards:
            with contextlib.suppress(sqlite3.IntegrityError):
                base.execute(sql)
        base.execute("COMMIT")
        base.close()
        return
    with _owner(place) as base, base.transaction():
        base.execute("ALTER TABLE cantrip_records DISABLE TRIGGER USER")
        base.execute("DROP INDEX IF EXISTS cantrip_records_turn, cantrip_records_header")
        base.execute(
            "DELETE FROM cantrip_records WHERE loom = (SELECT id FROM cantrip_looms WHERE name = %s)", (_name(place),)
        )
        for names, alike in itertools.groupby(rows, tuple):
            marks = ", ".join(["%s"] * len(names))
            base.cursor().executemany(
                f"INSERT INTO cantrip_records ({', '.join(names)}) VALUES ({marks})",  # type: ignore[arg-type]
                [list(row.values()) for row in alike],
            )
        for trigger in ("cantrip_new", "cantrip_kept", "cantrip_chained"):
            base.execute(f"ALTER TABLE cantrip_records ENABLE ALWAYS TRIGGER {trigger}")  # type: ignore[arg-type]


def _owner(place: Place) -> psycopg.Connection[Any]:
    return psycopg.connect(place.where.partition("?")[0], autocommit=True)


def _name(place: Place) -> str:
    return place.where.partition("?loom=")[2]


def _text(row: Row) -> bytes:
    body = row["body"]
    return body.encode() if isinstance(body, str) else bytes(body)


def _with(row: Row, body: bytes) -> Row:
    return {**row, "body": body.decode("utf-8", "replace") if isinstance(row["body"], str) else body}


def _renumbered(rows: list[Row]) -> list[Row]:
    return [{**row, "n": n} if "n" in row else row for n, row in enumerate(rows, 1)]


def flip(rows: list[Row], dice: random.Random) -> list[Row]:
    at = dice.randrange(len(rows))
    body = bytearray(_text(rows[at]))
    where = dice.randrange(len(body) - 1)
    # A bit that leaves a character which the database takes for text.
    body[where] ^= 1 << dice.randrange(4)
    if b"\n" in body[:-1] or not body.isascii():
        return flip(rows, dice)
    return [*rows[:at], _with(rows[at], bytes(body)), *rows[at + 1 :]]


def edit(rows: list[Row], dice: random.Random) -> list[Row]:
    """Another word in a record, which stays valid JSON."""
    at = dice.choice([n for n, row in enumerate(rows) if b"words" in _text(row)])
    return [*rows[:at], _with(rows[at], _text(rows[at]).replace(b"words", b"wards", 1)), *rows[at + 1 :]]


def reseal(rows: list[Row], dice: random.Random) -> list[Row]:
    """The same with a new checksum of the record's own."""
    at = dice.choice([n for n, row in enumerate(rows) if b"words" in _text(row)])
    text = _text(rows[at]).replace(b"words", b"wards", 1)
    ended = text.endswith(b"\n")
    body, before = text.rstrip(b"\n"), checksum.sums(text.rstrip(b"\n"))[0]
    buffer = bytearray(checksum.strip(body))
    own = checksum.close(buffer, before or "", checksum.place_of(body))
    row = _with(rows[at], bytes(buffer if ended else buffer[:-1]))
    return [*rows[:at], {**row, "sum": own} if "sum" in row else row, *rows[at + 1 :]]


def delete(rows: list[Row], dice: random.Random) -> list[Row]:
    at = dice.randrange(len(rows))
    return rows[:at] + rows[at + 1 :]


def delete_and_renumber(rows: list[Row], dice: random.Random) -> list[Row]:
    return _renumbered(delete(rows, dice))


def delete_some(rows: list[Row], dice: random.Random) -> list[Row]:
    at = dice.randrange(len(rows) - 3)
    return rows[:at] + rows[at + dice.randrange(2, 4) :]


def double(rows: list[Row], dice: random.Random) -> list[Row]:
    at, to = dice.randrange(len(rows)), dice.randrange(len(rows) + 1)
    return _renumbered([*rows[:to], rows[at], *rows[to:]])


def swap(rows: list[Row], dice: random.Random) -> list[Row]:
    one, two = dice.sample(range(len(rows)), 2)
    rows = list(rows)
    rows[one], rows[two] = rows[two], rows[one]
    return _renumbered(rows)


def swap_neighbours(rows: list[Row], dice: random.Random) -> list[Row]:
    one = dice.randrange(len(rows) - 1)
    return _renumbered([*rows[:one], rows[one + 1], rows[one], *rows[one + 2 :]])


def truncate(rows: list[Row], dice: random.Random) -> list[Row]:
    return rows[: dice.randrange(len(rows))]


def unseal(rows: list[Row], dice: random.Random) -> list[Row]:
    """A record without its chain, as if it were an old one."""
    at = dice.randrange(1, len(rows))
    text = _text(rows[at])
    bare = checksum.strip(text.rstrip(b"\n")) + (b"\n" if text.endswith(b"\n") else b"")
    row = _with(rows[at], bare)
    return [*rows[:at], {**row, "sum": None, "entity": None} if "sum" in row else row, *rows[at + 1 :]]


def respace(rows: list[Row], dice: random.Random) -> list[Row]:
    """All of it laid out anew by another program, as an editor or `jq` does."""
    end = "\n" if rows[0]["body"][-1:] in ("\n", b"\n") else ""
    return [_with(row, (json.dumps(json.loads(_text(row))) + end).encode()) for row in rows]


def convert(rows: list[Row], dice: random.Random) -> list[Row]:
    """Another kind of line end, or a space at the end of each body."""
    ended = _text(rows[0]).endswith(b"\n")
    return [_with(row, _text(row).replace(b"\n", b"\r\n") if ended else _text(row) + b" ") for row in rows]


def forget_sum(rows: list[Row], dice: random.Random) -> list[Row]:
    """The column with the checksum is emptied; in a file, the line's own."""
    at = dice.randrange(len(rows))
    if "sum" not in rows[at]:
        return unseal(rows, dice)
    return [*rows[:at], {**rows[at], "sum": None}, *rows[at + 1 :]]


def behead(rows: list[Row], dice: random.Random) -> list[Row]:
    """A row's head says less than its body: a call looks like a turn."""
    at = next(n for n, row in enumerate(rows) if b'"role":"call"' in _text(row))
    if "head" not in rows[at]:
        return delete(rows, dice)
    head = json.loads(_text({"body": rows[at]["head"]}))
    del head["role"]
    made = json.dumps(head)
    return [
        *rows[:at],
        {**rows[at], "head": made if isinstance(rows[at]["head"], str) else made.encode()},
        *rows[at + 1 :],
    ]


MISHAPS: list[Callable[[list[Row], random.Random], list[Row]]] = [
    *(flip, edit, reseal, delete, delete_and_renumber, delete_some, double, swap, swap_neighbours, truncate, unseal),
    *(respace, convert, forget_sum, behead),
]


@pytest.mark.parametrize("mishap", MISHAPS, ids=lambda m: str(m.__name__))
def test_every_random_damage_is_found(filled: Place, mishap: Callable[..., list[Row]]) -> None:
    dice = random.Random(mishap.__name__)
    whole = stored(filled)
    for _ in range(6):
        hurt = mishap(whole, dice)
        if hurt == whole:
            continue
        store(filled, hurt)
        assert found(filled), f"{mishap.__name__} was not found"
    store(filled, whole)
    assert found(filled) == []


def _flipped(value: Any, at: int, bit: int) -> Any:
    """A value with one bit of one byte changed; None if no text would result. Numbers are not looked at."""
    data = bytearray(value.encode() if isinstance(value, str) else bytes(value))
    data[at % len(data)] ^= 1 << bit
    try:
        return data.decode() if isinstance(value, str) else bytes(data)
    except UnicodeDecodeError:
        return None


@pytest.mark.parametrize("column", ["kind", "turn_id", "parent_id", "head", "body", "entity", "sum"])
def test_every_changed_bit_of_every_column_is_found(filled: Place, column: str) -> None:
    if filled.kind == "jsonl":
        pytest.skip("a file of lines has no columns")
    rows, dice = stored(filled), random.Random(column)
    with filled.open(readonly=True) as loom:
        shown = (dict(loom.places), loom.cast_starts(), [str(turn.reason) for turn in loom.turns()])
    wrong = []
    for _ in range(40):
        number = dice.choice([n for n, row in enumerate(rows) if row[column]])
        value = _flipped(rows[number][column], dice.randrange(10_000), dice.randrange(7))
        if value is None or value == rows[number][column] or (isinstance(value, str) and "\0" in value):
            continue
        store(filled, [{**row, column: value} if n == number else row for n, row in enumerate(rows)])
        if not found(filled):
            wrong.append((number, rows[number][column], value))
        if column == "head":
            # Lists and trees show what the body says.
            with filled.open(readonly=True) as loom:
                assert (dict(loom.places), loom.cast_starts(), [str(t.reason) for t in loom.turns()]) == shown
    assert wrong == []


def test_every_bit_of_a_head_tells(tmp_path: Path) -> None:
    with Loom.open(f"sqlite:{tmp_path / 'a.db'}") as loom:
        fill(loom)
        records = list(loom.records())
    for record in records:
        head = rows_of_stores.sealed(rows_of_stores.row_of(record).head)
        assert rows_of_stores.agree(head, record, chained=True)
        for at in range(len(head)):
            for bit in range(8):
                changed = bytearray(head)
                changed[at] ^= 1 << bit
                assert not rows_of_stores.agree(bytes(changed), record, chained=True), (head, at, bit)


def test_what_is_cut_off_at_the_end_stays_known(filled: Place) -> None:
    whole = stored(filled)
    # To the end of a whole cast, where nothing in the records tells of more.
    store(filled, whole[:-2])
    told = found(filled)
    assert any("missing" in each for each in told), told
    with filled.open() as loom:
        loom.append(Turn("z", None, "c", "a", None, role="call"))
    told = found(filled)
    assert any("does not follow the record before it" in each or "missing" in each for each in told), told


def test_messages_say_what_happened(filled: Place) -> None:
    whole = stored(filled)
    store(filled, _renumbered([*whole[:6], whole[3], *whole[6:]]))
    told = found(filled)
    assert any(
        "copy of line 4" in p or "record 7 was written as record 4: it was copied or moved" in p for p in told
    ), told
    store(filled, _renumbered(whole[:6] + whole[7:]))
    told = found(filled)
    assert any("does not follow the record before it" in p or "record 7 was written as record 8" in p for p in told), (
        told
    )


def test_a_copy_that_is_cut_inside_a_cast_is_noted(tmp_path: Path) -> None:
    """A cut copy and a killed process look the same, so a check names it without calling it damage."""
    path, copy = tmp_path / "a.loom.jsonl", tmp_path / "copy.loom.jsonl"
    with Loom.open(path) as loom:
        fill(loom)
    lines = path.read_bytes().splitlines(keepends=True)
    copy.write_bytes(b"".join(lines[:-1]))
    done = run("loom", "check", copy, cwd=tmp_path)
    assert "has no end, and no process runs it: its process died, or the last records are missing" in done.out
    (data,) = run("loom", "check", copy, "--json", cwd=tmp_path).lines
    assert data["casts_without_end"] == ["kb"]
    (data,) = run("loom", "check", path, "--json", cwd=tmp_path).lines
    assert data["casts_without_end"] == []


# --- old looms -------------------------------------------------------------------------------------------------------


def old(place: Place) -> None:
    """A loom as an earlier version wrote it: without chains."""
    if place.kind == "jsonl":
        with Loom.open(place.where) as loom:
            fill(loom, 3)
        rows = stored(place)
        Path(place.where).unlink()
        store(place, [{"body": checksum.strip(row["body"].rstrip()) + b"\n"} for row in rows])
        return
    with place.open() as loom:
        fill(loom, 3)
    rows = [{**row, "body": _with(row, checksum.strip(_text(row)))["body"]} for row in stored(place)]
    later = ("entity", "sum", "writer")
    if place.kind == "sqlite":
        path = Path(place.where.removeprefix("sqlite:"))
        path.unlink()
        base = sqlite3.connect(path, isolation_level=None)
        base.executescript(sqlite.MIGRATIONS[0])
        base.execute(f"PRAGMA application_id = {sqlite.KIND.application}")
        base.execute("PRAGMA user_version = 1")
        base.close()
        store(place, [{k: v for k, v in row.items() if k not in later} for row in rows])
        return
    with _owner(place) as owner:
        owner.execute("ALTER TABLE cantrip_looms DISABLE TRIGGER USER")
        owner.execute("UPDATE cantrip_looms SET tables = 1 WHERE name = %s", (_name(place),))
        owner.execute("ALTER TABLE cantrip_looms ENABLE ALWAYS TRIGGER cantrip_kept")
        owner.execute(
            "DELETE FROM cantrip_chains WHERE loom = (SELECT id FROM cantrip_looms WHERE name = %s)", (_name(place),)
        )
    store(place, [{k: v for k, v in row.items() if k not in later} for row in rows])
    with _owner(place) as owner:
        owner.execute(
            "CREATE UNIQUE INDEX cantrip_records_turn ON cantrip_records (loom, turn_id) WHERE turn_id IS NOT NULL"
        )


def test_an_old_loom_is_whole_and_goes_on_with_a_chain(alone: Place) -> None:
    old(alone)
    assert found(alone) == []
    with alone.open() as loom:
        assert loom.problems == ()
        loom.append(Turn("a3", "a2", "c", "a", "ka"))
        loom.append(Turn("n0", None, "c", "new", None, role="call"))
        loom.append(Turn("a4", "a3", "c", "a", "ka"))
    assert found(alone) == []
    whole = stored(alone)
    bodies = [_text(row).rstrip(b"\n") for row in whole]
    assert [checksum.sums(body)[0] is not None for body in bodies].count(True) == 3
    # The last old record, the first chained one, and the chain of a chained one.
    for hurt in (whole[:-4] + whole[-3:], whole[:-3] + whole[-2:], unseal(whole[-3:], random.Random(1))):
        store(alone, hurt if len(hurt) > 3 else [*whole[:-3], *hurt])
        assert found(alone)


def test_records_name_the_one_before(filled: Place) -> None:
    last: dict[str, str] = {}
    for row in stored(filled):
        data = json.loads(_text(row))
        chain = "" if filled.kind == "jsonl" else data.get("entity_id", "")
        assert data["prev"] == last.get(chain, checksum.START)
        last[chain] = data["sum"]


def test_copies_imports_and_rewritten_databases_are_whole(filled: Place, tmp_path: Path) -> None:
    with filled.open(readonly=True) as loom, loom.copy_to(open_store(Place.like(filled, "copy").where)) as copy:
        assert copy.check() == []
        assert list(copy.records()) == list(loom.records())
    with filled.open(readonly=True) as loom, Loom.open(tmp_path / "into.loom.jsonl") as into:
        into.append(Turn("mine", None, "c", "me", None, role="call"))
        merge(loom, into)
        assert into.check() == []
    if filled.kind == "sqlite":
        base = sqlite3.connect(filled.where.removeprefix("sqlite:"), isolation_level=None)
        base.execute("VACUUM")
        base.close()
        assert found(filled) == []


def test_several_writers_of_one_entity_and_of_several_keep_the_chains(shared: Place) -> None:
    one, two = shared.open(), shared.open()
    one.append(CantripRecord("c", {}, {}))
    one.append(Turn("t0", None, "c", "e", None, role="call"))
    for n in range(1, 40):
        writer, other = (one, two) if n % 3 else (two, one)
        writer.append(Turn(f"t{n}", f"t{n - 1}", "c", "e", "k"))
        other.append(Turn(f"o{n}", None, "c", f"f{n % 2}", "k", role="call"))
        if n % 5 == 0:
            one.annotate_reward(f"t{n}", 1)
    assert found(shared) == []


def test_the_check_says_it_at_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "a.loom.jsonl"
    with Loom.open(path) as loom:
        fill(loom)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:5] + lines[6:-1]))
    done = run("loom", "check", path, cwd=tmp_path)
    assert done.status == 1
    assert "line 6: does not follow the record before it: records between them were removed or damaged" in done.out
    assert "the file is shorter than when it was last closed: 2 of its last lines are missing" in done.out


# --- records of a later version --------------------------------------------------------------------------------------


def test_records_of_a_later_version_are_kept_named_and_copied(tmp_path: Path) -> None:
    path = tmp_path / "a.loom.jsonl"
    with Loom.open(path) as loom:
        fill(loom, 3)
    lines = path.read_bytes().splitlines()
    later = [
        {"type": "dream", "id": "d1", "entity_id": "a", "text": "of sheep", "deep": {"x": [1, 2]}},
        {
            "type": "turn",
            "id": "a9",
            "parent_id": "a2",
            "cantrip_id": "c",
            "entity_id": "a",
            "cast_id": "ka",
            "role": "oracle",
        },
        {"type": "reward", "turn_id": "a1", "reward": 0.25, "by": "me", "certainty": 0.5},
    ]
    before = checksum.sums(lines[-1])[1]
    for each in later:
        buffer = bytearray(json.dumps(each).encode())
        before = checksum.close(buffer, before)
        lines.append(bytes(buffer[:-1]))
    by_hand = json.dumps({"type": "mood", "id": "m1", "entity_id": "a"}).encode()
    path.write_bytes(b"\n".join([*lines, by_hand]) + b"\n")
    for where in (str(tmp_path / "b.loom.jsonl"), f"sqlite:{tmp_path}/c.db"):
        with Loom.open(path, readonly=True) as loom:
            assert loom.problems == ()
            assert loom.check() == []
            assert dict(loom.later) == {"dream": 1, "mood": 1}
            assert loom.reward("a1") == 0.25
            with loom.copy_to(open_store(where)) as copy:
                assert copy.check() == []
        with Loom.open(where, readonly=True) as copy:
            assert dict(copy.later) == {"dream": 1, "mood": 1}
            assert copy.check() == []
            kept = [json.loads(checksum.strip(body)) for _, body in copy.stored() if body is not None]
        assert [each for each in kept if each in later] == later
    with Loom.open(path, readonly=True) as loom, Loom.open(f"sqlite:{tmp_path}/all.db") as into:
        into.append(Turn("mine", None, "c", "me", None, role="call"))
        report = merge(loom, into)
        assert {what: n for what, n in report.notes.items() if "later version" in what} == {
            f"records of a later version, taken as they are ({name})": 1 for name in ("dream", "turn", "mood")
        }
        taken = [json.loads(body) for _, body in into.stored() if body is not None]
        assert [each for each in taken if each in later] == later
        assert into.check() == []
    with Loom.open(path) as loom:
        loom.append(Turn("z", "a2", "c", "a", "ka"))
        assert loom.check() == []
    assert found(Place("jsonl", str(path))) == []
    done = run("loom", "check", path, cwd=tmp_path)
    assert done.status == 0
    assert "1 record of kind 'dream'" in done.out
    (data,) = run("loom", "check", path, "--json", cwd=tmp_path).lines
    assert data["later"] == {"dream": 1, "mood": 1}
    told = run("loom", "export", path, "-f", "openai", "--include-truncated", "--json", cwd=tmp_path)
    notes = json.loads(told.err)["notes"]
    assert any("a turn of a later version" in why for why in json.loads(told.err)["left_out"])
    assert notes["records of kind 'dream' of a later version are left out"] == 1
    with closing(LoomReader(str(path))) as reading:
        reading.load()
        assert reading.about()["later"] == {"dream": 1, "mood": 1}


def test_what_is_shown_names_records_of_a_later_version(tmp_path: Path) -> None:
    path = tmp_path / "a.loom.jsonl"
    with Loom.open(path) as loom:
        fill(loom, 3)
    with path.open("ab") as file:
        file.write(b'{"type":"mood","id":"m1","entity_id":"a"}\n')
    assert json.loads(run("loom", "show", path, "--json", cwd=tmp_path).out)["later"] == {"mood": 1}
    assert "1 record of kind mood from a later version: not shown" in run("loom", "show", path, cwd=tmp_path).out


# --- reading what is left ----------------------------------------------------------------------------------------------

READING = [
    *(("list",), ("show", "--json"), ("tree",), ("export", "-f", "openai"), ("export", "-f", "verifiers")),
    ("view", "--html", "page.html"),
]


def unread(row: Row) -> Row:
    """A record whose place can be read and whose words cannot, as after a bad block."""
    return _with(
        row, _text(row).replace(b'"reason":', b'"reason":[],"x":', 1).replace(b'"timestamp":"', b'"timestamp":7,"x":"')
    )


def test_one_damaged_record_does_not_hide_the_others(filled: Place, tmp_path: Path) -> None:
    whole = stored(filled)
    hurt = [
        unread(r) if b'"id":"a4"' in _text(r) or b'"event":"start","entity_id":"a"' in _text(r) else r for r in whole
    ]
    assert hurt != whole
    store(filled, hurt)
    for command, *options in READING:
        done = run("loom", command, filled.where, *options, cwd=tmp_path)
        assert done.status == 0, (command, done.err)
        # The other entity's thread is there, word by word.
        assert command != "export" or "words 7 of b" in done.out
    assert found(filled)


def test_who_would_go_on_from_a_damaged_turn_is_told(filled: Place, tmp_path: Path) -> None:
    whole = stored(filled)
    at = next(n for n, r in enumerate(whole) if b'{"type":"turn","id":"a4"' in _text(r))
    store(filled, [*whole[:at], unread(whole[at]), *whole[at + 1 :]])
    with filled.open() as loom, pytest.raises(LoomError, match=r"damaged|no record|no turn 'a4'"):
        loom.turn("a4")
    with filled.open(readonly=True) as loom:
        assert [turn.id for turn in loom.thread("b7")] == [f"b{n}" for n in range(8)]


def test_a_check_beside_writers_tells_no_false_damage(shared: Place) -> None:
    """Two writers append while a third looks; what it sees is one state of the database."""
    with shared.open() as loom:
        loom.append(CantripRecord("c", {}, {}))
    go_on = threading.Event()

    def write(name: str) -> None:
        with Loom.open(shared.where) as loom:
            for life in itertools.count():
                entity = f"{name}{life}"
                loom.append(Turn(f"{entity}-0", None, "c", entity, None, role="call"))
                for n in range(1, 9):
                    loom.append(Turn(f"{entity}-{n}", f"{entity}-{n - 1}", "c", entity, None, sequence=n))
                    if go_on.wait(0.002):
                        return

    threads = [threading.Thread(target=write, args=(name,)) for name in ENTITIES]
    for thread in threads:
        thread.start()
    try:
        alarms = [each for _ in range(15) for each in found(shared)]
    finally:
        go_on.set()
        for thread in threads:
            thread.join()
    assert alarms == []
    assert found(shared) == []


def test_a_line_that_is_being_written_is_not_torn(tmp_path: Path) -> None:
    path = tmp_path / "a.loom.jsonl"
    with Loom.open(path) as loom:
        fill(loom, 3)
        with open(path, "ab") as file:
            file.write(b'{"type":"turn","id":"half')
        with Loom.open(path, readonly=True) as reader:
            assert reader.check() == []
    with Loom.open(path, readonly=True) as reader:
        assert [problem.rule for problem in reader.check()][:1] == ["torn-line"]


def test_an_emptied_file_is_told(tmp_path: Path) -> None:
    path = tmp_path / "a.loom.jsonl"
    path.touch()
    done = run("loom", "check", path, cwd=tmp_path)
    assert (done.status, "the file is empty" in done.out) == (1, True)
    path.unlink()
    with Loom.open(path), Loom.open(path, readonly=True) as reader:
        # Its writer has not said anything yet.
        assert reader.check() == []


def test_records_before_the_first_are_told(alone: Place) -> None:
    if alone.kind == "jsonl":
        return
    with alone.open() as loom:
        fill(loom, 3)
    whole = stored(alone)
    if alone.kind == "sqlite":
        base = sqlite3.connect(alone.where.removeprefix("sqlite:"), isolation_level=None)
        base.execute("PRAGMA ignore_check_constraints = 1")
        base.execute("DROP TRIGGER record_new")
        base.execute("INSERT INTO record (n, kind, head, body) VALUES (-3, 'reward', '{}', '{}')")
        base.close()
    else:
        store(alone, [{**whole[-1], "n": 0}, *whole])
    assert any("before the first" in each for each in found(alone))


def test_a_database_file_with_damaged_pages_is_read_or_named(tmp_path: Path) -> None:
    """Whatever bytes a disk gives back: no failure of ours, and no damage of a record that is not told."""
    path = tmp_path / "a.db"
    with Loom.open(f"sqlite:{path}") as loom:
        fill(loom, 6)
    whole, dice, told = path.read_bytes(), random.Random(11), 0
    records = _dump(path)
    for n in range(120):
        data = bytearray(whole)
        at = dice.randrange(len(data))
        match n % 4:
            case 0:
                data[at : at + 512] = bytes(len(data[at : at + 512]))
            case 1:
                data[at] ^= 1 << dice.randrange(8)
            case 2:
                data[at : at + 300] = dice.randbytes(len(data[at : at + 300]))
            case _:
                for _ in range(60):
                    data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
        path.write_bytes(data)
        try:
            with Loom.open(f"sqlite:{path}", readonly=True) as loom:
                problems = loom.check()
                loom.threads()
        except LoomError:
            told += 1
            continue
        told += bool(problems)
        assert problems or _dump(path) == records, n
    assert told > 30


def _dump(path: Path) -> Any:
    base = sqlite3.connect(path)
    try:
        return base.execute(
            "SELECT n, kind, turn_id, parent_id, body, entity, sum FROM record NOT INDEXED ORDER BY n"
        ).fetchall()
    except (sqlite3.Error, UnicodeError) as error:
        return str(error)
    finally:
        base.close()
