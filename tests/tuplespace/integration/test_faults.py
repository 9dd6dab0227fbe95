"""Faults at random moments: each tuple ends once, none is lost, and no effect is repeated silently.

`make soak` makes 500 faults over 10,000 tuples in each store. `make test` makes a few.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import re
import resource
import signal
import sqlite3
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from cantrip_acp.tuplespace.receipts import is_genuine
from cantrip_acp.tuplespace.stores import open_store
from cantrip_acp.tuplespace.stores.sql import TupleStore
from cantrip_acp.tuplespace.tuples import new_tuple
from tests.support import networks, openai_replies, processes
from tests.support.postgres_server import Server
from tests.support.processes import CANTRIP
from tests.support.provider_server import Reply, Request, Wire
from tests.support.waiting import wait_for

SOAK = bool(os.environ.get("TESTS_SOAK"))
TUPLES, FAULTS, CASTS = (10_000, 500, 200) if SOAK else (150, 25, 12)
WORKERS = 4
CLOCKS = ("0", "600", "-600", "0")
"""Seconds by which the clock of each worker's host is wrong."""

COMMON = """
import datetime, sys, time
address, log, goal, number, shift = sys.argv[1:]
if shift != "0":
    # The clock of this host is wrong by minutes.
    true_time = time.time
    class Shifted(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return super().now(tz) + datetime.timedelta(seconds=int(shift))
    time.time = lambda: true_time() + int(shift)
    datetime.datetime = Shifted
from cantrip_acp.tuplespace.stores import open_store
from cantrip_acp.tuplespace.tuples import Pattern, new_tuple
steps, terms = [{"yool": "a.count"}, {"yool": "a.write"}], {"max_retries": 999}
"""
WORKER = (
    COMMON
    + """
import os, random, anyio
if shift != "0":
    from cantrip_acp.tuplespace.tuples import now_iso
    apart = datetime.datetime.fromisoformat(now_iso()).timestamp() - true_time()
    assert abs(apart - int(shift)) < 5, apart
from cantrip_acp.tuplespace.workers.worker import StepResult, Worker
def write(kind, call):
    with open(log, "ab", buffering=0) as file:
        file.write(f"{call.tuple_id} {kind}\\n".encode())
async def count(call):
    await anyio.sleep(random.random() * 0.02)
    write("count", call)
    return StepResult(cost={"usd": 1})
async def write_once(call):
    if call.progress is not None:
        return StepResult(result={"uncertain": True})
    await call.save({"began": True})
    await anyio.sleep(random.random() * 0.02)
    write("write", call)
    return StepResult()
async def main():
    yools = {"a.count": count, "a.write": write_once}
    worker = Worker(open_store(address), Pattern({"lane": "x"}), yools, name=number, concurrency=8, lease_s=1.0)
    print("ready", flush=True)
    await worker.run()
anyio.run(main)
"""
)
EMITTER = (
    COMMON
    + """
import time
store, total = open_store(address), int(number)
print("ready", flush=True)
done = 0
while done < total:
    with open(goal) as file:
        wanted = int(file.read() or 0)
    for first in range(0, wanted, 50):
        if first + 50 > done:
            works = [new_tuple("x", steps, map_pos={"n": n}, agent_terms=terms) for n in range(first, min(first + 50, wanted))]
            store.put(works)
    done = wanted
    time.sleep(0.05)
"""
)


