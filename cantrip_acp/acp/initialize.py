"""The result of ``initialize``: the agent's capabilities and sign-in methods (ACP, Initialization).

`start` sends this result before it loads anything else, so this module imports nothing heavy.
"""

from __future__ import annotations

from cantrip_acp.version import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PROTOCOL_VERSION = 1
"""The highest protocol version that this agent supports. It is the answer to every requested version."""

AUTH_METHOD = "environment"
LOCAL_METHOD = "local"
"""Sign in with a model of a server on this machine, without a key. It is not in ``authMethods``, because no server is
searched for before a client calls ``_cantrip/models/local``."""
TERMINAL_METHOD = "terminal"

OTHER_WAYS = (
    "Or start the agent with --recipe FILE and name the crystal there. `cantrip doctor` shows what was found. Then restart "
    "the agent."
)

HOW_TO_GET_A_CRYSTAL = (
    "Set a provider's key (ANTHROPIC_API_KEY, OPENAI_API_KEY, GEMINI_API_KEY or OPENROUTER_API_KEY) in the agent's "
    "environment or in the .env file of your configuration folder (~/.config/cantrip/.env). CANTRIP_CRYSTAL=PROVIDER:MODEL "
    f"in the same place chooses the model, and CANTRIP_CRYSTAL=scripted:FILE plays a script. {OTHER_WAYS}"
)


def initialize_result(capabilities: object = None) -> dict[str, Any]:
    """The result of ``initialize`` for any requested version. ``capabilities`` are the client's."""
    return {
        "protocolVersion": PROTOCOL_VERSION,
        "agentCapabilities": {
            "loadSession": True,
            # True for every session: a crystal that does not take images or audio gets a note in their place.
            "promptCapabilities": {"image": True, "audio": True, "embeddedContext": True},
            "mcpCapabilities": {"http": True, "sse": True},
            "sessionCapabilities": {
                "list": {},
                "resume": {},
                "close": {},
                "delete": {},
                "additionalDirectories": {},
                # Not stable yet: only the protocol's unstable schema has it.
                "fork": {},
            },
            "auth": {"logout": {}},
            # claudeCode: other agents say it so, and their clients rely on it. It is true only for a client that asks for it.
            "_meta": {
                "cantrip": {"promptQueueing": True},
                **({"claudeCode": {"promptQueueing": True}} if _asks_for_queue(capabilities) else {}),
            },
        },
        "_meta": {"steering": {"supported": True}},
        "authMethods": [
            {"id": AUTH_METHOD, "name": "API key in the environment", "description": HOW_TO_GET_A_CRYSTAL},
            *_terminal_methods(capabilities),
        ],
        "agentInfo": {"name": "cantrip-acp", "title": "Cantrip", "version": __version__},
    }


def _asks_for_queue(capabilities: object) -> bool:
    """Like `protocol.asks_for_queue`, without its imports."""
    meta = capabilities.get("_meta") if isinstance(capabilities, dict) else None
    asked = [meta.get(name) for name in ("cantrip", "claudeCode")] if isinstance(meta, dict) else []
    return any(isinstance(each, dict) and each.get("promptQueueing") is True for each in asked)


def _terminal_methods(capabilities: object) -> list[dict[str, Any]]:
    """The sign-in method in a terminal, if the client can run this program in one. Older clients say so in ``_meta``."""
    known = capabilities if isinstance(capabilities, dict) else {}
    auth, meta = known.get("auth"), known.get("_meta")
    flagged = isinstance(meta, dict) and meta.get("terminal-auth") is True
    if not flagged and not (isinstance(auth, dict) and auth.get("terminal") is True):
        return []
    method: dict[str, Any] = {
        "type": "terminal",
        "id": TERMINAL_METHOD,
        "name": "Enter a key in a terminal",
        "description": "Asks for a provider and its key, and saves the key in your configuration folder.",
        "args": ["--sign-in"],
    }
    if flagged:
        import sys

        command = [sys.executable, "-m", "cantrip_acp.acp.start", "--sign-in"]
        method["_meta"] = {"terminal-auth": {"label": method["name"], "command": command[0], "args": command[1:]}}
    return [method]


def accepts_version(value: object) -> bool:
    """Whether the ``protocolVersion`` of a request has the right type: an integer of 0 or more."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
