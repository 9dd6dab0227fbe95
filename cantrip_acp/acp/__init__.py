"""The Agent Client Protocol (ACP): the agent that serves an editor on stdio, and the client for other agents.

No other package knows JSON-RPC. Only `cli` and `demo` may import this package. Importing it loads nothing heavy,
because the agent answers ``initialize`` before it loads anything else.
Start reading in `server` (the table of methods) and `sessions.agent`. The command ``cantrip-acp`` is in `start`.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from cantrip_acp.acp.server import serve

__all__ = [
    "client", "client_services", "initialize", "login", "permissions", "protocol", "render", "serve", "server",
    "sessions", "start", "wire",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "serve":
        from cantrip_acp.acp.server import serve

        return serve
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
