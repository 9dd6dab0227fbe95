"""Cross-field rules: checks of rules that concern several keys of a recipe, such as "gates must contain done".

The data may have other errors too. Each rule is written as code and as JSON Schema, so that the loader and editors
agree (`models.schema` puts the JSON Schema of the rules into the published schema).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from cantrip_acp.gates.registry import ALIASES
from cantrip_acp.recipes.parse import names
from cantrip_acp.recipes.parse.problem_positions import KeyPath, Mend


class Breach(NamedTuple):
    """A broken rule: key path, message, whether the error is at the key and not at its value, rule id, and a fix."""

    path: KeyPath
    message: str
    at_key: bool
    rule: str
    mend: Mend | None = None


_ON = (True, "on", "On", "ON")


def breaches(data: Any) -> Iterator[Breach]:
    if not isinstance(data, dict):
        return
    yield from _crystal(data.get("crystal"), ("crystal",))
    crystals = data.get("crystals")
    if isinstance(crystals, dict):
        for name, crystal in crystals.items():
            yield from _crystal(crystal, ("crystals", name))
    call = data.get("call")
    if isinstance(call, dict):
        yield from _both(call, ("call",), "system_prompt", "system_prompt_file")
        yield from _both(call, ("call",), "require_done_tool", "require_done")
        yield from _done(call, data.get("circle"))
    circle = data.get("circle")
    if isinstance(circle, dict):
        yield from _of_code(circle)
        yield from _gates(circle, call)
        yield from _wards(circle)
    servers = data.get("mcp_servers")
    if isinstance(servers, list):
        yield from _servers(servers)
    if isinstance(data.get("result_schema"), dict):
        from cantrip_acp.text.python_types import schema_problem

        problem = schema_problem(data["result_schema"])
        if problem is not None:
            yield Breach(("result_schema",), problem, False, "schema")


def _servers(servers: list[Any]) -> Iterator[Breach]:
    for index, server in enumerate(servers):
        if not isinstance(server, dict):
            continue
        path: KeyPath = ("mcp_servers", index)
        yield from _both(server, path, "command", "url")
        if "command" not in server and "url" not in server:
            yield Breach(path, "a server needs a command (a program) or a url", False, "schema")
        wrong = _OF_AN_ADDRESS if "command" in server else _OF_A_PROGRAM if "url" in server else ()
        for key in wrong:
            if key in server:
                which = "a url, not with a command" if "command" in server else "a command, not with a url"
                yield Breach((*path, key), f"{key} can be used only with {which}", True, "schema")


_OF_A_PROGRAM = ("args", "env", "env_names", "sandbox")
_OF_AN_ADDRESS = ("transport", "headers", "header_env")
SERVERS = {
    "oneOf": [
        {"required": ["command"], "not": {"anyOf": [{"required": [key]} for key in ("url", *_OF_AN_ADDRESS)]}},
        {"required": ["url"], "not": {"anyOf": [{"required": [key]} for key in ("command", *_OF_A_PROGRAM)]}},
    ]
}


def _both(mapping: dict[str, Any], path: KeyPath, first: str, second: str) -> Iterator[Breach]:
    if first in mapping and second in mapping:
        yield Breach(
            (*path, second), f"{first} and {second} cannot be used together; remove one", True, "exclusive-keys"
        )


BOTH_CALL = [
    {"not": {"required": ["system_prompt", "system_prompt_file"]}},
    {"not": {"required": ["require_done_tool", "require_done"]}},
    *(
        {
            "not": {
                "required": ["tool_choice", key],
                "properties": {"tool_choice": {"const": "none"}, key: {"const": True}},
            }
        }
        for key in ("require_done_tool", "require_done")
    ),
]


def _done(call: dict[str, Any], circle: Any) -> Iterator[Breach]:
    wards = circle.get("wards") if isinstance(circle, dict) else None
    given = [call, *(ward for ward in (wards if isinstance(wards, list) else ()) if isinstance(ward, dict))]
    required = any(each.get(key) in _ON for each in given for key in ("require_done_tool", "require_done"))
    if call.get("tool_choice") == "none" and required:
        from cantrip_acp.core.definition.cantrip_definition import NEVER_DONE

        yield Breach(("call", "tool_choice"), NEVER_DONE, True, "LOOP-2")


def _crystal(crystal: Any, path: KeyPath) -> Iterator[Breach]:
    if isinstance(crystal, dict) and crystal.get("provider") == "scripted":
        if "responses" not in crystal and "script" not in crystal:
            yield Breach(path, "a scripted crystal needs responses, or script (a file with responses)", True, "schema")
        yield from _both(crystal, path, "responses", "script")
    elif isinstance(crystal, dict) and "model" not in crystal and crystal.get("provider") in _NEED_A_MODEL:
        yield Breach(path, "missing required key 'model' in crystal", True, "schema", Mend("add-model"))


_NEED_A_MODEL = tuple(name for name in names.MODEL_PROVIDERS if name != "embedded")
MODEL = {"if": {"not": {"properties": {"provider": {"const": "embedded"}}}}, "then": {"required": ["model"]}}


SCRIPTED = {"oneOf": [{"required": ["responses"]}, {"required": ["script"]}]}


CODE_KEYS = ("code_python", "loom")
"""Keys of a circle that apply only to the code medium."""


def _of_code(circle: dict[str, Any]) -> Iterator[Breach]:
    medium = circle.get("medium", "conversation")
    for key in CODE_KEYS:
        if key in circle and medium != "code" and isinstance(medium, str):
            text = f"{key} can be used only with the code medium; this circle has the medium {medium}"
            yield Breach(("circle", key), text, True, "schema", Mend("code-medium"))


OF_CODE = {
    "if": {"anyOf": [{"required": [key]} for key in CODE_KEYS]},
    "then": {"properties": {"medium": {"const": "code"}}, "required": ["medium"]},
}


def gate_name(gate: Any) -> str | None:
    """The canonical name of a gate entry in a recipe. None if the entry has no name."""
    name = gate.get("name") if isinstance(gate, dict) else gate
    return ALIASES.get(name, name) if isinstance(name, str) else None


def _gates(circle: dict[str, Any], call: Any) -> Iterator[Breach]:
    gates = circle.get("gates")
    if "gates" in circle and not isinstance(gates, list):
        return  # the models report the wrong type
    found = [gate_name(gate) for gate in gates or ()]
    path: KeyPath = ("circle", "gates") if "gates" in circle else ("circle",)
    if "done" not in found:
        message, rule = _no_done(circle, call, "add done to gates")
        yield Breach(path, message, True, rule, Mend("add-done"))
    for index, name in enumerate(found):
        if name is not None and name in found[:index]:
            yield Breach((*path, index), f"gate {name!r} is listed twice", False, "duplicate-gate")


def _no_done(circle: dict[str, Any], call: Any, mend: str) -> tuple[str, str]:
    """The message for a missing done gate, and the id of the rule."""
    wards = circle.get("wards")
    required = isinstance(call, dict) and any(call.get(k) in _ON for k in ("require_done_tool", "require_done"))
    for ward in wards if isinstance(wards, list) else ():
        if isinstance(ward, dict):
            required = required or any(ward.get(k) in _ON for k in ("require_done_tool", "require_done"))
    if required:
        return f"cantrip with require_done must have a done gate: {mend} (LOOP-2)", "LOOP-2"
    why = "with it the agent says that it has finished, also if an answer in plain text ends its work"
    return f"circle must have a done gate: {mend}; {why} (CIRCLE-1)", "CIRCLE-1"


def gates_schema() -> dict[str, Any]:
    """JSON Schema of the gates: done is listed, and no gate is listed twice."""

    def named(*words: str) -> dict[str, Any]:
        listed = {"enum": list(words)}
        mapping = {"type": "object", "properties": {"name": listed}, "required": ["name"]}
        return {"anyOf": [listed, mapping]}

    aliases: dict[str, list[str]] = {}
    for alias, name in ALIASES.items():
        aliases.setdefault(name, []).append(alias)
    return {
        "contains": named("done"),
        "allOf": [
            {"contains": named(name, *aliases.get(name, ())), "minContains": 0, "maxContains": 1}
            for name in names.gate_names()
        ],
    }


def _wards(circle: dict[str, Any]) -> Iterator[Breach]:
    wards = circle.get("wards")
    if "wards" in circle and not isinstance(wards, list):
        return
    path: KeyPath = ("circle", "wards") if "wards" in circle else ("circle",)
    if not any(isinstance(ward, dict) and "max_turns" in ward for ward in wards or ()):
        yield Breach(
            path,
            "cantrip must have at least one truncation ward: add max_turns, as in `- max_turns: 20` (LOOP-2)",
            True,
            "LOOP-2",
            Mend("add-max-turns"),
        )
    for index, ward in enumerate(wards or ()):
        if not isinstance(ward, dict):
            continue
        if len(ward) != 1:
            what = "is empty" if not ward else f"has {len(ward)} keys"
            text = f"a ward must be a mapping of one name to its value; this ward {what}"
            yield Breach((*path, index), text, False, "schema", Mend("split"))
        removed = ward.get("remove_gate")
        if removed == "done" or (isinstance(removed, list) and "done" in removed):
            message, rule = _no_done(circle, None, "do not remove it")
            yield Breach((*path, index, "remove_gate"), message, False, rule, Mend("keep-done"))


WARDS_SCHEMA: dict[str, Any] = {
    "contains": {"type": "object", "required": ["max_turns"]},
    "not": {
        "contains": {
            "type": "object",
            "properties": {
                "remove_gate": {"anyOf": [{"const": "done"}, {"type": "array", "contains": {"const": "done"}}]}
            },
            "required": ["remove_gate"],
        }
    },
}

ONE_WARD = {"minProperties": 1, "maxProperties": 1}
