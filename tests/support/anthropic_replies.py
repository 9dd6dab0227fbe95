"""The Messages API's side of the wire: event streams as Anthropic sends them, and a strict reader of the requests that arrive.

Events are checked by the SDK's own types, and requests by its types and by the API's rules.
"""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pydantic
import pytest
from anthropic.types import RawMessageStreamEvent
from anthropic.types.message_create_params import MessageCreateParamsStreaming

from cantrip_acp.crystals.anthropic.crystal import AnthropicCrystal
from cantrip_acp.crystals.contract import Delta, Query, Response
from cantrip_acp.crystals.endpoint import Endpoint
from cantrip_acp.crystals.keys import Secret
from cantrip_acp.types.errors import CrystalError
from cantrip_acp.types.messages import Message, ToolDefinition
from tests.support.provider_server import Piece, Reply, Request, Wire, json_reply, sse, sse_reply

MODEL = "claude-sonnet-5"


@functools.cache
def _events() -> Any:
    return pydantic.TypeAdapter(RawMessageStreamEvent)


@functools.cache
def _requests() -> Any:
    return pydantic.TypeAdapter(MessageCreateParamsStreaming)


_checking = threading.Lock()


def event(kind: str, **fields: Any) -> bytes:
    """One event, valid by the SDK's types."""
    data = {"type": kind, **fields}
    _events().validate_python(data)
    return sse(data, kind)


def start(model: str = MODEL, **usage: Any) -> bytes:
    used = {"input_tokens": 12, "output_tokens": 1, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 0}
    message = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {**used, **usage},
    }
    return event("message_start", message=message)


def block(index: int, given: Mapping[str, Any], deltas: Iterable[Mapping[str, Any]] = ()) -> list[bytes]:
    """A block of content: its start, its deltas, its stop."""
    return [
        event("content_block_start", index=index, content_block=dict(given)),
        *(event("content_block_delta", index=index, delta=dict(d)) for d in deltas),
        event("content_block_stop", index=index),
    ]


def text(index: int, *pieces: str) -> list[bytes]:
    return block(index, {"type": "text", "text": ""}, ({"type": "text_delta", "text": p} for p in pieces))


def thought(index: int, *pieces: str, sign: str = "c2lnbmF0dXJl") -> list[bytes]:
    deltas = [{"type": "thinking_delta", "thinking": p} for p in pieces]
    given = {"type": "thinking", "thinking": "", "signature": ""}
    return block(index, given, [*deltas, {"type": "signature_delta", "signature": sign}])


def redacted(index: int, data: str) -> list[bytes]:
    return block(index, {"type": "redacted_thinking", "data": data})


def use(index: int, name: str, *pieces: str, id: str = "toolu_1") -> list[bytes]:
    """A call of a tool; ``pieces`` are the JSON of its input as it streams (which begins with an empty one)."""
    deltas = ({"type": "input_json_delta", "partial_json": p} for p in ("", *pieces))
    return block(index, {"type": "tool_use", "id": id, "name": name, "input": {}}, deltas)


def stop(
    reason: str = "end_turn", output: int = 5, details: Mapping[str, Any] | None = None, **usage: Any
) -> list[bytes]:
    delta = {"stop_reason": reason, "stop_sequence": None, "stop_details": details}
    return [event("message_delta", delta=delta, usage={"output_tokens": output, **usage}), event("message_stop")]


PING = sse({"type": "ping"}, "ping")


def stream(*parts: Piece | Sequence[Piece]) -> Reply:
    pieces: list[Piece] = []
    for part in parts:
        if isinstance(part, list):
            pieces.extend(part)
        else:
            pieces.append(part)  # type: ignore[arg-type]
    return sse_reply(pieces, {"request-id": "req_1"})


def says(words: str = "Hello.", **usage: Any) -> Reply:
    return stream(start(**usage), PING, text(0, words), stop())


def calls(name: str, args: Mapping[str, Any], id: str = "toolu_1", **usage: Any) -> Reply:
    return stream(start(**usage), use(0, name, json.dumps(args), id=id), stop("tool_use"))