class Crew:
    """Workers and an emitter in processes, each restarted after it was killed, and hosts whose network can be cut."""

    def __init__(self, address: str, folder: Path, hosts: tuple[networks.Host, ...], far_address: str) -> None:
        self.address, self.far_address, self.hosts = address, far_address, hosts
        self.log, self.goal = folder / "log", folder / "goal"
        self.log.touch()
        self.set_goal(0)
        self.processes = [self._start(number) for number in range(WORKERS + 1)]

    def set_goal(self, tuples: int) -> None:
        (self.goal.with_suffix(".new")).write_text(str(tuples))
        os.replace(self.goal.with_suffix(".new"), self.goal)

    def _start(self, number: int) -> Any:
        """Start worker 0 to 3, or the emitter as the last one."""
        prefix: list[str] = []
        emits = number == WORKERS
        host = self.hosts[number] if number < len(self.hosts) else None
        if host is not None:
            prefix = host.prefix
        address = self.far_address if host is not None else self.address
        words = [address, str(self.log), str(self.goal), str(TUPLES) if emits else f"w{number}"]
        # Processes that share a file are on one machine, with one clock.
        words.append("0" if emits or address.startswith("sqlite") else CLOCKS[number])
        return processes.Popen(
            [*prefix, sys.executable, "-c", EMITTER if emits else WORKER, *words],
            stdout=-1,
        )  # fmt: skip

    def end(self, number: int) -> None:
        process = self.processes[number]
        process.kill()
        process.wait()
        process.stdout.close()

    def restart(self, number: int) -> None:
        self.end(number)
        self.processes[number] = self._start(number)

    def close(self) -> None:
        for number in range(len(self.processes)):
            self.end(number)


@pytest.fixture
def hosts(request: pytest.FixtureRequest, address: str) -> Iterator[tuple[tuple[networks.Host, ...], str]]:
    """Two hosts that reach the server over links of their own, with its address for them; none where there can be none."""
    if not address.startswith("postgresql"):
        yield (), address
        return
    server: Server = request.getfixturevalue("postgres")
    try:
        with networks.network(2) as made:
            server.listen_on(made.address)
            yield made.hosts, address.replace("127.0.0.1", made.address)
    except networks.NoNetworks as why:
        if SOAK:
            pytest.fail(f"the soak cuts networks: {why}")
        yield (), address


