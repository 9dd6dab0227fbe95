"""Groups of forks: side by side, in order, each failure its own, found again by the group's id (LOOM-4)."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from cantrip_acp import Cantrip, Circle, Loom, ScriptedCrystal
from cantrip_acp.crystals.contract import Emit, Query, Response
from cantrip_acp.types.errors import CrystalError, DefinitionError, IntentRequired, TurnNotFound
from cantrip_acp.types.messages import ToolCall
from cantrip_acp.types.records import ForkRecord
from tests.support.waiting import wait_until


class Answering:
    """Answers with the intent, after as long as it says; fails where it says so. Counts how many queries run at once."""

    name = model = "answering"
    context_window = None

    def __init__(self) -> None:
        self.running = 0
        self.most = 0

    async def query(self, query: Query, emit: Emit) -> Response:
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            if "fail" in query.intent:
                raise CrystalError("no answer to be had", retryable=False)
            await anyio.sleep(60 if "never" in query.intent else 0.05 if "slow" in query.intent else 0.01)
        finally:
            self.running -= 1
        if "write" in query.intent:
            wrote = any(m.role == "tool" for m in query.messages[-1:])
            if not wrote:
                args = f'{{"path": "new.txt", "content": "{query.entity_id}"}}'
                return Response(tool_calls=(ToolCall("c1", "write_file", args),))
        return Response(tool_calls=(ToolCall("c2", "done", f'{{"answer": "{query.intent}"}}'),))


def spell(crystal: Any, where: Path | None = None) -> Cantrip:
    circle = Circle("conversation", ["done", "write_file"], [{"max_turns": 5}], workspace=where)
    return Cantrip(crystal, circle=circle, loom_settings={"files": where is not None})


async def begun(cantrip: Cantrip) -> str:
    await cantrip.cast("begin")
    return next(turn.id for turn in cantrip.loom.turns() if turn.role == "crystal")


async def test_results_come_in_order_and_a_failure_is_one_forks_alone() -> None:
    crystal = Answering()
    cantrip = spell(crystal)
    turn = await begun(cantrip)
    group = await cantrip.fork_group(turn, ["slow one", "fail two", "three", "slow four"], concurrency=2)
    assert [sample.number for sample in group.samples] == [0, 1, 2, 3]
    results = [sample.result.result if sample.result else None for sample in group.samples]
    assert results == ["slow one", None, "three", "slow four"]
    assert isinstance(group.samples[1].error, CrystalError)
    assert crystal.most == 2
    records = [record for record in cantrip.loom.records() if isinstance(record, ForkRecord)]
    assert {record.group for record in records} == {group.id}
    assert {record.entity_id for record in records} == {sample.entity_id for sample in group.samples}
    assert all(record.from_turn == turn for record in records)
    assert len(cantrip.loom.thread(turn).turns) == 2


async def test_samples_of_one_intent_and_what_does_not_fit() -> None:
    cantrip = spell(Answering())
    turn = await begun(cantrip)
    assert [s.result.result for s in (await cantrip.fork_group(turn, "same", samples=3)).samples if s.result] == [
        "same"
    ] * 3
    assert len((await cantrip.fork_group(turn, "same")).samples) == 4
    with pytest.raises(DefinitionError, match="2 samples and 3 intents"):
        await cantrip.fork_group(turn, ["a", "b", "c"], samples=2)
    with pytest.raises(DefinitionError, match="needs an intent"):
        await cantrip.fork_group(turn, [])
    with pytest.raises(IntentRequired):
        await cantrip.fork_group(turn, ["a", " "])
    with pytest.raises(TurnNotFound):
        await cantrip.fork_group("t_nothing", "a")


async def test_a_cancelled_group_ends_its_forks(tmp_path: Path) -> None:
    crystal = Answering()
    cantrip = spell(crystal)
    turn = await begun(cantrip)
    async with anyio.create_task_group() as group:
        group.start_soon(partial(cantrip.fork_group, turn, "never", samples=2, concurrency=2))
        await wait_until(lambda: crystal.running == 2)
        group.cancel_scope.cancel()
    ends = [end for _, end in cantrip.loom.casts()[1:]]
    assert [end.reason if end else None for end in ends] == ["cancelled", "cancelled"]


def test_a_loom_of_before_groups_is_read(tmp_path: Path) -> None:
    path = tmp_path / "old.loom.jsonl"
    path.write_text(
        '{"type":"loom","id":"loom_1","format":1,"created":"","generator":"cantrip-acp"}\n'
        '{"type":"fork","id":"k_1","from_turn":"t_1","entity_id":"e_1","strategy":"replay","missing":["x"],"timestamp":""}\n'
    )
    with Loom.open(path, readonly=True) as loom:
        record = next(record for record in loom.records() if isinstance(record, ForkRecord))
        assert record.missing == ("x",)
        assert not isinstance(record.group, str)
        assert not isinstance(record.worktree, str)


def test_a_script_serves_a_group_too() -> None:
    """The place in a script belongs to the crystal: forks of one cantrip share it."""
    said = [{"tool_calls": [{"gate": "done", "args": {"answer": str(number)}}]} for number in range(3)]
    cantrip = spell(ScriptedCrystal(said))

    async def run() -> list[Any]:
        group = await cantrip.fork_group(await begun(cantrip), "go", samples=2, concurrency=1)
        return [sample.result.result for sample in group.samples if sample.result]

    assert sorted(anyio.run(run)) == ["1", "2"]
