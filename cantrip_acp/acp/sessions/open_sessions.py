"""Session registry: the open sessions of a connection, and the order of requests that open, close or delete the same one.

Only one request at a time opens a session. A deletion first closes the session, even one that is still being opened, and
prevents that it is opened again. So after concurrent requests a session exists completely or not at all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio

from cantrip_acp.acp.errors import session_not_ready, unknown_session
from cantrip_acp.acp.wire.jsonrpc import INVALID_REQUEST, RpcError

if TYPE_CHECKING:
    from cantrip_acp.acp import protocol as acp
    from cantrip_acp.acp.sessions.session import Session
    from cantrip_acp.telemetry import tracing


class UntrustedSession:
    """A session whose recipe the user does not trust yet. It has no entity. Its first prompt asks the user for trust."""

    def __init__(self, session_id: str, params: acp.NewSession, trace: tracing.Trace | None) -> None:
        self.id = session_id
        self.params = params
        self.trace = trace
        self.trust_question: anyio.CancelScope | None = None
        """The cancel scope of the running prompt that asks for trust, or None."""

    @property
    def running(self) -> bool:
        return self.trust_question is not None

    def cancel(self) -> None:
        """Cancel the prompt that asks for trust, if there is one."""
        if self.trust_question is not None:
            self.trust_question.cancel()


class _BeingOpened:
    """A session that is being opened."""

    def __init__(self) -> None:
        self.scope = anyio.CancelScope()
        self.finished = anyio.Event()


class _BeingDeleted:
    """A session that is being deleted, by one or several requests."""

    def __init__(self) -> None:
        self.lock = anyio.Lock()
        self.requests = 0


class OpenSessions:
    """The sessions of one connection by id: the open ones, and those that wait for the user's trust."""

    def __init__(self) -> None:
        self.sessions: dict[str, Session] = {}
        self.untrusted: dict[str, UntrustedSession] = {}
        self._being_opened: dict[str, _BeingOpened] = {}
        self._being_deleted: dict[str, _BeingDeleted] = {}
        self.loading: Counter[str] = Counter()
        """By session id: the number of requests that load the session and are not answered yet."""

    def session(self, session_id: str) -> Session:
        """The open session with this id.

        Raises `RpcError` if it is not open, if its recipe is not trusted yet, or if it is being opened, closed or deleted.
        """
        session = self.sessions.get(session_id)
        if session_id in self._being_deleted:
            raise session_not_ready(session_id, "deleted")
        if session_id in self._being_opened or (session is None and self.loading[session_id]):
            raise session_not_ready(session_id, "loaded")
        if session is not None:
            if session.closing:
                raise session_not_ready(session_id, "closed")
            return session
        if session_id in self.untrusted:
            raise RpcError(
                INVALID_REQUEST,
                "Invalid request: the session's recipe is not trusted yet; its first prompt asks for that",
                {"sessionId": session_id, "reason": "untrusted_recipe"},
            )
        raise unknown_session(session_id)

    async def open(self, session_id: str, make: Callable[[], Awaitable[Session]]) -> Session:
        """Open a session. ``make`` returns the session, and adds it to `sessions` as its last step.

        Raises `RpcError` if another request is opening the session, or if it is closed or deleted before it is open.
        """
        if session_id in self._being_deleted:
            raise unknown_session(session_id)
        if session_id in self._being_opened:
            raise session_not_ready(session_id, "loaded")
        entry = self._being_opened[session_id] = _BeingOpened()
        try:
            with entry.scope:
                return await make()
            raise unknown_session(session_id)
        finally:
            del self._being_opened[session_id]
            entry.finished.set()

    async def close(self, session: Session) -> None:
        """Close a session. Afterwards it can be opened again."""
        with anyio.CancelScope(shield=True):
            await session.close()
        if self.sessions.get(session.id) is session:
            del self.sessions[session.id]

    async def close_id(self, session_id: str) -> bool:
        """Close the session with this id, even if it is still being opened. Returns False if there was none."""
        found = self.untrusted.pop(session_id, None) is not None
        while True:
            opening, session = self._being_opened.get(session_id), self.sessions.get(session_id)
            if opening is not None:
                opening.scope.cancel()
                await opening.finished.wait()
            elif session is not None:
                await self.close(session)
            else:
                return found
            found = True

    @asynccontextmanager
    async def deleting(self, session_id: str) -> AsyncIterator[None]:
        """Close a session, and prevent that it is opened while the block runs. Deletions of one session run one by one."""
        entry = self._being_deleted.setdefault(session_id, _BeingDeleted())
        entry.requests += 1
        try:
            async with entry.lock:
                await self.close_id(session_id)
                yield
        finally:
            entry.requests -= 1
            if not entry.requests:
                del self._being_deleted[session_id]
