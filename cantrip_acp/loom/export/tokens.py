"""Tokens as trainers want them: the whole prompt of each turn again, and entries with log-probabilities."""

from __future__ import annotations

from typing import Any

from cantrip_acp.crystals.sampled import Sampled


class Prompts:
    """Puts prompts together again: a turn's record has what it adds to the sequence of the turn before."""

    def __init__(self) -> None:
        self._sequence: list[int] = []

    def of(self, sampled: Sampled) -> list[int]:
        """The ids of a turn's whole prompt; empty where the provider gave none. To be asked turn by turn, in order."""
        if (
            not sampled.ids
            or len(self._sequence) < sampled.prompt_from
            or not (sampled.prompt_ids or sampled.prompt_from)
        ):
            self._sequence = []
            return []
        prompt = self._sequence[: sampled.prompt_from] + list(sampled.prompt_ids)
        self._sequence = prompt + list(sampled.ids)
        return prompt


def entries(sampled: Sampled) -> list[dict[str, Any]]:
    """The tokens as entries of chat completions' ``logprobs.content``; ``token_id:N`` where their ids are known, as vLLM writes
    it and trainers read it. The bytes say the text in any case."""
    return [
        {
            "token": f"token_id:{sampled.ids[place]}" if sampled.ids else sampled.texts[place],
            "bytes": sampled.bytes_of(place) if sampled.texts else None,
            "logprob": logprob,
            "top_logprobs": [],
        }
        for place, logprob in enumerate(sampled.logprobs)
    ]
