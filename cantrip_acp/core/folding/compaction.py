"""Compaction: cuts the longest part of a message, for a turn that is larger than the window, which no fold makes smaller."""

from __future__ import annotations

from typing import Any

import msgspec

from cantrip_acp.core.folding.policy import ATTACHMENT_TOKENS, CHARS_PER_TOKEN
from cantrip_acp.types.messages import Message

LEAST = 2_000
"""Compaction does not cut texts of at most this many characters."""

CUTTABLE = ("turn", "fold", "partial")


def lengths(message: Message) -> list[int]:
    """The lengths of its text, its thinking, its images (by their tokens), and the arguments of each call."""
    images = len(message.attachments) * ATTACHMENT_TOKENS * CHARS_PER_TOKEN
    return [len(message.content or ""), len(message.thinking or ""), images, *(len(c.args) for c in message.tool_calls)]


def shortened(message: Message, over: int) -> Message:
    """The message with its longest part cut by about ``over`` characters.

    Provider data (signed parts, reasoning items) are removed if they may repeat the cut text. Calls keep their ids,
    so that their results still match.
    """
    sizes = lengths(message)
    longest = sizes.index(max(sizes))
    left = max(LEAST // 2, sizes[longest] - over)
    provider = message.provider
    # JSON escapes can make the same text up to six times as long.
    if provider is not None and len(msgspec.json.encode(provider)) >= sizes[longest] // 8:
        provider = None
    if longest == 0:
        return msgspec.structs.replace(message, content=_cut_text(message.content or "", left), provider=provider)
    if longest == 1:
        return msgspec.structs.replace(message, thinking=_cut_text(message.thinking or "", left), provider=provider)
    if longest == 2:
        count = len(message.attachments)
        note = f"[{count} image{'s' if count > 1 else ''} cut here; the loom has them]"
        return msgspec.structs.replace(message, content=f"{message.content or ''}\n{note}", attachments=())
    calls = list(message.tool_calls)
    call = calls[longest - 3]
    calls[longest - 3] = msgspec.structs.replace(call, args=_cut_args(call.args, left))
    return msgspec.structs.replace(message, tool_calls=tuple(calls), provider=provider)


def _cut_text(text: str, left: int) -> str:
    return (
        f"{text[: left // 2]}\n[… {len(text) - left:,} characters cut here; the loom has them]\n{text[-(left // 2) :]}"
    )


def _cut_args(args: str, left: int) -> str:
    """Arguments of about ``left`` characters.

    A JSON object keeps its keys and gets its long texts cut; if that is not enough, the result says what was cut.
    """
    try:
        data = msgspec.json.decode(args)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        data = None
    if isinstance(data, dict):
        most = left
        while most >= 64:
            shorter = {key: _cut_value(value, most) for key, value in data.items()}
            text = msgspec.json.encode(shorter).decode()
            if len(text) <= left + 400:
                return text
            most //= 2
    cut = f"[… {len(args):,} characters of arguments cut here; the loom has them]"
    return msgspec.json.encode({"cut": cut}).decode()


def _cut_value(value: Any, most: int) -> Any:
    if isinstance(value, str):
        return value if len(value) <= most else _cut_text(value, most)
    text = msgspec.json.encode(value).decode()
    return value if len(text) <= most else _cut_text(text, most)
