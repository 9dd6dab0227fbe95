"""Client services: routes gate calls of a session to the client's files, its terminals, and its user.

Only where the client offers the service; other gates work as usual. A gate of somebody else with the same name is not
touched.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from cantrip_acp.acp.client_services.editor_files import EditorFileGates
    from cantrip_acp.acp.sessions.session import Session
    from cantrip_acp.gates.contract import GateInvocation

_FILES = frozenset({"read_file", "write_file", "edit_file", "search"})


def gate_router(session: Session) -> Callable[[GateInvocation], GateInvocation]:
    """The function that replaces a session's calls by calls to its client."""
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
                files = EditorFileGates(buffers, (session.note.cwd, *session.note.directories))
            return files.route(invocation)
        if name == "client_terminal" and client.terminals:
            return _terminal(session, invocation)
        if name == "ask_user":
            return _question(session, invocation)
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


def _question(session: Session, invocation: GateInvocation) -> GateInvocation:
    from cantrip_acp.acp.client_services.forms import UserQuestions
    from cantrip_acp.gates.interaction.ask_user import ASK_USER

    if invocation.gate.handler is not ASK_USER.handler:
        return invocation
    ask = UserQuestions(session.connection, session.id, forms=session.client.forms).ask
    return replace(invocation, gate=replace(invocation.gate, handler=ask))
