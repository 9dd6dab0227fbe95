"""Decides which gate calls of a session go to the client: calls to the files open in the editor, the client's terminals, and
questions to the user."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cantrip_acp.acp.client_services.editor_files import EditorFileGates
    from cantrip_acp.acp.sessions.session_interface import OpenSession
    from cantrip_acp.gates.contract import GateContext, GateInvocation, GateReply

_FILES = frozenset({"read_file", "write_file", "edit_file", "search"})


class GateRouter:
    """Redirects gate calls of a session to its client, if the client offers the service.

    Gates of other packages with the same names are not redirected.
    """

    def __init__(self, session: OpenSession) -> None:
        self._session = session
        self._files: EditorFileGates | None = None

    def __call__(self, invocation: GateInvocation) -> GateInvocation:
        session, name = self._session, invocation.gate.name
        client = session.client
        if name in _FILES and (client.reads_files or client.writes_files):
            if self._files is None:
                self._files = self._file_gates()
            return self._files.route(invocation)
        if name == "client_terminal" and client.terminals:
            return _terminal(session, invocation)
        if name == "ask_user":
            return _question(session, invocation)
        if "." in name and (client.urls or client.forms):
            return _with_questions(session, invocation)
        return invocation

    def _file_gates(self) -> EditorFileGates:
        from cantrip_acp.acp.client_services.editor_files import EditorFileGates, EditorFiles

        session = self._session
        reads, writes = session.client.reads_files, session.client.writes_files
        buffers = EditorFiles(session.connection, session.id, reads=reads, writes=writes)

        async def was_saved(path: str, data: bytes) -> bool:
            checkpoints = session.entity.checkpoints
            return checkpoints is not None and await checkpoints.was_saved(path, data)

        return EditorFileGates(buffers, (session.metadata.cwd, *session.metadata.directories), was_saved)


def _terminal(session: OpenSession, invocation: GateInvocation) -> GateInvocation:
    from cantrip_acp.acp.client_services.terminals import ClientTerminals
    from cantrip_acp.gates.interaction.client_terminal import CLIENT_TERMINAL

    if invocation.gate.handler is not CLIENT_TERMINAL.handler:
        return invocation
    terminals = ClientTerminals(session.connection, session.id)
    gate = replace(invocation.gate, handler=terminals.run, proposes=terminals.proposes)
    return replace(invocation, gate=gate)


def _with_questions(session: OpenSession, invocation: GateInvocation) -> GateInvocation:
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

    if handler.__module__ != "cantrip_acp.gates.mcp.tools":
        return invocation
    return replace(invocation, gate=replace(invocation.gate, handler=with_questions))


def _question(session: OpenSession, invocation: GateInvocation) -> GateInvocation:
    from cantrip_acp.acp.client_services.forms import UserQuestions
    from cantrip_acp.gates.interaction.ask_user import ASK_USER

    if invocation.gate.handler is not ASK_USER.handler:
        return invocation
    ask = UserQuestions(session.connection, session.id, forms=session.client.forms).ask
    return replace(invocation, gate=replace(invocation.gate, handler=ask))
