"""Only what a dead process had said is completed, everybody sees it as interrupted, and lost connections are made again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg
import pytest

from cantrip_acp import Loom, Turn
from cantrip_acp.loom.stores.address import open_store
from cantrip_acp.loom.view.reader import LoomReader
from cantrip_acp.lsp.looms import labels
from cantrip_acp.lsp.looms.document import LoomDocument
from cantrip_acp.types.errors import LoomLocked
from cantrip_acp.types.records import CantripRecord, CastRecord
from tests.loom.integration.test_recovery import KILLED, killed_in_a_call
from tests.support import processes
from tests.support.command_line import run
from tests.support.loom_stores import Place
from tests.support.postgres_server import Server
from tests.support.waiting import wait_for


@contextmanager
def waiting(where: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process in the middle of a gate call."""
    program = KILLED.format(root=os.getcwd(), where=where)
    with processes.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"waiting\n"
        try:
            yield process
        finally:
            process.kill()


def outcomes(where: str, cwd: Path) -> dict[str, str]:
    """How the last thread stands for each command, the page and the language server; all of them only read."""
    found = {}
    for name, option in (
        ("list", "--json"),
        ("show", "--json"),
        ("thread", "--json"),
        ("tree", None),
        ("stats", "--json"),
    ):
        told = run("loom", name, where, *([option] if option else []), cwd=cwd)
        assert told.status == 0, told.err
        data = json.loads(told.out.splitlines()[0]) if option else told.out
        if name == "show":
            found[name] = data["threads"][-1]["reason"]
        elif name == "thread":
            found[name] = data["reason"]
            assert data["turns"][-1]["utterance"]["content"] == "I wait."
        elif name == "stats":
            found[name] = ",".join(data["casts"]["outcomes"])
            assert data["turns"] == 1
        elif name == "tree":
            assert "I wait." in data
            found[name] = "interrupted" if "interrupted" in data else data
        else:
            found[name] = data["threads"][-1]["outcome"]
    exported = run("loom", "export", where, "--format", "openai", "--include-truncated", cwd=cwd)
    found["export"] = "interrupted" if "I wait." in exported.out else exported.out + exported.err
    with closing(LoomReader(where)) as page:
        page.load()
        cast = page.cast(0)
        found["page"] = cast["reason"]
        assert page.turn(1)["utterance"]["content"] == "I wait."
        assert page.about()["running"] == []
    if "://" not in where and not where.startswith("sqlite:"):
        book = LoomDocument(Path(where))
        book.load()
        found["language server"] = labels.cast(book, 0)["reason"]
        assert book.body(1).utterance.content == "I wait."
        assert b"I wait." in book.text(book.index.positions[1])
        book.close()
    return found


def written(place: Place) -> list[object]:
    """What is in the store, without what readers add."""
    with Loom(open_store(place.where, readonly=True)) as loom:
        return [body for _, body in loom.stored()]


def test_readers_show_what_a_dead_process_said_before_a_writer_completes_it(kept: Place, tmp_path: Path) -> None:
    killed_in_a_call(kept.where)
    before = written(kept)
    told = run("loom", "check", kept.where, cwd=tmp_path)
    assert "its process ended, and the next process that writes completes it" in told.out
    read = outcomes(kept.where, tmp_path)
    assert set(read.values()) == {"interrupted"}, read
    with kept.open(readonly=True) as reader:
        (turn,) = [each for each in reader.turns() if each.role == "crystal"]
        assert [end.error for _, end in reader.casts() if end is not None] == ["interrupted: the process ended"]
    assert written(kept) == before, "a reader writes nothing"
    follower = kept.open(readonly=True)
    with kept.open() as loom:
        assert loom.unfinished() == []
        assert [each for each in loom.turns() if each.role == "crystal"] == [turn]
        (thread,) = loom.threads()
        assert (thread.state, thread.reason) == ("truncated", "interrupted")
        assert [end.reason for _, end in loom.casts() if end is not None] == ["error"]
        assert loom.check() == []
    # A reader that was open meanwhile has each record once.
    follower.refresh()
    assert follower.problems == ()
    assert list(follower.turns()) == [follower.turn(i) for i in follower.places]
    assert [r.id for r in follower.records() if isinstance(r, Turn)] == list(follower.places)
    assert len(follower.casts()) == 1
    assert outcomes(kept.where, tmp_path) == read
    assert run("loom", "check", kept.where, cwd=tmp_path).status == 0
    with kept.open() as again:
        assert len(list(again.turns())) == 2


