"""OpenAI crystal: queries OpenAI's models through the Responses API (messages, tools and stream), or Chat Completions.

It uses the Responses API at OpenAI's own address. Elsewhere, or with ``api: chat``, it uses Chat Completions.

Options: ``api`` (responses | chat), ``effort`` (none, minimal, low, medium, high, xhigh, max) and ``summary`` (of the
reasoning: auto, concise, detailed, none). The Responses API has no stop sequences, so a call with stop sequences uses Chat
Completions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from cantrip_acp.crystals import provider_errors
from cantrip_acp.crystals.catalog import unsupported_params
from cantrip_acp.crystals.catalog.types import ModelInfo, attachment_note, priced
from cantrip_acp.crystals.contract import Delta, Emit, Query, Response, tool_mode
from cantrip_acp.crystals.endpoint import Endpoint, EndpointCrystal, check_window
from cantrip_acp.crystals.logprobs import TokenCollector
from cantrip_acp.crystals.mended_answers import NO_NAME
from cantrip_acp.crystals.openai.chat_completions import ChatCrystal, cache_key, require_content
from cantrip_acp.crystals.openai.chat_messages import attachment_text, file_name
from cantrip_acp.crystals.openai.chat_stream import usage_of
from cantrip_acp.crystals.openai.client import OpenAISdk, address, is_own
from cantrip_acp.crystals.openai.tool_names import make_tool_calls, original_names, wire_args, wire_id, wire_name
from cantrip_acp.crystals.refused_media import named_part
from cantrip_acp.crystals.text_tools import without_text_calls
from cantrip_acp.crystals.tool_schemas import ToolSchemas
from cantrip_acp.types.errors import CrystalError, DefinitionError
from cantrip_acp.types.messages import Attachment, Message, RequestParameters, SampledTokens, ToolDefinition
from cantrip_acp.types.usage import UNKNOWN_USAGE

PATH = "/responses"
APIS = ("responses", "chat")

_NEEDS_RESPONSES = re.compile(r"(?:^|/)(?:gpt-(?:5\.[4-9]|[6-9])|[\w.-]*codex|[\w.-]+-pro\b)", re.IGNORECASE)
"""Models that accept function tools only through the Responses API. Chat Completions supports some of them since 2026-11,
but not fully, so the Responses API is used for all. Checked 2026-11: openai/openai-openapi issue 541,
danny-avila/LibreChat issue 14355."""
_ONLY_RESPONSES = re.compile(r"v1/responses|responses API|responses endpoint", re.IGNORECASE)

_LOGPROBS = "message.output_text.logprobs"
_FOREIGN_REASONING = re.compile(r"encrypted[ _]content", re.IGNORECASE)
"""Matches the error for reasoning that this key cannot decrypt, for example of another organization."""


class OpenAICrystal(EndpointCrystal):
    """An OpenAI model, through one of the two APIs.

    The option ``api`` chooses the API. Without it, the Responses API is used at OpenAI's own address, and elsewhere for
    models that accept tools only there. In all other cases, and if calls are written as text, it is Chat Completions. If a
    server refuses a request and names the other API, all later queries use that API.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        api = endpoint.options.get("api")
        if api is not None and api not in APIS:
            raise DefinitionError(f"api is {api!r}; it is one of {', '.join(APIS)}", where="crystal.api")
        where = address(endpoint)
        self._chosen = api is not None
        self._needs_responses = _NEEDS_RESPONSES.search(endpoint.model) is not None
        by_text = endpoint.options.get("tools") == "text"
        self.api: str = api or ("responses" if (is_own(where) or self._needs_responses) and not by_text else "chat")
        super().__init__(endpoint)
        self.name = endpoint.provider
        self._chat = ChatCrystal(endpoint, where)
        self.text_calls = self.api == "chat" and self._chat.text_calls
        self._responses = ResponsesCrystal(endpoint, where)

    def __repr__(self) -> str:
        return f"OpenAICrystal({self.endpoint.provider}:{self.model}, {self.api})"

    def prepare(self) -> None:
        """Import the SDK. Blocks. May be called in any thread."""
        self._chat.prepare()

    async def aclose(self) -> None:
        """Close the connections of the running event loop."""
        await self._chat.aclose()
        await self._responses.aclose()

    async def query(self, query: Query, emit: Emit) -> Response:
        """Answer a query (CRYSTAL-1..5). Raises `CrystalError`."""
        # The Responses API has no stop sequences.
        stops = query.params.stop and not (self._needs_responses and query.tools)
        by_chat = self.api == "chat" or bool(stops)
        try:
            return await (self._chat if by_chat else self._responses).query(query, emit)
        except CrystalError as error:
            if self._chosen or not _names_the_other_api(error, by_chat=by_chat):
                raise
        self.api = "responses" if by_chat else "chat"
        return await (self._responses if by_chat else self._chat).query(query, emit)


