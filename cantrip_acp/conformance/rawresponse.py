"""Raw provider responses in cases: decodes a ``raw_response`` with that provider's own code (CRYSTAL-6)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cantrip_acp.core.errors import DefinitionError

CHAT = ("openai", "openrouter", "ollama", "local")
"""Providers whose answers have the form of Chat Completions; a suite may put ``mock_`` before the name."""


def normalised(script: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the raw answer to a scripted response. Raises `DefinitionError` for an unsupported provider."""
    provider = str(script.get("provider") or "openai").removeprefix("mock_")
    raw = script["raw_response"]
    if provider not in CHAT:
        raise DefinitionError(f"raw_response of provider {provider!r} cannot be read; here: {', '.join(CHAT)}")
    if not isinstance(raw, Mapping):
        raise DefinitionError(f"raw_response is the provider's answer, a mapping, not {raw!r}")
    from cantrip_acp.crystals.openai.chat_stream import ChatAnswer

    answer = ChatAnswer()
    answer.feed(raw)
    usage = answer.counted()
    response: dict[str, Any] = {
        "content": "".join(answer.text) or None,
        "thinking": "".join(answer.thoughts) or None,
        "tool_calls": [{"id": call.id, "gate": call.name, "args": call.text or "{}"} for call in answer.calls],
    }
    if usage is not None:
        counts = ("prompt_tokens", "completion_tokens", "cached_tokens")
        response["usage"] = {name: getattr(usage, name) for name in counts}
    return response
