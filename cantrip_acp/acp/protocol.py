"""ACP message types: the messages of protocol version 1 that this agent reads and writes, with the schema's field names.

Structs for incoming messages check the required fields. A wrong optional value counts as absent if the schema says so
(``x-deserialize-default-on-error``). Structs for outgoing messages omit fields that are not set.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import field

StopReason = Literal["end_turn", "max_tokens", "max_turn_requests", "refusal", "cancelled"]
ToolStatus = Literal["pending", "in_progress", "completed", "failed"]

REQUEST_EDGES = "ai.prime.acp/semantic-edges-v1"
"""A key of ``_meta``. A client that sends it gets the ids of model requests (``X-ACP-Model-Request-ID``), and which
request led to which."""

# --- in: requests and notifications of the client --------------------------------------------------------------------


class Incoming(msgspec.Struct, rename="camel", kw_only=True):
    """Parameters of a request or notification; ``meta`` is the value of ``_meta``."""

    meta: Any = field(default=None, name="_meta")


class SessionMeta(msgspec.Struct, rename="camel"):
    """``_meta`` of a request that opens a session."""

    system_prompt: str | AppendedPrompt | None = None
    """The client's system prompt: a text, which replaces the recipe's, or one that is appended to it."""
    request_edges: Any = field(default=None, name=REQUEST_EDGES)


class AppendedPrompt(msgspec.Struct):
    append: str


class ForkMeta(msgspec.Struct, rename="camel"):
    """``_meta.cantrip`` of ``session/fork``: the turn by its id or number, and what to do with it (`sessions.agent`)."""

    turn: str | int | None = None
    resume: bool = False
    restore_files: bool = False


class PromptMeta(msgspec.Struct, rename="camel"):
    """``_meta.cantrip`` of ``session/prompt``. An invalid id is ignored."""

    prompt_id: Any = None


class SteeringMeta(msgspec.Struct, rename="camel"):
    """``_meta.steering`` of ``_session/steering``: what happens if no prompt runs. None starts one."""

    idle_behavior: Literal["promptRequired"] | None = None


class AuthenticateMeta(msgspec.Struct):
    """``_meta.cantrip`` of ``authenticate``: the local model that becomes the default one (``_cantrip/models/local``)."""

    crystal: str


class Initialize(Incoming, kw_only=True):
    protocol_version: Any = None
    client_capabilities: Any = None
    client_info: Any = None
    info: Any = None
    capabilities: Any = None


class Authenticate(Incoming, kw_only=True):
    method_id: str


class ServedModels(Incoming, kw_only=True):
    """Parameters of ``_cantrip/sign_in/models``: a provider, or an address for the provider ``local``, with its key."""

    provider: str
    key: str = ""
    base_url: str = ""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.provider!r})"


class SignIn(ServedModels, kw_only=True):
    """Parameters of ``_cantrip/sign_in``. ``model`` may be empty if the provider has a default model."""

    model: str = ""


class NameValue(Incoming, kw_only=True):
    """An environment variable, or a header."""

    name: str
    value: str


class Logout(Incoming, kw_only=True):
    """Parameters of ``logout``. There are none."""


class McpServer(Incoming, kw_only=True):
    """An MCP server that the client wants the agent to use: ``command`` for stdio, ``url`` for http and sse."""

    name: str
    type: str = "stdio"
    command: str | None = None
    args: list[str] | None = None
    env: list[NameValue] | None = None
    url: str | None = None
    headers: list[NameValue] | None = None

    def __repr__(self) -> str:
        # Arguments, variables, headers and addresses can hold keys.
        return f"McpServer(name={self.name!r}, type={self.type!r})"


class FileRequest(Incoming, kw_only=True, rename="camel"):
    """Parameters of the methods ``_cantrip/changes``, ``undo``, ``redo``, ``restore`` and ``keep``."""

    session_id: str
    path: str | None = None
    hunk: int | None = None
    version: str | None = None
    turn: str | int | None = None
    since: str | int | None = None
    force: bool = False
    dry_run: bool = False
    ask: bool = True
    texts: bool = False


class ServiceParams(Incoming, kw_only=True):
    """Parameters of ``_cantrip/services/output`` and ``stop``. ``service`` is an id of ``_cantrip/services/list``."""

    session_id: str
    service: str


class McpRestart(Incoming, kw_only=True):
    """Parameters of ``_cantrip/mcp/restart``. ``server`` is the place of a server in ``_cantrip/mcp/list``, from 0."""

    session_id: str
    server: int


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


class SystemPrompt(Incoming, kw_only=True):
    """The client's own instructions for a session (unstable): ``mode`` is append or override."""

    mode: str
    content: list[ContentBlock]


