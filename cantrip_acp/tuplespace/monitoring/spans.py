"""OpenTelemetry spans of tuples: of who puts them, of each attempt of a worker, and of each step.

The trace context goes with the tuple, in the queue and not in the tuple itself: the id of the work stays the same. So the
emitter's span is the parent of the worker's, and the cast's spans (`telemetry.genai_spans`) are children of the step's.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from cantrip_acp.telemetry import tracing
from cantrip_acp.tuplespace import authority

if TYPE_CHECKING:
    from cantrip_acp.telemetry.tracing import Trace
    from cantrip_acp.tuplespace.stores.base import Claim


@contextmanager
def emitting(name: str, attributes: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    """The span of a command that puts tuples. Yields the metadata for `TupleStore.put`.

    ``TRACEPARENT`` in the environment, as CI systems set it, is its parent. Without it and without an exporter there is no
    metadata.
    """
    outside = {key: os.environ[key.upper()] for key in ("traceparent", "tracestate") if os.environ.get(key.upper())}
    trace = tracing.trace_from(outside)
    with tracing.span(name, trace, attributes) as span:
        yield tracing.current_metadata() if span is not None else outside


def trace_of(claim: Claim) -> Trace | None:
    """The trace that a tuple belongs to; None if its emitter gave none and nobody collects spans."""
    given = {key: value for key, value in (claim.meta or {}).items() if key not in authority.NOTED}
    return tracing.trace_from(given) if given or tracing.collecting() else None


@contextmanager
def attempt(claim: Claim, trace: Trace | None, worker: str) -> Iterator[Any]:
    """The span of a worker's attempt at a tuple; None if nobody collects spans."""
    if trace is None or not tracing.collecting():
        yield None
        return
    name = f"tuple {claim.work.lane}"
    attributes = {**_common(claim), "cantrip.worker": worker, "cantrip.tuple.steps": len(claim.work.payload)}
    with tracing.span(name, trace, attributes) as span:
        yield span


@contextmanager
def step(claim: Claim, trace: Trace | None, index: int) -> Iterator[Any]:
    """The span of a step; None if nobody collects spans."""
    if trace is None or not tracing.collecting():
        yield None
        return
    yool = claim.work.payload[index].yool
    attributes = {**_common(claim), "cantrip.yool": yool, "cantrip.step": index}
    with tracing.span(f"step {yool}", trace, attributes) as span:
        yield span


def ended(span: Any, *, exit: int, error: str | None, cost: Mapping[str, Any] | None = None) -> None:  # noqa: A002
    """Record how an attempt or a step ended."""
    if span is None:
        return
    known = {
        "cantrip.exit": exit,
        "cantrip.usage.cost_usd": (cost or {}).get("usd"),
        "gen_ai.usage.input_tokens": (cost or {}).get("tokens_in"),
        "gen_ai.usage.output_tokens": (cost or {}).get("tokens_out"),
    }
    span.set_attributes({name: value for name, value in known.items() if value is not None})
    if exit:
        tracing.failed(span, f"exit {exit}", error or "")


def _common(claim: Claim) -> dict[str, Any]:
    return {
        "cantrip.tuple.id": claim.work.id,
        "cantrip.lane": claim.work.lane,
        "cantrip.attempt": claim.attempt,
    }
