"""Secrets that a step says: in its result, its error, its artifacts, what it saves, and however it fails. No store keeps one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import anyio
import msgspec
import pytest

from cantrip_acp.text.redaction import shared
from cantrip_acp.tuplespace.retention import read_result
from cantrip_acp.tuplespace.stores.sql import TupleStore
from cantrip_acp.tuplespace.tuples import Pattern, new_tuple
from cantrip_acp.tuplespace.workers import outages
from cantrip_acp.tuplespace.workers.worker import Ended, StepCall, StepFailed, StepResult, Worker
from tests.support.secret_places import SECRET

pytestmark = pytest.mark.anyio

MARKER = "marker-that-is-no-secret"
SAID = f"{MARKER} {SECRET}"
SHAPED = "ghp_" + "a1B2c3D4e5" * 4
"""Looks like a secret. Errors lose it, and results do not."""


async def result(call: StepCall) -> StepResult:
    return StepResult(result={"said": [SAID], SECRET: 1})


async def large(call: StepCall) -> StepResult:
    return StepResult(result={"said": SAID, "much": ["x" * 1_000] * 100})


async def error(call: StepCall) -> StepResult:
    return StepResult(exit=3, error=f"{SAID} {SHAPED}")


async def artifact(call: StepCall) -> StepResult:
    return StepResult(artifacts=[{"kind": "file", "path": f"/tmp/{SAID}"}])


async def saved(call: StepCall) -> StepResult:
    if call.progress is None:
        await call.save({"said": SAID})
        raise StepFailed("again")
    return StepResult(result=dict(call.progress))


async def failed(call: StepCall) -> StepResult:
    raise StepFailed(f"{SAID} {SHAPED}")


async def bug(call: StepCall) -> StepResult:
    raise RuntimeError(f"{SAID} {SHAPED}")


STEPS: Mapping[str, Any] = {
    each.__name__: each for each in (result, large, error, artifact, saved, failed, bug)
}  # fmt: skip


@pytest.mark.parametrize("known", [True, False], ids=["masked", "control"])
@pytest.mark.parametrize("step", STEPS)
async def test_what_a_step_says_is_kept_without_secrets(
    step: str, known: bool, store: TupleStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outages, "_BACKOFF_S", (0.01, 0.05))
    if known:
        shared().add(SECRET)
    work = new_tuple("build", [{"yool": "a.step"}], agent_terms={"max_retries": 1})
    store.put([work])
    ended: list[Ended] = []
    worker = Worker(
        store, Pattern({"lane": "build"}), {"a.step": STEPS[step]}, name="w", lease_s=30.0, ended=ended.append
    )
    with anyio.fail_after(60):
        await worker.run(until=lambda: all(each.state not in ("waiting", "claimed") for each in store.counts()))
    receipts = store.receipts(work.id)
    told = msgspec.json.encode([store.get(work.id), receipts, ended, store.failures("build")], enc_hook=repr)
    told += msgspec.json.encode([read_result(store, each.document) for each in receipts])
    for each in receipts:
        for made in each.document["artifacts"]:
            kept = store.artifact(made["id"]) if "id" in made else None
            told += b"" if kept is None or kept.body is None else kept.body
    assert MARKER.encode() in told
    assert (SECRET.encode() in told) is not known
    assert SHAPED.encode() not in told
