"""Databases whose guards somebody took away: it is noticed, what is missing or changed is named, a writer puts them back."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import psycopg
import pytest

from cantrip_acp import Loom, LoomError, Turn
from tests.support.postgres_server import Server


def grown(where: str, count: int = 6) -> None:
    with Loom.open(where) as loom:
        for n in range(count):
            loom.append(Turn(f"t{n}", f"t{n - 1}" if n else None, "c", "e", "k"))


def told(where: str, *, readonly: bool) -> list[str]:
    with Loom.open(where, readonly=readonly) as loom:
        return [str(problem) for problem in loom.problems]


@pytest.fixture
def file(tmp_path: Path) -> str:
    grown(f"sqlite:{tmp_path}/a.db")
    return f"{tmp_path}/a.db"


def by_hand(file: str, *statements: str) -> None:
    base = sqlite3.connect(file, isolation_level=None)
    for statement in statements:
        base.execute(statement)
    base.close()


def test_sqlite_what_was_deleted_past_the_guards_is_named(file: str) -> None:
    by_hand(file, "DROP TRIGGER record_deleted", "DELETE FROM record WHERE n IN (3, 4, 6)")
    gone = "trigger record_deleted, which guards the database, was removed: records may have been changed or deleted meanwhile"
    lost = [
        "records 3 to 4 are missing: deleted by somebody past the database's guards",
        "record 5: turn 't3' names a parent that is not above it: 't2'",
        "record 6 is missing: deleted by somebody past the database's guards",
        "record 7: turn 't5' names a parent that is not above it: 't4'",
    ]
    for _ in range(2):
        assert sorted(told(file, readonly=True)) == sorted([gone, *lost])
    assert sorted(told(file, readonly=False)) == sorted([f"{gone}; it is there again", *lost])
    assert sorted(told(file, readonly=False)) == sorted(lost)
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        by_hand(file, "DELETE FROM record WHERE n = 2")


def test_sqlite_a_guard_that_was_changed(file: str) -> None:
    by_hand(
        file,
        "DROP TRIGGER record_changed",
        "CREATE TRIGGER record_changed BEFORE UPDATE ON record BEGIN SELECT 1; END",
        """UPDATE record SET body = replace(body, '"parent_id":"t1"', '"parent_id":"t0"') WHERE turn_id = 't2'""",
        "DROP TRIGGER record_changed",
        "CREATE TRIGGER record_changed BEFORE UPDATE ON record BEGIN SELECT 1; END",
    )
    assert "trigger record_changed, which guards the database, was changed" in told(file, readonly=True)[0]
    with Loom.open(file) as loom:
        told_by_check = [str(p) for p in loom.check()]
        assert [p for p in told_by_check if "since it was written" in p] == [
            "record 4 was changed since it was written: its checksum is another"
        ]
        with pytest.raises(LoomError, match="was replaced"):
            loom.turn("t2")
        assert loom.turn("t3").id == "t3"
    assert told(file, readonly=True) == []


def test_sqlite_a_guard_that_does_not_fit_any_more(file: str) -> None:
    by_hand(
        file,
        "DROP TRIGGER record_new",
        "DROP INDEX record_turn",
        "INSERT INTO record (kind, turn_id, parent_id, head, body) "
        "SELECT kind, turn_id, parent_id, head, body FROM record WHERE n = 3",
    )
    problems = told(file, readonly=False)
    assert any("index record_turn" in p and "it cannot be put back: UNIQUE constraint failed" in p for p in problems)
    assert any("trigger record_new" in p and p.endswith("it is there again") for p in problems)
    assert "record 8: a second turn 't1'; the first one counts" in problems


@pytest.fixture
def base(postgres: Server) -> str:
    """A database of its own, since guards are of all looms of one."""
    name = f"guards{os.urandom(4).hex()}"
    with psycopg.connect(postgres.url("x").partition("?")[0], autocommit=True) as owner:
        owner.execute(f"CREATE DATABASE {name}")
    return name


def server_hand(postgres: Server, base: str, *statements: str, user: str | None = None) -> None:
    url = postgres.url("x", database=base).partition("?")[0]
    if user is not None:
        url = url.replace("keeper:", f"{user}:")
    with psycopg.connect(url, autocommit=True) as owner:
        for statement in statements:
            owner.execute(statement)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    "how",
    [
        "ALTER TABLE cantrip_records DISABLE TRIGGER cantrip_kept",
        "DROP TRIGGER cantrip_kept ON cantrip_records",
        "CREATE OR REPLACE FUNCTION cantrip_kept() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN OLD; END'",
        "DROP TRIGGER cantrip_kept ON cantrip_records; CREATE TRIGGER cantrip_kept BEFORE TRUNCATE ON cantrip_records "
        "FOR EACH STATEMENT EXECUTE FUNCTION cantrip_kept()",
    ],
)
def test_postgres_what_was_deleted_past_the_guards_is_named(postgres: Server, base: str, how: str) -> None:
    url = postgres.url("a", database=base)
    grown(url)
    server_hand(postgres, base, how, "DELETE FROM cantrip_records WHERE n IN (3, 4)")
    for readonly in (True, True, False):
        problems = told(url, readonly=readonly)
        assert problems[0].startswith(
            "the database's guards were removed, changed or disabled (cantrip_kept of cantrip_records"
        )
        assert problems[0].endswith("meanwhile" if readonly else "; they are there again")
        assert "records 3 to 4 are missing: deleted by somebody past the database's guards" in problems
    assert not any("guards were" in p for p in told(url, readonly=True))
    with pytest.raises(psycopg.errors.RestrictViolation):
        server_hand(postgres, base, "DELETE FROM cantrip_records WHERE n = 2")


def test_postgres_guards_hold_for_who_says_it_is_a_replica(postgres: Server, base: str) -> None:
    grown(postgres.url("a", database=base))
    for statement in (
        "DELETE FROM cantrip_records",
        "UPDATE cantrip_records SET body = ''",
        "TRUNCATE cantrip_records",
    ):
        with pytest.raises(psycopg.errors.RestrictViolation, match="append-only"):
            server_hand(postgres, base, "SET session_replication_role = replica", statement)


def test_postgres_a_role_that_may_only_append(postgres: Server, base: str) -> None:
    role = f"writer_{base}"
    url = postgres.url("a", database=base)
    grown(url, 2)
    server_hand(
        postgres,
        base,
        f"CREATE ROLE {role} LOGIN PASSWORD 's3cret%pass word'",
        f"GRANT SELECT, INSERT ON cantrip_looms, cantrip_records TO {role}",
    )
    theirs = url.replace("keeper:", f"{role}:")
    with Loom.open(theirs) as loom:
        loom.append(Turn("t2", "t1", "c", "e", "k"))
        assert len(loom) == 3
    grown(theirs.replace("loom=a", "loom=b"))
    for statement in (
        "DROP TRIGGER cantrip_kept ON cantrip_records",
        "ALTER TABLE cantrip_records DISABLE TRIGGER ALL",
        "DELETE FROM cantrip_records",
        "UPDATE cantrip_records SET body = ''",
        "TRUNCATE cantrip_records",
    ):
        with pytest.raises((psycopg.errors.InsufficientPrivilege, psycopg.errors.RestrictViolation)):
            server_hand(postgres, base, statement, user=role)
    server_hand(postgres, base, "DROP TRIGGER cantrip_new ON cantrip_records")
    with pytest.raises(LoomError, match="open it once as the owner of its tables, which restores them"):
        Loom.open(theirs)
    Loom.open(url).close()
    with Loom.open(theirs) as loom:
        loom.append(Turn("t3", "t2", "c", "e", "k"))
