"""Unsupported parameters: leaves out or replaces a request parameter after a model or server refused it.

This is needed because no table knows every model. Messages and tools are never left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import msgspec

from cantrip_acp.types.errors import CrystalError
from cantrip_acp.types.messages import Message

if TYPE_CHECKING:
    from cantrip_acp.crystals.endpoint import Endpoint

DROPPABLE = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
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
"""Patterns for parameters that have another name in the error message."""

_WHOLE_ONLY = re.compile(
    r"\breturn_token_ids is not supported with streaming|^.*\b[Ss]treaming responses are not supported"
)
"""Error texts of servers that send only whole answers: SGLang with token ids of chats, and agent-lightning's proxy (1.0)."""

_NOT_TAKEN = re.compile(
    r"unsupported|not supported|does(?: not|n't) support|unrecognized|unknown|unexpected|not permitted|extra (?:fields|inputs)"
    r"|not allowed|must be verified",
    re.IGNORECASE,
)


def unsupported_parameter(error: CrystalError, body: Mapping[str, Any]) -> str | None:
    """The parameter of ``body`` that is not supported according to ``error``; None if ``error`` is about something else."""
    if error.status not in (400, 403, 422):
        return None
    words = str(error)
    if not _NOT_TAKEN.search(words):
        return None
    if "stream" in body and _WHOLE_ONLY.search(words):
        return "stream"
    for name in (*DROPPABLE, *_RENAMED):
        head, _, tail = name.partition(".")
        if head not in body or (tail and tail not in body[head]):
            continue
        pattern = _SPOKEN.get(name, re.escape(name))
        # Cerebras writes ``body.`` before the name.
        if re.search(rf"(?<![\w.])(?:body\.)?{pattern}(?![\w.]*\w)", words):
            return name
    return None


def drop_parameters(body: dict[str, Any], dropped: set[str]) -> dict[str, Any]:
    """Return the body without the ``dropped`` parameters. A dropped token limit is sent under its other name instead."""
    out = dict(body)
    if "stream" in dropped:
        out.pop("stream_options", None)
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
"""All efforts, lowest first."""


def nearest_effort(asked: str, taken: Sequence[str]) -> str:
    """Choose the supported effort that is nearest to the requested one, or the lower of two equally near ones. "none" is
    chosen only if it was requested or nothing else is supported."""
    rank = EFFORTS.index(asked) if asked in EFFORTS else EFFORTS.index("medium")
    thinks = [effort for effort in taken if effort != "none"]
    return min(
        thinks if thinks and asked != "none" else taken,
        key=lambda effort: (abs(EFFORTS.index(effort) - rank), EFFORTS.index(effort)),
    )


_EFFORT_PLACES = (("reasoning", "effort"), ("reasoning_effort",), ("output_config", "effort"))
"""The paths of the effort in the request bodies of the different protocols."""
_QUOTED = re.compile(r"[`'\"\u2018\u2019\u201c\u201d](\w+)[`'\"\u2018\u2019\u201c\u201d]")


