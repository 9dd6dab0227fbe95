"""What `cantrip worker` prints of an attempt."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cantrip_acp.cli.commands.worker import print_ended
from cantrip_acp.tuplespace import Pattern, Reuse, StepCall, StepResult, Worker, new_tuple, open_store
from cantrip_acp.tuplespace.workers.worker import Ended


class Lint:
    """A step whose answer holds as long as its input is the same."""

    async def input_digest(self, call: StepCall) -> str | None:
        return "always the same"

    async def __call__(self, call: StepCall) -> StepResult:
        return StepResult(result="clean")


async def ship(call: StepCall) -> StepResult:
    """A step that is never reused, because nobody knows its input."""
    return StepResult()


@pytest.mark.parametrize(
    ("steps", "line"),
    [
        (["agent.lint.ruff"], "agent.lint.ruff  reused"),
        (["agent.lint.ruff", "agent.ship"], "agent.lint.ruff  1 of 2 steps reused"),
    ],
)
async def test_a_reused_answer_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], steps: list[str], line: str
) -> None:
    ended: list[Ended] = []
    store = open_store(tmp_path / "space.db")
    works = [new_tuple("build", [{"yool": name} for name in steps], map_pos={"n": n}) for n in range(2)]
    store.put(works)
    worker = Worker(
        store,
        Pattern({"lane": "build"}),
        {"agent.lint.ruff": Lint(), "agent.ship": ship},
        name="w",
        ended=ended.append,
        concurrency=1,
        reuse=Reuse(project="p", key=b"k" * 32),
    )
    await worker.run(until=lambda: all(each.state not in ("waiting", "claimed") for each in store.counts()))
    store.close()
    [first, again] = ended
    print_ended(first, as_json=False)
    print_ended(again, as_json=False)
    print_ended(again, as_json=True)
    one, two, row = capsys.readouterr().out.splitlines()
    assert one.endswith("agent.lint.ruff")
    assert two.endswith(line)
    assert (json.loads(row)["state"], json.loads(row)["reused"]) == ("done", 1)
