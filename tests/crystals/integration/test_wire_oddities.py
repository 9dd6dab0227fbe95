"""What servers send beside the letter of their APIs: one row for each oddity, for all families of providers.

A row says where the oddity was seen, for which wires it counts, what the server sends, and what must come out. ``held`` names
the wires for which it was right in every family before it was written down here. A new report is a new row. The last test
combines rows at random: ``FUZZ=2000 pytest -k combined`` tries more, ``SEED=7`` repeats one.
"""

from __future__ import annotations

import dataclasses
import json
import os
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest

from cantrip_acp import Cantrip, Circle
from cantrip_acp.crystals.contract import Delta, Query, Response
from cantrip_acp.crystals.mended_answers import NO_NAME
from cantrip_acp.crystals.retry import RetryPolicy, query_with_retries
from cantrip_acp.gates.contract import Gate
from cantrip_acp.types.errors import CrystalError
from cantrip_acp.types.messages import Message, ToolDefinition
from tests.support import anthropic_replies as anthropic
from tests.support import google_replies as google
from tests.support import openai_replies as openai
from tests.support.families import FAMILIES, Family
from tests.support.provider_server import Reply, Request, Wire, sse

WIRES = {
    "chat": (
        FAMILIES["local"],
        dataclasses.replace(FAMILIES["local"], name="vllm"),
        FAMILIES["openai-chat"],
        FAMILIES["openrouter"],
    ),
    "responses": (FAMILIES["openai-responses"],),
    "anthropic": (FAMILIES["anthropic"],),
    "google": (FAMILIES["google"],),
}
"""Which families speak which protocol."""

EVERY = tuple(WIRES)
EVENTS = "text/event-stream; charset=utf-8"
LOOK = ToolDefinition("look", "Looks.", {"type": "object", "properties": {"q": {"type": "string"}}})
NOW = ToolDefinition("now", "Tells the time.", {"type": "object", "properties": {}})

TEXT = "größe 日本語 🦊 a\u2028b \\ end\nline"
ARGS = {"q": 'ü 🦊 \u2028 "x" {}'}

Events = list[bytes]
Frame = Callable[[Events], Events]


def chat_json(value: dict[str, Any]) -> bytes:
    return sse({"id": "c-1", "object": "chat.completion.chunk", "created": 1, "model": openai.MODEL, **value})


def usual(wire: str) -> Events:
    """A text and a call, as the provider itself sends them."""
    text, args = TEXT, json.dumps(ARGS)
    if wire == "chat":
        pieces = [openai.args_delta(0, part) for part in openai.halves(args)]
        return [
            openai.chunk({"role": "assistant", "content": ""}),
            *(openai.chunk({"content": part}) for part in openai.halves(text)),
            *(openai.chunk(delta) for delta in (openai.call_delta(0, "call_1", "look"), *pieces)),
            openai.chunk({}, "tool_calls"),
            openai.chunk(None, usage=openai.counts(20, 6)),
            openai.DONE,
        ]
    if wire == "responses":
        return openai.events([openai.message_item(text), openai.call_item("call_1", "look", args)])
    if wire == "anthropic":
        use = anthropic.use(1, "look", *openai.halves(args))
        text_events = anthropic.text(0, *openai.halves(text))
        return [anthropic.start(input_tokens=20), *text_events, *use, *anthropic.stop("tool_use", 6)]
    return [
        *(google.chunk({"text": part}) for part in openai.halves(text)),
        google.chunk(google.call("look", ARGS)),
        google.chunk(finish="STOP", usageMetadata=google.usage(20, 6)),
    ]


@dataclass(frozen=True)
class Row:
    """``events`` are what the server sends, in the form ``frame``; ``size`` is the length of the network's pieces."""

    name: str
    source: str
    wires: tuple[str, ...] = EVERY
    held: tuple[str, ...] = ()
    events: Callable[[str], Events] = usual
    frame: Frame = lambda events: events
    kind: str = EVENTS
    size: int | None = None
    content: str | None = TEXT
    calls: Sequence[tuple[str, Any]] = (("look", ARGS),)
    usage: tuple[int | None, int | None] = (20, 6)
    error: str = ""
    group: str = ""
    """Of the rows of a group, which all change the ends of lines, only one can be true."""

    @property
    def frames(self) -> bool:
        """Whether this row changes only the form of the stream, and so can be combined with any other."""
        return self.events is usual and self.kind == EVENTS


