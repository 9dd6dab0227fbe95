"""Ids are unique, tightened wards hold at once, and ephemeral results are seen as long as was declared."""

from __future__ import annotations

import shutil
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

from cantrip_acp import Cantrip, Circle, DefinitionError, Gate, Loom, ScriptedCrystal, Wards
from cantrip_acp.core.forking.replay import replay
from cantrip_acp.core.forking.resume import resume_entity
from cantrip_acp.core.history.replayed_context import ReplayedContext, differing_turns
from cantrip_acp.loom.query.outline import Outline
from cantrip_acp.types.errors import EntityExists
from tests.support.fixtures.core import done, echo, make

# Ids


async def test_an_id_belongs_to_one_entity(tmp_path: Path) -> None:
    with Loom.open(tmp_path / "a.jsonl") as loom:
        cantrip = make(done(), done(), done(), loom=loom)
        first = cantrip.invoke(entity_id="mine")
        with pytest.raises(EntityExists, match="'mine' is already open in this loom"):
            cantrip.invoke(entity_id="mine")
        await first.cast("go")
        await first.close()
        with pytest.raises(EntityExists, match="the loom has an entity 'mine' already"):
            cantrip.invoke(entity_id="mine")
        with pytest.raises(EntityExists):
            await cantrip.fork(first.last_turn, entity_id="mine")
        forked = await cantrip.fork(first.last_turn, entity_id="other")
        with pytest.raises(EntityExists):
            cantrip.invoke(entity_id="other")
        await forked.close()
    with Loom.open(tmp_path / "a.jsonl") as loom, pytest.raises(EntityExists):
        make(loom=loom).invoke(entity_id="mine")


async def test_an_open_entity_has_its_id_in_all_looms(tmp_path: Path) -> None:
    first = make(done(), loom=Loom.open(tmp_path / "a.jsonl")).invoke(entity_id="mine")
    await first.cast("go")
    other = make(done(), loom=Loom.open(tmp_path / "b.jsonl"))
    with pytest.raises(EntityExists, match=r"'mine' is already open in another loom of this process \(.*a\.jsonl\)"):
        other.invoke(entity_id="mine")
    # A copy of a loom has the same entity: it may be read and replayed, but not go on twice.
    shutil.copy(tmp_path / "a.jsonl", tmp_path / "copy.jsonl")
    with Loom.open(tmp_path / "copy.jsonl") as copy:
        assert (await replay(make(loom=copy), copy, first.last_turn)).divergence is None
        with pytest.raises(EntityExists, match="close it first"):
            resume_entity(make(loom=copy), copy, "mine")
        await (await make(done(), loom=copy).fork(first.last_turn)).close()
        await first.close()
        again = resume_entity(make(done(), done(), loom=copy), copy, "mine").entity
        assert (await again.cast("go on")).terminated
        await again.close()
    second = other.invoke(entity_id="mine")
    await second.cast("go")
    await second.close()
    first.loom.close()
    other.loom.close()


async def test_a_closed_loom_frees_the_ids_of_its_entities(tmp_path: Path) -> None:
    """As a session is released: its loom first, and what its commands hold later."""
    first = make(done(), loom=Loom.open(tmp_path / "a.jsonl")).invoke(entity_id="mine")
    await first.cast("go")
    first.loom.close()
    with Loom.open(tmp_path / "a.jsonl") as loom:
        again = resume_entity(make(done(), done(), loom=loom), loom, "mine").entity
        assert (await again.cast("go on")).terminated
        await first.close()
        with pytest.raises(EntityExists):
            resume_entity(make(done(), loom=loom), loom, "mine")
        await again.close()