@pytest.mark.timeout(3600 if SOAK else 240)
def test_each_tuple_ends_once_whatever_fails(
    address: str, hosts: tuple[tuple[networks.Host, ...], str], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    store, random_ = open_store(address), random.Random(7)
    server: Server | None = request.getfixturevalue("postgres") if address.startswith("postgresql") else None
    crew = Crew(address, tmp_path, *hosts)
    joins: list[tuple[float, Callable[[], None]]] = []
    faults: Counter[str] = Counter()
    end = time.monotonic() + (3400 if SOAK else 200)

    def fault() -> None:
        kind = random_.random()
        if server is not None and kind < 0.04:
            # The database crashes; workers wait for it.
            server.stop(signal.SIGQUIT)
            time.sleep(random_.random())
            server.start()
            faults["the database was killed"] += 1
        elif crew.hosts and kind < 0.3:
            host = random_.choice(crew.hosts)
            host.cut()
            # Often longer than a lease, so others take the tuples, and the host comes back with answers of its own.
            joins.append((time.monotonic() + random_.random() * 3, host.join))
            faults["a network was cut"] += 1
        elif kind < 0.4:
            crew.restart(WORKERS)
            faults["the emitter was killed"] += 1
        else:
            crew.restart(random_.randrange(WORKERS))
            faults["a worker was killed"] += 1

    try:
        while sum(each.count for each in store.counts() if each.state in ("done", "failed")) < TUPLES:
            assert time.monotonic() < end, (store.counts(), faults)
            time.sleep(random_.random() * 0.4)
            while joins and joins[0][0] < time.monotonic():
                joins.pop(0)[1]()
            if faults.total() < FAULTS:
                fault()
                crew.set_goal(TUPLES * faults.total() // FAULTS)
    finally:
        crew.close()
        for _, join in joins:
            join()
    assert faults.total() == FAULTS, "the work was done before all faults"
    if SOAK:
        print(f"\n{address.partition(':')[0]}: {TUPLES} tuples, {dict(faults)}, clocks of workers {CLOCKS}")
    _check(store, crew)
    store.close()


def _check(store: TupleStore, crew: Crew) -> None:
    effects = Counter(crew.log.read_text().splitlines())
    uncertain = 0
    steps, terms = [{"yool": "a.count"}, {"yool": "a.write"}], {"max_retries": 999}
    for number in range(TUPLES):
        work = new_tuple("x", steps, map_pos={"n": number}, agent_terms=terms)
        found = store.receipts(work.id)
        assert [each.step for each in found] == [0, 1, None], "each step has one receipt, and one ends the tuple"
        assert all(is_genuine(each.document) for each in found)
        stored = store.get(work.id)
        assert stored is not None
        assert stored.state == "done"
        assert effects[f"{work.id} count"] >= 1
        # What writes is never repeated. If nobody knows whether it was done, the receipt says so.
        unknown = found[1].document.get("result") is not None
        uncertain += unknown
        assert effects[f"{work.id} write"] <= 1
        assert unknown or effects[f"{work.id} write"] == 1
    repeated = sum(effects.values()) - sum(1 for _ in effects)
    assert max(repeated, uncertain) <= FAULTS * 8, "only steps of workers that were killed or cut off, at most 8 each"


EFFECT = """\
name: effect
crystal: {{provider: local, model: m, base_url: "{url}/v1"}}
circle: {{medium: bash, gates: [done], wards: [{{max_turns: 9}}, {{bash_writable_paths: ["."]}}]}}
"""


def write_a_line(request: Request) -> Reply:
    """A model that runs one command, and ends when it has read anything about it."""
    if not request.path.endswith("/chat/completions"):
        return Reply(404)
    messages = request.json()["messages"]
    if any(each["role"] == "tool" for each in messages):
        return openai_replies.chat_stream(call("done", {"answer": "Done."}), finish="tool_calls")
    intent = next(each["content"] for each in messages if each["role"] == "user")
    number = re.search(r"line (\d+)", str(intent))
    assert number is not None
    return openai_replies.chat_stream(
        call("bash", {"command": f"sleep 0.05; echo {number[1]} >> effects.txt; sleep 0.05"}), finish="tool_calls"
    )


def call(gate: str, arguments: dict[str, Any]) -> dict[str, Any]:
    function = {"name": gate, "arguments": json.dumps(arguments)}
    return {"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": function}]}


@pytest.fixture
def model() -> Iterator[Wire]:
    with Wire(write_a_line) as wire:
        yield wire


@pytest.mark.timeout(1800 if SOAK else 240)
def test_casts_of_killed_workers_go_on_and_repeat_no_command(tmp_path: Path, model: Wire) -> None:
    (tmp_path / "effect.cantrip.yaml").write_text(EFFECT.format(url=model.url))
    (tmp_path / "intents.jsonl").write_text("".join(f'"Write line {number}."\n' for number in range(CASTS)))
    random_, environment = random.Random(7), {**os.environ, "CANTRIP_STATE_DIR": str(tmp_path / "state")}
    lane = ["--lane", "effects", "--space", "space.db"]

    def start(*words: str) -> Any:
        return processes.Popen([*CANTRIP, *words], cwd=tmp_path, env=environment, stdout=-1, stderr=-1, text=True)

    def worker() -> Any:
        return start(
            "worker", "effect.cantrip.yaml", *lane, "--loom", "work.loom.db", "--concurrency", "4", "--lease", "2"
        )

    batch = start(
        "cast-batch", "effect.cantrip.yaml", "intents.jsonl", *lane, "--max-retries", "99", "--out", "results.jsonl"
    )
    workers = [worker() for _ in range(2)]
    try:
        kills = 0
        while batch.poll() is None:
            time.sleep(1.0 + random_.random())
            if kills < (100 if SOAK else 5):
                kills += 1
                index = random_.randrange(2)
                workers[index].kill()
                workers[index].communicate()
                workers[index] = worker()
        _, stderr = batch.communicate()
        assert batch.returncode == 0, stderr
    finally:
        for each in [*workers, batch]:
            each.kill()
            each.communicate()
    results = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert [row["cast"]["result"] for row in results] == ["Done."] * CASTS
    assert len({row["cast"]["entity_id"] for row in results}) == CASTS
    lines = Counter((tmp_path / "effects.txt").read_text().splitlines())
    assert max(lines.values()) == 1, "a command was repeated"
    assert len(lines) >= CASTS - kills * 4, "only calls of killed workers may have had no effect"


