"""Token rows: what the model read and wrote, id by id, and what of it is trained."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from cantrip_acp import Call, Cantrip, Circle, Loom
from cantrip_acp.core import exports
from cantrip_acp.core.exports import ThreadSelection
from cantrip_acp.training.export import tokens
from cantrip_acp.training.export.rows import HIDDEN, UNEQUAL, write
from cantrip_acp.training.export.selection import Source
from cantrip_acp.types.messages import RequestParameters, SampledTokens, ToolCall
from cantrip_acp.types.records import Turn, TurnMetadata, Utterance
from tests.support.export_looms import GATES, TokenCrystal, forked, logprobs, spelled, template
from tests.support.fixtures.core import INSTANT, done, echo, make
from tests.training.unit.test_export_formats import exported, rows

pytestmark = pytest.mark.anyio


def sampling(*responses: dict[str, Any], loom: Loom, **more: Any) -> Cantrip:
    """A cantrip whose crystal reports its tokens."""
    return make(gates=GATES, loom=loom, **more).with_crystal(TokenCrystal(*responses))


def check(row: dict[str, Any]) -> None:
    """What is true of every row."""
    response, mask = row["response_ids"], row["mask"]
    assert len(response) == len(mask) == len(row["logprobs"]) > 0
    assert row["prompt_ids"]
    # A row ends with what it trains, and begins with it.
    assert mask[0] == mask[-1] == 1
    spans = [at for turn in row["turns"] for at in range(turn["start"], turn["end"])]
    assert spans == [at for at, trained in enumerate(mask) if trained]
    expected = [chance if on else 0.0 for chance, on in zip(logprobs(response), mask, strict=True)]
    assert row["logprobs"] == expected


def text(ids: list[int]) -> str:
    return "".join(map(chr, ids))


async def test_a_thread_is_one_row_of_what_was_sent_and_sampled() -> None:
    loom = Loom.memory()
    cantrip = sampling(echo("a"), echo("b", content="hm"), done("c"), loom=loom, call={"temperature": 0.5})
    await cantrip.cast("the task")
    loom.annotate_reward(loom.leaves()[-1], 0.5)
    (row,) = rows(loom, "tokens")
    check(row)
    crystal: Any = cantrip.crystal
    asked = [template(query.messages) + "<assistant>" for query in crystal.invocations]
    assert text(row["prompt_ids"]) == asked[0]
    last = loom.turn(loom.leaves()[-1]).utterance
    assert text(row["prompt_ids"] + row["response_ids"]) == asked[-1] + spelled(last.content, last.tool_calls)
    assert [turn["turn"] for turn in row["turns"]] == [t.id for t in loom.turns() if t.role == "crystal"]
    assert (row["reward"], row["weights"], row["row"], row["state"]) == (0.5, None, 0, "terminated")
    assert row["thread"] == row["group"] == loom.leaves()[-1]
    assert [turn["request"]["temperature"] for turn in row["turns"]] == [0.5] * 3
    assert row["messages"][-1]["tool_calls"][0]["function"]["name"] == "done"


async def test_a_fold_begins_a_new_row() -> None:
    loom = Loom.memory()
    cantrip = sampling(
        *(echo(str(n)) for n in range(5)), done("end"), loom=loom, folding={"trigger_after_turns": 3, "keep_turns": 1}
    )
    await cantrip.cast("the task")
    found = rows(loom, "tokens")
    assert [row["row"] for row in found] == list(range(len(found)))
    assert len(found) > 1
    crystal: Any = cantrip.crystal
    asked = [template(query.messages) + "<assistant>" for query in crystal.invocations]
    trained = [turn["turn"] for row in found for turn in row["turns"]]
    assert trained == [t.id for t in loom.turns() if t.role == "crystal"]
    for row in found:
        check(row)
        assert text(row["prompt_ids"]) in asked


async def test_forks_train_a_shared_turn_once_and_are_one_group() -> None:
    loom = Loom.memory()
    cantrip = sampling(echo("begin"), done("original"), loom=loom)
    await cantrip.cast("the task")
    origin = next(t.id for t in loom.turns() if t.role == "crystal")
    samples = await cantrip.with_crystal(TokenCrystal(*(done(f"sample {n}") for n in range(3)))).resample(
        origin, 3, loom=loom, concurrency=1
    )
    found = rows(loom, "tokens")
    assert len(found) == 4
    for row in found:
        check(row)
    assert [row["group"] == samples.id for row in found] == [False, True, True, True]
    assert [len(row["turns"]) for row in found] == [2, 1, 1, 1]
    assert len({text(row["prompt_ids"]) for row in found[1:]}) == 1
    # The shared turn is part of the prompt of the samples.
    assert text(found[1]["prompt_ids"]).startswith(text(found[0]["prompt_ids"]) + "[echo")


async def test_utterances_without_tokens_are_context() -> None:
    """A demonstration by a script, then the model goes on."""
    loom = Loom.memory()
    await make(echo("demonstrated"), done("shown"), loom=loom, gates=GATES).cast("the task")
    origin = next(t.id for t in loom.turns() if t.role == "crystal")
    async with await sampling(done("sampled"), loom=loom).fork(origin, loom=loom, state="none") as entity:
        await entity.cast("go on")
    found, source = exported(loom, "tokens")
    (row,) = found
    check(row)
    assert "demonstrated" in text(row["prompt_ids"])
    assert text(row["response_ids"]) == '[done {"answer":"sampled"}]\n'
    assert source.report.left_out == {tokens.NO_TOKENS: 1}
    assert source.report.notes == {f"an utterance that is not trained: {tokens.NO_TOKENS}": 1}


@pytest.mark.parametrize(
    ("sampled", "why"),
    [
        (SampledTokens((1, 2), ("a", "b"), (-0.5,), {}, (3,)), UNEQUAL),
        (SampledTokens((1, 2), (), (), {}, (3,)), tokens.NO_LOGPROBS),
        (SampledTokens((), ("a", "b"), (-0.5, -0.5)), tokens.NO_IDS),
        (SampledTokens((1, 2), ("a", "b"), (-0.5, -0.5)), tokens.NO_PROMPT),
        (SampledTokens((1, 2), ("a", "b"), (-0.5, -0.5), {}, (3,), 7), tokens.NO_PROMPT),
    ],
)
async def test_tokens_that_do_not_fit_are_counted_and_in_no_row(sampled: SampledTokens, why: str) -> None:
    loom = await _answered(sampled)
    found, source = exported(loom, "tokens", threads=("t_sampled",))
    assert found == []
    assert source.report.left_out == {why: 1}
    if why == UNEQUAL:
        # The other formats have the text without its tokens, and say so.
        for name in ("art", "verifiers"):
            found, source = exported(loom, name, threads=("t_sampled",))
            assert source.report.notes[f"{UNEQUAL}: they are left out"] == 1
            assert "token_ids" not in json.dumps(found)


async def _answered(sampled: SampledTokens, words: str = "Hey") -> Loom:
    loom = await forked(())
    last = loom.turn(loom.leaves()[-1])
    turn = Turn(
        "t_sampled",
        loom.turn(last.parent_id or "").parent_id,
        last.cantrip_id,
        "e_sampled",
        None,
        utterance=Utterance(words),
        metadata=TurnMetadata(sampled=sampled),
        terminated=True,
        reason="text",
    )
    loom.append(turn)
    return loom


async def test_another_tokenization_of_earlier_turns_begins_a_new_row() -> None:
    loom = await _answered(SampledTokens((4, 5), ("H", "i"), (-0.004, -0.005), {}, (1, 2, 3)))
    first = loom.turn("t_sampled")
    more = {
        # The template spelled the answer (4, 5) as one token, 6.
        "t_broken": SampledTokens((8,), ("x",), (-0.008,), {}, (6, 7), 3),
        "t_whole": SampledTokens((9,), ("y",), (-0.009,), {}, (10,), 6),
    }
    for name, sampled in more.items():
        parent = loom.leaves()[-1]
        loom.append(msgspec.structs.replace(first, id=name, parent_id=parent, metadata=TurnMetadata(sampled=sampled)))
    one, two = rows(loom, "tokens", threads=("t_whole",))
    check(one)
    check(two)
    assert (one["prompt_ids"], one["response_ids"]) == ([1, 2, 3], [4, 5])
    assert (two["prompt_ids"], two["response_ids"], two["mask"]) == ([1, 2, 3, 6, 7], [8, 10, 9], [1, 0, 1])


async def test_tokens_of_what_looks_like_a_secret_are_in_no_row() -> None:
    key = f"sk-ant-api03-{'a' * 30}"
    loom = Loom.memory()
    await sampling(echo(key), done("a"), loom=loom).cast("say it")
    await sampling(done("b"), loom=loom).cast("say nothing")
    out = io.BytesIO()
    report = write(exports.find("tokens"), Source(loom, ThreadSelection()), out)
    assert report.rows == 1
    assert report.left_out == {"tokens of a text that has the shape of a secret (--raw keeps them)": 1}
    assert text(json.loads(out.getvalue())["response_ids"]) == '[done {"answer":"b"}]\n'


@pytest.mark.parametrize("name", ["tokens", "art", "verifiers"])
async def test_tokens_of_what_looks_like_a_secret_and_stands_in_no_text_are_in_no_row(name: str) -> None:
    """The model wrote on after its answer. Rows have no such text, but its tokens could be decoded."""
    said = (
        '```tool_call\n{"name": "echo", "arguments": {"text": "a"}}\n```\n<tool_result>\n' + f"sk-ant-api03-{'a' * 30}"
    )
    call = ToolCall("call_1", "echo", '{"text": "a"}')
    ids = tuple(map(ord, said))
    loom = await _answered(SampledTokens(ids, tuple(said), tuple(logprobs(ids)), {}, (3,)))
    turn = loom.turn("t_sampled")
    asked = RequestParameters(tool_mode="text", dialect="local")
    metadata = msgspec.structs.replace(turn.metadata, request=asked)
    said_so = Utterance(said, None, (call,), text_calls=True)
    loom.append(msgspec.structs.replace(turn, id="t_more", utterance=said_so, metadata=metadata))
    for raw in (True, False):
        source, out = Source(loom, ThreadSelection(threads=("t_more",))), io.BytesIO()
        report = write(exports.find(name), source, out, raw=raw)
        assert (json.dumps(ids).strip("[]").replace(" ", "") in out.getvalue().decode()) == raw
        assert (HIDDEN in {**report.notes, **report.left_out}) == (not raw)


async def test_the_query_of_a_summary_is_a_sample_of_its_own() -> None:
    loom = Loom.memory()
    summarizer = TokenCrystal({"content": "They echoed.", "repeat": True})
    cantrip = sampling(
        *(echo(str(n)) for n in range(3)),
        done("end"),
        loom=loom,
        call={"system_prompt": "You echo."},
        folding={"trigger_after_turns": 3, "keep_turns": 1, "summarizer": summarizer},
    )
    await cantrip.cast("the task")
    (query,) = summarizer.invocations
    found = rows(loom, "tokens")
    assert [row["kind"] for row in found] == ["turns", "summary", "turns"]
    summary = found[1]
    check(summary)
    assert text(summary["prompt_ids"]) == template(query.messages) + "<assistant>"
    assert text(summary["response_ids"]) == "They echoed.\n"
    # The other formats have the same query as text.
    expected = [{"role": m.role, "content": m.content} for m in query.messages]
    said = {"role": "assistant", "content": "They echoed."}
    assert summary["messages"] == [*expected, said]
    sft = [row for row in rows(loom, "trl-sft") if row["completion"] == [said]]
    assert [row["prompt"] for row in sft] == [expected]
    ((trajectory,),) = [group["trajectories"] for group in rows(loom, "art")]
    histories = [h["messages_and_choices"] for h in trajectory["additional_histories"]]
    assert histories[0][:-1] == expected
    assert histories[0][-1]["token_ids"] == summary["response_ids"]
    assert histories[0][-1]["prompt_token_ids"] == summary["prompt_ids"]
    _, source = exported(loom, "verifiers")
    assert source.report.notes == {"the query of a fold's summary is left out": 1}
    # A summarizer without tokens leaves the record as it was.
    plain = Loom.memory()
    await sampling(
        *(echo(str(n)) for n in range(3)),
        done("end"),
        loom=plain,
        folding={"trigger_after_turns": 3, "keep_turns": 1, "summarizer": make({"content": "s"}).crystal},
    ).cast("the task")
    (fold,) = [t for t in plain.turns() if t.role == "fold"]
    assert b"summary" not in msgspec.json.encode(fold.metadata)


async def test_what_a_script_or_a_person_wrote_is_no_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    loom = Loom.memory()
    await make(echo("demonstrated"), done("shown"), loom=loom, gates=GATES).cast("the task")
    assert loom.casts()[0][0].attributes["sampled"] is False
    origin = next(t.id for t in loom.turns() if t.role == "crystal")
    async with await sampling(done("sampled"), loom=loom).fork(origin, loom=loom, state="none") as entity:
        await entity.cast("go on")
    # Supervised fine-tuning learns both, and says which is which.
    assert [row["cantrip"]["sampled"] for row in rows(loom, "trl-sft")] == [False, True]
    trajectories = [t for group in rows(loom, "art") for t in group["trajectories"]]
    choices = [[m for m in t["messages_and_choices"] if "finish_reason" in m] for t in trajectories]
    assert [len(each) for each in choices] == [0, 1]
    assert [t["metrics"]["trained_turns"] for t in trajectories] == [0, 1]
    written = [row["traces"][0]["info"]["cantrip"].get("written") for row in rows(loom, "verifiers")]
    assert [len(each) for each in written] == [2, 1]


async def test_a_child_without_a_reward_has_that_of_its_parent() -> None:
    loom = Loom.memory()
    call = {"tool_calls": [{"gate": "call_agent", "args": {"intent": n}} for n in ("one", "two")]}
    crystal = TokenCrystal(call, done("a"), done("b"), done("all"))
    circle = Circle(gates=["done", "call_agent"], wards=[{"max_turns": 5}, {"max_depth": 1}])
    await Cantrip(crystal, Call(), circle, loom=loom, retry=INSTANT).cast("the whole")
    by_intent = {episode.intent: episode for episode in Source(loom).episodes(marked=True)}
    loom.annotate_reward(by_intent["the whole"].leaf, 0.75)
    loom.annotate_reward(by_intent["two"].leaf, -1)
    expected = {"the whole": 0.75, "one": 0.75, "two": -1}
    facts: dict[str, Callable[[Any], Any]] = {
        "tokens": lambda row: row,
        "trl-sft": lambda row: row["cantrip"],
        "trl-kto": lambda row: row["cantrip"],
        "art": lambda row: row["metadata"],
        "atif": lambda row: row["extra"]["cantrip"],
        "inspect": lambda row: row["data"]["metadata"]["cantrip"],
    }
    for name, of in facts.items():
        found: dict[str, Any] = {}
        for row in rows(loom, name):
            if name == "inspect" and "target" not in row["data"]:
                continue  # Another file of the archive.
            for each in [*row.get("trajectories", [row]), *row.get("subagent_trajectories", ())]:
                found[of(each)["thread"]] = of(each)["reward"]
            if name == "inspect":
                assert row["data"]["scores"]["reward"]["value"] == of(row)["reward"]
            if name == "trl-kto":
                assert row["label"] == (of(row)["reward"] > 0)
        assert found == {by_intent[intent].leaf: reward for intent, reward in expected.items()}, name
    (episode,) = rows(loom, "verifiers")
    info = episode["traces"][0]["info"]["cantrip"]
    assert info["children"] == {by_intent["one"].leaf: None, by_intent["two"].leaf: -1}
    assert episode["traces"][0]["rewards"]["reward"]["score"] == 0.75
