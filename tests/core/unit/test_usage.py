"""Usage counts every billed query, and what is unknown of it is never 0."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from cantrip_acp import Call, Cantrip, Circle, Loom, ScriptedCrystal, Usage
from cantrip_acp.core.forking.resume import resume_entity
from cantrip_acp.crystals.contract import Emit, Query, Response
from cantrip_acp.loom.query.listing import Listing
from cantrip_acp.loom.query.statistics import Statistics
from cantrip_acp.types.errors import CrystalError
from cantrip_acp.types.events import CastEnded, Noticed, UsageReported
from cantrip_acp.types.messages import ToolCall
from cantrip_acp.types.usage import NO_USAGE, UNKNOWN_USAGE
from tests.support.fixtures.core import INSTANT, done, echo, make

pytestmark = pytest.mark.anyio

TEN = {"prompt_tokens": 10, "completion_tokens": 1, "cost": 0.25}


class Silent:
    """A crystal that reports no usage; it gives a piece of text and waits where ``waits`` says so."""

    name = "silent"
    model = "silent-1"
    context_window = None

    def __init__(self, *responses: Response, waits: bool = False) -> None:
        self._responses = list(responses)
        self._waits = waits

    async def query(self, query: Query, emit: Emit) -> Response:
        if self._waits:
            query.meter.sent()
            await anyio.sleep(60)
        return self._responses.pop(0)


def silent(*responses: Response, wards: Any = ({"max_turns": 5},), **more: Any) -> Cantrip:
    return Cantrip(Silent(*responses, **more), Call(), Circle(gates=["done", "echo"], wards=wards), retry=INSTANT)


def says_hi(number: int = 1) -> Response:
    return Response(None, tool_calls=(ToolCall(f"c{number}", "echo", '{"text": "hi"}'),))


def test_sums_keep_what_is_known_and_mark_what_is_not() -> None:
    known = Usage(10, 1, cost=0.5).counted()
    assert NO_USAGE + known == known == known + NO_USAGE
    both = known + UNKNOWN_USAGE
    assert (both.prompt_tokens, both.total_tokens, both.cost) == (10, 11, 0.5)
    assert (both.queries_without_usage, both.queries_without_cost) == (1, 1)
    unknown = UNKNOWN_USAGE + UNKNOWN_USAGE
    assert (unknown.prompt_tokens, unknown.total_tokens, unknown.cost) == (None, None, None)
    assert (both - known).prompt_tokens is None
    assert (both - UNKNOWN_USAGE) == known
    assert Usage.of_record(both.record()) == both
    assert "queries_without_usage" not in known.record()
    assert both.words() == ["10 tokens in, 1 out + unknown of 1 query", "$0.5000 + unknown of 1 query"]
    assert UNKNOWN_USAGE.words() == ["tokens unknown", "cost unknown"]


async def test_failed_and_repeated_attempts_count() -> None:
    broken = {"error": {"status": 500, "message": "half way"}, "usage": TEN}
    cantrip = make(broken, broken, done(), usage=TEN)
    result = await cantrip.cast("go")
    assert (result.usage.prompt_tokens, result.usage.cost) == (30, 0.75)
    (turn,) = [t for t in cantrip.loom.turns() if t.role == "crystal"]
    assert (turn.metadata.tokens_prompt, turn.metadata.cost) == (30, 0.75)
    # How full the window is says the last one alone.
    assert turn.metadata.context_tokens == 11


async def test_a_query_that_fails_for_good_counts_without_a_turn(tmp_path: Path) -> None:
    broken = {"error": {"status": 400, "message": "no"}, "usage": TEN}
    path = tmp_path / "a.loom.jsonl"
    cantrip = make(echo(), broken, usage=TEN, loom=Loom.open(path))
    entity = cantrip.invoke()
    heard: list[Any] = []

    async def listen() -> None:
        async with entity.stream("go") as stream:
            heard.extend([event async for event in stream])

    with pytest.raises(CrystalError):
        await listen()
    assert entity.usage.prompt_tokens == 20
    assert [e.usage.prompt_tokens for e in heard if isinstance(e, UsageReported)] == [10, 10]
    last = heard[-1]
    assert isinstance(last, CastEnded)
    assert last.record.usage["prompt_tokens"] == 20
    await entity.close()
    cantrip.loom.close()
    with Loom.open(path) as loom:
        # After a reload the entity has used as much, and so say lists and statistics.
        again = resume_entity(make(loom=loom), loom, entity.id).entity
        assert again.usage.prompt_tokens == 20
        (line,) = Listing(loom).lines()
        assert line.record()["tokens_prompt"] == 20
        counted = Statistics()
        counted.add(loom)
        assert counted.record()["tokens"]["prompt"] == 20
        assert counted.record()["models"]["scripted"]["tokens_prompt"] == 20


async def test_asking_again_counts() -> None:
    cantrip = make({"content": "I would rather talk."}, done(), usage=TEN, call=Call(tool_choice="required"))
    result = await cantrip.cast("go")
    assert (result.usage.prompt_tokens, result.turns) == (20, 1)
    never = make(*[{"content": "no"}] * 3, usage=TEN, call=Call(tool_choice="required"), retry=None)
    entity = never.invoke()
    with pytest.raises(CrystalError, match="CRYSTAL-5"):
        await entity.cast("go")
    assert entity.usage.prompt_tokens == 30
    await entity.close()


async def test_the_summarizer_of_folding_counts_when_it_fails_too() -> None:
    for summary, known in (({"content": "short"}, 10), ({"error": {"status": 500}, "usage": TEN}, 10)):
        summarizer = ScriptedCrystal([summary], usage=TEN, model="small")
        folding = {"trigger_after_turns": 1, "keep_turns": 0, "summarizer": summarizer}
        cantrip = make(
            echo(), echo(), done(), usage={"prompt_tokens": 1, "completion_tokens": 1, "cost": 0.0}, folding=folding
        )
        result = await cantrip.cast("go")
        assert result.usage.prompt_tokens == 3 + known
        (fold,) = [t for t in cantrip.loom.turns() if t.role == "fold"]
        assert fold.metadata.tokens_prompt == known


async def test_unknown_usage_is_null_everywhere() -> None:
    cantrip = silent(says_hi(), Response("fine"))
    entity = cantrip.invoke()
    async with entity.stream("go") as stream:
        heard = [event async for event in stream]
    result = stream.result
    assert result.usage.record() == {
        "prompt_tokens": None, "completion_tokens": None, "cached_tokens": None, "cache_write_tokens": None,
        "reasoning_tokens": None, "total_tokens": None, "cost": None, "queries_without_usage": 2, "queries_without_cost": 2,
    }  # fmt: skip
    turns = [t.metadata for t in cantrip.loom.turns() if t.role == "crystal"]
    assert [(m.tokens_prompt, m.tokens_completion, m.cost) for m in turns] == [(None, None, None)] * 2
    reported = [e for e in heard if isinstance(e, UsageReported)]
    assert [e.usage.prompt_tokens for e in reported] == [None, None]
    # The window is as full as it is estimated to be, not empty.
    assert all(e.used > 0 for e in reported)
    await entity.close()


async def test_a_cancelled_query_is_unknown_not_free() -> None:
    entity = silent(waits=True).invoke()
    async with anyio.create_task_group() as group:
        results = []

        async def run() -> None:
            results.append(await entity.cast("go"))

        group.start_soon(run)
        await anyio.sleep(0.05)
        entity.cancel()
    (result,) = results
    assert result.usage == UNKNOWN_USAGE
    assert entity.usage == UNKNOWN_USAGE
    await entity.close()


async def test_a_cost_ward_without_a_price_says_so() -> None:
    free = {"prompt_tokens": 10, "completion_tokens": 1}
    result = await make(done(), usage=free, wards=[{"max_turns": 2}, {"max_cost_usd": 1}]).cast("go")
    # Also where the cast came to its end before the ward could act.
    assert result.terminated
    assert "max_cost_usd cannot be enforced" in result.warnings[0]
    assert result.record()["warnings"] == list(result.warnings)
    cut = await make(echo(), done(), usage=free, wards=[{"max_turns": 2}, {"max_cost_usd": 1}]).cast("go")
    assert cut.reason == "max_cost"
    assert "max_cost_usd cannot be enforced" in (cut.summary or "")


async def test_a_price_that_is_known_to_be_missing_is_told_at_the_start() -> None:
    cantrip = silent(says_hi(), Response("fine"), wards=[{"max_turns": 5}, {"max_cost_usd": 1}])
    cantrip.crystal.priced = False  # type: ignore[attr-defined]
    entity = cantrip.invoke()
    async with entity.stream("go") as stream:
        heard = [event async for event in stream]
    assert isinstance(heard[1], Noticed)
    assert "silent-1 costs is not known" in heard[1].text
    assert heard[-1].record.warnings
    await entity.close()


async def test_a_token_ward_without_usage_is_kept_by_estimate_and_says_so() -> None:
    cantrip = silent(*map(says_hi, range(9)), wards=[{"max_turns": 9}, {"max_total_tokens": 60}])
    result = await cantrip.cast("Some words to begin with, so that there is something to count.")
    assert result.reason == "max_tokens"
    assert 1 <= result.turns < 9
    assert "max_total_tokens cannot be enforced exactly" in (result.summary or "")


async def test_a_parents_cost_ward_counts_a_child_without_a_price() -> None:
    children = [{"responses": [echo(), echo(), done()], "usage": {"prompt_tokens": 10}}]
    ask = {"tool_calls": [{"gate": "call_agent", "args": {"intent": "help"}}], "usage": TEN}
    parent = Cantrip(
        ScriptedCrystal([ask, done()], children=children, usage=TEN),
        Call(),
        Circle(gates=["done", "echo", "call_agent"], wards=[{"max_turns": 5}, {"max_cost_usd": 9}]),
    )
    result = await parent.cast("go")
    assert result.reason == "max_cost"
    assert "max_cost_usd cannot be enforced" in (result.summary or "")
    assert result.usage.queries_without_cost >= 1
