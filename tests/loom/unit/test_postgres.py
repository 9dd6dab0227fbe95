"""PostgreSQL's own: what the database refuses by itself, lost servers, wrong addresses, and passwords that stay unseen."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from cantrip_acp import Loom, LoomError, Turn
from cantrip_acp.db.postgres_url import PgUrl
from cantrip_acp.loom.stores.postgres import PostgresStore
from tests.support.postgres_server import QUOTED, Server


def named(name: str) -> str:
    return f"{name}-{os.getpid()}"


def direct(server: Server) -> psycopg.Connection[tuple[object, ...]]:
    return psycopg.connect(server.url("x").partition("?")[0], autocommit=True)


def grown(url: str, count: int = 3) -> None:
    with Loom.open(url) as loom:
        for n in range(count):
            loom.append(Turn(f"t{n}", f"t{n - 1}" if n else None, "c", "e", "k"))


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE cantrip_records SET body = ''",
        "DELETE FROM cantrip_records",
        "TRUNCATE cantrip_records",
        "TRUNCATE cantrip_looms CASCADE",
        "DELETE FROM cantrip_looms",
        "UPDATE cantrip_looms SET name = name || 'x'",
        "INSERT INTO cantrip_records SELECT loom, n, kind, turn_id, parent_id, head, body FROM cantrip_records WHERE n = 2",
        "INSERT INTO cantrip_records SELECT loom, n, kind, 'new', 'nobody', head, body FROM cantrip_records WHERE n = 2",
        "INSERT INTO cantrip_records SELECT * FROM cantrip_records WHERE n = 1",
    ],
)
def test_the_database_itself_is_append_only(postgres: Server, statement: str) -> None:
    grown(postgres.url(named(f"own-{abs(hash(statement))}")))
    everything = "SELECT * FROM cantrip_records ORDER BY loom, n"
    with direct(postgres) as base:
        before = base.execute(everything).fetchall()
        assert len(before) >= 4
        with pytest.raises(psycopg.errors.RestrictViolation, match="cantrip: "):
            base.execute(statement)
        assert base.execute(everything).fetchall() == before


def test_looms_of_one_database_are_strangers(postgres: Server) -> None:
    one, two = postgres.url(named("one")), postgres.url(named("two"))
    grown(one, 3)
    grown(two, 5)
    with Loom.open(one, readonly=True) as loom:
        assert len(loom) == 3
    with pytest.raises(LoomError, match="no loom of that name is in this database"):
        Loom.open(postgres.url("nobody's"), readonly=True)


def test_later_tables_are_refused(postgres: Server) -> None:
    name = named("later")
    Loom.open(postgres.url("any")).close()
    with direct(postgres) as base:
        base.execute("INSERT INTO cantrip_looms (name, tables) VALUES (%s, 3)", (name,))
    with pytest.raises(
        LoomError, match=r"its tables have version 3, and this version of cantrip-acp reads up to 2. Upgrade"
    ):
        Loom.open(postgres.url(name))


def test_a_wrong_password_or_database_is_said_without_the_password(postgres: Server) -> None:
    for url in (
        postgres.url("x", password="wr0ng-s3cret"),
        postgres.url("x", database="nowhere"),
        postgres.url("x").replace(f"{QUOTED}@", "@") + f"&password={QUOTED}x",
    ):
        with pytest.raises(LoomError, match=r"cannot open loom postgresql://keeper@127.0.0.1:\d+/") as caught:
            Loom.open(url)
        said = f"{caught.value!r} {caught.value} {caught.value.__cause__}"
        assert "s3cret" not in said


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:s3cret@x@host/db",
        "postgresql://u:s3/s3cret@host/db",
        "postgresql://u:s3?s3cret@host/db",
        "postgresql://u:#s3cret@host/db",
        "postgresql://u:s3cret",
        "postgresql://u:s3cret/db",
        "postgresql:u:s3cret@host/db",
        "postgresql://u:s3cret%zz@host/db",
        "postgresql://u:x@host/db?s3cretoption=1%zz&password=s3cret%zz",
        "postgresql://u:x@host/db?loom=&password=s3cret",
    ],
)
def test_an_address_that_cannot_be_read_is_not_repeated(url: str) -> None:
    with pytest.raises(LoomError) as caught:
        Loom.open(url)
    text = str(caught.value)
    assert "s3cret" not in text.replace("s3cretoption", "")
    assert "postgresql://" in text


def test_what_is_shown_of_an_address(postgres: Server) -> None:
    url = PgUrl.of("postgresql://me:pw@h1:1,h2:2/db?sslmode=require&password=other&loom=a%20b", LoomError)
    assert url.shown == "postgresql://me@h1:1,h2:2/db?sslmode=require&loom=a%20b"
    assert url.server == "postgresql://me:pw@h1:1,h2:2/db?sslmode=require&password=other"
    assert url.loom == "a b"
    assert "pw" not in repr(url)
    assert PgUrl.of(url.shown, LoomError).loom == "a b"
    store = PostgresStore(postgres.url(named("shown")))
    assert "s3cret" not in f"{store!r} {store.location}"
    store.close()


def test_threads_that_read_at_once_all_get_their_answers(postgres: Server) -> None:
    """A look whether the connection lives must not read the answer that another thread waits for."""
    url = postgres.url(named("threads"))
    grown(url, 6)
    with Loom.open(url, readonly=True) as loom:

        def read(_: int) -> int:
            return len([loom.turn(f"t{n % 6}").id for n in range(300)])

        pool = ThreadPoolExecutor(8)
        try:
            assert list(pool.map(read, range(8), timeout=60)) == [300] * 8
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
