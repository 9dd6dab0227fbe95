"""Folding policy: when earlier turns are folded into a summary, and how many stay (§6.8, LOOM-5, LOOM-6, PROD-4, D-007).

Folding changes only what the crystal sees; the turns stay in the loom. `summary` makes the text that replaces them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from cantrip_acp.crystals.contract import Crystal
from cantrip_acp.types.checked_values import check_keys, check_mapping, check_number, check_whole, short_repr
from cantrip_acp.types.errors import DefinitionError
from cantrip_acp.types.messages import Message

CHARS_PER_TOKEN = 3
"""Characters per token for estimates, used if no provider has counted. A safe value for prose and code."""

ATTACHMENT_TOKENS = 1_500
"""Estimated tokens of an image, a sound or a document, used if no provider has counted."""

KEEP_TURNS = 2
"""Turns that a fold by ``trigger_after_turns`` leaves, if ``keep_turns`` is not set."""

_KEEP_FRACTION = 0.3
"""The part of the window that the remaining turns may fill after a fold by tokens."""

_FULL_FRACTION = 0.9
"""The largest part of the window that is ever sent. What does not fit is cut and marked (compaction)."""


@dataclass(frozen=True, slots=True)
class Folding:
    """The folding policy of a cantrip.

    Three triggers ask for a fold, whichever comes first (D-007): ``at_fraction`` of the crystal's window by the
    provider's own count, ``trigger_at_tokens``, and ``trigger_after_turns`` (before query n + 1).
    ``keep_turns`` is the number of turns that stay. The default is `KEEP_TURNS` for the trigger by turns, and for
    tokens as many as fill 30 % of the window. The last turn always stays, also with ``keep_turns: 0``, because no query
    has seen its results yet.
    ``summarizer`` is a crystal that writes the summary. Without it the summary is a digest by rule, which costs no
    query.
    """

    at_fraction: float = 0.8
    trigger_after_turns: int | None = None
    trigger_at_tokens: int | None = None
    keep_turns: int | None = None
    summarizer: Crystal | None = None

    def __post_init__(self) -> None:
        check_number(self.at_fraction, "folding.at_fraction", 0, 1, above=True)
        for name in ("trigger_after_turns", "trigger_at_tokens", "keep_turns"):
            value = getattr(self, name)
            if value is not None:
                check_whole(value, f"folding.{name}", 0 if name == "keep_turns" else 1)
        if self.summarizer is not None and not isinstance(self.summarizer, Crystal):
            raise DefinitionError(f"folding.summarizer must be a crystal, not {short_repr(self.summarizer)}")

    @classmethod
    def of(cls, value: Folding | Mapping[str, Any] | None) -> Folding:
        """Make a policy from a mapping. Raises `DefinitionError` for an unknown key."""
        if value is None:
            return cls()
        if isinstance(value, Folding):
            return value
        check_keys(check_mapping(value, "folding"), tuple(f.name for f in fields(cls)), "folding")
        return cls(**value)

    def limit(self, window: int | None) -> int | None:
        """The context size in tokens from which on turns are folded; None if no limit is known."""
        if window is None:
            return self.trigger_at_tokens
        limit = int(window * self.at_fraction)
        return limit if self.trigger_at_tokens is None else min(limit, self.trigger_at_tokens)

    def should_fold(self, turns: int, tokens: int, window: int | None) -> bool:
        """Whether a context with this many unfolded turns and tokens must be folded before the next query."""
        if self.trigger_after_turns is not None and turns >= self.trigger_after_turns:
            return True
        limit = self.limit(window)
        return limit is not None and tokens >= limit

    def turns_to_keep(self, sizes: Sequence[int], tokens: int, window: int | None) -> int | None:
        """How many of the last unfolded turns stay; None if no trigger asks for a fold.

        ``sizes`` are the unfolded turns' estimated tokens, in order; ``tokens`` is the size of the whole context.
        """
        turns = len(sizes)
        by_turns = self.trigger_after_turns is not None and turns >= self.trigger_after_turns
        limit = self.limit(window)
        by_tokens = limit is not None and tokens >= limit
        if turns < 2 or not (by_turns or by_tokens):
            return None
        choices = []
        if by_turns:
            choices.append(min(KEEP_TURNS if self.keep_turns is None else self.keep_turns, turns - 1))
        if by_tokens and limit is not None:
            room, fits = int((window or limit) * _KEEP_FRACTION), 0
            for size in reversed(sizes[1:]):
                room -= size
                if room < 0:
                    break
                fits += 1
            choices.append(fits if self.keep_turns is None else min(self.keep_turns, turns - 1))
        # The last turn stays, however large: the entity needs what it just learned to go on.
        return max(min(choices), 1)


def largest(window: int) -> int:
    """The size in tokens above which a context is cut before it is sent."""
    return int(window * _FULL_FRACTION)


def tokens_of(message: Message) -> int:
    """An estimate of a message's tokens, rather too high than too low."""
    chars = len(message.content or "") + len(message.thinking or "") + 16
    for call in message.tool_calls:
        chars += len(call.args) + len(call.gate) + 16
    # Scripts other than Latin need more tokens per character.
    if message.content and not message.content.isascii():
        chars += len(message.content.encode("utf-8", "replace")) - len(message.content)
    return chars // CHARS_PER_TOKEN + ATTACHMENT_TOKENS * len(message.attachments)
