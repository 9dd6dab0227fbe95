"""SQLite's own: what the database refuses by itself, what is not a loom, and what a damaged file still gives."""

from __future__ import annotations

import os
import sqlite3
import sys
import threading
from pathlib import Path

import pytest

from cantrip_acp import Loom, LoomError, Turn
from cantrip_acp.loom.stores import sqlite as store
from cantrip_acp.loom.stores.address import is_sqlite
from cantrip_acp.recipes import load_for_session
from cantrip_acp.types.errors import LoomLocked
from cantrip_acp.types.records import CastRecord, Utterance
from tests.support import processes
from tests.support.recipe_writer import write


def filled(path: Path, count: int = 3, said: str = "hello") -> None:
    with Loom.open(f"sqlite:{path}") as loom:
        for n in range(count):
            loom.append(Turn(f"t{n}", f"t{n - 1}" if n else None, "c", "e", "k", utterance=Utterance(said)))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    filled(tmp_path / "a.db")
    return tmp_path / "a.db"


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE record SET body = '{}' WHERE n = 2",
        "DELETE FROM record",
        "DELETE FROM record WHERE n = 4",
        "INSERT OR REPLACE INTO record (n, kind, head, body) VALUES (4, 'reward', '{}', '{}')",
        "REPLACE INTO record (kind, turn_id, head, body) VALUES ('turn', 't1', '{}', '{}')",
        "INSERT INTO record (n, kind, head, body) VALUES (1, 'reward', '{}', '{}')",
        "INSERT INTO record (n, kind, head, body) VALUES (-5, 'reward', '{}', '{}')",
        "INSERT INTO record (kind, turn_id, parent_id, head, body) VALUES ('turn', 'x', 'nobody', '{}', '{}')",
        "INSERT INTO record (kind, head, body) VALUES ('loom', '{}', '{}')",
        "INSERT INTO record (n, kind, turn_id, head, body) VALUES (4, 'turn', 'y', '{}', '{}') ON CONFLICT DO UPDATE SET body = ''",
    ],
)
def test_the_database_itself_is_append_only(path: Path, statement: str) -> None:
    base = sqlite3.connect(path)
    before = base.execute("SELECT * FROM record ORDER BY n").fetchall()
    with pytest.raises(sqlite3.IntegrityError):
        base.execute(statement)
    base.rollback()
    assert base.execute("SELECT * FROM record ORDER BY n").fetchall() == before
    base.close()


def test_a_path_alone_is_known_by_its_content(path: Path) -> None:
    with Loom.open(path) as loom:
        assert len(loom) == 3
        assert loom.location == f"sqlite:{path}"
    assert path.stat().st_mode & 0o077 == 0
    with Loom.open(f"sqlite:{path}", fsync=True) as loom:
        loom.append(Turn("t3", "t2", "c", "e", "k"))
        assert not [p for p in path.parent.iterdir() if p.stat().st_mode & 0o077]


def test_what_is_no_loom_is_refused_and_left_alone(tmp_path: Path) -> None:
    lines = tmp_path / "lines.jsonl"
    lines.write_text('{"type":"loom","id":"x"}\n' * 100)
    with pytest.raises(LoomError, match=r"lines.jsonl: the file is not a SQLite database .*without sqlite:"):
        Loom.open(f"sqlite:{lines}")
    assert lines.read_text() == '{"type":"loom","id":"x"}\n' * 100
    other = tmp_path / "other.db"
    base = sqlite3.connect(other)
    base.execute("CREATE TABLE record (a)")
    base.close()
    before = other.read_bytes()
    with pytest.raises(LoomError, match="a database of another program; name another file"):
        Loom.open(f"sqlite:{other}", readonly=True)
    with pytest.raises(LoomError, match="a database of another program; name another file"):
        Loom.open(f"sqlite:{other}")
    assert sqlite3.connect(other).execute("SELECT sql FROM sqlite_master").fetchall() == [("CREATE TABLE record (a)",)]
    assert before[100:] == other.read_bytes()[100:]
    with pytest.raises(LoomError, match="not a regular file"):
        Loom.open(f"sqlite:{tmp_path}")
    with pytest.raises(LoomError, match="no such file"):
        Loom.open(f"sqlite:{tmp_path / 'none.db'}", readonly=True)
    assert not (tmp_path / "none.db").exists()
    with pytest.raises(LoomError, match="lacks the file"):
        Loom.open("sqlite:")


