"""Trace ids, and OpenTelemetry spans if they are collected.

OpenTelemetry is slow to import. So it is imported only if the environment configures an exporter (``OTEL_*``), or if
the embedding program has already imported it.
"""

from __future__ import annotations

import atexit
import os
import re
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from cantrip_acp.files.installation import install_command
from cantrip_acp.text.logs import logger
from cantrip_acp.text.redaction import shared
from cantrip_acp.types.errors import CrystalError
from cantrip_acp.version import __version__

_TRACE_ID = re.compile(r"[0-9a-f]{32}\Z")
_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?\Z")
_EXPORTER_KEYS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_TRACES_EXPORTER")
_CONTENT = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"


class Trace(Struct, frozen=True):
    """The trace of a cast: an id of 32 hex digits, the caller's span if known, and further data from the caller.

    ``conversation`` is the id of what its casts belong to (an ACP session); by default the entity.
    """

    trace_id: str
    parent_span_id: str | None = None
    sampled: bool = True
    attributes: Mapping[str, str] = {}
    tracestate: str | None = None
    baggage: str | None = None
    conversation: str | None = None

    def traceparent(self) -> str:
        """W3C ``traceparent`` for processes and requests of this trace."""
        return f"00-{self.trace_id}-{self.parent_span_id or os.urandom(8).hex()}-{'01' if self.sampled else '00'}"


def new_trace_id() -> str:
    """32 random hex digits."""
    return os.urandom(16).hex()


def trace_from(meta: object = None, *, default: Trace | None = None) -> Trace:
    """The trace in a request's metadata: ``cantrip_trace_id``, else ``trace_id``, else the id in ``traceparent``.

    An id that is not 32 hex digits becomes an attribute, and a new id is made. Without any id, ``default`` or a new
    trace.
    """
    meta = meta if isinstance(meta, Mapping) else {}
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
    """Whether the environment asks for an exporter. Cached, because every query and gate call asks."""
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    if os.environ.get("OTEL_TRACES_EXPORTER", "").strip().lower() == "none":
        return False
    return any(os.environ.get(k) for k in _EXPORTER_KEYS)


def collecting() -> bool:
    """Whether spans of this process may be collected."""
    return "opentelemetry.sdk.trace" in sys.modules or _exporter_wanted()


@cache
def content_wanted() -> bool:
    """Whether spans may contain messages, call arguments and results. The user must ask for that."""
    setting = os.environ.get(_CONTENT, "").strip().lower()
    return setting in ("true", "1", "span_only", "span_and_event")


LAST_SPANS_S = 1.0
"""Seconds at the end of the process for sending the remaining spans."""

_tracer: Any = None
_setting_up = threading.Lock()


def prepare() -> None:
    """Import OpenTelemetry, and set up the exporter that the environment names.

    Slow the first time; can run in a thread.
    """
    global _tracer
    with _setting_up:
        if _tracer is not None or not collecting():
            return
        from opentelemetry import trace

        _configure_exporter(trace)
        _tracer = trace.get_tracer("cantrip_acp", __version__)


def prepared() -> bool:
    """Whether `prepare` has run or is not needed."""
    return _tracer is not None or not collecting()


