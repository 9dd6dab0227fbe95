"""Each format: its rows by the rules of those who read them, and by their own types where those are at hand."""

from __future__ import annotations

import io
import json
from collections import Counter
from typing import Any

import pydantic
import pytest

from cantrip_acp import Loom
from cantrip_acp.core import exports
from cantrip_acp.core.exports import ThreadSelection
from cantrip_acp.telemetry import tracing
from cantrip_acp.training.export.rows import write
from cantrip_acp.training.export.selection import Source
from cantrip_acp.types.errors import DefinitionError, LoomError
from cantrip_acp.types.messages import SampledTokens
from cantrip_acp.types.records import Turn, TurnMetadata, Utterance
from tests.support.export_looms import GATES, forked, lived, saw
from tests.support.fixtures.core import done, echo, make

pytestmark = pytest.mark.anyio

ALL = ("trl-sft", "trl-preference", "art", "verifiers", "openai", "otlp")
"""The formats that write text. Those of tokens alone have tests of their own."""


def rows(loom: Loom, name: str, **wanted: Any) -> list[dict[str, Any]]:
    found, _ = exported(loom, name, **wanted)
    return found


def exported(loom: Loom, name: str, **wanted: Any) -> tuple[list[dict[str, Any]], Source]:
    """The rows as a reader gets them, through JSON."""
    source = Source(loom, ThreadSelection(**wanted))
    return [json.loads(json.dumps(row)) for row in exports.find(name).rows(source)], source


def test_the_formats_are_named_and_a_wrong_name_is_told_the_nearest() -> None:
    assert set(ALL) < set(exports.names())
    for name in exports.BUILT_IN:
        assert exports.find(name).name == name
    with pytest.raises(
        DefinitionError, match=r"unknown export format 'trl-stf'; did you mean 'trl-sft'\? \(known: trl-sft,"
    ):
        exports.find("trl-stf")


async def test_trl_sft_holds_what_was_seen_and_says_from_where_it_is_new() -> None:
    loom, _ = await lived()
    found = rows(loom, "trl-sft")
    windows = list(Source(loom).seen.windows(loom.leaves()[-1]))
    # The completion is learned whole, so an answer that was interrupted is not in it.
    kept = [[m for at, m in enumerate(w.messages) if m.kind != "partial" or at < w.uttered[0].at] for w in windows]
    assert [len(r["messages"]) for r in found] == [len(messages) for messages in kept]
    assert [r["cantrip"]["trained_from"] for r in found] == [w.uttered[0].at for w in windows]
    first = found[0]
    assert [m["role"] for m in first["messages"][:4]] == ["system", "system", "user", "assistant"]
    assert first["messages"][2]["content"][0] == {
        "type": "image_url",
        "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="},
    }
    said = first["messages"][3]
    assert said["reasoning_content"] == "hm"
    # Chat templates take the arguments as data, and join contents to text.
    assert said["tool_calls"][0]["function"] == {"name": "echo", "arguments": {"text": "one"}}
    assert all(m["content"] is not None for r in found for m in r["messages"])
    assert {t["function"]["name"] for t in json.loads(first["tools"])} == {"done", "echo", "note", "passing"}
    assert first["cantrip"]["state"] == "terminated"


async def test_openai_rows_are_what_the_api_takes_and_every_utterance_is_learned_once() -> None:
    from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam

    loom = await forked()
    await make(echo("x"), done("y"), loom=loom, gates=GATES).cast("another")
    long, _ = await lived()
    message: Any = pydantic.TypeAdapter(ChatCompletionMessageParam, config={"extra": "forbid"})
    tool: Any = pydantic.TypeAdapter(ChatCompletionToolParam)
    for held in (loom, long):
        learned: Counter[str] = Counter()
        found = rows(held, "openai")
        for row in found:
            assert set(row) == {"messages", "tools", "parallel_tool_calls"}
            assert row["messages"][-1]["role"] == "assistant"
            for each in row["messages"]:
                weight = each.pop("weight", None)
                assert (weight in (0, 1)) == (each["role"] == "assistant")
                message.validate_python(each)
                learned[json.dumps(each.get("tool_calls", each["content"]))] += weight or 0
                assert "reasoning_content" not in each
            for each in row["tools"]:
                tool.validate_python(each)
        turns = [t for t in held.turns() if t.role == "crystal"]
        assert sum(learned.values()) == len(turns)
    _, source = exported(long, "openai")
    assert source.report.notes["thinking is left out"] >= 1


