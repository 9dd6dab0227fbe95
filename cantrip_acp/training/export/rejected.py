"""Rejected answers: what a crystal answered and the loop did not use, as samples of their own.

An empty answer, an answer that was cut at its token limit before it said anything, and one without the call that it had to
make were sampled like any other. A trainer that never saw them would not learn to avoid them. Each becomes a sample with the
prompt that it answered and the reward of failure (`failure_reward`). A thread's own utterances are trained elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from cantrip_acp.core.history.replayed_context import Window, WindowUtterance
from cantrip_acp.training.export.rows import Sequences
from cantrip_acp.training.export.selection import Episode, Source
from cantrip_acp.training.export.sent_messages import asked_again, windows_as_sent
from cantrip_acp.types.errors import LoomError
from cantrip_acp.types.messages import Message
from cantrip_acp.types.records import Turn, TurnMetadata, Utterance, UtteranceRecord, VoidedAttempt, metadata_of
from cantrip_acp.types.usage import UNKNOWN_USAGE


@dataclass(frozen=True, slots=True)
class RejectedAnswer:
    """One answer that was not used.

    - ``turn_id`` is the turn of its query, or the last turn before a cast that failed.
    - ``episode`` describes it like a thread: an id of its own, the reward of failure, the group of its thread, and why it was
      rejected as the reason.
    - ``window`` is what the crystal saw and this answer, with the answers that were rejected before it in the same query where
      the crystal saw them. Its only utterance has the parameters and the tokens, with the whole prompt.
    """

    turn_id: str
    attempt: VoidedAttempt
    episode: Episode
    window: Window

    @property
    def uttered(self) -> WindowUtterance:
        """The answer, and its position in the window."""
        return self.window.uttered[0]

    def about(self) -> dict[str, Any]:
        """The fields of a row about the answer: a flat mapping of texts, numbers and nulls."""
        return {**self.episode.about(), "turn": self.turn_id}


def failure_reward(source: Source, episode: Episode) -> float:
    """The reward of a rejected answer: 0, or the lowest reward of the thread's group if that is lower."""
    group = next((each for each in source.groups if each.id == episode.group), None)
    # In a group of casts that failed, only one may have a thread. Its first turn names the group.
    leaves = group.leaves if group is not None else (source.outline.tips.get(episode.group or "", episode.leaf),)
    rewards = [source.episode(leaf).reward for leaf in leaves]
    return min([0.0, *(reward for reward in rewards if reward is not None)])


def rejected_answers(source: Source, episode: Episode) -> Iterator[RejectedAnswer]:
    """Yield the rejected answers of a thread's queries, then those of casts that failed after one of its turns.

    Each answer is yielded once, although threads share turns.
    """
    path = source.outline.own_path(episode.leaf)
    if any(turn.metadata.voided for turn in source.loom.bodies(path)):
        for turn, window, at, sequences in _utterances(source, episode.leaf):
            if source.take(turn.continues or turn.id, "rejected"):
                yield from _answers(source, turn, turn.metadata.voided or (), window, at, sequences, episode)
    above = {i for i in path if source.outline.places[i].role != "call"}
    for partial in source.seen.partials.values():
        continues = partial.parent_id in above and not _begins(source, partial)
        if continues and _has_rejected(partial) and source.take(partial.id, "rejected"):
            *_, (turn, window, at, sequences) = _utterances(source, partial.parent_id, _turn_of(partial))
            yield from _answers(source, turn, partial.voided, window, at, sequences, episode)


