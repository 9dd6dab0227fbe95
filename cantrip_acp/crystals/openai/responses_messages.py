"""Responses API messages: renders our messages as its ``input``. It is pure and append-only, and the server stores
nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cantrip_acp.crystals.catalog.types import ModelInfo, attachment_note
from cantrip_acp.crystals.contract import Attachment, Message, ToolDefinition
from cantrip_acp.crystals.openai.chat_messages import as_words, file_name
from cantrip_acp.crystals.openai.tool_names import wire_args, wire_id, wire_name

FAMILY = "openai-responses"


def render_input(messages: Sequence[Message], info: ModelInfo, model: str) -> list[dict[str, Any]]:
    """The ``input`` items. The API's own earlier items go back unchanged, including reasoning."""
    out: list[dict[str, Any]] = []
    asked: set[str] = set()
    for message in messages:
        text = message.content or ""
        match message.role:
            case "system":
                out.append({"type": "message", "role": "developer", "content": text})
            case "user":
                out.append({"type": "message", "role": "user", "content": _user(message, info, model)})
            case "assistant":
                items = _kept(message)
                out.extend(items if items is not None else _said(message))
                asked = {call.id for call in message.tool_calls}
            case "tool":
                call_id = message.tool_call_id or ""
                parts = [_part(each, info, model) for each in message.attachments]
                if call_id not in asked:
                    # An answer without its call is invalid here, so send its text as a user message.
                    text = f"[result of {message.name or 'a call'}]\n{text}"
                content = [{"type": "input_text", "text": text}, *parts] if parts else text
                if call_id in asked:
                    out.append({"type": "function_call_output", "call_id": wire_id(call_id), "output": content})
                else:
                    out.append({"type": "message", "role": "user", "content": content})
    return out


def render_tools(tools: Sequence[ToolDefinition]) -> list[dict[str, Any]]:
    """The ``tools`` of a request. Not strict, because strict mode takes only a part of JSON Schema."""
    return [
        {
            "type": "function",
            "name": wire_name(tool.name),
            "description": tool.description,
            "parameters": dict(tool.parameters),
            "strict": False,
        }
        for tool in tools
    ]


def keep(items: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The items of an answer, to send back in later queries; None where they cannot be sent back."""
    kept = []
    for item in items:
        if item.get("type") == "reasoning" and not item.get("encrypted_content"):
            # Without its content, the item only refers to data that the server was told not to store.
            return None
        # The API gives null for fields that it does not accept back as null.
        given = {key: value for key, value in item.items() if value is not None}
        if isinstance(given.get("content"), list):
            # The loom needs the log-probabilities; the API does not.
            given["content"] = [
                {**part, "logprobs": []} if isinstance(part, dict) and part.get("logprobs") else part
                for part in given["content"]
            ]
        kept.append(given)
    return {"family": FAMILY, "items": kept} if kept else None


def _kept(message: Message) -> list[dict[str, Any]] | None:
    data = message.provider
    if not isinstance(data, dict) or data.get("family") != FAMILY or not isinstance(data.get("items"), list):
        return None
    items = [dict(item) for item in data["items"] if isinstance(item, dict)]
    called = [item.get("call_id") for item in items if item.get("type") == "function_call"]
    if called != [call.id for call in message.tool_calls]:
        return None
    for item in items:
        if item.get("type") == "function_call":
            item["arguments"] = wire_args(str(item.get("arguments") or ""))
    return items


def _said(message: Message) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    if message.content:
        out.append({"type": "message", "role": "assistant", "content": message.content})
    out.extend(
        {
            "type": "function_call",
            "call_id": wire_id(call.id),
            "name": wire_name(call.gate),
            "arguments": wire_args(call.args),
        }
        for call in message.tool_calls
    )
    return out


def _user(message: Message, info: ModelInfo, model: str) -> str | list[dict[str, Any]]:
    if not message.attachments:
        return message.content or ""
    parts = [_part(each, info, model) for each in message.attachments]
    if message.content:
        parts.append({"type": "input_text", "text": message.content})
    return parts


def _part(attachment: Attachment, info: ModelInfo, model: str) -> dict[str, Any]:
    url = f"data:{attachment.mime};base64,{attachment.data}"
    written = as_words(attachment, info, model, only_pdf=False)
    if written is not None:
        return {"type": "input_text", "text": written}
    if attachment.kind == "image":
        return {"type": "input_image", "detail": "auto", "image_url": url}
    if attachment.kind == "document":
        return {"type": "input_file", "filename": file_name(attachment), "file_data": url}
    why = "the Responses API takes no audio (crystal.api: chat does)"
    return {"type": "input_text", "text": attachment_note(attachment, model, why)}
