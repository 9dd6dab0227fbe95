"""Reuse of answers: what is reused, what is run again, and which receipts are never believed."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest

from cantrip_acp.files.digests import FileDigests
from cantrip_acp.tuplespace import retention
from cantrip_acp.tuplespace.canonical_json import canonical_json, content_id
from cantrip_acp.tuplespace.errors import SpaceError
from cantrip_acp.tuplespace.monitoring.status import read_status
from cantrip_acp.tuplespace.project_log import ProjectLog
from cantrip_acp.tuplespace.receipts import is_genuine
from cantrip_acp.tuplespace.reuse.step_results import Reuse
from cantrip_acp.tuplespace.stores import open_store
from cantrip_acp.tuplespace.stores.base import Answer
from cantrip_acp.tuplespace.stores.sql import TupleStore
from cantrip_acp.tuplespace.tuples import Pattern, WorkTuple, new_tuple
from cantrip_acp.tuplespace.workers import outages
from cantrip_acp.tuplespace.workers.worker import Ended, StepCall, StepResult, Worker, Yool

pytestmark = pytest.mark.anyio
Open = Callable[[], TupleStore]
KEY = b"k" * 32


class Lint:
    """A linter of the files in a folder. Counts its runs."""

    version = "ruff 1"

    def __init__(self, folder: Path, *, exit: int = 0, formats: bool = False, result: Any = "clean") -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.runs = 0
        self.exit = exit
        self.formats = formats
        self.result = result

    async def input_digest(self, call: StepCall) -> str | None:
        return FileDigests().folder(self.folder)

    async def __call__(self, call: StepCall) -> StepResult:
        self.runs += 1
        if self.formats:
            (self.folder / "a.py").write_text(f"run = {self.runs}\n")
        return StepResult(exit=self.exit, result=self.result, cost={"usd": 0.25, "tokens_in": 3, "tokens_out": 1})


@pytest.fixture
def lint(tmp_path: Path) -> Lint:
    made = Lint(tmp_path / "project")
    (made.folder / "a.py").write_text("x = 1\n")
    return made


def work(number: int, *steps: str, **args: Any) -> WorkTuple:
    payload = [{"yool": step, "args": {"path": "src", **args}} for step in steps or ("agent.lint.ruff",)]
    return new_tuple("build", payload, map_pos={"n": number})


async def end_all(store: TupleStore, yools: Mapping[str, Yool], *works: WorkTuple, **options: Any) -> list[Ended]:
    """Put tuples, and run a worker until they have ended."""
    store.put(works)
    ended: list[Ended] = []
    given: dict[str, Any] = {"reuse": Reuse(project="p", key=KEY), "concurrency": 1, **options}
    worker = Worker(store, Pattern({"lane": "build"}), yools, name="w", ended=ended.append, **given)
    with anyio.fail_after(60):
        await worker.run(until=lambda: all(each.state not in ("waiting", "claimed") for each in store.counts()))
    return ended


def receipts(store: TupleStore, each: WorkTuple) -> list[dict[str, Any]]:
    return [found.document for found in store.receipts(each.id)]


async def test_the_same_input_is_not_run_again_and_everybody_sees_it(
    store: TupleStore, open_space: Open, lint: Lint
) -> None:
    yools: dict[str, Yool] = {"agent.lint.ruff": lint}
    await end_all(store, yools, work(1))
    [again] = await end_all(open_space(), yools, work(2))
    [first], [second] = receipts(store, work(1)), receipts(store, work(2))
    assert lint.runs == 1
    assert (second["reused"], second["input_hash"], second["result"]) == (first["id"], first["input_hash"], "clean")
    assert (second["tuple_id"], is_genuine(second), second["exit"]) == (work(2).id, True, 0)
    assert [second["cost"][part] for part in ("usd", "tokens_in", "tokens_out")] == [0, 0, 0]
    status = read_status(store)
    assert (status.lanes["build"].reused, status.usd) == (1, 0.25)
    assert again.receipt is not None
    assert (again.reused, again.receipt["reused"]) == (1, first["id"])
    # What was reused is reused again, and still names the receipt of the step that ran.
    await end_all(store, yools, work(3))
    assert (lint.runs, receipts(store, work(3))[0]["reused"]) == (1, first["id"])


async def test_the_steps_of_a_longer_tuple_are_reused_one_by_one(store: TupleStore, lint: Lint) -> None:
    ran: list[str] = []

    async def pull_request(call: StepCall) -> StepResult:
        ran.append(call.tuple_id)
        return StepResult(cost={"usd": 1.0})

    yools: dict[str, Yool] = {"agent.lint.ruff": lint, "agent.pr.create": pull_request}
    works = [work(n, "agent.lint.ruff", "agent.pr.create") for n in (1, 2)]
    await end_all(store, yools, works[0])
    [again] = await end_all(store, yools, works[1])
    # What declares no inputs is never reused.
    assert (lint.runs, ran) == (1, [works[0].id, works[1].id])
    step, other, end = receipts(store, works[1])
    assert ("reused" in step, "reused" in other, end["steps"]) == (True, False, [step["id"], other["id"]])
    assert (end["cost"]["usd"], read_status(store).lanes["build"].reused) == (1.0, 1)
    assert (again.reused, len(again.claim.work.payload)) == (1, 2)


@pytest.mark.parametrize("change", ["file", "version", "name", "arguments", "project", "no reuse"])
async def test_another_input_is_run(store: TupleStore, lint: Lint, change: str) -> None:
    yools: dict[str, Yool] = {"agent.lint.ruff": lint}
    await end_all(store, yools, work(1))
    options: dict[str, Any] = {}
    args: dict[str, Any] = {}
    match change:
        case "file":
            (lint.folder / "a.py").write_text("x = 2\n")
        case "version":
            lint.version = "ruff 2"
        case "name":
            lint.full_name = "agent.lint.ruff.v4"  # type: ignore[attr-defined]
        case "arguments":
            args = {"fix": True}
        case "project":
            options["reuse"] = Reuse(project="another", key=KEY)
        case _:
            options["reuse"] = None
    second = work(2, **args)
    await end_all(store, yools, second, **options)
    assert lint.runs == 2
    assert "reused" not in receipts(store, second)[0]


@pytest.mark.parametrize("kind", ["fails", "formats", "no digest"])
async def test_what_is_not_certain_is_not_kept(store: TupleStore, tmp_path: Path, kind: str) -> None:
    lint = Lint(tmp_path / "project", exit=int(kind == "fails"), formats=kind == "formats")
    if kind == "no digest":
        lint.folder = tmp_path / "nowhere"
    for number in (1, 2):
        await end_all(store, {"agent.lint.ruff": lint}, work(number))
    assert lint.runs == 2
    assert not any("input_hash" in each for number in (1, 2) for each in receipts(store, work(number)))


async def test_a_tuple_with_no_cache_runs_and_its_answer_is_kept(store: TupleStore, lint: Lint) -> None:
    yools: dict[str, Yool] = {"agent.lint.ruff": lint}
    await end_all(store, yools, work(1))
    forced = new_tuple("build", [{"yool": "agent.lint.ruff", "args": {"path": "src"}}], flags={"no_cache": True})
    await end_all(store, yools, forced)
    await end_all(store, yools, work(2))
    [ran] = receipts(store, forced)
    assert (lint.runs, "reused" in ran, receipts(store, work(2))[0]["reused"]) == (2, False, ran["id"])


async def test_an_outage_during_the_look_up_ends_no_worker(
    store: TupleStore, lint: Lint, monkeypatch: pytest.MonkeyPatch
) -> None:
    yools: dict[str, Yool] = {"agent.lint.ruff": lint}
    await end_all(store, yools, work(1))
    answers, failures = store.answers, list[str]()

    def fails_first(input_hash: str) -> list[Answer]:
        if not failures:
            failures.append(input_hash)
            raise SpaceError("cannot read tuple-space")
        return answers(input_hash)

    monkeypatch.setattr(store, "answers", fails_first)
    monkeypatch.setattr(outages, "_BACKOFF_S", (0.01, 0.05))
    await end_all(store, yools, work(2))
    assert (lint.runs, "reused" in receipts(store, work(2))[0], len(failures)) == (1, True, 1)


async def test_inputs_that_are_gone_after_the_step_cost_no_result(store: TupleStore, lint: Lint) -> None:
    async def digest_once(call: StepCall) -> str | None:
        if lint.runs:
            raise OSError("it is gone")
        return "digest"

    lint.input_digest = digest_once  # type: ignore[method-assign]
    await end_all(store, {"agent.lint.ruff": lint}, work(1))
    [receipt] = receipts(store, work(1))
    assert (lint.runs, receipt["result"], "input_hash" in receipt) == (1, "clean", False)


async def test_a_large_answer_is_reused_until_it_is_purged(store: TupleStore, tmp_path: Path) -> None:
    large = {"report": "x" * (retention.INLINE_BYTES + 1), "issues": 0}
    lint = Lint(tmp_path / "project", result=large)
    yools: dict[str, Yool] = {"agent.lint.ruff": lint}
    await end_all(store, yools, work(1))
    await end_all(store, yools, work(2))
    [second] = receipts(store, work(2))
    assert (lint.runs, retention.read_result(store, second)) == (1, large)
    store.expire_artifacts(hot_s=0, warm_s=0, most_bytes=0, dry_run=False)
    await end_all(store, yools, work(3))
    assert (lint.runs, retention.read_result(store, receipts(store, work(3))[0])) == (2, large)


async def test_a_receipt_that_was_imported_is_not_believed(store: TupleStore, lint: Lint, tmp_path: Path) -> None:
    yools: dict[str, Yool] = {"agent.lint.ruff": lint}
    other = open_store(tmp_path / "other.db")
    await end_all(other, yools, work(1))
    log = ProjectLog(tmp_path / ".catalog")
    log.export(other)
    other.close()
    assert log.load(store).tuples == 1
    assert receipts(store, work(1))[0]["input_hash"]
    await end_all(store, yools, work(2))
    assert lint.runs == 2


def changed(address: str, of_tuple: WorkTuple, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Change the receipt of a tuple behind the store's back: its body, and its id if the body has another."""
    if address.startswith("sqlite:"):
        base: Any = sqlite3.connect(address.removeprefix("sqlite:"))
        base.execute("DROP TRIGGER receipts_changed")
        table, tuples, sign = "receipts", "tuples", "?"
    else:
        import psycopg

        base = psycopg.connect(address)
        base.execute("ALTER TABLE cantrip_tuple_receipts DISABLE TRIGGER USER")
        table, tuples, sign = "cantrip_tuple_receipts", "cantrip_tuples", "%s"
    where = f"position = (SELECT position FROM {tuples} WHERE id = {sign})"
    (body,) = base.execute(f"SELECT body FROM {table} WHERE {where}", (of_tuple.id,)).fetchone()
    made = change(json.loads(body))
    text: Any = canonical_json(made)
    text = text if address.startswith("sqlite:") else text.decode()
    base.execute(f"UPDATE {table} SET body = {sign}, id = {sign} WHERE {where}", (text, made["id"], of_tuple.id))
    base.commit()
    base.close()


