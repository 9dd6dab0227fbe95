"""Error replies about sessions: unknown, busy, not ready, or without a key (ACP, Error Handling)."""

from __future__ import annotations

from typing import Literal

from cantrip_acp.acp.initialize import AUTH_METHOD, OTHER_WAYS
from cantrip_acp.acp.wire.jsonrpc import AUTH_REQUIRED, INVALID_REQUEST, RESOURCE_NOT_FOUND, RpcError
from cantrip_acp.types.errors import MissingKey


class SignedOut(MissingKey):
    """The user has signed out, and this crystal needs a key."""


def unknown_session(session_id: str) -> RpcError:
    """The error for a session that is neither open nor on disk."""
    short_id = session_id[:100]
    return RpcError(
        RESOURCE_NOT_FOUND, f"Resource not found: there is no session {short_id!r}", {"sessionId": short_id}
    )


def session_busy(session_id: str) -> RpcError:
    """The error for a request that would disturb the running prompt of a session."""
    return RpcError(
        INVALID_REQUEST,
        f"Invalid request: session {session_id[:100]} is busy; wait for its reply or send session/cancel",
        {"sessionId": session_id[:100], "reason": "prompt_in_progress"},
    )


Transition = Literal["closed", "loaded", "deleted"]
"""The operations during which a session takes no prompt."""

_REASONS: dict[Transition, str] = {
    "closed": "session_closing",
    "loaded": "session_loading",
    "deleted": "session_deleting",
}
_ADVICE: dict[Transition, str] = {
    "closed": "wait for the reply to session/close, then load the session again",
    "loaded": "wait for the reply to session/load or session/resume",
    "deleted": "start a new session",
}


def session_not_ready(session_id: str, transition: Transition) -> RpcError:
    """The error for a session that is being closed, loaded or deleted."""
    short_id = session_id[:100]
    return RpcError(
        INVALID_REQUEST,
        f"Invalid request: session {short_id} is being {transition}; {_ADVICE[transition]}",
        {"sessionId": short_id, "reason": _REASONS[transition]},
    )


def auth_required(missing: MissingKey) -> RpcError:
    """The error for a session without a crystal. It says what is missing and what to set."""
    text = str(missing).rstrip(".")
    if isinstance(missing, SignedOut):
        return RpcError(
            AUTH_REQUIRED, f"Authentication required: {text}", {"methodId": AUTH_METHOD, "reason": "signed_out"}
        )
    return RpcError(AUTH_REQUIRED, f"Authentication required: {text}. {OTHER_WAYS}", {"methodId": AUTH_METHOD})
