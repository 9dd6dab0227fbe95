"""Connection context: the client and the session setup that all sessions of one connection share.

It also decides which gate calls of a session go to the client (`gate_router`): calls to the files open in the editor,
the client's terminals, and questions to the user.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import anyio.to_thread

from cantrip_acp.acp import protocol as acp
from cantrip_acp.acp.errors import auth_required, unknown_session
from cantrip_acp.acp.permissions.interceptor import Permissions
from cantrip_acp.acp.render.event_translator import notice
from cantrip_acp.acp.sessions import modes
from cantrip_acp.acp.sessions.factory import OpenedSession, SessionFactory, permission_change
from cantrip_acp.acp.sessions.session import Session
from cantrip_acp.acp.sessions.session_store import ClientPrompt, Grant, NoSession
from cantrip_acp.acp.wire.jsonrpc import INTERNAL_ERROR, INVALID_REQUEST, RpcError, invalid_params
from cantrip_acp.telemetry import tracing
from cantrip_acp.types.errors import CantripError, LoomLocked, MissingKey, UntrustedRecipe
from cantrip_acp.types.records import ConfigRecord, new_id, now

if TYPE_CHECKING:
    from collections.abc import Callable

    from cantrip_acp.acp.client_services.editor_files import EditorFileGates
    from cantrip_acp.acp.permissions.edits import Decision
    from cantrip_acp.acp.permissions.interceptor import Question
    from cantrip_acp.acp.sessions.config_options import SessionOptions
    from cantrip_acp.acp.sessions.open_sessions import OpenSessions
    from cantrip_acp.acp.sessions.session import Session
    from cantrip_acp.acp.wire.connection import Connection, Request
    from cantrip_acp.gates.contract import GateContext, GateInvocation, GateReply, GateSource
    from cantrip_acp.types.events import Event


_UNNAMED = tracing.Trace("")
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)


class ConnectionContext:
    """The client's abilities and the setup of sessions in one connection."""

    def __init__(self, factory: SessionFactory, options: SessionOptions, open_sessions: OpenSessions) -> None:
        self.client = acp.ClientAbilities()
        self.connection: Connection
        """Set before the first request is handled."""
        self.on_event: Callable[[str, Event], None] | None = None
        """Gets the session's id and each event of a cast before its updates are sent (version 2)."""
        self.on_begin: Callable[[acp.Prompt, Request], None] | None = None
        """Called when a prompt begins, which may have waited in the queue (version 2)."""
        self.on_delivered: Callable[[str, Request, str], None] | None = None
        """Gets the session's id, the request of a prompt that was sent into the running one, and its message's id (version 2)."""
        self.on_queue_command: Callable[[acp.Prompt, Request], None] | None = None
        """Called when the slash command /queue runs during another prompt (version 2)."""
        self._factory = factory
        self._store = factory.store
        self._options = options
        self._open_sessions = open_sessions
        self._told_of_servers: set[str] = set()
        """What the user was told of MCP servers of the client's settings, which are the same in each session."""

    def permissions(self, session_id: str) -> Permissions:
        """The permissions of a session. They find the session by its id, because the entity needs them before the
        session exists."""

        async def ask(question: Question) -> Decision:
            return await self._open_sessions.sessions[session_id].ask(question)

        def remember(granted: Grant) -> None:
            session = self._open_sessions.sessions[session_id]
            session.metadata.granted.append(granted)
            changes = {"permission": permission_change(granted)}
            session.entity.loom.append(ConfigRecord(new_id("g"), session.entity.id, changes, now()))
            self._factory.save_metadata(session.opened)

        return Permissions(ask, remember)

    async def sources(self, params: acp.NewSession | acp.LoadSession) -> Sequence[GateSource]:
        """The MCP servers that a client names for a session, as gate sources. They are connected after the reply."""
        if not params.mcp_servers:
            return ()
        from cantrip_acp.acp.sessions.factory import mcp_sources

        try:
            folder = self._store.folder.parent
            return await anyio.to_thread.run_sync(mcp_sources, params.mcp_servers, folder, self._told_of_servers)
        except CantripError as problem:
            raise RpcError(INTERNAL_ERROR, f"The session cannot be opened: {problem}") from None

    def add_session(
        self,
        opened: OpenedSession,
        permissions: Permissions,
        trace: tracing.Trace | None,
        meta: Any,
        sources: Sequence[GateSource],
    ) -> Session:
        """Make a session for an opened entity, and add it to the open sessions."""
        save = partial(self._factory.try_save_metadata, opened)
        session = Session(opened, permissions, self.connection, self.client, trace, save)
        if opened.metadata.queued:
            texts = "\n".join(f"- {text}" for text in opened.metadata.queued)
            session.user_notes.append(f"These prompts were waiting when the agent ended, and never started:\n{texts}")
            opened.metadata.queued = []
            save()
        session.sources = sources
        if self.on_event is not None:
            session.on_event = partial(self.on_event, session.id)
        if self.on_delivered is not None:
            session.queue.on_delivered = partial(self.on_delivered, session.id)
        session.before_cast = self._options.before_cast
        session.set_mode = self._set_mode
        session.after_prompt = self._save_after_prompt
        permissions.mode, permissions.granted = opened.metadata.mode, list(opened.metadata.granted)
        permissions.route = gate_router(session)
        if opened.mode_reason:
            session.user_notes.append(
                f"This session asks before each change and each command, because {opened.mode_reason}."
            )
        if opened.entity.checkpoints is not None:
            opened.entity.checkpoints.on_problem = partial(self._without_checkpoints, session)
        opened.entity.names_requests = self.client.request_ids or (
            isinstance(meta, dict) and bool(meta.get(acp.REQUEST_EDGES))
        )
        self._open_sessions.sessions[session.id] = session
        return session

    def _set_mode(self, session: Session, mode: str) -> None:
        """Set the mode when the client has not asked for it, and tell the client: as the mode, and as an option."""
        try:
            self._options.set_mode(session, mode)
        finally:
            session.send_now(acp.CurrentMode(session.metadata.mode))
            session.send_now(acp.ConfigOptionsChanged(self._options.option_list(session)))

    def _without_checkpoints(self, session: Session, why: str) -> None:
        """No files can be kept, so nothing could be undone: ask again before each change, and tell the user."""
        note = f"Changes of files cannot be undone in this session: {why}."
        if session.metadata.mode == modes.SANDBOXED and not session.mode_chosen:
            with contextlib.suppress(RpcError):
                # A stricter mode applies even if it cannot be recorded.
                self._set_mode(session, modes.FALLBACK)
            note += " It now asks before each change and each command."
        session.send_now(notice(note, session.client))

    def _save_after_prompt(self, session: Session) -> None:
        """Save the session's metadata after a prompt: the title and the time of the last activity."""
        if not session.closing:
            self._factory.try_save_metadata(session.opened)

    def after_reply(self, session: Session, request: Request, *, before_reply: bool = False) -> None:
        """Schedule the work that follows the reply to a request that opens a session. The reply does not wait for it.

        With ``before_reply`` the list of slash commands is sent before the reply, because the reply to ``session/load``
        must come after all updates (ACP, Session Setup).
        """
        connection = session.connection
        if before_reply:
            _send_commands(session)
        else:
            # In a task, because its imports would delay the reply that was queued.
            request.after.append(lambda: connection.start_task(partial(_send_commands_later, session)))
        request.after.append(lambda: connection.start_task(session.warm))
        if self._factory.finds_servers:
            request.after.append(lambda: connection.start_task(lambda: self._options.look_for_local_servers(session)))

    def state(self, session: Session, *, session_id: str | None = None) -> acp.SessionState:
        """The state of a session for a reply. Pass ``session_id`` if the client does not know the id yet."""
        from cantrip_acp.acp.permissions.allowed import allowed_of

        entity, opened = session.entity, session.opened
        about: dict[str, Any] = {
            "cantrip": {
                "recipe": entity.cantrip.name,
                "entity_id": entity.id,
                "loom": entity.loom.location,
                "allowed": allowed_of(entity.cantrip, entity.circle).record(),
                **({"turns": opened.turns, "state": opened.restored_state} if opened.turns else {}),
                **({"forkedFrom": opened.metadata.forked_from} if opened.metadata.forked_from is not None else {}),
            }
        }
        if session.trace is not None:
            about["cantrip_trace_id"] = session.trace.trace_id
        return acp.SessionState(
            session_id=session_id,
            modes=modes.state(session.metadata.mode),
            config_options=self._options.option_list(session),
            models=self._options.models(session),
            meta=about,
        )

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
            words = str(problem)
            if isinstance(problem, OSError) and problem.errno in _DISK_FULL:
                words += ". Free some disk space, or choose another folder with --state-dir"
            text = words
            raise RpcError(
                INTERNAL_ERROR,
                f"The session cannot be opened: {text}",
                {"error": type(problem).__name__, "details": text, "where": getattr(problem, "where", None)},
            ) from None
        try:
            await anyio.lowlevel.checkpoint_if_cancelled()
        except anyio.get_cancelled_exc_class():
            opened.release()
            if delete_if_cancelled:
                self._store.delete(opened.metadata.id)
            raise
        return opened