async def test_a_receipt_whose_content_was_changed_is_not_believed(store: TupleStore, address: str, lint: Lint) -> None:
    yools: dict[str, Yool] = {"agent.lint.ruff": lint}
    await end_all(store, yools, work(1))
    changed(address, work(1), lambda receipt: {**receipt, "result": "all is well"})
    await end_all(store, yools, work(2))
    assert (lint.runs, receipts(store, work(2))[0]["result"]) == (2, "clean")


def forged(receipt: dict[str, Any]) -> dict[str, Any]:
    content = {**receipt, "result": "all is well"}
    del content["id"]
    return {"id": content_id(content), **content}


@pytest.mark.parametrize("address", ["sqlite"], indirect=True)
async def test_in_a_file_only_what_was_sealed_with_the_users_key_is_believed(
    store: TupleStore, address: str, lint: Lint
) -> None:
    yools: dict[str, Yool] = {"agent.lint.ruff": lint}
    await end_all(store, yools, work(1))
    # A program that can write the file makes a receipt that is genuine by its own hash.
    changed(address, work(1), forged)
    await end_all(store, yools, work(2))
    assert (lint.runs, receipts(store, work(2))[0]["result"]) == (2, "clean")
    # And another user of the file has another key.
    await end_all(store, yools, work(3), reuse=Reuse(project="p", key=b"another key"))
    await end_all(store, yools, work(4), reuse=Reuse(project="p"))
    assert lint.runs == 4


