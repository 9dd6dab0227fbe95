"""Gemini messages: renders our messages as Gemini's contents (the REST API's JSON, ``v1beta``).

The functions have no side effects, and the same message is always rendered in the same way. Gemini's own output is sent
back unchanged, part by part, because each thought signature belongs to one part.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

import msgspec

from cantrip_acp.crystals.catalog.types import ModelInfo, attachment_note, takes
from cantrip_acp.crystals.contract import Query
from cantrip_acp.crystals.google.request import convert_schema, thinking
from cantrip_acp.crystals.openai.tool_names import wire_name
from cantrip_acp.crystals.text_tools import without_text_calls
from cantrip_acp.crystals.tool_schemas import ToolSchemas
from cantrip_acp.types.messages import Attachment, Message, ToolCall

FAMILY = "google"

UNSIGNED = "skip_thought_signature_validator"
"""Google's official placeholder for a signature. Gemini 3 and later refuse calls without one, for example another model's."""

_MODES = {"auto": "AUTO", "required": "ANY", "none": "NONE"}
_IMAGES = ("image/png", "image/jpeg", "image/webp", "image/heic", "image/heif")
_NO_SIGNATURES = re.compile(r"(?:^|/)(?:gemini-[12](?:[.\-]|$)|gemma|learnlm)")


def body_of(
    query: Query,
    model: str,
    info: ModelInfo,
    options: Mapping[str, Any],
    refused: Set[str] = frozenset(),
    *,
    forced: bool = True,
    schemas: ToolSchemas | None = None,
) -> dict[str, Any]:
    """Build the body of the request. The model's name is not in it, because it is in the URL.

    ``refused`` are thought signatures that the API refused. Messages with them are sent as plain text and calls.
    ``forced``: whether a call may be forced. ``schemas`` knows which schemas of tools the model refused.
    """
    system, contents = contents_of(query.messages, model, info, refused)
    body: dict[str, Any] = {"contents": contents}
    if system:
        body["systemInstruction"] = {"parts": system}
    if query.tools:
        declared = []
        for tool in query.tools:
            described, schema = (schemas or ToolSchemas("")).render(tool)
            named = {"name": wire_name(tool.name), "description": described}
            declared.append({**named, "parametersJsonSchema": convert_schema(schema)})
        body["tools"] = [{"functionDeclarations": declared}]
        mode = _MODES["auto" if query.tool_choice == "required" and not forced else query.tool_choice]
        body["toolConfig"] = {"functionCallingConfig": {"mode": mode}}
    call = query.params
    generation: dict[str, Any] = {}
    if info.sampling:
        generation |= {"temperature": call.temperature, "topP": call.top_p, "topK": call.top_k}
    generation |= {"seed": call.seed, "maxOutputTokens": call.max_tokens}
    generation = {name: value for name, value in generation.items() if value is not None}
    if call.stop:
        generation["stopSequences"] = list(call.stop)
    thought = thinking(model, info, options)
    if thought is not None:
        generation["thinkingConfig"] = thought
    if options.get("logprobs"):
        generation["responseLogprobs"] = True
    if generation:
        body["generationConfig"] = generation
    return body


def contents_of(
    messages: Sequence[Message], model: str, info: ModelInfo, refused: Set[str] = frozenset()
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Render messages. Returns the parts of the system instruction, and the contents.

    Leading system messages become the system instruction, one part each. A later system message becomes text before the
    next user message. All answers to the calls of one assistant message are in one content, as Gemini requires.
    """
    system: list[dict[str, Any]] = []
    contents: list[dict[str, Any]] = []
    pending: list[dict[str, Any]] = []
    calls: dict[str, _Asked] = {}
    answers: list[dict[str, Any]] | None = None
    images: list[dict[str, Any]] = []
    for message in without_text_calls(messages):
        if message.role != "tool":
            answers = None
            contents.extend(_user(images))
            images = []
        if message.role == "system":
            part = {"text": message.content or ""}
            (pending if contents else system).append(part)
        elif message.role == "user":
            contents.append({"role": "user", "parts": [*pending, *_user_parts(message, model, info)]})
            pending = []
        elif message.role == "assistant":
            contents.extend(_user(pending))
            pending = []
            parts = _assistant_parts(message, model, calls, refused)
            if parts:
                contents.append({"role": "model", "parts": parts})
        else:
            part, beside = _answer(message, calls, model, info)
            images.extend(beside)
            if answers is None:
                contents.extend(_user(pending))
                pending = []
                answers = []
                contents.append({"role": "user", "parts": answers})
            answers.append(part)
    contents.extend(_user(images))
    contents.extend(_user(pending))
    return system, contents


