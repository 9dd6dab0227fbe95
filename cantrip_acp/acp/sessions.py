"""The sessions of one connection: how each method finds its session, makes one, or ends it (ACP, Session Setup).

Whatever reads files runs in a thread; what a request that was cancelled meanwhile had opened is closed again.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import anyio.to_thread

from cantrip_acp import telemetry
from cantrip_acp.acp import modes
from cantrip_acp.acp import protocol as acp
from cantrip_acp.acp.content import read_prompt
from cantrip_acp.acp.envelope import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    RpcError,
    invalid_params,
)
from cantrip_acp.acp.folder import check_folder, check_further
from cantrip_acp.acp.missingkey import with_a_key
from cantrip_acp.acp.opening import Opened, Opening, said, turn_named
from cantrip_acp.acp.options import Options
from cantrip_acp.acp.permissions import Permissions
from cantrip_acp.acp.refusals import auth_required, busy, unknown
from cantrip_acp.acp.services import services
from cantrip_acp.acp.session import Session
from cantrip_acp.acp.store import BadCursor, Granted
from cantrip_acp.errors import CantripError, LoomLocked, MissingKey, UntrustedRecipe
from cantrip_acp.loom.turn import ConfigRecord, new_id, now
from cantrip_acp.redaction import shared

if TYPE_CHECKING:
    from cantrip_acp.acp.commands import Command
    from cantrip_acp.acp.permissions import Answer, Question
    from cantrip_acp.acp.wire import Connection, Request
    from cantrip_acp.gates.sources import GateSource

log = logging.getLogger(__name__)

_UNNAMED = telemetry.Trace("")


class Waiting:
    """A session whose recipe its user has to trust first: it has no entity, and its first prompt asks."""

    running = False

    def __init__(self, session_id: str, params: acp.NewSession, trace: telemetry.Trace | None) -> None:
        self.id = session_id
        self.params = params
        self.trace = trace


class Sessions:
    """The sessions that live in this connection, by id, and the way to those on disk."""

    def __init__(self, opening: Opening) -> None:
        self.client = acp.ClientAbilities()
        self.connection: Connection | None = None
        self._opening = opening
        self._store = opening.store
        self._options = Options(opening)
        self._live: dict[str, Session] = {}
        self._waiting: dict[str, Waiting] = {}
        self._opening_now: set[str] = set()

    def running(self) -> list[Session]:
        """Those that work on a prompt."""
        return [session for session in self._live.values() if session.running]

    async def close_all(self) -> None:
        """End every session; nothing of it is left but what is on disk."""
        async with anyio.create_task_group() as tasks:
            for session in self._live.values():
                tasks.start_soon(session.close)

    # --- beginning -----------------------------------------------------------------------------------------------------

    async def new(self, params: acp.NewSession, request: Request) -> acp.SessionState:
        """``session/new``"""
        trace = _named(params.meta)
        session_id = f"sess_{os.urandom(12).hex()}"
        try:
            assert self.connection is not None
            begin = partial(self._begun, session_id, params, trace)
            session = await with_a_key(self.connection, self.client, request, begin)
        except UntrustedRecipe as problem:
            self._waiting[session_id] = Waiting(session_id, params, trace)
            about = {"untrusted": shared().diagnostic(str(problem))}
            return acp.SessionState(session_id=session_id, modes=modes.state(modes.DEFAULT), meta={"cantrip": about})
        self._introduce(session, request)
        return self._state(session, session_id=session_id)

    async def _begun(self, session_id: str, params: acp.NewSession, trace: telemetry.Trace | None) -> Session:
        cwd, folders = _folders(params.cwd, params.additional_directories)
        permissions = self._permissions(session_id)
        sources = await self._sources(params)
        opened = await self._in_thread(self._opening.new, session_id, cwd, folders, permissions, sources)
        return self._take(opened, permissions, trace, params.meta, sources)

    async def load(self, params: acp.LoadSession, request: Request) -> acp.SessionState:
        """``session/load``: the whole past goes out before the reply."""
        session = await self._found(params)
        await session.replay()
        self._introduce(session, request)
        return self._state(session)

    async def resume(self, params: acp.LoadSession, request: Request) -> acp.SessionState:
        """``session/resume``: as `load`, and nothing is replayed."""
        session = await self._found(params)
        self._introduce(session, request)
        return self._state(session)

    async def fork(self, params: acp.LoadSession, request: Request) -> acp.SessionState:
        """``session/fork``: from the last turn, or from the one that ``_meta.cantrip.turn`` names by id or number."""
        cwd, folders = _folders(params.cwd, params.additional_directories)
        asked = params.meta.get("cantrip") if isinstance(params.meta, dict) else None
        wanted = asked.get("turn") if isinstance(asked, dict) else None
        source = self._live.get(params.session_id)
        borrowed = source is None
        if source is None:
            source = await self._from_disk(params, cwd, folders)
        try:
            if wanted is None:
                turn_id: str | None = source.entity.last_turn or None
            else:
                async with source.loom_read:
                    turn_id = await anyio.to_thread.run_sync(turn_named, source.entity, wanted)
                if turn_id is None:
                    raise invalid_params(f"the session has no turn {str(wanted)[:100]!r}", "_meta.cantrip.turn")
            session = await self._forked(source, turn_id, cwd, folders, await self._sources(params), params.meta)
        finally:
            if borrowed:
                await self._end(source)
        self._introduce(session, request)
        return self._state(session, session_id=session.id)

    async def _forked(
        self,
        source: Session,
        turn_id: str | None,
        cwd: Path,
        folders: Sequence[Path],
        sources: Sequence[GateSource],
        meta: Any = None,
    ) -> Session:
        session_id = f"sess_{os.urandom(12).hex()}"
        permissions = self._permissions(session_id)
        if turn_id is None or turn_id not in source.entity.loom:
            # Nothing was said yet: the fork of nothing is a new session.
            opened = await self._in_thread(self._opening.new, session_id, cwd, folders, permissions, sources)
        else:
            async with source.loom_read:
                opened = await self._in_thread(
                    self._opening.forked, session_id, source.opened, turn_id, cwd, folders, permissions, sources
                )
            await self._living_state(source, opened, turn_id)
        return self._take(opened, permissions, source.trace, meta, sources)

    async def _living_state(self, source: Session, opened: Opened, turn_id: str) -> None:
        """A source that stands at that very turn gives its variables as they are."""
        live, entity = source.entity, opened.entity
        if entity.revive is None or live.revive is not None or live.busy or live.last_turn != turn_id:
            return
        if getattr(live, "_session", None) is None:
            return
        # What forks need is not loaded for sessions that begin.
        from cantrip_acp.forking import restore
        from cantrip_acp.loom.history import lived

        revive, entity.revive = entity.revive, None
        parts = await anyio.to_thread.run_sync(lived, entity.loom, turn_id)
        try:
            await restore(entity, turn_id, parts, "snapshot", live)
            opened.kept = "snapshot"
        except CantripError:
            await entity.discard_session()
            entity.revive = revive

    # --- what lives on disk --------------------------------------------------------------------------------------------

    async def _found(self, params: acp.LoadSession) -> Session:
        """A session that lived before, here or in another process."""
        cwd, folders = _folders(params.cwd, params.additional_directories)
        live = self._live.get(params.session_id)
        if live is not None:
            if live.running:
                raise busy(live.id)
            same = live.note.cwd == str(cwd) and live.note.directories == [str(f) for f in folders]
            same = same and list(live.sources) == list(await self._sources(params))
            if same and (live.entity.loom.location is not None or live.entity.last_turn == ""):
                return live
            if live.entity.loom.location is None:
                return live
            del self._live[params.session_id]
            await live.close()
        return await self._from_disk(params, cwd, folders)

    async def _from_disk(self, params: acp.LoadSession, cwd: Path, folders: Sequence[Path]) -> Session:
        if params.session_id in self._opening_now:
            raise busy(params.session_id)
        self._opening_now.add(params.session_id)
        try:
            note = await anyio.to_thread.run_sync(self._store.find, params.session_id)
            if note is None:
                raise unknown(params.session_id)
            permissions, sources = self._permissions(note.id), await self._sources(params)
            permissions.mode, permissions.granted = note.mode, list(note.granted)
            try:
                opened = await self._in_thread(self._opening.again, note, cwd, folders, permissions, sources)
            except UntrustedRecipe:
                assert self.connection is not None
                await self._options.trusted(self.connection, note.id, cwd, note.recipe)
                opened = await self._in_thread(self._opening.again, note, cwd, folders, permissions, sources)
            session = self._take(opened, permissions, _named(params.meta), params.meta, sources)
            from cantrip_acp.reopening import TOLD

            if opened.kept in TOLD:
                session.told.append(f"This session was opened again in a new process: {TOLD[opened.kept]}.")
            return session
        finally:
            self._opening_now.discard(params.session_id)

    async def list(self, params: acp.ListSessions, request: Request) -> acp.SessionList:
        """``session/list``"""
        if params.cwd is not None and not os.path.isabs(params.cwd):
            raise invalid_params(f"must be an absolute path, not {params.cwd[:200]!r}", "cwd")
        live = frozenset(self._live)
        try:
            page, cursor = await anyio.to_thread.run_sync(
                lambda: self._store.list(params.cwd, params.cursor, also=live)
            )
        except BadCursor as problem:
            raise invalid_params(str(problem), "cursor") from None
        listed = [
            acp.SessionInfo(
                session_id=each.note.id,
                cwd=each.note.cwd,
                additional_directories=each.note.directories or None,
                title=each.note.title,
                updated_at=each.updated_at,
            )
            for each in page
        ]
        return acp.SessionList(listed, cursor)

    async def close(self, params: acp.OneSession, request: Request) -> dict[str, Any]:
        """``session/close``: what runs is cancelled and recorded; the session stays on disk."""
        if self._waiting.pop(params.session_id, None) is not None:
            return {}
        session = self._live.get(params.session_id)
        if session is None:
            raise unknown(params.session_id)
        await self._end(session)
        return {}

    async def _end(self, session: Session) -> None:
        """Close a session; its id is free once nothing of it is left."""
        with anyio.CancelScope(shield=True):
            await session.close()
        self._live.pop(session.id, None)

    async def delete(self, params: acp.OneSession, request: Request) -> dict[str, Any]:
        """``session/delete``: twice is as good as once."""
        self._waiting.pop(params.session_id, None)
        session = self._live.get(params.session_id)
        if session is not None:
            await self._end(session)
        try:
            await anyio.to_thread.run_sync(self._store.delete, params.session_id)
        except (CantripError, OSError) as problem:
            raise RpcError(INVALID_REQUEST, f"The session cannot be deleted: {problem}") from None
        return {}

    # --- choosing ------------------------------------------------------------------------------------------------------

    def set_mode(self, params: acp.SetMode, request: Request) -> dict[str, Any]:
        """``session/set_mode``: in force when the reply comes."""
        session = self._session(params.session_id)
        self._options.set_mode(session, params.mode_id)
        request.after.append(lambda: session.show(acp.ConfigOptionsChanged(self._options.listed(session))))
        return {}

    async def set_option(self, params: acp.SetConfigOption, request: Request) -> acp.ConfigOptions:
        """``session/set_config_option``: the reply has every option."""
        session = self._session(params.session_id)
        await self._options.set(session, params.config_id, params.value)
        return acp.ConfigOptions(self._options.listed(session))

    # --- prompts -------------------------------------------------------------------------------------------------------

    def prompt(self, params: acp.Prompt, request: Request) -> Awaitable[acp.PromptResult]:
        """``session/prompt``; the session is taken before anything else is read."""
        waiting = self._waiting.get(params.session_id)
        if waiting is not None:
            return self._trusted_first(waiting, params, request)
        session = self._session(params.session_id)
        intent, context = read_prompt(params.prompt)
        command = None
        if intent.lstrip().startswith("/"):
            from cantrip_acp.acp import commands

            command = commands.named(intent)
        trace = telemetry.trace_from(params.meta if isinstance(params.meta, dict) else None, default=session.trace)
        trace = replace(trace, conversation=session.id)
        session.begin(request)
        work = session.cast(intent, context, trace) if command is None else self._answered(session, *command)
        return session.run(work, trace.trace_id)

    async def _answered(self, session: Session, command: Command, rest: str) -> acp.PromptResult:
        from cantrip_acp.acp import commands

        text = await commands.answer(session, command, rest, self._fork_of)
        session.show(acp.AgentMessageChunk(acp.TextContent(text), f"{new_id('m')}:command"))
        return acp.PromptResult("end_turn", {"cantrip": {"command": command.name}})

    async def _fork_of(self, source: Session, turn_id: str) -> str:
        """A fork that is not opened here: it waits on disk for whoever loads it."""
        if source.entity.loom.location is None:
            raise RpcError(INVALID_REQUEST, "This session's loom is in memory; only one that is kept can be forked so.")
        folders = [Path(folder) for folder in source.note.directories]
        session = await self._forked(source, turn_id, Path(source.note.cwd), folders, source.sources)
        await self._end(session)
        return session.id

    async def _trusted_first(self, waiting: Waiting, params: acp.Prompt, request: Request) -> acp.PromptResult:
        """The first prompt of a session whose recipe is not trusted: the user is asked, and then it begins."""
        assert self.connection is not None
        await self._options.trusted(self.connection, waiting.id, Path(waiting.params.cwd), None)
        if self._waiting.pop(waiting.id, None) is None:
            return await self.prompt(params, request)
        session = await self._begun(waiting.id, waiting.params, waiting.trace)
        self._introduce(session, request)
        session.show(acp.ConfigOptionsChanged(self._options.listed(session)))
        return await self.prompt(params, request)

    def cancel(self, params: acp.Cancel, request: Request) -> None:
        """``session/cancel``"""
        if params.session_id not in self._waiting:
            self._session(params.session_id).cancel()

    # --- their common ground -------------------------------------------------------------------------------------------

    def _session(self, session_id: str) -> Session:
        session = self._live.get(session_id)
        if session is None:
            if session_id in self._waiting:
                raise RpcError(
                    INVALID_REQUEST,
                    "Invalid request: the session's recipe is not trusted yet; its first prompt asks for that",
                    {"sessionId": session_id, "reason": "untrusted_recipe"},
                )
            raise unknown(session_id)
        return session

    def _permissions(self, session_id: str) -> Permissions:
        """Who is asked in a session; it is found by its id, since entities are made with their interceptors."""

        async def ask(question: Question) -> Answer:
            return await self._live[session_id].ask(question)

        def remember(granted: Granted) -> None:
            session = self._live[session_id]
            session.note.granted.append(granted)
            changes = {"permission": said(granted)}
            session.entity.loom.append(ConfigRecord(new_id("g"), session.entity.id, changes, now()))
            self._opening.keep(session.opened)

        return Permissions(ask, remember)

    async def _sources(self, params: acp.NewSession | acp.LoadSession) -> Sequence[GateSource]:
        """The MCP servers that a client names for a session; they are reached behind the reply."""
        if not params.mcp_servers:
            return ()
        from cantrip_acp.acp.servers import sources

        try:
            return await anyio.to_thread.run_sync(sources, params.mcp_servers, self._store.folder.parent)
        except CantripError as problem:
            raise RpcError(INTERNAL_ERROR, f"The session cannot be opened: {problem}") from None

    def _take(
        self,
        opened: Opened,
        permissions: Permissions,
        trace: telemetry.Trace | None,
        meta: Any,
        sources: Sequence[GateSource],
    ) -> Session:
        assert self.connection is not None
        session = Session(opened, permissions, self.connection, self.client, trace)
        session.sources = sources
        session.before = self._options.before
        session.after = self._after
        permissions.mode, permissions.granted = opened.note.mode, list(opened.note.granted)
        permissions.lend = services(session)
        opened.entity.names_requests = self.client.request_ids or (isinstance(meta, dict) and bool(meta.get(acp.EDGES)))
        self._live[session.id] = session
        return session

    def _after(self, session: Session) -> None:
        """Behind a prompt: its title is known, and the time of its last activity."""
        if session.closing:
            return
        try:
            self._opening.keep(session.opened)
        except OSError as problem:
            # The loom has it all; the note is rebuilt from it.
            log.warning("the note of session %s could not be written: %s", session.id, problem)

    def _introduce(self, session: Session, request: Request) -> None:
        """What follows the reply that names a session, which waits for nothing of it."""
        connection = session.connection
        request.after.append(lambda: _tell_commands(session))
        request.after.append(lambda: connection.beside(session.warm))

    def _state(self, session: Session, *, session_id: str | None = None) -> acp.SessionState:
        entity, opened = session.entity, session.opened
        about: dict[str, Any] = {
            "cantrip": {
                "recipe": entity.cantrip.name,
                "entity_id": entity.id,
                "loom": entity.loom.location,
                **({"turns": opened.turns, "state": opened.kept} if opened.turns else {}),
            }
        }
        if session.trace is not None:
            about["cantrip_trace_id"] = session.trace.trace_id
        return acp.SessionState(
            session_id=session_id,
            modes=modes.state(session.note.mode),
            config_options=self._options.listed(session),
            meta=about,
        )

    async def _in_thread(self, work: Callable[..., Opened], *args: Any) -> Opened:
        """What opens a session, in a thread; of a request that was cancelled meanwhile nothing is left."""
        try:
            with anyio.CancelScope(shield=True):
                opened = await anyio.to_thread.run_sync(work, *args)
        except MissingKey as missing:
            raise auth_required(missing) from None
        except UntrustedRecipe:
            raise
        except LoomLocked as problem:
            raise RpcError(INVALID_REQUEST, f"The session is in use: {problem}", {"reason": "session_in_use"}) from None
        except (CantripError, OSError) as problem:
            text = shared().diagnostic(str(problem))
            raise RpcError(
                INTERNAL_ERROR,
                f"The session cannot be opened: {text}",
                {"error": type(problem).__name__, "details": text, "where": getattr(problem, "where", None)},
            ) from None
        try:
            await anyio.lowlevel.checkpoint_if_cancelled()
        except anyio.get_cancelled_exc_class():
            opened.leave()
            if not opened.turns:
                self._store.delete(opened.note.id)
            raise
        return opened


def _folders(cwd: str, additional: Sequence[str] | None) -> tuple[Path, list[Path]]:
    return check_folder(cwd), list(
        dict.fromkeys(
            check_further(path, f"additionalDirectories[{index}]") for index, path in enumerate(additional or ())
        )
    )


def _tell_commands(session: Session) -> None:
    from cantrip_acp.acp import commands

    session.show(commands.available())


def _named(meta: Any) -> telemetry.Trace | None:
    """The trace that a request names; None where it names none."""
    trace = telemetry.trace_from(meta if isinstance(meta, dict) else None, default=_UNNAMED)
    return trace if trace is not _UNNAMED else None