async def _send_commands_later(session: Session) -> None:
    await anyio.lowlevel.checkpoint()
    _send_commands(session)


def _send_commands(session: Session) -> None:
    from cantrip_acp.acp.sessions import slash_commands

    session.send_now(slash_commands.commands_update())


def read_system_prompt(params: acp.NewSession | acp.LoadSession) -> ClientPrompt | None:
    """The client's system prompt: ``systemPrompt`` of the request, or ``_meta.systemPrompt`` (a text, which replaces the
    recipe's, or ``{append: TEXT}``). Raises `RpcError` -32602 for anything that cannot be applied."""
    given, place = params.system_prompt, "systemPrompt"
    if given is not None:
        mode, texts = given.mode, [block.text if isinstance(block, acp.Text) else None for block in given.content]
    else:
        place = "_meta.systemPrompt"
        found = params.meta.get("systemPrompt") if isinstance(params.meta, dict) else None
        if found is None:
            return None
        mode = "append" if isinstance(found, dict) else "override"
        texts = [found.get("append") if isinstance(found, dict) else found]
    if mode not in ("append", "override"):
        raise invalid_params(f"must be append or override, not {mode[:100]!r}", f"{place}.mode")
    if not all(isinstance(text, str) for text in texts):
        raise invalid_params("must be text", place)
    text = "\n\n".join(map(str, texts))
    if not text.strip():
        raise invalid_params("must not be empty", place)
    return ClientPrompt("append" if mode == "append" else "override", text)


