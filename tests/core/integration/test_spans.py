"""What spans say: the real SDK, in memory, in a process of its own (its provider is the process's for good)."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

ID = "0af7651916cd43dd8448eb211c80319c"
SECRET = "planted-secret-of-the-environment"

PROGRAM = """
import json, sys
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
memory = InMemorySpanExporter()
provider = TracerProvider(); provider.add_span_processor(SimpleSpanProcessor(memory)); trace.set_tracer_provider(provider)
import anyio
from cantrip_acp import *
from cantrip_acp.types.messages import Attachment
from cantrip_acp.core.context import ContextBlock
from cantrip_acp.crystals.retry import RetryPolicy
from cantrip_acp.telemetry.tracing import trace_from
SECRET = "planted-secret-of-the-environment"
async def no_sleep(s): pass
responses = [
    {"thinking": "Hm.", "chunks": ["I say ", SECRET], "tool_calls": [{"id": "c1", "gate": "echo", "args": {"text": SECRET}}],
     "usage": {"prompt_tokens": 100, "completion_tokens": 9, "cached_tokens": 60, "cache_write_tokens": 7,
               "reasoning_tokens": 4, "cost": 0.25}},
    {"error": {"status": 529, "message": "busy"}},
    {"tool_calls": [{"id": "c2", "gate": "read_file", "args": {"path": "nowhere"}},
                    {"id": "c3", "gate": "done", "args": {"answer": "all said"}}], "usage": {"prompt_tokens": 5}},
]
call = Call("Be " + SECRET, temperature=0.5, top_p=0.9, max_tokens=99, stop=("END",))
def cantrip(responses, **more):
    circle = Circle(gates=["done", "echo", "read_file"], wards=[{"max_turns": 4}, *more.pop("wards", ())], workspace="/")
    return Cantrip(ScriptedCrystal(responses), call, circle, name="talker", retry=RetryPolicy(sleep=no_sleep, max_retries=1))
picture = ContextBlock(attachment=Attachment("image", "image/png", "QUJD"), uri="file:///a.png")
async def main():
    parent = trace_from({"traceparent": "00-%(id)s-00f067aa0ba902b7-01", "tracestate": "a=1"})
    entity = cantrip(responses).invoke()
    await entity.cast("Go, " + SECRET, trace=parent, context=[picture])
    try:
        await cantrip([{"error": {"status": 401, "message": "bad key " + SECRET}}]).cast("fail", trace_id="%(id)s")
    except Exception: pass
    await cantrip([{"content": "x", "delay_ms": 60000}], wards=[{"max_seconds": 0.2}]).cast("slow", trace_id="%(id)s")