def _names_the_other_api(error: CrystalError, *, by_chat: bool) -> bool:
    """Whether an error says that this model, or this server, needs the other API."""
    if by_chat:
        return error.status in (400, 404, 405, 422) and _ONLY_RESPONSES.search(str(error)) is not None
    # The path is missing at this server, not the model.
    return error.status in (404, 405, 501) and "model" not in str(error).partition("): ")[2].lower()


class ResponsesCrystal(EndpointCrystal):
    """A model that is served through the Responses API. ``store`` is off, so the server keeps no state (CRYSTAL-1)."""

    def __init__(self, endpoint: Endpoint, base_url: str) -> None:
        self.endpoint = endpoint
        self.sdk = OpenAISdk(endpoint, base_url)
        self._dropped: set[str] = set()
        self._effort = unsupported_params.EffortFallback(self.sdk.who)
        self._choice = unsupported_params.ForcedCalls(self.sdk.who, endpoint, self.sdk.base_url)
        self._schemas = ToolSchemas(self.sdk.who)
        self._refused_reasoning = unsupported_params.RefusedReplay(FAMILY)
        self._no_logprobs = False

    async def aclose(self) -> None:
        await self.sdk.aclose()

    async def query(self, query: Query, emit: Emit) -> Response:
        """Answer a query (CRYSTAL-1..5). Raises `CrystalError`."""
        check_window(self.endpoint, query)
        while True:
            messages = self._refused_reasoning.without(query.messages)
            body = unsupported_params.drop_parameters(
                self.body(msgspec.structs.replace(query, messages=messages)), self._dropped
            )
            body = self._effort.applied(body)
            try:
                answer = await self._answer(body, query, emit)
            except CrystalError as error:
                error.part = named_part(body, error)
                name = unsupported_params.unsupported_parameter(error, body)
                if _LOGPROBS in body.get("include", ()) and error.status == 400 and "logprob" in str(error):
                    # Reasoning models report no log-probabilities. Leave out only this field of ``include``.
                    self._no_logprobs = True
                elif name is not None and name not in self._dropped:
                    self._dropped.add(name)
                elif (
                    self._choice.learn(error, sent=body.get("tool_choice") == "required")
                    or self._effort.learn(error, body)
                    or self._schemas.learn(error, query.tools)
                ):
                    pass
                elif (
                    error.status != 400
                    or not _FOREIGN_REASONING.search(str(error))
                    or not self._refused_reasoning.refuse(messages)
                ):
                    raise
            else:
                asked = RequestParameters(
                    body.get("temperature"),
                    body.get("top_p"),
                    max_tokens=body.get("max_output_tokens"),
                    tool_mode=tool_mode(query),
                    weights=self.endpoint.weights,
                )
                return self._response(answer, query, asked)

    def body(self, query: Query) -> dict[str, Any]:
        """Build the JSON body of the request."""
        endpoint, params = self.endpoint, query.params
        body: dict[str, Any] = {
            "model": endpoint.model,
            "input": render_input(query.messages, endpoint.info, endpoint.model),
            "stream": True,
            "store": False,
        }
        reasoning = self._reasoning()
        if reasoning:
            body["reasoning"] = reasoning
        if endpoint.info.reasoning or reasoning or not endpoint.info.known:
            body["include"] = ["reasoning.encrypted_content"]
        if endpoint.options.get("verbosity"):
            body["text"] = {"verbosity": endpoint.options["verbosity"]}
        if endpoint.options.get("logprobs") and not self._no_logprobs:
            body["include"] = [*body.get("include", ()), _LOGPROBS]
        if query.tools:
            body["tools"] = render_tools(query.tools, self._schemas)
            if query.tool_choice == "none" or (query.tool_choice == "required" and self._choice.taken):
                body["tool_choice"] = query.tool_choice
        if endpoint.info.sampling:
            if params.temperature is not None:
                body["temperature"] = params.temperature
            if params.top_p is not None:
                body["top_p"] = params.top_p
        if params.max_tokens is not None:
            body["max_output_tokens"] = params.max_tokens
        if query.entity_id:
            body["prompt_cache_key"] = cache_key(query)
        return body

    def _reasoning(self) -> dict[str, Any]:
        options = self.endpoint.options
        reasoning: dict[str, Any] = {}
        if options.get("effort"):
            reasoning["effort"] = options["effort"]
        summary = options.get("summary", "auto" if self.endpoint.info.reasoning else None)
        if summary and summary != "none":
            reasoning["summary"] = summary
        return reasoning

    async def _answer(self, body: Mapping[str, Any], query: Query, emit: Emit) -> ResponsesAnswer:
        answer = ResponsesAnswer()
        async with self.sdk.events(PATH, body, query) as events:
            whole = await events.whole()
            if whole is None:
                async for event in events:
                    for delta in answer.feed(event):
                        await emit(delta)
                    if answer.error is not None or answer.final is not None:
                        break
                while answer.final is not None and await events.afterwards() is not None:
                    pass
            elif isinstance(whole, dict):
                for delta in answer.add_response(whole):
                    await emit(delta)
        if answer.usage is not None:
            query.meter.report(priced(usage_of(answer.usage), self.endpoint.info.price), complete=True)
        if answer.error is not None:
            raise self.sdk.refused_midway(answer.error)
        if answer.final is None:
            if whole is not None:
                raise provider_errors.invalid_response(self.sdk.who, f"JSON that is not a response: {whole!r}"[:200])
            raise provider_errors.connection_error(
                self.sdk.who, EOFError("it ended without response.completed"), sent=True
            )
        return answer

    def _response(self, answer: ResponsesAnswer, query: Query, asked: RequestParameters) -> Response:
        content = answer.content()
        given = answer.calls()
        calls = make_tool_calls(given, original_names(query.tools))
        raw = answer.usage
        usage = UNKNOWN_USAGE if raw is None else priced(usage_of(raw), self.endpoint.info.price)
        stop = answer.stop_reason()
        as_given = [call_id for call_id, _, _ in given] == [call.id for call in calls]
        model, own_id = (answer.final or {}).get("model"), (answer.final or {}).get("id")
        response = Response(
            content=content,
            thinking=answer.thinking(),
            tool_calls=calls,
            usage=usage,
            stop_reason=stop,
            model=model if isinstance(model, str) and model else self.endpoint.model,
            refused=answer.refused or (stop == "content_filter" and not content and not calls),
            provider=replay_data(answer.items()) if answer.complete and as_given else None,
            id=own_id if isinstance(own_id, str) and own_id else None,
            sampled=answer.tokens() if self.endpoint.options.get("logprobs") else None,
            notices=(*self._effort.notices(), *self._choice.notices(), *self._schemas.notices()),
            request=asked,
        )
        return require_content(self.sdk.who, response)


