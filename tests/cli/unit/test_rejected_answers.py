"""Answers that the loop does not use: the loom keeps them with their tokens, and exports have them as samples of their own."""

from __future__ import annotations

import io
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from cantrip_acp import Call, Cantrip, Circle, Loom, RetryPolicy
from cantrip_acp.cli.loom.show import LoomView
from cantrip_acp.cli.render.terminal import Screen
from cantrip_acp.core import exports
from cantrip_acp.text.redaction import shared
from cantrip_acp.training.export.selection import Source
from cantrip_acp.types.errors import CrystalError
from cantrip_acp.types.events import Voided
from cantrip_acp.types.messages import SampledTokens
from cantrip_acp.types.records import RewardRecord, VoidedAttempt
from tests.crystals.unit.test_logprobs import done_call, entry, local, spoken
from tests.support.openai_replies import chunk
from tests.support.provider_server import Reply, Wire, sse_reply
from tests.support.recorded import thread_events

pytestmark = pytest.mark.anyio


async def cast(loom: Loom, *replies: Reply, call: Call | None = None, retries: int = 3, **options: Any) -> list[Any]:
    """The events of one cast whose server gives these replies."""
    with Wire(list(replies)) as wire:
        circle = Circle(gates=["echo", "done"], wards=[{"max_turns": 4}])
        policy = RetryPolicy(max_retries=retries, base_s=0.001)
        cantrip = Cantrip(local(wire, **options), call or Call(seed=7), circle, loom=loom, retry=policy)
        async with cantrip.cast_stream("go") as stream:
            return [event async for event in stream]


def exported(loom: Loom, name: str) -> list[dict[str, Any]]:
    return [json.loads(json.dumps(row)) for row in exports.find(name).rows(Source(loom))]


def shown(loom: Loom) -> str:
    out = io.StringIO()
    LoomView(Screen(out, colour=False, width=200), loom).overview()
    return out.getvalue()


def empty(prompt: list[int], ids: list[int], finish: str = "stop") -> Reply:
    return spoken(prompt, ids, words="", finish=finish)


async def test_an_empty_answer_is_a_sample_with_its_tokens(tmp_path: Path) -> None:
    path = tmp_path / "a.loom.jsonl"
    with Loom.open(path) as loom:
        events = await cast(
            loom,
            empty([1, 2], [3]),
            spoken([1, 2], [4], words="", finish="tool_calls", delta=done_call()),
            weights="step-5",
        )
    # Nothing of it was shown, so nothing is void for clients, now and when the session is loaded.
    assert not [event for event in events if isinstance(event, Voided)]
    with Loom.open(path) as loom:
        (turn,) = [t for t in loom.turns() if t.role == "crystal"]
        (kept,) = turn.metadata.voided or ()
        assert isinstance(kept, VoidedAttempt)
        assert (kept.rejected, kept.stop_reason, kept.asked_again) == ("empty", "stop", None)
        assert kept.sampled == SampledTokens((3,), ("<3>",), (-0.25,), prompt_ids=(1, 2))
        assert kept.request is not None
        assert (kept.request.seed, kept.request.weights) == (7, "step-5")
        loaded = thread_events(loom, turn.id)
        assert not [event for event in loaded if isinstance(event, Voided)]
        assert "attempt 1 was rejected (empty)" in "".join(shown_thread(loom, turn.id))
        kept_row, lost_row = exported(loom, "tokens")
        assert (kept_row["kind"], lost_row["kind"], lost_row["reason"]) == ("turns", "rejected", "empty")
        assert kept_row["group"] == lost_row["group"] == kept_row["thread"] != lost_row["thread"]
        assert (lost_row["prompt_ids"], lost_row["response_ids"]) == ([1, 2], [3])
        assert (lost_row["mask"], lost_row["logprobs"], lost_row["reward"]) == ([1], [-0.25], 0.0)
        assert (lost_row["weights"], kept_row["weights"]) == ("step-5", "step-5")
        (group,) = exported(loom, "art")
        whole, rejected = group["trajectories"]
        (choice,) = [m for m in rejected["messages_and_choices"] if "finish_reason" in m]
        assert (choice["prompt_token_ids"], choice["token_ids"]) == ([1, 2], [3])
        assert choice["logprobs"]["content"][0]["logprob"] == -0.25
        assert choice["message"]["content"] is None or choice["message"]["content"] == ""
        assert (rejected["reward"], rejected["initial_policy_version"]) == (0.0, 5)
        assert (rejected["metadata"]["reason"], rejected["metadata"]["turn"]) == ("empty", turn.id)
        # Both have the same prompt, and each is trained on its own tokens.
        assert rejected["messages_and_choices"][:-1] == whole["messages_and_choices"][:1]
        (answered,) = [m for m in whole["messages_and_choices"] if "finish_reason" in m]
        assert (answered["prompt_token_ids"], answered["token_ids"]) == ([1, 2], [4])
        traces = [row["traces"][0] for row in exported(loom, "verifiers")]
        node = traces[1]["nodes"][-1]
        assert (node["sampled"], node["token_ids"], node["mask"]) == (True, [1, 2, 3], [False, False, True])
        assert traces[1]["rewards"] == {"reward": {"score": 0.0, "weight": 1.0}}
        assert len({trace["id"] for trace in traces}) == 2
        kept_row, lost = exported(loom, "tokens")
        assert (lost["prompt_ids"], lost["response_ids"], lost["mask"], lost["logprobs"]) == ([1, 2], [3], [1], [-0.25])
        assert (lost["reward"], lost["weights"], lost["kind"]) == (0.0, "step-5", "rejected")
        assert (lost["group"], kept_row["response_ids"]) == (kept_row["group"], [4])
        # It is no demonstration.
        assert len(exported(loom, "trl-sft")) == 1


