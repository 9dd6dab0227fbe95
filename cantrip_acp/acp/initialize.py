"""The result of ``initialize``: the agent's capabilities and sign-in methods (ACP, Initialization).

`start` sends this result before it loads anything else, so this module imports nothing heavy.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder

from cantrip_acp.version import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PROTOCOL_VERSION = 1
"""The stable protocol version. It is the answer to every request that does not ask for version 2 in its words."""

AUTH_METHOD = "environment"
LOCAL_METHOD = "local"
"""Sign in with a model of a server on this machine, without a key. It is not in ``authMethods``, because no server is
searched for before a client calls ``_cantrip/models/local``."""
TERMINAL_METHOD = "terminal"
PAGE_METHOD = "page"

KEY_VARIABLES = (
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_AUTH_TOKEN",
    "OPENAI_API_KEY",
    "GEMINI_API_KEY",
    "GOOGLE_API_KEY",
    "OPENROUTER_API_KEY",
    "CANTRIP_CRYSTAL",
    "CANTRIP_BASE_URL",
)
"""Variables one of which makes the method of the environment succeed (`recipes.build.crystal_factory.KEYS`)."""

OTHER_WAYS = (
    "Or start the agent with --recipe FILE and name the model there. `cantrip doctor` shows what was found. Then restart "
    "the agent."
)

HOW_TO_GET_A_CRYSTAL = (
    "Set a provider's key (ANTHROPIC_API_KEY, OPENAI_API_KEY, GEMINI_API_KEY or OPENROUTER_API_KEY) in the agent's "
    "environment or in the .env file of your configuration folder (~/.config/cantrip/.env). CANTRIP_CRYSTAL=PROVIDER:MODEL "
    f"in the same place chooses the model, and CANTRIP_CRYSTAL=scripted:FILE plays a script. {OTHER_WAYS}"
)


def initialize_result(capabilities: object = None) -> dict[str, Any]:
    """The result of ``initialize`` for any requested version. ``capabilities`` are the client's."""
    # Without the package a session starts with no servers, and says so. Clients send them only where they are promised.
    speaks_mcp = PathFinder.find_spec("mcp") is not None
    return {
        "protocolVersion": PROTOCOL_VERSION,
        "agentCapabilities": {
            "loadSession": True,
            # True for every session: a crystal that does not take images or audio gets a note in their place.
            "promptCapabilities": {"image": True, "audio": True, "embeddedContext": True},
            "mcpCapabilities": {"http": speaks_mcp, "sse": speaks_mcp},
            "sessionCapabilities": {
                "list": {},
                "resume": {},
                "close": {},
                "delete": {},
                "additionalDirectories": {},
                # Not stable yet: only the protocol's unstable schema has these.
                "fork": {},
                "title": {},
                "systemPrompt": {"mode": {"override": {}}},
            },
            "auth": {"logout": {}},
            # claudeCode: other agents say it so, and their clients rely on it. It is true only for a client that asks for it.
            "_meta": {
                "cantrip": {"promptQueueing": True, "toolCallCancel": True},
                **({"claudeCode": {"promptQueueing": True}} if _asks_for_queue(capabilities) else {}),
            },
            # Not stable yet.
            "providers": {},
        },
        "_meta": {"steering": {"supported": True}},
        "authMethods": auth_methods(capabilities),
        "agentInfo": {"name": "cantrip-acp", "title": "Cantrip", "version": __version__},
    }


def _asks_for_queue(capabilities: object) -> bool:
    """Like `protocol.asks_for_queue`, without its imports."""
    meta = capabilities.get("_meta") if isinstance(capabilities, dict) else None
    asked = [meta.get(name) for name in ("cantrip", "claudeCode")] if isinstance(meta, dict) else []
    return any(isinstance(each, dict) and each.get("promptQueueing") is True for each in asked)


def auth_methods(capabilities: object) -> list[dict[str, Any]]:
    """The ways to sign in. The first one can succeed at present: the environment comes first only if it has a key."""
    environment = {"id": AUTH_METHOD, "name": "API key in the environment", "description": HOW_TO_GET_A_CRYSTAL}
    others = [*_terminal_methods(capabilities), *_page_methods(capabilities)]
    return [environment, *others] if has_key() else [*others, environment]


def has_key() -> bool:
    """Whether the environment or ``.env`` has a key or names a crystal. This only checks; `crystals.keys` reads the values."""
    if any(os.environ.get(name, "").strip() for name in KEY_VARIABLES):
        return True
    try:
        with open(dotenv_path(), encoding="utf-8", errors="replace") as file:
            lines = file.read(1 << 18).splitlines()
    except OSError:
        return False
    settings = (line.strip().removeprefix("export ").partition("=") for line in lines)
    return any(name.strip() in KEY_VARIABLES and value.strip() for name, _, value in settings)


def dotenv_path() -> str:
    """The path of `crystals.keys.dotenv_file`. Importing pathlib would double the time until the answer."""
    folder = os.environ.get("CANTRIP_CONFIG_DIR", "")
    if not folder:
        xdg = os.environ.get("XDG_CONFIG_HOME", "")
        base = "~/Library/Application Support" if sys.platform == "darwin" else "~/.config"
        folder = f"{xdg if os.path.isabs(xdg) else base}/cantrip"
    return os.path.expanduser(f"{folder}/.env")


def _page_methods(capabilities: object) -> list[dict[str, Any]]:
    """The sign-in method on a page of this machine, if the client can show an address (elicitation in the mode url)."""
    asks = capabilities.get("elicitation") if isinstance(capabilities, dict) else None
    if not isinstance(asks, dict) or not isinstance(asks.get("url"), dict):
        return []
    return [
        {
            "id": PAGE_METHOD,
            "name": "Enter a key in the browser",
            "description": "Opens a page of this machine, and saves the key that you enter there in your configuration folder.",
        }
    ]


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
        command = [sys.executable, "-m", "cantrip_acp.acp.start", "--sign-in"]
        method["_meta"] = {"terminal-auth": {"label": method["name"], "command": command[0], "args": command[1:]}}
    return [method]


def asks_for_v2(params: dict[str, Any]) -> bool:
    """Whether ``initialize`` has a version of 2 or more, and the ``info`` that version 2 requires of a client.

    A client of version 1 that sends a high number has ``clientInfo`` in its place.
    """
    info, version = params.get("info"), params.get("protocolVersion")
    named = isinstance(info, dict) and all(isinstance(info.get(name), str) for name in ("name", "version"))
    return named and isinstance(version, int) and version >= 2


def negotiated_result(params: dict[str, Any]) -> dict[str, Any]:
    """The result of ``initialize`` in the version that the client gets."""
    if asks_for_v2(params):
        from cantrip_acp.acp.v2.initialize import result_of_v1, v1_capabilities

        return result_of_v1(initialize_result(v1_capabilities(params)))
    return initialize_result(params.get("clientCapabilities"))


def accepts_version(value: object) -> bool:
    """Whether the ``protocolVersion`` of a request has the right type: an integer of 0 or more."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
