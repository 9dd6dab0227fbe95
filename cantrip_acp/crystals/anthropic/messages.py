"""Anthropic messages: renders our messages as content blocks of the Messages API, and sets cache points. It needs no SDK.

The rendering of earlier messages does not change when messages are added, so Anthropic's prompt cache works. Only the
cache points move (`with_cache_points`), and they are not part of the cached content.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any

import msgspec

from cantrip_acp.crystals.catalog.types import ModelInfo, attachment_note, takes
from cantrip_acp.crystals.openai.tool_names import wire_name
from cantrip_acp.crystals.text_tools import without_text_calls
from cantrip_acp.crystals.tool_schemas import ToolSchemas
from cantrip_acp.types.messages import Attachment, Message, ToolCall, ToolDefinition

FAMILY = "anthropic"
THINKING = ("thinking", "redacted_thinking")

_EMPTY = "(empty)"
_UNANSWERED = "[no result]"
_POINT = {"type": "ephemeral"}
_IMAGES = ("image/jpeg", "image/png", "image/gif", "image/webp")
_ID = re.compile(r"[A-Za-z0-9_-]+")
_LONGEST_ID = 64


class Rendered(msgspec.Struct, frozen=True):
    """``system`` and ``messages`` of a request, without cache points."""

    system: list[dict[str, Any]]
    messages: list[dict[str, Any]]


def tools_of(tools: Iterable[ToolDefinition], schemas: ToolSchemas) -> list[dict[str, Any]]:
    out = []
    for tool in tools:
        description, schema = schemas.render(tool)
        out.append({"name": wire_name(tool.name), "description": description, "input_schema": schema})
    return out


def rendered(messages: Sequence[Message], model: str, info: ModelInfo) -> Rendered:
    """Render messages. Leading system messages become the system prompt, one block each. A later system message becomes
    a user message.

    All answers to the calls of one assistant message are in one user message, directly after it. The API requires this.
    """
    rendering = _Rendering(model, info)
    for message in without_text_calls(messages):
        rendering.add(message)
    rendering.close()
    return Rendered(rendering.system, rendering.messages)


class _Rendering:
    """The state while messages are rendered."""

    __slots__ = ("_answers", "_info", "_model", "_open_calls", "_pending", "_used", "messages", "system")

    def __init__(self, model: str, info: ModelInfo) -> None:
        self.system: list[dict[str, Any]] = []
        self.messages: list[dict[str, Any]] = []
        self._model = model
        self._info = info
        self._used: dict[str, int] = {}
        """How often each call id was used, because an id must be unique in a request."""
        self._open_calls: dict[str, str] = {}
        """The calls of the last assistant message without an answer: our id, and the id in the request."""
        self._answers: list[dict[str, Any]] = []
        self._pending: list[dict[str, Any]] = []

    def add(self, message: Message) -> None:
        if message.role == "system":
            if not message.content or not message.content.strip():
                return
            part = {"type": "text", "text": message.content}
            if not self.messages and not self._pending:
                self.system.append(part)
            elif self._open_calls:
                self._pending.append(part)
            else:
                self.close()
                self._user([part])
        elif message.role == "tool":
            self._answer(message)
        else:
            self.close()
            if message.role == "user":
                self._user(list(_user_blocks(message, self._model, self._info)))
            else:
                self._assistant(message)

    def close(self) -> None:
        """Finish the answers to an assistant message. Add a placeholder for each missing one, as the API requires."""
        if self._open_calls or self._answers:
            for wire_id in self._open_calls.values():
                self._answers.append(_result(wire_id, _text(_UNANSWERED), is_error=True))
            self._open_calls = {}
            self.messages.append({"role": "user", "content": self._answers})
            self._answers = []
        if self._pending:
            held, self._pending = self._pending, []
            self._user(held)

    def _user(self, blocks: list[dict[str, Any]]) -> None:
        self.messages.append({"role": "user", "content": blocks})

    def _assistant(self, message: Message) -> None:
        calls = [self._tool_use(call) for call in message.tool_calls]
        blocks = _verbatim(message, self._model, calls)
        if blocks is None:
            blocks = [{"type": "text", "text": message.content}] if message.content and message.content.strip() else []
            blocks.extend(calls)
        if not self.messages:
            # A conversation must start with a user message. After a fold or a fork it may not.
            self._user([{"type": "text", "text": _EMPTY}])
        self.messages.append({"role": "assistant", "content": blocks or [{"type": "text", "text": _EMPTY}]})

    def _tool_use(self, call: ToolCall) -> dict[str, Any]:
        wire_id = call.id if _ID.fullmatch(call.id) and len(call.id) <= _LONGEST_ID else f"call_{_digest(call.id)}"
        count = self._used[wire_id] = self._used.get(wire_id, 0) + 1
        if count > 1:
            # Other providers may use the same ids in each response.
            wire_id = f"call_{_digest(f'{wire_id} {count}')}"
        self._open_calls[call.id] = wire_id
        return {"type": "tool_use", "id": wire_id, "name": wire_name(call.gate), "input": _input(call.args)}

    def _answer(self, message: Message) -> None:
        wire_id = self._open_calls.pop(message.tool_call_id or "", None)
        text = message.content or ""
        attached = [_attached(each, self._model, self._info) for each in message.attachments]
        if wire_id is not None:
            if message.is_error:
                # The content of a failed result must be text.
                self._pending.extend(attached)
                attached = []
            self._answers.append(_result(wire_id, [*_text(text), *attached], is_error=message.is_error))
            return
        parts = [*_text(f"{message.name or 'tool'}: {text}"), *attached]
        if self._open_calls or self._answers:
            self._pending.extend(parts)
        else:
            self._user(parts)


def _text(text: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text}] if text.strip() else []


def _result(wire_id: str, content: list[dict[str, Any]], *, is_error: bool) -> dict[str, Any]:
    result: dict[str, Any] = {"type": "tool_result", "tool_use_id": wire_id}
    if content:
        result["content"] = content
    if is_error:
        result["is_error"] = True
    return result


def _verbatim(message: Message, model: str, calls: list[dict[str, Any]]) -> list[dict[str, Any]] | None:
    """Return the blocks as this model sent them, in order, with unchanged thinking. None if another model wrote the
    message."""
    kept = message.provider
    if not isinstance(kept, Mapping) or kept.get("family") != FAMILY or kept.get("model") != model:
        return None
    blocks = kept.get("blocks")
    if not isinstance(blocks, list | tuple) or not all(isinstance(b, Mapping) for b in blocks):
        return None
    texts = [b.get("text", "") for b in blocks if b.get("type") == "text"]
    uses = sum(b.get("type") == "tool_use" for b in blocks)
    if uses != len(calls) or (texts and "".join(texts) != (message.content or "")):
        return None
    left = iter(calls)
    return [next(left) if b["type"] == "tool_use" else dict(b) for b in blocks if b.get("type")]


def replay_data(blocks: Sequence[Mapping[str, Any]], model: str) -> dict[str, Any] | None:
    """Make ``Response.provider`` from these blocks. None if content and calls are enough to make the same blocks.

    Of a call only its position is stored, because the response's ``tool_calls`` have the rest.
    """
    kinds = [b["type"] for b in blocks]
    if kinds == sorted(kinds) and set(kinds) <= {"text", "tool_use"} and kinds.count("text") <= 1:
        return None
    places = [{"type": "tool_use"} if b["type"] == "tool_use" else dict(b) for b in blocks]
    return {"family": FAMILY, "model": model, "blocks": places}


def _user_blocks(message: Message, model: str, info: ModelInfo) -> Iterable[dict[str, Any]]:
    for attachment in message.attachments:
        yield _attached(attachment, model, info)
    if message.content and message.content.strip():
        yield {"type": "text", "text": message.content}
    elif not message.attachments:
        yield {"type": "text", "text": _EMPTY}


def _attached(attachment: Attachment, model: str, info: ModelInfo) -> dict[str, Any]:
    if not takes(attachment, info):
        return {"type": "text", "text": attachment_note(attachment, model)}
    source: dict[str, Any] = {"type": "base64", "media_type": attachment.mime, "data": attachment.data}
    if attachment.kind == "image" and attachment.mime in _IMAGES:
        return {"type": "image", "source": source}
    if attachment.kind == "document":
        if attachment.mime.startswith("text/"):
            try:
                text = base64.b64decode(attachment.data).decode()
            except ValueError:
                text = ""
            source = {"type": "text", "media_type": "text/plain", "data": text}
        if attachment.mime == "application/pdf" or (source["type"] == "text" and source["data"]):
            block: dict[str, Any] = {"type": "document", "source": source}
            if attachment.title:
                block["title"] = attachment.title
            return block
    return {"type": "text", "text": attachment_note(attachment, model, f"{model} does not take {attachment.mime}")}


def _input(args: str) -> dict[str, Any]:
    """Return the arguments as a mapping, which the API requires. Another value is put into a mapping, so that the model
    sees its mistake."""
    if not args.strip():
        return {}
    try:
        found = msgspec.json.decode(args)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return {"malformed_arguments": args.encode("utf-8", "replace").decode()}
    return found if isinstance(found, dict) else {"arguments": found}


def with_cache_points(request: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of the request with at most four cache points.

    They are after the tools, after the system prompt, at the end of the previous query (already in the cache), and at the
    end of this query (for the next one).
    """
    out = dict(request)
    for part in ("tools", "system"):
        if out.get(part):
            out[part] = [*out[part][:-1], {**out[part][-1], "cache_control": _POINT}]
    messages = out["messages"] = list(out["messages"])
    last = len(messages) - 1
    before = next((i for i in range(last - 1, 0, -1) if messages[i]["role"] == "assistant"), 0) - 1
    for index in {last, before}:
        if index >= 0 and messages[index]["role"] == "user":
            blocks = messages[index]["content"]
            messages[index] = {"role": "user", "content": [*blocks[:-1], {**blocks[-1], "cache_control": _POINT}]}
    return out


def _digest(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:24]
