"""The loop's rules: LOOP-1..6, D-003, D-004, D-006, INTENT, ENTITY, cancellation."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import anyio
import pytest

from cantrip_acp import (
    Call,
    Cantrip,
    Circle,
    CrystalError,
    DefinitionError,
    Gate,
    GateError,
    RetryPolicy,
    ScriptedCrystal,
)
from cantrip_acp.core.casting.turn_builder import STOPPED
from cantrip_acp.core.turn_renderer import INTERRUPTED, NUDGE, SKIPPED
from cantrip_acp.types.context_block import ContextBlock
from cantrip_acp.types.errors import EntityBusy, EntityClosed, IntentRequired, MalformedResponse
from tests.support.fixtures.core import done, echo, make

pytestmark = pytest.mark.anyio


async def test_turns_alternate_and_results_return() -> None:
    cantrip = make(echo("one"), done({"n": 1}), call=Call(system_prompt="You test."))
    result = await cantrip.cast("Try it.")
    assert (result.result, result.terminated, result.truncated, result.reason, result.turns) == (
        {"n": 1},
        True,
        False,
        "done",
        2,
    )
    first, second = cantrip.crystal.invocations
    assert [(m.role, m.content) for m in first.messages] == [("system", "You test."), ("user", "Try it.")]
    assert [m.role for m in second.messages] == ["system", "user", "assistant", "tool"]
    assert second.messages[3].content == "one"
    assert second.messages[3].tool_call_id == second.messages[2].tool_calls[0].id


async def test_done_stops_the_utterance() -> None:
    calls = [
        {"gate": "echo", "args": {"text": "a"}},
        {"gate": "done", "args": {"answer": 1}},
        {"gate": "echo", "args": {"text": "b"}},
    ]
    cantrip = make({"tool_calls": calls}, {"content": "again"})
    entity = cantrip.invoke()
    assert (await entity.cast("go")).result == 1
    turn = cantrip.loom.threads()[0].leaf
    assert turn.gate_calls == ("echo", "done")
    assert turn.terminated
    await entity.cast("more")
    answers = [m for m in cantrip.crystal.invocations[1].messages if m.role == "tool"]
    assert [m.content for m in answers] == ["a", "1", SKIPPED]


async def test_a_done_that_fails_does_not_end_the_cast() -> None:
    cantrip = make({"tool_calls": [{"gate": "done", "args": {}}]}, done("now"))
    result = await cantrip.cast("go")
    assert (result.result, result.turns) == ("now", 2)
    record = cantrip.loom.threads()[0].acted[0].observation.results[0]
    assert record.is_error
    assert "missing required argument 'answer'" in record.result


async def test_text_only_ends_unless_done_is_required() -> None:
    free = await make({"content": "That is all."}).cast("go")
    assert (free.result, free.reason, free.terminated) == ("That is all.", "text", True)
    strict = make({"content": "Thinking aloud."}, done(), call=Call(require_done_tool=True))
    result = await strict.cast("go")
    assert (result.reason, result.turns) == ("done", 2)
    first = strict.loom.threads()[0].acted[0]
    assert first.observation.results == ()
    assert first.observation.output is None
    assert not first.terminated
    assert strict.crystal.invocations[1].messages[-1].content == NUDGE
    warded = make({"content": "a"}, done(), wards=[{"max_turns": 3}, {"require_done_tool": True}])
    assert (await warded.cast("go")).reason == "done"


async def test_max_turns_truncates_with_a_summary() -> None:
    cantrip = make(echo(), echo(), echo(content="I was nearly there"), wards=[{"max_turns": 3}])
    result = await cantrip.cast("go")
    assert (result.result, result.truncated, result.reason, result.turns) == (None, True, "max_turns", 3)
    assert "echo ×3" in (result.summary or "")
    assert "nearly there" in (result.summary or "")
    thread = cantrip.loom.threads()[0]
    assert [t.truncated for t in thread.acted] == [False, False, True]
    assert thread.state == "truncated"
    assert cantrip.crystal.queries == 3


@pytest.mark.parametrize(
    ("wards", "usage", "reason"),
    [
        ({"max_total_tokens": 150}, {"prompt_tokens": 60, "completion_tokens": 20}, "max_tokens"),
        ({"max_cost_usd": 0.5}, {"prompt_tokens": 1, "cost": 0.3}, "max_cost"),
    ],
)
async def test_budgets_truncate(wards: dict[str, float], usage: dict[str, float], reason: str) -> None:
    cantrip = make(*[echo()] * 9, wards=[{"max_turns": 9}, wards], usage=usage)
    result = await cantrip.cast("go")
    assert (result.reason, result.turns) == (reason, 2)


async def test_a_limit_of_cost_without_a_known_cost_is_reached_at_once() -> None:
    cantrip = make(*[echo()] * 9, wards=[{"max_turns": 9}, {"max_cost_usd": 5}], usage={"prompt_tokens": 10})
    result = await cantrip.cast("go")
    assert (result.reason, result.turns) == ("max_cost", 1)
    assert "max_cost_usd cannot be enforced" in (result.summary or "")
    assert "give the crystal a price" in (result.summary or "")
    free = make(*[echo()] * 2, wards=[{"max_turns": 2}, {"max_cost_usd": 5}], usage={"prompt_tokens": 10, "cost": 0})
    assert (await free.cast("go")).reason == "max_turns"


async def test_max_seconds_falls_into_a_gate_and_into_a_query() -> None:
    async def nap(seconds: float) -> str:
        await anyio.sleep(seconds)
        return "rested"

    gate = Gate.of(nap)
    cantrip = make(
        {"tool_calls": [{"gate": "nap", "args": {"seconds": 60}}]},
        gates=["done", gate],
        wards=[{"max_turns": 2}, {"max_seconds": 1}],
    )
    result = await cantrip.cast("go")
    assert (result.reason, result.turns) == ("max_seconds", 1)
    turn = cantrip.loom.threads()[0].leaf
    assert (turn.truncated, turn.reason, turn.gate_calls) == (True, "max_seconds", ("nap",))
    (record,) = turn.observation.results
    assert (record.gate, record.args, record.result, record.is_error) == ("nap", {"seconds": 60}, STOPPED, True)
    slow = make({"content": "x", "delay_ms": 60_000}, wards=[{"max_turns": 2}, {"max_seconds": 1}])
    assert (await slow.cast("go")).reason == "max_seconds"
    assert slow.loom.threads() == []
    ((_, end),) = slow.loom.casts()
    assert end is not None
    assert end.reason == "max_seconds"


async def test_gate_failures_are_observations() -> None:
    def explode(text: str) -> str:
        raise GateError(f"no {text} today")

    def bug() -> str:
        raise KeyError("inside")

    calls = [
        {"gate": "explode", "args": {"text": "cake"}},
        {"gate": "bug", "args": {}},
        {"gate": "nothing", "args": {}},
        {"gate": "echo", "args": {"text": 5}},
        {"gate": "echo", "args": {"text": "a", "more": 1}},
        {"gate": "echo", "args": "{not json"},
        {"gate": "echo", "args": "[1]"},
    ]
    cantrip = make({"tool_calls": calls}, done(), gates=["done", "echo", Gate.of(explode), Gate.of(bug)])
    await cantrip.cast("go")
    results = cantrip.loom.threads()[0].acted[0].observation.results
    assert all(r.is_error for r in results)
    for record, text in zip(
        results,
        [
            "no cake today",
            "KeyError: 'inside'",
            "gate not available: 'nothing'",
            "5 is not of type",
            "'more'",
            "not valid JSON",
            "must be a JSON object",
        ],
        strict=True,
    ):
        assert text in record.result, record
    assert [m.is_error for m in cantrip.crystal.invocations[1].messages if m.role == "tool"] == [True] * 7


async def test_removed_gates_are_gone() -> None:
    cantrip = make(echo(), done(), wards=[{"max_turns": 3}, {"remove_gate": "echo"}])
    await cantrip.cast("go")
    assert [t.name for t in cantrip.crystal.invocations[0].tools] == ["done"]
    assert "gate not available" in cantrip.loom.threads()[0].acted[0].observation.results[0].result


async def test_retries_are_one_turn() -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    policy = RetryPolicy(sleep=sleep, chance=lambda: 0.0)
    failures = [
        {"error": {"status": 503, "message": "busy"}},
        {"error": {"status": 429, "message": "slow", "retry_after": 7}},
    ]
    cantrip = make(*failures, {"error": {"status": 500, "message": "x"}}, done(), retry=policy)
    result = await cantrip.cast("go")
    assert (result.turns, cantrip.crystal.queries) == (1, 4)
    assert waits == [1.0, 7, 4.0]
    assert all(len(i.messages) == 1 for i in cantrip.crystal.invocations)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
async def test_client_errors_are_not_retried(status: int) -> None:
    cantrip = make({"error": {"status": status, "message": "no"}}, done())
    with pytest.raises(CrystalError, match="no"):
        await cantrip.cast("go")
    assert cantrip.crystal.queries == 1
    assert cantrip.loom.threads() == []
    ((_, end),) = cantrip.loom.casts()
    assert end is not None
    assert (end.reason, end.terminated) == ("error", False)
    assert "no" in (end.error or "")


async def test_spent_retries_end_in_an_error_and_no_turn() -> None:
    cantrip = make(*[{"error": {"status": 500, "message": "down"}}] * 9)
    with pytest.raises(CrystalError, match="down"):
        await cantrip.cast("go")
    assert cantrip.crystal.queries == 4
    assert cantrip.loom.threads() == []


@pytest.mark.parametrize(
    ("response", "text"),
    [
        ({}, "crystal returned neither content nor tool_calls"),
        ({"content": ""}, "crystal returned neither content nor tool_calls"),
        ({"content": " \n\t "}, "crystal returned neither content nor tool_calls"),
        ({"tool_calls": [{"id": "a", "gate": "echo"}, {"id": "a", "gate": "done"}]}, "duplicate tool call ID"),
        ({"content": "x", "tool_result": {"tool_call_id": "zz"}}, "tool result without matching tool call"),
        ({"tool_result": {"tool_call_id": "zz", "content": "y"}}, "tool result without matching tool call"),
    ],
)
async def test_responses_that_break_the_contract(response: dict[str, object], text: str) -> None:
    cantrip = make(response, done())
    with pytest.raises(MalformedResponse, match=text):
        await cantrip.cast("go")
    assert cantrip.crystal.queries == 1


async def test_tool_choice_required_is_insisted_on() -> None:
    call = Call(tool_choice="required")
    cantrip = make({"content": "let me think"}, done("ok"), call=call)
    result = await cantrip.cast("go")
    assert (result.result, result.turns) == ("ok", 1)
    assert [
        m.content
        for m in cantrip.loom.threads()[0].acted[0].utterance.tool_calls and cantrip.crystal.invocations[1].messages
    ][-2:] == [
        "let me think",
        "Your last answer called no tool. Answer with at least one tool call.",
    ]
    with pytest.raises(MalformedResponse, match="CRYSTAL-5"):
        await make(*[{"content": "no"}] * 3, call=call).cast("go")


async def test_context_limit_is_an_error() -> None:
    cantrip = make(done(), context_window=10)
    with pytest.raises(CrystalError, match="window of 10"):
        await cantrip.cast("x" * 400)


async def test_endless_stream_is_stopped() -> None:
    class Endless:
        name = model = "endless"
        context_window = None

        async def query(self, query: object, emit: object) -> object:
            while True:
                await emit(__import__("cantrip_acp").Delta("text", "la" * 50_000))  # type: ignore[operator]

    with pytest.raises(MalformedResponse, match="was stopped"):
        await Cantrip(Endless(), circle=Circle(wards=[{"max_turns": 1}])).cast("sing")  # type: ignore[arg-type]


async def test_an_entity_remembers_and_is_independent() -> None:
    cantrip = make(done(1), done(2), done(3))
    entity, other = cantrip.invoke(), cantrip.invoke()
    await entity.cast("first")
    await entity.cast("second")
    await other.cast("third")
    assert entity.id != other.id
    assert [m.content for m in cantrip.crystal.invocations[1].messages if m.role == "user"] == ["first", "second"]
    assert [m.content for m in cantrip.crystal.invocations[2].messages if m.role == "user"] == ["third"]
    assert [len(t.acted) for t in cantrip.loom.threads()] == [2, 1]
    assert [t.sequence for t in cantrip.loom.threads()[0].acted] == [1, 2]
    roots = {t.turns[0].id for t in cantrip.loom.threads()}
    assert len(roots) == 1


async def test_messages_only_grow_and_keep_their_prefix() -> None:
    cantrip = make(*[echo(str(i)) for i in range(6)], done())
    await cantrip.cast("go")
    seen = [tuple(i.messages) for i in cantrip.crystal.invocations]
    for before, after in pairwise(seen):
        assert after[: len(before)] == before
        assert len(after) == len(before) + 2


@pytest.mark.parametrize("intent", ["", "  \n", None, 5])
async def test_an_intent_is_required(intent: object) -> None:
    with pytest.raises(IntentRequired, match="intent is required"):
        await make(done()).cast(intent)  # type: ignore[arg-type]


async def test_one_cast_at_a_time_and_none_after_the_end() -> None:
    cantrip = make({"content": "x", "delay_ms": 200})
    entity = cantrip.invoke()
    async with anyio.create_task_group() as group:
        group.start_soon(entity.cast, "go")
        await anyio.sleep(0.02)
        with pytest.raises(EntityBusy):
            await entity.cast("me too")
    await entity.close()
    with pytest.raises(EntityClosed):
        await entity.cast("still there?")


async def test_cancel_records_the_turn_in_flight() -> None:
    begun = anyio.Event()

    async def nap() -> str:
        begun.set()
        await anyio.sleep(60)
        return ""

    cantrip = make(
        {"content": "sleepy", "tool_calls": [{"gate": "nap"}, {"gate": "echo", "args": {"text": "a"}}]},
        done("after"),
        gates=["done", "echo", Gate.of(nap)],
    )
    entity = cantrip.invoke()
    async with anyio.create_task_group() as group:

        async def stop() -> None:
            await begun.wait()
            assert entity.cancel()

        group.start_soon(stop)
        result = await entity.cast("go")
    assert (result.reason, result.truncated, result.turns) == ("cancelled", True, 1)
    assert (result.summary or "").startswith("Cancelled after 1 turn.")
    assert not entity.cancel()
    again = await entity.cast("and now?")
    assert again.result == "after"
    thread = cantrip.loom.threads()[0]
    assert [(t.reason, t.terminated) for t in thread.acted] == [("cancelled", False), ("done", True)]
    tools = [m.content for m in cantrip.crystal.invocations[1].messages if m.role == "tool"]
    assert tools == [STOPPED, INTERRUPTED]


async def test_an_outer_cancel_is_recorded_and_goes_on() -> None:
    cantrip = make({"content": "x", "delay_ms": 60_000})
    with anyio.move_on_after(0.5) as scope:
        await cantrip.cast("go")
    assert scope.cancelled_caught
    ((_, end),) = cantrip.loom.casts()
    assert end is not None
    assert end.reason == "cancelled"


async def test_context_blocks_stand_before_the_intent() -> None:
    async def contributor(info: object) -> list[ContextBlock]:
        return [ContextBlock("rule one", title='say "hi"', source="culture")]

    cantrip = make(done(), call=Call(system_prompt="S"), contributors=[contributor])
    await cantrip.cast("go", context=[ContextBlock("page", title="doc", uri="file:///x")])
    messages = cantrip.crystal.invocations[0].messages
    assert [m.role for m in messages] == ["system", "system", "system", "user"]
    assert [m.kind for m in messages] == ["call", "context", "context", "intent"]
    kinds = [type(r).__name__ for r in cantrip.loom.records()]
    assert kinds == [
        "LoomHeader",
        "CantripRecord",
        "Turn",
        "CastRecord",
        "ContextRecord",
        "ContextRecord",
        "Turn",
        "CastRecord",
    ]


async def test_interceptors_may_answer_and_annotate() -> None:
    from cantrip_acp import GateReply

    seen: list[str] = []

    async def outer(invocation, proceed):  # type: ignore[no-untyped-def]
        seen.append(f"outer {invocation.gate.name}")
        reply = await proceed(invocation)
        return GateReply(reply.result, annotations={"permission": "allowed"})

    async def inner(invocation, proceed):  # type: ignore[no-untyped-def]
        seen.append("inner")
        return GateReply("not the gate") if invocation.gate.name == "echo" else await proceed(invocation)

    cantrip = make(echo(), done(), interceptors=[outer, inner])
    await cantrip.cast("go")
    assert seen == ["outer echo", "inner", "outer done", "inner"]
    record = cantrip.loom.threads()[0].acted[0].observation.results[0]
    assert (record.result, record.annotations) == ("not the gate", {"permission": "allowed"})


def test_construction_is_checked_in_order() -> None:
    circle = Circle(gates=["done"], wards=[{"max_turns": 1}])
    crystal = ScriptedCrystal([])
    for arguments, text in [
        ((None, None, None), "cantrip requires a crystal"),
        ((crystal, None, None), "cantrip requires a call"),
        ((crystal, Call(), None), "cantrip requires a circle"),
        ((crystal, Call(), Circle(gates=["echo"], wards=[{"max_turns": 1}])), "circle must have a done gate"),
        (
            (crystal, Call(require_done_tool=True), Circle(gates=["echo"], wards=[{"max_turns": 1}])),
            "cantrip with require_done must have a done gate",
        ),
        ((crystal, Call(), Circle(gates=["done"])), "cantrip must have at least one truncation ward"),
        (
            (crystal, Call(), Circle(gates=["done"], wards=[{"max_turns": 1}, {"remove_gate": "done"}])),
            "circle must have a done gate",
        ),
    ]:
        with pytest.raises(DefinitionError, match=text):
            Cantrip(*arguments)  # type: ignore[arg-type]
    assert Cantrip(crystal, circle=circle).call == Call()


def test_the_call_is_immutable() -> None:
    call = Call(system_prompt="a")
    with pytest.raises(DefinitionError, match="call is immutable"):
        call.system_prompt = "b"  # type: ignore[misc]
    with pytest.raises(DefinitionError, match="call is immutable"):
        del call.system_prompt
    assert call.system_prompt == "a"


def test_sync_cast() -> None:
    assert make(done("s")).cast_sync("go").result == "s"


async def test_batch_keeps_order_and_failures_to_themselves() -> None:
    cantrip = make(
        {"when": "a", "content": "A", "delay_ms": 30},
        {"when": "b", "error": {"status": 400, "message": "bad"}},
        {"when": "c", "content": "C"},
    )
    first, second, third = await cantrip.cast_batch(["a", "b", "c"])
    assert (first.result, third.result) == ("A", "C")  # type: ignore[union-attr]
    assert isinstance(second, CrystalError)


def test_a_session_with_folders_keeps_what_its_circle_has(tmp_path: Path) -> None:
    circle = Circle(gates=["done"], wards=[{"max_turns": 3}], workspace=tmp_path, score=lambda turn: 1.0, data={"a": 1})
    reached = Cantrip(ScriptedCrystal([]), Call(), circle).for_session([tmp_path / "more"]).circle
    assert reached.folders == (tmp_path / "more",)
    assert (reached.data, reached.score, list(reached.gates)) == (circle.data, circle.score, list(circle.gates))
