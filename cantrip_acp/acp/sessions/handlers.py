"""Session methods: the handler of each ACP method ``session/*``, such as ``session/new`` and ``session/prompt``.

Code that reads files runs in a thread. If a request is cancelled while a session is opened, the session is closed again.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import anyio.to_thread
from msgspec.structs import replace

from cantrip_acp.acp import protocol as acp
from cantrip_acp.acp.errors import session_busy, unknown_session
from cantrip_acp.acp.login import ask_until_key_is_set
from cantrip_acp.acp.render.event_translator import notice
from cantrip_acp.acp.sessions import modes
from cantrip_acp.acp.sessions.config_options import MODEL, SessionOptions
from cantrip_acp.acp.sessions.connection_context import ConnectionContext, read_system_prompt, requested_trace
from cantrip_acp.acp.sessions.factory import OpenedSession, SessionFactory
from cantrip_acp.acp.sessions.open_sessions import OpenSessions, UntrustedSession
from cantrip_acp.acp.sessions.session import Session
from cantrip_acp.acp.sessions.session_store import BadCursor, ClientPrompt, ForkedFrom, SessionMetadata
from cantrip_acp.acp.wire.connection import Request
from cantrip_acp.acp.wire.jsonrpc import INTERNAL_ERROR, INVALID_REQUEST, RpcError, invalid_params
from cantrip_acp.files.paths import own
from cantrip_acp.telemetry import tracing
from cantrip_acp.text.logs import logger
from cantrip_acp.types.errors import CantripError, IntentRequired, LoomLocked, TurnNotFound, UntrustedRecipe
from cantrip_acp.types.records import new_id, now

if TYPE_CHECKING:
    from cantrip_acp.acp.sessions.slash_commands import Command
    from cantrip_acp.core.entity import Entity
    from cantrip_acp.core.history.continuation import Point
    from cantrip_acp.gates.contract import GateSource
    from cantrip_acp.gates.mcp.connection import Connection as McpConnection

log = logger(__name__)

_UNNAMED = tracing.Trace("")

StartPrompt = Callable[[acp.Prompt, Request], Awaitable[Any]]
"""Marks a session as busy with a prompt, and returns the work of the prompt."""

FILE_METHODS = ("changes", "undo", "redo", "restore", "keep")
"""The methods ``_cantrip/NAME`` on the files that an entity changed."""


class Sessions:
    """The handlers of the session methods, for one connection."""

    def __init__(self, factory: SessionFactory) -> None:
        self.factory = factory
        self._store = factory.store
        self._options = SessionOptions(factory)
        self._open_sessions = OpenSessions()
        self.context = ConnectionContext(factory, self._options, self._open_sessions)

    def running(self) -> list[Session]:
        """The sessions that work on a prompt."""
        return [session for session in self._open_sessions.sessions.values() if session.running]

    async def refresh_models(self, params: acp.SessionParams, request: Request) -> dict[str, Any]:
        """``_cantrip/models/refresh``: asks the server of the session's model for its models. New ones come as an update."""
        await self._options.look_for_served_models(self._open_sessions.session(params.session_id))
        return {}

    async def renew_crystals(self) -> None:
        """Use keys that were saved meanwhile in the open sessions too, from their next prompt on."""
        for session in tuple(self._open_sessions.sessions.values()):
            await self._options.renew_crystal(session)

    async def close_all(self) -> None:
        """Close every session. The sessions stay on disk."""
        async with anyio.create_task_group() as tasks:
            for session in tuple(self._open_sessions.sessions.values()):
                tasks.start_soon(session.close)

    # --- opening sessions --------------------------------------------------------------------------------------------

    async def new(self, params: acp.NewSession, request: Request) -> acp.SessionState:
        """``session/new``"""
        trace = requested_trace(params.meta)
        session_id = f"sess_{os.urandom(12).hex()}"
        try:
            begin = partial(self._create_session, session_id, params, trace)
            session = await ask_until_key_is_set(self.context.connection, self.context.client, request, begin)
        except UntrustedRecipe as problem:
            self._open_sessions.untrusted[session_id] = UntrustedSession(session_id, params, trace)
            about = {"untrusted": str(problem)}
            return acp.SessionState(session_id=session_id, modes=modes.state(modes.FALLBACK), meta={"cantrip": about})
        self.context.after_reply(session, request)
        return self.context.state(session, session_id=session_id)

    async def _create_session(self, session_id: str, params: acp.NewSession, trace: tracing.Trace | None) -> Session:
        cwd, folders = _folders(params.cwd, params.additional_directories)
        permissions = self.context.permissions(session_id)
        prompt = read_system_prompt(params)
        sources = await self.context.sources(params)
        opened = await self.context.open_in_thread(
            self.factory.new, session_id, cwd, folders, permissions, sources, prompt, delete_if_cancelled=True
        )
        return self.context.add_session(opened, permissions, trace, params.meta, sources)

    def load(self, params: acp.LoadSession, request: Request) -> Awaitable[acp.SessionState]:
        """``session/load``: sends the whole history before the reply."""
        self._open_sessions.loading[params.session_id] += 1
        return self._while_loading(params.session_id, self._load(params, request))

    async def _while_loading(self, session_id: str, work: Awaitable[acp.SessionState]) -> acp.SessionState:
        """Await the work of a load request, then no longer count the session as being loaded."""
        try:
            return await work
        finally:
            self._open_sessions.loading[session_id] -= 1
            if not self._open_sessions.loading[session_id]:
                del self._open_sessions.loading[session_id]

    async def _load(self, params: acp.LoadSession, request: Request) -> acp.SessionState:
        session = await self._find_session(params)
        await session.replay()
        self.context.after_reply(session, request, before_reply=True)
        state = self.context.state(session)
        if not session.running and state.meta is not None:
            reason = await session.unfinished_reason()
            if reason is not None:
                state.meta["cantrip"]["incomplete"] = reason
        return state

    def resume(self, params: acp.LoadSession, request: Request) -> Awaitable[acp.SessionState]:
        """``session/resume``: like `load`, but the history is not sent."""
        self._open_sessions.loading[params.session_id] += 1
        return self._while_loading(params.session_id, self._resume(params, request))

    async def _resume(self, params: acp.LoadSession, request: Request) -> acp.SessionState:
        session = await self._find_session(params)
        session.opened.history = None
        self.context.after_reply(session, request)
        return self.context.state(session)

    async def fork(self, params: acp.LoadSession, request: Request) -> acp.SessionState:
        """``session/fork``: fork from the last turn, or from the turn that ``_meta.cantrip.turn`` names by id or number.

        With ``_meta.cantrip.resume: true`` an empty prompt then continues the cast of that turn
        (`core.history.continuation`). With ``_meta.cantrip.restoreFiles: true`` the files are restored as they were after
        that turn; the reply says in ``_meta.cantrip.files`` what was restored, or without it which files differ.
        """
        cwd, folders = _folders(params.cwd, params.additional_directories)
        prompt = read_system_prompt(params)
        asked = params.meta.get("cantrip") if isinstance(params.meta, dict) else None
        wanted = asked.get("turn") if isinstance(asked, dict) else None
        resume = asked.get("resume", False) if isinstance(asked, dict) else False
        restores = asked.get("restoreFiles", False) if isinstance(asked, dict) else False
        for name, flag in (("resume", resume), ("restoreFiles", restores)):
            if not isinstance(flag, bool):
                raise invalid_params(f"{name} must be true or false, not {str(flag)[:100]!r}", f"_meta.cantrip.{name}")
        source = self._open_sessions.sessions.get(params.session_id)
        if source is None or source.closing:
            source = await self._from_disk(params, cwd, folders, await self.context.sources(params))
            source.in_use_by_client = False
        source.fork_count += 1
        try:
            from cantrip_acp.loom.query.history import named_turn

            if wanted is None:
                turn_id: str | None = source.entity.last_turn or None
            else:
                async with source.loom_read:
                    entity = source.entity
                    turn_id = await anyio.to_thread.run_sync(named_turn, entity.loom, entity.last_turn, wanted)
                if turn_id is None and (wanted != 0 or isinstance(wanted, bool) or source.entity.last_turn):
                    raise invalid_params(f"the session has no turn {str(wanted)[:100]!r}", "_meta.cantrip.turn")
            point: Point | None = None
            if resume:
                point = await self._continuation_point(source, turn_id)
                turn_id = point.turn_id
            files = await self._files_of_fork(source, turn_id, restore=True) if restores else None
            if source.closing:
                raise session_busy(source.id)
            session = await self._create_fork(
                source, turn_id, cwd, folders, await self.context.sources(params), params.meta, point, prompt
            )
            if not restores:
                # Not before: the source may be closed while its files are compared.
                files = await self._files_of_fork(source, turn_id, restore=False)
        finally:
            source.fork_count -= 1
            if not source.in_use_by_client and not source.fork_count:
                # The source was opened only to fork it.
                await self._open_sessions.close(source)
        self.context.after_reply(session, request)
        if session.metadata.title is not None:
            title = session.info()
            request.after.append(lambda: session.send_now(title))
        state = self.context.state(session, session_id=session.id)
        if files is not None and state.meta is not None:
            state.meta["cantrip"]["files"] = files
        return state

    async def _files_of_fork(self, source: Session, turn_id: str | None, *, restore: bool) -> dict[str, Any] | None:
        """Restore the files of the turn that a fork starts from, or say which differ from it. None if none are kept."""
        if turn_id is None or source.entity.checkpoints is None or source.running:
            if restore:
                raise (
                    session_busy(source.id)
                    if source.running
                    else invalid_params("this session keeps no files", "_meta.cantrip.restoreFiles")
                )
            return None
        from cantrip_acp.acp.sessions import file_commands

        try:
            return await file_commands.restore_to_turn(source, turn_id, dry_run=not restore, ask=False)
        except (CantripError, OSError) as problem:
            if restore:
                raise invalid_params(str(problem), "_meta.cantrip.restoreFiles") from None
            return None

    async def _continuation_point(self, source: Session, turn_id: str | None) -> Point:
        """The point from which a fork continues without a new message. Raises `RpcError` if there is no such point."""
        try:
            async with source.loom_read:
                return await anyio.to_thread.run_sync(self._point_of, source.entity, turn_id or "")
        except (IntentRequired, TurnNotFound) as problem:
            why = str(problem) if turn_id else "this session has no prompt yet, so there is nothing to continue"
            raise invalid_params(why, "_meta.cantrip.resume") from None

    @staticmethod
    def _point_of(entity: Entity, turn_id: str) -> Point:
        from cantrip_acp.core.history.continuation import find_point
        from cantrip_acp.loom.query.history import first_cast

        if turn_id not in entity.loom:
            return find_point(entity.loom, turn_id)
        return find_point(entity.loom, turn_id, first_cast(entity.loom, entity.id, entity.last_turn, turn_id))

    async def _create_fork(
        self,
        source: Session,
        turn_id: str | None,
        cwd: Path,
        folders: Sequence[Path],
        sources: Sequence[GateSource],
        meta: Any = None,
        point: Point | None = None,
        prompt: ClientPrompt | None = None,
    ) -> Session:
        session_id = f"sess_{os.urandom(12).hex()}"
        permissions = self.context.permissions(session_id)
        if turn_id is None or turn_id not in source.entity.loom:
            # The fork of a session without a prompt is a new session.
            prompt = prompt or source.metadata.system_prompt
            opened = await self.context.open_in_thread(
                self.factory.new,
                session_id,
                cwd,
                folders,
                permissions,
                sources,
                prompt,
                ForkedFrom(source.id, 0, now()),
                delete_if_cancelled=True,
            )
        else:
            async with source.loom_read:
                opened = await self.context.open_in_thread(
                    self.factory.fork,
                    session_id,
                    source.opened,
                    turn_id,
                    cwd,
                    folders,
                    permissions,
                    sources,
                    point.cast.id if point is not None else None,
                    prompt,
                    delete_if_cancelled=True,
                )
            await self._copy_live_state(source, opened, turn_id)
        from cantrip_acp.core.forking.resume import STATE_NOTES

        session = self.context.add_session(opened, permissions, source.trace, meta, sources)
        if opened.restored_state == "lost":
            session.user_notes.append(f"Of this fork's Python, {STATE_NOTES['lost']}.")
        return session

    async def _copy_live_state(self, source: Session, opened: OpenedSession, turn_id: str) -> None:
        """Copy the variables of the running source session into the fork, if the source is exactly at the fork's turn."""
        live, entity = source.entity, opened.entity
        if (
            entity.medium_session.pending_restore is None
            or live.medium_session.pending_restore is not None
            or live.busy
            or live.last_turn != turn_id
        ):
            return
        if not live.medium_session.is_open or opened.restored_state == "none":
            # Without variables there is nothing to copy. Modules are loaded again with the next prompt.
            return
        # Imported here because only forks need these modules.
        from cantrip_acp.core.forking.fork import restore
        from cantrip_acp.loom.query.history import casts_of

        restore_later, entity.medium_session.pending_restore = entity.medium_session.pending_restore, None
        parts = await anyio.to_thread.run_sync(casts_of, entity.loom, turn_id)
        try:
            await restore(entity, turn_id, parts, "snapshot", live)
            opened.restored_state = "snapshot"
        except CantripError:
            await entity.medium_session.discard()
            entity.medium_session.pending_restore = restore_later

    # --- sessions on disk --------------------------------------------------------------------------------------------

    async def _find_session(self, params: acp.LoadSession) -> Session:
        """Find an existing session: one that is open in this connection, or one on disk."""
        cwd, folders = _folders(params.cwd, params.additional_directories)
        sources = await self.context.sources(params)
        while (live := self._open_sessions.sessions.get(params.session_id)) is not None:
            if live.closing:
                await self._open_sessions.close(live)
                continue
            if live.running:
                raise session_busy(live.id)
            check_same_prompt(params, live.metadata)
            same = live.metadata.cwd == str(cwd) and live.metadata.directories == [str(f) for f in folders]
            if live.entity.loom.location is None or (same and list(live.sources) == list(sources)):
                live.in_use_by_client = True
                return live
            await self._open_sessions.close(live)
        return await self._from_disk(params, cwd, folders, sources)

    async def _from_disk(
        self, params: acp.LoadSession, cwd: Path, folders: Sequence[Path], sources: Sequence[GateSource]
    ) -> Session:
        return await self._open_sessions.open(
            params.session_id, partial(self._load_session, params, cwd, folders, sources)
        )

    async def _load_session(
        self, params: acp.LoadSession, cwd: Path, folders: Sequence[Path], sources: Sequence[GateSource]
    ) -> Session:
        metadata = await anyio.to_thread.run_sync(self._store.find, params.session_id)
        if metadata is None:
            raise unknown_session(params.session_id)
        check_same_prompt(params, metadata)
        permissions = self.context.permissions(metadata.id)
        permissions.mode, permissions.granted = metadata.mode, list(metadata.granted)
        try:
            opened = await self.context.open_in_thread(self.factory.load, metadata, cwd, folders, permissions, sources)
        except UntrustedRecipe:
            await self._options.ask_for_trust(self.context.connection, metadata.id, cwd, metadata.recipe)
            opened = await self.context.open_in_thread(self.factory.load, metadata, cwd, folders, permissions, sources)
        from cantrip_acp.core.forking.resume import STATE_NOTES

        session = self.context.add_session(opened, permissions, requested_trace(params.meta), params.meta, sources)
        if opened.restored_state in STATE_NOTES:
            session.entity_notes.append(
                f"This session was opened again in a new process: {STATE_NOTES[opened.restored_state]}."
            )
        if opened.restored_state == "lost":
            session.user_notes.append(f"This session was opened again: {STATE_NOTES['lost']}.")
        if opened.definition_changes:
            told = ", ".join(opened.definition_changes)
            session.user_notes.append(
                f"The definition of this session has changed since its last answer ({told}). The session goes on as a fork of "
                "that answer, with the definition as it is now; the earlier turns keep theirs in the record."
            )
            session.entity_notes.append(
                f"Your definition has changed since your last answer ({told}). What you were told about it before may no "
                "longer hold."
            )
        if opened.dropped_choice:
            crystal = opened.entity.crystal
            session.user_notes.append(
                f"The model that was chosen in this session is no longer available: "
                f"{opened.dropped_choice}. The session now uses {crystal.name}:{crystal.model}, the "
                "model of the recipe."
            )
        return session

    async def list(self, params: acp.ListSessions, request: Request) -> acp.SessionList:
        """``session/list``"""
        if params.cwd is not None and not os.path.isabs(params.cwd):
            raise invalid_params(f"must be an absolute path, not {params.cwd[:200]!r}", "cwd")
        live = frozenset(self._open_sessions.sessions)
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
        if not await self._open_sessions.close_id(params.session_id):
            raise unknown_session(params.session_id)
        return {}

    async def next_query(self, params: acp.SessionParams, request: Request) -> dict[str, Any]:
        """``_cantrip/context``: what the next query of a session will contain, by source, in tokens and money."""
        session = self._open_sessions.sessions.get(params.session_id)
        if session is None:
            raise unknown_session(params.session_id)
        from cantrip_acp.acp.sessions.knowledge_commands import context_data

        return await context_data(session)

    async def delete(self, params: acp.SessionParams, request: Request) -> dict[str, Any]:
        """``session/delete``: deletes a session. It is not an error if the session does not exist."""
        async with self._open_sessions.deleting(params.session_id):
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
            raise invalid_params("a title needs a readable character", "title")
        session = self._open_sessions.sessions.get(params.session_id)
        try:
            if session is not None and not session.closing:
                self._options.set_title(session, title)
                request.after.append(lambda: session.send_now(session.info()))
            elif not await anyio.to_thread.run_sync(self._store.set_title, params.session_id, title):
                raise unknown_session(params.session_id)
        except LoomLocked as problem:
            raise RpcError(INVALID_REQUEST, f"The session is in use: {problem}", {"reason": "session_in_use"}) from None
        except (CantripError, OSError) as problem:
            text = str(problem)
            raise RpcError(INTERNAL_ERROR, f"The title cannot be saved: {text}", {"details": text}) from None
        return acp.StoredTitle(title)

    # --- options -----------------------------------------------------------------------------------------------------

    def set_mode(self, params: acp.SetMode, request: Request) -> dict[str, Any]:
        """``session/set_mode``: sets the mode at once, also for a running prompt."""
        session = self._open_sessions.session(params.session_id)
        self._options.set_mode(session, params.mode_id)
        session.mode_chosen = True
        request.after.append(lambda: session.send_now(acp.ConfigOptionsChanged(self._options.option_list(session))))
        return {}

    async def set_option(self, params: acp.SetConfigOption, request: Request) -> acp.ConfigOptions:
        """``session/set_config_option``: sets an option. The reply lists every option."""
        session = self._open_sessions.session(params.session_id)
        await self._options.set(session, params.config_id, params.value)
        return acp.ConfigOptions(self._options.option_list(session))

    async def set_model(self, params: acp.SetModel, request: Request) -> dict[str, Any]:
        """``session/set_model``: sets the option `model`, for clients that do not read the options."""
        session = self._open_sessions.session(params.session_id)
        await self._options.set(session, MODEL, params.model_id)
        request.after.append(lambda: session.send_now(acp.ConfigOptionsChanged(self._options.option_list(session))))
        return {}

    # --- MCP servers -------------------------------------------------------------------------------------------------

    def mcp_list(self, params: acp.SessionParams, request: Request) -> dict[str, Any]:
        """``_cantrip/mcp/list``: the MCP servers of a session, of its recipe and of the client, with their state and tools.

        A tool is ``usable`` if its gate is in the session. A tool that a server has only since a restart is not: a session
        gets its gates when it is opened.
        """
        return {"servers": [status for status, _ in self._mcp_servers(params.session_id)]}

    async def mcp_restart(self, params: acp.McpRestart, request: Request) -> dict[str, Any]:
        """``_cantrip/mcp/restart``: restarts one server. The reply lists all servers, also if this one failed."""
        session = self._open_sessions.session(params.session_id)
        servers = self._mcp_servers(params.session_id)
        if not 0 <= params.server < len(servers):
            raise invalid_params(
                f"there is no MCP server {params.server}: the session has {len(servers)}, counted from 0", "server"
            )
        connection = servers[params.server][1]
        try:
            if connection is None:
                await session.install_servers()
                await session.entity.connect_sources()
            else:
                await connection.restart()
        except CantripError as problem:
            # The list says why.
            log.info("an MCP server could not be restarted: %s", problem)
        return self.mcp_list(acp.SessionParams(session_id=params.session_id), request)

    def _mcp_servers(self, session_id: str) -> Sequence[tuple[dict[str, Any], McpConnection | None]]:
        """Each MCP server's data for the client, without secrets, and its connection, or None before it is opened."""
        from cantrip_acp.gates.mcp.servers import McpServers, OpenServers

        session = self._open_sessions.session(session_id)
        gates = {gate.name for gate in session.entity.cantrip.circle.declared_gates}
        found = []
        for source, opened in session.entity.sources:
            if not isinstance(source, McpServers):
                continue
            for index, server in enumerate(source.servers):
                about: dict[str, Any] = {"state": "not_started", "error": "", "output": "", "tools": []}
                connection: McpConnection | None = None
                if isinstance(opened, OpenServers):
                    about = opened.status(index)
                    connection = opened.connections[index] if opened.connections else None
                    for tool in about["tools"]:
                        tool["usable"] = tool["gate"] in gates
                about |= {**server.record(), "origin": "client" if source.from_client else "recipe"}
                found.append((about, connection))
        return found

    # --- files -------------------------------------------------------------------------------------------------------

    async def files(self, name: str, params: acp.FileRequest, request: Request) -> dict[str, Any]:
        """``_cantrip/changes``, ``undo``, ``redo``, ``restore`` and ``keep``: extensions of ACP (docs/sessions.md)."""
        from cantrip_acp.acp.sessions import file_commands

        session = self._open_sessions.session(params.session_id)
        work: dict[str, Any] = {
            "changes": file_commands.changes_data,
            "undo": file_commands.undo_data,
            "redo": file_commands.redo_data,
            "restore": file_commands.restore_data,
            "keep": file_commands.keep_data,
        }
        try:
            found: dict[str, Any] = await work[name](session, params)
        except CantripError as problem:
            raise RpcError(INVALID_REQUEST, str(problem), {"reason": "files"}) from None
        return found

    # --- prompts -------------------------------------------------------------------------------------------------------

    def prompt(self, params: acp.Prompt, request: Request) -> Awaitable[acp.PromptResult]:
        """``session/prompt``: marks the session as busy at once, and returns the work of the prompt.

        A prompt during another one waits in the session's queue if the client asks for that.
        """
        waiting = self._open_sessions.untrusted.get(params.session_id)
        if waiting is not None:
            return self._ask_for_trust(waiting, params, request)
        session = self._open_sessions.session(params.session_id)
        if session.running and (queue_command := self._queue_command(params)) is not None:
            if self.context.on_queue_command is not None:
                self.context.on_queue_command(params, request)
            return self._run_command(session, *queue_command)
        if session.running and (session.client.queues_prompts or acp.asks_for_queue(params.meta)):
            return session.queue.add(params, request, partial(self._begin_prompt, session))
        return self._begin_prompt(session, params, request)

    @staticmethod
    def _queue_command(params: acp.Prompt) -> tuple[Command, str] | None:
        """The slash command for the queue, which works while a prompt runs. None for any other prompt."""
        first = params.prompt[0] if params.prompt else None
        if not isinstance(first, acp.Text) or not first.text.lstrip().startswith("/queue"):
            return None
        from cantrip_acp.acp.sessions import slash_commands
        from cantrip_acp.acp.sessions.prompt_content import read_prompt

        found = slash_commands.parse_command(read_prompt(params.prompt)[0])
        return found if found is not None and found[0].name == slash_commands.QUEUE else None

    def _begin_prompt(self, session: Session, params: acp.Prompt, request: Request) -> Awaitable[acp.PromptResult]:
        from cantrip_acp.acp.sessions.prompt_content import read_prompt

        # An empty prompt continues without a new message.
        intent, context = read_prompt(params.prompt) if params.prompt else (None, ())
        command = None
        if intent is not None and intent.lstrip().startswith("/"):
            from cantrip_acp.acp.sessions import slash_commands

            command = slash_commands.parse_command(intent)
        trace = tracing.trace_from(params.meta if isinstance(params.meta, dict) else None, default=session.trace)
        trace = replace(trace, conversation=session.id)
        session.begin(request)
        if self.context.on_begin is not None:
            self.context.on_begin(params, request)
        session.in_use_by_client = True
        work = session.cast(intent, context, trace) if command is None else self._run_command(session, *command)
        return session.run(work, trace)

    async def _run_command(self, session: Session, command: Command, rest: str) -> acp.PromptResult:
        from cantrip_acp.acp.sessions import slash_commands

        text = await slash_commands.run_command(session, command, rest, self._fork_to_disk)
        if text:
            session.send_now(acp.AgentMessageChunk(acp.TextContent(text), f"{new_id('m')}:command"))
        return acp.PromptResult("end_turn", {"cantrip": {"command": command.name}})

    async def _fork_to_disk(self, source: Session, turn_id: str) -> str:
        """Make a fork on disk for the slash command. It is not opened here; a client can load it. Returns its id."""
        if source.entity.loom.location is None:
            raise RpcError(
                INVALID_REQUEST,
                "This session's record is in memory. Only a session with a record on disk can be forked here.",
            )
        folders = [Path(folder) for folder in source.metadata.directories]
        session = await self._create_fork(source, turn_id, Path(source.metadata.cwd), folders, source.sources)
        await self._open_sessions.close(session)
        return session.id

    async def _ask_for_trust(self, waiting: UntrustedSession, params: acp.Prompt, request: Request) -> acp.PromptResult:
        """Handle a prompt to a session with an untrusted recipe: ask the user for trust, then open the session."""
        if waiting.running:
            raise session_busy(waiting.id)
        with anyio.CancelScope() as scope:
            waiting.trust_question = scope
            try:
                await self._options.ask_for_trust(self.context.connection, waiting.id, Path(waiting.params.cwd), None)
            finally:
                waiting.trust_question = None
        if scope.cancelled_caught:
            return acp.PromptResult("cancelled")
        if self._open_sessions.untrusted.pop(waiting.id, None) is None:
            return await self.prompt(params, request)
        begin = partial(self._create_session, waiting.id, waiting.params, waiting.trace)
        session = await self._open_sessions.open(waiting.id, begin)
        self.context.after_reply(session, request, before_reply=True)
        session.send_now(acp.ConfigOptionsChanged(self._options.option_list(session)))
        if session.metadata.mode != modes.FALLBACK:
            session.send_now(acp.CurrentMode(session.metadata.mode))
        return await self.prompt(params, request)

    def cancel(self, params: acp.Cancel, request: Request) -> None:
        """``session/cancel``"""
        waiting = self._open_sessions.untrusted.get(params.session_id)
        # A closing session is already cancelled.
        closing = self._open_sessions.sessions.get(params.session_id)
        found = waiting or closing or self._open_sessions.session(params.session_id)
        if isinstance(found, Session):
            found.queue.cancel_all()
        found.cancel()

    # --- messages for a running prompt, and waiting prompts ------------------------------------------------------------

    async def steer(self, params: acp.Prompt, request: Request, start: StartPrompt | None = None) -> dict[str, Any]:
        """``_session/steering``: gives the entity a message before its next query.

        If no prompt runs, the message starts one. With ``_meta.steering.idleBehavior: "promptRequired"`` nothing happens
        then, and the client sends it as a prompt. That request is the one to wait for and to cancel. ``start`` starts a
        prompt in another version of the protocol.
        """
        session = self._open_sessions.session(params.session_id)
        asked = params.meta.get("steering") if isinstance(params.meta, dict) else None
        behaviour = asked.get("idleBehavior") if isinstance(asked, dict) else None
        if behaviour not in (None, "promptRequired"):
            raise invalid_params(
                f"is 'promptRequired' or absent, not {str(behaviour)[:100]!r}", "_meta.steering.idleBehavior"
            )
        if await session.steer(params.prompt):
            return {"outcome": "injected"}
        if behaviour is not None:
            return {"outcome": "promptRequired", "reason": "noRunningTurn"}
        work = (start or partial(self._begin_prompt, session))(params, Request(request.method, None))

        async def run() -> None:
            try:
                await work
            except RpcError as problem:
                # No request waits for this prompt, so the user reads the failure.
                session.send_now(notice(problem.message, session.client))

        session.connection.start_task(run)
        return {"outcome": "startedNewTurn"}

    def cancel_tool_call(self, params: acp.CancelToolCall, request: Request) -> dict[str, Any]:
        """``_cantrip/tool_call/cancel``: stops one call; the prompt goes on. An update of the call follows when it has ended.

        Raises `RpcError` -32602 if no call with this id runs.
        """
        session = self._open_sessions.session(params.session_id)
        if not session.entity.stop_call(params.tool_call_id):
            raise invalid_params(f"toolCallId: no call {params.tool_call_id[:100]!r} runs now")
        return {}

    def queue_list(self, params: acp.SessionParams, request: Request) -> acp.Queue:
        """``_cantrip/queue/list``"""
        return self._open_sessions.session(params.session_id).queue.state()

    def queue_edit(self, params: acp.QueueEdit, request: Request) -> acp.Queue:
        """``_cantrip/queue/edit``"""
        return self._open_sessions.session(params.session_id).queue.edit(params.id, params.prompt)

    def queue_remove(self, params: acp.QueueEntry, request: Request) -> acp.Queue:
        """``_cantrip/queue/remove``: the removed prompt is answered as cancelled."""
        return self._open_sessions.session(params.session_id).queue.remove(params.id)

    async def queue_send_now(self, params: acp.QueueEntry, request: Request) -> acp.Queue:
        """``_cantrip/queue/send_now``: gives a waiting prompt to the entity before its next query."""
        return await self._open_sessions.session(params.session_id).queue.send_now(params.id)


