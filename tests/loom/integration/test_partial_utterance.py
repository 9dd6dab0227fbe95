"""What was streamed before a cast was stopped: the loom keeps it, the entity knows it, and it is no turn."""

from __future__ import annotations

import itertools
from typing import Any

import anyio
import pytest

from cantrip_acp import Call, Cantrip, Circle, Loom, ScriptedCrystal
from cantrip_acp.acp.protocol import ClientAbilities
from cantrip_acp.acp.render.loaded_session import loaded_updates
from cantrip_acp.core.forking.fork import fork
from cantrip_acp.core.forking.resume import resume_entity
from cantrip_acp.core.history.replayed_context import ReplayedContext
from cantrip_acp.loom.query.outline import Outline
from cantrip_acp.text.redaction import shared
from cantrip_acp.types.errors import CrystalError
from cantrip_acp.types.events import ChildEvent, Text
from tests.support.fixtures.core import INSTANT, echo
from tests.support.loom_stores import Place
from tests.support.waiting import wait_until

SLOW = {"chunks": ["one ", "two ", *["and on "] * 100], "delay_ms": 40}
BROKEN = {"status": 500, "message": "broken off"}


def make(loom: Loom, *responses: dict[str, Any], wards: Any = ({"max_turns": 10},), **more: Any) -> Cantrip:
    crystal = ScriptedCrystal(responses, record_inputs=True)
    return Cantrip(crystal, Call(), Circle(gates=["done", "echo"], wards=wards), loom=loom, retry=INSTANT, **more)


def said(cantrip: Cantrip, query: int) -> list[tuple[str, str | None]]:
    crystal: Any = cantrip.crystal
    messages = crystal.invocations[query].messages
    return [(m.role, m.content) for m in messages if m.role != "system"]


def never_two_in_a_row(messages: list[tuple[str, str | None]]) -> bool:
    return all(a != "user" or b != "user" for (a, _), (b, _) in itertools.pairwise(messages))


async def cancelled(entity: Any, intent: str, pieces: int = 2) -> None:
    async with entity.stream(intent) as stream:
        async for event in stream:
            inner = event.inner if isinstance(event, ChildEvent) else event
            if isinstance(inner, Text):
                pieces -= 1
            if not pieces:
                entity.cancel()
                pieces = -1
    assert stream.result.reason == "cancelled"


async def test_a_cancelled_stream_is_kept_and_known(place: Place) -> None:
    loom = place.open()
    cantrip = make(loom, echo(), {**SLOW, "thinking": "half a thought"}, {"content": "after"}, {"content": "last"})
    entity = cantrip.invoke()
    await cancelled(entity, "Count.")
    assert (await entity.cast("Go on.")).result == "after"
    messages = said(cantrip, 2)
    assert messages[-2:] == [("assistant", "one two\n\n[interrupted here: cancelled]"), ("user", "Go on.")]
    assert not any(m.thinking for m in cantrip.crystal.invocations[2].messages)  # type: ignore[attr-defined]
    (partial,) = loom.partials()
    assert (partial.utterance.content, partial.utterance.thinking) == ("one two ", "half a thought")
    assert len(loom.threads()[0].acted) == 2
    await entity.close()

    again = place.again(loom)
    assert again.unfinished() == []
    assert again.check() == []
    other = make(again, {"content": "unused"}, {"content": "unused"}, {"content": "unused"}, {"content": "again"})
    taken = resume_entity(other, again, entity.id)
    await taken.entity.cast("Still there?")
    assert said(other, 0)[: len(messages)] == messages
    chunks = [
        u.content.text
        for u in loaded_updates(taken.entity, ClientAbilities())
        if type(u).__name__ == "AgentMessageChunk"
    ]  # type: ignore[union-attr]
    assert chunks == ["one two ", "after", "again"]
    # An exporter sees what the crystal saw.
    seen = ReplayedContext(again, Outline(again))
    (window,) = seen.windows(again.leaves()[-1])
    assert [(m.role, m.content) for m in window.messages if m.role != "system"][: len(messages)] == messages


@pytest.mark.parametrize("streamed", ["nothing", "text"])
@pytest.mark.parametrize("how", ["cancelled", "max_seconds", "error"])
async def test_no_two_messages_of_the_user_in_a_row(place: Place, how: str, streamed: str) -> None:
    loom = place.open()
    wards: Any = [{"max_turns": 10}]
    slow: dict[str, Any] = SLOW if streamed == "text" else {"content": "never", "delay_ms": 60_000}
    first: list[dict[str, Any]] = [slow]
    if how == "max_seconds":
        wards = [*wards, {"max_seconds": 1.5}]
    elif how == "error":
        first = [{"error": BROKEN}] * 4
    cantrip = make(loom, *first, {"content": "after"}, {"content": "again"}, wards=wards)
    crystal: Any = cantrip.crystal
    entity = cantrip.invoke()
    if how == "cancelled" and streamed == "text":
        await cancelled(entity, "First.")
    elif how == "cancelled":
        async with anyio.create_task_group() as group:
            group.start_soon(entity.cast, "First.")
            await wait_until(lambda: crystal.invocations)
            entity.cancel()
    elif how == "max_seconds":
        assert (await entity.cast("First.")).reason == "max_seconds"
    else:
        with pytest.raises(CrystalError):
            await entity.cast("First.")
    await entity.cast("Second.")
    messages = said(cantrip, len(crystal.invocations) - 1)
    assert never_two_in_a_row(messages)
    assert [m[1] for m in messages if m[0] == "user"] == ["First.", "Second."]
    assert (messages[1][1] or "").endswith(f"[interrupted here: {how}]")
    if streamed == "text" and how != "error":
        assert (messages[1][1] or "").startswith("one two")
    await entity.close()
    again = place.again(loom)
    other = make(again, *[{"content": "x"}] * 9)
    taken = resume_entity(other, again, entity.id)
    assert [(m.role, m.content) for m in taken.entity.context.messages if m.role != "system"] == [
        *messages, ("assistant", "after"),
    ]  # fmt: skip


