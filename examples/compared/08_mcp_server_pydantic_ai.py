"""Use the tools of an MCP server. Its program runs as you."""

import sys
from pathlib import Path

from pydantic_ai import Agent
from pydantic_ai.mcp import MCPToolset

model = sys.argv[1] if sys.argv[1:] else "openai:gpt-5"
agent = Agent(model, toolsets=[MCPToolset(Path(__file__).parents[1] / "data" / "stock_server.py")])
print(agent.run_sync("How many pens are left?").output)
