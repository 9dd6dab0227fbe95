"""Unsupported parameters: drops a request parameter after a model or server refused it, so that later queries do not fail.

No table knows every model. Only parameters that affect the quality are dropped, never the messages or the tools.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

import msgspec

from cantrip_acp.core.errors import CrystalError
from cantrip_acp.crystals.contract import Message

DROPPABLE = (
    "temperature",
    "top_p",
    "seed",
    "verbosity",
    "text.verbosity",
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
"""Patterns for parameters whose name in the error message differs from the request."""

_NOT_TAKEN = re.compile(
    r"unsupported|not supported|does(?: not|n't) support|unrecognized|unknown|unexpected|not permitted|extra (?:fields|inputs)"
    r"|not allowed|must be verified",
    re.IGNORECASE,
)


def not_taken(error: CrystalError, body: Mapping[str, Any]) -> str | None:
    """The parameter of ``body`` that ``error`` says is not supported; None where it says no such thing."""
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
    """The body without the refused parameters; a refused token limit gets its other name."""
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


EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""All efforts that models take, lowest first."""


def nearest_effort(asked: str, taken: Sequence[str]) -> str:
    """The effort of ``taken`` that is nearest to the requested one; of two equally near, the lower. Unless "none" was
    requested, thinking stays on where possible."""
    rank = EFFORTS.index(asked) if asked in EFFORTS else EFFORTS.index("medium")
    thinks = [effort for effort in taken if effort != "none"]
    return min(
        thinks if thinks and asked != "none" else taken,
        key=lambda effort: (abs(EFFORTS.index(effort) - rank), EFFORTS.index(effort)),
    )


_EFFORT_PLACES = (("reasoning", "effort"), ("reasoning_effort",), ("output_config", "effort"))
"""The places of the effort in the requests of the different protocols."""
_QUOTED = re.compile(r"[`'\"\u2018\u2019\u201c\u201d](\w+)[`'\"\u2018\u2019\u201c\u201d]")


class Effort:
    """The effort that replaces one that the model refused, learned from the error message."""

    def __init__(self, who: str) -> None:
        self._who = who
        self._instead: dict[str, str] = {}
        self._notices: list[str] = []

    def applied(self, body: dict[str, Any]) -> dict[str, Any]:
        """The body with an effort that the model takes."""
        place = _effort_place(body)
        if place is None:
            return body
        return _with_effort(body, place, self._instead.get(_at(body, place), _at(body, place)))

    def learn(self, error: CrystalError, sent: Mapping[str, Any]) -> bool:
        """Whether ``error`` refuses the sent effort and names others, so that a second try helps."""
        place = _effort_place(sent)
        words = str(error)
        if place is None or error.status not in (400, 422) or "effort" not in words:
            return False
        asked = _at(sent, place)
        taken = [effort for effort in EFFORTS if effort in set(_QUOTED.findall(words)) and effort != asked]
        if not taken or asked in self._instead or asked in self._instead.values():
            return False
        nearest = nearest_effort(asked, taken)
        self._instead[asked] = nearest
        self._notices.append(
            f"{self._who} does not support the effort {asked}; {nearest} is used (supported: {', '.join(taken)})"
        )
        return True

    def notices(self) -> tuple[str, ...]:
        """The notes for the user; each is returned once."""
        told, self._notices = tuple(self._notices), []
        return told


def _effort_place(body: Mapping[str, Any]) -> tuple[str, ...] | None:
    return next((place for place in _EFFORT_PLACES if isinstance(_at(body, place), str)), None)


def _at(body: Mapping[str, Any], place: tuple[str, ...]) -> Any:
    found: Any = body
    for key in place:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def _with_effort(body: dict[str, Any], place: tuple[str, ...], effort: str) -> dict[str, Any]:
    head, *rest = place
    return {**body, head: {**body[head], rest[0]: effort} if rest else effort}


class RefusedReplay:
    """Thinking blocks of the history that their provider refuses to take back. Later thinking is still sent.

    A fold, another recipe or another key changes the messages before a signed block. Then the provider refuses all
    blocks from before that change. Blocks after it have new signatures.
    """

    def __init__(self, family: str) -> None:
        self._family = family
        self._refused: set[bytes] = set()

    def without(self, messages: Sequence[Message]) -> Sequence[Message]:
        """The messages, with only content and calls for the refused ones."""
        if not self._refused:
            return messages
        return [
            msgspec.structs.replace(message, provider=None) if self._key(message) in self._refused else message
            for message in messages
        ]

    def refuse(self, messages: Sequence[Message]) -> bool:
        """Remember all blocks in these messages as refused. False where there are none, so that asking again would not
        help."""
        found = {key for message in messages if (key := self._key(message)) is not None}
        self._refused |= found
        return bool(found)

    def _key(self, message: Message) -> bytes | None:
        kept = message.provider
        if not isinstance(kept, Mapping) or kept.get("family") != self._family:
            return None
        return sha256(msgspec.json.encode(kept)).digest()
