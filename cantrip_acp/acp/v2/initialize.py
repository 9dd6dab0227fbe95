"""The result of ``initialize`` in version 2. `start` sends it before anything else is loaded, so this imports nothing heavy."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

VERSION = 2


def v1_capabilities(params: dict[str, Any]) -> dict[str, Any]:
    """Convert the capabilities of a client of version 2 to those of version 1.

    Such a client has no files and terminals of its own, and takes every update of version 2: notices, compactions, plans with
    ids, boolean options and children as sessions (ACP v2, Initialization).
    """
    given = params.get("capabilities")
    known = given if isinstance(given, dict) else {}
    auth, elicitation, meta = (known.get(name) for name in ("auth", "elicitation", "_meta"))
    own = meta.get("cantrip") if isinstance(meta, dict) else None
    terminal = isinstance(auth, dict) and isinstance(auth.get("terminal"), dict)
    return {
        "session": {"notices": {}, "compaction": {}, "configOptions": {"boolean": {}}},
        "plan": {},
        "subagents": {},
        "auth": {"terminal": terminal},
        "elicitation": elicitation if isinstance(elicitation, dict) else {},
        # Prompts wait for the running one in version 2.
        "_meta": {
            **(meta if isinstance(meta, dict) else {}),
            "terminal_output": True,
            "cantrip": {**(own if isinstance(own, dict) else {}), "promptQueueing": True},
        },
    }


def result_of_v1(v1: dict[str, Any]) -> dict[str, Any]:
    """Convert the result of ``initialize`` from version 1 to version 2."""
    session = v1["agentCapabilities"]["sessionCapabilities"]
    return {
        "protocolVersion": VERSION,
        "info": v1["agentInfo"],
        "capabilities": {
            "session": {
                "prompt": {"image": {}, "audio": {}, "embeddedContext": {}},
                **({"mcp": {"stdio": {}, "http": {}}} if v1["agentCapabilities"]["mcpCapabilities"]["http"] else {}),
                **{
                    name: session[name] for name in ("delete", "additionalDirectories", "fork", "title", "systemPrompt")
                },
            },
            "providers": {},
            "_meta": v1["agentCapabilities"]["_meta"],
        },
        "_meta": v1["_meta"],
        "authMethods": [_auth_method(method) for method in v1["authMethods"]],
    }


def _auth_method(method: dict[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in method.items() if name != "id"}
    return {"type": "agent", **kept, "methodId": method["id"]}
