"""Parameters that a model or a server turns out not to take: left out from then on, in place of failing each query.

No table knows every model. Only what changes how well it answers is left out so, never what was said or asked for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

import msgspec

from cantrip_acp.crystals.contract import Message
from cantrip_acp.errors import CrystalError

DROPPABLE = (
    "temperature",
    "top_p",
    "stop",
    "prompt_cache_key",
    "stream_options",
    "reasoning.summary",
    "include",
    "usage",
    "logprobs",
    "return_token_ids",
)

_RENAMED = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}

_SPOKEN = {"reasoning.summary": r"reasoning[ _.]summar(?:y|ies)", "include": r"(?:include|[Ee]ncrypted content)"}
"""Where the message names a parameter in other words than the request."""

_NOT_TAKEN = re.compile(
    r"unsupported|not supported|does(?: not|n't) support|unrecognized|unknown|unexpected|not permitted|extra (?:fields|inputs)"
    r"|not allowed|must be verified",
    re.IGNORECASE,
)


def not_taken(error: CrystalError, body: Mapping[str, Any]) -> str | None:
    """The parameter of ``body`` that ``error`` says is not taken; None where it says nothing of the kind."""
    if error.status not in (400, 403, 422):
        return None
    words = str(error)
    if not _NOT_TAKEN.search(words):
        return None
    for name in (*DROPPABLE, *_RENAMED):
        head, _, tail = name.partition(".")
        if head not in body or (tail and tail not in body[head]):
            continue
        spoken = _SPOKEN.get(name, re.escape(name))
        if re.search(rf"(?<![\w.]){spoken}(?![\w.]*\w)", words):
            return name
    return None


def without(body: dict[str, Any], dropped: set[str]) -> dict[str, Any]:
    """The body without what is not taken; a limit of tokens goes by its other name."""
    out = dict(body)
    for name in dropped:
        head, _, tail = name.partition(".")
        if head not in out:
            continue
        if tail:
            inner = {key: value for key, value in out[head].items() if key != tail}
            if inner:
                out[head] = inner
            else:
                del out[head]
        elif name in _RENAMED:
            if _RENAMED[name] not in dropped:
                out[_RENAMED[name]] = out[name]
            del out[name]
        else:
            del out[name]
    return out


class RefusedReplay:
    """Thinking of the history that its provider refuses to take back, by what it is: later thinking is still sent.

    A fold, another recipe or another key changes what stood before a signed block, and the provider then refuses all blocks
    from before that change. What comes after it is signed anew.
    """

    def __init__(self, family: str) -> None:
        self._family = family
        self._refused: set[bytes] = set()

    def without(self, messages: Sequence[Message]) -> Sequence[Message]:
        """The messages, those that were refused as content and calls alone."""
        if not self._refused:
            return messages
        return [
            msgspec.structs.replace(message, provider=None) if self._key(message) in self._refused else message
            for message in messages
        ]

    def refuse(self, messages: Sequence[Message]) -> bool:
        """Remember all that these messages replay; False where that is nothing, so that asking again would not help."""
        found = {key for message in messages if (key := self._key(message)) is not None}
        self._refused |= found
        return bool(found)

    def _key(self, message: Message) -> bytes | None:
        kept = message.provider
        if not isinstance(kept, Mapping) or kept.get("family") != self._family:
            return None
        return sha256(msgspec.json.encode(kept)).digest()