async def test_preferences_are_of_one_prompt_and_the_best_is_chosen() -> None:
    loom = await forked((0.5, 1.0, 0.0, None, 1.0))
    found, source = exported(loom, "trl-preference")
    assert [(r["cantrip"]["chosen_reward"], r["cantrip"]["rejected_reward"]) for r in found] == [(1.0, 0.5), (1.0, 0.0)]
    for row in found:
        assert set(row) == {"prompt", "chosen", "rejected", "tools", "cantrip"}
        assert row["prompt"][-1] == {"role": "user", "content": "go on"}
        assert row["chosen"][0]["role"] == row["rejected"][0]["role"] == "assistant"
        assert row["chosen"] != row["rejected"]
        assert row["chosen"][0]["tool_calls"][0]["function"]["arguments"] == {"text": "way 1"}
    assert source.report.threads == 3
    assert sum(source.report.left_out.values()) == 3


async def test_preferences_of_casts_of_one_intent() -> None:
    loom = Loom.memory()
    cantrip = make(done("good"), done("bad"), done("other"), loom=loom)
    for intent, reward in (("the task", 1.0), ("the task", -1.0), ("another task", 0.0)):
        await cantrip.cast(intent)
        loom.annotate_reward(loom.leaves()[-1], reward)
    (row,) = rows(loom, "trl-preference")
    assert row["prompt"] == [{"role": "user", "content": "the task"}]
    assert row["chosen"][0]["tool_calls"][0]["function"]["arguments"] == {"answer": "good"}
    assert row["rejected"][0]["tool_calls"][0]["function"]["arguments"] == {"answer": "bad"}


async def test_forks_with_another_call_are_no_pair() -> None:
    loom = Loom.memory()
    await make(echo("a"), done("b"), loom=loom, call={"system_prompt": "One."}).cast("go")
    origin = next(t.id for t in loom.turns() if t.role == "crystal")
    for prompt, reward in (("One.", 1.0), ("Two.", 0.0)):
        again = make(done(prompt), call={"system_prompt": prompt})
        async with await again.fork(origin, loom=loom, state="none") as entity:
            await entity.cast("on")
            loom.annotate_reward(entity.last_turn, reward)
    found, source = exported(loom, "trl-preference")
    assert found == []
    assert source.report.notes == {"a pair whose prompts differ (another call, circle or fold)": 1}


async def test_art_groups() -> None:
    loom = await forked((1.0, None))
    loom.append(_sampled(loom))
    found = rows(loom, "art")
    groups = {len(g["trajectories"]): g for g in found}
    assert set(groups) == {1, 2}
    for group in found:
        for trajectory in group["trajectories"]:
            assert all(isinstance(v, int | float | str | bool | None) for v in trajectory["metadata"].values())
            choices = [m for m in trajectory["messages_and_choices"] if "finish_reason" in m]
            assert len(choices) == trajectory["metrics"]["trained_turns"]
            assert choices[0]["message"]["role"] == "assistant"
    rewards = [t["reward"] for t in groups[2]["trajectories"]]
    assert rewards == [1.0, 0.0]
    assert [t["metrics"]["rewarded"] for t in groups[2]["trajectories"]] == [True, False]
    assert groups[2]["metadata"]["intent"] == "go on"


def _sampled(loom: Loom) -> Turn:
    """A turn with its tokens, which goes on from the last leaf."""
    last = loom.turn(loom.leaves()[-1])
    sampled = SampledTokens((4, 5), ("He", "y"), (-0.5, -0.25), {}, (1, 2, 3))
    return Turn(
        "t_sampled",
        loom.turn(last.parent_id or "").parent_id,
        last.cantrip_id,
        "e_sampled",
        None,
        utterance=Utterance("Hey"),
        metadata=TurnMetadata(3, 2, duration_ms=5, timestamp="2026-01-01T00:00:01Z", model="m", sampled=sampled),
        terminated=True,
        reason="text",
    )


async def test_tokens_and_log_probabilities_stand_where_they_belong() -> None:
    loom = await forked((1.0,))
    loom.append(_sampled(loom))
    (group,) = rows(loom, "art", threads=("t_sampled",))
    choice = group["trajectories"][0]["messages_and_choices"][-1]
    assert choice["token_ids"] == [4, 5]
    assert choice["prompt_token_ids"] == [1, 2, 3]
    assert choice["logprobs"]["content"][0] == {
        "token": "token_id:4",
        "bytes": [72, 101],
        "logprob": -0.5,
        "top_logprobs": [],
    }
    (episode,) = rows(loom, "verifiers", threads=("t_sampled",))
    node = episode["traces"][0]["nodes"][-1]
    assert node["token_ids"] == [1, 2, 3, 4, 5]
    assert node["mask"] == [False, False, False, True, True]
    assert node["logprobs"] == [-0.5, -0.25]


