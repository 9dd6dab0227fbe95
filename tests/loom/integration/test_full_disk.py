"""A full disk: a clear error, nothing half, and it goes on once there is room."""

from __future__ import annotations

import os
from pathlib import Path

import psycopg
import pytest

from cantrip_acp import Loom, Turn
from cantrip_acp.loom.stores import index_file
from cantrip_acp.types.errors import LoomWriteError
from cantrip_acp.types.records import Utterance
from tests.support.loom_stores import FILES, Place
from tests.support.postgres_server import Server


def grown(loom: Loom, count: int, said: str = "hello") -> None:
    for n in range(count):
        loom.append(Turn(f"t{n}", f"t{n - 1}" if n else None, "c", "e", "k", sequence=n, utterance=Utterance(said)))


def fill(disk: Path) -> Path:
    """A file that takes all the room there is."""
    ballast = disk / "ballast"
    with open(ballast, "wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            return ballast


@pytest.mark.parametrize("kind", FILES)
def test_a_full_disk_is_an_error_and_hurts_nothing(kind: str, small_disk: Path) -> None:
    place = Place.at(kind, small_disk)
    loom = place.open()
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * 400_000)
    with pytest.raises(LoomWriteError, match=r"cannot write loom .*Free some disk space") as caught:
        grown(loom, 2000, "x" * 5000)
    count = len(loom)
    assert str(small_disk) in str(caught.value)
    ballast.unlink()
    loom.append(Turn("after", f"t{count - 1}", "c", "e", "k"))
    loom = place.again(loom)
    assert not loom.problems
    assert len(loom) == count + 1
    assert loom.turn("after").parent_id == f"t{count - 1}"
    loom.close()


def test_an_index_that_has_no_room_is_none(small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_file, "WORTH", 1000)
    path = small_disk / "a.loom.jsonl"
    loom = Loom.open(path)
    grown(loom, 300)
    ballast = fill(small_disk)
    loom.close()
    assert sorted(p.name for p in small_disk.iterdir()) == ["a.loom.jsonl", "ballast"]
    ballast.unlink()
    with Loom.open(path) as loom:
        assert (len(loom), loom.problems) == (300, ())
        loom.append(Turn("after", "t299", "c", "e", "k"))
    assert index_file.path_of(path).exists()


def test_a_torn_line_that_cannot_be_set_aside_stays_where_it_is(small_disk: Path) -> None:
    path = small_disk / "a.loom.jsonl"
    with Loom.open(path) as loom:
        grown(loom, 3)
    with path.open("ab") as file:
        file.write(b'{"type":"turn","id":"torn"' + b" " * 100_000)
    before = path.read_bytes()
    ballast = fill(small_disk)
    with pytest.raises(LoomWriteError, match=r"its last line is torn and cannot be set aside .*nothing was changed"):
        Loom.open(path)
    assert path.read_bytes() == before
    assert sorted(p.name for p in small_disk.iterdir()) == ["a.loom.jsonl", "ballast"]
    with Loom.open(path, readonly=True) as loom:
        assert len(loom) == 3
    ballast.unlink()
    with Loom.open(path) as loom:
        assert len(loom) == 3
        assert "set aside" in str(loom.problems[0])


@pytest.mark.parametrize("kind", FILES)
def test_no_room_for_the_first_record(kind: str, small_disk: Path) -> None:
    ballast = fill(small_disk)
    place = Place.at(kind, small_disk)
    with pytest.raises(LoomWriteError, match=r"cannot write loom .*Free some disk space"):
        grown(place.open(), 1, "x" * 50_000)
    place.close()
    ballast.unlink()
    with place.open() as loom:
        assert (len(loom), loom.problems) == (0, ())
        grown(loom, 2)
    with place.open() as loom:
        assert (len(loom), loom.problems) == (2, ())


def test_a_server_whose_disk_is_full(postgres: Server, small_disk: Path) -> None:
    disk = small_disk / "tables"
    disk.mkdir()
    os.chown(disk, 65534, 65534)
    for folder in (small_disk, *small_disk.parents):
        if folder.stat().st_uid == 0 and not folder.stat().st_mode & 0o001:
            folder.chmod(folder.stat().st_mode | 0o011)
    Loom.open(postgres.url("any")).close()
    with psycopg.connect(postgres.url("x").partition("?")[0], autocommit=True) as base:
        base.execute(f"CREATE TABLESPACE small LOCATION '{disk}'")
        base.execute("CREATE DATABASE small TABLESPACE pg_default")
    url = postgres.url("full", database="small")
    Loom.open(url).close()
    try:
        with psycopg.connect(url.partition("?")[0], autocommit=True) as base:
            base.execute("ALTER TABLE cantrip_records SET TABLESPACE small")
        with Loom.open(url) as loom:
            # Noise, which the server cannot compress.
            with pytest.raises(
                LoomWriteError, match=r"cannot write loom .*No space left on device.*disk space\?"
            ) as caught:
                grown(loom, 500, os.urandom(9000).hex())
            assert "s3cret" not in str(caught.value)
            count = len(loom)
            assert count > 5
            loom.refresh()
            assert [t.id for t in loom.turns()] == [f"t{n}" for n in range(count)]
        with Loom.open(url) as loom:
            assert (len(loom), loom.problems) == (count, ())
    finally:
        with psycopg.connect(postgres.url("x").partition("?")[0], autocommit=True) as base:
            base.execute("DROP DATABASE small")
            base.execute("DROP TABLESPACE small")