async def test_an_entity_that_came_to_no_turn_is_opened_again(place: Place) -> None:
    loom = place.open()
    cantrip = make(loom, SLOW, SLOW)
    entity = cantrip.invoke()
    await cancelled(entity, "One.")
    await cancelled(entity, "Two.", pieces=1)
    await entity.close()
    again = place.again(loom)
    other = make(again, {"content": "x"}, {"content": "x"}, {"content": "third"})
    taken = resume_entity(other, again, entity.id)
    assert (await taken.entity.cast("Three.")).result == "third"
    assert said(other, 0) == [
        ("user", "One."), ("assistant", "one two\n\n[interrupted here: cancelled]"),
        ("user", "Two."), ("assistant", "one\n\n[interrupted here: cancelled]"), ("user", "Three."),
    ]  # fmt: skip


async def test_a_fork_of_an_earlier_turn_does_not_know_it_and_one_of_a_later_turn_does(place: Place) -> None:
    loom = place.open()
    cantrip = make(loom, {"content": "first"}, SLOW, {"content": "after"}, {"content": "a"}, {"content": "b"})
    entity = cantrip.invoke()
    await entity.cast("One.")
    first = entity.last_turn
    await cancelled(entity, "Two.")
    await entity.cast("Three.")
    for turn, known in ((first, False), (entity.last_turn, True)):
        forked = await fork(cantrip, turn, loom=loom)
        text = str([m.content for m in forked.context.messages])
        assert ("one two" in text) == known
        await forked.close()


async def test_a_fold_keeps_what_stands_and_the_roles_in_order(place: Place) -> None:
    loom = place.open()
    cantrip = make(
        loom, {"content": "first"}, SLOW, {"content": "second"}, SLOW, {"content": "third"}, {"content": "fourth"},
        folding={"trigger_after_turns": 3, "keep_turns": 1},
    )  # fmt: skip
    entity = cantrip.invoke()
    await entity.cast("One.")
    await cancelled(entity, "Two.")
    await entity.cast("Three.")
    await cancelled(entity, "Four.")
    await entity.cast("Five.")
    await entity.cast("Six.")
    crystal: Any = cantrip.crystal
    messages = said(cantrip, len(crystal.invocations) - 1)
    assert never_two_in_a_row(messages)
    assert ("user", "Four.") in messages
    assert messages[0][0] == "user"
    await entity.close()
    again = place.again(loom)
    taken = resume_entity(make(again, *[{"content": "x"}] * 9), again, entity.id)
    assert [(m.role, m.content) for m in taken.entity.context.messages if m.role != "system"] == [
        *messages, ("assistant", "fourth"),
    ]  # fmt: skip


async def test_what_the_last_attempt_streamed_is_kept_with_secrets_masked(place: Place) -> None:
    secret = "sk-partial-0123456789abcdef"
    shared().add(secret)
    loom = place.open()
    cantrip = make(loom, {"chunks": ["my key is sk-partial-01", "23456789abcdef ", *["x "] * 100], "delay_ms": 40})
    entity = cantrip.invoke()
    await cancelled(entity, "Tell.", pieces=3)
    (partial,) = loom.partials()
    assert secret not in (partial.utterance.content or "")
    assert "my key is" in (partial.utterance.content or "")
    await entity.close()


async def test_a_cast_that_is_resumed_asks_the_same_query_again(place: Place) -> None:
    loom = place.open()
    cantrip = make(loom, SLOW, SLOW, {"content": "whole"})
    entity = cantrip.invoke()
    await cancelled(entity, "Count.")
    await entity.close()
    again = place.again(loom)
    other = make(again, {"content": "x"}, {"content": "whole"}, {"content": "later"})
    taken = resume_entity(other, again, entity.id)
    assert (await taken.entity.resume()).result == "whole"
    await taken.entity.cast("Thanks.")
    assert said(other, 0) == [("user", "Count.")]
    messages = said(other, 1)
    assert messages == [("user", "Count."), ("assistant", "whole"), ("user", "Thanks.")]
    await taken.entity.close()
    last = place.again(again)
    after = resume_entity(make(last, *[{"content": "x"}] * 9), last, entity.id).entity
    assert [(m.role, m.content) for m in after.context.messages if m.role != "system"][:3] == messages


async def test_a_child_that_is_cut_off_keeps_what_it_said(place: Place) -> None:
    loom = place.open()
    crystal = ScriptedCrystal(
        [{"tool_calls": [{"gate": "call_agent", "args": {"intent": "Count."}}]}], children=[{"responses": [SLOW]}]
    )
    circle = Circle(gates=["done", "call_agent"], wards=[{"max_turns": 5}, {"max_depth": 1}])
    entity = Cantrip(crystal, Call(), circle, loom=loom, retry=INSTANT).invoke()
    await cancelled(entity, "Delegate.")
    (partial,) = loom.partials()
    assert partial.stop_reason == "parent_terminated"
    assert (partial.utterance.content or "").startswith("one two")
    await entity.close()
