"""Span content, by OpenTelemetry's semantic conventions for generative AI (v0.1.0, their first release of their own).

A cast is ``invoke_agent``, a query of the crystal with all its attempts ``chat`` (a client span), a gate call or a
program of the medium ``execute_tool``. Messages and tool results are included only if the user asks for them
(`tracing.content_wanted`), with secrets masked; attachments never are.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from cantrip_acp.telemetry import tracing
from cantrip_acp.types.messages import Message, ToolCall
from cantrip_acp.types.usage import Usage

if TYPE_CHECKING:
    from cantrip_acp.crystals.contract import Crystal, Delta, Emit, Query, Response
    from cantrip_acp.telemetry.tracing import Trace
    from cantrip_acp.types.call import Call

_PROVIDERS = {"google": "gcp.gemini"}
"""Provider names of the conventions that differ from ours."""

_FINISHES = {"tool_calls": "tool_call", "refusal": "content_filter"}


class SpannedCantrip(Protocol):
    @property
    def name(self) -> str | None: ...

    @property
    def call(self) -> Call: ...


class SpannedEntity(Protocol):
    """The part of an entity that spans describe (`core.state.EntityState` has it)."""

    @property
    def id(self) -> str: ...

    @property
    def cantrip(self) -> SpannedCantrip: ...

    @property
    def crystal(self) -> Crystal: ...


def _common(entity: SpannedEntity, trace: Trace, operation: str) -> dict[str, Any]:
    crystal = entity.crystal
    return {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": _PROVIDERS.get(crystal.name, crystal.name),
        "gen_ai.request.model": crystal.model,
        "gen_ai.conversation.id": trace.conversation or entity.id,
        "cantrip.entity.id": entity.id,
        "gen_ai.agent.name": entity.cantrip.name,
    }


def _request_attributes(entity: SpannedEntity) -> dict[str, Any]:
    call = entity.cantrip.call
    return {
        "gen_ai.request.seed": call.seed,
        "gen_ai.request.temperature": call.temperature,
        "gen_ai.request.top_p": call.top_p,
        "gen_ai.request.top_k": call.top_k,
        "gen_ai.request.max_tokens": call.max_tokens,
        "gen_ai.request.stop_sequences": list(call.stop) or None,
    }


def _used_by_query(usage: Usage) -> dict[str, Any]:
    """Usage attributes. Cache and reasoning tokens are included only if they are not 0: not every provider counts them."""
    return {
        "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens or None,
        "gen_ai.usage.cache_write.input_tokens": usage.cache_write_tokens or None,
        "gen_ai.usage.reasoning.output_tokens": usage.reasoning_tokens or None,
        **_used(usage),
    }


def _used(usage: Usage) -> dict[str, Any]:
    """Usage attributes of a cast: sums over the queries of all its models."""
    return {
        "gen_ai.usage.input_tokens": usage.prompt_tokens,
        "gen_ai.usage.output_tokens": usage.completion_tokens,
        "cantrip.usage.cost_usd": usage.cost,
        "cantrip.usage.queries_without_usage": usage.queries_without_usage or None,
        "cantrip.usage.queries_without_cost": usage.queries_without_cost or None,
    }


def _set(span: Any, attributes: Mapping[str, Any]) -> None:
    span.set_attributes({k: v for k, v in attributes.items() if v is not None})


class AgentSpan:
    def __init__(self, span: Any) -> None:
        self._span = span

    def ended(self, reason: str, usage: Usage, result: Any) -> None:
        """Record the reason for the end of the cast, the usage and the result."""
        _set(self._span, {"cantrip.reason": reason, **_used(usage)})
        if tracing.content_wanted() and isinstance(result, str):
            message = {
                "role": "assistant",
                "parts": [{"type": "text", "content": result}],
                "finish_reason": "stop",
            }
            self._span.set_attribute("gen_ai.output.messages", tracing.Json([message]))


@contextmanager
def invoke_agent(entity: SpannedEntity, trace: Trace, cast_id: str, intent: str) -> Iterator[AgentSpan | None]:
    """The span of a cast; None if nobody collects spans."""
    if not tracing.collecting():
        yield None
        return
    name = entity.cantrip.name
    attributes = {
        **_common(entity, trace, "invoke_agent"),
        **_request_attributes(entity),
        "cantrip.cast.id": cast_id,
        **{f"cantrip.{k}": v for k, v in trace.attributes.items()},
    }
    if tracing.content_wanted():
        words = {"type": "text", "content": intent}
        attributes["gen_ai.input.messages"] = tracing.Json([{"role": "user", "parts": [words]}])
    with tracing.span(f"invoke_agent {name}" if name else "invoke_agent", trace, attributes) as span:
        yield AgentSpan(span)


class ChatSpan:
    """The span of a query. Its ``emit`` replaces the query's own and records the time of the first piece."""

    def __init__(self, span: Any, emit: Emit) -> None:
        self._span = span
        self._emit = emit
        self._started_at = time.monotonic()
        self._first = True

    async def emit(self, delta: Delta) -> None:
        if self._first:
            self._first = False
            self._span.set_attribute("gen_ai.response.time_to_first_chunk", time.monotonic() - self._started_at)
        await self._emit(delta)

    def answered(self, response: Response, attempts: int, beside: Usage) -> None:
        """Record the response, the number of attempts, and their extra usage ``beside`` the response."""
        finish = _finish(response)
        _set(
            self._span,
            {
                "gen_ai.response.model": response.model,
                "openai.response.system_fingerprint": response.fingerprint,
                "gen_ai.response.id": response.id,
                "gen_ai.response.finish_reasons": [finish],
                "cantrip.attempts": attempts if attempts > 1 else None,
                **_used_by_query(response.usage.counted() + beside),
            },
        )
        if tracing.content_wanted():
            parts = _parts(response.content, response.thinking, response.tool_calls)
            message = {"role": "assistant", "parts": parts, "finish_reason": finish}
            self._span.set_attribute("gen_ai.output.messages", tracing.Json([message]))


