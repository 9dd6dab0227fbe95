"""A last turn whose arguments are larger than the window does not end a session, with any provider."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cantrip_acp import Call, Cantrip, Circle, ScriptedCrystal
from cantrip_acp.core.context import Context
from cantrip_acp.crystals.anthropic.messages import rendered
from cantrip_acp.crystals.catalog.types import ModelInfo
from cantrip_acp.crystals.google.messages import contents_of
from cantrip_acp.crystals.openai.chat_messages import Dialect, render
from cantrip_acp.crystals.openai.responses_api import render_input
from cantrip_acp.types.messages import Message, ToolCall
from cantrip_acp.types.records import GateRecord, Observation, Turn, Utterance

pytestmark = pytest.mark.anyio

LARGE = "x = 'ünï \\\\ \"quoted\"'\n" * 250_000
ARGS = json.dumps({"path": "large.py", "content": LARGE})
KEPT: dict[str, Any] = {
    "anthropic": {
        "family": "anthropic",
        "model": "m",
        "blocks": [{"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}, {"type": "tool_use"}],
    },
    "google": {
        "family": "google",
        "model": "m",
        "parts": [{"functionCall": {"name": "write_file", "args": json.loads(ARGS)}, "thoughtSignature": "c2ln"}],
    },
    "openai": {"family": "openai", "model": "m", "items": [{"type": "function_call", "arguments": ARGS}]},
    "plain": None,
}


def compacted(kept: Any) -> Context:
    context = Context(Call("You write."), Circle(gates=["done", "echo"], wards=[{"max_turns": 3}]))
    context.begin("Write it.")
    call = ToolCall("c1", "write_file", ARGS)
    said = Utterance("Here it is.", tool_calls=(call,)) if kept is None else Utterance(None, None, (call,), None, kept)
    seen = Observation((GateRecord("write_file", {}, "written", False, "c1"),))
    context.add(Turn("t1", None, "c", "e", "k", utterance=said, observation=seen))
    assert context.compact(2_000) == 1
    assert context.tokens <= 2_000
    return context


@pytest.mark.parametrize("kind", KEPT)
def test_every_rendering_stays_small_and_valid(kind: str) -> None:
    messages = compacted(KEPT[kind]).messages
    info = ModelInfo(known=True)
    wires: dict[str, Any] = {
        "anthropic": rendered(messages, "m", info).messages,
        "google": contents_of(messages, "m", info)[1],
        "chat": render(messages, info, "m", Dialect("openai-chat")),
        "responses": render_input(messages, info, "m"),
    }
    for wire in wires.values():
        text = json.dumps(wire)
        assert len(text) < 12_000
        assert "large.py" in text
        assert "characters cut here; the loom has them" in text.replace("\\u2026", "…")
    said, answer = wires["anthropic"][1:3]
    (use,) = [block for block in said["content"] if block["type"] == "tool_use"]
    assert answer["content"][0]["tool_use_id"] == use["id"]
    assert use["input"]["path"] == "large.py"
    # Signed thinking does not repeat the arguments, and stays.
    assert (said["content"][0]["type"] == "thinking") == (kind == "anthropic")
    (call,) = wires["chat"][2]["tool_calls"]
    assert json.loads(call["function"]["arguments"])["path"] == "large.py"
    assert wires["chat"][3]["tool_call_id"] == call["id"]
    (part,) = [p for p in wires["google"][1]["parts"] if "functionCall" in p]
    assert part["functionCall"]["args"]["path"] == "large.py"


@pytest.mark.parametrize(
    "args", ["{" * 500_000, json.dumps(list(range(300_000))), json.dumps({f"k{n}": n for n in range(90_000)})]
)
def test_arguments_that_are_no_object_of_texts_become_valid_ones(args: str) -> None:
    context = Context(Call("You write."), Circle(gates=["done", "echo"], wards=[{"max_turns": 3}]))
    context.begin("Write it.")
    context.add(Turn("t1", None, "c", "e", "k", utterance=Utterance(None, tool_calls=(ToolCall("c1", "echo", args),))))
    context.compact(2_000)
    assert context.tokens <= 2_000
    (message,) = [m for m in context.messages if m.tool_calls]
    assert "cut here" in json.loads(message.tool_calls[0].args)["cut"]


async def test_a_session_goes_on_after_five_megabytes_of_arguments() -> None:
    write = {"tool_calls": [{"gate": "echo", "args": {"text": LARGE}}]}
    crystal = ScriptedCrystal([write, {"content": "It is written."}], record_inputs=True, context_window=4_000)
    cantrip = Cantrip(crystal, Call(), Circle(gates=["done", "echo"], wards=[{"max_turns": 5}]))
    result = await cantrip.cast("Write it.")
    assert result.result == "It is written."
    (turn, _) = [t for t in cantrip.loom.turns() if t.role == "crystal"]
    assert json.loads(turn.utterance.tool_calls[0].args)["text"] == LARGE
    assert sum(len(c.args) for m in crystal.invocations[1].messages for c in m.tool_calls) < 16_000
    assert isinstance(crystal.invocations[1].messages[0], Message)