class NewSession(Incoming, kw_only=True):
    cwd: str
    mcp_servers: list[McpServer] | None = None
    additional_directories: list[str] | None = None
    system_prompt: SystemPrompt | None = None


class LoadSession(Incoming, kw_only=True):
    """Parameters of ``session/load``, ``session/resume`` and ``session/fork`` (which is unstable)."""

    session_id: str
    cwd: str
    mcp_servers: list[McpServer] | None = None
    additional_directories: list[str] | None = None
    system_prompt: SystemPrompt | None = None


class ListSessions(Incoming, kw_only=True):
    cwd: str | None = None
    cursor: str | None = None


class SessionParams(Incoming, kw_only=True):
    """Parameters of ``session/close``, ``session/delete`` and ``_cantrip/mcp/list``."""

    session_id: str


class SetMode(Incoming, kw_only=True):
    session_id: str
    mode_id: str


class NoParams(Incoming, kw_only=True):
    """Parameters of a method that has none."""


class SetProvider(Incoming, kw_only=True):
    """Parameters of ``providers/set`` (unstable)."""

    provider_id: str
    api_type: str
    base_url: str
    headers: dict[str, str] | None = None

    def __repr__(self) -> str:
        # Headers and addresses can hold keys.
        return f"SetProvider(provider_id={self.provider_id!r})"


class DisableProvider(Incoming, kw_only=True):
    """Parameters of ``providers/disable`` (unstable)."""

    provider_id: str


class SetTitle(Incoming, kw_only=True):
    """Parameters of ``session/set_title`` (unstable)."""

    session_id: str
    title: str


class SetModel(Incoming, kw_only=True):
    """Parameters of ``session/set_model``. Some clients use this older method instead of the config option."""

    session_id: str
    model_id: str


class SetConfigOption(Incoming, kw_only=True):
    """Parameters of ``session/set_config_option``. ``value`` is a string, or a boolean if ``type`` says so."""

    session_id: str
    config_id: str
    value: str | bool
    type: str | None = None


class Prompt(Incoming, kw_only=True):
    session_id: str
    prompt: list[ContentBlock]


class Cancel(Incoming, kw_only=True):
    session_id: str


class CancelToolCall(Incoming, kw_only=True):
    """Parameters of ``_cantrip/tool_call/cancel``, and of ``tool_call/cancel`` of version 2."""

    session_id: str
    tool_call_id: str


class QueueEntry(Incoming, kw_only=True):
    """Parameters of ``_cantrip/queue/remove`` and ``_cantrip/queue/send_now``."""

    session_id: str
    id: str


class QueueEdit(Incoming, kw_only=True):
    """Parameters of ``_cantrip/queue/edit``: ``prompt`` replaces the content of the queued prompt."""

    session_id: str
    id: str
    prompt: list[ContentBlock]


# --- out: results ----------------------------------------------------------------------------------------------------


class SessionMode(msgspec.Struct, omit_defaults=True):
    id: str
    name: str
    description: str | None = None


class ModeState(msgspec.Struct, rename="camel"):
    current_mode_id: str
    available_modes: list[SessionMode]


class OptionValue(msgspec.Struct, omit_defaults=True):
    value: str
    name: str
    description: str | None = None


class ConfigOption(msgspec.Struct, rename="camel", tag_field="type", tag="select", omit_defaults=True):
    """A select option: one value of several."""

    id: str
    name: str
    current_value: str
    options: list[OptionValue]
    description: str | None = None
    category: str | None = None
    meta: dict[str, Any] | None = field(default=None, name="_meta")


