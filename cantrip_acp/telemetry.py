"""Trace ids, and OpenTelemetry spans where somebody collects them.

The API package alone makes spans without ids and costs start-up time, so it is imported only where an exporter is
configured by the environment (``OTEL_*``) or the embedding program has imported OpenTelemetry itself.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

_TRACE_ID = re.compile(r"[0-9a-f]{32}\Z")
_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?\Z")
_EXPORTER_KEYS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_TRACES_EXPORTER")


@dataclass(frozen=True, slots=True)
class Trace:
    """Where a cast belongs: a trace id of 32 hex digits, the caller's span where known, and what came along."""

    trace_id: str
    parent_span_id: str | None = None
    sampled: bool = True
    attributes: Mapping[str, str] = field(default_factory=dict)
    tracestate: str | None = None
    baggage: str | None = None

    def traceparent(self) -> str:
        """W3C ``traceparent`` for what is started on this trace's behalf."""
        return f"00-{self.trace_id}-{self.parent_span_id or os.urandom(8).hex()}-{'01' if self.sampled else '00'}"


def new_trace_id() -> str:
    """32 random hex digits, never all zero."""
    return os.urandom(16).hex()


def trace_from(meta: Mapping[str, Any] | None = None, *, default: Trace | None = None) -> Trace:
    """The trace that a request's metadata names: ``cantrip_trace_id``, else ``trace_id``, else ``traceparent``'s.

    An id that is not 32 hex digits becomes an attribute beside a minted one. Without any, ``default`` or a minted one.
    """
    meta = meta or {}
    state, baggage = (v if isinstance(v := meta.get(k), str) else None for k in ("tracestate", "baggage"))
    parent = meta.get("traceparent")
    found = _TRACEPARENT.match(parent.strip().lower()) if isinstance(parent, str) else None
    if found and (found[1] == "ff" or set(found[2]) == {"0"} or set(found[3]) == {"0"}):
        found = None
    for key in ("cantrip_trace_id", "trace_id"):
        given = meta.get(key)
        if not isinstance(given, str) or not given:
            continue
        plain = given.lower()
        if _TRACE_ID.match(plain) and set(plain) != {"0"}:
            span = found[3] if found and found[2] == plain else None
            return Trace(plain, span, tracestate=state, baggage=baggage)
        return Trace(new_trace_id(), attributes={key: given}, tracestate=state, baggage=baggage)
    if found:
        return Trace(found[2], found[3], bool(int(found[4], 16) & 1), tracestate=state, baggage=baggage)
    if default is not None:
        return default
    return Trace(new_trace_id(), tracestate=state, baggage=baggage)


@cache
def _exporter_wanted() -> bool:
    """Whether the environment asks for an exporter. Read once: it is asked at every query and gate call."""
    return any(os.environ.get(k) for k in _EXPORTER_KEYS)


def collecting() -> bool:
    """Whether spans may reach anybody in this process."""
    return "opentelemetry.sdk.trace" in sys.modules or _exporter_wanted()


_tracer: Any = None


def _get_tracer() -> Any:
    global _tracer
    if _tracer is None:
        from opentelemetry import trace

        _configure_exporter(trace)
        _tracer = trace.get_tracer("cantrip_acp")
    return _tracer


def _configure_exporter(trace: Any) -> None:
    """Set up the SDK's exporter where the environment asks for one and nobody has set up a provider."""
    if "opentelemetry.sdk.trace" in sys.modules or not _exporter_wanted():
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        logging.getLogger(__name__).warning(
            "OTEL_* asks for traces, but the exporter is not installed; "
            "pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http"
        )
        return
    provider = TracerProvider(resource=Resource.create({"service.name": "cantrip-acp"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)


@contextmanager
def span(name: str, trace: Trace, attributes: Mapping[str, Any]) -> Iterator[Any]:
    """A span of the cast's trace, current while the block runs; None where nobody collects.

    Spans nest by OpenTelemetry's own context; the outermost one hangs on the trace's caller.
    """
    if not collecting():
        yield None
        return
    from opentelemetry import context as otel_context
    from opentelemetry import trace as otel

    tracer = _get_tracer()
    parent = None
    if not otel.get_current_span().get_span_context().is_valid:
        # Without a caller's span, a made-up one still puts our spans into the trace that events and looms name.
        remote = otel.SpanContext(
            trace_id=int(trace.trace_id, 16),
            span_id=int(trace.parent_span_id or os.urandom(8).hex(), 16),
            is_remote=True,
            trace_flags=otel.TraceFlags(1 if trace.sampled else 0),
        )
        parent = otel.set_span_in_context(otel.NonRecordingSpan(remote), otel_context.get_current())
    clean = {k: v for k, v in attributes.items() if v is not None}
    with tracer.start_as_current_span(name, context=parent, attributes=clean) as current:
        yield current