def before_each(beat: bytes) -> Frame:
    return lambda events: [part for each in events for part in (beat, each)]


def changed(old: bytes, new: bytes) -> Frame:
    return lambda events: [re.sub(old, lambda found: new, each, flags=re.MULTILINE) for each in events]


def ids(events: Events) -> Events:
    return [b"id: %d\n%s: ping\n\n" % (n, each) for n, each in enumerate(events)]


def pretty(events: Events) -> Events:
    """The JSON of each event over several lines of data."""

    def spread(found: re.Match[bytes]) -> bytes:
        lines = json.dumps(json.loads(found[1]), indent=1).encode().split(b"\n")
        return b"\n".join(b"data: " + line for line in lines)

    return [re.sub(rb"^data: (\{.*\})$", spread, each, flags=re.MULTILINE) for each in events]


def raw_characters(events: Events) -> Events:
    """Characters as they are, in place of escapes."""

    def written(found: re.Match[bytes]) -> bytes:
        # Half of a surrogate pair can only be escaped.
        text = json.dumps(json.loads(found[1]), ensure_ascii=False)
        return b"data: " + re.sub("[\ud800-\udfff]", lambda half: f"\\u{ord(half[0]):04x}", text).encode()

    return [re.sub(rb"^data: (\{.*\})$", written, each, flags=re.MULTILINE) for each in events]


def joined(events: Events) -> Events:
    """One line end between two events instead of two."""
    names = [each for each in events if each.startswith(b"event:")]
    return events if names else [re.sub(rb"\n\n\Z", b"\n", each) for each in events[:-1]] + [events[-1]]


def whole(wire: str) -> Events:
    """The same as one JSON value: the server does not stream."""
    args = json.dumps(ARGS)
    call: dict[str, Any]
    if wire == "chat":
        call = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": args}}
        message = {"role": "assistant", "content": TEXT, "tool_calls": [call]}
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
        value: Any = {"id": "c-1", "model": openai.MODEL, "choices": [choice], "usage": openai.counts(20, 6)}
    elif wire == "responses":
        value = openai.response([openai.message_item(TEXT), openai.call_item("call_1", "look", args)])
    elif wire == "anthropic":
        call = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": ARGS}
        value = {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": anthropic.MODEL,
            "content": [{"type": "text", "text": TEXT}, call],
            "stop_reason": "tool_use",
            "stop_sequence": None,
            "usage": {"input_tokens": 20, "output_tokens": 6},
        }
    else:
        candidate = {"content": {"role": "model", "parts": [{"text": TEXT}, google.call("look", ARGS)]}, "index": 0}
        value = {"candidates": [{**candidate, "finishReason": "STOP"}], "usageMetadata": google.usage(20, 6)}
    return [json.dumps(value, indent=1).encode()]


def listed(wire: str) -> Events:
    """Gemini's form of a stream without ``alt=sse``: one list."""
    values = [each.removeprefix(b"data: ").strip() for each in usual(wire)]
    return [b"[" + values[0], *(b",\r\n" + each for each in values[1:]), b"\n]"]


SENT = "openai-python #2722, #3833; hermes-agent #111887; omnigent #1474: an event without data ends the stream"
BEATS = "python-genai PR #487, PR #1364, PR #2584; mistral-vibe #762: a line that is no data"