class BooleanOption(msgspec.Struct, rename="camel", tag_field="type", tag="boolean", omit_defaults=True):
    """An option that is on or off. It is sent only to clients with the ability `boolean_options`."""

    id: str
    name: str
    current_value: bool
    description: str | None = None
    category: str | None = None


AnyOption = ConfigOption | BooleanOption


class Model(msgspec.Struct, rename="camel", omit_defaults=True):
    model_id: str
    name: str
    description: str | None = None


class ModelState(msgspec.Struct, rename="camel"):
    """The available models, for clients that do not read the config options."""

    available_models: list[Model]
    current_model_id: str


class SessionState(msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True):
    """The state of a session in a reply. ``session_id`` is set if the client does not know it yet."""

    session_id: str | None = None
    modes: ModeState | None = None
    config_options: list[AnyOption] | None = None
    models: ModelState | None = None
    meta: dict[str, Any] | None = field(default=None, name="_meta")


class SessionInfo(msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True):
    session_id: str
    cwd: str
    additional_directories: list[str] | None = None
    title: str | None = None
    updated_at: str | None = None
    meta: dict[str, Any] | None = field(default=None, name="_meta")


class SessionList(msgspec.Struct, rename="camel", omit_defaults=True):
    sessions: list[SessionInfo]
    next_cursor: str | None = None


class QueuedPrompt(msgspec.Struct, rename="camel", omit_defaults=True):
    """A prompt that waits for the running one. ``sending``: the entity gets it before its next query."""

    id: str
    text: str
    sending: bool = False


class Queue(msgspec.Struct, rename="camel"):
    """The queue of a session, first prompt first."""

    session_id: str
    prompts: list[QueuedPrompt]


class ProviderConfig(msgspec.Struct, rename="camel"):
    api_type: str
    base_url: str


class Provider(msgspec.Struct, rename="camel"):
    """A provider of models. ``current`` is None if it cannot be used: it is disabled, or has no key."""

    provider_id: str
    supported: list[str]
    required: bool
    current: ProviderConfig | None


class Providers(msgspec.Struct):
    providers: list[Provider]


class StoredTitle(msgspec.Struct):
    """The result of ``session/set_title``: the title as it is stored."""

    title: str


class ConfigOptions(msgspec.Struct, rename="camel"):
    config_options: list[AnyOption]


class PromptResult(msgspec.Struct, rename="camel", omit_defaults=True):
    stop_reason: StopReason
    meta: dict[str, Any] | None = field(default=None, name="_meta")


# --- out: updates ----------------------------------------------------------------------------------------------------


class TextContent(msgspec.Struct, tag_field="type", tag="text"):
    text: str


class ImageContent(msgspec.Struct, tag_field="type", tag="image", rename="camel", omit_defaults=True):
    data: str
    mime_type: str
    uri: str | None = None


class AudioContent(msgspec.Struct, tag_field="type", tag="audio", rename="camel"):
    data: str
    mime_type: str


class LinkContent(msgspec.Struct, tag_field="type", tag="resource_link"):
    name: str
    uri: str


class Content(msgspec.Struct, tag_field="type", tag="content"):
    """Text or an image that a tool call produced."""

    content: TextContent | ImageContent


class Diff(msgspec.Struct, tag_field="type", tag="diff", rename="camel"):
    """A changed file. ``old_text`` None means that the file is new."""

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


class UserMessageChunk(Update, tag="user_message_chunk"):
    content: TextContent | ImageContent | AudioContent | LinkContent
    message_id: str | None = None
    meta: dict[str, Any] | None = field(default=None, name="_meta")


class AgentMessageChunk(Update, tag="agent_message_chunk"):
    content: TextContent
    message_id: str | None = None
    meta: dict[str, Any] | None = field(default=None, name="_meta")


class AgentThoughtChunk(Update, tag="agent_thought_chunk"):
    content: TextContent
    message_id: str | None = None
    meta: dict[str, Any] | None = field(default=None, name="_meta")