def test_later_formats_are_refused(path: Path, tmp_path: Path) -> None:
    base = sqlite3.connect(path)
    base.execute(f"PRAGMA user_version = {store.TABLES + 1}")
    base.close()
    with pytest.raises(
        LoomError, match=r"its tables have version 3, and this version of cantrip-acp reads up to 2. Upgrade"
    ):
        Loom.open(path)
    other = tmp_path / "b.db"
    Loom.open(f"sqlite:{other}").close()
    base = sqlite3.connect(other)
    header = '{"type":"loom","id":"x","format":99}'
    base.execute("INSERT INTO record (kind, head, body) VALUES ('loom', ?, ?)", (header, header))
    base.commit()
    base.close()
    with pytest.raises(LoomError, match=r"has format 99; this version reads up to 1. Upgrade"):
        Loom.open(other, readonly=True)


def test_a_lock_that_is_not_let_go_is_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "PATIENCE_S", 0.2)
    base = sqlite3.connect(path, isolation_level=None)
    with Loom.open(path) as loom:
        base.execute("BEGIN IMMEDIATE")
        with pytest.raises(LoomError, match=r"a.db: database is locked.*Another program uses it"):
            loom.annotate_reward("t1", 1)
        assert len(loom.thread("t2")) == 3, "readers wait for nobody"
        base.execute("ROLLBACK")
        loom.annotate_reward("t1", 1)
    base.execute("PRAGMA locking_mode = EXCLUSIVE")
    base.execute("BEGIN EXCLUSIVE")
    with pytest.raises(LoomLocked, match=r"a.db was locked by another program for 0.2 s; close that program"):
        Loom.open(path)
    base.close()


def test_a_damaged_record_is_reported_and_the_rest_is_read(path: Path) -> None:
    data = bytearray(path.read_bytes())
    # The bodies of t1, in the table alone: its head lies in the index too, and stays.
    at = data.find(b'"sequence"', data.find(b'{"type":"turn","id":"t1","parent_id":"t0"') + 100)
    assert at > 0
    data[at] = 0xFF
    path.write_bytes(bytes(data))
    with Loom.open(path) as loom:
        assert len(loom) == 3
        assert sum(1 for _ in loom.records()) in (3, 4)


def test_a_head_that_is_no_json_is_told_once(path: Path) -> None:
    base = sqlite3.connect(path)
    base.execute("INSERT INTO record (kind, head, body) VALUES ('reward', 'nonsense', '{}')")
    base.commit()
    base.close()
    with Loom.open(path) as loom:
        assert [str(p).partition(":")[0] for p in loom.problems] == ["record 5 is damaged"]
        assert "nobody" not in loom
        loom.append(Turn("t3", "t2", "c", "e", "k"))
        assert [t.id for t in loom.thread("t3")] == ["t0", "t1", "t2", "t3"]
        assert len(loom.problems) == 1


