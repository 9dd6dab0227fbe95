"""The messages of ACP version 1 that this agent reads and writes, named as in the protocol's JSON Schema.

Structs for what comes in check what the protocol requires and are lenient where its schema says that a wrong optional
value counts as absent (``x-deserialize-default-on-error``). Structs for what goes out leave out what is not set.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import field

StopReason = Literal["end_turn", "max_tokens", "max_turn_requests", "refusal", "cancelled"]
ToolStatus = Literal["pending", "in_progress", "completed", "failed"]

# --- in: what the client asks ----------------------------------------------------------------------------------------


class Incoming(msgspec.Struct, rename="camel", kw_only=True):
    """Parameters of a request or notification; ``meta`` is whatever stood under ``_meta``."""

    meta: Any = field(default=None, name="_meta")


class Initialize(Incoming, kw_only=True):
    protocol_version: Any = None
    client_capabilities: Any = None
    client_info: Any = None


class Authenticate(Incoming, kw_only=True):
    method_id: str


class McpServer(Incoming, kw_only=True):
    """A server that the client would like to be used; ``command`` for stdio, ``url`` for http and sse."""

    name: str
    type: str = "stdio"
    command: str | None = None
    url: str | None = None


class NewSession(Incoming, kw_only=True):
    cwd: str
    mcp_servers: list[McpServer] | None = None
    additional_directories: list[str] | None = None


class Text(Incoming, kw_only=True, tag_field="type", tag="text"):
    text: str


class Image(Incoming, kw_only=True, tag_field="type", tag="image"):
    data: str
    mime_type: str
    uri: Any = None


class Audio(Incoming, kw_only=True, tag_field="type", tag="audio"):
    data: str
    mime_type: str


class ResourceLink(Incoming, kw_only=True, tag_field="type", tag="resource_link"):
    name: str
    uri: str
    title: Any = None
    description: Any = None
    mime_type: Any = None
    size: Any = None


class ResourceContents(Incoming, kw_only=True):
    """The contents of an embedded resource: ``text``, or ``blob`` in base64."""

    uri: str
    text: str | None = None
    blob: str | None = None
    mime_type: Any = None


class Resource(Incoming, kw_only=True, tag_field="type", tag="resource"):
    resource: ResourceContents


ContentBlock = Text | Image | Audio | ResourceLink | Resource


class Prompt(Incoming, kw_only=True):
    session_id: str
    prompt: list[ContentBlock]


class Cancel(Incoming, kw_only=True):
    session_id: str


# --- out: results ----------------------------------------------------------------------------------------------------


class NewSessionResult(msgspec.Struct, rename="camel", omit_defaults=True):
    session_id: str
    meta: dict[str, Any] | None = field(default=None, name="_meta")


class PromptResult(msgspec.Struct, rename="camel", omit_defaults=True):
    stop_reason: StopReason
    meta: dict[str, Any] | None = field(default=None, name="_meta")


# --- out: updates ----------------------------------------------------------------------------------------------------


class TextContent(msgspec.Struct, tag_field="type", tag="text"):
    text: str


class Content(msgspec.Struct, tag_field="type", tag="content"):
    """Text that a tool call produced."""

    content: TextContent


class Diff(msgspec.Struct, tag_field="type", tag="diff", rename="camel"):
    """A changed file; ``old_text`` None means that the file is new."""

    path: str
    old_text: str | None
    new_text: str


class Terminal(msgspec.Struct, tag_field="type", tag="terminal", rename="camel"):
    terminal_id: str


ToolContent = Content | Diff | Terminal


class Location(msgspec.Struct, omit_defaults=True):
    path: str
    line: int | None = None


class Update(msgspec.Struct, tag_field="sessionUpdate", rename="camel", omit_defaults=True):
    """One update of a session."""


class AgentMessageChunk(Update, tag="agent_message_chunk"):
    content: TextContent
    message_id: str | None = None


class AgentThoughtChunk(Update, tag="agent_thought_chunk"):
    content: TextContent
    message_id: str | None = None


class ToolCall(Update, tag="tool_call", kw_only=True):
    tool_call_id: str
    title: str
    name: str | None = None
    kind: str | None = None
    status: ToolStatus | None = None
    content: list[ToolContent] | None = None
    locations: list[Location] | None = None
    raw_input: Any = None
    meta: dict[str, Any] | None = field(default=None, name="_meta")


class ToolCallUpdate(Update, tag="tool_call_update", kw_only=True):
    tool_call_id: str
    title: str | None = None
    status: ToolStatus | None = None
    content: list[ToolContent] | None = None
    locations: list[Location] | None = None
    raw_output: Any = None
    meta: dict[str, Any] | None = field(default=None, name="_meta")


class PlanEntry(msgspec.Struct):
    content: str
    priority: str
    status: str


class Plan(Update, tag="plan"):
    """The whole plan, which replaces the one before."""

    entries: list[PlanEntry]


class Cost(msgspec.Struct):
    amount: float
    currency: str = "USD"


class UsageUpdate(Update, tag="usage_update"):
    used: int
    size: int
    cost: Cost | None = None


class Notice(Update, tag="notice"):
    severity: Literal["info", "warning", "error"]
    title: str
    description: str | None = None


class SessionNotification(msgspec.Struct, rename="camel"):
    session_id: str
    update: Update


# --- what a client can do --------------------------------------------------------------------------------------------


class ClientAbilities(msgspec.Struct, frozen=True):
    """The client's capabilities that matter here; whatever is absent or of a wrong type is not there."""

    notices: bool = False
    display_terminal: bool = False

    @classmethod
    def of(cls, capabilities: Any) -> ClientAbilities:
        """Read from ``clientCapabilities``. ``_meta.terminal_output`` is a convention of several editors."""
        session = _mapping(_mapping(capabilities).get("session"))
        meta = _mapping(_mapping(capabilities).get("_meta"))
        return cls(
            notices=isinstance(session.get("notices"), dict), display_terminal=meta.get("terminal_output") is True
        )


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