async def test_two_threads_cannot_take_one_id() -> None:
    made: list[Any] = []

    def take(number: int) -> None:
        begin.wait()
        with suppress(EntityExists):
            made.append(make().invoke(entity_id="taken"))

    begin = threading.Barrier(8)
    threads = [threading.Thread(target=take, args=(number,)) for number in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(made) == 1
    await made[0].close()


async def test_an_entity_without_a_turn_has_its_id_too() -> None:
    cantrip = make({"error": {"status": 400, "message": "no"}})
    async with cantrip.invoke(entity_id="mine") as entity:
        with pytest.raises(Exception, match="no"):
            await entity.cast("go")
    with pytest.raises(EntityExists):
        cantrip.invoke(entity_id="mine")


async def test_an_entity_cannot_take_a_childs_id() -> None:
    parent = [
        {"tool_calls": [{"gate": "call_agent", "args": {"intent": "x"}}]},
        done(),
    ]
    crystal = ScriptedCrystal(parent, children=[[done()]])
    cantrip = Cantrip(crystal, circle=Circle(gates=["done", "call_agent"], wards={"max_turns": 3}))
    await cantrip.cast("go")
    ids = {place.entity_id for place in cantrip.loom.places.values()}
    assert len(ids) == 2
    for each in ids:
        with pytest.raises(EntityExists):
            cantrip.invoke(entity_id=each)


@pytest.mark.parametrize("wrong", ["", " ", "a\nb", 5, "x" * 300])
def test_what_is_no_id_is_refused(wrong: Any) -> None:
    with pytest.raises(DefinitionError, match="entity's id"):
        make().invoke(entity_id=wrong)


# Wards


async def _tightened(wards: Wards, *responses: dict[str, Any], **more: Any) -> Any:
    """A cast that is held to further wards while its first gate runs; the result."""
    held: list[Any] = []

    async def tighten(args: Any, context: Any) -> str:
        held[0].set_wards(wards)
        return "tight"

    gate = Gate("tighten", "", {"type": "object"}, tighten)
    cantrip = make({"tool_calls": [{"gate": "tighten", "args": {}}]}, *responses, gates=["done", "echo", gate], **more)
    async with cantrip.invoke() as entity:
        held.append(entity)
        return await entity.cast("go")


async def test_require_done_tool_holds_at_once() -> None:
    result = await _tightened(Wards(require_done_tool=True), {"content": "just words"}, done("right"))
    assert (result.reason, result.result) == ("done", "right")


async def test_max_turns_holds_at_once() -> None:
    result = await _tightened(Wards(max_turns=2), echo(), echo(), done())
    assert (result.reason, result.turns) == ("max_turns", 2)


async def test_max_seconds_holds_at_once() -> None:
    began = time.monotonic()
    result = await _tightened(Wards(max_seconds=0.2), {"content": "late", "delay_ms": 600_000})
    assert result.reason == "max_seconds"
    assert time.monotonic() - began < 60


async def test_a_time_limit_that_is_lifted_is_gone() -> None:
    held: list[Any] = []

    async def lift(args: Any, context: Any) -> str:
        held[0].set_wards(None)
        await anyio.sleep(0.6)
        return "free"

    gate = Gate("lift", "", {"type": "object"}, lift)
    cantrip = make({"tool_calls": [{"gate": "lift", "args": {}}]}, done(), gates=["done", gate])
    async with cantrip.invoke() as entity:
        held.append(entity)
        entity.set_wards(Wards(max_seconds=0.4))
        assert (await entity.cast("go")).reason == "done"


async def test_max_total_tokens_holds_at_once() -> None:
    usage = {"prompt_tokens": 50, "completion_tokens": 50}
    result = await _tightened(Wards(max_total_tokens=10), echo(), usage=usage)
    assert (result.reason, result.turns) == ("max_tokens", 1)


async def test_a_gate_that_is_taken_away_is_gone_at_once() -> None:
    result = await _tightened(Wards(remove_gate=("echo",)), echo(), done())
    assert result.reason == "done"


async def test_wards_hold_for_children_at_once() -> None:
    held: list[Any] = []

    async def tighten(args: Any, context: Any) -> str:
        held[0].set_wards(Wards(require_done_tool=True, max_turns=5))
        return "tight"

    gate = Gate("tighten", "", {"type": "object"}, tighten)
    child = [{"tool_calls": [{"gate": "tighten", "args": {}}]}, {"content": "words"}, done("by done")]
    crystal = ScriptedCrystal(
        [{"tool_calls": [{"gate": "call_agent", "args": {"intent": "x"}}]}, done()], children=[child]
    )
    circle = Circle(gates=["done", "call_agent", gate], wards={"max_turns": 9})
    cantrip = Cantrip(crystal, circle=circle)
    async with cantrip.invoke() as entity:
        held.append(entity)
        await entity.cast("go")
    answers = [r.result for t in cantrip.loom.turns() for r in t.observation.results if r.gate == "call_agent"]
    assert answers == ["by done"]


# Ephemeral results

PAGE = "a long page of text"


def _page(ephemeral: Any) -> Gate:
    return Gate("page", "", {"type": "object"}, lambda args, context: PAGE, ephemeral=ephemeral)


def _tool_texts(query: Any) -> list[str]:
    return [m.content for m in query.messages if m.role == "tool"]


_LOOK = {"tool_calls": [{"gate": "page", "args": {}}]}
_GONE = "[ephemeral:page]"


async def test_ephemeral_true_is_never_seen() -> None:
    cantrip = make(_LOOK, echo(), done(), gates=["done", "echo", _page(True)])
    await cantrip.cast("go")
    assert [_tool_texts(q)[:1] for q in cantrip.crystal.invocations] == [[], [_GONE], [_GONE]]


async def test_after_use_is_seen_by_one_query() -> None:
    cantrip = make(_LOOK, echo(), _LOOK, done(), echo(), done(), gates=["done", "echo", _page("after_use")])
    async with cantrip.invoke() as entity:
        await entity.cast("go")
        await entity.cast("again")
    seen = [_tool_texts(q) for q in cantrip.crystal.invocations]
    assert seen[:4] == [[], [PAGE], [_GONE, "hi"], [_GONE, "hi", PAGE]]
    assert seen[4][:3] == seen[5][:3] == [_GONE, "hi", _GONE]
    results = [r.result for t in cantrip.loom.turns() for r in t.observation.results if r.gate == "page"]
    assert results == [PAGE, PAGE]


@pytest.mark.sandbox
@pytest.mark.parametrize(("medium", "program"), [("bash", {"bash": "echo hi"}), ("code", {"code": "print('hi')"})])
@pytest.mark.parametrize(("ephemeral", "first"), [(True, _GONE), ("after_use", PAGE)])
async def test_programs_do_not_change_what_is_seen(
    medium: str, program: dict[str, str], ephemeral: Any, first: str, tmp_path: Path
) -> None:
    """A gate that is called beside programs is seen as long as its declaration says; what a program printed stays."""
    circle = Circle(medium, ["done", _page(ephemeral)], {"max_turns": 5}, workspace=tmp_path)
    cantrip = make(_LOOK, program, done()).replace(circle=circle)
    await cantrip.cast("go")
    seen = [_tool_texts(q) for q in cantrip.crystal.invocations]
    assert [texts[:1] for texts in seen] == [[], [first], [_GONE]]
    assert "hi" in seen[2][1]
    (kept,) = [r.result for t in cantrip.loom.turns() for r in t.observation.results if r.gate == "page"]
    assert kept == PAGE


async def test_after_use_at_the_end_of_a_cast_is_seen_by_the_next_one() -> None:
    look_and_stop = {"tool_calls": [*_LOOK["tool_calls"], *done()["tool_calls"]]}
    cantrip = make(look_and_stop, echo(), done(), gates=["done", "echo", _page("after_use")])
    async with cantrip.invoke() as entity:
        await entity.cast("go")
        await entity.cast("again")
    assert [_tool_texts(q)[:1] for q in cantrip.crystal.invocations] == [[], [PAGE], [_GONE]]


async def test_forks_and_reloads_see_the_same() -> None:
    from cantrip_acp.core.forking.resume import resume_entity

    cantrip = make(_LOOK, echo(), done(), gates=["done", "echo", _page("after_use")])
    await cantrip.cast("go")
    turns = cantrip.loom.threads()[0].acted
    for turn, first in ((turns[0], PAGE), (turns[1], _GONE)):
        crystal = ScriptedCrystal([done()], record_inputs=True)
        fork = await cantrip.with_crystal(crystal).fork(turn.id)
        await fork.cast("on")
        assert _tool_texts(crystal.invocations[0])[0] == first
        await fork.close()
    # A reopened entity goes on behind the queries that its script has answered.
    crystal = ScriptedCrystal([_LOOK, done()], record_inputs=True)
    found = resume_entity(cantrip.with_crystal(crystal), cantrip.loom, turns[0].entity_id, turns[0].id)
    await found.entity.cast("on")
    assert _tool_texts(crystal.invocations[0])[0] == PAGE


@pytest.mark.parametrize("ephemeral", [True, "after_use"])
async def test_an_export_has_what_was_seen(ephemeral: Any) -> None:
    cantrip = make(_LOOK, echo(), _LOOK, done(), gates=["done", "echo", _page(ephemeral)])
    await cantrip.cast("go")
    asked = [[(m.role, m.content) for m in q.messages] for q in cantrip.crystal.invocations]
    outline = Outline(cantrip.loom)
    told = []
    for window in ReplayedContext(cantrip.loom, outline).windows(cantrip.loom.leaves()[0]):
        for uttered in window.uttered:
            told.append([(m.role, m.content) for m in window.messages[: uttered.at]])
    assert told == asked


async def test_a_summarizer_does_not_see_an_ephemeral_result() -> None:
    summarizer = ScriptedCrystal([{"content": "a summary", "repeat": True}], record_inputs=True)
    cantrip = make(
        _LOOK,
        echo(),
        echo(),
        done(),
        gates=["done", "echo", _page(True)],
        folding={"trigger_after_turns": 2, "keep_turns": 1, "summarizer": summarizer},
    )
    await cantrip.cast("go")
    asked = "".join(m.content or "" for q in summarizer.invocations for m in q.messages)
    assert _GONE in asked
    assert PAGE not in asked


def test_ephemeral_in_a_mapping() -> None:
    for value in (True, False, "after_use"):
        circle = Circle(gates=["done", {"name": "echo", "ephemeral": value}], wards={"max_turns": 1})
        assert circle.gates["echo"].ephemeral == value
        recorded = {g["name"]: g.get("ephemeral", False) for g in circle.record()["gates"]}
        assert recorded["echo"] == value


@pytest.mark.parametrize(("first", "then"), [(True, False), (False, True), ("after_use", False), (True, "after_use")])
async def test_a_result_is_as_ephemeral_as_it_was_when_it_was_made(first: Any, then: Any) -> None:
    def cantrip(mark: Any, *responses: Any) -> tuple[Cantrip, ScriptedCrystal]:
        crystal = ScriptedCrystal(list(responses), record_inputs=True)
        page = Gate("page", "Read.", {"type": "object"}, lambda args, context: "a long page", ephemeral=mark)
        return Cantrip(crystal, circle=Circle(gates=["done", page], wards={"max_turns": 4}), loom=loom), crystal

    loom, read = Loom.memory(), {"tool_calls": [{"gate": "page", "args": {}}]}
    one, _ = cantrip(first, read, done())
    async with one.invoke() as entity:
        await entity.cast("go")
        last = entity.last_turn
    other, crystal = cantrip(then, read, done())
    async with await other.fork(last) as fork:
        await fork.cast("again")
    before, after = ([m.content for m in q.messages if m.name == "page"] for q in crystal.invocations)
    assert before == ["a long page" if first is False else "[ephemeral:page]"]
    assert after == [*before, "[ephemeral:page]" if then is True else "a long page"]
    assert differing_turns(loom) == []


async def test_what_a_program_prints_of_an_ephemeral_result_stays() -> None:
    page = Gate("page", "Read.", {"type": "object"}, lambda args, context: "a long page", ephemeral=True)
    crystal = ScriptedCrystal(
        [
            {"tool_calls": [{"gate": "bash", "args": {"command": command}}]}
            for command in ("page", "true", "cantrip_done x")
        ],
        record_inputs=True,
    )
    circle = Circle("bash", ["done", page], {"max_turns": 4})
    assert (await Cantrip(crystal, circle=circle).cast("go")).terminated
    assert [str(query.messages).count("a long page") for query in crystal.invocations] == [0, 1, 1]
