"""Trace ids from requests, and spans that join them."""

from __future__ import annotations

import pytest

from cantrip_acp.telemetry import tracing
from tests.support.fixtures.core import done, make

ID = "0123456789abcdef0123456789abcdef"
SPAN = "1111111111111111"


@pytest.mark.parametrize(
    ("meta", "trace_id", "span"),
    [
        ({"cantrip_trace_id": ID, "trace_id": "f" * 32}, ID, None),
        ({"trace_id": ID.upper()}, ID, None),
        ({"traceparent": f"00-{ID}-{SPAN}-01"}, ID, SPAN),
        ({"trace_id": ID, "traceparent": f"00-{ID}-{SPAN}-00"}, ID, SPAN),
        ({"trace_id": ID, "traceparent": f"00-{'a' * 32}-{SPAN}-00"}, ID, None),
    ],
)
def test_where_a_trace_id_comes_from(meta: dict[str, str], trace_id: str, span: str | None) -> None:
    trace = tracing.trace_from(meta)
    assert (trace.trace_id, trace.parent_span_id, trace.attributes) == (trace_id, span, {})
    assert trace.traceparent().startswith(f"00-{trace_id}-")


@pytest.mark.parametrize("given", ["job-42", "0" * 32, ID + "0"])
def test_an_odd_id_is_kept_beside_a_minted_one(given: str) -> None:
    trace = tracing.trace_from({"cantrip_trace_id": given})
    assert len(trace.trace_id) == 32
    assert trace.trace_id != given
    assert trace.attributes == {"cantrip_trace_id": given}


@pytest.mark.parametrize(
    "bad", ["", "00", f"ff-{ID}-{SPAN}-01", f"00-{'0' * 32}-{SPAN}-01", f"00-{ID}-{'0' * 16}-01", 5, None]
)
def test_a_bad_traceparent_is_none(bad: object) -> None:
    trace = tracing.trace_from({"traceparent": bad, "tracestate": "a=1", "baggage": 3})
    assert len(trace.trace_id) == 32
    assert (trace.parent_span_id, trace.tracestate, trace.baggage) == (None, "a=1", None)


@pytest.mark.anyio
async def test_the_loom_carries_it() -> None:
    cantrip = make(done())
    result = await cantrip.cast("go", trace_id=ID)
    assert result.trace_id == ID
    assert cantrip.loom.threads()[0].leaf.metadata.trace_id == ID
    odd = await make(done()).cast("go", trace_id="job-7")
    assert odd.trace_id != "job-7"
