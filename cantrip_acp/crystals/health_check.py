"""Whether a provider answers: one cheap request that costs nothing, such as its list of models.

Without its SDK, so that asking all of them takes a moment, and so that a broken SDK and a broken network can be told apart.
"""

from __future__ import annotations

import http.client
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cantrip_acp.crystals import provider_errors
from cantrip_acp.crystals.keys import Secret

TIMEOUT_S = 10.0
"""Seconds for the whole request."""

_BYTES = 64 * 1024

_ASKED = {
    "anthropic": ("https://api.anthropic.com", "/v1/models?limit=1"),
    "openai": ("https://api.openai.com/v1", "/models"),
    "google": ("https://generativelanguage.googleapis.com", "/v1beta/models?pageSize=1"),
    # Its list of models needs no key, so it is asked for what the key may do.
    "openrouter": ("https://openrouter.ai/api/v1", "/key"),
}
_LISTED = ("", "/models")
"""Of every server that speaks Chat Completions: its endpoint has the address."""


@dataclass(frozen=True, slots=True)
class Answer:
    """``ok``: it answered, and takes the key. ``text`` says what happened, without secrets."""

    ok: bool
    text: str
    seconds: float
    status: int | None = None


class _Staying(urllib.request.HTTPRedirectHandler):
    """A redirect is an answer: followed, it would carry the key to wherever it points."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def probe(
    provider: str,
    base_url: str | None,
    key: Secret | None,
    headers: Mapping[str, Secret],
    *,
    timeout: float = TIMEOUT_S,
) -> Answer:
    """Ask once. Blocks for at most ``timeout`` seconds a step; never raises for what a network or a server does."""
    own, path = _ASKED.get(provider, _LISTED)
    request = urllib.request.Request((base_url or own).rstrip("/") + path, headers={"accept": "application/json"})
    request.add_header("user-agent", "cantrip-acp")
    for name, value in _signed(provider, key).items():
        request.add_header(name, value)
    for name, secret in headers.items():
        request.add_header(name, secret.reveal())
    opener = urllib.request.build_opener(_Staying, urllib.request.HTTPSHandler(context=_trusting()))
    begun = time.monotonic()

    def answer(ok: bool, text: str, status: int | None = None) -> Answer:
        return Answer(ok, text, time.monotonic() - begun, status)

    try:
        with opener.open(request, timeout=timeout) as reply:
            reply.read(_BYTES)
            return answer(True, "answers", reply.status)
    except urllib.error.HTTPError as error:
        with error:
            words = provider_errors.said(error.read(_BYTES).decode("utf-8", "replace"))
        if error.code in (401, 403):
            return answer(False, f"refuses the key ({error.code}): {words}", error.code)
        if error.code in (404, 405):
            # A gateway may serve what crystals need and have no list of models.
            return answer(True, f"answers, but has no {path.partition('?')[0]} ({error.code})", error.code)
        return answer(False, f"answers {error.code}: {words}", error.code)
    except (TimeoutError, OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, TimeoutError):
            return answer(False, f"no answer within {timeout:g} seconds")
        return answer(False, f"cannot be reached: {provider_errors.said(reason) or type(reason).__name__}")


def _signed(provider: str, key: Secret | None) -> dict[str, str]:
    """The headers by which a provider knows who asks."""
    if key is None:
        return {}
    if provider == "anthropic":
        return {"x-api-key": key.reveal(), "anthropic-version": "2023-06-01"}
    if provider == "google":
        return {"x-goog-api-key": key.reveal()}
    return {"authorization": f"Bearer {key.reveal()}"}


def _trusting() -> ssl.SSLContext:
    """The certificates that the SDKs trust, where they are there; else the system's."""
    try:
        import certifi
    except ImportError:
        return ssl.create_default_context()
    return ssl.create_default_context(cafile=certifi.where())
