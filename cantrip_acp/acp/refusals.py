"""Errors about sessions that several methods answer with (ACP, Error Handling)."""

from __future__ import annotations

from cantrip_acp.acp.envelope import AUTH_REQUIRED, INVALID_REQUEST, RESOURCE_NOT_FOUND, RpcError
from cantrip_acp.acp.handshake import AUTH_METHOD, OTHER_WAYS
from cantrip_acp.errors import MissingKey
from cantrip_acp.redaction import shared


class SignedOut(MissingKey):
    """The user has signed out, and this crystal needs a key."""


def unknown(session_id: str) -> RpcError:
    """There is no such session, here or on disk."""
    shown = session_id[:100]
    return RpcError(RESOURCE_NOT_FOUND, f"Resource not found: there is no session {shown!r}", {"sessionId": shown})


def busy(session_id: str) -> RpcError:
    """The session works on something that this would disturb."""
    return RpcError(
        INVALID_REQUEST,
        f"Invalid request: session {session_id[:100]} is busy; wait for its reply or send session/cancel",
        {"sessionId": session_id[:100], "reason": "prompt_in_progress"},
    )


def auth_required(missing: MissingKey) -> RpcError:
    """No crystal can be had: what is missing, and what to set; said once."""
    text = shared().diagnostic(str(missing)).rstrip(".")
    if isinstance(missing, SignedOut):
        return RpcError(
            AUTH_REQUIRED, f"Authentication required: {text}", {"methodId": AUTH_METHOD, "reason": "signed_out"}
        )
    return RpcError(AUTH_REQUIRED, f"Authentication required: {text}. {OTHER_WAYS}", {"methodId": AUTH_METHOD})
