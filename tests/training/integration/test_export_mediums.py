"""What was seen in a sandbox: programs, their outputs, and calls beside them, told as they were sent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cantrip_acp import Call, Cantrip, Circle, Loom, ScriptedCrystal
from cantrip_acp.core import exports
from cantrip_acp.core.exports import ThreadSelection
from cantrip_acp.core.forking.replay import replay
from cantrip_acp.gates.contract import Gate, GateContext
from cantrip_acp.telemetry import tracing
from cantrip_acp.training.export.selection import Source
from cantrip_acp.types.records import STEERING
from tests.support.export_looms import asked, saw
from tests.support.fixtures.core import INSTANT

pytestmark = [pytest.mark.anyio, pytest.mark.sandbox]

BASH = [
    {"bash": "echo out; echo err >&2; exit 3"},
    {"tool_calls": [{"gate": "bash", "args": {"command": "true"}}, {"gate": "echo", "args": {"text": "beside"}}]},
    {"bash": "echo_gate x 2>/dev/null; cantrip_echo y"},
    {"bash": "cantrip_done ok; echo never"},
]
CODE = [
    {"code": "x = 6 * 7\nprint('x is', x)\nx"},
    {"content": "As words:\n```python\nx + 1\n```"},
    {"code": "1 / 0"},
    {"code": "echo('hi'); done({'x': x})"},
]


@pytest.mark.parametrize(("medium", "script"), [("bash", BASH), ("code", CODE)])
async def test_programs_and_their_outputs(medium: str, script: list[dict[str, str]], tmp_path: Path) -> None:
    loom = Loom.open(tmp_path / "x.loom.jsonl")
    circle = Circle(medium, ["done", "echo"], [{"max_turns": 8}], workspace=tmp_path)
    crystal = ScriptedCrystal(script, record_inputs=True, tools="text")
    cantrip = Cantrip(crystal, Call(system_prompt="Work."), circle, loom=loom, retry=INSTANT)
    result = await cantrip.cast("go")
    assert result.terminated
    loom.close()
    with Loom.open(tmp_path / "x.loom.jsonl", readonly=True) as again:
        leaf = again.leaves()[-1]
        assert [messages for _, messages, _ in saw(again, leaf)] == asked(cantrip)
        (row,) = exports.find("trl-sft").rows(Source(again))
    # The capability block is the second message, as it was told.
    assert row["messages"][1]["content"] == circle.capabilities(text_calls=True)
    # A program that was given as text stands in its call alone.
    said = [m for m in row["messages"] if (m.get("content") or "").startswith("As words:")]
    assert [(m["content"], len(m["tool_calls"])) for m in said] == [("As words:", 1)] * (medium == "code")
    assert [t.name for t in circle.tools] == [medium if medium == "bash" else "python"]


WORK: dict[str, list[dict[str, Any]]] = {
    "conversation": [{"tool_calls": [{"gate": "work", "args": {}}]}, {"tool_calls": [{"gate": "work", "args": {}}]},
                     {"tool_calls": [{"gate": "done", "args": {"answer": "ok"}}]}],
    "bash": [{"bash": "cantrip_work"}, {"bash": "cantrip_work"}, {"bash": "cantrip_done ok"}],
    "code": [{"code": "work()"}, {"code": "work()"}, {"code": "done('ok')"}],
    "monty": [{"code": "work()"}, {"code": "work()"}, {"code": "done('ok')"}],
}  # fmt: skip
FORMATS = ("trl-sft", "trl-preference", "art", "verifiers", "openai", "otlp")


def chat(name: str, row: dict[str, Any]) -> list[dict[str, Any]]:
    """The messages of a row in order. Of the spans of a trace: what is new for each query, and its answer."""
    if name == "art":
        return [each.get("message", each) for each in row["trajectories"][0]["messages_and_choices"]]
    if name == "trl-preference":
        return [*row["prompt"], *row["chosen"]]
    if name == "verifiers":
        nodes = row["traces"][0]["nodes"]
        path: list[dict[str, Any]] = [nodes[-1]]
        while path[0]["parent"] is not None:
            path.insert(0, nodes[path[0]["parent"]])
        return [node["message"] for node in path]
    if name == "otlp":
        found = []
        for span in row["resourceSpans"][0]["scopeSpans"][0]["spans"]:
            about = {each["key"]: each["value"].get("stringValue", "") for each in span["attributes"]}
            known = [
                json.loads(about[key]) for key in ("gen_ai.input.messages", "gen_ai.output.messages") if key in about
            ]
            if span["name"].startswith("chat"):
                found += [message for messages in known for message in messages]
        for message in found:
            message["content"] = "".join(part.get("content", "") for part in message["parts"])
        return found
    messages: list[dict[str, Any]] = row["messages"]
    return messages


@pytest.mark.parametrize("medium", list(WORK))
async def test_steering_stands_where_the_crystal_read_it(
    medium: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "content_wanted", lambda: True)
    texts = [["use tabs", 'and "quotes"'], ["hurry"]]

    async def work(args: Any, context: GateContext) -> str:
        # While the program runs, and so before the next query.
        for text in texts.pop(0) if texts else ():
            entity.steer(text)
        return "worked"

    gate = Gate("work", "Work.", {"type": "object", "properties": {}}, work)

    def made(script: list[dict[str, Any]], loom: Loom | None = None) -> Cantrip:
        circle = Circle(medium, ["done", gate], [{"max_turns": 8}], workspace=tmp_path)
        crystal = ScriptedCrystal(script, record_inputs=True)
        return Cantrip(crystal, Call(system_prompt="Work."), circle, loom=loom, retry=INSTANT)

    with Loom.open(tmp_path / "x.loom.jsonl") as loom:
        cantrip = made(WORK[medium], loom)
        async with cantrip.invoke() as entity:
            assert (await entity.cast("go")).terminated
        leaf = entity.last_turn
        steered = [[m.content for m in query if m.kind == STEERING] for query in asked(cantrip)]
        assert steered == [[], ["use tabs", 'and "quotes"'], ["use tabs", 'and "quotes"', "hurry"]]
        loom.annotate_reward(leaf, 1.0, by="test")
        # Another thread of the same intent, so that there is a pair.
        other = made(WORK[medium][2:], loom)
        async with other.invoke() as second:
            await second.cast("go")
            loom.annotate_reward(second.last_turn, 0.0, by="test")
    with Loom.open(tmp_path / "x.loom.jsonl", readonly=True) as again:
        assert [messages for _, messages, _ in saw(again, leaf)] == asked(cantrip)
        told = await replay(made([]), again, leaf)
        assert (told.turns, told.divergence) == (3, None)
        for name in FORMATS:
            threads = () if name == "trl-preference" else (leaf,)
            (row,) = exports.find(name).rows(Source(again, ThreadSelection(threads=threads)))
            places = [m["role"] if m["role"] != "user" else m["content"] for m in chat(name, row)]
            places = places[places.index("assistant") :]
            kept = [place for place in places if place != "tool"]
            assert kept == ["assistant", "use tabs", 'and "quotes"', "assistant", "hurry", "assistant"], name