def refusal(status: int, kind: str, message: str, **headers: str) -> Reply:
    body = {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"}
    return json_reply(body, status, headers)


def broken_off(kind: str, message: str) -> bytes:
    """An error in the stream."""
    return sse({"type": "error", "error": {"type": kind, "message": message}}, "error")


def problem(request: Request) -> str | None:
    """What the real API would refuse about a request; None where it would not."""
    if (request.method, request.path) != ("POST", "/v1/messages"):
        return f"{request.method} {request.path}"
    body = request.json()
    sampling = {key: body.pop(key) for key in ("temperature", "top_p", "top_k") if key in body}
    try:
        # An `Iterable` that is checked as it is walked is not safe in two threads (pydantic-core panics).
        with _checking:
            known = _walked(_requests().validate_python(body))
    except pydantic.ValidationError as error:
        return str(error)
    if known != body:
        return f"Extra inputs are not permitted: sent {body}, of which the types know {known}"
    thinks = body.get("thinking", {"type": "disabled"})
    if thinks["type"] != "disabled":
        if sampling.get("temperature", 1) != 1:
            return "`temperature` may only be set to 1 when thinking is enabled"
        if body.get("tool_choice", {}).get("type") in ("any", "tool"):
            return "Thinking may not be enabled when tool_choice forces tool use."
    if thinks["type"] == "enabled" and not 1024 <= thinks["budget_tokens"] < body["max_tokens"]:
        return "`max_tokens` must be greater than `thinking.budget_tokens`"
    points = json.dumps(body).count('"cache_control"')
    if points > 4:
        return f"A maximum of 4 blocks with cache_control may be provided. Found {points}."
    if "tool_choice" in body and not body.get("tools"):
        return "tool_choice may only be specified while providing tools"
    if any(not b["text"].strip() for b in body.get("system", ())):
        return "system: text content blocks must contain non-whitespace text"
    return _turns(body["messages"], thinks["type"], bool(body.get("tools")))


def _walked(value: Any) -> Any:
    """The value as the types know it: an ``Iterable`` is checked as it is walked, and a field that is not known is gone."""
    if isinstance(value, dict):
        return {key: _walked(each) for key, each in value.items()}
    if isinstance(value, str | int | float | bool | None):
        return value
    return [_walked(each) for each in value]


def _turns(messages: list[dict[str, Any]], thinks: str, tools: bool) -> str | None:
    if not messages or messages[0]["role"] != "user":
        return 'messages: first message must use the "user" role'
    if messages[-1]["role"] != "user":
        return "This model does not support assistant message prefill."
    asked: set[str] = set()
    ever: set[str] = set()
    for number, message in enumerate(messages):
        blocks = message["content"]
        if not blocks:
            return f"messages.{number}: content must be non-empty"
        kinds = [b["type"] for b in blocks]
        answered = [b["tool_use_id"] for b in blocks if b["type"] == "tool_result"]
        if asked and (
            message["role"] != "user"
            or set(answered) != asked
            or kinds[: len(answered)] != ["tool_result"] * len(answered)
        ):
            return (
                f"messages.{number}: `tool_use` ids were found without `tool_result` blocks immediately after: {asked}"
            )
        if not asked and answered:
            return f"messages.{number}: unexpected `tool_use_id` found in `tool_result` blocks: {answered}"
        if len(answered) != len(set(answered)):
            return "each tool_use must have a single result"
        for each in blocks:
            if each["type"] == "text" and not each["text"].strip():
                return f"messages.{number}: text content blocks must contain non-whitespace text"
            if each["type"] in ("thinking", "redacted_thinking"):
                if message["role"] != "assistant":
                    return "thinking is the assistant's"
                if "cache_control" in each:
                    return "thinking blocks cannot have cache_control"
        asked = {b["id"] for b in blocks if b["type"] == "tool_use"}
        if len(asked) != kinds.count("tool_use") or asked & ever:
            return f"messages.{number}: `tool_use` ids must be unique"
        if asked and not tools:
            return "Requests which have `tool_use` blocks must define tools."
        ever |= asked
    if asked:
        return "`tool_use` ids were found without `tool_result` blocks"
    if thinks == "enabled" and messages[-1]["content"][0]["type"] == "tool_result":
        first = next(m for m in reversed(messages) if m["role"] == "assistant")["content"][0]["type"]
        if first not in ("thinking", "redacted_thinking"):
            return f"Expected `thinking` or `redacted_thinking`, but found `{first}`."
    return None


def checked(replies: Sequence[Reply]) -> Any:
    """Answers in order; 400 for what the real API would refuse, which also fails the test."""
    left = list(replies)

    def answer(request: Request) -> Reply:
        wrong = problem(request)
        if wrong is not None:
            raise AssertionError(wrong)
        return left.pop(0) if left else refusal(500, "api_error", "the test's server has no reply left")

    return answer


# --- asking ------------------------------------------------------------------------------------------------------------

KEY = "sk-ant-PLANTED-anthropic-key-0123456789"
HELLO = (Message("user", "Hello", kind="intent"),)
ECHO = ToolDefinition("echo", "Says it again.", {"type": "object", "properties": {"text": {"type": "string"}}})


def crystal(url: str | None, model: str = MODEL, **options: Any) -> AnthropicCrystal:
    named = {k: options.pop(k) for k in ("info", "silence_s", "connect_s", "headers", "api_key") if k in options}
    return AnthropicCrystal(Endpoint("anthropic", model, url, options=options, **{"api_key": Secret(KEY), **named}))


async def ask(c: AnthropicCrystal, messages: Sequence[Message] = HELLO, **more: Any) -> tuple[Response, list[Delta]]:
    pieces: list[Delta] = []

    async def emit(delta: Delta) -> None:
        pieces.append(delta)

    try:
        return await c.query(Query(messages, **more), emit), pieces
    finally:
        await c.aclose()


async def answered(reply: Reply, **options: Any) -> tuple[Response, list[Delta]]:
    with Wire(checked([reply])) as wire:
        return await ask(crystal(wire.url, **options), tools=(ECHO,))


async def failed(reply: Reply, **options: Any) -> CrystalError:
    with Wire([reply]) as wire:
        with pytest.raises(CrystalError) as caught:
            await ask(crystal(wire.url, **options))
    assert KEY not in str(caught.value) + repr(caught.value)
    return caught.value
