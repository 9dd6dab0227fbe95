"""Spans of a tree of entities: the real SDK, in memory, in a process of its own (its provider is the process's for good)."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

PROGRAM = """
import json
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
memory = InMemorySpanExporter()
provider = TracerProvider(); provider.add_span_processor(SimpleSpanProcessor(memory)); trace.set_tracer_provider(provider)
import anyio
from cantrip_acp import *
def call(gate, **args): return {"tool_calls": [{"gate": gate, "args": args}]}
script = ScriptedCrystal(
    [call("call_agent_batch", requests=["a", {"intent": "b", "medium": "bash"}]),
     call("call_agent", intent="x", gates=["write_file"]), {"content": "over"}],
    children=[[call("echo", text="x"), {"content": "A"}], [{"bash": 'cantrip_done "$TRACEPARENT"'}]])
circle = Circle(gates=["done", "echo", "call_agent", "call_agent_batch"], wards=[{"max_turns": 5}])
spell = Cantrip(script, circle=circle)
anyio.run(spell.cast, "go")
answers = [r.result for t in spell.loom.turns() for r in t.observation.results if r.gate == "call_agent_batch"][0]
spans = [json.loads(s.to_json()) for s in memory.get_finished_spans()]
print(json.dumps({"spans": spans, "answers": answers}))
"""


def test_a_child_is_below_the_gate_call_that_spawned_it() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    spans: dict[str, Any] = {s["context"]["span_id"]: s for s in told["spans"]}
    assert len({s["context"]["trace_id"] for s in spans.values()}) == 1

    def above(span: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = spans[span["parent_id"]]
        return found

    agents = [s for s in spans.values() if s["name"].startswith("invoke_agent")]
    children = [s for s in agents if s["parent_id"] in spans]
    assert (len(agents), len(children)) == (3, 2)
    assert {above(s)["name"] for s in children} == {"execute_tool call_agent_batch"}
    echo = next(s for s in spans.values() if s["name"] == "execute_tool echo")
    assert above(echo) in children
    # What a child's command starts is below the command.
    _, trace_id, span_id, _ = told["answers"][1].split("-")
    command = next(s for s in spans.values() if s["name"] == "execute_tool bash")
    assert (f"0x{trace_id}", f"0x{span_id}") == (command["context"]["trace_id"], command["context"]["span_id"])
    refused = [e for s in spans.values() for e in s["events"]]
    assert [e["name"] for e in refused] == ["cantrip.ward.child_rejected"]
    assert refused[0]["attributes"]["cantrip.ward"] == "gate"
    assert "cannot grant gate 'write_file'" in refused[0]["attributes"]["cantrip.why"]
