"""Text of an attempt that broke is void: in the event stream, in the loom, over ACP and at the terminal."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from cantrip_acp import Call, Cantrip, Circle, Loom, RetryPolicy
from cantrip_acp.acp.protocol import ClientAbilities
from cantrip_acp.acp.render.event_translator import Translator
from cantrip_acp.cli.render.cast_output import CastText
from cantrip_acp.cli.render.terminal import Screen
from cantrip_acp.types.errors import CrystalError
from cantrip_acp.types.events import Event, RetryScheduled, Text, Voided
from cantrip_acp.types.records import VoidedAttempt
from tests.crystals.unit.test_usage import KINDS, begun, crystal, whole
from tests.support import openai_replies as openai
from tests.support.provider_server import Cut, Piece, Reply, Wire, json_reply, sse_reply

pytestmark = pytest.mark.anyio


def cantrip(kind: str, url: str, loom: Loom | None = None, call: Call | None = None, **retry: Any) -> Cantrip:
    circle = Circle(gates=["done"], wards=[{"max_turns": 3}])
    policy = RetryPolicy(**{"base_s": 0.01, **retry})
    return Cantrip(crystal(kind, url), call or Call(), circle, loom=loom, retry=policy)


async def heard(of: Cantrip) -> list[Event]:
    async with of.cast_stream("Hi") as stream:
        return [event async for event in stream]


def words(events: list[Event], kept: bool = True) -> str:
    void = {e.message_id for e in events if isinstance(e, Voided)} if kept else set()
    return "".join(e.delta for e in events if isinstance(e, Text) and e.message_id not in void)


@pytest.mark.parametrize("kind", KINDS)
async def test_text_of_a_broken_attempt_is_void_in_events_and_loom(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "a.loom.jsonl"
    with Wire([sse_reply([*begun(kind), Cut()]), whole(kind)]) as wire, Loom.open(path) as loom:
        events = await heard(cantrip(kind, wire.url, loom))
    (void,) = [e for e in events if isinstance(e, Voided)]
    (retry,) = [e for e in events if isinstance(e, RetryScheduled)]
    assert (void.message_id, void.attempt, retry.attempt) == (retry.message_id, 1, 1)
    assert events.index(void) < events.index(retry)
    assert words(events, kept=False).startswith("Half")
    assert words(events) == "Fine."
    with Loom.open(path) as loom:
        (turn,) = [t for t in loom.turns() if t.role == "crystal"]
    assert turn.utterance.content == "Fine."
    (kept,) = turn.metadata.voided or ()
    assert isinstance(kept, VoidedAttempt)
    assert (kept.attempt, (kept.content or "")[:4]) == (1, "Half")
    assert kept.error == void.error


async def test_an_attempt_without_text_is_not_void() -> None:
    with Wire([json_reply({"error": {"message": "busy"}}, 503), whole("chat")]) as wire:
        of = cantrip("chat", wire.url)
        events = await heard(of)
    assert not [e for e in events if isinstance(e, Voided)]
    assert [e.attempt for e in events if isinstance(e, RetryScheduled)] == [1]
    (turn,) = [t for t in of.loom.turns() if t.role == "crystal"]
    assert turn.metadata.voided is msgspec.UNSET


async def test_an_answer_without_the_required_call_is_void() -> None:
    done: list[Piece] = [openai.call_delta(0, "c1", "done", '{"answer": "ok"}')]  # type: ignore[list-item]
    replies = [openai.chat_stream({"content": "I would rather talk."}), openai.chat_stream(*done, finish="tool_calls")]  # type: ignore[arg-type]
    with Wire(replies) as wire:
        of = cantrip("chat", wire.url, call=Call(tool_choice="required"))
        events = await heard(of)
    assert words(events) == ""
    (retry,) = [e for e in events if isinstance(e, RetryScheduled)]
    assert (retry.delay_s, retry.when) == (0.0, "at once")
    (turn,) = [t for t in of.loom.turns() if t.role == "crystal"]
    assert [v.content for v in turn.metadata.voided or ()] == ["I would rather talk."]


async def test_what_broke_before_the_end_is_void_and_not_partial(tmp_path: Path) -> None:
    """All attempts break: the last one's text is the partial answer, those of the others are void."""
    path = tmp_path / "a.loom.jsonl"
    broken = [sse_reply([openai.chunk({"content": text}), Cut()]) for text in ("One", "Two")]
    with Wire(broken) as wire, Loom.open(path) as loom:
        with pytest.raises(CrystalError, match="cut before"):
            await cantrip("chat", wire.url, loom, max_retries=1).cast("Hi")
    with Loom.open(path) as loom:
        (partial,) = loom.partials()
    assert partial.utterance.content == "Two"
    assert [(v.attempt, v.content) for v in partial.voided] == [(1, "One")]