async def test_verifiers_paths_are_what_was_seen() -> None:
    loom, _ = await lived()
    (episode,) = rows(loom, "verifiers")
    trace = episode["traces"][0]
    nodes = trace["nodes"]
    seen = {turn: [m.content or "" for m in messages] for turn, messages, _ in saw(loom, loom.leaves()[-1])}
    turns = trace["info"]["cantrip"]["turns"]
    assert set(turns.values()) == set(seen)
    for number, turn in turns.items():
        path, at = [], nodes[int(number)]["parent"]
        while at is not None:
            message = nodes[at]["message"]
            content = message.get("content", "")
            path.append(content if isinstance(content, str) else content[-1]["text"])
            at = nodes[at]["parent"]
        assert path[::-1] == seen[turn]
        assert nodes[int(number)]["sampled"]
    assert sum(n["sampled"] for n in nodes) == len(turns) == len(trace["calls"])
    links = [link for n in nodes for link in n.get("semantic_parents", ())]
    assert {link["type"] for link in links} == {"compaction"}
    assert nodes[0]["tools"]
    assert trace["stop_condition"] == "agent_completed"


async def test_otlp_is_taken_by_the_protocols_own_types_and_is_the_same_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from google.protobuf.json_format import ParseDict
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    loom, _ = await lived()
    found = rows(loom, "otlp")
    assert found == rows(loom, "otlp")
    assert "first intent" not in json.dumps(found)
    spans = []
    for row in found:
        request = ParseDict(row, ExportTraceServiceRequest())
        spans += [s for r in request.resource_spans for scope in r.scope_spans for s in scope.spans]
    by_id = {s.span_id: s for s in spans}
    assert len(by_id) == len(spans)
    names = Counter(s.name.split()[0] for s in spans)
    assert names["invoke_agent"] == 3
    assert names["chat"] == len([t for t in loom.turns() if t.role == "crystal"])
    assert names["execute_tool"] == 10
    for span in spans:
        assert span.start_time_unix_nano <= span.end_time_unix_nano
        assert span.start_time_unix_nano > 10**18
        assert (span.parent_span_id in by_id) == (not span.name.startswith("invoke_agent"))
    monkeypatch.setattr(tracing, "content_wanted", lambda: True)
    assert "first intent" in json.dumps(rows(loom, "otlp"))


@pytest.mark.parametrize("name", ALL)
async def test_truncated_threads_are_left_out_or_marked(name: str) -> None:
    loom = Loom.memory()
    await make(echo(), echo(), echo(), loom=loom, wards=[{"max_turns": 2}]).cast("cut off")
    loom.append(Turn("t_open", None, "c", "e_open", None, utterance=Utterance("and then")))
    found, source = exported(loom, name)
    marked = name in ("art", "verifiers", "otlp")
    assert bool(found) == marked
    if marked:
        assert source.report.threads == 2
        text = json.dumps(found)
        assert "max_turns" in text
    elif name != "trl-preference":
        assert source.report.left_out == {"truncated": 1, "not ended": 1}
        assert len(rows(loom, name, truncated=True)) == 2
    assert rows(loom, name, truncated=False) == []
    if name == "verifiers":
        trace = found[0]["traces"][0]
        assert (trace["ok"], trace["stop_condition"], trace["is_completed"]) == (False, "max_turns", True)
        assert found[1]["traces"][0]["is_completed"] is False


async def test_a_cast_that_failed_between_turns_is_no_finished_thread() -> None:
    loom = Loom.memory()
    cantrip = make(echo("begun"), {"error": {"status": 400, "message": "refused"}}, loom=loom)
    with pytest.raises(Exception, match="refused"):
        await cantrip.cast("go")
    assert rows(loom, "trl-sft") == []
    (episode,) = rows(loom, "verifiers")
    assert episode["errors"][0]["message"].endswith("refused")
    assert episode["traces"][0]["stop_condition"] == "error"
    (group,) = rows(loom, "art")
    assert group["exceptions"][0]["message"].endswith("refused")


async def test_filters() -> None:
    loom = await forked((1.0, 0.25, None))
    await make(echo(), echo(), loom=loom, wards=[{"max_turns": 1}]).cast("never ends")
    count = lambda **w: len(rows(loom, "trl-sft", **w))  # noqa: E731
    assert count() == 4
    assert count(min_reward=0.5) == 1
    assert count(max_reward=0.5) == 1
    assert count(intent="GO ON") == 3
    assert count(intent="the task") == 4
    assert count(outcomes=("max_turns",)) == 1
    assert count(outcomes=("terminated",)) == 4
    assert count(threads=(loom.leaves()[0],)) == 1
    with pytest.raises(LoomError, match="no thread of this loom ends with turn 'nowhere'"):
        count(threads=("nowhere",))


