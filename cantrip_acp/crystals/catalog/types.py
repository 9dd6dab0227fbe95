"""What is known of models: windows, limits, prices, abilities.

The table ships as data (`models.json`) and is corrected by the user's own. An unknown model works with `UNKNOWN`.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from cantrip_acp.crystals.contract import Attachment, Usage


class Price(msgspec.Struct, frozen=True):
    """US dollars for a million tokens. ``cached`` and ``cache_write`` are None where they cost what input costs.

    A query whose prompt has more than ``above`` tokens costs what ``long`` says, all of it.
    """

    input: float = 0.0
    output: float = 0.0
    cached: float | None = None
    cache_write: float | None = None
    above: int | None = None
    long: Price | None = None

    def cost(self, usage: Usage) -> float | None:
        """What one query cost, in US dollars: the part of it that is known, None where nothing is."""
        if usage.total_tokens is None:
            return None
        prompt, read, wrote = usage.prompt_tokens or 0, usage.cached_tokens or 0, usage.cache_write_tokens or 0
        if self.above is not None and self.long is not None and prompt > self.above:
            return self.long.cost(usage)
        fresh = max(0, prompt - read - wrote)
        cached = self.input if self.cached is None else self.cached
        written = self.input if self.cache_write is None else self.cache_write
        total = fresh * self.input + read * cached + wrote * written + (usage.completion_tokens or 0) * self.output
        return total / 1_000_000


def priced(usage: Usage, price: Price | None) -> Usage:
    """One query's usage with its cost, where both its tokens and the price are known; what is unknown of it counted."""
    if price is not None:
        usage = msgspec.structs.replace(usage, cost=price.cost(usage))
    if usage.prompt_tokens is None or usage.completion_tokens is None:
        return usage.partial()
    return usage.counted()


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One model.

    ``context_window``, ``max_input`` and ``max_output`` are in tokens, None where not known; ``max_input`` is given where a
    prompt may not fill the window. ``price`` is None where not known. ``efforts`` are those that it takes, from the least;
    empty where not known. ``retired`` is the day (ISO) on which its provider shuts it down, ``successor`` what to use instead.
    ``tools``: takes tool definitions (else gate calls are asked for and parsed in text). ``images``, ``audio``,
    ``documents``: takes such attachments. ``reasoning``: thinks before it answers, by an effort or a budget.
    ``sampling``: takes temperature and top_p. ``forced_tools``: takes a tool_choice that forces a call. ``thinking``, where
    the family has several ways: by a ``budget`` of tokens, ``adaptive`` (it decides; an effort bounds it), or adaptive and
    ``always``. ``known``: stands in the table, and is no assumption. ``family``: the name of the rule that assumed the rest.
    """

    context_window: int | None = None
    max_input: int | None = None
    max_output: int | None = None
    price: Price | None = None
    tools: bool = True
    images: bool = False
    audio: bool = False
    documents: bool = False
    reasoning: bool = False
    sampling: bool = True
    forced_tools: bool = True
    thinking: Literal["", "budget", "adaptive", "always"] = ""
    efforts: tuple[str, ...] = ()
    retired: str = ""
    successor: str = ""
    known: bool = False
    family: str = ""

    @property
    def input_limit(self) -> int | None:
        """The most tokens of a prompt; None where it is not known."""
        return min((n for n in (self.max_input, self.context_window) if n is not None), default=None)


UNKNOWN = ModelInfo()
"""What is assumed of a model that no table knows: it takes tools, nothing but text, and its window and price are not known."""


def takes(attachment: Attachment, info: ModelInfo) -> bool:
    """Whether the model takes this kind of attachment."""
    return {"image": info.images, "audio": info.audio, "document": info.documents}[attachment.kind]


def attachment_note(attachment: Attachment, model: str, why: str = "") -> str:
    """What the model reads in an attachment's place. ``why`` replaces the reason, that it does not take the kind.

    A function of its arguments alone: the same in every query, so that prompt caches stay warm.
    """
    article = "a" if attachment.kind == "document" else "an"
    what = f"{article} {attachment.kind} ({attachment.mime}, {_size(attachment)})"
    name = attachment.title or attachment.uri
    named = f" {name!r}" if name else ""
    reason = why or f"{model} takes no {'audio' if attachment.kind == 'audio' else attachment.kind + 's'}"
    return f"[Left out: {what}{named}: {reason}.]"


def _size(attachment: Attachment) -> str:
    """How large the attachment is, for people: ``12 kB``."""
    count = len(attachment.data) * 3 // 4 - attachment.data[-2:].count("=")
    for unit in ("bytes", "kB"):
        if count < 1000:
            return f"{count} {unit}"
        count = round(count / 1000)
    return f"{count} MB"