FAMILY = "openai-responses"


def render_input(messages: Sequence[Message], info: ModelInfo, model: str) -> list[dict[str, Any]]:
    """Render the ``input`` items. The API's own earlier items, including reasoning, are sent back unchanged."""
    out: list[dict[str, Any]] = []
    asked: set[str] = set()
    for message in without_text_calls(messages):
        text = message.content or ""
        match message.role:
            case "system":
                out.append({"type": "message", "role": "developer", "content": text})
            case "user":
                out.append({"type": "message", "role": "user", "content": _user(message, info, model)})
            case "assistant":
                items = _recorded_items(message)
                out.extend(items if items is not None else _assistant_items(message))
                asked = {call.id for call in message.tool_calls}
            case "tool":
                call_id = message.tool_call_id or ""
                parts = [_part(each, info, model) for each in message.attachments]
                if call_id not in asked:
                    # The API refuses a tool answer without its call, so send the text as a user message.
                    text = f"[result of {message.name or 'a call'}]\n{text}"
                content = [{"type": "input_text", "text": text}, *parts] if parts else text
                if call_id in asked:
                    out.append({"type": "function_call_output", "call_id": wire_id(call_id), "output": content})
                else:
                    out.append({"type": "message", "role": "user", "content": content})
    return out


def render_tools(tools: Sequence[ToolDefinition], schemas: ToolSchemas) -> list[dict[str, Any]]:
    """Render the ``tools`` of a request. They are not strict, because strict mode supports only a part of JSON Schema."""
    out: list[dict[str, Any]] = []
    for tool in tools:
        description, parameters = schemas.render(tool)
        named = {"type": "function", "name": wire_name(tool.name), "description": description}
        out.append({**named, "parameters": parameters, "strict": False})
    return out


