"""What a session knows: one block after call and capabilities, asked for before each query, recorded when it changes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import pytest

from cantrip_acp import Cantrip, Circle, Loom, ScriptedCrystal
from cantrip_acp.core.history.replayed_context import ReplayedContext
from cantrip_acp.loom.query.outline import Outline
from cantrip_acp.types.context_block import KNOWLEDGE, CastInfo, ContextBlock
from cantrip_acp.types.events import Noticed
from cantrip_acp.types.messages import Message
from cantrip_acp.types.records import ContextRecord

pytestmark = pytest.mark.anyio

LOOK: dict[str, Any] = {"tool_calls": [{"gate": "done", "args": {"wrong": 1}}]}
END: dict[str, Any] = {"tool_calls": [{"gate": "done", "args": {"answer": "x"}}]}


class Knows:
    """Gives the next of its texts before each query; the last one stays."""

    def __init__(self, *texts: str | Exception, placement: Literal["system", "history"] = "system") -> None:
        self.texts, self.placement = list(texts), placement

    async def __call__(self, info: CastInfo) -> Sequence[ContextBlock]:
        return ()

    async def refresh(self, info: CastInfo) -> ContextBlock | None:
        text = self.texts.pop(0) if len(self.texts) > 1 else self.texts[0]
        if isinstance(text, Exception):
            raise text
        return ContextBlock(text, "knowledge", KNOWLEDGE, "substrate:a", placement=self.placement)


def cantrip(crystal: ScriptedCrystal, knows: Knows, loom: Loom | None = None, **more: Any) -> Cantrip:
    circle = Circle(gates=["done"], wards=[{"max_turns": 9}])
    return Cantrip(crystal, {"system_prompt": "Help."}, circle, loom=loom, contributors=[knows], **more)


def scripted(*responses: dict[str, Any]) -> ScriptedCrystal:
    return ScriptedCrystal(list(responses), record_inputs=True)


def seen(crystal: ScriptedCrystal) -> list[list[str]]:
    """What is between the capabilities and the intent, of each query."""
    return [
        [
            f"{m.role}: {(m.content or '').split(chr(10))[1]}"
            for m in query.messages
            if m.kind == "knowledge" and m.role != "assistant"
        ]
        for query in crystal.invocations
    ]


def plain(messages: Sequence[Message]) -> list[tuple[str, str | None]]:
    return [(message.role, message.content) for message in messages]


def records(loom: Loom) -> list[tuple[str, bool]]:
    found = [r for r in loom.records() if isinstance(r, ContextRecord) and r.source == KNOWLEDGE]
    return [(r.text, isinstance(r.after, str)) for r in found]


async def test_a_change_is_seen_by_the_next_query_and_recorded_once() -> None:
    crystal, loom = scripted(LOOK, LOOK, LOOK, END), Loom.memory()
    await cantrip(crystal, Knows("one", "one", "two"), loom).cast("Do it.")
    assert seen(crystal) == [["system: one"], ["system: one"], ["system: two"], ["system: two"]]
    assert records(loom) == [("one", False), ("two", True)]
    first, second, third, fourth = (plain(query.messages) for query in crystal.invocations)
    # Without a change, a query begins with all messages of the one before.
    assert second[: len(first)] == first
    assert fourth[: len(third)] == third
    assert [m.kind for m in crystal.invocations[0].messages] == ["call", "knowledge", "intent"]


async def test_it_can_be_a_message_in_front_of_the_history() -> None:
    crystal = scripted(LOOK, END)
    await cantrip(crystal, Knows("one", placement="history")).cast("Do it.")
    assert [(m.role, m.kind) for m in crystal.invocations[1].messages][1:4] == [
        ("user", "knowledge"),
        ("assistant", "knowledge"),
        ("user", "intent"),
    ]


async def test_nothing_to_know_is_no_message() -> None:
    crystal, loom = scripted(LOOK, LOOK, END), Loom.memory()
    await cantrip(crystal, Knows("", "one", ""), loom).cast("Do it.")
    assert seen(crystal) == [[], ["system: one"], []]
    assert records(loom) == [("one", True), ("", True)]


async def test_the_loom_shows_what_each_query_saw() -> None:
    crystal, loom = scripted(LOOK, LOOK, END, LOOK, END), Loom.memory()
    made = cantrip(crystal, Knows("one", "two", "two", "three"), loom)
    async with made.invoke() as entity:
        await entity.cast("Do it.")
        await entity.cast("Again.")
        last = entity.last_turn
    view = ReplayedContext(loom, Outline(loom))
    rebuilt = [plain(window.messages[: each.at]) for window in view.windows(last) for each in window.uttered]
    assert rebuilt == [plain(query.messages) for query in crystal.invocations]


async def test_a_session_that_goes_on_in_another_process_knows_the_same(tmp_path: Path) -> None:
    path = tmp_path / "x.loom.jsonl"
    with Loom.open(path) as loom:
        made = cantrip(scripted(LOOK, END), Knows("one", "two"), loom)
        async with made.invoke() as entity:
            await entity.cast("Do it.")
            before, last = plain(entity.context.messages), entity.last_turn
    with Loom.open(path) as loom:
        crystal = scripted(END)
        made = cantrip(crystal, Knows("two"), loom)
        async with await made.fork(last) as entity:
            assert plain(entity.context.messages) == before
            await entity.cast("Go on.")
        assert records(loom) == [("one", False), ("two", True)]


async def test_a_fork_before_the_change_knows_what_was_known_there() -> None:
    crystal, loom = scripted(LOOK, LOOK, END), Loom.memory()
    made = cantrip(crystal, Knows("one", "one", "two"), loom)
    async with made.invoke() as entity:
        await entity.cast("Do it.")
        turns = [turn.id for turn in loom.turns() if turn.role == "crystal"]
    other = scripted(END)
    fork = await cantrip(other, Knows("one"), loom).fork(turns[0])
    async with fork:
        await fork.cast("Otherwise.")
    assert seen(other) == [["system: one"]]


async def test_it_is_never_folded_away() -> None:
    crystal = scripted(LOOK, LOOK, LOOK, LOOK, END)
    await cantrip(crystal, Knows("one"), folding={"trigger_after_turns": 2, "keep_turns": 1}).cast("Do it.")
    assert seen(crystal) == [["system: one"]] * 5
    assert any(m.kind == "fold" for m in crystal.invocations[-1].messages)


async def test_a_source_that_fails_is_reported_once_and_the_cast_goes_on() -> None:
    crystal = scripted(LOOK, LOOK, END)
    made = cantrip(crystal, Knows("one", ValueError("no database")))
    async with made.invoke() as entity:
        async with entity.stream("Do it.") as events:
            notices = [event.text async for event in events if isinstance(event, Noticed)]
    assert notices == ["what the session knows is as before, because Knows failed: ValueError: no database"]
    assert seen(crystal) == [["system: one"]] * 3


async def test_secrets_in_it_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    from cantrip_acp.text.redaction import shared

    shared().add("a-very-secret-value")
    crystal, loom = scripted(END), Loom.memory()
    await cantrip(crystal, Knows("it is a-very-secret-value"), loom).cast("Do it.")
    assert records(loom) == [("it is [redacted]", False)]
    assert seen(crystal) == [["system: it is [redacted]"]]
