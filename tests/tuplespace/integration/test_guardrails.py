"""Guardrails of a worker: a cast's share of the processor, what it may write, and space on the disk."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest

from cantrip_acp import Cantrip, Circle, ScriptedCrystal
from cantrip_acp.loom.loom import Loom
from cantrip_acp.tuplespace.errors import TupleError
from cantrip_acp.tuplespace.stores import open_store
from cantrip_acp.tuplespace.tuples import Pattern, new_tuple
from cantrip_acp.tuplespace.workers import guardrails
from cantrip_acp.tuplespace.workers import worker as workers
from cantrip_acp.tuplespace.workers.guardrails import DiskFloor, lane_concurrency, number_from_environment
from cantrip_acp.tuplespace.workers.worker import StepCall, StepResult, Worker
from cantrip_acp.tuplespace.yools.cast_yool import CastYool
from tests.support import processes
from tests.support.processes import CANTRIP

pytestmark = pytest.mark.anyio
STEP = {"yool": "a.look"}


def a_step(**limits: Any) -> StepCall:
    args = {"intent": "Work.", "recipe": "sha256:x"}
    return StepCall(
        yool="agent.cast.x", args=args, tuple_id="sha256:1", position={}, left_usd=None, left_tokens=None, left_s=None, **limits
    )  # fmt: skip


def a_cast(folder: Path, command: str) -> CastYool:
    crystal = ScriptedCrystal(
        [
            {"bash": command, "usage": {"prompt_tokens": 3, "cost": 0.5}},
            {"tool_calls": [{"gate": "done", "args": {"answer": "Done."}}], "repeat": True},
        ]
    )
    circle = Circle(
        medium="bash", gates=["done"], wards=[{"max_turns": 4}, {"bash_writable_paths": ["."]}], workspace=folder
    )
    return CastYool(Cantrip(crystal, circle=circle), Loom.memory(), "sha256:x")


async def test_a_cast_has_the_share_of_a_processor_that_its_tuple_names(tmp_path: Path) -> None:
    await a_cast(tmp_path, "nice > share")(a_step(cpu_percent=60))
    assert (tmp_path / "share").read_text() == "7\n"


async def test_a_cast_that_writes_more_than_its_quota_is_stopped(tmp_path: Path) -> None:
    (tmp_path / "before").write_bytes(b"x" * 3_000_000)
    fits = await a_cast(tmp_path, "head -c 1000000 /dev/zero > small")(a_step(disk_mb=2))
    assert (fits.exit, fits.result["result"]) == (0, "Done.")
    with anyio.fail_after(60):
        stopped = await a_cast(tmp_path, "head -c 9000000 /dev/zero > large; sleep 100")(a_step(disk_mb=2))
    assert stopped.exit == 75
    assert (
        stopped.error
        == "the cast was stopped: it used more than the 2 MB that the step may write to disks (disk_quota_mb)"
    )
    assert stopped.cost["usd"] == 0.5
    # On a busy machine it is stopped before all is written.
    assert 2_000_000 < (tmp_path / "large").stat().st_size <= 9_000_000, "what it wrote stays for its user"


async def test_casts_that_share_a_workspace_have_a_quota_each(tmp_path: Path) -> None:
    results: list[StepResult] = []

    async def cast(name: str) -> None:
        command = f"for i in 1 2 3; do head -c 1000000 /dev/zero > {name}$i; sleep 0.2; done"
        # All of them write 9 MB. What another one wrote since the last look may be counted for a moment.
        results.append(await a_cast(tmp_path, command)(a_step(disk_mb=8)))

    async with anyio.create_task_group() as tasks:
        for name in ("a", "b", "c"):
            tasks.start_soon(cast, name)
    assert [each.exit for each in results] == [0, 0, 0]


async def test_a_worker_takes_nothing_while_the_disk_is_full_and_asks_for_help_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "_LOOK_S", 0.02)
    free, said = 10.0, list[str]()
    monkeypatch.setattr(guardrails, "free_mb", lambda _: free)
    store = open_store(tmp_path / "space.db")
    store.put([new_tuple("x", [{"yool": "a.b"}])])

    async def step(call: StepCall) -> StepResult:
        return StepResult()

    floor = DiskFloor(tmp_path, 1000, said.append)
    worker = Worker(store, Pattern({"lane": "x"}), {"a.b": step}, name="w", disk=floor)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(worker.run)
            while not said:
                await anyio.sleep(0.01)
            await anyio.sleep(0.2)
            assert _states(store) == {("x", "waiting"): 1, ("gc.urgent", "waiting"): 1}
            free = 2000.0
            while _states(store).get(("x", "done")) != 1:
                await anyio.sleep(0.01)
            worker.drain()
    assert [each.split(":")[0].rpartition("has ")[2] for each in said] == [
        "10 MB of free space, and 1000 MB must stay free (YOOL_TUPLE_FREE_MB)",
        "2000 MB of free space again",
    ]
    store.close()


def _states(store: Any) -> dict[tuple[str, str], int]:
    return {(each.lane, each.state): each.count for each in store.counts()}


@pytest.mark.parametrize("text", ["0", "-1", "101", "ten", "1.5", "²"])
def test_a_wrong_number_in_the_environment_is_named(text: str) -> None:
    environment: Mapping[str, str] = {"YOOL_TUPLE_CPU_QUOTA_PCT": text}
    with pytest.raises(TupleError, match="YOOL_TUPLE_CPU_QUOTA_PCT must be a whole number from 1 to 100"):
        number_from_environment("YOOL_TUPLE_CPU_QUOTA_PCT", 95, 100, environment)
    assert number_from_environment("YOOL_TUPLE_CPU_QUOTA_PCT", 95, 100, {"YOOL_TUPLE_CPU_QUOTA_PCT": " 60 "}) == 60
    assert number_from_environment("YOOL_TUPLE_CPU_QUOTA_PCT", 95, 100, {}) == 95


def test_the_number_of_casts_at_once_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("YOOL_TUPLE_LANE_CONCURRENCY", "YOOL_TUPLE_MAX_LANE_CONCURRENCY", "YOOL_MAX_LANE_CONCURRENCY"):
        monkeypatch.delenv(name, raising=False)
    assert (lane_concurrency(None), lane_concurrency(None, 8), lane_concurrency(64)) == (32, 8, 64)
    with pytest.raises(
        TupleError, match="--concurrency is 65, and at most 64 are allowed: set YOOL_TUPLE_MAX_LANE_CONC"
    ):
        lane_concurrency(65)
    monkeypatch.setenv("YOOL_MAX_LANE_CONCURRENCY", "16")
    assert lane_concurrency(None) == 16
    with pytest.raises(TupleError, match="at most 16 are allowed: set YOOL_MAX_LANE_CONCURRENCY"):
        lane_concurrency(17)
    monkeypatch.setenv("YOOL_TUPLE_MAX_LANE_CONCURRENCY", "100")
    monkeypatch.setenv("YOOL_TUPLE_LANE_CONCURRENCY", "50")
    assert (lane_concurrency(None), lane_concurrency(100)) == (50, 100)


async def test_no_tuple_gets_more_than_the_project_allows(tmp_path: Path) -> None:
    store, calls = open_store(tmp_path / "work.db"), list[StepCall]()

    async def look(call: StepCall) -> StepResult:
        calls.append(call)
        if len(calls) < 3:
            raise workers.StepFailed("not now")
        return StepResult(cost={"usd": 0.25})

    terms = {"budget_usd": 9, "cpu_quota_pct": 90, "max_retries": 9}
    store.put([new_tuple("x", [{"yool": "a.look"}, {"yool": "a.look"}], agent_terms=terms), new_tuple("x", [STEP])])
    limits = guardrails.AgentTerms(budget_usd=0.25, cpu_quota_pct=40, disk_quota_mb=5, max_retries=2)
    policy = guardrails.Policy(agent_terms=limits)
    worker = Worker(store, Pattern({"lane": "x"}), {"a.look": look}, name="w", policy=policy)
    with anyio.fail_after(60):
        await worker.run(until=lambda: not store.runnable(worker.pattern, worker.runs))
    assert {(each.left_usd, each.cpu_percent, each.disk_mb) for each in calls} == {(0.25, 40, 5.0)}
    (failed,) = store.failures("x")
    assert "nothing is left of the tuple's budget_usd" in failed.reason
    store.close()


def test_commands_read_the_policy_of_their_project(tmp_path: Path) -> None:
    (tmp_path / ".catalog").mkdir()
    (tmp_path / ".catalog" / "policy.yaml").write_text("max_lane_concurrency: 2\nqueue_maxsize: 1\n")
    both = [{"lane": "x", "payload": [{"yool": "a.b"}], "map_pos": {"n": n}} for n in range(2)]
    (tmp_path / "two.jsonl").write_text("\n".join(json.dumps({"schema": "yool-tuple/v1", **each}) for each in both))

    def run(*words: str) -> tuple[int, str]:
        done = processes.run([*CANTRIP, *words], cwd=tmp_path, capture_output=True, text=True)
        return done.returncode, done.stderr

    status, said = run("tuple", "out", "two.jsonl", "--space", "s.db")
    assert (status, "at most 1" in said) == (1, True), said
    status, said = run("worker", "familiar", "--lane", "x", "--space", "s.db", "--concurrency", "3")
    assert (status, "at most 2 are allowed: .catalog/policy.yaml" in said) == (2, True), said
    (tmp_path / ".catalog" / "policy.yaml").write_text("cpu: 5\n")
    for words in (
        ("tuple", "out", "two.jsonl"),
        ("worker", "familiar", "--lane", "x"),
        ("cast-batch", "familiar", "two.jsonl"),
    ):
        status, said = run(*words, "--space", "s.db")
        assert (status, "policy.yaml:1: cpu is not a limit" in said) == (2, True), said
