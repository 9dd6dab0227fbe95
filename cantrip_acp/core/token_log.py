"""The tokens of an entity's turns on their way into the loom: each turn keeps what it adds, and no secret as tokens.

A prompt holds all that was before it. Kept whole with every turn, it would make a loom grow with the square of its turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from cantrip_acp.crystals.logprobs import Sampled, common

if TYPE_CHECKING:
    from cantrip_acp.crystals.contract import Message
    from cantrip_acp.text.redaction import Redactor


class TokenTrail:
    """What is needed of one entity's last turn. ``kept`` is asked once for each turn whose response told its tokens."""

    def __init__(self) -> None:
        self._sequence: tuple[int, ...] = ()
        self._checked = 0
        self._folded = 0
        self._secret = False

    def kept(
        self, sampled: Sampled, messages: Sequence[Message], folded: int, redactor: Redactor, *, masked: bool
    ) -> Sampled | None:
        """What the turn's record gets; ``messages`` are those of its query, ``folded`` how many turns a summary stood for.

        Tokens are text in another spelling: where the words were ``masked``, nothing of the response's tokens is kept, and
        where a message holds a secret, nothing of the prompt's.
        """
        whole = sampled.prompt_ids + sampled.ids
        secret = self._holds_secret(messages, folded, redactor)
        if masked:
            self._sequence = ()
            return None
        if secret or not sampled.prompt_ids:
            self._sequence = ()
            return msgspec.structs.replace(sampled, prompt_ids=(), prompt_from=0)
        shared = common(self._sequence, sampled.prompt_ids)
        self._sequence = whole
        return msgspec.structs.replace(sampled, prompt_ids=sampled.prompt_ids[shared:], prompt_from=shared)

    def _holds_secret(self, messages: Sequence[Message], folded: int, redactor: Redactor) -> bool:
        """Whether any message has one; only those that are new are looked at."""
        if folded != self._folded or len(messages) < self._checked:
            self._checked, self._folded, self._secret = 0, folded, False
        if redactor.active and not self._secret:
            for message in messages[self._checked :]:
                texts = [message.content, message.thinking, *(call.args for call in message.tool_calls)]
                if any(text and redactor.text(text) != text for text in texts):
                    self._secret = True
                    break
        self._checked = len(messages)
        return self._secret
