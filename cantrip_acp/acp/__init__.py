"""The Agent Client Protocol: an agent on stdio, and everything that knows JSON-RPC.

`serve` embeds the agent in a program of yours; the console script ``cantrip-acp`` is `cantrip_acp.acp.start`.
Importing this package loads nothing: the agent answers ``initialize`` before anything heavy is in memory.
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