def check_same_prompt(params: acp.LoadSession, metadata: SessionMetadata) -> None:
    """Check that a request does not change the system prompt of an existing session. Raises `RpcError` -32602."""
    prompt = read_system_prompt(params)
    if prompt is not None and prompt != metadata.system_prompt:
        raise invalid_params(
            "differs from the system prompt of this session, which never changes; fork the session with the new one",
            "systemPrompt",
        )


def _folders(cwd: str, additional: Sequence[str] | None) -> tuple[Path, list[Path]]:
    return check_folder(cwd), list(
        dict.fromkeys(
            check_additional_folder(path, f"additionalDirectories[{index}]")
            for index, path in enumerate(additional or ())
        )
    )


_SYSTEM = ("/proc", "/sys", "/dev")


def check_additional_folder(path: str, place: str) -> Path:
    """Check an additional folder of a session. Raises `RpcError` -32602 if it is missing or must not be shared.

    A folder above this program's own folders is allowed, because gates and commands cannot reach those.
    """
    folder = check_folder(path, place)
    real = os.path.realpath(folder)
    states, config = own()
    if real == "/":
        raise invalid_params("is the whole file system; give the folders that the session needs", place)
    if any(real == system or real.startswith(f"{system}/") for system in _SYSTEM):
        raise invalid_params(f"is a folder of the kernel, not of files: {path[:200]}", place)
    if any(real == ours or real.startswith(f"{ours}/") for ours in (*states, config)):
        raise invalid_params(
            f"contains this agent's own settings or sessions, which an agent must not change: {path[:200]}. If you want to work "
            "on it, open it as the folder of a session",
            place,
        )
    return folder


def check_folder(cwd: str, place: str = "cwd") -> Path:
    """Check a folder of a session. Raises `RpcError` -32602 if it is not an accessible folder."""

    def refuse(problem: str) -> RpcError:
        return invalid_params(problem, place)

    if not os.path.isabs(cwd):
        raise refuse(f"must be an absolute path, not {cwd[:200]!r}")
    try:
        os.stat(cwd)
        if not os.path.isdir(cwd):
            raise refuse(f"is a file, not a folder: {cwd}")
        # Mode bits do not show everything (access lists, mounts, namespaces), so try to list the folder.
        with os.scandir(cwd):
            pass
    except FileNotFoundError:
        raise refuse(f"no such folder: {cwd}") from None
    except NotADirectoryError:
        raise refuse(f"a part of the path is not a folder: {cwd}") from None
    except PermissionError:
        raise refuse(f"not readable for this user: {cwd}") from None
    except (OSError, ValueError) as problem:
        raise refuse(f"cannot be used ({problem}): {cwd[:200]!r}") from None
    if not os.access(cwd, os.X_OK):
        raise refuse(f"not searchable for this user: {cwd}")
    return Path(cwd)
