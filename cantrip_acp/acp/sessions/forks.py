"""The forks of a connection's sessions: ``session/fork``, and the forks that a slash command makes."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import anyio
import anyio.to_thread

from cantrip_acp.acp import protocol as acp
from cantrip_acp.acp.errors import session_busy
from cantrip_acp.acp.sessions.request_params import read_system_prompt, session_folders
from cantrip_acp.acp.sessions.session import Agent, Session
from cantrip_acp.acp.sessions.session_store import ClientPrompt, ForkedFrom
from cantrip_acp.acp.wire.connection import Request
from cantrip_acp.acp.wire.jsonrpc import INVALID_REQUEST, RpcError, invalid_params, meta_of
from cantrip_acp.types.errors import CantripError, IntentRequired, TurnNotFound
from cantrip_acp.types.records import now

if TYPE_CHECKING:
    from cantrip_acp.acp.sessions.factory import OpenedSession
    from cantrip_acp.core.history.continuation import Point
    from cantrip_acp.gates.contract import GateSource


class Sessions(Protocol):
    open: dict[str, Session]

    async def close(self, session: Session) -> None: ...


class Opener(Agent, Protocol):
    """What forks need of the agent of the connection (`acp.sessions.agent`)."""

    @property
    def sessions(self) -> Sessions: ...

    async def sources_of(self, params: acp.LoadSession) -> Sequence[GateSource]: ...

    async def from_disk(
        self, params: acp.LoadSession, cwd: Path, folders: Sequence[Path], sources: Sequence[GateSource]
    ) -> Session: ...

    async def open_in_thread(
        self, work: Callable[..., OpenedSession], *args: Any, delete_if_cancelled: bool = False
    ) -> OpenedSession: ...

    def add(self, session: Session, opened: OpenedSession, meta: Any) -> Session: ...


class Forks:
    """Makes forks of sessions that are open, or that are opened only for that."""

    def __init__(self, agent: Opener) -> None:
        self._agent = agent

    async def fork(self, params: acp.LoadSession, request: Request) -> acp.SessionState:
        """``session/fork``: fork from the last turn, or from the turn that ``_meta.cantrip.turn`` names by id or number.

        With ``_meta.cantrip.resume: true`` an empty prompt then continues the cast of that turn
        (`core.history.continuation`). With ``_meta.cantrip.restoreFiles: true`` the files are restored as they were after
        that turn; the reply says in ``_meta.cantrip.files`` what was restored, or without it which files differ.
        """
        cwd, folders = session_folders(params.cwd, params.additional_directories)
        prompt = read_system_prompt(params)
        asked = meta_of(params.meta, acp.ForkMeta, "cantrip")
        source = self._agent.sessions.open.get(params.session_id)
        if source is None or source.closing:
            source = await self._agent.from_disk(params, cwd, folders, await self._agent.sources_of(params))
            source.in_use_by_client = False
        source.fork_count += 1
        try:
            from cantrip_acp.loom.query.history import named_turn

            if asked.turn is None:
                turn_id: str | None = source.entity.last_turn or None
            else:
                async with source.loom_read:
                    entity = source.entity
                    turn_id = await anyio.to_thread.run_sync(named_turn, entity.loom, entity.last_turn, asked.turn)
                if turn_id is None and (asked.turn != 0 or source.entity.last_turn):
                    raise invalid_params(f"the session has no turn {str(asked.turn)[:100]!r}", "_meta.cantrip.turn")
            point: Point | None = None
            if asked.resume:
                point = await self._continuation_point(source, turn_id)
                turn_id = point.turn_id
            files = await self._files(source, turn_id, restore=True) if asked.restore_files else None
            if source.closing:
                raise session_busy(source.id)
            session = await self._create(
                source, turn_id, cwd, folders, await self._agent.sources_of(params), params.meta, point, prompt
            )
            if not asked.restore_files:
                # Not before: the source may be closed while its files are compared.
                files = await self._files(source, turn_id, restore=False)
        finally:
            source.fork_count -= 1
            if not source.in_use_by_client and not source.fork_count:
                # The source was opened only to fork it.
                await self._agent.sessions.close(source)
        session.after_reply(request)
        if session.metadata.title is not None:
            title = session.info()
            request.after.append(lambda: session.send_now(title))
        state = session.state(session_id=session.id)
        if files is not None and state.meta is not None:
            state.meta["cantrip"]["files"] = files
        return state

    async def _files(self, source: Session, turn_id: str | None, *, restore: bool) -> dict[str, Any] | None:
        """Restore the files of the turn that a fork starts from, or list those that differ. None if no files are kept."""
        if turn_id is None or source.entity.checkpoints is None or source.prompts.running:
            if restore:
                raise (
                    session_busy(source.id)
                    if source.prompts.running
                    else invalid_params("this session keeps no files", "_meta.cantrip.restoreFiles")
                )
            return None
        from cantrip_acp.acp.sessions.commands import file_commands

        try:
            return await file_commands.restore_to_turn(source, turn_id, dry_run=not restore, ask=False)
        except (CantripError, OSError) as problem:
            if restore:
                raise invalid_params(str(problem), "_meta.cantrip.restoreFiles") from None
            return None

    async def _continuation_point(self, source: Session, turn_id: str | None) -> Point:
        """The point from which a fork continues without a new message. Raises `RpcError` if there is no such point."""
        from cantrip_acp.core.history.continuation import point_of_entity

        try:
            async with source.loom_read:
                return await anyio.to_thread.run_sync(point_of_entity, source.entity, turn_id or "")
        except (IntentRequired, TurnNotFound) as problem:
            why = str(problem) if turn_id else "this session has no prompt yet, so there is nothing to continue"
            raise invalid_params(why, "_meta.cantrip.resume") from None

    async def _create(
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
        session = Session(self._agent, session_id, source.trace, sources)
        if turn_id is None or turn_id not in source.entity.loom:
            # The fork of a session without a prompt is a new session.
            prompt = prompt or source.metadata.system_prompt
            opened = await self._agent.open_in_thread(
                self._agent.factory.new,
                session_id,
                cwd,
                folders,
                session.permissions,
                sources,
                prompt,
                ForkedFrom(source.id, 0, now()),
                delete_if_cancelled=True,
            )
        else:
            async with source.loom_read:
                opened = await self._agent.open_in_thread(
                    self._agent.factory.fork,
                    session_id,
                    source.opened,
                    turn_id,
                    cwd,
                    folders,
                    session.permissions,
                    sources,
                    point.cast.id if point is not None else None,
                    prompt,
                    delete_if_cancelled=True,
                )
            if opened.restored.state != "none":
                # Without variables there is nothing to copy. Modules are loaded again with the next prompt.
                from cantrip_acp.core.forking.fork import copy_live_state

                if await copy_live_state(source.entity, opened.entity, turn_id):
                    opened.restored.state = "snapshot"
        from cantrip_acp.core.forking.resume import STATE_NOTES

        self._agent.add(session, opened, meta)
        if opened.restored.state == "lost":
            session.notes.user.append(f"Of this fork's Python, {STATE_NOTES['lost']}.")
        return session

    async def to_disk(self, source: Session, turn_id: str) -> str:
        """Make a fork on disk for the slash command. It is not opened here; a client can load it. Returns its id."""
        if source.entity.loom.location is None:
            raise RpcError(
                INVALID_REQUEST,
                "This session's record is in memory. Only a session with a record on disk can be forked here.",
            )
        folders = [Path(folder) for folder in source.metadata.directories]
        session = await self._create(source, turn_id, Path(source.metadata.cwd), folders, source.sources)
        await self._agent.sessions.close(session)
        return session.id