FORMS = [
    Row("the usual form", "the providers themselves", held=EVERY),
    Row(
        "no names of events",
        "proxies for Claude",
        ("responses", "anthropic"),
        held=("responses",),
        frame=changed(rb"^event: .*\n", b""),
    ),
    Row("empty data", SENT, held=("anthropic",), frame=before_each(b"data:\n\n")),
    Row("blank data", SENT, held=("anthropic",), frame=before_each(b"data:  \n\n")),
    Row("a field without a colon", SENT, held=("anthropic",), frame=before_each(b"data\n\n")),
    Row("retry alone", SENT, held=("anthropic",), frame=before_each(b"retry: 3000\n\n")),
    Row("id alone", SENT, held=("anthropic",), frame=before_each(b"id: 7\n\n")),
    Row("event alone", SENT, held=("anthropic",), frame=before_each(b"event: ping\n\n")),
    Row("an id, and a comment after it", "llmgateway #2334", held=("anthropic",), frame=ids),
    Row("comments", BEATS, held=("chat", "responses", "anthropic"), frame=before_each(b": ping\n\n")),
    Row("a name for each event", BEATS, ("google",), frame=before_each(b"event: message\n")),
    Row("a name for each event", BEATS, ("chat",), ("chat",), frame=before_each(b"event: message\n")),
    Row(
        "an event with JSON that is not known",
        "",
        held=("chat", "responses", "anthropic"),
        frame=before_each(sse({"type": "ping"}, "ping")),
    ),
    Row("an event with a text that is not known", "", frame=before_each(sse("12:04", "heartbeat"))),
    Row("an event with a number that is not known", "", frame=before_each(sse("7", "tick"))),
    Row(
        "fields that are not known",
        "the standard",
        held=("chat", "responses", "anthropic"),
        frame=before_each(b"foo: bar\nx\n"),
    ),
    Row("a final [DONE]", BEATS, held=("chat", "responses", "anthropic"), frame=lambda e: [*e, openai.DONE]),
    Row("line ends of Windows", "the standard", held=EVERY, frame=changed(rb"\n", b"\r\n"), group="ends"),
    Row("line ends of old Macs", "the standard", held=EVERY, frame=changed(rb"\n", b"\r"), group="ends"),
    Row(
        "no space after the colon",
        "the standard",
        held=("chat", "responses", "anthropic"),
        frame=changed(rb"^data: ", b"data:"),
    ),
    Row("data over several lines", "the standard", held=EVERY, frame=pretty, group="lines"),
    Row("one line end between events", "", ("chat", "google"), frame=joined, group="lines"),
    Row("blank lines between events", "", held=EVERY, frame=before_each(b"\n\n\n")),
    Row("raw characters", "datalad #3523, tau #354: U+2028 splits lines", held=EVERY, frame=raw_characters),
    Row("one byte at a time", "llama-cpp-python #57", held=EVERY, frame=raw_characters, size=1),
    Row("JSON as the content type of a stream", "", held=("anthropic", "google"), kind="application/json"),
    Row("a text as the content type of a stream", "", held=EVERY, kind="text/plain"),
    Row("no content type", "", held=EVERY, kind=""),
    Row("the server does not stream", "", held=("chat", "google"), events=whole, kind="application/json"),
    Row("the server does not stream, but says so", "", held=("google",), events=whole, kind=EVENTS),
    Row("a list of chunks", "Gemini without alt=sse", ("google",), events=listed, kind="application/json"),
    Row(
        "a byte order mark",
        "the standard",
        held=("chat", "responses"),
        frame=lambda e: [b"\xef\xbb\xbf" + e[0], *e[1:]],
    ),
    Row("no blank line at the end", "", held=("chat", "google"), frame=lambda e: [*e[:-1], e[-1].rstrip()]),
]


def call_of(wire: str, *pieces: str, name: str = "look") -> Events:
    """A call whose arguments come in these pieces, with the usual end."""
    events = usual(wire)
    if wire == "chat":
        called = openai.call_delta(0, "call_1", name)
        return [*(openai.chunk(each) for each in (called, *(openai.args_delta(0, p) for p in pieces))), *events[-3:]]
    if wire == "responses":
        return openai.events([openai.call_item("call_1", name, "".join(pieces))])
    return [events[0], *anthropic.use(0, name, *pieces), *events[-2:]]


def text_of(wire: str, *pieces: str) -> Events:
    """A text in these pieces, which are halves for the Responses API."""
    if wire == "chat":
        stop = openai.chunk({}, "stop")
        return [*(openai.chunk({"content": piece}) for piece in pieces), stop, *usual(wire)[-2:]]
    if wire == "responses":
        return openai.events([openai.message_item("".join(pieces))])
    if wire == "anthropic":
        return [usual(wire)[0], *anthropic.text(0, *pieces), *anthropic.stop("end_turn", 6)]
    return [*(google.chunk({"text": piece}) for piece in pieces), usual(wire)[-1]]


def halves(events: Events) -> Events:
    """``<1>`` and ``<2>`` as the halves of a surrogate pair, which no JSON library writes alone."""
    return [each.replace(b"<1>", rb"\ud83d").replace(b"<2>", rb"\ude00") for each in events]


def args(*pieces: str, name: str = "look") -> Callable[[str], Events]:
    return lambda wire: halves(call_of(wire, *pieces, name=name))


def text(*pieces: str) -> Callable[[str], Events]:
    return lambda wire: halves(text_of(wire, *pieces))


