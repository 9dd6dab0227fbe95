"""History that was written in another medium: the crystal reads what its programs printed, in every pair of mediums."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cantrip_acp import Cantrip, Circle, Gate, Loom, ScriptedCrystal
from cantrip_acp.core.forking.resume import resume_entity
from cantrip_acp.core.history.replayed_context import ReplayedContext
from cantrip_acp.loom.query.outline import Outline
from cantrip_acp.types.messages import Message

pytestmark = pytest.mark.anyio

DONE = {"gate": "done", "args": {"answer": "ok"}}
LOOK = Gate("look", "Look.", {"type": "object", "properties": {}}, lambda args, context: "RESULT-42")
WORK: dict[str, dict[str, Any]] = {
    "bash": {"gate": "bash", "args": {"command": "echo RESULT-42"}},
    "code": {"gate": "python", "args": {"code": "print('RESULT-' + str(6 * 7))"}},
    "monty": {"gate": "python", "args": {"code": "'RESULT-' + str(6 * 7)"}},
    "conversation": {"gate": "look", "args": {}},
}
END = {
    "bash": {"gate": "bash", "args": {"command": "cantrip_done ok"}},
    "code": {"gate": "python", "args": {"code": "done('ok')"}},
    "monty": {"gate": "python", "args": {"code": "done('ok')"}},
    "conversation": DONE,
}


def cantrip(medium: str, crystal: ScriptedCrystal, loom: Loom, **more: Any) -> Cantrip:
    gates: list[Any] = ["done", LOOK] if medium == "conversation" else ["done"]
    return Cantrip(
        crystal, {"system_prompt": f"You use {medium}."}, Circle(medium, gates, [{"max_turns": 9}], **more), loom=loom
    )


def scripted(*calls: dict[str, Any], **more: Any) -> ScriptedCrystal:
    return ScriptedCrystal([{"tool_calls": [call]} for call in calls], record_inputs=True, **more)


def check_answered(messages: Sequence[Message]) -> None:
    """Each call is answered at once, once and in order: no provider accepts anything else."""
    waiting: list[str] = []
    for message in messages:
        if message.role == "tool":
            assert message.tool_call_id == waiting.pop(0)
            continue
        assert not waiting
        waiting = [call.id for call in message.tool_calls]
    assert not waiting


def check_read(loom: Loom, crystal: ScriptedCrystal, last: str) -> None:
    (query, *_) = crystal.invocations
    texts = [message.content or "" for message in query.messages]
    assert any("RESULT-42" in text for text in texts if text), texts
    assert not any("not run" in text for text in texts), texts
    check_answered(query.messages)
    windows = list(ReplayedContext(loom, Outline(loom)).windows(last))
    said = windows[-1].uttered[0]
    assert msgspec.json.encode(windows[-1].messages[: said.at]) == msgspec.json.encode(list(query.messages))


@pytest.mark.parametrize(("before", "after"), [*permutations(WORK, 2)])
async def test_a_fork_in_another_medium_reads_what_was_printed(before: str, after: str, tmp_path: Path) -> None:
    loom = Loom.open(tmp_path / "l.jsonl")
    async with cantrip(before, scripted(WORK[before], END[before]), loom).invoke() as entity:
        await entity.cast("Work.")
        turn = entity.last_turn
    crystal = scripted(END[after])
    async with await cantrip(after, crystal, loom).fork(turn, state="none") as other:
        assert (await other.cast("Go on.")).result == "ok"
    check_read(loom, crystal, other.last_turn)
    # And back again: each turn is shown as its own medium left it.
    again = scripted(END[before])
    async with await cantrip(before, again, loom).fork(other.last_turn, state="none") as back:
        assert (await back.cast("And again.")).result == "ok"
    check_read(loom, again, back.last_turn)
    loom.close()


async def test_a_failed_program_keeps_its_exit_status(tmp_path: Path) -> None:
    loom = Loom.open(tmp_path / "l.jsonl")
    failing = {"gate": "bash", "args": {"command": "echo RESULT-42; exit 3"}}
    async with cantrip("bash", scripted(failing, END["bash"]), loom).invoke() as entity:
        await entity.cast("Work.")
    crystal = scripted(END["code"])
    async with await cantrip("code", crystal, loom).fork(entity.last_turn) as other:
        await other.cast("Go on.")
    tool = next(m for m in crystal.invocations[0].messages if m.role == "tool")
    assert (tool.content, tool.is_error) == ("RESULT-42\n[exit status 3]", True)
    loom.close()


async def test_an_entity_whose_medium_was_edited_reads_its_own_programs(tmp_path: Path) -> None:
    loom = Loom.open(tmp_path / "l.jsonl")
    async with cantrip("bash", scripted(WORK["bash"], END["bash"]), loom).invoke(entity_id="e_one") as entity:
        await entity.cast("Work.")
    crystal = ScriptedCrystal([{}, {}, {"tool_calls": [DONE]}], record_inputs=True)
    async with resume_entity(cantrip("conversation", crystal, loom), loom, "e_one").entity as again:
        await again.cast("Go on.")
    texts = json.dumps([m.content for m in crystal.invocations[0].messages])
    assert "RESULT-42" in texts
    assert "not run" not in texts
    check_answered(crystal.invocations[0].messages)
    loom.close()


async def test_a_fork_of_a_code_child_in_the_parents_conversation(tmp_path: Path) -> None:
    loom = Loom.open(tmp_path / "l.jsonl")
    kid = cantrip("code", scripted(WORK["code"], END["code"]), loom)
    async with kid.invoke() as entity:
        await entity.cast("Work.")
    first = next(i for i, place in loom.places.items() if place.role == "crystal")
    crystal = scripted(DONE)
    async with await cantrip("conversation", crystal, loom).fork(first, resume=True) as other:
        await other.resume()
    texts = [m.content for m in crystal.invocations[0].messages]
    assert "RESULT-42" in texts
    check_answered(crystal.invocations[0].messages)
    loom.close()


async def test_a_crystal_that_writes_its_calls_as_text_saw_another_capability_block() -> None:
    loom = Loom.memory()
    program = {"tool_calls": [{"gate": "python", "args": {"code": "done(1)"}}]}
    one, two = (
        ScriptedCrystal([program], record_inputs=True),
        ScriptedCrystal([program], record_inputs=True, tools="text"),
    )
    circle = Circle("monty", ["done"], [{"max_turns": 3}])
    async with Cantrip(one, {"system_prompt": "Help."}, circle, loom=loom).invoke() as entity:
        await entity.cast("go")
        entity.use_crystal(two)
        await entity.cast("and on")
        leaf = entity.last_turn
    windows = list(ReplayedContext(loom, Outline(loom)).windows(leaf))
    told = [window.messages[: said.at] for window in windows for said in window.uttered]
    assert told == [list(query.messages) for query in (*one.invocations, *two.invocations)]
    assert [window.begun for window in windows] == ["start", "cantrip"]
    assert told[0][1] != told[1][1]
