"""OpenAI's side of the wire, and that of those who speak its protocol: streams as they send them, and strict readers of requests.

Both are checked by the SDK's own types (unknown fields are refused), and requests by the API's rules about calls.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

import pydantic

from cantrip_acp.crystals.contract import Crystal, Delta, Query, Response
from cantrip_acp.types.messages import Message, ToolCall, ToolDefinition
from tests.support.provider_server import Answer, Reply, Request, json_reply, sse, sse_reply

MODEL = "gpt-test"
DONE = sse("[DONE]")


def chunk(delta: dict[str, Any] | None = None, finish: str | None = None, *, check: bool = True, **more: Any) -> bytes:
    """One chunk of Chat Completions; ``delta`` None is one without choices."""
    from openai.types.chat import ChatCompletionChunk

    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    value = {"id": "c-1", "object": "chat.completion.chunk", "created": 1, "model": MODEL, "choices": choices, **more}
    if check:
        ChatCompletionChunk.model_validate(value)
    return sse(value)


def counts(prompt: int = 10, said: int = 2, cached: int = 0, reasoning: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": said,
        "total_tokens": prompt + said,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": reasoning},
        **more,
    }


def chat_stream(*deltas: dict[str, Any], finish: str = "stop", usage: dict[str, Any] | None = None) -> Reply:
    """A whole answer, as OpenAI streams it."""
    return sse_reply(
        [
            chunk({"role": "assistant", "content": ""}),
            *(chunk(delta) for delta in deltas),
            chunk({}, finish),
            chunk(None, usage=usage or counts()),
            DONE,
        ]
    )


def said(text: str = "Hello.") -> Reply:
    return chat_stream({"content": text})


def call_delta(index: int, call_id: str, name: str, args: str = "") -> dict[str, Any]:
    return {
        "tool_calls": [
            {"index": index, "id": call_id, "type": "function", "function": {"name": name, "arguments": args}}
        ]
    }


def args_delta(index: int, args: str) -> dict[str, Any]:
    return {"tool_calls": [{"index": index, "function": {"arguments": args}}]}


# The Responses API.


def message_item(text: str, item_id: str = "msg_1") -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}]
    return {"type": "message", "id": item_id, "status": "completed", "role": "assistant", "content": content}


def reasoning_item(*summaries: str, sealed: str | None = "gAAA-sealed", item_id: str = "rs_1") -> dict[str, Any]:
    return {
        "type": "reasoning",
        "id": item_id,
        "summary": [{"type": "summary_text", "text": text} for text in summaries],
        "encrypted_content": sealed,
    }


def call_item(call_id: str, name: str, args: str, item_id: str = "fc_1") -> dict[str, Any]:
    return {
        "type": "function_call",
        "id": item_id,
        "call_id": call_id,
        "name": name,
        "arguments": args,
        "status": "completed",
    }


def response(items: list[dict[str, Any]], status: str = "completed", **more: Any) -> dict[str, Any]:
    """A response object, with everything that the API sends."""
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "status": status,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "model": f"{MODEL}-2026",
        "output": items,
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "usage": {
            "input_tokens": 20,
            "input_tokens_details": {"cached_tokens": 8, "cache_write_tokens": 4},
            "output_tokens": 6,
            "output_tokens_details": {"reasoning_tokens": 3},
            "total_tokens": 26,
        },
        **more,
    }


def events(items: list[dict[str, Any]], final: str = "response.completed", **more: Any) -> list[bytes]:
    """The events of a response with these items, in the order in which the API sends them."""
    out: list[dict[str, Any]] = [
        {"type": "response.created", "response": response([], "in_progress", usage=None)},
        {"type": "response.in_progress", "response": response([], "in_progress", usage=None)},
    ]
    for at, item in enumerate(items):
        where = {"item_id": item["id"], "output_index": at}
        empty = {**item, **{key: [] for key in ("content", "summary") if key in item}}
        if item["type"] == "function_call":
            empty["arguments"] = ""
        out.append({"type": "response.output_item.added", "output_index": at, "item": empty})
        if item["type"] == "reasoning":
            for n, part in enumerate(item["summary"]):
                here = {**where, "summary_index": n}
                empty_part = {"type": "summary_text", "text": ""}
                out.append({"type": "response.reasoning_summary_part.added", "part": empty_part, **here})
                for piece in halves(part["text"]):
                    out.append({"type": "response.reasoning_summary_text.delta", "delta": piece, **here})
                out.append({"type": "response.reasoning_summary_text.done", "text": part["text"], **here})
                out.append({"type": "response.reasoning_summary_part.done", "part": part, **here})
        elif item["type"] == "message":
            for n, part in enumerate(item["content"]):
                here = {**where, "content_index": n}
                if part["type"] == "output_text":
                    for piece in halves(part["text"]):
                        out.append({"type": "response.output_text.delta", "delta": piece, "logprobs": [], **here})
                    out.append({"type": "response.output_text.done", "text": part["text"], "logprobs": [], **here})
                else:
                    for piece in halves(part["refusal"]):
                        out.append({"type": "response.refusal.delta", "delta": piece, **here})
                    out.append({"type": "response.refusal.done", "refusal": part["refusal"], **here})
        else:
            for piece in halves(item["arguments"]):
                out.append({"type": "response.function_call_arguments.delta", "delta": piece, **where})
            done = {"arguments": item["arguments"], "name": item["name"], **where}
            out.append({"type": "response.function_call_arguments.done", **done})
        out.append({"type": "response.output_item.done", "output_index": at, "item": item})
    out.append({"type": final, "response": response(items, final.removeprefix("response."), **more)})
    return [event(value, number) for number, value in enumerate(out)]


def event(value: dict[str, Any], number: int = 0) -> bytes:
    """One event, checked by the SDK's own type for it."""
    from openai.types.responses import ResponseStreamEvent

    value = {"sequence_number": number, **value}
    _adapter(ResponseStreamEvent).validate_python(value)
    return sse(value, value["type"])


