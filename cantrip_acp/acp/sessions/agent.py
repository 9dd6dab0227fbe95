"""The agent of one connection: the handlers of the methods that open, find and close sessions, and of ``session/prompt``.

Code that reads files runs in a thread. If a request is cancelled while a session is opened, the session is closed again.
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import anyio.to_thread

from cantrip_acp.acp import protocol as acp
from cantrip_acp.acp.errors import auth_required, session_busy, session_not_ready, unknown_session
from cantrip_acp.acp.login import ask_until_key_is_set
from cantrip_acp.acp.render.notices import notice
from cantrip_acp.acp.sessions.factory import OpenedSession, SessionFactory
from cantrip_acp.acp.sessions.forks import Forks
from cantrip_acp.acp.sessions.options import modes
from cantrip_acp.acp.sessions.options.config_options import ask_for_trust
from cantrip_acp.acp.sessions.prompt.prompts import OpenPrompt
from cantrip_acp.acp.sessions.request_params import (
    check_same_prompt,
    read_system_prompt,
    requested_trace,
    session_folders,
)
from cantrip_acp.acp.sessions.session import Session
from cantrip_acp.acp.sessions.session_store import BadCursor, NoSession
from cantrip_acp.acp.wire.connection import Request
from cantrip_acp.acp.wire.jsonrpc import INTERNAL_ERROR, INVALID_REQUEST, RpcError, invalid_params, meta_of
from cantrip_acp.types.errors import (
    CantripError,
    DefinitionError,
    LoomLocked,
    MissingKey,
    UntrustedRecipe,
)

if TYPE_CHECKING:
    from cantrip_acp.acp.wire.connection import Connection
    from cantrip_acp.gates.contract import GateSource
    from cantrip_acp.telemetry import tracing

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)


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
        self.open: dict[str, Session] = {}
        self.untrusted: dict[str, UntrustedSession] = {}
        self._being_opened: dict[str, _BeingOpened] = {}
        self._being_deleted: dict[str, _BeingDeleted] = {}
        self.loading: Counter[str] = Counter()
        """By session id: the number of requests that load the session and are not answered yet."""

    def session(self, session_id: str) -> Session:
        """The open session with this id.

        Raises `RpcError` if it is not open, if its recipe is not trusted yet, or if it is being opened, closed or deleted.
        """
        session = self.open.get(session_id)
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

    async def make(self, session_id: str, make: Callable[[], Awaitable[Session]]) -> Session:
        """Open a session. ``make`` returns the session, and adds it to `open` as its last step.

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
        if self.open.get(session.id) is session:
            del self.open[session.id]

    async def close_id(self, session_id: str) -> bool:
        """Close the session with this id, even if it is still being opened. Returns False if there was none."""
        found = self.untrusted.pop(session_id, None) is not None
        while True:
            opening, session = self._being_opened.get(session_id), self.open.get(session_id)
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


