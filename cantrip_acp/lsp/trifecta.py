"""The lethal trifecta: private data, what strangers may have written, and a way to the network, all in one circle."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cantrip_acp.lsp.advice import OFF, Advice, canonical, gates, runs_commands, servers, texts, wards
from cantrip_acp.recipes.parse.source_map import KeyPath

_PRIVATE = ("read_file", "search", "git_diff", "git_show", "git_log", "run_tests", "list_dir", "git_status")
"""Gates that tell what is in the workspace."""


def advice(data: Any) -> Iterator[Advice]:
    """The warning, at the first way out, with the leg to remove. It counts what the entity's own circle can do."""
    circle = data.get("circle") if isinstance(data, dict) else None
    if not isinstance(circle, dict):
        return
    given, listed = gates(circle), wards(circle)
    removed = {gate for name, value, _ in listed if name == "remove_gate" for gate in canonical(value)}
    found = {name: path for name, path in given.items() if name not in removed}
    private: list[tuple[KeyPath, str]] = [(found[gate], gate) for gate in _PRIVATE if gate in found]
    if circle.get("medium") == "bash":
        private.append((("circle", "medium"), "the shell, which sees the workspace"))
    cells = ("code_readable_paths", "code_writable_paths")
    private += [(path, name) for name, value, path in listed if name in cells and texts(value)]
    ways: list[tuple[KeyPath, str, str]] = []
    if "fetch" in found:
        ways.append((found["fetch"], "fetch", "drop the gate fetch"))
    if "client_terminal" in found:
        # The user's own terminal has all three.
        private.append((found["client_terminal"], "client_terminal, which runs as the user"))
        ways.append((found["client_terminal"], "client_terminal", "drop the gate client_terminal"))
    switched = [(value, path) for name, value, path in listed if name == "bash_network"]
    if switched and all(_open(value) for value, _ in switched) and runs_commands(data, circle):
        ways.append((switched[0][1], "bash_network", "set bash_network: false"))
    for index, server in servers(data):
        called = str(server.get("name", "a server"))
        if isinstance(server.get("url"), str):
            ways.append((("mcp_servers", index, "url"), called, "drop that server"))
        elif "command" in server and server.get("sandbox", True) in OFF:
            ways.append((("mcp_servers", index, "sandbox"), called, "run that server in the sandbox"))
    if not private or not ways:
        return
    out, mend = " and ".join(way for _, way, _ in ways), " and ".join(dict.fromkeys(mend for _, _, mend in ways))
    text = (
        f"private data ({private[0][1]}), untrusted content and a way to the network ({out}) meet in one circle: what a page "
        f"says can have your files sent away. Remove one of them: {mend}, or take away {_leg(private)}"
    )
    related = [(at, f"private data: {what}") for at, what in private[:3]]
    related += [(at, f"untrusted content, and a way out: {what}") for at, what, _ in ways[1:]]
    yield Advice(
        ways[0][0], "lethal-trifecta", text, related=tuple(related), removable=tuple(at for at, _, _ in ways[1:])
    )


def _open(value: Any) -> bool:
    """Whether a ``bash_network`` opens anything."""
    return value is True or value in ("on", "On", "ON") or bool(texts(value) and value not in OFF)


def _leg(private: list[tuple[KeyPath, str]]) -> str:
    gate_names = [what for path, what in private if path[:2] == ("circle", "gates")]
    return "what reads files (" + ", ".join(gate_names[:4]) + ")" if gate_names else private[0][1]
