"""Errors about sessions that several methods return (ACP, Error Handling)."""

from __future__ import annotations

from typing import Literal

from cantrip_acp.acp.initialize import AUTH_METHOD, OTHER_WAYS
from cantrip_acp.acp.wire.jsonrpc import AUTH_REQUIRED, INVALID_REQUEST, RESOURCE_NOT_FOUND, RpcError
from cantrip_acp.core.errors import MissingKey
from cantrip_acp.text.redaction import shared


class SignedOut(MissingKey):
    """The user has signed out, and this crystal needs a key."""


def unknown_session(session_id: str) -> RpcError:
    """The session does not exist, neither open nor on disk."""
    short_id = session_id[:100]
    return RpcError(
        RESOURCE_NOT_FOUND, f"Resource not found: there is no session {short_id!r}", {"sessionId": short_id}
    )


def session_busy(session_id: str) -> RpcError:
    """The session is busy, and the request would disturb its work."""
    return RpcError(
        INVALID_REQUEST,
        f"Invalid request: session {session_id[:100]} is busy; wait for its reply or send session/cancel",
        {"sessionId": session_id[:100], "reason": "prompt_in_progress"},
    )


Transition = Literal["closed", "loaded", "deleted"]
"""What can happen to a session that makes it unable to take a prompt meanwhile."""

_REASONS: dict[Transition, str] = {
    "closed": "session_closing",
    "loaded": "session_loading",
    "deleted": "session_deleting",
}
_ADVICE: dict[Transition, str] = {
    "closed": "wait for the reply to session/close, and load it again to go on",
    "loaded": "wait for the reply to session/load or session/resume",
    "deleted": "begin another session",
}


def session_not_ready(session_id: str, transition: Transition) -> RpcError:
    """The session is being closed, loaded or deleted now."""
    short_id = session_id[:100]
    return RpcError(
        INVALID_REQUEST,
        f"Invalid request: session {short_id} is being {transition}; {_ADVICE[transition]}",
        {"sessionId": short_id, "reason": _REASONS[transition]},
    )


def auth_required(missing: MissingKey) -> RpcError:
    """No crystal is available: says what is missing and what to set."""
    text = shared().diagnostic(str(missing)).rstrip(".")
    if isinstance(missing, SignedOut):
        return RpcError(
            AUTH_REQUIRED, f"Authentication required: {text}", {"methodId": AUTH_METHOD, "reason": "signed_out"}
        )
    return RpcError(AUTH_REQUIRED, f"Authentication required: {text}. {OTHER_WAYS}", {"methodId": AUTH_METHOD})