class ToolCall(Update, tag="tool_call", kw_only=True):
    tool_call_id: str
    title: str
    name: str | None = None
    kind: str | None = None
    status: ToolStatus | None = None
    content: list[ToolContent] | None = None
    locations: list[Location] | None = None
    raw_input: Any = None
    raw_output: Any = None
    meta: dict[str, Any] | None = field(default=None, name="_meta")


class ToolCallUpdate(Update, tag="tool_call_update", kw_only=True):
    tool_call_id: str
    title: str | None = None
    kind: str | None = None
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
    """The whole plan. It replaces the plan of an earlier update."""

    entries: list[PlanEntry]


class PlanItems(msgspec.Struct, rename="camel", tag_field="type", tag="items"):
    plan_id: str
    entries: list[PlanEntry]


class PlanUpdate(Update, tag="plan_update"):
    """The whole plan with this id, in place of `Plan` for clients with the ability `plan_updates` (unstable)."""

    plan: PlanItems


class Cost(msgspec.Struct):
    amount: float
    currency: str = "USD"


class UsageUpdate(Update, tag="usage_update"):
    used: int
    size: int
    cost: Cost | None = None


class CurrentMode(Update, tag="current_mode_update"):
    current_mode_id: str


class ConfigOptionsChanged(Update, tag="config_option_update"):
    config_options: list[AnyOption]


class SessionInfoChanged(Update, tag="session_info_update"):
    title: str | None = None
    updated_at: str | None = None
    meta: dict[str, Any] | None = field(default=None, name="_meta")


class CommandInput(msgspec.Struct):
    hint: str


class AvailableCommand(msgspec.Struct, omit_defaults=True):
    name: str
    description: str
    input: CommandInput | None = None


class AvailableCommands(Update, tag="available_commands_update"):
    available_commands: list[AvailableCommand]


class CompactionUpdate(Update, tag="compaction_update"):
    """Earlier turns were folded. It is sent only to clients with the ability `compaction`."""

    compaction_id: str
    status: Literal["in_progress", "completed", "failed", "cancelled"]
    summary: list[TextContent] | None = None


class CompactionSummaryChunk(Update, tag="compaction_summary_chunk"):
    """A part of the summary that a summarizer is writing. Only for clients with the ability `compaction`."""

    compaction_id: str
    content: TextContent


class Notice(Update, tag="notice"):
    severity: Literal["info", "warning", "error"]
    title: str
    description: str | None = None
    meta: dict[str, Any] | None = field(default=None, name="_meta")


class WorkState(msgspec.Struct, rename="camel", omit_defaults=True):
    """Whether a session or a child works: running, idle (with the reason) or requires_action."""

    state: Literal["running", "idle", "requires_action"]
    stop_reason: str | None = None


class SubagentUpdate(Update, tag="subagent_update", kw_only=True):
    """A child as a session of its own, announced on the session of its parent. Only for the ability `subagents`."""

    session_id: str
    title: str | None = None
    state: WorkState | None = None


class SessionMessage(Update, tag="session_message", kw_only=True):
    """A message between two sessions, in the transcript of one of them. Only for the ability `subagents`."""

    message_id: str
    sender_session_id: str
    recipient_session_id: str
    sender_message_id: str | None = None
    recipient_message_id: str | None = None
    content: list[TextContent] | None = None


class OfChild(Update, tag="_of_child"):
    """An update for the session of a child. It is only a wrapper: `Session.send_now` sends its content."""

    child_id: str
    update: Update


class SessionNotification(msgspec.Struct, rename="camel"):
    session_id: str
    update: Update


# --- out: requests to the client -------------------------------------------------------------------------------------


class PermissionToolCall(msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True):
    """The tool call of a permission request, with all known details (ACP, ToolCallUpdate)."""

    tool_call_id: str
    title: str
    kind: str | None = None
    name: str | None = None
    status: ToolStatus | None = None
    content: list[ToolContent] | None = None
    locations: list[Location] | None = None
    raw_input: Any = None