@pytest.mark.parametrize("address", ["postgres"], indirect=True)
async def test_with_row_security_an_answer_is_of_its_user(address: str, store: TupleStore, lint: Lint) -> None:
    import psycopg

    assert hasattr(store, "enable_row_security")
    store.enable_row_security()
    schema = address.rpartition("%3D")[2]
    with psycopg.connect(address, autocommit=True) as base:
        for user in ("eve", "dan"):
            base.execute(f"DROP ROLE IF EXISTS {user}".encode())
            base.execute(f"CREATE ROLE {user} LOGIN PASSWORD 'pw'".encode())
            # The rights that the documentation names, and no others.
            for grant in (
                f"USAGE ON SCHEMA {schema}",
                "SELECT, INSERT ON cantrip_tuples, cantrip_tuple_receipts, cantrip_tuple_tables",
                "SELECT, INSERT, UPDATE ON cantrip_tuple_queue, cantrip_tuple_budgets, cantrip_tuple_artifacts",
                "SELECT, INSERT, UPDATE, DELETE ON cantrip_tuple_workers",
            ):
                base.execute(f"GRANT {grant} TO {user}".encode())
    place, yools = address.partition("@")[2], {"agent.lint.ruff": lint}
    eve, dan = (open_store(f"postgresql://{user}:pw@{place}") for user in ("eve", "dan"))
    try:
        await end_all(eve, yools, work(1), reuse=Reuse(project="p"))
        await end_all(dan, yools, work(2), reuse=Reuse(project="p"))
        assert (lint.runs, len(dan.answers(receipts(dan, work(2))[0]["input_hash"]))) == (2, 1)
        # An administrator, from whom row security hides nothing, does not use the answers of others either.
        assert store.answers(receipts(dan, work(2))[0]["input_hash"]) == []
        await end_all(dan, yools, work(3), reuse=Reuse(project="p"))
        assert lint.runs == 2
    finally:
        eve.close()
        dan.close()


