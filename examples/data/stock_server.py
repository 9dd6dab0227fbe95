"""An MCP server with one tool, for 08_mcp_server.py."""

from mcp.server import MCPServer

server = MCPServer("stock")


@server.tool()
def left(item: str) -> int:
    """Say how many of an item are left."""
    return {"pen": 12, "book": 3}[item]


server.run()
