"""MCP servers as gates: declared by a recipe or a client, started with an entity, and ended with it.

The official SDK implements the protocol. Only this folder imports it, and only when a server is to be reached. Start
with `servers.py` (all servers of an entity) and `connection.py` (one server).
"""