def responds(*items: dict[str, Any], **more: Any) -> Reply:
    return sse_reply(events(list(items), **more))


def halves(text: str) -> list[str]:
    return [piece for piece in (text[: len(text) // 2], text[len(text) // 2 :]) if piece]


# What arrives.


def strict(*replies: Reply, extra: Iterable[str] = ()) -> Answer:
    """Answers in order, and fails the test at a request that the real API would refuse."""
    waiting = list(replies)

    def answer(request: Request) -> Reply:
        problem = refused(request, extra)
        assert problem is None, problem
        return waiting.pop(0)

    return answer


def refused(request: Request, extra: Iterable[str] = ()) -> str | None:
    """Why the API would refuse a request; None where it would not. ``extra`` are fields beside OpenAI's own."""
    body = request.json()
    for key in extra:
        body.pop(key, None)
    try:
        if request.path.endswith("/chat/completions"):
            return _chat_problem(body)
        if request.path.endswith("/responses"):
            return _responses_problem(body)
    except pydantic.ValidationError as error:
        return str(error)
    return f"unknown path {request.path}"


def _chat_problem(body: dict[str, Any]) -> str | None:
    from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolUnionParam
    from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming

    _whole(CompletionCreateParamsStreaming, {**body, "messages": [], "tools": []})
    for tool in body.get("tools", []):
        _whole(ChatCompletionToolUnionParam, tool)
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", tool["function"]["name"]):
            return f"tool name {tool['function']['name']!r}"
    open_calls: list[str] = []
    for at, message in enumerate(body["messages"]):
        bare = {k: v for k, v in message.items() if k not in ("reasoning_details", "reasoning_content", "reasoning")}
        _whole(ChatCompletionMessageParam, bare)
        if message["role"] == "tool":
            if message["tool_call_id"] not in open_calls:
                return f"messages[{at}]: no call {message['tool_call_id']!r} before it"
            open_calls.remove(message["tool_call_id"])
            continue
        if open_calls:
            return f"messages[{at}]: calls {open_calls} have no answer"
        for call in message.get("tool_calls", []):
            if len(call["id"]) > 40:
                return f"messages[{at}]: the id {call['id']!r} is too long"
            if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", call["function"]["name"]):
                return f"messages[{at}]: name {call['function']['name']!r}"
            if not isinstance(json.loads(call["function"]["arguments"]), dict):
                return f"messages[{at}]: arguments are not an object"
            open_calls.append(call["id"])
        if message["role"] == "assistant" and message.get("content") is None and not message.get("tool_calls"):
            return f"messages[{at}]: an assistant without content"
    return f"calls {open_calls} have no answer" if open_calls else None


def _responses_problem(body: dict[str, Any]) -> str | None:
    from openai.types.responses import ResponseInputItemParam, ToolParam
    from openai.types.responses.response_create_params import ResponseCreateParamsStreaming

    _whole(ResponseCreateParamsStreaming, {**body, "input": [], "tools": []})
    for tool in body.get("tools", []):
        _whole(ToolParam, tool)
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", tool["name"]):
            return f"tool name {tool['name']!r}"
    calls: list[str] = []
    for at, item in enumerate(body["input"]):
        _whole(ResponseInputItemParam, item)
        if item["type"] == "reasoning" and not item.get("encrypted_content"):
            return f"input[{at}]: item {item['id']!r} is not stored"
        if item["type"] == "function_call":
            calls.append(item["call_id"])
            json.loads(item["arguments"])
        if item["type"] == "function_call_output":
            if item["call_id"] not in calls:
                return f"input[{at}]: no call {item['call_id']!r}"
            calls.remove(item["call_id"])
    return f"calls {calls} have no answer" if calls else None


@cache
def _adapter(kind: Any) -> pydantic.TypeAdapter[Any]:
    return pydantic.TypeAdapter(kind)


def _whole(kind: Any, value: Any) -> None:
    """Check a value by a type of the SDK; lists in it are checked to their end, and unknown fields refused."""
    _drain(_adapter(kind).validate_python(value, extra="forbid"))


def _drain(value: Any) -> None:
    if isinstance(value, str | bytes):
        return
    if isinstance(value, Mapping):
        for each in value.values():
            _drain(each)
    elif isinstance(value, Iterable):
        for each in value:
            _drain(each)


def refusal(
    status: int, message: str, code: str | None = None, kind: str = "invalid_request_error", **headers: str
) -> Reply:
    error = {"message": message, "type": kind, "param": None, "code": code}
    return json_reply({"error": error}, status, headers)


async def asked(crystal: Crystal, *messages: Message, **query: Any) -> tuple[Response, list[Delta]]:
    """Ask; the response and what was shown of it before."""
    shown: list[Delta] = []

    async def emit(delta: Delta) -> None:
        shown.append(delta)

    return await crystal.query(Query(list(messages) or [USER], **query), emit), shown


def text(shown: list[Delta], kind: str = "text") -> str:
    return "".join(delta.text for delta in shown if delta.kind == kind)


USER = Message("user", "Hi", kind="intent")
READ = ToolDefinition(
    "read_file",
    "Reads a file.",
    {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"], "additionalProperties": False},
)
DONE_GATE = ToolDefinition("done", "Ends the task.", {"type": "object", "properties": {"answer": {}}})


def turn(
    *calls: ToolCall, content: str | None = None, provider: Any = None, thinking: str | None = None
) -> list[Message]:
    """An assistant's message with calls, and their answers."""
    said = Message("assistant", content, calls, thinking=thinking, provider=provider)
    return [said, *(Message("tool", f"result of {c.id}", tool_call_id=c.id, name=c.gate) for c in calls)]
