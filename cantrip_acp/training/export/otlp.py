"""OTLP/JSON format: one ``ExportTraceServiceRequest`` per line, with spans by the semantic conventions for generative
AI.

A cast is ``invoke_agent``, a turn's query is ``chat``, a gate call or a program is ``execute_tool``. The parent of a
child's cast is the turn that spawned it. Ids are computed from the loom's ids, so two exports give the same spans. A
loom keeps one time per turn: ``chat`` spans all of it, and its calls are at its end. Message texts are included where
``OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT`` enables them, each once: the intent at its cast, an answer at its
turn, and what the user sent while a cast ran at the turn that read it first. (A live span has all messages of its query.)
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from itertools import groupby, islice
from typing import Any

import msgspec

from cantrip_acp.telemetry import tracing
from cantrip_acp.telemetry.genai_spans import message_data
from cantrip_acp.training.export.export_format import export_format
from cantrip_acp.training.export.rows import nanoseconds
from cantrip_acp.training.export.selection import Episode, Source
from cantrip_acp.types.context_block import block_of, steering_message
from cantrip_acp.types.messages import Message, RequestParameters
from cantrip_acp.types.records import DURING_CAST, CastRecord, Turn, TurnMetadata
from cantrip_acp.version import __version__

_MOST = 4_000
"""Maximum number of spans in one request; collectors refuse very large requests."""
_BATCH = 256
_INTERNAL, _CLIENT = 1, 3
_ERROR = 2
_PROVIDERS = {"google": "gcp.gemini"}
_FINISHES = {"tool_calls": "tool_call", "refusal": "content_filter"}
_TRACE = re.compile(r"[0-9a-f]{32}\Z")


@export_format("otlp", "OTLP/JSON trace requests by OpenTelemetry's GenAI conventions", marks_truncated=True)
def otlp(source: Source) -> Iterator[dict[str, Any]]:
    """One row for up to `_MOST` spans of a thread. Spans that several threads share are in the first one's rows."""
    exported: set[str] = set()
    content = tracing.content_wanted()
    for episode in source.episodes(marked=True):
        source.count_exported(episode.leaf)
        episode_spans = _spans(source, episode, exported, content=content)
        while spans := list(islice(episode_spans, _MOST)):
            scope = {"scope": {"name": "cantrip_acp", "version": __version__}, "spans": spans}
            resource = {"attributes": attributes({"service.name": "cantrip-acp", "service.version": __version__})}
            yield {"resourceSpans": [{"resource": resource, "scopeSpans": [scope]}]}


def _spans(source: Source, episode: Episode, exported: set[str], *, content: bool) -> Iterator[dict[str, Any]]:
    places = source.outline.places
    whole = source.outline.own_path(episode.leaf)
    path = [i for i in whole if places[i].role == "crystal"]
    steering = _steering(source, whole, path) if content else {}
    for cast_id, ids in groupby(path, key=lambda i: places[i].cast_id or ""):
        new = [i for i in ids if i not in exported]
        if not new:
            continue
        start = source.outline.starts.get(cast_id)
        end = source.loom.cast_end(cast_id) if cast_id else None
        if cast_id not in exported:
            exported.add(cast_id)
            yield _cast_span(source, new, start, end, cast_id, content=content)
        exported.update(new)
        for at in range(0, len(new), _BATCH):
            for turn in source.loom.bodies(new[at : at + _BATCH]):
                yield from _turn_spans(turn, start, cast_id, steering.get(turn.id, []), content=content)


def _steering(source: Source, whole: list[str], path: list[str]) -> dict[str, list[Message]]:
    """The user's messages from while a cast ran, by the turn on the path that read them first. ``path`` has the crystal's
    turns of the ``whole`` path."""
    places, own = source.outline.places, set(path)
    next_after: dict[str, str] = {}
    following = ""
    for turn_id in reversed(whole):
        next_after[turn_id] = following
        following = turn_id if turn_id in own else following
    first_of: dict[str, str] = {}
    for turn_id in path:
        first_of.setdefault(places[turn_id].cast_id or "", turn_id)
    found: dict[str, list[Message]] = {}
    for cast_id, first in first_of.items():
        for record in source.loom.cast_of(cast_id)[1] if cast_id else ():
            reader = next_after.get(record.after, "") if isinstance(record.after, str) else first
            if record.source in DURING_CAST and reader:
                found.setdefault(reader, []).append(steering_message(block_of(record)))
    return found


