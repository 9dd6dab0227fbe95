"""MCP servers as gates: declared by a recipe or a client, started with an entity, gone with it.

The official SDK speaks the protocol; it is imported when a server is to be reached, and only in this folder.
"""