def shown_thread(loom: Loom, leaf: str) -> str:
    out = io.StringIO()
    LoomView(Screen(out, colour=False, width=400), loom).thread(loom.thread(leaf))
    return out.getvalue()


async def test_an_answer_that_was_cut_before_it_began_is_a_sample_of_a_cast_without_a_turn(tmp_path: Path) -> None:
    path = tmp_path / "a.loom.jsonl"
    with Loom.open(path) as loom, pytest.raises(CrystalError, match="the token limit was reached"):
        await cast(loom, empty([1, 2], [3, 4], finish="length"))
    with Loom.open(path) as loom:
        (partial,) = loom.partials()
        (kept,) = partial.voided
        assert (kept.rejected, kept.stop_reason) == ("cut", "length")
        assert "attempt 1 was rejected (cut)" in shown(loom)
        (row,) = exported(loom, "art")
        (rejected,) = row["trajectories"]
        assert rejected["messages_and_choices"][-2] == {"role": "user", "content": "go"}
        assert rejected["messages_and_choices"][-1]["token_ids"] == [3, 4]
        assert rejected["messages_and_choices"][-1]["finish_reason"] == "length"
        assert (row["metadata"]["intent"], rejected["metadata"]["reason"]) == ("go", "cut")
        (lost,) = exported(loom, "tokens")
        assert (lost["response_ids"], lost["reason"], lost["reward"]) == ([3, 4], "cut", 0.0)
        (trace,) = [each["traces"][0] for each in exported(loom, "verifiers")]
        assert (trace["task"]["data"]["prompt"], trace["nodes"][-1]["sampled"]) == ("go", True)


async def test_an_answer_without_the_call_that_it_must_have_is_marked_as_asked_again() -> None:
    loom = Loom.memory()
    replies = [
        spoken([1, 2], [3], words="I would rather talk."),
        # The second query has the first answer and a message of ours in its prompt.
        spoken([1, 2, 3, 7, 8], [4], words="", finish="tool_calls", delta=done_call()),
    ]
    await cast(loom, *replies, call=Call(tool_choice="required"))
    (turn,) = [t for t in loom.turns() if t.role == "crystal"]
    (kept,) = turn.metadata.voided or ()
    assert (kept.rejected, kept.content) == ("no_call", "I would rather talk.")
    assert kept.asked_again == "Your last answer called no tool. Answer with at least one tool call."
    (group,) = exported(loom, "art")
    _, rejected = group["trajectories"]
    assert rejected["messages_and_choices"][-1]["message"]["content"] == "I would rather talk."
    assert rejected["messages_and_choices"][-1]["prompt_token_ids"] == [1, 2]


