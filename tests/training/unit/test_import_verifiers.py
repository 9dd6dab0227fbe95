"""verifiers traces into looms: what was exported comes back, foreign ones say what they said, broken ones are told by line."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cantrip_acp import Loom
from cantrip_acp.core import exports
from cantrip_acp.text.redaction import shared
from cantrip_acp.training.export.selection import Source
from cantrip_acp.training.importing.importer import RecordWriter
from cantrip_acp.training.importing.json_lines import ImportProblem, Report
from cantrip_acp.training.importing.verifiers import import_traces
from cantrip_acp.types.errors import LoomError
from tests.support.export_looms import forked, lived, saw
from tests.training.unit.test_export_children import delegated
from tests.training.unit.test_export_formats import _sampled, rows

pytestmark = pytest.mark.anyio


def written(path: Path, lines: Iterable[Any]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def imported(path: Path, into: Loom) -> Report:
    return import_traces(path, RecordWriter(into))


def bare(episode: dict[str, Any]) -> Any:
    """What must be the same after a round trip: the tree, who said what, links, tokens, rewards, ends."""
    trace = episode["traces"][0]
    nodes = [{k: v for k, v in n.items() if k != "timestamp"} for n in trace["nodes"]]
    return {
        "nodes": nodes,
        "usage": [c.get("usage") for c in trace["calls"]],
        "rewards": trace["rewards"],
        "ok": trace["ok"],
        "stop": trace.get("stop_condition"),
        "reply": trace.get("root_reply"),
        "turns": trace["info"]["cantrip"]["turns"],
        "prompt": trace["task"]["data"],
    }


async def long_life() -> Loom:
    loom, _ = await lived()
    loom.annotate_reward(loom.leaves()[-1], 0.5)
    return loom


async def group() -> Loom:
    loom = await forked((1.0, None, 0.25))
    loom.append(_sampled(loom))
    return loom


async def family() -> Loom:
    return (await delegated())[0]


@pytest.mark.parametrize("made", [long_life, group, family])
async def test_what_was_exported_comes_back_and_is_exported_the_same(made: Any, tmp_path: Path) -> None:
    loom = await made()
    before = rows(loom, "verifiers")
    path = written(tmp_path / "traces.jsonl", before)
    fresh = Loom.memory()
    report = imported(path, fresh)
    assert not [note for note in report.notes if "field" in note]
    spoken = [t for t in loom.turns() if t.role == "crystal"]
    assert report.turns == len([t for t in fresh.turns() if t.role == "crystal"])
    after = rows(fresh, "verifiers")
    assert [_ids(e) for e in after] == [_ids(e) for e in before]
    for one, other in zip(before, after, strict=True):
        assert _content(one) == _content(other)
    assert len(spoken) >= report.turns
    # Twice adds nothing, and neither does bringing it home.
    for into in (fresh, loom):
        count = len(list(into.records()))
        again = imported(path, into)
        assert (again.turns, again.casts) == (0, 0)
        assert again.known
        assert len(list(into.records())) - count == again.rewards


def _ids(episode: dict[str, Any]) -> Any:
    return list(episode["traces"][0]["info"]["cantrip"]["turns"].values())


def _content(episode: dict[str, Any]) -> Any:
    found = bare(episode)
    # A turn without a cast, as one of these, gets its thread's.
    found["prompt"] = found["prompt"].get("system_prompt")
    return found


def node(role: str, content: Any, parent: int | None, **more: Any) -> dict[str, Any]:
    message = {"role": role, "content": content}
    for key in ("tool_calls", "tool_call_id", "reasoning_content", "name"):
        if key in more:
            message[key] = more.pop(key)
    return {"parent": parent, "message": message, "sampled": role == "assistant", "timestamp": 1.7e9, **more}


def call(call_id: str, name: str, **args: Any) -> dict[str, Any]:
    return {"id": call_id, "name": name, "arguments": json.dumps(args)}


FOREIGN: dict[str, Any] = {
    "id": "abc123",
    "task": {"type": "Math", "data": {"prompt": "2+2?"}},
    "agent": {"config": {}, "name": "solver"},
    "nodes": [
        node(
            "system", "Solve.", None, tools=[{"name": "calc", "description": "Sums.", "parameters": {"type": "object"}}]
        ),
        node("user", "2+2?", 0, token_ids=[7, 8]),
        node(
            "assistant",
            "Let me see.",
            1,
            reasoning_content="easy",
            tool_calls=[call("c1", "calc", a=2)],
            token_ids=[9, 10, 11],
            mask=[False, True, True],
            logprobs=[-0.1, -0.2],
        ),
        node("tool", "4", 2, tool_call_id="c1", name="calc", token_ids=[12]),
        node("assistant", "It is 4.", 3, token_ids=[13, 14], mask=[False, True], logprobs=[-0.5]),
        node("user", "Sure?", 4),
        node("assistant", "Yes.", 5),
        node("assistant", "No.", 5),
    ],
    "calls": [
        {
            "node": 2,
            "model": "m-1",
            "usage": {"prompt_tokens": 3, "completion_tokens": 2},
            "finish_reason": "tool_calls",
        }
    ],
    "rewards": {"correct": {"score": 1.0, "weight": 0.5}, "style": {"score": 0.2, "weight": 1.0}, "none": None},
    "metrics": {"length": 3.0},
    "is_completed": True,
    "ok": True,
    "stop_condition": "agent_completed",
    "num_input_tokens": 3,
    "num_output_tokens": 2,
    "num_total_tokens": 5,
}


async def test_a_foreign_trace(tmp_path: Path) -> None:
    loom = Loom.memory()
    report = imported(written(tmp_path / "t.jsonl", [FOREIGN, {"id": "e", "traces": [FOREIGN]}]), loom)
    turns = [t for t in loom.turns() if t.role == "crystal"]
    assert (report.turns, report.known, report.casts) == (4, 4, 3)
    first = turns[0]
    assert first.utterance.thinking == "easy"
    assert first.observation.results[0].result == "4"
    assert (first.metadata.model, first.metadata.tokens_prompt, first.metadata.stop_reason) == ("m-1", 3, "tool_calls")
    assert first.metadata.timestamp.startswith("2023-11-14T")
    sampled: Any = first.metadata.sampled
    assert (sampled.prompt_ids, sampled.ids, sampled.logprobs) == ((7, 8, 9), (10, 11), (-0.1, -0.2))
    second: Any = turns[1].metadata.sampled
    assert (second.prompt_from, second.prompt_ids, second.ids) == (5, (12, 13), (14,))
    assert (turns[1].reason, turns[1].terminated) == ("text", True)
    assert [t.parent_id for t in turns[2:]] == [turns[1].id] * 2
    assert loom.turn(turns[3].id).reward == pytest.approx(0.7)
    assert loom.assigned()[0].note == "correct: 1 × 0.5, style: 0.2 × 1"
    assert report.notes == {
        "metrics of a trace": 2,
        "a field that a loom has no place for: trace.agent": 2,
        "a field that a loom has no place for: episode.id": 1,
    }
    intents = [s.intent for s in loom.cast_starts().values()]
    assert intents == ["2+2?", "Sure?", "Sure?"]
    told = [[(m.role, m.content) for m in messages] for _, messages, _ in saw(loom, turns[2].id)]
    assert told[-1] == [
        ("system", "Solve."),
        ("user", "2+2?"),
        ("assistant", "Let me see."),
        ("tool", "4"),
        ("assistant", "It is 4."),
        ("user", "Sure?"),
    ]
    # Out again, the tokens make the same sequence.
    (episode, _) = exports.find("verifiers").rows(Source(loom))
    ids = [i for n in episode["traces"][0]["nodes"] for i in n.get("token_ids", ())]
    assert ids == [7, 8, 9, 10, 11, 12, 13, 14]


async def test_whatever_is_dropped_is_noted(tmp_path: Path) -> None:
    trace = json.loads(json.dumps(FOREIGN))
    del trace["agent"], trace["metrics"]
    nodes = trace["nodes"]
    nodes[0]["tools"][0]["strict"] = True
    nodes[1]["message"] |= {
        "name": "Ann",
        "content": [{"type": "text", "text": "2+2?"}, {"type": "input_audio", "input_audio": {"data": "AAAA"}}],
    }
    nodes[2]["message"]["refusal"] = "no"
    nodes[2]["message"]["tool_calls"][0]["index"] = 3
    nodes[4]["weight"] = 0.5
    nodes[4]["semantic_parents"] = [{"node": 0, "type": "retry"}]
    nodes.append(node("user", "And then?", 7))
    nodes.append(node("tool", "5", 2, tool_call_id="nobody"))
    nodes.insert(4, node("tool", "6", 3, tool_call_id="nobody"))
    for each in nodes[5:]:
        each["parent"] = {3: 4}.get(each["parent"], each["parent"] + (each["parent"] > 3))
    trace["calls"] += [{"node": None, "model": "m-2"}]
    trace["calls"][0]["usage"]["reasoning_tokens"] = 7
    trace["rewards"]["correct"]["judge"] = "m"
    trace["errors"] = [{"type": "A"}, {"type": "B", "traceback": "x"}]
    trace |= {"mood": "good", "nothing": None, "info": {"run": 7}}
    trace["task"]["data"]["answer"] = "4"
    report = imported(written(tmp_path / "t.jsonl", [trace]), Loom.memory())
    field = "a field that a loom has no place for: trace."
    assert report.notes == {
        f"{field}nodes.tools.strict": 1,
        f"{field}nodes.message.refusal": 1,
        f"{field}nodes.message.tool_calls.index": 1,
        f"{field}nodes.weight": 1,
        f"{field}calls.usage.reasoning_tokens": 1,
        f"{field}rewards.judge": 1,
        f"{field}errors.traceback": 1,
        f"{field}mood": 1,
        f"{field}info.run": 1,
        f"{field}task.data.answer": 1,
        "the name of who wrote a message": 1,
        "a part of a message of the type 'input_audio'": 1,
        "a link of the type 'retry'": 1,
        "a message of the user that no model answered": 1,
        "a message of the tool that no model answered": 1,
        "an answer of a tool to a call that nobody made": 1,
        "a call of a model that gave no message": 1,
        "an error of a trace before its last": 1,
        "an error of a trace that did not end with it": 1,
    }
    silent = {"id": "silent", "nodes": [node("user", "hello?", None)], "rewards": {"r": {"score": 1.0}}}
    report = imported(written(tmp_path / "t.jsonl", [silent]), Loom.memory())
    assert report.notes == {
        "a message of the user that no model answered": 1,
        "a trace in which no model said anything": 1,
        "the reward of a trace in which no model said anything": 1,
    }


async def test_truncated_and_failed_traces_stay_so(tmp_path: Path) -> None:
    for stop, more, reason in (
        ("max_turns", {}, "max_turns"),
        ("max_output_tokens", {}, "max_tokens"),
        ("agent_timeout", {"is_timeout": True}, "max_seconds"),
        ("provider_error", {"errors": [{"type": "ProviderError", "message": "gone"}]}, "error"),
    ):
        trace = {**FOREIGN, "id": stop, "nodes": FOREIGN["nodes"][:3], "ok": False, "stop_condition": stop, **more}
        loom = Loom.memory()
        imported(written(tmp_path / "t.jsonl", [trace]), loom)
        leaf = loom.turn(loom.leaves()[-1])
        assert (leaf.reason, leaf.truncated, leaf.terminated) == (reason, True, False)
    end = loom.cast_end(leaf.cast_id or "")
    assert end is not None
    assert end.error == "ProviderError: gone"


async def test_secrets_that_are_known_here_are_masked(tmp_path: Path) -> None:
    shared().add("my-secret-value-0123")
    loom = Loom.memory()
    trace = json.loads(json.dumps(FOREIGN).replace("It is 4.", "It is my-secret-value-0123."))
    import_traces(written(tmp_path / "t.jsonl", [trace]), RecordWriter(loom))
    assert "my-secret-value" not in repr(list(loom.records()))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "t.jsonl:2: not JSON"),
        ("[1]", "t.jsonl:2: a JSON object is expected, not list"),
        ('{"id": "x"}', "t.jsonl:2: not a verifiers trace: Object missing required field `nodes`"),
        ('{"traces": 3}', "t.jsonl:2: traces is not a list"),
        ('{"id": "x", "version": 9, "nodes": []}', "t.jsonl:2: a verifiers trace of version 9"),
        (json.dumps({"id": "x", "nodes": [node("user", "a", 0)]}), "node 0 has the parent 0"),
        (
            json.dumps(
                {"id": "x", "nodes": [node("assistant", "a", None, semantic_parents=[{"node": 5, "type": "t"}])]}
            ),
            "a node that is not there",
        ),
        (json.dumps({"id": "x", "nodes": [{**node("user", "a", None), "sampled": True}]}), "is marked as the model's"),
        (json.dumps({"id": "x", "nodes": [node("assistant", "a", None, token_ids=[1], mask=[])]}), ""),
        (
            json.dumps({"id": "x", "nodes": [node("assistant", "a", None, token_ids=[1], mask=[True, True])]}),
            "2 marks for 1 tokens",
        ),
        ("[" * 100_000, "t.jsonl:2: not JSON"),
        ('{"id": "x", "nodes": [{"message": {"role": "robot"}}]}', "Invalid enum value 'robot'"),
    ],
)
def test_what_is_broken_is_told_with_its_line(line: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps(FOREIGN) + "\n" + line + "\n")
    loom = Loom.memory()
    if not words:
        imported(path, loom)
        return
    with pytest.raises(ImportProblem) as told:
        imported(path, loom)
    assert words in str(told.value)
    assert str(path) in str(told.value)


def test_what_is_no_file(tmp_path: Path) -> None:
    for path, says in ((tmp_path, "not a regular file"), (tmp_path / "missing", "no such file")):
        with pytest.raises(LoomError, match=says):
            imported(path, Loom.memory())


_TEXT = st.text(max_size=8)
_NODE = st.fixed_dictionaries(
    {
        "parent": st.one_of(st.none(), st.integers(0, 5)),
        "message": st.one_of(
            st.fixed_dictionaries({"role": st.sampled_from(["system", "user"]), "content": _TEXT}),
            st.fixed_dictionaries(
                {"role": st.just("tool"), "content": _TEXT, "tool_call_id": st.sampled_from(["a", "b"])}
            ),
            st.fixed_dictionaries(
                {
                    "role": st.just("assistant"),
                    "content": st.one_of(st.none(), _TEXT),
                    "tool_calls": st.one_of(
                        st.none(),
                        st.lists(
                            st.fixed_dictionaries(
                                {"id": st.sampled_from(["a", "b"]), "name": _TEXT, "arguments": _TEXT}
                            ),
                            max_size=2,
                        ),
                    ),
                }
            ),
        ),
        "sampled": st.booleans(),
        "semantic_parents": st.lists(
            st.fixed_dictionaries(
                {"node": st.integers(0, 5), "type": st.sampled_from(["compaction", "subagent_call", "x"])}
            ),
            max_size=2,
        ),
    }
)


@settings(max_examples=150, deadline=None)
@given(nodes=st.lists(_NODE, max_size=6), ok=st.booleans(), stop=st.sampled_from([None, "max_turns", "x"]))
def test_any_graph_is_taken_or_refused(nodes: list[dict[str, Any]], ok: bool, stop: str | None, tmp_path: Path) -> None:
    """Whatever the graph, the import ends in a loom that exports, or in an error of ours."""
    for number, each in enumerate(nodes):
        each["sampled"] = each["sampled"] and each["message"]["role"] == "assistant"
        each["parent"] = min(each["parent"], number - 1) if each["parent"] is not None and number else None
        each["semantic_parents"] = [e for e in each["semantic_parents"] if e["node"] < len(nodes)]
    trace = {"id": "x", "nodes": nodes, "ok": ok, "is_completed": True, "stop_condition": stop}
    loom = Loom.memory()
    path = written(tmp_path / "t.jsonl", [trace])
    try:
        report = imported(path, loom)
    except ImportProblem:
        return
    assert report.turns == sum(n["sampled"] for n in nodes)
    assert imported(path, loom).turns == 0
    assert len(list(exports.find("verifiers").rows(Source(loom)))) <= max(1, len(nodes))
