"""OpenRouter crystal: models of many providers through Chat Completions, with OpenRouter's own parameters.

Options: ``effort`` or ``thinking_budget`` (sent as ``reasoning``), and ``routing`` (sent as ``provider``: which providers
to use, in which order).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from cantrip_acp.crystals.contract import Query
from cantrip_acp.crystals.endpoint import Endpoint
from cantrip_acp.crystals.openai.chat_completions import ChatCrystal
from cantrip_acp.crystals.openai.chat_messages import OPENROUTER
from cantrip_acp.crystals.openai.chat_stream import ChatAnswer
from cantrip_acp.types.usage import Usage

OWN_ADDRESS = "https://openrouter.ai/api/v1"
HEADERS = {"HTTP-Referer": "https://pypi.org/project/cantrip-acp/", "X-Title": "cantrip-acp"}
"""Headers that identify this program to OpenRouter. A recipe's own headers override them."""

_CACHED_BY_MARK = ("anthropic/", "~anthropic/", "qwen/")
"""Vendors whose models cache only if the request has cache points. Other models cache automatically. Gemini accepts cache
points, but bills each write and the storage."""


class OpenRouterCrystal(ChatCrystal):
    """A model that OpenRouter serves."""

    dialect = OPENROUTER
    limit_key = "max_tokens"
    more_sampling = True

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint, endpoint.base_url or OWN_ADDRESS, HEADERS)

    def extend(self, body: dict[str, Any], query: Query) -> None:
        # With this, OpenRouter's usage includes the cost. OpenRouter does not accept stream_options or a cache key.
        del body["stream_options"]
        body["usage"] = {"include": True}
        options = self.endpoint.options
        if options.get("thinking_budget"):
            body["reasoning"] = {"max_tokens": options["thinking_budget"]}
        elif options.get("effort"):
            body["reasoning"] = {"effort": options["effort"]}
        if options.get("routing"):
            body["provider"] = options["routing"]
        if self.model.startswith(_CACHED_BY_MARK):
            _mark(body["messages"])

    def kept(self, chat: ChatAnswer) -> Any:
        details = joined(chat.details)
        return {"family": self.dialect.family, "reasoning_details": details} if details else None

    def usage(self, chat: ChatAnswer) -> Usage:
        usage = super().usage(chat)
        cost = (chat.server.usage or {}).get("cost")
        if isinstance(cost, int | float) and not isinstance(cost, bool):
            details = (chat.server.usage or {}).get("cost_details")
            own = details.get("upstream_inference_cost") if isinstance(details, Mapping) else None
            # If the user has a key of the provider, the cost is OpenRouter's fee plus the provider's bill.
            byok = (chat.server.usage or {}).get("is_byok") is True
            extra = own if byok and isinstance(own, int | float) else 0
            return msgspec.structs.replace(usage, cost=float(cost + extra), queries_without_cost=0)
        return usage


def joined(details: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Join the reasoning details of a stream, whose texts and summaries come in pieces."""
    out: list[dict[str, Any]] = []
    for detail in details:
        key = _PIECES.get(str(detail.get("type")))
        last = out[-1] if out else None
        if key and last and last.get("type") == detail.get("type") and last.get("index") == detail.get("index"):
            if detail.get(key):
                last[key] = f"{last.get(key) or ''}{detail[key]}"
            last.update({k: v for k, v in detail.items() if k != key and v is not None})
        else:
            out.append(dict(detail))
    return out


_PIECES = {"reasoning.text": "text", "reasoning.summary": "summary"}


def _mark(messages: list[dict[str, Any]]) -> None:
    """Set cache points at the end of the leading system messages and at the last message."""
    leading = [
        i for i, m in enumerate(messages) if m["role"] == "system" and all(n["role"] == "system" for n in messages[:i])
    ]
    for index in {*leading[-1:], len(messages) - 1}:
        if index < 0:
            continue
        content = messages[index].get("content")
        parts = [{"type": "text", "text": content}] if isinstance(content, str) and content else content
        if isinstance(parts, list) and parts:
            marked = {**parts[-1], "cache_control": {"type": "ephemeral"}}
            messages[index] = {**messages[index], "content": [*parts[:-1], marked]}