async def test_all_answers_are_kept_when_none_can_be_used() -> None:
    loom = Loom.memory()
    talk = [spoken([1, 2, *range(3, 3 + n)], [9], words=f"No {n}.") for n in range(3)]
    with pytest.raises(CrystalError, match="called no tool in 3 answers"):
        await cast(loom, *talk, call=Call(tool_choice="required"))
    (partial,) = loom.partials()
    assert [(v.attempt, v.content, v.asked_again is None) for v in partial.voided] == [
        (1, "No 0.", False),
        (2, "No 1.", False),
        (3, "No 2.", True),
    ]
    (row,) = exported(loom, "art")
    # The later ones answered a prompt with the earlier ones.
    asked = [[m.get("content") for m in t["messages_and_choices"][:-1]] for t in row["trajectories"]]
    assert [len(each) - len(asked[0]) for each in asked] == [0, 2, 4]
    assert asked[2][-4:] == ["No 0.", partial.voided[0].asked_again, "No 1.", partial.voided[1].asked_again]
    prompts = [t["messages_and_choices"][-1]["prompt_token_ids"] for t in row["trajectories"]]
    assert prompts == [[1, 2], [1, 2, 3], [1, 2, 3, 4]]


async def test_a_rejected_answer_has_no_more_than_the_worst_reward_of_its_group() -> None:
    loom = Loom.memory()
    good = spoken([1, 2], [4], words="", finish="tool_calls", delta=done_call())
    await cast(loom, empty([1, 2], [3]), good)
    leaf = loom.leaves()[-1]
    for reward, expected in ((1.0, 0.0), (-1.0, -1.0)):
        loom.append(RewardRecord(leaf, reward))
        (group,) = exported(loom, "art")
        assert [t["reward"] for t in group["trajectories"]] == [reward, expected]


async def test_forks_export_a_rejected_answer_that_they_share_once() -> None:
    loom = Loom.memory()
    echo = {"tool_calls": [{"index": 0, "id": "e", "function": {"name": "echo", "arguments": '{"text": "a"}'}}]}
    replies = [
        empty([1, 2], [3]),
        spoken([1, 2], [4], words="", finish="tool_calls", delta=echo),
        *(spoken([1, 2, 4, 5], [6], words="", finish="tool_calls", delta=done_call()) for _ in range(2)),
    ]
    with Wire(replies) as wire:
        circle = Circle(gates=["echo", "done"], wards=[{"max_turns": 4}])
        cantrip = Cantrip(local(wire), circle=circle, loom=loom, retry=RetryPolicy(base_s=0.001))
        async with cantrip.invoke() as entity:
            await entity.cast("go")
        first = next(t for t in loom.turns() if t.role == "crystal")
        fork = await cantrip.fork(first.id)
        await fork.cast("again")
        await fork.close()
    reasons = [t["metadata"]["reason"] for row in exported(loom, "art") for t in row["trajectories"]]
    assert sorted(reasons) == ["done", "done", "empty"]


async def test_no_secret_of_a_rejected_answer_is_in_the_loom_as_tokens() -> None:
    secret = "secret-of-a-rejected-answer-0123456789"
    shared().add(secret)
    loom = Loom.memory()
    replies = [
        spoken([1, 2], [3], words=f"it is {secret}"),
        # The prompt of the second answer has the first one.
        spoken([1, 2, 3, 7], [4], words="", finish="tool_calls", delta=done_call()),
    ]
    await cast(loom, *replies, call=Call(tool_choice="required"))
    (turn,) = [t for t in loom.turns() if t.role == "crystal"]
    (kept,) = turn.metadata.voided or ()
    assert (kept.rejected, kept.sampled) == ("no_call", None)
    assert turn.metadata.sampled == SampledTokens((4,), ("<4>",), (-0.25,))
    assert secret not in repr(list(loom.records()))


@pytest.mark.parametrize("good", [0, 1, 2])
async def test_casts_of_one_intent_that_fail_at_their_first_answer_are_in_its_group(good: int) -> None:
    replies = [spoken([1], [n], words="", finish="tool_calls", delta=done_call()) for n in range(good)]
    with Wire([*replies, empty([1], [8], finish="length"), empty([1], [9], finish="length")]) as wire:
        loom = Loom.memory()
        circle = Circle(gates=["echo", "done"], wards=[{"max_turns": 4}])
        cantrip = Cantrip(local(wire), Call(seed=7), circle, loom=loom, retry=RetryPolicy(max_retries=0))
        for _ in range(good + 2):
            with suppress(CrystalError):
                await cantrip.cast("go")
    for leaf in loom.leaves():
        loom.append(RewardRecord(leaf, -1.0))
    found = exported(loom, "tokens")
    assert {row["response_ids"][0] for row in found} == {*range(good), 8, 9}
    assert len({row["group"] for row in found}) == 1
    assert [row["reward"] for row in found if row["kind"] == "rejected"] == [-1.0 if good else 0.0] * 2
    (group,) = exported(loom, "art")
    assert (group["metadata"]["group"], len(group["trajectories"])) == (found[0]["group"], good + 2)