class _Asked(msgspec.Struct, frozen=True):
    """A call as Gemini knows it: its name, and its id if Gemini sent one."""

    name: str
    id: str | None


def signatures(body: Mapping[str, Any]) -> set[str]:
    """The thought signatures in a body that Google made."""
    found = {p.get("thoughtSignature") for content in body["contents"] for p in content["parts"]}
    return {str(s) for s in found if s is not None and s != UNSIGNED}


def _user(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"role": "user", "parts": parts}] if parts else []


def _user_parts(message: Message, model: str, info: ModelInfo) -> Iterable[dict[str, Any]]:
    yield from (_attached(each, model, info) for each in message.attachments)
    if message.content or not message.attachments:
        yield {"text": message.content or ""}


def _assistant_parts(message: Message, model: str, calls: dict[str, _Asked], refused: Set[str]) -> list[dict[str, Any]]:
    """Render the parts of an assistant's message. Adds its calls to ``calls``, which are needed for their answers."""
    parts = _verbatim(message, model)
    if parts is not None and not any(p.get("thoughtSignature") in refused for p in parts):
        asked = [p["functionCall"] for p in parts if "functionCall" in p]
        for call, theirs in zip(message.tool_calls, asked, strict=True):
            calls[call.id] = _Asked(wire_name(call.gate), theirs.get("id"))
        return parts
    parts = [{"text": message.content}] if message.content else []
    for index, call in enumerate(message.tool_calls):
        calls[call.id] = _Asked(wire_name(call.gate), None)
        part: dict[str, Any] = {"functionCall": {"name": wire_name(call.gate), "args": _args(call)}}
        if index == 0 and not _NO_SIGNATURES.search(model):
            part["thoughtSignature"] = UNSIGNED
        parts.append(part)
    return parts


def _verbatim(message: Message, model: str) -> list[dict[str, Any]] | None:
    """Return the parts as this model sent them. None if another model wrote the message, or if the parts do not match its
    tool calls."""
    kept = message.provider
    if not isinstance(kept, Mapping) or kept.get("family") != FAMILY or kept.get("model") != model:
        return None
    parts = kept.get("parts")
    if not isinstance(parts, list | tuple) or not parts or not all(isinstance(p, Mapping) for p in parts):
        return None
    asked = [p["functionCall"] for p in parts if "functionCall" in p]
    if not all(isinstance(a, Mapping) for a in asked):
        return None
    if [a.get("name") for a in asked] != [wire_name(c.gate) for c in message.tool_calls]:
        return None
    return [dict(p) for p in parts]


def _args(call: ToolCall) -> dict[str, Any]:
    """Return the arguments as a mapping, which the API requires. Another value is put into a mapping, so that the model
    sees its mistake."""
    try:
        args = msgspec.json.decode(call.args) if call.args.strip() else {}
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        args = call.args
    return args if isinstance(args, dict) else {"arguments": args}


def _attached(attachment: Attachment, model: str, info: ModelInfo) -> dict[str, Any]:
    if not takes(attachment, info):
        return {"text": attachment_note(attachment, model)}
    if attachment.kind == "image" and attachment.mime not in _IMAGES:
        return {"text": attachment_note(attachment, model, f"{model} does not take {attachment.mime}")}
    return {"inlineData": {"mimeType": attachment.mime, "data": attachment.data}}


def _answer(
    message: Message, calls: Mapping[str, _Asked], model: str, info: ModelInfo
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Render a tool's answer. Returns its part, and further parts that belong into a separate content after it.

    Gemini 3 and later accept images inside a function response. For earlier models the images come after it.
    """
    asked = calls.get(message.tool_call_id or "")
    parts = [_attached(each, model, info) for each in message.attachments]
    images = [part for part in parts if "text" not in part]
    text = "\n".join([message.content or "", *(part["text"] for part in parts if "text" in part)])
    beside = [{"text": f"[Images of the result of {message.name or 'a call'}]"}, *images] if images else []
    if asked is None:
        return {"text": f"{message.name or 'tool'}: {text}"}, beside
    response: dict[str, Any] = {"name": asked.name, "response": {"error" if message.is_error else "output": text}}
    if asked.id is not None:
        response["id"] = asked.id
    if images and not _NO_SIGNATURES.search(model):
        response["parts"], beside = images, []
    return {"functionResponse": response}, beside
