"""The tests of `tests/core/unit/test_telemetry.py` that start processes."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.core.unit.test_telemetry import ID

SPANS = """
import json, sys
sys.path.insert(0, "")
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
memory = InMemorySpanExporter()
provider = TracerProvider(); provider.add_span_processor(SimpleSpanProcessor(memory)); trace.set_tracer_provider(provider)
from cantrip_acp import *
calls = [{"gate": "echo", "args": {"text": 5}}], [{"gate": "done", "args": {"answer": 1}}]
c = Cantrip(ScriptedCrystal([{"tool_calls": c} for c in calls]),
            circle=Circle(gates=["done", "echo"], wards=[{"max_turns": 3}]))
c.cast_sync("go", trace_id="%s")
print(json.dumps([
    [s.name, format(s.context.trace_id, "032x"), s.context.span_id, s.parent.span_id if s.parent else None]
    for s in memory.get_finished_spans()
]))
"""


def test_spans_nest_in_the_given_trace() -> None:
    ran = subprocess.run([sys.executable, "-c", SPANS % ID], capture_output=True, text=True, timeout=60, check=True)
    spans = json.loads(ran.stdout)
    assert [s[0] for s in spans] == ["chat scripted", "chat scripted", "execute_tool done", "invoke_agent"]
    assert {s[1] for s in spans} == {ID}
    agent = spans[-1][2]
    assert [s[3] for s in spans[:-1]] == [agent] * 3


def test_nothing_of_opentelemetry_is_loaded_without_an_exporter() -> None:
    code = "import sys, cantrip_acp.core.cantrip\nprint([m for m in sys.modules if 'opentelemetry' in m])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.strip() == "[]"