class Agent:
    """The sessions of one connection: opens, loads, forks, lists and closes them. Methods of a single session are in
    `Session`."""

    client = acp.ClientAbilities()
    """The client's abilities, known after ``initialize`` (`server`)."""
    connection: Connection

    def __init__(self, factory: SessionFactory) -> None:
        self.factory = factory
        self._store = factory.store
        self.sessions = OpenSessions()
        self.forks = Forks(self)
        self._told_of_servers: set[str] = set()
        """The messages about MCP servers of the client's settings that the user has seen. They are the same in each session."""

    def of_session(self, method: Callable[[Session, Any, Request], Any]) -> Callable[[Any, Request], Any]:
        """Make a handler that finds the open session that the parameters name, and calls ``method`` with it."""
        return lambda params, request: method(self.sessions.session(params.session_id), params, request)

    def running(self) -> list[Session]:
        """The sessions with a running prompt."""
        return [session for session in self.sessions.open.values() if session.prompts.running]

    async def renew_crystals(self) -> None:
        """Use newly saved keys in the open sessions too, from their next prompt on."""
        for session in tuple(self.sessions.open.values()):
            await session.options.renew_crystal()

    async def close_all(self) -> None:
        """Close every session. The sessions stay on disk."""
        async with anyio.create_task_group() as tasks:
            for session in tuple(self.sessions.open.values()):
                tasks.start_soon(session.close)

    # --- opening sessions --------------------------------------------------------------------------------------------

    async def new(self, params: acp.NewSession, request: Request) -> acp.SessionState:
        """``session/new``"""
        trace = requested_trace(params.meta)
        session_id = f"sess_{os.urandom(12).hex()}"
        try:
            begin = partial(self._create_session, session_id, params, trace)
            session = await ask_until_key_is_set(self.connection, self.client, request, begin)
        except UntrustedRecipe as problem:
            self.sessions.untrusted[session_id] = UntrustedSession(session_id, params, trace)
            about = {"untrusted": str(problem)}
            return acp.SessionState(session_id=session_id, modes=modes.state(modes.FALLBACK), meta={"cantrip": about})
        session.after_reply(request)
        return session.state(session_id=session_id)

    async def _create_session(self, session_id: str, params: acp.NewSession, trace: tracing.Trace | None) -> Session:
        cwd, folders = session_folders(params.cwd, params.additional_directories)
        prompt = read_system_prompt(params)
        sources = await self.sources_of(params)
        session = Session(self, session_id, trace, sources)
        opened = await self.open_in_thread(
            self.factory.new, session_id, cwd, folders, session.permissions, sources, prompt, delete_if_cancelled=True
        )
        return self.add(session, opened, params.meta)

    def add(self, session: Session, opened: OpenedSession, meta: Any) -> Session:
        session.begin_with(opened, meta)
        self.sessions.open[session.id] = session
        return session

    def load(self, params: acp.LoadSession, request: Request) -> Awaitable[acp.SessionState]:
        """``session/load``: sends the whole history before the reply."""
        self.sessions.loading[params.session_id] += 1
        return self._while_loading(params.session_id, self._load(params, request))

    async def _while_loading(self, session_id: str, work: Awaitable[acp.SessionState]) -> acp.SessionState:
        """Await the work of a load request, then no longer count the session as being loaded."""
        try:
            return await work
        finally:
            self.sessions.loading[session_id] -= 1
            if not self.sessions.loading[session_id]:
                del self.sessions.loading[session_id]

    async def _load(self, params: acp.LoadSession, request: Request) -> acp.SessionState:
        session = await self._find_session(params)
        await session.replay()
        session.after_reply(request, before_reply=True)
        state = session.state()
        if not session.prompts.running and state.meta is not None:
            reason = await session.unfinished_reason()
            if reason is not None:
                state.meta["cantrip"]["incomplete"] = reason
        return state

    def resume(self, params: acp.LoadSession, request: Request) -> Awaitable[acp.SessionState]:
        """``session/resume``: like `load`, but the history is not sent."""
        self.sessions.loading[params.session_id] += 1
        return self._while_loading(params.session_id, self._resume(params, request))

    async def _resume(self, params: acp.LoadSession, request: Request) -> acp.SessionState:
        session = await self._find_session(params)
        session.opened.history = None
        session.after_reply(request)
        return session.state()

    # --- sessions on disk --------------------------------------------------------------------------------------------

    async def _find_session(self, params: acp.LoadSession) -> Session:
        """Find an existing session: one that is open in this connection, or one on disk."""
        cwd, folders = session_folders(params.cwd, params.additional_directories)
        sources = await self.sources_of(params)
        while (live := self.sessions.open.get(params.session_id)) is not None:
            if live.closing:
                await self.sessions.close(live)
                continue
            if live.prompts.running:
                raise session_busy(live.id)
            check_same_prompt(params, live.metadata)
            same = live.metadata.cwd == str(cwd) and live.metadata.directories == [str(f) for f in folders]
            if live.entity.loom.location is None or (same and list(live.sources) == list(sources)):
                live.in_use_by_client = True
                return live
            await self.sessions.close(live)
        return await self.from_disk(params, cwd, folders, sources)

    async def from_disk(
        self, params: acp.LoadSession, cwd: Path, folders: Sequence[Path], sources: Sequence[GateSource]
    ) -> Session:
        return await self.sessions.make(params.session_id, partial(self._load_session, params, cwd, folders, sources))

    async def _load_session(
        self, params: acp.LoadSession, cwd: Path, folders: Sequence[Path], sources: Sequence[GateSource]
    ) -> Session:
        metadata = await anyio.to_thread.run_sync(self._store.find, params.session_id)
        if metadata is None:
            raise unknown_session(params.session_id)
        check_same_prompt(params, metadata)
        session = Session(self, metadata.id, requested_trace(params.meta), sources)
        permissions = session.permissions
        permissions.mode, permissions.granted = metadata.mode, list(metadata.granted)
        try:
            opened = await self.open_in_thread(self.factory.load, metadata, cwd, folders, permissions, sources)
        except UntrustedRecipe:
            await ask_for_trust(self.factory, self.connection, metadata.id, cwd, metadata.recipe)
            opened = await self.open_in_thread(self.factory.load, metadata, cwd, folders, permissions, sources)
        from cantrip_acp.core.forking.resume import STATE_NOTES

        self.add(session, opened, params.meta)
        if opened.restored.state in STATE_NOTES:
            session.notes.entity.append(
                f"This session was opened again in a new process: {STATE_NOTES[opened.restored.state]}."
            )
        if opened.restored.state == "lost":
            session.notes.user.append(f"This session was opened again: {STATE_NOTES['lost']}.")
        if opened.restored.definition_changes:
            told = ", ".join(opened.restored.definition_changes)
            session.notes.user.append(
                f"The definition of this session has changed since its last answer ({told}). The session goes on as a fork of "
                "that answer, with the definition as it is now; the earlier turns keep theirs in the record."
            )
            session.notes.entity.append(
                f"Your definition has changed since your last answer ({told}). What you were told about it before may no "
                "longer hold."
            )
        if opened.restored.dropped_choice:
            crystal = opened.entity.crystal
            session.notes.user.append(
                f"The model that was chosen in this session is no longer available: "
                f"{opened.restored.dropped_choice}. The session now uses {crystal.name}:{crystal.model}, the "
                "model of the recipe."
            )
        return session

    async def list(self, params: acp.ListSessions, request: Request) -> acp.SessionList:
        """``session/list``"""
        if params.cwd is not None and not os.path.isabs(params.cwd):
            raise invalid_params(f"must be an absolute path, not {params.cwd[:200]!r}", "cwd")
        live = frozenset(self.sessions.open)
        try:
            page, cursor = await anyio.to_thread.run_sync(
                lambda: self._store.list(params.cwd, params.cursor, open_ids=live)
            )
        except BadCursor as problem:
            raise invalid_params(str(problem), "cursor") from None
        sessions = [
            acp.SessionInfo(
                session_id=each.metadata.id,
                cwd=each.metadata.cwd,
                additional_directories=each.metadata.directories or None,
                title=each.metadata.title,
                updated_at=each.updated_at,
                meta=None
                if each.metadata.forked_from is None
                else {"cantrip": {"forkedFrom": each.metadata.forked_from}},
            )
            for each in page
        ]
        return acp.SessionList(sessions, cursor)

    async def close(self, params: acp.SessionParams, request: Request) -> dict[str, Any]:
        """``session/close``: cancels and records the running prompt. The session stays on disk."""
        if not await self.sessions.close_id(params.session_id):
            raise unknown_session(params.session_id)
        return {}

    async def delete(self, params: acp.SessionParams, request: Request) -> dict[str, Any]:
        """``session/delete``: deletes a session. It is not an error if the session does not exist."""
        async with self.sessions.deleting(params.session_id):
            try:
                with anyio.CancelScope(shield=True):
                    await anyio.to_thread.run_sync(self._store.delete, params.session_id)
            except (CantripError, OSError) as problem:
                raise RpcError(INVALID_REQUEST, f"The session cannot be deleted: {problem}") from None
        return {}

    async def set_title(self, params: acp.SetTitle, request: Request) -> acp.StoredTitle:
        """``session/set_title`` (unstable): sets the title of any session in the list, also of one that is not open."""
        from cantrip_acp.acp.sessions.title import chosen_title

        title = chosen_title(params.title)
        if not title:
            raise invalid_params("a title needs at least one readable character", "title")
        session = self.sessions.open.get(params.session_id)
        try:
            if session is not None and not session.closing:
                session.options.set_title(title)
                request.after.append(lambda: session.send_now(session.info()))
            elif not await anyio.to_thread.run_sync(self._store.set_title, params.session_id, title):
                raise unknown_session(params.session_id)
        except LoomLocked as problem:
            raise RpcError(INVALID_REQUEST, f"The session is in use: {problem}", {"reason": "session_in_use"}) from None
        except (CantripError, OSError) as problem:
            text = str(problem)
            raise RpcError(INTERNAL_ERROR, f"The title cannot be saved: {text}", {"details": text}) from None
        return acp.StoredTitle(title)

    # --- prompts -------------------------------------------------------------------------------------------------------

    def prompt(
        self, params: acp.Prompt, request: Request, prompt: OpenPrompt | None = None
    ) -> Awaitable[acp.PromptResult]:
        """``session/prompt``: marks the session as busy at once, and returns the work of the prompt. Version 2 passes its own
        kind of ``prompt``, which reports more to the client."""
        waiting = self.sessions.untrusted.get(params.session_id)
        if waiting is not None:
            return self._ask_for_trust(waiting, prompt or OpenPrompt(params, request))
        return self.sessions.session(params.session_id).prompts.open(prompt or OpenPrompt(params, request))

    async def _ask_for_trust(self, waiting: UntrustedSession, prompt: OpenPrompt) -> acp.PromptResult:
        """Handle a prompt to a session with an untrusted recipe: ask the user for trust, then open the session."""
        if waiting.running:
            raise session_busy(waiting.id)
        with anyio.CancelScope() as scope:
            waiting.trust_question = scope
            try:
                await ask_for_trust(self.factory, self.connection, waiting.id, Path(waiting.params.cwd), None)
            finally:
                waiting.trust_question = None
        if scope.cancelled_caught:
            return acp.PromptResult("cancelled")
        if self.sessions.untrusted.pop(waiting.id, None) is None:
            return await self.prompt(prompt.params, prompt.request, prompt)
        make = partial(self._create_session, waiting.id, waiting.params, waiting.trace)
        session = await self.sessions.make(waiting.id, make)
        session.after_reply(prompt.request, before_reply=True)
        session.send_now(acp.ConfigOptionsChanged(session.options.listed()))
        if session.metadata.mode != modes.FALLBACK:
            session.send_now(acp.CurrentMode(session.metadata.mode))
        return await self.prompt(prompt.params, prompt.request, prompt)

    def cancel(self, params: acp.Cancel, request: Request) -> None:
        """``session/cancel``"""
        waiting = self.sessions.untrusted.get(params.session_id)
        # A closing session is already cancelled.
        closing = self.sessions.open.get(params.session_id)
        found = waiting or closing or self.sessions.session(params.session_id)
        if isinstance(found, Session):
            found.queue.cancel_all()
            found.prompts.cancel()
        else:
            found.cancel()

    async def steer(
        self, params: acp.Prompt, request: Request, start: Callable[[acp.Prompt, Request], Awaitable[Any]] | None = None
    ) -> dict[str, Any]:
        """``_session/steering``: gives the entity a message before its next query.

        If no prompt runs, the message starts one. With ``_meta.steering.idleBehavior: "promptRequired"`` nothing happens
        instead: the client sends the message as a prompt, and can wait for that request or cancel it. Version 2 passes
        ``start``, its own way to start a prompt.
        """
        session = self.sessions.session(params.session_id)
        idle_behavior = meta_of(params.meta, acp.SteeringMeta, "steering").idle_behavior
        if await session.prompts.steer(params.prompt):
            return {"outcome": "injected"}
        if idle_behavior is not None:
            return {"outcome": "promptRequired", "reason": "noRunningTurn"}
        own = Request(request.method, None)
        work = session.prompts.start(OpenPrompt(params, own)) if start is None else start(params, own)

        async def run() -> None:
            try:
                await work
            except RpcError as problem:
                # No request waits for this prompt, so the user reads the failure.
                session.send_now(notice(problem.message, session.client))

        session.connection.start_task(run)
        return {"outcome": "startedNewTurn"}

    # --- the opening -------------------------------------------------------------------------------------------------

    async def sources_of(self, params: acp.NewSession | acp.LoadSession) -> Sequence[GateSource]:
        """The MCP servers that a client names for a session, as gate sources. They are connected after the reply."""
        if not params.mcp_servers:
            return ()
        from cantrip_acp.acp.sessions.factory import mcp_sources

        try:
            folder = self._store.folder.parent
            return await anyio.to_thread.run_sync(mcp_sources, params.mcp_servers, folder, self._told_of_servers)
        except CantripError as problem:
            raise RpcError(INTERNAL_ERROR, f"The session cannot be opened: {problem}") from None

    async def open_in_thread(
        self, work: Callable[..., OpenedSession], *args: Any, delete_if_cancelled: bool = False
    ) -> OpenedSession:
        """Open a session in a thread.

        If the request is cancelled at the same time, the session is closed again. With ``delete_if_cancelled`` its files
        are deleted too. Raises `RpcError` if the session cannot be opened, and passes on `UntrustedRecipe`.
        """
        try:
            with anyio.CancelScope(shield=True):
                opened = await anyio.to_thread.run_sync(work, *args)
        except MissingKey as missing:
            raise auth_required(missing) from None
        except UntrustedRecipe:
            raise
        except NoSession as problem:
            raise unknown_session(problem.session_id) from None
        except LoomLocked as problem:
            raise RpcError(INVALID_REQUEST, f"The session is in use: {problem}", {"reason": "session_in_use"}) from None
        except (CantripError, OSError) as problem:
            text = str(problem)
            if isinstance(problem, OSError) and problem.errno in _DISK_FULL:
                text += ". Free some disk space, or choose another folder with --state-dir"
            where = problem.where if isinstance(problem, DefinitionError) else None
            raise RpcError(
                INTERNAL_ERROR,
                f"The session cannot be opened: {text}",
                {"error": type(problem).__name__, "details": text, "where": where},
            ) from None
        try:
            await anyio.lowlevel.checkpoint_if_cancelled()
        except anyio.get_cancelled_exc_class():
            opened.release()
            if delete_if_cancelled:
                self._store.delete(opened.metadata.id)
            raise
        return opened