def test_a_file_with_bad_pages_gives_what_is_good(tmp_path: Path) -> None:
    path = tmp_path / "big.db"
    filled(path, 400, "x" * 2000)
    whole = path.read_bytes()
    good = 0
    for page in range(2, len(whole) // 4096, 23):
        damaged = tmp_path / f"damaged-{page}.db"
        damaged.write_bytes(whole[: page * 4096] + b"\xa5" * 4096 + whole[(page + 1) * 4096 :])
        try:
            with Loom.open(damaged, readonly=True) as loom:
                assert all(str(p) for p in loom.problems)
                for turn_id in loom.path(loom.leaves()[-1]) if loom.leaves() else ():
                    try:
                        assert loom.turn(turn_id).id == turn_id
                        good += 1
                    except LoomError as error:
                        assert str(damaged) in str(error)  # noqa: PT017
        except LoomError as error:
            assert str(damaged) in str(error)  # noqa: PT017
    assert good > 1000
    cut = tmp_path / "cut.db"
    cut.write_bytes(whole[: len(whole) // 2])
    try:
        with Loom.open(cut, readonly=True) as loom:
            assert loom.problems
    except LoomError as error:
        assert "cut.db" in str(error)  # noqa: PT017


def test_a_reader_in_a_folder_that_cannot_be_written(path: Path) -> None:
    os.chmod(path.parent, 0o500)
    try:
        with Loom.open(path, readonly=True) as loom:
            assert len(loom) == 3
    finally:
        os.chmod(path.parent, 0o700)


def test_a_recipe_keeps_its_turns_beside_itself(tmp_path: Path) -> None:
    recipe = (
        "crystal: {provider: scripted, responses: [{content: hi}]}\n"
        "circle: {gates: [done], wards: [{max_turns: 2}]}\n"
        "loom: {store: 'sqlite:kept/turns.db'}\n"
    )
    path = write(tmp_path, recipe, "recipes/r.cantrip.yaml")
    cantrip = load_for_session(str(path), tmp_path, tmp_path / "state", trusted=True)
    assert cantrip.loom_settings["store"] == f"sqlite:{tmp_path}/recipes/kept/turns.db"


def test_a_look_at_a_database_keeps_the_locks_of_this_process(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    base = sqlite3.connect(path, isolation_level=None)
    base.execute("CREATE TABLE t (x)")
    base.execute("BEGIN IMMEDIATE")
    assert is_sqlite(path)
    take = f"import sqlite3; sqlite3.connect({str(path)!r}, timeout=0).execute('BEGIN IMMEDIATE')"
    other = processes.run([sys.executable, "-c", take], capture_output=True, text=True, check=False)
    base.close()
    assert "database is locked" in other.stderr
    assert is_sqlite(path)


def test_whoever_reads_slowly_takes_no_write_of_its_own_process(path: Path) -> None:
    """An open read would keep an old snapshot of the database, on which nothing can be written any more."""
    with Loom.open(f"sqlite:{path}") as loom, Loom.open(f"sqlite:{path}") as other:
        for number, read in enumerate((loom.records, loom.stored, loom.turns)):
            reading = read()
            next(reading)  # type: ignore[call-overload]
            other.append(Turn(f"other{number}", "t2", "c", "e2", "k"))
            loom.append(Turn(f"own{number}", "t2", "c", "e3", "k"))
            reading.close()  # type: ignore[attr-defined]
        other.refresh()
        assert [turn.id for turn in loom.turns()] == [turn.id for turn in other.turns()]


OTHER_WRITER = """
import sys
import threading
from cantrip_acp import Loom, Turn
with Loom.open(sys.argv[1]) as loom:
    print("ready", flush=True)
    for number in range(100_000):
        loom.append(Turn(f"other{number}", None, "c", "e2", "k"))
"""


def test_threads_read_while_this_process_and_another_one_write(path: Path) -> None:
    where, failures, stop = f"sqlite:{path}", list[BaseException](), threading.Event()
    with (
        processes.Popen([sys.executable, "-c", OTHER_WRITER, where], stdout=-1) as other,
        Loom.open(where) as loom,
    ):
        assert other.stdout is not None
        other.stdout.readline()

        def read() -> None:
            try:
                while not stop.is_set():
                    loom.cast_starts()
                    loom.has_entity("nobody")
                    loom.bodies(["t0", "t1", "t2"])
                    loom.children_until("t2")
                    for _ in loom.records():
                        if stop.is_set():
                            return
            except BaseException as error:
                failures.append(error)

        readers = [threading.Thread(target=read) for _ in range(3)]
        for each in readers:
            each.start()
        try:
            for number in range(300):
                loom.append(Turn(f"own{number}", None, "c", "e3", "k"))
                loom.append(CastRecord(f"k{number}", "start", "e3", "c"))
        finally:
            stop.set()
            other.kill()
            for each in readers:
                each.join()
        assert failures == []