async def test_tokens_of_what_looks_like_a_secret_are_left_out() -> None:
    """Tokens are text in another spelling and cannot be masked, so such a row is not written, and is counted."""
    key = f"sk-ant-api03-{'a' * 30}"
    for name, left in (("art", 2), ("verifiers", 3)):
        loom = await forked((1.0, 0.0))
        loom.append(_sampled(loom))
        again = make(echo(key), done(key), loom=loom, gates=GATES)
        await again.cast("say it")
        leaf = loom.leaves()[-1]
        said = loom.turn(leaf)
        tokens = TurnMetadata(sampled=SampledTokens((1, 2), ("a", "b"), (-0.1, -0.2), prompt_ids=(5,)))
        loom.append(
            Turn(
                "t_tok", leaf, said.cantrip_id, said.entity_id, said.cast_id, utterance=Utterance("ok"), metadata=tokens
            )
        )
        source, out = Source(loom, ThreadSelection(truncated=True)), io.BytesIO()
        report = write(exports.find(name), source, out)
        assert key.encode() not in out.getvalue()
        assert report.left_out["tokens of a text that has the shape of a secret (--raw keeps them)"] == 1
        assert report.rows == out.getvalue().count(b"\n") >= left - 1
        kept = io.BytesIO()
        assert (
            write(exports.find(name), Source(loom, ThreadSelection(truncated=True)), kept, raw=True).rows
            == report.rows + 1
        )
        assert key.encode() in kept.getvalue()


def _trained(name: str, row: dict[str, Any]) -> list[str]:
    """What a row trains, by the rules of its trainer: the calls' arguments, or the words."""

    def said(message: dict[str, Any]) -> str:
        calls = message.get("tool_calls") or []
        return str([c.get("function", c)["arguments"] for c in calls]) if calls else str(message["content"])

    if name == "trl-sft":
        return [said(m) for m in row["completion"] if m["role"] == "assistant"]
    if name == "art":
        histories = [h for t in row["trajectories"] for h in (t, *t["additional_histories"])]
        return [said(m["message"]) for h in histories for m in h["messages_and_choices"] if "finish_reason" in m]
    (trace,) = row["traces"]
    masked = trace["info"]["cantrip"].get("masked", [])
    for number in masked:
        node = trace["nodes"][number]
        assert not any(node.get("mask", ()))
        assert not node.get("logprobs")
        assert len(node.get("mask", ())) == len(node.get("token_ids", ()))
    nodes = [n for i, n in enumerate(trace["nodes"]) if n["sampled"] and i not in masked]
    return [said(n["message"]) for n in nodes]


@pytest.mark.parametrize("name", ["trl-sft", "art", "verifiers"])
async def test_what_threads_share_is_trained_once(name: str) -> None:
    """Forks and samples of one turn, folds, nested forks: each utterance in one row alone, the first that is written."""
    loom = await forked()
    origin = next(t.id for t in loom.turns() if t.role == "crystal")
    samples = make(
        *(done(f"sample {n}") for n in range(3)), loom=loom, gates=GATES, call={"system_prompt": "You echo."}
    )
    await samples.resample(origin, 3, concurrency=1)
    nested = next(t.id for t in loom.turns() if t.utterance.tool_calls and "way 1" in t.utterance.tool_calls[0].args)
    await samples.with_crystal(make(done("nested a"), done("nested b")).crystal).resample(nested, 2, concurrency=1)
    long, _ = await lived()
    for held in (loom, long):
        turns = [t for t in held.turns() if t.role == "crystal"]
        found = [text for row in rows(held, name) for text in _trained(name, row)]
        assert len(found) == len(turns)
        assert rows(held, name) == rows(held, name)
    # Of those that are chosen one row trains what they share, too.
    leaves = [leaf for leaf in loom.leaves() if "sample" in str(loom.turn(leaf).utterance.tool_calls)]
    chosen = [_trained(name, row) for row in rows(loom, name, threads=tuple(leaves))]
    assert sorted(len(texts) for texts in chosen) == ([4] if name == "art" else [1, 1, 2])
    # Every row still has the whole of what was seen.
    if name == "trl-sft":
        for row in rows(loom, name):
            assert row["prompt"] + row["completion"] == row["messages"]
            assert row["completion"][0]["role"] == "assistant"
            assert row["messages"][row["cantrip"]["trained_from"]] == row["completion"][0]
    if name == "verifiers":
        shared = _sampled(loom)
        loom.append(shared)
        for number in range(2):
            again = make(done(f"after tokens {number}"), loom=loom, gates=GATES, call={"system_prompt": "You echo."})
            async with await again.fork(shared.id, state="none") as entity:
                await entity.cast("on")
        # The made-up turn is of no cast: no reader knows what was sent after it.
        held = [n for r in rows(loom, name, differing=True) for n in r["traces"][0]["nodes"] if n.get("token_ids")]
        assert [any(node["mask"]) for node in held] == [True, False]
        assert held[0]["token_ids"] == held[1]["token_ids"]
