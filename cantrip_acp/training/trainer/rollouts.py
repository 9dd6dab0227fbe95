"""Rollouts: casts of the questions of a step through the real product, as groups of forks of one demonstration.

A script plays the demonstrations first, in the step's own loom. Each question is then cast several times by the model,
from the last turn of the demonstrations, so a group has one beginning. Without demonstrations, a group is several casts
of one intent. The loom is exported as token rows, which are all that the learner gets.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import msgspec

from cantrip_acp.core.cantrip import Cantrip
from cantrip_acp.core.exports import ThreadSelection, find
from cantrip_acp.crystals.contract import Crystal
from cantrip_acp.crystals.scripted import ScriptedCrystal
from cantrip_acp.loom.loom import Loom
from cantrip_acp.loom.output_file import output_file
from cantrip_acp.training.export.selection import Source
from cantrip_acp.training.trainer.example import Demonstration, Question
from cantrip_acp.types.errors import CantripError
from cantrip_acp.types.records import RewardRecord

if TYPE_CHECKING:
    from cantrip_acp.training.trainer.learner import TokenRow


@dataclass(frozen=True, slots=True)
class Rollout:
    """The casts of one step: their mean reward, the share with the reward 1, their number and the number of failures."""

    reward: float
    right: float
    casts: int
    failed: int


async def play(cantrip: Cantrip, loom: Loom, demonstrations: Sequence[Demonstration]) -> str | None:
    """Let a script play the demonstrations. Returns the last turn, or None if there are no demonstrations."""
    if not demonstrations:
        return None
    script = ScriptedCrystal([each for one in demonstrations for each in one.responses], tools="text")
    # Their rewards mean nothing.
    async with cantrip.replace(crystal=script, scores=False).invoke(loom=loom) as entity:
        for demonstration in demonstrations:
            await entity.cast(demonstration.intent)
        return entity.last_turn


async def roll_out(
    cantrip: Cantrip,
    crystal: Crystal,
    loom: Loom,
    questions: Sequence[Question],
    demonstrations: Sequence[Demonstration],
    *,
    samples: int,
) -> Rollout:
    """Cast each question ``samples`` times, all at once. Raises `CantripError` if no cast succeeded, or none got a reward."""
    start = await play(cantrip, loom, demonstrations)
    errors: list[Exception] = []
    model = cantrip.replace(crystal=crystal, loom=loom)

    async def one(question: Question) -> None:
        intent, reference = question.intent, question.reference
        if start is None:
            references = [] if reference is None else [reference] * samples
            results = await model.cast_batch([intent] * samples, references=references, concurrency=samples)
            errors.extend(each for each in results if isinstance(each, Exception))
            return
        group = await model.fork_group(start, intent, samples=samples, reference=reference, concurrency=samples)
        errors.extend(each.error for each in group.samples if each.error is not None)

    async with anyio.create_task_group() as tasks:
        for question in questions:
            tasks.start_soon(one, question)
    casts = len(questions) * samples
    if len(errors) == casts:
        raise CantripError(f"every cast failed; the first error: {errors[0]}")
    ended = [each for each in Source(loom).episodes(marked=True) if start is None or each.forked_from == start]
    if ended and all(each.reward is None for each in ended):
        # Steps without any reward would teach nothing, and look like a model that learns nothing.
        notes = [record.note for record in loom.records() if isinstance(record, RewardRecord) and record.reward is None]
        why = (
            f"the scoring function failed: {notes[-1]}"
            if notes
            else "the circle of the recipe needs a scoring function"
        )
        raise CantripError(f"no cast got a reward; {why}")
    rewards = [each.reward or 0.0 for each in ended]
    # A cast that failed before its first turn has no thread. It counts as a cast without a reward.
    return Rollout(sum(rewards) / casts, sum(reward >= 1 for reward in rewards) / casts, casts, len(errors))


def compared(rows: Sequence[TokenRow], loom: Loom, questions: Sequence[Question]) -> list[TokenRow]:
    """The rows, with the rows of a pair of questions in one group.

    A model with a habit, such as "always the first number", gets equal rewards for all casts of one question. Only the other
    question of the pair shows that the habit is wrong.
    """
    pairs = {question.intent: f"pair {question.pair}" for question in questions if question.pair is not None}
    found = {start.id: pairs.get(start.intent or "") for start, _ in loom.casts()}
    return [msgspec.structs.replace(row, group=found.get(row.cast or "") or row.group) for row in rows]


def export(loom: Loom, target: Path) -> None:
    """Write the token rows of a loom to a file, as `cantrip loom export --format tokens` does."""
    with output_file(target) as file:
        for row in find("tokens").rows(Source(loom, ThreadSelection())):
            file.write(msgspec.json.encode(row) + b"\n")
        file.flush()
        os.fsync(file.fileno())