def requested_trace(meta: Any) -> tracing.Trace | None:
    """The trace that a request names in ``_meta``, or None."""
    trace = tracing.trace_from(meta if isinstance(meta, dict) else None, default=_UNNAMED)
    return trace if trace is not _UNNAMED else None


_FILES = frozenset({"read_file", "write_file", "edit_file", "search"})


def gate_router(session: Session) -> Callable[[GateInvocation], GateInvocation]:
    """Return the function that redirects gate calls of a session to its client, if the client offers the service.

    Gates of other packages with the same names are not redirected.
    """
    files: EditorFileGates | None = None
    client = session.client

    def route(invocation: GateInvocation) -> GateInvocation:
        nonlocal files
        name = invocation.gate.name
        if name in _FILES and (client.reads_files or client.writes_files):
            if files is None:
                from cantrip_acp.acp.client_services.editor_files import EditorFileGates, EditorFiles

                buffers = EditorFiles(
                    session.connection, session.id, reads=client.reads_files, writes=client.writes_files
                )

                async def was_saved(path: str, data: bytes) -> bool:
                    checkpoints = session.entity.checkpoints
                    return checkpoints is not None and await checkpoints.was_saved(path, data)

                files = EditorFileGates(buffers, (session.metadata.cwd, *session.metadata.directories), was_saved)
            return files.route(invocation)
        if name == "client_terminal" and client.terminals:
            return _terminal(session, invocation)
        if name == "ask_user":
            return _question(session, invocation)
        if "." in name and (client.urls or client.forms):
            return _with_questions(session, invocation)
        return invocation

    return route


def _terminal(session: Session, invocation: GateInvocation) -> GateInvocation:
    from cantrip_acp.acp.client_services.terminals import ClientTerminals
    from cantrip_acp.gates.interaction.client_terminal import CLIENT_TERMINAL

    if invocation.gate.handler is not CLIENT_TERMINAL.handler:
        return invocation
    terminals = ClientTerminals(session.connection, session.id)
    gate = replace(invocation.gate, handler=terminals.run, proposes=terminals.proposes)
    return replace(invocation, gate=gate)


def _with_questions(session: Session, invocation: GateInvocation) -> GateInvocation:
    """Show the questions that an MCP server asks during the call."""
    from cantrip_acp.acp.client_services.forms import SessionQuestions
    from cantrip_acp.gates.mcp.declaration import QUESTIONS

    handler = invocation.gate.handler

    async def with_questions(args: Mapping[str, Any], context: GateContext) -> GateReply:
        before = QUESTIONS.set(SessionQuestions(session.connection, session.id, session.client, context))
        try:
            reply: GateReply = await handler(args, context)
            return reply
        finally:
            QUESTIONS.reset(before)

    if getattr(handler, "__module__", "") != "cantrip_acp.gates.mcp.tools":
        return invocation
    return replace(invocation, gate=replace(invocation.gate, handler=with_questions))


def _question(session: Session, invocation: GateInvocation) -> GateInvocation:
    from cantrip_acp.acp.client_services.forms import UserQuestions
    from cantrip_acp.gates.interaction.ask_user import ASK_USER

    if invocation.gate.handler is not ASK_USER.handler:
        return invocation
    ask = UserQuestions(session.connection, session.id, forms=session.client.forms).ask
    return replace(invocation, gate=replace(invocation.gate, handler=ask))
