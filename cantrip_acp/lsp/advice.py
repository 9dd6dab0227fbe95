"""What is allowed in a recipe and still likely to be a mistake, on data that may be wrong in other ways too.

Every function gives `Advice`; none of them raises, whatever the data holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from cantrip_acp.gates.registry import ALIASES, DELEGATION
from cantrip_acp.recipes import rules
from cantrip_acp.recipes.places import KeyPath
from cantrip_acp.wards import WARDS

Severity = Literal["error", "warning", "information", "hint"]


@dataclass(frozen=True, slots=True)
class Advice:
    """``related`` are other places that have to do with it, each with a word on why."""

    path: KeyPath
    rule: str
    message: str
    severity: Severity = "warning"
    at_key: bool = False
    related: tuple[tuple[KeyPath, str], ...] = ()


def all_of(data: Any) -> Iterator[Advice]:
    """Everything that can be said from the text alone."""
    if not isinstance(data, dict):
        return
    circle = data.get("circle")
    circle = circle if isinstance(circle, dict) else {}
    yield from _legacy(data, circle)
    yield from _models(data)
    yield from _wards(data, circle)
    yield from _trifecta(data, circle)


def gates(circle: Mapping[str, Any]) -> dict[str, KeyPath]:
    """The names of a circle's gates and where each stands; the first of a name."""
    listed = circle.get("gates")
    found: dict[str, KeyPath] = {}
    for index, gate in enumerate(listed if isinstance(listed, list) else ()):
        name = rules.gate_name(gate)
        if name is not None:
            found.setdefault(name, ("circle", "gates", index))
    return found


def wards(circle: Mapping[str, Any]) -> list[tuple[str, Any, KeyPath]]:
    """Every ward with its value and where it stands."""
    listed = circle.get("wards")
    return [
        (name, value, ("circle", "wards", index, name))
        for index, ward in enumerate(listed if isinstance(listed, list) else ())
        if isinstance(ward, dict)
        for name, value in ward.items()
    ]


def texts(value: Any) -> list[str]:
    """The texts of a list, or one text for a list of one."""
    return (
        [value]
        if isinstance(value, str)
        else [v for v in value if isinstance(v, str)]
        if isinstance(value, list)
        else []
    )


def crystals(data: Mapping[str, Any]) -> Iterator[tuple[KeyPath, str, str]]:
    """Every crystal that names a model: where the model stands, provider, model."""
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


def _legacy(data: Mapping[str, Any], circle: Mapping[str, Any]) -> Iterator[Advice]:
    older = "an older name of require_done_tool"
    call = data.get("call")
    if isinstance(call, dict) and "require_done" in call:
        yield Advice(("call", "require_done"), "legacy-key", f"require_done is {older}", "hint", at_key=True)
    for name, _, path in wards(circle):
        if name == "require_done":
            yield Advice(path, "legacy-key", f"require_done is {older}", "hint", at_key=True)
    listed = circle.get("gates")
    for index, gate in enumerate(listed if isinstance(listed, list) else ()):
        raw = gate.get("name") if isinstance(gate, dict) else gate
        if isinstance(raw, str) and raw in ALIASES:
            at: KeyPath = ("circle", "gates", index)
            path = (*at, "name") if isinstance(gate, dict) else at
            yield Advice(path, "legacy-key", f"{raw} is an older name of {ALIASES[raw]}", "hint")


def _models(data: Mapping[str, Any]) -> Iterator[Advice]:
    from cantrip_acp.crystals import table
    from cantrip_acp.errors import DefinitionError
    from cantrip_acp.recipes import names
    from cantrip_acp.recipes.values import nearest

    for path, provider, model in crystals(data):
        if provider not in names.MODEL_PROVIDERS or provider in ("ollama", "local"):
            continue
        try:
            if table.look_up(provider, model, remark=False).known:
                continue
            known = tuple(name for _, name, _ in table.listed(provider))
        except DefinitionError:
            return  # the user's own table cannot be read, which a cast will say
        near = nearest(model, known)
        hint = near if near.startswith("; did") else ""
        text = f"no table of models has {provider}:{model}; its window and price are not known{hint}"
        yield Advice(path, "unknown-model", text)
    folding, named = data.get("folding"), data.get("crystals")
    wanted = folding.get("summarizer") if isinstance(folding, dict) else None
    known_names = tuple(named) if isinstance(named, dict) else ()
    if isinstance(wanted, str) and wanted.strip() and wanted not in known_names:
        near = nearest(wanted, known_names) if known_names else "; the recipe has no crystals"
        yield Advice(("folding", "summarizer"), "unknown-crystal", f"{wanted!r} is none of crystals{near}")