_NOBODY: AbstractContextManager[None] = nullcontext()
"""Used instead of a span if nobody collects spans."""


def chat(entity: SpannedEntity, trace: Trace, query: Query, emit: Emit) -> AbstractContextManager[ChatSpan | None]:
    """The span of a query with all its attempts; None if nobody collects spans."""
    return _chat(entity, trace, query, emit) if tracing.collecting() else _NOBODY


@contextmanager
def _chat(entity: SpannedEntity, trace: Trace, query: Query, emit: Emit) -> Iterator[ChatSpan]:
    attributes = {**_common(entity, trace, "chat"), **_request_attributes(entity), "gen_ai.request.stream": True}
    if tracing.content_wanted():
        attributes |= _content(query)
    name = f"chat {entity.crystal.model}"
    with tracing.span(name, trace, attributes, client=True) as span:
        yield ChatSpan(span, emit)


class ToolSpan:
    """The span of a gate call, or of a program of the medium."""

    def __init__(self, span: Any) -> None:
        self._span = span

    def ended(self, result: Any, failure: str | None) -> None:
        """Record the result. ``failure`` is the kind of failure, None if there was none."""
        if failure is not None:
            tracing.failed(self._span, failure)
        if tracing.content_wanted():
            self._span.set_attribute("gen_ai.tool.call.result", tracing.Json(result))


def execute_tool(
    name: str, trace: Trace, *, call_id: str, args: Any, entity_id: str, description: str = ""
) -> AbstractContextManager[ToolSpan | None]:
    """The span of one call; ``args`` are included only if content is wanted. None if nobody collects spans."""
    if not tracing.collecting():
        return _NOBODY
    return _execute_tool(name, trace, call_id, args, entity_id, description)


@contextmanager
def _execute_tool(
    name: str, trace: Trace, call_id: str, args: Any, entity_id: str, description: str
) -> Iterator[ToolSpan]:
    attributes: dict[str, Any] = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": name,
        "gen_ai.tool.call.id": call_id,
        "gen_ai.tool.type": "function",
        "gen_ai.tool.description": description or None,
        "gen_ai.conversation.id": trace.conversation or entity_id,
        "cantrip.entity.id": entity_id,
    }
    if tracing.content_wanted():
        attributes["gen_ai.tool.call.arguments"] = tracing.Json(args)
    with tracing.span(f"execute_tool {name}", trace, attributes) as span:
        yield ToolSpan(span)


def _finish(response: Response) -> str:
    reason = response.stop_reason or ("tool_calls" if response.tool_calls else "stop")
    return _FINISHES.get(reason, reason)


def _content(query: Query) -> dict[str, Any]:
    """The query's messages in the conventions' form: system instructions separately, the rest in order."""
    first = next((i for i, m in enumerate(query.messages) if m.role != "system"), len(query.messages))
    system = [{"type": "text", "content": m.content or ""} for m in query.messages[:first]]
    rest = [message_data(m) for m in query.messages[first:]]
    tools = [
        {"type": "function", "name": t.name, "description": t.description, "parameters": t.parameters}
        for t in query.tools
    ]
    found = {
        "gen_ai.system_instructions": system,
        "gen_ai.input.messages": rest,
        "gen_ai.tool.definitions": tools,
    }
    return {key: tracing.Json(value) for key, value in found.items() if value}


def message_data(message: Message) -> dict[str, Any]:
    """A message in the conventions' form."""
    if message.role == "tool":
        part = {"type": "tool_call_response", "id": message.tool_call_id, "response": message.content or ""}
        return {"role": "tool", "parts": [part, *_attached(message)]}
    parts = _attached(message) + _parts(message.content, message.thinking, message.tool_calls)
    return {"role": message.role, "parts": parts}


def _attached(message: Message) -> list[dict[str, Any]]:
    return [{"type": "uri", "modality": a.kind, "mime_type": a.mime, "uri": a.uri or ""} for a in message.attachments]


def _parts(content: str | None, thinking: str | None, calls: Sequence[ToolCall]) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    if thinking:
        parts.append({"type": "reasoning", "content": thinking})
    if content:
        parts.append({"type": "text", "content": content})
    for call in calls:
        parts.append({"type": "tool_call", "id": call.id, "name": call.gate, "arguments": _arguments(call.args)})
    return parts


def _arguments(text: str) -> Any:
    try:
        return msgspec.json.decode(text) if text.strip() else {}
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return text
