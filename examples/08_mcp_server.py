"""Use the tools of an MCP server. Its program runs in the sandbox."""

import sys
from pathlib import Path

from cantrip_acp import Cantrip, McpServer

crystal = sys.argv[1] if sys.argv[1:] else f"scripted:{__file__[:-3]}.yaml"
server = McpServer(name="stock", command=sys.executable, args=("stock_server.py",))
cantrip = Cantrip(crystal, sources=[server], workspace=Path(__file__).parent / "data", max_turns=5)
print(cantrip.cast_sync("How many pens are left?").result)