class Outage:
    """What the workers need, and how it is taken from them for a while."""

    def __init__(self, kind: str, server: Server | None) -> None:
        self.kind, self._server, self.is_on = kind, server, False
        self._answers, self._begun = itertools.count(), threading.Event()

    def answer(self, request: Request) -> Reply:
        # After a few answers the others wait for the outage. On a busy machine all could be done before it begins.
        if next(self._answers) >= 6:
            self._begun.wait(60)
        if self.is_on and self.kind == "model":
            return Reply(503, body=b"down for maintenance")
        return write_a_line(request)

    def begin(self, workers: Sequence[Any]) -> None:
        self.is_on = True
        if self._server is not None:
            self._server.stop(signal.SIGQUIT)
        if self.kind == "disk":
            # As on a full disk, no file grows any more.
            for each in workers:
                resource.prlimit(each.pid, resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
        self._begun.set()

    def end(self, workers: Sequence[Any]) -> None:
        self.is_on = False
        if self._server is not None:
            self._server.start()
        if self.kind == "disk":
            for each in workers:
                resource.prlimit(each.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


@pytest.mark.timeout(1800 if SOAK else 240)
@pytest.mark.parametrize("kind", ["model", "database", "disk"])
def test_an_outage_ends_no_worker_and_each_tuple_ends_once(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    server: Server | None = request.getfixturevalue("postgres") if kind == "database" else None
    space, loom = "space.db", "sqlite:work.loom.db"
    if server is not None:
        space, loom = server.new_schema(), server.new_schema()
    outage = Outage(kind, server)
    environment = {**os.environ, "CANTRIP_STATE_DIR": str(tmp_path / "state")}

    def start(name: str, *words: str) -> Any:
        with open(tmp_path / name, "w") as log:
            return processes.Popen(
                [*CANTRIP, *words, "--lane", "effects", "--space", space], cwd=tmp_path, env=environment, stdout=log, stderr=log
            )  # fmt: skip

    def logs() -> str:
        """What they said: whoever waits says so."""
        return "".join(
            each.read_text() for each in tmp_path.glob("*") if each.name in ("batch", "worker0", "worker1", "worker2")
        )

    with Wire(outage.answer) as model:
        # The recipe does not hide the outage: each query is tried once.
        (tmp_path / "effect.cantrip.yaml").write_text(EFFECT.format(url=model.url) + "retry: {max_retries: 0}\n")
        (tmp_path / "intents.jsonl").write_text("".join(f'"Write line {number}."\n' for number in range(CASTS * 2)))
        words = ("worker", "effect.cantrip.yaml", "--loom", loom, "--concurrency", "4")
        workers = [start(f"worker{number}", *words) for number in range(3)]
        batch = start("batch", "cast-batch", "effect.cantrip.yaml", "intents.jsonl", "--out", "results.jsonl")
        try:
            assert model.wait_requests(6, 60)
            outage.begin(workers)
            time.sleep(60 if SOAK else 2)
            wait_for(lambda: "again" in logs())
            outage.end(workers)
            status = batch.wait(600)
            assert status == 0, logs()
            assert [each.poll() for each in workers] == [None] * 3, logs()
        finally:
            for each in [*workers, batch]:
                each.kill()
                each.wait()
    results = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert [row["cast"]["result"] for row in results] == ["Done."] * CASTS * 2
    lines = Counter((tmp_path / "effects.txt").read_text().splitlines())
    assert max(lines.values()) == 1, "a command was repeated"
    store = open_store(space if server is not None else str(tmp_path / space))
    with contextlib.closing(store):
        assert [len(store.receipts(row["tuple_id"])) for row in results] == [1] * CASTS * 2


@pytest.mark.parametrize("kind", ["model", "database"])
def test_a_worker_that_is_killed_in_an_outage_loses_nothing(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    server: Server | None = request.getfixturevalue("postgres") if kind == "database" else None
    space, loom = ("space.db", "sqlite:work.loom.db") if server is None else (server.new_schema(), server.new_schema())
    outage = Outage(kind, server)

    def start(*words: str) -> Any:
        return processes.Popen(
            [*CANTRIP, *words, "--lane", "effects", "--space", space], cwd=tmp_path, stdout=-1, stderr=-1, text=True,
            env={**os.environ, "CANTRIP_STATE_DIR": str(tmp_path / "state")},
        )  # fmt: skip

    with Wire(outage.answer) as model:
        (tmp_path / "effect.cantrip.yaml").write_text(EFFECT.format(url=model.url) + "retry: {max_retries: 0}\n")
        (tmp_path / "intents.jsonl").write_text("".join(f'"Write line {number}."\n' for number in range(8)))
        words = ("worker", "effect.cantrip.yaml", "--loom", loom, "--concurrency", "2", "--lease", "2")
        first = start(*words)
        batch = start("cast-batch", "effect.cantrip.yaml", "intents.jsonl", "--out", "results.jsonl")
        second = None
        try:
            assert model.wait_requests(3, 60)
            outage.begin([first])
            # It has seen the outage, and says that it waits.
            assert first.stderr is not None
            assert any("again" in line for line in first.stderr)
            first.kill()
            first.communicate()
            # Another one begins while nothing works, and waits too.
            second = start(*words) if kind == "model" else None
            if second is not None:
                assert second.stderr is not None
                assert any("again" in line for line in second.stderr)
            outage.end([])
            second = second or start(*words)
            _, err = batch.communicate(timeout=120)
            assert batch.returncode == 0, err
        finally:
            for each in (first, batch, *([second] if second is not None else [])):
                each.kill()
                each.communicate()
    results = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert [row["cast"]["result"] for row in results] == ["Done."] * 8
    lines = Counter((tmp_path / "effects.txt").read_text().splitlines())
    assert max(lines.values()) == 1, "a command was repeated"
    store = open_store(space if server is not None else str(tmp_path / space))
    with contextlib.closing(store):
        assert [len(store.receipts(row["tuple_id"])) for row in results] == [1] * 8


def test_an_emitter_that_is_killed_puts_all_of_a_call_or_nothing(tmp_path: Path) -> None:
    path = tmp_path / "space.db"
    program = (
        "import sys\nfrom cantrip_acp.tuplespace.stores import open_store\n"
        "from cantrip_acp.tuplespace.tuples import new_tuple\nstore = open_store(sys.argv[1])\nprint('ready', flush=True)\n"
        "n = 0\nwhile True:\n"
        "    store.put([new_tuple('x', [{'yool': 'a.b'}], map_pos={'n': n, 'of': k}) for k in range(10)])\n    n += 1\n"
    )
    for _ in range(4):
        emitter = processes.Popen([sys.executable, "-c", program, str(path)], stdout=-1)
        assert emitter.stdout is not None
        emitter.stdout.readline()
        time.sleep(random.random() * 0.2)
        emitter.kill()
        emitter.wait()
        emitter.stdout.close()
        with sqlite3.connect(path) as base:
            (tuples,) = base.execute("SELECT count(*) FROM tuples").fetchone()
            (queued,) = base.execute("SELECT count(*) FROM queue").fetchone()
        assert tuples == queued
        assert tuples % 10 == 0
