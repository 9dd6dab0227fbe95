"""MCP servers that a program such as npx downloads: asks the user in the editor, and installs them (docs/mcp.md).

The first prompt of a session asks, by one permission request for all such servers. What was installed is not asked about
again, in any session. After a "no" the session works without these servers, and the next session asks again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import anyio.to_thread

from cantrip_acp.acp import protocol as acp
from cantrip_acp.acp.permissions.request import choose, escape_invisible
from cantrip_acp.acp.render.formatting import text_content
from cantrip_acp.gates.mcp import install, servers
from cantrip_acp.text.redaction import shared
from cantrip_acp.types.errors import CantripError
from cantrip_acp.types.records import new_id

if TYPE_CHECKING:
    from cantrip_acp.acp.wire.connection import Connection
    from cantrip_acp.core.definition.circle import Circle
    from cantrip_acp.gates.mcp.declaration import McpServer

_INSTALL, _NOT_NOW = "install", "not_now"


async def ask_and_install(
    connection: Connection,
    session_id: str,
    missing: Sequence[McpServer],
    circle: Circle,
    show: Callable[[acp.Update], None],
) -> bool:
    """Ask whether these servers may be installed, and install them if so. ``show`` sends an update of the session.

    Returns False if the client cancelled the question. A failed installation is shown to the user.
    """
    for server in missing:
        server.hide(shared())
    names = ", ".join(server.name for server in missing)
    title = escape_invisible(f"Install the MCP server{'s' if len(missing) > 1 else ''} {names}")
    lines = [escape_invisible(install.describe(server)) for server in missing]
    call = acp.PermissionToolCall(
        tool_call_id=new_id("install"),
        title=title,
        kind="fetch",
        status="pending",
        content=[text_content(line) for line in lines],
    )

    def update(status: acp.ToolStatus, *more: str) -> None:
        content: list[acp.ToolContent] = [text_content(text) for text in (*lines, *more)]
        show(acp.ToolCallUpdate(tool_call_id=call.tool_call_id, status=status, content=content))

    show(
        acp.ToolCall(
            tool_call_id=call.tool_call_id, title=title, kind=call.kind, status=call.status, content=call.content
        )
    )
    options = [
        acp.PermissionOption(_INSTALL, "Install", "allow_once"),
        acp.PermissionOption(_NOT_NOW, "Not now", "reject_once"),
    ]
    answer = None
    try:
        answer = await choose(connection, acp.RequestPermission(session_id, call, options))
        if answer == _INSTALL:
            update("in_progress")
            await anyio.to_thread.run_sync(servers.import_sdk)
            from cantrip_acp.gates.mcp.connection import install_server

            for server in missing:
                await install_server(server, circle)
            update("completed", "Installed.")
    except CantripError as problem:
        update("failed", escape_invisible(str(problem)))
    except anyio.get_cancelled_exc_class():
        update("failed", "Cancelled.")
        raise
    else:
        if answer != _INSTALL:
            update("failed", "Not installed. This session works without it.")
    return answer is not None
