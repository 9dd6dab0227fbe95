"""Make `docs/reference/`, the reference pages that are generated from the code.

    python tools/reference.py            # write the pages
    python tools/reference.py --check    # 1 if a page is not what the code makes; names the pages

Each function below makes one page. The texts are those of the code: the JSON Schema of recipes, the meanings of wards, the
declarations of gates, the help of commands, and docstrings. To correct a text, correct it there.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import click
import msgspec

import cantrip_acp
from cantrip_acp.acp.start import main as acp_agent
from cantrip_acp.cli import environment
from cantrip_acp.cli import errors as exit_codes
from cantrip_acp.cli.command_table import cantrip
from cantrip_acp.crystals.local.presets import PRESETS
from cantrip_acp.gates import registry
from cantrip_acp.gates.wards import WARDS
from cantrip_acp.recipes.models.schema import recipe_schema
from cantrip_acp.types import events
from cantrip_acp.types import records as records
from cantrip_acp.types.usage import Usage

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "reference"
GENERATED = "<!-- Made by tools/reference.py from the code. Do not edit this page. -->\n\n"

Schema = Mapping[str, Any]


# --- Markdown -----------------------------------------------------------------------------------------------------------


def code(text: str) -> str:
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def cell(text: str) -> str:
    """A text in one cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