class EffortFallback:
    """Replaces an effort that the model refused by one that the error message names."""

    def __init__(self, who: str) -> None:
        self._who = who
        self._instead: dict[str, str] = {}
        self._notices: list[str] = []

    def applied(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return the body with an effort that the model supports."""
        place = _effort_path(body)
        if place is None:
            return body
        return _with_effort(body, place, self._instead.get(_at(body, place), _at(body, place)))

    def learn(self, error: CrystalError, sent: Mapping[str, Any]) -> bool:
        """Learn from an error. True if ``error`` refuses the sent effort and names others, so that a new attempt helps."""
        place = _effort_path(sent)
        words = str(error)
        if place is None or error.status not in (400, 422) or "effort" not in words:
            return False
        asked = _at(sent, place)
        supported = [effort for effort in EFFORTS if effort in set(_QUOTED.findall(words)) and effort != asked]
        if not supported or asked in self._instead or asked in self._instead.values():
            return False
        nearest = nearest_effort(asked, supported)
        self._instead[asked] = nearest
        self._notices.append(
            f"{self._who} does not support the effort {asked}; {nearest} is used (supported: {', '.join(supported)})"
        )
        return True

    def notices(self) -> tuple[str, ...]:
        """Return the new notes for the user. Each note is returned once."""
        notices, self._notices = tuple(self._notices), []
        return notices


def _effort_path(body: Mapping[str, Any]) -> tuple[str, ...] | None:
    return next((place for place in _EFFORT_PLACES if isinstance(_at(body, place), str)), None)


def _at(body: Mapping[str, Any], place: tuple[str, ...]) -> Any:
    found: Any = body
    for key in place:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def _with_effort(body: dict[str, Any], place: tuple[str, ...], effort: str) -> dict[str, Any]:
    head, *rest = place
    return {**body, head: {**body[head], rest[0]: effort} if rest else effort}


_CHOICE = re.compile(r"tool[_ -]?choice|tool[_ ]?config|function[_ ]?calling[_ ]?config|\\bmode ANY\\b", re.IGNORECASE)
_NOT_FORCED: set[tuple[str, str, str, str]] = set()
"""The models that refused a forced call in this process: provider, model, address and effort."""


class ForcedCalls:
    """Whether a model takes a tool choice that forces a call. If not, `retry.query_with_retries` insists by asking again.

    DeepSeek, Qwen and Kimi refuse it while they think (DeepSeek-V3#1376, eino#994, AstrBot#7805), OpenRouter if no endpoint
    has it (infiAgent#19), and small servers because they do not know it. What one crystal learned counts for all later
    crystals of the same model and address.
    """

    def __init__(self, who: str, endpoint: Endpoint, address: str | None) -> None:
        self._who = who
        self._key = (endpoint.provider, endpoint.model, address or "", endpoint.options.get("effort") or "")
        self._forced = endpoint.info.forced_tools
        self._notices: list[str] = []

    @property
    def taken(self) -> bool:
        return self._forced and self._key not in _NOT_FORCED

    def learn(self, error: CrystalError, *, sent: bool) -> bool:
        """Learn from an error. True if it refuses the choice, and so a new attempt without it helps. ``sent``: whether the
        request forced a call."""
        if not sent or error.status not in (400, 404, 422) or not _CHOICE.search(str(error)):
            return False
        if self.taken:
            _NOT_FORCED.add(self._key)
            self._notices.append(
                f"{self._who} does not take tool_choice: required; if it calls no tool, it is asked again"
            )
        return True

    def notices(self) -> tuple[str, ...]:
        """Return the new notes for the user. Each note is returned once."""
        notices, self._notices = tuple(self._notices), []
        return notices


class RefusedReplay:
    """Remembers thinking blocks of earlier messages that the provider refuses, and leaves them out.

    A signature is valid only for unchanged messages before its block. After a fold, or with another recipe or key, the
    provider refuses all earlier blocks. Later blocks have new signatures and are still sent.
    """

    def __init__(self, family: str) -> None:
        self._family = family
        self._refused: set[bytes] = set()

    def without(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Return the messages. Those with refused blocks have only their content and calls."""
        if not self._refused:
            return messages
        return [
            msgspec.structs.replace(message, provider=None) if self._key(message) in self._refused else message
            for message in messages
        ]

    def refuse(self, messages: Sequence[Message]) -> bool:
        """Remember all blocks in these messages as refused. False if there are none; then a new attempt does not help."""
        found = {key for message in messages if (key := self._key(message)) is not None}
        self._refused |= found
        return bool(found)

    def _key(self, message: Message) -> bytes | None:
        kept = message.provider
        if not isinstance(kept, Mapping) or kept.get("family") != self._family:
            return None
        return sha256(msgspec.json.encode(kept)).digest()