def test_a_reader_that_follows_sees_a_kill(kept: Place) -> None:
    with waiting(kept.where) as process:
        reader = kept.open(readonly=True)
        page = LoomReader(kept.where)
        page.load()
        assert [(t.state, t.reason) for t in reader.threads()] == []
        assert len(page.about()["running"]) == 1
        process.kill()
        process.wait()

        def threads() -> list[tuple[str, str | None]]:
            reader.refresh()
            return [(t.state, t.reason) for t in reader.threads()]

        # A database server takes a moment to see that its client is gone.
        wait_for(threads)
        assert threads() == [("truncated", "interrupted")]
        page.look(at_once=True)
        assert page.cast(0)["reason"] == "interrupted"
        assert page.turn(1)["truncated"] is True
        kept.open()
        page.look(at_once=True)
        assert page.about()["turns"] == 2
        assert page.about()["problems"] == []
        page.close()


FORKS = """
import os, sys, time
from cantrip_acp.types.records import CantripRecord
{program}
loom = Loom.open({where!r})
def fork():
    if os.fork() == 0:
        try:
            loom.append(CantripRecord("another", {{}}, {{}}))
        except Exception as refused:
            print(type(refused).__name__, flush=True)
        time.sleep(600)
async def handler(args, context):
    fork()
    await anyio.sleep(600)
wait = Gate("wait", "Waits.", {{"type": "object"}}, handler)
said = {{"content": "I wait.", "tool_calls": [{{"gate": "wait", "args": {{}}}}]}}
spell = make(said, gates=["done", wait], loom=loom)
anyio.run(spell.cast, "go")
"""


def test_a_forked_child_holds_nothing_of_a_parent_that_died(kept: Place) -> None:
    imports = KILLED.partition("async def")[0].format(root=os.getcwd())
    program = FORKS.format(program=imports, where=kept.where)
    with processes.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, start_new_session=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"LoomError\n", "the child writes nothing"
            with kept.open(readonly=True) as reader:
                assert len(reader.running_casts()) == 1, "the parent does"
            process.kill()
            process.wait()
            with kept.open() as loom:
                assert [t.reason for t in loom.turns() if t.role == "crystal"] == ["error"]
                assert [(t.state, t.reason) for t in loom.threads()] == [("truncated", "interrupted")]
        finally:
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.parametrize("after", [1, 2])
def test_a_kill_while_it_is_completed(kept: Place, after: int) -> None:
    """Whoever completes it dies behind the turn, or in the middle of the next record."""
    killed_in_a_call(kept.where)
    code = """
import os, signal, sys
from cantrip_acp import Loom
from cantrip_acp.loom import loom as module
append, left = module.Loom.append, [int(sys.argv[2])]
def dying(self, record, body=None):
    left[0] -= 1
    if left[0] == 0:
        if sys.argv[2] == "2" and hasattr(self._store, "_end"):
            os.write(self._store._fd, b'{"type":"cast","id":"torn')
        os.kill(os.getpid(), signal.SIGKILL)
    append(self, record, body)
module.Loom.append = dying
Loom.open(sys.argv[1])
"""
    assert processes.run([sys.executable, "-c", code, kept.where, str(after)]).returncode == -signal.SIGKILL
    with kept.open(readonly=True) as reader:
        assert [(t.state, t.reason) for t in reader.threads()] == [("truncated", "interrupted")]
    with kept.open() as loom:
        assert [t.reason for t in loom.turns() if t.role == "crystal"] == ["error"]
        assert [end.reason for _, end in loom.casts() if end is not None] == ["error"]
        assert [(t.state, t.reason) for t in loom.threads()] == [("truncated", "interrupted")]
        assert [p for p in loom.check() if p.rule != "torn-line"] == []


def test_one_that_is_suspended_is_at_work(kept: Place) -> None:
    with waiting(kept.where) as process:
        process.send_signal(signal.SIGSTOP)
        with kept.open(readonly=True) as reader:
            assert len(reader.running_casts()) == 1
            assert [t.role for t in reader.turns()] == ["call"]
        if kept.kind == "jsonl":
            with pytest.raises(LoomLocked):
                kept.open()
        process.send_signal(signal.SIGCONT)


