"""Messages in the shape of chat completions, which most trainers read: roles, content, tool calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec

from cantrip_acp.crystals.contract import Attachment, Message, ToolDefinition
from cantrip_acp.crystals.textcalls import words_beside
from cantrip_acp.crystals.wire_names import wire_name

Arguments = Literal["text", "data"]
"""How a call's arguments are written: the text that the crystal gave, or (Hugging Face's chat templates) the object in it."""

Note = Callable[[str], None]


def rendered(message: Message, *, arguments: Arguments, thinking: str | None, note: Note) -> dict[str, Any]:
    """One message. ``thinking`` names the key for what was thought; None leaves it out."""
    out: dict[str, Any] = {"role": message.role, "content": _content(message, note)}
    if message.role == "tool":
        out["tool_call_id"] = message.tool_call_id or ""
        if message.name:
            out["name"] = message.name
        return out
    if message.thinking:
        if thinking is not None:
            out[thinking] = message.thinking
        else:
            note("thinking is left out")
    if message.tool_calls:
        out["tool_calls"] = [
            {"id": c.id, "type": "function", "function": {"name": c.gate, "arguments": _arguments(c.args, arguments)}}
            for c in message.tool_calls
        ]
    elif out["content"] is None:
        out["content"] = ""
    return out


def tools(definitions: Sequence[ToolDefinition]) -> list[dict[str, Any]]:
    """Tool definitions."""
    return [
        {"type": "function", "function": {"name": t.name, "description": t.description, "parameters": t.parameters}}
        for t in definitions
    ]


def url_of(attachment: Attachment) -> str:
    """An attachment as a data URL."""
    return f"data:{attachment.mime};base64,{attachment.data}"


def text_of(message: Message) -> str | None:
    """The text of a message. Calls that a crystal wrote into it are left out: they stand in their own place."""
    if not message.text_calls:
        return message.content
    return words_beside(message.content or "", [(wire_name(call.gate), call.args) for call in message.tool_calls])


def _content(message: Message, note: Note) -> Any:
    if not message.attachments:
        return text_of(message)
    if message.role == "tool":
        # Chat completions take text alone here.
        note("an image of a tool's result is told by its name alone")
        return "\n".join([message.content or "", *(f"[image: {a.title or a.mime}]" for a in message.attachments)])
    parts: list[dict[str, Any]] = []
    for each in message.attachments:
        if each.kind == "image":
            parts.append({"type": "image_url", "image_url": {"url": url_of(each)}})
        else:
            note(f"an attachment ({each.kind}) is told by its name alone")
            parts.append({"type": "text", "text": f"[{each.kind}: {each.title or each.uri or each.mime}]"})
    if message.content:
        parts.append({"type": "text", "text": message.content})
    return parts


def _arguments(text: str, how: Arguments) -> Any:
    if how == "text":
        return text
    try:
        found = msgspec.json.decode(text) if text.strip() else {}
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return text
    return found if isinstance(found, dict) else text
