"""The digested part of a query decides the body of the request: a query that is rebuilt from the loom is sent as it was."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from cantrip_acp import Cantrip, Circle, Gate, Loom
from cantrip_acp.core.casting.query_digest import QueryDigest
from cantrip_acp.core.history.recorded_circle import recorded_call
from cantrip_acp.core.history.replayed_context import ReplayedContext
from cantrip_acp.crystals.contract import Crystal, Delta, Query
from cantrip_acp.crystals.endpoint import Endpoint
from cantrip_acp.crystals.keys import Secret
from cantrip_acp.crystals.openai.responses_api import OpenAICrystal
from cantrip_acp.loom.query.outline import Outline
from cantrip_acp.types.call import Call
from cantrip_acp.types.messages import ToolDefinition
from cantrip_acp.types.records import SentQuery
from tests.support import anthropic_replies, google_replies, openai_replies
from tests.support.openai_replies import call_delta, call_item, chat_stream, responds, said
from tests.support.provider_server import Reply, Wire

pytestmark = pytest.mark.anyio

CALL = Call("Help.", temperature=0.5, max_tokens=300)
ARGS = '{"text": "a"}'


def _openai(url: str, **options: Any) -> Crystal:
    return OpenAICrystal(
        Endpoint("openai", "gpt-4o-mini", f"{url}/v1", Secret("sk-planted-0123456789"), options=options)
    )


def _ways() -> dict[str, tuple[Callable[[str], Crystal], list[Reply], Callable[[], Reply]]]:
    """For each adapter: the crystal, replies of a cast (a call, a text, a text), and a reply to anything."""
    chat = [chat_stream(call_delta(0, "call_1", "echo", ARGS), finish="tool_calls"), said("One."), said("Two.")]
    items = openai_replies.message_item
    sends = [responds(call_item("call_1", "echo", ARGS)), responds(items("One.")), responds(items("Two."))]
    claude = [anthropic_replies.calls("echo", {"text": "a"}), *map(anthropic_replies.says, ("One.", "Two."))]
    called = google_replies.chunk(
        google_replies.call("echo", {"text": "a"}, "c1", google_replies.SIGN),
        finish="STOP",
        usageMetadata=google_replies.usage(10, 2),
    )
    gemini = [google_replies.stream(called), *map(google_replies.says, ("One.", "Two."))]
    return {
        "chat": (_openai, chat, said),
        "responses": (lambda url: _openai(url, api="responses"), sends, lambda: responds(items("x"))),
        "anthropic": (anthropic_replies.crystal, claude, anthropic_replies.says),
        "google": (google_replies.crystal, gemini, lambda: google_replies.says("x")),
    }


async def _body(crystal: Callable[[str], Crystal], wire: Wire, query: Query) -> Any:
    async def emit(delta: Delta) -> None:
        return None

    made: Any = crystal(wire.url)
    await made.query(query, emit)
    await made.aclose()
    return wire.requests[-1].json()


@pytest.mark.parametrize("name", ["chat", "responses", "anthropic", "google"])
async def test_a_query_that_is_rebuilt_from_the_loom_is_sent_as_it_was(name: str) -> None:
    crystal, replies, anything = _ways()[name]
    echo = Gate("echo", "Says it.", {"type": "object", "properties": {"text": {"type": "string"}}}, lambda args, _: "a")
    loom = Loom.memory()
    with Wire(replies) as wire:
        circle = Circle(gates=["done", echo], wards={"max_turns": 4})
        async with Cantrip(crystal(wire.url), CALL, circle, loom=loom).invoke() as entity:
            await entity.cast("Say it.")
            await entity.cast("And again.")
        sent = [request.json() for request in wire.requests]
    assert len(sent) == 3
    view, rebuilt = ReplayedContext(loom, Outline(loom)), 0
    with Wire(lambda request: anything()) as wire:
        for window in view.windows(view.outline.ends[0]):
            call = recorded_call(loom.cantrip(window.cantrip_id))
            for uttered in window.uttered:
                query = Query(window.messages[: uttered.at], window.tools, params=call, entity_id=entity.id)
                found = uttered.turn.metadata.query
                assert isinstance(found, SentQuery)
                assert found.digest == QueryDigest().digest(query.messages, query.tools, call)
                assert await _body(crystal, wire, query) == sent[rebuilt]
                rebuilt += 1
    assert rebuilt == len(sent)
    assert not list(view.differing)


@pytest.mark.parametrize("name", ["chat", "responses", "anthropic", "google"])
async def test_what_changes_the_body_changes_the_digest(name: str) -> None:
    crystal, _, anything = _ways()[name]
    tools = (ToolDefinition("echo", "Says it.", {"type": "object", "properties": {}}),)
    messages = openai_replies.turn(content="Hm.")
    changes: list[tuple[list[Any], tuple[ToolDefinition, ...], Call]] = [
        (messages, tools, call)
        for call in (
            CALL, replace(CALL, temperature=0.7), replace(CALL, max_tokens=301), replace(CALL, top_p=0.5),
            replace(CALL, seed=7), replace(CALL, tool_choice="required"),
        )
    ]  # fmt: skip
    user = anthropic_replies.HELLO
    changes += [
        (messages, (), CALL),
        (messages, (replace_description(tools[0]),), CALL),
        ([*messages, *user], tools, CALL),
    ]
    seen: dict[str, str] = {}
    with Wire(lambda request: anything()) as wire:
        for shown, offered, call in changes:
            query = Query([*user, *shown], offered, call.tool_choice or "auto", call)
            body = repr(await _body(crystal, wire, query))
            digest = QueryDigest().digest(query.messages, offered, call)
            assert seen.setdefault(digest, body) == body
            again = repr(await _body(crystal, wire, query))
            assert again == body
    # Each change has a digest of its own; a body may be the same, where a model does not take a parameter.
    assert len(seen) == len(changes)
    assert len(set(seen.values())) >= len(changes) - 3


def replace_description(tool: ToolDefinition) -> ToolDefinition:
    return ToolDefinition(tool.name, "Says it again.", tool.parameters)
