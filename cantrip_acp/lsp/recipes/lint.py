"""Lint rules for recipes: what is allowed but is probably a mistake. The data may be invalid in other ways too.
Every function yields `LintMessage`; none of them raises, whatever the data contains.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from cantrip_acp.gates.registry import ALIASES, DELEGATION, SANDBOXED
from cantrip_acp.gates.wards import COMPILE, WARDS
from cantrip_acp.recipes.parse import cross_field
from cantrip_acp.recipes.parse.problem_positions import KeyPath, Mend

Severity = Literal["error", "warning", "information", "hint"]


@dataclass(frozen=True, slots=True)
class LintMessage:
    """One lint message. ``related`` are other places that belong to it, each with the reason. A fix may also remove the
    ``removable`` places."""

    path: KeyPath
    rule: str
    message: str
    severity: Severity = "warning"
    at_key: bool = False
    related: tuple[tuple[KeyPath, str], ...] = ()
    mend: Mend | None = None
    removable: tuple[KeyPath, ...] = ()


def all_of(data: Any) -> Iterator[LintMessage]:
    """All lint messages that need only the text."""
    if not isinstance(data, dict):
        return
    circle = data.get("circle")
    circle = circle if isinstance(circle, dict) else {}
    yield from _legacy(data, circle)
    yield from _models(data)
    yield from _wards(data, circle)


def gates(circle: Mapping[str, Any]) -> dict[str, KeyPath]:
    """The names of a circle's gates and their key paths; for a repeated name, the first one."""
    listed = circle.get("gates")
    found: dict[str, KeyPath] = {}
    for index, gate in enumerate(listed if isinstance(listed, list) else ()):
        name = cross_field.gate_name(gate)
        if name is not None:
            found.setdefault(name, ("circle", "gates", index))
    return found


def wards(circle: Mapping[str, Any]) -> list[tuple[str, Any, KeyPath]]:
    """Every ward with its value and its key path."""
    listed = circle.get("wards")
    return [
        (name, value, ("circle", "wards", index, name))
        for index, ward in enumerate(listed if isinstance(listed, list) else ())
        if isinstance(ward, dict)
        for name, value in ward.items()
    ]


def texts(value: Any) -> list[str]:
    """The texts of a list; a single text counts as a list of one."""
    return (
        [value]
        if isinstance(value, str)
        else [v for v in value if isinstance(v, str)]
        if isinstance(value, list)
        else []
    )


def canonical(value: Any) -> list[str]:
    """The gates that a ward names, by their current names."""
    return [ALIASES.get(name, name) for name in texts(value)]