def _configure_exporter(trace: Any) -> None:
    """Set up the SDK's exporter if the environment asks for one and no provider is set up."""
    if "opentelemetry.sdk.trace" in sys.modules or not _exporter_wanted():
        return
    try:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        exporter = _exporter()
    except ImportError as missing:
        logger(__name__).warning(
            "OTEL_* asks for traces, but %s is not installed: %s", missing.name, install_command("otel")
        )
        return
    about = {"service.version": __version__}
    if not os.environ.get("OTEL_SERVICE_NAME") and "service.name=" not in os.environ.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    ):
        about["service.name"] = "cantrip-acp"
    # The provider's own shutdown can wait long for a collector, and delay the end of the process.
    provider = TracerProvider(resource=Resource.create(about), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    atexit.register(_send_the_last, provider)


def _send_the_last(provider: Any) -> None:
    """Send the remaining spans, within the time limit for the end of the process."""
    sending = threading.Thread(target=provider.shutdown, name="last spans", daemon=True)
    sending.start()
    sending.join(LAST_SPANS_S)


def _exporter() -> Any:
    """The exporter by ``OTEL_TRACES_EXPORTER`` and ``OTEL_EXPORTER_OTLP_[TRACES_]PROTOCOL``; the default is OTLP over
    HTTP.
    """
    if os.environ.get("OTEL_TRACES_EXPORTER", "").strip().lower() == "console":
        from opentelemetry.sdk.trace.export import ConsoleSpanExporter

        # Spans must not go to standard output: the protocol or the result of a command is written there.
        return ConsoleSpanExporter(out=sys.stderr)
    protocol = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as Grpc

        return Grpc()
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter()


class Json(NamedTuple):
    """Data that an attribute holds as JSON. Secrets are masked before encoding: JSON may escape them."""

    value: Any

    def __str__(self) -> str:
        try:
            return msgspec.json.encode(self.value).decode()
        except (TypeError, ValueError, UnicodeError):
            # The text has a lone surrogate, or a gate's value is not plain data.
            return msgspec.json.encode(repr(self.value)).decode()


_STATUS = "status"


def _clean(attributes: Mapping[str, Any]) -> dict[str, Any]:
    given = {name: value for name, value in attributes.items() if value is not None}
    known = shared().masked(given, shapes=(_STATUS,))
    return {name: str(value) if isinstance(value, Json) else value for name, value in known.items()}


class MaskedSpan:
    """A span of OpenTelemetry whose attributes have known secrets masked."""

    __slots__ = ("_span",)

    def __init__(self, span: Any) -> None:
        self._span = span

    def set_attribute(self, name: str, value: Any) -> None:
        self.set_attributes({name: value})

    def set_attributes(self, attributes: Mapping[str, Any]) -> None:
        self._span.set_attributes(_clean(attributes))

    def set_status(self, status: Any) -> None:
        self._span.set_status(status)


@contextmanager
def span(name: str, trace: Trace, attributes: Mapping[str, Any], *, client: bool = False) -> Iterator[Any]:
    """A span of the cast's trace, current while the block runs; None if nobody collects spans.

    Spans nest by OpenTelemetry's own context; the outermost span's parent is the trace's caller. ``client``: it is a
    call of something remote. An exception becomes ``error.type`` and a status, without a traceback. Known secrets are
    masked in all of it.
    """
    if not collecting():
        yield None
        return
    from opentelemetry import context as otel_context
    from opentelemetry import trace as otel

    prepare()
    parent = None
    if not otel.get_current_span().get_span_context().is_valid:
        # Without a caller's span, a made-up parent puts our spans into the trace that events and looms name.
        remote = otel.SpanContext(
            trace_id=int(trace.trace_id, 16),
            span_id=int(trace.parent_span_id or os.urandom(8).hex(), 16),
            is_remote=True,
            trace_flags=otel.TraceFlags(1 if trace.sampled else 0),
            trace_state=otel.TraceState.from_header([trace.tracestate]) if trace.tracestate else None,
        )
        parent = otel.set_span_in_context(otel.NonRecordingSpan(remote), otel_context.get_current())
    clean = _clean(attributes)
    kind = otel.SpanKind.CLIENT if client else otel.SpanKind.INTERNAL
    with _tracer.start_as_current_span(
        name, context=parent, kind=kind, attributes=clean, record_exception=False, set_status_on_exception=False
    ) as current:
        try:
            yield MaskedSpan(current)
        except Exception as error:
            failed(current, error_type(error), str(error))
            raise
        except BaseException:
            # Cancelled from outside: not a failure of this operation. The cast records the reason.
            current.set_attribute("error.type", "cancelled")
            raise


def failed(current: Any, kind: str, words: str = "") -> None:
    """Mark a span as failed. ``kind`` is a class of failure from a short list; ``words`` are for people."""
    from opentelemetry.trace import Status, StatusCode

    current.set_attribute("error.type", kind)
    current.set_status(Status(StatusCode.ERROR, _clean({_STATUS: words})[_STATUS][:1000] or None))


def traceparent(trace: Trace) -> str:
    """The W3C ``traceparent`` for an operation that starts now. Its parent is the current span, if that is in this trace."""
    if collecting() and _tracer is not None:
        from opentelemetry import trace as otel

        here = otel.get_current_span().get_span_context()
        if here.is_valid and f"{here.trace_id:032x}" == trace.trace_id:
            return f"00-{trace.trace_id}-{here.span_id:016x}-{here.trace_flags & 1:02x}"
    return trace.traceparent()


def current_metadata() -> dict[str, str]:
    """The trace context of the current span, for the metadata of a message; `trace_from` reads it. Empty if there is none."""
    if not collecting():
        return {}
    from opentelemetry import trace as otel

    here = otel.get_current_span().get_span_context()
    if not here.is_valid:
        return {}
    state = here.trace_state.to_header()
    parent = f"00-{here.trace_id:032x}-{here.span_id:016x}-{here.trace_flags & 1:02x}"
    return {"traceparent": parent, **({"tracestate": state} if state else {})}


def note(name: str, attributes: Mapping[str, Any]) -> None:
    """Add an event to the current span. Does nothing if nobody collects spans."""
    if collecting():
        from opentelemetry import trace as otel

        otel.get_current_span().add_event(name, _clean(attributes))


def error_type(error: BaseException) -> str:
    """``error.type``: the provider's HTTP status if there is one, else the error's class."""
    status = error.status if isinstance(error, CrystalError) else None
    return type(error).__name__ if status is None else str(status)
