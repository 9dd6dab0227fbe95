"""MCP servers as gates: a recipe or a client declares them, and they start and end with an entity.

The official SDK implements the protocol. Only this folder imports it, and only when a server is used. Start with
`servers.py` (all servers of an entity) and `connection.py` (one server).
"""