def test_two_openers_recover_it_once(kept: Place) -> None:
    """One cast is held by one of all who try; a number that is a process again makes no difference: none is kept."""
    killed_in_a_call(kept.where)
    code = "import sys; from cantrip_acp import Loom; Loom.open(sys.argv[1]).close()"
    openers = [processes.Popen([sys.executable, "-c", code, kept.where], stderr=subprocess.PIPE) for _ in range(4)]
    for each in openers:
        _, err = each.communicate(timeout=60)
        assert each.returncode == 0 or (kept.kind == "jsonl" and b"LoomLocked" in err), err
    with kept.open() as loom:
        assert [t.reason for t in loom.turns() if t.role == "crystal"] == ["error"]
        assert [r.event for r in loom.records() if isinstance(r, CastRecord)] == ["start", "end"]
        assert loom.check() == []


def test_a_cast_is_held_once(place: Place) -> None:
    loom = place.open()
    assert loom.lock_cast("k") is True
    assert loom.lock_cast("k") is False
    if place.kind in ("sqlite", "postgres"):
        other = place.open()
        assert other.lock_cast("k") is False
        loom.unlock_cast("k")
        assert other.lock_cast("k") is True
        other.close()
    else:
        loom.unlock_cast("k")
    assert loom.lock_cast("k") is True


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
        # A check has a connection of its own and closes it, so the reader opens one.
        reader.refresh()
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


def slow(where: str, seconds: float) -> subprocess.Popen[str]:
    """A process in a gate call that ends after some seconds; it prints how its cast ended."""
    program = """
import sys, anyio
sys.path.insert(0, sys.argv[3])
from cantrip_acp import Loom
from cantrip_acp.gates.contract import Gate
from tests.support.fixtures.core import done, make
async def handler(args, context):
    print("waiting", flush=True)
    sys.stdin.readline()
    return "waited"
wait = Gate("wait", "Waits.", {"type": "object"}, handler)
said = {"content": "I wait.", "tool_calls": [{"gate": "wait", "args": {}}]}
spell = make(said, done("well"), gates=["done", wait], loom=Loom.open(sys.argv[1]))
try:
    print(anyio.run(spell.cast, "go").result, flush=True)
except Exception as error:
    print(error, flush=True)
"""
    process = processes.Popen([sys.executable, "-c", program, where, str(seconds), os.getcwd()],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    return process


def test_a_process_in_a_long_call_stays_at_work_while_the_server_restarts(postgres: Server) -> None:
    place = Place.at("postgres", postgres, "restart")
    process = slow(place.where, 0)
    for restart in (lambda: cut(postgres), lambda: (postgres.stop(signal.SIGINT), postgres.start())):
        restart()

        def at_work() -> bool:
            with place.open(readonly=True) as reader:
                return len(reader.running_casts()) == 1

        wait_for(at_work)
        with place.open() as other:
            assert len(other.unfinished()) == 1, "nobody completes what it said"
    out, _ = process.communicate("\n", timeout=60)
    assert out == "well\n"
    with place.open(readonly=True) as reader:
        assert [(t.state, t.reason) for t in reader.threads()] == [("terminated", "done")]
        assert reader.check() == []
    place.close()


def test_a_writer_that_others_took_for_dead_learns_of_it(postgres: Server) -> None:
    """As one of another host whose network was gone, or that was suspended while the server ended its connections."""
    place = Place.at("postgres", postgres, "lost")
    process = slow(place.where, 0)
    process.send_signal(signal.SIGSTOP)
    cut(postgres)
    with place.open() as other:
        assert [t.reason for t in other.turns()] == [None, "error"]
    process.send_signal(signal.SIGCONT)
    out, _ = process.communicate("\n", timeout=60)
    assert "another process took over this cast" in out
    assert "load the session again" in out
    with place.open() as loom:
        assert [t.reason for t in loom.turns()] == [None, "error"]
        assert [end.error for _, end in loom.casts() if end is not None] == ["interrupted: the process ended"]
        assert loom.check() == []
    place.close()
