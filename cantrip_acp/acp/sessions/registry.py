"""Which sessions live in a connection, and what may happen to one at a time.

A session is opened by one request at a time, and ended once. Requests race: a deletion ends what is being opened, and while
it is at work nothing is opened. So what is left of a race is a whole session or none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio

from cantrip_acp.acp.errors import unknown, unready
from cantrip_acp.acp.wire.jsonrpc import INVALID_REQUEST, RpcError

if TYPE_CHECKING:
    from cantrip_acp import telemetry
    from cantrip_acp.acp import protocol as acp
    from cantrip_acp.acp.sessions.session import Session


class Waiting:
    """A session whose recipe its user has to trust first: it has no entity, and its first prompt asks."""

    def __init__(self, session_id: str, params: acp.NewSession, trace: telemetry.Trace | None) -> None:
        self.id = session_id
        self.params = params
        self.trace = trace
        self.asking: anyio.CancelScope | None = None
        """What a cancel ends: the question that a prompt puts to the user."""

    @property
    def running(self) -> bool:
        return self.asking is not None

    def cancel(self) -> None:
        """End the prompt that asks; nothing where none does."""
        if self.asking is not None:
            self.asking.cancel()


class _Passage:
    """A session that is being opened."""

    def __init__(self) -> None:
        self.scope = anyio.CancelScope()
        self.over = anyio.Event()


class _Deletion:
    """A session that is being deleted, by one request or by several."""

    def __init__(self) -> None:
        self.lock = anyio.Lock()
        self.requests = 0


class Living:
    """The sessions of one connection by id: those that live, and those that wait for their user's trust."""

    def __init__(self) -> None:
        self.sessions: dict[str, Session] = {}
        self.waiting: dict[str, Waiting] = {}
        self._opening: dict[str, _Passage] = {}
        self._deleting: dict[str, _Deletion] = {}
        self.loading: Counter[str] = Counter()
        """How many requests that load a session have come and are not answered, by its id."""

    def session(self, session_id: str) -> Session:
        """The session with that id. Raises `RpcError` where there is none, its recipe is not trusted yet, or it is being
        opened, closed or deleted."""
        session = self.sessions.get(session_id)
        if session_id in self._deleting:
            raise unready(session_id, "deleted")
        if session_id in self._opening or (session is None and self.loading[session_id]):
            raise unready(session_id, "loaded")
        if session is not None:
            if session.closing:
                raise unready(session_id, "closed")
            return session
        if session_id in self.waiting:
            raise RpcError(
                INVALID_REQUEST,
                "Invalid request: the session's recipe is not trusted yet; its first prompt asks for that",
                {"sessionId": session_id, "reason": "untrusted_recipe"},
            )
        raise unknown(session_id)

    async def opened(self, session_id: str, make: Callable[[], Awaitable[Session]]) -> Session:
        """Open a session: ``make`` gives it, and puts it among `sessions` as the last thing it does.

        Raises `RpcError` while another request opens it, and where it is closed or deleted meanwhile.
        """
        if session_id in self._deleting:
            raise unknown(session_id)
        if session_id in self._opening:
            raise unready(session_id, "loaded")
        mine = self._opening[session_id] = _Passage()
        try:
            with mine.scope:
                return await make()
            raise unknown(session_id)
        finally:
            del self._opening[session_id]
            mine.over.set()

    async def end(self, session: Session) -> None:
        """Close a session; its id is free once nothing of it is left."""
        with anyio.CancelScope(shield=True):
            await session.close()
        if self.sessions.get(session.id) is session:
            del self.sessions[session.id]

    async def clear(self, session_id: str) -> bool:
        """End what lives under an id or is being opened; False where there was nothing."""
        found = self.waiting.pop(session_id, None) is not None
        while True:
            passage, session = self._opening.get(session_id), self.sessions.get(session_id)
            if passage is not None:
                passage.scope.cancel()
                await passage.over.wait()
            elif session is not None:
                await self.end(session)
            else:
                return found
            found = True

    @asynccontextmanager
    async def deleting(self, session_id: str) -> AsyncIterator[None]:
        """While a session is deleted: nothing of it lives, and nobody opens it. Deletions of one session take turns."""
        mine = self._deleting.setdefault(session_id, _Deletion())
        mine.requests += 1
        try:
            async with mine.lock:
                await self.clear(session_id)
                yield
        finally:
            mine.requests -= 1
            if not mine.requests:
                del self._deleting[session_id]
