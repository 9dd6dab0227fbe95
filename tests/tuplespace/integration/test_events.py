"""What happens to tuples, as events: on the command line, and for a client of the MCP server."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from cantrip_acp.tuplespace.events import Watch
from cantrip_acp.tuplespace.reuse.step_results import Reuse
from cantrip_acp.tuplespace.stores import open_store
from cantrip_acp.tuplespace.stores.sql import TupleStore
from cantrip_acp.tuplespace.tuples import Pattern, WorkTuple, new_tuple
from cantrip_acp.tuplespace.workers import outages
from cantrip_acp.tuplespace.workers import worker as workers
from cantrip_acp.tuplespace.workers.worker import StepCall, StepFailed, StepResult, Worker, Yool
from tests.support.command_line import run, start
from tests.support.waiting import wait_for
from tests.tuplespace.integration.test_reuse import Lint

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outages, "_BACKOFF_S", (0.01, 0.05))
    monkeypatch.setattr(workers, "_LOOK_S", 0.05)


def work(*steps: str, number: int = 0) -> WorkTuple:
    return new_tuple("build", [{"yool": step} for step in steps], map_pos={"n": number})


async def run_all(store: TupleStore, yools: Mapping[str, Yool], **options: Any) -> None:
    def ended() -> bool:
        return all(each.state not in ("waiting", "claimed") for each in store.counts())

    with anyio.fail_after(60):
        await Worker(store, Pattern({"lane": "build"}), yools, name="w", **options).run(until=ended)


async def good(call: StepCall) -> StepResult:
    return StepResult(cost={"usd": 0.5})


async def bad(call: StepCall) -> StepResult:
    return StepResult(exit=2, error="3 problems")


def short(events: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(each["event"], each.get("step"), each.get("state")) for each in events]


async def test_each_thing_that_happens_is_told_once_and_in_order(store: TupleStore) -> None:
    tries: list[str] = []

    async def flaky(call: StepCall) -> StepResult:
        tries.append(call.tuple_id)
        if len(tries) == 1:
            raise StepFailed("no network")
        return StepResult()

    each = work("a.good", "a.flaky", "a.bad")
    store.put([each])
    watch, told = Watch(store, ids=[each.id]), list[dict[str, Any]]()

    async def look(call: StepCall) -> StepResult:
        told.extend(watch.look())
        return await good(call)

    async def look_and_fail(call: StepCall) -> StepResult:
        told.extend(watch.look())
        return await flaky(call)

    told.extend(watch.look())
    await run_all(
        store, {"a.good": look, "a.flaky": look_and_fail, "a.bad": bad}, ended=lambda _: told.extend(watch.look())
    )
    assert short(told) == [
        ("waiting", None, None), ("claimed", None, None), ("step", 0, "done"), ("waiting", None, None),
        ("claimed", None, None), ("step", 1, "done"), ("step", 2, "failed"), ("failed", None, None),
    ]  # fmt: skip
    assert told[3]["reason"] == "no network"
    assert [each["attempt"] for each in told if each["event"] == "claimed"] == [1, 2]
    assert (told[-2]["error"], told[-1]["error"]) == ("3 problems", "step 3 (a.bad) failed: 3 problems")
    assert watch.is_over
    assert list(watch.look()) == []
    # Whoever comes later reads the same, but for the attempts that nobody sees any more.
    later = Watch(store, ids=[each.id])
    assert short(list(later.look())) == [
        ("claimed", None, None), ("step", 0, "done"), ("step", 1, "done"), ("step", 2, "failed"), ("failed", None, None),
    ]  # fmt: skip


async def test_a_pattern_follows_what_has_not_ended_and_what_comes(store: TupleStore, tmp_path: Path) -> None:
    ended, waits, comes = (work("a.lint", number=number) for number in range(3))
    options: dict[str, Any] = {"reuse": Reuse(project="p"), "concurrency": 1}
    lint = Lint(tmp_path / "project")
    store.put([ended])
    await run_all(store, {"a.lint": lint}, **options)
    store.put([waits, new_tuple("other", [{"yool": "a.lint"}])])
    watch = Watch(store, pattern=Pattern({"lane": "build"}))
    told = list[dict[str, Any]]()
    while not told:
        # PostgreSQL shows what is older than all running transactions.
        told.extend(watch.look())
    store.put([comes])
    store.take(Pattern({"lane": "other"}))
    await run_all(store, {"a.lint": lint}, **options)
    while len(told) < 7:
        told.extend(watch.look())
    assert not watch.is_over
    assert {each["tuple_id"] for each in told} == {waits.id, comes.id}
    assert [each["state"] for each in told if each["event"] == "step"] == ["reused", "reused"]
    assert all("reused" in each for each in told if each["event"] == "step")


async def test_the_command_observes_until_the_end(store: TupleStore, address: str, tmp_path: Path) -> None:
    each = work("a.good", "a.good")
    store.put([each])
    command = start("tuple", "observe", each.id, "--json", "--space", address, cwd=tmp_path)
    assert command.stdout is not None
    first = await anyio.to_thread.run_sync(command.stdout.readline)
    assert json.loads(first)["event"] == "waiting"
    await run_all(store, {"a.good": good})
    # Not `communicate`, which does not know what was read ahead for the first line.
    out = await anyio.to_thread.run_sync(command.stdout.read)
    assert await anyio.to_thread.run_sync(command.wait) == 0
    command.communicate()
    events = [json.loads(line) for line in out.splitlines()]
    assert [each["event"] for each in events] == ["claimed", "step", "step", "done"]
    assert events[-1]["cost"]["usd"] == 1.0
    # For people, and for a tuple that failed.
    failing = work("a.bad")
    store.put([failing])
    await run_all(store, {"a.bad": bad})
    shown = run("tuple", "observe", failing.id, each.id, "--space", address, cwd=tmp_path)
    assert shown.status == 1
    assert [line.split("  ", 3)[3] for line in shown.out.splitlines()][:3] == [
        "claimed by w", "step 1 (a.bad) failed: 3 problems", "failed: step 1 (a.bad) failed: 3 problems",
    ]  # fmt: skip
    unknown = run("tuple", "observe", "sha256:" + "0" * 64, "--space", address, cwd=tmp_path)
    assert (unknown.status, "there is no tuple sha256:000" in unknown.err) == (1, True)
    nothing = run("tuple", "observe", "{}", "--timeout", "0", "--space", address, cwd=tmp_path)
    assert (nothing.status, nothing.out) == (0, "")


def test_in_takes_one_tuple_out_of_the_space(store: TupleStore, address: str, tmp_path: Path) -> None:
    first, second = work("a.good", number=1), work("a.good", number=2)
    store.put([first, second])
    taken = run("tuple", "in", '{"lane": "build"}', "--json", "--space", address, cwd=tmp_path)
    assert (taken.status, json.loads(taken.out)) == (0, first.document)
    found = store.get(first.id)
    assert found is not None
    assert found.state == "taken"
    by_id = run("tuple", "in", second.id, "--space", address, cwd=tmp_path)
    assert json.loads(by_id.out)["id"] == second.id
    none = run("tuple", "in", second.id, "--space", address, cwd=tmp_path)
    assert (none.status, none.out, none.err) == (1, "", "cantrip: no such tuple waits\n")
    # It waits for one that comes later.
    waiting = start("tuple", "in", '{"lane": "later"}', "--timeout", "50", "--json", "--space", address, cwd=tmp_path)
    later = new_tuple("later", [{"yool": "a.good"}])
    store.put([later])
    out, err = waiting.communicate(timeout=60)
    assert (waiting.returncode, json.loads(out)["id"]) == (0, later.id), err
    # Resume gives all of them back.
    assert run("tuple", "resume", "--space", address, cwd=tmp_path).out.count("waits") == 3


SCRIPT = """
import json, sys
alarm = json.load(sys.stdin)
with open("alarms", "a") as file:
    file.write(json.dumps(alarm) + "\\n")