def chat_calls(*pieces: dict[str, Any]) -> Callable[[str], Events]:
    """Pieces of ``tool_calls`` as they are."""
    end = [chat_json({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}), *usual("chat")[-2:]]
    deltas = [{"choices": [{"index": 0, "delta": {"tool_calls": [each]}}]} for each in pieces]
    return lambda wire: [*(chat_json(each) for each in deltas), *end]


def piece(index: int, call_id: str | None, name: str | None, args: str | None) -> dict[str, Any]:
    return {"index": index, "id": call_id, "type": "function", "function": {"name": name, "arguments": args}}


def unnamed(*, alone: bool) -> Callable[[str], Events]:
    """A call without a name, with a good one before it."""

    def events(wire: str) -> Events:
        good, bad = json.dumps({"q": "x"}), json.dumps({"q": "y"})
        if wire == "chat":
            pieces = [piece(0, "call_1", "look", good), piece(1, "call_2", "", bad)]
            return chat_calls(*pieces[alone:])(wire)
        if wire == "responses":
            items = [openai.call_item("call_1", "look", good), openai.call_item("call_2", "", bad, "fc_2")]
            return openai.events(items[alone:])
        if wire == "anthropic":
            parts = [anthropic.use(0, "look", good), anthropic.use(1, "", bad, id="toolu_2")]
            return [usual(wire)[0], *(each for part in parts[alone:] for each in part), *usual(wire)[-2:]]
        given = (("look", {"q": "x"}), ("", {"q": "y"}))
        calls = [google.chunk(google.call(name, args, sign="c2lnbg==")) for name, args in given]
        return [*calls[alone:], usual(wire)[-1]]

    return events


def given_twice(wire: str) -> Events:
    block = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": ARGS}
    deltas = [{"type": "input_json_delta", "partial_json": part} for part in openai.halves(json.dumps(ARGS))]
    return [usual(wire)[0], *anthropic.block(0, block, deltas), *usual(wire)[-2:]]


def counts_as(value: bytes) -> Frame:
    """The numbers of tokens in another type."""
    names = rb'"(prompt_tokens|completion_tokens|input_tokens|output_tokens|(?:prompt|candidates)TokenCount)":(20|6)\b'
    return lambda events: [re.sub(names, rb'"\1":' + value.replace(b"N", rb"\2"), each) for each in events]


WRITTEN = ("chat", "responses", "anthropic")
"""The wires on which arguments are text."""

SPLIT = "aider #3693, KohakuTerrarium #48, nanobot #4952, eliza #30904: surrogates"
LATE = "litellm #28223, vllm #23522: a new id in each piece of a call"
NAMELESS = "xagent #1504, crush #3372, moltis #410, hermes #48109: a call with an empty name"
NULL = "langroid #988, pydantic-ai #1802: no arguments in odd forms"