@pytest.mark.parametrize("address", ["sqlite"], indirect=True)
async def test_a_worker_with_metrics_reuses_too(store: TupleStore, lint: Lint) -> None:
    pytest.importorskip("prometheus_client")
    from cantrip_acp.tuplespace.monitoring.metrics import WorkerMetrics

    metrics = WorkerMetrics(store, "build", "w")
    yools: dict[str, Yool] = {**metrics.timed({"agent.lint.ruff": lint})}
    for number in (1, 2, 3):
        for ended in await end_all(store, yools, work(number)):
            metrics.ended(ended)
    assert lint.runs == 1
    assert metrics.registry.get_sample_value("cantrip_steps_reused_total", {"lane": "build"}) == 2


PROCESS = """
import sys, anyio
from pathlib import Path
from cantrip_acp.cli.session.tuple_space import reuse_in
from cantrip_acp.tuplespace.errors import SpaceError
from cantrip_acp.files.digests import FileDigests
from cantrip_acp.tuplespace.stores import open_store
from cantrip_acp.tuplespace.tuples import Pattern
from cantrip_acp.tuplespace.workers.worker import StepResult, Worker
address, state, project = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
class Lint:
    async def input_digest(self, call):
        return FileDigests().folder(project / "src")
    async def __call__(self, call):
        return StepResult(result="clean")
async def main():
    store = open_store(address)
    reuse = reuse_in(store, state, project)
    over = lambda: all(each.state == "done" for each in store.counts())
    await Worker(store, Pattern({"lane": "build"}), {"agent.lint.ruff": Lint()}, name="w", reuse=reuse).run(until=over)
anyio.run(main)
"""


def test_processes_reuse_the_answers_of_each_other(store: TupleStore, address: str, tmp_path: Path) -> None:
    """On two machines, each with its own copy of the project and its own state folder."""
    for copy in ("here", "there", "other"):
        (tmp_path / copy / "src").mkdir(parents=True)
        (tmp_path / copy / "src" / "a.py").write_text("x = 1\n")
        subprocess.run(["git", "init", "-q"], cwd=tmp_path / copy, check=True)
        remote = "git@example.org:team/other.git" if copy == "other" else "https://example.org/team/project.git"
        subprocess.run(["git", "remote", "add", "origin", remote], cwd=tmp_path / copy, check=True)

    def reused(number: int, project: str, state: str) -> bool:
        store.put([work(number)])
        words = [sys.executable, "-c", PROCESS, address, str(tmp_path / state), str(tmp_path / project)]
        subprocess.run(words, check=True, timeout=60)
        return "reused" in receipts(store, work(number))[0]

    assert not reused(1, "here", "state")
    assert reused(2, "there", "state")
    assert not reused(3, "other", "state")
    # In a file, the seal is of a user. A database is shared by those who may work there.
    assert reused(4, "there", "another-state") == address.startswith("postgresql:")
