"""ACP transcripts into looms: recordings of this package's own agent over real pipes, and of other agents' ways."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cantrip_acp import Loom
from cantrip_acp.core import exports
from cantrip_acp.training.export.selection import Source
from cantrip_acp.training.importing.acp import import_transcript
from cantrip_acp.training.importing.import_file import detect_format
from cantrip_acp.training.importing.importer import RecordWriter
from cantrip_acp.training.importing.json_lines import ImportProblem, Report
from cantrip_acp.types.records import Turn
from tests.support import processes
from tests.support.loom_stores import Place

RECIPE = """
crystal:
  provider: scripted
  responses:
    - thinking: Let me think.
      content: I try the gate.
      tool_calls: [{gate: echo, args: {text: hello}}, {gate: echo, args: {text: again}}]
    - tool_calls: [{gate: done, args: {answer: said hello}}]
    - content: Only words.
circle:
  gates: [done, echo]
  wards: [{max_turns: 3}]
"""


def request(number: int, method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


def update(what: str, /, **more: Any) -> dict[str, Any]:
    return {
        "jsonrpc": "2.0",
        "method": "session/update",
        "params": {"sessionId": "s1", "update": {"sessionUpdate": what, **more}},
    }


def words(text: str, kind: str = "agent_message_chunk") -> dict[str, Any]:
    return update(kind, content={"type": "text", "text": text})


def result(number: int, **more: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "result": more}


def prompt(number: int, *blocks: dict[str, Any]) -> dict[str, Any]:
    return request(number, "session/prompt", sessionId="s1", prompt=list(blocks))


def written(path: Path, messages: list[Any]) -> Path:
    path.write_text("".join(json.dumps(m) + "\n" for m in messages))
    return path


def imported(path: Path, into: Loom) -> Report:
    return import_transcript(path, RecordWriter(into))


def spoken(loom: Loom) -> list[Turn]:
    return [t for t in loom.turns() if t.role == "crystal"]


def recorded(folder: Path) -> Path:
    """What goes over the pipes of the real agent, both directions, as a tee writes it down."""
    recipe = folder / "r.cantrip.yaml"
    recipe.write_text(RECIPE)
    agent = processes.Popen(
        [sys.executable, "-m", "cantrip_acp.acp.start", "--recipe", str(recipe), "--state-dir", str(folder / "state")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert agent.stdin is not None
    assert agent.stdout is not None
    lines: list[Any] = []

    def ask(message: dict[str, Any]) -> dict[str, Any]:
        assert agent.stdin is not None
        assert agent.stdout is not None
        lines.append({"direction": "client", "message": message, "timestamp": 1_700_000_000 + len(lines)})
        agent.stdin.write(json.dumps(message) + "\n")
        agent.stdin.flush()
        while True:
            told = json.loads(agent.stdout.readline())
            lines.append({"direction": "agent", "message": told, "timestamp": 1_700_000_000 + len(lines)})
            if told.get("id") == message["id"] and "method" not in told:
                assert isinstance(told, dict)
                return told

    try:
        ask(request(0, "initialize", protocolVersion=1, clientCapabilities={}))
        session = ask(request(1, "session/new", cwd=str(folder), mcpServers=[]))["result"]["sessionId"]
        for number, text in ((2, "Say hello."), (3, "And now?")):
            ask(request(number, "session/prompt", sessionId=session, prompt=[{"type": "text", "text": text}]))
    finally:
        agent.stdin.close()
        agent.wait(60)
        agent.stdout.close()
    return written(folder / "transcript.jsonl", lines)


def test_a_session_of_the_real_agent(tmp_path: Path) -> None:
    path = recorded(tmp_path)
    assert detect_format(str(path)) == "acp"
    loom = Loom.memory()
    report = imported(path, loom)
    turns = spoken(loom)
    assert report.casts == 2
    assert [s.intent for s in loom.cast_starts().values()] == ["Say hello.", "And now?"]
    assert turns[0].utterance.thinking == "Let me think."
    assert turns[0].utterance.content == "I try the gate."
    results = [r for t in turns for r in t.observation.results]
    assert json.loads(turns[0].utterance.tool_calls[0].args) == {"text": "hello"}
    assert any("hello" in json.dumps(r.result) for r in results)
    assert turns[-1].utterance.content == "Only words."
    assert turns[-1].terminated
    assert turns[-1].metadata.timestamp.startswith("2023-11-14T")
    again = imported(path, loom)
    assert (again.turns, again.casts, again.known) == (0, 0, report.turns)
    (row,) = exports.find("trl-sft").rows(Source(loom))
    assert [m["role"] for m in row["messages"] if m["role"] == "user"] == ["user", "user"]


STRANGER: list[Any] = [
    request(0, "initialize", protocolVersion=1),
    result(0, protocolVersion=1, agentInfo={"name": "stranger", "version": "2"}),
    request(1, "session/new", cwd="/", mcpServers=[]),
    result(1, sessionId="s1"),
    update("user_message_chunk", content={"type": "text", "text": "replayed"}),
    prompt(
        2,
        {"type": "text", "text": "Look at"},
        {"type": "resource", "resource": {"uri": "file:///a", "text": "the text"}},
        {"type": "resource_link", "uri": "file:///b", "name": "b"},
        {"type": "image", "mimeType": "image/png", "data": "AAAA"},
        {"type": "text", "text": "this."},
        {"type": "hologram"},
    ),
    words("hm", "agent_thought_chunk"),
    words("I re"),
    words("ad."),
    update("tool_call", toolCallId="a", title="Read file a", kind="read", status="pending", rawInput={"path": "a"}),
    update("tool_call", toolCallId="b", title="run", kind="execute", _meta={"x": {"toolName": "Bash"}}),
    # The agent asks with an id of its own, which is the prompt's by chance.
    request(2, "session/request_permission", sessionId="s1", options=[]),
    result(2, outcome={"outcome": "selected", "optionId": "yes"}),
    request(7, "fs/read_text_file", sessionId="s1", path="/a"),
    result(7, content="secret"),
    update(
        "tool_call_update",
        toolCallId="a",
        status="completed",
        content=[{"type": "content", "content": {"type": "text", "text": "contents"}}],
    ),
    update("tool_call_update", toolCallId="b", status="failed", rawOutput={"code": 1}),
    update("plan", entries=[]),
    update("tool_call", toolCallId="c", title="next", kind="other", status="completed"),
    words("Done."),
    result(2, stopReason="end_turn"),
    prompt(3, {"type": "text", "text": "More."}),
    words("Never"),
    result(3, stopReason="cancelled"),
    prompt(4, {"type": "text", "text": "Fails."}),
    words("I"),
    {"jsonrpc": "2.0", "id": 4, "error": {"code": -32603, "message": "it broke"}},
    prompt(5, {"type": "text", "text": "Open."}),
    words("And so"),
]


def test_a_strangers_session(tmp_path: Path) -> None:
    loom = Loom.memory()
    report = imported(written(tmp_path / "t.jsonl", STRANGER), loom)
    turns = spoken(loom)
    assert [(t.utterance.content, t.gate_calls, t.reason) for t in turns] == [
        ("I read.", ("read", "Bash"), None),
        (None, ("next",), None),
        ("Done.", (), "text"),
        ("Never", (), "cancelled"),
        ("I", (), "error"),
        ("And so", (), None),
    ]
    assert [(r.result, r.is_error) for r in turns[0].observation.results] == [("contents", False), ({"code": 1}, True)]
    start, context = loom.cast_of(turns[0].cast_id or "")
    assert start is not None
    assert start.intent == "Look at\n\nthis."
    assert start.attributes["agent"] == "stranger"
    assert [(c.text, c.uri) for c in context] == [
        ("the text", "file:///a"),
        ("[link: file:///b]", "file:///b"),
        ("", None),
    ]
    end = loom.cast_end(turns[4].cast_id or "")
    assert end is not None
    assert end.error == "it broke"
    assert report.notes == {
        "updates outside of a prompt (a session's replay, say)": 1,
        "a block of a prompt of the type 'hologram'": 1,
        "questions for permission": 1,
        "what the agent asked its editor for (fs/read_text_file)": 1,
        "updates that a loom has no place for (plan)": 1,
        "prompts whose end is not in the transcript": 1,
        "requests that a loom has no place for (initialize)": 1,
        "requests that a loom has no place for (session/new)": 1,
        "a field that a loom has no place for: tool_call._meta": 1,
        "the title of a tool call, beside its name": 2,
    }


def test_whatever_is_dropped_is_noted(tmp_path: Path) -> None:
    lines = [
        {"message": prompt(1, {"type": "text", "text": "Go.", "annotations": {"a": 1}}), "peer": "x"},
        {**words("Hm."), "trace": "abc"},
        update("agent_message_chunk", content={"type": "text", "text": "x"}, messageId="m1"),
        update("agent_message_chunk", content={"type": "image", "mimeType": "image/png", "data": "AAAA"}),
        update("plan", entries=[]),
        update("tool_call", toolCallId="a", title="edit", kind="edit", locations=[{"path": "/a"}], mood="good"),
        update(
            "tool_call_update",
            toolCallId="a",
            content=[
                {"type": "diff", "path": "/a", "oldText": "1", "newText": "2"},
                {"type": "content", "content": {"type": "image", "mimeType": "image/png", "data": "AAAA"}},
            ],
        ),
        update("usage_update", used=1, size=2),
        request(9, "_other/method"),
        result(9, x=1),
        {"jsonrpc": "2.0", "id": 77, "result": {}},
        {"jsonrpc": "2.0", "id": 1, "result": {"stopReason": "bored", "usage": {"totalTokens": 3}}},
        update("plan", entries=[]),
        {"jsonrpc": "2.0", "method": "_other/notice"},
    ]
    report = imported(written(tmp_path / "t.jsonl", lines), Loom.memory())
    field = "a field that a loom has no place for: "
    assert report.notes == {
        f"{field}line.peer": 1,
        f"{field}message.trace": 1,
        f"{field}block text.annotations": 1,
        f"{field}agent_message_chunk.messageId": 1,
        f"{field}agent_message_chunk.content.mimeType": 1,
        f"{field}agent_message_chunk.content.data": 1,
        f"{field}tool_call.locations": 1,
        f"{field}tool_call.mood": 1,
        f"{field}session/prompt answer.usage": 1,
        "what an agent said that is not text (image)": 1,
        "the texts of a change of a file": 1,
        "what a tool showed that is not text (image)": 1,
        "what a tool call showed that did not end": 1,
        "updates that a loom has no place for (plan)": 2,
        "updates that a loom has no place for (usage_update)": 1,
        "requests that a loom has no place for (_other/method)": 1,
        "notifications that a loom has no place for (_other/notice)": 1,
        "answers to requests that are not in the transcript": 1,
        "an unknown reason to stop, kept as 'cancelled' (bored)": 1,
    }


def test_a_longer_recording_of_the_same_session_adds_what_is_new(tmp_path: Path, place: Place) -> None:
    into = place.open()
    short = imported(written(tmp_path / "short.jsonl", STRANGER[:21]), into)
    into = place.again(into)
    whole = imported(written(tmp_path / "whole.jsonl", STRANGER), into)
    assert (short.turns, whole.turns, whole.known) == (3, 3, 3)
    assert len(into.leaves()) == 1


def test_lines_may_be_wrapped_and_escaped(tmp_path: Path) -> None:
    wrapped = [{"time": 3, "data": json.dumps(m), "timestamp": "2026-01-01T00:00:00Z"} for m in STRANGER]
    loom = Loom.memory()
    assert imported(written(tmp_path / "t.jsonl", wrapped), loom).turns == 6
    assert spoken(loom)[0].metadata.timestamp == "2026-01-01T00:00:00Z"


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("nonsense", "t.jsonl:2: not JSON"),
        ('{"hello": 1}', "t.jsonl:2: this is not a JSON-RPC message"),
        ('{"jsonrpc": "2.0", "id": 1, "method": "session/prompt", "params": []}', "t.jsonl:2: not an ACP message"),
        (
            '{"jsonrpc": "2.0", "id": 1, "method": "session/prompt", "params": {"sessionId": "s", "prompt": "x"}}',
            "not a list of blocks",
        ),
        ('{"jsonrpc": "2.0", "method": "session/update", "params": {}}', "t.jsonl:2: not an ACP message"),
        ('{"jsonrpc": "2.0", "id": 1, "method": 7, "params": {}}', "t.jsonl:2: not an ACP message"),
    ],
)
def test_what_is_broken_is_told_with_its_line(line: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps(STRANGER[0]) + "\n" + line + "\n")
    with pytest.raises(ImportProblem) as problem:
        imported(path, Loom.memory())
    assert told in str(problem.value)