async def test_clients_see_the_mark_and_the_text_once() -> None:
    with Wire([sse_reply([*begun("chat"), Cut()]), whole("chat")]) as wire:
        events = await heard(cantrip("chat", wire.url))
    void = next(e.message_id for e in events if isinstance(e, Voided))
    # Without notices: a message of its own between what is void and the answer, also where messages are joined.
    plain = Translator(ClientAbilities())
    chunks = [msgspec.to_builtins(u) for e in events for u in plain.translate(e)]
    said = [u for u in chunks if u["sessionUpdate"] == "agent_message_chunk"]
    joined = "".join(u["content"]["text"] for u in said)
    assert re.fullmatch(r"Half\n\n\(Attempt 1 broke off: .*does not count\.\)\n\nFine\.", joined)
    assert len({u["messageId"] for u in said}) == 3
    assert said[1]["_meta"] == {"cantrip": {"void": void, "attempt": 1}}
    # With notices: no words of ours in the conversation.
    able = Translator(ClientAbilities(notices=True))
    chunks = [msgspec.to_builtins(u) for e in events for u in able.translate(e)]
    notices = [u for u in chunks if u["sessionUpdate"] == "notice"]
    assert [u["title"].removesuffix(" at once") for u in notices] == ["This answer broke off", "Asking the model again"]
    assert notices[0]["_meta"]["cantrip"]["void"] == void


async def test_the_terminal_marks_what_is_void(tmp_path: Path) -> None:
    with Wire([sse_reply([*begun("chat"), Cut()]), whole("chat")]) as wire:
        events = await heard(cantrip("chat", wire.url))
    page = io.StringIO()
    output = CastText(Screen(page), tmp_path)
    for event in events:
        output.show_event(event)
    output.renderer.end_turn()
    shown = page.getvalue()
    assert (
        shown.index("Half")
        < shown.index("attempt 1 was interrupted")
        < shown.index("asking again at once")
        < shown.index("Fine.")
    )


@pytest.mark.parametrize(
    ("wait", "when"),
    [("42", "in 42 s"), ("1.5", "in 1.5 s"), ("200", "in 3 min 20 s"), ("0", "at once")],
)
async def test_the_wait_that_a_provider_asks_for_is_shown(wait: str, when: str, tmp_path: Path) -> None:
    async def no_wait(seconds: float) -> None:
        await anyio.lowlevel.checkpoint()

    busy = Reply(429, {"retry-after": wait, "content-type": "application/json"}, b'{"error": {"message": "busy"}}')
    with Wire([busy, whole("chat")]) as wire:
        events = await heard(cantrip("chat", wire.url, sleep=no_wait))
    (retry,) = [e for e in events if isinstance(e, RetryScheduled)]
    assert retry.when == when
    (notice,) = Translator(ClientAbilities(notices=True)).translate(retry)
    assert notice.title == f"Asking the model again {when}"  # type: ignore[attr-defined]
    page = io.StringIO()
    output = CastText(Screen(page), tmp_path)
    output.show_event(retry)
    assert f"asking again {when}" in " ".join(page.getvalue().split())


async def test_a_wait_beyond_the_limit_is_an_error_that_says_when() -> None:
    busy = Reply(429, {"retry-after": "3600", "content-type": "application/json"}, b'{"error": {"message": "busy"}}')
    with Wire([busy]) as wire, pytest.raises(CrystalError) as caught:
        await cantrip("chat", wire.url).cast("Hi")
    said = str(caught.value)
    assert "asks to wait 60 min, longer than retry.max_retry_after_s: 300" in said
    assert re.search(r"try again after \d{4}-\d\d-\d\d \d\d:\d\d:\d\d", said)
