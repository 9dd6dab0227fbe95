"""The MCP servers that a client names for a session (ACP, Session Setup), as sources of gates.

A program is run in the sandbox, unless the user said with ``cantrip trust --mcp`` that this very command may run as they do.
What is reached over HTTP was named by the client, which is the user's.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cantrip_acp.acp import protocol as acp
from cantrip_acp.acp.envelope import invalid_params
from cantrip_acp.core.errors import DefinitionError
from cantrip_acp.gates.gate_source import GateSource
from cantrip_acp.gates.mcp.declaration import McpServer
from cantrip_acp.gates.mcp.servers import McpServers


def sources(named: Sequence[acp.McpServer] | None, state_dir: Path) -> list[GateSource]:
    """What a session's entity reaches for them; empty where there are none. Reads a file.

    Raises `RpcError` -32602 with the place of what cannot be used; `DefinitionError` where the user's trust cannot be read.
    """
    if not named:
        return []
    return [McpServers([_declared(server, place, state_dir) for place, server in enumerate(named)])]


def _declared(server: acp.McpServer, place: int, state_dir: Path) -> McpServer:
    from cantrip_acp.recipes.trust import Ledger

    try:
        if server.type in ("http", "sse"):
            headers = {pair.name: pair.value for pair in server.headers or ()}
            return McpServer(
                name=server.name,
                transport="http" if server.type == "http" else "sse",
                url=server.url or "",
                headers=headers,
            )
        if server.type != "stdio":
            raise invalid_params(f"{server.type[:40]!r} is none of stdio, http, sse", f"mcpServers[{place}].type")
        argv = (server.command or "", *(server.args or ()))
        trusted = Ledger(state_dir).trusts_command(argv)
        env = {pair.name: pair.value for pair in server.env or ()}
        return McpServer(name=server.name, command=argv[0], args=argv[1:], env=env, sandboxed=not trusted)
    except DefinitionError as error:
        if error.where:
            raise
        raise invalid_params(str(error), f"mcpServers[{place}]") from None
