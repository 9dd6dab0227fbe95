"""Prompt caches over a long session: what is sent begins, byte for byte, with what was sent before.

A whole session through the loop: two hundred turns in two casts, with thinking, many calls at once, prose, malformed
arguments, failed attempts and context that is added between the casts. A fold is the one thing that begins anew.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from cantrip_acp.core.cantrip import Cantrip
from cantrip_acp.core.definition.circle import Circle
from cantrip_acp.crystals.anthropic.crystal import AnthropicCrystal
from cantrip_acp.crystals.catalog.types import ModelInfo
from cantrip_acp.crystals.contract import Crystal
from cantrip_acp.crystals.endpoint import Endpoint
from cantrip_acp.crystals.google.crystal import GoogleCrystal
from cantrip_acp.crystals.keys import Secret
from cantrip_acp.crystals.openai.responses_api import OpenAICrystal
from cantrip_acp.crystals.retry import RetryPolicy
from cantrip_acp.loom.loom import Loom
from cantrip_acp.types.call import Call
from cantrip_acp.types.context_block import ContextBlock
from cantrip_acp.types.records import FoldRecord
from tests.support import anthropic_replies as anthropic
from tests.support import google_replies as google
from tests.support import openai_replies as openai
from tests.support.provider_server import Reply, Request, Wire

TURNS = 120
LOOKBACK = 20
"""Blocks before a cache point in which Anthropic looks for what it has; further back it finds nothing."""

Calls = Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Speaker:
    """A provider: its crystal at an address, what it says (thinking, content, calls as gate and arguments), what it refuses."""

    crystal: Callable[[str], Crystal]
    says: Callable[[int, str, str | None, Calls], Reply]
    problem: Callable[[Request], str | None]
    growing: str
    busy: Callable[[], Reply]


def _anthropic(url: str) -> Crystal:
    info = ModelInfo(thinking="adaptive", reasoning=True, known=True)
    return AnthropicCrystal(Endpoint("anthropic", anthropic.MODEL, url, Secret("sk-ant-test-0123456789ab"), info=info))


def _anthropic_says(n: int, thinking: str, content: str | None, calls: Calls) -> Reply:
    parts = [*anthropic.thought(0, thinking, sign=f"c2lnbmVk{n}")]
    if content is not None:
        parts += anthropic.text(1, content)
    for at, (name, args) in enumerate(calls, 2):
        parts += anthropic.use(at, name, args, id=f"toolu_{n}_{at}")
    return anthropic.stream(anthropic.start(), parts, anthropic.stop("tool_use" if calls else "end_turn"))


def _openai(api: str) -> Callable[[str], Crystal]:
    def make(url: str) -> Crystal:
        info = ModelInfo(reasoning=True, sampling=False, known=True)
        key = Secret("sk-test-0123456789abcdefghij")
        return OpenAICrystal(Endpoint("openai", openai.MODEL, f"{url}/v1", key, info=info, options={"api": api}))

    return make


def _responses_says(n: int, thinking: str, content: str | None, calls: Calls) -> Reply:
    items = [openai.reasoning_item(thinking, sealed=f"gAAA-{n}", item_id=f"rs_{n}")]
    if content is not None:
        items.append(openai.message_item(content, f"msg_{n}"))
    for at, (name, args) in enumerate(calls):
        items.append(openai.call_item(f"call_{n}_{at}", name, args, f"fc_{n}_{at}"))
    return openai.responds(*items)


def _chat_says(n: int, thinking: str, content: str | None, calls: Calls) -> Reply:
    deltas: list[dict[str, Any]] = [{"content": content}] if content is not None else []
    # Small servers count their calls from one in each response.
    deltas += [openai.call_delta(at, f"call_{at}", name, args) for at, (name, args) in enumerate(calls)]
    return openai.chat_stream(*deltas, finish="tool_calls" if calls else "stop")


def _google(url: str) -> Crystal:
    info = ModelInfo(reasoning=True, known=True)
    return GoogleCrystal(Endpoint("google", google.MODEL, url, Secret("AIzaSy-test-0123456789abcdefghij"), info=info))


def _google_says(n: int, thinking: str, content: str | None, calls: Calls) -> Reply:
    parts: list[dict[str, Any]] = [{"text": thinking, "thought": True}]
    if content is not None:
        parts.append({"text": content})
    for at, (name, args) in enumerate(calls):
        # It gives mappings alone, so what is malformed elsewhere is a wrong argument here.
        given = json.loads(args) if args.endswith("}") else {"wrong": args}
        parts.append(google.call(name, given, sign=f"c2lnbmVk{n:04}" if at == 0 else None))
    return google.stream(google.chunk(*parts, finish="STOP", usageMetadata=google.usage(10, 2)))


SPEAKERS = {
    "anthropic": Speaker(
        _anthropic,
        _anthropic_says,
        anthropic.problem,
        "messages",
        lambda: anthropic.refusal(529, "overloaded_error", "Overloaded"),
    ),
    "openai-responses": Speaker(
        _openai("responses"), _responses_says, openai.refused, "input", lambda: openai.refusal(503, "busy")
    ),
    "openai-chat": Speaker(
        _openai("chat"), _chat_says, openai.refused, "messages", lambda: openai.refusal(503, "busy")
    ),
    "google": Speaker(
        _google, _google_says, google.problem, "contents", lambda: google.refusal(503, "busy", "UNAVAILABLE")
    ),
}


def script(speaker: Speaker, turns: int) -> Callable[[Request], Reply]:
    """So many turns, a failed attempt now and then; every fortieth request is read strictly."""
    queries, attempts = 0, 0

    def answer(request: Request) -> Reply:
        nonlocal queries, attempts
        attempts += 1
        if attempts % 40 == 0:
            wrong = speaker.problem(request)
            assert wrong is None, wrong
        if attempts % 37 == 0:
            return speaker.busy()
        queries += 1
        n = queries
        if n in (turns // 2, turns):
            return speaker.says(n, "Done.", None, [("done", '{"answer": "ok"}')])
        if n % 9 == 0:
            return speaker.says(n, "I talk.", f"Prose, “{n}” — é", [])
        text = json.dumps({"text": f"{n} " + "ü\n" * 5}, ensure_ascii=n % 2 == 0)
        calls = [("echo", text)] * (25 if n % 50 == 1 else n % 3 + 1)
        if n % 14 == 0:
            calls.append(("echo", '{"text": "cut of'))
        return speaker.says(n, f"I think of {n}.", f"Turn {n}." if n % 2 else None, calls)

    return answer


async def session(speaker: Speaker, turns: int = TURNS, folding: Any = None) -> tuple[list[dict[str, Any]], Loom]:
    """The bodies that arrived, in order, and the loom."""
    loom = Loom.memory()
    with Wire(script(speaker, turns)) as wire:
        crystal = speaker.crystal(wire.url)
        cantrip = Cantrip(
            crystal,
            Call("You echo what you are told.\n", require_done_tool=True),
            Circle(gates=["echo", "done"], wards={"max_turns": turns}),
            loom=loom,
            retry=RetryPolicy(base_s=0.001),
            folding=folding,
        )
        async with cantrip.invoke() as entity:
            first = await entity.cast("Echo for long.", context=[ContextBlock("A note.", title="before")])
            second = await entity.cast("And again.", context=[ContextBlock("Another note.", title="between")])
        assert (first.result, second.result) == ("ok", "ok")
        assert first.turns + second.turns == turns
        return [request.json() for request in wire.requests], loom


def bare(value: Any) -> Any:
    """Without cache points, which say where to cache and are no part of what is cached."""
    if isinstance(value, dict):
        return {key: bare(each) for key, each in value.items() if key != "cache_control"}
    return [bare(each) for each in value] if isinstance(value, list) else value


def written(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def split(body: dict[str, Any], growing: str) -> tuple[str, str]:
    """What must stay as it is, and the messages without the bracket that closes them."""
    body = bare(body)
    messages = written(body.pop(growing))
    return written(body), messages[:-1]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", SPEAKERS)
async def test_each_request_begins_with_the_last_one(name: str) -> None:
    speaker = SPEAKERS[name]
    bodies, _ = await session(speaker)
    assert len(bodies) > TURNS
    rest, before = split(bodies[0], speaker.growing)
    for number, body in enumerate(bodies[1:], 1):
        same, after = split(body, speaker.growing)
        assert same == rest, f"request {number} differs from the first one outside of its messages"
        assert after.startswith(before), f"request {number} does not begin with the one before it"
        before = after
    if name == "anthropic":
        finds_all(bodies)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", SPEAKERS)
async def test_a_fold_alone_begins_anew(name: str) -> None:
    speaker = SPEAKERS[name]
    bodies, loom = await session(speaker, 80, {"trigger_after_turns": 30, "keep_turns": 5})
    folds = sum(isinstance(record, FoldRecord) for record in loom.records())
    anew = 0
    before = split(bodies[0], speaker.growing)
    for body in bodies[1:]:
        after = split(body, speaker.growing)
        anew += not (after[0] == before[0] and after[1].startswith(before[1]))
        # The tools, which come first in every cache, stay in it through any fold.
        assert body["tools"] == bodies[0]["tools"]
        before = after
    assert 0 < anew == folds < 5


def finds_all(bodies: list[dict[str, Any]]) -> None:
    """Anthropic's rules, played: at most four points; a point finds what was written at most twenty blocks before it.

    Each request finds all of the one before it, also behind a turn with more blocks than that.
    """
    kept: set[str] = set()
    last_end = ""
    for body in bodies:
        blocks, points = _blocks(body)
        assert len(points) <= 4
        prefixes = [""]
        for block in blocks:
            prefixes.append(prefixes[-1] + block)
        found = ""
        for point in points:
            tried = (prefixes[at] for at in range(point + 1, max(0, point + 1 - LOOKBACK), -1))
            found = max(found, next((each for each in tried if each in kept), ""), key=len)
        assert found == last_end
        # What no query has read for some time is gone.
        kept = {found, *(prefixes[point + 1] for point in points)}
        last_end = prefixes[-1]


def _blocks(body: dict[str, Any]) -> tuple[list[str], list[int]]:
    """All blocks of a request in the order in which they are cached, and the indices of those with a cache point."""
    blocks = [*body["tools"], *body["system"]]
    for message in body["messages"]:
        blocks += [{"role": message["role"], **block} for block in message["content"]]
    return [written(bare(b)) for b in blocks], [i for i, b in enumerate(blocks) if "cache_control" in b]
