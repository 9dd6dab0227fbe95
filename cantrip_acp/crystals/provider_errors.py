"""Provider errors: turns the errors of all providers into `CrystalError` (PROD-2, CRYSTAL-2).

A provider's module passes the status, the headers and the body that its SDK received.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from math import inf
from typing import Any
from urllib.parse import urlsplit

from cantrip_acp.crystals.catalog.overflow_texts import is_overflow
from cantrip_acp.crystals.contract import Meter
from cantrip_acp.text.redaction import shared
from cantrip_acp.types.errors import ContextLimitError, CrystalError

OVERLOADED = 529
"""Anthropic's HTTP status for an overloaded service. Inside a stream, this error comes as an event without a status."""

_LONGEST = 600
_READ = 100_000
"""The most characters of a provider's error text in our error."""

_MENDS = {
    401: "check the key",
    402: "the account has no credit left",
    403: "the key is not allowed to do this; check its permissions and the region",
    404: "check the model's name and base_url",
    413: "the request is too large",
}


def status_error(
    who: str,
    status: int,
    message: str,
    *,
    headers: Mapping[str, str] | None = None,
    code: str | None = None,
    refusal_hint: str = "",
    name_hint: str = "",
) -> CrystalError:
    """Make the error for an HTTP status that is not a success.

    ``who`` is the provider and the model. ``message`` is the provider's text, and ``code`` its name for the error (such
    as ``context_length_exceeded``, ``insufficient_quota``, ``overloaded_error``). ``refusal_hint`` replaces the advice
    for a 401 or 403 (`Endpoint.refusal_hint`). ``name_hint`` replaces the advice for a 404.
    """
    words = error_text(without_markup(message))
    if 300 <= status < 400:
        # A redirect is not followed: it could send the conversation, and the keys in its headers, to another server.
        to = error_text((headers or {}).get("location", "elsewhere"))
        return CrystalError(f"{who} answered {status}, a redirect to {to}; set base_url to it", status=status)
    if is_overflow(status, f"{code or ''} {message}"):
        return ContextLimitError(f"{who}: the messages do not fit the model's context window: {words}")
    mend = (refusal_hint if status in (401, 403) else name_hint if status == 404 else "") or _MENDS.get(status)
    text = f"{who} answered {status}{f' ({mend})' if mend else ''}: {words or 'no explanation'}"
    spent = code == "insufficient_quota"
    return CrystalError(
        text,
        status=status,
        # A used-up quota has status 429, but waiting does not help.
        retryable=False if spent else True if status == OVERLOADED else None,
        retry_after=retry_after(headers or {}),
    )


def connection_error(who: str, error: BaseException, *, sent: bool = False, address: str | None = None) -> CrystalError:
    """Make the error for a connection that failed or was lost. ``sent``: part of a response was already received.

    ``address`` is the target of the request. A refused connection to this machine is not retried.
    """
    if not sent and type(error).__name__ == "ConnectError" and is_loopback(address or ""):
        refused = CrystalError(
            f"{who}: no server answers at {address}; start it, or change the address ({error_text(error)})",
            retryable=False,
        )
        refused.unreachable = True
        return refused
    words = error_text(str(error)) or type(error).__name__
    what = "the stream was cut before the response's end" if sent else "no connection, or the connection was lost"
    lost = CrystalError(f"{who}: {what}: {words}", retryable=True)
    lost.unreachable = not sent
    return lost


def timeout_error(who: str, seconds: float | None = None) -> CrystalError:
    """Make the error for a time-out."""
    after = f" for {seconds:g} seconds" if seconds else ""
    return CrystalError(f"{who}: no answer{after} (time-out)", retryable=True)


def invalid_response(who: str, what: str) -> CrystalError:
    """Make the error for a response that does not follow the provider's protocol. A retry may help."""
    return CrystalError(f"{who} sent a response that cannot be read: {error_text(what)}", retryable=True)


def unexpected_content(who: str, kind: str, body: str) -> CrystalError:
    """Make the error for a success status with other content, such as a sign-in page. ``kind`` is the media type."""
    return invalid_response(
        who, f"{kind or 'nothing'} instead of an answer (check base_url): {without_markup(body)[:200]}"
    )


def without_markup(text: str) -> str:
    """Return the text of an HTML page. Other text is returned unchanged."""
    if "<" not in text[:20]:
        return text
    text = re.sub(r"<(script|style)\b.*?</\1>", " ", text[:20_000], flags=re.DOTALL | re.IGNORECASE)
    return " ".join(re.sub(r"<[^>]*>", " ", text).split())


_SENT = frozenset({"ReadTimeout", "ReadError", "RemoteProtocolError"})
"""Class names of HTTP client errors that happen after the request was sent."""


@contextmanager
def sending_request(meter: Meter) -> Iterator[None]:
    """Context for sending one request until its response begins. It tells the meter whether the request may be billed."""
    meter.sent()
    try:
        yield
    except CrystalError as error:
        if not may_be_billed(error):
            meter.refused()
        raise


def may_be_billed(error: CrystalError) -> bool:
    """Whether the provider may have worked on a request that failed: it was sent, but no response came."""
    if error.status is not None:
        return False
    cause: BaseException | None = error
    while cause is not None:
        if type(cause).__name__ in _SENT:
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Read the seconds to wait from ``retry-after-ms`` or ``Retry-After`` (seconds or a date).

    None if there is no such header, or if its time is in the past or not finite.
    """
    lower = {name.lower(): value for name, value in headers.items()}
    for name, unit in (("retry-after-ms", 1000), ("retry-after", 1)):
        try:
            seconds = float(lower[name]) / unit
        except KeyError:
            continue
        except ValueError:
            try:
                seconds = (parsedate_to_datetime(lower[name]) - datetime.now(UTC)).total_seconds()
            except (ValueError, TypeError, OverflowError):
                continue
        if 0 < seconds < inf:
            return seconds
    return None


def is_loopback(url: str) -> bool:
    """Whether a URL points to this machine."""
    try:
        host = urlsplit(url).hostname or ""
    except ValueError:
        return False
    return host in ("localhost", "::1") or host.startswith("127.")


def error_text(message: Any) -> str:
    """Format a provider's error text: on one line, shortened, with secrets masked."""
    # Masked before it is cut: half of a key is recognized by nobody.
    text = shared().diagnostic(" ".join(str(message)[:_READ].split()))
    return text if len(text) <= _LONGEST else text[:_LONGEST] + " …"
