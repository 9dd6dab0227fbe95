"""Model data: the types for a model's context window, limits, price and abilities.

The data are in `models.json` and in the user's table. An unknown model works with `UNKNOWN`.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from cantrip_acp.types.messages import Attachment
from cantrip_acp.types.usage import Usage


class Price(msgspec.Struct, frozen=True):
    """Prices in US dollars per million tokens. If ``cached`` or ``cache_write`` is None, it costs the same as input.

    If the prompt of a query has more than ``above`` tokens, all its tokens cost the ``long`` price.
    """

    input: float = 0.0
    output: float = 0.0
    cached: float | None = None
    cache_write: float | None = None
    above: int | None = None
    long: Price | None = None

    def cost(self, usage: Usage) -> float | None:
        """The cost of one query's known tokens in US dollars; None if no tokens are known."""
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
    """Return the usage of one query with its cost (if the price is known) and with ``queries_without_*`` set."""
    if price is not None:
        usage = msgspec.structs.replace(usage, cost=price.cost(usage))
    if usage.prompt_tokens is None or usage.completion_tokens is None:
        return usage.partial()
    return usage.counted()


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The data of one model.

    - ``context_window``, ``max_input``, ``max_output``: in tokens, None if not known. ``max_input`` is set if a prompt must
      be smaller than the window.
    - ``price``: None if not known.
    - ``tools``: accepts tool definitions. Otherwise tool calls are written as text.
    - ``images``, ``audio``, ``documents``: accepts such attachments.
    - ``reasoning``: thinks before it answers, controlled by an effort or a token budget.
    - ``sampling``: accepts temperature and top_p.
    - ``forced_tools``: accepts a tool_choice that forces a call.
    - ``thinking``: the kind of control, if the family has several: ``budget`` (of tokens), ``adaptive`` (the model decides,
      limited by an effort) or ``always`` (adaptive, cannot be turned off).
    - ``efforts``: the supported efforts, lowest first; empty if not known.
    - ``retired``: the day (ISO) on which the provider shuts it down. ``successor``: the model to use instead.
    - ``known``: the data come from a table. Otherwise they are assumed; ``family`` is the name of the assumed family.
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
        """The largest number of tokens of a prompt; None if not known."""
        return min((n for n in (self.max_input, self.context_window) if n is not None), default=None)


UNKNOWN = ModelInfo()
"""The data for an unknown model: it accepts tools and only text; its window and price are not known."""


def takes(attachment: Attachment, info: ModelInfo) -> bool:
    """Whether the model accepts this kind of attachment."""
    return {"image": info.images, "audio": info.audio, "document": info.documents}[attachment.kind]


def attachment_note(attachment: Attachment, model: str, why: str = "") -> str:
    """The text that the model gets instead of an attachment. ``why`` is the reason; the default is that the model does
    not accept this kind.

    The text depends only on the arguments. So it is the same in every query, and prompt caches stay valid.
    """
    article = "a" if attachment.kind == "document" else "an"
    what = f"{article} {attachment.kind} ({attachment.mime}, {_size(attachment)})"
    name = attachment.title or attachment.uri
    named = f" {name!r}" if name else ""
    reason = why or f"{model} takes no {'audio' if attachment.kind == 'audio' else attachment.kind + 's'}"
    return f"[Left out: {what}{named}: {reason}.]"


def _size(attachment: Attachment) -> str:
    """Format the size of the attachment, for example ``12 kB``."""
    count = len(attachment.data) * 3 // 4 - attachment.data[-2:].count("=")
    for unit in ("bytes", "kB"):
        if count < 1000:
            return f"{count} {unit}"
        count = round(count / 1000)
    return f"{count} MB"
