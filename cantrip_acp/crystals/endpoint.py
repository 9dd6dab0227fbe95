"""Where and how a provider is asked: what is the same for every family."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cantrip_acp.crystals.models import UNKNOWN, ModelInfo
from cantrip_acp.crystals.secret import Secret

CONNECT_S = 15.0
"""Seconds to wait for a connection."""
SILENCE_S = 300.0
"""Seconds without a byte after which a response is taken for dead; a model may think for long before its first."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One model at one address.

    ``base_url`` None is the provider's own. ``headers`` are sent with each request, beside the provider's. ``options`` are
    those of the recipe that only one family knows (``api``, ``effort``, ``thinking_budget``, ``tools`` …).
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

    def plain_headers(self) -> dict[str, str]:
        """The headers as they go out."""
        return {name: value.reveal() for name, value in self.headers.items()}