def _cast_span(
    source: Source, turns: list[str], start: CastRecord | None, end: CastRecord | None, cast_id: str, *, content: bool
) -> dict[str, Any]:
    first, last = source.loom.bodies([turns[0], turns[-1]])
    begun = nanoseconds(start.timestamp) if start is not None else _begin(first)
    ended = nanoseconds(end.timestamp) if end is not None else nanoseconds(last.metadata.timestamp)
    about: dict[str, Any] = {
        **_common(first, start, "invoke_agent"),
        "cantrip.cast.id": cast_id or None,
        "cantrip.reason": end.reason if end is not None else None,
        "cantrip.turns": end.turns if end is not None else len(turns),
        "cantrip.as_sent": source.seen.differing.keys().isdisjoint(turns),
    }
    if end is not None:
        about |= {
            "gen_ai.usage.input_tokens": end.usage.get("prompt_tokens"),
            "gen_ai.usage.output_tokens": end.usage.get("completion_tokens"),
            "cantrip.usage.cost_usd": end.usage.get("cost"),
            "cantrip.usage.queries_without_usage": end.usage.get("queries_without_usage"),
            "cantrip.usage.queries_without_cost": end.usage.get("queries_without_cost"),
        }
    if content and start is not None and start.intent:
        words = [{"role": "user", "parts": [{"type": "text", "content": start.intent}]}]
        about["gen_ai.input.messages"] = _json(words)
    if content and end is not None and isinstance(end.result, str):
        said = {"role": "assistant", "parts": [{"type": "text", "content": end.result}], "finish_reason": "stop"}
        about["gen_ai.output.messages"] = _json([said])
    span: dict[str, Any] = {
        "traceId": _trace(first, cast_id),
        "spanId": span_id("cast", cast_id or first.id),
        "name": "invoke_agent",
        "kind": _INTERNAL,
        "startTimeUnixNano": str(begun),
        "endTimeUnixNano": str(max(begun, ended)),
        "attributes": attributes(about),
    }
    spawner = start.parent_turn_id if start is not None else None
    spawner = spawner or source.outline.spawner(source.outline.own_path(first.id)[0])
    if spawner is not None:
        span["parentSpanId"] = span_id("turn", spawner)
    if end is not None and end.reason == "error":
        kind = (end.error or "error").partition(":")[0]
        span["status"] = {"code": _ERROR, "message": end.error or ""}
        span["attributes"] += attributes({"error.type": kind})
    return span


def _request(counted: TurnMetadata) -> dict[str, Any]:
    sent = counted.request or RequestParameters()
    return {
        "gen_ai.request.temperature": sent.temperature,
        "gen_ai.request.top_p": sent.top_p,
        "gen_ai.request.top_k": sent.top_k,
        "gen_ai.request.seed": sent.seed,
        "gen_ai.request.stop_sequences": list(sent.stop) or None,
        "gen_ai.request.max_tokens": sent.max_tokens,
        "cantrip.request.min_p": sent.min_p,
        "cantrip.request.tool_mode": sent.tool_mode,
        "cantrip.request.template": sent.template,
        "cantrip.request.weights": sent.weights,
        "openai.response.system_fingerprint": counted.fingerprint or None,
    }


