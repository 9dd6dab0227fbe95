"""The methods about one open session that only read or set something of it: options, MCP servers, files, the queue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cantrip_acp.acp import protocol as acp
from cantrip_acp.acp.sessions.options.config_options import MODEL
from cantrip_acp.acp.wire.jsonrpc import INVALID_REQUEST, RpcError, invalid_params
from cantrip_acp.gates.services import BY_USER
from cantrip_acp.text.logs import logger
from cantrip_acp.types.errors import CantripError

if TYPE_CHECKING:
    from cantrip_acp.acp.sessions.session import Session
    from cantrip_acp.acp.wire.connection import Request
    from cantrip_acp.gates.mcp.connection import Connection as McpConnection
    from cantrip_acp.gates.services import Services

log = logger(__name__)

FILE_METHODS = ("changes", "undo", "redo", "restore", "keep")
"""The methods ``_cantrip/NAME`` on the files that an entity changed."""


# --- options


def set_mode(session: Session, params: acp.SetMode, request: Request) -> dict[str, Any]:
    """``session/set_mode``: sets the mode at once, also for a running prompt."""
    session.options.set_mode(params.mode_id)
    session.mode_chosen = True
    request.after.append(lambda: session.send_now(acp.ConfigOptionsChanged(session.options.listed())))
    return {}


async def set_option(session: Session, params: acp.SetConfigOption, request: Request) -> acp.ConfigOptions:
    """``session/set_config_option``: sets an option. The reply lists every option."""
    await session.options.set(params.config_id, params.value)
    return acp.ConfigOptions(session.options.listed())


async def set_model(session: Session, params: acp.SetModel, request: Request) -> dict[str, Any]:
    """``session/set_model``: sets the option `model`, for clients that do not read the options."""
    await session.options.set(MODEL, params.model_id)
    request.after.append(lambda: session.send_now(acp.ConfigOptionsChanged(session.options.listed())))
    return {}


async def refresh_models(session: Session, params: acp.SessionParams, request: Request) -> dict[str, Any]:
    """``_cantrip/models/refresh``: asks the server of the session's model for its models. New ones come as an update."""
    await session.options.look_for_served_models()
    return {}


async def next_query(session: Session, params: acp.SessionParams, request: Request) -> dict[str, Any]:
    """``_cantrip/context``: what the next query of a session will contain, by source, in tokens and money."""
    from cantrip_acp.acp.sessions.commands.knowledge_commands import context_data

    return await context_data(session)


# --- MCP servers


def mcp_list(session: Session, params: acp.SessionParams, request: Request) -> dict[str, Any]:
    """``_cantrip/mcp/list``: the MCP servers of a session, of its recipe and of the client, with their state and tools.

    A tool is ``usable`` if its gate is in the session. A tool that a server has only since a restart is not: a session
    gets its gates when it is opened.
    """
    return {"servers": [status for status, _ in _mcp_servers(session)]}


async def mcp_restart(session: Session, params: acp.McpRestart, request: Request) -> dict[str, Any]:
    """``_cantrip/mcp/restart``: restarts one server. The reply lists all servers, also if this one failed."""
    servers = _mcp_servers(session)
    if not 0 <= params.server < len(servers):
        raise invalid_params(
            f"there is no MCP server {params.server}: the session has {len(servers)}, counted from 0", "server"
        )
    connection = servers[params.server][1]
    try:
        if connection is None:
            await session.prompts.install_servers()
            await session.entity.connect_sources()
        else:
            await connection.restart()
    except CantripError as problem:
        # The list says why.
        log.info("an MCP server could not be restarted: %s", problem)
    return {"servers": [status for status, _ in _mcp_servers(session)]}


# --- services


def services_list(session: Session, params: acp.SessionParams, request: Request) -> dict[str, Any]:
    """``_cantrip/services/list``: the session's commands that go on in the background, also while a prompt runs."""
    services = session.entity.executor.services
    listed = services.all if services is not None else []
    return {
        "services": [
            {"id": each.name, "command": each.command, "state": each.state(), "running": each.ended is None}
            for each in listed
        ]
    }


def services_output(session: Session, params: acp.ServiceParams, request: Request) -> dict[str, Any]:
    """``_cantrip/services/output``: the last lines that one printed. What the entity reads stays unread."""
    return {"output": _services(session, params).last_output(params.service)}


async def services_stop(session: Session, params: acp.ServiceParams, request: Request) -> dict[str, Any]:
    """``_cantrip/services/stop``: stops one. The reply lists all."""
    await _services(session, params).stop(params.service, BY_USER)
    return services_list(session, acp.SessionParams(session_id=params.session_id), request)


def _services(session: Session, params: acp.ServiceParams) -> Services:
    services = session.entity.executor.services
    if services is None or all(each.name != params.service for each in services.all):
        raise invalid_params(f"there is no service {params.service!r}", "service")
    return services


def _mcp_servers(session: Session) -> Sequence[tuple[dict[str, Any], McpConnection | None]]:
    """Each MCP server's data for the client, without secrets, and its connection, or None before it is opened."""
    from cantrip_acp.gates.mcp.servers import McpServers, OpenServers

    gates = {gate.name for gate in session.entity.cantrip.circle.declared_gates}
    found = []
    for source, opened in session.entity.sources.listed():
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


# --- files


async def files(session: Session, params: acp.FileRequest, request: Request) -> dict[str, Any]:
    """``_cantrip/changes``, ``undo``, ``redo``, ``restore`` and ``keep``: extensions of ACP (docs/sessions.md)."""
    from cantrip_acp.acp.sessions.commands import file_commands

    work: dict[str, Any] = {
        "changes": file_commands.changes_data,
        "undo": file_commands.undo_data,
        "redo": file_commands.redo_data,
        "restore": file_commands.restore_data,
        "keep": file_commands.keep_data,
    }
    try:
        found: dict[str, Any] = await work[request.method.removeprefix("_cantrip/")](session, params)
    except CantripError as problem:
        raise RpcError(INVALID_REQUEST, str(problem), {"reason": "files"}) from None
    return found


# Stopping calls, and the queue of prompts


def cancel_tool_call(session: Session, params: acp.CancelToolCall, request: Request) -> dict[str, Any]:
    """``_cantrip/tool_call/cancel``: stops one call; the prompt goes on. An update of the call follows when it has ended.

    Raises `RpcError` -32602 if no call with this id runs.
    """
    if not session.entity.stop_call(params.tool_call_id):
        raise invalid_params(f"toolCallId: no call {params.tool_call_id[:100]!r} runs now")
    return {}


def queue_list(session: Session, params: acp.SessionParams, request: Request) -> acp.Queue:
    """``_cantrip/queue/list``"""
    return session.queue.state()


def queue_edit(session: Session, params: acp.QueueEdit, request: Request) -> acp.Queue:
    """``_cantrip/queue/edit``"""
    return session.queue.edit(params.id, params.prompt)


def queue_remove(session: Session, params: acp.QueueEntry, request: Request) -> acp.Queue:
    """``_cantrip/queue/remove``: the removed prompt is answered as cancelled."""
    return session.queue.remove(params.id)


async def queue_send_now(session: Session, params: acp.QueueEntry, request: Request) -> acp.Queue:
    """``_cantrip/queue/send_now``: gives a waiting prompt to the entity before its next query."""
    return await session.queue.send_now(params.id)