CALLS = [
    Row(
        "an empty object before the arguments",
        "litellm #4537, openai-agents-js #712 (Bedrock)",
        WRITTEN,
        events=args("{}", '{"q": "x', '"}'),
        content=None,
        calls=[("look", {"q": "x"})],
    ),
    Row(
        "a new id in each piece",
        LATE,
        ("chat",),
        events=chat_calls(piece(0, "a1", "look", ""), piece(0, "a2", None, '{"q": '), piece(0, "a3", None, '"x"}')),
        content=None,
        calls=[("look", {"q": "x"})],
    ),
    Row(
        "whole calls that all have the index 0",
        "smolagents #1569, term-llm #314",
        ("chat",),
        held=("chat",),
        events=chat_calls(piece(0, "a1", "look", '{"q": "x"}'), piece(0, "a2", "now", "{}")),
        content=None,
        calls=[("look", {"q": "x"}), ("now", {})],
    ),
    Row("the text null", NULL, WRITTEN, events=args("null", name="now"), content=None, calls=[("now", {})]),
    Row("blank arguments", NULL, WRITTEN, events=args(" \n", name="now"), content=None, calls=[("now", {})]),
    Row("no arguments", NULL, WRITTEN, EVERY, events=args(name="now"), content=None, calls=[("now", {})]),
    Row(
        "arguments that are null",
        NULL,
        ("chat",),
        ("chat",),
        events=chat_calls(piece(0, "a1", "now", None)),
        content=None,
        calls=[("now", {})],
    ),
    Row(
        "an empty name beside a good call",
        NAMELESS,
        events=unnamed(alone=False),
        content=None,
        calls=[("look", {"q": "x"}), (NO_NAME, {"q": "y"})],
    ),
    Row("an empty name alone", NAMELESS, events=unnamed(alone=True), content=None, calls=[(NO_NAME, {"q": "y"})]),
    Row(
        "a call of nothing beside a text",
        NAMELESS,
        ("chat",),
        events=lambda wire: [openai.chunk({"content": "Hi."}), *chat_calls(piece(0, "", "", ""))(wire)],
        content="Hi.",
        calls=[],
    ),
    Row("a surrogate pair in two pieces", SPLIT, events=text("a<1>", "<2>b"), content="a\U0001f600b", calls=[]),
    Row("half of a surrogate pair", SPLIT, events=text("a<1>", "b<2>"), content="a\ufffdb\ufffd", calls=[]),
    Row(
        "half of a surrogate pair at the end",
        SPLIT,
        ("chat", "anthropic", "google"),
        events=text("a", "b<1>"),
        content="ab\ufffd",
        calls=[],
    ),
    Row(
        "a surrogate pair in two pieces of arguments",
        SPLIT,
        WRITTEN,
        held=("responses",),
        events=args('{"q": "a<1>', '<2>b"}'),
        content=None,
        calls=[("look", {"q": "a\U0001f600b"})],
    ),
    Row(
        "half of a surrogate pair in arguments",
        SPLIT,
        WRITTEN,
        events=args('{"q": "a<1>', 'b"}'),
        content=None,
        calls=[("look", {"q": "a\ufffdb"})],
    ),
    Row(
        "half of a surrogate pair, escaped in arguments",
        SPLIT,
        WRITTEN,
        events=args('{"q": "a\\ud83d', 'b"}'),
        content=None,
        calls=[("look", {"q": "a\ufffdb"})],
    ),
    Row(
        "line breaks and tabs in arguments",
        "clients with lenient JSON",
        WRITTEN,
        events=args('{"q": "a\nb\r\n', '\tc"}'),
        content=None,
        calls=[("look", {"q": "a\nb\r\n\tc"})],
    ),
    Row(
        "the input at the start and in pieces",
        "proxies for Claude",
        ("anthropic",),
        events=given_twice,
        content=None,
        calls=[("look", ARGS)],
    ),
    Row("counts as text", "gateways in JavaScript", held=("google",), frame=counts_as(b'"N"')),
    Row("counts as floats", "gateways in JavaScript", held=("chat", "responses", "google"), frame=counts_as(b"N.0")),
    Row(
        "counts that are no numbers", "gateways", ("chat", "responses"), frame=counts_as(b'"many"'), usage=(None, None)
    ),
]

CUTS = "aider PR#5395, Rapid-MLX #1778, llama.cpp #27661: a closing tag of thinking in the answer"
APART = "Rapid-MLX #1778: the same beside thinking in a field of its own"
MENTIONS = [
    "The bug is fixed: strip everything up to `</think>` before parsing. 12 tests pass.",
    "Answer: 42. The tags stand in <think> and </think>.",
    "Close it:\n```xml\n<answer>\n</think>\n```\nThen go on.",
]


def thought_apart(wire: str) -> Events:
    """Thinking in a field of its own, and a text that could be cut there."""
    odd = chat_json({"choices": [{"index": 0, "delta": {"reasoning_content": "Hm."}, "finish_reason": None}]})
    return [odd, *text_of(wire, "So.\n</think>", "\nYes.")]


THINKING = [
    *(
        Row(
            f"a mention of the tag ({at})",
            CUTS,
            held=EVERY[1:],
            events=text(said[:20], said[20:]),
            content=said,
            calls=[],
        )
        for at, said in enumerate(MENTIONS)
    ),
    Row(
        "the tag in an argument",
        CUTS,
        WRITTEN,
        WRITTEN,
        events=args('{"q": "s.split(\'</thi', "nk>')[-1]\"}"),
        content=None,
        calls=[("look", {"q": "s.split('</think>')[-1]"})],
    ),
    Row("thinking apart", APART, ("chat",), events=thought_apart, content="So.\n</think>\nYes.", calls=[]),
]

ROWS = [*FORMS, *CALLS, *THINKING]


async def no_notice(wait: float, error: CrystalError) -> None: ...


