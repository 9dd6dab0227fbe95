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
TERMINAL_METHOD = "terminal"

OTHER_WAYS = (
    "Or start the agent with --recipe FILE and name the crystal there. `cantrip doctor` shows what was found. Then restart "
    "the agent."
)

HOW_TO_GET_A_CRYSTAL = (
    "Set a provider's key (ANTHROPIC_API_KEY, OPENAI_API_KEY, GEMINI_API_KEY or OPENROUTER_API_KEY) in the agent's "
    "environment or in the .env of your configuration folder (~/.config/cantrip/.env); CANTRIP_CRYSTAL=PROVIDER:MODEL beside "
    f"it chooses the model, and scripted:FILE plays a script. {OTHER_WAYS}"
)


def initialize_result(capabilities: object = None) -> dict[str, Any]:
    """The result of ``initialize``, whichever version was asked for; ``capabilities`` are the client's."""
    return {
        "protocolVersion": PROTOCOL_VERSION,
        "agentCapabilities": {
            "loadSession": True,
            # Of any session's crystal: one that takes no pictures or sound reads a note in their place.
            "promptCapabilities": {"image": True, "audio": True, "embeddedContext": True},
            "mcpCapabilities": {"http": True, "sse": True},
            "sessionCapabilities": {
                "list": {},
                "resume": {},
                "close": {},
                "delete": {},
                "additionalDirectories": {},
                # Not stable in the protocol yet; its own schema of unstable parts has it.
                "fork": {},
            },
            "auth": {"logout": {}},
        },
        "authMethods": [
            {"id": AUTH_METHOD, "name": "API key in the environment", "description": HOW_TO_GET_A_CRYSTAL},
            *_at_a_terminal(capabilities),
        ],
        "agentInfo": {"name": "cantrip-acp", "title": "Cantrip", "version": __version__},
    }


def _at_a_terminal(capabilities: object) -> list[dict[str, Any]]:
    """The method by which the client runs us in a terminal, where it says that it can; older clients say it in ``_meta``."""
    given = capabilities if isinstance(capabilities, dict) else {}
    auth, meta = given.get("auth"), given.get("_meta")
    flagged = isinstance(meta, dict) and meta.get("terminal-auth") is True
    if not flagged and not (isinstance(auth, dict) and auth.get("terminal") is True):
        return []
    method: dict[str, Any] = {
        "type": "terminal",
        "id": TERMINAL_METHOD,
        "name": "Enter a key in a terminal",
        "description": "Asks for a provider and its key, and keeps the key in your configuration folder.",
        "args": ["--sign-in"],
    }
    if flagged:
        import sys

        command = [sys.executable, "-m", "cantrip_acp.acp.start", "--sign-in"]
        method["_meta"] = {"terminal-auth": {"label": method["name"], "command": command[0], "args": command[1:]}}
    return [method]


def accepts_version(value: object) -> bool:
    """Whether a request's ``protocolVersion`` has the right type: an integer from 0 up."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
