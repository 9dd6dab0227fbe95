"""Health check: tests whether a provider answers and accepts the key, with one free request (such as its list of models).

It does not use the provider's SDK. So it is fast, and it shows whether a problem is in the network or in the SDK.
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
"""Seconds for each step of the request."""

_BYTES = 64 * 1024

_ASKED = {
    "anthropic": ("https://api.anthropic.com", "/v1/models?limit=1"),
    "openai": ("https://api.openai.com/v1", "/models"),
    "google": ("https://generativelanguage.googleapis.com", "/v1beta/models?pageSize=1"),
    # OpenRouter lists its models without a key, so request the data of the key.
    "openrouter": ("https://openrouter.ai/api/v1", "/key"),
}
_LISTED = ("", "/models")
"""For all other servers, which speak Chat Completions. Their address is in the endpoint."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of a check. ``ok``: the provider answers and accepts the key. ``text`` says what happened; it contains
    no secrets."""

    ok: bool
    text: str
    seconds: float
    status: int | None = None


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows no redirect, because a redirect could send the key to another server."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def probe(
    provider: str,
    base_url: str | None,
    key: Secret | None,
    headers: Mapping[str, Secret],
    *,
    timeout: float = TIMEOUT_S,
) -> CheckResult:
    """Send one request and report the result. Blocks for at most ``timeout`` seconds for each step of the connection.
    Errors of the network or the server become a result; they are not raised."""
    own, path = _ASKED.get(provider, _LISTED)
    request = urllib.request.Request((base_url or own).rstrip("/") + path, headers={"accept": "application/json"})
    request.add_header("user-agent", "cantrip-acp")
    for name, value in _auth_headers(provider, key).items():
        request.add_header(name, value)
    for name, secret in headers.items():
        request.add_header(name, secret.reveal())
    opener = urllib.request.build_opener(_NoRedirects, urllib.request.HTTPSHandler(context=_tls_context()))
    begun = time.monotonic()

    def answer(ok: bool, text: str, status: int | None = None) -> CheckResult:
        return CheckResult(ok, text, time.monotonic() - begun, status)

    try:
        with opener.open(request, timeout=timeout) as reply:
            reply.read(_BYTES)
            return answer(True, "answers", reply.status)
    except urllib.error.HTTPError as error:
        with error:
            words = provider_errors.error_text(error.read(_BYTES).decode("utf-8", "replace"))
        if error.code in (401, 403):
            return answer(False, f"refuses the key ({error.code}): {words}", error.code)
        if error.code in (404, 405):
            # A gateway may answer queries and still have no list of models.
            return answer(True, f"answers, but has no {path.partition('?')[0]} ({error.code})", error.code)
        return answer(False, f"answers {error.code}: {words}", error.code)
    except (TimeoutError, OSError, http.client.HTTPException, ValueError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        if isinstance(reason, TimeoutError):
            return answer(False, f"no answer within {timeout:g} seconds")
        return answer(False, f"cannot be reached: {provider_errors.error_text(reason) or type(reason).__name__}")


def _auth_headers(provider: str, key: Secret | None) -> dict[str, str]:
    if key is None:
        return {}
    if provider == "anthropic":
        return {"x-api-key": key.reveal(), "anthropic-version": "2023-06-01"}
    if provider == "google":
        return {"x-goog-api-key": key.reveal()}
    return {"authorization": f"Bearer {key.reveal()}"}


def _tls_context() -> ssl.SSLContext:
    """Trust the certificates of ``certifi``, as the SDKs do; without ``certifi``, those of the system."""
    try:
        import certifi
    except ImportError:
        return ssl.create_default_context()
    return ssl.create_default_context(cafile=certifi.where())