if alarm.get("percent") == 80:
    print("no mail server")
    sys.exit(3)
"""
RECIPE = """\
name: greeter
crystal:
  provider: scripted
  responses:
    - tool_calls: [{gate: done, args: {answer: Hello.}}]
      usage: {prompt_tokens: 10, completion_tokens: 5, cost: 0.25}
      repeat: true
circle: {medium: conversation, gates: [done], wards: [{max_turns: 3}]}
"""


@pytest.mark.parametrize("by", ["batch", "emitter", "worker"])
def test_a_command_gets_each_alarm_once(address: str, store: TupleStore, tmp_path: Path, by: str) -> None:
    (tmp_path / "alarm.py").write_text(SCRIPT)
    (tmp_path / "greeter.cantrip.yaml").write_text(RECIPE)
    (tmp_path / "intents.jsonl").write_text("".join(f'"Say hello {number}."\n' for number in range(4)))
    on_alarm = ("--on-alarm", "python3 alarm.py")
    env = {"CANTRIP_STATE_DIR": str(tmp_path / "state")}
    lane = () if by == "batch" else ("--lane", "x")
    batch = ["cast-batch", "greeter.cantrip.yaml", "intents.jsonl", "--budget-usd", "1", "--space", address, *lane]
    worker: subprocess.Popen[str] | None = None
    if by != "batch":
        words = ("worker", "greeter.cantrip.yaml", "--lane", "x", "--space", address, "--loom", "w.loom.jsonl")
        worker = start(*words, *(on_alarm if by == "worker" else ()), cwd=tmp_path, **env)
    try:
        done = run(*batch, "--concurrency", "1", *(() if by == "worker" else on_alarm), cwd=tmp_path, **env)
        said = done.err
        log = tmp_path / "alarms"
        wait_for(lambda: log.exists() and len(log.read_text().splitlines()) == 3)
        wait_for(lambda: {(c.lane, c.state) for c in store.counts()} >= {("alarms", "done"), ("alarms", "failed")})
    finally:
        if worker is not None:
            worker.terminate()
            said += worker.communicate(timeout=60)[1]
    alarms = [json.loads(line) for line in log.read_text().splitlines()]
    assert sorted(each["percent"] for each in alarms) == [50, 80, 100]
    assert {(each["alarm"], each["lane"], each["usd"]) for each in alarms} == {("alarm.budget", "alarms", 1.0)}
    # A failure of the command is said, and stops nothing.
    assert "--on-alarm: the command for alarm.budget ended with status 3: no mail server" in said
    states = {(each.lane, each.state): each.count for each in store.counts() if each.lane == "alarms"}
    assert states == {("alarms", "done"): 2, ("alarms", "failed"): 1}
    assert sum(each.count for each in store.counts() if each.state == "done" and each.lane != "alarms") == 4


def test_a_disk_that_is_full_is_an_alarm_too(address: str, store: TupleStore, tmp_path: Path) -> None:
    (tmp_path / "greeter.cantrip.yaml").write_text(RECIPE)
    words = ("worker", "greeter.cantrip.yaml", "--lane", "x", "--space", address, "--on-alarm", "cat > alarm")
    env = {"CANTRIP_STATE_DIR": str(tmp_path / "state"), "YOOL_TUPLE_FREE_MB": "900000000"}
    worker = start(*words, cwd=tmp_path, **env)
    try:
        wait_for(lambda: [each.state for each in store.counts() if each.lane == "gc.urgent"] == ["done"])
    finally:
        worker.terminate()
        worker.communicate(timeout=60)
    assert json.loads((tmp_path / "alarm").read_text())["alarm"] == "fs.gc.run"


def test_what_an_alarm_and_its_command_say_is_shown_without_control_characters(tmp_path: Path) -> None:
    folder = tmp_path / "a\u202eb\x9b31m"
    folder.mkdir()
    (folder / "greeter.cantrip.yaml").write_text(RECIPE)
    (folder / "intents.jsonl").write_text('"Say hello."\n')
    forged = {"percent": 50, "alarm": "other", "lane": "other", "tuple_id": "other", "at": "other"}
    sent = new_tuple("alarms", [{"yool": "alarm.budget", "args": forged}])
    with closing(open_store(str(folder / "s.db"))) as space:
        space.put([sent])
    on_alarm = ("--on-alarm", "cat > alarm; printf 'no \\342\\200\\256mail \\033[31m'; exit 3")
    env = {"CANTRIP_STATE_DIR": str(tmp_path / "state")}
    done = run("cast-batch", "greeter.cantrip.yaml", "intents.jsonl", "--space", "s.db", *on_alarm, cwd=folder, **env)
    assert "alarm.budget ended with status 3: no " in done.err
    alarm = json.loads((folder / "alarm").read_text())
    assert (alarm["alarm"], alarm["lane"], alarm["tuple_id"]) == ("alarm.budget", "alarms", sent.id)
    assert alarm["at"] != "other"
    worker = run("worker", "greeter.cantrip.yaml", "--lane", "x", "--space", "s.db", "--until-empty", cwd=folder, **env)
    assert "takes the tuples of lane x" in worker.err
    assert not {*done.err, *worker.err} & {"\u202e", "\x9b", "\x1b"}
