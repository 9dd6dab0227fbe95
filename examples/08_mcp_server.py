"""Use the tools of an MCP server. Its program runs in the sandbox."""

import sys

from cantrip_acp import Cantrip, McpServer

crystal = sys.argv[1] if sys.argv[1:] else "scripted:examples/08_mcp_server.yaml"
server = McpServer(name="stock", command=sys.executable, args=("stock_server.py",))
cantrip = Cantrip(crystal, sources=[server], workspace="examples/data", max_turns=5)
print(cantrip.cast_sync("How many pens are left?").result)
