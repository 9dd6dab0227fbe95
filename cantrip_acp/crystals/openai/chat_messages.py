"""Chat messages: renders our messages for Chat Completions. It is pure and append-only: a message's form depends only
on earlier ones."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cantrip_acp.crystals.catalog.types import ModelInfo, attachment_note, takes
from cantrip_acp.crystals.contract import Attachment, Message, ToolDefinition
from cantrip_acp.crystals.openai.tool_names import wire_args, wire_id, wire_name

AUDIO_FORMATS = {"audio/wav": "wav", "audio/x-wav": "wav", "audio/wave": "wav", "audio/mpeg": "mp3", "audio/mp3": "mp3"}
"""The two formats that OpenAI's protocol takes."""
IMAGE_FORMATS = ("image/png", "image/jpeg", "image/gif", "image/webp")


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one family of servers takes messages.

    ``one_system``: a chat template may accept only one system message, the first, and then users and assistants in
    turn. So leading system messages are joined, later ones go into the next user message, and an assistant message is
    put between two user messages. ``carry``: keys of the provider's own data that go into an assistant's message,
    where ``family`` is this family.
    """

    family: str
    one_system: bool = False
    carry: tuple[str, ...] = ()


def render(messages: Sequence[Message], info: ModelInfo, model: str, dialect: Dialect) -> list[dict[str, Any]]:
    """The ``messages`` of a request."""
    return _Rendering(info, model, dialect).of(messages)


def as_words(attachment: Attachment, info: ModelInfo, model: str, *, only_pdf: bool) -> str | None:
    """The text in place of an attachment: the document itself if it is text, or the note why it is left out.

    None where it can be sent as an attachment. ``only_pdf``: PDF is the only accepted document type.
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
    """The file name of a document; the API reads its type from the suffix."""
    name = attachment.title or (attachment.uri or "").rpartition("/")[2] or "document"
    ending = ".pdf" if attachment.mime == "application/pdf" else ""
    return name if name.lower().endswith(ending) else name + ending


def render_tools(tools: Sequence[ToolDefinition]) -> list[dict[str, Any]]:
    """The ``tools`` of a request."""
    return [
        {
            "type": "function",
            "function": {
                "name": wire_name(tool.name),
                "description": tool.description,
                "parameters": dict(tool.parameters),
            },
        }
        for tool in tools
    ]


class _Rendering:
    __slots__ = ("_asked", "_dialect", "_images", "_info", "_late", "_model", "_out")

    def __init__(self, info: ModelInfo, model: str, dialect: Dialect) -> None:
        self._info = info
        self._model = model
        self._dialect = dialect
        self._out: list[dict[str, Any]] = []
        self._asked: set[str] = set()
        self._late: list[str] = []
        self._images: list[dict[str, Any]] = []
        """Images of tool results, which take only text. They follow in a user message."""

    def of(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        for message in messages:
            if message.role != "tool":
                self._show_images()
            match message.role:
                case "system":
                    self._system(message.content or "")
                case "user":
                    self._user(message)
                case "assistant":
                    self._assistant(message)
                case "tool":
                    self._tool(message)
        self._show_images()
        if self._late:
            self._user(Message("user"))
        return self._out

    def _system(self, text: str) -> None:
        out = self._out
        if not self._dialect.one_system or not out:
            out.append({"role": "system", "content": text})
        elif len(out) == 1 and out[0]["role"] == "system":
            out[0] = {"role": "system", "content": f"{out[0]['content']}\n\n{text}"}
        else:
            self._late.append(text)

    def _user(self, message: Message) -> None:
        text = "\n\n".join([*self._late, *([message.content] if message.content else [])])
        self._late = []
        if self._dialect.one_system and self._out and self._out[-1]["role"] == "user":
            # A cast ended without an answer; many templates refuse two user messages in a row.
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
        if message.tool_calls:
            wire["tool_calls"] = [
                {
                    "id": wire_id(call.id),
                    "type": "function",
                    "function": {"name": wire_name(call.gate), "arguments": wire_args(call.args)},
                }
                for call in message.tool_calls
            ]
        data = message.provider
        if isinstance(data, dict) and data.get("family") == self._dialect.family:
            for key in self._dialect.carry:
                if data.get(key):
                    wire[key] = data[key]
        self._asked = {call.id for call in message.tool_calls}
        self._out.append(wire)

    def _tool(self, message: Message) -> None:
        call_id = message.tool_call_id or ""
        text = message.content or ""
        if call_id not in self._asked:
            # An answer without its call is invalid here, so send its text as a user message.
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
        self._out.append({"role": "tool", "tool_call_id": wire_id(call_id), "content": text})

    def _show_images(self) -> None:
        if self._images:
            self._out.append({"role": "user", "content": self._images})
            self._images = []

    def _part(self, attachment: Attachment) -> dict[str, Any]:
        written = as_words(attachment, self._info, self._model, only_pdf=True)
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
