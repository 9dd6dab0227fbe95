"""Databases that several processes write: only what a dead one had said is completed, and lost connections are made again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from cantrip_acp import Turn
from cantrip_acp.errors import LoomError
from cantrip_acp.loom.stores.writers import Writer, has_ended, started, this
from cantrip_acp.loom.turn import CantripRecord, CastRecord
from tests.cli.command import run
from tests.loom.pgserver import Server
from tests.loom.places import Place
from tests.loom.test_interrupted import KILLED, killed_in_a_call


@contextmanager
def waiting(where: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process in the middle of a gate call."""
    program = KILLED.format(root=os.getcwd(), where=where)
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"waiting\n"
        try:
            yield process
        finally:
            process.kill()


def test_whoever_opens_it_next_completes_what_a_dead_process_said(kept: Place, tmp_path: Path) -> None:
    killed_in_a_call(kept.where)
    with kept.open(readonly=True) as reader:
        assert len(reader.unfinished()) == 1, "a reader changes nothing"
    told = run("loom", "check", kept.where, cwd=tmp_path)
    assert "its process ended and the next writer completes it" in told.out
    with kept.open() as loom:
        assert loom.unfinished() == []
        (turn,) = [each for each in loom.turns() if each.role == "crystal"]
        assert (turn.reason, turn.truncated, turn.utterance.content) == ("error", True, "I wait.")
        (thread,) = loom.threads()
        assert thread.state == "truncated"
        assert [end.reason for _, end in loom.casts() if end is not None] == ["error"]
        assert loom.check() == []
    shown = run("loom", "list", kept.where, "--json", cwd=tmp_path)
    assert '"outcome": "interrupted"' in shown.out, shown.err
    assert run("loom", "check", kept.where, cwd=tmp_path).status == 0
    exported = run("loom", "export", kept.where, "--format", "openai", "--include-truncated", cwd=tmp_path)
    assert "I wait." in exported.out
    with kept.open() as again:
        assert len(list(again.turns())) == 2


def test_what_a_living_process_says_is_left_alone(shared: Place) -> None:
    with waiting(shared.where) as one, waiting(shared.where) as two:
        with shared.open() as loom:
            assert len(loom.unfinished()) == 2
        one.send_signal(signal.SIGKILL)
        one.wait()
        with shared.open() as loom:
            (left,) = loom.unfinished()
            ended = [t for t in loom.turns() if t.reason == "error"]
            assert len(ended) == 1
            assert ended[0].entity_id != left.entity_id
        two.send_signal(signal.SIGSTOP)
        with shared.open() as loom:
            assert len(loom.unfinished()) == 1, "one that was stopped may go on"
        two.send_signal(signal.SIGCONT)
    with shared.open() as loom:
        assert loom.unfinished() == []
        assert len([t for t in loom.turns() if t.reason == "error"]) == 2
        assert loom.check() == []


def test_two_that_open_it_at_once_complete_it_once(shared: Place) -> None:
    killed_in_a_call(shared.where)
    code = "import sys; from cantrip_acp import Loom; Loom.open(sys.argv[1]).close()"
    openers = [subprocess.Popen([sys.executable, "-c", code, shared.where]) for _ in range(4)]
    assert [each.wait(60) for each in openers] == [0] * 4
    with shared.open() as loom:
        assert [t.reason for t in loom.turns() if t.role == "crystal"] == ["error"]
        assert [r.event for r in loom.records() if isinstance(r, CastRecord)] == ["start", "end"]
        assert loom.check() == []


def test_when_a_process_has_ended() -> None:
    me = this()
    assert has_ended(me) is False
    with subprocess.Popen(["sleep", "60"]) as other:
        about = Writer(me.host, me.boot, me.namespace, other.pid, started(other.pid) or 0)
        assert has_ended(about) is False
        other.kill()
        other.wait()
    assert has_ended(about) is True
    assert has_ended(Writer(me.host, me.boot, me.namespace, me.pid, me.started + 1)) is True, (
        "the number was given again"
    )
    assert has_ended(Writer(me.host, "before", me.namespace, me.pid, me.started)) is True
    assert has_ended(Writer("elsewhere", "another", me.namespace, 1, 1)) is None
    assert has_ended(Writer(me.host, me.boot, "container", 1, 1)) is None


# --- PostgreSQL ------------------------------------------------------------------------------------------------------


def cut(postgres: Server) -> int:
    """End every connection of ours, as an administrator or an idle timeout does."""
    with psycopg.connect(postgres.url("x").partition("?")[0], autocommit=True) as owner:
        query = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'cantrip-acp'"
        return len(owner.execute(query).fetchall())


def test_a_connection_that_was_closed_while_idle_is_made_again(postgres: Server) -> None:
    place = Place.at("postgres", postgres, "idle")
    loom, reader = place.open(), place.open(readonly=True)
    loom.append(CantripRecord("c", {}, {}))
    loom.append(Turn("t0", None, "c", "e", None, role="call"))
    for n in range(1, 4):
        assert cut(postgres) >= 1
        loom.append(Turn(f"t{n}", f"t{n - 1}", "c", "e", "k"))
        assert cut(postgres) >= 1
        assert [t.id for t in reader.thread(f"t{n}")] == [f"t{i}" for i in range(n + 1)]
        assert cut(postgres) >= 1
        assert loom.check() == []
    for by in (signal.SIGINT, signal.SIGQUIT):
        postgres.stop(by)
        postgres.start()
        loom.annotate_reward("t1", 0.5)
        assert reader.refresh() == 1
    assert place.open(readonly=True).check() == []
    place.close()


def test_a_writer_that_others_took_for_dead_learns_of_it(postgres: Server) -> None:
    place = Place.at("postgres", postgres, "lost")
    loom = place.open()
    loom.append(Turn("t0", None, "c", "e", None, role="call"))
    assert cut(postgres) >= 1
    with psycopg.connect(postgres.url("x").partition("?")[0], autocommit=True) as owner:
        # As another host does that sees no lock and knows nothing of our processes.
        owner.execute("DELETE FROM cantrip_writers")
    with pytest.raises(LoomError, match=r"another process took this one for dead.*load the session again"):
        loom.append(Turn("t1", "t0", "c", "e", "k"))
    assert [t.id for t in loom.turns()] == ["t0"], "it can still be read"
    with place.open() as again:
        again.append(Turn("t1", "t0", "c", "e", "k"))
    place.close()


def test_the_lock_is_taken_again(postgres: Server) -> None:
    place = Place.at("postgres", postgres, "locks")
    loom = place.open()
    loom.append(Turn("t0", None, "c", "e", None, role="call"))
    query = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid = %s::bigint::oid"

    def held() -> int:
        with psycopg.connect(postgres.url("x").partition("?")[0], autocommit=True) as owner:
            row = owner.execute(query, (0x63616E74 + 1,)).fetchone()
            assert row is not None
            return int(row[0])

    before = held()
    cut(postgres)
    assert held() == before - 1
    loom.append(Turn("t1", "t0", "c", "e", "k"))
    assert held() == before
    place.close()
    assert held() == before - 1
