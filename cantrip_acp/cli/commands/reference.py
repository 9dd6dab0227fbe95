"""`cantrip gates` and `cantrip wards`: list what a recipe's circle can contain, with arguments and explanations."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from cantrip_acp.cli.command_table import examples, unknown_name
from cantrip_acp.text.sanitize import clean_line

if TYPE_CHECKING:
    from cantrip_acp.gates.contract import Gate

RULES = {
    "min": "the smaller value",
    "or": "true if one of them is true",
    "and": "what both allow",
    "paths": "the paths that both allow",
    "allow": "the names that both allow",
    "deny": "the names of both",
    "home": "private, unless both are persistent",
}
"""How a ward of a parent and the same ward of its child combine."""


@click.command("gates", **examples("cantrip gates", "cantrip gates read_file", "cantrip gates --json"))
@click.argument("name", required=False, metavar="[NAME]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def gates(name: str | None, as_json: bool) -> None:
    """List the gates that a recipe can name, or show the arguments and options of one.

    The list does not have gates of MCP servers and of your own Python files, because Cantrip would have to run them.
    """
    from cantrip_acp.gates import registry

    known = registry.names()
    if name is not None and registry.ALIASES.get(name, name) not in known:
        raise click.UsageError(unknown_name("gate", name, known))
    found = [_gate(registry.find(each)) for each in ([name] if name is not None else known)]
    if as_json:
        click.echo(json.dumps({"gates": found}, indent=2))
        return
    from cantrip_acp.cli.render.terminal import Screen

    screen = Screen()
    for gate in found:
        writes = (" changes something", "yellow") if gate["writes"] else ("", "")
        screen.line((gate["signature"], "bold"), writes)
        lines = clean_line(gate["description"], 2000) if name is not None else gate["description"].split("\n")[0]
        screen.line((lines, "" if name is not None else "dim"), indent=2)
        if name is None:
            continue
        _list(screen, "arguments", gate["parameters"].get("properties", {}), gate["parameters"].get("required", ()))
        _list(screen, "options in a recipe", gate["options"], gate["needs"])
    if name is None:
        screen.blank()
        screen.line(("cantrip gates NAME explains the arguments of one", "dim"))


def _list(screen: Any, title: str, schemas: Mapping[str, Any], required: Any) -> None:
    if schemas:
        screen.blank()
        screen.line((title, "bold cyan"))
    for key, schema in schemas.items():
        kind = schema.get("type") or ("one of several types" if "anyOf" in schema or "oneOf" in schema else "any")
        kind = " or ".join(kind) if isinstance(kind, list) else kind
        needed = ", required" if key in required else ""
        screen.line(
            (key, "bold"), f" ({kind}{needed})  ", clean_line(str(schema.get("description", "")), 500), indent=2
        )


def _gate(gate: Gate) -> dict[str, Any]:
    return {
        "name": gate.name,
        "signature": gate.signature(),
        "description": gate.description,
        "parameters": gate.parameters,
        "options": dict(gate.options or {}),
        "needs": sorted(gate.needs),
        "writes": gate.writes,
        "kind": gate.kind,
    }


@click.command("wards", **examples("cantrip wards", "cantrip wards max_turns", "cantrip wards --json"))
@click.argument("name", required=False, metavar="[NAME]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def wards(name: str | None, as_json: bool) -> None:
    """List the wards (limits) that a recipe can set, with their defaults, or explain one.

    A ward can only restrict: the wards of a child combine with those of its parent, and a child never has more rights
    than its parent.
    """
    from cantrip_acp.gates.wards import Wards

    found = _wards(Wards)
    if name is not None and name not in [each["name"] for each in found]:
        raise click.UsageError(unknown_name("ward", name, [each["name"] for each in found]))
    chosen = [each for each in found if name in (None, each["name"])]
    if as_json:
        click.echo(json.dumps({"wards": chosen}, indent=2))
        return
    from cantrip_acp.cli.render.table import print_table
    from cantrip_acp.cli.render.terminal import Screen

    screen = Screen()
    if name is None:
        rows = [[ward["name"], _default(ward["default"]), ward["meaning"]] for ward in chosen]
        print_table(screen, ["ward", "default", "meaning"], rows)
        return
    (ward,) = chosen
    screen.line((ward["name"], "bold"), f"  {ward['meaning']}")
    for title, text in (
        ("value", ward["type"]),
        ("default", _default(ward["default"])),
        ("with a child's", ward["combines"]),
        ("in a recipe", f"wards: [{{{ward['name']}: {ward['example']}}}]"),
    ):
        screen.line((f"{title:<16}", "dim"), text, indent=2)


def _wards(wards: Any) -> list[dict[str, Any]]:
    from dataclasses import fields

    samples = {"number": 60, "boolean": True, "network": "[pypi.org]", "paths": "[workspace]", "home": "persistent"}
    found = []
    for ward in fields(wards):
        kind = ward.metadata["kind"]
        sample = samples.get(kind, max(ward.metadata["low"], 10) if kind == "integer" else "[NAME]")
        found.append(
            {
                "name": ward.name,
                "meaning": ward.metadata["meaning"],
                "type": {"network": "true, false or a list of hosts", "home": "private or persistent"}.get(
                    kind,
                    "a list of names"
                    if kind in ("names", "protected")
                    else f"a list of {kind}"
                    if kind == "paths"
                    else kind,
                ),
                "default": list(ward.default) if isinstance(ward.default, tuple) else ward.default,
                "combines": RULES[ward.metadata["rule"]],
                "example": json.dumps(sample) if not isinstance(sample, str) else sample,
            }
        )
    return found


def _default(value: Any) -> str:
    return "none" if value is None or value == [] else json.dumps(value)
