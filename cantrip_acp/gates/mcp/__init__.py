"""MCP servers as gates: a recipe or a client declares them, and they start and end with an entity.

The official SDK implements the protocol. Besides this folder only the server in `tuplespace/mcp_edge` imports it, and both only
when they are used. Start with `servers.py` (all servers of an entity) and `connection.py` (one server).
"""

__all__ = ["connection", "declaration", "install", "servers"]
