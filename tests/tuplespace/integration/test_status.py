"""The state of a space: lanes, rates, cost, workers and the reasons of failures, and what the terminal shows of it."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pyte
import pytest

from cantrip_acp.tuplespace.monitoring.status import read_status
from cantrip_acp.tuplespace.receipts import make_receipt
from cantrip_acp.tuplespace.stores import open_store
from cantrip_acp.tuplespace.stores.base import Claim
from cantrip_acp.tuplespace.stores.sql import TupleStore
from cantrip_acp.tuplespace.tuples import Pattern, new_tuple, now_iso
from tests.support import command_line
from tests.support.command_line import run
from tests.support.tuples import acknowledge

GREETER = """
name: greeter
crystal:
  provider: scripted
  responses:
    - {tool_calls: [{gate: done, args: {answer: Hello.}}], repeat: true}
circle: {medium: conversation, gates: [done], wards: [{max_turns: 3}]}
"""


def put(store: TupleStore, lane: str, count: int) -> None:
    steps = [{"yool": "a.one"}, {"yool": "a.two"}]
    store.put([new_tuple(lane, steps, map_pos={"n": number}) for number in range(count)])


def claims(store: TupleStore, lane: str, count: int, worker: str = "host:1") -> list[Claim]:
    return store.claim(Pattern({"lane": lane}), worker, lease_s=60, count=count)


def end(store: TupleStore, claim: Claim, usd: float | None, failed: str | None = None) -> None:
    acknowledge(store, claim, receipt(claim, usd), failed=failed)


def receipt(claim: Claim, usd: float | None) -> dict[str, Any]:
    now = now_iso()
    cost = {"usd": usd, "tokens_in": 10, "tokens_out": 5.0}
    return make_receipt(yool="a.one", tuple_id=claim.work.id, started_at=now, ended_at=now, exit=0, cost=cost)


def test_a_space_without_tuples_has_no_lanes(store: TupleStore) -> None:
    status = read_status(store)
    assert (status.lanes, status.usd, status.workers, status.failures) == ({}, None, [], [])
    assert store.waiting("build") == (0, 0.0)


def test_the_cost_is_that_of_ended_tuples_of_finished_steps_and_of_the_step_that_runs(store: TupleStore) -> None:
    put(store, "build", 6)
    put(store, "other", 1)
    first, second, third, fourth = claims(store, "build", 4)
    store.save_step(first, 0, receipt(first, 1.0))
    # The last receipt has the sum of the steps: a step of an ended tuple is not counted twice.
    end(store, first, 3.0)
    end(store, second, None)
    store.save_step(third, 0, receipt(third, 0.5))
    store.save_progress(third, {"step": 1, "cost": {"usd": 0.25, "tokens_in": 2, "tokens_out": None}})
    store.save_progress(fourth, {"step": 0})
    lane = read_status(store).lanes["build"]
    assert (lane.waiting, lane.claimed, lane.done, lane.failed) == (2, 2, 2, 0)
    assert (lane.usd, lane.tokens_in, lane.tokens_out) == (3.75, 32, 15)
    assert lane.ended_per_s == round(2 / 60, 2)
    assert lane.oldest_waiting_s is not None
    waiting, oldest = store.waiting("build")
    assert (waiting, oldest >= 0) == (2, True)
    assert list(read_status(store, "other").lanes) == ["other"]
    assert read_status(store, "other").usd is None


def test_reasons_that_differ_only_in_ids_are_one(store: TupleStore) -> None:
    put(store, "build", 7)
    held = claims(store, "build", 7)
    for number, claim in enumerate(held[:3]):
        end(store, claim, 1.0, f"request req_0123456789abc{number} was refused, query {number * 700}")
    for claim, reason in zip(held[3:], ("exit 75", "exit 1", "m answered 503: x", "m answered 500: x"), strict=True):
        end(store, claim, 1.0, reason)
    failures = read_status(store).failures
    assert [each.count for each in failures] == [3, 1, 1, 1, 1]
    assert "was refused" in failures[0].reason
    assert failures[0].tuple_id in {claim.work.id for claim in held[:3]}
    assert store.failures("other") == []


def test_workers_with_leases_are_shown_and_others_not(store: TupleStore) -> None:
    put(store, "build", 4)
    claims(store, "build", 2, "alpha:1")
    store.claim(Pattern({"lane": "build"}), "beta:2", lease_s=0.01)
    time.sleep(0.05)
    assert [(each.worker, each.lane, each.count) for each in read_status(store).workers] == [("alpha:1", "build", 2)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    store = open_store(tmp_path / "space.db")
    put(store, "a-lane-with-a-rather-long-name", 1500)
    for claim in claims(store, "a-lane-with-a-rather-long-name", 30, "a-host-with-a-long-name.example.org:12345"):
        end(store, claim, 12.5, f"the cast was cut off: {'a long reason ' * 10}")
    claims(store, "a-lane-with-a-rather-long-name", 7, "a-host-with-a-long-name.example.org:12345")
    store.close()
    return tmp_path


def test_the_tables_fit_into_80_columns_and_are_painted_in_place(folder: Path) -> None:
    screen, env = pyte.Screen(80, 24), {"COLUMNS": "80", "LINES": "24"}
    stream = pyte.Stream(screen)
    with command_line.Terminal("tuple", "status", "--watch", "--space", "space.db", cwd=folder, **env) as terminal:
        stream.feed(terminal.wait_for("\x1b[J"))
        rows = [line.rstrip() for line in screen.display]
        assert rows[0].startswith("space    sqlite:")
        head = next(line for line in rows if line.startswith("lane"))
        assert head.split() == ["lane", "waiting", "oldest", "running", "done", "failed", "per", "s", "USD", "tokens"]
        assert rows[rows.index(head) + 1].split()[:2] == ["a-lane-with-…", "1,463"]
        assert any(line.startswith("a-host-with-a-long-name.example.org:12") for line in rows)
        assert any(line.startswith("    30  a-lane-with-…") and line.endswith("…") for line in rows)
        store = open_store(folder / "space.db")
        put(store, "another", 5)

        for _ in range(3):
            stream.feed(terminal.wait_for("\x1b[J"))
        store.close()
        painted = [line.rstrip() for line in screen.display]
        assert any(line.startswith("another") for line in painted)
        assert sum(line.startswith("space ") for line in painted) == 1
        terminal.type("\x03")
        assert terminal.end() == 0
        assert "\x1b[?1049l" in terminal.seen
        assert "another" in terminal.seen.partition("\x1b[?1049l")[2]


def test_watch_writes_an_object_in_each_line_to_a_pipe(folder: Path) -> None:
    process = command_line.start("tuple", "status", "--watch", "--json", "--space", "space.db", cwd=folder)
    assert process.stdout is not None
    found = [json.loads(process.stdout.readline()) for _ in range(2)]
    process.send_signal(2)
    process.communicate(timeout=60)
    assert process.returncode == 0
    [lane] = found[1]["lanes"].values()
    assert (lane["failed"], lane["usd"], lane["ended_per_s"]) == (30, 375.0, 0.5)
    assert (found[1]["workers"][0]["count"], found[1]["failures"][0]["count"]) == (7, 30)


def test_resume_says_how_long_a_lease_still_runs(store: TupleStore, address: str, tmp_path: Path) -> None:
    first, second = (new_tuple("build", [{"yool": "a.one"}], map_pos={"n": number}) for number in range(2))
    store.put([first, second])
    store.claim(Pattern({"lane": "build"}), "host:7", lease_s=300)
    for target in ((), ('{"lane": "build"}',), (first.id,)):
        shown = run("tuple", "resume", *target, "--space", address, cwd=tmp_path)
        assert re.fullmatch(
            r"nothing to resume\nhost:7 has 1 tuple of lane build\. If it was killed, another worker takes over when the lease "
            r"has ended, in \d+ s\n",
            shown.out,
        ), shown.out
    for target in ('{"lane": "other"}', second.id):
        assert run("tuple", "resume", target, "--space", address, cwd=tmp_path).out == "nothing to resume\n"


def test_rd_says_that_a_tuple_has_ended_and_shows_it_if_asked(store: TupleStore, address: str, tmp_path: Path) -> None:
    works = [new_tuple("build", [{"yool": "a.one"}], map_pos={"n": number}) for number in range(2)]
    store.put(works)
    for claim in store.claim(Pattern({"lane": "build"}), "w", lease_s=30, count=2):
        acknowledge(store, claim, receipt(claim, 1.0))
    shown = run("tuple", "rd", '{"lane": "build"}', "--space", address, cwd=tmp_path)
    assert shown.status == 1
    assert shown.err == (
        "cantrip: there is no such tuple that waits or runs; 2 ended or were taken: --any shows the newest one\n"
    )
    newest = run("tuple", "rd", '{"lane": "build"}', "--any", "--json", "--space", address, cwd=tmp_path)
    assert (json.loads(newest.out)["state"], json.loads(newest.out)["tuple"]["id"]) == ("done", works[1].id)
    nothing = run("tuple", "rd", '{"lane": "no"}', "--any", "--space", address, cwd=tmp_path)
    assert (nothing.status, nothing.err) == (1, "cantrip: there is no such tuple\n")


def test_a_report_has_the_latest_run_of_what_was_repeated(tmp_path: Path) -> None:
    (tmp_path / "greeter.cantrip.yaml").write_text(GREETER)
    (tmp_path / "intents.jsonl").write_text('"one"\n"two"\n')
    env = {"CANTRIP_STATE_DIR": str(tmp_path / "state")}
    for again in ((), ("--again", "all"), ("--again", "all")):
        done = run("cast-batch", "greeter.cantrip.yaml", "intents.jsonl", *again, cwd=tmp_path, **env)
        assert done.status == 0, done.err

    def count(*words: str) -> int:
        shown = run("tuple", "report", "--no-looms", "--json", *words, cwd=tmp_path, **env)
        return int(json.loads(shown.out)["tuples"])

    assert (count(), count("--all")) == (2, 6)
