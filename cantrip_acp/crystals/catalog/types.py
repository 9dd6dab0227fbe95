"""Model data: windows, limits, prices and abilities of a model.

The table ships as data (`models.json`), and the user's own table corrects it. An unknown model works with `UNKNOWN`.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from cantrip_acp.crystals.contract import Attachment, Usage


class Price(msgspec.Struct, frozen=True):
    """US dollars per million tokens. ``cached`` and ``cache_write`` are None where they cost the same as input.

    A query whose prompt has more than ``above`` tokens costs the ``long`` price, for all its tokens.
    """

    input: float = 0.0
    output: float = 0.0
    cached: float | None = None
    cache_write: float | None = None
    above: int | None = None
    long: Price | None = None

    def cost(self, usage: Usage) -> float | None:
        """The cost of one query in US dollars, for its known tokens; None where no tokens are known."""
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
    """The usage of one query with its cost, where the price is known; unknown parts are counted."""
    if price is not None:
        usage = msgspec.structs.replace(usage, cost=price.cost(usage))
    if usage.prompt_tokens is None or usage.completion_tokens is None:
        return usage.partial()
    return usage.counted()


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The data of one model.

    ``context_window``, ``max_input`` and ``max_output`` are in tokens, None where not known; ``max_input`` is set
    where a prompt may not fill the window. ``price`` is None where not known. ``efforts`` are the supported efforts,
    lowest first; empty where not known. ``retired`` is the day (ISO) on which its provider shuts it down,
    ``successor`` the model to use instead. ``tools``: takes tool definitions (else gate calls are requested and parsed
    in text). ``images``, ``audio``, ``documents``: takes such attachments. ``reasoning``: thinks before it answers, by
    an effort or a budget. ``sampling``: takes temperature and top_p. ``forced_tools``: takes a tool_choice that forces
    a call. ``thinking``, where the family has several ways: ``budget`` of tokens, ``adaptive`` (the model decides; an
    effort limits it), or ``always`` (adaptive, cannot be turned off). ``known``: it is in the table, not assumed.
    ``family``: the name of the rule with the assumptions.
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
        """The largest number of tokens of a prompt; None where it is not known."""
        return min((n for n in (self.max_input, self.context_window) if n is not None), default=None)


UNKNOWN = ModelInfo()
"""The data for a model in no table: it takes tools and only text; its window and price are not known."""


def takes(attachment: Attachment, info: ModelInfo) -> bool:
    """Whether the model takes this kind of attachment."""
    return {"image": info.images, "audio": info.audio, "document": info.documents}[attachment.kind]


def attachment_note(attachment: Attachment, model: str, why: str = "") -> str:
    """The note that the model reads in place of an attachment. ``why`` replaces the default reason, that it does not
    take the kind.

    The note depends only on the arguments. It is the same in every query, so prompt caches stay valid.
    """
    article = "a" if attachment.kind == "document" else "an"
    what = f"{article} {attachment.kind} ({attachment.mime}, {_size(attachment)})"
    name = attachment.title or attachment.uri
    named = f" {name!r}" if name else ""
    reason = why or f"{model} takes no {'audio' if attachment.kind == 'audio' else attachment.kind + 's'}"
    return f"[Left out: {what}{named}: {reason}.]"


def _size(attachment: Attachment) -> str:
    """The size of the attachment for people: ``12 kB``."""
    count = len(attachment.data) * 3 // 4 - attachment.data[-2:].count("=")
    for unit in ("bytes", "kB"):
        if count < 1000:
            return f"{count} {unit}"
        count = round(count / 1000)
    return f"{count} MB"
