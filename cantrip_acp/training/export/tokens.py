"""Token rows: a thread as the token sequence that the model read and wrote. Formats with tokens are built on `Sequences`.

A row is ``prompt_ids`` and then ``response_ids``. ``mask`` is 1 where the model sampled the token and the row trains it;
what came between (results, the user's words, utterances without tokens) has mask 0 and log-probability 0. A new row begins
where the sequence breaks: after a fold or a cut, where the crystal was asked again, where the template encoded the earlier
turns with other tokens, and where another model or another version of its weights answers. The query that made a fold's
summary is a row of its own, and so is an answer that was rejected (`rejected`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from cantrip_acp.core.history.replayed_context import Window, WindowUtterance
from cantrip_acp.loom import rewards
from cantrip_acp.training.export.export_format import export_format
from cantrip_acp.training.export.rejected import RejectedAnswer, failed_casts, rejected_answers
from cantrip_acp.training.export.rows import Sequences, rendered, request_of, weights_of
from cantrip_acp.training.export.selection import Source
from cantrip_acp.types.messages import SampledTokens
from cantrip_acp.types.records import Turn

NO_TOKENS = "no tokens were recorded (`logprobs: true` in the crystal of a recipe records them)"
NO_LOGPROBS = "token ids without log-probabilities"
NO_IDS = "log-probabilities without token ids"
NO_PROMPT = "the tokens of the prompt are unknown"


@export_format(
    "tokens",
    "token rows: prompt and response ids, mask, log-probabilities, reward, group, version of the weights",
    marks_truncated=True,
)
def tokens(source: Source) -> Iterator[dict[str, Any]]:
    """One row for each token sequence of a thread."""
    for episode in source.episodes(marked=True):
        known = 0
        missing: list[str] = []
        rows: list[_Row] = []
        turns = Sequences(source)
        for window in episode.queries():
            row: _Row | None = None
            # The query of a summary continues no turn, and no turn continues it.
            sequences = Sequences(source) if window.begun == "summary" else turns
            for uttered in window.uttered:
                sampled, prompt = sequences.of(uttered.turn)
                if sampled is None or not sampled.ids or not sampled.logprobs or not prompt:
                    missing.append(_missing(sampled, sequences))
                    continue
                known += 1
                if not source.take(uttered.first):
                    # An earlier row trains it; in this thread it is part of a prompt.
                    continue
                if row is None or not row.continues(uttered.turn, prompt):
                    row = _Row(window, uttered.turn, prompt)
                    rows.append(row)
                row.add(uttered, prompt, sampled)
        group = episode.group or episode.leaf
        if known:
            for why in missing:
                source.note(f"an utterance that is not trained: {why}")
            for number, row in enumerate(rows):
                yield row.data(source, episode.about(), group, number)
            source.count_exported(episode.leaf)
        else:
            source.leave_out(episode.leaf, missing[0] if missing else NO_TOKENS)
        yield from _rejected(source, rejected_answers(source, episode), group)
    for episode, answers in failed_casts(source):
        yield from _rejected(source, answers, episode.group or episode.cast_id or episode.leaf)


def _rejected(source: Source, answers: Iterable[RejectedAnswer], group: str) -> Iterator[dict[str, Any]]:
    for each in answers:
        sequences = Sequences(source)
        sampled, prompt = sequences.of(each.uttered.turn)
        if sampled is None or not sampled.ids or not sampled.logprobs or not prompt:
            source.note(f"an utterance that is not trained: {_missing(sampled, sequences)}")
            continue
        row = _Row(each.window, each.uttered.turn, prompt, kind="rejected")
        row.add(each.uttered, prompt, sampled)
        yield row.data(source, each.episode.about(), group, 0)


def _missing(sampled: SampledTokens | None, sequences: Sequences) -> str:
    """Why an utterance cannot be trained; None if it can."""
    if sampled is None:
        return sequences.problem or NO_TOKENS
    return NO_IDS if not sampled.ids else NO_LOGPROBS if not sampled.logprobs else NO_PROMPT


class _Row:
    """A token sequence while utterances are added to it."""

    def __init__(self, window: Window, turn: Turn, prompt: list[int], kind: str = "turns") -> None:
        self._window = window
        self._kind = "summary" if window.begun == "summary" else kind
        self._prompt = prompt
        self._model, self._weights = turn.metadata.model, weights_of(turn)
        self._response: list[int] = []
        self._mask: list[int] = []
        self._logprobs: list[float] = []
        self._turns: list[dict[str, Any]] = []
        self._last = 0

    def continues(self, turn: Turn, prompt: list[int]) -> bool:
        """Whether the prompt of a turn begins with this row, and the same weights answered."""
        sequence = self._prompt + self._response
        same = (turn.metadata.model, weights_of(turn)) == (self._model, self._weights)
        return same and prompt[: len(sequence)] == sequence

    def add(self, uttered: WindowUtterance, prompt: list[int], sampled: SampledTokens) -> None:
        """Add the messages that a turn read since the previous one, and its utterance."""
        between = prompt[len(self._prompt) + len(self._response) :]
        self._response += [*between, *sampled.ids]
        self._mask += [0] * len(between) + [1] * len(sampled.ids)
        self._logprobs += [*([0.0] * len(between)), *sampled.logprobs]
        end = len(self._response)
        about = {"turn": uttered.turn.id, "start": end - len(sampled.ids), "end": end}
        self._turns.append({**about, "request": request_of(uttered.turn)})
        self._last = uttered.at

    def data(self, source: Source, about: dict[str, Any], group: str, number: int) -> dict[str, Any]:
        return {
            **about,
            "group": group,
            "model": self._model,
            "weights": self._weights,
            "row": number,
            "kind": self._kind,
            # An answer that was rejected is no turn of the loom.
            "turns": [
                {**each, "reward": rewards.of_turn(source.loom, each["turn"]) if each["turn"] in source.loom else None}
                for each in self._turns
            ],
            "prompt_ids": self._prompt,
            "response_ids": self._response,
            "mask": self._mask,
            "logprobs": self._logprobs,
            # The text of the tokens: for people, and so that a secret in it is found.
            "messages": [
                rendered(message, arguments="text", thinking="reasoning_content", note=source.note)
                for message in self._window.messages[: self._last + 1]
            ],
        }
