"""Messages that the user sends while a cast runs: the next query sees them, and the loom gives back what it saw."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cantrip_acp import Cantrip, Circle, Entity, Gate, Loom, ScriptedCrystal
from cantrip_acp.core.forking.replay import RecordedCrystal, replay
from cantrip_acp.core.history.replayed_context import ReplayedContext
from cantrip_acp.gates.contract import GateContext
from cantrip_acp.loom.query.outline import Outline
from cantrip_acp.substrate.recorder import catch_up
from cantrip_acp.substrate.substrate import open_substrate
from cantrip_acp.types import events
from cantrip_acp.types.context_block import ContextBlock
from cantrip_acp.types.errors import EntityIdle, IntentRequired
from cantrip_acp.types.messages import Message
from cantrip_acp.types.records import STEERING, ContextRecord
from tests.support.recorded import thread_events

pytestmark = pytest.mark.anyio

WORK: dict[str, Any] = {"tool_calls": [{"gate": "work", "args": {}}]}
END: dict[str, Any] = {"tool_calls": [{"gate": "done", "args": {"answer": "x"}}]}


class Works:
    """A gate during whose calls the test sends messages: one list of texts for each call."""

    def __init__(self, *texts: Sequence[str]) -> None:
        self.texts = list(texts)
        self.entity: Entity
        self.sent: list[Any] = []

    @property
    def gate(self) -> Gate:
        async def run(args: Any, context: GateContext) -> str:
            self.sent += [self.entity.steer(text) for text in (self.texts.pop(0) if self.texts else ())]
            return "worked"

        return Gate("work", "Work.", {"type": "object", "properties": {}}, run)


def cantrip(crystal: ScriptedCrystal, works: Works, loom: Loom | None = None, **more: Any) -> Cantrip:
    circle = Circle(gates=["done", works.gate], wards=[{"max_turns": 9}])
    return Cantrip(crystal, {"system_prompt": "Help."}, circle, loom=loom, **more)


def scripted(*responses: dict[str, Any]) -> ScriptedCrystal:
    return ScriptedCrystal(list(responses), record_inputs=True)


def plain(messages: Sequence[Message]) -> list[tuple[str, str | None]]:
    return [(message.role, message.content) for message in messages]


def steered(crystal: ScriptedCrystal) -> list[list[str | None]]:
    return [[m.content for m in query.messages if m.kind == STEERING] for query in crystal.invocations]


async def test_the_next_query_sees_it_and_messages_only_grow() -> None:
    crystal, works, loom = scripted(WORK, WORK, END), Works(["one", "two"], ["three"]), Loom.memory()
    seen: list[events.Event] = []
    async with cantrip(crystal, works, loom).invoke() as entity:
        works.entity = entity
        async with entity.stream("Do it.") as stream:
            seen = [event async for event in stream]
    assert steered(crystal) == [[], ["one", "two"], ["one", "two", "three"]]
    assert all(message.delivered for message in works.sent)
    for before, after in zip(crystal.invocations, crystal.invocations[1:], strict=False):
        assert plain(after.messages)[: len(before.messages)] == plain(before.messages)
    records = [r for r in loom.records() if isinstance(r, ContextRecord)]
    assert [(r.source, r.text) for r in records] == [(STEERING, "one"), (STEERING, "two"), (STEERING, "three")]
    assert [e.record for e in seen if isinstance(e, events.Steered)] == records
    again = thread_events(loom, entity.last_turn)
    kinds = events.Steered | events.TurnEnded
    assert [e for e in again if isinstance(e, kinds)] == [e for e in seen if isinstance(e, kinds)]


@pytest.mark.parametrize("store", ["x.loom.jsonl", "x.loom.sqlite"])
async def test_a_loom_gives_back_what_each_query_saw(tmp_path: Path, store: str) -> None:
    crystal, works = scripted(WORK, WORK, END, WORK, END), Works(["one"], [], ["two"])
    with Loom.open(tmp_path / store) as loom:
        async with cantrip(crystal, works, loom).invoke() as entity:
            works.entity = entity
            await entity.cast("Do it.")
            await entity.cast("Again.")
            last, before = entity.last_turn, plain(entity.context.messages)
    with Loom.open(tmp_path / store) as loom:
        view = ReplayedContext(loom, Outline(loom))
        rebuilt = [plain(window.messages[: each.at]) for window in view.windows(last) for each in window.uttered]
        assert rebuilt == [plain(query.messages) for query in crystal.invocations]
        other = scripted(END)
        fork = await cantrip(other, Works(), loom).fork(last, loom=loom)
        async with fork:
            await fork.cast("And now?")
        assert plain(other.invocations[0].messages) == [*before, ("user", "And now?")]


async def test_a_fork_of_the_turn_before_it_and_a_sample_of_it() -> None:
    crystal, works, loom = scripted(WORK, WORK, END), Works(["one"]), Loom.memory()
    async with cantrip(crystal, works, loom).invoke() as entity:
        works.entity = entity
        await entity.cast("Do it.")
    first = next(turn.id for turn in loom.turns() if turn.role == "crystal")
    other = scripted(END)
    fork = await cantrip(other, Works(), loom).fork(first, loom=loom)
    async with fork:
        await fork.resume()
    # Byte for byte what the original saw after that turn.
    assert plain(other.invocations[0].messages) == plain(crystal.invocations[1].messages)


async def test_before_the_first_query_it_follows_the_intent() -> None:
    crystal, works, loom = scripted(END, END), Works(), Loom.memory()

    async def slow(info: Any) -> Sequence[ContextBlock]:
        if entity.busy and not crystal.invocations:
            entity.steer("and quickly")
        return ()

    async with cantrip(crystal, works, loom, contributors=[slow]).invoke() as entity:
        await entity.cast("Do it.")
        assert plain(crystal.invocations[0].messages)[-2:] == [("user", "Do it."), ("user", "and quickly")]
        last = entity.last_turn
    view = ReplayedContext(loom, Outline(loom))
    assert [plain(w.messages[: u.at]) for w in view.windows(last) for u in w.uttered] == [
        plain(query.messages) for query in crystal.invocations
    ]


async def test_a_fold_keeps_it_as_long_as_the_intent(tmp_path: Path) -> None:
    crystal = scripted(*[WORK] * 4, END)
    works, loom = Works(["use tabs"]), Loom.open(tmp_path / "x.loom.jsonl")
    folding = {"trigger_after_turns": 2, "keep_turns": 1}
    async with cantrip(crystal, works, loom, folding=folding).invoke() as entity:
        works.entity = entity
        await entity.cast("Do it.")
        last = entity.last_turn
    assert all("use tabs" in texts for texts in steered(crystal)[1:])
    view = ReplayedContext(loom, Outline(loom))
    rebuilt = [plain(w.messages[: u.at]) for w in view.windows(last) for u in w.uttered]
    assert rebuilt == [plain(query.messages) for query in crystal.invocations]
    loom.close()


async def test_what_no_query_saw_is_not_delivered_and_can_be_taken_back() -> None:
    crystal, loom = scripted(WORK, END), Loom.memory()

    class Late(Works):
        @property
        def gate(self) -> Gate:
            async def run(args: Any, context: GateContext) -> str:
                self.sent = [self.entity.steer("one"), self.entity.steer("two")]
                assert self.entity.withdraw(self.sent[0])
                assert not self.entity.withdraw(self.sent[0])
                self.entity.cancel()
                with pytest.raises(EntityIdle):
                    self.entity.steer("three")
                return "worked"

            return Gate("work", "Work.", {"type": "object", "properties": {}}, run)

    works = Late()
    async with cantrip(crystal, works, loom).invoke() as entity:
        works.entity = entity
        assert (await entity.cast("Do it.")).reason == "cancelled"
        assert [message.delivered for message in works.sent] == [False, False]
        assert not any(isinstance(r, ContextRecord) for r in loom.records())
        with pytest.raises(EntityIdle, match="runs no cast"):
            entity.steer("hello")
        with pytest.raises(IntentRequired):
            entity.steer("  ")


async def test_a_cast_that_fails_after_it_is_continued_with_it() -> None:
    crystal = scripted(WORK, {"error": {"status": 500, "message": "down"}}, END)
    works, loom = Works(["one"]), Loom.memory()
    async with cantrip(crystal, works, loom, retry={"max_retries": 0}).invoke() as entity:
        works.entity = entity
        with pytest.raises(Exception, match="down"):
            await entity.cast("Do it.")
        await entity.resume()
        last = entity.last_turn
    assert steered(crystal) == [[], ["one"], ["one"]]
    view = ReplayedContext(loom, Outline(loom))
    rebuilt = [plain(w.messages[: u.at]) for w in view.windows(last) for u in w.uttered]
    assert rebuilt == [plain(crystal.invocations[0].messages), plain(crystal.invocations[2].messages)]


async def test_the_substrate_records_it_as_a_prompt(tmp_path: Path) -> None:
    crystal, works, loom = scripted(WORK, END), Works(["one"]), Loom.memory()
    async with cantrip(crystal, works, loom).invoke() as entity:
        works.entity = entity
        await entity.cast("Do it.")
    with open_substrate(tmp_path / "s.db") as substrate:
        catch_up(substrate, loom)
        (record,) = (r for r in loom.records() if isinstance(r, ContextRecord))
        body = substrate.chunk(f"prompt:{record.id}").body
    assert (body["text"], body["from"]) == ("one", STEERING)


async def test_a_parent_gets_it_before_its_next_query_while_a_child_runs() -> None:
    call = {"tool_calls": [{"gate": "call_agent", "args": {"intent": "Help.", "gates": ["work", "done"]}}]}
    crystal = ScriptedCrystal([call, END], children=[[WORK, END]], record_inputs=True)
    works = Works(["hurry"])
    circle = Circle(gates=["done", "call_agent", works.gate], wards=[{"max_turns": 9, "max_depth": 1}])
    async with Cantrip(crystal, {}, circle).invoke() as entity:
        works.entity = entity
        await entity.cast("Do it.")
    (parent,) = [q for q in crystal.invocations if any(m.kind == STEERING for m in q.messages)]
    assert parent.entity_id == entity.id
    assert [m.content for m in parent.messages][-1] == "hurry"


class Speaks:
    """A user who sends messages before queries, by the number of queries before them."""

    def __init__(self, crystal: ScriptedCrystal, **texts: Any) -> None:
        self.crystal, self.texts = crystal, {int(name[1:]): text for name, text in texts.items()}
        self.entity: Entity

    @property
    def queries(self) -> list[Any]:
        return [query for query in self.crystal.invocations if query.entity_id == self.entity.id]

    async def __call__(self, info: Any) -> Sequence[ContextBlock]:
        return ()

    async def refresh(self, info: Any) -> None:
        for text in self.texts.pop(len(self.queries), ()):
            self.entity.steer(text, context=[ContextBlock("A note.", "note.md", "link", "file:///note.md")])


@pytest.mark.parametrize("max_turns", [9, 1])
async def test_a_replay_delivers_it_before_the_same_queries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, max_turns: int
) -> None:
    call = {"tool_calls": [{"gate": "call_agent", "args": {"intent": "Help.", "gates": ["work", "done"]}}]}
    crystal = ScriptedCrystal([WORK, call, WORK, END, WORK, END], children=[[WORK, END]], record_inputs=True)
    # The first query, the one after a child, the first one of the second cast, and the last one.
    user = Speaks(crystal, q0=["one"], q2=["two", "three"], q4=["four"], q5=["five"])
    replayed: list[Any] = []

    def made(crystal: ScriptedCrystal, **more: Any) -> Cantrip:
        circle = Circle(gates=["done", "call_agent", Works().gate], wards=[{"max_turns": max_turns, "max_depth": 1}])
        return Cantrip(crystal, {"system_prompt": "Help."}, circle, **more)

    with Loom.open(tmp_path / "x.loom.jsonl") as loom:
        async with made(crystal, loom=loom, contributors=[user]).invoke() as entity:
            user.entity = entity
            for intent in ("Do it.", "Again."):
                result = await entity.cast(intent)
                while result.truncated:
                    # A ward ended the cast. It is continued as another one, whose messages stand after a turn of the first.
                    result = await entity.resume()
            last = entity.last_turn
    query = RecordedCrystal.query

    async def seen(self: RecordedCrystal, asked: Any, emit: Any) -> Any:
        replayed.append(plain(asked.messages))
        return await query(self, asked, emit)

    monkeypatch.setattr(RecordedCrystal, "query", seen)
    with Loom.open(tmp_path / "x.loom.jsonl") as loom:
        told = await replay(made(ScriptedCrystal([])), loom, last)
    assert (told.turns, told.divergence) == (6, None)
    assert replayed == [plain(query.messages) for query in user.queries]
    assert [sum(role == "user" for role, _ in messages) for messages in replayed] == [3, 3, 7, 7, 10, 12]
