"""The Agent Client Protocol: the agent that serves a client on stdio, and all code that speaks JSON-RPC.

Only the commands and the demo may import these modules. Importing the package loads nothing heavy, because the agent
answers ``initialize`` before it loads anything else.
Start reading in `server` (`serve` embeds the agent in your program); the command ``cantrip-acp`` is
`cantrip_acp.acp.start`.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from cantrip_acp.acp.server import serve

__all__ = ["serve"]


def __getattr__(name: str) -> Any:
    if name == "serve":
        from cantrip_acp.acp.server import serve

        return serve
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
