"""Token log: reduces the tokens of each turn to what the turn adds, and removes tokens that contain a secret.

Each prompt contains the whole conversation before it. If every turn stored its whole prompt, the loom would grow with
the square of the number of turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from cantrip_acp.crystals.logprobs import common_prefix_length
from cantrip_acp.text.redaction import shared
from cantrip_acp.types.messages import SampledTokens

if TYPE_CHECKING:
    from cantrip_acp.types.messages import Message


class TokenLog:
    """The state for one entity's turns. Call `reduce` once for each turn whose response reported its tokens."""

    def __init__(self) -> None:
        self._sequence: tuple[int, ...] = ()
        self._checked = 0
        self._folded = 0
        self._secret = False
        self._hidden = False
        """Whether a rejected answer of the present query holds a secret. The prompt of the next attempt may contain it."""

    def reduce_rejected(
        self, sampled: SampledTokens, messages: Sequence[Message], folded: int, *, said: Any
    ) -> SampledTokens | None:
        """Reduce the tokens of a rejected answer for storage, in the same way as those of the turn that follows."""
        masked = _hold_secret(sampled, said)
        secret = self._holds_secret(messages, folded) or self._hidden
        self._hidden = self._hidden or masked
        if masked:
            return None
        if secret or not sampled.prompt_ids:
            return msgspec.structs.replace(sampled, prompt_ids=(), prompt_from=0)
        shared = common_prefix_length(self._sequence, sampled.prompt_ids)
        return msgspec.structs.replace(sampled, prompt_ids=sampled.prompt_ids[shared:], prompt_from=shared)

    def reduce(
        self, sampled: SampledTokens, messages: Sequence[Message], folded: int, *, said: Any
    ) -> SampledTokens | None:
        """Reduce a response's tokens for storage in its turn's record.

        ``messages`` are those of its query; ``folded`` is the number of turns that a summary replaced; ``said`` is the text
        of the answer. Tokens can be decoded to text. So the response's tokens are not stored if they or ``said`` hold a
        secret, and the prompt's are not if a message holds one.
        """
        masked = _hold_secret(sampled, said)
        whole = sampled.prompt_ids + sampled.ids
        secret = self._holds_secret(messages, folded) or self._hidden
        self._hidden = False
        if masked:
            self._sequence = ()
            return None
        if secret or not sampled.prompt_ids:
            self._sequence = ()
            return msgspec.structs.replace(sampled, prompt_ids=(), prompt_from=0)
        shared = common_prefix_length(self._sequence, sampled.prompt_ids)
        self._sequence = whole
        return msgspec.structs.replace(sampled, prompt_ids=sampled.prompt_ids[shared:], prompt_from=shared)

    def _holds_secret(self, messages: Sequence[Message], folded: int) -> bool:
        if folded != self._folded or len(messages) < self._checked:
            self._checked, self._folded, self._secret = 0, folded, False
        if not self._secret:
            self._secret = any(map(shared().holds, messages[self._checked :]))
        self._checked = len(messages)
        return self._secret


def _hold_secret(sampled: SampledTokens, said: Any) -> bool:
    """Whether a response has a secret. Its tokens may have more than the answer: a call without a name, for example."""
    return shared().holds(said) or shared().holds(sampled.text)