def servers(data: Mapping[str, Any]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The MCP servers that a recipe names, with their index."""
    listed = data.get("mcp_servers")
    for index, server in enumerate(listed if isinstance(listed, list) else ()):
        if isinstance(server, dict):
            yield index, server


def runs_commands(data: Mapping[str, Any], circle: Mapping[str, Any]) -> bool:
    """Whether the wards for commands have an effect: here, in a child, or on a sandboxed MCP server."""
    given = gates(circle).keys()
    return (
        circle.get("medium", "conversation") != "conversation"
        or bool({*DELEGATION, *SANDBOXED} & given)
        or any("command" in server and server.get("sandbox", True) not in OFF for _, server in servers(data))
    )


OFF = (False, "off", "Off", "OFF")


def crystals(data: Mapping[str, Any]) -> Iterator[tuple[KeyPath, str, str]]:
    """Every crystal that names a model: the model's key path, the provider, the model."""
    named = data.get("crystals")
    given: list[tuple[KeyPath, Any]] = [(("crystal",), data.get("crystal"))]
    given += [(("crystals", name), each) for name, each in named.items()] if isinstance(named, dict) else []
    for path, crystal in given:
        if isinstance(crystal, str):
            provider, colon, model = crystal.partition(":")
            if colon and model:
                yield path, provider, model
        elif isinstance(crystal, dict):
            maker, called = crystal.get("provider"), crystal.get("model")
            if isinstance(maker, str) and isinstance(called, str):
                yield (*path, "model"), maker, called


def _legacy(data: Mapping[str, Any], circle: Mapping[str, Any]) -> Iterator[LintMessage]:
    older = "an older name of require_done_tool"
    call = data.get("call")
    if isinstance(call, dict) and "require_done" in call:
        yield LintMessage(("call", "require_done"), "legacy-key", f"require_done is {older}", "hint", at_key=True)
    for name, _, path in wards(circle):
        if name == "require_done":
            yield LintMessage(path, "legacy-key", f"require_done is {older}", "hint", at_key=True)
    listed = circle.get("gates")
    for index, gate in enumerate(listed if isinstance(listed, list) else ()):
        raw = gate.get("name") if isinstance(gate, dict) else gate
        if isinstance(raw, str) and raw in ALIASES:
            at: KeyPath = ("circle", "gates", index)
            path = (*at, "name") if isinstance(gate, dict) else at
            yield LintMessage(path, "legacy-key", f"{raw} is an older name of {ALIASES[raw]}", "hint")


def _models(data: Mapping[str, Any]) -> Iterator[LintMessage]:
    from cantrip_acp.crystals.catalog import lookup
    from cantrip_acp.crystals.local.presets import PRESETS
    from cantrip_acp.recipes.models.field_types import near as near_word
    from cantrip_acp.recipes.models.field_types import nearest
    from cantrip_acp.recipes.parse import names
    from cantrip_acp.types.errors import DefinitionError

    for path, provider, model in crystals(data):
        if provider not in names.MODEL_PROVIDERS or provider in ("local", *PRESETS):
            continue
        try:
            remark, info = lookup.remark(provider, model), lookup.look_up(provider, model, remark=False)
        except DefinitionError:
            return  # the user's own model table cannot be read; a cast reports that
        if info.retired and remark:
            yield LintMessage(path, "retired-model", remark)
        elif remark:
            near = lookup.suggest_model(provider, model)
            yield LintMessage(path, "unknown-model", remark, mend=Mend("rename", near) if near is not None else None)
        elif not info.known and not info.family:
            text = f"no table of models has {provider}:{model}; its window and price are not known"
            yield LintMessage(path, "unknown-model", text)
    folding, named = data.get("folding"), data.get("crystals")
    wanted = folding.get("summarizer") if isinstance(folding, dict) else None
    known_names = tuple(named) if isinstance(named, dict) else ()
    if isinstance(wanted, str) and wanted.strip() and wanted not in known_names:
        hint = nearest(wanted, known_names) if known_names else "; the recipe has no crystals"
        near = near_word(wanted, known_names)
        mend = Mend("rename", near, wanted) if near is not None else None
        yield LintMessage(
            ("folding", "summarizer"), "unknown-crystal", f"{wanted!r} is none of crystals{hint}", mend=mend
        )


def _wards(data: Mapping[str, Any], circle: Mapping[str, Any]) -> Iterator[LintMessage]:
    listed, found = wards(circle), gates(circle)
    yield from _repeated(listed)
    yield from _without_children(listed, found)
    commands, cells = runs_commands(data, circle), circle.get("medium") in ("code", "monty")
    for name, value, path in listed:
        if name == "remove_gate":
            for gate in canonical(value):
                if gate in found and gate != "done":
                    related = ((found[gate], "the gate is given here"),)
                    text = f"the gate {gate} is listed and removed again; drop the one or the other"
                    yield LintMessage(path, "wards-cancel", text, related=related, removable=(found[gate],))
                elif gate not in found:
                    yield LintMessage(path, "idle-ward", f"there is no gate {gate} here to remove", "information")
        elif name.startswith(("child_", "max_children", "max_concurrent")) and not DELEGATION & found.keys():
            if not cells:
                yield LintMessage(
                    path, "idle-ward", f"{name} is about children, and no gate here makes any", "information", True
                )
        elif name.startswith("bash_") and not commands:
            yield LintMessage(
                path, "idle-ward", f"{name} is about commands, and nothing here runs any", "information", True
            )
        elif name.startswith("allow_compile") and "compile_and_load" not in found:
            text = f"{name} is about compile_and_load, which is not among the gates"
            yield LintMessage(path, "idle-ward", text, "information", True)
    removed = {gate for name, value, _ in listed if name == "remove_gate" for gate in canonical(value)}
    if "compile_and_load" in found.keys() - removed and not any(name in COMPILE for name, _, _ in listed):
        text = "compile_and_load can compile nothing: no ward allow_compile_* says what"
        yield LintMessage(found["compile_and_load"], "idle-gate", text)
    denied = {g: p for n, v, p in listed if n == "child_gate_denylist" for g in canonical(v)}
    for name, value, path in listed:
        if name == "child_gate_allowlist":
            for gate in canonical(value):
                if gate in denied:
                    related = ((denied[gate], "it is denied here"),)
                    yield LintMessage(
                        path, "wards-cancel", f"{gate} is allowed and denied to children", related=related
                    )
                elif (gate not in found or gate in removed) and found:
                    text = f"children cannot have {gate}: this circle does not have it (COMP-1)"
                    yield LintMessage(path, "idle-ward", text, "information")


def _without_children(listed: list[tuple[str, Any, KeyPath]], found: Mapping[str, KeyPath]) -> Iterator[LintMessage]:
    """Gates that make children, together with wards that allow none."""
    makers = sorted(DELEGATION & found.keys())
    for name, value, path in listed:
        why = mend = ""
        if name == "max_depth" and value == 0 and not isinstance(value, bool):
            for gate in makers:
                text = f"max_depth: 0 takes {gate} away; raise it to 1 or drop the gate (COMP-6)"
                given = ((found[gate], "the gate is given here"),)
                yield LintMessage(path, "wards-cancel", text, related=given, removable=(found[gate],))
        elif name == "max_children_total" and value == 0 and not isinstance(value, bool):
            why, mend = "max_children_total: 0 lets no child be made", "raise it"
        elif name == "child_gate_denylist" and "done" in texts(value):
            why, mend = "a child that must not have done is refused: it could not end", "take done off the list"
        elif name == "child_medium_allowlist" and value == []:
            why, mend = "child_medium_allowlist admits no medium, so every child is refused", "name one"
        if why and makers:
            related = tuple((found[gate], "the gate is given here") for gate in makers)
            text = f"{why}; {mend} or drop {' and '.join(makers)}"
            yield LintMessage(
                path, "wards-cancel", text, related=related, removable=tuple(found[gate] for gate in makers)
            )


def _repeated(listed: list[tuple[str, Any, KeyPath]]) -> Iterator[LintMessage]:
    """Report a ward that is set twice, at the one without effect."""
    from cantrip_acp.gates.wards import Wards
    from cantrip_acp.types.errors import DefinitionError

    seen: dict[str, tuple[Any, KeyPath]] = {}
    for name, value, path in listed:
        if name not in WARDS or WARDS[name]["rule"] == "deny":  # two deny lists add up
            continue
        if name not in seen:
            seen[name] = (value, path)
            continue
        before, there = seen[name]
        try:
            combined = getattr(Wards.of([{name: before}, {name: value}]), name)
        except (DefinitionError, TypeError):
            continue
        shown = list(combined) if isinstance(combined, tuple) else combined
        nothing = combined in ((), False) and (before not in ([], False) and value not in ([], False))
        why = "they have nothing in common, so nothing is left" if nothing else f"the stricter holds: {_written(shown)}"
        idle, other, where = (
            (there, path, "and again here") if shown == value != before else (path, there, "first here")
        )
        text = f"{name} appears twice; {why} (WARD-1)"
        yield LintMessage(idle, "wards-cancel", text, at_key=True, related=((other, where),))
        if idle == there:
            seen[name] = (value, path)


def _written(value: Any) -> str:
    return "true" if value is True else "false" if value is False else str(value)


# --- The lethal trifecta: private data, untrusted content and a way to the network in one circle.

_PRIVATE = ("read_file", "search", "git_diff", "git_show", "git_log", *SANDBOXED, "list_dir", "git_status")
"""Gates that reveal what is in the workspace."""


def advice(data: Any) -> Iterator[LintMessage]:
    """Yield the trifecta warning, at the first way to the network. It says what to remove, and counts only the entity's
    own circle."""
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
        # The user's own terminal combines all three.
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
        f"says can have your files sent away. Remove one of them: {mend}, or take away {_private_data_sources(private)}"
    )
    related = [(at, f"private data: {what}") for at, what in private[:3]]
    related += [(at, f"untrusted content, and a way out: {what}") for at, what, _ in ways[1:]]
    yield LintMessage(
        ways[0][0], "lethal-trifecta", text, related=tuple(related), removable=tuple(at for at, _, _ in ways[1:])
    )


def _open(value: Any) -> bool:
    """Whether a value of ``bash_network`` opens any network."""
    return value is True or value in ("on", "On", "ON") or bool(texts(value) and value not in OFF)


def _private_data_sources(private: list[tuple[KeyPath, str]]) -> str:
    gate_names = [what for path, what in private if path[:2] == ("circle", "gates")]
    return "what reads files (" + ", ".join(gate_names[:4]) + ")" if gate_names else private[0][1]


PAGE = Path(__file__).with_name("rules.md")


@cache
def meanings() -> dict[str, str]:
    """Every rule with its meaning, from `rules.md`."""
    parts = re.split(r"(?m)^## (.+)$", PAGE.read_text(encoding="utf-8"))
    return {name.strip(): text.strip() for name, text in zip(parts[1::2], parts[2::2], strict=True)}


def link(rule: str) -> str:
    """The URI of a rule's explanation."""
    return f"{PAGE.as_uri()}#{rule.lower()}"