def replay_data(items: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Make ``Response.provider`` from the items of an answer. None if they cannot be sent back in later queries."""
    kept = []
    for item in items:
        if item.get("type") == "reasoning" and not item.get("encrypted_content"):
            # Without its content, the item only refers to data that the server did not store.
            return None
        # The API sends null for fields that it does not accept as null.
        given = {key: value for key, value in item.items() if value is not None}
        if isinstance(given.get("content"), list):
            # The API does not need the log-probabilities back.
            given["content"] = [
                {**part, "logprobs": []} if isinstance(part, dict) and part.get("logprobs") else part
                for part in given["content"]
            ]
        kept.append(given)
    return {"family": FAMILY, "items": kept} if kept else None


def _recorded_items(message: Message) -> list[dict[str, Any]] | None:
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
            item["name"] = item.get("name") or wire_name(NO_NAME)
    return items


def _assistant_items(message: Message) -> list[dict[str, Any]]:
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
    written = attachment_text(attachment, info, model, only_pdf=False)
    if written is not None:
        return {"type": "input_text", "text": written}
    if attachment.kind == "image":
        return {"type": "input_image", "detail": "auto", "image_url": url}
    if attachment.kind == "document":
        return {"type": "input_file", "filename": file_name(attachment), "file_data": url}
    why = "the Responses API takes no audio (crystal.api: chat does)"
    return {"type": "input_text", "text": attachment_note(attachment, model, why)}


BREAK = "\n\n"
"""The text between two messages of one answer."""

_INCOMPLETE = {"max_output_tokens": "length", "content_filter": "content_filter"}


@dataclass(slots=True)
class ResponsesAnswer:
    """The answer so far. Call ``feed`` with each event."""

    final: Mapping[str, Any] | None = None
    """The response in the event that ends the stream (``response.completed`` or ``response.incomplete``)."""
    error: Any = None
    usage: Mapping[str, Any] | None = None
    """The usage. It is reported only at the end, also for a failed response."""
    refused: bool = False
    _items: dict[int, dict[str, Any]] = field(default_factory=dict)
    _has_summary: bool = False
    _message_of_text: tuple[Any, Any] | None = None
    """The output index and item id of the last piece of text."""

    def feed(self, event: Mapping[str, Any]) -> list[Delta]:
        """Process one event, and return the pieces to show."""
        kind = event.get("type")
        self._count(event.get("response"))
        delta = event.get("delta")
        match kind:
            case "response.output_text.delta" if isinstance(delta, str) and delta:
                return self._text(event, delta)
            case "response.refusal.delta" if isinstance(delta, str) and delta:
                self.refused = True
                return self._text(event, delta)
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta":
                if isinstance(delta, str) and delta:
                    self._has_summary = True
                    return [Delta("thought", delta)]
            case "response.reasoning_summary_part.added" if self._has_summary:
                return [Delta("thought", "\n\n")]
            case "response.output_item.done":
                item, index = event.get("item"), event.get("output_index")
                if isinstance(item, dict):
                    self._items[index if isinstance(index, int) else len(self._items)] = item
            case "response.completed" | "response.incomplete":
                response = event.get("response")
                self.final = response if isinstance(response, Mapping) else {}
            case "response.failed":
                response = event.get("response")
                self.error = (response.get("error") if isinstance(response, Mapping) else None) or {
                    "message": "the response failed"
                }
            case "error":
                self.error = event
        return []

    def _text(self, event: Mapping[str, Any], delta: str) -> list[Delta]:
        """Return a piece of text. Before the first piece of another message there is a blank line, as in `content`."""
        before, self._message_of_text = self._message_of_text, (event.get("output_index"), event.get("item_id"))
        if before is not None and before != self._message_of_text:
            return [Delta("text", BREAK), Delta("text", delta)]
        return [Delta("text", delta)]

    def add_response(self, whole: Mapping[str, Any]) -> list[Delta]:
        """Process a response that was not streamed, and return what to show."""
        self._count(whole)
        if whole.get("status") == "failed":
            self.error = whole.get("error") or {"message": "the response failed"}
        elif isinstance(whole.get("output"), list):
            self.final = whole
        shown = Delta("thought", self.thinking() or ""), Delta("text", self.content() or "")
        return [delta for delta in shown if delta.text]

    def _count(self, response: Any) -> None:
        usage = response.get("usage") if isinstance(response, Mapping) else None
        if isinstance(usage, Mapping):
            self.usage = usage

    def items(self) -> list[dict[str, Any]]:
        """The output items in order, as the API sent them."""
        output = (self.final or {}).get("output")
        if isinstance(output, list) and output:
            return [item for item in output if isinstance(item, dict)]
        return [self._items[index] for index in sorted(self._items)]

    def content(self) -> str | None:
        """All text of the answer, including a refusal."""
        messages: list[str] = []
        for item in self.items():
            if item.get("type") == "message":
                texts: list[str] = []
                for part in _parts(item.get("content")):
                    if part.get("type") == "refusal":
                        self.refused = True
                        texts.append(str(part.get("refusal") or ""))
                    elif isinstance(part.get("text"), str):
                        texts.append(part["text"])
                messages.append("".join(texts))
        # A commentary and the answer are separate messages.
        return BREAK.join(text for text in messages if text) or None

    def thinking(self) -> str | None:
        """The summaries of the reasoning, or the reasoning itself if the server sends it."""
        texts: list[str] = []
        for item in self.items():
            if item.get("type") == "reasoning":
                parts = _parts(item.get("summary")) or _parts(item.get("content"))
                texts.extend(part["text"] for part in parts if isinstance(part.get("text"), str))
        return "\n\n".join(t for t in texts if t) or None

    def calls(self) -> list[tuple[str, str, str]]:
        """The function calls as (id, name, arguments)."""
        return [
            (str(item.get("call_id") or ""), str(item.get("name") or ""), str(item.get("arguments") or "{}"))
            for item in self.items()
            if item.get("type") == "function_call"
        ]

    def tokens(self) -> SampledTokens | None:
        """The tokens of the answer's text, with their log-probabilities."""
        tokens = TokenCollector()
        for item in self.items():
            if item.get("type") == "message":
                for part in _parts(item.get("content")):
                    tokens.entries(part.get("logprobs"))
        return tokens.whole()

    @property
    def complete(self) -> bool:
        """Whether the answer was not cut off. Only then its items may be sent back."""
        final = self.final or {}
        return bool(final.get("status", "completed") == "completed")

    def stop_reason(self) -> str:
        """One of `contract.STOPS`, or the API's own word."""
        if self.refused:
            return "refusal"
        details = (self.final or {}).get("incomplete_details")
        if isinstance(details, Mapping) and details.get("reason"):
            reason = str(details["reason"])
            return _INCOMPLETE.get(reason, reason)
        if not self.complete:
            # The status shows that it was cut off, although the event is "completed".
            return "length"
        return "tool_calls" if self.calls() else "stop"


def _parts(value: Any) -> list[Mapping[str, Any]]:
    return [part for part in value if isinstance(part, Mapping)] if isinstance(value, list) else []