async def asked(family: Family, body: Events, kind: str = EVENTS) -> tuple[Response, str]:
    """Ask a real client of the provider's SDK, whose server sends ``body``; the answer, and the text that was shown."""
    shown: list[str] = []

    async def emit(delta: Delta) -> None:
        if delta.kind == "text":
            shown.append(delta.text)

    reply = Reply(200, {"content-type": kind} if kind else {}, stream=[each for each in body if each])
    with Wire(lambda request: reply) as wire:
        crystal = family.crystal(wire.url)
        try:
            query = Query([Message("user", "Look.", kind="intent")], (LOOK, NOW))
            policy = RetryPolicy(max_retries=0)
            return await query_with_retries(crystal, query, emit, policy, no_notice), "".join(shown)
        finally:
            await crystal.aclose()  # type: ignore[attr-defined]


def cut_up(body: Events, size: int | None) -> Events:
    if size is None:
        return body
    data = b"".join(body)
    return [data[at : at + size] for at in range(0, len(data), size)]


def check(row: Row, response: Response, shown: str) -> None:
    assert response.content == row.content
    assert shown == (row.content or "")
    assert [(call.gate, json.loads(call.args)) for call in response.tool_calls] == list(row.calls)
    assert (response.usage.prompt_tokens, response.usage.completion_tokens) == row.usage
    assert len({call.id for call in response.tool_calls}) == len(response.tool_calls)


CASES = [(row, wire, family) for row in ROWS for wire in row.wires for family in WIRES[wire]]


@pytest.mark.parametrize(
    ("row", "wire", "family"), CASES, ids=[f"{family.name}-{row.name}" for row, _, family in CASES]
)
async def test_an_oddity(row: Row, wire: str, family: Family) -> None:
    body = cut_up(row.frame(row.events(wire)), row.size)
    if row.error:
        with pytest.raises(CrystalError, match=row.error):
            await asked(family, body, row.kind)
        return
    check(row, *await asked(family, body, row.kind))


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize(("wire", "family"), [(wire, each) for wire in WIRES for each in WIRES[wire]])
async def test_a_call_without_a_name_is_answered_and_the_cast_goes_on(wire: str, family: Family, alone: bool) -> None:
    """The next request is one that the provider takes, and the model reads which gates there are."""
    replies = [Reply(200, {"content-type": EVENTS}, stream=unnamed(alone=alone)(wire)), family.say("I see.")]
    problems: list[str | None] = []

    def answer(request: Request) -> Reply:
        problems.append(family.problem(request))
        return replies.pop(0)

    look = Gate("look", "Looks.", LOOK.parameters, lambda args, context: "a tree")
    with Wire(answer) as wires:
        circle = Circle(gates=[look, "done"], wards=[{"max_turns": 3}])
        cantrip = Cantrip(family.crystal(wires.url), {}, circle, retry=RetryPolicy(max_retries=0))
        result = await cantrip.cast("Look.")
        assert result.result == "I see."
        assert problems == [None, None]
        assert NO_NAME in wires.requests[1].body.decode()


async def test_rows_that_are_combined() -> None:
    """What a row says holds in every form of the stream, and wherever the network cuts it."""
    seed = int(os.environ.get("SEED") or random.randrange(1_000_000))
    forms = [row for row in FORMS if row.frames and row.size is None]
    for number in range(seed, seed + int(os.environ.get("FUZZ") or 40)):
        chance = random.Random(number)
        row = chance.choice([row for row in ROWS if row.kind == EVENTS and not row.error and row.events is not whole])
        wire = chance.choice(row.wires)
        family = chance.choice(WIRES[wire])
        taken: dict[str, Row] = {row.group or row.name: row} if row in forms else {}
        for each in chance.sample(forms, chance.randint(1, 3)):
            if wire in each.wires:
                taken.setdefault(each.group or each.name, each)
        body = row.events(wire) if row in forms else row.frame(row.events(wire))
        # In the order of the table: what changes the very beginning and the very end comes last.
        for each in sorted(taken.values(), key=forms.index):
            body = each.frame(body)
        data = b"".join(body)
        cuts = sorted({0, len(data), *(chance.randrange(len(data)) for _ in range(chance.randint(0, 30)))})
        print(f"SEED={number} FUZZ=1: {family.name}: {[row.name, *(each.name for each in taken.values())]}")
        check(row, *await asked(family, [data[a:b] for a, b in pairwise(cuts)]))
