"""Chat messages: renders our messages for Chat Completions. The functions have no side effects. A message's form depends
only on earlier messages, so prompt caches stay valid."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from cantrip_acp.crystals.catalog.types import ModelInfo, attachment_note, takes
from cantrip_acp.crystals.openai.tool_names import CallIds, IdStyle, wire_args, wire_name
from cantrip_acp.crystals.text_tools import without_text_calls
from cantrip_acp.crystals.tool_schemas import ToolSchemas
from cantrip_acp.types.messages import Attachment, Message, ToolDefinition

AUDIO_FORMATS = {"audio/wav": "wav", "audio/x-wav": "wav", "audio/wave": "wav", "audio/mpeg": "mp3", "audio/mp3": "mp3"}
"""The two audio formats of OpenAI's protocol, by media type."""
IMAGE_FORMATS = ("image/png", "image/jpeg", "image/gif", "image/webp")


@dataclass(frozen=True, slots=True)
class Dialect:
    """The form of messages that one family of servers accepts.

    ``one_system``: the chat template may accept only one system message at the start, and then user and assistant
    messages in turn. So leading system messages are joined, a later one goes into the next user message, and an assistant
    message is put between two user messages. ``carry``: keys of ``Message.provider`` that are sent back in an assistant's
    message, if its ``family`` is this one. ``ids``: the form of the ids of calls.
    """

    family: str
    one_system: bool = False
    carry: tuple[str, ...] = ()
    ids: IdStyle = "nine"


OPENAI = Dialect("openai-chat")
LOCAL = Dialect("local", one_system=True, carry=("reasoning_content", "reasoning"))
OPENROUTER = Dialect("openrouter", carry=("reasoning_details",))

DIALECTS = {each.family: each for each in (OPENAI, LOCAL, OPENROUTER)}
"""The dialects by their family, which turns record (`contract.RequestParameters`)."""

FILLER = "filler"
"""The ``kind`` of a message that `arranged` puts in."""


def render(messages: Sequence[Message], info: ModelInfo, model: str, dialect: Dialect) -> list[dict[str, Any]]:
    """Render the ``messages`` of a request."""
    return _Rendering(info, model, dialect).of(arranged(without_text_calls(messages), dialect))


def arranged(messages: Sequence[Message], dialect: Dialect) -> list[Message]:
    """The messages in the order and the number in which servers with this dialect accept them (`Dialect.one_system`)."""
    if not dialect.one_system:
        return list(messages)
    out: list[Message] = []
    late: list[str] = []

    def add_user(message: Message) -> None:
        if out and out[-1].role == "user":
            # A cast ended without an answer. Many templates refuse two user messages in a row.
            out.append(Message("assistant", "Understood.", kind=FILLER))
        if late:
            text = "\n\n".join([*late, *([message.content] if message.content else [])])
            message = msgspec.structs.replace(message, content=text)
            late.clear()
        out.append(message)

    for message in messages:
        if message.role == "user":
            add_user(message)
        elif message.role != "system" or not out:
            out.append(message)
        elif len(out) == 1 and out[0].role == "system":
            joined = f"{out[0].content or ''}\n\n{message.content or ''}"
            out[0] = msgspec.structs.replace(out[0], content=joined)
        else:
            late.append(message.content or "")
    if late:
        add_user(Message("user"))
    return out


def attachment_text(attachment: Attachment, info: ModelInfo, model: str, *, only_pdf: bool) -> str | None:
    """The text to send instead of an attachment: a text document itself, or a note why the attachment is left out.

    None if it can be sent as an attachment. ``only_pdf``: PDF is the only accepted document type.
    """
    if attachment.kind == "document" and attachment.mime.startswith(("text/", "application/json")):
        try:
            text = base64.b64decode(attachment.data).decode()
        except ValueError:
            return attachment_note(attachment, model, "its text cannot be decoded")
        return f"[Document {attachment.title or attachment.uri or attachment.mime}]\n{text}"
    if not takes(attachment, info):
        return attachment_note(attachment, model)
    known = attachment.kind != "image" or attachment.mime in IMAGE_FORMATS
    if not known or (only_pdf and attachment.kind == "document" and attachment.mime != "application/pdf"):
        return attachment_note(attachment, model, f"{attachment.mime} cannot be sent to {model}")
    return None


def file_name(attachment: Attachment) -> str:
    """The file name of a document. It needs a suffix, from which the API reads the type."""
    name = attachment.title or (attachment.uri or "").rpartition("/")[2] or "document"
    ending = ".pdf" if attachment.mime == "application/pdf" else ""
    return name if name.lower().endswith(ending) else name + ending


