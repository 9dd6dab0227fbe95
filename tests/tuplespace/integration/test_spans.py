"""Spans of emitters and workers in processes of their own, as an OTLP receiver gets them: one trace."""

from __future__ import annotations

import getpass
import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cantrip_acp import Loom
from cantrip_acp.tuplespace.receipts import make_receipt
from cantrip_acp.tuplespace.stores.sql import TupleStore
from cantrip_acp.tuplespace.tuples import Pattern, new_tuple, now_iso
from tests.support.command_line import run, start
from tests.support.otlp_receiver import Receiver, attributes
from tests.support.tuples import acknowledge

ID = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN = "00f067aa0ba902b7"
KEY = "sk-ant-" + "api03-" + "Qx7" * 30
RECIPE = """\
name: greeter
crystal:
  provider: scripted
  responses:
    - {when: broken, error: {message: "refused: KEY", code: bad}, repeat: true}
    - tool_calls: [{gate: done, args: {answer: Hello.}}]
      usage: {prompt_tokens: 10, completion_tokens: 5, cost: 0.25}
      repeat: true
circle: {medium: conversation, gates: [done], wards: [{max_turns: 3}]}
"""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "greeter.cantrip.yaml").write_text(RECIPE.replace("KEY", KEY))
    (tmp_path / "intents.jsonl").write_text('"Say hello."\n"This is broken."\n')
    return tmp_path


def batch_and_worker(folder: Path, address: str, **env: str) -> list[dict[str, Any]]:
    """A batch by a worker in a process of its own. Returns the batch's results."""
    env = {"CANTRIP_STATE_DIR": str(folder / "state"), "CANTRIP_TUPLE_SPACE": address, **env}
    words = ["--lane", "greetings"]
    outside = {"TRACEPARENT": f"00-{ID}-{SPAN}-01", "TRACESTATE": "ci=7"}
    batch = start(
        "cast-batch", "greeter.cantrip.yaml", "intents.jsonl", "--max-retries", "0", "--json", *words, cwd=folder,
        **env, **outside,
    )  # fmt: skip
    worker = start("worker", "greeter.cantrip.yaml", "--loom", "work.loom.jsonl", *words, cwd=folder, **env)
    try:
        out, err = batch.communicate(timeout=60)
        assert batch.returncode == 1, err
    except subprocess.TimeoutExpired:
        batch.kill()
        worker.kill()
        pytest.fail(f"the batch waits: {batch.communicate()}; its worker: {worker.communicate()}")
    finally:
        worker.terminate()
        worker.communicate(timeout=60)
    return [json.loads(line) for line in out.splitlines()]


def test_emitter_worker_steps_and_casts_are_one_trace(folder: Path, address: str, receiver: Receiver) -> None:
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url, "OTEL_BSP_SCHEDULE_DELAY": "100"}
    rows = {row["state"]: row for row in batch_and_worker(folder, address, **env)}
    receiver.spans(10)
    spans = receiver.all()
    assert {span.trace_id.hex() for span in spans} == {ID}
    by_id = {span.span_id: span for span in spans}

    def chain(span: Any) -> list[str]:
        names = [span.name]
        while (parent := by_id.get(span.parent_span_id)) is not None:
            span = parent
            names.append(span.name)
        return [*names, span.parent_span_id.hex()]

    done = next(span for span in spans if span.name == "execute_tool done")
    assert chain(done) == [
        "execute_tool done", "invoke_agent greeter", "step agent.cast.greeter", "tuple greetings", "cast-batch greeter", SPAN,
    ]  # fmt: skip
    step = by_id[by_id[done.parent_span_id].parent_span_id]
    said = attributes(step)
    assert said["cantrip.tuple.id"] == rows["done"]["tuple_id"]
    assert {name: said[f"cantrip.{name}"] for name in ("lane", "yool", "attempt", "step", "exit")} == {
        "lane": "greetings", "yool": "agent.cast.greeter", "attempt": 1, "step": 0, "exit": 0,
    }  # fmt: skip
    assert (said["cantrip.usage.cost_usd"], said["gen_ai.usage.input_tokens"]) == (0.25, 10)
    about = attributes(by_id[step.parent_span_id])
    assert (about["cantrip.attempt"], about["cantrip.exit"]) == (1, 0)
    assert ":" in about["cantrip.worker"]
    failed = next(
        span for span in spans
        if span.name == "tuple greetings" and attributes(span)["cantrip.tuple.id"] == rows["failed"]["tuple_id"]
    )  # fmt: skip
    assert (failed.status.code, attributes(failed)["error.type"]) == (2, "exit 1")
    assert "refused" in failed.status.message
    assert KEY not in str(spans)


def test_without_an_exporter_the_loom_still_names_the_trace(folder: Path, address: str) -> None:
    rows = batch_and_worker(folder, address)
    with Loom.open(folder / "work.loom.jsonl", readonly=True) as loom:
        assert {turn.metadata.trace_id for turn in loom.turns() if turn.role == "crystal"} == {ID}
    assert len(rows) == 2


def test_tuples_that_are_put_by_hand_have_the_trace_of_their_environment(tmp_path: Path) -> None:
    one = json.dumps({"schema": "yool-tuple/v1", "lane": "build", "payload": [{"yool": "agent.lint.ruff"}]})
    env = {"TRACEPARENT": f"00-{ID}-{SPAN}-01"}
    assert run("tuple", "out", "-", "--space", "space.db", cwd=tmp_path, stdin=one, **env).status == 0
    from cantrip_acp.tuplespace.stores import open_store

    store = open_store(tmp_path / "space.db")
    [claim] = store.claim(Pattern(), "w", lease_s=9)
    assert claim.meta is not None
    # Who put it is noted there, too.
    assert claim.meta["traceparent"] == env["TRACEPARENT"]
    assert claim.meta["authority.user"] == getpass.getuser()
    store.close()


def test_the_trace_is_no_part_of_the_work(store: TupleStore, open_space: Callable[[], TupleStore]) -> None:
    work = new_tuple("build", [{"yool": "a.b"}])
    assert store.put([work], meta={"traceparent": "one"}) == [True]
    assert store.put([work], meta={"traceparent": "two"}) == [False]
    [claim] = open_space().claim(Pattern(), "w", lease_s=60)
    assert claim.meta == {"traceparent": "one"}
    assert "meta" not in claim.work.document
    # Children belong to the same trace.
    child = new_tuple("build", [{"yool": "a.c"}], parent_id=work.id)
    now = now_iso()
    receipt = make_receipt(yool="a.b", tuple_id=work.id, started_at=now, ended_at=now, exit=0, cost={})
    acknowledge(store, claim, receipt, children=[child])
    [again] = store.claim(Pattern(), "w", lease_s=60)
    assert (again.work.id, again.meta) == (child.id, {"traceparent": "one"})
    assert store.put([new_tuple("build", [{"yool": "a.d"}])]) == [True]
    [plain] = store.claim(Pattern(), "w", lease_s=60)
    assert plain.meta is None
