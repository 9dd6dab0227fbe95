"""Gemini's side of the wire: event streams as the API sends them, and a strict reader of the requests that arrive.

Both are checked by the SDK's own types (which forbid unknown fields), and requests by the API's rules about turns.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any

import pytest
from google.genai import types

from cantrip_acp.crystals.contract import Delta, Query, Response
from cantrip_acp.crystals.endpoint import Endpoint
from cantrip_acp.crystals.google.crystal import GoogleCrystal
from cantrip_acp.crystals.keys import Secret
from cantrip_acp.types.errors import CrystalError
from cantrip_acp.types.messages import Message, ToolDefinition
from tests.support.provider_server import (
    Piece,
    Reply,
    Request,
    Wire,
    json_reply,
    sse,
    sse_reply,
)

MODEL = "gemini-3-flash"


def chunk(*parts: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
    """One event: parts of the model's content, and whatever stands beside them."""
    candidate: dict[str, Any] = {"content": {"parts": list(parts), "role": "model"}, "index": 0}
    if finish is not None:
        candidate["finishReason"] = finish
    if "finishMessage" in more:
        candidate["finishMessage"] = more.pop("finishMessage")
    event = {"candidates": [candidate], "modelVersion": f"{MODEL}-001", "responseId": "r-1", **more}
    types.GenerateContentResponse.model_validate_json(json.dumps(event))
    return sse(event)


def usage(prompt: int, said: int, thoughts: int = 0, cached: int = 0, tool: int = 0) -> dict[str, int]:
    out = {"promptTokenCount": prompt, "candidatesTokenCount": said, "totalTokenCount": prompt + said + thoughts + tool}
    for key, value in (
        ("thoughtsTokenCount", thoughts),
        ("cachedContentTokenCount", cached),
        ("toolUsePromptTokenCount", tool),
    ):
        if value:
            out[key] = value
    return out


def call(
    name: str, args: dict[str, Any] | None = None, id: str | None = None, sign: str | None = None
) -> dict[str, Any]:
    inner: dict[str, Any] = {"name": name}
    if args is not None:
        inner["args"] = args
    if id is not None:
        inner["id"] = id
    return {"functionCall": inner, **({"thoughtSignature": sign} if sign else {})}


def says(text: str, finish: str = "STOP") -> Reply:
    return sse_reply([chunk({"text": text}), chunk({"text": ""}, finish=finish, usageMetadata=usage(10, 2))])


def stream(*pieces: Piece) -> Reply:
    return sse_reply(pieces)


def refusal(
    status: int, message: str, word: str = "INVALID_ARGUMENT", details: Sequence[Any] = (), **headers: str
) -> Reply:
    error: dict[str, Any] = {"code": status, "message": message, "status": word}
    if details:
        error["details"] = list(details)
    return json_reply({"error": error}, status, headers)


def problem(request: Request) -> str | None:
    """What the real API would refuse about a request; None where it would not."""
    if not request.path.endswith(":streamGenerateContent?alt=sse"):
        return f"unknown path {request.path}"
    body = request.json()
    known = {"contents", "systemInstruction", "tools", "toolConfig", "generationConfig", "safetySettings"}
    if set(body) - known:
        return f"unknown fields {set(body) - known}"
    try:
        contents = [types.Content.model_validate_json(json.dumps(c)) for c in body["contents"]]
        if "systemInstruction" in body:
            types.Content.model_validate_json(json.dumps(body["systemInstruction"]))
        for tool in body.get("tools", ()):
            types.Tool.model_validate_json(json.dumps(tool))
        if "toolConfig" in body:
            types.ToolConfig.model_validate_json(json.dumps(body["toolConfig"]))
        if "generationConfig" in body:
            types.GenerationConfig.model_validate_json(json.dumps(body["generationConfig"]))
    except ValueError as error:
        return str(error)
    return _turns(contents)


def _turns(contents: list[types.Content]) -> str | None:
    if not contents:
        return "contents are not specified"
    if contents[0].role != "user":
        return "the first content must be the user's"
    asked: list[types.FunctionCall] = []
    for content in contents:
        parts = content.parts or []
        if not parts:
            return "a content without parts"
        for part in parts:
            kinds = [part.text, part.function_call, part.function_response, part.inline_data]
            if sum(k is not None for k in kinds) != 1:
                return f"a part holds one kind of data: {part}"
        answers = [p.function_response for p in parts if p.function_response is not None]
        if len(answers) != len(asked):
            return "the number of function response parts must equal the number of function call parts"
        for answer, question in zip(answers, asked, strict=True):
            if answer.name != question.name:
                return "a function response must have its call's name"
            if question.id is not None and answer.id != question.id:
                return "a function response must have its call's id"
        asked = [p.function_call for p in parts if p.function_call is not None]
        if asked:
            if content.role != "model":
                return "calls are the model's"
            first = next(p for p in parts if p.function_call is not None)
            if first.thought_signature is None:
                return "Function call is missing a thought_signature in functionCall parts"
    if asked:
        return "a function call must be answered"
    return None


def checked(replies: Sequence[Reply]) -> Any:
    """Answers in order; 400 for what the real API would refuse, which also fails the test."""
    left = list(replies)

    def answer(request: Request) -> Reply:
        wrong = problem(request)
        if wrong is not None:
            raise AssertionError(wrong)
        return left.pop(0) if left else refusal(500, "the test's server has no reply left", "INTERNAL")

    return answer


KEY = "AIzaSyPLANTED-google-key-0123456789abcd"


SIGN = base64.b64encode(b"\xfb\xff\xfesigned by the model").decode()


HELLO = (Message("user", "Hello", kind="intent"),)


ECHO = ToolDefinition("echo", "Says it again.", {"type": "object", "properties": {"text": {"type": "string"}}})


def crystal(url: str, model: str = MODEL, **options: Any) -> GoogleCrystal:
    named = {k: options.pop(k) for k in ("info", "silence_s", "connect_s", "headers", "api_key") if k in options}
    return GoogleCrystal(Endpoint("google", model, url, options=options, **{"api_key": Secret(KEY), **named}))


async def ask(c: GoogleCrystal, messages: Sequence[Message] = HELLO, **more: Any) -> tuple[Response, list[Delta]]:
    pieces: list[Delta] = []

    async def emit(delta: Delta) -> None:
        pieces.append(delta)

    try:
        return await c.query(Query(messages, **more), emit), pieces
    finally:
        await c.aclose()


async def asked(replies: Sequence[Reply], messages: Sequence[Message] = HELLO, **more: Any) -> tuple[Response, Any]:
    """The response to one query, and the body that arrived."""
    options = {k: more.pop(k) for k in ("info", "model", "effort", "thinking_budget", "headers") if k in more}
    with Wire(checked(replies)) as wire:
        response, _ = await ask(crystal(wire.url, **options), messages, **more)
        return response, wire.requests[0].json()


async def failed(reply: Reply, **options: Any) -> CrystalError:
    with Wire([reply]) as wire:
        with pytest.raises(CrystalError) as caught:
            await ask(crystal(wire.url, **options))
    assert KEY not in str(caught.value) + repr(caught.value)
    return caught.value
