"""What the agent says about itself in ``initialize`` (ACP, Initialization).

Plain data made with nothing imported: `start` answers with it before anything else is loaded. A capability stands here
only while it is true.
"""

from __future__ import annotations

from cantrip_acp.version import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PROTOCOL_VERSION = 1
"""The highest version of the protocol that this agent speaks, and the answer to every other one."""

AUTH_METHOD = "environment"

HOW_TO_GET_A_CRYSTAL = (
    "Set CANTRIP_CRYSTAL in the agent's environment: scripted:FILE plays a script, and PROVIDER:MODEL asks a model, with "
    "that provider's key beside it (ANTHROPIC_API_KEY, OPENAI_API_KEY, ...) where this version has the provider. "
    "Or start the agent with --recipe FILE and name the crystal there. Then restart the agent."
)


def initialize_result() -> dict[str, Any]:
    """The result of ``initialize``, whichever version was asked for."""
    return {
        "protocolVersion": PROTOCOL_VERSION,
        "agentCapabilities": {
            "loadSession": False,
            "promptCapabilities": {"image": False, "audio": False, "embeddedContext": True},
            "mcpCapabilities": {"http": False, "sse": False},
            "sessionCapabilities": {},
            "auth": {},
        },
        "authMethods": [
            {"id": AUTH_METHOD, "name": "API key in the environment", "description": HOW_TO_GET_A_CRYSTAL},
        ],
        "agentInfo": {"name": "cantrip-acp", "title": "Cantrip", "version": __version__},
    }


def accepts_version(value: object) -> bool:
    """Whether a request's ``protocolVersion`` has the right type: an integer from 0 up."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