def render_tools(tools: Sequence[ToolDefinition], schemas: ToolSchemas) -> list[dict[str, Any]]:
    """Render the ``tools`` of a request."""
    out = []
    for tool in tools:
        description, parameters = schemas.render(tool)
        function = {"name": wire_name(tool.name), "description": description, "parameters": parameters}
        out.append({"type": "function", "function": function})
    return out


class _Rendering:
    __slots__ = ("_dialect", "_ids", "_images", "_info", "_model", "_open_calls", "_out")

    def __init__(self, info: ModelInfo, model: str, dialect: Dialect) -> None:
        self._info = info
        self._model = model
        self._dialect = dialect
        self._out: list[dict[str, Any]] = []
        self._open_calls: set[str] = set()
        self._ids = CallIds(dialect.ids)
        self._images: list[dict[str, Any]] = []
        """Images of tool results. A result may contain only text, so the images come in a user message after it."""

    def of(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        for message in messages:
            if message.role != "tool":
                self._show_images()
            match message.role:
                case "system":
                    self._out.append({"role": "system", "content": message.content or ""})
                case "user":
                    self._user(message)
                case "assistant":
                    self._assistant(message)
                case "tool":
                    self._tool(message)
        self._show_images()
        return self._out

    def _user(self, message: Message) -> None:
        text = message.content or ""
        if self._dialect.one_system and self._out and self._out[-1]["role"] == "user":
            # Images of a tool's result came before it.
            self._out.append({"role": "assistant", "content": "Understood."})
        if not message.attachments:
            self._out.append({"role": "user", "content": text})
            return
        parts = [self._part(each) for each in message.attachments]
        if all(part["type"] == "text" for part in parts):
            self._out.append({"role": "user", "content": "\n\n".join([*(p["text"] for p in parts), text])})
            return
        if text:
            parts.append({"type": "text", "text": text})
        self._out.append({"role": "user", "content": parts})

    def _assistant(self, message: Message) -> None:
        wire: dict[str, Any] = {
            "role": "assistant",
            "content": message.content or ("" if not message.tool_calls else None),
        }
        ids = self._ids.of_calls(message.tool_calls)
        if message.tool_calls:
            wire["tool_calls"] = [
                {
                    "id": call_id,
                    "type": "function",
                    "function": {"name": wire_name(call.gate), "arguments": wire_args(call.args)},
                }
                for call_id, call in zip(ids, message.tool_calls, strict=True)
            ]
        data = message.provider
        if isinstance(data, dict) and data.get("family") == self._dialect.family:
            for key in self._dialect.carry:
                if data.get(key):
                    wire[key] = data[key]
        self._open_calls = {call.id for call in message.tool_calls}
        self._out.append(wire)

    def _tool(self, message: Message) -> None:
        call_id = message.tool_call_id or ""
        text = message.content or ""
        if call_id not in self._open_calls:
            # The API refuses a tool answer without its call, so send the text as a user message.
            self._show_images()
            text = f"[result of {message.name or 'a call'}]\n{text}"
            self._user(Message("user", text, attachments=message.attachments))
            return
        parts = [self._part(each) for each in message.attachments]
        text = "\n".join([text, *(part["text"] for part in parts if part["type"] == "text")])
        images = [part for part in parts if part["type"] != "text"]
        if images:
            self._images.append({"type": "text", "text": f"[Images of the result of {message.name or 'a call'}]"})
            self._images.extend(images)
        self._out.append({"role": "tool", "tool_call_id": self._ids.of_answer(call_id), "content": text})

    def _show_images(self) -> None:
        if self._images:
            self._out.append({"role": "user", "content": self._images})
            self._images = []

    def _part(self, attachment: Attachment) -> dict[str, Any]:
        written = attachment_text(attachment, self._info, self._model, only_pdf=True)
        if written is not None:
            return {"type": "text", "text": written}
        if attachment.kind == "image":
            return {
                "type": "image_url",
                "image_url": {"url": f"data:{attachment.mime};base64,{attachment.data}"},
            }
        if attachment.kind == "audio":
            form = AUDIO_FORMATS.get(attachment.mime)
            if form is None:
                why = "only WAV and MP3 can be sent to this model"
                return {"type": "text", "text": attachment_note(attachment, self._model, why)}
            return {"type": "input_audio", "input_audio": {"data": attachment.data, "format": form}}
        return {
            "type": "file",
            "file": {
                "filename": file_name(attachment),
                "file_data": f"data:{attachment.mime};base64,{attachment.data}",
            },
        }
