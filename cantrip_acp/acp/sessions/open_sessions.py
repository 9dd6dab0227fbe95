"""Session registry: which sessions are open in a connection, and what may happen to one at a time.

One request at a time opens a session, and it is closed once. Requests race: a deletion closes a session that is being
opened, and blocks opening while it runs. So a race ends with a whole session or none.
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
    """A session whose recipe the user must trust first. It has no entity; its first prompt asks the user."""

    def __init__(self, session_id: str, params: acp.NewSession, trace: tracing.Trace | None) -> None:
        self.id = session_id
        self.params = params
        self.trace = trace
        self.trust_question: anyio.CancelScope | None = None
        """The scope of the trust question of a prompt, which a cancel ends."""

    @property
    def running(self) -> bool:
        return self.trust_question is not None

    def cancel(self) -> None:
        """Cancel the prompt that asks; does nothing where none does."""
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
        """How many requests to load a session are not answered yet, by session id."""

    def session(self, session_id: str) -> Session:
        """The open session with that id.

        Raises `RpcError` where there is none, its recipe is not trusted yet, or it is being opened, closed or deleted.
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
        """Open a session. ``make`` returns it, and adds it to `sessions` as its last step.

        Raises `RpcError` while another request opens it, and where it is closed or deleted meanwhile.
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
        """Close a session. Its id is free when everything of it is closed."""
        with anyio.CancelScope(shield=True):
            await session.close()
        if self.sessions.get(session.id) is session:
            del self.sessions[session.id]

    async def close_id(self, session_id: str) -> bool:
        """Close what is open or being opened under an id; False where there was nothing."""
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
        """Block opening while a session is deleted, after closing what is open of it. Deletions of one session run in
        turn."""
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
