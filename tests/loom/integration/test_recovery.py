"""What was said when a process was killed: the loom has it, and whoever goes on knows that its calls were interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from cantrip_acp import GateReply, Loom, Turn
from cantrip_acp.core.forking.resume import resume_entity
from cantrip_acp.loom.recovery import CUT_OFF, ENDED, complete_interrupted, missing
from cantrip_acp.loom.stores.address import open_store
from cantrip_acp.types.messages import ToolCall
from cantrip_acp.types.records import CastRecord, GateRecord, Observation, Utterance, UtteranceRecord
from cantrip_acp.types.usage import Usage
from tests.support import processes
from tests.support.fixtures.core import done, echo, make
from tests.support.loom_stores import Place

pytestmark = pytest.mark.anyio

KILLED = """
import sys, anyio
sys.path.insert(0, {root!r})
from cantrip_acp import Loom
from cantrip_acp.gates.contract import Gate
from tests.support.fixtures.core import make
async def handler(args, context):
    print("waiting", flush=True)
    await anyio.sleep(600)
wait = Gate("wait", "Waits.", {{"type": "object"}}, handler)
calls = [{{"gate": gate, "args": {{"text": text}}}} for gate, text in (("echo", "a"), ("wait", "b"), ("echo", "c"))]
said = {{"content": "I wait.", "tool_calls": calls}}
spell = make(said, gates=["done", "echo", wait], loom=Loom.open({where!r}), usage={{"prompt_tokens": 7, "completion_tokens": 3}})
anyio.run(spell.cast, "go")
"""


def killed_in_a_call(where: str) -> None:
    program = KILLED.format(root=os.getcwd(), where=where)
    with processes.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"waiting\n"
        process.send_signal(signal.SIGKILL)


async def test_a_call_that_the_process_died_in(kept: Place) -> None:
    killed_in_a_call(kept.where)
    with Loom(open_store(kept.where, readonly=True)) as seen:
        # What is in the store, without what readers add.
        assert [each.utterance.content for each in seen.unfinished()] == ["I wait."]
        assert [turn.role for turn in seen.turns()] == ["call"]
        entity_id = seen.unfinished()[0].entity_id
    loom = kept.open()
    spell = make(done("never"), done("on"), loom=loom)
    again = resume_entity(spell, loom, entity_id)
    (turn,) = [each for each in loom.turns() if each.role == "crystal"]
    assert (turn.reason, turn.truncated, turn.sequence, again.turns) == ("error", True, 1, 1)
    assert turn.gate_calls == ("echo", "wait", "echo")
    assert [(r.args, r.result, r.is_error) for r in turn.observation.results] == [
        ({"text": text}, ENDED, True) for text in "abc"
    ]
    assert loom.unfinished() == []
    end = loom.cast_end(turn.cast_id or "")
    assert end is not None
    assert (end.reason, end.truncated, end.turns, end.usage["total_tokens"]) == ("error", True, 1, 10)
    async with again.entity as entity:
        assert entity.usage.total_tokens == 10
        assert (await entity.cast("and now")).result == "on"
        asked = spell.crystal.invocations[0].messages  # type: ignore[attr-defined]
        assert [m.content for m in asked if m.role == "tool"] == [ENDED] * 3
    records = list(loom.records())
    loom = kept.again(loom)
    # Once is enough.
    assert list(loom.records()) == records
    assert complete_interrupted(loom) == []


async def test_a_loom_of_lines_tells_it_to_everybody_who_may_write(tmp_path: Path) -> None:
    path = tmp_path / "a.loom.jsonl"
    killed_in_a_call(str(path))
    with Loom.open(path) as loom:
        assert [t.reason for t in loom.turns()] == [None, "error"]
        assert [end.reason for _, end in loom.casts() if end is not None] == ["error"]
        assert loom.threads()[0].state == "truncated"
        assert list(loom.check()) == []


async def test_it_can_be_forked_copied_and_listed(kept: Place) -> None:
    killed_in_a_call(kept.where)
    with kept.open(readonly=True) as seen:
        copy = seen.copy_to(open_store(Place.like(kept, "copy").where))
        with copy:
            assert list(copy.records()) == [record for record, _ in seen.stored()]
            assert [t.utterance.content for t in seen.turns()][-1] == "I wait."
            assert [u.utterance.content for u in copy.unfinished()] == ["I wait."]
    loom = kept.open()
    entity_id = next(turn.entity_id for turn in loom.turns())
    resume_entity(make(done(), loom=loom), loom, entity_id)
    leaf = loom.leaves()[-1]
    forked = await make(done("x"), loom=loom).fork(leaf, loom=loom)
    async with forked:
        assert (await forked.cast("otherwise")).result == "x"


def _begun(loom: Loom, entity: str, parent: str | None = None, below: str | None = None) -> None:
    """An entity that has said something, on a call of its own or going on from a turn."""
    if parent is None:
        loom.append(Turn(f"{entity}.call", below, "c", entity, None, role="call"))
        parent = f"{entity}.call"
    loom.append(CastRecord(f"{entity}.cast", "start", entity, "c", intent="go", parent_turn_id=below))
    call = Utterance("words", tool_calls=(ToolCall("1", "echo", "{not json"), ToolCall("2", "done", "{}")))
    loom.append(
        UtteranceRecord(
            f"{entity}.1", parent, "c", entity, f"{entity}.cast", 1, call, ("echo", "done"), usage=Usage(5, 2)
        )
    )


async def test_what_a_living_process_says_is_nobody_elses_to_end(shared: Place) -> None:
    loom = shared.open()
    _begun(loom, "mine")
    loom.append(Turn("mine.0", "mine.call", "c", "mine", "mine.cast"))
    _begun(loom, "mine", "mine.0")
    _begun(loom, "child", below="mine.0")
    _begun(loom, "grandchild", below="child.call")
    _begun(loom, "other", below=None)
    _begun(loom, "fork", "mine.0")
    assert {each.entity_id for each in loom.unfinished()} == {"mine", "child", "grandchild", "other", "fork"}
    for entity in ("mine", "child", "grandchild", "other", "fork"):
        assert loom.lock_cast(f"{entity}.cast")
    again = shared.open()
    assert len(again.unfinished()) == 5
    assert complete_interrupted(again) == []
    for entity in ("mine", "child", "grandchild"):
        loom.unlock_cast(f"{entity}.cast")
    assert [turn.id for turn in complete_interrupted(again)] == ["grandchild.1", "child.1", "mine.1"]
    assert {each.entity_id for each in again.unfinished()} == {"other", "fork"}
    assert again.turn("mine.1").observation.results[0] == GateRecord(
        "echo", "{not json", ENDED, True, "1", call_id="mine.1.g0"
    )


async def test_what_a_delegation_had_left(place: Place) -> None:
    loom = place.open()
    calls = tuple(ToolCall(str(n), name, "{}") for n, name in enumerate(("echo", "call_agent", "python", "echo")))
    names = tuple(call.gate for call in calls)
    loom.append(Turn("call", None, "c", "e", None, role="call"))
    loom.append(CastRecord("k", "start", "e", "c", intent="go"))
    done_so_far = Observation((GateRecord("echo", {}, "ok", tool_call_id="0"),))
    loom.append(
        Turn("t1", "call", "c", "e", "k", sequence=1, utterance=Utterance("x", tool_calls=calls), observation=done_so_far,
             gate_calls=("echo", "call_agent"))
    )  # fmt: skip
    loom.append(UtteranceRecord("t2", "t1", "c", "e", "k", 2, Utterance(), names, "python", "t1"))
    (rest,) = complete_interrupted(loom)
    assert (rest.continues, rest.gate_calls) == ("t1", ("echo",))
    assert [(r.gate, r.result) for r in rest.observation.results] == [("call_agent", CUT_OFF), ("echo", ENDED)]
    assert rest.observation.output is not None
    assert rest.observation.output.error == ENDED
    assert [len(ids) for ids in loom.utterance_ids("t2")] == [2]


KILLED_CHILD = """
import sys, anyio
sys.path.insert(0, {root!r})
from cantrip_acp import Call, Cantrip, Circle, Loom, ScriptedCrystal
from cantrip_acp.gates.contract import Gate
say = Gate("say", "Says.", {{"type": "object"}}, lambda args, context: print("waiting", flush=True) or "said")
usage = {{"prompt_tokens": 10, "completion_tokens": 5}}
call = lambda gate, **args: {{"tool_calls": [{{"gate": gate, "args": args}}], "usage": usage}}
below = {{"responses": [call("say"), {{"content": "late", "delay_ms": 600_000}}]}}
middle = {{"responses": [call("call_agent", intent="deepest")], "children": [below]}}
usage = {{"prompt_tokens": 10, "completion_tokens": 5}}
top = ScriptedCrystal([call("call_agent", intent="middle")], usage=usage, children=[middle])
circle = Circle(gates=["done", say, "call_agent"], wards=[{{"max_turns": 9}}, {{"max_depth": 2}}])
anyio.run(Cantrip(top, Call(), circle, loom=Loom.open({where!r})).cast, "go")
"""


async def test_a_child_that_was_between_two_turns_is_ended_and_paid_for(kept: Place) -> None:
    program = KILLED_CHILD.format(root=os.getcwd(), where=kept.where)
    with processes.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"waiting\n"
        # Its turn is written, and its second query waits.
        with Loom(open_store(kept.where, readonly=True)) as seen:
            while not any("say" in turn.gate_calls for turn in seen.turns()):
                await anyio.sleep(0.05)
                seen.refresh()
        process.send_signal(signal.SIGKILL)
    with Loom(open_store(kept.where, readonly=True)) as seen:
        told = {each.id for each in missing(seen) if isinstance(each, CastRecord)}
    loom = kept.open()
    ends = {start.intent: loom.cast_end(start.id) for start in loom.cast_starts().values()}
    assert {end.id for end in ends.values() if end is not None} == told
    spent = {intent: end.usage["total_tokens"] for intent, end in ends.items() if end is not None}
    # Each pays for those below it.
    assert spent == {"go": 45, "middle": 30, "deepest": 15}
    records = list(loom.records())
    loom = kept.again(loom)
    assert list(loom.records()) == records


async def test_what_cannot_be_ended_stays_as_it_is(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    loom = place.open()
    loom.append(Turn("call", None, "c", "e", None, role="call"))
    loom.append(UtteranceRecord("t1", "lost", "c", "e", "k", 1, Utterance("x")))
    assert complete_interrupted(loom) == []
    assert "stays unfinished" in caplog.text
    assert [each.id for each in loom.unfinished()] == ["t1"]
    # It went on without it.
    loom.append(Turn("t2", "call", "c", "e", "k", sequence=1))
    assert loom.unfinished() == []


async def test_a_failure_in_the_middle_of_a_turn_is_in_the_loom(tmp_path: Path) -> None:
    class Broken(BaseException):
        pass

    async def fail(invocation: object, proceed: object) -> GateReply:
        raise Broken

    loom = Loom.open(tmp_path / "a.loom.jsonl")
    with pytest.raises(Broken):
        await make(echo(), loom=loom, interceptors=[fail]).cast("go")
    assert [(t.role, t.reason) for t in loom.turns()] == [("call", None), ("crystal", "error")]
    assert loom.unfinished() == []
    loom.close()


async def test_words_that_only_end_a_cast_are_written_once(tmp_path: Path) -> None:
    path = tmp_path / "a.loom.jsonl"
    with Loom.open(path) as loom:
        await make(
            {"content": "prose"}, done("x"), loom=loom, wards=[{"max_turns": 3}, {"require_done_tool": True}]
        ).cast("go")
        assert len(list(loom.turns())) == 3
    assert '"type":"utterance"' not in path.read_text()