anyio.run(main)
print(json.dumps([json.loads(s.to_json()) | {"events": len(s.events)} for s in memory.get_finished_spans()]))
""".replace("%(id)s", ID)


def spans(content: str | None) -> list[dict[str, Any]]:
    import os

    env = {**os.environ, "PLANTED_TOKEN": SECRET}
    if content is not None:
        env["OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"] = content
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=100, env=env)
    assert ran.returncode == 0, ran.stderr
    assert SECRET not in ran.stdout
    found: list[dict[str, Any]] = json.loads(ran.stdout)
    return found


@pytest.fixture(scope="module")
def plain() -> list[dict[str, Any]]:
    return spans(None)


@pytest.fixture(scope="module")
def telling() -> list[dict[str, Any]]:
    return spans("true")


def test_their_names_kinds_and_places(plain: list[dict[str, Any]]) -> None:
    model = "scripted"
    assert [(s["name"], s["kind"].removeprefix("SpanKind.")) for s in plain] == [
        (f"chat {model}", "CLIENT"),
        ("execute_tool echo", "INTERNAL"),
        (f"chat {model}", "CLIENT"),
        ("execute_tool read_file", "INTERNAL"),
        ("execute_tool done", "INTERNAL"),
        ("invoke_agent talker", "INTERNAL"),
        (f"chat {model}", "CLIENT"),
        ("invoke_agent talker", "INTERNAL"),
        (f"chat {model}", "CLIENT"),
        ("invoke_agent talker", "INTERNAL"),
    ]
    assert {s["context"]["trace_id"] for s in plain} == {f"0x{ID}"}
    cast = plain[5]
    assert cast["parent_id"] == "0x00f067aa0ba902b7"
    assert {s["parent_id"] for s in plain[:5]} == {cast["context"]["span_id"]}
    assert "a" in plain[0]["context"]["trace_state"]
    assert not any(s["events"] for s in plain)


def test_a_query(plain: list[dict[str, Any]]) -> None:
    said = plain[0]["attributes"]
    agent = said.pop("cantrip.entity.id")
    assert said.pop("gen_ai.response.time_to_first_chunk") >= 0
    assert said == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "scripted",
        "gen_ai.request.model": "scripted",
        "gen_ai.conversation.id": agent,
        "gen_ai.agent.name": "talker",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.9,
        "gen_ai.request.max_tokens": 99,
        "gen_ai.request.stop_sequences": ["END"],
        "gen_ai.request.stream": True,
        "gen_ai.response.model": "scripted",
        "gen_ai.response.finish_reasons": ["tool_call"],
        "gen_ai.usage.input_tokens": 100,
        "gen_ai.usage.output_tokens": 9,
        "gen_ai.usage.cache_read.input_tokens": 60,
        "gen_ai.usage.cache_write.input_tokens": 7,
        "gen_ai.usage.reasoning.output_tokens": 4,
        "cantrip.usage.cost_usd": 0.25,
    }
    assert plain[2]["attributes"]["cantrip.attempts"] == 2


def test_calls_and_their_failures(plain: list[dict[str, Any]]) -> None:
    echo, read = plain[1], plain[3]
    said = echo["attributes"]
    assert (said["gen_ai.tool.name"], said["gen_ai.tool.call.id"], said["gen_ai.tool.type"]) == (
        "echo",
        "c1",
        "function",
    )
    assert said["gen_ai.tool.description"]
    assert "error.type" not in said
    assert read["attributes"]["error.type"] == "gate_error"
    assert read["status"]["status_code"] == "ERROR"


def test_how_casts_end(plain: list[dict[str, Any]]) -> None:
    done, failed, slow = plain[5], plain[7], plain[9]
    assert done["attributes"]["cantrip.reason"] == "done"
    assert done["attributes"]["gen_ai.usage.input_tokens"] == 105
    assert "gen_ai.usage.cache_read.input_tokens" not in done["attributes"]
    assert done["status"]["status_code"] == "UNSET"
    for span in (failed, plain[6]):
        assert span["attributes"]["error.type"] == "401"
        assert span["status"]["status_code"] == "ERROR"
        assert "bad key" in span["status"]["description"]
    for span in (slow, plain[8]):
        assert span["attributes"]["error.type"] == "cancelled"
        assert span["status"]["status_code"] == "UNSET"


def test_content_stays_out_unless_asked_for(plain: list[dict[str, Any]]) -> None:
    text = json.dumps(plain)
    for words in ("I say", "Go, ", "Hm.", "nowhere", "all said"):
        assert words not in text
    assert not any("messages" in key or "arguments" in key for span in plain for key in span["attributes"])


def test_content_where_it_is_asked_for(telling: list[dict[str, Any]]) -> None:
    said = telling[0]["attributes"]
    assert json.loads(said["gen_ai.system_instructions"])[0] == {"type": "text", "content": "Be [redacted]"}
    (first,) = json.loads(said["gen_ai.input.messages"])
    assert first["role"] == "user"
    assert first["parts"][-1] == {"type": "text", "content": "Go, [redacted]"}
    assert [t["name"] for t in json.loads(said["gen_ai.tool.definitions"])] == ["done", "echo", "read_file"]
    assert json.loads(said["gen_ai.output.messages"]) == [
        {
            "role": "assistant",
            "parts": [
                {"type": "reasoning", "content": "Hm."},
                {"type": "text", "content": "I say [redacted]"},
                {"type": "tool_call", "id": "c1", "name": "echo", "arguments": {"text": "[redacted]"}},
            ],
            "finish_reason": "tool_call",
        }
    ]
    assert json.loads(telling[1]["attributes"]["gen_ai.tool.call.arguments"]) == {"text": "[redacted]"}
    assert json.loads(telling[1]["attributes"]["gen_ai.tool.call.result"]) == "[redacted]"
    again = json.loads(telling[2]["attributes"]["gen_ai.input.messages"])
    assert again[2]["parts"][0] == {"type": "tool_call_response", "id": "c1", "response": "[redacted]"}
    assert "QUJD" not in json.dumps(telling)
    assert "all said" in telling[5]["attributes"]["gen_ai.output.messages"]
