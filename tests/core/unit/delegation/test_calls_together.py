"""Delegations of one utterance that follow each other directly run beside each other; the record stays that of one call."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import anyio
import pytest

from cantrip_acp import Cantrip, Circle, Loom
from cantrip_acp.core.forking.replay import replay
from cantrip_acp.core.running_calls import STOPPED_BY_USER
from cantrip_acp.crystals.contract import Emit, Query, Response
from cantrip_acp.gates.contract import GateInvocation, GateReply, Proceed
from cantrip_acp.loom.recovery import CUT_OFF
from cantrip_acp.types import events
from cantrip_acp.types.messages import ToolCall
from cantrip_acp.types.records import CastRecord
from tests.support.recorded import thread_events
from tests.support.scripted_children import GATES, call, calls, done, ends, of_root, parent

FOUR = calls(*[("call_agent", {"intent": each}) for each in "abcd"])


class Meeting:
    """A crystal whose children answer only when ``size`` of them are at work, or when they are let go."""

    name = model = "meeting"
    context_window = None

    def __init__(self, intents: str, size: int, *, first: tuple[ToolCall, ...] = ()) -> None:
        self.calls = (
            *first,
            *[ToolCall(f"call-{n}", "call_agent", json.dumps({"intent": i})) for n, i in enumerate(intents)],
        )
        self.size, self.running, self.most = size, 0, 0
        self.order: list[str] = []
        self.met = anyio.Event()
        self.queries = 0

    def child(self, number: int, depth: int) -> Meeting:
        self.order.append(str(number))
        return self

    async def query(self, query: Query, emit: Emit) -> Response:
        self.queries += 1
        if query.intent == "go":
            calls, self.calls = self.calls, ()
            return Response(tool_calls=calls) if calls else Response(content="over")
        self.running += 1
        self.most = max(self.most, self.running)
        if self.running == self.size:
            self.met.set()
        if query.intent != "quick":
            await self.met.wait()
        self.running -= 1
        return Response(content=f"answer {query.intent}")


def of(crystal: Any, *wards: dict[str, Any], loom: Loom | None = None, **more: Any) -> Cantrip:
    return Cantrip(crystal, circle=Circle(gates=GATES, wards=[{"max_turns": 4}, *wards]), loom=loom, **more)


async def test_all_are_at_work_at_once_and_the_record_is_that_of_one_delegation() -> None:
    crystal = Meeting("abcd", 4)
    spell = of(crystal)
    with anyio.fail_after(60):
        assert (await spell.cast("go")).result == "over"
    spawning, rest, end = of_root(spell)
    assert (spawning.continues, rest.continues, end.continues) == (None, spawning.id, None)
    assert [(r.result, r.tool_call_id) for r in rest.observation.results] == [
        (f"answer {each}", f"call-{n}") for n, each in enumerate("abcd")
    ]
    assert spawning.gate_calls + rest.gate_calls == ("call_agent",) * 4
    roots = [spell.loom.turn(i) for i in spell.loom.children(spawning.id) if i != rest.id]
    assert [each.role for each in roots] == ["call"] * 4
    starts = [each for each in spell.loom.records() if isinstance(each, CastRecord) and each.event == "start"]
    called = [each.parent_call_id for each in starts[1:]]
    assert [each.call_id for each in rest.observation.results] == called
    assert len(set(called)) == 4


@pytest.mark.parametrize("most", [1, 2])
async def test_no_more_than_the_ward_allows(most: int) -> None:
    crystal = Meeting("abcde", most)
    spell = of(crystal, {"max_concurrent_children": most})
    with anyio.fail_after(60):
        await spell.cast("go")
    assert crystal.most == most
    assert [r.result for r in of_root(spell)[1].observation.results] == [f"answer {each}" for each in "abcde"]


async def test_one_that_fails_beside_others_that_answer() -> None:
    spell = parent(
        FOUR,
        done("went on"),
        children=[[done("A")], [{"error": {"status": 400, "message": "no B"}}], [done("C")], [done("D")]],
    )
    assert (await spell.cast("go")).result == "went on"
    found = [(r.is_error, r.result) for t in of_root(spell) for r in t.observation.results if r.gate == "call_agent"]
    assert found == [(False, "A"), (True, "the child failed: no B"), (False, "C"), (False, "D")]


async def test_the_total_of_children_is_counted_call_by_call() -> None:
    spell = parent(FOUR, done(), wards=[{"max_children_total": 2}], children=[[done("A")], [done("B")]])
    await spell.cast("go")
    found = [r for t in of_root(spell) for r in t.observation.results if r.gate == "call_agent"]
    assert [r.result for r in found[:2]] == ["A", "B"]
    assert all(r.is_error and "max_children_total" in r.result for r in found[2:])


async def test_other_calls_between_them_keep_their_place() -> None:
    spell = parent(
        calls(
            ("call_agent", {"intent": "a"}),
            ("call_agent", {"intent": "b"}),
            ("echo", {"text": "between"}),
            ("call_agent", {"intent": "c"}),
            ("call_agent", {"intent": "d"}),
        ),
        done(),
        children=[[done(each)] for each in "ABCD"],
    )
    await spell.cast("go")
    found = of_root(spell)
    assert [[r.result for r in t.observation.results] for t in found] == [[], ["A", "B", "between"], ["C", "D"], ["ok"]]
    assert spell.crystal.invocations[1].messages[-1].content == "D"
    assert [m.content for m in spell.crystal.invocations[1].messages if m.role == "tool"] == [
        "A", "B", "between", "C", "D",
    ]  # fmt: skip


async def test_questions_come_one_after_the_other_while_allowed_children_work() -> None:
    crystal = Meeting("abc", 2)
    asked: list[str] = []

    async def ask(invocation: GateInvocation, proceed: Proceed) -> GateReply:
        intent = invocation.args["intent"]
        asked.append(intent)
        if intent == "c":
            # The two that were allowed are at work while this question is open.
            await crystal.met.wait()
            return GateReply("you said no", is_error=True)
        return await proceed(invocation)

    spell = of(crystal, interceptors=[ask])
    with anyio.fail_after(60):
        await spell.cast("go")
    assert asked == ["a", "b", "c"]
    assert [r.result for r in of_root(spell)[1].observation.results] == ["answer a", "answer b", "you said no"]


async def test_one_ends_before_the_next_is_allowed() -> None:
    """Its turn goes on all the same: all of a group hang on one turn."""
    crystal = Meeting("qb", 9)
    crystal.calls = (
        ToolCall("1", "call_agent", '{"intent": "quick"}'),
        ToolCall("2", "call_agent", '{"intent": "b"}'),
    )
    ended = anyio.Event()

    async def ask(invocation: GateInvocation, proceed: Proceed) -> GateReply:
        if invocation.args["intent"] == "b":
            await ended.wait()
            crystal.met.set()
        reply = await proceed(invocation)
        ended.set()
        return reply

    spell = of(crystal, interceptors=[ask])
    with anyio.fail_after(60):
        await spell.cast("go")
    spawning, rest, _ = of_root(spell)
    assert [r.result for r in rest.observation.results] == ["answer quick", "answer b"]
    assert len([i for i in spell.loom.children(spawning.id) if spell.loom.turn(i).role == "call"]) == 2


async def test_a_cancel_keeps_what_was_answered() -> None:
    crystal = Meeting("", 9)
    crystal.calls = tuple(
        ToolCall(str(n), "call_agent", json.dumps({"intent": each})) for n, each in enumerate(("b", "quick", "c"))
    )
    spell = of(crystal, {"max_concurrent_children": 2})
    async with spell.invoke() as entity, anyio.create_task_group() as group:
        group.start_soon(entity.cast, "go")
        with anyio.fail_after(60):
            while not any(each.event == "end" for each in spell.loom.records() if isinstance(each, CastRecord)):
                await anyio.sleep(0.01)
            while crystal.running < 2:
                await anyio.sleep(0.01)
        entity.cancel()
    rest = of_root(spell)[1]
    assert (rest.truncated, rest.reason) == (True, "cancelled")
    assert [(r.tool_call_id, r.is_error) for r in rest.observation.results] == [("0", True), ("1", False), ("2", True)]
    assert rest.observation.results[1].result == "answer quick"
    assert [each.reason for each in ends(spell)].count("parent_terminated") == 2


async def test_a_process_that_was_killed_in_the_middle(tmp_path: Path) -> None:
    """What one child had answered is the answer of its call; the others are named as interrupted."""
    path, copy = tmp_path / "work.loom.jsonl", tmp_path / "left.loom.jsonl"
    crystal = Meeting("", 9)
    crystal.calls = tuple(
        ToolCall(str(n), "call_agent", json.dumps({"intent": each})) for n, each in enumerate(("b", "quick", "c"))
    )
    spell = of(crystal, loom=Loom.open(path))
    async with spell.invoke() as entity, anyio.create_task_group() as group:
        group.start_soon(entity.cast, "go")
        with anyio.fail_after(60):
            while crystal.running < 2 or '"answer quick"' not in path.read_text():
                await anyio.sleep(0.01)
            while '"event":"end"' not in path.read_text():
                await anyio.sleep(0.01)
        shutil.copy(path, copy)
        entity.cancel()
    left = Loom.open(copy)
    rest = next(t for t in left.turns() if t.continues is not None)
    assert [(r.tool_call_id, r.result, r.is_error) for r in rest.observation.results] == [
        ("0", CUT_OFF, True),
        ("1", "answer quick", False),
        ("2", rest.observation.results[2].result, True),
    ]
    assert "interrupted" in str(rest.observation.results[2].result)
    assert rest.gate_calls == ("call_agent", "call_agent")
    assert left.cast_end(rest.cast_id or "") is not None
    starts = [r for r in left.records() if isinstance(r, CastRecord) and r.event == "start"]
    assert [r.call_id for r in rest.observation.results] == [s.parent_call_id for s in starts[1:]]


async def test_a_replay_and_a_fork_of_such_a_turn() -> None:
    children = [[call("echo", text=each), done(each.upper())] for each in "abcd"]
    spell = parent(FOUR, done("end"), children=children)
    await spell.cast("go")
    leaf = of_root(spell)[-1].id
    told = await replay(parent(children=children), spell.loom, leaf)
    assert (told.turns, told.divergence) == (2, None)
    forked = await parent(done("otherwise")).fork(of_root(spell)[1].id, loom=spell.loom)
    async with forked:
        assert (await forked.cast("again")).result == "otherwise"
        assert [m.content for m in forked.cantrip.crystal.invocations[0].messages if m.role == "tool"] == [*"ABCD"]


async def test_readers_of_the_record_find_each_child_at_its_call() -> None:
    spell = parent(FOUR, done("end"), children=[[done(each)] for each in "ABCD"])
    await spell.cast("go")
    told = thread_events(spell.loom, of_root(spell)[-1].id)
    intents = {
        each.calls[0]: each.inner.intent
        for each in told
        if isinstance(each, events.ChildEvent) and isinstance(each.inner, events.CastStarted)
    }
    asked = [e for e in told if isinstance(e, events.GateCalled) and e.gate == "call_agent"]
    assert [intents[each.call_id] for each in asked] == [each.args["intent"] for each in asked] == [*"abcd"]


async def test_one_that_the_user_stops_leaves_the_others_at_work() -> None:
    crystal = Meeting("abc", 9)
    spell = of(crystal)
    async with spell.invoke() as entity, anyio.create_task_group() as group:
        group.start_soon(entity.cast, "go")
        with anyio.fail_after(60):
            while crystal.running < 3:
                await anyio.sleep(0.01)
            starts = [r for r in spell.loom.records() if isinstance(r, CastRecord) and r.event == "start"]
            assert entity.stop_call(str(next(s for s in starts if s.intent == "b").parent_call_id))
            while not any(each.reason == "parent_terminated" for each in ends(spell)):
                await anyio.sleep(0.01)
            crystal.met.set()
    found = of_root(spell)[1].observation.results
    assert [(r.result, r.is_error) for r in found] == [
        ("answer a", False),
        (STOPPED_BY_USER, True),
        ("answer c", False),
    ]
    assert ends(spell)[-1].reason == "text"
