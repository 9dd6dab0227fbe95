"""Folding: what the crystal sees stays within its window, and nothing is lost (LOOM-5, LOOM-6, CALL-5, PROD-4, D-007)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from cantrip_acp import Cantrip, Circle, Loom
from cantrip_acp.core.folding.apply import fold_now
from cantrip_acp.core.folding.policy import Folding, tokens_of
from cantrip_acp.crystals.contract import Emit, Query, Response
from cantrip_acp.gates.contract import Gate
from cantrip_acp.types.context_block import ContextBlock
from cantrip_acp.types.errors import ContextLimitError, CrystalError, DefinitionError
from cantrip_acp.types.events import Folded
from cantrip_acp.types.messages import Message, ToolCall
from cantrip_acp.types.records import FoldRecord, Turn
from cantrip_acp.types.usage import Usage

PROMPT = "You are the keeper of the lighthouse."


class Worker:
    """A crystal that works for ``turns`` turns and then is done; it refuses what is larger than its window, as they do.

    Its count of tokens is one for each four characters, so that the estimate of the loop is put to the test.
    """

    name = "worker"
    model = "worker-1"

    def __init__(
        self, turns: int, window: int | None, *, size: int = 200, counts: bool = True, real: int | None = None
    ):
        self.turns = turns
        self.context_window = window
        self.real = real or window
        self.size = size
        self.counts = counts
        self.seen: list[tuple[Message, ...]] = []
        self.largest = 0
        self.refusals = 0
        self.keep = True

    async def query(self, query: Query, emit: Emit) -> Response:
        count = sum(len(m.content or "") + sum(len(c.args) for c in m.tool_calls) for m in query.messages) // 4
        if self.real is not None and count > self.real:
            self.refusals += 1
            raise ContextLimitError(f"too long: {count} tokens")
        self.largest = max(self.largest, count)
        if self.keep:
            self.seen.append(tuple(query.messages))
        asked = sum(1 for m in query.messages if m.kind == "turn" and m.role == "assistant")
        self.turns -= 1
        usage = Usage(count, 20) if self.counts else Usage()
        if self.turns <= 0:
            return Response(tool_calls=(ToolCall(f"d{self.turns}", "done", '{"answer": "ok"}'),), usage=usage)
        call = ToolCall(f"c{self.turns}", "fetch", f'{{"n": {self.turns}}}')
        return Response(content=f"turn with {asked} behind it", tool_calls=(call,), usage=usage)


def fetch(size: int) -> Gate:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    return Gate("fetch", "Gets a page.", schema, lambda args, _: f"page {args['n']} " + "x" * size)


def spell(
    worker: Any, size: int = 200, *, folding: Any = None, turns: int = 5_000, loom: Loom | None = None
) -> Cantrip:
    circle = Circle(gates=["done", fetch(size)], wards=[{"max_turns": turns}])
    return Cantrip(worker, {"system_prompt": PROMPT}, circle, folding=folding, loom=loom)


def contents(messages: Sequence[Message]) -> str:
    return "\n".join(m.content or "" for m in messages)


async def test_a_long_session_never_exceeds_its_window_and_never_loses_what_it_is() -> None:
    worker = Worker(2_000, 8_000)
    loom = Loom.memory()
    cantrip = spell(worker, loom=loom)
    result = await cantrip.cast("Count every ship that passes.")
    assert result.result == "ok"
    assert result.turns == 2_000
    assert worker.refusals == 0
    assert worker.largest <= 8_000 * 0.9
    for messages in worker.seen:
        assert messages[0] == Message("system", PROMPT, kind="call")
        first_user = next(m for m in messages if m.role == "user")
        assert first_user.content == "Count every ship that passes."
    # Every turn is in the loom, whole and in order.
    acted = [t for t in loom.turns() if t.role == "crystal"]
    assert len(acted) == 2_000
    assert [t.sequence for t in acted] == list(range(1, 2_001))
    assert all("x" * 200 in str(t.observation.results[0].result) for t in acted[:-1])
    # Each turn was folded once, in order.
    folded = [i for r in loom.records() if isinstance(r, FoldRecord) for i in r.turns]
    assert folded == [t.id for t in acted[: len(folded)]]


async def test_folding_goes_by_the_largest_prompt_where_it_is_less_than_the_window() -> None:
    worker = Worker(200, 80_000, real=8_000)
    worker.max_input = 8_000  # type: ignore[attr-defined]
    result = await spell(worker).cast("Count every ship that passes.")
    assert result.result == "ok"
    assert worker.refusals == 0
    assert worker.largest <= 8_000 * 0.9


async def test_between_folds_each_query_begins_with_the_last_one() -> None:
    worker = Worker(300, 8_000)
    await spell(worker).cast("go")
    folds = 0
    for before, after in zip(worker.seen, worker.seen[1:], strict=False):
        if after[: len(before)] != before:
            folds += 1
            assert any(m.kind == "fold" for m in after)
    # A fold makes room for many turns: a cache that is thrown away at each turn is none.
    assert 0 < folds < len(worker.seen) / 10


async def test_a_fold_is_marked_and_tells_what_was_done() -> None:
    worker = Worker(6, None)
    cantrip = spell(worker, folding={"trigger_after_turns": 4, "keep_turns": 1})
    async with cantrip.cast_stream("go") as stream:
        events = [event async for event in stream]
    (fold,) = [e for e in events if isinstance(e, Folded)]
    assert fold.last == 3
    messages = worker.seen[4]
    assert [m.kind for m in messages] == ["call", "intent", "fold", "turn", "turn"]
    text = messages[2].content or ""
    assert text.startswith("[Folded: turns 1-3]")
    assert "fetch ×3" in text
    assert "page 5" not in contents(messages[:3])
    # The loom has the fold as a turn of its own in the path, and no count of turns is changed by it.
    thread = cantrip.loom.threads()[0]
    assert [t.role for t in thread].count("fold") == 1
    assert len(thread.acted) == 6
    assert all(isinstance(t, Turn) for t in thread)


async def test_several_casts_are_folded_and_their_intents_told() -> None:
    worker = Worker(1, None)
    cantrip = spell(worker, folding={"trigger_after_turns": 5, "keep_turns": 3})
    async with cantrip.invoke() as entity:
        for number in range(4):
            worker.turns = 2
            note = ContextBlock(f"note {number}", title=f"n{number}")
            await entity.cast(f"intent number {number}", context=[note])
    messages = worker.seen[-1]
    assert [m.kind for m in messages][:3] == ["call", "fold", "context"]
    assert "intent number 0" in (messages[1].content or "")
    assert next(m for m in messages if m.role == "user").kind == "intent"
    # The casts that still have a turn here have their intents, word for word and in their order.
    intents = [m.content for m in messages if m.kind == "intent"]
    assert intents == ["intent number 2", "intent number 3"]
    roles = [m.role for m in messages if m.kind in ("intent", "turn")]
    assert roles[0] == "user"


async def test_one_observation_larger_than_the_window_is_cut_and_marked() -> None:
    worker = Worker(3, 4_000)
    cantrip = spell(worker, size=100_000)
    result = await cantrip.cast("read the big one")
    assert result.result == "ok"
    assert worker.largest <= 4_000
    assert "characters cut here; the loom has them" in contents(worker.seen[1])
    turns = [t for t in cantrip.loom.turns() if t.role == "crystal"]
    assert len(str(turns[0].observation.results[0].result)) > 100_000


async def test_a_window_that_is_smaller_than_said_is_met_by_folding_harder() -> None:
    worker = Worker(60, 100_000, real=3_000)
    cantrip = spell(worker)
    result = await cantrip.cast("go")
    assert result.result == "ok"
    assert worker.refusals > 0
    assert len([t for t in cantrip.loom.turns() if t.role == "crystal"]) == 60


async def test_a_window_that_nobody_told_is_met_by_folding_after_the_refusal() -> None:
    worker = Worker(60, None, real=3_000, counts=False)
    result = await spell(worker).cast("go")
    assert (result.result, result.turns) == ("ok", 60)


async def test_where_nothing_can_go_the_refusal_stands() -> None:
    worker = Worker(3, None, real=10)
    with pytest.raises(ContextLimitError):
        await spell(worker).cast("an intent that is longer than the window of this crystal, and can never be cut")
    assert worker.refusals == 1


class Summarizer(Worker):
    """Answers with a summary; fails where it is told to."""

    name = model = "summarizer"

    def __init__(self, *, fail: bool = False) -> None:
        super().__init__(1, 50_000)
        self.fail = fail

    async def query(self, query: Query, emit: Emit) -> Response:
        self.seen.append(tuple(query.messages))
        if self.fail:
            raise CrystalError("overloaded", status=529)
        return Response(content="I have seen three ships.", usage=Usage(50, 7, cost=0.5))


async def test_a_summarizer_writes_the_summary_and_its_use_is_counted() -> None:
    worker, summarizer = Worker(6, None, counts=False), Summarizer()
    policy = Folding(trigger_after_turns=4, keep_turns=1, summarizer=summarizer)
    result = await spell(worker, folding=policy).cast("count ships")
    assert "I have seen three ships." in contents(worker.seen[-1])
    assert result.usage.completion_tokens == 7
    assert result.usage.cost == 0.5
    asked = contents(summarizer.seen[0])
    assert "count ships" in asked
    assert "page 5" in asked


async def test_a_summarizer_that_fails_costs_nothing_but_its_words() -> None:
    worker, summarizer = Worker(6, None), Summarizer(fail=True)
    policy = Folding(trigger_after_turns=4, keep_turns=1, summarizer=summarizer)
    result = await spell(worker, folding=policy).cast("count ships")
    assert result.result == "ok"
    assert "fetch ×3" in contents(worker.seen[-1])


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"at_fraction": 0}, "at_fraction"),
        ({"at_fraction": 1.5}, "at_fraction"),
        ({"trigger_after_turns": 0}, "trigger_after_turns"),
        ({"keep_turns": -1}, "keep_turns"),
        ({"keep_turns": True}, "keep_turns"),
        ({"at_fracton": 0.5}, "unknown key 'at_fracton'"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(DefinitionError, match=says):
        spell(Worker(1, None), folding=given)


def test_the_estimate_is_rather_too_high() -> None:
    assert tokens_of(Message("user", "word " * 1_000)) >= 1_000
    assert tokens_of(Message("user", "語" * 1_000)) >= 1_000


async def test_an_ephemeral_result_is_data_in_the_loom_and_a_placeholder_in_sight() -> None:
    worker = Worker(3, None)
    page = fetch(500)
    circle = Circle(gates=["done", Gate("fetch", page.description, page.parameters, page.handler, ephemeral=True)],
                    wards=[{"max_turns": 9}])  # fmt: skip
    cantrip = Cantrip(worker, circle=circle)
    await cantrip.cast("skim")
    assert "xxx" not in contents(worker.seen[-1])
    assert contents(worker.seen[-1]).count("[ephemeral:fetch]") == 2
    turns = [t for t in cantrip.loom.turns() if t.role == "crystal"]
    assert "x" * 500 in turns[0].observation.results[0].result


async def test_an_intent_is_told_once_however_often_its_cast_is_folded() -> None:
    crystal = Worker(3, None)
    cantrip = spell(crystal, folding={"trigger_after_turns": 2, "keep_turns": 1})
    async with cantrip.invoke() as entity:
        await entity.cast("The first thing.")
        crystal.turns = 40
        await entity.cast("The second thing.")
    folds = [t.utterance.content or "" for t in cantrip.loom.turns() if t.role == "fold"]
    assert len(folds) > 20
    assert [folds[-1].count(f"- The {which} thing.") for which in ("first", "second")] == [1, 1]


@pytest.mark.parametrize(
    "folding",
    [
        {"trigger_after_turns": 1},
        {"trigger_after_turns": 1, "keep_turns": 1},
        {"trigger_after_turns": 3, "keep_turns": 0},
        {"trigger_at_tokens": 1, "keep_turns": 0},
    ],
)
@pytest.mark.parametrize("ephemeral", [False, "after_use"])
async def test_a_result_is_never_folded_before_a_query_has_seen_it(folding: dict[str, int], ephemeral: Any) -> None:
    page = replace(fetch(50), ephemeral=ephemeral)
    worker = Worker(6, None)
    circle = Circle(gates=["done", page], wards=[{"max_turns": 9}])
    await Cantrip(worker, {"system_prompt": PROMPT}, circle, folding=folding).cast("go")
    assert sum(any(m.kind == "fold" for m in messages) for messages in worker.seen) > 1
    for before, after in zip(worker.seen, worker.seen[1:], strict=False):
        (new,) = [
            m.content or "" for m in after if m.role == "tool" and "x" * 50 in (m.content or "") and m not in before
        ]
        assert new.startswith("page ")


async def test_a_fold_on_request_keeps_the_last_turn() -> None:
    async with spell(Worker(4, None), folding={"keep_turns": 0}).invoke() as entity:
        await entity.cast("go")
        assert await fold_now(entity) == 3
        assert entity.context.unfolded == 1