def _wards(data: Mapping[str, Any], circle: Mapping[str, Any]) -> Iterator[Advice]:
    listed, found = wards(circle), gates(circle)
    medium = circle.get("medium", "conversation")
    yield from _repeated(listed)
    for name, value, path in listed:
        if name == "remove_gate":
            for gate in texts(value):
                if gate in found and gate != "done":
                    related = ((found[gate], "the gate is given here"),)
                    text = f"the gate {gate} is listed and removed again; drop the one or the other"
                    yield Advice(path, "wards-cancel", text, related=related)
                elif gate not in found:
                    yield Advice(path, "idle-ward", f"there is no gate {gate} here to remove", "information")
        elif name == "max_depth" and value == 0 and not isinstance(value, bool):
            for gate in sorted(DELEGATION & found.keys()):
                text = f"max_depth: 0 takes {gate} away; raise it to 1 or drop the gate (COMP-6)"
                yield Advice(path, "wards-cancel", text, related=((found[gate], "the gate is given here"),))
        elif name.startswith(("child_", "max_children", "max_concurrent")) and not DELEGATION & found.keys():
            if medium not in ("code", "monty"):
                yield Advice(
                    path, "idle-ward", f"{name} is about children, and no gate here makes any", "information", True
                )
        elif name.startswith("bash_") and medium == "conversation" and not {*DELEGATION, "run_tests"} & found.keys():
            yield Advice(path, "idle-ward", f"{name} is about commands, and nothing here runs any", "information", True)
        elif name.startswith("allow_compile") and "compile_and_load" not in found:
            text = f"{name} is about compile_and_load, which is not among the gates"
            yield Advice(path, "idle-ward", text, "information", True)
    denied = {g: p for n, v, p in listed if n == "child_gate_denylist" for g in texts(v)}
    for name, value, path in listed:
        if name == "child_gate_allowlist":
            for gate in texts(value):
                if gate in denied:
                    related = ((denied[gate], "it is denied here"),)
                    yield Advice(path, "wards-cancel", f"{gate} is allowed and denied to children", related=related)
                elif gate not in found and found:
                    text = f"children cannot have {gate}: this circle does not have it (COMP-1)"
                    yield Advice(path, "idle-ward", text, "information")


def _repeated(listed: list[tuple[str, Any, KeyPath]]) -> Iterator[Advice]:
    from cantrip_acp.errors import DefinitionError
    from cantrip_acp.wards import Wards

    seen: dict[str, tuple[Any, KeyPath]] = {}
    for name, value, path in listed:
        if name not in WARDS:
            continue
        if name not in seen:
            seen[name] = (value, path)
            continue
        before, there = seen[name]
        try:
            held = getattr(Wards.of([{name: before}, {name: value}]), name)
        except (DefinitionError, TypeError):
            continue
        if WARDS[name]["rule"] == "deny":
            continue  # each adds to the other
        shown = list(held) if isinstance(held, tuple) else held
        nothing = held in ((), False) and (before not in ([], False) and value not in ([], False))
        tell = (
            "they have nothing in common, so nothing is left" if nothing else f"the stricter holds: {_written(shown)}"
        )
        yield Advice(
            path, "wards-cancel", f"{name} stands twice; {tell} (WARD-1)", at_key=True, related=((there, "first here"),)
        )


def _written(value: Any) -> str:
    return "true" if value is True else "false" if value is False else str(value)


_PRIVATE = ("read_file", "search", "git_diff", "git_show", "git_log", "run_tests", "list_dir", "git_status")


def _trifecta(data: Mapping[str, Any], circle: Mapping[str, Any]) -> Iterator[Advice]:
    """Private data, a stranger's content and a way out, in one circle."""
    found = gates(circle)
    removed = {gate for name, value, _ in wards(circle) if name == "remove_gate" for gate in texts(value)}
    found = {name: path for name, path in found.items() if name not in removed}
    private: list[tuple[KeyPath, str]] = [(found[gate], gate) for gate in _PRIVATE if gate in found]
    medium = circle.get("medium")
    if medium == "bash":
        private.append((("circle", "medium"), "the shell, which sees the workspace"))
    private += [(p, n) for n, v, p in wards(circle) if n == "code_readable_paths" and texts(v)]
    ways: list[tuple[KeyPath, str, str]] = []
    if "fetch" in found:
        ways.append((found["fetch"], "fetch", "drop the gate fetch"))
    switched = [(v, p) for n, v, p in wards(circle) if n == "bash_network"]
    if switched and all(
        v is True or v in ("on", "On", "ON") or (texts(v) and v not in ("off", "Off", "OFF")) for v, _ in switched
    ):
        ways.append((switched[0][1], "bash_network", "set bash_network: false"))
    servers = data.get("mcp_servers")
    for index, server in enumerate(servers if isinstance(servers, list) else ()):
        if isinstance(server, dict) and isinstance(server.get("url"), str):
            ways.append((("mcp_servers", index, "url"), str(server.get("name", "a server")), "drop that server"))
    if not private or not ways:
        return
    path = ways[0][0]
    out, mend = " and ".join(way for _, way, _ in ways), " and ".join(mend for _, _, mend in ways)
    text = (
        f"private data ({private[0][1]}), untrusted content and a way to the network ({out}) meet in one circle: what a page "
        f"says can have your files sent away. Remove one of them: {mend}, or take away {_leg(private)}"
    )
    related = [(at, f"private data: {what}") for at, what in private[:3]]
    related += [(at, f"untrusted content, and a way out: {what}") for at, what, _ in ways[1:3]]
    yield Advice(path, "lethal-trifecta", text, related=tuple(related))


def _leg(private: list[tuple[KeyPath, str]]) -> str:
    gate_names = [what for path, what in private if path[:2] == ("circle", "gates")]
    return "what reads files (" + ", ".join(gate_names[:4]) + ")" if gate_names else private[0][1]
