"""Prompts for GRPO, labels for KTO, and labels for each turn, in the columns that TRL documents."""

from __future__ import annotations

import json

import pytest

from cantrip_acp import Loom
from tests.support.export_looms import GATES, forked, lived, saw
from tests.support.fixtures.core import done, echo, make
from tests.training.unit.test_export_formats import exported, rows

pytestmark = pytest.mark.anyio


async def test_prompts_are_what_is_read_before_the_first_answer_and_come_once() -> None:
    loom = Loom.memory()
    cantrip = make(*[done(str(n)) for n in range(4)], loom=loom, call={"system_prompt": "You add."})
    for intent, reference in (("1 + 1", "2"), ("1 + 1", "2"), ("2 + 2", {"value": 4}), ("3 + 3", None)):
        await cantrip.cast(intent, reference=reference)
    found = rows(loom, "trl-prompts")
    assert [(row["intent"], row["reference"]) for row in found] == [
        ("1 + 1", "2"),
        ("2 + 2", '{"value":4}'),
        ("3 + 3", None),
    ]
    system = {"role": "system", "content": "You add."}
    assert [row["prompt"] for row in found] == [[system, {"role": "user", "content": r["intent"]}] for r in found]
    assert [t["function"]["name"] for t in json.loads(found[0]["tools"])] == ["done", "echo"]


async def test_the_prompt_of_forks_is_where_they_part() -> None:
    found = rows(await forked(), "trl-prompts")
    assert len(found) == 2
    assert found[0]["prompt"][-1] == {"role": "user", "content": "the task"}
    assert found[1]["prompt"][-1] == {"role": "user", "content": "go on"}
    assert [m["role"] for m in found[1]["prompt"]] == ["system", "user", "assistant", "tool", "user"]


async def test_each_prompt_has_the_reference_of_its_own_cast() -> None:
    loom = Loom.memory()
    cantrip = make(*[done(str(n)) for n in range(5)], loom=loom, gates=GATES)
    async with cantrip.invoke() as entity:
        await entity.cast("1 + 1", reference="2")
        await entity.cast("and 2 + 2?", reference="4")
    async with await cantrip.fork(loom.leaves()[0], loom=loom, state="none") as entity:
        await entity.cast("and 3 + 3?", reference="6")
    found = [(row["prompt"][-1]["content"], row["intent"], row["reference"]) for row in rows(loom, "trl-prompts")]
    assert found == [("1 + 1", "1 + 1", "2"), *((f"and {n} + {n}?", f"and {n} + {n}?", str(2 * n)) for n in (2, 3))]


async def test_labels_compare_with_the_group() -> None:
    loom = await forked((0.9, 0.5, None, 0.1))
    found, source = exported(loom, "trl-kto")
    assert [(row["cantrip"]["reward"], row["label"]) for row in found] == [(0.9, True), (0.5, False), (0.1, False)]
    assert source.report.left_out == {"no reward": 2}
    for row in found:
        assert row["completion"][0]["role"] == row["completion"][-1]["role"] == "assistant"
    equal = rows(await forked((0.5, 0.5)), "trl-kto")
    assert [row["label"] for row in equal] == [True, True]
    # What they share came before the forks: the label of one of them is not for it.
    assert [len(row["completion"]) for row in equal] == [3, 3]
    assert [len(row["completion"]) for row in rows(await forked((0.5, 0.5)), "trl-sft")] == [3, 3, 3]


async def test_an_alone_thread_is_good_above_zero() -> None:
    loom = Loom.memory()
    for intent, reward in (("a", 1), ("b", 0), ("c", -1)):
        await make(done(), loom=loom).cast(intent)
        loom.annotate_reward(loom.leaves()[-1], reward)
    assert [row["label"] for row in rows(loom, "trl-kto")] == [True, False, False]


async def test_each_turn_has_a_label() -> None:
    loom = Loom.memory()
    await make(echo("a", content="First."), echo("b"), done("c"), loom=loom, gates=GATES).cast("the task")
    first, second, _ = [t.id for t in loom.turns() if t.role == "crystal"]
    _, source = exported(loom, "trl-stepwise")
    assert list(source.report.left_out.values()) == [1]
    loom.annotate_reward(first, 1)
    loom.annotate_reward(second, 0)
    loom.annotate_reward(loom.leaves()[0], 0.5)
    (row,) = rows(loom, "trl-stepwise")
    assert row["labels"] == [True, False, True]
    assert row["prompt"].endswith("the task")
    assert row["completions"] == ['First.\necho({"text": "a"})\na', 'echo({"text": "b"})\nb', 'done({"answer": "c"})']


async def test_folded_threads_have_a_row_for_each_window() -> None:
    loom, _ = await lived()
    leaf = loom.leaves()[-1]
    for turn in loom.turns():
        if turn.role == "crystal":
            loom.annotate_reward(turn.id, 1.0)
    turns = len(list(saw(loom, leaf)))
    steps = rows(loom, "trl-stepwise")
    assert len(steps) > 1
    assert sum(len(row["completions"]) for row in steps) == sum(len(row["labels"]) for row in steps) == turns
    assert len(rows(loom, "trl-kto")) == len(steps)
