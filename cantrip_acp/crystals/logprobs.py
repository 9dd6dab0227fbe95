"""Log-probabilities: collects the tokens of a response (ids, texts, log-probabilities) if the option ``logprobs`` is set."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from cantrip_acp.types.errors import CrystalError
from cantrip_acp.types.messages import SampledTokens

UNLIKELY = -9999.0
"""The value that servers write for minus infinity, which JSON cannot hold."""

_MOST = 1_000_000
"""The most tokens to accept. No real response or prompt has more."""


def check_tokens(sampled: SampledTokens, who: str) -> None:
    """Check that the lists of token data have equal lengths. Raises `CrystalError`, which is not retried.

    A trainer needs the id and the log-probability of every token. If some are missing, nobody can say which, so the thread
    cannot be trained. The cast ends at once, because its other queries would be wasted.
    """
    counts = {"ids": len(sampled.ids), "texts": len(sampled.texts), "log-probabilities": len(sampled.logprobs)}
    known = {name: count for name, count in counts.items() if count or (name == "log-probabilities" and sampled.texts)}
    if len(set(known.values())) > 1:
        told = " and ".join(f"{count:,} {name}" for name, count in known.items() if name != "texts" or not sampled.ids)
        raise CrystalError(
            f"{who} reported {told} for one answer. The tokens cannot be recorded for training, because each needs both. "
            "Use another version of the server, or set crystal.logprobs: false to continue without tokens",
            retryable=False,
        )


class TokenCollector:
    """Collects the token data of a streamed response. If some of them are missing or have a wrong shape, the lengths of the
    lists differ, which `check_tokens` reports."""

    def __init__(self) -> None:
        self.corrected: SampledTokens | None = None
        """The data that `whole` returns in place of what was collected; empty if that was wrong."""
        self._ids: list[int] = []
        self._entry_ids: list[int] = []
        self._texts: list[str] = []
        self._logprobs: list[float] = []
        self._raw: dict[str, tuple[int, ...]] = {}
        self._prompt: list[int] = []

    def chat(self, chunk: Mapping[str, Any], choice: Mapping[str, Any]) -> None:
        """Add a chunk of Chat Completions and its choice: ``logprobs``, and the token ids that servers such as vLLM send."""
        found = choice.get("logprobs")
        if isinstance(found, Mapping):
            for key in ("content", "refusal"):
                self.entries(found.get(key))
            # Completions, the older interface, has lists.
            texts, values = found.get("tokens"), found.get("token_logprobs")
            if isinstance(texts, list) and isinstance(values, list) and len(texts) == len(values):
                for text, value in zip(texts, values, strict=True):
                    self.add(text if isinstance(text, str) else "", value)
        # SGLang has another name for them in a whole answer.
        self._ids += _ids(choice.get("token_ids", choice.get("response_token_ids")))
        self.prompt(chunk.get("prompt_token_ids", choice.get("prompt_token_ids")))

    def prompt(self, ids: Any) -> None:
        """Set the ids of the prompt's tokens. Only the first list counts."""
        if not self._prompt:
            self._prompt = _ids(ids)

    def entries(self, entries: Any) -> None:
        """Add entries ``{token, logprob, bytes}``, the form of both OpenAI APIs."""
        for entry in entries if isinstance(entries, list) else ():
            if not isinstance(entry, Mapping) or not isinstance(entry.get("token"), str):
                self._texts.append("")
                continue
            # llama.cpp names the id here. Other servers send a list of ids.
            self._entry_ids += _ids([entry.get("id")])
            self.add(entry["token"], entry.get("logprob"), entry.get("bytes"))

    def add(self, text: str, logprob: Any, raw: Any = None, token_id: Any = None) -> None:
        """Add one token. It stays without a log-probability if ``logprob`` is not a number."""
        if token_id is not None:
            self._ids += _ids([token_id])
        known = _ids(raw)
        if known and bytes(b for b in known if 0 <= b < 256) != text.encode("utf-8", "replace"):
            self._raw[str(len(self._texts))] = tuple(known)
        self._texts.append(text)
        if isinstance(logprob, int | float) and not isinstance(logprob, bool) and not math.isnan(logprob):
            self._logprobs.append(float(logprob) if math.isfinite(logprob) else UNLIKELY)

    @property
    def like_llama_cpp(self) -> bool:
        """Whether each entry has the id of its token, which only llama.cpp writes. Such a server leaves tokens out."""
        return not self._ids and 0 < len(self._entry_ids) == len(self._texts) == len(self._logprobs)

    def whole(self) -> SampledTokens | None:
        """Return all collected data; None if there is nothing."""
        if self.corrected is not None:
            return self.corrected if self.corrected.ids else None
        ids = self._ids or self._entry_ids
        if not ids and not self._texts:
            return None
        return SampledTokens(
            tuple(ids), tuple(self._texts), tuple(self._logprobs), self._raw, tuple(self._prompt) if ids else ()
        )


def _ids(value: Any) -> list[int]:
    if not isinstance(value, list) or len(value) > _MOST:
        return []
    good = all(isinstance(v, int) and not isinstance(v, bool) and 0 <= v < 1 << 31 for v in value)
    return list(value) if good else []


def common_prefix_length(one: Sequence[int], other: Sequence[int]) -> int:
    """The length of the common beginning of two token sequences."""
    most = min(len(one), len(other))
    if one[:most] == other[:most]:
        return most
    return next(i for i in range(most) if one[i] != other[i])
