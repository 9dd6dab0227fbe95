"""Endpoint: address, key and options of one model, and the check that a query fits its window; the same for all providers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cantrip_acp.core.definition.checked_values import check_choice, check_flag, check_keys, check_mapping, short_repr
from cantrip_acp.core.errors import ContextLimitError, DefinitionError
from cantrip_acp.crystals import keys
from cantrip_acp.crystals.catalog.types import UNKNOWN, ModelInfo
from cantrip_acp.crystals.contract import Query
from cantrip_acp.crystals.keys import Secret

BASE_URL_VARIABLES = {
    "anthropic": "ANTHROPIC_BASE_URL",
    "openai": "OPENAI_BASE_URL",
    "google": "GOOGLE_GEMINI_BASE_URL",
    "vllm": "VLLM_BASE_URL",
    "lmstudio": "LMSTUDIO_BASE_URL",
    "llamacpp": "LLAMACPP_BASE_URL",
}
"""The environment variable for another address of a provider; the first three are those of the official SDKs."""

OPTIONS: Mapping[str, tuple[str, ...] | None] = {
    "effort": ("none", "minimal", "low", "medium", "high", "xhigh", "max"),
    "api": ("responses", "chat"),
    "tools": ("auto", "native", "text"),
    "summary": ("auto", "concise", "detailed", "none"),
    "thinking_budget": None,
    "verbosity": ("low", "medium", "high"),
    "logprobs": None,
    "routing": None,
}
"""The options of an endpoint, each with its allowed values, or None for other types."""

CONNECT_S = 15.0
"""Seconds to wait for a connection."""
SILENCE_S = 300.0
"""Seconds without a byte after which a response counts as dead; a model may think for long before its first byte."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One model at one address.

    ``base_url`` None means the address that the environment names for this provider (`environment_address`), else the
    provider's own. Headers that the environment holds for the provider's SDK (``OPENAI_CUSTOM_HEADERS`` …) are sent
    only then. ``headers`` are sent with each request. ``options`` are the recipe's options that only some providers
    know (``api``, ``effort``, ``thinking_budget``, ``tools`` …). ``refusal_hint`` tells the user why no key was sent,
    where a request was refused for lack of one. ``name_hint`` suggests another name for a model that was not found.
    ``remarks`` are shown when a cast begins.
    """

    provider: str
    model: str
    base_url: str | None = None
    api_key: Secret | None = field(default=None, repr=False)
    headers: Mapping[str, Secret] = field(default_factory=dict, repr=False)
    info: ModelInfo = UNKNOWN
    connect_s: float = CONNECT_S
    silence_s: float = SILENCE_S
    options: Mapping[str, Any] = field(default_factory=dict)
    refusal_hint: str = ""
    name_hint: str = ""
    remarks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        options = check_mapping(self.options, "options")
        check_keys(options, OPTIONS, "options", what="option")
        for name, value in options.items():
            words = OPTIONS[name]
            if words is not None:
                check_choice(value, words, name)
            elif name == "logprobs":
                check_flag(value, name)
            elif name == "routing":
                check_mapping(value, name)
            elif isinstance(value, bool) or not isinstance(value, int) or value < -1:
                raise DefinitionError(f"{name} must be a whole number of at least -1, not {short_repr(value)}")

    def plain_headers(self) -> dict[str, str]:
        """The headers as plain text, for the request."""
        return {name: value.reveal() for name, value in self.headers.items()}

    def address(self) -> str | None:
        """The target address: ``base_url``, else what the environment names; None is the provider's own address."""
        return self.base_url or environment_address(self.provider)


def environment_address(provider: str) -> str | None:
    """The address that the user's environment (or ``.env``) names for a provider, such as ``ANTHROPIC_BASE_URL``."""
    variable = BASE_URL_VARIABLES.get(provider)
    return (keys.setting(variable).rstrip("/") or None) if variable else None


BYTES_PER_TOKEN = 6
"""More bytes per token than any tokenizer in use has on average: prose has about 4.5, code 3, Chinese 4."""

_RUN = re.compile(rb"(.)\1{7,}", re.DOTALL)
"""The same byte many times (indentation, lines): tokenizers take dozens of them as one token."""


def check_window(endpoint: Endpoint, query: Query) -> None:
    """Check that a query can fit. Raises `ContextLimitError` with a lower bound of its tokens, and the limit."""
    limit = endpoint.info.input_limit
    if limit is None or _bytes(query) <= limit * BYTES_PER_TOKEN:
        return
    tokens = least_tokens(query)
    if tokens > limit:
        raise ContextLimitError(
            f"{endpoint.provider}:{endpoint.model}: the messages have at least {tokens:,} tokens and do not fit "
            f"the model's context window of {limit:,}; nothing was sent",
            tokens=tokens,
            limit=limit,
        )


def least_tokens(query: Query) -> int:
    """A lower bound of the tokens in the query's texts, for any model. Attachments are not counted."""
    total = 0
    for text in _texts(query):
        data = text.encode("utf-8", "surrogatepass")
        total += len(_RUN.sub(b"\\1", data))
    return total // BYTES_PER_TOKEN


def _bytes(query: Query) -> int:
    # The usual case in each query: do not copy a text that is ASCII.
    return sum(len(t) if t.isascii() else len(t.encode("utf-8", "surrogatepass")) for t in _texts(query))


def _texts(query: Query) -> list[str]:
    texts: list[str] = []
    for message in query.messages:
        if message.content:
            texts.append(message.content)
        for call in message.tool_calls:
            texts.append(call.args)
    texts.extend(tool.description for tool in query.tools)
    return texts