class PermissionOption(msgspec.Struct, rename="camel"):
    option_id: str
    name: str
    kind: Literal["allow_once", "allow_always", "reject_once", "reject_always"]


class RequestPermission(msgspec.Struct, rename="camel"):
    session_id: str
    tool_call: PermissionToolCall
    options: list[PermissionOption]


class PermissionOutcome(msgspec.Struct, rename="camel"):
    outcome: str
    option_id: str | None = None
    meta: Any = field(default=None, name="_meta")

    def note(self, name: str) -> str:
        """What the user wrote next to the choice: the text ``_meta.cantrip.NAME``. Empty if there is none."""
        found = _mapping(_mapping(self.meta).get("cantrip")).get(name)
        return found.strip()[:MAX_NOTE] if isinstance(found, str) else ""


class PermissionAnswer(msgspec.Struct):
    outcome: PermissionOutcome


MAX_NOTE = 100_000
"""Characters of a reason or of an edited plan. The rest is cut."""


# --- what a client can do --------------------------------------------------------------------------------------------


class ClientAbilities(msgspec.Struct, frozen=True):
    """The client's capabilities that the agent uses. An absent value or a value of the wrong type counts as false."""

    notices: bool = False
    display_terminal: bool = False
    request_ids: bool = False
    reads_files: bool = False
    writes_files: bool = False
    terminals: bool = False
    compaction: bool = False
    forms: bool = False
    urls: bool = False
    auth_terminal: bool = False
    queues_prompts: bool = False
    """A prompt during another one is queued, not refused. The client gets the queue when it changes."""
    boolean_options: bool = False
    plan_updates: bool = False
    subagents: bool = False
    output_styles: bool = False
    """A command's result has the colours of its ``rawOutput`` in ``_meta.cantrip.styles``."""
    answer_notes: bool = False
    """Whether the client sends the user's remark on an answer in ``_meta.cantrip`` of the answer, so that no option asks for
    it in a form."""
    turns: bool = False
    """Whether the client is told of each turn when it ends, in ``_meta.cantrip.turn`` of a ``session_info_update``, and of the
    intent that follows from a decision on a plan."""
    joins_messages: bool = True
    """Whether the client may show messages with different ids as one text. Not in version 2, where the id is required."""

    @classmethod
    def of(cls, capabilities: Any) -> ClientAbilities:
        """Read the abilities from ``clientCapabilities``. ``_meta.terminal_output`` is a convention of several editors."""
        values = _mapping(capabilities)
        session, meta, files, asks = (_mapping(values.get(name)) for name in ("session", "_meta", "fs", "elicitation"))
        ours = _mapping(meta.get("cantrip"))
        return cls(
            notices=isinstance(session.get("notices"), dict),
            display_terminal=meta.get("terminal_output") is True,
            request_ids=bool(meta.get(REQUEST_EDGES)),
            reads_files=files.get("readTextFile") is True,
            writes_files=files.get("writeTextFile") is True,
            terminals=values.get("terminal") is True,
            compaction=isinstance(session.get("compaction"), dict),
            queues_prompts=asks_for_queue(meta),
            forms=isinstance(asks.get("form"), dict),
            urls=isinstance(asks.get("url"), dict),
            auth_terminal=_mapping(values.get("auth")).get("terminal") is True or meta.get("terminal-auth") is True,
            boolean_options=isinstance(_mapping(session.get("configOptions")).get("boolean"), dict),
            plan_updates=isinstance(values.get("plan"), dict),
            subagents=isinstance(values.get("subagents"), dict),
            output_styles=ours.get("outputStyles") is True,
            answer_notes=ours.get("answerNotes") is True,
            turns=ours.get("turns") is True,
        )


def asks_for_queue(meta: Any) -> bool:
    """Whether a ``_meta`` of the client's capabilities or of a prompt asks for queueing of prompts. ``claudeCode`` is the
    name under which other agents advertise the same feature."""
    names = _mapping(meta)
    return any(_mapping(names.get(name)).get("promptQueueing") is True for name in ("cantrip", "claudeCode"))


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