async def test_a_group_of_forks_that_all_fail_is_one_group() -> None:
    replies = [
        spoken([1], [2], words="", finish="tool_calls", delta=done_call()),
        *(empty([1, 2, 8], [n], finish="length") for n in (4, 5)),
    ]
    with Wire(replies) as wire:
        loom = Loom.memory()
        circle = Circle(gates=["echo", "done"], wards=[{"max_turns": 4}])
        cantrip = Cantrip(local(wire), Call(seed=7), circle, loom=loom, retry=RetryPolicy(max_retries=0))
        await cantrip.cast("Begin.")
        forks = await cantrip.fork_group(loom.leaves()[0], "one", samples=2, concurrency=1)
    groups = {row["metadata"]["group"]: len(row["trajectories"]) for row in exported(loom, "art")}
    assert groups == {None: 1, forks.id: 2}


@pytest.mark.parametrize("rejected", [True, False])
async def test_tokens_of_a_secret_that_no_word_shows_are_not_stored(rejected: bool) -> None:
    """An answer without a word is rejected. A server may leave thinking out, and the text of a call."""
    secret = "secret-that-no-word-shows-0123456789"
    shared().add(secret)
    loom = Loom.memory()
    delta = {} if rejected else done_call()
    entries = [entry(half, -0.5) for half in (secret[:9], secret[9:])]
    words = chunk(None, choices=[{"index": 0, "delta": {}, "logprobs": {"content": entries}, "token_ids": [3, 4]}])
    first = chunk({"role": "assistant", "content": ""}, check=False, prompt_token_ids=[1, 2])
    with suppress(CrystalError):
        await cast(loom, sse_reply([first, words, chunk(delta), chunk({}, "tool_calls")]), retries=0)
    assert [len(partial.voided) for partial in loom.partials()] == [1] * rejected
    records = repr(list(loom.records()))
    assert secret[9:] not in records
    assert "ids=(3, 4)" not in records


async def test_a_fork_that_fails_at_its_first_answer_is_in_the_group_of_its_forks(tmp_path: Path) -> None:
    replies = [
        spoken([1], [2], words="", finish="tool_calls", delta=done_call()),
        spoken([1, 2, 8], [4], words="", finish="tool_calls", delta=done_call()),
        spoken([1, 2, 8], [5], words="", finish="tool_calls", delta=done_call()),
        spoken([1, 2, 9], [6], words="", finish="tool_calls", delta=done_call()),
        empty([1, 2, 9], [7], finish="length"),
    ]
    with Wire(replies) as wire, Loom.open(tmp_path / "a.loom.jsonl") as loom:
        circle = Circle(gates=["echo", "done"], wards=[{"max_turns": 4}])
        cantrip = Cantrip(local(wire), Call(seed=7), circle, loom=loom, retry=RetryPolicy(max_retries=0))
        await cantrip.cast("Begin.")
        (start,) = loom.leaves()
        first = await cantrip.fork_group(start, "one", samples=2, concurrency=1, reference="1")
        second = await cantrip.fork_group(start, "two", samples=2, concurrency=1, reference="2")
        rows = [row for row in exported(loom, "tokens") if row["forked_from"] == start]
        assert {(row["response_ids"][-1], row["group"], row["reference"]) for row in rows} == {
            (4, first.id, "1"), (5, first.id, "1"), (6, second.id, "2"), (7, second.id, "2"),
        }  # fmt: skip
        (lost,) = [row for row in rows if row["kind"] == "rejected"]
        assert (lost["cast"], lost["reward"]) == (loom.casts()[-1][0].id, 0.0)
        groups = {row["metadata"]["group"]: row for row in exported(loom, "art")}
        found = [each["messages_and_choices"][-1] for each in groups[second.id]["trajectories"]]
        assert [each.get("token_ids") for each in found][-1] == [7]
        assert len(found) == 2
        assert groups[second.id]["metadata"]["intent"] == "two"