def _turn_spans(
    turn: Turn, start: CastRecord | None, cast_id: str, steering: list[Message], *, content: bool
) -> Iterator[dict[str, Any]]:
    counted = turn.metadata
    stop = counted.stop_reason if isinstance(counted.stop_reason, str) else None
    finish = stop or ("tool_calls" if turn.utterance.tool_calls else "stop")
    about: dict[str, Any] = {
        **_common(turn, start, "chat"),
        "gen_ai.response.model": counted.model,
        "gen_ai.response.finish_reasons": [_FINISHES.get(finish, finish)],
        "gen_ai.usage.input_tokens": counted.tokens_prompt,
        "gen_ai.usage.output_tokens": counted.tokens_completion,
        "gen_ai.usage.cache_read.input_tokens": counted.tokens_cached or None,
        "cantrip.usage.cost_usd": counted.cost,
        "cantrip.usage.queries_without_usage": counted.usage.queries_without_usage or None,
        "cantrip.usage.queries_without_cost": counted.usage.queries_without_cost or None,
        **_request(counted),
        "cantrip.turn.id": turn.id,
        "cantrip.turn.continues": turn.continues,
        "cantrip.reward": turn.reward,
        "cantrip.reason": turn.reason,
        "cantrip.truncated": turn.truncated or None,
    }
    if steering:
        about["gen_ai.input.messages"] = _json(list(map(message_data, steering)))
    if content:
        about["gen_ai.output.messages"] = _json([_output_message(turn, _FINISHES.get(finish, finish))])
    begun, ended = _begin(turn), nanoseconds(counted.timestamp)
    shared: dict[str, Any] = {"traceId": _trace(turn, cast_id)}
    model = counted.model or (start.attributes.get("model") if start is not None else None) or ""
    yield {
        **shared,
        "spanId": span_id("turn", turn.id),
        "parentSpanId": span_id("cast", cast_id or turn.id),
        "name": f"chat {model}".strip(),
        "kind": _CLIENT,
        "startTimeUnixNano": str(begun),
        "endTimeUnixNano": str(ended),
        "attributes": attributes(about),
    }
    for number, (name, call_id, args, result, failed) in enumerate(_calls(turn)):
        tool: dict[str, Any] = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": name,
            "gen_ai.tool.call.id": call_id,
            "gen_ai.tool.type": "function",
            "cantrip.entity.id": turn.entity_id,
            "error.type": failed,
        }
        if content:
            tool |= {"gen_ai.tool.call.arguments": _json(args), "gen_ai.tool.call.result": _json(result)}
        span = {
            **shared,
            "spanId": span_id("call", f"{turn.id}.{number}"),
            "parentSpanId": span_id("turn", turn.id),
            "name": f"execute_tool {name}",
            "kind": _INTERNAL,
            "startTimeUnixNano": str(ended),
            "endTimeUnixNano": str(ended),
            "attributes": attributes(tool),
        }
        if failed is not None:
            span["status"] = {"code": _ERROR, "message": failed}
        yield span


def _calls(turn: Turn) -> Iterator[tuple[str, str, Any, Any, str | None]]:
    """The calls of a turn: name, id, arguments, result, kind of failure. Programs of the medium first, then gate calls."""
    observation = turn.observation
    outputs = observation.outputs if isinstance(observation.outputs, tuple) else (observation.output,)
    answered = {r.tool_call_id for r in observation.results}
    programs = [c for c in turn.utterance.tool_calls if c.id not in answered]
    for call, output in zip(programs, (o for o in outputs if o is not None), strict=False):
        yield call.gate, call.id, call.args, msgspec.to_builtins(output), "program_error" if output.failed else None
    for number, record in enumerate(observation.results):
        call_id = record.tool_call_id or f"{turn.id}.g{number}"
        yield record.gate, call_id, record.args, record.result, "gate_error" if record.is_error else None


def _common(turn: Turn, start: CastRecord | None, operation: str) -> dict[str, Any]:
    start_attributes: Mapping[str, Any] = start.attributes if start is not None else {}
    provider = str(start_attributes.get("crystal") or "unknown")
    return {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": _PROVIDERS.get(provider, provider),
        "gen_ai.request.model": start_attributes.get("model"),
        "gen_ai.conversation.id": turn.entity_id,
        "cantrip.entity.id": turn.entity_id,
    }


def _output_message(turn: Turn, finish: str) -> dict[str, Any]:
    utterance = turn.utterance
    parts: list[dict[str, Any]] = []
    if utterance.thinking:
        parts.append({"type": "reasoning", "content": utterance.thinking})
    if utterance.content:
        parts.append({"type": "text", "content": utterance.content})
    parts += [{"type": "tool_call", "id": c.id, "name": c.gate, "arguments": c.args} for c in utterance.tool_calls]
    return {"role": "assistant", "parts": parts, "finish_reason": finish}


def _begin(turn: Turn) -> int:
    return max(0, nanoseconds(turn.metadata.timestamp) - int(turn.metadata.duration_ms * 1_000_000))


def _trace(turn: Turn, cast_id: str) -> str:
    given = turn.metadata.trace_id or ""
    if _TRACE.match(given) and given.strip("0"):
        return given
    return hashlib.sha256(f"trace {cast_id or turn.id}".encode()).hexdigest()[:32]


def span_id(kind: str, name: str) -> str:
    """A span's id; the same record of a loom always has the same id."""
    return hashlib.sha256(f"{kind} {name}".encode()).hexdigest()[:16]


def attributes(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Attributes in OTLP's JSON; None is left out."""
    return [{"key": k, "value": _value(v)} for k, v in values.items() if v is not None]


def _value(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        # JSON numbers do not hold 64 bits everywhere.
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, list | tuple):
        return {"arrayValue": {"values": [_value(v) for v in value]}}
    return {"stringValue": str(value)}


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