def table(*head: str, rows: Iterable[tuple[str, ...]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    lines += [f"| {' | '.join(map(cell, row))} |" for row in rows]
    return "\n".join(lines) + "\n"


def prose(docstring: str | None) -> str:
    """A docstring as Markdown: ``x`` and `x` are code, and a list has an empty line before it."""
    lines: list[str] = []
    for line in inspect.cleandoc(docstring or "").replace("``", "`").splitlines():
        if line.startswith("- ") and lines and lines[-1] and not lines[-1].startswith(("- ", "  ")):
            lines.append("")
        lines.append(line)
    return "\n".join(lines)


def block(text: str, language: str = "text") -> str:
    return f"```{language}\n{text.rstrip()}\n```\n"


# --- recipes ------------------------------------------------------------------------------------------------------------

# The order in which a reader meets them; what is not named here follows by name.
FIRST = ("Call", "Circle", "PlainGate", "FileGate", "TestGate", "PythonGates", "Ward", "Score", "ModelCrystal")
TITLES = {
    "Call": "call", "Circle": "circle", "Ward": "circle.wards: one ward", "Score": "circle.score", "Folding": "folding",
    "Retry": "retry", "Loom": "loom", "Memory": "memory", "McpServer": "mcp_servers: one server",
    "ModelCrystal": "crystal: a model", "ScriptedCrystal": "crystal: a script", "HumanCrystal": "crystal: a person",
    "PlainGate": "circle.gates: a gate by name", "FileGate": "circle.gates: a gate that works on files",
    "TestGate": "circle.gates: run_tests", "PythonGates": "circle.gates: gates of a Python file",
    "Price": "crystal.price", "LongPrice": "crystal.price.long", "ScriptMapping": "crystal.script",
    "ScriptedResponse": "One response of a script", "ScriptedToolCall": "One call in a response",
    "ScriptedToolResult": "One result in a response", "ScriptedError": "An error in a response",
    "Usage": "The usage in a response",
}  # fmt: skip


def kind_of(schema: Schema) -> str:
    """The type of a value, in words, with a link to the section that describes a mapping."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{TITLES[name]}](#{anchor(TITLES[name])})"
    if "const" in schema:
        return code(json.dumps(schema["const"]).strip('"'))
    if "enum" in schema:
        values = [str(value) for value in schema["enum"]]
        if "read_context" in values:
            return "the name of a [gate](gates.md)"
        # YAML's other spellings of true and false.
        values = [value for value in values if value.lower() not in ("on", "off", "yes", "no")]
        return " or ".join(map(code, values))
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return " or ".join(dict.fromkeys(filter(None, map(kind_of, schema[several]))))
    match schema.get("type"):
        case "array":
            return f"list of {kind_of(schema.get('items', {})) or 'values'}"
        case "object":
            inner = schema.get("additionalProperties")
            return f"mapping of {kind_of(inner)}" if isinstance(inner, Mapping) and kind_of(inner) else "mapping"
        case "string":
            return "text"
        case "integer":
            return "whole number" + limits(schema)
        case "number":
            return "number" + limits(schema)
        case "boolean":
            return "true or false"
        case "null":
            return "null"
        case list() as types:
            return " or ".join(kind_of({"type": each}) for each in types)
    return "any value" if not schema.get("not") else ""


def limits(schema: Schema) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    above = schema.get("exclusiveMinimum")
    words = [f"above {above}"] if above is not None else []
    if low is not None and high is not None:
        words = [f"from {low} to {high}"]
    elif low is not None:
        words = [f"at least {low}"]
    elif high is not None:
        words.append(f"at most {high}")
    return f", {' and '.join(words)}" if words else ""


def anchor(title: str) -> str:
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def keys(schema: Schema) -> str:
    required = schema.get("required", ())
    return table(
        "key", "value", "meaning", "example",
        rows=(
            (
                f"`{name}`" + (" (required)" if name in required else ""),
                kind_of(about),
                about.get("description", ""),
                code(json.dumps(about["examples"][0], ensure_ascii=False)) if about.get("examples") else "",
            )
            for name, about in schema.get("properties", {}).items()
        ),
    )  # fmt: skip


def recipe_keys() -> str:
    schema = recipe_schema()
    parts = [
        "# Recipe keys\n",
        "A recipe is a YAML file `NAME.cantrip.yaml`. [How to write one](../recipes.md) explains it with examples. "
        "`cantrip recipe check FILE` finds mistakes. `cantrip recipe schema` prints the JSON Schema, from which this page "
        "is made.\n",
        "## The recipe\n",
        keys(schema),
    ]
    definitions = schema["$defs"]
    for name in (*FIRST, *sorted(set(definitions) - set(FIRST))):
        about = definitions[name]
        parts += [f"## {TITLES[name]}\n", f"{about.get('description', '')}\n"]
        if name == "Ward":
            parts.append("A list item has one of the [wards](wards.md); two wards are two items.\n")
        elif "properties" in about:
            parts.append(keys(about))
        else:
            parts.append(f"{kind_of(about)}\n")
    return "\n".join(parts)


# --- wards --------------------------------------------------------------------------------------------------------------

COMBINED = {
    "min": "the smaller number",
    "or": "true if either is true",
    "and": "allowed only if both allow it",
    "paths": "only paths that both allow",
    "allow": "only names that both allow",
    "deny": "the names of both",
    "home": "persistent only if both say so",
}
WARD_KINDS = {
    "integer": "whole number", "number": "number", "boolean": "true or false", "network": "false, true or hosts",
    "paths": "list of paths", "names": "list of names", "protected": "list of protected names", "home": "private or persistent",
}  # fmt: skip


def wards() -> str:
    def default(value: Any) -> str:
        if value is None:
            return "no limit"
        if value == ():
            return "none"
        return code(str(value).lower() if isinstance(value, bool) else str(value))

    return "\n".join(
        [
            "# Wards\n",
            "A ward is a limit of a circle. Most wards take something away. A few, such as `bash_network` and "
            "`bash_writable_paths`, name what the sandbox opens: without them it is closed. A child, a mode or a second line can "
            "only make a ward stricter. `max_turns` is the one that every recipe needs:\n",
            block("circle:\n  medium: bash\n  gates: [done]\n  wards: [{max_turns: 10}, {bash_network: [pypi.org]}]", "yaml"),
            "If a child and its parent, or two lines of a recipe, set the same ward, they are combined as the last column says. "
            "Relative paths start from the session's folder; the word `workspace` means this folder.\n",
            table(
                "ward", "value", "default", "limits", "two values combined",
                rows=(
                    (f"`{name}`", WARD_KINDS[about["kind"]], default(about["default"]), about["meaning"], COMBINED[about["rule"]])
                    for name, about in WARDS.items()
                ),
            ),
        ]
    )  # fmt: skip


# --- gates --------------------------------------------------------------------------------------------------------------


def gates() -> str:
    parts = [
        "# Gates\n",
        "A gate is a function of the host that an entity can call. In a conversation it is a tool, in the medium code a "
        "Python function, and in the medium bash a command. A circle names its gates: "
        "`gates: [done, {name: read_file, root: data}]`. [How to write your own](../own-gates.md). "
        "MCP servers [add more](../mcp.md).\n",
        "The descriptions below are the texts that the model reads.\n",
    ]
    for name in registry.BUILT_IN:
        gate = registry.find(name)
        other = [alias for alias, real in registry.ALIASES.items() if real == name]
        facts = [f"Kind: {gate.kind}.", "It changes something outside of the entity." if gate.writes else ""]
        facts += [f"Other name: `{alias}`." for alias in other]
        parts += [f"## {name}\n", f"{gate.description}\n", " ".join(filter(None, facts)) + "\n"]
        required = gate.parameters.get("required", ())
        properties = gate.parameters.get("properties", {})
        if properties:
            parts.append(
                table(
                    "argument", "value", "meaning",
                    rows=(
                        (f"`{each}`" + (" (required)" if each in required else ""), kind_of(about), about.get("description", ""))
                        for each, about in properties.items()
                    ),
                )
            )  # fmt: skip
        else:
            parts.append("It has no arguments.\n")
        if gate.options:
            options = ", ".join(f"`{each}` ({about['description']})" for each, about in gate.options.items())
            parts.append(f"A recipe can set: {options}.\n")
    return "\n".join(parts)


# --- events and records -----------------------------------------------------------------------------------------------------


def subclasses(base: type[events.Event]) -> Iterator[type[events.Event]]:
    for each in base.__subclasses__():
        if each.__module__ == events.__name__:
            yield each
        yield from subclasses(each)


def struct(kind: type[msgspec.Struct], without: frozenset[str] = frozenset()) -> str:
    def value(annotation: Any) -> str:
        text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
        text = re.sub(r"\bmsgspec\.UnsetType \| | \| msgspec\.UnsetType\b", "", text)
        text = re.sub(r"tuple\[([\w ]+), \.\.\.\]", r"list of \1", text.replace("Mapping[str, Any]", "mapping"))
        return code(re.sub(r"\bAny\b", "any", text).replace("None", "null"))

    rows = [
        (f"`{f.encode_name}`", value(inspect.get_annotations(owner(kind, f.name))[f.name]), "yes" if f.required else "")
        for f in msgspec.structs.fields(kind)
        if f.name not in without
    ]
    return table("field", "type", "always there", rows=rows) if rows else "It has no fields of its own.\n"


def owner(kind: type, name: str) -> type:
    """The class that declares a field."""
    return next(base for base in kind.__mro__ if name in inspect.get_annotations(base))


def event_types() -> str:
    shared = frozenset(events.Event.__struct_fields__)
    parts = [
        "# Events\n",
        "An event says what happens while a cast runs. `cantrip cast --json` prints each event as a line of JSON. In "
        "Python, `async with cantrip.cast_stream(intent) as stream:` and `async for event in stream:` give them as "
        "objects; their classes are in `cantrip_acp.events`.\n",
        "Every event has the fields `event` (its name), `entity_id`, `cast_id` and `depth` (0 for the entity that you "
        "cast, 1 for its children, …).\n",
    ]
    for kind in subclasses(events.Event):
        tag = kind.__struct_config__.tag
        parts += [
            f"## {tag}\n",
            f"In Python: `{kind.__name__}`. {prose(kind.__doc__)}".rstrip() + "\n",
            struct(kind, shared),
        ]
    return "\n".join(parts)


PARTS = (
    records.Utterance,
    records.Observation,
    records.GateRecord,
    records.Output,
    records.FileChange,
    records.TurnMetadata,
    records.VoidedAttempt,
    Usage,
)


def loom_records() -> str:
    parts = [
        "# Loom records\n",
        "A loom is an append-only list of records. In a `.loom.jsonl` file each line is one record: a JSON object with a "
        "`type`. A written record never changes; what is added later is a record of its own. [Looms](../looms.md) "
        "explains how to use them.\n",
        f"This page describes version {records.FORMAT} of the format. A file also has `sum`, `prev` and `n` in each "
        "line: a checksum, the record before it and its position. A field that is not always there may be absent, or "
        "has its default value.\n",
    ]
    for kind in get_args(records.Record):
        parts += [f"## {kind.__struct_config__.tag}\n", f"{prose(kind.__doc__)}\n", struct(kind)]
    parts += ["## Parts of records\n"]
    for kind in PARTS:
        parts += [f"### {kind.__name__}\n", f"{prose(kind.__doc__)}\n", struct(kind)]
    return "\n".join(parts)


# --- commands ---------------------------------------------------------------------------------------------------------------


def help_text(command: click.Command, path: str) -> str:
    context = click.Context(command, info_name=path, terminal_width=100, max_content_width=100)
    return click.unstyle(command.get_help(context))


def commands() -> str:
    words = re.search(r"Exit statuses: (.*?)\.", inspect.getdoc(exit_codes) or "", re.DOTALL)
    assert words, "the docstring of cantrip_acp.cli.errors has the exit statuses"
    statuses = [each.strip().partition(" ") for each in " ".join(words[1].split()).split(", ")]
    statuses = merge(statuses)
    parts = [
        "# Commands\n",
        "`cantrip` is for people, `cantrip-acp` is what editors start. With `--help` each command prints the text below. "
        "The examples can be pasted.\n",
        "## Exit codes\n",
        table("code", "meaning", rows=((number, meaning) for number, _, meaning in statuses)),
        "## cantrip\n",
        block(help_text(cantrip, "cantrip")),
    ]
    for path, command in every_command(cantrip, "cantrip"):
        if path in ("cantrip acp", "cantrip lsp"):
            continue
        parts += [f"## {path}\n" if path.count(" ") == 1 else f"### {path}\n", block(help_text(command, path))]
    parts += ["## cantrip-acp\n", block(printed(acp_agent, ["--help"]))]
    return "\n".join(parts)


def merge(statuses: list[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
    """A comma inside a meaning does not begin another status."""
    merged: list[tuple[str, str, str]] = []
    for number, space, meaning in statuses:
        if number.isdigit():
            merged.append((number, space, meaning))
        else:
            last = merged.pop()
            merged.append((last[0], " ", f"{last[2]}, {number}{space}{meaning}"))
    return merged


def every_command(group: click.Group, path: str) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group, info_name=path)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if command.hidden:
            continue
        yield f"{path} {name}", command
        if isinstance(command, click.Group):
            yield from every_command(command, f"{path} {name}")


def printed(main: Callable[[list[str]], Any], arguments: list[str]) -> str:
    import contextlib
    import io

    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        main(arguments)
    return out.getvalue()


# --- Python -----------------------------------------------------------------------------------------------------------------


PUBLIC = (
    "cantrip_acp.loom.rewards",
    "cantrip_acp.loom.view",
    "cantrip_acp.training",
    "cantrip_acp.tuplespace",
)
"""Modules beside `cantrip_acp` itself whose names are public: those of their ``__all__``."""
OF_TRAINERS = (
    "cantrip_acp.training.adapters.casts",
    "cantrip_acp.training.adapters.trl_rollouts",
    "cantrip_acp.training.verifiers",
)
"""Public modules that import a trainer of another project."""


def python_api() -> str:
    modules = ", ".join(f"[`{name}`](#{anchor(name)})" for name in PUBLIC)
    adapters = ", ".join(f"`{name}`" for name in OF_TRAINERS)
    parts = [
        "# Python API\n",
        f"These names can be imported from `cantrip_acp`, and those at the end from {modules}. The modules for trainers "
        f"({adapters}) are public too; [training](../training.md) explains them. Everything else is internal, and may change in "
        "any version.\n",
        *documented(cantrip_acp, "##"),
    ]
    for name in PUBLIC:
        module = importlib.import_module(name)
        parts += [
            f"## {name}\n",
            f"{prose((module.__doc__ or '').partition(chr(10))[0])}\n",
            *documented(module, "###"),
        ]
    return "\n".join(parts)


def documented(module: Any, level: str) -> list[str]:
    """The public names of a module."""
    parts = []
    for name in sorted(module.__all__, key=str.lower):
        if hasattr(module, "__path__") and importlib.util.find_spec(f"{module.__name__}.{name}") is not None:
            continue  # a module that other folders of the package may import
        thing = getattr(module, name)
        parts.append(f"{level} {name}\n")
        if inspect.isclass(thing) or callable(thing):
            parts.append(block(signature(name, thing), "python"))
        parts.append(f"{prose(thing.__doc__)}\n")
        if inspect.isclass(thing):
            parts += members(name, thing)
    return parts


class Plain(str):
    """A text that a signature shows without quotation marks."""

    __slots__ = ()
    __repr__ = str.__str__


def short(default: Any) -> Any:
    """A default value; one that is long or an address in memory is left out."""
    unreadable = default is not inspect.Parameter.empty and ("<" in repr(default) or len(repr(default)) > 40)
    return Plain("…") if unreadable else default


def plain(annotation: Any) -> Any:
    if not isinstance(annotation, str):
        return annotation
    return Plain(re.sub(r"\b(?:\w+\.)+(?=[A-Z])", "", annotation))


def signature(name: str, thing: Any) -> str:
    """How it is called, with one parameter a line if it is long."""
    try:
        found = inspect.signature(thing)
    except ValueError:
        # An exception without an __init__ of its own.
        return name
    given = [
        parameter.replace(annotation=plain(parameter.annotation), default=short(parameter.default))
        for parameter in found.parameters.values()
        if parameter.name not in ("self", "cls")
    ]
    result = found.return_annotation if inspect.isclass(thing) is False else found.empty
    text = str(found.replace(parameters=given, return_annotation=plain(result)))
    if len(name + text) > 100:
        inner, _, result = text[1:].rpartition(")")
        text = "(\n    " + ",\n    ".join(split_top(inner)) + f",\n){result}"
    return name + text


def split_top(text: str) -> list[str]:
    """Split at commas outside of brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


def members(owner_name: str, thing: type) -> list[str]:
    parts = []
    for name in dir(thing):
        if name.startswith("_") or name not in vars(thing):
            continue
        member = inspect.getattr_static(thing, name)
        wrapped = member.__func__ if isinstance(member, classmethod | staticmethod) else member
        doc = wrapped.fget.__doc__ if isinstance(wrapped, property) else getattr(wrapped, "__doc__", None)
        if isinstance(wrapped, property):
            parts += [f"### {owner_name}.{name}\n", f"A property. {prose(doc)}\n"]
        elif inspect.isfunction(wrapped) and doc:
            word = "await " if inspect.iscoroutinefunction(wrapped) else ""
            parts += [
                f"### {owner_name}.{name}\n",
                block(word + signature(f"{owner_name}.{name}", wrapped), "python"),
                f"{prose(doc)}\n",
            ]
    return parts


# --- environment variables --------------------------------------------------------------------------------------------------


def environment_variables() -> str:
    hosted = [preset for preset in PRESETS.values() if not preset.local]
    keys = ", ".join(f"`{preset.key}`" for preset in hosted)
    models = [*_variables(environment.MODELS), (f"{keys} ✎", f"keys of {', '.join(f'`{p.name}`' for p in hosted)}")]
    parts = [
        "# Environment variables\n",
        "These are all environment variables that Cantrip reads. Those with ✎ can also be in `.env` of your configuration "
        "folder, which also works for a program that you start from a menu. Cantrip never reads a `.env` in a workspace. "
        "`cantrip doctor` names variables that begin with `CANTRIP_` or `YOOL_` and that nothing reads.\n",
        "## Models and keys\n",
        table("variable", "what it does", rows=models),
        "[Models](../models.md#which-key-is-sent-where) says which key is sent where.\n",
        "## Folders and output\n",
        table("variable", "what it does", rows=_variables(environment.FOLDERS)),
        "## Gates and traces\n",
        table("variable", "what it does", rows=_variables(environment.GATES)),
        "## In the sandbox\n",
        "Commands in the sandbox get none of these. They get `PATH`, `HOME` (private), `LANG` and similar variables, "
        "`TRACEPARENT` of the cast, `CANTRIP_CONTEXT` (the file with the [data](../delegation.md) of a child), "
        "`CANTRIP_ENGINE_CALL`, `CANTRIP_PROCESS` and `CANTRIP_INPUT` ([programs](../programs.md) of the substrate), on macOS "
        "`CANTRIP_SANDBOX` (a random value by which the processes of the command are found), and, if the wards list hosts, the "
        "proxy for them.",
    ]
    return "\n".join(parts)


def _variables(described: Iterable[environment.Variables]) -> Iterator[tuple[str, str]]:
    for each in described:
        names = ", ".join(f"`{name}`" for name in each.names)
        yield f"{names} ✎" if each.dotenv else names, each.meaning.replace("](", "](../")


PAGES: dict[str, Callable[[], str]] = {
    "recipe.md": recipe_keys,
    "wards.md": wards,
    "gates.md": gates,
    "events.md": event_types,
    "records.md": loom_records,
    "commands.md": commands,
    "environment.md": environment_variables,
    "python.md": python_api,
}


def main(arguments: list[str]) -> int:
    # Help texts name the user's folders, and an option's default may come from a variable.
    for name in [name for name in os.environ if name.startswith(("CANTRIP_", "XDG_", "YOOL_"))]:
        del os.environ[name]
    made = {name: GENERATED + make().rstrip() + "\n" for name, make in PAGES.items()}
    old = {name: (FOLDER / name).read_text("utf-8") if (FOLDER / name).exists() else "" for name in made}
    stale = [name for name in made if made[name] != old[name]]
    if "--check" in arguments:
        for name in stale:
            sys.stderr.write(f"docs/reference/{name} is not current; run: python tools/reference.py\n")
            sys.stderr.writelines(difflib.unified_diff(old[name].splitlines(True), made[name].splitlines(True), n=1))
        return 1 if stale else 0
    FOLDER.mkdir(exist_ok=True)
    for name in stale:
        (FOLDER / name).write_text(made[name], "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
