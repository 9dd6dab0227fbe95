"""Endpoint: the address, key and options of a model at any provider, and the check that a query fits its context window."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cantrip_acp.crystals import keys
from cantrip_acp.crystals.catalog.types import UNKNOWN, ModelInfo
from cantrip_acp.crystals.contract import CrystalBase, Query
from cantrip_acp.crystals.keys import Secret
from cantrip_acp.types.checked_values import (
    check_choice,
    check_flag,
    check_keys,
    check_mapping,
    check_text,
    short_repr,
)
from cantrip_acp.types.errors import ContextLimitError, DefinitionError

BASE_URL_VARIABLES = {
    "anthropic": "ANTHROPIC_BASE_URL",
    "openai": "OPENAI_BASE_URL",
    "google": "GOOGLE_GEMINI_BASE_URL",
    "vllm": "VLLM_BASE_URL",
    "lmstudio": "LMSTUDIO_BASE_URL",
    "llamacpp": "LLAMACPP_BASE_URL",
    "local": "LOCAL_BASE_URL",
}
"""The environment variable that sets another address for a provider. The official SDKs use the first three too. The provider
``local`` has no other address: it is any server that speaks OpenAI's Chat Completions."""

LOCAL_KEY = "LOCAL_API_KEY"
"""The environment variable with the key of the server at ``LOCAL_BASE_URL``."""

OPTIONS: Mapping[str, tuple[str, ...] | None] = {
    "effort": ("none", "minimal", "low", "medium", "high", "xhigh", "max"),
    "api": ("responses", "chat"),
    "tools": ("auto", "native", "text"),
    "summary": ("auto", "concise", "detailed", "none"),
    "thinking_budget": None,
    "verbosity": ("low", "medium", "high"),
    "logprobs": None,
    "token_prompts": None,
    "routing": None,
    "threads": None,
    "gpu_layers": None,
    "weights": None,
}
"""The options of an endpoint. Each has its allowed words, or None if its value is not a word."""

CONNECT_S = 15.0
"""Seconds to wait for a connection."""
SILENCE_S = 300.0
"""Seconds without data after which a response counts as dead. A model may think for minutes before its first byte."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One model at one address.

    - ``base_url``: None means the address in the environment (`environment_address`), else the provider's own address.
      Headers in the environment for the provider's SDK (such as ``OPENAI_CUSTOM_HEADERS``) are sent only in this case.
    - ``headers`` are sent with each request.
    - ``options`` are options of the recipe that only some providers have (``api``, ``effort``, ``thinking_budget`` …).
    - ``refusal_hint`` tells the user why no key was sent. It is shown if the provider refuses a request without a key.
    - ``name_hint`` suggests another name if the provider does not find the model.
    - ``remarks`` are shown when a cast begins.
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
            elif name in ("logprobs", "token_prompts"):
                check_flag(value, name)
            elif name == "weights":
                check_text(value, name)
            elif name == "routing":
                check_mapping(value, name)
            elif isinstance(value, bool) or not isinstance(value, int) or value < -1:
                raise DefinitionError(f"{name} must be a whole number of at least -1, not {short_repr(value)}")

    def plain_headers(self) -> dict[str, str]:
        return {name: value.reveal() for name, value in self.headers.items()}

    @property
    def weights(self) -> str | None:
        """The label of the version of the weights, if the crystal has one."""
        return self.options.get("weights")

    def address(self) -> str | None:
        """The address to use: ``base_url``, else the one in the environment; None means the provider's own address."""
        return self.base_url or environment_address(self.provider)


class EndpointCrystal(CrystalBase):
    """A model at an endpoint, with the known facts about it."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.model = endpoint.model
        self.context_window = endpoint.info.context_window
        self.max_input = endpoint.info.max_input
        self.takes_images = endpoint.info.images
        self.takes_audio = endpoint.info.audio
        self.takes_documents = endpoint.info.documents
        self.remarks = endpoint.remarks
        self.priced = endpoint.info.price is not None


def environment_address(provider: str) -> str | None:
    """The address of a provider from the environment or ``.env``, for example from ``ANTHROPIC_BASE_URL``; else None."""
    variable = BASE_URL_VARIABLES.get(provider)
    return (keys.setting(variable).rstrip("/") or None) if variable else None


BYTES_PER_TOKEN = 6
"""An upper bound of the average bytes per token: prose has about 4.5, code 3, Chinese 4."""

_RUN = re.compile(rb"(.)\1{7,}", re.DOTALL)
"""The same byte repeated (indentation, lines). Tokenizers make one token of dozens of them."""


def check_window(endpoint: Endpoint, query: Query) -> None:
    """Check that a query can fit the context window. Raises `ContextLimitError` with the least tokens and the limit."""
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
    """The least number of tokens that the query's texts have for any tokenizer. Attachments are not counted."""
    total = 0
    for text in _texts(query):
        data = text.encode("utf-8", "surrogatepass")
        total += len(_RUN.sub(b"\\1", data))
    return total // BYTES_PER_TOKEN


def _bytes(query: Query) -> int:
    # Most texts are ASCII. Do not copy them only to count their bytes.
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
