"""MCP server of the tuple-space (`cantrip mcp`): other agents look up capabilities, dispatch tuples and read receipts.

`tools.py` has the five tools as data, `answers.py` answers their calls, and `mcp_server.py` serves them with the official SDK, on
stdio or HTTP. Only `mcp_server.py` imports the SDK, and uvicorn. Nothing here is imported before the command runs.
"""

__all__ = ["answers", "mcp_server"]