def failed_casts(source: Source) -> Iterator[tuple[Episode, list[RejectedAnswer]]]:
    """Yield the first casts of entities, also of forks, that ended without a turn because no answer was usable.

    Such a cast is no thread. Its episode has the intent, the reference and the reason, and for a fork the group of forks.
    """
    for partial in source.seen.partials.values():
        if not _begins(source, partial) or not _has_rejected(partial) or source.wanted.threads:
            continue
        try:
            episode = source.episode(partial.parent_id, failed=partial)
            why = source.refused(episode, marked=True)
            if why is not None:
                source.leave_out(partial.id, why)
                continue
            *_, (turn, window, at, sequences) = _utterances(source, partial.parent_id, _turn_of(partial))
        except LoomError as problem:
            source.leave_out(partial.id, str(problem))
            continue
        yield episode, list(_answers(source, turn, partial.voided, window, at, sequences, episode))


def _begins(source: Source, partial: UtteranceRecord) -> bool:
    """Whether an unfinished answer is the first of its entity."""
    place = source.outline.places.get(partial.parent_id)
    fork = source.loom.fork_of(partial.entity_id)
    return (place is not None and place.role == "call") or (fork is not None and fork.from_turn == partial.parent_id)


def _has_rejected(partial: UtteranceRecord) -> bool:
    return any(each.rejected is not None for each in partial.voided)


def _utterances(source: Source, leaf: str, then: Turn | None = None) -> Iterator[tuple[Turn, Window, int, Sequences]]:
    """Yield each utterance of a thread, with its window, its position there, and the tokens before it."""
    sequences = Sequences(source)
    for window in source.seen.windows(leaf, then):
        for uttered in window.uttered:
            yield uttered.turn, window, uttered.at, sequences
            sequences.of(uttered.turn)


def _answers(
    source: Source,
    turn: Turn,
    attempts: tuple[VoidedAttempt, ...],
    window: Window,
    at: int,
    sequences: Sequences,
    episode: Episode,
) -> Iterator[RejectedAnswer]:
    messages = list(window.messages[:at])
    for attempt in attempts:
        if attempt.rejected is None:
            continue
        metadata = metadata_of(
            attempt.usage or UNKNOWN_USAGE,
            model=turn.metadata.model,
            timestamp=turn.metadata.timestamp,
            request=attempt.request or msgspec.UNSET,
            stop_reason=attempt.stop_reason or msgspec.UNSET,
        )
        if attempt.sampled is not None:
            whole = tuple(sequences.of_rejected(attempt.sampled))
            sampled = msgspec.structs.replace(attempt.sampled, prompt_ids=whole, prompt_from=0)
            metadata = msgspec.structs.replace(metadata, sampled=sampled)
        said = Turn(
            f"{turn.id}.{attempt.attempt}",
            turn.parent_id,
            turn.cantrip_id,
            turn.entity_id,
            turn.cast_id,
            utterance=Utterance(attempt.content, attempt.thinking),
            metadata=metadata,
            truncated=True,
            reason="error",
        )
        own = Message("assistant", attempt.content, thinking=attempt.thinking)
        yield RejectedAnswer(
            turn.id if turn.id in source.outline.places else turn.parent_id or turn.id,
            attempt,
            replace(
                episode,
                leaf=said.id,
                # The cast that failed is not always that of the thread: a fork begins with turns of another one.
                entity_id=turn.entity_id,
                cantrip_id=turn.cantrip_id,
                cast_id=turn.cast_id,
                state="truncated",
                reason=attempt.rejected,
                error=f"CrystalError: {attempt.error}",
                reward=failure_reward(source, episode),
                relative=None,
            ),
            next(
                windows_as_sent(
                    replace(window, messages=[*messages, own], uttered=[WindowUtterance(said, len(messages))]),
                    source.loom,
                )
            ),
        )
        messages += asked_again(attempt)


def _turn_of(partial: UtteranceRecord) -> Turn:
    """Make a turn for an unfinished answer."""
    metadata = TurnMetadata(model=partial.model, voided=partial.voided)
    return Turn(
        partial.id,
        partial.parent_id,
        partial.cantrip_id,
        partial.entity_id,
        partial.cast_id,
        sequence=partial.sequence,
        utterance=partial.utterance,
        metadata=metadata,
        truncated=True,
        reason="error",
    )
